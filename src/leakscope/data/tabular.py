"""A table of your own: any file of rows and columns, or a DataFrame, or a refusal with all its reasons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from leakscope.core.columns import OTHER, Column, Fate, fill_category
from leakscope.core.dataset import Dataset
from leakscope.core.errors import DataError, refuse_all
from leakscope.data.cells import Cells
from leakscope.data.fates import KINDS, LEFT_OUT
from leakscope.data.files import Array, absent, fits, listed
from leakscope.data.ranges import Bins, stray_bins
from leakscope.data.reading import TableSource, name_columns, open_table
from leakscope.data.table import FREQUENT, dataset

if TYPE_CHECKING:
    Table = str | Path | pd.DataFrame
NAMED = 20  # rows that a refusal names
MANY = 20  # rows of which one category at least is known, or they are of another table
MARKED = ("number", "category")  # what a label or a secret can be read as


def from_csv(
    path: Table,
    *,
    label: str,
    secrets: str | Sequence[str],
    encoding: str = "onehot",
    drop: str | Sequence[str] = (),
    keep: str | Sequence[str] = (),
    kinds: Mapping[str, str] | None = None,
    bins: Bins | None = None,
    user: str | None = None,
    person: str | None = None,
    site: str | None = None,
    frequent: int = FREQUENT,
    memory: float | None = None,
) -> Dataset:
    """A table with a header: csv of any kind, Parquet, Feather, Excel, or a DataFrame.

    ``label`` is the task, ``secrets`` what must not be inferred. What becomes of other columns is decided by
    rules (`leakscope.data.fates`) and told by ``Dataset.fates``: numbers and dates are numbers, words are
    categories, identifiers and free text are left out. ``drop`` leaves out more, ``keep`` less ("*": nothing
    that can be an input), and ``kinds`` says of a column what it is. A label of many numbers is one to come
    near to, and a secret of many is asked in quantile ranges: ``bins`` says of the label or a secret how many
    ranges its numbers are cut into, or their edges. Medians for missing numbers and the
    ``frequent`` codes of a column are learned from training records, by ``Dataset.split``, which scales too.
    Secrets stay inside ``x`` (take them out with ``Dataset.without``); the columns of the ``user``, the
    ``person`` and the ``site`` are private only. ``encoding="label"`` gives one number per column in
    place of dummies. ``memory`` is the limit in gigabytes, by default what the machine has free.
    """
    table = open_table(path)
    secrets, drop, keep, kinds = listed(secrets), listed(drop), listed(keep), dict(kinds or {})
    names = name_columns(table.header)
    unnamed = [name for name, written in zip(names, table.header, strict=True) if not written]
    drop = listed(name for one in drop for name in (unnamed if one == "" and unnamed else [one]))
    people = {"user": user, "person": None if person == user else person, "site": site}
    roles = roles_of(
        table.header,
        table.where,
        label=label,
        secrets=secrets,
        drop=drop,
        keep=keep,
        kinds=kinds,
        bins=bins,
        **people,
    )
    cells = _read(table, names, roles, drop=drop, kinds=kinds, memory=memory)
    private = (*secrets, *(name for name in people.values() if name is not None))
    found = dataset(
        cells,
        table.name,
        label=label,
        secrets=private,
        encoding=encoding,
        keep=keep,
        frequent=frequent,
        bins=bins,
        where=table.where,
    )
    told = {fate.column: fate for fate in found.fates}
    told |= {name: Fate(name, LEFT_OUT, "dropped as asked") for name in drop}
    manner = [Fate("(the table)", "read", table.manner)] if table.manner else []
    return replace(found, fates=(*manner, *(told[name] for name in names)))


def _read(
    table: TableSource,
    names: Sequence[str],
    roles: Mapping[str, str],
    *,
    drop: Sequence[str],
    kinds: Mapping[str, str],
    memory: float | None,
) -> list[Cells]:
    """Every column's cells. One that turned out late to hold codes among its numbers is read again."""
    places = {
        i: Cells(name, roles.get(name, "column"), table.commas, kinds.get(name, ""))
        for i, name in enumerate(names)
        if name not in drop
    }
    expected = table.expected
    _fill(table, places, expected, memory)
    if not any(cells.rows for cells in places.values()):
        raise DataError(
            f"{table.where} must have rows below its header, and it has none; check how it was written."
        )
    again = {
        i: Cells(cells.name, cells.role, table.commas, "category")
        for i, cells in places.items()
        if cells.lost
    }
    if again:
        _fill(table, again, expected, memory)
        for cells in again.values():
            cells.asked = ""
    return list((places | again).values())


