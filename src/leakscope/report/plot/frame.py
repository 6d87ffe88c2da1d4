"""One scale, one axis, and one frame whose margins grow with the words they hold."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

from leakscope.core.errors import require

SIZE, LINE = 12, 16  # of the type in pictures, and from one line to the next
WIDE, TALL = 362.0, 224.0  # of the room for marks
LEFT, RIGHT = 46.0, 12.0  # margins, at least
NARROW, BROAD = frozenset("fijlrtI.,:;'!|()[] "), frozenset("mwMW%@…—")
Key = Sequence[tuple[str, str]]  # the style of a dot, and what it stands for


def width(words: str) -> float:
    """Pixels that words take in a wide font: rather too many than too few."""
    return sum(SIZE * _em(letter) for letter in words)


def _em(letter: str) -> float:
    if letter in BROAD or unicodedata.east_asian_width(letter) in "WF":
        return 1.05
    return 0.42 if letter in NARROW else 0.8 if letter.isupper() or ord(letter) > 255 else 0.66


def wrap(words: str, room: float) -> list[str]:
    """Lines of at most ``room`` pixels, broken after a space or a stop, else anywhere."""
    lines = [""]
    for piece in re.findall(r"[^\s._/-]*[\s._/-]+|[^\s._/-]+", words):
        lines += [""] if lines[-1] and width((lines[-1] + piece).rstrip()) > room else []
        for letter in piece:
            if lines[-1] and not letter.isspace() and width(lines[-1] + letter) > room:
                lines.append("")
            lines[-1] += letter
    return [line.strip() for line in lines]


def at(*values: float) -> str:
    """Coordinates, as short as they can be."""
    return " ".join(f"{round(value, 1) + 0.0:.1f}".removesuffix(".0") for value in values)


def text(x: float, y: float, words: str, anchor: str = "start", style: str = "") -> str:
    before = f' class="{style}"' if style else ""
    place = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f'<text{before} x="{at(x)}" y="{at(y)}"{place}>{escape(words)}</text>'


def path(d: str, style: str) -> str:
    return f'<path d="{d}" class="{style}"/>' if d else ""


@dataclass(frozen=True)
class Scale:
    """From a value to its place, by its logarithm if ``log``; what lies outside is put at the nearer end."""

    low: float
    high: float
    start: float
    stop: float
    log: bool = False

    def __call__(self, value: float) -> float:
        require(not math.isnan(value), "value", "a number", value, way_out="leave out what was not measured")
        inside = min(max(value, self.low), self.high)
        low, high, here = (math.log(v) if self.log else v for v in (self.low, self.high, inside))
        return self.start + (here - low) / (high - low) * (self.stop - self.start)


@dataclass(frozen=True)
class Axis:
    """The values between two ends, those that are written beside it, and what they are. Words may have
    several lines, with ``heads`` before them."""

    low: float
    high: float
    ticks: tuple[tuple[float, str], ...] = ()
    title: str = ""
    log: bool = False
    grid: bool = False
    heads: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        rising = -math.inf < self.low < self.high < math.inf and (self.low > 0 or not self.log)
        require(rising, "ends of an axis", "finite and rising", (self.low, self.high))


def linear(
    values: Iterable[float], title: str, *, pad: float = 0.0, percent: bool = False, grid: bool = False
) -> Axis:
    """From the lowest value to the highest and ``pad`` of it more, with six round steps at most."""
    every = list(values)
    more = max(pad * (max(every) - min(every)), 0.004 * (pad > 0))
    low, high = min(every) - more, max(every) + more
    power = 10.0 ** math.floor(math.log10((high - low) / 6))
    step = next(times * power for times in (1, 2, 5, 10) if (high - low) / (times * power) <= 6 + 1e-9)
    digits = max(0, -math.floor(math.log10(step) + 1e-9) - 2 * percent)
    steps = range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
    form = f".{digits}{'%' if percent else 'f'}"
    ticks = tuple((i * step, f"{i * step:{form}}".replace("-", "−")) for i in steps)
    return Axis(low, high, ticks, title, grid=grid)


def categories(words: Sequence[str], heads: Sequence[str] = ()) -> Axis:
    """A place for each: the first at 0, half a place before it and behind the last."""
    return Axis(-0.5, len(words) - 0.5, tuple(enumerate(words)), heads=tuple(heads))


@dataclass(frozen=True)
class Frame:
    """The room for marks and the margins around it. ``end`` is below the words of the values."""

    x: Scale
    y: Scale
    width: float
    end: float
    title: str
    ground: str


def frame(
    across: Axis, up: Axis, *, wide: float = WIDE, tall: float = TALL, above: float = 0.0, key: Key = ()
) -> Frame:
    """The room is ``wide`` and ``tall``; the margins hold the words of both axes and the key, however long
    they are. ``above`` is where the frame begins."""
    place = Scale(across.low, across.high, 0, wide, across.log)
    halves = [(place(value), _size(word) / 2 + 2) for value, word in across.ticks]
    sides = [width(word) + 10 for word in (*across.heads, *(word for _, word in up.ticks))]
    left = max([LEFT, *sides, *(half - x for x, half in halves)])
    over = max([RIGHT, *(x + half - wide for x, half in halves)])
    titles, rows = _titles(up.title, key, left, wide, above)
    top = above + 14 + LINE * rows
    x = Scale(across.low, across.high, left, left + wide, across.log)
    y = Scale(up.low, up.high, top + tall, top, up.log)
    lines = max((word.count("\n") + 1 for _, word in across.ticks), default=0)
    end = top + tall + (LINE * lines + 8 if lines else 0)
    ground = "".join((*titles, *_ground(across, up, x, y)))
    return Frame(x, y, math.ceil(left + wide + over), end, across.title, ground)


def _titles(title: str, key: Key, left: float, wide: float, above: float) -> tuple[list[str], int]:
    """What stands above the room, and in how many lines: the key beside the title, or below it."""
    lines = wrap(title, wide)
    parts = [text(left, above + LINE * row, words) for row, words in enumerate(lines, start=1)]
    sizes = [width(words) + 28 for _, words in key]
    beside = len(lines) == 1 and width(title) + sum(sizes) <= wide
    x, row = left + 13 if not beside else left + wide - sum(sizes) + 28, len(lines) - beside
    for (style, words), size in zip(key, sizes, strict=True):
        for i, part in enumerate(wrap(words, wide - 13)):
            row += not beside
            base = above + LINE * (row + beside)
            parts += [path(f"M{at(x - 9, base - 4)}{SHAPES[1]}", f"dot {style}")] if not i else []
            parts.append(text(x, base, part))
        x += size if beside else 0
    return parts, row + beside


def _ground(across: Axis, up: Axis, x: Scale, y: Scale) -> Iterator[str]:
    """Rules, axes and the words of the values; where there is no room for all words, some."""
    zero = y.start if up.log else y(0.0)
    rules = [f"M{at(x.start, y(v))}H{at(x.stop)}" for v, _ in up.ticks if up.grid and y(v) != zero]
    rules += [f"M{at(x(v), y.stop)}V{at(y.start)}" for v, _ in across.ticks if across.grid]
    yield path("".join(rules), "rule") + path(f"M{at(x.start, zero)}H{at(x.stop)}", "axis")
    for place, word in _apart([(-y(value), 13.0, word) for value, word in up.ticks]):
        yield text(x.start - 7, 4 - place, word, "end")
    for i, head in enumerate(across.heads):
        yield text(x.start - 7, y.start + 18 + LINE * i, head, "end")
    for place, word in _apart([(x(value), _size(word) + 5, word) for value, word in across.ticks]):
        for i, part in enumerate(word.split("\n")):
            yield text(place, y.start + 18 + LINE * i, part, "middle")


def _size(word: str) -> float:
    return max(map(width, word.split("\n")))


def _apart(words: Iterable[tuple[float, float, str]]) -> Iterator[tuple[float, str]]:
    """Of (place, size, word) those that do not overlap with one before."""
    free = -math.inf
    for place, size, word in words:
        if place - size / 2 >= free:
            free = place + size / 2
            yield place, word


SHAPES = (  # of marks, from the middle; told apart without colour. The first is for no defense
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
