"""Convolutions in a row, and what reads them: the image nets of papers 001 and 002, and that of DLG.

Layers are called conv1, conv2, ..., fc1, fc2, ...; activations go on counting in the linear layers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from leakscope.core.dataset import Dataset
from leakscope.core.errors import require
from leakscope.models.layers import ACTIVATIONS, POOLS, he, image_shape, sequential

Layers = list[tuple[str, nn.Module]]
Stage = tuple[
    int, int, int, int, bool
]  # channels, kernel, stride, padding, and whether a pool of 2 x 2 follows

ALEXNET: tuple[Stage, ...] = (
    (64, 11, 4, 5, True),
    (192, 5, 1, 2, True),
    (384, 3, 1, 1, False),
    (256, 3, 1, 1, False),
    (256, 3, 1, 1, False),
)
SMALL: tuple[Stage, ...] = (
    (8, 5, 1, 2, False),
    (16, 3, 1, 1, True),
    (32, 3, 1, 1, False),
    (32, 3, 1, 1, False),
    (32, 3, 1, 1, True),
)
VGG: tuple[Stage, ...] = tuple(
    (channels, 3, 1, 1, i in (3, 6)) for i, channels in enumerate((8, 16, 16, 32, 32, 32), start=1)
)
SIGMOID: tuple[Stage, ...] = tuple((12, 5, stride, 2, False) for stride in (2, 2, 1))
SPREAD = 0.5  # of `SigmoidNet`: weights and biases are drawn from U(-SPREAD, SPREAD)


def convolutions(
    channels: int,
    stages: Iterable[Stage],
    activation: str = "relu",
    pool: Callable[[int], nn.Module] = nn.MaxPool2d,
) -> Layers:
    """Convolutions from so many channels on, each with its activation and its pool."""
    layers: Layers = []
    for i, (wide, kernel, stride, padding, pooled) in enumerate(stages, start=1):
        layers.append((f"conv{i}", nn.Conv2d(channels, wide, kernel, stride, padding)))
        layers.append((f"{activation}{i}", ACTIVATIONS[activation]()))
        layers += [(f"pool{i}", pool(2))] if pooled else []
        channels = wide
    return layers


def read(layers: Layers, data: Dataset, hidden: tuple[int, ...], activation: str = "relu") -> nn.Sequential:
    """The layers, and linear ones of these widths on what they give for images such as the data's."""
    with torch.no_grad():
        wide = sequential(layers)(torch.zeros(1, *data.x.shape[1:])).numel()
    before = sum(name.startswith("conv") for name, _ in layers)
    layers = [*layers, ("flatten", nn.Flatten())]
    for i, narrow in enumerate(hidden, start=1):
        layers.append((f"fc{i}", nn.Linear(wide, narrow)))
        layers.append((f"{activation}{before + i}", ACTIVATIONS[activation]()))
        wide = narrow
    return sequential([*layers, (f"fc{len(hidden) + 1}", nn.Linear(wide, data.task.outputs))])


@dataclass(frozen=True)
class LeNet:
    """LeNet-5 with ReLU and max-pooling: 6 and 16 filters of 5 x 5, then 120-84 (LeCun et al., 1998).

    Images of fewer than 32 pixels are padded by 2, as 28 x 28 digits originally were. With sigmoids and
    average-pooling its gradients are smooth, as inverting them asks for. Weights start as torch has them.
    """

    activation: Literal["relu", "sigmoid"] = "relu"
    pool: Literal["max", "average"] = "max"

    def __post_init__(self) -> None:
        known = ("relu", "sigmoid")
        require(self.activation in known, "LeNet.activation", "'relu' or 'sigmoid'", self.activation)
        require(self.pool in POOLS, "LeNet.pool", "'max' or 'average'", self.pool)

    def __call__(self, data: Dataset) -> nn.Module:
        channels, *size = image_shape(data, "LeNet", 12)
        stages = (6, 5, 1, 2 if min(size) < 32 else 0, True), (16, 5, 1, 0, True)
        layers = convolutions(channels, stages, self.activation, POOLS[self.pool])
        return read(layers, data, (120, 84), self.activation)


