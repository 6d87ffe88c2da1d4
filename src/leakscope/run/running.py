"""From a plan to a report: in a results folder, or in memory only."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import tomli_w
from torch import nn

from leakscope.core import files
from leakscope.core.dataset import Dataset
from leakscope.data import tabled
from leakscope.models import weights
from leakscope.report.page import write
from leakscope.report.report import Report, read_report
from leakscope.results import store
from leakscope.results.cell import Plan, Table
from leakscope.results.kind import headline
from leakscope.run import experiment, search
from leakscope.run.engines import Engine, run_task
from leakscope.run.plan import from_document
from leakscope.run.progress import bar, run_plan, say
from leakscope.run.tuning import Risk


def run_document(
    document: Table,
    output: str | Path | None,
    *,
    records: Dataset | None = None,
    net: nn.Module | None = None,
    jobs: int | None = None,
    trust: Sequence[str] = (),
    quiet: bool = False,
    engine: Engine | None = None,
) -> Report:
    """Run the plan of a document, with these records and this model where they are in memory."""
    plan = from_document(document, trusted=trust, where="the audit", built=net is not None)
    text = tomli_w.dumps(document)
    if records is not None or net is not None:
        return _run_here(plan, text, output, records=records, net=net, trust=trust, quiet=quiet)
    return run_text(plan, text, output, jobs=jobs, trust=trust, quiet=quiet, engine=engine)


def run_search(
    document: Table,
    risk: Risk,
    output: str | Path | None,
    *,
    halvings: int,
    jobs: int | None,
    trust: Sequence[str],
    quiet: bool,
) -> Report:
    """Search the defenses for the first cell of a document, and keep the answer in the report."""
    with _folder(output) as folder, bar(quiet=quiet) as progress:
        answer = search.search_defense(
            from_document(document, trusted=trust, where="the search"),
            tomli_w.dumps(document),
            risk,
            folder,
            halvings=halvings,
            jobs=jobs,
            trusted=trust,
            progress=progress,
            tell=lambda line: say(progress, line),
        )
        write(folder)
        report = read_report(folder)
    return replace(report, folder=Path(output) if output is not None else None, answer=answer)


def run_text(
    plan: Plan,
    text: str,
    output: str | Path | None,
    *,
    jobs: int | None = None,
    trust: Sequence[str] = (),
    engine: Engine | None = None,
    quiet: bool = False,
) -> Report:
    """Run a plan that is already checked; with an ``output`` folder also write its page there."""
    with _folder(output) as folder:
        results = run_plan(plan, text, folder, jobs=jobs, trusted=trust, engine=engine, quiet=quiet)
        if output is not None:
            write(folder)
    return Report(tuple(results), text, Path(output) if output is not None else None)


def _run_here(
    plan: Plan,
    text: str,
    output: str | Path | None,
    *,
    records: Dataset | None,
    net: nn.Module | None,
    trust: Sequence[str],
    quiet: bool,
) -> Report:
    """Records or a model in memory are played with in this process, one cell after the other. The weights
    are kept in the folder, so that its plan can be run again."""
    asked, loaded = store.asked(plan), dict[str, Dataset]()

    def load(table: Table) -> Dataset:
        if records is None:
            name = repr(table)
            if name not in loaded:
                loaded.clear()  # one at a time in memory
                loaded[name] = tabled(table)
            return loaded[name]
        return records.without(*table["without"]) if table.get("without") else records

    for cell, seed in asked.values():
        experiment.check(cell, seed, records=load(cell.data), trusted=trust, net=net)
    folder, results = Path(output) if output is not None else None, []
    if folder:
        store.claim(folder, text, plan.digest)
    if folder and net is not None:
        files.write(folder / weights.FILE, weights.serialise(net), private=True)
    with bar(quiet=quiet) as progress:
        task = progress.add_task(f"{len(asked)} cells", total=len(asked))
        for cell, seed in asked.values():
            own = load(cell.data)
            finished = run_task(cell, seed, trusted=tuple(trust), spare=1, records=own, net=net)
            results.append(finished.result)
            if folder:
                store.save(folder, finished.result, finished.files)
            told = f"failed: {finished.said}" if finished.said else headline(finished.result)
            say(progress, f"{cell.id or cell.game_name}, seed {seed}: {told}")
            progress.update(task, advance=1)
    if folder:
        write(folder)
    return Report(tuple(results), text, folder)


@contextmanager
def _folder(output: str | Path | None) -> Iterator[Path]:
    """The results folder: the one that was asked for, or one that goes with the block."""
    if output is not None:
        yield Path(output)
        return
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder) / "results"
