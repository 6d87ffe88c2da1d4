"""Cells to an engine and back: resumable, the same numbers whatever runs them and however many at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leakscope import store
from leakscope.engines import Engine, Loky, cores, measured
from leakscope.errors import ArgumentError, LeakscopeError, PlanError, StoreError
from leakscope.plan import Cell, Plan, architecture, audits, localises

__all__ = ["Progress", "Step", "check", "cores", "run", "run_cell", "work"]
Progress = Callable[["Step"], None]


@dataclass(frozen=True)
class Step:
    """A finished cell: how far the sweep is, by the cells' estimated work."""

    done: float
    total: float
    cell: Cell
    seed: int
    result: store.Result


def work(cell: Cell) -> float:
    """A cell's share of the sweep, in forests times rehearsed challenges."""
    models = cell.game.get("bins", 6) - 1 if cell.game["name"] == "Distribution" else 1
    return models * len(cell.observed) * (cell.rehearsals + cell.trials / 4)


def check(plan: Plan, *, trusted: Iterable[str] = ()) -> dict[str, str]:
    """Load and split every dataset of the plan once and build every game on it. Returns the digest of
    the records behind each cell's key, by which results of other records are told."""
    from leakscope.experiment import dataset

    name, records, digest = "", None, ""
    digests: dict[str, str] = {}
    for i, cell in enumerate(plan.cell):
        try:
            if name != repr(cell.data):
                name, records = repr(cell.data), None  # one at a time in memory
                records = dataset(cell.data)
                digest = records.digest
            digests |= {cell.key(seed): digest for seed in plan.seeds}
            _check(cell, plan.seeds[0], records, trusted)
        except TypeError as error:  # an option the loader does not take
            raise PlanError(f"cell {cell.id or i + 1}: data: {error}.") from None
        except LeakscopeError as error:
            raise PlanError(f"cell {cell.id or i + 1}: {error}") from None
    return digests


def _check(cell: Cell, seed: int, records: Any, trusted: Iterable[str]) -> None:
    """Refuse a cell that its records or its model cannot give; nothing is trained."""
    from leakscope.experiment import layered, prepare

    if localises(cell):
        layered(cell, seed, records, trusted=trusted)
    if not audits(cell):
        setting = prepare(cell, seed, records=records, trusted=trusted)
        architecture(cell.model, trusted=trusted)(setting.train)


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
) -> list[store.Result]:
    """Run what is missing in ``folder``, in processes of this machine unless another ``engine`` is given,
    and return every result, in the plan's order. Results of other records than ``digests`` (from `check`)
    are refused. For ``beats`` see `Engine.results`."""
    if jobs is not None and jobs < 1:
        raise ArgumentError(f"jobs must be at least 1, got {jobs}.")
    store.claim(folder, text, plan.digest)
    wanted = [(cell, seed) for cell in plan.cell for seed in plan.seeds]
    by_key = {cell.key(seed): (cell, seed) for cell, seed in wanted}  # equal cells run once
    found = {key: store.load(folder, key) for key in by_key}
    for key, result in found.items():
        known = (result or {}).get("data", {}).get("digest")
        if digests and known and known != digests[key]:
            raise StoreError(
                f"folder {str(folder)!r} holds results of other records than the plan's data has now; choose "
                f"another folder with --output."
            )
    missing = [by_key[key] for key, result in found.items() if result is None or "error" in result]
    missing.sort(key=lambda item: -work(item[0]))  # the longest first, so that none is left alone at the end
    total = sum(work(cell) for cell, _ in by_key.values())
    done = total - sum(work(cell) for cell, _ in missing)
    engine = engine or Loky()
    with closing(engine.results(missing, jobs=jobs, trusted=tuple(trusted), beats=beats)) as finished:
        for result in finished:
            store.save(folder, result)
            cell, seed = by_key[result["key"]]
            found[result["key"]] = result
            done += work(cell)
            if progress:
                progress(Step(done, total, cell, seed, result))
    return [{**(found[cell.key(seed)] or {}), "cell": cell.described} for cell, seed in wanted]


def run_cell(cell: Cell, seed: int, folder: Path, trusted: tuple[str, ...], spare: int) -> store.Result:
    """One cell in this process: compute, write, return."""
    result = measured(cell, seed, trusted=trusted, spare=spare)
    store.save(folder, result)
    return result
