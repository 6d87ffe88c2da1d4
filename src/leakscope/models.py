"""Small nets that plans can name: a frozen description that builds a module for a dataset."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import nn

from leakscope.core import Defense
from leakscope.dataset import Dataset
from leakscope.errors import ArgumentError, require
from leakscope.rng import initialised

Architecture = Callable[[Dataset], nn.Module] | nn.Module


@dataclass(frozen=True)
class MLP:
    """Fully connected ReLU net; 32-16 for tables, 64-64 for speech (paper 000, A.1)."""

    hidden: tuple[int, ...] = (32, 16)

    def __post_init__(self) -> None:
        require(all(width >= 1 for width in self.hidden), "MLP.hidden", "widths of at least 1", self.hidden)

    def __call__(self, data: Dataset) -> nn.Module:
        widths = (data.x[0].numel(), *self.hidden)
        layers: list[nn.Module] = [nn.Flatten()] if data.x.dim() > 2 else []
        for wide, narrow in pairwise(widths):
            layers += [nn.Linear(wide, narrow), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(widths[-1], data.classes))


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
        if data.x.dim() != 4 or min(data.x.shape[2:]) < 9:
            raise ArgumentError(
                f"CNN needs images (n, channels, height, width) of at least 9 x 9 pixels, got x of shape "
                f"{tuple(data.x.shape)}; use MLP for tables and features."
            )
        channels, height, width = data.x.shape[1:]
        layers: list[nn.Module] = []
        for stage in CHANNELS[self.convolutions]:
            for wanted in stage:
                wide = max(1, wanted * self.width // 8)
                layers += [nn.Conv2d(channels, wide, 3, padding=1), nn.ReLU()]
                channels = wide
            layers.append(nn.MaxPool2d(3, 3))
            height, width = height // 3, width // 3
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels * height * width, data.classes))


@dataclass(frozen=True)
class Linear:
    """One linear layer; ``zeros`` starts it at zero, where gradients have a closed form."""

    zeros: bool = False

    def __call__(self, data: Dataset) -> nn.Module:
        layer = nn.Linear(data.x[0].numel(), data.classes)
        if self.zeros:
            for parameter in layer.parameters():
                nn.init.zeros_(parameter)
        return nn.Sequential(nn.Flatten(), layer)


def build(
    architecture: Architecture, data: Dataset, rng: torch.Generator, *, defense: Defense | None = None
) -> nn.Module:
    """The module for ``data``, with what the defense adds to it, initialised by ``rng``; a ready module
    keeps its own weights."""

    def make() -> nn.Module:
        made = architecture if isinstance(architecture, nn.Module) else architecture(data)
        if not isinstance(made, nn.Module):
            raise ArgumentError(f"{architecture!r} must build a torch.nn.Module, got {type(made).__name__}.")
        return defense.model(made) if defense else made

    return initialised(make, rng)


def parameters(model: nn.Module) -> dict[str, torch.Tensor]:
    """A copy of the module's parameters by name, out of autograd's sight."""
    return {name: tensor.detach().clone() for name, tensor in model.named_parameters()}
