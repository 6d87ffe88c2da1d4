"""Texts as numbered words: the IMDB reviews, and any CSV with a column of text.

A word is a run of letters and digits, with what follows an apostrophe inside it, in lower case; HTML's
line breaks, of which the reviews are full, are none. Words are numbered from 2 by how often they occur in
the training texts, 0 is padding and 1 every other word. The column of ``x`` is called "text", and its
``values`` are the words by their numbers.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from leakscope.core.dataset import Column, Dataset
from leakscope.core.errors import DataError, require
from leakscope.data.cells import Cells
from leakscope.data.files import (
    PARTS,
    absent,
    as_file,
    as_folder,
    fits,
    labels,
    listed,
    located,
    marked_by,
    parts_of,
)
from leakscope.data.reading import open_table
from leakscope.data.tabular import roles_of

WORDS, LENGTH = 10_000, 200  # the words that are numbered and the words of a text that are kept
Review = tuple[str, int, int]  # its text, its label and its rating
PADDING, UNKNOWN = "<padding>", "<unknown>"
SENTIMENTS = ("negative", "positive")
LENGTHS = ("short", "long")
RATINGS = ("moderate", "extreme")  # extreme: the best or the worst there is, 10 or 1
_BREAK = re.compile(r"<br\s*/?>", re.IGNORECASE)
_WORD = re.compile(r"[^\W_]+(?:['\u2019][^\W_]+)*")
_NAME = re.compile(r"\d+_(\d+)\.txt")


def tokens(text: str) -> list[str]:
    return [word.replace("\u2019", "'") for word in _WORD.findall(_BREAK.sub(" ", text).lower())]


def imdb(
    *, path: str | Path | None = None, part: str = "all", words: int = WORDS, length: int = LENGTH
) -> Dataset:
    """IMDB film reviews (Maas et al., ACL 2011): is a review positive?

    imdb.json.gz, or ``path`` of the published folder aclImdb with its train/pos/0_9.txt. A review's
    first ``length`` words are kept; the ``words`` most frequent of the training reviews are numbered.
    Private are the full length (long: above the training reviews' median) and the rating (extreme: 1 or
    10). ``part`` is "train" or "test", "all" for one after the other.
    """
    chosen = parts_of(part)
    where = located("imdb", path, "imdb.json.gz")
    wanted = PARTS if part != "train" else ("train",)  # the words are always those of the training reviews
    found = _folder(where, wanted) if where.is_dir() else _json(where, wanted)
    split = {name: [tokens(text) for text, _, _ in reviews] for name, reviews in found.items()}
    train, texts = split["train"], [text for name in chosen for text in split[name]]
    numbers, column = _numbered(texts, by=train, words=words, length=length)
    label, rating = (np.asarray([one[i] for name in chosen for one in found[name]]) for i in (1, 2))
    y = labels(label, SENTIMENTS, where=f"labels of {where}")
    codes = {
        "sentiment": (y, SENTIMENTS),
        "length": (_long(texts, by=train), LENGTHS),
        "rating": (torch.from_numpy(np.isin(rating, (1, 10))).long(), RATINGS),
    }
    return marked_by(numbers, codes, name="imdb", columns=(column,))


def text_csv(
    *,
    path: str | Path | None = None,
    text: str = "text",
    label: str = "label",
    secrets: str | Sequence[str] = (),
    user: str | None = None,
    words: int = WORDS,
    length: int = LENGTH,
) -> Dataset:
    """A CSV (or .csv.gz) with a header and a column of text, such as the CSI corpus (paper 001).

    ``label`` is the task; private are the ``secrets``, the ``user`` and, unless a column has this name,
    the "length" (long: above the median). Other columns are left out. All texts give the vocabulary.
    """
    file = as_file(located("text-csv", path, "text.csv"))
    table = open_table(file)
    names, header = listed(secrets), table.header
    roles = roles_of(header, file, label=label, secrets=names, user=user)
    if text not in header:
        raise absent(text, header, where=str(file))
    require(text not in roles, "text", "a column that is neither label, secret nor user", text)
    cells = {name: Cells(name, role) for name, role in roles.items()}
    split: list[list[str]] = []
    for piece in table.pieces():
        piece.columns = pd.Index(header)
        split += [tokens(one) for one in piece[text]]
        fits(8.0 * len(split) * length, file)
        for name, column in cells.items():
            column.add(piece[name].to_numpy(dtype=object))
    if not split:
        raise DataError(f"{file} must have rows below its header, and it has none; check how it was written.")
    numbers, place = _numbered(split, by=split, words=words, length=length)
    marked = {name: column.levels() for name, column in cells.items()}
    if "length" not in header:
        marked["length"] = _long(split, by=split), LENGTHS
    stem = file.name.removesuffix(".gz").removesuffix(".csv")
    return marked_by(numbers, marked, name=stem, label=label, columns=(place,))


def _numbered(
    texts: Sequence[list[str]], *, by: Iterable[list[str]], words: int, length: int
) -> tuple[Tensor, Column]:
    """The first ``length`` words of every text as numbers, and the words they stand for."""
    require(words >= 1, "words", "at least 1", words)
    require(length >= 1, "length", "at least 1", length)
    counts = Counter(word for text in by for word in text)
    if not counts:
        raise DataError("the texts must hold words of letters or digits, and they hold none; check the file.")
    frequent = sorted(counts, key=lambda word: (-counts[word], word))[:words]
    number = {word: i for i, word in enumerate(frequent, start=2)}
    x = np.zeros((len(texts), length), dtype=np.int64)
    for row, text in zip(x, texts, strict=True):
        start = text[:length]
        row[: len(start)] = [number.get(word, 1) for word in start]
    column = Column("text", 0, length, values=(PADDING, UNKNOWN, *frequent), standardised=False)
    return torch.from_numpy(x), column


def _long(texts: Sequence[list[str]], *, by: Sequence[list[str]]) -> Tensor:
    middle = float(np.median([len(text) for text in by]))
    return torch.tensor([len(text) > middle for text in texts]).long()


def _folder(path: Path, parts: Sequence[str]) -> dict[str, list[Review]]:
    folder = path / "aclImdb" if (path / "aclImdb").is_dir() else path
    as_folder(folder, *(f"{part}/{kind}" for part in parts for kind in ("neg", "pos")))
    found = {}
    for part in parts:
        found[part] = [
            (_read(file), code, int(match[1]))
            for code, kind in enumerate(("neg", "pos"))
            for file in sorted((folder / part / kind).iterdir())
            if (match := _NAME.fullmatch(file.name))
        ]
        if not found[part]:
            raise DataError(
                f"{folder / part} must hold reviews named like pos/0_9.txt, and it holds none; unpack the "
                f"original distribution there."
            )
    return found


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file} is not a text that can be read ({error}); fetch it again.") from error


def _json(path: Path, parts: Sequence[str]) -> dict[str, list[Review]]:
    try:
        with gzip.open(as_file(path), "rt", encoding="utf-8") as file:
            content = json.load(file)
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise DataError(f"{path} is not a JSON file that gzip packed ({error}); write it again.") from error
    return {part: _reviews(content, part, path) for part in parts}


def _reviews(content: Any, part: str, path: Path) -> list[Review]:
    one = content.get(part) if isinstance(content, dict) else None
    kinds = {"text": str, "label": int, "rating": int}
    lists = [_all_of(one.get(name), kind) for name, kind in kinds.items()] if isinstance(one, dict) else [[]]
    if not lists[0] or len({len(some) for some in lists}) > 1:
        raise DataError(
            f"{path} must hold {part!r} with the lists text, label and rating, one of each for every review, "
            f"and it does not; write it again."
        )
    return list(zip(*lists, strict=True))


def _all_of(found: Any, kind: type) -> list[Any]:
    """The list itself if all in it is of one kind, else an empty one."""
    return found if isinstance(found, list) and all(isinstance(item, kind) for item in found) else []
