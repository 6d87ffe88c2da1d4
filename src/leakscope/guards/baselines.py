"""What guards are compared with: noise, clipping, compression and adversaries of other papers.

Each is a guard like `Inf2Guard` and has one strength; at its null setting it is ``plain``, number for number.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from leakscope.core.errors import NONNEGATIVE, POSITIVE, check, require
from leakscope.core.rng import fork, laplace
from leakscope.guards.batches import Seen
from leakscope.guards.encoder import Guarded, Perturbation
from leakscope.guards.hidden import Hidden, Lesson, Strength, TimedGuard
from leakscope.guards.inf2guard import Inf2Guard, check_column, protection, representation_shape
from leakscope.guards.plain import Unguarded, against, begun, renamed, taught, weighing
from leakscope.guards.protections import Told


@dataclass(frozen=True)
class DPEncoder(TimedGuard):
    """Gaussian noise on the frozen representations of plain training (paper 003, section 5).

    ``scale`` is in units of the representations' standard deviation, its root mean square over coordinates;
    ``relative=False``: the deviation itself, as the paper has it (its square from .01 to 10). No epsilon is
    claimed, since representations have no bound. The null setting is scale = 0.
    """

    scale: float = 0.5
    relative: bool = True
    plain: Unguarded = field(default_factory=Unguarded)

    strength = Strength("scale", (0.0, 0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0))

    def __post_init__(self) -> None:
        check(self, scale=NONNEGATIVE)

    def train(self, lesson: Lesson) -> Guarded:
        found = self.plain.train(lesson)
        spread = found.encoder(lesson.data.x).flatten(1).var(0, correction=0).mean().sqrt()
        unit = float(spread) if self.relative else 1.0
        return renamed(found, self, perturbation=Perturbation("gaussian", self.scale * unit))


@dataclass(frozen=True)
class DPParameters(TimedGuard):
    """Noise of standard deviation ``scale`` on every parameter of a plainly trained encoder (paper 004).

    ``kind`` "gaussian" or "laplace"; the head is left alone. The null setting is scale = 0.
    """

    scale: float = 0.05
    kind: Literal["gaussian", "laplace"] = "gaussian"
    plain: Unguarded = field(default_factory=Unguarded)

    strength = Strength("scale", (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0))

    def __post_init__(self) -> None:
        check(self, scale=NONNEGATIVE)
        known = self.kind in ("gaussian", "laplace")
        require(known, "DPParameters.kind", "gaussian or laplace", self.kind)

    def train(self, lesson: Lesson) -> Guarded:
        found = self.plain.train(lesson)
        (own,) = fork(lesson.rng, 1)
        return renamed(found, self, network=_changed(found.encoder.network, lambda w: w + self.noise(w, own)))

    def noise(self, like: Tensor, rng: torch.Generator) -> Tensor:
        if self.kind == "gaussian":
            return self.scale * torch.randn(like.shape, generator=rng, dtype=like.dtype)
        return laplace(like, self.scale / math.sqrt(2), rng)


@dataclass(frozen=True)
class Compressed(TimedGuard):
    """A plainly trained encoder whose smallest parameters are set to 0 (model compression, paper 004).

    ``rate`` is the share of all the encoder's parameters, smallest magnitude first. The null setting is
    rate = 0.
    """

    rate: float = 0.5
    plain: Unguarded = field(default_factory=Unguarded)

    strength = Strength("rate", (0.0, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98))

    def __post_init__(self) -> None:
        require(0 <= self.rate < 1, "Compressed.rate", "in [0, 1)", self.rate)

    def train(self, lesson: Lesson) -> Guarded:
        found = self.plain.train(lesson)
        return renamed(found, self, network=_changed(found.encoder.network, self.kept))

    def kept(self, weights: Tensor) -> Tensor:
        """The largest of the weights; of equal ones the first go."""
        gone = weights.abs().argsort(stable=True)[: round(self.rate * len(weights))]
        return weights.index_fill(0, gone, 0.0)


def _changed(network: nn.Module, change: Callable[[Tensor], Tensor]) -> nn.Module:
    made = copy.deepcopy(network)
    vector_to_parameters(change(parameters_to_vector(made.parameters())), made.parameters())
    return made


@dataclass(frozen=True)
class AdversarialTraining(TimedGuard):
    """min CE_task - ``lam`` CE_private in alternating steps: the core of DeepObfuscator (paper 004's AT).

    It is `Inf2Guard` with the adversarial loss and the task's labels, at lambda = lam / (1 + lam): named
    here so that it is compared under its name. The null setting is lam = 0.
    """

    column: str
    lam: float = 1.0
    steps: int = 1
    warm_up: int = 2
    plain: Unguarded = field(default_factory=Unguarded)

    strength = Strength("lam", (0.0, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0))

    def hides(self) -> tuple[Hidden, ...]:
        return (Hidden("attribute", self.column, self.lam),)

    def __post_init__(self) -> None:
        check(self, lam=NONNEGATIVE)

    @property
    def guard(self) -> Inf2Guard:
        settings: Mapping[str, Any] = vars(self.plain)
        return Inf2Guard(
            "attribute",
            self.column,
            lam=weighing(self.lam),
            loss="adversarial",
            steps=self.steps,
            warm_up=self.warm_up,
            **settings,
        )

    def train(self, lesson: Lesson) -> Guarded:
        return renamed(self.guard.train(lesson), self)


@dataclass(frozen=True)
class DPFE(TimedGuard):
    """Task cross-entropy plus ``weight`` times a Gaussian estimate of I(r; u) (DPFE, Osia et al., 2018).

    The published code is not public: this is the reading of paper 004's baseline in which representation
    and secret are jointly Gaussian (`gaussian_information`). A privacy network is trained along to watch
    by. The null setting is weight = 0.
    """

    column: str
    weight: float = 1.0
    ridge: float = 0.01
    steps: int = 1
    warm_up: int = 2
    plain: Unguarded = field(default_factory=Unguarded)

    strength = Strength("weight", (0.0, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0))

    def hides(self) -> tuple[Hidden, ...]:
        return (Hidden("attribute", self.column),)

    def __post_init__(self) -> None:
        check(self, weight=NONNEGATIVE, ridge=POSITIVE)
        require(0 <= self.steps <= 5, "DPFE.steps", "from 0 to 5", self.steps)

    def train(self, lesson: Lesson) -> Guarded:
        check_column(lesson.data, self.column)
        source, made, private = begun(self.plain, lesson)
        shape = representation_shape(made.network, source.data, normed=self.plain.normed)
        told = protection(Inf2Guard("attribute", self.column), source.data, shape, private, head=True)
        assert isinstance(told, Told)
        made = against(made, told, self._term, self.weight, steps=self.steps)
        return taught(self, self.plain, lesson, source, made, warm_up=self.warm_up)

    def _term(self, seen: Seen, r: Tensor, head: nn.Module | None) -> Tensor:
        return gaussian_information(r[: seen.own], seen.private[self.column], ridge=self.ridge)


@dataclass(frozen=True)
class LAFTR(TimedGuard):
    """Task cross-entropy plus ``gamma`` times what an adversary gains, every value counting alike.

    Learning adversarially fair representations (Madras et al., ICML 2018), for demographic parity: encoder
    and adversary play about the mean over the secret's values of the belief in the right one, which has ends
    where cross-entropy has none. The null setting is gamma = 0.
    """

    column: str
    gamma: float = 1.0
    steps: int = 1
    warm_up: int = 2
    plain: Unguarded = field(default_factory=Unguarded)

    strength = Strength("gamma", (0.0, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0))

    def hides(self) -> tuple[Hidden, ...]:
        return (Hidden("attribute", self.column),)

    def __post_init__(self) -> None:
        check(self, gamma=NONNEGATIVE)
        require(1 <= self.steps <= 5, "LAFTR.steps", "from 1 to 5", self.steps)

    def train(self, lesson: Lesson) -> Guarded:
        check_column(lesson.data, self.column)
        source, made, private = begun(self.plain, lesson)
        shape = representation_shape(made.network, source.data, normed=self.plain.normed)
        told = protection(Inf2Guard("attribute", self.column), source.data, shape, private, head=True)
        assert isinstance(told, Told)
        fair = _Fair(told.sight, told.net, told.loss, told.prior)
        made = against(made, fair, fair.gain, self.gamma, steps=self.steps)
        return taught(self, self.plain, lesson, source, made, warm_up=self.warm_up)


@dataclass(frozen=True, eq=False)
class _Fair(Told):
    """A secret whose adversary plays for the mean belief in the right value, each value counting alike."""

    def gain(self, seen: Seen, r: Tensor, head: nn.Module | None) -> Tensor:
        inputs, target = self.sight.pairs(seen, r, head)
        right = self.net(inputs).softmax(1).gather(1, target[:, None])[:, 0]
        return torch.stack([right[target == code].mean() for code in target.unique()]).mean()

    def own(self, seen: Seen, r: Tensor, head: nn.Module | None, rng: torch.Generator) -> Tensor:
        return -self.gain(seen, r, head)


def gaussian_information(r: Tensor, codes: Tensor, *, ridge: float = 0.0) -> Tensor:
    """I(r; u) in nats if r (n, ...) and the one-hot u were jointly Gaussian: half the log ratio of the
    determinants of r's covariance and of its covariance around each value's mean.

    ``ridge`` of r's mean variance is added to both diagonals, without which there is no estimate from fewer
    records than coordinates; that variance is not differentiated."""
    flat = r.flatten(1).double()
    one_hot = F.one_hot(codes).to(flat)
    means = (one_hot.T @ flat) / one_hot.sum(0).clamp(min=1)[:, None]
    rests = flat - flat.mean(0), flat - means[codes]
    total, within = (rest.T @ rest / len(flat) for rest in rests)
    extra = ridge * total.detach().diagonal().mean() * torch.eye(len(total), dtype=flat.dtype)
    return (torch.logdet(total + extra) - torch.logdet(within + extra)).to(r.dtype) / 2