def _fill(table: TableSource, places: Mapping[int, Cells], expected: float, memory: float | None) -> None:
    rows = 0
    for piece in table.pieces():
        rows += len(piece)
        for i, cells in places.items():
            cells.add(piece[i].to_numpy(dtype=object))
        width = sum(cells.width for cells in places.values() if cells.role in ("column", "secret"))
        fits(4.0 * max(rows, expected) * width, Path(table.where), memory=memory)


def roles_of(
    header: Sequence[str],
    where: object,
    *,
    label: str,
    secrets: tuple[str, ...],
    drop: tuple[str, ...] = (),
    keep: tuple[str, ...] = (),
    kinds: Mapping[str, str] | None = None,
    bins: Bins | None = None,
    user: str | None = None,
    person: str | None = None,
    site: str | None = None,
) -> dict[str, str]:
    """The role of each column that has one: every name is a column, and no column has two."""
    names, kinds, bins = name_columns(header), kinds or {}, bins or {}
    given = {"--user": user, "--person": person, "--site": site}
    people = {option: (name,) if name is not None else () for option, name in given.items()}
    asked = {"--label": (label,), "--secret": secrets, "--drop": drop, **people}
    every = dict.fromkeys(name for some in (*asked.values(), keep, kinds, bins) for name in some)
    missing = [name for name in every if name not in (*names, "*")]
    reasons = [str(absent(missing, names, where=str(where)))] if missing else []
    reasons += [
        f"column {name!r} of {where} must be one column, and several have the name; rename them."
        for name in every
        if list(header).count(name) > 1 and any(name in asked[role] for role in asked if role != "--drop")
    ]
    for (role, some), (other, others) in combinations({**asked, "--keep": keep}.items(), 2):
        if {role, other} == {"--secret", "--keep"} or {role, other} == {"--label", "--keep"}:
            continue  # their rare values are kept
        reasons += [
            f"column {name!r} must have one role, and it is named in both {role} and {other}; choose one."
            for name in some
            if name in others
        ]
    for name, kind in kinds.items():
        if kind not in KINDS:
            reasons.append(f"--as {name} must be one of {', '.join(KINDS)}, got {kind!r}.")
        elif name in (*drop, *given.values()):
            reasons.append(f"--as {name}={kind} is for columns without another role; leave it out.")
        elif name in (label, *secrets) and kind not in MARKED:
            reasons.append(f"--as {name} must be {' or '.join(MARKED)} as a label or a secret, got {kind!r}.")
    reasons += stray_bins({name: bins[name] for name in bins if name in names}, (label, *secrets))
    refuse_all(reasons, str(where))
    marked = {name: role.removeprefix("--") for role in people for name in people[role]}
    return {label: "label", **dict.fromkeys(secrets, "secret"), **marked}


@dataclass(frozen=True, eq=False)
class Rows:
    """Some rows of a table: ``x``, the text of columns ``beside`` them, and how many cells of a column hold a
    category that is not known."""

    x: Tensor
    beside: Mapping[str, Array]
    unseen: Mapping[str, int]


def rows_as(source: Table, columns: Sequence[Column]) -> Tensor:
    """The rows of a table as x with these ``columns``; see `read_as`."""
    return torch.cat([rows.x for rows in read_as(source, columns)])


