"""Charts of guards: what each buys and costs, information against lambda, and maps of representations."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from leakscope import charts, svg
from leakscope.averages import Average
from leakscope.guard_pages.measures import Scatter, Tried
from leakscope.guard_pages.pages import GuardPage, Setting
from leakscope.guard_pages.words import between, written
from leakscope.svg import BOTTOM, HEIGHT, LEFT, MARKED, RIGHT, TOP, WIDTH

TALL = 360  # height of the trade-off
SIDE = 260  # of a map
AXES = {"auroc": "AUROC", "success": "success rate", "ssim": "SSIM", "mse": "mean squared error"}
STEPS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)
SPOTS = (  # of a map, each from its middle; told apart without colour
    "h0",
    "m-2 0h4m-2-2v4",
    "m-1.6-1.6l3.2 3.2m0-3.2l-3.2 3.2",
    "m-2 1.6l2-4 2 4z",
    "m-1.6-1.6h3.2v3.2h-3.2z",
    "m-2.2 0h4.4",
    "m0-2.2v4.4",
)


@dataclass(frozen=True)
class Mark:
    """A guard, or what needs none (``filled`` False; of shape 0, no guard at all)."""

    number: int
    words: str
    shape: int
    filled: bool
    attack: Average
    worth: Average
    kind: str


@dataclass(frozen=True)
class Axis:
    """From values to places, and the values that are written beside it."""

    start: float
    stop: float
    low: float
    high: float
    percent: bool = False

    def __call__(self, value: float) -> float:
        inside = min(max(value, self.start), self.stop)
        return self.low + (inside - self.start) / (self.stop - self.start) * (self.high - self.low)

    @property
    def ticks(self) -> list[tuple[float, str]]:
        step = next((s for s in STEPS if (self.stop - self.start) / s <= 6), STEPS[-1])
        digits = max(0, math.ceil(-math.log10(step) - 1e-9) - 2 * self.percent)
        places = range(math.ceil(self.start / step - 1e-9), math.floor(self.stop / step + 1e-9) + 1)
        return [(i * step, f"{i * step:.{digits}{'%' if self.percent else 'f'}}") for i in places]


def rows(page: GuardPage) -> list[tuple[int, str, Tried]]:
    """Guards, then what needs none: the number, the words and the numbers of each."""
    start = len(page.settings)
    guards = [(one.number, one.label, found.tried) for one, found in page.judged]
    return guards + [(start + i, one.name, one.tried) for i, one in enumerate(page.baselines, start=1)]


def marks(page: GuardPage) -> list[Mark]:
    """The `rows` that have a place."""
    found, settings = [], {one.number: one for one in page.settings}
    for number, label, tried in rows(page):
        attack, worth, one = tried.attack(page.measure), tried.accuracy, settings.get(number)
        none = one is None and page.free is not None and page.free.name == label
        shape = one.family + 1 if one else 0 if none else number - len(settings)
        words, kind = (one.strength, one.kind) if one else (label, "")
        if attack and worth:
            found.append(Mark(number, words, shape, bool(one) or none, attack, worth, kind))
    return found


def trade_off(page: GuardPage, title: str) -> tuple[str, list[Mark]]:
    """Task accuracy against the strongest fresh attack, and the marks for whose words there was no room."""
    every, bottom = marks(page), TALL - BOTTOM
    x = _spanned([one.attack for one in every], page.guessing, LEFT, WIDTH - RIGHT, percent=False)
    y = _spanned([one.worth for one in every], page.majority, bottom, TOP, percent=True)
    parts, taken = _grid(x, y, bottom, every, page)
    for family in page.families:
        numbers = [one.number for one in family if one.lam is not None]
        places = [(x(m.attack.value), y(m.worth.value)) for m in every if m.number in numbers]
        if len(places) > 1:
            path = "L".join(f"{px:.1f} {py:.1f}" for px, py in places)
            parts.append(f'<path d="M{path}" class="series second"/>')
            taken += _along(places)
    drawn = []
    for one in every:
        at = x(one.attack.value), y(one.worth.value)
        ends = x(one.attack.low), x(one.attack.high), y(one.worth.low), y(one.worth.high)
        cross = f"M{ends[0]:.1f} {at[1]:.1f}H{ends[1]:.1f}M{at[0]:.1f} {ends[2]:.1f}V{ends[3]:.1f}"
        style = "first" if one.filled else "hollow"
        whisker, room = f'<path d="{cross}" class="whisker"/>', TALL if len(every) <= MARKED else None
        drawn.append(svg.point(*at, _tip(one, page), whisker, style=style, shape=one.shape, height=room))
        taken += [(at[0] - 8, at[1] - 8, at[0] + 8, at[1] + 8), (ends[0], at[1] - 2, ends[1], at[1] + 2)]
        taken.append((at[0] - 2, ends[3], at[0] + 2, ends[2]))
    texts, numbered = charts.labels(
        [(m.number, m.words, x(m.attack.value), y(m.worth.value)) for m in every],
        taken,
        (LEFT, TOP - 6, WIDTH - RIGHT, bottom),
    )
    desc = (
        "Task accuracy against what the strongest fresh attacker tells; the upper left is ideal. Data below."
    )
    axis = f"{AXES[page.measure]} of the strongest fresh attack"
    parts += [svg.text(LEFT, 16, "task accuracy", "start"), svg.text(LEFT, TALL - 6, axis, "start")]
    whole = svg.chart([*parts, *texts, *drawn], title, desc, height=TALL)
    return whole, [one for one in every if one.number in numbered]


def _along(places: Sequence[svg.Point]) -> Iterator[charts.Box]:
    """Small boxes over a line, so that no words stand on it."""
    for (ax, ay), (bx, by) in pairwise(places):
        count = max(1, round(math.hypot(bx - ax, by - ay) / 8))
        for i in range(count + 1):
            x, y = ax + i / count * (bx - ax), ay + i / count * (by - ay)
            yield x - 2, y - 2, x + 2, y + 2


def _spanned(
    values: Sequence[Average], least: float | None, low: float, high: float, *, percent: bool
) -> Axis:
    """An axis that holds all intervals, and what is reached without any of it."""
    ends = [end for one in values for end in (one.low, one.high)] + ([least] if least is not None else [])
    pad = max(0.06 * (max(ends) - min(ends)), 0.004)
    return Axis(min(ends) - pad, max(ends) + pad, low, high, percent)


def _grid(
    x: Axis, y: Axis, bottom: float, every: Sequence[Mark], page: GuardPage
) -> tuple[list[str], list[charts.Box]]:
    """Rules, the majority and guessing; and where their words stand."""
    right = WIDTH - RIGHT
    parts = [svg.line(LEFT, right, y(value), "rule") for value, _ in y.ticks]
    parts += [svg.text(LEFT - 7, y(value) + 4, word, "end") for value, word in y.ticks]
    parts += [svg.text(x(value), bottom + 17, word, "middle") for value, word in x.ticks]
    parts.append(svg.line(LEFT, right, bottom, "axis"))
    taken: list[charts.Box] = []
    if page.majority is not None:
        level, words = y(page.majority), "always the most common label"
        base = level + 14 if level + 18 < bottom else level - 5
        parts += [svg.line(LEFT, right, level, "chance"), svg.text(right, base, words, "end")]
        taken += [(right - 6.2 * len(words), base - 11, right, base + 3), (LEFT, level - 2, right, level + 2)]
    if page.guessing is not None:
        place, words = x(page.guessing), "guessing"
        parts.append(f'<path d="M{place:.1f} {TOP}V{bottom}" class="chance"/>')
        near = min((y(m.worth.high) for m in every if x(m.attack.low) < place + 64), default=bottom)
        height = TOP + 10 if near > TOP + 24 else bottom - 8
        parts.append(svg.text(place + 5, height, words, "start"))
        taken += [(place, height - 10, place + 60, height + 4), (place - 2, TOP, place + 2, bottom)]
    return parts, taken


def _tip(one: Mark, page: GuardPage) -> str:
    attack = between(one.attack, percent=False)
    return f"{svg.shortened(one.words, 20)}: {attack}, {written(one.worth.value, percent=True)}"


def information(family: Sequence[tuple[Setting, Mapping[str, Average]]], title: str) -> str:
    """I(u; r) in nats against lambda, one shape for each estimator."""
    bottom = HEIGHT - BOTTOM
    names = list(dict.fromkeys(name for _, found in family for name in found))
    lams = [one.lam or 0.0 for one, _ in family]
    every = [average for _, found in family for average in found.values()]
    x = Axis(min(lams) - 0.04, max(lams) + 0.04, LEFT, WIDTH - RIGHT)
    y = _spanned(every, 0.0, bottom, TOP, percent=False)
    parts = [svg.line(LEFT, WIDTH - RIGHT, y(value), "rule") for value, _ in y.ticks]
    parts += [svg.text(LEFT - 7, y(value) + 4, word.replace("-", "−"), "end") for value, word in y.ticks]
    parts += [svg.text(x(lam), bottom + 17, f"{lam:g}", "middle") for lam in lams]
    parts.append(svg.line(LEFT, WIDTH - RIGHT, y(0.0), "axis"))
    for place, name in enumerate(names):
        known = [(x(one.lam or 0.0), found[name]) for one, found in family if name in found]
        if len(known) > 1:
            path = "L".join(f"{at:.1f} {y(average.value):.1f}" for at, average in known)
            parts.append(f'<path d="M{path}" class="series second"/>')
        for (at, average), (one, _) in zip(known, [f for f in family if name in f[1]], strict=True):
            whisker = f'<path d="M{at:.1f} {y(average.low):.1f}V{y(average.high):.1f}" class="whisker"/>'
            tip = f"{svg.shortened(name, 20)}, {one.strength}: {between(average, percent=False)} nats"
            style = "hollow" if place else "first"
            parts.append(svg.point(at, y(average.value), tip, whisker, style=style, shape=place + 1))
    parts += [svg.text(LEFT, 16, "nats", "start"), svg.text(LEFT, HEIGHT - 6, "λ", "start")]
    desc = "Estimated information about the secret in the representation, by lambda. Data below."
    return svg.chart(parts, title, desc)


def scatter(one: Scatter, title: str) -> str:
    """Representations in two dimensions, or three seen from above a corner, a kind of spot for each value."""
    points = [_seen(point) for point in one.points]
    spans = [(min(values), max(values)) for values in zip(*points, strict=True)]
    wide = max(high - low for low, high in spans) or 1.0

    def place(point: tuple[float, float]) -> str:
        at = [
            8 + (v - (low + high - wide) / 2) / wide * (SIDE - 16)
            for v, (low, high) in zip(point, spans, strict=True)
        ]
        return "M" + " ".join(f"{v:.1f}".removesuffix(".0") for v in at)

    def paths() -> Iterator[str]:
        for code in range(len(one.values)):
            spots = [place(point) for point, own in zip(points, one.codes, strict=True) if own == code]
            if spots:
                marks = "".join(spot + SPOTS[code] for spot in spots)
                yield f'<path d="{marks}" class="spot s{code}"/>'

    how = " in three dimensions, seen from above a corner" if len(one.points[0]) == 3 else ""
    desc = f"{len(points)} representations by t-SNE{how}; distances between groups mean little."
    return (
        f'<svg class="scatter" viewBox="0 0 {SIDE} {SIDE}" role="img"><title>{escape(title)}</title>'
        f"<desc>{desc}</desc>{''.join(paths())}</svg>"
    )


def _seen(point: tuple[float, ...]) -> tuple[float, float]:
    """A point as it is drawn: three dimensions in isometric projection."""
    if len(point) == 2:
        return point[0], point[1]
    x, y, z = point
    return (x - y) * math.cos(math.pi / 6), (x + y) / 2 - z


def spot(code: int) -> str:
    """A spot for a legend."""
    path = f'<path d="M0 0{SPOTS[code]}" class="spot s{code}"/>'
    return f'<svg class="mark" viewBox="-5 -5 10 10" aria-hidden="true">{path}</svg>'
