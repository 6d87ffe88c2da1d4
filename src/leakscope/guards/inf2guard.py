"""Inf2Guard (paper 003): one encoder against membership, property, reconstruction or attribute inference."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from leakscope.core.dataset import Dataset
from leakscope.core.errors import ArgumentError, DataError, require
from leakscope.core.rng import fork, initialised
from leakscope.guards.batches import Aggregate, Source, Subsets
from leakscope.guards.encoder import KINDS, Encoder, Guarded, Kind, Perturbation, represented
from leakscope.guards.hidden import SECRETS, Hidden, Secret, Strength
from leakscope.guards.losses import DISTANCES, LOSSES, Loss
from leakscope.guards.networks import Critic, decoder, perceptron, reader
from leakscope.guards.protections import OfInputs, OfMembers, OfRecords, OfSubsets, Protection, Sight, Told
from leakscope.guards.trainer import Alternation, Phi, Progress, Rngs, train
from leakscope.guards.utilities import Agnostic, Autoencoder, Labels, Negatives, Utility
from leakscope.guards.utilities import Kind as Keeps
from leakscope.models.encoders import Architecture, TableEncoder, described

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Inf2Guard:
    """Train an encoder whose representations keep the task and lose a secret (paper 003; 004 for attributes).

    The encoder descends ``lam`` times a privacy term plus 1 - lam times a utility term; a privacy network
    takes ``steps`` steps after each of its own. ``loss`` "adversarial" is the papers' (the encoder ascends
    the network's cross-entropy: it fools that network and no other), "prior" pulls the network to the base
    rate, "clip" ascends up to H(u), "mmd" and "mean" are distances between groups and need no network.
    What holds against a new attacker is a bounded loss with noise: ``perturbation`` "gaussian" of ``scale`` 1
    on ``normed`` representations.

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

    strength = Strength("lam", (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0))

    def __post_init__(self) -> None:
        require(self.secret in SECRETS, "Inf2Guard.secret", f"one of {', '.join(SECRETS)}", self.secret)
        require(0 <= self.lam <= 1, "Inf2Guard.lam", "in [0, 1]", self.lam)
        require(self.loss in LOSSES, "Inf2Guard.loss", f"one of {', '.join(LOSSES)}", self.loss)
        require(0 <= self.steps <= 5, "Inf2Guard.steps", "from 0 to 5", self.steps)
        require(
            self.steps > 0 or self.blind, "Inf2Guard.steps", f"at least 1 with loss {self.loss!r}", self.steps
        )
        keeps = ("labels", "agnostic", "autoencoder")
        require(self.utility in keeps, "Inf2Guard.utility", f"one of {', '.join(keeps)}", self.utility)
        require(self.aggregate in ("mean", "max"), "Inf2Guard.aggregate", "mean or max", self.aggregate)
        require(
            self.perturbation in KINDS,
            "Inf2Guard.perturbation",
            f"one of {', '.join(KINDS)}",
            self.perturbation,
        )
        require(0 <= self.scale < math.inf, "Inf2Guard.scale", "finite and at least 0", self.scale)
        require(self.epochs >= 1, "Inf2Guard.epochs", "at least 1", self.epochs)
        require(self.batch >= 2, "Inf2Guard.batch", "at least 2", self.batch)
        require(0 < self.rate < math.inf, "Inf2Guard.rate", "finite and above 0", self.rate)
        require(self.warm_up >= 0, "Inf2Guard.warm_up", "at least 0", self.warm_up)
        require(
            self.patience is None or self.patience >= 1,
            "Inf2Guard.patience",
            "None or at least 1",
            self.patience,
        )
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
        """The subsets whose property is the secret."""
        return Subsets(str(self.column), self.value, self.shares, self.sizes)

    def hides(self) -> tuple[Hidden, ...]:
        """See `Hidden`."""
        return (
            Hidden(
                self.secret,
                self.column,
                self.lam,
                self.label_aware,
                self.value,
                self.shares,
                self.sizes,
                self.aggregate,
            ),
        )

    def __call__(
        self,
        data: Dataset,
        rng: torch.Generator,
        *,
        others: Dataset | None = None,
        progress: Progress | None = None,
    ) -> Guarded:
        """The encoder for ``data``; ``others`` are reference non-members, for membership only."""
        return guarded((self,), (1.0,), data, rng, others=others, progress=progress)


@dataclass(frozen=True)
class Guards:
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
        """The secret of each; several have no weight in common."""
        return tuple(replace(own, lam=None) for one in self.guards for own in one.hides())

    def __call__(
        self,
        data: Dataset,
        rng: torch.Generator,
        *,
        others: Dataset | None = None,
        progress: Progress | None = None,
    ) -> Guarded:
        """The encoder for ``data``, and the first secret's privacy network."""
        weights = self.weights or (1.0,) * len(self.guards)
        scaled = tuple(weight / sum(weights) for weight in weights)
        return guarded(self.guards, scaled, data, rng, others=others, progress=progress)


def guarded(
    guards: tuple[Inf2Guard, ...],
    weights: tuple[float, ...],
    data: Dataset,
    rng: torch.Generator,
    *,
    others: Dataset | None,
    progress: Progress | None,
) -> Guarded:
    """The encoder that the first guard describes, trained against the secrets of all."""
    begun, first = time.perf_counter(), guards[0]
    _check_data(guards, data, others)
    split, nets, steps = fork(rng, 3)
    subsets = next((one.subsets() for one in guards if one.secret == "property"), None)
    source = Source.of(data, first.batch, split, others=others, subsets=subsets)
    alternation = assembled(guards, weights, source.data, nets, steps)
    settings: dict[str, Any] = {"epochs": first.epochs, "warm_up": first.warm_up, "patience": first.patience}
    history = train(alternation, source, **settings, progress=progress)
    table = described(first.encoder) | ({"head": list(first.head)} if alternation.utility.head else {})
    encoder = Encoder(
        alternation.network,
        table,
        alternation.noise,
        first.normed,
        alternation.utility.head,
        about(guards, weights, data),
    )
    privacy = alternation.protections[0].net.eval() if first.steps else None
    return Guarded(encoder, privacy, history, time.perf_counter() - begun)