def read_as(source: Table, columns: Sequence[Column], beside: Sequence[str] = ()) -> Iterator[Rows]:
    """The rows of a table piece by piece, as x with these ``columns``, which are known from other rows: an
    encoder's, say; and the columns ``beside`` them as they are written.

    Other columns are not looked at. A missing number takes the median where the columns have one. An unknown
    category is "other": of a column that has no such value, its dummies are all 0. Rows that cannot be given
    are refused after the last, all at once, and so is a column in which no category of many rows is known."""
    table = open_table(source)
    names = name_columns(table.header)
    if missing := [name for name in (*(c.name for c in columns), *beside) if name not in names]:
        raise absent(missing, names, where=table.where)
    first, width = 1, max(column.stop for column in columns)
    bad: dict[str, list[int]] = {}
    unseen: Counter[str] = Counter()
    for piece in table.pieces():
        x, own = torch.zeros(len(piece), width), Counter[str]()
        for column in columns:
            text = piece[names.index(column.name)].to_numpy(dtype=object)
            wrong, own[column.name] = _place(x, column, text, commas=table.commas)
            if len(wrong):
                bad.setdefault(column.name, []).extend((wrong + first).tolist())
        first += len(piece)
        unseen += own
        kept = {name: piece[names.index(name)].to_numpy(dtype=object) for name in beside}
        yield Rows(x, kept, +own)
    if first == 1:
        raise DataError(
            f"{table.where} must have rows below its header, and it has none; check how it was written."
        )
    reasons = [_bad_rows(column, bad[column.name]) for column in columns if column.name in bad]
    reasons += [
        f"column {name!r} holds no value that is known in {count:,} rows: these are records of another "
        f"table; give records like those that were trained on."
        for name, count in unseen.items()
        if count == first - 1 >= MANY
    ]
    refuse_all(reasons, table.where)


def _place(x: Tensor, column: Column, text: Array, *, commas: bool) -> tuple[Array, int]:
    """Write one column of some rows: which it cannot be written for, and how many categories are unknown."""
    cells = Cells(column.name, commas=commas, asked="category" if column.values else "number")
    cells.add(text)
    if column.values:
        codes, names = cells.categories()
        place_of = {value: i for i, value in enumerate(column.values)}
        places = torch.tensor([place_of.get(name, -1) for name in names])[codes]
        unknown = places < 0
        if OTHER in place_of:
            places = torch.where(unknown, place_of[OTHER], places)
        fill_category(x, column, places)
        wrong = (places < 0) & (not column.dummies)
        return wrong.nonzero()[:, 0].numpy(), int(unknown.sum())
    if column.form and not cells.dated(column.form):
        return np.arange(len(text)), 0
    numbers = torch.from_numpy(cells.numbers(column.form)).float()
    missing = numbers.isnan()
    if column.fill is not None:
        x[:, column.stop - 1] = missing.float()
        numbers, missing = numbers.nan_to_num(nan=column.fill), torch.zeros_like(missing)
    x[:, column.start] = numbers
    return missing.nonzero()[:, 0].numpy(), 0


def _bad_rows(column: Column, rows: Sequence[int]) -> str:
    some = ", ".join(map(str, rows[:NAMED])) + (
        f" and {len(rows) - NAMED:,} more" if len(rows) > NAMED else ""
    )
    rule = "one of its known values" if column.values else "a number"
    rule = "dates as they were written before" if column.form else rule
    return (
        f"column {column.name!r} must hold {rule} in every row, and it does not in row {some}; correct these "
        f"rows, or leave them out."
    )


def text_table(path: Path, what: str, **options: Any) -> pd.DataFrame:
    """A published table as pandas reads it, or the refusal of a file that is not ``what`` it should be."""
    try:
        table: pd.DataFrame = pd.read_csv(path, **options)
    except (OSError, ValueError) as error:  # of pandas' own all are ValueErrors
        reason = " ".join(str(error).split())
        raise DataError(f"{path} is not {what} ({reason}); fetch it again.") from error
    return table
