"""Figures of the papers' pages that are more than dots: put in when the site is built.

    <!-- tradeoff 004 table2: utility; strongest success_rate -->   a measure over another
    <!-- layers 001 fig5: information -->                           a measure of every layer
    <!-- recorded 003 fig8 -->                                      what ``benchmarks/pictures.py`` drew
    <!-- figures 003 -->                                            every figure of a paper, and where it is

The first two are drawn from ``papers/measured``, the third is in ``papers/pictures``, the last is
``papers/figures.csv``: no page can show anything else than what is recorded there.
"""

from __future__ import annotations

import base64
import csv
import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from html import escape
from typing import Any

import tables

from leakscope.core.errors import DataError
from leakscope.report import plot
from leakscope.report.plot.frame import categories, frame, linear
from leakscope.report.plot.panel import Curve, Mark, Panel, draw
from leakscope.run import measured, published
from leakscope.run.published import PaperLine

TRADEOFF = re.compile(r"<!-- tradeoff (\S+) ([^\s:]+): (.+?); (.+?) -->")
LAYERS = re.compile(r"<!-- layers (\S+) ([^\s:]+): (.+?) -->")
RECORDED = re.compile(r"<!-- recorded (\S+) (\S+) -->")
FIGURES = re.compile(r"<!-- figures (\S+) -->")
DRAWN = re.compile(r"^<!-- (?:picture|tradeoff|layers|recorded) \S+ ([^\s:]+)", re.MULTILINE)
WHOLE = ("all layers", "labels alone")  # beside the layers
BROAD = 480  # a chart that takes the room of two
FOLDER = measured.CHECKOUT / "pictures"
Lines = Mapping[str, PaperLine]


def tradeoff(number: str, figure: str, across: str, up: str) -> str:
    """A chart for each family of cells: ours with its intervals, hollow what the paper prints."""
    cells: dict[str, dict[str, PaperLine]] = {}
    for line in tables.chosen(number, figure, f"{across}; {up}"):
        cells.setdefault(line.cell.id, {})[line.measure] = line
    families: dict[str, list[tuple[str, Lines]]] = {}
    for name, lines in cells.items():
        if {across, up} <= {*lines}:
            stem, setting = _split(name)
            families.setdefault(stem, []).append((setting, lines))
    charts = [
        _panel(draw_tradeoff(stem or figure, rows, across, up), stem)
        for stem, rows in ((stem, _sorted(rows)) for stem, rows in families.items() if len(rows) > 1)
    ]
    key = f"{_key(1, True)} ours with its 95% intervals"
    key += f", {_key(1, False)} the paper's" if "dot hollow" in "".join(charts) else ""
    dashed = "; dashed: guessing" if 'class="chance"' in "".join(charts) else ""
    numbers = "; the number beside a dot is its strength" if any(families) else ""
    words = f"{tables.spoken(up)} over {tables.spoken(across)}: {key}{dashed}{numbers}."
    return _figure(charts, words)


def _split(name: str) -> tuple[str, str]:
    """The family of a cell and its strength: ``adult-gender-0.5`` is ``adult-gender`` and ``0.5``."""
    stem, _, end = name.rpartition("-")
    return (stem, end) if re.fullmatch(r"[\d.]+", end) else ("", name)


def _sorted(rows: list[tuple[str, Lines]]) -> list[tuple[str, Lines]]:
    """By strength, where that is what the cells differ in."""
    whole = all(re.fullmatch(r"[\d.]+", setting) for setting, _ in rows)
    return sorted(rows, key=lambda row: float(row[0])) if whole else rows


def draw_tradeoff(title: str, rows: Sequence[tuple[str, Lines]], across: str, up: str) -> str:
    marks, ours, theirs = [], [], []
    first = {setting.partition("-")[0] for setting, _ in rows}
    same = f"{first.pop()}-" if len(first) == 1 else ""  # which all names begin with
    for place, (setting, lines) in enumerate(rows, start=1):
        x, y = lines[across], lines[up]
        tip = f"{x.cell.id}: {tables.interval(y.number.value, y.number.low, y.number.high)} at "
        tip += tables.interval(x.number.value, x.number.low, x.number.high)
        sides = (x.number.low, x.number.high), (y.number.low, y.number.high)
        name = {"words": setting.removeprefix(same), "number": place, "kept": True}
        marks.append(Mark(x.number.value, y.number.value, tip, 1, True, *sides, **name))
        ours.append((x.number.value, y.number.value))
        if x.published is not None and y.published is not None:
            tip = f"{x.cell.id}, the paper: {y.published:g} at {x.published:g}"
            marks.append(Mark(x.published, y.published, tip, 1, False, **name | {"number": -place}))
            theirs.append((x.published, y.published))
    family = bool(_split(rows[0][1][across].cell.id)[0])
    guessing = _guessing([lines[up] for _, lines in rows]) if family else 0.0
    wide = linear([end for m in marks for end in (m.x, *(m.across or ()))], tables.spoken(across), pad=0.1)
    high = [end for m in marks for end in (m.y, *(m.up or ()))] + [guessing] * (guessing > 0)
    room = {} if family else {"wide": 540.0, "tall": 260.0}  # for names in place of strengths
    inside = frame(wide, linear(high, tables.spoken(up), pad=0.1, grid=True), **room)
    curves = [Curve([(wide.low, guessing), (wide.high, guessing)], "chance")] if guessing > 0 else []
    if len(ours) > 1 and family:
        curves += [Curve(ours, "series"), *([Curve(theirs, "series second")] if len(theirs) > 1 else [])]
    desc = "The lower and the further right, the better the trade. The numbers stand in the table."
    return draw([Panel(inside, marks, curves)], f"Trade-off, {title}", desc, "tradeoff")


