"""A table's columns: where each stands in ``x``, what training records teach about it, what became of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from leakscope.core.errors import ArgumentError

FEW = 5  # a value of fewer records, or a count below this, may point at a person: no result tells it
UNLEARNED = math.inf  # a median that training records have not said yet; equal to itself, as NaN is not
OTHER = "other"  # the category of values that are rare among training records, or not there at all


@dataclass(frozen=True)
class Column:
    """One column of a table and the positions ``start:stop`` it takes in ``x``.

    Some of it is learned from training records, by `learn`. ``fill`` is the median that stands for missing
    numbers (`UNLEARNED` before it is known); the column then has a second position, which is 1 where the
    number is missing. ``frequent`` is how many of its codes will have dummies of their own: until then ``x``
    holds the codes.
    """

    name: str
    start: int
    stop: int
    values: tuple[str, ...] = ()  # the categories, or a text's vocabulary; empty for a number
    standardised: bool = True  # False for what stays as it is: dummies, words, numbers scaled before
    fill: float | None = None  # None: no number is missing
    frequent: int = 0  # 0: its categories are known
    form: str = ""  # how the dates were written that became its days

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.stop:
            raise ArgumentError(
                f"Column {self.name!r} must take at least one position, got {self.start}:{self.stop}."
            )

    @property
    def dummies(self) -> bool:
        """Whether each of its categories has a position of its own."""
        return bool(self.values) and not self.standardised

    @property
    def learned(self) -> bool:
        """Whether training records have said all that they must."""
        return not self.frequent and self.fill != UNLEARNED


@dataclass(frozen=True)
class Fate:
    """What became of one column, and why. It names no value of a record."""

    column: str
    kind: str
    reason: str
    inputs: int = 0  # the positions it takes in x


def learn(columns: Sequence[Column], train: Tensor) -> tuple[Column, ...]:
    """The columns with medians and frequent codes of these training records, and their new places."""
    placed: list[Column] = []
    for column in columns:
        start, values = placed[-1].stop if placed else 0, column.values
        width, fill = column.stop - column.start, column.fill
        if fill == UNLEARNED:
            numbers = train[:, column.start]
            present = numbers[~numbers.isnan()].double().numpy()
            fill = float(np.median(present)) if len(present) else 0.0
        if column.frequent:
            values = _frequent(column, train[:, column.start].long())
            width = 1 if column.standardised else len(values)
        placed.append(replace(column, start=start, stop=start + width, values=values, fill=fill, frequent=0))
    return tuple(placed)


def _frequent(column: Column, codes: Tensor) -> tuple[str, ...]:
    """The most frequent values of enough records, in their order, and the one for all others."""
    counts = torch.bincount(codes, minlength=len(column.values)).tolist()
    places = sorted(range(len(counts)), key=lambda i: (-counts[i], i))[: column.frequent]
    kept = [column.values[i] for i in sorted(places) if counts[i] >= FEW and column.values[i] != OTHER]
    return (*kept, OTHER)


def arrange(x: Tensor, before: Sequence[Column], after: Sequence[Column]) -> Tensor:
    """The records ``x``, whose columns are ``before``, as those `learn` gave have them."""
    rows = torch.zeros(len(x), after[-1].stop, dtype=x.dtype)
    for old, new in zip(before, after, strict=True):
        block = x[:, old.start : old.stop]
        if old.frequent:
            place_of = {value: i for i, value in enumerate(new.values)}
            table = torch.tensor([place_of.get(value, len(place_of) - 1) for value in old.values])
            fill_category(rows, new, table[block[:, 0].long()])
        else:
            rows[:, new.start : new.stop] = block
        if new.fill is not None:
            rows[:, new.start].nan_to_num_(nan=new.fill)
    return rows


def fill_category(rows: Tensor, column: Column, places: Tensor) -> None:
    """Write each row's category: one number, or a 1 among dummies, of which none is for a place of -1."""
    if column.dummies:
        known = (places >= 0).nonzero()[:, 0]
        rows[known, column.start + places[known]] = 1
    else:
        rows[:, column.start] = places.to(rows.dtype)