def about(guards: Sequence[Any], weights: tuple[float, ...], data: Dataset) -> dict[str, Any]:
    """What an encoder says of itself: no seed, by which its training could be repeated on other records, and
    no fingerprint of the records."""
    return {
        "guard": [repr(one) for one in guards],
        "weights": list(weights),
        "secret": [one.column or one.secret for one in guards],
        "loss": guards[0].loss,
        "lam": guards[0].lam,
        "data": data.name,
        "shape": list(data.x.shape[1:]),
        "classes": data.classes,
    }


def assembled(
    guards: tuple[Inf2Guard, ...],
    weights: tuple[float, ...],
    data: Dataset,
    nets: torch.Generator,
    steps: torch.Generator,
) -> Alternation:
    """The networks for ``data``, none of them trained."""
    first = guards[0]
    own, beside, *private = fork(nets, 2 + len(guards))
    network = initialised(lambda: first.encoder(data), own)
    shape = representation_shape(network, data, normed=first.normed)
    learned = Phi(shape) if first.perturbation == "learned" else None
    zeros = (torch.zeros(shape), torch.ones(shape)) if learned else (None, None)
    return Alternation(
        name=type(first).__name__,
        network=network,
        utility=initialised_utility(first, data, shape, beside),
        protections=tuple(
            protection(one, data, shape, mine, head=first.utility == "labels")
            for one, mine in zip(guards, private, strict=True)
        ),
        perturbation=Perturbation(first.perturbation, first.scale, *zeros),
        normed=first.normed,
        lam=first.lam,
        rngs=Rngs.of(steps),
        weights=weights,
        steps=first.steps,
        rate=first.rate,
        phi=learned,
    )


def initialised_utility(guard: Inf2Guard, data: Dataset, shape: Shape, rng: torch.Generator) -> Utility:
    """What the guard keeps, with a new network."""
    records = tuple(data.x.shape[1:])
    if guard.utility == "labels":
        net = initialised(lambda: reader(shape, data.classes, guard.head), rng)
        return Labels(net, both=guard.secret == "reconstruction")
    if guard.utility == "autoencoder":
        return Autoencoder(initialised(lambda: decoder(shape, records), rng), float(data.x.var()))
    values = 0 if guard.column is None else len(data.value_names(guard.column))
    critic = initialised(lambda: Critic(records, shape, values), rng)
    return Agnostic(critic, guard.column, values, guard.negatives)


def protection(
    guard: Inf2Guard, data: Dataset, shape: Shape, rng: torch.Generator, *, head: bool
) -> Protection:
    """What the guard protects, with a new privacy network."""
    if guard.secret == "reconstruction":
        critic = initialised(lambda: Critic(tuple(data.x.shape[1:]), shape), rng)
        return OfInputs(critic, guard.loss)
    sight, prior, inputs = _sight(guard, data, shape, head=head)
    if inputs is None:
        net: nn.Module = initialised(lambda: reader(shape, len(prior), guard.hidden), rng)
    else:
        net = initialised(lambda: perceptron((inputs, *guard.hidden, len(prior))), rng)
    return Told(sight, net, guard.loss, prior)


def _sight(guard: Inf2Guard, data: Dataset, shape: Shape, *, head: bool) -> tuple[Sight, Tensor, int | None]:
    """What the network sees, the chances of what it tells, and its inputs if they are not r."""
    if guard.secret == "membership":
        aware = guard.label_aware and head
        inputs = math.prod(shape) + 2 * data.classes + 1 if aware else None
        return OfMembers(aware), torch.full((2,), 0.5), inputs
    column = str(guard.column)
    if guard.secret == "property":
        count = len(guard.shares)
        return OfSubsets(column, guard.value, guard.aggregate), torch.full((count,), 1 / count), None
    counts = torch.bincount(data.secret(column), minlength=len(data.value_names(column)))
    return OfRecords(column), counts / counts.sum(), None


def representation_shape(network: nn.Module, data: Dataset, *, normed: bool) -> Shape:
    """The shape of one representation."""
    training = network.training
    with torch.no_grad():
        r = represented(network.eval(), data.x[:1], normed=normed)
    network.train(training)
    require(
        not (normed and r[0].numel() < 2),
        "Inf2Guard.normed",
        "False for a representation of one number",
        True,
    )
    return tuple(r.shape[1:])


def _check_data(guards: Sequence[Inf2Guard], data: Dataset, others: Dataset | None) -> None:
    wanted = any(one.secret == "membership" for one in guards)
    if wanted != (others is not None):
        raise ArgumentError(
            "others must be reference non-members where membership is the secret, and None otherwise, got "
            f"{'None' if others is None else f'{len(others)} records'}."
        )
    if not data.x.is_floating_point():
        raise DataError(
            f"{data.name}: a guard needs records of numbers, got {data.x.dtype}; embed words first."
        )
    for one in guards:
        check_column(data, one.column)


def check_column(data: Dataset, column: str | None) -> None:
    """Refuse a secret that is none."""
    if column is not None and len(data.secret(column).unique()) < 2:
        raise DataError(f"{data.name}: secret {column!r} has one value only; there is nothing to hide.")
