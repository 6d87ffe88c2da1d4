"""Charts of defenses and audits, drawn with the strokes of `svg`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape

from leakscope import svg
from leakscope.svg import BOTTOM, HEIGHT, LEFT, MARKED, RIGHT, TOP, WIDTH, Whisker

Box = tuple[float, float, float, float]  # left, top, right, bottom
LETTER = 6.4  # about the width of one


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
    parts += [svg.line(LEFT, right, y(t), "rule") for t in (0.25, 0.5, 0.75, 1)]
    parts += [svg.line(LEFT, right, bottom, "axis")]
    parts += [svg.text(LEFT - 7, y(t) + 4, f"{t:g}", "end") for t in (0, 0.5, 1)]
    step = next(s for s in (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 1) if (stop - start) / s <= 6)
    for i in range(math.ceil(start / step), math.floor(min(stop, 1.0) / step + 1e-9) + 1):
        digits = max(0, math.ceil(-math.log10(step) - 1e-9) - 2 * percent)
        word = f"{i * step:.{digits}{'%' if percent else 'f'}}"
        parts.append(svg.text(x(i * step), bottom + 17, word, "middle"))
    drawn, taken = [], []
    for _, _, shape, filled, utility, (value, low, high), tip in marks:
        at, style = (x(utility), y(value)), "first" if filled else "hollow"
        whisker = f'<path d="M{at[0]:.1f} {y(low):.1f}V{y(high):.1f}" class="whisker"/>'
        room = height if len(marks) <= MARKED else None
        drawn.append(svg.point(*at, tip, whisker, style=style, shape=shape, height=room))
        taken += [_around(*at, 8), (at[0] - 2, y(high), at[0] + 2, y(low))]
    texts, numbered = labels(
        [(number, words, x(u), y(advantage[0])) for number, words, _, _, u, advantage, _ in marks],
        taken,
        (LEFT, TOP - 8, right, bottom),
    )
    parts += [
        svg.text(LEFT, 16, "advantage of the adversary", "start"),
        svg.text(LEFT, height - 6, axis, "start"),
        *texts,
        *drawn,
    ]
    desc = "Advantage against utility, one mark per setting; the bottom right corner is ideal. Data below."
    return svg.chart(parts, title, desc, height=height), numbered


def labels(
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
        texts.append(svg.text(left, base, text, {0.0: "start", 0.5: "middle"}.get(anchor, "end")))
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

    parts = [svg.line(LEFT, right, y(top), "rule"), svg.line(LEFT, right, bottom, "axis")]
    parts += [svg.text(LEFT - 7, y(t) + 4, f"{t:.{0 if top >= 0.1 else 1}%}", "end") for t in (0, top)]
    digits = max(0, 2 - math.floor(math.log10(span[1] - span[0])))
    for i, anchor in enumerate(("start", "middle", "end")):
        value = span[0] + i / 2 * (span[1] - span[0])
        word = f"{value:.{digits}f}".replace("-", "−")
        parts.append(svg.text(x(value), bottom + 17, word, anchor))
    key = WIDTH - RIGHT - 250
    for i, (style, name, heights) in enumerate(zip(("second", "first"), names, shares, strict=True)):
        bars = list(zip(heights, edges, edges[1:], strict=False))
        steps = "".join(f"V{y(share):.1f}H{x(end):.1f}" for share, _, end in bars)
        outline = f"M{x(edges[0]):.1f} {bottom}{steps}V{bottom}"
        middle = sum(share * (start + end) / 2 for share, start, end in bars) / sum(heights)
        words = escape(f"{svg.shortened(name, 30)}: mean {middle:.{digits}f}".replace("-", "−"))
        parts.append(
            f'<g class="point" tabindex="0"><title>{words}</title><path d="{outline}Z" class="band {style}"/>'
            f'<path d="{outline}" class="series {style}"/>{svg.tipped(words, HEIGHT)}</g>'
        )
        parts.append(f'<circle cx="{key + 128 * i}" cy="12" r="4" class="dot {style}"/>')
        parts.append(svg.text(key + 128 * i + 9, 16, svg.shortened(name, 17), "start"))
    parts.append(svg.text(LEFT, 16, "share of trials", "start"))
    parts.append(svg.text(LEFT, HEIGHT - 6, "test statistic", "start"))
    desc = "The less the two overlap, the better an auditor tells the two records apart. Data below."
    return svg.chart(parts, title, desc)


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
    parts = [svg.line(LEFT, right, y(10.0**d), "rule") for d in range(lowest + 1, highest + 1)]
    parts.append(svg.line(LEFT, right, bottom, "axis"))
    for decade in range(lowest, highest + 1):
        word = "0" if zeros and decade == lowest else f"{10.0**decade:g}"
        parts.append(svg.text(LEFT - 7, y(10.0**decade) + 4, word, "end"))
    every = math.ceil(max(len(w) for words, _, _ in columns for w in words) * LETTER * 1.1 / wide)
    for (words, _, _), middle in list(zip(columns, middles, strict=True))[:: max(1, every)]:
        parts += [svg.text(middle, bottom + 17 + 16 * i, word, "middle") for i, word in enumerate(words)]
    parts += [svg.text(LEFT - 7, bottom + 17 + 16 * i, head, "end") for i, head in enumerate(heads)]
    drawn, taken = [], []
    for (_, points, _), middle in zip(columns, middles, strict=True):
        for place, shape, filled, value, tip in points:
            at = middle + (place - 1.5) * min(13.0, wide / 4.5), y(value)
            arrow = f'<path d="M{at[0]:.1f} {at[1]:.1f}v-15m-3 3l3-3 3 3" class="whisker"/>'
            style, arrow = "first" if filled else "hollow", arrow if place < 2 else ""
            drawn.append(svg.point(*at, tip, arrow, style=style, shape=shape, height=height))
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
        parts.append(svg.text(spot[1], spot[2], limit, "start"))
    parts += drawn
    parts.append(svg.text(LEFT, 16, "epsilon (log scale)", "start"))
    desc = "Certified lower bounds and theoretical values of epsilon for each setting. Data below."
    return svg.chart(parts, title, desc, height=height)
