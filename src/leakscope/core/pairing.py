"""Which cells of a table's records agree, and which guess is meant for which record.

A cell is right if its category is, or its number within some standard deviations of public records."""

from __future__ import annotations

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from leakscope.core.dataset import Dataset


def compare_cells(originals: Tensor, guesses: Tensor, public: Dataset, within: float) -> Tensor:
    """Which cells (k, g, columns) of each of k originals each of g guesses has."""
    parts = []
    for column in public.columns:
        one, other = (x[:, column.start : column.stop].double() for x in (originals, guesses))
        if column.values and column.stop - column.start > 1:
            parts.append(torch.cdist(one, other, p=torch.inf) < 0.5)
        else:  # a number, and whether it is missing
            spread = public.x[:, column.start].double().std(correction=0)
            near = torch.cdist(one[:, :1], other[:, :1]) <= within * (float(spread) or 1.0)
            marks = one[:, 1:], other[:, 1:]
            parts.append(near & (torch.cdist(*marks, p=torch.inf) < 0.5) if one.shape[1] > 1 else near)
    return torch.stack(parts, dim=-1)


TIE = 1e-6  # of a cell: what decides between guesses that are equally right


def pair(cells: Tensor, proven: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """One guess for each original, exact ones first, then by ``cells`` (k, g, columns) that are right: which
    cells (k, columns) it has right, and which guess (k,) it is. Of guesses that are equally right, one that
    is ``proven`` (g,): it is there, whoever else says the same."""
    worth = cells.double().mean(2) + len(cells) * cells.all(2)
    worth = worth if proven is None else worth + TIE * cells.all(2) * proven
    rows, order = (torch.from_numpy(places) for places in linear_sum_assignment(-worth.numpy()))
    return cells[rows, order], order
