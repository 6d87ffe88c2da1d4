"""The kernel-ridge adversary in closed form: what it finds in a batch, for an encoder to descend."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from leakscope.guards.kernels import WIDTHS, kernels, squared_distances

RIDGE = 1e-2  # of the adversary, for each record of the batch


def ridge(
    r: Tensor,
    codes: Tensor,
    given: Tensor | None = None,
    *,
    number: Tensor | None = None,
    widths: tuple[float, ...] = WIDTHS,
    strength: float = RIDGE,
) -> Tensor:
    """The share of the secret's variance that kernel ridge regression explains: c'(K + n s I)^-1 K c / c'c.

    c (n, values) is the secret's one-hot, centred, and K the mean of Gaussian kernels of r of several widths,
    in units of the batch's own root mean squared distance, which is not differentiated. It is the best that
    any smooth function of r can do, with nothing to train. ``given`` (n,): what is explained beyond these
    codes: c is centred within each of them, and records of different codes do not see each other. Where the
    codes are ranges of a ``number`` (n,), it stands beside them in c, in units of its deviation."""
    wanted = F.one_hot(codes).to(r.dtype)
    if number is not None:
        z = (number - number.nanmean()).nan_to_num().to(r.dtype)
        wanted = torch.cat([wanted, (z / z.std(correction=0).clamp(min=1e-12))[:, None]], dim=1)
    if given is None:
        c = wanted - wanted.mean(0)
    else:
        inside = F.one_hot(given).to(r.dtype)
        c = wanted - (inside @ ((inside.T @ wanted) / inside.sum(0).clamp(min=1)[:, None]))
    total = float(c.square().sum())
    if total < 1e-6 * len(c):  # one value only: there is nothing to find
        return r.sum() * 0
    alike = None if given is None else given[:, None] == given[None]
    value: Tensor = _Ridge.apply(r.flatten(1), c, alike, total, widths, strength)  # type: ignore[no-untyped-call]
    return value


class _Ridge(torch.autograd.Function):
    """With a = (K + n s I)^-1 c the value is 1 - n s c'a / c'c and its slope by K is n s a a' / c'c: one
    Cholesky factor gives both."""

    @staticmethod
    def forward(
        ctx: Any,
        r: Tensor,
        c: Tensor,
        alike: Tensor | None,
        total: float,
        widths: tuple[float, ...],
        strength: float,
    ) -> Tensor:
        squares, n = squared_distances(r), len(r)
        unit = max(float(squares.mean()), 1e-12)
        if not math.isfinite(unit):  # training has run away, and who trains says so
            ctx.save_for_backward(torch.full_like(r, math.nan))
            return r.new_tensor(math.nan)
        system, slopes = torch.zeros_like(squares), torch.zeros_like(squares)
        for kernel, rate in kernels(squares, sorted(widths, reverse=True), unit):
            system.add_(kernel, alpha=1 / len(widths))
            slopes.add_(kernel, alpha=rate / len(widths))
        if alike is not None:
            system.mul_(alike)
        system.diagonal().add_(n * strength)
        a = torch.cholesky_solve(c, torch.linalg.cholesky(system))
        share = n * strength / total
        weights = (a @ a.T).mul_(slopes)
        if alike is not None:
            weights.mul_(alike)
        slope = (weights.sum(1, keepdim=True) * r).sub_(weights @ r).mul_(4 * share)
        ctx.save_for_backward(slope)
        return 1 - share * (c * a).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, above: Tensor) -> tuple[Tensor | None, ...]:
        (slope,) = ctx.saved_tensors
        return above * slope, None, None, None, None, None
