"""One column as it is read: numbers, days and codes side by side, as long as each may be what it holds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from leakscope.core.errors import DataError
from leakscope.data.files import Array

CATEGORIES = 200  # a text column with more values is a code, a name, a date or a note
LABELS = 100  # the most classes a task may have
LEVELS = 10  # a secret with more numbers is asked in ranges, a label of more fractions learned as a number
MOST_VALUES = 50_000  # that are kept of one column, so that memory is bounded
WORDS = 5  # a column of numbers may hold so many different words; one with more is no column of numbers
MOST_EXACT = 1 << 24  # whole numbers above it are not told apart by float32
EMPTY = "?"  # the category of empty cells
_BLANK = frozenset({"", "?", "na", "n/a", "nan", "null", "none"})  # among numbers these are no value
_DATE = r"(\d{4}-\d{1,2}-\d{1,2}|\d{1,2}-\d{1,2}-\d{4}|\d{1,2}-[A-Za-z]{3}-\d{4})"
_DAYS = {  # how a date may be written, and said
    "%Y-%m-%d": "year-month-day",
    "%d-%m-%Y": "day-month-year",
    "%m-%d-%Y": "month-day-year",
    "%d-%b-%Y": "day-month-year",
}

PEOPLE = ("user", "person", "site")  # roles of which there may be any number of values


@dataclass
class Cells:
    """One column as it is read. ``commas``: 1,5 may be a number. ``asked``: the kind it is to be read as;
    of a category codes are kept, however many numbers it seems to have."""

    name: str
    role: str = "column"  # or "label", "secret", or one of `PEOPLE`
    commas: bool = False
    asked: str = ""
    known: dict[str, int] = field(default_factory=dict)  # value -> code, in order of appearance
    words: dict[str, int] = field(default_factory=dict)  # what is no number -> its cells; a few of them
    rows: int = 0
    blank: int = 0  # cells that stand for no value
    infinite: int = 0
    decimals: bool = False  # whether numbers were written with commas
    let_go: bool = False  # whether codes were not kept because all seemed to be numbers
    _codes: list[Array] | None = field(default_factory=list)
    _numbers: list[Array] | None = field(default_factory=list)
    _days: dict[str, list[Array]] = field(default_factory=lambda: {form: [] for form in _DAYS})

    def add(self, text: Array) -> None:
        codes, kinds = pd.factorize(text)
        counts = np.bincount(codes, minlength=len(kinds))
        blank = np.asarray([kind.strip().lower() in _BLANK for kind in kinds], dtype=bool)
        self.rows += len(text)
        self.blank += int(counts[blank].sum())
        if self._days:
            self._add_days(codes, kinds, blank)
        if self._numbers is not None:
            self._add_numbers(codes, kinds, blank, counts)
        if self._codes is not None:
            self._add_codes(codes, kinds)

    def _add_days(self, codes: Array, kinds: Array, blank: Array) -> None:
        filled = pd.Series(kinds[~blank], dtype=object)
        if not len(filled):
            days = {form: np.full(len(kinds), np.nan, dtype=np.float32) for form in self._days}
        else:
            days, dates = {}, _dates(filled)
            for form in self._days if len(dates) == len(filled) else ():
                moments = pd.to_datetime(dates, format=form, errors="coerce")
                if not moments.isna().any():
                    days[form] = np.full(len(kinds), np.nan, dtype=np.float32)
                    days[form][~blank] = (moments - pd.Timestamp(0)).dt.days
        self._days = {form: [*self._days[form], found[codes]] for form, found in days.items()}

    def _add_numbers(self, codes: Array, kinds: Array, blank: Array, counts: Array) -> None:
        assert self._numbers is not None
        parsed = self._parsed(kinds)
        for i in np.flatnonzero(np.isnan(parsed) & ~blank)[: WORDS + 1]:
            self.words[kinds[i]] = self.words.get(kinds[i], 0) + int(counts[i])
        if len(self.words) > WORDS and self.asked != "number":
            self._numbers = None
            return
        with np.errstate(over="ignore"):  # what float32 cannot hold is infinite
            short = parsed.astype(np.float32)
        lost = np.isinf(short)
        self.infinite += int(counts[lost].sum())
        short[lost] = parsed[lost] = np.nan
        exact = np.isfinite(parsed) & (np.abs(parsed) > MOST_EXACT) & (parsed != short)
        self._numbers.append((parsed if exact.any() else short)[codes])

    def _add_codes(self, codes: Array, kinds: Array) -> None:
        assert self._codes is not None
        table = [self.known.setdefault(kind, len(self.known)) for kind in kinds]
        self._codes.append(np.asarray(table, dtype=np.int32)[codes])
        if len(self.known) > self._most:
            self.let_go = self._most < MOST_VALUES
            self._codes = None
            self.known.clear()

    @property
    def _most(self) -> float:
        if self.role in PEOPLE:
            return math.inf
        numeric = self._numbers is not None and not self.words and self.asked != "category"
        return CATEGORIES if numeric or self.role != "column" else MOST_VALUES

    def _parsed(self, kinds: Array) -> Array:
        parsed = _numbers(kinds)
        if self.commas:
            text = pd.Series(kinds, dtype=object)
            marked = np.isnan(parsed) & text.str.fullmatch(r"\s*[-+]?[\d.]*,\d+\s*").to_numpy(dtype=bool)
            if marked.any():
                grouped = bool(text[marked].str.contains(".", regex=False).any())  # 1.234,5
                text = text.str.replace(".", "", regex=False) if grouped else text
                with_points = _numbers(text.str.replace(",", ".", regex=False).to_numpy())
                self.decimals |= bool(np.isfinite(with_points[marked]).any())
                parsed = with_points if grouped else np.where(marked, with_points, parsed)
        return parsed

    @property
    def filled(self) -> int:
        return self.rows - self.blank

    @property
    def numeric(self) -> bool:
        """Whether every cell that is filled is a number, and one at least is."""
        return self.mostly_numeric and not self.words

    @property
    def mostly_numeric(self) -> bool:
        """The same but for a few words."""
        return self._numbers is not None and self.filled > sum(self.words.values())

    @property
    def coded(self) -> bool:
        """Whether its values are known, each by a code."""
        return self._codes is not None

    @property
    def lost(self) -> bool:
        """Whether its codes were let go while it seemed to hold numbers, which it does not."""
        return self.role == "column" and not self.coded and not self.mostly_numeric and self.let_go

    @property
    def form(self) -> str:
        """How its dates are written, if it holds dates; days come first where months could."""
        return next(iter(self._days), "") if self.filled else ""

    def dated(self, form: str) -> bool:
        """Whether every cell that is filled is a date of that form."""
        return form in self._days

    @property
    def spoken_form(self) -> str:
        return _DAYS[self.form]

    @property
    def counts(self) -> Array:
        """How many cells each known value has."""
        return sum(np.bincount(part, minlength=len(self.known)) for part in self._codes or [])  # type: ignore[return-value]

    @property
    def width(self) -> int:
        """About how many positions it takes in x."""
        return 1 + bool(self.blank) if self.numeric or not self.coded else min(len(self.known), CATEGORIES)

    @property
    def empty(self) -> int:
        code = self.known.get("", -1)
        return self.blank if self.numeric else sum(int((part == code).sum()) for part in self._codes or [])

    def numbers(self, form: str = "") -> Array:
        """The column as numbers, or as days since 1970 of dates in that form; NaN where there is none."""
        return np.concatenate(self._days[form] if form else self._numbers or [])

    def categories(self) -> tuple[Tensor, tuple[str, ...]]:
        """Codes and names: numbers in their order, words alphabetically, empty cells as "?"."""
        codes = np.concatenate(self._codes or [])
        if self.numeric:
            numbers = self._parsed(np.asarray(list(self.known), dtype=object))
            names = [EMPTY if math.isnan(number) else _tidy(number) for number in numbers.tolist()]
            order = [_tidy(number) for number in np.unique(numbers[~np.isnan(numbers)]).tolist()]
            order += [EMPTY] * (EMPTY in names)
        else:
            names = [kind or EMPTY for kind in self.known]
            order = sorted(set(names))
        place = {name: i for i, name in enumerate(order)}
        table = np.asarray([place[name] for name in names], dtype=np.int64)
        return torch.from_numpy(table[codes]), tuple(order)

    @property
    def spread(self) -> bool:
        """Whether it holds more numbers than a task has classes, or than one guesses a secret among, or is
        asked for as numbers: then a label is learned as a number, and a secret asked in ranges."""
        if self.role not in ("label", "secret") or self.asked == "category":
            return False
        if self.asked == "number" or not self.numeric:
            return self.asked == "number" and self.mostly_numeric
        names = self.categories()[1] if self._codes is not None else ()
        most = LABELS if self.role == "label" and names and _whole(names) else LEVELS
        return self._codes is None or len(names) - (EMPTY in names) > most

    def levels(self, *, gaps: bool = False) -> tuple[Tensor, tuple[str, ...]]:
        """The codes of a label, a secret or a user: more than one value, and for guessing, few. With ``gaps``
        rows may have none."""
        codes, names = self.categories() if self._codes is not None else (torch.zeros(0), ())
        most = {"label": LABELS, **dict.fromkeys(PEOPLE, math.inf)}.get(self.role, CATEGORIES)
        if self._codes is None or len(names) - (EMPTY in names) > most:
            found = len(names) or f"more than {CATEGORIES}"
            raise DataError(
                f"{self.role} {self.name!r} must have at most {most} values, and it has {found}; merge rare "
                f"ones."
            )
        if len(names) < 2:
            raise DataError(
                f"{self.role} {self.name!r} must have at least 2 values, and every row has {names[0]!r}; "
                f"choose another column."
            )
        if self.empty and self.role != "secret" and not gaps:
            raise DataError(
                f"{self.role} {self.name!r} must be known for every row, and {self.empty} rows are empty; "
                f"remove or fill them."
            )
        if self.numeric and {"inf", "-inf"} & set(names):
            raise DataError(
                f"{self.role} {self.name!r} must be finite, and it holds infinite numbers; remove them."
            )
        return codes, names


def _whole(names: Sequence[str]) -> bool:
    return all(name.lstrip("-").isdigit() for name in names if name != EMPTY)


def _dates(written: pd.Series[Any]) -> pd.Series[Any]:
    """The dates among these cells, their parts divided by dashes. Where the first is none the others are not
    looked at: most columns hold none."""
    for some in (written.iloc[:1], written):
        dates = some.str.split(r"[T ](?=\d\d?:)", n=1, regex=True).str[0].str.strip()
        dates = dates.str.replace(r"[./ ]", "-", regex=True)
        dates = dates[dates.str.fullmatch(_DATE)]
        if dates.empty:
            break
    return dates


def _numbers(kinds: Array) -> Array:
    numbers = pd.to_numeric(pd.Series(kinds, dtype=object), errors="coerce")
    parsed: Array = numbers.to_numpy(dtype=np.float64, copy=True)
    return parsed


def _tidy(number: float) -> str:
    return str(int(number)) if number.is_integer() else repr(number)
