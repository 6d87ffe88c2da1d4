"""What became of every number that the papers print: measured, how, or why not.

``papers/printed.csv`` of a checkout has a row for each: where it stands, what it is of, and the cell and
measure that it is compared with, or a reason. Whether a cell has the paper's settings is not written there:
its plan and its recording decide.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from leakscope.core import files
from leakscope.core.errors import DataError
from leakscope.run import measured, published
from leakscope.run.published import PaperLine

SETTINGS, SCALED, OTHER_DATA = "settings", "scaled", "other data"
UNOBTAINABLE, SECONDS, NOT_YET = "not to be had", "seconds", "not yet"
WORDS = {
    SETTINGS: "measured at the paper's settings",
    SCALED: "measured scaled",
    OTHER_DATA: "measured on other data",
    UNOBTAINABLE: "not to be had",
    SECONDS: "seconds on another machine",
    NOT_YET: "not measured yet",
}
MEASURED = (SETTINGS, SCALED, OTHER_DATA)
ENOUGH = 3  # seeds


@dataclass(frozen=True)
class PrintedNumber:
    """A row: the printed ``value`` and what it is of. ``cell`` and ``measure`` are what it is compared with,
    ``less`` what the paper takes off first, ``per`` what it then divides by; ``ours`` is what is computed and
    is no measure of a cell: of the data, of what is recorded, or by a benchmark that ``why`` names. ``fate``
    is empty where the recording decides it."""

    paper: str
    table: str
    dataset: str
    model: str
    attack: str
    defense: str
    setting: str
    metric: str
    value: float
    std: float | None
    fate: str
    cell: str
    measure: str
    less: float
    per: float
    ours: float | None
    why: str

    @property
    def about(self) -> str:
        parts = (self.dataset, self.model, self.attack, self.defense, self.setting, self.metric)
        return ", ".join(part for part in parts if part and part != "none")


@dataclass(frozen=True)
class NumberFate:
    """What became of a printed number: the word for it, ours where there is one, how or why."""

    printed: PrintedNumber
    fate: str
    why: str
    line: PaperLine | None = None

    @property
    def seeds(self) -> int:
        return len(self.line.seeds) if self.line else 0

    @property
    def ours(self) -> tuple[float, float, float] | None:
        """Our value with its interval, of which a computed number has none."""
        if self.line is not None:
            number, less, per = self.line.number, self.printed.less, self.printed.per
            return (number.value - less) / per, (number.low - less) / per, (number.high - less) / per
        value = self.printed.ours
        return None if value is None else (value, value, value)


def read(folder: Path | None = None) -> list[PrintedNumber]:
    """Every printed number."""
    path = measured.find_folder(folder) / "printed.csv"
    try:
        table = list(csv.DictReader(io.StringIO(files.read(path).decode())))
        return [_printed(row) for row in table]
    except (OSError, UnicodeDecodeError, TypeError, ValueError) as error:
        raise DataError(f"{path.name} is no list of printed numbers: {error}.") from None


def _printed(row: Mapping[str, str]) -> PrintedNumber:
    numbers = {
        name: float(row[name]) if row[name] else absent
        for name, absent in (("value", None), ("std", None), ("less", 0.0), ("per", 1.0), ("ours", None))
    }
    return PrintedNumber(**{**row, **numbers})  # type: ignore[arg-type]


def fates(folder: Path | None = None) -> list[NumberFate]:
    """What became of every printed number, as the recordings are now."""
    rows = read(folder)
    known = {
        (number, line.cell.id, line.measure): line
        for number in published.documents()
        for line in published.recorded(number, folder)
    }
    return [_fate(row, known.get((row.paper, row.cell, row.measure))) for row in rows]


def _fate(row: PrintedNumber, line: PaperLine | None) -> NumberFate:
    if not row.cell:
        return NumberFate(row, row.fate, row.why)
    if line is None:
        return NumberFate(row, NOT_YET, f"{row.measure} of its cell {row.cell} is not measured")
    why = "; ".join(part for part in (row.why, line.differs, line.block.stale) if part)
    if line.void or line.block.stale == measured.CHANGED:
        return NumberFate(row, NOT_YET, why)
    return NumberFate(row, row.fate or (SCALED if line.differs else SETTINGS), why, line)


def count(found: Iterable[NumberFate]) -> list[list[str]]:
    """Table rows: for each paper how many numbers have which fate, and how many are measured with at least
    three seeds."""
    by_paper: dict[str, list[NumberFate]] = {}
    for one in found:
        by_paper.setdefault(one.printed.paper, []).append(one)
    by_paper["all"] = [one for group in by_paper.values() for one in group]
    return [_counted(name, group) for name, group in by_paper.items()]


def _counted(name: str, group: Sequence[NumberFate]) -> list[str]:
    tally = Counter(one.fate for one in group)
    often = sum(one.fate in MEASURED and (one.seeds >= ENOUGH or one.line is None) for one in group)
    stale = sum(one.line is not None and bool(one.line.block.stale) for one in group)
    return [name, str(len(group)), *(str(tally[fate]) for fate in WORDS), str(often), str(stale)]


HEADER = [
    "paper",
    "printed",
    *WORDS.values(),
    "measured with three seeds, or computed",
    "of stale recordings",
]
