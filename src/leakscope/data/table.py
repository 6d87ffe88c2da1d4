"""From columns of text to a Dataset: what is a number, what is a category, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from leakscope.core.dataset import Column, Dataset
from leakscope.core.errors import DataError, require
from leakscope.data.files import Array, marked_by

CATEGORIES = 200  # a text column with more values is a name, a date or a note
LABELS = 100  # the most classes a task may have
LEVELS = 10  # a number with more values than this is not a secret one guesses, but one to bin
EMPTY = "?"  # the category of empty cells
_BLANK = frozenset({"", "?", "na", "n/a", "nan", "null", "none"})  # among numbers these are no value


@dataclass
class Cells:
    """One column as it is read: numbers while every cell is one, codes while the values are few."""

    name: str
    role: str = "column"  # or "label", "secret", "user"
    known: dict[str, int] = field(default_factory=dict)  # value -> code, in order of appearance
    blank: int = 0  # cells that are no number and stand for none
    _codes: list[Array] | None = field(default_factory=list)
    _numbers: list[Array] | None = field(default_factory=list)

    @property
    def most(self) -> float:
        return math.inf if self.role == "user" else CATEGORIES

    def add(self, text: Array) -> None:
        codes, kinds = pd.factorize(text)
        self._add_codes(codes, kinds)
        if self._numbers is not None:
            self._add_numbers(codes, kinds)
        if self._codes is None and self._numbers is None:
            way = "list it in drop" if self.role == "column" else "merge rare values"
            raise DataError(
                f"{self.role} {self.name!r} must have at most {CATEGORIES} values if it is not all numbers, "
                f"and it has more (one is {self._word(kinds)!r}); {way}, or correct what is no number."
            )

    def _add_codes(self, codes: Array, kinds: Array) -> None:
        if self._codes is None:
            return
        table = [self.known.setdefault(kind, len(self.known)) for kind in kinds]
        self._codes.append(np.asarray(table, dtype=np.int32)[codes])
        if len(self.known) > self.most:
            self._codes = None
            self.known.clear()

    def _add_numbers(self, codes: Array, kinds: Array) -> None:
        assert self._numbers is not None
        blank = np.asarray([kind.strip().lower() in _BLANK for kind in kinds], dtype=bool)
        parsed = _parsed(kinds)
        if (np.isnan(parsed) & ~blank).any():
            self._numbers = None
            return
        with np.errstate(over="ignore"):  # what float32 cannot hold becomes inf, and is refused
            self._numbers.append(parsed.astype(np.float32)[codes])
        self.blank += int(blank[codes].sum())

    def _word(self, kinds: Array) -> str:
        words = [kind for kind, number in zip(kinds, _parsed(kinds), strict=True) if math.isnan(number)]
        return str(words[0])[:40] if words else str(kinds[0])[:40]

    @property
    def numeric(self) -> bool:
        """Whether every cell that is filled is a number, and one at least is."""
        return self._numbers is not None and self.blank < sum(map(len, self._numbers))

    @property
    def width(self) -> int:
        """The positions it takes in x when it is one-hot encoded."""
        return 1 if self.numeric else len(self.known)

    @property
    def empty(self) -> int:
        code = self.known.get("", -1)
        return self.blank if self.numeric else sum(int((part == code).sum()) for part in self._codes or [])

    def numbers(self) -> Array:
        """The column as float32, or the refusal of what is not finite."""
        numbers = np.concatenate(self._numbers or [])
        infinite = int((~np.isfinite(numbers)).sum()) - self.blank
        for count, kind in ((self.blank, "empty (or NaN)"), (infinite, "infinite")):
            if count:
                raise DataError(
                    f"column {self.name!r} of numbers must be finite, and {count} of {len(numbers)} rows are "
                    f"{kind}; fill or remove them, or list the column in drop."
                )
        return numbers

    def categories(self) -> tuple[Tensor, tuple[str, ...]]:
        """Codes and names: numbers in their order, words alphabetically, empty cells as "?"."""
        codes = np.concatenate(self._codes or [])
        if self.numeric:
            numbers = _parsed(np.asarray(list(self.known), dtype=object))
            names = [EMPTY if math.isnan(number) else _tidy(number) for number in numbers.tolist()]
            order = [_tidy(number) for number in np.unique(numbers[~np.isnan(numbers)]).tolist()]
            order += [EMPTY] * (EMPTY in names)
        else:
            names = [kind or EMPTY for kind in self.known]
            order = sorted(set(names))
        place = {name: i for i, name in enumerate(order)}
        table = np.asarray([place[name] for name in names], dtype=np.int64)
        return torch.from_numpy(table[codes]), tuple(order)

    def levels(self) -> tuple[Tensor, tuple[str, ...]]:
        """The codes of a label, a secret or a user: more than one value, and for guessing, few."""
        codes, names = self.categories() if self._codes is not None else (torch.zeros(0), ())
        most = {"label": LABELS, "user": math.inf}.get(self.role, CATEGORIES)
        if self.numeric and self.role != "user" and not (self.role == "label" and _whole(names)):
            most = LEVELS
        if self._codes is None or len(names) - (EMPTY in names) > most:
            found = len(names) or f"more than {CATEGORIES}"
            rule = f"at most {most} values" + (" as it holds numbers" if most == LEVELS else "")
            way = "bin its numbers first" if self.numeric else "merge rare ones"
            raise DataError(f"{self.role} {self.name!r} must have {rule}, and it has {found}; {way}.")
        if len(names) < 2:
            raise DataError(
                f"{self.role} {self.name!r} must have at least 2 values, and every row has {names[0]!r}; "
                f"choose another column."
            )
        if self.empty and self.role != "secret":
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
    return all(name.lstrip("-").isdigit() for name in names)


def _parsed(kinds: Array) -> Array:
    parsed: Array = pd.to_numeric(pd.Series(kinds, dtype=object), errors="coerce").to_numpy(dtype=np.float64)
    return parsed


def _tidy(number: float) -> str:
    return str(int(number)) if number.is_integer() else repr(number)


def dataset(
    cells: Sequence[Cells], name: str, *, label: str, secrets: Sequence[str], encoding: str = "onehot"
) -> Dataset:
    """The table: secrets stay inside ``x``, the label and a user do not."""
    require(encoding in ("onehot", "label"), "encoding", "'onehot' or 'label'", encoding)
    marked = {column.name: column.levels() for column in cells if column.role != "column"}
    inside = [column for column in cells if column.role in ("column", "secret")]
    if not inside:
        raise DataError(
            f"{name} must have a column to learn label {label!r} from, and it has none; drop fewer."
        )
    x, columns = _encoded(inside, marked, onehot=encoding == "onehot")
    codes = {column: marked[column] for column in (label, *secrets)}
    return marked_by(x, codes, name=name, columns=columns)


def _encoded(
    cells: Sequence[Cells], marked: Mapping[str, tuple[Tensor, tuple[str, ...]]], *, onehot: bool
) -> tuple[Tensor, tuple[Column, ...]]:
    blocks: list[tuple[Array, Column]] = []
    words: tuple[str, ...]
    start = 0
    for column in cells:
        if column.numeric and column.name not in marked:
            codes, words = column.numbers(), ()
        else:
            tensor, words = marked.get(column.name) or column.categories()
            codes = tensor.numpy()
        dummies = onehot and bool(words)
        stop = start + (len(words) if dummies else 1)
        blocks.append((codes, Column(column.name, start, stop, values=words, standardised=not dummies)))
        start = stop
    x = np.zeros((len(blocks[0][0]), start), dtype=np.float32)
    rows = np.arange(len(x))
    for codes, place in blocks:
        if place.standardised:
            x[:, place.start] = codes
        else:
            x[rows, place.start + codes] = 1
    return torch.from_numpy(x), tuple(place for _, place in blocks)
