"""Results -> one self-contained HTML page: what leaks, how sure that is, and what was assumed.

`render` is a function of its arguments alone: no clock, no file but the templates, so the same results always
give the same page. `write` does it for a results folder. It knows no kind of audit by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from leakscope.core import files
from leakscope.core.columns import Fate
from leakscope.measures.shuffled import SelfCheck
from leakscope.report import answer as answers
from leakscope.report.nets import describe_nets, list_nets
from leakscope.report.opening import open_page
from leakscope.report.pages import fill, marked, percent
from leakscope.report.plot.scene import draw_scene
from leakscope.results import gate, number, store
from leakscope.results.cell import plan_of, shown_plan, words
from leakscope.results.chapter import Chapter, Verdict
from leakscope.results.kind import chapters, numbers
from leakscope.results.result import Made, Result, find_checks
from leakscope.results.scores import FrozenModel

M = TypeVar("M", bound=FrozenModel)
CHECKS = 40  # self-checks that are listed
LONGEST = 100_000  # characters of a plan that is quoted
VERDICTS = 30  # that are listed before the rest is folded away
ALWAYS = (
    "If an attack succeeds, something leaks. If it fails, something may still leak: every number is a lower "
    "bound on what a better attack could learn.",
)
CLOSING = "A defense is judged against the attack that was run. A proof, such as a differential privacy "
CLOSING += "guarantee, holds against all of them."


@dataclass(frozen=True)
class Check:
    """One self-check, and where it stands."""

    cell: str
    seed: int
    where: str
    result: SelfCheck

    @property
    def worst_first(self) -> tuple[bool, float, str, int, str]:
        rate = self.result.alarms / self.result.shuffles
        return self.result.passed, -rate, self.cell, self.seed, self.where


def list_checks(results: Iterable[Result[Any]]) -> list[Check]:
    """Every self-check in the results, those that failed first."""
    found = [
        Check(result.cell.id or result.cell.game_name, result.seed, where, check)
        for result in results
        for where, check in find_checks(result.found)
    ]
    return sorted(found, key=lambda one: one.worst_first)


def order_verdicts(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """The worst first: the first of them is the page's answer."""
    return sorted(verdicts, key=lambda verdict: verdict.worst_first)


def list_verdicts(told: Iterable[Chapter]) -> list[Verdict]:
    return order_verdicts(verdict for chapter in told for verdict in chapter.verdicts)


def list_remarks(told: Iterable[Chapter]) -> list[str]:
    return list(dict.fromkeys(remark for chapter in told for remark in chapter.remarks))


def _limits(results: Sequence[Result[Any]], own: Iterable[str], settings: int) -> list[str]:
    seeds = {result.seed for result in results}
    limits = [*ALWAYS, *dict.fromkeys(own)]
    limits.append(
        "The intervals cover the chance of the trials, and of the seeds where there are several. They do not "
        "cover other populations, other models or data that drifts."
    )
    if len(seeds) == 1:
        limits.append(
            "There is one seed, one split and one trained model. The numbers do not show how much another "
            "training would differ."
        )
    if settings > 1:
        limits.append(
            f"Each interval is for one setting alone. Among {settings} settings some lie far out by chance, "
            f"so the best and the worst look more extreme than they are."
        )
    return [*limits, CLOSING]


