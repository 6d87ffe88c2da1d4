"""From a record as it is kept to what an encoder's network takes: categories, a grid, a scale.

What is saved of the training records is no value and no exact number of few people. A category that fewer
than ``fewest`` people have is none of the encoder's: it is "other", and so is one that was never seen. The
mean and the deviation of a number are taken between its ``fewest``-th smallest and largest value, and
rounded. Where people have several records, so many times as many are left out at both ends. What is rounded
to one point of the grid is one record to the encoder.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from leakscope.core.columns import FEW, OTHER, Column, fill_category
from leakscope.core.dataset import Dataset
from leakscope.core.errors import DataError, require

GRID = 0.05  # of a number's standard deviation: about how fine its grid is
# Points of the grid stand at 0.618 of their cells, so that numbers of few digits are far from the borders.
WITHIN = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True, eq=False)
class Preparation:
    """How records become inputs: to the grid's points ``step`` apart, less ``shift``, divided by ``scale``.

    The three are of the shape of a record, or of no dimension. ``columns`` say where a table's columns stand;
    an infinite scale is that of a number in which all but few records agree: its input is 0.
    """

    shift: Tensor
    scale: Tensor
    step: Tensor
    columns: tuple[Column, ...] = ()
    grid: float = GRID
    fewest: int = FEW

    def __post_init__(self) -> None:
        require(0 < self.grid <= 1, "grid", "above 0 and at most 1", self.grid)
        require(self.fewest >= 1, "fewest", "at least 1", self.fewest)

    @classmethod
    def learned(
        cls, train: Dataset, *, grid: float = GRID, fewest: int = FEW, person: str | None = None
    ) -> Self:
        """By training records, which are not scaled. Those of nothing but 0 and 1 and pictures stay as they
        are, and so do ``raw`` ones; all have a grid. ``person`` is the private column that says whose a
        record is; without it each is a person's."""
        require(0 < grid <= 1, "grid", "above 0 and at most 1", grid)
        require(fewest >= 1, "fewest", "at least 1", fewest)
        people = torch.arange(len(train)) if person is None else train.secret(person)
        columns = _fold(train, fewest, people)
        x = _arrange(train, columns).double() if columns else train.x.double()
        marks = bool(((x == 0) | (x == 1)).all())
        if x.dim() > 2:
            inside = bool((x >= 0).all() and (x <= 1).all())  # pictures, of bytes
            width = 1.0 if marks else 1 / 255 if inside else _nice(grid * float(x.std()))
            one = torch.tensor(width, dtype=torch.float64)
            return cls(torch.zeros_like(one), torch.ones_like(one), one, grid=grid, fewest=fewest)
        numbers = torch.full((x.shape[1],), not marks)
        for column in columns:
            numbers[column.start : column.stop] &= _is_number(column)
            if column.fill is not None:
                numbers[column.stop - 1] = False  # the mark of a missing number
        most = int(torch.bincount(people).max()) if len(people) else 1  # records of one person
        shift, scale, step = _scales(x, numbers, grid, fewest * most)
        if train.raw:
            shift, scale = torch.zeros_like(shift), torch.ones_like(scale)
        known = []
        for column in columns:
            fill = None if column.fill is None else float(_rounded(column.fill, step[column.start]))
            known.append(replace(column, fill=fill))
        return cls(shift, scale, step, tuple(known), grid, fewest)

    @classmethod
    def known(
        cls, shift: Tensor, scale: Tensor, columns: tuple[Column, ...] = (), grid: float = GRID
    ) -> Self:
        """By what every number of a table (inputs,) is to be shifted and divided by, which is rounded, where
        no record is at hand. No value and no category is left out: ``fewest`` is 1."""
        found = [_round_scale(*pair, grid) for pair in zip(shift.tolist(), scale.tolist(), strict=True)]
        own_shift, own_scale, step = torch.tensor(found, dtype=torch.float64).view(-1, 3).T.contiguous()
        return cls(own_shift, own_scale, step, columns, grid, 1)

    def inputs(self, x: Tensor) -> Tensor:
        """What the network takes of records ``x``."""
        return scaled(x, self.shift, self.scale, self.step)

    def scaling(self, like: Dataset) -> tuple[Tensor, Tensor]:
        """What records like these are shifted and divided by, without the grid."""
        return self.shift.to(like.x.dtype), self.scale.to(like.x.dtype)

    def arrange(self, data: Dataset) -> Tensor:
        """The records of a dataset with the columns of this one, by their names and values."""
        if not self.columns:
            return data.x
        missing = [own.name for own in self.columns if not data.has(own.name)]
        if missing:
            there = ", ".join(column.name for column in data.columns) or "none"
            raise DataError(
                f"{data.name} must have the columns of the records that the encoder was trained on, and "
                f"lacks {', '.join(map(repr, missing))}; it has: {there}."
            )
        return _arrange(data, self.columns)

    def apply(self, data: Dataset) -> Dataset:
        """The records of a dataset as the network takes them."""
        return replace(data, x=self.inputs(self.arrange(data)), columns=self.columns, scaling="prepared")

    def tensors(self) -> dict[str, Tensor]:
        return {"shift": self.shift, "scale": self.scale, "step": self.step}

    def table(self) -> dict[str, Any]:
        """What is saved beside the tensors."""
        columns = [
            [c.name, c.start, c.stop, list(c.values), c.standardised, c.fill, c.form] for c in self.columns
        ]
        return {"columns": columns, "grid": self.grid, "fewest": self.fewest}

    @classmethod
    def read(cls, table: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Self:
        """What `table` and `tensors` gave."""
        columns = []
        for name, start, stop, values, standardised, fill, form in table["columns"]:
            own_fill = None if fill is None else float(fill)
            place = Column(str(name), start, stop, tuple(map(str, values)), bool(standardised), own_fill)
            columns.append(replace(place, form=str(form)))
        shift, scale, step = (tensors[name].double() for name in ("shift", "scale", "step"))
        if not bool((step > 0).all() and step.isfinite().all() and (scale > 0).all()):
            raise ValueError("its scale and its grid must be above 0")
        if not bool(shift.isfinite().all()):
            raise ValueError("what it subtracts must be finite")
        return cls(shift, scale, step, tuple(columns), float(table["grid"]), int(table["fewest"]))


def cells(x: Tensor, step: Tensor | float) -> Tensor:
    """Which point of the grid each number is rounded to, counted from 0."""
    return (x.double() / step + WITHIN).floor()


def scaled(x: Tensor, shift: Tensor, scale: Tensor, step: Tensor) -> Tensor:
    return ((cells(x, step) * step - shift) / scale).to(x.dtype if x.is_floating_point() else torch.float32)


def _rounded(number: float, step: Tensor | float) -> Tensor:
    return cells(torch.tensor(number, dtype=torch.float64), step) * step


def _is_number(column: Column) -> bool:
    return column.standardised or not column.values


def _codes(x: Tensor, column: Column) -> Tensor:
    """The places of each row's category among the column's values; -1 where it has none of them."""
    if not column.dummies:
        return x[:, column.start].long()
    block = x[:, column.start : column.stop]
    return torch.where(block.amax(1) > 0, block.argmax(1), -1)


def _fold(train: Dataset, fewest: int, people: Tensor) -> tuple[Column, ...]:
    """The columns without the categories of fewer than ``fewest`` people, in their new places."""
    placed: list[Column] = []
    for column in train.columns:
        values, width = column.values, column.stop - column.start
        if values:
            codes = _codes(train.x, column)
            pairs_of = torch.stack([codes, people])[:, codes >= 0].unique(dim=1)
            counts = torch.bincount(pairs_of[0], minlength=len(values)).tolist()
            named = zip(values, counts, strict=False)
            values = tuple(value for value, count in named if count >= fewest or value == OTHER)
            few = len(values) < len(column.values)
            values += (OTHER,) if OTHER not in values and (not values or (few and width == 1)) else ()
            width = len(values) if column.dummies else 1
        start = placed[-1].stop if placed else 0
        placed.append(replace(column, start=start, stop=start + width, values=values))
    return tuple(placed)


def _arrange(data: Dataset, columns: Sequence[Column]) -> Tensor:
    rows = torch.zeros(len(data), columns[-1].stop, dtype=data.x.dtype)
    known = {column.name: column for column in data.columns}
    for new in columns:
        old = known[new.name]
        if new.values:
            place_of = {value: i for i, value in enumerate(new.values)}
            other = place_of.get(OTHER, -1)
            table = torch.tensor([*(place_of.get(value, other) for value in old.values), other])
            fill_category(rows, new, table[_codes(data.x, old)])
            continue
        block = data.x[:, old.start : old.stop]
        rows[:, new.start : new.start + min(block.shape[1], new.stop - new.start)] = block[
            :, : new.stop - new.start
        ]
    return rows


def _scales(x: Tensor, numbers: Tensor, grid: float, fewest: int) -> tuple[Tensor, Tensor, Tensor]:
    """Of every number its shift, scale and step; 0, 1 and 1 of what is none."""
    width = x.shape[1]
    shift, scale, step = (torch.full((width,), one, dtype=torch.float64) for one in (0.0, 1.0, 1.0))
    for i in numbers.nonzero()[:, 0].tolist():
        ordered = x[:, i].sort().values
        inner = ordered[fewest - 1 : len(x) - fewest + 1]  # the others count as its first or last
        ends = inner[[0, -1]].repeat_interleave(fewest - 1) if len(inner) else inner
        inner = torch.cat([inner, ends])
        deviation = float(inner.std(correction=0)) if len(inner) else 0.0
        if deviation <= 1e-12:
            scale[i] = math.inf
            continue
        shift[i], scale[i], step[i] = _round_scale(float(inner.mean()), deviation, grid)
    return shift, scale, step


def _round_scale(mean: float, deviation: float, grid: float) -> tuple[float, float, float]:
    """The shift and the scale of a number, rounded, and the step of its grid."""
    scale = float(f"{deviation:.1e}")
    step = _nice(grid * scale)
    return float(_rounded(mean, step)), scale, step


def _nice(width: float) -> float:
    """The largest 1, 2 or 5 times a power of ten that is not above ``width``."""
    if not 0 < width < math.inf:
        return 1.0
    power = 10.0 ** math.floor(math.log10(width))
    return next((times * power for times in (5.0, 2.0) if times * power <= width), power)
