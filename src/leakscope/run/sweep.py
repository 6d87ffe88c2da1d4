"""Cells to an engine and back: resumable, the same numbers whatever runs them and however many at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leakscope.core.errors import ArgumentError, LeakscopeError, PlanError, StoreError
from leakscope.core.fingerprints import same
from leakscope.results import store
from leakscope.results.cell import Cell, Plan, stable
from leakscope.results.result import Result
from leakscope.run.engines import Engine, Finished, Loky, cores, run_task

__all__ = ["Progress", "Reusable", "SweepStep", "check", "cores", "look", "run", "run_cell", "work"]
Progress = Callable[["SweepStep"], None]


@dataclass(frozen=True)
class SweepStep:
    """A finished cell: how far the sweep is, by the cells' estimated work. ``said`` is what an error says on
    the screen."""

    done: float
    total: float
    cell: Cell
    seed: int
    result: Result[Any]
    said: str = ""


@dataclass(frozen=True)
class Reusable:
    """What a results folder already has of a plan: the results to ``reuse``, and how many are ``stale``, of
    an earlier format of what their kind finds."""

    reuse: Mapping[str, Result[Any]]
    stale: int
    asked: int

    @property
    def sentence(self) -> str:
        """What is reused and what is not, and why; empty where nothing was there."""
        parts = [f"{len(self.reuse)} of {self.asked} cells kept from before"] if self.reuse else []
        if self.stale:
            parts.append(f"{self.stale} not reused: what their kind of audit finds has another format now")
        return "; ".join(parts)


def work(cell: Cell) -> float:
    """A cell's share of the sweep, in rehearsed challenges of every observed round."""
    models = max(1, int(cell.game.get("bins", 2)) - 1)
    return models * len(cell.observed) * (cell.rehearsals + cell.trials / 4)


def check(plan: Plan, *, trusted: Iterable[str] = ()) -> dict[str, str]:
    """Load every dataset of the plan once and try every cell and seed on it, before anything is computed.
    Returns the digest of the records behind each cell's key, by which results of other records are told."""
    from leakscope.data import tabled
    from leakscope.run import experiment

    name, records, digest = "", None, ""
    digests: dict[str, str] = {}
    splits: dict[Any, Any] = {}
    for i, cell in enumerate(plan.cell):
        try:
            if name != repr(cell.data):
                name, records = repr(cell.data), None  # one at a time in memory
                splits.clear()
                records = tabled(cell.data)
                digest = records.digest
            for seed in plan.seeds:
                digests[cell.key(seed)] = digest
                experiment.check(cell, seed, records=records, trusted=trusted, splits=splits)
        except TypeError as error:  # an option the loader does not take
            raise PlanError(f"cell {cell.id or i + 1}: data: {error}.") from None
        except LeakscopeError as error:
            raise PlanError(f"cell {cell.id or i + 1}: {error}") from None
    return digests


def look(plan: Plan, folder: Path) -> Reusable:
    asked = store.asked(plan)
    reuse = {key: result for key in asked if (result := store.load(folder, key)) and not result.error}
    old = [result for result in store.results(folder) if result.key not in asked and not result.error]
    wanted = {stable([cell.meaning, seed]) for cell, seed in asked.values()}
    stale = sum(stable([result.cell.meaning, result.seed]) in wanted for result in old)
    return Reusable(reuse, stale, len(asked))


def run(
    plan: Plan,
    folder: Path,
    *,
    text: str,
    jobs: int | None = None,
    trusted: Iterable[str] = (),
    progress: Progress | None = None,
    digests: Mapping[str, str] | None = None,
    engine: Engine | None = None,
    beats: Path | None = None,
) -> list[Result[Any]]:
    """Run what is missing in ``folder``, in processes of this machine unless another ``engine`` is given,
    and return every result, in the plan's order. Results of other records than ``digests`` (from `check`)
    are refused. For ``beats`` see `Engine.results`."""
    if jobs is not None and jobs < 1:
        raise ArgumentError(f"jobs must be at least 1, got {jobs}.")
    store.claim(folder, text, plan.digest)
    by_key = store.asked(plan)
    found = dict(look(plan, folder).reuse)
    for key, result in found.items():
        known = result.made.records.digest if result.made.records else ""
        if digests and known and not same(known, digests[key]):
            raise StoreError(
                f"folder {str(folder)!r} holds results of other records than the plan has now, or of another "
                f"user or machine; choose another folder with --output."
            )
    missing = [pair for key, pair in by_key.items() if key not in found]
    missing.sort(key=lambda item: -work(item[0]))  # the longest first, so that none is left alone at the end
    total = sum(work(cell) for cell, _ in by_key.values())
    done = total - sum(work(cell) for cell, _ in missing)
    engine = engine or Loky()
    with closing(engine.results(missing, jobs=jobs, trusted=tuple(trusted), beats=beats)) as finished:
        for one in finished:
            result = one.result
            store.claim(folder, text, plan.digest)  # the folder may have been taken away meanwhile
            store.save(folder, result, one.files)
            cell, seed = by_key[result.key]
            found[result.key] = result
            done += work(cell)
            if progress:
                progress(SweepStep(done, total, cell, seed, result, one.said))
    pairs = [(cell, seed) for cell in plan.cell for seed in plan.seeds]
    return [found[cell.key(seed)].model_copy(update={"cell": cell}) for cell, seed in pairs]


def run_cell(cell: Cell, seed: int, folder: Path, trusted: tuple[str, ...], spare: int) -> Result[Any]:
    finished: Finished = run_task(cell, seed, trusted=trusted, spare=spare)
    store.save(folder, finished.result, finished.files)
    return finished.result
