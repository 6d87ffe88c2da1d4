"""Audits of guards (`GuardAudit`, papers 003 and 004): what a fresh attacker still tells, what that costs,
what needs no guard, and which numbers mislead; in words, numbers and charts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from markupsafe import Markup

from leakscope.audits.guards.found import GuardsFound
from leakscope.audits.guards.page.brief import brief
from leakscope.audits.guards.page.measures import Scatter, TriedAverage, list_measures
from leakscope.audits.guards.page.pages import RECOGNISED, GuardPage, GuardSetting, group_pages
from leakscope.audits.guards.page.words import give_verdict, name_attack, promise, refute
from leakscope.report import plot
from leakscope.report.pages import fill, interval, marked, number, percent, plural
from leakscope.report.plot.frame import Axis, frame, linear
from leakscope.report.plot.panel import Curve, Mark, Panel, draw
from leakscope.results.averages import Average, thinned
from leakscope.results.averages import Curve as Points
from leakscope.results.chapter import RULES, SEVERE, Chapter
from leakscope.results.kind import by_cell
from leakscope.results.result import Result

POINTS = 40  # of one ROC curve, at most
AXES = {"auroc": "AUROC", "success": "success rate", "ssim": "SSIM", "mse": "mean squared error"}
LIMITS = (
    "A guard is judged by the attackers that were trained on it. Another network, or one trained for longer, "
    "may find what they miss.",
    "The page shows the best guard of those tried, by the same numbers. Its interval does not allow for this "
    "choice. A larger λ does not always hide more.",
    "A number of a theorem that rests on an estimated entropy is an estimate. It promises nothing.",
)


def tell(results: Sequence[Result[GuardsFound]]) -> Chapter:
    """What guards leave and keep: a verdict for every secret, then every guard and every attack on it."""
    pages = group_pages(results)
    settings = [one for page in pages for one in page.settings]
    failed = sum(one.found is None for one in settings)
    lead = f"{plural(len(pages), 'secret')} behind guards, attacked by new attackers"
    lead += f"; {plural(failed, 'guard')} failed." if failed else "."
    verdicts = tuple(give_verdict(page) for page in pages)
    by = (
        "Guards: by the advantage of the strongest fresh attacker on the guard that is shown, or, if that "
        "shows no leak, of any other that does; records that are rebuilt: by the lower limit of SSIM, severe "
        f"from {SEVERE}, substantial from {RECOGNISED}, slight below"
    )
    body = fill(
        "guards/page.html",
        pages=pages,
        trade_off=_draw_trade_off,
        rows=_list_rows,
        information=marked(_draw_information),
        scatter=marked(_draw_map),
        draw_roc=_draw_roc,
        thin=lambda curve: thinned(curve, POINTS),
        list_measures=list_measures,
        name_attack=name_attack,
        refute=refute,
        promise=promise,
    )
    assumed = Markup('<p class="soft">Guards: each secret above says what its attacker sees and knows.</p>')
    cells = len(by_cell(results))
    return Chapter(lead, verdicts, body, (by, RULES), assumed, LIMITS, settings=cells, brief=brief(pages))


def _draw_roc(page: GuardPage, points: Points) -> Markup:
    """The curve of the strongest attack, with its hits at 1% false alarms."""
    if page.best is None:
        return Markup()
    one, judged = page.best
    hits = judged.tried.strongest.scores.tpr_at_1
    marks = []
    if hits:
        whisker = hits.value, hits.low, hits.high
        marks.append((0.01, whisker, f"at 1%: {interval(hits, percent)}"))
    title = f"ROC curve, {page.title}, {one.label}"
    return Markup(plot.roc(points, marks=marks, title=title, hits="members named"))


def _list_rows(page: GuardPage) -> list[tuple[int, str, TriedAverage]]:
    """Guards, then what needs none: the number, the words and the numbers of each."""
    start = len(page.settings)
    guards = [(one.number, one.label, found.tried) for one, found in page.judged]
    return guards + [(start + i, one.name, one.tried) for i, one in enumerate(page.baselines, start=1)]


def _place_marks(page: GuardPage) -> list[tuple[Mark, str]]:
    """The rows that have a place, each with the kind of guard; hollow is what needs none, of shape 0 no
    guard at all."""
    settings, found = {one.number: one for one in page.settings}, []
    for place, label, tried in _list_rows(page):
        attack, worth, one = tried.attack(page.measure), tried.worth, settings.get(place)
        none = one is None and page.free is not None and page.free.name == label
        shape = one.family + 1 if one else 0 if none else place - len(settings)
        words, kind = (one.strength, one.kind) if one else (label, "")
        if attack and worth:
            tip = f"{words}: {interval(attack, number)}, {percent(worth.value)}"
            values = attack.value, worth.value, tip, shape, bool(one) or none
            sides = (attack.low, attack.high), (worth.low, worth.high)
            found.append((Mark(*values, *sides, words=words, number=place), kind))
    return found


def _draw_trade_off(page: GuardPage) -> tuple[Markup, list[tuple[Mark, str]]]:
    """The task against the strongest fresh attack, and the marks for whose words there was no room."""
    every = _place_marks(page)
    points = [mark for mark, _ in every]
    least, most = ([v] if v is not None else [] for v in (page.known.chance, page.majority))
    attacks = [end for mark in points for end in mark.across or ()]
    worths = [end for mark in points for end in mark.up or ()]
    across = linear(attacks + least, f"{AXES[page.measure]} of the strongest fresh attack", pad=0.06)
    up = linear(worths + most, f"task {page.task.word}", pad=0.06, percent=True, grid=True)
    majority = f"always {page.task.constant}"
    curves = [Curve([(across.low, v), (across.high, v)], "chance", majority) for v in most]
    curves += [Curve([(v, up.low), (v, up.high)], "chance", "guessing") for v in least]
    for family in page.families:
        numbers = [one.number for one in family if one.lam is not None]
        joined = [(mark.x, mark.y) for mark in points if mark.number in numbers]
        curves += [Curve(joined)] if len(joined) > 1 else []
    panel = Panel(frame(across, up, tall=284), points, curves)
    desc = f"Task {page.task.word} against what the strongest fresh attacker tells; the upper left is ideal. "
    numbered = panel.words()[1]
    unnamed = [(mark, kind) for mark, kind in every if mark.number in numbered]
    title = f"What guards buy and cost, {page.title}, {page.data}"
    return Markup(draw([panel], title, desc + "Data below.", "frontier")), unnamed


def _draw_information(family: Sequence[tuple[GuardSetting, Mapping[str, Average]]], title: str) -> str:
    """I(u; r) in nats against lambda, one shape for each estimator."""
    lams = [one.lam or 0.0 for one, _ in family]
    ends = [end for _, found in family for a in found.values() for end in (a.low, a.high)]
    across = Axis(min(lams) - 0.04, max(lams) + 0.04, tuple((lam, f"{lam:g}") for lam in lams), "λ")
    curves, points = [], []
    for place, name in enumerate(dict.fromkeys(name for _, found in family for name in found)):
        known = [(one, found[name]) for one, found in family if name in found]
        curves.append(Curve([(one.lam or 0.0, average.value) for one, average in known]))
        for one, a in known:
            tip = f"{name}, {one.strength}: {interval(a, number)} nats"
            points.append(Mark(one.lam or 0.0, a.value, tip, place + 1, not place, up=(a.low, a.high)))
    panel = Panel(frame(across, linear([0.0, *ends], "nats", pad=0.06, grid=True)), points, curves)
    desc = "Estimated information about the secret in the representation, by lambda. Data below."
    return draw([panel], title, desc, "information")


def _draw_map(one: Scatter, title: str) -> str:
    """Representations in two dimensions, or three in isometric projection, a kind of spot for each value."""
    groups: list[list[tuple[float, float]]] = [[] for _ in one.values]
    for (x, y, *z), code in zip(one.points, one.codes, strict=True):
        groups[code].append(((x - y) * math.cos(math.pi / 6), (x + y) / 2 - z[0]) if z else (x, y))
    how = " in three dimensions, seen from above a corner" if len(one.points[0]) == 3 else ""
    desc = f"{len(one.points)} representations by t-SNE{how}; distances between groups mean little."
    return plot.cloud(groups, title=title, desc=desc)
