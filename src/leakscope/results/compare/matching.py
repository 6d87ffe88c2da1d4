"""Two results folders, matched cell by cell and measure by measure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from leakscope.core.errors import StoreError
from leakscope.measures.success import untruncated
from leakscope.results import store
from leakscope.results.cell import WORDS, Table, differences
from leakscope.results.compare.gaps import Gap, gap, holm
from leakscope.results.kind import numbers
from leakscope.results.number import Number
from leakscope.results.result import Result
from leakscope.results.scores import MEASURES, TASK_WORDS, tells

ALPHA = 0.05  # a difference is told where its corrected p is below
HEADLINES = (  # what a secret of a cell is judged by: the first that both have
    "advantage", "tpr_at_1%", "ssim", "mse", "epsilon_any", "auroc", "information", "success",
)  # fmt: skip
FALLING = tuple(name for name, measure in MEASURES.items() if measure.falls)  # as more leaks
Place = tuple[str, str, str, str]  # about, secret, part, measure


@dataclass(frozen=True)
class Difference:
    """One measure that both have. ``corrected`` is Holm's p in the family of the headlines, or in that of
    all other numbers."""

    about: str
    secret: str
    part: str
    measure: str
    gap: Gap
    headline: bool = False
    corrected: float | None = None

    @property
    def reading(self) -> str:
        """What B is against A: of leakage "less" or "more", of all else "lower" or "higher"; "open" where
        no difference can be told from chance."""
        if self.corrected is None or self.corrected >= ALPHA:
            return "open"
        return self.direction

    @property
    def direction(self) -> str:
        leaks = self.about == "leakage"
        up = (self.gap.value > 0) != (leaks and self.measure in FALLING)
        return ("more" if up else "less") if leaks else ("higher" if up else "lower")

    @property
    def alone(self) -> bool:
        """Whether its own interval, uncorrected, lies on one side of 0."""
        low, high = self.gap.low, self.gap.high
        return low is not None and high is not None and (low > 0 or high < 0)


@dataclass(frozen=True)
class Pair:
    """A cell that both have, and its differences; for A and B in turn: what else differs about it, how many
    seeds failed, and the measures that only one has."""

    label: str
    differs: tuple[str, str]
    failed: tuple[int, int]
    alone: tuple[tuple[str, ...], tuple[str, ...]]
    differences: tuple[Difference, ...]


@dataclass(frozen=True)
class Comparison:
    """Two results folders, called by their ``names``; ``only`` are the cells that one of them has."""

    names: tuple[str, str]
    pairs: tuple[Pair, ...]
    only: tuple[tuple[str, ...], tuple[str, ...]]

    @property
    def differences(self) -> list[Difference]:
        return [one for pair in self.pairs for one in pair.differences]

    @property
    def headlines(self) -> list[Difference]:
        """What each cell gives away of each secret, by one measure."""
        return [one for one in self.differences if one.headline]

    @property
    def utilities(self) -> list[Difference]:
        """The task accuracy, or R², of each cell; of a guard's, by a fresh head."""
        found = [one for one in self.differences if one.about == "utility" and one.measure in TASK_WORDS]
        return [one for one in found if one.part in ("", "fresh head")]


@dataclass(frozen=True)
class _Cell:
    """The numbers of one cell, by what they measure and by seed."""

    table: Table
    id: str
    label: str
    failed: int
    found: Mapping[Place, Mapping[int, Number]]


def read(a: Path, b: Path) -> Comparison:
    """Two folders, called by their names, or by their paths where they have one name."""
    both = []
    for folder in (a, b):
        store.plan(folder)  # refuses what is no results folder
        both.append(store.results(folder))
        if not both[-1]:
            raise StoreError(f"folder {str(folder)!r} holds no result yet; run its plan first.")
    names = (a.resolve().name, b.resolve().name)
    return compare(*both, names=names if names[0] != names[1] else (str(a), str(b)))


def compare(
    a: Iterable[Result[Any]], b: Iterable[Result[Any]], *, names: tuple[str, str] = ("A", "B")
) -> Comparison:
    """Results matched by what plans call their cells, where that names one cell of each; else by what the
    cells are."""
    left, right = _cells(a), _cells(b)
    ids = [_named(cells) for cells in (left, right)]
    joined = {ids[0][name]: ids[1][name] for name in ids[0] if name in ids[1]}
    taken = set(joined.values())
    joined |= {key: key for key in left if key in right and key not in joined and key not in taken}
    taken = set(joined.values())
    pairs = [_pair(left[key], right[other]) for key, other in joined.items()]
    only = (
        tuple(sorted(cell.label for key, cell in left.items() if key not in joined)),
        tuple(sorted(cell.label for key, cell in right.items() if key not in taken)),
    )
    return Comparison(names, tuple(_corrected(sorted(pairs, key=lambda pair: pair.label))), only)


