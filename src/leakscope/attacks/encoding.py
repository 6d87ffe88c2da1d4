"""How a table is written down, which its columns and any records of its kind tell: what a record can be."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from leakscope.core.dataset import Dataset

SHARES = 20  # steps in which the share of records that pinned values cover grows to all


@dataclass(frozen=True, eq=False)
class Options:
    """Positions (w,) of x that together take one of a few ``options`` (o, w): the dummies of a category, or a
    number that has few values."""

    positions: Tensor
    options: Tensor

    def among(self, active: Tensor) -> Options | None:
        """What is left where some positions are zero in every record; None: nothing that branches."""
        kept = active[self.positions]
        possible = (self.options[:, ~kept] == 0).all(1)
        options = self.options[possible][:, kept]
        return Options(self.positions[kept], options) if bool(kept.any()) and len(options) else None


@dataclass(frozen=True, eq=False)
class Pin:
    """A number of few values (v,), the commonest first, and the share (v,) of public records that have one of
    the first."""

    position: int
    values: Tensor
    shares: Tensor

    def reaching(self, share: float) -> Options:
        """The values that this share of public records have."""
        most = int((self.shares < share - 1e-9).sum()) + 1
        return Options(torch.tensor([self.position]), self.values[:most, None])


def pinned_within(pins: Sequence[Pin], budget: float) -> list[Options] | None:
    """Values of several numbers, as large a share of each as keeps their combinations within the budget;
    None: not even the commonest do."""
    for step in range(SHARES, 0, -1):
        groups = [pin.reaching(step / SHARES) for pin in pins]
        if math.prod(len(group.options) for group in groups) <= budget:
            return groups
    return None


@dataclass(frozen=True, eq=False)
class Encoding:
    """The ``groups`` of a table, the positions (k,) of its ``numbers``, those of them that have few values
    (``pins``), and the ``centre`` and ``scale`` (d,) that give numbers unit spread.

    One column's dummies are a group where every public record has exactly one of them, or at most one; so is
    a column of codes if public records have all of its categories, since a proof by counting rests on it that
    no record has another; and so is the mark of a missing number."""

    groups: tuple[Options, ...]
    numbers: Tensor
    pins: tuple[Pin, ...]
    centre: Tensor
    scale: Tensor

    @staticmethod
    def of(public: Dataset, *, pinned: int) -> Encoding:
        """What public records say of a table's columns; a number of more than ``pinned`` values is not
        pinned."""
        x = public.x.double()
        groups: list[Options] = []
        covered = torch.zeros(x.shape[1], dtype=torch.bool)
        for column in public.columns:
            places, part = torch.arange(column.start, column.stop), x[:, column.start : column.stop]
            dummies = bool(((part == 0) | (part == 1)).all()) and bool((part.sum(1) <= 1).all())
            if column.values and len(places) > 1 and dummies:
                none = torch.zeros(1, len(places), dtype=x.dtype) if bool((part.sum(1) == 0).any()) else None
                options = torch.eye(len(places), dtype=x.dtype)
                groups.append(Options(places, options if none is None else torch.cat([options, none])))
                covered[places] = True
            elif column.fill is not None and len(places) == 2:  # a number, and the mark of a missing one
                groups.append(Options(places[1:], torch.tensor([[0.0], [1.0]], dtype=x.dtype)))
                covered[places[1:]] = True
            elif len(places) == 1 and len(part.unique()) == len(column.values):
                groups.append(Options(places, part.unique()[:, None]))
                covered[places] = True
        numbers = (~covered).nonzero()[:, 0]
        centre, scale = torch.zeros(x.shape[1]).double(), torch.ones(x.shape[1]).double()
        spread = x[:, numbers].std(0, correction=0)
        centre[numbers] = x[:, numbers].mean(0)
        scale[numbers] = torch.where(spread > 1e-9 * x[:, numbers].abs().amax(0), spread, 1.0)
        pins = []
        for i in numbers.tolist():
            values, counts = ((x[:, i] - centre[i]) / scale[i]).unique(return_counts=True)
            if len(values) <= pinned:
                order = counts.argsort(descending=True)
                pins.append(Pin(i, values[order], counts[order].cumsum(0) / len(x)))
        return Encoding(tuple(groups), numbers, tuple(pins), centre, scale)

    def scaled(self, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Rows (m, d) of a weight's gradient as if records had been centred and scaled."""
        shifted = weight if bias is None else weight - bias[:, None] * self.centre
        return shifted / self.scale

    def records(self, scaled: Tensor, *, centred: bool) -> Tensor:
        """Scaled rows (n, d) as records are written."""
        return scaled * self.scale + (self.centre if centred else 0.0)
