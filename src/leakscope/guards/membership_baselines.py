"""Baselines against membership inference: adversarial regularisation and NeuGuard."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from leakscope.core.errors import NONNEGATIVE, ArgumentError, check, require
from leakscope.core.rng import initialised
from leakscope.guards.batches import Seen
from leakscope.guards.encoder import Guarded
from leakscope.guards.hidden import Hidden, Lesson, Strength, TimedGuard
from leakscope.guards.inf2guard import representation_shape
from leakscope.guards.plain import Unguarded, against, begun, renamed, taught
from leakscope.guards.protections import OfMembers, Term, Told
from leakscope.guards.utilities import Steady, imbalance, with_hidden
from leakscope.models.layers import perceptron


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
class AdvReg(TimedGuard):
    """Adversarial regularisation (Nasr et al., 2018): CE + ``alpha`` (mean D(f(x), y) - .5) over members.

    D learns to tell members from ``others`` by prediction and label, ``steps`` times for each step of the
    model. Published: alpha 3 (Purchase), 1 (Texas). The null setting is alpha = 0, where others are not
    looked at.
    """

    alpha: float = 3.0
    steps: int = 2
    warm_up: int = 2
    plain: Unguarded = field(default_factory=Unguarded)

    needs_classes = True
    strength = Strength("alpha", (0.0, 0.3, 1.0, 3.0, 10.0, 30.0))

    def hides(self) -> tuple[Hidden, ...]:
        """Who was trained on; its D, which takes the label, is the stale attacker."""
        return (Hidden("membership", label_aware=True),)

    def __post_init__(self) -> None:
        check(self, alpha=NONNEGATIVE)
        require(1 <= self.steps <= 5, "AdvReg.steps", "from 1 to 5", self.steps)

    def train(self, lesson: Lesson) -> Guarded:
        data = lesson.data
        if lesson.others is None:
            raise ArgumentError("AdvReg needs others, reference non-members, got None.")
        if self.alpha == 0:
            return renamed(self.plain.train(lesson), self)
        source, made, private = begun(self.plain, lesson, paired=True)
        shape = representation_shape(made.network, data, normed=self.plain.normed)
        net = initialised(lambda: Discriminator(math.prod(shape), data.classes), private)
        told = Told(OfMembers(label_aware=True), net, "adversarial", torch.full((2,), 0.5))
        made = against(made, told, gain(told), self.alpha, steps=self.steps)
        return taught(self, self.plain, lesson, source, made, warm_up=self.warm_up)


def gain(told: Told) -> Term:
    """The mean over members of D's belief that they are, less .5."""

    def term(seen: Seen, r: Tensor, head: nn.Module | None) -> Tensor:
        inputs, _ = told.sight.pairs(seen, r, head)
        belief: Tensor = told.net(inputs[: seen.own]).softmax(1)[:, 1]
        return belief.mean() - 0.5

    return term


@dataclass(frozen=True)
class NeuGuard(TimedGuard):
    """NeuGuard (Xu et al., 2022): CE + ``alpha`` times imbalance of neurons + ``beta`` times output variance.

    Imbalance, of every hidden layer and of the representation: the mean of (sum of the first half of the
    activations - sum of the second)^2 / width. Variance: the mean squared distance of the head's
    probabilities to their running mean in the record's class. Published: 500 and 3,000 (Texas). Needs no
    non-members. The null setting is alpha = beta = 0.
    """

    alpha: float = 500.0
    beta: float = 3_000.0
    plain: Unguarded = field(default_factory=Unguarded)

    needs_classes = True
    strength = Strength("alpha", (0.0, 0.5, 5.0, 50.0, 500.0))

    def hides(self) -> tuple[Hidden, ...]:
        return (Hidden("membership"),)

    def __post_init__(self) -> None:
        check(self, alpha=NONNEGATIVE, beta=NONNEGATIVE)

    def train(self, lesson: Lesson) -> Guarded:
        if self.alpha == self.beta == 0:
            return renamed(self.plain.train(lesson), self)
        source, made, _ = begun(self.plain, lesson)
        classes, network = lesson.data.classes, made.network
        means = torch.full((classes, classes), math.nan)
        made = replace(
            made,
            network=Balanced(network, self.alpha),
            utility=Steady(made.utility.net, self.alpha, self.beta, means),
        )
        found = taught(self, self.plain, lesson, source, made)
        return replace(found, encoder=replace(found.encoder, network=network))


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
