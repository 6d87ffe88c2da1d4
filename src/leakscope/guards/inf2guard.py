"""Inf2Guard (paper 003): one encoder against membership, property, reconstruction or attribute inference."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, get_args

import torch
from torch import Tensor, nn

from leakscope.core.dataset import Dataset
from leakscope.core.errors import (
    NONNEGATIVE,
    POSITIVE,
    ArgumentError,
    DataError,
    at_least,
    check,
    one_of,
    or_none,
    require,
)
from leakscope.core.rng import fork, initialised
from leakscope.guards.batches import Aggregate, Source, Subsets
from leakscope.guards.encoder import KINDS, Encoder, Guarded, Kind, Perturbation, represented
from leakscope.guards.hidden import SECRETS, Hidden, Lesson, Secret, Strength, TimedGuard, hidden_by
from leakscope.guards.losses import DISTANCES, LOSSES, Loss
from leakscope.guards.networks import Critic, decoder, reader
from leakscope.guards.protections import OfInputs, OfMembers, OfRecords, OfSubsets, Protection, Sight, Told
from leakscope.guards.trainer import Alternation, Phi, Rngs, train
from leakscope.guards.utilities import Agnostic, Autoencoder, Labels, Negatives, Utility
from leakscope.guards.utilities import Kind as Keeps
from leakscope.models.encoders import Architecture, TableEncoder, described
from leakscope.models.layers import perceptron

Shape = tuple[int, ...]
STEPS, LEAST_BATCH, MOST_BATCH = 24, 64, 512  # of a guard whose pace nobody chose


@dataclass(frozen=True)
class Inf2Guard(TimedGuard):
    """Train an encoder whose representations keep the task and lose a secret (paper 003; 004 for attributes).

    The encoder descends ``lam`` times a privacy term plus 1 - lam times a utility term; a privacy network
    takes ``steps`` steps after each of its own. ``loss`` "adversarial" is the papers' (the encoder ascends
    the network's cross-entropy: it fools that network and no other), "prior" pulls the network to the base
    rate, "clip" ascends up to H(u), "mmd" and "mean" are distances between groups and "ridge" is the best
    kernel-ridge adversary of the batch; these need no network. What holds against a new attacker is a bounded
    loss with noise: ``perturbation`` "gaussian" on ``normed`` representations. The privacy term is of
    representations ``before_noise``, since what is hidden under noise is found by whoever averages it; False
    is the papers' reading (against reconstruction it is always after). ``given_label`` is the weight, in a
    distance, of what is there beyond the task's label, which whoever uses a representation has. A distance
    takes time that grows with the square of the batch; with ``compared`` it is of so many records of it.
    Over the epochs ``rate`` falls to the share ``last_rate`` of itself.

    "attribute": ``column`` of each record. "property": the share of records with ``value`` of ``column`` in
    subsets, from their ``aggregate``. "membership": from the representation, or (``label_aware``) from
    label, logits and loss too; needs ``others``. "reconstruction": a critic of (record, representation).
    ``utility`` is the task's loss, the task-agnostic I(x; r | u), or a decoder's error. lam = 0 is plain
    training.
    """

    secret: Secret = "attribute"
    column: str | None = None
    lam: float = 0.5
    loss: Loss = "prior"
    steps: int = 2
    utility: Keeps = "labels"
    aggregate: Aggregate = "mean"
    label_aware: bool = False
    perturbation: Kind = "none"
    scale: float = 1.0
    normed: bool = False
    encoder: Architecture = field(default_factory=TableEncoder)
    head: tuple[int, ...] = (64,)
    hidden: tuple[int, ...] = (128, 64)
    epochs: int = 20
    batch: int = 256
    rate: float = 2e-3
    warm_up: int = 2
    patience: int | None = None
    negatives: Negatives = "random"
    value: int = 0
    shares: tuple[float, ...] = (0.2, 0.3, 0.4, 0.5)
    sizes: tuple[int, int] = (2, 100)
    before_noise: bool = True
    given_label: float = 0.0
    entropy_weight: float = 0.01
    compared: int | None = None
    last_rate: float = 1.0

    strength = Strength("lam", (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0))

    def __post_init__(self) -> None:
        check(self, secret=one_of(*SECRETS), loss=one_of(*LOSSES), utility=one_of(*get_args(Keeps)))
        check(self, perturbation=one_of(*KINDS), scale=NONNEGATIVE, rate=POSITIVE, warm_up=at_least(0))
        check(self, epochs=at_least(1), batch=at_least(2), patience=or_none(at_least(1)))
        check(self, entropy_weight=NONNEGATIVE, compared=or_none(at_least(8)))
        require(0 < self.last_rate <= 1, "Inf2Guard.last_rate", "above 0 and at most 1", self.last_rate)
        require(0 <= self.lam <= 1, "Inf2Guard.lam", "in [0, 1]", self.lam)
        weighed = self.given_label == 0 or self.loss in DISTANCES
        rule = f"in [0, 1], and 0 with loss {self.loss!r}" if not weighed else "in [0, 1]"
        require(0 <= self.given_label <= 1 and weighed, "Inf2Guard.given_label", rule, self.given_label)
        require(0 <= self.steps <= 5, "Inf2Guard.steps", "from 0 to 5", self.steps)
        rule = f"at least 1 with loss {self.loss!r}"
        require(self.steps > 0 or self.blind, "Inf2Guard.steps", rule, self.steps)
        require(self.aggregate in ("mean", "max"), "Inf2Guard.aggregate", "mean or max", self.aggregate)
        self._check_together()

    @property
    def blind(self) -> bool:
        """Whether the encoder is trained without looking at a privacy network."""
        return self.lam == 0 or self.loss in DISTANCES

    def _check_together(self) -> None:
        if (self.column is None) == (self.secret in ("attribute", "property")):
            raise ArgumentError(
                f"Inf2Guard.column must name a private column for attributes and properties, and be None "
                f"otherwise, got {self.column!r} for secret {self.secret!r}."
            )
        if self.secret == "reconstruction" and self.loss in DISTANCES:
            raise ArgumentError(
                f"Inf2Guard.loss must be adversarial, prior or clip against reconstruction, which has no "
                f"groups, got {self.loss!r}."
            )
        if self.label_aware and (self.secret != "membership" or self.utility != "labels"):
            raise ArgumentError(
                "Inf2Guard.label_aware must be False unless the secret is membership and utility is labels, "
                "since it looks at the task head."
            )
        if self.secret == "property":
            self.subsets()

    def subsets(self) -> Subsets:
        return Subsets(str(self.column), self.value, self.shares, self.sizes)

    def hides(self) -> tuple[Hidden, ...]:
        own: dict[str, Any] = {part.name: getattr(self, part.name) for part in fields(Hidden)}
        return (Hidden(**own),)

    def train(self, lesson: Lesson) -> Guarded:
        return guarded((self,), (1.0,), lesson)


@dataclass(frozen=True)
class Guards(TimedGuard):
    """One encoder against several secrets, each with its weight.

    The first guard says how is trained: its encoder, utility, lam, noise, epochs. Of the others secret,
    column and loss count, and what their privacy network sees. Without ``weights`` all weigh the same, and
    weights are scaled to sum to 1.
    """

    guards: tuple[Inf2Guard, ...]
    weights: tuple[float, ...] | None = None

    def __init__(self, *guards: Inf2Guard, weights: Sequence[float] | None = None) -> None:
        require(len(guards) >= 1, "Guards", "at least one guard", guards)
        object.__setattr__(self, "guards", guards)
        object.__setattr__(self, "weights", None if weights is None else tuple(weights))
        if weights is not None:
            fine = len(weights) == len(guards) and min(weights) >= 0 and 0 < sum(weights) < math.inf
            require(fine, "Guards.weights", f"{len(guards)} of at least 0, not all 0", weights)
        if len({one.subsets() for one in guards if one.secret == "property"}) > 1:
            raise ArgumentError(
                "Guards can guard one property at a time, got two; give their union as one column."
            )

    def __repr__(self) -> str:
        inner = [*map(repr, self.guards), *([f"weights={self.weights}"] if self.weights else [])]
        return f"Guards({', '.join(inner)})"

    def hides(self) -> tuple[Hidden, ...]:
        """The secret of each, all by the lam of the first."""
        return tuple(replace(own, lam=self.guards[0].lam) for one in self.guards for own in one.hides())

    def train(self, lesson: Lesson) -> Guarded:
        """The privacy network is that of the first secret."""
        weights = self.weights or (1.0,) * len(self.guards)
        return guarded(self.guards, tuple(weight / sum(weights) for weight in weights), lesson)


def guarded(guards: tuple[Inf2Guard, ...], weights: tuple[float, ...], lesson: Lesson) -> Guarded:
    """The encoder that the first guard describes, trained against the secrets of all."""
    first, data = guards[0], lesson.data
    _check_data(guards, data, lesson.others)
    split, nets, steps = fork(lesson.rng, 3)
    subsets = next((one.subsets() for one in guards if one.secret == "property"), None)
    source = Source.of(data, first.batch, split, others=lesson.others, subsets=subsets)
    made = assembled(guards, weights, source.data, nets, steps)
    settings: dict[str, Any] = {"warm_up": first.warm_up, "patience": first.patience}
    settings |= {"last_rate": first.last_rate, "progress": lesson.progress}
    history = train(made, source, epochs=first.epochs, **settings)
    return finished(made, first.encoder, first.head, guards, data, history, **about(first, weights))


def pace(records: int) -> dict[str, Any]:
    """With which settings an attribute of so many records is guarded where nobody chooses them: about
    ``STEPS`` steps an epoch, each against half of its batch."""
    batch = max(LEAST_BATCH, min(MOST_BATCH, records // STEPS))
    return {"epochs": 40, "batch": batch, "compared": batch // 2, "last_rate": 0.02}


def about(first: Any, weights: tuple[float, ...]) -> dict[str, Any]:
    """How the secrets are weighed, for the encoder to say."""
    return {"weights": list(weights), "loss": first.loss, "lam": first.lam}


def finished(
    made: Alternation,
    encoder: Architecture,
    head: tuple[int, ...],
    guards: Sequence[object],
    data: Dataset,
    history: Sequence[Mapping[str, float]],
    **more: Any,
) -> Guarded:
    """Trained networks as an encoder that says of itself no seed, by which its training could be repeated on
    other records, and no fingerprint of the records."""
    secrets = [own.column or own.secret for one in guards for own in hidden_by(one)]
    said = {
        "guard": [repr(one) for one in guards],
        "secret": secrets or ["none"],
        "data": data.name,
        "shape": list(data.x.shape[1:]),
        "classes": data.task.outputs,
        **more,
    }
    table = described(encoder) | ({"head": list(head)} if made.head else {})
    privacy = made.protections[0].net.eval() if "privacy" in made.leaves else None
    trained = Encoder(made.network, table, made.noise, made.normed, made.head, said)
    return Guarded(trained, privacy, tuple(history))


def assembled(
    guards: tuple[Inf2Guard, ...],
    weights: tuple[float, ...],
    data: Dataset,
    nets: torch.Generator,
    steps: torch.Generator,
) -> Alternation:
    """The networks for ``data``, none of them trained."""
    made, shape = unprotected(guards[0], data, nets, steps)
    pairs = zip(guards, fork(nets, len(guards)), strict=True)
    protections = tuple(protection(one, data, shape, own, head=made.utility.task) for one, own in pairs)
    return replace(made, protections=protections, weights=weights, lam=guards[0].lam, steps=guards[0].steps)


def unprotected(
    guard: Inf2Guard, data: Dataset, nets: torch.Generator, steps: torch.Generator
) -> tuple[Alternation, Shape]:
    own, beside = fork(nets, 2)
    network = initialised(lambda: guard.encoder(data), own)
    shape = representation_shape(network, data, normed=guard.normed)
    learned = Phi(shape) if guard.perturbation == "learned" else None
    zeros = (torch.zeros(shape), torch.ones(shape)) if learned else (None, None)
    made = Alternation(
        name=type(guard).__name__,
        network=network,
        utility=initialised_utility(guard, data, shape, beside),
        perturbation=Perturbation(guard.perturbation, guard.scale, *zeros),
        normed=guard.normed,
        rngs=Rngs(*fork(steps, 5)),
        rate=guard.rate,
        phi=learned,
        entropy_weight=guard.entropy_weight,
    )
    return made, shape


def initialised_utility(guard: Inf2Guard, data: Dataset, shape: Shape, rng: torch.Generator) -> Utility:
    records = tuple(data.x.shape[1:])
    if guard.utility == "labels":
        net = initialised(lambda: reader(shape, data.task.outputs, guard.head), rng)
        return Labels(net, both=guard.secret == "reconstruction")
    if guard.utility == "autoencoder":
        return Autoencoder(initialised(lambda: decoder(shape, records), rng), float(data.x.var()))
    values = 0 if guard.column is None else len(data.value_names(guard.column))
    critic = initialised(lambda: Critic(records, shape, values), rng)
    return Agnostic(critic, guard.column, values, guard.negatives)


def protection(
    guard: Inf2Guard, data: Dataset, shape: Shape, rng: torch.Generator, *, head: bool
) -> Protection:
    if guard.secret == "reconstruction":
        critic = initialised(lambda: Critic(tuple(data.x.shape[1:]), shape), rng)
        return OfInputs(critic, guard.loss)
    sight, prior, inputs = _sight(guard, data, shape, head=head)
    if inputs is None:
        net: nn.Module = initialised(lambda: reader(shape, len(prior), guard.hidden), rng)
    else:
        net = initialised(lambda: perceptron((inputs, *guard.hidden, len(prior))), rng)
    more = {"given": guard.given_label, "noisy": not guard.before_noise, "compared": guard.compared}
    return Told(sight, net, guard.loss, prior, **more)  # type: ignore[arg-type]


def _sight(guard: Inf2Guard, data: Dataset, shape: Shape, *, head: bool) -> tuple[Sight, Tensor, int | None]:
    """What the network sees, the chances of what it tells, and its inputs if they are not r."""
    if guard.secret == "membership":
        aware = guard.label_aware and head
        inputs = math.prod(shape) + 2 * data.task.outputs + 1 if aware else None
        return OfMembers(aware), torch.full((2,), 0.5), inputs
    column = str(guard.column)
    if guard.secret == "property":
        count = len(guard.shares)
        return OfSubsets(column, guard.value, guard.aggregate), torch.full((count,), 1 / count), None
    counts = torch.bincount(data.secret(column), minlength=len(data.value_names(column)))
    return OfRecords(column), counts / counts.sum(), None


def representation_shape(network: nn.Module, data: Dataset, *, normed: bool) -> Shape:
    training = network.training
    with torch.no_grad():
        r = represented(network.eval(), data.x[:1], normed=normed)
    network.train(training)
    rule = "False for a representation of one number"
    require(not (normed and r[0].numel() < 2), "Inf2Guard.normed", rule, True)
    return tuple(r.shape[1:])


def _check_data(guards: Sequence[Inf2Guard], data: Dataset, others: Dataset | None) -> None:
    wanted = any(one.secret == "membership" for one in guards)
    if wanted != (others is not None):
        raise ArgumentError(
            "others must be reference non-members where membership is the secret, and None otherwise, got "
            f"{'None' if others is None else f'{len(others)} records'}."
        )
    check_numbers(data)
    for one in guards:
        check_column(data, one.column)


def check_column(data: Dataset, column: str | None) -> None:
    """Refuse a secret that is none."""
    if column is not None and len(data.secret(column).unique()) < 2:
        raise DataError(f"{data.name}: secret {column!r} has one value only; there is nothing to hide.")


def check_numbers(data: Dataset) -> None:
    if not data.x.is_floating_point():
        raise DataError(
            f"{data.name}: a guard needs records of numbers, got {data.x.dtype}; embed words first."
        )
