"""The networks around an encoder: who reads a representation, and who tells true pairs from made-up ones."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from leakscope.models.layers import perceptron

Shape = tuple[int, ...]


def reader(shape: Shape, out: int, hidden: Sequence[int]) -> nn.Module:
    """From representations of this shape to ``out`` numbers: linear layers, after two convolutions where
    representations are images."""
    front = _convolutions(shape) if len(shape) == 3 else [nn.Flatten()]
    wide = _width(shape)
    return nn.Sequential(*front, perceptron((wide, *hidden, out)))


def decoder(shape: Shape, target: Shape, hidden: int = 128) -> nn.Module:
    """From representations back to records of shape ``target``."""
    if len(shape) == len(target) == 3:
        return nn.Sequential(
            nn.Conv2d(shape[0], 32, 3, padding=1),
            nn.ReLU(),
            nn.Upsample(size=target[1:]),
            nn.Conv2d(32, target[0], 3, padding=1),
        )
    flat = perceptron((math.prod(shape), hidden, math.prod(target)))
    return nn.Sequential(nn.Flatten(), flat, nn.Unflatten(1, target))


class Critic(nn.Module):
    """h(x, r, u): a score for whether x and r belong together, given u (paper 004; without u, paper 003's
    critic of reconstruction). Each side is read by itself, so that one pass serves true and made-up pairs.
    """

    def __init__(self, x: Shape, r: Shape, given: int = 0, hidden: int = 64) -> None:
        super().__init__()
        self.left, self.right = reader(x, hidden, ()), reader(r, hidden, ())
        self.given = nn.Linear(given, hidden, bias=False) if given else None
        self.out = nn.Sequential(nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def forward(self, x: Tensor, r: Tensor, given: Tensor | None, other: Tensor) -> tuple[Tensor, Tensor]:
        """The scores (n,) of (x, r, u) and of (x', r, u), x' being the records ``other`` of the batch."""
        left, right = self.left(x), self.right(r)
        if self.given is not None:
            right = right + self.given(given)
        both: Tensor = self.out(torch.cat([left, left[other]]) + right.repeat(2, 1))[:, 0]
        return both[: len(x)], both[len(x) :]


class Committee(nn.Module):
    """The mean of several networks' logits."""

    def __init__(self, nets: Sequence[nn.Module]) -> None:
        super().__init__()
        self.nets = nn.ModuleList(nets)

    def forward(self, r: Tensor) -> Tensor:
        return torch.stack([net(r) for net in self.nets]).mean(0)


def _convolutions(shape: Shape) -> list[nn.Module]:
    first = nn.Conv2d(shape[0], 16, 3, stride=2, padding=1)
    return [first, nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten()]


def _width(shape: Shape) -> int:
    if len(shape) != 3:
        return math.prod(shape)
    height, width = ((side + 3) // 4 for side in shape[1:])  # two strides of 2, each rounded up
    return 32 * height * width