def render(
    results: Sequence[Result[Any]],
    *,
    plan: str,
    title: str,
    verdict: gate.GateVerdict | None = None,
    wanted: int = 0,
    answer: answers.Answer | None = None,
    told: Sequence[Chapter] | None = None,
) -> str:
    """The page. Where fewer results are there than were ``wanted``, it says so. ``told``: by who has told
    the results' chapters already."""
    told = chapters(results) if told is None else told
    settings = sum(chapter.settings for chapter in told)
    checks = list_checks(results)
    runs = [result for result in results if result.found is not None]
    verdicts, lacking = list_verdicts(told), max(0, wanted - len(results))
    return fill(
        "/page.html",
        title=title,
        plan=plan,
        gate=verdict,
        gates=gate.words,
        opening=open_page(told, verdicts, results, answer, lacking),
        draw_scene=marked(draw_scene),
        chapters=told,
        rules=dict(chapter.rules for chapter in told),
        remarks=[*describe_nets(results), *list_remarks(told)],
        verdicts=verdicts,
        listed=VERDICTS,
        failing=[check for check in checks if not check.result.passed],
        checks=checks,
        most=CHECKS,
        missing=(len(results), wanted) if lacking else None,
        limits=_limits(results, (line for chapter in told for line in chapter.limits), settings),
        seeds=sorted({result.seed for result in results}),
        data=_distinct(run.made.records for run in runs),
        tables=list_tables(results),
        models=_distinct(list_nets(runs)),
        versions=list(dict.fromkeys(words(run.made.versions) for run in runs if run.made.versions)),
        codes=list(dict.fromkeys(run.made.code for run in runs if run.made.code)),
        seconds=round(sum(run.made.seconds for run in runs)),
        defending=say_defending([run.made for run in runs]),
    )


def say_defending(stamps: Sequence[Made]) -> str:
    """How long the defenses took, where there were any and they took long enough to be told."""
    own = [stamp for stamp in stamps if stamp.defending]
    if not own:
        return ""
    seconds, whole = sum(stamp.defending for stamp in own), sum(stamp.seconds for stamp in own)
    several = len(own) > 1
    took = f"{seconds:.1f} s, {percent(seconds / whole)} of {'these audits' if several else 'this audit'}"
    return f"The defense itself took {took}{' that have one' if several else ''}."


def quote_plan(text: str) -> str:
    """A plan as others may see it; one that is too long for a page is named and not quoted."""
    if len(text) <= LONGEST:
        return shown_plan(text)
    return (
        f"# It has {len(text):,} characters, too many for this page: see plan.toml in the results folder.\n"
    )


@dataclass(frozen=True)
class ColumnTable:
    """What became of the columns of one table: a row for each."""

    name: str
    rows: tuple[tuple[str, str, str, str], ...]  # column, kind, inputs, reason

    @property
    def inputs(self) -> int:
        return sum(row[2] != "0" for row in self.rows)


def list_tables(results: Iterable[Result[Any]]) -> list[ColumnTable]:
    """The tables of people's own. Inputs that differ from seed to seed are told as a range."""
    fates: dict[str, dict[str, list[Fate]]] = {}
    for records in _distinct(result.made.records for result in results):
        for fate in records.fates:
            fates.setdefault(records.name, {}).setdefault(fate.column, []).append(fate)
    return [
        ColumnTable(name, tuple(_tell_column(same) for same in columns.values()))
        for name, columns in fates.items()
    ]


def _tell_column(fates: Sequence[Fate]) -> tuple[str, str, str, str]:
    least, most = min(fate.inputs for fate in fates), max(fate.inputs for fate in fates)
    return (
        fates[0].column,
        fates[0].kind,
        str(most) if least == most else f"{least} to {most}",
        fates[0].reason,
    )


def _distinct(items: Iterable[M | None]) -> list[M]:
    """Each once, in an order that does not depend on that of the results."""
    return sorted({item for item in items if item is not None}, key=repr)


def write(folder: Path) -> Path:
    """The page of a results folder, from its files alone, and the numbers behind it beside it."""
    text, results = store.plan(folder), store.results(folder)
    plan, page = plan_of(text), folder / "report.html"
    title = plan.name if "name" in plan.model_fields_set else folder.name
    html = render(
        results,
        plan=quote_plan(text),
        title=title,
        verdict=gate.judge_kept(folder),
        wanted=len(store.asked(plan)),
        answer=answers.load(folder),
    )
    files.write(page, html)
    rows = [row for result in results for row in numbers(result)]
    files.write(folder / "results.csv", number.as_csv(rows))
    files.write(folder / "results.json", number.as_json(rows, title=title))
    return page
