"""Baselines against membership inference: adversarial regularisation and NeuGuard."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from leakscope.core.dataset import Dataset
from leakscope.core.errors import ArgumentError, require
from leakscope.core.rng import initialised
from leakscope.guards.batches import Seen
from leakscope.guards.encoder import Guarded
from leakscope.guards.hidden import Hidden, Strength
from leakscope.guards.inf2guard import representation_shape
from leakscope.guards.networks import perceptron
from leakscope.guards.plain import Descending, Term, Unguarded, against, begun, renamed, taught
from leakscope.guards.protections import OfMembers, Told
from leakscope.guards.trainer import Progress

MOMENTUM = 0.9  # of a class's running mean: our choice


class Discriminator(nn.Module):
    """D of adversarial regularisation: a branch for the head's probabilities and one for the label.

    Reads what `OfMembers` shows who is aware of the label (representation, label, logits, loss), uses label
    and logits, and answers with two logits. Widths and N(0, .01) weights are those of the published code.
    """

    def __init__(self, before: int, classes: int) -> None:
        super().__init__()
        self.before, self.classes = before, classes
        self.outputs = nn.Sequential(perceptron((classes, 512, 64)), nn.ReLU())
        self.labels = nn.Linear(classes, 64)
        self.both = perceptron((128, 64, 1))
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                nn.init.normal_(layer.weight, std=0.01)
                nn.init.zeros_(layer.bias)

    def forward(self, inputs: Tensor) -> Tensor:
        label, logits = inputs[:, self.before : -1].split(self.classes, 1)
        score: Tensor = self.both(torch.cat([self.outputs(logits.softmax(1)), self.labels(label)], 1))
        return torch.cat([torch.zeros_like(score), score], 1)


@dataclass(frozen=True)
class AdvReg:
    """Adversarial regularisation (Nasr et al., 2018): CE + ``alpha`` (mean D(f(x), y) - .5) over members.

    D learns to tell members from ``others`` by prediction and label, ``steps`` times for each step of the
    model. Published: alpha 3 (Purchase), 1 (Texas). The null setting is alpha = 0, where others are not
    looked at.
    """

    alpha: float = 3.0
    steps: int = 2
    warm_up: int = 2
    plain: Unguarded = field(default_factory=Unguarded)

    strength = Strength("alpha", (0.0, 0.3, 1.0, 3.0, 10.0, 30.0))

    def hides(self) -> tuple[Hidden, ...]:
        """Who was trained on; its D, which takes the label, is the stale attacker."""
        return (Hidden("membership", label_aware=True),)

    def __post_init__(self) -> None:
        require(0 <= self.alpha < math.inf, "AdvReg.alpha", "finite and at least 0", self.alpha)
        require(1 <= self.steps <= 5, "AdvReg.steps", "from 1 to 5", self.steps)

    def __call__(
        self,
        data: Dataset,
        rng: torch.Generator,
        *,
        others: Dataset | None = None,
        progress: Progress | None = None,
    ) -> Guarded:
        """See `Inf2Guard`; needs ``others``."""
        if others is None:
            raise ArgumentError("AdvReg needs others, reference non-members, got None.")
        if self.alpha == 0:
            return renamed(self.plain(data, rng, others=others, progress=progress), self)
        source, made, private = begun(self.plain, data, rng, others=others, paired=True)
        shape = representation_shape(made.network, data, normed=self.plain.normed)
        net = initialised(lambda: Discriminator(math.prod(shape), data.classes), private)
        told = Told(OfMembers(label_aware=True), net, "adversarial", torch.full((2,), 0.5))
        made = against(made, Descending(told, gain(told)), self.alpha, steps=self.steps)
        return taught(
            self, self.plain, source, made, data=data, rng=rng, progress=progress, warm_up=self.warm_up
        )


def gain(told: Told) -> Term:
    """The mean over members of D's belief that they are, less .5."""

    def term(seen: Seen, r: Tensor, head: nn.Module | None) -> Tensor:
        inputs, _ = told.sight.pairs(seen, r, head)
        belief: Tensor = told.net(inputs[: seen.own]).softmax(1)[:, 1]
        return belief.mean() - 0.5

    return term


