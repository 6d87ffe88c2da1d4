"""Plain training, which baselines start from, and what they share."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from leakscope.core.dataset import Dataset
from leakscope.core.errors import DataError, require
from leakscope.core.rng import fork, initialised
from leakscope.guards.batches import Seen, Source, named
from leakscope.guards.encoder import Encoder, Guarded, Perturbation
from leakscope.guards.hidden import Strength, hidden_by
from leakscope.guards.inf2guard import representation_shape
from leakscope.guards.networks import reader
from leakscope.guards.protections import Told, Watched
from leakscope.guards.trainer import Alternation, Progress, Rngs, train
from leakscope.guards.utilities import Labels
from leakscope.models.encoders import Architecture, TableEncoder, described

Term = Callable[[Seen, Tensor, nn.Module | None], Tensor]  # of records, representations and the task head


@dataclass(frozen=True)
class Unguarded:
    """Plain training of an encoder and a task head by Adam, which every baseline starts from.

    Fewer ``epochs``, or ``patience`` (see `train`), are the baseline of stopping early. With ``others`` all
    records are trained on, as membership needs, and the others only watched by; else a tenth is held back.
    """

    encoder: Architecture = field(default_factory=TableEncoder)
    head: tuple[int, ...] = (64,)
    epochs: int = 20
    batch: int = 256
    rate: float = 2e-3
    normed: bool = False
    patience: int | None = None

    strength = Strength("epochs", (35, 20, 12, 8, 6, 4, 3, 2, 1))

    def __post_init__(self) -> None:
        require(self.epochs >= 1, "Unguarded.epochs", "at least 1", self.epochs)
        require(self.batch >= 2, "Unguarded.batch", "at least 2", self.batch)
        require(0 < self.rate < math.inf, "Unguarded.rate", "finite and above 0", self.rate)
        rule, patience = "None or at least 1", self.patience
        require(patience is None or patience >= 1, "Unguarded.patience", rule, patience)

    def __call__(
        self,
        data: Dataset,
        rng: torch.Generator,
        *,
        others: Dataset | None = None,
        progress: Progress | None = None,
    ) -> Guarded:
        """See `Inf2Guard`."""
        source, made, _ = begun(self, data, rng, others=others)
        return taught(self, self, source, made, data=data, rng=rng, progress=progress)


def begun(
    plain: Unguarded, data: Dataset, rng: torch.Generator, *, others: Dataset | None, paired: bool = False
) -> tuple[Source, Alternation, torch.Generator]:
    """Records and untrained networks, drawn as `Inf2Guard` draws them, and a generator for a privacy
    network; ``paired``: every step sees as many others as records."""
    if not data.x.is_floating_point():
        raise DataError(
            f"{data.name}: a guard needs records of numbers, got {data.x.dtype}; embed words first."
        )
    split, nets, steps = fork(rng, 3)
    if others is None or paired:
        source = Source.of(data, plain.batch, split, others=others)
    else:
        source = Source(named(data), others, plain.batch)
    own, beside, private = fork(nets, 3)
    network = initialised(lambda: plain.encoder(source.data), own)
    shape = representation_shape(network, data, normed=plain.normed)
    head = initialised(lambda: reader(shape, data.classes, plain.head), beside)
    made = Alternation(
        name=type(plain).__name__,
        network=network,
        utility=Labels(head),
        protections=(),
        perturbation=Perturbation(),
        normed=plain.normed,
        lam=0.0,
        rngs=Rngs.of(steps),
        weights=(),
        steps=0,
        rate=plain.rate,
    )
    return source, made, private


def taught(
    guard: object,
    plain: Unguarded,
    source: Source,
    made: Alternation,
    *,
    data: Dataset,
    rng: torch.Generator,
    progress: Progress | None,
    warm_up: int = 0,
) -> Guarded:
    """What the one trainer makes of the networks."""
    since = time.perf_counter()
    made = replace(made, name=type(guard).__name__)
    history = train(
        made, source, epochs=plain.epochs, warm_up=warm_up, patience=plain.patience, progress=progress
    )
    privacy = made.protections[0].net.eval() if "privacy" in made.leaves else None
    encoder = encoded(guard, plain, made, data)
    return Guarded(encoder, privacy, history, time.perf_counter() - since)


def encoded(
    guard: object,
    plain: Unguarded,
    made: Alternation,
    data: Dataset,
    **more: Any,
) -> Encoder:
    """The encoder of trained networks, and what it says of itself."""
    about = {
        "guard": [repr(guard)],
        "secret": [one.column or one.secret for one in hidden_by(guard)] or ["none"],
        "data": data.name,
        "shape": list(data.x.shape[1:]),
        "classes": data.classes,
        **more,
    }
    table = described(plain.encoder) | {"head": list(plain.head)}
    return Encoder(made.network, table, made.noise, made.normed, made.utility.head, about)


def renamed(guarded: Guarded, guard: object, **changes: Any) -> Guarded:
    """What plain training gave, changed by a baseline that comes after it."""
    about = {**guarded.encoder.about, "guard": [repr(guard)]}
    return replace(guarded, encoder=replace(guarded.encoder, about=about, **changes))


@dataclass(frozen=True, eq=False)
class Descending:
    """A secret told as `Told` has it, against which the encoder descends a term of its own."""

    told: Told
    term: Term

    @property
    def net(self) -> nn.Module:
        """See `Protection`."""
        return self.told.net

    def penalty(self, seen: Seen, r: Tensor, head: nn.Module | None, rng: torch.Generator) -> Tensor:
        """See `Protection`."""
        return self.term(seen, r, head)

    def own(self, seen: Seen, r: Tensor, head: nn.Module | None, rng: torch.Generator) -> Tensor:
        """See `Protection`."""
        return self.told.own(seen, r, head, rng)

    def watched(self, seen: Seen, r: Tensor, head: nn.Module | None, rng: torch.Generator) -> Watched:
        """See `Protection`."""
        return self.told.watched(seen, r, head, rng)


def weighing(strength: float) -> float:
    """The trainer's lambda at which it descends loss + ``strength`` times a term: it mixes 1 - lambda of one
    with lambda of the other, the same up to a factor, which Adam does not see and the trainer's cap on the
    gradient sees later."""
    return strength / (1 + strength)


def against(made: Alternation, secret: Descending, strength: float, *, steps: int) -> Alternation:
    """The networks with a secret to guard."""
    return replace(made, protections=(secret,), weights=(1.0,), lam=weighing(strength), steps=steps)
