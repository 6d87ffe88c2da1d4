"""Cells to an engine and back: resumable, the same numbers whatever runs them and however many at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from leakscope.core.errors import ArgumentError, LeakscopeError, PlanError, StoreError
from leakscope.core.fingerprints import same
from leakscope.results import store
from leakscope.results.cell import Cell, Plan, stable
from leakscope.results.kind import Division
from leakscope.results.result import Result
from leakscope.run.engines import CellTask, Engine, Finished, Loky, cores, run_task

__all__ = [
    "PlanCheck",
    "Progress",
    "Reusable",
    "SweepStep",
    "check",
    "cores",
    "look",
    "run",
    "run_cell",
    "work",
]
Progress = Callable[["SweepStep"], None]
AT_LEAST, MOST_TOGETHER = 64, 16  # tasks that a cell's parts are cut into, and parts of one task


@dataclass(frozen=True)
class SweepStep:
    """A finished cell, or some parts of one (``partly``), of which the result says nothing yet: how far the
    sweep is, by the cells' estimated work. ``said`` is what an error says on the screen."""

    done: float
    total: float
    cell: Cell
    seed: int
    result: Result[Any]
    said: str = ""
    partly: bool = False


@dataclass(frozen=True)
class PlanCheck:
    """What a check of all cells gave, by the key of each: the digest of its records, by which results of
    other records are told, and the parts in which it can be run, if it can."""

    digests: Mapping[str, str]
    divisions: Mapping[str, Division]


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


def check(plan: Plan, *, trusted: Iterable[str] = ()) -> PlanCheck:
    """Load every dataset of the plan once and try every cell and seed on it, before anything is computed."""
    from leakscope.data import tabled
    from leakscope.run import experiment

    name, records, digest = "", None, ""
    digests: dict[str, str] = {}
    divisions: dict[str, Division] = {}
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
                world = experiment.enter(cell, seed, records=records, trusted=trusted, splits=splits)
                if (division := experiment.divide(world)) is not None:
                    divisions[cell.key(seed)] = division
        except TypeError as error:  # an option the loader does not take
            raise PlanError(f"cell {cell.id or i + 1}: data: {error}.") from None
        except LeakscopeError as error:
            raise PlanError(f"cell {cell.id or i + 1}: {error}") from None
    return PlanCheck(digests, divisions)


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
    tried: PlanCheck | None = None,
    engine: Engine | None = None,
    beats: Path | None = None,
) -> list[Result[Any]]:
    """Run what is missing in ``folder``, in processes of this machine unless another ``engine`` is given,
    and return every result, in the plan's order. Results of other records than were ``tried`` (by `check`)
    are refused, and cells that can be are run in parts, each kept until all are there: these are put together
    here. For ``beats`` see `Engine.results`."""
    if jobs is not None and jobs < 1:
        raise ArgumentError(f"jobs must be at least 1, got {jobs}.")
    store.claim(folder, text, plan.digest)
    by_key = store.asked(plan)
    found = dict(look(plan, folder).reuse)
    for key, result in found.items():
        known = result.made.records.digest if result.made.records else ""
        if tried and known and not same(known, tried.digests[key]):
            raise StoreError(
                f"folder {str(folder)!r} holds results of other records than the plan has now, or of another "
                f"user or machine; choose another folder with --output."
            )
    missing = [pair for key, pair in by_key.items() if key not in found]
    missing.sort(key=lambda item: -work(item[0]))  # the longest first, so that none is left alone at the end
    total = sum(work(cell) for cell, _ in by_key.values())
    done = total - sum(work(cell) for cell, _ in missing)
    divisions = tried.divisions if tried else {}
    divided = {key: Divided(division, folder, key) for key, division in divisions.items()}
    tasks = [task for cell, seed in missing for task in _cut(cell, seed, divided.get(cell.key(seed)))]
    running = (engine or Loky()).results(tasks, jobs=jobs, trusted=tuple(trusted), beats=beats)
    with closing(running) as finished:
        for one in finished:
            (cell, seed), parts = by_key[one.result.key], divided.get(one.result.key)
            store.claim(folder, text, plan.digest)  # the folder may have been taken away meanwhile
            if parts is None:
                done += work(cell)
            elif not one.result.error:
                done += work(cell) * parts.keep(one)
                if parts.left:
                    if progress:
                        progress(SweepStep(done, total, cell, seed, one.result, partly=True))
                    continue
                one = parts.put_together(cell, seed, tuple(trusted))
            store.save(folder, one.result, one.files)
            found[one.result.key] = one.result
            if progress:
                progress(SweepStep(done, total, cell, seed, one.result, one.said))
    pairs = [(cell, seed) for cell in plan.cell for seed in plan.seeds]
    return [found[cell.key(seed)].model_copy(update={"cell": cell}) for cell, seed in pairs]


class Divided:
    """A cell that is run in parts: which are done, kept in the results folder until all are."""

    def __init__(self, division: Division, folder: Path, key: str) -> None:
        self.division, self.folder, self.key = division, folder, key
        done = store.load_parts(folder, key, division.mark)
        self.left = {name: None for name in division.names if name not in done}

    def keep(self, one: Finished) -> float:
        """Keep parts that are finished; the share of the cell's work that they are."""
        seconds = one.seconds / max(1, len(one.parts))
        for name, part in one.parts.items():
            store.save_part(self.folder, self.key, name, store.Part(part, self.division.mark, seconds))
            self.left.pop(name, None)
        return len(one.parts) / len(self.division.names)

    def put_together(self, cell: Cell, seed: int, trusted: tuple[str, ...]) -> Finished:
        """The cell from its parts, which are then no longer kept."""
        done = store.load_parts(self.folder, self.key, self.division.mark)
        texts, facts = {name: part.text for name, part in done.items()}, self.division.facts
        whole = run_task(cell, seed, trusted=trusted, spare=1, facts=facts, parts=texts)
        if not whole.result.error:
            store.drop_parts(self.folder, self.key)
        made = whole.result.made
        seconds = round(made.seconds + sum(part.seconds for part in done.values()), 2)
        made = made.model_copy(update={"seconds": seconds})
        return replace(whole, result=whole.result.model_copy(update={"made": made}))


def _cut(cell: Cell, seed: int, divided: Divided | None) -> list[CellTask]:
    """The cell, or the parts of it that are not done, some together where there are many."""
    if divided is None:
        return [CellTask(cell, seed)]
    left = [*divided.left] or [divided.division.names[-1]]  # or all are done, and the cell is not
    size = min(MOST_TOGETHER, -(-len(left) // AT_LEAST))
    blocks = [tuple(left[i : i + size]) for i in range(0, len(left), size)]
    return [CellTask(cell, seed, names, divided.division.facts) for names in blocks]


def run_cell(cell: Cell, seed: int, folder: Path, trusted: tuple[str, ...], spare: int) -> Result[Any]:
    finished: Finished = run_task(cell, seed, trusted=trusted, spare=spare)
    store.save(folder, finished.result, finished.files)
    return finished.result
