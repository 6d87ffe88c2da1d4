"""A table of your own: any CSV, read in pieces, or refused in one sentence."""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast

import pandas as pd
import torch
from torch import Tensor

from leakscope.core.dataset import Column, Dataset
from leakscope.core.errors import DataError
from leakscope.data.files import absent, as_file, fits, listed
from leakscope.data.table import Cells, dataset

CHUNK = 1_000_000  # cells read at a time
MOST_COLUMNS = 10_000
LONGEST = 1 << 24  # bytes of a line: a longer one is no row, and would be held in memory whole
HEAD = 1 << 18  # bytes of the file from which its number of rows is estimated
_GZIP = b"\x1f\x8b"


def from_csv(
    path: str | Path,
    *,
    label: str,
    secrets: str | Sequence[str],
    encoding: str = "onehot",
    drop: str | Sequence[str] = (),
    user: str | None = None,
    memory: float | None = None,
) -> Dataset:
    """A CSV (or .csv.gz) with a header: ``label`` is the task, ``secrets`` what must not be inferred.

    Numbers stay numbers and everything else becomes a category, empty cells being the category
    "?". Secrets stay inside ``x`` (take them out with ``Dataset.without``); the ``user`` column is
    private only. ``encoding="label"`` gives one number per column in place of dummies. Nothing is
    scaled here: ``Dataset.split`` does that, by the training records. ``memory`` is the limit in
    gigabytes, by default what the machine has free.
    """
    path = as_file(path)
    secrets, drop = listed(secrets), listed(drop)
    header = header_of(path)
    roles = roles_of(header, path, label=label, secrets=secrets, drop=drop, user=user)
    columns = {name: Cells(name, roles.get(name, "column")) for name in header if name not in drop}
    rows = 0
    expected = _expected_rows(path)
    for piece in pieces(path, header):
        rows += len(piece)
        for name, cells in columns.items():
            cells.add(piece[name].to_numpy(dtype=object))
        width = sum(cells.width for name, cells in columns.items() if name not in (label, user))
        fits(4.0 * max(rows, expected) * width, path, memory=memory)
    if not rows:
        raise DataError(f"{path} must have rows below its header, and it has none; check how it was written.")
    return dataset(
        list(columns.values()),
        path.name.removesuffix(".gz").removesuffix(".csv"),
        label=label,
        secrets=(*secrets, *([user] if user is not None else [])),
        encoding=encoding,
    )


def rows_as(path: str | Path, columns: Sequence[Column]) -> Tensor:
    """The rows of a CSV as x with these ``columns``, which are known from other rows: an encoder's, say.
    Other columns are not looked at, and a value that is not among a column's categories is refused."""
    path = as_file(path)
    header = header_of(path)
    for column in columns:
        if column.name not in header:
            raise absent(column.name, header, where=str(path), kind="column")
    blocks = [_filled(piece, columns) for piece in pieces(path, header)]
    if not blocks:
        raise DataError(f"{path} must have rows below its header, and it has none; check how it was written.")
    return torch.cat(blocks)


def _filled(piece: pd.DataFrame, columns: Sequence[Column]) -> Tensor:
    x = torch.zeros(len(piece), max(column.stop for column in columns))
    for column in columns:
        cells = Cells(column.name)
        cells.add(piece[column.name].to_numpy(dtype=object))
        if not column.values:
            if not cells.numeric:
                raise DataError(f"column {column.name!r} must hold numbers, as where it is known from.")
            x[:, column.start] = torch.from_numpy(cells.numbers())
            continue
        codes, names = cells.categories()
        for name in names:
            if name not in column.values:
                known = ", ".join(column.values[:8])
                raise DataError(
                    f"column {column.name!r} has the value {name!r}, which is not among the known ones "
                    f"({known}); correct it, or leave such rows out."
                )
        places = torch.tensor([column.values.index(name) for name in names])[codes]
        if column.stop - column.start == 1:
            x[:, column.start] = places.float()
        else:
            x[torch.arange(len(x)), column.start + places] = 1
    return x


def text_table(path: Path, what: str, **options: Any) -> pd.DataFrame:
    """A published table as pandas reads it, or the refusal of a file that is not ``what`` it should be."""
    try:
        table: pd.DataFrame = pd.read_csv(path, **options)
    except (OSError, ValueError) as error:  # of pandas' own all are ValueErrors
        reason = " ".join(str(error).split())
        raise DataError(f"{path} is not {what} ({reason}); fetch it again.") from error
    return table


def roles_of(
    header: list[str],
    path: Path,
    *,
    label: str,
    secrets: tuple[str, ...],
    drop: tuple[str, ...] = (),
    user: str | None,
) -> dict[str, str]:
    """The role of each column that has one: every name is a column, and no column has two."""
    twice = sorted(name for name, count in Counter(header).items() if count > 1)
    if twice:
        raise DataError(f"{path} must name each column once, and {twice[0]!r} comes twice; rename one.")
    if "" in header and "" not in drop:
        raise DataError(
            f"{path} must name every column, and column {header.index('') + 1} has no name; name it, or "
            f'list "" in drop (pandas writes such a column unless it is given index=False).'
        )
    for name in (label, *secrets, *drop, *([user] if user is not None else [])):
        if name not in header:
            raise _unseparated(header, path) or absent(name, header, where=str(path))
    users = (user,) if user is not None else ()
    roles = {"label": (label,), "secrets": secrets, "drop": drop, "user": users}
    for (role, names), (other, others) in combinations(roles.items(), 2):
        if both := [name for name in names if name in others]:
            raise DataError(
                f"column {both[0]!r} must have one role, and it is named in both {role} and {other}; "
                f"choose one."
            )
    return {label: "label", **dict.fromkeys(secrets, "secret"), **dict.fromkeys(users, "user")}


