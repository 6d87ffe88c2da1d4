"""Small charts as strings of SVG: no script, no request, colours and fonts from the page around them.

Every function escapes its words, so that a column may have any name. Numbers are drawn as they
are given; the page puts them in a table under each chart.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape

Point = tuple[float, float]
Whisker = tuple[float, float, float]  # value, low, high
Box = tuple[float, float, float, float]  # left, top, right, bottom

WIDTH, HEIGHT = 420, 300
LEFT, RIGHT, TOP, BOTTOM = 46, 12, 30, 46  # the margins around a plot
FLOOR = 7e-4  # where the logarithmic axis of false alarms begins: a little left of 0.1%
MARKED = 24  # rounds up to which every round gets a point of its own
VACUOUS = 0.9995  # a bound from here on is 1 to three digits and rules nothing out
LETTER = 6.4  # about the width of one
SHAPES = (  # from the middle; told apart without colour. The first is for no defense
    "m-3.6 0a3.6 3.6 0 1 0 7.2 0a3.6 3.6 0 1 0-7.2 0zm-3.4 0a7 7 0 1 0 14 0a7 7 0 1 0-14 0z"
    "m-1 0a8 8 0 1 0 16 0a8 8 0 1 0-16 0z",
    "m-4.6 0a4.6 4.6 0 1 0 9.2 0a4.6 4.6 0 1 0-9.2 0z",
    "m-4.2-4.2h8.4v8.4h-8.4z",
    "m0-5.6l5.4 9.4h-10.8z",
    "m0-6.2l5 6.2-5 6.2-5-6.2z",
    "m0 5.6l5.4-9.4h-10.8z",
    "m-1.8-5.4h3.6v3.6h3.6v3.6h-3.6v3.6h-3.6v-3.6h-3.6v-3.6h3.6z",
    "m-5.6 0l2.8-4.8h5.6l2.8 4.8-2.8 4.8h-5.6z",
)


def severity(name: str) -> str:
    """A disc that fills as severity grows; the word beside it says the same, so it is decoration."""
    shapes = {
        "severe": '<circle cx="12" cy="12" r="6.4" class="full"/>',
        "substantial": '<path d="M12 5.6a6.4 6.4 0 0 1 0 12.8z" class="full"/>',
        "slight": '<path d="M12 5.6a6.4 6.4 0 0 1 6.4 6.4H12z" class="full"/>',
        "ranking": '<path d="M8 15.6h2.2M8 12h5M8 8.4h8" class="stroke"/>',
        "inconclusive": '<path d="M9.6 9.8a2.4 2.4 0 1 1 3.4 2.2q-1 .5-1 1.6M12 16.4v.2" class="stroke"/>',
        "failed": '<path d="M8.6 8.6l6.8 6.8M15.4 8.6l-6.8 6.8" class="stroke"/>',
    }
    ring = '<circle cx="12" cy="12" r="10" class="stroke"/>'
    return f'<svg class="icon" viewBox="0 0 24 24" aria-hidden="true">{ring}{shapes.get(name, "")}</svg>'


def strip(whisker: Whisker, *, span: tuple[float, float], tip: str, bound: float | None = None) -> str:
    """A dot with its interval on a line as wide as the page allows; a tall tick at a bound below 1."""
    value, low, high = (_percent(v, span) for v in whisker)
    marks = (
        f'<g class="whisker"><line x1="{low}" x2="{high}" y1="14" y2="14"/>'
        f'<line x1="{low}" x2="{low}" y1="9" y2="19"/><line x1="{high}" x2="{high}" y1="9" y2="19"/></g>'
        f'<circle cx="{value}" cy="14" r="5" class="dot"/>'
    )
    if bound is not None and bound < VACUOUS:
        at = _percent(bound, span)
        marks += f'<line x1="{at}" x2="{at}" y1="2" y2="26" class="bound"/>'
    return (
        f'<svg class="strip point" height="28" role="img" tabindex="0"><title>{escape(tip)}</title>'
        f"<desc>Estimate and interval.</desc>{_rules(span, 28)}{marks}</svg>"
    )


def scale(span: tuple[float, float]) -> str:
    """The axis that the strips above it share."""
    texts = []
    for tick in _ticks(span):
        word = {0.0: "0 guessing", 1.0: "1 certain"}.get(tick, f"{tick:g}".replace("-", "−"))
        anchor = {0.0: "start" if span[0] == 0 else "middle", 1.0: "end"}.get(tick, "middle")
        texts.append(f'<text x="{_percent(tick, span)}" y="20" text-anchor="{anchor}">{word}</text>')
    return f'<svg class="strip" height="26" aria-hidden="true">{_rules(span, 6)}{"".join(texts)}</svg>'


def roc(curve: Sequence[Point], *, marks: Iterable[tuple[float, Whisker, str]], title: str) -> str:
    """Hits against false alarms, the latter on a logarithmic axis, drawn as steps that never
    claim more than was measured; ``marks`` are (false alarms, hits with interval, words)."""
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM

    def x(rate: float) -> float:
        share = math.log(max(rate, FLOOR) / FLOOR) / math.log(1 / FLOOR)
        return LEFT + share * (right - LEFT)

    def y(rate: float) -> float:
        return bottom - rate * (bottom - TOP)

    parts = [_line(LEFT, right, y(t), "rule") for t in (0.25, 0.5, 0.75, 1)]
    parts += [_line(LEFT, right, bottom, "axis")]
    parts += [_text(LEFT - 7, y(t) + 4, f"{t:.0%}", "end") for t in (0, 0.5, 1)]
    for rate, word in ((0.001, "0.1%"), (0.01, "1%"), (0.1, "10%"), (1.0, "100%")):
        parts.append(f'<path d="M{x(rate):.1f} {TOP}V{bottom}" class="rule"/>')
        parts.append(_text(x(rate), bottom + 17, word, "end" if rate == 1 else "middle"))
    chance = [10 ** (i / 6) for i in range(-12, 1)]
    parts.append(_path([(x(FLOOR), y(FLOOR)), *((x(r), y(r)) for r in chance)], "chance"))
    parts.append(_text(x(0.34) - 7, y(0.34), "chance", "end"))
    if curve:
        steps = f"M{x(curve[0][0]):.1f} {y(curve[0][1]):.1f}"
        steps += "".join(f"H{x(fpr):.1f}V{y(tpr):.1f}" for fpr, tpr in curve[1:])
        parts.append(f'<path d="{steps}" class="series"/>')
    for rate, (value, low, high), words in marks:
        whisker = f'<path d="M{x(rate):.1f} {y(low):.1f}V{y(high):.1f}" class="whisker"/>'
        parts.append(_point(x(rate), y(value), words, whisker))
    parts.append(_text(LEFT, 16, "secret named, when it holds", "start"))
    parts.append(_text(LEFT, HEIGHT - 6, "false alarms (log scale)", "start"))
    desc = (
        "Hits against false alarms; the higher above the dashed line of chance, the more leaks. Data below."
    )
    return _chart(parts, title, desc)


def rounds(single: Sequence[Whisker], accumulated: Sequence[Whisker], *, title: str) -> str:
    """AUROC against the observed round: each alone, and all so far, with their intervals."""
    right, bottom = WIDTH - RIGHT - 8, HEIGHT - BOTTOM
    lowest = min(0.5, *(whisker[1] for whisker in (*single, *accumulated)))
    floor = max(0.0, math.floor(lowest * 10 - 1e-9) / 10 if lowest < 0.5 else 0.4)
    count = len(accumulated)

    def x(i: int) -> float:
        return LEFT + 12 + (i / max(1, count - 1)) * (right - LEFT - 12)

    def y(value: float) -> float:
        return bottom - (value - floor) / (1 - floor) * (bottom - TOP)

    values = [round(floor + 0.1 * i, 1) for i in range(round((1 - floor) * 10) + 1)]
    values = values if len(values) <= 7 else values[::2]
    parts = [_line(LEFT, WIDTH - RIGHT, y(t), "rule") for t in values[1:]]
    parts += [_text(LEFT - 7, y(t) + 4, f"{t:.1f}", "end") for t in values]
    parts += [
        _line(LEFT, WIDTH - RIGHT, bottom, "axis"),
        _line(LEFT, WIDTH - RIGHT, y(0.5), "chance"),
        _text(WIDTH - RIGHT, y(0.5) - 6, "chance", "end"),
    ]
    every = max(1, math.ceil(count / 10))
    parts += [_text(x(i), bottom + 17, str(i + 1), "middle") for i in range(0, count, every)]
    for series, style in ((single, "second"), (accumulated, "first")):
        edge = [(x(i), y(w[1])) for i, w in enumerate(series)]
        edge += [(x(i), y(w[2])) for i, w in reversed(list(enumerate(series)))]
        parts.append(_path(edge, f"band {style}", "Z"))
        parts.append(_path([(x(i), y(w[0])) for i, w in enumerate(series)], f"series {style}"))
    for series, style, words in ((single, "second", "alone"), (accumulated, "first", "so far")):
        for i, (value, low, high) in enumerate(series[: MARKED if count <= MARKED else 0]):
            tip = f"round {i + 1} {words}: {value:.3f} ({low:.3f} to {high:.3f})"
            parts.append(_point(x(i), y(value), tip, style=style))
    key = WIDTH - RIGHT - 234
    parts += [
        _text(LEFT, 16, "AUROC", "start"),
        f'<circle cx="{key}" cy="12" r="4" class="dot first"/>'
        + _text(key + 9, 16, "rounds so far", "start"),
        f'<circle cx="{key + 118}" cy="12" r="4" class="dot second"/>',
        _text(key + 127, 16, "one round alone", "start"),
        _text(LEFT, HEIGHT - 6, "observed round", "start"),
    ]
    desc = "AUROC after each observed round with its interval; 0.5 is chance, 1 is certainty. Data below."
    return _chart(parts, title, desc)


def frontier(
    marks: Sequence[tuple[int, str, int, bool, float, Whisker, str]],
    *,
    goal: float,
    percent: bool,
    axis: str,
    title: str,
) -> tuple[str, list[int]]:
    """Advantage against utility, and which settings have a number for want of room for their words.

    ``marks`` are (number, words, shape, filled, utility, advantage with interval, tip); those of one
    number share their words. Advantages up to ``goal`` lie on a wash."""
    height, right = 340, WIDTH - RIGHT
    bottom = height - BOTTOM
    values = [mark[4] for mark in marks]
    pad = max(0.14 * (max(values) - min(values)), 0.005)
    start, stop = min(values) - pad, max(values) + pad

    def x(value: float) -> float:
        return LEFT + (value - start) / (stop - start) * (right - LEFT)

    def y(value: float) -> float:
        return bottom - min(max(value, 0.0), 1.0) * (bottom - TOP)

    parts = [f'<path d="M{LEFT} {y(goal):.1f}H{right}V{bottom}H{LEFT}Z" class="goal"/>']
    parts += [_line(LEFT, right, y(t), "rule") for t in (0.25, 0.5, 0.75, 1)]
    parts += [_line(LEFT, right, bottom, "axis")]
    parts += [_text(LEFT - 7, y(t) + 4, f"{t:g}", "end") for t in (0, 0.5, 1)]
    step = next(s for s in (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 1) if (stop - start) / s <= 6)
    for i in range(math.ceil(start / step), math.floor(min(stop, 1.0) / step + 1e-9) + 1):
        digits = max(0, math.ceil(-math.log10(step) - 1e-9) - 2 * percent)
        word = f"{i * step:.{digits}{'%' if percent else 'f'}}"
        parts.append(_text(x(i * step), bottom + 17, word, "middle"))
    drawn, taken = [], []
    for _, _, shape, filled, utility, (value, low, high), tip in marks:
        at, style = (x(utility), y(value)), "first" if filled else "hollow"
        whisker = f'<path d="M{at[0]:.1f} {y(low):.1f}V{y(high):.1f}" class="whisker"/>'
        room = height if len(marks) <= MARKED else None
        drawn.append(_point(*at, tip, whisker, style=style, shape=shape, height=room))
        taken += [_around(*at, 8), (at[0] - 2, y(high), at[0] + 2, y(low))]
    texts, numbered = _labels(
        [(number, words, x(u), y(advantage[0])) for number, words, _, _, u, advantage, _ in marks],
        taken,
        (LEFT, TOP - 8, right, bottom),
    )
    parts += [
        _text(LEFT, 16, "advantage of the adversary", "start"),
        _text(LEFT, height - 6, axis, "start"),
        *texts,
        *drawn,
    ]
    desc = "Advantage against utility, one mark per setting; the bottom right corner is ideal. Data below."
    return _chart(parts, title, desc, height=height), numbered


def _labels(
    marks: Iterable[tuple[int, str, float, float]], taken: list[Box], room: Box
) -> tuple[list[str], list[int]]:
    """Words beside the first mark of each number, where they hide nothing, else the number."""
    texts, numbered, told = [], [], set()
    for number, words, x, y in marks:
        if number in told:
            continue
        told.add(number)
        near = [(words, *spot) for spot in _spots(x, y)[:8]]
        tries = near + [(str(number), *spot) for spot in _spots(x, y)]
        found = next((one for one in tries if _fits(_box(*one), taken, room)), tries[len(near)])
        text, left, base, anchor = found
        taken.append(_box(*found))
        if abs(left - x) > 12 or abs(base - 4 - y) > 16:
            texts.append(f'<path d="M{x:.1f} {y:.1f}L{left:.1f} {base - 4:.1f}" class="lead"/>')
        texts.append(_text(left, base, text, {0.0: "start", 0.5: "middle"}.get(anchor, "end")))
        if text != words:
            numbered.append(number)
    return texts, numbered


def _spots(x: float, y: float) -> list[tuple[float, float, float]]:
    """Where words may stand around a mark, the nearest first: (x, baseline, anchor)."""
    spots = [(x + 11, y + 4, 0.0), (x - 11, y + 4, 1.0), (x, y - 12, 0.5), (x, y + 20, 0.5)]
    far = [
        (side * reach, up) for reach in (11, 24, 40) for up in (-8, 8, -18, 18, -30, 30) for side in (1, -1)
    ]
    return spots + [(x + dx, y + 4 + dy, 0.0 if dx > 0 else 1.0) for dx, dy in far]


def _box(text: str, x: float, y: float, anchor: float) -> Box:
    width = LETTER * len(text)
    return x - anchor * width, y - 10, x + (1 - anchor) * width, y + 3


def _around(x: float, y: float, reach: float) -> Box:
    return x - reach, y - reach, x + reach, y + reach


def _fits(box: Box, taken: Iterable[Box], room: Box) -> bool:
    inside = box[0] >= room[0] and box[1] >= room[1] and box[2] <= room[2] and box[3] <= room[3]
    return inside and not any(
        box[0] < other[2] and other[0] < box[2] and box[1] < other[3] and other[1] < box[3] for other in taken
    )


def histogram(
    edges: Sequence[float],
    shares: tuple[Sequence[float], Sequence[float]],
    *,
    names: tuple[str, str],
    span: tuple[float, float],
    title: str,
) -> str:
    """How a test statistic is spread under two hypotheses: shares of trials between ``edges``."""
    right, bottom, top = WIDTH - RIGHT, HEIGHT - BOTTOM, max(max(one) for one in shares)

    def x(value: float) -> float:
        return LEFT + (value - span[0]) / (span[1] - span[0]) * (right - LEFT)

    def y(share: float) -> float:
        return bottom - share / top * (bottom - TOP - 8)

    parts = [_line(LEFT, right, y(top), "rule"), _line(LEFT, right, bottom, "axis")]
    parts += [_text(LEFT - 7, y(t) + 4, f"{t:.{0 if top >= 0.1 else 1}%}", "end") for t in (0, top)]
    digits = max(0, 2 - math.floor(math.log10(span[1] - span[0])))
    for i, anchor in enumerate(("start", "middle", "end")):
        value = span[0] + i / 2 * (span[1] - span[0])
        word = f"{value:.{digits}f}".replace("-", "−")
        parts.append(_text(x(value), bottom + 17, word, anchor))
    key = WIDTH - RIGHT - 250
    for i, (style, name, heights) in enumerate(zip(("second", "first"), names, shares, strict=True)):
        bars = list(zip(heights, edges, edges[1:], strict=False))
        steps = "".join(f"V{y(share):.1f}H{x(end):.1f}" for share, _, end in bars)
        outline = f"M{x(edges[0]):.1f} {bottom}{steps}V{bottom}"
        middle = sum(share * (start + end) / 2 for share, start, end in bars) / sum(heights)
        words = escape(f"{shortened(name, 30)}: mean {middle:.{digits}f}".replace("-", "−"))
        parts.append(
            f'<g class="point" tabindex="0"><title>{words}</title><path d="{outline}Z" class="band {style}"/>'
            f'<path d="{outline}" class="series {style}"/>{_tip(words, HEIGHT)}</g>'
        )
        parts.append(f'<circle cx="{key + 128 * i}" cy="12" r="4" class="dot {style}"/>')
        parts.append(_text(key + 128 * i + 9, 16, shortened(name, 17), "start"))
    parts.append(_text(LEFT, 16, "share of trials", "start"))
    parts.append(_text(LEFT, HEIGHT - 6, "test statistic", "start"))
    desc = "The less the two overlap, the better an auditor tells the two records apart. Data below."
    return _chart(parts, title, desc)


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
    height = HEIGHT + 16 * (len(heads) - 1)
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    found = [v for _, points, most in columns for v in (*(point[3] for point in points), most) if v]
    lowest = math.floor(math.log10(min(found, default=1.0)))
    highest = max(math.ceil(math.log10(max(found, default=1.0))), lowest + 1)
    zeros = any(point[3] <= 0 for _, points, _ in columns for point in points)
    lowest -= zeros  # a decade for what is not on the axis

    def y(value: float) -> float:
        share = (math.log10(value) - lowest) / (highest - lowest) if value > 0 else 0.0
        return bottom - share * (bottom - TOP)

    wide = (right - LEFT - 16) / len(columns)
    middles = [LEFT + 16 + (i + 0.5) * wide for i in range(len(columns))]
    parts = [_line(LEFT, right, y(10.0**d), "rule") for d in range(lowest + 1, highest + 1)]
    parts.append(_line(LEFT, right, bottom, "axis"))
    for decade in range(lowest, highest + 1):
        word = "0" if zeros and decade == lowest else f"{10.0**decade:g}"
        parts.append(_text(LEFT - 7, y(10.0**decade) + 4, word, "end"))
    every = math.ceil(max(len(w) for words, _, _ in columns for w in words) * LETTER * 1.1 / wide)
    for (words, _, _), middle in list(zip(columns, middles, strict=True))[:: max(1, every)]:
        parts += [_text(middle, bottom + 17 + 16 * i, word, "middle") for i, word in enumerate(words)]
    parts += [_text(LEFT - 7, bottom + 17 + 16 * i, head, "end") for i, head in enumerate(heads)]
    drawn, taken = [], []
    for (_, points, _), middle in zip(columns, middles, strict=True):
        for place, shape, filled, value, tip in points:
            at = middle + (place - 1.5) * min(13.0, wide / 4.5), y(value)
            arrow = f'<path d="M{at[0]:.1f} {at[1]:.1f}v-15m-3 3l3-3 3 3" class="whisker"/>'
            style, arrow = "first" if filled else "hollow", arrow if place < 2 else ""
            drawn.append(_point(*at, tip, arrow, style=style, shape=shape, height=height))
            taken.append((at[0] - 6, at[1] - (16 if place < 2 else 6), at[0] + 6, at[1] + 6))
    level = [(m, y(most)) for (_, _, most), m in zip(columns, middles, strict=True) if most]
    if level:
        steps = f"M{level[0][0] - wide / 2:.1f} {level[0][1]:.1f}"
        steps += "".join(f"V{at:.1f}H{middle + wide / 2:.1f}" for middle, at in level)
        parts.append(f'<path d="{steps}" class="chance"/>')
        slack, room = right - LEFT - 8 - LETTER * len(limit), (LEFT, TOP, right + 1, bottom)
        tries = [
            (limit, LEFT + 8 + k * slack / 4, level[0][1] + up, 0.0)
            for up in (16, -7, 28, 40, -20)
            for k in range(5)
        ]
        spot = next((one for one in tries if _fits(_box(*one), taken, room)), tries[0])
        parts.append(_text(spot[1], spot[2], limit, "start"))
    parts += drawn
    parts.append(_text(LEFT, 16, "epsilon (log scale)", "start"))
    desc = "Certified lower bounds and theoretical values of epsilon for each setting. Data below."
    return _chart(parts, title, desc, height=height)


def mark(shape: int, *, filled: bool) -> str:
    """A mark for a legend; the words beside it say what it stands for."""
    style = "first" if filled else "hollow"
    return f'<svg class="mark" viewBox="-10 -10 20 20" aria-hidden="true">{_mark(0, 0, shape, style)}</svg>'


def shortened(words: str, most: int) -> str:
    return words if len(words) <= most else words[: most - 1].rstrip() + "…"


def _chart(parts: Iterable[str], title: str, desc: str, *, height: int = HEIGHT) -> str:
    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH} {height}" role="img"><title>{escape(title)}</title>'
        f"<desc>{escape(desc)}</desc>{''.join(parts)}</svg>"
    )


def _point(
    x: float,
    y: float,
    tip: str,
    whisker: str = "",
    *,
    style: str = "first",
    shape: int | None = None,
    height: int | None = HEIGHT,
) -> str:
    """A point for mouse and keyboard; its words show on the bottom line of a chart of this height while
    it has either. Without a height it has words for the mouse only, as one of very many."""
    words = escape(tip)
    dot = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" class="dot {style}"/>'
    drawn = whisker + (dot if shape is None else _mark(x, y, shape, style))
    if height is None:
        return f"<g><title>{words}</title>{drawn}</g>"
    return f'<g class="point" tabindex="0"><title>{words}</title>{drawn}{_tip(words, height)}</g>'


def _tip(escaped: str, height: int) -> str:
    return f'<text x="{WIDTH - RIGHT}" y="{height - 6}" class="tip">{escaped}</text>'


def _mark(x: float, y: float, shape: int, style: str) -> str:
    path = SHAPES[0] if shape == 0 else SHAPES[1 + (shape - 1) % (len(SHAPES) - 1)]
    return f'<path d="M{x:.1f} {y:.1f}{path}" class="dot {style}"/>'


def _path(points: Sequence[Point], style: str, end: str = "") -> str:
    return f'<path d="M{"L".join(f"{x:.1f} {y:.1f}" for x, y in points)}{end}" class="{style}"/>'


def _line(x1: float, x2: float, y: float, style: str) -> str:
    return f'<path d="M{x1:.1f} {y:.1f}H{x2:.1f}" class="{style}"/>'


def _text(x: float, y: float, words: str, anchor: str) -> str:
    place = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f'<text x="{x:.1f}" y="{y:.1f}"{place}>{escape(words)}</text>'


def _ticks(span: tuple[float, float]) -> list[float]:
    halves = [i / 2 for i in range(math.floor(span[0] * 2), 3)]
    return [tick for tick in halves if span[0] <= tick <= span[1]]


def _percent(value: float, span: tuple[float, float]) -> str:
    inside = min(max(value, span[0]), span[1])
    return f"{2 + 96 * (inside - span[0]) / (span[1] - span[0]):.2f}%"


def _rules(span: tuple[float, float], height: int) -> str:
    places = [(_percent(tick, span), ' class="zero"' if tick == 0 else "") for tick in _ticks(span)]
    return "".join(f'<line x1="{x}" x2="{x}" y2="{height}"{style}/>' for x, style in places)
