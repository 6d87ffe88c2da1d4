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

WIDTH, HEIGHT = 420, 300
LEFT, RIGHT, TOP, BOTTOM = 46, 12, 30, 46  # the margins around a plot
FLOOR = 7e-4  # where the logarithmic axis of false alarms begins: a little left of 0.1%
MARKED = 24  # rounds up to which every round gets a point of its own
VACUOUS = 0.9995  # a bound from here on is 1 to three digits and rules nothing out
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


def roc(
    curve: Sequence[Point],
    *,
    marks: Iterable[tuple[float, Whisker, str]],
    title: str,
    hits: str = "secret named, when it holds",
) -> str:
    """Hits against false alarms, the latter on a logarithmic axis, drawn as steps that never
    claim more than was measured; ``marks`` are (false alarms, hits with interval, words)."""
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM

    def x(rate: float) -> float:
        share = math.log(max(rate, FLOOR) / FLOOR) / math.log(1 / FLOOR)
        return LEFT + share * (right - LEFT)

    def y(rate: float) -> float:
        return bottom - rate * (bottom - TOP)

    parts = [line(LEFT, right, y(t), "rule") for t in (0.25, 0.5, 0.75, 1)]
    parts += [line(LEFT, right, bottom, "axis")]
    parts += [text(LEFT - 7, y(t) + 4, f"{t:.0%}", "end") for t in (0, 0.5, 1)]
    for rate, word in ((0.001, "0.1%"), (0.01, "1%"), (0.1, "10%"), (1.0, "100%")):
        parts.append(f'<path d="M{x(rate):.1f} {TOP}V{bottom}" class="rule"/>')
        parts.append(text(x(rate), bottom + 17, word, "end" if rate == 1 else "middle"))
    chance = [10 ** (i / 6) for i in range(-12, 1)]
    parts.append(_path([(x(FLOOR), y(FLOOR)), *((x(r), y(r)) for r in chance)], "chance"))
    parts.append(text(x(0.34) - 7, y(0.34), "chance", "end"))
    if curve:
        steps = f"M{x(curve[0][0]):.1f} {y(curve[0][1]):.1f}"
        steps += "".join(f"H{x(fpr):.1f}V{y(tpr):.1f}" for fpr, tpr in curve[1:])
        parts.append(f'<path d="{steps}" class="series"/>')
    for rate, (value, low, high), words in marks:
        whisker = f'<path d="M{x(rate):.1f} {y(low):.1f}V{y(high):.1f}" class="whisker"/>'
        parts.append(point(x(rate), y(value), words, whisker))
    parts.append(text(LEFT, 16, hits, "start"))
    parts.append(text(LEFT, HEIGHT - 6, "false alarms (log scale)", "start"))
    desc = (
        "Hits against false alarms; the higher above the dashed line of chance, the more leaks. Data below."
    )
    return chart(parts, title, desc)


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
    parts = [line(LEFT, WIDTH - RIGHT, y(t), "rule") for t in values[1:]]
    parts += [text(LEFT - 7, y(t) + 4, f"{t:.1f}", "end") for t in values]
    parts += [
        line(LEFT, WIDTH - RIGHT, bottom, "axis"),
        line(LEFT, WIDTH - RIGHT, y(0.5), "chance"),
        text(WIDTH - RIGHT, y(0.5) - 6, "chance", "end"),
    ]
    every = max(1, math.ceil(count / 10))
    parts += [text(x(i), bottom + 17, str(i + 1), "middle") for i in range(0, count, every)]
    for series, style in ((single, "second"), (accumulated, "first")):
        edge = [(x(i), y(w[1])) for i, w in enumerate(series)]
        edge += [(x(i), y(w[2])) for i, w in reversed(list(enumerate(series)))]
        parts.append(_path(edge, f"band {style}", "Z"))
        parts.append(_path([(x(i), y(w[0])) for i, w in enumerate(series)], f"series {style}"))
    for series, style, words in ((single, "second", "alone"), (accumulated, "first", "so far")):
        for i, (value, low, high) in enumerate(series[: MARKED if count <= MARKED else 0]):
            tip = f"round {i + 1} {words}: {value:.3f} ({low:.3f} to {high:.3f})"
            parts.append(point(x(i), y(value), tip, style=style))
    key = WIDTH - RIGHT - 234
    parts += [
        text(LEFT, 16, "AUROC", "start"),
        f'<circle cx="{key}" cy="12" r="4" class="dot first"/>' + text(key + 9, 16, "rounds so far", "start"),
        f'<circle cx="{key + 118}" cy="12" r="4" class="dot second"/>',
        text(key + 127, 16, "one round alone", "start"),
        text(LEFT, HEIGHT - 6, "observed round", "start"),
    ]
    desc = "AUROC after each observed round with its interval; 0.5 is chance, 1 is certainty. Data below."
    return chart(parts, title, desc)


def mark(shape: int, *, filled: bool) -> str:
    """A mark for a legend; the words beside it say what it stands for."""
    style = "first" if filled else "hollow"
    return f'<svg class="mark" viewBox="-10 -10 20 20" aria-hidden="true">{_mark(0, 0, shape, style)}</svg>'


def shortened(words: str, most: int) -> str:
    return words if len(words) <= most else words[: most - 1].rstrip() + "…"


def chart(parts: Iterable[str], title: str, desc: str, *, height: int = HEIGHT) -> str:
    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH} {height}" role="img"><title>{escape(title)}</title>'
        f"<desc>{escape(desc)}</desc>{''.join(parts)}</svg>"
    )


def point(
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
    return f'<g class="point" tabindex="0"><title>{words}</title>{drawn}{tipped(words, height)}</g>'


def tipped(escaped: str, height: int) -> str:
    return f'<text x="{WIDTH - RIGHT}" y="{height - 6}" class="tip">{escaped}</text>'


def _mark(x: float, y: float, shape: int, style: str) -> str:
    path = SHAPES[0] if shape == 0 else SHAPES[1 + (shape - 1) % (len(SHAPES) - 1)]
    return f'<path d="M{x:.1f} {y:.1f}{path}" class="dot {style}"/>'


def _path(points: Sequence[Point], style: str, end: str = "") -> str:
    return f'<path d="M{"L".join(f"{x:.1f} {y:.1f}" for x, y in points)}{end}" class="{style}"/>'


def line(x1: float, x2: float, y: float, style: str) -> str:
    return f'<path d="M{x1:.1f} {y:.1f}H{x2:.1f}" class="{style}"/>'


def text(x: float, y: float, words: str, anchor: str) -> str:
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