@dataclass(frozen=True)
class AlexNet:
    """AlexNet in its CIFAR form: five convolutions, global max-pooling and one linear layer (paper 002).

    Any image of at least 13 x 13 pixels will do. ``width`` scales the channels 64-192-384-256-256.
    ``rank`` makes the linear layer a product of two, ``factor`` (rank, 256) without a bias and ``fc``
    (classes, rank), as in figure 3. ``initial="he"`` starts the convolutions as He et al. do and the
    linear layers as torch does; with "default" all start as torch has them, and the loss stays at
    chance for the first epochs.
    """

    width: float = 1.0
    initial: Literal["he", "default"] = "he"
    rank: int | None = None

    def __post_init__(self) -> None:
        require(0 < self.width < math.inf, "AlexNet.width", "above 0 and finite", self.width)
        require(self.initial in ("he", "default"), "AlexNet.initial", "'he' or 'default'", self.initial)
        require(self.rank is None or self.rank >= 1, "AlexNet.rank", "at least 1, or None", self.rank)

    def __call__(self, data: Dataset) -> nn.Module:
        channels, _, _ = image_shape(data, "AlexNet", 13)
        stages = [(max(1, round(stage[0] * self.width)), *stage[1:]) for stage in ALEXNET]
        layers = convolutions(channels, stages)
        layers += [("pool5", nn.AdaptiveMaxPool2d(1)), ("flatten", nn.Flatten())]
        wide = stages[-1][0]
        if self.rank is not None:
            layers.append(("factor", nn.Linear(wide, self.rank, bias=False)))
            wide = self.rank
        model = sequential([*layers, ("fc", nn.Linear(wide, data.task.outputs))])
        return he(model) if self.initial == "he" else model


@dataclass(frozen=True)
class SigmoidNet:
    """The net of DLG and iDLG: three convolutions of 12 filters, sigmoids and one linear layer.

    Filters are 5 x 5 with padding 2 and strides 2, 2 and 1; there is no pooling, so that the gradients'
    own gradients are smooth. Weights and biases are drawn from U(-0.5, 0.5) (Zhu et al., NeurIPS 2019;
    Zhao et al., 2020).
    """

    def __call__(self, data: Dataset) -> nn.Module:
        channels, _, _ = image_shape(data, "SigmoidNet", 1)
        model = read(convolutions(channels, SIGMOID, "sigmoid"), data, ())
        for parameter in model.parameters():
            nn.init.uniform_(parameter, -SPREAD, SPREAD)
        return model


@dataclass(frozen=True)
class SmallAlexNet:
    """AlexNet as paper 001 has it: five convolutions of 8 to 32 filters, then 120-84.

    Filters are 5 x 5 in the first convolution and 3 x 3 in the others, padded so that only the pools
    after the second and the fifth make the image smaller. Weights start as torch has them. The AlexNet
    of paper 002 is ``AlexNet``.
    """

    def __call__(self, data: Dataset) -> nn.Module:
        channels, _, _ = image_shape(data, "SmallAlexNet", 4)
        return read(convolutions(channels, SMALL), data, (120, 84))


@dataclass(frozen=True)
class VGG9:
    """VGG9 of paper 001: six convolutions of 8 to 32 filters of 3 x 3, then 256-128.

    The paper says five convolutions and lists six, which with three linear layers make nine. Pools
    follow the third and the sixth. ``initial="he"`` starts the convolutions as He et al. do and the
    linear layers as torch does; with "default" all start as torch has them, gradients are of order
    1e-3, and the loss stays at chance for the first epochs.
    """

    initial: Literal["he", "default"] = "he"

    def __post_init__(self) -> None:
        require(self.initial in ("he", "default"), "VGG9.initial", "'he' or 'default'", self.initial)

    def __call__(self, data: Dataset) -> nn.Module:
        channels, _, _ = image_shape(data, "VGG9", 4)
        model = read(convolutions(channels, VGG), data, (256, 128))
        return he(model) if self.initial == "he" else model
