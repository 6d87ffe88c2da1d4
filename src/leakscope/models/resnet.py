"""ResNet-18 for small images (He et al., CVPR 2016)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count

from torch import Tensor, nn

from leakscope.core.dataset import Dataset
from leakscope.core.errors import require
from leakscope.models.layers import Named, Norm, check_norm, he, image_shape, normalised, sequential


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
        ending = [
            ("pool", nn.AdaptiveAvgPool2d(1)),
            ("flatten", nn.Flatten()),
            ("fc", nn.Linear(channels, data.classes)),
        ]
        return he(sequential([*layers, *ending]))

    def _block(self, channels: int, wide: int, stride: int, first: int, second: int) -> Residual:
        start, end = self._step(channels, wide, stride, first), self._step(wide, wide, 1, second)
        shortcut = nn.Identity() if channels == wide else self._shortcut(channels, wide, stride)
        return Residual(sequential([*start, ("relu", nn.ReLU()), *end]), shortcut)

    def _shortcut(self, channels: int, wide: int, stride: int) -> nn.Module:
        conv = nn.Conv2d(channels, wide, 1, stride, bias=False)
        return sequential([("conv", conv), ("norm", normalised(wide, self.norm))])

    def _step(self, channels: int, wide: int, stride: int, number: int) -> Named:
        return [
            (f"conv{number}", nn.Conv2d(channels, wide, 3, stride, padding=1, bias=False)),
            (f"norm{number}", normalised(wide, self.norm)),
        ]