def _guessing(lines: Sequence[PaperLine]) -> float:
    """What a guess reaches, where that means something."""
    if lines[0].measure.endswith("auroc"):
        return 0.5
    rate = lines[0].measure.endswith(("success_rate", "success"))
    return max(line.number.guessing for line in lines) if rate else 0.0


def layers(number: str, figure: str, measure: str) -> str:
    """A chart for each cell of a figure: the measure of every layer, a shape for each secret."""
    cells: dict[str, dict[str, dict[str, PaperLine]]] = {}
    for line in tables.recorded(number):
        if figure in line.cell.figure and line.measure.endswith(f" {measure}"):
            secret, view = _view(line.measure.removesuffix(f" {measure}"))
            cells.setdefault(line.cell.id, {}).setdefault(secret, {})[view] = line
    if not cells:
        raise DataError(f"{measure!r} of the layers of {figure} of paper {number} is not measured.")
    names = [*dict.fromkeys(secret for secrets in cells.values() for secret in secrets)]
    charts = [_panel(draw_layers(cell, secrets, names, measure), cell) for cell, secrets in cells.items()]
    shapes = [f"{_key(i, True)} {escape(name)}" for i, name in enumerate(names, start=1) if name]
    words = f"{escape(NAMES.get(measure, measure))}, with 95% intervals"
    return _figure(charts, f"{words}{': ' if shapes else ''}{', '.join(shapes)}.")


NAMES = {
    "information": "Information about an attribute in every layer's gradient",
    "distance": "Distance between the subspaces of two groups in every layer's gradient",
    "original": "Information about the record itself in the gradients of two layers",
    "F sensitivity": "Sensitivity of every layer's gradient to the input, F-norm",
    "1 sensitivity": "Sensitivity of every layer's gradient to the input, 1-norm",
    "inf sensitivity": "Sensitivity of every layer's gradient to the input, largest entry",
}


def _view(name: str) -> tuple[str, str]:
    """Secret and layers of ``Male conv1``, ``conv1``, ``Male all layers`` or ``all layers``."""
    for whole in WHOLE:
        if name.endswith(whole):
            return name.removesuffix(whole).strip(), whole
    secret, _, view = name.rpartition(" ")
    return secret, view


def draw_layers(cell: str, secrets: Mapping[str, Lines], names: Sequence[str], measure: str) -> str:
    views = [*dict.fromkeys(view for lines in secrets.values() for view in lines)]
    views = [view for view in views if view not in WHOLE] + [view for view in WHOLE if view in views]
    marks, curves = [], []
    step = 11.0
    for secret, lines in secrets.items():
        slot = names.index(secret)
        shift = step * (slot - (len(names) - 1) / 2)
        for view, line in lines.items():
            one = line.number
            tip = f"{secret} {view}: {tables.interval(one.value, one.low, one.high)}".strip()
            marks.append(
                Mark(views.index(view), one.value, tip, slot + 1, True, up=(one.low, one.high), shift=shift)
            )
        if len(secrets) == 1:
            line = [(i, lines[view].number.value) for i, view in enumerate(views) if view not in WHOLE]
            curves.append(Curve(line))
    ends = [end for mark in marks for end in (mark.up or ())]
    up = linear(
        [0.0, *ends], f"{measure}{', nats' * (measure in ('information', 'original'))}", pad=0.05, grid=True
    )
    words = [re.sub(r"[+ ]", "\n", view) for view in views]
    wide = max(300.0, len(views) * max(50.0, step * (len(names) + 1)))
    desc = "From the first layer to the last; the numbers stand in the recording."
    return draw([Panel(frame(categories(words), up, wide=wide, tall=190), marks, curves)],
                f"{measure}, {cell}", desc, "layers")  # fmt: skip


def recorded(number: str, figure: str) -> str:
    """What the program drew of a figure, with the cells and the seed it is of."""
    name = f"{number} {figure}"
    entry = index().get(name)
    if entry is None:
        raise DataError(f"figure {figure} of paper {number} is not recorded; run benchmarks/pictures.py.")
    panels = entry["panels"]
    if panels[0]["file"].endswith(".png"):
        shown = [_strips(panels)]
    else:
        shown = [_panel(drawing(one["file"]), one["title"]) for one in panels]
    return _figure(shown, _made(number, entry), entry["panels"][0]["file"].endswith(".png"))


