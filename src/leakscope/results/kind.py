"""A kind of audit: what it asks, how it is run, and how what it found is told. One folder of `audits` each.

The registry is `catalogue.KINDS`: names, folders and formats, so that nothing is imported before it is used.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from torch import nn

from leakscope.core.catalogue import KINDS
from leakscope.core.dataset import Dataset
from leakscope.core.errors import StoreError
from leakscope.core.files import Keep
from leakscope.core.nouns import Estimate
from leakscope.measures.success import untruncated
from leakscope.results.cell import Cell, Table, group_by, stable, words
from leakscope.results.chapter import Chapter
from leakscope.results.number import Number
from leakscope.results.result import Net, RecordsUsed, Result
from leakscope.results.scores import MEASURES, FrozenModel, Scores, TaskScore

F = TypeVar("F", bound=FrozenModel)
Watch = Callable[[int, int], None]  # (done, of)


@dataclass(frozen=True)
class Measured(Generic[F]):
    """What a run of a kind gives: what was found, of which records and of which model."""

    found: F
    records: RecordsUsed
    model: Net | None = None


@dataclass(frozen=True, eq=False)
class World:
    """What a cell and a seed are run in. ``watch`` is told how far a long run has come; ``keep`` is
    given the files that belong to the result. ``net`` is the model where it is in memory."""

    cell: Cell
    seed: int
    records: Dataset
    trusted: tuple[str, ...] = ()
    watch: Watch | None = None
    keep: Keep | None = None
    net: nn.Module | None = None
    splits: dict[Any, Any] | None = None  # those made before, where many cells are tried on the same records
    facts: Any = None  # of a `Division`
    parts: Mapping[str, str] = field(default_factory=dict)  # those that are done, as `run_parts` gave them


@dataclass(frozen=True)
class Division:
    """A cell that can be run in parts, each of which gives the same whoever runs it: their names, and the
    ``facts`` that are established once for all of them. ``mark``: what parts are of, and by which code."""

    names: tuple[str, ...]
    facts: Any
    mark: str


@dataclass(frozen=True)
class TableEntry:
    """One estimate as a paper's table has it: within which limits a mean over seeds stays, what guessing
    reaches, and the ``raw`` value to average where the estimate's own is cut off."""

    estimate: Estimate
    guessing: float = 0.0
    raw: float | None = None
    least: float = 0.0
    most: float = 1.0


@dataclass(frozen=True)
class Asked:
    """What a cell asks, whether it was run or not. ``questions`` are the games it may turn out to play about
    its ``secrets``; ``shields`` the defenses in place, as tables of a plan, and ``protected`` whether there
    is any (None: nobody says); ``adaptive``: whether the adversary knows of them."""

    secrets: tuple[str, ...]
    questions: tuple[str, ...]
    shields: tuple[Table, ...] = ()
    protected: bool | None = False
    adaptive: bool | None = None
    attack: str = ""
    single: bool = False  # one attack that was named, where several are tried otherwise

    @property
    def defense(self) -> str:
        """In words."""
        return " + ".join(words(shield) for shield in self.shields)


class Kind(Protocol[F]):
    """What the folder of a kind gives to all others."""

    found: type[F]

    def ask(self, cell: Cell) -> Asked: ...

    def check(self, world: World) -> None:
        """Refuse what these records or this model cannot give, before anything is trained."""
        ...

    def run(self, world: World) -> Measured[F]: ...

    def numbers(self, cell: Cell, found: F, about: Number) -> Iterator[Number]:
        """Every number, flat: what csv, json, gate, compare and papers read. ``about`` is filled in as far as
        the cell says it."""
        ...

    def entries(self, found: F) -> dict[str, TableEntry]:
        """Every estimate by what papers' tables call it."""
        ...

    def headline(self, cell: Cell, found: F) -> str:
        """One line about a finished cell."""
        ...

    def tell(self, results: Sequence[Result[F]]) -> Chapter:
        """Its part of a page: verdicts, sections, assumptions and limits; failed results are among them."""
        ...