@dataclass(frozen=True)
class NeuGuard:
    """NeuGuard (Xu et al., 2022): CE + ``alpha`` times imbalance of neurons + ``beta`` times output variance.

    Imbalance, of every hidden layer and of the representation: the mean of (sum of the first half of the
    activations - sum of the second)^2 / width. Variance: the mean squared distance of the head's
    probabilities to their running mean in the record's class. Published: 500 and 3,000 (Texas). Needs no
    non-members. The null setting is alpha = beta = 0.
    """

    alpha: float = 500.0
    beta: float = 3_000.0
    plain: Unguarded = field(default_factory=Unguarded)

    strength = Strength("alpha", (0.0, 0.5, 5.0, 50.0, 500.0))

    def hides(self) -> tuple[Hidden, ...]:
        """See `Hidden`."""
        return (Hidden("membership"),)

    def __post_init__(self) -> None:
        require(0 <= self.alpha < math.inf, "NeuGuard.alpha", "finite and at least 0", self.alpha)
        require(0 <= self.beta < math.inf, "NeuGuard.beta", "finite and at least 0", self.beta)

    def __call__(
        self,
        data: Dataset,
        rng: torch.Generator,
        *,
        others: Dataset | None = None,
        progress: Progress | None = None,
    ) -> Guarded:
        """See `Inf2Guard`."""
        if self.alpha == self.beta == 0:
            return renamed(self.plain(data, rng, others=others, progress=progress), self)
        source, made, _ = begun(self.plain, data, rng, others=others)
        network, means = made.network, torch.full((data.classes, data.classes), math.nan)
        made = replace(
            made,
            network=Balanced(network, self.alpha),
            utility=Steady(made.utility.net, self.alpha, self.beta, means),
        )
        found = taught(self, self.plain, source, made, data=data, rng=rng, progress=progress)
        return replace(found, encoder=replace(found.encoder, network=network))


def imbalance(activations: Tensor) -> Tensor:
    """The mean over records (n, ...) of (first half - second half)^2 / width."""
    flat = activations.flatten(1)
    width = flat.shape[1]
    gap = flat[:, : width // 2].sum(1) - flat[:, width // 2 :].sum(1)
    return gap.square().mean() / width


class Balanced(nn.Module):
    """A network whose backward pass adds the gradient of ``alpha`` times its layers' imbalance.

    The trainer knows an encoder by its representations alone; what is asked of its inner layers has to
    come with it."""

    def __init__(self, inner: nn.Module, alpha: float) -> None:
        super().__init__()
        self.inner, self.alpha = inner, alpha

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            out: Tensor = self.inner(x)
            return out
        out, hidden = with_hidden(self.inner, x)
        term = self.alpha * torch.stack([imbalance(one) for one in (*hidden, out)]).sum()
        beside: Tensor = _Beside.apply(out, term)  # type: ignore[no-untyped-call]
        return beside


class _Beside(torch.autograd.Function):
    """The first argument; going back, the second is descended too."""

    @staticmethod
    def forward(ctx: Any, out: Tensor, term: Tensor) -> Tensor:
        return out.clone()

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, Tensor]:
        return slope, torch.ones((), dtype=slope.dtype)


def with_hidden(net: nn.Module, x: Tensor) -> tuple[Tensor, list[Tensor]]:
    """A network's output, and the activations of its hidden layers."""
    found: list[Tensor] = []
    layers = [layer for layer in net.modules() if isinstance(layer, nn.ReLU)]
    hooks = [layer.register_forward_hook(lambda _, __, out: found.append(out)) for layer in layers]
    try:
        return net(x), found
    finally:
        for hook in hooks:
            hook.remove()


@dataclass(frozen=True, eq=False)
class Steady:
    """The task's loss, the head's imbalance, and the variance of its output within each class; ``means``
    (classes, classes) are the running means, nan before a class is seen."""

    net: nn.Module
    alpha: float
    beta: float
    means: Tensor

    @property
    def head(self) -> nn.Module | None:
        """See `Utility`."""
        return self.net

    def loss(self, seen: Seen, clean: Tensor, r: Tensor, rng: torch.Generator) -> Tensor:
        """See `Utility`."""
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
