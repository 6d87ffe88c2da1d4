"""From a plan to a report: in a results folder, or in memory only."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import tomli_w

from leakscope.core.dataset import Dataset
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
    jobs: int | None = None,
    trust: Sequence[str] = (),
    quiet: bool = False,
) -> Report:
    """Run the plan of a document, with these records where they are in memory."""
    plan = from_document(document, trusted=trust, where="the audit")
    return run_text(
        plan, tomli_w.dumps(document), output, records=records, jobs=jobs, trust=trust, quiet=quiet
    )


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
    records: Dataset | None = None,
    jobs: int | None = None,
    trust: Sequence[str] = (),
    engine: Engine | None = None,
    quiet: bool = False,
) -> Report:
    """Run a plan that is already checked; with an ``output`` folder also write its page there."""
    if records is not None:
        return _run_records(plan, text, records, output, trust=trust, quiet=quiet)
    with _folder(output) as folder:
        results = run_plan(plan, text, folder, jobs=jobs, trusted=trust, engine=engine, quiet=quiet)
        if output is not None:
            write(folder)
    return Report(tuple(results), text, Path(output) if output is not None else None)


def _run_records(
    plan: Plan, text: str, records: Dataset, output: str | Path | None, *, trust: Sequence[str], quiet: bool
) -> Report:
    """Records in memory are played with in this process, one cell after the other."""
    asked = store.asked(plan)

    def cut(table: Table) -> Dataset:
        return records.without(*table["without"]) if table.get("without") else records

    for cell, seed in asked.values():
        experiment.check(cell, seed, records=cut(cell.data), trusted=trust)
    folder, results = Path(output) if output is not None else None, []
    if folder:
        store.claim(folder, text, plan.digest)
    with bar(quiet=quiet) as progress:
        task = progress.add_task(f"{len(asked)} cells", total=len(asked))
        for cell, seed in asked.values():
            finished = run_task(cell, seed, trusted=tuple(trust), spare=1, records=cut(cell.data))
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
