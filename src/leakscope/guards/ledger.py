"""A ledger of releases: what was released of whom by which encoder, and a refusal of more.

One release of a person is what a guard was judged by. A second one, of a changed record or by another
encoder, adds to it. The ledger is a small SQLite file. It holds keyed hashes (HMAC) of people, of encoders
and of releases, and nothing of a record: who does not have the key finds nobody in it.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from torch import Tensor

from leakscope.core.errors import ArgumentError, DataError, at_least, check, one_of
from leakscope.guards.keys import Key

Beyond = Literal["refuse", "warn"]
FORMAT = "1"
WIDTH = 16  # bytes of a hash
WAIT = 60.0  # seconds for another process to finish
TABLES = (
    "CREATE TABLE IF NOT EXISTS about (name TEXT PRIMARY KEY, value TEXT)",
    "CREATE TABLE IF NOT EXISTS releases (person BLOB, encoder BLOB, release BLOB, "
    "PRIMARY KEY (person, encoder, release)) WITHOUT ROWID",
)


@dataclass
class LedgerEntry:
    """What one call adds to a ledger: all of it, or nothing."""

    book: sqlite3.Connection = field(repr=False)
    key: Key
    most: int
    named: bool
    new: int = 0  # releases that had not been made before
    beyond: int = 0  # those of them that are more than ``most`` of their person
    encoder: bytes | None = None  # the keyed hash of the last one

    def add(self, fingerprint: str, people: Sequence[bytes], released: Tensor) -> None:
        """One row of ``released`` (n, ...) for each person. One that was made before is no new release."""
        encoder = self.key.derive("encoder", fingerprint)[:WIDTH]
        self._check_encoder(encoder)
        for person, row in zip(people, released.numpy(), strict=True):
            who = self.key.derive("person", person)[:WIDTH]
            what = self.key.derive("release", fingerprint, person, row.tobytes())[:WIDTH]
            done = self.book.execute("INSERT OR IGNORE INTO releases VALUES (?, ?, ?)", (who, encoder, what))
            if done.rowcount == 1:
                self.new += 1
                query = "SELECT count(*) FROM releases WHERE person = ?"
                (count,) = self.book.execute(query, (who,)).fetchone()
                self.beyond += count > self.most

    def _check_encoder(self, encoder: bytes) -> None:
        """Encoders round records to grids of their own, so that without ids none knows another's people."""
        if self.named or encoder == self.encoder:
            return
        if self.book.execute("SELECT 1 FROM releases WHERE encoder != ? LIMIT 1", (encoder,)).fetchone():
            raise ArgumentError(
                "the ledger knows people by their records as another encoder rounds them, and cannot tell "
                "whom this one releases again; give --person and name another ledger, or use that encoder."
            )
        self.encoder = encoder


@dataclass(frozen=True)
class ReleaseLedger:
    """Count what was released of whom, and refuse, or warn, ``beyond`` so many different releases a person.

    A ledger belongs to one key, since releases under two can be averaged, and to people who are known by
    their ids, or by their records, but not to both. Without ids it belongs to one encoder too.
    """

    path: Path
    most: int = 1
    beyond: Beyond = "refuse"

    def __post_init__(self) -> None:
        check(self, most=at_least(1), beyond=one_of("refuse", "warn"))

    @contextmanager
    def open(self, key: Key, *, named: bool) -> Iterator[LedgerEntry]:
        """An entry that is kept when the block ends, unless it ends by an error or goes beyond. ``named``:
        people are known by ids. A new file stays, empty, where nothing is kept: another process may already
        wait to write to it."""
        try:
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600))
            book = sqlite3.connect(self.path, timeout=WAIT, isolation_level=None)
        except (OSError, sqlite3.Error) as error:
            raise DataError(
                f"the ledger {str(self.path)!r} cannot be opened ({error}); name another."
            ) from None
        try:
            entry = LedgerEntry(book, key, self.most, named)
            book.execute("BEGIN IMMEDIATE")
            self._check(book, key, named=named)
            yield entry
            if entry.beyond and self.beyond == "refuse":
                raise ArgumentError(
                    f"the ledger {str(self.path)!r} allows at most {self.most} different releases of a "
                    f"person, and {entry.beyond:,} would be more, each of which tells more; leave these "
                    f"records out, or allow more (--most)."
                )
            book.execute("COMMIT")
        except sqlite3.Error as error:
            raise DataError(
                f"{str(self.path)!r} is no ledger that can be used ({error}); name another, or wait for who "
                f"uses it."
            ) from None
        finally:
            book.close()  # what was not committed is undone

    def _check(self, book: sqlite3.Connection, key: Key, *, named: bool) -> None:
        for table in TABLES:
            book.execute(table)
        own = {"format": FORMAT, "key": key.derive("ledger").hex(), "people": "ids" if named else "records"}
        known = dict(book.execute("SELECT name, value FROM about").fetchall())
        if not known:
            book.executemany("INSERT INTO about VALUES (?, ?)", own.items())
            return
        if known.get("format") != FORMAT:
            raise DataError(f"the ledger {str(self.path)!r} must be of format {FORMAT}; name another.")
        if known.get("key") != own["key"]:
            raise ArgumentError(
                f"the ledger {str(self.path)!r} belongs to another key, and releases under two keys can be "
                f"averaged; use that key."
            )
        if known.get("people") != own["people"]:
            way = "give --person" if known.get("people") == "ids" else "leave --person out"
            raise ArgumentError(
                f"the ledger {str(self.path)!r} knows people by their {known.get('people')}, and this "
                f"release by their {own['people']}; {way}, or name another ledger."
            )
