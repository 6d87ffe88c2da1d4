"""What becomes of a column: rules, each with its reason. The first that holds decides."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from leakscope.core.columns import FEW
from leakscope.core.errors import ArgumentError
from leakscope.data.cells import CATEGORIES, Cells

KINDS = ("number", "category", "date", "text", "identifier")  # what --as may say; the last two are left out
LEFT_OUT = "left out"
CODES = "codes"  # categories of which only the frequent have an input of their own
LEAST_ROWS = 40  # below them all values may be distinct by chance
NEARLY = 0.9  # of the cells distinct: free text, names, identifiers
MOSTLY = 0.5  # of the cells distinct in a column whose name says that it identifies
COLLISIONS = 3.0  # equal pairs that numbers drawn at random from the same range would have
_NAMED = re.compile(r"(^|[\W_])(id|ids|nr|nbr|no|num|number|key|mrn|uuid|guid|ssn)$|[a-z](Id|ID|Nr)$", re.I)
_UNNAMED = re.compile(r"(column \d+|Unnamed: \d+)( \(\d+\))?")


@dataclass(frozen=True)
class ColumnRule:
    """A kind of column, why a column is of it, and whether one is."""

    kind: str
    reason: str
    holds: Callable[[Cells], bool]


def identifies(cells: Cells) -> bool:
    """Whether values tell rows or people apart: by the name and many distinct values; or whole numbers of
    which no two are equal, where numbers of such a range drawn at random would have equal ones."""
    named = bool(_NAMED.search(cells.name))
    if cells.filled < LEAST_ROWS or (not cells.numeric and not named):
        return False
    if not cells.numeric:
        return many(cells) or len(cells.known) > MOSTLY * cells.filled
    numbers = cells.numbers()
    numbers = numbers[~np.isnan(numbers)]
    if not len(numbers) or (numbers != np.round(numbers)).any():
        return False
    distinct, count = len(np.unique(numbers)), len(numbers)
    if named and distinct > MOSTLY * count:
        return True
    pairs = count * (count - 1) / 2 / (float(numbers.max() - numbers.min()) + 1)
    return distinct == count and pairs >= COLLISIONS


def repeats(cells: Cells) -> bool:
    """Whether an identifier stands in several rows, as a person's does."""
    if not cells.numeric:
        return cells.coded and len(cells.known) < cells.filled
    numbers = cells.numbers()
    return len(np.unique(numbers[~np.isnan(numbers)])) < cells.filled


def counts_rows(cells: Cells) -> bool:
    """Whether it has no name and numbers the rows."""
    if not _UNNAMED.fullmatch(cells.name) or not cells.numeric or cells.blank:
        return False
    numbers = cells.numbers()
    return bool((np.diff(numbers) == 1).all())


def many(cells: Cells) -> bool:
    """Whether it has more values than are kept."""
    return not cells.coded and not cells.mostly_numeric


def wordy(cells: Cells) -> bool:
    """Whether nearly every cell holds words of its own."""
    if cells.mostly_numeric:
        return False
    return many(cells) or (cells.filled >= LEAST_ROWS and len(cells.known) > NEARLY * cells.filled)


RULES = (
    ColumnRule(LEFT_OUT, "every cell is empty", lambda cells: not cells.filled),
    ColumnRule(LEFT_OUT, "every row has the same value", lambda cells: len(cells.known) == 1 and cells.coded),
    ColumnRule(LEFT_OUT, "row numbers", counts_rows),
    ColumnRule("date", "days, from dates written {form}", lambda cells: bool(cells.form)),
    ColumnRule(LEFT_OUT, "an identifier: it tells rows or people apart", identifies),
    ColumnRule("number", "numbers", lambda cells: cells.numeric),
    ColumnRule(
        "number",
        "numbers, and a few words that are taken as missing",
        lambda cells: cells.mostly_numeric and (not cells.coded or len(cells.known) > CATEGORIES),
    ),
    ColumnRule(LEFT_OUT, "free text or names: nearly every value is another", wordy),
    ColumnRule("category", "{values} values", lambda cells: len(cells.known) <= CATEGORIES),
    ColumnRule(LEFT_OUT, "codes, none of them frequent", lambda cells: bool(_counts(cells).max() < FEW)),
    ColumnRule(CODES, "{values} values: the {frequent} most frequent, all others as one", lambda cells: True),
)


def _counts(cells: Cells) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    empty = cells.known.get("", -1)
    return np.asarray([n for code, n in enumerate(cells.counts) if code != empty] or [0])


def decide(cells: Cells, *, asked: str = "", keep: bool = False, frequent: int) -> tuple[str, str]:
    """The kind of a column and why. What is ``asked`` goes first, and ``keep`` leaves nothing out that can be
    an input."""
    if asked:
        return _obey(cells, asked, frequent)
    usable = [rule for rule in RULES if not (keep and rule.kind == LEFT_OUT)]
    rule = next(rule for rule in usable if rule.holds(cells))
    reason = rule.reason.format(
        form=cells.spoken_form if rule.kind == "date" else "", values=len(cells.known), frequent=frequent
    )
    notes = [reason, *(["kept as asked"] if keep else []), *(["decimal commas"] if cells.decimals else [])]
    if rule.holds is identifies and repeats(cells):
        notes.append("some values repeat: if they are people, name the column by --person")
    return rule.kind, "; ".join(notes)


def _obey(cells: Cells, asked: str, frequent: int) -> tuple[str, str]:
    reason = f"as asked: {asked}"
    if asked in ("text", "identifier"):
        return LEFT_OUT, reason
    if asked == "category" and len(cells.known) > CATEGORIES:
        return CODES, f"{reason}; the {frequent} most frequent values, all others as one"
    return asked, reason


def possible(cells: Cells, asked: str) -> str:
    """What stands against reading a column as it is asked; nothing where nothing does."""
    if asked == "number" and not cells.mostly_numeric:
        return "its cells are no numbers"
    if asked == "date" and not cells.form:
        return "its cells are no dates such as 2024-12-31 or 31.12.2024"
    if asked == "category" and not cells.coded:
        return "it has too many values"
    return ""


def say_few(count: int, what: str) -> str:
    """A count that points at nobody."""
    return f"fewer than {FEW} {what}" if count < FEW else f"{count:,} {what}"


def list_kinds(pairs: Sequence[str]) -> dict[str, str]:
    """``column=kind``, as it is typed, each apart."""
    if bad := [pair for pair in pairs if not pair.rpartition("=")[0]]:
        raise ArgumentError(
            f"--as must be a column with what it is, such as ward=category, got "
            f"{', '.join(map(repr, bad))}; it can be {', '.join(KINDS)}."
        )
    return {column: kind for column, _, kind in (pair.rpartition("=") for pair in pairs)}
