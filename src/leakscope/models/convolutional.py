"""LeNet and AlexNet as paper 002 trains them on small images; layers are called conv1, conv2, ..., fc."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from torch import nn

from leakscope.core.dataset import Dataset
from leakscope.core.errors import require
from leakscope.models.layers import ACTIVATIONS, POOLS, he, image_shape, sequential

ALEXNET = (  # channels, kernel, stride, padding, and whether a pool of 2 x 2 follows
    (64, 11, 4, 5, True),
    (192, 5, 1, 2, True),
    (384, 3, 1, 1, False),
    (256, 3, 1, 1, False),
    (256, 3, 1, 1, False),
)


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
        padding = 2 if min(size) < 32 else 0
        height, width = (((side + 2 * padding - 4) // 2 - 4) // 2 for side in size)
        bent, pool = ACTIVATIONS[self.activation], POOLS[self.pool]
        return sequential(
            [
                ("conv1", nn.Conv2d(channels, 6, 5, padding=padding)),
                (f"{self.activation}1", bent()),
                ("pool1", pool(2)),
                ("conv2", nn.Conv2d(6, 16, 5)),
                (f"{self.activation}2", bent()),
                ("pool2", pool(2)),
                ("flatten", nn.Flatten()),
                ("fc1", nn.Linear(16 * height * width, 120)),
                (f"{self.activation}3", bent()),
                ("fc2", nn.Linear(120, 84)),
                (f"{self.activation}4", bent()),
                ("fc3", nn.Linear(84, data.classes)),
            ]
        )


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
        layers: list[tuple[str, nn.Module]] = []
        for i, (wanted, kernel, stride, padding, pooled) in enumerate(ALEXNET, start=1):
            wide = max(1, round(wanted * self.width))
            layers += [
                (f"conv{i}", nn.Conv2d(channels, wide, kernel, stride, padding)),
                (f"relu{i}", nn.ReLU()),
            ]
            layers += [(f"pool{i}", nn.MaxPool2d(2))] if pooled else []
            channels = wide
        layers += [("pool5", nn.AdaptiveMaxPool2d(1)), ("flatten", nn.Flatten())]
        if self.rank is not None:
            layers.append(("factor", nn.Linear(channels, self.rank, bias=False)))
            channels = self.rank
        model = sequential([*layers, ("fc", nn.Linear(channels, data.classes))])
        return he(model) if self.initial == "he" else model
