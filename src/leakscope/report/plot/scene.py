"""The threat model in a picture: who holds the records, what crosses the wire, who listens, what it knows."""

from __future__ import annotations

from collections.abc import Sequence

from leakscope.report.plot.frame import LINE, at, path, text, wrap
from leakscope.report.plot.panel import picture
from leakscope.results.chapter import Scene

WIDE, EDGE, PAD = 420.0, 1.0, 14.0  # of the picture, around it, inside a box
WIRE = 30.0  # where the arrow goes down, from the left
RECORDS = "m0 0h22v16h-22zm0 5.5h22m-22 5h22m-14.6-5v10.5m7.3-10.5v10.5"  # a table
EYE = "m0 8q11-13 22 0q-11 13-22 0m14.5 0a3.5 3.5 0 1 1-7 0a3.5 3.5 0 1 1 7 0"


def draw_scene(scene: Scene) -> str:
    """From top to bottom, so that it reads on a phone: a box, the wire, a box."""
    held, top = _box(0.0, RECORDS, scene.holder, scene.records)
    labels = [line for words in scene.crosses for line in wrap(words, WIDE - WIRE - 2 * PAD)]
    end = top + LINE * len(labels) + 26
    wire = [
        path(f"M{at(WIRE, top)}V{at(end - 1)}m-5-8l5 8 5-8", "whisker"),
        *(
            text(WIRE + PAD, top + 22 + LINE * i, line, style="strong" if not i else "")
            for i, line in enumerate(labels)
        ),
    ]
    seen, bottom = _box(end, EYE, scene.listener, [f"Knows: {known}" for known in scene.knows])
    wish = wrap(f"Wants: {scene.wants}", WIDE - 2 * PAD)
    asks = [text(PAD, bottom + 20 + LINE * i, line, style="strong") for i, line in enumerate(wish)]
    height = bottom + 20 + LINE * len(wish)
    told = [scene.holder, *scene.records, *scene.crosses, scene.listener, *scene.knows, scene.wants]
    size = f'viewBox="0 0 {at(WIDE, height)}"'
    parts = [*held, *wire, *seen, *asks]
    return picture(
        "scene", size, "Who sees what", ". ".join(line.rstrip(".") for line in told), parts, "scene"
    )


def _box(top: float, sign: str, title: str, lines: Sequence[str]) -> tuple[list[str], float]:
    """A box with a sign, a title and lines, and where it ends."""
    names = wrap(title, WIDE - 3 * PAD - 22)
    under = [line for words in lines for line in wrap(words, WIDE - 2 * PAD)]
    end = top + 28 + LINE * (len(names) + len(under))
    parts = [path(f"M{at(EDGE, top + EDGE)}H{at(WIDE - EDGE)}V{at(end - EDGE)}H{at(EDGE)}Z", "axis")]
    parts.append(path(f"M{at(PAD, top + 11)}{sign}", "whisker"))
    first = top + 24
    parts += [text(2 * PAD + 22, first + LINE * i, line, style="strong") for i, line in enumerate(names)]
    base = first + LINE * len(names)
    parts += [text(PAD, base + 5 + LINE * i, line) for i, line in enumerate(under)]
    return parts, end
