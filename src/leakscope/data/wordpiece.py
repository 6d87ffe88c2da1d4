"""Texts as the pieces of words that BERT reads (WordPiece), by its own vocabulary.

As BERT's uncased files have it: lower case, accents left out, punctuation and Chinese characters each by
itself, then the longest known piece first. A text is [CLS], its pieces, [SEP], then padding, number 0.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from leakscope.core import files
from leakscope.core.dataset import Column, Dataset
from leakscope.core.errors import DataError, require

START, END, STRANGE, PADDED = "[CLS]", "[SEP]", "[UNK]", "[PAD]"
LONGEST = 100  # letters of a word that is taken apart; longer ones are unknown
CHINESE = ((0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x2FA1F))


@dataclass(frozen=True, eq=False)
class WordPiece:
    """The pieces of words by their numbers."""

    pieces: tuple[str, ...]

    def __post_init__(self) -> None:
        lacking = [one for one in (START, END, STRANGE) if one not in self.pieces]
        first = self.pieces[:1] == (PADDED,)
        require(first and not lacking, "WordPiece.pieces", f"{PADDED} first, and {START}, {END}, {STRANGE}",
                lacking or self.pieces[:1])  # fmt: skip

    @staticmethod
    def read(path: str | Path) -> WordPiece:
        """Of a vocab.txt, a piece on each line."""
        try:
            lines = files.read(Path(path)).decode("utf-8").split("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"{path} is no list of pieces ({error}); give BERT's vocab.txt.") from None
        return WordPiece(tuple(line.rstrip("\r") for line in (lines[:-1] if not lines[-1] else lines)))

    def dataset(
        self, texts: Sequence[str], labels: Tensor, *, length: int, name: str = "texts", whole: bool = False
    ) -> Dataset:
        """Texts of at most ``length`` pieces, [CLS] and [SEP] among them; ``whole``: longer ones are left
        out, not cut."""
        require(length >= 3, "length", "at least 3", length)
        require(len(texts) == len(labels), "labels", f"one for each of {len(texts)} texts", len(labels))
        numbers = {piece: i for i, piece in enumerate(self.pieces)}
        known = [self._numbered(text, numbers, length if not whole else None) for text in texts]
        fitting = [i for i, row in enumerate(known) if len(row) <= length]
        x = torch.zeros(len(fitting), length, dtype=torch.int64)
        for row, i in zip(x, fitting, strict=True):
            row[: len(known[i])] = torch.tensor(known[i])
        column = Column("text", 0, length, values=self.pieces, standardised=False)
        return Dataset(x, labels[fitting], {}, name=name, columns=(column,))

    def _numbered(self, text: str, numbers: dict[str, int], length: int | None) -> list[int]:
        found: list[int] = []
        for word in split_words(text):
            found += self._taken_apart(word, numbers)
            if length is not None and len(found) >= length - 2:
                found = found[: length - 2]
                break
        return [numbers[START], *found, numbers[END]]

    def _taken_apart(self, word: str, numbers: dict[str, int]) -> list[int]:
        found, start = [], 0
        while start < len(word) <= LONGEST:
            prefix = "##" if start else ""
            ends = (end for end in range(len(word), start, -1) if prefix + word[start:end] in numbers)
            end = next(ends, None)
            if end is None:
                return [numbers[STRANGE]]
            found.append(numbers[prefix + word[start:end]])
            start = end
        return found or [numbers[STRANGE]]


def split_words(text: str) -> Iterator[str]:
    """Words and signs, in lower case and without accents."""
    for run in text.split():
        parts = []
        for sign in unicodedata.normalize("NFD", run.lower()):
            kind = unicodedata.category(sign)
            if kind == "Mn" or kind[0] == "C" or sign == "\ufffd":
                continue
            apart = kind[0] == "P" or (kind[0] == "S" and sign.isascii()) or _is_chinese(sign)
            parts.append(f" {sign} " if apart else sign)
        yield from "".join(parts).split()


def _is_chinese(sign: str) -> bool:
    return not sign.isascii() and any(low <= ord(sign) <= high for low, high in CHINESE)
