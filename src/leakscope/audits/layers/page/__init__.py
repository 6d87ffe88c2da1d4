"""Audits layer by layer (`LayerAudit`, paper 001): which layers give a secret away, what to do about it,
and what became of the paper's claims; in words, numbers and one chart."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from leakscope.audits.layers.found import LayersFound
from leakscope.audits.layers.page.chart import chart, drawn
from leakscope.audits.layers.page.claims import RARE
from leakscope.audits.layers.page.maps import layer_maps
from leakscope.audits.layers.page.measures import NORMS
from leakscope.report import plot
from leakscope.report.pages import fill, marked, plural
from leakscope.results.chapter import RULES, Chapter
from leakscope.results.result import Result

BY = (
    "Layer by layer: by the advantage with the layer, or with all of them, that tells most. For inputs that "
    "are rebuilt, a share of their information takes its place."
)
OWN = {
    "slight": f"{RULES['slight']}, or that of the information alone is above 0",
    "inconclusive": f"{RULES['inconclusive']}, or the adversary could but guess",
}
LIMITS = (
    "A layer that gives little away by itself may add to others. Which layer tells most depends on how the "
    "adversary reads gradients: with another one the order can change.",
    "The layer that tells most is the highest of several, and its interval does not allow for the choice.",
)
ASSUMED = "Of audits layer by layer: what the adversary sees and knows stands with each, above."


def tell(results: Sequence[Result[LayersFound]]) -> Chapter:
    """The layer maps, the worst first."""
    maps = layer_maps(results)
    lost = sum(not one.keys for one in maps)
    failed = f"; {plural(lost, 'audit')} failed" if lost else ""
    body = fill(
        "layers/page.html",
        maps=maps,
        secrets=drawn,
        chart=marked(chart),
        mark=marked(plot.mark),
        norms=NORMS,
        rare=RARE,
    )
    return Chapter(
        lead=f"{plural(len(maps), 'model')} audited layer by layer{failed}.",
        verdicts=tuple(one.verdict for one in maps),
        body=body,
        rules=(BY, {**RULES, **OWN}),
        limits=LIMITS,
        assumed=Markup(f'<p class="soft">{ASSUMED}</p>'),
        settings=len(maps),
    )
