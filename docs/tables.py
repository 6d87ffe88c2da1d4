"""Tables, pictures and values of the papers' pages, put in when the site is built.

    <!-- table 002 table1: Cosine auroc; Whitened auroc -->   these measures of a figure's cells
    <!-- table 002 table1 -->                                  what the paper prints a value for
    <!-- picture 000 fig6: advantage -->                       a measure of a figure's cells, drawn
    <!-- fates 000 -->                                         what became of every printed number
    {{ 000 attribute-adult: auroc }}                           one value of ours with its interval
    {{ count 000 settings }}                                   how many printed numbers have a fate

Nothing is written back, so no page can say anything else than what is recorded in ``papers/``.
"""

from __future__ import annotations

import re
from functools import cache
from html import escape
from typing import Any

from leakscope.core.errors import DataError
from leakscope.report import plot
from leakscope.run import coverage, published
from leakscope.run.coverage import NumberFate
from leakscope.run.published import PaperLine

TABLE = re.compile(r"<!-- table (\S+) ([^\s:]+)(?:: (.+?))? -->")
PICTURE = re.compile(r"<!-- picture (\S+) ([^\s:]+): (.+?) -->")
FATES = re.compile(r"<!-- fates (\S+) -->")
VALUE = re.compile(r"\{\{ (\S+) ([^\s:]+): (.+?) \}\}")
COUNT = re.compile(r"\{\{ count (\S+) (.+?) \}\}")
WORDS = {
    "auroc": "AUROC",
    "success": "right answers",
    "success_rate": "right answers",
    "balanced_accuracy": "right answers, values weighed alike",
    "utility": "accuracy of the task",
    "accuracy": "accuracy of the task",
    "ssim": "similarity (SSIM)",
    "psnr": "similarity (PSNR)",
    "original": "information",
    "trained": "on the records trained on",
    "classical_over_point": "classical epsilon over the point estimate",
    "epsilon_any": "epsilon at least",
    "epsilon_gaussian": "epsilon at least, if Gaussian",
    "Cosine": "cosine",
    "GradientDiff": "gradient difference",
    "FedLoss": "federated loss",
    "Loss": "loss",
    "ModifiedEntropy": "modified entropy",
    "Whitened": "whitened cosine",
    "strongest": "strongest new attacker",
    "stale": "stale attacker",
    "Network": "network",
    "LossThreshold": "loss",
    "Decoder": "decoder",
    "Inversion": "inversion",
}
RATES = {"tpr_at_": "found at {} false alarms", "plr_at_": "true over false alarms at {}"}
HEADER = ["cell", "measure", "paper", "ours (95% interval)", "seeds", "covers", "differs"]
MOST = 1.0  # of a measure that is a share
recorded = cache(published.recorded)
fates = cache(coverage.fates)


def digits(value: float) -> str:
    """Three digits at most."""
    places = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2 if abs(value) > 1 else 3
    return f"{value:.{places}f}"


def spoken(measure: str) -> str:
    """A measure in words: ``Cosine plr_at_1%`` is "cosine: true over false alarms at 1%"."""
    *attack, last = measure.split(" ")
    known = last in WORDS or last.startswith(tuple(RATES))
    for start, words in RATES.items():
        if last.startswith(start):
            last = words.format(last.removeprefix(start))
    parts = [" ".join(WORDS.get(word, word) for word in attack), WORDS.get(last, last)]
    return (": " if known else " ").join(part for part in parts if part)


def interval(value: float, low: float, high: float) -> str:
    return f"{digits(value)} ({digits(low)} to {digits(high)})"


def chosen(number: str, figure: str, measures: str | None) -> list[PaperLine]:
    """The lines of a figure: these measures, or what the paper prints a value for."""
    lines = [line for line in recorded(number) if figure in line.cell.figure]
    printed = [line.measure for line in lines if line.published is not None]
    wanted = measures.split("; ") if measures else printed
    for measure in wanted or [measures]:
        if measure not in [line.measure for line in lines]:
            raise DataError(f"{measure!r} of {figure} of paper {number} is not measured.")
    return [line for line in lines if line.measure in wanted and (measures or line.published is not None)]