@runtime_checkable
class Divisible(Protocol):
    """A kind some of whose cells can be run in parts; `Kind.run` then takes those that are done."""

    def divide(self, world: World) -> Division | None:
        """The parts of a cell; None where it is run as one."""
        ...

    def run_parts(self, world: World, names: Sequence[str]) -> Iterator[tuple[str, str]]:
        """Some parts by name, each as text."""
        ...


def kind_named(name: str) -> Kind[Any]:
    """The kind of that name, loaded."""
    if name not in KINDS:
        raise StoreError(
            f"a result is of the kind {name!r}, which this version does not know; it knows: "
            f"{', '.join(KINDS)}; read it with the version that wrote it."
        )
    kind: Kind[Any] = import_module(KINDS[name].module).KIND
    return kind


def kind_of(cell: Cell) -> Kind[Any]:
    """The kind that a cell's game belongs to."""
    return kind_named(cell.kind)


def numbers(result: Result[Any]) -> list[Number]:
    """Every number of one result, or its error."""
    cell = result.cell
    asked = kind_named(result.kind).ask(cell)
    about = Number(
        key=result.key,
        id=cell.id,
        cell=hashlib.sha256(stable(cell.meaning).encode()).hexdigest()[:16],
        kind=result.kind,
        data=cell.source,
        game=cell.game_name,
        question=" or ".join(asked.questions),
        secret=", ".join(asked.secrets),
        attack=asked.attack,
        defense=asked.defense,
        adaptive=asked.adaptive,
        seed=result.seed,
    )
    if result.error or result.found is None:
        return [replace(about, error=result.error or "nothing was measured")]
    rows = list(kind_named(result.kind).numbers(cell, result.found, about))
    return rows or [replace(about, error="no number")]


def headline(result: Result[Any]) -> str:
    """One line about a finished cell."""
    if result.error or result.found is None:
        return f"failed: {result.error or 'nothing was measured'}"
    return kind_named(result.kind).headline(result.cell, result.found)


def chapters(results: Iterable[Result[Any]]) -> list[Chapter]:
    """What every kind has to tell of its results, in the registry's order."""
    groups = group_by(results, lambda result: result.kind)
    unknown = next((name for name in groups if name not in KINDS), None)
    if unknown is not None:
        kind_named(unknown)  # refuses
    return [kind_named(name).tell(groups[name]) for name in KINDS if name in groups]


def enter_scores(scores: Scores[Estimate], guessing: float | None, prefix: str = "") -> dict[str, TableEntry]:
    """The measures of one attack as entries of a table."""
    base = guessing or 0.0
    entries = {}
    for name, estimate in scores.present():
        measure = MEASURES[name]
        if not measure.tabled:
            continue
        raw = untruncated(scores.success.value, base) if name == "advantage" and scores.success else None
        entries[f"{prefix}{name}"] = TableEntry(estimate, base, raw, measure.least, measure.most)
    return entries


def enter_worth(worth: TaskScore[Estimate]) -> dict[str, TableEntry]:
    """What a task is judged by as an entry of a table."""
    return (
        {worth.judged_by: TableEntry(worth.main, least=MEASURES[worth.judged_by].least)} if worth.main else {}
    )


@dataclass(frozen=True)
class Runs(Generic[F]):
    """The results of one cell, by seed. Without ``founds`` every seed failed."""

    runs: tuple[Result[F], ...]

    @property
    def cell(self) -> Cell:
        return self.runs[0].cell

    @property
    def founds(self) -> list[F]:
        return [run.found for run in self.runs if run.found is not None and not run.error]

    @property
    def keys(self) -> list[str]:
        """Of the results that were measured."""
        return [run.key for run in self.runs if run.found is not None and not run.error]

    @property
    def failures(self) -> list[str]:
        """A sentence for each seed that failed."""
        kept = " and is in no number here" if self.founds else ""
        lost = [run for run in self.runs if run.found is None or run.error]
        return [f"seed {run.seed} failed{kept}: {run.error or 'nothing was measured'}" for run in lost]


def by_cell(results: Iterable[Result[F]]) -> list[list[Result[F]]]:
    """The results of each cell, by seed, in the order in which the cells first appear."""
    groups = group_by(results, lambda result: stable(result.cell.described))
    return [sorted(runs, key=lambda run: run.seed) for runs in groups.values()]
