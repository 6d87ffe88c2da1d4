"""Audits of guards (`GuardAudit`, papers 003 and 004): what a fresh attacker still tells, what that costs,
what needs no guard, and which numbers mislead; in words, numbers and charts."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from leakscope.audits.guards.found import GuardsFound
from leakscope.audits.guards.page import chart
from leakscope.audits.guards.page.measures import list_measures
from leakscope.audits.guards.page.pages import RECOGNISED, GuardPage, group_pages
from leakscope.audits.guards.page.words import give_verdict, name_attack, refute
from leakscope.report import plot
from leakscope.report.pages import fill, interval, marked, percent, plural, write_measure
from leakscope.report.plot.panel import Mark
from leakscope.results.averages import Curve, thinned
from leakscope.results.chapter import RULES, SEVERE, Chapter
from leakscope.results.kind import by_cell
from leakscope.results.result import Result

POINTS = 40  # of one ROC curve, at most
LIMITS = (
    "A guard is judged by the attackers that were trained on it. Another network, or one trained for longer, "
    "may find what they miss.",
    "The guard that is shown is the best of those tried, by the numbers shown. Its interval does not allow "
    "for that choice. λ is no dial: more of it need not hide more.",
    "A theorem's number that rests on an estimated entropy is an estimate. It promises nothing.",
)


def tell(results: Sequence[Result[GuardsFound]]) -> Chapter:
    """What guards leave and keep: a verdict for every secret, then every guard and every attack on it."""
    pages = group_pages(results)
    settings = [one for page in pages for one in page.settings]
    failed = sum(one.found is None for one in settings)
    lead = f"{plural(len(pages), 'secret')} behind guards, judged by attackers that the guards have not met"
    lead += f"; {plural(failed, 'guard')} failed." if failed else "."
    verdicts = tuple(give_verdict(page) for page in pages)
    by = (
        "Guards: by the advantage of the strongest fresh attacker on the guard that is shown, or, where that "
        "shows no leak, of any other that does; records that are rebuilt: by the lower limit of SSIM, severe "
        f"from {SEVERE}, substantial from {RECOGNISED}, slight below"
    )
    body = fill(
        "guards/page.html",
        pages=pages,
        trade_off=_draw_trade_off,
        rows=chart.rows,
        information=marked(chart.information),
        scatter=marked(chart.scatter),
        spot=marked(plot.spot),
        mark=marked(plot.mark),
        draw_roc=_draw_roc,
        thin=lambda curve: thinned(curve, POINTS),
        list_measures=list_measures,
        name_attack=name_attack,
        write_measure=write_measure,
        refute=refute,
    )
    assumed = Markup(
        '<p class="soft">Of guards: what the attacker sees and knows stands with each secret.</p>'
    )
    cells = len(by_cell(results))
    return Chapter(lead, verdicts, body, (by, RULES), assumed, LIMITS, settings=cells)


def _draw_trade_off(page: GuardPage) -> tuple[Markup, list[tuple[Mark, str]]]:
    """The chart, and the marks for whose words there was no room."""
    drawn, unnamed = chart.trade_off(page, f"What guards buy and cost, {page.title}, {page.data}")
    return Markup(drawn), unnamed


def _draw_roc(page: GuardPage, points: Curve) -> Markup:
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