def table(number: str, figure: str, measures: str | None) -> str:
    """The cells of a figure as a Markdown table, and under it what differs from the paper."""
    notes: dict[str, int] = {}
    rows, said = [], ""
    for line in chosen(number, figure, measures):
        differs = "; ".join(part for part in (line.differs, stale(line)) if part)
        note = notes.setdefault(differs, len(notes) + 1) if differs else 0
        theirs = "" if line.published is None else digits(line.published)
        ours = interval(line.number.value, line.number.low, line.number.high)
        covers = {None: "", True: "yes", False: "no"}[line.covers]
        name = line.cell.id if line.cell.id != said else ""
        said, seeds = line.cell.id, str(len(line.seeds))
        rows.append([name, spoken(line.measure), theirs, ours, seeds, covers, f"({note})" if note else ""])
    lines = [f"| {' | '.join(row)} |" for row in (HEADER, ["---"] * len(HEADER), *rows)]
    under = [f"({i}) {text}." for text, i in notes.items()]
    small = f'\n\n<small class="notes">{"<br>".join(map(escape, under))}</small>' if under else ""
    return "\n".join(lines) + small


def stale(line: PaperLine) -> str:
    return "an old recording: " + line.block.stale if line.block.stale else ""


def picture(number: str, figure: str, measure: str) -> str:
    """A dot with its interval for each cell, and a tall tick at the printed value."""
    lines = chosen(number, figure, measure)
    most = max(MOST, *(line.number.high for line in lines), *(line.published or 0.0 for line in lines))
    rows = []
    for line in lines:
        whisker = tuple(max(0.0, x) / most for x in (line.number.value, line.number.low, line.number.high))
        theirs = None if line.published is None else line.published / most
        ours = interval(line.number.value, line.number.low, line.number.high)
        beside = "" if line.published is None else f", paper {digits(line.published)}"
        svg = plot.strip(whisker, span=(0.0, 1.0), tip=f"{line.cell.id}: {ours}{beside}", bound=theirs)
        rows.append(
            f"<tr><th>{escape(line.cell.id)}</th><td>{svg}</td><td>{digits(line.number.value)}</td></tr>"
        )
    key = "dot and line: ours with its 95% interval; tick: the paper's"
    caption = f"{spoken(measure)}, from 0 to {digits(most)}; {key}"
    return f'<table class="picture"><caption>{escape(caption)}</caption>{"".join(rows)}</table>'


def list_fates(number: str) -> str:
    """How many numbers of a paper have which fate, and all of them, table by table."""
    own = [one for one in fates() if one.printed.paper == number]
    header, (row, *_) = coverage.HEADER[1:], coverage.count(own)
    counts = [f"| {' | '.join(cells)} |" for cells in (header, ["---"] * len(header), row[1:])]
    groups: dict[str, list[NumberFate]] = {}
    for one in own:
        groups.setdefault(one.printed.table, []).append(one)
    return "\n\n".join(["\n".join(counts), *(_listed(name, group) for name, group in groups.items())])


def _listed(name: str, group: list[NumberFate]) -> str:
    measured = sum(one.fate in coverage.MEASURED for one in group)
    head = "<tr><th>printed</th><th>value</th><th>ours</th><th>what became of it</th></tr>"
    return (
        f"<details><summary>{escape(name)}: {len(group)} numbers, {measured} measured</summary>"
        f"<table>{head}{''.join(map(_row, group))}</table></details>"
    )


def _row(one: NumberFate) -> str:
    ours = "" if one.ours is None else interval(*one.ours) if one.line else digits(one.ours[0])
    why = f"{coverage.WORDS[one.fate]}: {one.why}" if one.why else coverage.WORDS[one.fate]
    cells = (one.printed.about, f"{one.printed.value:g}", ours, why)
    return f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"


def value(number: str, cell: str, measure: str) -> str:
    """One measured value: ``0.999 (0.998 to 1.000)``."""
    for line in recorded(number):
        if (line.cell.id, line.measure) == (cell, measure):
            return interval(line.number.value, line.number.low, line.number.high)
    raise DataError(f"{measure!r} of cell {cell!r} of paper {number} is not measured.")


def count(number: str, fate: str) -> str:
    """How many printed numbers of a paper, or of all, have a fate; ``printed`` are all of them."""
    if fate not in (*coverage.WORDS, "printed"):
        raise DataError(f"{fate!r} is no fate; known: {', '.join(coverage.WORDS)}.")
    own = [one for one in fates() if number in (one.printed.paper, "all")]
    return str(sum(fate in (one.fate, "printed") for one in own))


def filled(text: str) -> str:
    """A page with its tables, pictures and values."""
    text = TABLE.sub(lambda mark: table(*mark.groups()), text)
    text = PICTURE.sub(lambda mark: picture(*mark.groups()), text)
    text = FATES.sub(lambda mark: list_fates(*mark.groups()), text)
    text = COUNT.sub(lambda mark: count(*mark.groups()), text)
    return VALUE.sub(lambda mark: value(*mark.groups()), text)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """ProperDocs' hook: a page before it is rendered."""
    return filled(markdown)
