"""Tables as people keep them, read in pieces of text: csv, Parquet, Feather, Excel, DataFrames."""

from __future__ import annotations

import io
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import pandas as pd

from leakscope.core.errors import DataError, MissingExtra
from leakscope.data import delimited
from leakscope.data.delimited import TextTable, unreadable
from leakscope.data.files import as_file, fits

ENDINGS = (".csv", ".tsv", ".txt", ".gz", ".parquet", ".pq", ".feather", ".arrow", ".xlsx")  # of tables
INFLATED = 6.0  # bytes of memory that a byte of an Excel file's XML takes


class TableSource(Protocol):
    """Rows as text, in pieces, as often as they are asked for."""

    @property
    def name(self) -> str: ...

    @property
    def where(self) -> str:
        """What an error calls it."""
        ...

    @property
    def header(self) -> list[str]:
        """The names of the columns as they are written: one may be empty, or come twice."""
        ...

    @property
    def manner(self) -> str:
        """How it was read, where that is not obvious."""
        ...

    @property
    def commas(self) -> bool:
        """Whether 1,5 may be a number."""
        ...

    @property
    def expected(self) -> float:
        """About how many rows there are."""
        ...

    def pieces(self) -> Iterator[pd.DataFrame]:
        """The rows; columns are numbered from 0."""
        ...


def open_table(source: Any) -> TableSource:
    """The table in a file, by what is in it, or in a DataFrame."""
    if isinstance(source, pd.DataFrame):
        return FrameTable(source)
    path = as_file(source)
    try:
        with path.open("rb") as file:
            start = file.read(6)
    except OSError as error:
        raise unreadable(path, error) from error
    if start[:4] == b"PAR1" or start == b"ARROW1":
        return ArrowTable(path)
    return SheetTable(path) if start[:4] == b"PK\x03\x04" else TextTable(path)


def name_columns(header: Sequence[str]) -> list[str]:
    """A name for each column: one that has none is called by its place, and a second of one name gets its
    number."""
    counts = Counter(name for name in header if name)
    seen: Counter[str] = Counter()
    names: list[str] = []
    for place, written in enumerate(header, start=1):
        name = written or f"column {place}"
        seen[name] += 1
        if seen[name] > 1 or (not written and name in counts):
            name = f"{name} ({place})"
        names.append(name if name not in names else f"{name} ({place})")
    return names


@dataclass(frozen=True, eq=False)
class FrameTable:
    """A DataFrame: each cell as it would be written, nothing where it is missing."""

    frame: pd.DataFrame
    name: str = "table"
    where: str = "the DataFrame"
    manner: str = ""
    commas: bool = False

    @property
    def header(self) -> list[str]:
        return [str(name).strip() for name in self.frame.columns]

    @property
    def expected(self) -> float:
        return len(self.frame)

    def pieces(self) -> Iterator[pd.DataFrame]:
        step = max(delimited.CHUNK // max(self.frame.shape[1], 1), 100)
        for start in range(0, len(self.frame), step):
            part = self.frame.iloc[start : start + step]
            yield pd.DataFrame({i: _written(part.iloc[:, i]) for i in range(part.shape[1])})


@dataclass(frozen=True)
class _Filed:
    """A table that is a file of its own, called by it."""

    path: Path
    commas: bool = False

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def where(self) -> str:
        return str(self.path)


@dataclass(frozen=True)
class ArrowTable(_Filed):
    """A Parquet or a Feather file, one batch of rows after the other."""

    manner: str = ""

    @cached_property
    def _file(self) -> Any:
        try:
            import pyarrow as pa
            import pyarrow.dataset
        except ImportError as error:
            raise MissingExtra(f'{self.path} needs pyarrow; run: pip install "leakscope[parquet]"') from error
        try:
            with self.path.open("rb") as file:
                form = "parquet" if file.read(4) == b"PAR1" else "feather"
            return pyarrow.dataset.dataset(str(self.path), format=form)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise self._broken(error) from error

    def _broken(self, error: BaseException) -> DataError:
        reason = " ".join(str(error).split())[:200]
        return DataError(f"{self.path} cannot be read as a table ({reason}); write it again.")

    @property
    def header(self) -> list[str]:
        return [name.strip() for name in self._file.schema.names if not name.startswith("__index_level_")]

    @cached_property
    def expected(self) -> float:
        return float(self._file.count_rows())

    def pieces(self) -> Iterator[pd.DataFrame]:
        import pyarrow as pa

        kept = [i for i, n in enumerate(self._file.schema.names) if not n.startswith("__index_level_")]
        step = max(delimited.CHUNK // max(len(kept), 1), 100)
        try:
            for batch in self._file.to_batches(batch_size=step):
                if len(batch):
                    columns = (batch.column(i).to_pandas() for i in kept)
                    yield pd.DataFrame({i: _written(column) for i, column in enumerate(columns)})
        except (pa.ArrowException, OSError, ValueError) as error:
            raise self._broken(error) from error


@dataclass(frozen=True)
class SheetTable(_Filed):
    """The first sheet of an Excel file: its first row names the columns."""

    @cached_property
    def _sheet(self) -> Any:
        try:
            import openpyxl
        except ImportError as error:
            raise MissingExtra(f'{self.path} needs openpyxl; run: pip install "leakscope[excel]"') from error
        try:
            with zipfile.ZipFile(self.path) as archive:  # before anything is unpacked
                fits(INFLATED * sum(member.file_size for member in archive.infolist()), self.path)
            held = io.BytesIO(self.path.read_bytes())  # packed as it is; no file stays open
            book = openpyxl.load_workbook(held, read_only=True, data_only=True)
            return book.worksheets[0]
        except (OSError, ValueError, KeyError, IndexError, SyntaxError, zipfile.BadZipFile) as error:
            raise DataError(
                f"{self.path} is not an Excel file that can be read; save it as .xlsx or as a CSV."
            ) from error

    @property
    def manner(self) -> str:
        sheets = len(self._sheet.parent.worksheets)
        return f"the first of {sheets} sheets" if sheets > 1 else ""

    @cached_property
    def header(self) -> list[str]:
        row: Iterable[Any] = next(iter(self._sheet.iter_rows(max_row=1, values_only=True)), ())
        return ["" if name is None else str(name).strip() for name in row]

    @property
    def expected(self) -> float:
        return float(self._sheet.max_row or 0)

    def pieces(self) -> Iterator[pd.DataFrame]:
        width = len(self.header)
        step, held = max(delimited.CHUNK // max(width, 1), 100), []
        for row in self._sheet.iter_rows(min_row=2, max_col=width or None, values_only=True):
            if any(cell is not None for cell in row):
                held.append((*row, *[None] * (width - len(row))))
            if len(held) == step:
                yield self._piece(held)
                held = []
        if held:
            yield self._piece(held)

    def _piece(self, rows: Sequence[Sequence[Any]]) -> pd.DataFrame:
        frame = pd.DataFrame(rows, dtype=object)
        return pd.DataFrame({i: _written(frame[i]) for i in frame.columns})


def _written(column: pd.Series[Any]) -> pd.Series[Any]:
    """The cells as text."""
    if isinstance(column.dtype, pd.CategoricalDtype):
        column = column.astype(object)
    missing = column.isna().to_numpy()
    text = column.astype(str).astype(object).reset_index(drop=True)
    text[missing] = ""
    return text
