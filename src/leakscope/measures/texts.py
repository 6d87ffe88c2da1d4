"""Words of texts that came back: of the words that were there how many, and of those that were said."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from leakscope.core.errors import require
from leakscope.core.nouns import Estimate
from leakscope.measures.records import _share


def found_words(texts: Tensor, words: Sequence[Tensor], *, level: float = 0.95) -> tuple[Estimate, Estimate]:
    """Recall and precision of the different words said (t of (n,)) of texts (t, k, length); padding, number
    0, is no word. Where nothing is said, nothing wrong is. A batch counts as one trial."""
    require(len(texts) == len(words), "words", f"of {len(texts)} batches", len(words))
    recall, precision = [], []
    for batch, said in zip(texts, words, strict=True):
        there, said = batch.unique(), said.unique()
        there, said = there[there > 0], said[said > 0]
        both = int(torch.isin(said, there).sum())
        recall.append(both / max(1, len(there)))
        precision.append(both / len(said) if len(said) else 1.0)
    return (
        _share("words found", torch.tensor(recall).double(), level),
        _share("words said that are there", torch.tensor(precision).double(), level),
    )
