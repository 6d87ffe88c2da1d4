"""Results -> one self-contained HTML page: what leaks, how sure that is, and what was assumed.

`render` is a function of its arguments alone: no clock, no file but the template, so the same
results always give the same page. `write` does it for a results folder.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from markupsafe import Markup

from leakscope import charts, exports, federations, gating, guard_pages, layer_maps, store, svg
from leakscope.averages import Average, Json, needed, thinned
from leakscope.federations import Watch, watches
from leakscope.guard_pages import GuardPage, Mark
from leakscope.pages import either, marked, number, percent, significant, template
from leakscope.plan import WORDS
from leakscope.sections import Attribute, Frontier, Row, Secret, attributes, frontier, secrets, words
from leakscope.selfchecks import selfchecks
from leakscope.summary import SEVERE, SEVERITIES, SLIGHT, Audit, Section, stable, summarise
from leakscope.summary import audits as audits_of

POINTS = 80  # drawn of one ROC curve, at most
FIGURES = 12  # settings that get figures, the worst first, so that a large grid stays one readable page
BINS = 60  # of a histogram, at most
EPSILONS = ("any", "gaussian", "exact", "classical")  # in the order of their marks


def spoken(average: Average, guessing: float) -> tuple[str, str, str]:
    """Success, its interval and guessing in whole percent, or finer where whole ones would mislead."""
    numbers = (average.value, average.low, average.high)
    blurred = average.high - average.low < 0.015 or any(0 < abs(v - round(v)) < 0.005 for v in numbers)
    digits = 1 if blurred else 0
    between = f"{number(100 * average.low, digits)}–{percent(average.high, digits)}"
    return percent(average.value, digits), between, percent(guessing, digits)


def too_few(section: Section, average: Average, fpr: float) -> tuple[int, int, int] | None:
    """Where `tpr_at_fpr` had too few trials for a lower limit above 0: (parts its error is cut into, trials
    without the secret that one needs, trials in all that hold so many on average)."""
    chances = list(section.secret.get("chances") or [])
    kinds = 1 if len(chances) == 2 else len(chances)
    share = chances[0] if kinds == 1 else 1 - max(chances, default=1.0)  # of trials without the secret
    if average.seeds > 1 or average.low > 0 or not share > 0:
        return None
    without = needed(average.level, fpr, kinds=kinds)
    in_all = math.ceil(without / share)
    return (4 * kinds, without, in_all) if average.n < in_all else None


@dataclass(frozen=True)
class Task:
    """What a model is worth under one defense; several secrets may have been measured with it."""

    name: str
    row: Row
    change: float | None  # of accuracy, against the same model without the defense
    secrets: tuple[str, ...]


def _tasks(found: Iterable[Secret]) -> list[Task]:
    tasks: dict[str, Task] = {}
    for secret in found:
        for row in sorted(secret.measured, key=lambda r: (bool(r.defense), r.number)):
            utility, free = row.section.utility, secret.undefended(row)
            if not utility:
                continue
            name = str((row.section.runs[0].get("data") or {}).get("label", secret.data))
            key = stable([secret.data, name, row.defense, row.differs, [a.value for a in utility.values()]])
            task = tasks.get(key) or Task(name, row, _change(row.section, free if row.defense else None), ())
            tasks[key] = replace(task, secrets=tuple(dict.fromkeys((*task.secrets, secret.label))))
    return list(tasks.values())


def _change(section: Section, free: Section | None) -> float | None:
    if free is None or "accuracy" not in free.utility or "accuracy" not in section.utility:
        return None
    return section.utility["accuracy"].value - free.utility["accuracy"].value


def _drawn(found: Sequence[Secret]) -> set[int]:
    """The rows that get figures: of every secret the worst, then its best defense, then the rest."""
    first = [secret.worst for secret in found]
    best = [row for secret in found if (row := secret.best_defended)]
    rest = sorted((row for secret in found for row in secret.rows), key=lambda row: row.section.worst_first)
    ordered = dict.fromkeys(row.number for row in (*first, *best, *rest) if row.section.estimates)
    return set(list(ordered)[:FIGURES])


def _watched_drawn(found: Sequence[Watch]) -> set[int]:
    """The federations that get a figure: the worst on each dataset, then the rest."""
    every = sorted((one for watch in found for one in watch.federations), key=lambda one: one.worst_first)
    ordered = dict.fromkeys(one.number for one in (*(watch.worst for watch in found), *every))
    return set(list(ordered)[:FIGURES])


def _frontier(secret: Secret, found: Frontier) -> tuple[Markup, list[int]]:
    """The chart, and the settings that its legend must name."""
    worth = percent if found.measure == "accuracy" else number
    marks = [
        (
            mark.number,
            mark.label,
            mark.shape,
            not mark.shape or mark.row.section.informed,
            mark.utility.value,
            (a.value, a.low, a.high),
            f"{svg.shortened(mark.label, 24)}{', ' + mark.row.adversary if mark.shape else ''}: "
            f"{number(a.value)} ({number(a.low)} to {number(a.high)}) at {worth(mark.utility.value)}",
        )
        for mark in found.marks
        for a in [mark.advantage]
    ]
    axis = f"task {'accuracy' if found.measure == 'accuracy' else 'AUROC'}"
    title = f"What each defense buys and costs, {secret.label}"
    chart, numbered = charts.frontier(
        marks, goal=SLIGHT, percent=found.measure == "accuracy", axis=axis, title=title
    )
    return Markup(chart), numbered


def _shown(found: Sequence[Attribute]) -> dict[int, list[list[Audit]]]:
    """The audits whose histograms are drawn, by the place of their attribute: of each the ones that
    certify most, as many as there is room for."""
    turns = [(j, i, group) for i, attribute in enumerate(found) for j, group in enumerate(attribute.settings)]
    kept: dict[int, list[list[Audit]]] = {}
    for _, i, group in sorted(turns, key=lambda turn: turn[:2]):
        if sum(len(g) for groups in kept.values() for g in groups) + len(group) <= FIGURES:
            kept.setdefault(i, []).append(group)
    return kept


def _bins(audit: Audit) -> list[tuple[float, float, float, float]]:
    """(from, to, how often under either hypothesis), neighbours joined where there are too many."""
    edges, h0, h1 = audit.histogram or ([], [], [])
    every = max(1, math.ceil(len(h0) / BINS))
    starts = range(0, len(h0), every)
    ends = [min(i + every, len(h0)) for i in starts]
    return [(edges[i], edges[j], sum(h0[i:j]), sum(h1[i:j])) for i, j in zip(starts, ends, strict=True)]


def _histogram(audit: Audit, group: Sequence[Audit], title: str) -> Markup:
    """On the axis that all records of the group share."""
    spans = [(table[0][0], table[-1][1]) for table in map(_bins, group)]
    table = _bins(audit)
    zero, one = ([row[k] / sum(row[k] for row in table) for row in table] for k in (2, 3))
    return Markup(
        charts.histogram(
            [table[0][0], *(row[1] for row in table)],
            (zero, one),
            names=audit.values,
            span=(min(low for low, _ in spans), max(high for _, high in spans)),
            title=title,
        )
    )


def _epsilons(group: Sequence[Audit], title: str) -> Markup:
    """Paper 000, figure 9: what was certified and what theory says, against clip and noise."""
    several = len({audit.setting[2] for audit in group}) > 1
    columns: dict[tuple[float, ...], tuple[list[str], list[tuple[int, int, bool, float, str]], float | None]]
    columns = {}
    for audit in group:
        labels = [
            f"{value:,g}" if math.isfinite(value) else "–" for value in audit.setting[: 3 if several else 2]
        ]
        most = min(audit.numbers("saturation"), default=None)
        _, points, _ = columns.setdefault(audit.setting, (labels, [], most))
        for place, name in enumerate(EPSILONS):
            bound = audit.certified(name) if place < 2 else None
            value = bound.low if bound else audit.largest(name)
            filled = place > 1 or audit.record != "sampled"
            tip = f"clip {labels[0]}, noise {labels[1]}, {name}{', ' + audit.record if bound else ''}"
            point = place, place + 1, filled, value, f"{tip}: {significant(value)}"
            if value is not None and (bound or point not in points):
                points.append(point)  # type: ignore[arg-type]
    limit = "any: more cannot be certified with this many trials"
    heads = ("clip", "noise", "trials")[: 3 if several else 2]
    return Markup(charts.epsilons(list(columns.values()), heads=heads, limit=limit, title=title))


def _guard_chart(page: GuardPage, title: str) -> tuple[Markup, list[Mark]]:
    """The chart, and the marks that its legend must name."""
    chart, unnamed = guard_pages.trade_off(page, title)
    return Markup(chart), unnamed


def _distinct(tables: Iterable[Json | None]) -> list[Json]:
    return list({stable(table): table for table in tables if table}.values())


def _wanted(plan: Json) -> int:
    """How many results a plan asks for; equal cells are run once."""
    said = [{key: value for key, value in cell.items() if key not in WORDS} for cell in plan.get("cell", ())]
    return len(set(map(stable, said))) * len(plan.get("seeds", [0]))


def render(
    results: Sequence[Json],
    *,
    plan: str,
    title: str,
    gate: gating.Verdict | None = None,
    wanted: int = 0,
) -> str:
    """The page. All words from the data are escaped. Where fewer results are there than were ``wanted``, it
    says so."""
    found, audited = secrets(summarise(results)), attributes(audits_of(results))
    federated, maps = watches(results), layer_maps.layer_maps(results)
    guarded = guard_pages.guard_pages(results)
    watched = [one for watch in federated for one in watch.federations]
    rows = [row for secret in found for row in secret.rows]
    measured = [row for row in rows if row.section.estimates]
    runs = [run for row in measured for run in row.section.runs]
    runs += [run for attribute in audited for audit in attribute.audits for run in audit.runs]
    runs += [run for one in watched for run in one.runs]
    runs += [run for one in maps for run in one.runs]
    judged = {id(run): run for page in guarded for one in page.settings for run in one.runs}
    runs += judged.values()  # one encoder may be judged for several secrets
    lows = [a.low for row in measured if (a := row.section.estimates.get("advantage"))]
    return template("report.html").render(
        title=title,
        plan=plan,
        gate=gating.section(gate) if gate else None,
        secrets=found,
        rows=rows,
        measured=measured,
        attributes=audited,
        watches=federated,
        watched=watched,
        watched_drawn=_watched_drawn(federated),
        maps=maps,
        map_secrets=layer_maps.drawn,
        guards=guarded,
        guard_sentences=guard_pages.sentences,
        guard_rows=guard_pages.rows,
        guard_measures=guard_pages.measures,
        refuted=guard_pages.refuted,
        recognised=guard_pages.RECOGNISED,
        rare=layer_maps.RARE,
        found_bands=(federations.SUBSTANTIAL, federations.SEVERE),
        nominal=federations.NOMINAL,
        seeds=sorted({int(result["seed"]) for result in results}),
        severities=SEVERITIES,
        bands=(SLIGHT, SEVERE),
        vacuous=svg.VACUOUS,
        span=(min(0.0, math.floor(min(lows, default=0.0) * 4) / 4), 1.0),
        drawn=_drawn(found),
        points=POINTS if len(rows) + len(watched) <= FIGURES else POINTS // 3,
        thinned=thinned,
        facts={
            "observed": either(row.section.observed for row in rows),
            "batch": either(row.section.secret.get("batch") for row in rows),
            "public": either((run.get("data") or {}).get("public") for run in runs),
            "prior": either(words(prior) for row in rows if (prior := row.section.cell.get("prior"))),
            "rehearsals": either(row.section.cell.get("rehearsals") for row in rows),
        },
        missing=(len(results), wanted) if 0 < len(results) < wanted else None,
        checks=selfchecks(results),
        tasks=_tasks(found),
        frontiers=[frontier(secret) for secret in found],
        histograms=_shown(audited),
        added=any(audit.numbers("exact_added") for attribute in audited for audit in attribute.measured),
        data=_distinct(run.get("data") for run in runs),
        models=_distinct(run.get("model") for run in runs),
        versions=[words(table) for table in _distinct(run.get("versions") for run in runs)],
        seconds=round(sum(float(run.get("seconds") or 0) for run in runs)),
        spoken=spoken,
        too_few=too_few,
        bins=_bins,
        icon=marked(svg.severity),
        strip=marked(svg.strip),
        scale=marked(svg.scale),
        roc=marked(svg.roc),
        rounds=marked(svg.rounds),
        mark=marked(svg.mark),
        frontier=_frontier,
        layer_chart=marked(layer_maps.chart),
        guard_chart=_guard_chart,
        guard_information_chart=marked(guard_pages.information),
        scatter=marked(guard_pages.scatter),
        spot=marked(guard_pages.spot),
        histogram=_histogram,
        epsilons=_epsilons,
    )


def write(folder: Path) -> Path:
    """The page of a results folder, from its files alone; the numbers behind it as `exports` beside it."""
    plan, results = store.plan(folder), store.results(folder)
    page = folder / "report.html"
    title = str(tomllib.loads(plan).get("name", folder.name))
    verdict, wanted = gating.kept(folder), _wanted(tomllib.loads(plan))
    store.write(page, render(results, plan=plan, title=title, gate=verdict, wanted=wanted))
    exports.write(folder, results, title=title)
    return page
