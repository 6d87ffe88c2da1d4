"""Tables of text: csv in any dress, its letters and marks told by what is in it."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, cast

import pandas as pd

from leakscope.core.errors import DataError

CHUNK = 1_000_000  # cells read at a time
MOST_COLUMNS = 10_000
LONGEST = 1 << 24  # bytes of a line: a longer one is no row, and would be held in memory whole
HEAD = 1 << 18  # bytes of the file from which its number of rows, its letters and its marks are told
SNIFFED = 20  # lines by which the mark between columns is told
MARKS = (",", ";", "\t", "|")  # between columns; the first wins a tie
SPOKEN = {"\t": "tabs", ";": "';'", "|": "'|'"}
LETTERS = {
    "cp1252": "Latin-1 (Windows-1252)",
    "utf-16": "UTF-16",
    "utf-16-le": "UTF-16",
    "utf-16-be": "UTF-16",
}
_GZIP = b"\x1f\x8b"
_NO_LETTER = re.compile(rb"[\x00-\x08\x0e-\x19\x1b-\x1f\x81\x8d\x8f\x90\x9d]")  # in no Latin-1 text


@dataclass(frozen=True)
class TextTable:
    """A csv, plain or packed by gzip."""

    path: Path

    @property
    def name(self) -> str:
        return re.sub(r"(\.(csv|tsv|txt))?(\.gz)?$", "", self.path.name)

    @property
    def where(self) -> str:
        return str(self.path)

    @cached_property
    def letters(self) -> str:
        """The encoding: UTF-8 if the whole file is, else by its first bytes UTF-16, else Windows' Latin-1."""
        try:
            with _opened(self.path) as file:
                return _letters(file, self.path)
        except (gzip.BadGzipFile, EOFError, zlib.error):
            return "utf-8-sig"  # the reader meets the same error and says what it is
        except OSError as error:
            raise unreadable(self.path, error) from error

    @cached_property
    def mark(self) -> str:
        """The mark that cuts the first lines into most columns, all into as many."""
        with io.BufferedReader(Lines(self.path, self.letters)) as file:
            try:
                head = file.read(HEAD).decode("utf-8-sig", "replace")
            except (OSError, EOFError, zlib.error):
                return MARKS[0]  # the reader meets the same error and says what it is
        best, most = MARKS[0], (False, 1)
        for mark in MARKS:
            rows = csv.reader(io.StringIO(head, newline=""), delimiter=mark, skipinitialspace=True)
            try:
                widths = [len(row) for row in islice(rows, SNIFFED) if row]
            except csv.Error:
                continue
            widths = widths[:-1] if 1 < len(widths) < SNIFFED and len(head) >= HEAD else widths
            fit = (len(set(widths)) == 1, widths[0] if widths else 0)
            if fit[1] > 1 and fit > most:
                best, most = mark, fit
        return best

    @property
    def manner(self) -> str:
        letters = [f"in {LETTERS[self.letters]}"] if self.letters in LETTERS else []
        marks = [f"separated by {SPOKEN[self.mark]}"] if self.mark in SPOKEN else []
        return ", ".join(["text", *letters, *marks]) if letters or marks else ""

    @property
    def commas(self) -> bool:
        return self.mark != ","

    @property
    def expected(self) -> float:
        """If it goes on like its first bytes."""
        with self.path.open("rb") as file:
            head = file.read(HEAD)
        try:
            text = zlib.decompressobj(wbits=31).decompress(head, 64 * HEAD) if _packed(self.path) else head
        except zlib.error:
            return 0.0  # the reader meets the same error and says where
        return text.count(b"\n") * self.path.stat().st_size / max(len(head), 1)

    @cached_property
    def header(self) -> list[str]:
        with io.BufferedReader(Lines(self.path, self.letters)) as file:
            try:
                columns = file.readline(LONGEST).count(self.mark.encode()) + 1
            except (OSError, EOFError, zlib.error):
                columns = 0  # the reader meets the same error and says what it is
        if columns > MOST_COLUMNS:
            raise DataError(
                f"{self.path} must have at most {MOST_COLUMNS:,} columns, and its first line has "
                f"{columns:,}; leave some out, or write the numbers as an npz file."
            )
        for piece in self._parsed(header=None, nrows=1):
            return [str(name).strip() for name in piece.iloc[0]]
        return []

    def pieces(self) -> Iterator[pd.DataFrame]:
        """The rows, refusing those that are longer or shorter than the header."""
        short, width = False, len(self.header)
        for piece in self._parsed(header=0, names=range(width), chunksize=max(CHUNK // max(width, 1), 100)):
            if not isinstance(piece.index, pd.RangeIndex):  # pandas took the surplus cells for an index
                raise DataError(
                    f"{self.path} must have {width} cells in every row, and the first row has more; "
                    f"correct the row or quote the commas in it."
                )
            short |= bool((piece[width - 1] == "").any())
            yield piece
        if short:
            self._refuse_short_rows(width)

    def _refuse_short_rows(self, width: int) -> None:
        """pandas fills short rows up with empty cells; a file that was cut off ends in one."""
        held = io.BufferedReader(Lines(self.path, self.letters), HEAD)
        with io.TextIOWrapper(held, encoding="utf-8-sig", newline="") as file:
            try:
                rows = csv.reader(file, delimiter=self.mark, skipinitialspace=True)
                for number, row in enumerate(rows, start=1):
                    if len(row) < width and any(row):
                        raise DataError(
                            f"{self.path} must have {width} cells in every row, and row {number} has "
                            f"{len(row)}; correct the row, or fetch the file again if it was cut off."
                        )
            except csv.Error as error:
                raise DataError(
                    f"{self.path} is not a CSV that can be read ({error}); correct that row."
                ) from error

    def _parsed(
        self,
        *,
        header: int | None,
        names: range | None = None,
        nrows: int | None = None,
        chunksize: int = 1,
    ) -> Iterator[pd.DataFrame]:
        try:
            with (
                io.BufferedReader(Lines(self.path, self.letters), HEAD) as file,
                pd.read_csv(
                    cast(Any, file),
                    sep=self.mark,
                    header=header,
                    names=cast(Any, names),
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
            raise DataError(
                f"{self.path} must be a CSV with a header, and it is empty; write it again."
            ) from error
        except pd.errors.ParserError as error:
            reason = " ".join(str(error).split()).rpartition("C error: ")[2]
            raise DataError(
                f"{self.path} must have the same number of cells in every row ({reason}); correct the row, "
                f"or quote the commas in it."
            ) from error
        except UnicodeDecodeError as error:
            raise _no_text(self.path) from error
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise DataError(
                f"{self.path} is not a whole gzip file ({error}); fetch or compress it again."
            ) from error
        except OSError as error:
            raise unreadable(self.path, error) from error


class Lines(io.RawIOBase):
    """The bytes of a text in UTF-8, refused at a line of more than `LONGEST`, however small it is when
    compressed."""

    def __init__(self, path: Path, letters: str) -> None:
        super().__init__()
        self.path, self.length = path, 0  # of the line so far
        self.file = _opened(path)
        if letters in LETTERS:
            self.file = cast(BinaryIO, Recoded(self.file, letters))

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


class Recoded:
    """Bytes of other letters as bytes of UTF-8."""

    def __init__(self, file: BinaryIO, letters: str) -> None:
        self.file, self.rest = file, b""
        self.text = io.TextIOWrapper(cast(Any, io.BufferedReader(cast(Any, file))), letters, newline="")

    def read(self, size: int) -> bytes:
        content = self.rest or self.text.read(max(size, 1)).encode()
        self.rest = content[size:]
        return content[:size]

    def close(self) -> None:
        self.text.close()


def _packed(path: Path) -> bool:
    with path.open("rb") as file:
        return path.suffix == ".gz" or file.read(2) == _GZIP


def _opened(path: Path) -> BinaryIO:
    return cast(BinaryIO, (gzip.GzipFile if _packed(path) else io.FileIO)(path, "rb"))


def _letters(file: BinaryIO, path: Path) -> str:
    head = file.read(HEAD)
    if head[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return "utf-16"
    half = len(head) // 2
    if half > 1 and b"\x00" in head:  # UTF-16 without its mark: every other byte of plain words is 0
        odd, even = head[1 : 2 * half : 2].count(0), head[: 2 * half : 2].count(0)
        if max(odd, even) > 0.8 * half and min(odd, even) < 0.1 * half:
            return "utf-16-le" if odd > even else "utf-16-be"
    decoder, latin = codecs.getincrementaldecoder("utf-8-sig")(), False
    while head:
        following = file.read(HEAD)
        if not latin:
            try:
                decoder.decode(head, not following)
            except UnicodeDecodeError:
                latin = True
        if latin and _NO_LETTER.search(head):
            raise _no_text(path)
        head = following
    return "cp1252" if latin else "utf-8-sig"


def _no_text(path: Path) -> DataError:
    return DataError(
        f"{path} must be text in UTF-8, UTF-16 or Latin-1, and it is none of them; save it as a UTF-8 CSV."
    )


def unreadable(path: Path, error: OSError) -> DataError:
    return DataError(f"{path} cannot be read ({error.strerror}); check its permissions.")
