"""What one step of a guard is given: records, whose they are, and the subsets they stand in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from leakscope.core.dataset import Dataset
from leakscope.core.errors import ArgumentError, DataError, require
from leakscope.core.task import is_number

Aggregate = Literal["mean", "max"]
HELD = 0.1  # of the records, that a guard is watched by and not trained on
LEAST = 4  # records that are held at least


@dataclass(frozen=True, eq=False)
class Seen:
    """Records (n, ...): the first ``own`` are the data's, the rest reference non-members.

    ``private`` are the own records' codes, ``numbers`` the numbers of those that are ranges; ``subset``
    (own,) numbers the subset that each stands in, and ``shares`` (s,) are the codes of the subsets' shares.
    """

    x: Tensor
    y: Tensor
    private: Mapping[str, Tensor]
    own: int
    subset: Tensor | None = None
    shares: Tensor | None = None
    numbers: Mapping[str, Tensor] = field(default_factory=dict)

    @staticmethod
    def of(data: Dataset) -> Seen:
        return Seen(data.x, data.y, data.private, len(data), numbers=data.numbers)

    def beside(self, others: Dataset) -> Seen:
        return replace(self, x=torch.cat([self.x, others.x]), y=torch.cat([self.y, others.y]))


@dataclass(frozen=True)
class Subsets:
    """Subsets whose share of one value of a column is one of ``shares``, by construction.

    Sizes are uniform between the two of ``sizes`` and independent of the share, which a rejection of random
    subsets would not give; a share of half a record is rounded at random. ``count`` are drawn for a step.
    """

    column: str
    value: int = 0
    shares: tuple[float, ...] = (0.2, 0.3, 0.4, 0.5)
    sizes: tuple[int, int] = (2, 100)
    count: int = 16

    def __post_init__(self) -> None:
        smallest, largest = self.sizes
        rule = "two numbers of records, from 1 on, as an empty subset has no aggregate"
        require(1 <= smallest <= largest, "sizes", rule, self.sizes)
        inside = len(self.shares) >= 2 and all(0 <= share <= 1 for share in self.shares)
        require(inside, "shares", "at least two, each in [0, 1]", self.shares)
        require(self.count >= 1, "the subsets of a step", "at least 1", self.count)

    def draw(self, data: Dataset, count: int, rng: torch.Generator) -> Seen:
        """``count`` subsets of different records each."""
        return next(self.epoch(data, rng, count=count))

    def epoch(self, data: Dataset, rng: torch.Generator, *, count: int | None = None) -> Iterator[Seen]:
        """Steps over subsets until as many records were drawn as there are; a record comes again only
        after all of its kind have come."""
        with_value = data.secret(self.column) == self.value
        piles = [_Pile(rows.nonzero()[:, 0], rng) for rows in (with_value, ~with_value)]
        self._check(data, *(len(pile.rows) for pile in piles))
        drawn = 0
        while drawn < len(data):
            found, number, shares = [], [], []
            for i in range(count or self.count):
                code = int(torch.randint(len(self.shares), (1,), generator=rng))
                size = int(torch.randint(self.sizes[0], self.sizes[1] + 1, (1,), generator=rng))
                wanted = self.shares[code] * size + float(torch.rand(1, generator=rng))
                have = min(int(wanted), size)
                found += [piles[0].take(have), piles[1].take(size - have)]
                number += [i] * size
                shares.append(code)
            rows = torch.cat(found)
            drawn += len(rows)
            private = {name: codes[rows] for name, codes in data.private.items()}
            places = torch.tensor(number), torch.tensor(shares)
            yield Seen(data.x[rows], data.y[rows], private, len(rows), *places)

    def _check(self, data: Dataset, with_value: int, without: int) -> None:
        largest = self.sizes[1]
        most = int(max(self.shares) * largest) + 1
        least = int((1 - min(self.shares)) * largest) + 1
        if with_value < most or without < least:
            raise DataError(
                f"{data.name}: subsets of {largest} records need {most} with value {self.value} of "
                f"{self.column!r} and {least} without, and there are {with_value} and {without}; give more "
                f"records, or lower sizes."
            )


class _Pile:
    """Rows to be drawn without repetition, shuffled again when too few are left."""

    def __init__(self, rows: Tensor, rng: torch.Generator) -> None:
        self.rows, self.rng, self.left = rows, rng, rows[:0]

    def take(self, count: int) -> Tensor:
        if count > len(self.left):
            self.left = self.rows[torch.randperm(len(self.rows), generator=self.rng)]
        taken, self.left = self.left[:count], self.left[count:]
        return taken


def aggregated(r: Tensor, subset: Tensor, count: int, how: Aggregate) -> Tensor:
    """One representation (count, ...) for every subset: the mean or the largest of its records'."""
    sizes = torch.bincount(subset, minlength=count)
    if bool((sizes == 0).any()):
        empty = int((sizes == 0).nonzero()[0])
        raise ArgumentError(
            f"an aggregate must be over at least one record, and subset {empty} is empty; leave it out."
        )
    flat = r.flatten(1)
    if how == "mean":
        total = flat.new_zeros(count, flat.shape[1]).index_add(0, subset, flat)
        return (total / sizes[:, None]).view(count, *r.shape[1:])
    places = subset[:, None].expand_as(flat)
    least = flat.new_full((count, flat.shape[1]), -torch.inf)
    return least.scatter_reduce(0, places, flat, "amax").view(count, *r.shape[1:])


