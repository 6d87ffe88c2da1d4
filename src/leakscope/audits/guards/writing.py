"""Where representations are written: csv and Parquet a block at a time, npz at once; whole or not at all."""

from __future__ import annotations

import csv
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pandas as pd

from leakscope.core.errors import ArgumentError, DataError, MissingExtra, StoreError
from leakscope.data.files import Array


class Output(Protocol):
    """A file that grows by blocks."""

    def write(self, beside: Mapping[str, Array], r: Array) -> None:
        """Columns beside the representations, and the representations (n, d)."""
        ...

    def close(self) -> None: ...


@contextmanager
def open_output(target: Path, *, append: bool = False) -> Iterator[Output]:
    """A file beside the ``target`` that takes its place when the block ends without an error."""
    if target.suffix.lower() not in _OUTPUTS:
        raise ArgumentError(f"--output must end in {', '.join(_OUTPUTS)}, got {target.name!r}.")
    if target.exists() and not append:
        raise ArgumentError(
            f"--output must not exist yet, got {str(target)!r}; choose another name, or --append to it."
        )
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        out = _OUTPUTS[target.suffix.lower()](temporary, target if target.exists() else None)
        try:
            yield out
        finally:
            out.close()
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(target)
    except OSError as error:
        raise StoreError(
            f"cannot write {str(target)!r}: {error.strerror or error}; free the disk or choose another "
            f"folder."
        ) from None
    finally:
        temporary.unlink(missing_ok=True)


def _frame(beside: Mapping[str, Array], r: Array) -> pd.DataFrame:
    return pd.DataFrame({**beside, **{f"r{i}": r[:, i] for i in range(r.shape[1])}})


def _differ(target: Path, there: list[str], new: list[str]) -> DataError:
    return DataError(
        f"{target} has {len(there)} columns from {there[:1]} to {there[-1:]}, and what is to be appended has "
        f"{len(new)} from {new[:1]} to {new[-1:]}; use the same encoder and options, or another file."
    )


class Csv:
    """A csv file."""

    def __init__(self, path: Path, old: Path | None) -> None:
        self.header: list[str] | None = None
        self.old = old
        if old is not None:
            shutil.copyfile(old, path)
            with old.open(newline="", encoding="utf-8") as text:
                self.header = next(csv.reader(text), [])
        self.file = path.open("a", newline="", encoding="utf-8")

    def write(self, beside: Mapping[str, Array], r: Array) -> None:
        frame = _frame(beside, r)
        names = list(frame.columns)
        if self.header is not None and self.header != names:
            raise _differ(self.old or Path(self.file.name), self.header, names)
        frame.to_csv(self.file, index=False, header=self.header is None, lineterminator="\n")
        self.header = names

    def close(self) -> None:
        self.file.close()


class Parquet:
    """A Parquet file, a row group for each block."""

    def __init__(self, path: Path, old: Path | None) -> None:
        try:
            import pyarrow.parquet
        except ImportError as error:
            raise MissingExtra(f'{path} needs pyarrow; run: pip install "leakscope[parquet]"') from error
        self.arrow: Any = pyarrow
        self.path, self.old = path, old
        self.writer: Any = None

    def write(self, beside: Mapping[str, Array], r: Array) -> None:
        table = self.arrow.Table.from_pandas(_frame(beside, r), preserve_index=False)
        table = table.replace_schema_metadata(None)
        if self.writer is None:
            self.writer = self.arrow.parquet.ParquetWriter(str(self.path), table.schema)
            for batch in self._before(table):
                self.writer.write_batch(batch)
        self.writer.write_table(table)

    def _before(self, table: Any) -> Iterator[Any]:
        if self.old is None:
            return
        try:
            with self.arrow.parquet.ParquetFile(str(self.old)) as file:
                if not file.schema_arrow.equals(table.schema):
                    raise _differ(self.old, file.schema_arrow.names, table.schema.names)
                yield from file.iter_batches()
        except self.arrow.ArrowException as error:
            raise DataError(f"{self.old} cannot be read as Parquet ({error}); choose another file.") from None

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()


class Npz:
    """An npz file: r, and every column beside it. It is held in memory."""

    def __init__(self, path: Path, old: Path | None) -> None:
        if old is not None:
            raise ArgumentError(f"--append must go with a csv or a Parquet file, got {old.name!r}.")
        self.path = path
        self.blocks: list[dict[str, Array]] = []

    def write(self, beside: Mapping[str, Array], r: Array) -> None:
        texts = {name: part.astype(str) if part.dtype == object else part for name, part in beside.items()}
        self.blocks.append(texts | {"r": r})

    def close(self) -> None:
        names = self.blocks[0] if self.blocks else ()
        arrays: Any = {name: np.concatenate([block[name] for block in self.blocks]) for name in names}
        with self.path.open("wb") as file:
            np.savez_compressed(file, **arrays)


_OUTPUTS: Mapping[str, Callable[[Path, Path | None], Output]] = {
    ".csv": Csv,
    ".parquet": Parquet,
    ".pq": Parquet,
    ".npz": Npz,
}
