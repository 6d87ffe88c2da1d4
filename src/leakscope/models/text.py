"""The text net of paper 001, section 6.1."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from leakscope.core.dataset import Dataset
from leakscope.core.errors import ArgumentError, require
from leakscope.models.layers import sequential

FILTERS, HIDDEN = 16, 50
LEAST = 20  # tokens, of which one number for each filter is left after both pools


class Words(nn.Embedding):
    """A vector for each word of a text, (n, width, length); of padding, number 0, it is zero and stays so."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).transpose(1, 2)


@dataclass(frozen=True)
class TextClf:
    """The text classifier of paper 001: two convolutions of 16 filters, of 3 and of 8 words, then 50.

    Words are embedded in ``width`` numbers, which the paper does not state; the embedding is trained
    and released like every layer. The vocabulary is that of the data. Weights start as torch has them.
    """

    width: int = 50

    def __post_init__(self) -> None:
        require(self.width >= 1, "TextClf.width", "at least 1", self.width)

    def __call__(self, data: Dataset) -> nn.Module:
        words, length = _vocabulary(data)
        left = ((length - 2) // 2 - 7) // 2
        return sequential(
            [
                ("embedding", Words(words, self.width, padding_idx=0)),
                ("conv1", nn.Conv1d(self.width, FILTERS, 3)),
                ("relu1", nn.ReLU()),
                ("pool1", nn.MaxPool1d(2)),
                ("conv2", nn.Conv1d(FILTERS, FILTERS, 8)),
                ("relu2", nn.ReLU()),
                ("pool2", nn.MaxPool1d(2)),
                ("flatten", nn.Flatten()),
                ("fc1", nn.Linear(FILTERS * left, HIDDEN)),
                ("relu3", nn.ReLU()),
                ("fc2", nn.Linear(HIDDEN, data.classes)),
            ]
        )


def _vocabulary(data: Dataset) -> tuple[int, int]:
    """How many words the data knows and how long its texts are, or the refusal of other records."""
    text = data.x.dim() == 2 and data.x.dtype == torch.int64 and len(data.columns) == 1
    if not text or not data.columns[0].values or data.x.shape[1] < LEAST:
        raise ArgumentError(
            f"TextClf needs texts of at least {LEAST} numbered words with their vocabulary, as imdb and "
            f"text-csv give, got x of {data.x.dtype} and shape {tuple(data.x.shape)} from {data.name}; use "
            f"MLP for tables and features."
        )
    return len(data.columns[0].values), data.x.shape[1]
