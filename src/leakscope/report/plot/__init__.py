"""Pictures as strings of SVG: no script, no request, colours and fonts from the page around them.

Each is a function of plain numbers and words; it escapes its words, so that a column may have any name. The
page puts the numbers in a table under each picture.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from leakscope.report.plot.frame import Axis, Scale, at, categories, frame, linear, path
from leakscope.report.plot.panel import Curve, Mark, Panel, Point, draw, picture
from leakscope.results.averages import RAREST

Whisker = tuple[float, float, float]  # value, low, high

MARKED = 24  # rounds up to which every round gets a mark of its own
VACUOUS = 0.9995  # a bound from here on is 1 to three digits and rules nothing out
SIDE = 260  # of a cloud
SPOTS = (  # of a cloud, each from its middle; told apart without colour
    "h0", "m-2 0h4m-2-2v4", "m-1.6-1.6l3.2 3.2m0-3.2l-3.2 3.2", "m-2 1.6l2-4 2 4z", "m-1.6-1.6h3.2v3.2h-3.2z",
    "m-2.2 0h4.4", "m0-2.2v4.4",
)  # fmt: skip
DISCS = {  # that fill as severity grows
    "severe": '<circle cx="12" cy="12" r="6.4" class="full"/>',
    "substantial": '<path d="M12 5.6a6.4 6.4 0 0 1 0 12.8z" class="full"/>',
    "slight": '<path d="M12 5.6a6.4 6.4 0 0 1 6.4 6.4H12z" class="full"/>',
    "ranking": '<path d="M8 15.6h2.2M8 12h5M8 8.4h8" class="stroke"/>',
    "certified": '<path d="M12 7v6M12 16.4v.2" class="stroke"/>',
    "inconclusive": '<path d="M9.6 9.8a2.4 2.4 0 1 1 3.4 2.2q-1 .5-1 1.6M12 16.4v.2" class="stroke"/>',
    "failed": '<path d="M8.6 8.6l6.8 6.8M15.4 8.6l-6.8 6.8" class="stroke"/>',
}


def severity(name: str) -> str:
    """A disc; the word beside it says the same, so it is decoration, as are all marks of a legend."""
    return _sign("icon", "0 0 24 24", '<circle cx="12" cy="12" r="10" class="stroke"/>' + DISCS.get(name, ""))


def mark(shape: int, *, filled: bool) -> str:
    return _sign("mark", "-10 -10 20 20", Mark(0, 0, "", shape, filled).drawing(0, 0))


def spot(code: int) -> str:
    return _sign("mark", "-5 -5 10 10", path(f"M0 0{SPOTS[code]}", f"spot s{code}"))


def _sign(style: str, box: str, drawing: str) -> str:
    return f'<svg class="{style}" viewBox="{box}" aria-hidden="true">{drawing}</svg>'


def strip(whisker: Whisker, *, span: Point, tip: str, bound: float | None = None) -> str:
    """A dot with its interval on a line as wide as the page allows; a tall tick at a bound below 1."""
    place = Scale(*span, 2, 98)
    value, low, high = (f"{place(v):.2f}%" for v in whisker)
    parts = _rules(span, 28) + (
        f'<g class="whisker"><line x1="{low}" x2="{high}" y1="14" y2="14"/>'
        f'<line x1="{low}" x2="{low}" y1="9" y2="19"/><line x1="{high}" x2="{high}" y1="9" y2="19"/></g>'
        f'<circle cx="{value}" cy="14" r="5" class="dot"/>'
    )
    if bound is not None and bound < VACUOUS:
        limit = f"{place(bound):.2f}%"
        parts += f'<line x1="{limit}" x2="{limit}" y1="2" y2="26" class="bound"/>'
    return picture("strip point", 'height="28" tabindex="0"', tip, "Estimate and interval.", parts)


def scale(span: Point) -> str:
    """The axis that the strips above it share."""
    texts, place = [], Scale(*span, 2, 98)
    for tick in _halves(span):
        word = {0.0: "0 guessing", 1.0: "1 certain"}.get(tick, f"{tick:g}".replace("-", "−"))
        anchor = {0.0: "start" if span[0] == 0 else "middle", 1.0: "end"}.get(tick, "middle")
        texts.append(f'<text x="{place(tick):.2f}%" y="20" text-anchor="{anchor}">{word}</text>')
    return f'<svg class="strip" height="26" aria-hidden="true">{_rules(span, 6)}{"".join(texts)}</svg>'


def _halves(span: Point) -> list[float]:
    return [i / 2 for i in range(math.ceil(span[0] * 2), math.floor(span[1] * 2) + 1)]


def _rules(span: Point, height: int) -> str:
    place = Scale(*span, 2, 98)
    ticks = [(f"{place(tick):.2f}%", "" if tick else ' class="zero"') for tick in _halves(span)]
    return "".join(f'<line x1="{x}" x2="{x}" y2="{height}"{style}/>' for x, style in ticks)


def roc(
    curve: Sequence[Point],
    *,
    marks: Sequence[tuple[float, Whisker, str]],
    title: str,
    hits: str = "secret named, when it holds",
) -> str:
    """Hits against false alarms, the latter on a logarithmic axis, drawn as steps that never
    claim more than was measured; ``marks`` are (false alarms, hits with interval, words)."""
    rates = ((0.001, "0.1%"), (0.01, "1%"), (0.1, "10%"), (1.0, "100%"))
    across = Axis(RAREST, 1.0, rates, "false alarms (log scale)", log=True, grid=True)
    steps = [corner for (_, y), (x, up) in pairwise(curve) for corner in ((x, y), (x, up))]
    chance = [RAREST ** (i / 13) for i in range(13, -1, -1)]
    curves = [Curve([(rate, rate) for rate in chance], "chance", "chance")]
    curves += [Curve([*curve[:1], *steps], "series")] if curve else []
    points = [Mark(rate, value, tip, up=(low, high)) for rate, (value, low, high), tip in marks]
    panel = Panel(frame(across, linear((0, 1), hits, percent=True, grid=True)), points, curves)
    desc = "Hits against false alarms; the higher above the dashed line of chance, the more leaks. "
    return draw([panel], title, desc + "Data below.", "roc")


def rounds(single: Sequence[Whisker], accumulated: Sequence[Whisker], *, title: str) -> str:
    """AUROC against the observed round: each alone, and all so far, with their intervals."""
    count = len(accumulated)
    lowest = min(0.5, *(whisker[1] for whisker in (*single, *accumulated)))
    floor = max(0.0, math.floor(lowest * 10 - 1e-9) / 10 if lowest < 0.5 else 0.4)
    pad = 0.03 * (count - 1) or 0.5
    across = Axis(1 - pad, count + pad, tuple((i, str(i)) for i in range(1, count + 1)), "observed round")
    curves, marks = [Curve([(across.low, 0.5), (across.high, 0.5)], "chance", "chance")], []
    for series, style, words in ((single, "second", "alone"), (accumulated, "first", "so far")):
        places = list(enumerate(series, start=1))
        edge = [(i, whisker[1]) for i, whisker in places] + [(i, whisker[2]) for i, whisker in places[::-1]]
        curves.append(Curve(edge, f"band {style}"))
        curves.append(Curve([(i, whisker[0]) for i, whisker in places], f"series {style}"))
        for i, (value, low, high) in places if count <= MARKED else ():
            tip = f"round {i} {words}: {value:.3f} ({low:.3f} to {high:.3f})"
            marks.append(Mark(i, value, tip, filled=style == "first"))
    key = ("first", "rounds so far"), ("hollow", "one round alone")
    panel = Panel(frame(across, linear((floor, 1), "AUROC", grid=True), key=key), marks, curves)
    desc = "AUROC after each observed round with its interval; 0.5 is chance, 1 is certainty. Data below."
    return draw([panel], title, desc, "rounds")


def frontier(
    marks: Sequence[Mark], *, goal: float, percent: bool, axis: str, title: str
) -> tuple[str, list[int]]:
    """Advantage against utility, and which settings have a number for want of room for their words.
    Advantages up to ``goal`` lie on a wash."""
    across = linear([mark.x for mark in marks], axis, pad=0.14, percent=percent)
    inside = frame(across, linear((0, 1), "advantage of the adversary", grid=True), tall=264)
    panel = Panel(inside, marks, washes=[((across.low, 0), (across.high, goal))])
    desc = "Advantage against utility, one mark per setting; the bottom right corner is ideal. Data below."
    return draw([panel], title, desc, "frontier"), panel.words()[1]


def histogram(
    edges: Sequence[float],
    shares: tuple[Sequence[float], Sequence[float]],
    *,
    names: tuple[str, str],
    span: Point,
    title: str,
) -> str:
    """How a test statistic is spread under two hypotheses: shares of trials between ``edges``."""
    digits = max(0, 2 - math.floor(math.log10(span[1] - span[0])))
    key, curves = list(zip(("second", "first"), names, strict=True)), []
    for (style, name), heights in zip(key, shares, strict=True):
        bars = list(zip(heights, edges, edges[1:], strict=False))
        corners = [corner for share, start, end in bars for corner in ((start, share), (end, share))]
        middle = sum(share * (start + end) / 2 for share, start, end in bars) / sum(heights)
        tip = f"{name}: mean " + f"{middle:.{digits}f}".replace("-", "−")
        curves.append(Curve([(edges[0], 0), *corners, (edges[-1], 0)], f"series {style} area", tip=tip))
    up = linear((0, 1.04 * max(map(max, shares))), "share of trials", percent=True, grid=True)
    desc = "The less the two overlap, the better an auditor tells the two records apart. Data below."
    return draw(
        [Panel(frame(linear(span, "test statistic"), up, key=key), curves=curves)], title, desc, "histogram"
    )


def epsilons(
    columns: Sequence[tuple[Sequence[str], Sequence[tuple[int, int, bool, float, str]], float | None]],
    *,
    heads: Sequence[str],
    limit: str,
    title: str,
) -> str:
    """Epsilon on a logarithmic axis, one column per setting: its words under it, ``heads`` beside
    them; points (place, shape, filled, epsilon, tip), where the first two places are lower bounds and
    point upwards; and a dashed line at what could be certified at most, with its words."""
    every = [v for _, points, most in columns for v in (*(point[3] for point in points), most) if v]
    zeros = any(point[3] <= 0 for _, points, _ in columns for point in points)
    first = math.floor(math.log10(min(every, default=1.0))) - zeros  # a decade for what is not on the axis
    last = max(math.ceil(math.log10(max(every, default=1.0))), first + 1 + zeros)
    ticks = [(10.0**d, "0" if zeros and d == first else f"{10.0**d:g}") for d in range(first, last + 1)]
    up = Axis(10.0**first, 10.0**last, tuple(ticks), "epsilon (log scale)", log=True, grid=True)
    inside = frame(categories(["\n".join(words) for words, _, _ in columns], heads), up)
    step = min(13.0, (inside.x(1) - inside.x(0)) / 4.5) if len(columns) > 1 else 13.0
    marks = [
        Mark(i, value, tip, shape, filled, shift=(place - 1.5) * step, arrow=place < 2)
        for i, (_, points, _) in enumerate(columns)
        for place, shape, filled, value, tip in points
    ]
    level = [(i + side, most) for i, (_, _, most) in enumerate(columns) if most for side in (-0.5, 0.5)]
    desc = "Certified lower bounds and theoretical values of epsilon for each setting. Data below."
    return draw(
        [Panel(inside, marks, [Curve(level, "chance", limit)] if level else [])], title, desc, "epsilon"
    )


def cloud(groups: Sequence[Sequence[Point]], *, title: str, desc: str) -> str:
    """Points in two dimensions on equal scales, a kind of spot for each group."""
    both = zip(*(point for group in groups for point in group), strict=True)
    spans = [(min(values), max(values)) for values in both]
    wide = max(high - low for low, high in spans) or 1.0
    x, y = (Scale((a + b - wide) / 2, (a + b + wide) / 2, 8, SIDE - 8) for a, b in spans)
    spots = ["".join(f"M{at(x(a), y(b))}{SPOTS[i]}" for a, b in group) for i, group in enumerate(groups)]
    parts = [path(d, f"spot s{i}") for i, d in enumerate(spots)]
    return picture("scatter", f'viewBox="0 0 {SIDE} {SIDE}"', title, desc, parts, "map")
