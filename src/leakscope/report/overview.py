"""Many runs on one page: of each the verdict that matters most, and whether it keeps to a declared risk
appetite."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from markupsafe import Markup

from leakscope.core import files
from leakscope.core.errors import LeakscopeError, StoreError
from leakscope.report.page import list_verdicts
from leakscope.report.pages import fill, name_measure, number, percent
from leakscope.results import gate, store
from leakscope.results.cell import plan_of
from leakscope.results.chapter import Chapter, Verdict
from leakscope.results.kind import chapters
from leakscope.results.result import Result
from leakscope.results.scores import MEASURES

DECLARED = "appetite.toml"  # a risk appetite that lies in a results folder, or beside it
HEADER = [
    "run", "about", "reading", "strongest attack", "interval", "guessing", "defense", "task accuracy", "gate",
]  # fmt: skip


@dataclass(frozen=True)
class Run:
    """One results folder: its worst verdict. Without a verdict nothing was run."""

    title: str
    folder: str
    link: str  # of its report, from where the page lies; empty if there is none
    verdict: Verdict | None
    settings: int
    failed: int  # results
    results: int
    missing: int = 0  # results that its plan asks for and nobody has run
    gate: str = ""  # the verdict of the gate, in a word
    number: int = 0  # by which a dossier names it; 0 where nothing does


def say(verdict: Verdict) -> tuple[str, str, str]:
    """Value, interval and guessing in words. A certified epsilon has no upper end and no guessing."""
    if verdict.average is None:
        return "–", "", "–"
    average, known = verdict.average, MEASURES.get(verdict.measure)
    if known is None:
        return f"at least {number(average.low)}", f"at {percent(average.level, 0)} confidence", "–"
    show = percent if known.percent else number
    return show(average.value), f"{show(average.low)} to {show(average.high)}", show(verdict.guessing)


def say_worth(verdict: Verdict) -> str:
    """What the task is worth, by name unless it is the accuracy that the column is about."""
    worth = percent(verdict.utility.value if verdict.utility else None)
    return worth if verdict.task == Verdict.task else f"{verdict.task} {worth}"


def read_run(folder: Path, *, page: Path) -> Run:
    """A results folder, seen from a page."""
    plan, results = store.plan(folder), store.results(folder)
    report = folder / "report.html"
    link = os.path.relpath(report.resolve(), page.resolve().parent) if report.exists() else ""
    link = quote(Path(link).as_posix()) if link else ""
    return line_up(folder.resolve().name, link, plan, results, chapters(results))


def line_up(name: str, link: str, plan: str, results: Sequence[Result[Any]], told: Sequence[Chapter]) -> Run:
    """One line of the table, from what was told of the results."""
    return Run(
        title=plan_of(plan).name,
        folder=name,
        link=link,
        verdict=next(iter(list_verdicts(told)), None),
        settings=sum(chapter.settings for chapter in told),
        failed=sum(bool(result.error) for result in results),
        results=len(results),
        missing=len(gate.complete(results, plan)) - len(results),
    )


def read_runs(folders: Sequence[Path], *, page: Path) -> tuple[list[Run], list[str]]:
    """Every folder that can be read, and a sentence for each that cannot, or whose appetite cannot."""
    runs: list[Run] = []
    bad: list[str] = []
    for folder in folders:
        try:
            runs.append(read_run(folder, page=page))
            runs[-1] = replace(runs[-1], gate=_gate(folder))
        except LeakscopeError as error:
            named = str(folder) in str(error)
            bad.append(str(error) if named else f"{folder}: {error}")
    return runs, bad


def rows(runs: Sequence[Run]) -> list[list[str]]:
    """The runs as the terminal shows them."""
    lines = []
    for run in runs:
        verdict = run.verdict
        if verdict is None:
            lines.append([run.title, "nothing has been run yet", *["–"] * (len(HEADER) - 3), run.gate or "–"])
            continue
        value, between, base = say(verdict)
        worth = say_worth(verdict)
        attack, defense = f"{value} {name_measure(verdict.measure)}", verdict.defense or "none"
        title, reading = f"{run.title} ({run.folder})", "; ".join([verdict.word.lower(), *_lost(run)])
        lines.append([title, verdict.about, reading, attack, between, base, defense, worth, run.gate or "–"])
    return lines


def _lost(run: Run) -> list[str]:
    """What the reading of a run does not cover."""
    counts = ((run.failed, "failed"), (run.missing, "not run"))
    return [f"{count} of {run.results + run.missing} {what}" for count, what in counts if count]


def render(
    runs: Sequence[Run],
    bad: Sequence[str],
    *,
    title: str = "Summary of runs",
    first: str = "",
    more: str = "",
) -> str:
    """The page; ``first`` and ``more`` are sections before and after its table. All words from the data are
    escaped."""
    words = {"say": say, "say_worth": say_worth}
    return fill(
        "/summary.html", title=title, runs=runs, bad=bad, first=Markup(first), more=Markup(more), **words
    )


def write(folders: Sequence[Path], page: Path) -> tuple[list[Run], list[str]]:
    """The page over all folders that can be read; refused where none can."""
    runs, bad = read_runs(folders, page=page)
    if not runs:
        raise StoreError(" ".join(bad) or "a summary needs at least one results folder.")
    files.write(page, render(runs, bad))
    return runs, bad


def _gate(folder: Path) -> str:
    """By the appetite that is kept with the results, or lies in their folder, or beside it."""
    places = (folder / gate.APPETITE, folder / DECLARED, folder.resolve().parent / DECLARED)
    path = next((place for place in places if place.is_file()), None)
    return gate.judge(gate.read(path), gate.read_results(folder)).combined if path else ""
