"""Which cells of a table's records agree, and which guess is meant for which record.

A cell is right if its category is, or its number within some standard deviations of public records."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from leakscope.core.dataset import Dataset


@dataclass(frozen=True, eq=False)
class Ruler:
    """How far each input (d,) of a guess may be off, and the column (d,) that it is of."""

    limits: Tensor
    columns: Tensor

    @classmethod
    def of(cls, public: Dataset, within: float) -> Ruler:
        """Dummies and marks of what is missing must be nearer than a half, numbers within so many deviations
        of public records."""
        half = torch.tensor(0.5, dtype=torch.float64)
        limits = torch.nextafter(half, half - 1).expand(public.x.shape[1]).clone()
        columns = torch.full_like(limits, -1, dtype=torch.long)
        for i, column in enumerate(public.columns):
            columns[column.start : column.stop] = i
        if numbers := [c.start for c in public.columns if not c.values or c.stop - c.start == 1]:
            spread = public.x[:, numbers].double().std(0, correction=0)
            limits[numbers] = within * torch.where(spread == 0, 1.0, spread)
        return cls(limits, columns)

    def compare(self, originals: Tensor, guesses: Tensor) -> Tensor:
        """Which cells (k, g, columns) of each of k originals each of g guesses has."""
        inputs = (self.columns >= 0).nonzero()[:, 0]
        columns, limits, said = self.columns[inputs], self.limits[inputs], guesses[:, inputs].double()
        wrong = torch.zeros(len(originals), len(guesses), int(columns.max()) + 1)
        for row, original in zip(wrong, originals[:, inputs].double(), strict=True):
            row.index_add_(1, columns, (~((said - original).abs() <= limits)).float())
        return wrong == 0


def compare_cells(originals: Tensor, guesses: Tensor, public: Dataset, within: float) -> Tensor:
    """Which cells (k, g, columns) of each of k originals each of g guesses has."""
    return Ruler.of(public, within).compare(originals, guesses)


TIE = 1e-6  # of a cell: what decides between guesses that are equally right


def pair(cells: Tensor, proven: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """One guess for each original, exact ones first, then by ``cells`` (k, g, columns) that are right: which
    cells (k, columns) it has right, and which guess (k,) it is. Of guesses that are equally right, one that
    is ``proven`` (g,): it is there, whoever else says the same."""
    worth = cells.double().mean(2) + len(cells) * cells.all(2)
    worth = worth if proven is None else worth + TIE * cells.all(2) * proven
    rows, order = (torch.from_numpy(places) for places in linear_sum_assignment(-worth.numpy()))
    return cells[rows, order], order
