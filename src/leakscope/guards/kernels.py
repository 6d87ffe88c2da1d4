"""Gaussian kernels of a batch of representations, several widths for the price of one exponential."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import torch
from torch import Tensor

WIDTHS = (0.25, 0.5, 1.0, 2.0)  # of the kernels, in units of the root mean squared distance


def squared_distances(r: Tensor) -> Tensor:
    """Between all rows of (n, d). They are centred first: representations that lie close together, far from
    0, would lose their distances to rounding."""
    r = r - r.mean(0)
    lengths = torch.linalg.vecdot(r, r)
    squares = torch.addmm(lengths, r, r.T, alpha=-2).add_(lengths[:, None]).clamp_(min=0)
    return squares.fill_diagonal_(0)


def kernels(squares: Tensor, widths: Sequence[float], unit: float) -> Iterator[tuple[Tensor, float]]:
    """The kernel of every width, widest first, and its rate. One of half the width of that before is its
    fourth power, and needs no exponential. ``squares`` are used up, since new memory of this size costs as
    much as the arithmetic."""
    halves = all(wide == 2 * narrow for wide, narrow in pairwise(widths))
    for i, width in enumerate(widths):
        rate = -1 / (2 * width**2 * unit)
        if not halves:
            yield (squares * rate).exp_(), rate
        else:
            yield squares.square_().square_() if i else squares.mul_(rate).exp_(), rate
