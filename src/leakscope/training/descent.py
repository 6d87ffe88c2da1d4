"""Torch's SGD and Adam by their functions: the classes import torch's compiler, which takes two seconds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.sgd import sgd


@dataclass(eq=False)
class Sgd:
    """Steps of SGD on tensors whose ``grad`` is set, fused, with nothing remembered before the first."""

    leaves: tuple[Tensor, ...]
    rate: float
    momentum: float
    decay: float
    moving: list[Tensor | None] = field(init=False)

    def __post_init__(self) -> None:
        self.moving = [None] * len(self.leaves)

    def step(self) -> None:
        with torch.no_grad():
            sgd(
                [*self.leaves],
                gradients(self.leaves),
                self.moving,
                fused=True,
                lr=self.rate,
                momentum=self.momentum,
                weight_decay=self.decay,
                dampening=0.0,
                nesterov=False,
                maximize=False,
            )


@dataclass(eq=False)
class Adam:
    """Steps of Adam on tensors whose ``grad`` is set, fused: 0.8 of the time of its loop."""

    leaves: tuple[Tensor, ...]
    rate: float
    decay: float
    means: list[Tensor] = field(init=False)
    squares: list[Tensor] = field(init=False)
    steps: list[Tensor] = field(init=False)

    def __post_init__(self) -> None:
        self.means, self.squares = ([torch.zeros_like(leaf) for leaf in self.leaves] for _ in range(2))
        self.steps = [torch.zeros((), dtype=torch.float32, device=leaf.device) for leaf in self.leaves]

    def step(self) -> None:
        with torch.no_grad():
            adam(
                [*self.leaves],
                gradients(self.leaves),
                self.means,
                self.squares,
                [],
                self.steps,
                fused=True,
                lr=self.rate,
                weight_decay=self.decay,
                beta1=0.9,
                beta2=0.999,
                eps=1e-8,
                amsgrad=False,
                maximize=False,
            )


def gradients(leaves: Iterable[Tensor]) -> list[Tensor]:
    found = []
    for leaf in leaves:
        assert leaf.grad is not None
        found.append(leaf.grad)
    return found
