"""From columns of text to a Dataset: what each becomes, which rows stay, and what is refused."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from leakscope.core.columns import OTHER, UNLEARNED, Column, Fate
from leakscope.core.dataset import Dataset
from leakscope.core.errors import DataError, refuse_all, require
from leakscope.data.cells import EMPTY, LEVELS, Cells
from leakscope.data.fates import CODES, LEFT_OUT, decide, possible, say_few
from leakscope.data.files import Array, marked_by
from leakscope.data.ranges import Bins, cut

FREQUENT = 30  # codes of one column that have an input of their own
RARE = 20  # records of a label's or a secret's value, below which it is rare
RARE_SHARE = 0.05  # of the records that rare values have at most, all together; else they are the rule
ROLES = {
    "label": "what the model learns",
    "secret": "what the adversary is after",
    "user": "whose record it is; no input",
    "person": "whose record it is: the records of one person stay together; no input",
    "site": "where the record is from; no input",
}


@dataclass(frozen=True, eq=False)
class Marks:
    """The codes of a label, a secret or a person, and what was done to them. A label that is learned as a
    number has numbers and no names; ``ranged``: the codes are ranges of a number, which is an input."""

    codes: Tensor
    names: tuple[str, ...]
    notes: tuple[str, ...] = ()
    ranged: bool = False

    @property
    def gaps(self) -> Tensor:
        """The rows that have none."""
        if not self.names:
            return self.codes.isnan()
        return self.codes == (self.names.index(EMPTY) if EMPTY in self.names else -1)


def dataset(
    cells: Sequence[Cells],
    name: str,
    *,
    label: str,
    secrets: Sequence[str],
    encoding: str = "onehot",
    keep: Collection[str] = (),
    frequent: int = FREQUENT,
    bins: Bins | None = None,
    where: str = "",
) -> Dataset:
    """The table: secrets stay inside ``x``, the label and people do not. ``bins``: the ranges of numbers of
    the label and of secrets. ``where``: what errors call it."""
    require(encoding in ("onehot", "label"), "encoding", "'onehot' or 'label'", encoding)
    require(frequent >= 1, "frequent", "at least 1", frequent)
    marks, rows, reasons = _mark([column for column in cells if column.role != "column"], keep, bins or {})
    inside = [column for column in cells if column.role in ("column", "secret")]
    kinds: dict[str, tuple[str, str]] = {}
    for column in inside:
        kept = "*" in keep or column.name in keep
        if column.role == "column":
            kinds[column.name] = decide(column, asked=column.asked, keep=kept, frequent=frequent)
            way = f"--as {column.name}={column.asked}" if column.asked else f"--keep {column.name}"
            against = possible(column, column.asked or ("category" if kinds[column.name][0] == CODES else ""))
            reasons += [f"column {column.name!r} cannot be used: {against}; leave {way} out."] * bool(against)
    used = [column for column in inside if kinds.get(column.name, ("",))[0] != LEFT_OUT]
    if not used:
        ways = f"; {_gone(kinds)}" if kinds else "; drop fewer"
        reasons.append(
            f"{where or name} must have a column to learn label {label!r} from, and it has none{ways}."
        )
    refuse_all(reasons, where or name)
    x, columns, said = _encoded(used, marks, kinds, rows, onehot=encoding == "onehot", frequent=frequent)
    told = [_fate(column, marks, kinds, columns, said) for column in cells]
    codes = {column: (marks[column].codes[rows], marks[column].names) for column in (label, *secrets)}
    found = marked_by(x, codes, name=name, columns=tuple(columns.values()))
    ordered = {name for name in secrets if marks[name].ranged and EMPTY not in marks[name].names}
    return replace(found, fates=tuple(told), ordered=frozenset(ordered))


def _gone(kinds: Mapping[str, tuple[str, str]]) -> str:
    some = ", ".join(f"{name!r} ({reason})" for name, (_, reason) in list(kinds.items())[:5])
    return f"left out are {some}: keep one by --keep"


def _fate(
    cells: Cells,
    marks: Mapping[str, Marks],
    kinds: Mapping[str, tuple[str, str]],
    columns: Mapping[str, Column],
    said: Mapping[str, str],
) -> Fate:
    place = columns.get(cells.name)
    inputs = place.stop - place.start if place else 0
    if cells.name in marks:
        values = len(marks[cells.name].names)
        few = [f"{values:,} values"] if cells.role in ("label", "secret") and values else []
        return Fate(
            cells.name, cells.role, "; ".join([ROLES[cells.role], *few, *marks[cells.name].notes]), inputs
        )
    kind, reason = kinds[cells.name]
    kind = "category" if kind == CODES else kind
    return Fate(cells.name, kind, "; ".join(filter(None, [reason, said.get(cells.name, "")])), inputs)


def _look(column: Cells, bins: Bins) -> Marks:
    """What a column that has a role holds: codes, ranges of its numbers, or the numbers of a label."""
    who, binned = f"{column.role} {column.name!r}", column.name in bins
    if against := possible(column, column.asked):
        raise DataError(f"{who} cannot be used: {against}; leave --as {column.name}={column.asked} out.")
    if binned and not column.numeric and column.asked != "number":
        raise DataError(f"--bins is for numbers, and {who} holds words; leave --bins {column.name} out.")
    if not binned and not column.spread:
        codes, names = column.levels(gaps=True)
        whole = column.role == "label" and column.numeric and len(names) > LEVELS
        note = f"classes; learned as a number by --as {column.name}=number"
        return Marks(codes, names, (note,) if whole and not column.asked else ())
    if column.infinite:
        raise DataError(f"{who} must be finite, and it holds infinite numbers; remove them.")
    numbers = column.numbers()
    if not binned and column.role == "label":
        return Marks(torch.from_numpy(numbers.astype(np.float32)), (), ("learned as a number",))
    codes, names = cut(numbers, bins.get(column.name), who)
    declared = isinstance(bins.get(column.name), Sequence)
    edges = "at the declared edges" if declared else "at quantiles of all rows, rounded"
    return Marks(codes, names, (f"a number, cut into ranges {edges} (--bins)",), ranged=True)


def _mark(
    cells: Sequence[Cells], keep: Collection[str], bins: Bins
) -> tuple[dict[str, Marks], Tensor, list[str]]:
    """The codes of label, secrets and people; the rows that have them all; and what stands against it."""
    marks: dict[str, Marks] = {}
    reasons: list[str] = []
    present = torch.ones(cells[0].rows, dtype=torch.bool)
    for column in sorted(cells, key=lambda one: one.role == "secret"):  # what rows need, first
        try:
            mark = _look(column, bins)
        except DataError as error:
            reasons.append(str(error))
            continue
        empty = mark.gaps
        if column.role != "secret" and bool(empty.any()):
            note = f"{say_few(int((empty & present).sum()), 'records')} without one were left out"
            mark = replace(mark, notes=(*mark.notes, note))
            present &= ~empty
        coded = column.role in ("label", "secret") and mark.names and not mark.ranged
        if coded and column.name not in keep and "*" not in keep:
            codes, names, note = _merge_rare(mark.codes, mark.names, present)
            mark = Marks(codes, names, (*mark.notes, *([note] if note else [])))
            present &= codes >= 0
        marks[column.name] = mark
    rows = present.nonzero()[:, 0]
    for name, mark in marks.items():
        marks[name] = _compress(mark, rows)
        values = len(marks[name].names) or len(mark.codes[rows].unique())
        if values < 2:
            reasons.append(
                f"column {name!r} must have at least 2 values among the rows that can be used, and it has "
                f"{values}; choose another column, or keep rare values by --keep."
            )
    return marks, rows, reasons


def _merge_rare(
    codes: Tensor, names: tuple[str, ...], present: Tensor
) -> tuple[Tensor, tuple[str, ...], str]:
    """Values of few records become one, "other", where together they are enough; else their records are left
    out (code -1). Nothing is rare where that would leave a single value, or where much is."""
    counts = torch.bincount(codes[present], minlength=len(names))
    rare = (counts > 0) & (counts < RARE)
    total = int(counts[rare].sum())
    if not total or total > RARE_SHARE * int(counts.sum()) or int((counts >= RARE).sum()) < 2:
        return codes, names, ""
    how_many = "1 rare value" if int(rare.sum()) == 1 else f"{int(rare.sum())} rare values"
    if total < RARE or int(rare.sum()) < 2:
        table = torch.where(rare, -1, torch.arange(len(names)))
        return table[codes], names, f"{say_few(total, 'records')} of {how_many} were left out"
    kept = sorted({*(name for name, few in zip(names, rare.tolist(), strict=True) if not few), OTHER})
    named = [OTHER if few else name for name, few in zip(names, rare.tolist(), strict=True)]
    table = torch.tensor([kept.index(name) for name in named])
    return table[codes], tuple(kept), f"{how_many} became {OTHER!r}"


def _compress(mark: Marks, rows: Tensor) -> Marks:
    """Without the names that no row has any more."""
    if not mark.names:
        return mark
    there = torch.zeros(len(mark.names), dtype=torch.bool)
    there[mark.codes[rows]] = True
    if there.all():
        return mark
    places = there.cumsum(0) - 1
    names = tuple(name for name, kept in zip(mark.names, there.tolist(), strict=True) if kept)
    return replace(mark, codes=places[mark.codes.clamp(min=0)], names=names)


def _encoded(
    cells: Sequence[Cells],
    marks: Mapping[str, Marks],
    kinds: Mapping[str, tuple[str, str]],
    rows: Tensor,
    *,
    onehot: bool,
    frequent: int,
) -> tuple[Tensor, dict[str, Column], dict[str, str]]:
    """The inputs, the place of every column in them, and what was done about gaps."""
    blocks: list[tuple[Array, Column]] = []
    said: dict[str, str] = {}
    words: tuple[str, ...]
    start, chosen = 0, rows.numpy()
    for column in cells:
        coded = marks.get(column.name)
        kind = kinds[column.name][0] if coded is None else "number" if coded.ranged else "category"
        if kind in ("number", "date"):
            codes, words = column.numbers(column.form if kind == "date" else "")[chosen], ()
        elif coded is not None:
            codes, words = coded.codes.numpy()[chosen], coded.names
        else:
            tensor, words = column.categories()
            codes = tensor.numpy()[chosen]
        gaps = int(np.isnan(codes).sum()) if not words else 0
        if EMPTY in words and coded is None:
            empty = int((codes == words.index(EMPTY)).sum())
            said[column.name] = f"{say_few(empty, 'empty cells')} as a value of their own"
        if gaps:
            said[column.name] = f"{say_few(gaps, 'gaps')}: the training median, and an input that marks them"
        dummies, folded = onehot and bool(words), frequent if kind == CODES else 0
        stop = start + (len(words) if dummies and not folded else 1 + bool(gaps))
        place = Column(column.name, start, stop, values=words, standardised=not dummies, frequent=folded)
        place = replace(place, form=column.form) if kind == "date" else place
        blocks.append((codes, replace(place, fill=UNLEARNED) if gaps else place))
        start = stop
    x = np.zeros((len(rows), start), dtype=np.float32)
    for codes, place in blocks:
        if place.standardised or place.frequent:
            x[:, place.start] = codes
        else:
            x[np.arange(len(x)), place.start + codes] = 1
        if place.fill is not None:
            x[:, place.stop - 1] = np.isnan(codes)
    return torch.from_numpy(x), {place.name: place for _, place in blocks}, said