@dataclass(frozen=True, eq=False)
class Source:
    """Where steps come from, and the records a guard is watched by.

    A tenth of the records is held back to watch by. With ``others`` membership is the secret: then all
    records are trained on, since a member that is held back is none, and a tenth of the others is held back.
    """

    data: Dataset
    held: Dataset
    batch: int
    others: Dataset | None = None
    held_others: Dataset | None = None
    subsets: Subsets | None = None

    @staticmethod
    def of(
        data: Dataset,
        batch: int,
        rng: torch.Generator,
        *,
        others: Dataset | None = None,
        subsets: Subsets | None = None,
    ) -> Source:
        require(batch >= 2, "batch", "at least 2", batch)
        data = named(data)
        if others is not None:
            fit, held = _split(others, rng)
            return Source(data, data, batch, fit, held, subsets)
        fit, held = _split(data, rng)
        return Source(fit, held, batch, subsets=subsets)

    def epoch(self, rng: torch.Generator) -> Iterator[Seen]:
        if self.subsets is not None:
            own = self.subsets.epoch(self.data, rng)
        else:
            rows = torch.randperm(len(self.data), generator=rng).split(self.batch)
            own = (Seen.of(self.data.take(some)) for some in rows if len(some) > 1 or len(rows) == 1)
        for seen in own:
            if self.others is None:
                yield seen
            else:
                drawn = torch.randint(len(self.others), (seen.own,), generator=rng)
                yield seen.beside(self.others.take(drawn))

    def watched(self, rng: torch.Generator, most: int = 4_096) -> Seen:
        """What a guard is watched by: held records, or members and others that were held back."""
        if self.subsets is not None:
            held = self.held if self.held_others is None else self.data
            seen = self.subsets.draw(held, 4 * self.subsets.count, rng)
        else:
            rows = torch.randperm(len(self.held), generator=rng)
            limit = most if self.held_others is None else len(self.held_others)
            seen = Seen.of(self.held.take(rows[:limit]))
        return seen if self.held_others is None else seen.beside(self.held_others)


def derangement(n: int, rng: torch.Generator) -> Tensor:
    """Another record for every one of ``n``, never itself: one cycle through all, in a random order. A
    permutation at random leaves one record in its place on average, and a pair with itself is not made up."""
    order = torch.randperm(n, generator=rng)
    other = torch.empty_like(order)
    other[order] = order.roll(1)
    return other


def named(data: Dataset) -> Dataset:
    """The same with every label named, so that a part of the records has as many classes as all of them."""
    if data.values.get(data.label) or is_number(data.y):
        return data
    names = tuple(str(code) for code in range(data.classes))
    return replace(data, values={**data.values, data.label: names})


def _split(data: Dataset, rng: torch.Generator) -> tuple[Dataset, Dataset]:
    held = max(LEAST, int(HELD * len(data)))
    if len(data) < 2 * held:
        raise DataError(
            f"{data.name}: a guard needs at least {2 * LEAST} records, got {len(data)}; give more."
        )
    rows = torch.randperm(len(data), generator=rng)
    return data.take(rows[held:]), data.take(rows[:held])