def _unseparated(header: list[str], path: Path) -> DataError | None:
    for mark in (";", "\t", "|"):
        if len(header) == 1 and mark in header[0]:
            return DataError(f"{path} must separate its columns by commas, and it uses {mark!r}; rewrite it.")
    return None


def _compression(path: Path) -> Literal["gzip"] | None:
    with path.open("rb") as file:
        return "gzip" if path.suffix == ".gz" or file.read(2) == _GZIP else None


def _expected_rows(path: Path) -> float:
    """How many rows the whole file holds if it goes on like its first bytes."""
    with path.open("rb") as file:
        head = file.read(HEAD)
    try:
        text = zlib.decompressobj(wbits=31).decompress(head, 64 * HEAD) if _compression(path) else head
    except zlib.error:
        return 0.0  # the reader meets the same error and says where
    return text.count(b"\n") * path.stat().st_size / max(len(head), 1)


class Lines(io.RawIOBase):
    """The bytes of a CSV, refused at a line of more than `LONGEST`, however small it is when compressed."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        opened = gzip.GzipFile if _compression(path) else io.FileIO
        self.file = cast(BinaryIO, opened(path, "rb"))
        self.length = 0  # of the line so far

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        content = self.file.read(len(buffer))
        first, last = content.find(b"\n"), content.rfind(b"\n")
        longest = self.length + (first if first >= 0 else len(content))
        if longest > LONGEST:
            raise DataError(
                f"{self.path} must have lines of at most {LONGEST:,} bytes, and one is longer; write each "
                f"record on a line of its own."
            )
        self.length = len(content) - last - 1 if last >= 0 else longest
        buffer[: len(content)] = content
        return len(content)

    def close(self) -> None:
        self.file.close()
        super().close()


def header_of(path: Path) -> list[str]:
    with io.BufferedReader(Lines(path)) as file:
        try:
            columns = file.readline(LONGEST).count(b",") + 1
        except (OSError, EOFError, zlib.error):
            columns = 0  # the reader meets the same error and says what it is
    if columns > MOST_COLUMNS:
        raise DataError(
            f"{path} must have at most {MOST_COLUMNS:,} columns, and its first line has {columns:,}; leave "
            f"some out, or write the numbers as an npz file."
        )
    for piece in _parsed(path, header=None, nrows=1):
        return [str(name) for name in piece.iloc[0]]
    return []


def pieces(path: Path, header: list[str]) -> Iterator[pd.DataFrame]:
    """The rows as text, refusing those that are longer or shorter than the header."""
    short = False
    for piece in _parsed(path, header=0, names=header, chunksize=max(CHUNK // len(header), 100)):
        if not isinstance(piece.index, pd.RangeIndex):  # pandas took the surplus cells for an index
            raise DataError(
                f"{path} must have {len(header)} cells in every row, and the first row has more; "
                f"correct the row or quote the commas in it."
            )
        short |= bool((piece[header[-1]] == "").any())
        yield piece
    if short:
        _refuse_short_rows(path, len(header))


def _refuse_short_rows(path: Path, width: int) -> None:
    """pandas fills short rows up with empty cells; a file that was cut off ends in one."""
    opened = gzip.open if _compression(path) else open
    with opened(path, "rt", encoding="utf-8-sig", newline="") as file:
        try:
            for number, row in enumerate(csv.reader(file, skipinitialspace=True), start=1):
                if len(row) < width and any(row):
                    raise DataError(
                        f"{path} must have {width} cells in every row, and row {number} has {len(row)}; "
                        f"correct the row, or fetch the file again if it was cut off."
                    )
        except csv.Error as error:
            raise DataError(f"{path} is not a CSV that can be read ({error}); correct that row.") from error


def _parsed(
    path: Path,
    *,
    header: int | None,
    names: list[str] | None = None,
    nrows: int | None = None,
    chunksize: int = 1,
) -> Iterator[pd.DataFrame]:
    try:
        with (
            io.BufferedReader(Lines(path), HEAD) as file,
            pd.read_csv(
                cast(Any, file),
                header=header,
                names=names,
                nrows=nrows,
                chunksize=chunksize,
                dtype=object,
                na_filter=False,
                skipinitialspace=True,
                encoding="utf-8-sig",
            ) as reader,
        ):
            yield from reader
    except pd.errors.EmptyDataError as error:
        raise DataError(f"{path} must be a CSV with a header, and it is empty; write it again.") from error
    except pd.errors.ParserError as error:
        reason = " ".join(str(error).split()).rpartition("C error: ")[2]
        raise DataError(
            f"{path} must have the same number of cells in every row ({reason}); correct the row, or quote "
            f"the commas in it."
        ) from error
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path} must be text in UTF-8, and byte {error.start} is not; save it as a UTF-8 CSV."
        ) from error
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path} is not a whole gzip file ({error}); fetch or compress it again.") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}); check its permissions.") from error