def _made(number: str, entry: Mapping[str, Any]) -> str:
    cells = ", ".join(f"<code>{escape(cell)}</code>" for cell in entry["cells"])
    parts = [f"Cell{'s' * (len(entry['cells']) > 1)} {cells}" if cells else "No cell of the plan"]
    parts += [f"seed {entry['seed']}", *([escape(entry["also"])] if "also" in entry else [])]
    if is_stale(number, entry):
        parts.append(f"an old picture: {measured.CHANGED}")
    key = [f"{_sign(entry, i)} {escape(word)}" for i, word in enumerate(entry.get("key", ()))]
    return "; ".join(parts) + "." + (f" {', '.join(key)}." if key else "")


def is_stale(number: str, entry: Mapping[str, Any]) -> bool:
    known = published.cells(number)
    return any(
        name not in known or known[name].key(entry["seed"]) != key for name, key in entry["cells"].items()
    )


def _sign(entry: Mapping[str, Any], place: int) -> str:
    """What a word of the key stands beside: a spot of a map, else a line."""
    if 'class="scatter"' in drawing(entry["panels"][0]["file"]):
        return plot.spot(place)
    style = ("first", "second", "third", "fourth")[place]
    box = 'viewBox="-10 -10 20 20" aria-hidden="true"'
    return f'<svg class="mark" {box}><path d="M-10 0H10" class="series {style}"/></svg>'


@cache
def index() -> dict[str, Any]:
    """What is recorded, by paper and figure."""
    found: dict[str, Any] = json.loads((FOLDER / "index.json").read_text(encoding="utf-8"))
    return found


@cache
def drawing(file: str) -> str:
    return (FOLDER / file).read_text(encoding="utf-8").strip()


def _strips(panels: Sequence[Mapping[str, str]]) -> str:
    rows = []
    for one in panels:
        data = base64.b64encode((FOLDER / one["file"]).read_bytes()).decode("ascii")
        title, beside = escape(one["title"]), escape(one.get("beside", ""))
        image = f'<img src="data:image/png;base64,{data}" alt="{title}">'
        rows.append(f"<tr><th>{title}<small>{beside}</small></th><td>{image}</td></tr>")
    return f'<table class="strips">{"".join(rows)}</table>'


def _key(shape: int, filled: bool) -> str:
    return plot.mark(shape, filled=filled)


def _panel(svg: str, title: str) -> str:
    head = f"<b>{escape(title)}</b>" if title else ""
    (size,) = re.findall(r'viewBox="0 0 ([\d.]+) ', svg)[:1]
    style = ' class="broad"' if float(size) > BROAD else ""
    return f"<div{style}>{head}{svg}</div>"


def _figure(charts: Sequence[str], words: str, wide: bool = False) -> str:
    style = "drawn wide" if wide else "drawn"
    inside = f'<div class="charts">{"".join(charts)}</div><figcaption>{words}</figcaption>'
    return f'<figure class="{style}">{inside}</figure>'


# Every figure of a paper


@cache
def printed_figures() -> tuple[dict[str, str], ...]:
    with (measured.CHECKOUT / "figures.csv").open(encoding="utf-8", newline="") as file:
        return tuple(csv.DictReader(file))


def figures(number: str) -> str:
    """Every figure of a paper: where it is drawn here, and what is missing, or why."""
    rows = ["| figure | what it shows | drawn here | what is missing, or why |", "| --- | --- | --- | --- |"]
    for one in printed_figures():
        if one["paper"] == number:
            places = [f"[{place}](#drawn-{place})" for place in one["drawn"].split()]
            name = one["figure"].replace(" ", "\u00a0")
            rows.append(f"| {name} | {one['shows']} | {', '.join(places)} | {one['why']} |")
    return "\n".join(rows)


def anchored(text: str) -> str:
    """A page in which the first picture of every figure can be linked to."""
    seen: set[str] = set()

    def name(mark: re.Match[str]) -> str:
        first = mark[1] not in seen
        seen.add(mark[1])
        return f'<span id="drawn-{mark[1]}"></span>\n\n{mark[0]}' if first else mark[0]

    return DRAWN.sub(name, text)


def filled(text: str) -> str:
    text = anchored(text)
    text = TRADEOFF.sub(lambda mark: tradeoff(*mark.groups()), text)
    text = LAYERS.sub(lambda mark: layers(*mark.groups()), text)
    text = RECORDED.sub(lambda mark: recorded(*mark.groups()), text)
    return FIGURES.sub(lambda mark: figures(*mark.groups()), text)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """ProperDocs' hook: a page before it is rendered."""
    return filled(markdown)