def _cells(results: Iterable[Result[Any]]) -> dict[str, _Cell]:
    groups: dict[str, list[Number]] = {}
    tables: dict[str, Table] = {}
    for result in results:
        rows = numbers(result)
        groups.setdefault(rows[0].cell, []).extend(rows)
        tables[rows[0].cell] = result.cell.described
    shared = Counter(_label(rows[0]) for rows in groups.values())
    found = {}
    for key, rows in groups.items():
        places: dict[Place, dict[int, Number]] = {}
        for row in rows:
            if not row.error:
                places.setdefault((row.about, row.secret, row.part, row.measure), {})[row.seed] = row
        label = _label(rows[0]) + (f" [{key[:6]}]" if shared[_label(rows[0])] > 1 else "")
        found[key] = _Cell(tables[key], rows[0].id, label, sum(bool(row.error) for row in rows), places)
    return found


def _label(row: Number) -> str:
    """What the plan calls a cell, or what tells most of it."""
    aware = {True: "adversary aware", False: "adversary unaware", None: ""}[row.adaptive]
    parts = (row.data, row.secret or row.game, row.defense or "no defense", aware)
    return row.id or ", ".join(part for part in parts if part)


def _named(cells: Mapping[str, _Cell]) -> dict[str, str]:
    """Cells by their id, where no other has it."""
    shared = Counter(cell.id for cell in cells.values())
    return {cell.id: key for key, cell in cells.items() if cell.id and shared[cell.id] == 1}


def _pair(left: _Cell, right: _Cell) -> Pair:
    differs = differences([left.table, right.table], WORDS)
    places = [place for place in left.found if place in right.found]
    found = [Difference(*place, _gap(left, right, place)) for place in places]
    best = _headlines(found, _rankings(left) | _rankings(right))
    return Pair(
        label=left.label,
        differs=(differs[0], differs[1]),
        failed=(left.failed, right.failed),
        alone=(_alone(left, right), _alone(right, left)),
        differences=tuple(replace(one, headline=one in best) for one in found),
    )


def _gap(left: _Cell, right: _Cell, place: Place) -> Gap:
    sides = [cell.found[place] for cell in (left, right)]
    raw = [_raw(cell, place) for cell in (left, right)]
    return gap(sides[0], sides[1], raw)


def _raw(cell: _Cell, place: Place) -> dict[int, float]:
    """Values by seed; an advantage as it is before it is cut at zero, so that chance cancels in a mean."""
    rates = cell.found.get((*place[:3], "success"), {}) if place[3] == "advantage" else {}
    found = {}
    for seed, number in cell.found[place].items():
        rate = rates.get(seed)
        if rate is not None and rate.value is not None and rate.guessing is not None:
            found[seed] = untruncated(rate.value, rate.guessing)
        else:
            found[seed] = float(number.value or 0.0)
    return found


def _alone(cell: _Cell, other: _Cell) -> tuple[str, ...]:
    places = [place for place in cell.found if place not in other.found]
    return tuple(", ".join(part for part in place[1:] if part) for place in places)


def _rankings(cell: _Cell) -> set[str]:
    """The secrets that a ranking gives away where guesses do not, so that guesses compare nothing."""
    told = set()
    for (about, secret, part, measure), seeds in cell.found.items():
        gains = cell.found.get((about, secret, part, "advantage"), {})
        if about == "leakage" and measure == "auroc":
            both = [(row, gains[seed]) for seed, row in seeds.items() if seed in gains]
            if any(tells(row.low, row.high) and not (gain.low or 0.0) > 0 for row, gain in both):
                told.add(secret)
    return told


def _headlines(found: Sequence[Difference], rankings: set[str]) -> list[Difference]:
    """Of every secret one number: of its first headline measure the part, attack or layer, that is highest
    in the mean of A and B, which favours neither: a sign flip of their difference changes no such mean. Where
    a ranking tells what guesses do not, rankings are compared."""
    best = []
    for secret in dict.fromkeys(one.secret for one in found if one.about == "leakage"):
        own = [one for one in found if one.about == "leakage" and one.secret == secret]
        names = [name for name in HEADLINES if any(one.measure == name for one in own)]
        measure = next(iter(names), None)
        if measure == "advantage" and secret in rankings and "auroc" in names:
            measure = "auroc"
        named = sorted((one for one in own if one.measure == measure), key=lambda one: one.gap.a + one.gap.b)
        best += named[:1] if measure in FALLING else named[-1:]
    return best


def _corrected(pairs: Sequence[Pair]) -> list[Pair]:
    """Holm's p: headlines are one family, all other numbers another."""
    flat = [one for pair in pairs for one in pair.differences]
    families = [[one for one in flat if one.headline == first] for first in (True, False)]
    queues = [iter(holm([one.gap.p for one in family])) for family in families]
    return [
        replace(
            pair,
            differences=tuple(
                replace(one, corrected=next(queues[0 if one.headline else 1])) for one in pair.differences
            ),
        )
        for pair in pairs
    ]
