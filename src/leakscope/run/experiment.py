"""One cell, one seed: its records, its kind, and the stamp of what was found."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn

from leakscope.core.dataset import Dataset
from leakscope.core.files import Keep
from leakscope.core.stopwatch import time_defenses
from leakscope.data import tabled
from leakscope.results.cell import Cell
from leakscope.results.kind import Divisible, Division, Watch, World, kind_of
from leakscope.results.result import Result, make


def enter(
    cell: Cell,
    seed: int,
    *,
    records: Dataset | None = None,
    trusted: Iterable[str] = (),
    watch: Watch | None = None,
    keep: Keep | None = None,
    net: nn.Module | None = None,
    splits: dict[Any, Any] | None = None,
    facts: Any = None,
    parts: Mapping[str, str] | None = None,
) -> World:
    """What a cell and a seed are run in; records are loaded unless they are given."""
    records = tabled(cell.data) if records is None else records
    return World(cell, seed, records, tuple(trusted), watch, keep, net, splits, facts, parts or {})


def check(
    cell: Cell,
    seed: int,
    *,
    records: Dataset | None = None,
    trusted: Iterable[str] = (),
    splits: dict[Any, Any] | None = None,
    net: nn.Module | None = None,
) -> None:
    """Refuse a cell that its records or its model cannot give; nothing is trained. ``splits`` keeps those of
    the same records for the next cell."""
    kind_of(cell).check(enter(cell, seed, records=records, trusted=trusted, net=net, splits=splits))


def divide(world: World) -> Division | None:
    """The parts in which the cell can be run, if it can."""
    kind = kind_of(world.cell)
    return kind.divide(world) if isinstance(kind, Divisible) else None


def run_parts(world: World, names: tuple[str, ...]) -> dict[str, str]:
    kind = kind_of(world.cell)
    assert isinstance(kind, Divisible)
    return dict(kind.run_parts(world, names))


def run(
    cell: Cell,
    seed: int,
    *,
    records: Dataset | None = None,
    trusted: Iterable[str] = (),
    watch: Watch | None = None,
    keep: Keep | None = None,
    net: nn.Module | None = None,
) -> Result[Any]:
    """The result of one cell with one seed. ``watch`` is told how far a long run has come; ``keep`` is
    given the files that belong to it."""
    begun = time.perf_counter()
    world = enter(cell, seed, records=records, trusted=trusted, watch=watch, keep=keep, net=net)
    return run_in(world, begun)


def run_in(world: World, begun: float) -> Result[Any]:
    """The same where it is known in what it is run, and since when."""
    cell, seed = world.cell, world.seed
    with time_defenses() as watched:
        measured = kind_of(cell).run(world)
    seconds = time.perf_counter() - begun
    stamp = make(measured.records, measured.model, seconds, defending=watched.seconds)
    return Result[Any](
        key=cell.key(seed), seed=seed, kind=cell.kind, cell=cell, found=measured.found, made=stamp
    )
