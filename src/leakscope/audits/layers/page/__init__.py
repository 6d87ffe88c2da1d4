"""Audits layer by layer (`LayerAudit`, paper 001): which layers give a secret away, what to do about it,
and what became of the paper's claims; in words, numbers and one chart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from markupsafe import Markup

from leakscope.audits.layers.found import LayersFound
from leakscope.audits.layers.page.brief import brief
from leakscope.audits.layers.page.claims import RARE
from leakscope.audits.layers.page.maps import LayerMap, layer_maps
from leakscope.audits.layers.page.measures import Latent, Original, Risk
from leakscope.audits.layers.page.order import informed, nats, order, scaled
from leakscope.report.pages import fill, interval, marked, plural, short
from leakscope.report.plot.frame import Axis, categories, frame, wrap
from leakscope.report.plot.panel import Curve, Mark, Panel, draw
from leakscope.results.averages import Average
from leakscope.results.chapter import RULES, Chapter
from leakscope.results.result import Result

BY = (
    "Layer by layer: by the advantage with the layer that tells most, or with all layers. For inputs that "
    "are rebuilt: by the share of their information"
)
OWN = {
    "slight": f"{RULES['slight']}, or that of the information alone is above 0",
    "inconclusive": f"{RULES['inconclusive']}, or the adversary could only guess",
}
LIMITS = (
    "A layer that gives away little alone may add to others. Which layer tells most depends on the "
    "adversary: with another one the order can change.",
    "The layer that tells most is the highest of several, and its interval does not allow for this choice.",
)
NORMS = {  # as the page calls them
    "F": "F-norm",
    "1": "1-norm",
    "inf": "Largest entry",
    "relative": "F-norm over that of the gradient",
}
SHOWN = 6  # secrets that are drawn, those that leak most
STEP = 12  # between the marks of one layer
KINDS = {"convolution": "conv", "linear": "linear", "embedding": "embedding"}
DRAWN = {"relative": "relative sensitivity, F-norm over that of the gradient", "F": "sensitivity, F-norm"}
Sketch = tuple[str, list[Mark], list[Curve]]  # of a panel: its title and what it shows
ASSUMED = "Layer by layer: each audit above says what its adversary sees and knows."


def tell(results: Sequence[Result[LayersFound]]) -> Chapter:
    """The layer maps, the worst first."""
    maps = layer_maps(results)
    lost = sum(not one.keys for one in maps)
    failed = f"; {plural(lost, 'audit')} failed" if lost else ""
    body = fill(
        "layers/page.html",
        maps=maps,
        secrets=_choose,
        chart=marked(_draw),
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
        brief=brief(maps),
    )


def _choose(one: LayerMap) -> list[Latent]:
    """The secrets in the chart: all, or those whose layers leak most."""
    every = list(one.found.latent)
    leaks = sorted(
        every, key=lambda latent: -max(r.information.low / latent.most for r in latent.layers.values())
    )
    return [latent for latent in every if latent in leaks[:SHOWN]]


def _draw(one: LayerMap, title: str) -> str:
    """Original and latent risk, one above the other; where inputs were not rebuilt, how sensitive each
    layer is to them. All in shares of the most that is possible, with intervals."""
    heads = [(each.name, KINDS.get(each.kind, "other"), _count(each.parameters)) for each in one.found.layers]
    edge, heads = len(heads) - 0.5, heads + _extras(one)
    wide = max(STEP * (len(_choose(one)) or 1) + 8.0, 54.0, min(92.0, 560 / len(heads)))
    sketches = [sketch for sketch in (_inputs(one), _secrets(one)) if sketch]
    panels: list[Panel] = []
    for i, (words, marks, curves) in enumerate(sketches, start=1):
        shown = 3 if i == len(sketches) else 1  # below the last panel, the kind and the size too
        under = ["\n".join(line for word in head[:shown] for line in wrap(word, wide - 4)) for head in heads]
        up, above = _shares(marks, words), panels[-1].frame.end + 8 if panels else 0.0
        beside = [Curve([(edge, up.low), (edge, up.high)], "chance")] * (edge < len(heads) - 0.5)
        spans = sorted({mark.span or (mark.x, mark.x) for mark in marks if mark.filled})
        washes = [((round(a) - 0.5, up.low), (round(b) + 0.5, up.high)) for a, b in spans]
        inside = frame(categories(under), up, wide=wide * len(heads), tall=170, above=above)
        panels.append(Panel(inside, marks, [*beside, *curves], washes))
    desc = "What each layer gives away, as a share of the most that is possible, with intervals. Data below."
    return draw(panels, title, desc, "layers", "map") if panels else ""


def _extras(one: LayerMap) -> list[tuple[str, str, str]]:
    """Columns beside the layers: all of them together, and what needs no layer."""
    secrets = bool(one.found.latent)
    whole = secrets or one.found.original is not None
    return [("all", "layers", "at once")] * whole + [("labels", "counted,", "no layer")] * secrets


def _count(parameters: int) -> str:
    for size, unit in ((1_000_000, "M"), (1_000, "k")):
        if parameters >= size:
            return f"{parameters / size:.3g}{unit}"
    return str(parameters)


def _shares(marks: Sequence[Mark], title: str) -> Axis:
    """As high as there are estimates; as far below 0, but never so far that it takes the panel. An interval
    may reach above 100%, of the largest or by sampling."""
    ends = [end for mark in marks for end in mark.up or ()]
    top = next((top for top in (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.6, 0.8) if max(ends) <= top), 1.0)
    ticks = tuple((share, f"{100 * share:g}%") for share in (0.0, top / 2, top))
    low, high = max(-top / 3, min(0.0, *ends)), max(top, min(max(ends), 1.25))
    return Axis(low, high, ticks, title, grid=True)


def _inputs(one: LayerMap) -> Sketch | None:
    if one.found.original:
        return _rebuilt(one.found.original, one)
    norm = next((norm for norm in DRAWN if one.found.sensitivity.get(norm)), None)
    return _sensitive(one.found.sensitivity[norm], DRAWN[norm], one) if norm else None


def _rebuilt(original: Original, one: LayerMap) -> Sketch:
    places = {layer: i for i, layer in enumerate(one.found.names)}
    best = informed(original.layers)
    marks = []
    for each in original.views:
        whole = each is original.whole
        columns = [len(places)] if whole else [places[name] for name in each.layers]
        filled = bool(best and each.name == best.first and each.shown)
        tip, span = _tip(each.name, "inputs", each), (min(columns), max(columns))
        marks.append(_mark(span, each.information, original.most, tip, filled))
    return "original: the inputs themselves, rebuilt from the layers under each line", marks, []


def _sensitive(values: Mapping[str, Average], name: str, one: LayerMap) -> Sketch | None:
    place = order(values)
    if place is None or place.highest.value <= 0:
        return None
    marks = []
    for i, layer in enumerate(one.found.names):
        if layer in values:
            value = values[layer]
            tip = f"{layer}: {interval(value, short)}"
            marks.append(_mark((i, i), value, place.highest.value, tip, layer == place.first))
    return f"inputs were not rebuilt; {name}, share of the largest", marks, []


def _secrets(one: LayerMap) -> Sketch | None:
    secrets, spans, end = _choose(one), one.found.spans, len(one.found.names)
    marks = []
    for slot, latent in enumerate(secrets):
        place = informed(latent.layers)
        views: list[tuple[str, Risk, tuple[int, int]]]
        views = [(name, risk, spans[name]) for name, risk in latent.layers.items()]
        views.append(("all layers", latent.together, (end, end)))
        views.append(("labels counted", latent.labels, (end + 1, end + 1)))
        for name, risk, columns in views:
            filled = bool(place and name == place.first and risk.shown)
            mark = _mark(columns, risk.information, latent.most, _tip(name, latent.secret, risk), filled)
            shift = STEP * (slot - (len(secrets) - 1) / 2)
            marks.append(replace(mark, shape=slot + 1, shift=shift))
    curve = one.found.trend if len(secrets) > 1 else {}
    trend = [(float(spans[name][0]), share) for name, share in curve.items()]
    title = "latent: secrets that the model is not trained for" + "; the line is their trend" * bool(trend)
    return (title, marks, [Curve(trend)] if trend else []) if marks else None


def _mark(columns: tuple[int, int], average: Average, most: float, tip: str, filled: bool) -> Mark:
    """An estimate as a share of the most that is possible, over the columns it is about."""
    share, (start, stop) = scaled(average, most), columns
    span = (start - 0.3, stop + 0.3) if start < stop else None
    return Mark((start + stop) / 2, share.value, tip, filled=filled, up=(share.low, share.high), span=span)


def _tip(name: str, secret: str, risk: Risk) -> str:
    value = risk.information
    return f"{name}, {secret}: {nats(value.value)} nats ({nats(value.low)} to {nats(value.high)})"
