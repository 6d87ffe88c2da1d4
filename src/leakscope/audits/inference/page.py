"""Games as a page and a terminal tell of them: one answer for each secret, and the numbers behind it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup

from leakscope.audits.inference.brief import brief
from leakscope.audits.inference.found import Played
from leakscope.audits.inference.settings import (
    Frontier,
    Group,
    Setting,
    draw_frontier,
    group_settings,
    list_tasks,
)
from leakscope.measures.accounting import Accounted
from leakscope.report import plot
from leakscope.report.pages import (
    either,
    fill,
    marked,
    number,
    percent,
    plural,
    promised,
    shown,
    small,
    spoken,
)
from leakscope.report.plot.panel import Mark
from leakscope.results.averages import Average, needed, thinned
from leakscope.results.chapter import SEVERITIES, SLIGHT, Chapter, Verdict
from leakscope.results.result import Result
from leakscope.results.scores import MEASURES

POINTS = 80  # drawn of one ROC curve, at most
FIGURES = 12  # settings that get figures, the worst first, so that a large grid stays one readable page
LESS = 0.02  # of accuracy, or R², below a linear model's that is worth a remark
ROWS = 200  # settings that are told in full; of more, the table and the files of results hold the rest


def tell(results: Sequence[Result[Played]]) -> Chapter:
    """What games found: a verdict for every secret, then each setting."""
    groups = group_settings(results)
    rows = [row for group in groups for row in group.rows]
    failed = sum(not row.runs for row in rows)
    seeds = len({result.seed for result in results})
    lead = f"{plural(len(groups), 'secret')}, {plural(len(rows), 'setting')}, {plural(seeds, 'seed')}"
    lead += f"; {plural(failed, 'setting')} failed." if failed else "."
    return Chapter(
        lead=f"{lead} Every number comes with its interval and with what guessing alone achieves.",
        verdicts=tuple(judge(group) for group in groups),
        body=_body(groups, rows),
        assumed=_assumed(groups, rows),
        limits=tuple(_limits(groups, rows)),
        remarks=tuple(_remarks(rows)),
        settings=len(rows),
        brief=brief(groups),
    )


def judge(group: Group) -> Verdict:
    """The answer about one secret: its worst setting, and the best defense where one was tried."""
    worst = group.headline
    return Verdict(
        severity=worst.severity,
        about=group.label,
        data=group.data,
        sentence=describe(group, worst),
        notes=tuple(_notes(group, worst)),
        anchor=group.anchor,
        order=worst.scores.advantage.low if worst.scores.advantage else 0.0,
        attack=worst.attack,
        measure="success",
        average=worst.scores.success,
        guessing=worst.guessing,
        defense=worst.defense,
        utility=worst.utility.main,
        task=worst.utility.word,
    )


def describe(group: Group, row: Setting) -> str:
    """One setting in one sentence."""
    if row.scores.success is None or row.secret is None:
        return f"It is not known what the updates tell about {group.title}: the measurement failed."
    who = "A curious server"
    if row.defense:
        knows = "knows" if row.informed else "does not know"
        who = f"Under {row.defense}, a curious server that {knows} this defense and"
    sees = f"{plural(row.observed, 'update')} of {plural(row.secret.batch, 'record')}"
    seen = f"{who} sees {sees}" if row.defense else f"{who} that sees {sees}"
    return f"{seen} {_aim(group)} {_success(row, row.scores.success)}"


def _aim(group: Group) -> str:
    if group.kind == "distribution":
        return f"says in which of {group.count} ranges the share of {group.value} lies, and is right in"
    if group.kind == "user":
        return f"picks the right person of {group.count} ({group.column}) in"
    outside = ", which is not part of the training data," if group.kind == "property" else ""
    return f"names the {group.column} of that group{outside} and is right in"


def _success(row: Setting, success: Average) -> str:
    right, between, chance = spoken(success, row.guessing)
    level = percent(success.level, 0)
    return f"{right} of cases ({level} interval {between}). Guessing without the updates: {chance}."


def _notes(group: Group, worst: Setting) -> list[str]:
    notes = []
    if worst.severity == "ranking" and worst.scores.auroc:
        notes.append(
            "Its guesses were not shown to beat chance, but its ranking tells the secret: AUROC "
            f"{shown('auroc', worst.scores.auroc)}, where 0.5 is chance. A better threshold would find more."
        )
    if worst.defense and worst.runs and not any(row.informed for row in group.defended):
        notes.append("An adversary who knows the defense may do better. This was not measured here.")
    best = group.best_defended
    if best and best.number != worst.number and best.scores.success:
        note = (
            f"Least leakage among {plural(len(group.defended), 'defended setting')} with an adversary who "
            f"{'knows' if best.informed else 'does not know'} the defense: {best.defense}"
            f"{f' ({best.differs})' if best.differs else ''}, right in {_success(best, best.scores.success)} "
            f"Reading: {SEVERITIES[best.severity].lower()}."
        )
        free = group.undefended(best)
        if best.utility.main and free and free.utility.main:
            note += (
                f" Task {best.utility.word} {percent(best.utility.main.value)}, without defense "
                f"{percent(free.utility.main.value)}."
            )
        notes.append(note)
    if worst.runs:
        notes += [f"Seed {seed} failed and is in no number here: {reason}" for seed, reason in worst.failures]
    lost = len(group.rows) - len(group.measured)
    if lost and worst.runs:
        notes.append(f"{plural(lost, 'more setting')} failed and {'is' if lost == 1 else 'are'} not counted.")
    return notes


def describe_epsilon(accounted: Accounted) -> str:
    """What an accountant says of exactly what was shown, or of a training, in words."""
    pair = f"ε = {promised(accounted.added)} if one {accounted.unit} is added or removed"
    pair += f", ε = {promised(accounted.replaced)} if one is replaced, at δ = {small(accounted.delta)}"
    if accounted.unit == "mean":
        return (
            f"Noise on the mean of all clients: {pair}. It holds against someone who sees only the mean. "
            f"Against the server, and whoever else sees uploads, no ε holds."
        )
    if accounted.covers == "training":
        return (
            f"The training of the model, apart from what this adversary saw: {pair}, for "
            f"{plural(accounted.releases, 'step')}, as if every batch was drawn at random. Batches were "
            f"shuffled, so this is no proof. It says nothing about the updates shown here."
        )
    rounds = plural(accounted.releases, "round")
    return (
        f"What the adversary saw, {rounds} of the same {plural(accounted.batch, 'record')}: {pair}. One "
        f"round alone: ε = {promised(accounted.added_each)} and ε = {promised(accounted.replaced_each)}."
    )


def too_few(row: Setting, average: Average, fpr: float) -> tuple[int, int, int] | None:
    """Where `tpr_at_fpr` had too few trials for a lower limit above 0: (parts its error is cut into, trials
    without the secret that one needs, trials in all that hold so many on average)."""
    chances = list(row.secret.chances) if row.secret else []
    kinds = 1 if len(chances) == 2 else len(chances)
    share = chances[0] if kinds == 1 else 1 - max(chances, default=1.0)  # of trials without the secret
    if average.seeds > 1 or average.low > 0 or not share > 0:
        return None
    without = needed(average.level, fpr, kinds=kinds)
    in_all = math.ceil(without / share)
    return (4 * kinds, without, in_all) if average.n < in_all else None


def _drawn(groups: Sequence[Group]) -> set[int]:
    """The rows that get figures: of every secret the worst, then its best defense, then the rest."""
    first = [group.worst for group in groups]
    best = [row for group in groups if (row := group.best_defended)]
    rest = sorted((row for group in groups for row in group.rows), key=lambda row: row.worst_first)
    ordered = dict.fromkeys(row.number for row in (*first, *best, *rest) if row.runs)
    return set(list(ordered)[:FIGURES])


def _told(groups: Sequence[Group], drawn: set[int]) -> set[int]:
    """The settings that are told in full; a page of thousands stays readable and small."""
    rest = sorted((row for group in groups for row in group.rows), key=lambda row: row.worst_first)
    ordered = dict.fromkeys([*sorted(drawn), *(row.number for row in rest)])
    return set(list(ordered)[:ROWS])


def _chart(group: Group, frontier: Frontier) -> tuple[Markup, list[int]]:
    """The chart of a frontier, and the settings that its legend must name."""
    in_percent = MEASURES[frontier.measure].percent
    worth = percent if in_percent else number
    marks = [
        Mark(
            mark.utility.value,
            a.value,
            f"{mark.label}{', ' + mark.row.adversary if mark.shape else ''}: "
            f"{number(a.value)} ({number(a.low)} to {number(a.high)}) at {worth(mark.utility.value)}",
            mark.shape,
            not mark.shape or mark.row.informed,
            up=(a.low, a.high),
            words=mark.label,
            number=mark.number,
        )
        for mark in frontier.drawn
        for a in [mark.advantage]
    ]
    title = f"What each defense buys and costs, {group.label}"
    chart, numbered = plot.frontier(
        marks, goal=SLIGHT, percent=in_percent, axis=f"task {frontier.word}", title=title
    )
    return Markup(chart), numbered


def _body(groups: Sequence[Group], rows: Sequence[Setting]) -> Markup:
    drawn = _drawn(groups)
    tasks = list_tasks(groups)[:ROWS]
    lows = [row.scores.advantage.low for row in rows if row.scores.advantage]
    return fill(
        "inference/page.html",
        groups=groups,
        rows=rows,
        measured=[row for row in rows if row.runs],
        frontiers={group.place: draw_frontier(group) for group in groups},
        tasks=tasks,
        worths=list({task.row.utility.judged_by: task.row.utility for task in tasks}.values()),
        drawn=drawn,
        told=_told(groups, drawn),
        points=POINTS if len(rows) <= FIGURES else POINTS // 3,
        span=(min(0.0, math.floor(min(lows, default=0.0) * 4) / 4), 1.0),
        goal=SLIGHT,
        vacuous=plot.VACUOUS,
        epsilon=describe_epsilon,
        thinned=thinned,
        too_few=too_few,
        chart=_chart,
        icon=marked(plot.severity),
        strip=marked(plot.strip),
        scale=marked(plot.scale),
        roc=marked(plot.roc),
        by_round=marked(plot.rounds),
        mark=marked(plot.mark),
    )


def _assumed(groups: Sequence[Group], rows: Sequence[Setting]) -> Markup:
    """Who was assumed to see and know what."""
    defended = [row for row in rows if row.defense]
    loose = [group.label for group in groups if not group.worst.people]
    return fill(
        "inference/assumed.html",
        groups=groups,
        told=[group for group in groups if group.known],
        untold=[group for group in groups if not group.known],
        people=any(group.kind == "user" for group in groups),
        defended=defended,
        aware=sum(row.informed for row in defended),
        observed=either(row.observed for row in rows),
        batch=either(row.secret.batch for row in rows if row.secret),
        public=either(r.made.records.public for row in rows for r in row.runs if r.made.records),
        rehearsals=either(row.cell.rehearsals for row in rows),
        columns=", ".join(dict.fromkeys(row.people for row in rows if row.people)),
        loose=", ".join(loose),
    )


def _limits(groups: Sequence[Group], rows: Sequence[Setting]) -> list[str]:
    """What games do not say."""
    limits = []
    if any(row.bounds and row.bounds.advantage is not None for row in rows):
        limits.append(
            "A bound on the advantage holds for its own channel and under its own assumptions. It is a "
            "ceiling, not an estimate: the truth may lie far below it."
        )
    limits.append(
        "The numbers are averages over batches. A rare person or an unusual batch can leak more than the "
        "average."
    )
    if any(group.kind in ("attribute", "property") for group in groups):
        limits.append(
            "In each trial of the game, all records of a batch share one value of the secret. Real batches "
            "are mixed."
        )
    return limits


def _remarks(rows: Sequence[Setting]) -> list[str]:
    """What is easily overlooked."""
    remarks = []
    free = [run.found.utility for row in rows if not row.defense for run in row.runs if run.found]
    worths = free or [run.found.utility for row in rows for run in row.runs if run.found]
    idle = [worth for worth in worths if worth.idle]
    if idle:
        remarks.append(
            f"In {len(idle)} of {len(worths)} cells the model is not clearly better than always saying "
            f"{idle[0].constant}. It would learn more with more --rounds or a higher --rate."
        )
    behind = [w for w in free if w.main and w.linear is not None and w.main.high < w.linear - LESS]
    if len(behind) > len(idle):
        remarks.append(
            f"In {len(behind)} of {len(free)} cells without a defense the model is less accurate than a "
            f"{behind[0].simple} of the same records. What it leaks may change once it has learned more."
        )
    for name in dict.fromkeys(name for row in rows for name in row.cell.data.get("bins", ())):
        remarks.append(
            f"{name} is a number, and was asked in ranges. They are part of the question: unless --bins "
            f"declares their edges, these are quantiles of the whole table, rounded."
        )
    told = {row.cell.game_name for row in rows if row.cell.game.get("known")}
    untold = [name for name in dict.fromkeys(row.cell.game_name for row in rows) if name not in told]
    if told and untold:
        remarks.append(
            f"--known does not apply to {' and '.join(untold)}: there the adversary knows no column of the "
            f"batch, and neither does guessing."
        )
    return remarks
