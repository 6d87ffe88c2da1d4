"""Plain training, which baselines start from, and what they share."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch

from leakscope.core.errors import POSITIVE, at_least, check, or_none
from leakscope.core.rng import fork
from leakscope.guards.batches import Source, named
from leakscope.guards.encoder import Guarded
from leakscope.guards.hidden import Lesson, Strength, TimedGuard
from leakscope.guards.inf2guard import Inf2Guard, check_numbers, finished, unprotected
from leakscope.guards.protections import Term, Told
from leakscope.guards.trainer import Alternation, train
from leakscope.models.encoders import Architecture, TableEncoder


@dataclass(frozen=True)
class Unguarded(TimedGuard):
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
        check(self, epochs=at_least(1), batch=at_least(2), rate=POSITIVE, patience=or_none(at_least(1)))

    def train(self, lesson: Lesson) -> Guarded:
        source, made, _ = begun(self, lesson)
        return taught(self, self, lesson, source, made)


def begun(
    plain: Unguarded, lesson: Lesson, *, paired: bool = False
) -> tuple[Source, Alternation, torch.Generator]:
    """Records and untrained networks, drawn as `Inf2Guard` draws them, and a generator for a privacy
    network; ``paired``: every step sees as many others as records."""
    data, others = lesson.data, lesson.others
    check_numbers(data)
    split, nets, steps = fork(lesson.rng, 3)
    if others is None or paired:
        source = Source.of(data, plain.batch, split, others=others)
    else:
        source = Source(named(data), others, plain.batch)
    same: dict[str, Any] = vars(plain)
    made, _ = unprotected(Inf2Guard("membership", **same), source.data, nets, steps)
    (private,) = fork(nets, 1)
    return source, made, private


def taught(
    guard: object, plain: Unguarded, lesson: Lesson, source: Source, made: Alternation, *, warm_up: int = 0
) -> Guarded:
    """What the one trainer makes of the networks."""
    made = replace(made, name=type(guard).__name__)
    settings: dict[str, Any] = {"warm_up": warm_up, "patience": plain.patience}
    history = train(made, source, epochs=plain.epochs, **settings, progress=lesson.progress)
    return finished(made, plain.encoder, plain.head, (guard,), lesson.data, history)


def renamed(guarded: Guarded, guard: object, **changes: Any) -> Guarded:
    """What plain training gave, changed by a baseline that comes after it."""
    about = {**guarded.encoder.about, "guard": [repr(guard)]}
    return replace(guarded, encoder=replace(guarded.encoder, about=about, **changes))


def weighing(strength: float) -> float:
    """The trainer's lambda at which it descends loss + ``strength`` times a term: it mixes 1 - lambda of one
    with lambda of the other, the same up to a factor, which Adam does not see and the trainer's cap on the
    gradient sees later."""
    return strength / (1 + strength)


def against(made: Alternation, secret: Told, term: Term, strength: float, *, steps: int) -> Alternation:
    """The networks with a secret to guard by a term of the guard's own."""
    own = replace(secret, term=term)
    return replace(made, protections=(own,), weights=(1.0,), lam=weighing(strength), steps=steps)
