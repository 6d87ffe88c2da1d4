"""ResNet-18 (He et al., CVPR 2016) and DenseNet-BC (Huang et al., CVPR 2017) for small images."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from itertools import count

import torch
from torch import Tensor, nn

from leakscope.core.dataset import Dataset
from leakscope.core.errors import require
from leakscope.models.layers import Named, Norm, check_norm, he, image_shape, normalised, pooled, sequential


class Residual(nn.Module):
    """Two convolutions, and what they are added to."""

    def __init__(self, path: nn.Sequential, shortcut: nn.Module) -> None:
        super().__init__()
        self.path = path
        self.shortcut = shortcut

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.path(x) + self.shortcut(x)
        return out.relu()


@dataclass(frozen=True)
class ResNet18:
    """ResNet-18 with a CIFAR stem, 3 x 3 and no pooling; ``width`` channels in its first stage of four.

    Figure 8 of paper 002 varies ``width``. The convolutions of the main path are conv1 to conv17 and
    start as He et al. do, the linear layer as torch does. With norm="batch" per-record gradients need
    evaluation mode; norm="group" joins no records.
    """

    width: int = 64
    norm: Norm = "batch"

    def __post_init__(self) -> None:
        require(self.width >= 1, "ResNet18.width", "at least 1", self.width)
        check_norm(self.norm, "ResNet18.norm")

    def __call__(self, data: Dataset) -> nn.Module:
        shape = image_shape(data, "ResNet18", 8)
        numbers = count(1)
        channels = self.width
        layers = [*self._step(shape[0], channels, 1, next(numbers)), ("relu", nn.ReLU())]
        for stage in (1, 2, 3, 4):
            wide = self.width * 2 ** (stage - 1)
            stride = 1 if stage == 1 else 2
            blocks = [
                ("block1", self._block(channels, wide, stride, next(numbers), next(numbers))),
                ("block2", self._block(wide, wide, 1, next(numbers), next(numbers))),
            ]
            layers.append((f"stage{stage}", sequential(blocks)))
            channels = wide
        return he(sequential([*layers, *pooled(channels, data.task.outputs)]))

    def _block(self, channels: int, wide: int, stride: int, first: int, second: int) -> Residual:
        start, end = self._step(channels, wide, stride, first), self._step(wide, wide, 1, second)
        shortcut: nn.Module = nn.Identity()
        if channels != wide:
            conv = nn.Conv2d(channels, wide, 1, stride, bias=False)
            shortcut = sequential([("conv", conv), ("norm", normalised(wide, self.norm))])
        return Residual(sequential([*start, ("relu", nn.ReLU()), *end]), shortcut)

    def _step(self, channels: int, wide: int, stride: int, number: int) -> Named:
        return [
            (f"conv{number}", nn.Conv2d(channels, wide, 3, stride, padding=1, bias=False)),
            (f"norm{number}", normalised(wide, self.norm)),
        ]


class Dense(nn.Sequential):
    """Layers whose output is put behind their input."""

    def forward(self, x: Tensor) -> Tensor:
        new = x
        for layer in self:
            new = layer(new)
        return torch.cat([x, new], dim=1)


@dataclass(frozen=True)
class DenseNet:
    """DenseNet-BC: three blocks of bottlenecks of 4 ``growth`` channels, compression 0.5, CIFAR stem.

    Convolutions are numbered in their order, so that conv66 of paper 002, table 16, is the last one of
    the second block at depth 100, and the normalisation before each has its number. Convolutions
    start as He et al. do, the linear layer as torch does. With norm="batch" per-record gradients need
    evaluation mode; norm="group" joins no records.
    """

    depth: int = 100
    growth: int = 12
    norm: Norm = "batch"

    def __post_init__(self) -> None:
        fit = self.depth >= 10 and self.depth % 6 == 4
        require(fit, "DenseNet.depth", "6 n + 4 with n of at least 1, such as 40 or 100", self.depth)
        require(self.growth >= 1, "DenseNet.growth", "at least 1", self.growth)
        check_norm(self.norm, "DenseNet.norm")

    def __call__(self, data: Dataset) -> nn.Module:
        shape = image_shape(data, "DenseNet", 4)
        numbers = count(2)
        channels = 2 * self.growth
        layers: list[tuple[str, nn.Module]] = [
            ("conv1", nn.Conv2d(shape[0], channels, 3, padding=1, bias=False))
        ]
        for i in (1, 2, 3):
            units: list[tuple[str, nn.Module]] = []
            for unit in range((self.depth - 4) // 6):
                units.append((f"unit{unit + 1}", self._unit(channels, next(numbers), next(numbers))))
                channels += self.growth
            layers.append((f"block{i}", sequential(units)))
            if i < 3:
                half = channels // 2
                steps = [*self._step(channels, half, 1, next(numbers)), ("pool", nn.AvgPool2d(2))]
                layers.append((f"transition{i}", sequential(steps)))
                channels = half
        layers += [("norm", normalised(channels, self.norm)), ("relu", nn.ReLU())]
        return he(sequential([*layers, *pooled(channels, data.task.outputs)]))

    def _unit(self, channels: int, first: int, second: int) -> Dense:
        narrow = 4 * self.growth
        steps = [*self._step(channels, narrow, 1, first), *self._step(narrow, self.growth, 3, second)]
        return Dense(OrderedDict(steps))

    def _step(self, channels: int, wanted: int, kernel: int, number: int) -> Named:
        return [
            (f"norm{number}", normalised(channels, self.norm)),
            (f"relu{number}", nn.ReLU()),
            (f"conv{number}", nn.Conv2d(channels, wanted, kernel, padding=kernel // 2, bias=False)),
        ]
