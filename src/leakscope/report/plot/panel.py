"""Marks and curves in a frame, and the words beside them where these hide nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from leakscope.report.plot.frame import LINE, RIGHT, SHAPES, SIZE, Frame, at, path, text, width, wrap

Point = tuple[float, float]
Box = tuple[float, float, float, float]  # left, top, right, bottom
Spot = tuple[str, float, float, float]  # words, x, baseline, how much of them is left of x
FOCUSED = 90  # marks of a picture up to which each is reached by the keyboard
ANCHORS = {0.0: "start", 0.5: "middle", 1.0: "end"}


@dataclass(frozen=True)
class Mark:
    """A value with its intervals, in the units of the axes; ``shift`` is in pixels. Its ``words`` stand
    beside it, or its ``number`` where there is no room, or, if they are ``kept``, further off. ``arrow``: it
    may be higher."""

    x: float
    y: float
    tip: str = ""
    shape: int = 1
    filled: bool = True
    across: Point | None = None
    up: Point | None = None
    span: Point | None = None  # what it is about, on the axis below
    shift: float = 0.0
    arrow: bool = False
    words: str = ""
    number: int = 0
    kept: bool = False

    def drawing(self, x: float, y: float) -> str:
        shape = SHAPES[1 + (self.shape - 1) % (len(SHAPES) - 1) if self.shape else 0]
        return path(f"M{at(x, y)}{shape}", f"dot {'first' if self.filled else 'hollow'}")

    def lines(self, frame: Frame, x: float, y: float) -> str:
        d = f"M{at(frame.x(self.across[0]), y)}H{at(frame.x(self.across[1]))}" if self.across else ""
        d += f"M{at(x, frame.y(self.up[0]))}V{at(frame.y(self.up[1]))}" if self.up else ""
        d += f"M{at(x, y)}v-15m-3 3l3-3 3 3" if self.arrow else ""
        if self.span:
            d += f"M{at(frame.x(self.span[0]), y - 4)}v8m0-4H{at(frame.x(self.span[1]))}m0-4v8"
        return path(d, "whisker")

    def boxes(self, frame: Frame, x: float, y: float) -> Iterator[Box]:
        """What it covers."""
        yield x - 8, y - (16 if self.arrow else 8), x + 8, y + 8
        (left, right), (low, high) = self.across or (self.x, self.x), self.up or (self.y, self.y)
        yield frame.x(left), y - 2, frame.x(right), y + 2
        yield x - 2, frame.y(high), x + 2, frame.y(low)


@dataclass(frozen=True)
class Curve:
    """A line through points, in the units of the axes, with its ``words`` beside it if it has any."""

    points: Sequence[Point]
    style: str = "series second"
    words: str = ""
    tip: str = ""

    def drawing(self, frame: Frame) -> str:
        places = [(at(frame.x(x)), at(frame.y(y))) for x, y in self.points]
        d = "M" + " ".join(places[0])
        for (x, y), (nx, ny) in pairwise(places):
            d += f"V{ny}" * (ny != y) if nx == x else f"H{nx}" if ny == y else f"L{nx} {ny}"
        return path(d, self.style)

    def along(self, frame: Frame) -> Iterator[Point]:
        """Places on it, a few pixels apart."""
        for (ax, ay), (bx, by) in pairwise([(frame.x(x), frame.y(y)) for x, y in self.points]):
            count = max(1, round(math.hypot(bx - ax, by - ay) / 8))
            yield from ((ax + i / count * (bx - ax), ay + i / count * (by - ay)) for i in range(count + 1))


@dataclass(frozen=True)
class Panel:
    """A frame and what is in it; on a wash lies what is between two points."""

    frame: Frame
    marks: Sequence[Mark] = ()
    curves: Sequence[Curve] = ()
    washes: Sequence[tuple[Point, Point]] = ()

    @property
    def places(self) -> list[tuple[Mark, float, float]]:
        return [(mark, self.frame.x(mark.x) + mark.shift, self.frame.y(mark.y)) for mark in self.marks]

    def words(self) -> tuple[list[str], list[int]]:
        """Words beside curves and beside the first mark of each number, where they hide nothing; else the
        number, and which numbers these are."""
        frame, parts, numbered = self.frame, [], []
        first: dict[int, tuple[Mark, float, float]] = {}
        room = frame.x.start, frame.y.stop - 8, frame.width, frame.y.start
        taken = [box for mark, x, y in self.places for box in mark.boxes(frame, x, y)]
        taken += [(x - 2, y - 2, x + 2, y + 2) for curve in self.curves for x, y in curve.along(frame)]
        for curve in [curve for curve in self.curves if curve.words]:
            tries = _beside(list(curve.along(frame)), curve.words, frame.x.start)
            spot = _free(tries, taken, room) or tries[0]
            taken.append(_box(spot))
            parts.append(text(spot[1], spot[2], curve.words, ANCHORS[spot[3]]))
        for mark, x, y in self.places:
            first.setdefault(mark.number, (mark, x, y))
        for mark, x, y in [place for place in first.values() if place[0].words]:
            tries = [(mark.words, *spot) for spot in _around(x, y)[:8]]
            last = mark.words if mark.kept else str(mark.number)
            tries += [(last, *spot) for spot in _around(x, y)]
            words, left, base, anchor = spot = _free(tries, taken, room) or tries[8]
            taken.append(_box(spot))
            if abs(left - x) > 12 or abs(base - 4 - y) > 16:
                parts.append(path(f"M{at(x, y)}L{at(left, base - 4)}", "lead"))
            parts.append(text(left, base, words, ANCHORS[anchor]))
            numbered += [mark.number] if words != mark.words else []
        return parts, numbered

    def drawing(self, tip: Callable[[str], str]) -> Iterator[str]:
        """From the ground up; ``tip`` draws the words that show while a mark is looked at."""
        x, y = self.frame.x, self.frame.y
        for (left, low), (right, high) in self.washes:
            yield path(f"M{at(x(left), y(high))}H{at(x(right))}V{at(y(low))}H{at(x(left))}Z", "goal")
        yield self.frame.ground
        yield from (_tell(curve.tip, curve.drawing(self.frame), tip) for curve in self.curves)
        yield from self.words()[0]
        for mark, *place in self.places:
            yield _tell(mark.tip, mark.lines(self.frame, *place) + mark.drawing(*place), tip)


def draw(panels: Sequence[Panel], title: str, desc: str, name: str, style: str = "chart") -> str:
    """A picture of panels below one another, of the kind ``name``. Under the last, the words of the mark that
    is looked at: in the line of the axis's title where both have room."""
    last, wide = panels[-1].frame, max(panel.frame.width for panel in panels)
    names = wrap(last.title, wide - RIGHT - last.x.start) if last.title else []
    tips = [mark.tip for panel in panels for mark in panel.marks if mark.tip]
    tips += [curve.tip for panel in panels for curve in panel.curves if curve.tip]
    tips = tips if len(tips) <= FOCUSED else []
    room = wide - RIGHT - 4
    beside = len(names) == 1 and all(last.x.start + width(names[0] + tip) + 8 <= room for tip in tips)
    base = last.end + LINE * (1 if beside else 1 + len(names))
    lines = max((len(wrap(words, room)) for words in tips), default=0)
    height = max(base + LINE * (lines - 1), last.end + LINE * len(names)) + 6

    def tip(words: str) -> str:
        parts = wrap(words, room) if tips else []
        return "".join(text(wide - RIGHT, base + LINE * i, part, style="tip") for i, part in enumerate(parts))

    parts = [text(last.x.start, last.end + LINE * i, words) for i, words in enumerate(names, start=1)]
    parts += [part for panel in panels for part in panel.drawing(tip)]
    size = f' width="{at(wide)}" height="{at(height)}"' if style == "map" else ""
    return picture(style, f'viewBox="0 0 {at(wide, height)}"{size}', title, desc, parts, name)


