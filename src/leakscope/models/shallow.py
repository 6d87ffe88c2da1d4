"""The image nets of paper 001, section 6.1, and the net its reconstructions are known to work on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torch import nn

from leakscope.core.dataset import Dataset
from leakscope.core.errors import require
from leakscope.models.layers import he, image_shape, sequential

Stage = tuple[int, int, bool]  # channels, kernel, and whether a pool of 2 x 2 follows
ALEXNET: tuple[Stage, ...] = (
    (8, 5, False),
    (16, 3, True),
    (32, 3, False),
    (32, 3, False),
    (32, 3, True),
)
VGG: tuple[Stage, ...] = (
    (8, 3, False),
    (16, 3, False),
    (16, 3, True),
    (32, 3, False),
    (32, 3, False),
    (32, 3, True),
)
SPREAD = 0.5  # weights and biases are drawn from U(-SPREAD, SPREAD)


@dataclass(frozen=True)
class SigmoidNet:
    """The net of DLG and iDLG: three convolutions of 12 filters, sigmoids and one linear layer.

    Filters are 5 x 5 with padding 2 and strides 2, 2 and 1; there is no pooling, so that the gradients'
    own gradients are smooth. Weights and biases are drawn from U(-0.5, 0.5) (Zhu et al., NeurIPS 2019;
    Zhao et al., 2020).
    """

    def __call__(self, data: Dataset) -> nn.Module:
        channels, height, width = image_shape(data, "SigmoidNet", 1)
        layers: list[tuple[str, nn.Module]] = []
        for i, stride in enumerate((2, 2, 1), start=1):
            layers += [
                (f"conv{i}", nn.Conv2d(channels, 12, 5, stride, padding=2)),
                (f"sigmoid{i}", nn.Sigmoid()),
            ]
            channels = 12
            height, width = (-(-side // stride) for side in (height, width))
        layers += [("flatten", nn.Flatten()), ("fc1", nn.Linear(channels * height * width, data.classes))]
        model = sequential(layers)
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
        return _net(data, "SmallAlexNet", ALEXNET, hidden=(120, 84))


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
        model = _net(data, "VGG9", VGG, hidden=(256, 128))
        return he(model) if self.initial == "he" else model


def _net(data: Dataset, name: str, stages: Sequence[Stage], *, hidden: tuple[int, int]) -> nn.Sequential:
    """Convolutions of full padding, their pools, and three linear layers."""
    channels, height, width = image_shape(data, name, 4)
    layers: list[tuple[str, nn.Module]] = []
    for i, (wanted, kernel, pooled) in enumerate(stages, start=1):
        layers += [
            (f"conv{i}", nn.Conv2d(channels, wanted, kernel, padding=kernel // 2)),
            (f"relu{i}", nn.ReLU()),
        ]
        channels = wanted
        if pooled:
            layers.append((f"pool{i}", nn.MaxPool2d(2)))
            height, width = height // 2, width // 2
    wide = channels * height * width
    layers.append(("flatten", nn.Flatten()))
    for i, narrow in enumerate(hidden, start=1):
        layers += [(f"fc{i}", nn.Linear(wide, narrow)), (f"relu{len(stages) + i}", nn.ReLU())]
        wide = narrow
    return sequential([*layers, (f"fc{len(hidden) + 1}", nn.Linear(wide, data.classes))])
