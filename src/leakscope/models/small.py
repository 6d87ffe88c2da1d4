"""The nets of paper 000, one layer whose gradients have a closed form, and the text net of paper 001."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from leakscope.core.dataset import Dataset
from leakscope.core.errors import require
from leakscope.models.layers import (
    ACTIVATIONS,
    MOST_LAYERS,
    check_numbers,
    image_shape,
    perceptron,
    sequential,
    vocabulary,
)

FILTERS, HIDDEN = 16, 50  # of the text net
LEAST = 20  # tokens, of which one number for each filter is left after both pools


@dataclass(frozen=True)
class MLP:
    """Fully connected net; 32-16 for tables, 64-64 for speech (paper 000, A.1).

    Purchase and Texas have 1024-512-256 with tanh (paper 002, table 6). Weights start as torch has them.
    """

    hidden: tuple[int, ...] = (32, 16)
    activation: Literal["relu", "tanh", "sigmoid"] = "relu"

    def __post_init__(self) -> None:
        fine = len(self.hidden) <= MOST_LAYERS and all(width >= 1 for width in self.hidden)
        require(fine, "MLP.hidden", f"at most {MOST_LAYERS} widths of at least 1", self.hidden)
        rule = "'relu', 'tanh' or 'sigmoid'"
        require(self.activation in ACTIVATIONS, "MLP.activation", rule, self.activation)

    def __call__(self, data: Dataset) -> nn.Module:
        check_numbers(data, "MLP")
        front = [nn.Flatten()] if data.x.dim() > 2 else []
        widths = (data.x[0].numel(), *self.hidden, data.task.outputs)
        return nn.Sequential(*front, *perceptron(widths, self.activation))


CHANNELS = {
    8: ((8, 16, 16, 32, 32), (32, 32, 32)),  # 45,922 parameters: the dimension the paper states
    9: ((8, 16, 16, 32, 32, 32), (32, 32, 32)),  # 55,170: the table the paper prints
}


@dataclass(frozen=True)
class CNN:
    """The convolutional net of paper 000, table 3, for images of 32 x 32 pixels.

    The printed table has 9 convolutions, the stated gradient dimension of 45,922 belongs to 8.
    ``width`` is the number of channels of the first convolution; the others scale with it.
    """

    convolutions: int = 8
    width: int = 8

    def __post_init__(self) -> None:
        require(self.convolutions in CHANNELS, "CNN.convolutions", "8 or 9", self.convolutions)
        require(self.width >= 1, "CNN.width", "at least 1", self.width)

    def __call__(self, data: Dataset) -> nn.Module:
        channels, height, width = image_shape(data, "CNN", 9)
        layers: list[nn.Module] = []
        for stage in CHANNELS[self.convolutions]:
            for wanted in stage:
                wide = max(1, wanted * self.width // 8)
                layers += [nn.Conv2d(channels, wide, 3, padding=1), nn.ReLU()]
                channels = wide
            layers.append(nn.MaxPool2d(3, 3))
            height, width = height // 3, width // 3
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels * height * width, data.task.outputs))


@dataclass(frozen=True)
class Linear:
    """One linear layer; ``zeros`` starts it at zero, where gradients have a closed form."""

    zeros: bool = False

    def __call__(self, data: Dataset) -> nn.Module:
        check_numbers(data, "Linear")
        layer = nn.Linear(data.x[0].numel(), data.task.outputs)
        if self.zeros:
            for parameter in layer.parameters():
                nn.init.zeros_(parameter)
        return nn.Sequential(nn.Flatten(), layer)


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
        words, length = vocabulary(data, "TextClf", LEAST)
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
                ("fc2", nn.Linear(HIDDEN, data.task.outputs)),
            ]
        )