def picture(style: str, size: str, title: str, desc: str, parts: Iterable[str], name: str = "") -> str:
    """SVG, with the name by which it can be cut out of its page where it has one."""
    kind = f' data-figure="{name}"' if name else ""
    head = f"<title>{escape(title)}</title><desc>{escape(desc)}</desc>"
    return f'<svg class="{style}" {size} role="img"{kind}>{head}{"".join(parts)}</svg>'


def _tell(words: str, drawing: str, tip: Callable[[str], str]) -> str:
    """A drawing for mouse and keyboard; for the mouse alone where it is one of very many."""
    shown = tip(words) if words else ""
    how = ' class="point" tabindex="0"' if shown else ""
    return f"<g{how}><title>{escape(words)}</title>{drawing}{shown}</g>" if words else drawing


def _around(x: float, y: float) -> list[tuple[float, float, float]]:
    """Where words may stand around a mark, the nearest first: x, baseline, anchor."""
    near = [(x + 11, y + 4, 0.0), (x - 11, y + 4, 1.0), (x, y - 12, 0.5), (x, y + 20, 0.5)]
    far = [(dx, dy) for reach in (11, 24, 40) for dy in (-8, 8, -18, 18, -30, 30) for dx in (reach, -reach)]
    return near + [(x + dx, y + 4 + dy, 0.0 if dx > 0 else 1.0) for dx, dy in far]


def _beside(places: Sequence[Point], words: str, left: float) -> list[Spot]:
    """Where words may stand along a curve, its end first."""
    steps = [places[round(share * (len(places) - 1))] for share in (1, 0.9, 0.8, 0.6, 0.4, 0.2, 0)]
    ends = [(x - 6, y, 1.0) if x - 6 - width(words) >= left else (x + 6, y, 0.0) for x, y in steps]
    return [(words, x, y + up, anchor) for up in (-6, 14, -20, 28, 42) for x, y, anchor in ends]


def _box(spot: Spot) -> Box:
    words, x, y, anchor = spot
    return x - anchor * width(words), y - SIZE + 2, x + (1 - anchor) * width(words), y + 3


def _free(tries: Iterable[Spot], taken: Sequence[Box], room: Box) -> Spot | None:
    """The first spot in the room that hides nothing."""
    for spot in tries:
        a, b, c, d = _box(spot)
        inside = a >= room[0] and b >= room[1] and c <= room[2] and d <= room[3]
        if inside and not any(a < box[2] and box[0] < c and b < box[3] and box[1] < d for box in taken):
            return spot
    return None
