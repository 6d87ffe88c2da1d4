"""What an encoder keeps: the task's labels, or as much of the record as possible, whatever the task.

A utility is a ``net`` beside the encoder, the ``task`` head or another, and the ``loss`` that both descend,
from representations before (``clean``) and after the perturbation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from leakscope.core.task import task_loss
from leakscope.guards.batches import Seen, derangement
from leakscope.guards.estimators import jsd
from leakscope.guards.networks import Critic

Kind = Literal["labels", "agnostic", "autoencoder"]
Negatives = Literal["random", "rolled"]
MOMENTUM = 0.9  # of a class's running mean: our choice


@dataclass(frozen=True, eq=False)
class Labels:
    """The loss of a task head, for the data's own records (equation 6 of paper 003); ``both`` adds that of
    the unperturbed representation (equations 23 and 24)."""

    net: nn.Module
    both: bool = False

    task = True

    def loss(self, seen: Seen, clean: Tensor, r: Tensor, rng: torch.Generator) -> Tensor:
        y = seen.y[: seen.own]
        lost = task_loss(self.net(r[: seen.own]), y)
        return lost + task_loss(self.net(clean[: seen.own]), y) if self.both else lost


@dataclass(frozen=True, eq=False)
class Agnostic:
    """Minus the Jensen-Shannon objective of I(x; r | u) (paper 004): a critic h(x, r, u) tells records from
    others of the batch, drawn at random, or (``rolled``) the neighbour, as the published code does. ``given``
    names the private column u of ``values`` values; None: no u."""

    net: Critic
    given: str | None = None
    values: int = 0
    negatives: Negatives = "random"

    task = False

    def loss(self, seen: Seen, clean: Tensor, r: Tensor, rng: torch.Generator) -> Tensor:
        n = seen.own
        rolled = torch.arange(n).roll(1)
        other = rolled if self.negatives == "rolled" else derangement(n, rng)
        u = None if self.given is None else F.one_hot(seen.private[self.given], self.values).to(r)
        return -jsd(*self.net(seen.x[:n], r[:n], u, other))


@dataclass(frozen=True, eq=False)
class Autoencoder:
    """The mean squared error of a decoder, in units of the records' variance."""

    net: nn.Module
    variance: float

    task = False

    def loss(self, seen: Seen, clean: Tensor, r: Tensor, rng: torch.Generator) -> Tensor:
        return F.mse_loss(self.net(r[: seen.own]), seen.x[: seen.own]) / self.variance


@dataclass(frozen=True, eq=False)
class Steady:
    """The task's loss, the head's imbalance, and the variance of its output within each class; ``means``
    (classes, classes) are the running means, nan before a class is seen."""

    net: nn.Module
    alpha: float
    beta: float
    means: Tensor

    task = True

    def loss(self, seen: Seen, clean: Tensor, r: Tensor, rng: torch.Generator) -> Tensor:
        y = seen.y[: seen.own]
        logits, hidden = with_hidden(self.net, r[: seen.own])
        said = logits.softmax(1)
        if self.net.training:
            self._follow(said.detach(), y)
        aim = self.means[y]
        far = (said - aim.where(~aim.isnan(), said)).square().sum(1).mean()
        uneven = sum((imbalance(one) for one in hidden), logits.new_zeros(()))
        return F.cross_entropy(logits, y) + self.alpha * uneven + self.beta * far

    def _follow(self, said: Tensor, y: Tensor) -> None:
        for code in y.unique().tolist():
            now, before = said[y == code].mean(0), self.means[code]
            self.means[code] = torch.where(before.isnan(), now, MOMENTUM * before + (1 - MOMENTUM) * now)


def imbalance(activations: Tensor) -> Tensor:
    """The mean over records (n, ...) of (first half - second half)^2 / width."""
    flat = activations.flatten(1)
    width = flat.shape[1]
    gap = flat[:, : width // 2].sum(1) - flat[:, width // 2 :].sum(1)
    return gap.square().mean() / width


def with_hidden(net: nn.Module, x: Tensor) -> tuple[Tensor, list[Tensor]]:
    found: list[Tensor] = []
    layers = [layer for layer in net.modules() if isinstance(layer, nn.ReLU)]
    hooks = [layer.register_forward_hook(lambda _, __, out: found.append(out)) for layer in layers]
    try:
        return net(x), found
    finally:
        for hook in hooks:
            hook.remove()


Utility = Labels | Agnostic | Autoencoder | Steady
