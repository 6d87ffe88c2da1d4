"""Records released by a saved encoder: read piece by piece, counted, and written whole or not at all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from leakscope.audits.asked import source
from leakscope.audits.guards.writing import open_output
from leakscope.core.errors import ArgumentError, DataError
from leakscope.data import tabled
from leakscope.data.reading import ENDINGS
from leakscope.data.tabular import Rows, read_as
from leakscope.guards.encoder import BLOCK, Encoder, name_people
from leakscope.guards.keys import Key
from leakscope.guards.ledger import Beyond, LedgerEntry, ReleaseLedger
from leakscope.guards.saved import load_encoder


@dataclass(frozen=True)
class Released:
    """What was written: so many representations, of which ``new`` had not been released before and
    ``beyond`` are more than the ledger's number of a person, if they were ``counted``; and the cells of each
    column whose category the encoder does not know."""

    count: int
    new: int = 0
    beyond: int = 0
    unseen: dict[str, int] = field(default_factory=dict)
    counted: bool = True


def encode(
    data: str | Path,
    encoder: str | Path,
    output: str | Path,
    *,
    key: str | Path | None = None,
    person: str | None = None,
    label: str | None = None,
    secret: str | None = None,
    labels: bool = False,
    append: bool = False,
    ledger: str | Path | None = None,
    most: int = 1,
    beyond: Beyond = "refuse",
) -> Released:
    """Write the representations of records by a saved encoder to a csv, Parquet or npz file.

    ``key`` is the file of a key, ``person`` the column of people's ids, which are written too; ``labels``
    writes the ``label``. ``append`` adds to a file that is there. Releases are counted in a ``ledger``, by
    default beside the key: beyond ``most`` different ones of a person they are refused, or told of.
    """
    saved, held = load_encoder(encoder), None if key is None else Key.read(key)
    if held is None and not saved.perturbation.silent:
        raise ArgumentError(
            "this encoder adds noise and needs the file of a key (--key); make one by: leakscope key new "
            "FILE."
        )
    if held is None and ledger is not None:
        raise ArgumentError("a ledger needs the file of a key (--key), under which it knows people; give it.")
    if labels and label is None and Path(data).suffix.lower() in ENDINGS:
        raise ArgumentError(f"--labels needs the --label of {data}; say which column it is.")
    kept = [name for name in (person, label if labels else None) if name is not None]
    book: AbstractContextManager[LedgerEntry | None] = nullcontext()
    if held is not None:
        book = ReleaseLedger(Path(ledger or f"{key}.ledger"), most, beyond).open(
            held, named=person is not None
        )
    count, unseen = 0, Counter[str]()
    with open_output(Path(output), append=append) as out, book as entry:
        for rows in _read(str(data), saved, kept, label=label, secret=secret, labels=labels):
            for start in range(0, len(rows.x), BLOCK):
                x = rows.x[start : start + BLOCK]
                beside = {name: text[start : start + BLOCK] for name, text in rows.beside.items()}
                people = None if person is None else beside[person]
                named = None if people is None else name_people(people, count + start + 1)
                r = saved(x, key=held, people=people)
                if entry is not None:
                    entry.add(saved.fingerprint, named or saved.name_records(x), r)
                out.write(beside, r.flatten(1).numpy())
            count += len(rows.x)
            unseen.update(rows.unseen)
    new, more = (entry.new, entry.beyond) if entry is not None else (0, 0)
    return Released(count, new, more, dict(unseen), counted=entry is not None)


def _read(
    data: str, encoder: Encoder, kept: Sequence[str], *, label: str | None, secret: str | None, labels: bool
) -> Iterator[Rows]:
    """Records as the encoder takes them. Of a table no more than its columns and the ``kept`` are read."""
    preparation = encoder.preparation
    if preparation is None:
        raise DataError(
            "the encoder was saved without how its records are prepared, so that no table can be given as it "
            "was trained on; save it by leakscope guard, or give it tensors from Python."
        )
    if preparation.columns and Path(data).suffix.lower() in ENDINGS:
        yield from read_as(data, preparation.columns, kept)
        return
    records = tabled(source(data, label=label, secrets=[secret] if secret else [], needed=False))
    x = preparation.arrange(records)
    shape = tuple(encoder.about["shape"])
    if tuple(x.shape[1:]) != shape:
        raise DataError(
            f"{data} has records of shape {tuple(x.shape[1:])}, and the encoder takes {shape}; give records "
            f"as it was trained on ({encoder.about.get('data')})."
        )
    beside: dict[str, Any] = {}
    for name in kept:
        if name == label or name == records.label:
            continue
        names = np.asarray(records.value_names(name), dtype=object)
        beside[name] = names[records.secret(name).numpy()]
    if labels:
        beside[label or records.label] = records.y.numpy()
    yield Rows(x, beside, {})
