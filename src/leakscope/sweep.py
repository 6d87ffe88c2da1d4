"""Cells to processes and back: resumable, the same numbers however many run at once.

A cell computes with one thread of torch and BLAS, whatever the machine, because sums depend on
how they are split; forests may use the idle cores, which does not change them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joblib import Parallel, delayed, parallel_config
from joblib.externals.loky import get_reusable_executor

from leakscope import store
from leakscope.errors import ArgumentError, LeakscopeError, PlanError, StoreError
from leakscope.plan import FORMAT, Cell, Plan, architecture, audits, localises

Progress = Callable[["Step"], None]


@dataclass(frozen=True)
class Step:
    """A finished cell: how far the sweep is, by the cells' estimated work."""

    done: float
    total: float
    cell: Cell
    seed: int
    result: store.Result


def cores() -> int:
    """The processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def work(cell: Cell) -> float:
    """A cell's share of the sweep, in forests times rehearsed challenges."""
    models = cell.game.get("bins", 6) - 1 if cell.game["name"] == "Distribution" else 1
    return models * len(cell.observed) * (cell.rehearsals + cell.trials / 4)


def check(plan: Plan, *, trusted: Iterable[str] = ()) -> dict[str, str]:
    """Load and split every dataset of the plan once and build every game on it. Returns the digest of
    the records behind each cell's key, by which results of other records are told."""
    from leakscope.experiment import dataset, layered, prepare

    seen: dict[str, Any] = {}
    digests: dict[str, str] = {}
    for i, cell in enumerate(plan.cell):
        try:
            name = repr(cell.data)
            if name not in seen:
                records = dataset(cell.data)
                seen = {name: (records, records.digest)}  # one at a time in memory
            records, digest = seen[name]
            digests |= {cell.key(seed): digest for seed in plan.seeds}
            if localises(cell):
                layered(cell, plan.seeds[0], records, trusted=trusted)
            if not audits(cell):
                setting = prepare(cell, plan.seeds[0], records=records, trusted=trusted)
                architecture(cell.model, trusted=trusted)(setting.train)
        except TypeError as error:  # an option the loader does not take
            raise PlanError(f"cell {cell.id or i + 1}: data: {error}.") from None
        except LeakscopeError as error:
            raise PlanError(f"cell {cell.id or i + 1}: {error}") from None
    return digests


def run(
    plan: Plan,
    folder: Path,
    *,
    text: str,
    jobs: int | None = None,
    trusted: Iterable[str] = (),
    progress: Progress | None = None,
    digests: Mapping[str, str] | None = None,
) -> list[store.Result]:
    """Run what is missing in ``folder`` and return every result, in the plan's order. Results of other
    records than ``digests`` (from `check`) are refused."""
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
    for result in _results(missing, folder, jobs or cores(), tuple(trusted)):
        cell, seed = by_key[result["key"]]
        found[result["key"]] = result
        done += work(cell)
        if progress:
            progress(Step(done, total, cell, seed, result))
    return [{**(found[cell.key(seed)] or {}), "cell": cell.described} for cell, seed in wanted]


def _results(
    missing: list[tuple[Cell, int]], folder: Path, jobs: int, trusted: tuple[str, ...]
) -> Iterator[store.Result]:
    jobs = min(jobs, len(missing)) or 1
    spare = max(1, cores() // jobs)
    calls = (delayed(run_cell)(cell, seed, folder, trusted, spare) for cell, seed in missing)
    try:
        yield from Parallel(n_jobs=jobs, return_as="generator_unordered", batch_size=1)(calls)
    except KeyboardInterrupt:
        if jobs > 1:  # the workers must not go on without us
            get_reusable_executor().shutdown(wait=False, kill_workers=True)
        raise


def run_cell(cell: Cell, seed: int, folder: Path, trusted: tuple[str, ...], spare: int) -> store.Result:
    """One cell in its own process: compute, write, return. What the user can put right is kept as
    the cell's error, never as a result; anything else is a defect and ends the sweep."""
    import torch
    from threadpoolctl import threadpool_limits

    from leakscope import experiment

    torch.set_num_threads(1)
    try:
        with threadpool_limits(1), parallel_config("threading", n_jobs=spare):
            result = experiment.run(cell, seed, trusted=trusted)
    except LeakscopeError as error:
        identity = {"format": FORMAT, "key": cell.key(seed), "seed": seed}
        result = identity | {"cell": cell.described, "error": str(error)}
    store.save(folder, result)
    return result
