"""What a guard is and what it says of itself: the secrets it hides, and how the game about each is played."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Protocol, get_args, runtime_checkable

import torch

from leakscope.core.dataset import Dataset
from leakscope.guards.batches import Aggregate
from leakscope.guards.encoder import Encoder, Guarded
from leakscope.guards.trainer import Progress

Secret = Literal["attribute", "property", "membership", "reconstruction"]
SECRETS: tuple[Secret, ...] = get_args(Secret)


@dataclass(frozen=True)
class Hidden:
    """A secret that a guard hides. ``lam`` is its weight, where that is one number. ``label_aware``: the
    guard's own network takes the label too. The rest is about the subsets of a property: which ``value`` is
    counted, which ``shares`` and ``sizes`` they have, and which ``aggregate`` of them is released."""

    secret: Secret
    column: str | None = None
    lam: float | None = None
    label_aware: bool = False
    value: int = 0
    shares: tuple[float, ...] = (0.2, 0.3, 0.4, 0.5)
    sizes: tuple[int, int] = (2, 100)
    aggregate: Aggregate = "mean"


@dataclass(frozen=True)
class Strength:
    """The one setting by which a guard is stronger or weaker, and usual values of it, weakest first."""

    setting: str
    values: tuple[float, ...]


class Guard(Protocol):
    """What trains an encoder; ``others`` are reference non-members. One that hides a secret of its own says
    so by a method ``hides() -> tuple[Hidden, ...]``, one that can be tuned by a ``strength``, one whose
    encoder must be told a secret of each record by ``told``, its column."""

    def __call__(
        self,
        data: Dataset,
        rng: torch.Generator,
        *,
        others: Dataset | None = None,
        progress: Progress | None = None,
    ) -> Guarded: ...


@dataclass(frozen=True, eq=False)
class Lesson:
    """What a guard is called with."""

    data: Dataset
    rng: torch.Generator
    others: Dataset | None = None
    progress: Progress | None = None


class TimedGuard(ABC):
    """A guard that says how long its training took, and whether it ``needs_classes``."""

    needs_classes: ClassVar[bool] = False

    def __call__(
        self,
        data: Dataset,
        rng: torch.Generator,
        *,
        others: Dataset | None = None,
        progress: Progress | None = None,
    ) -> Guarded:
        """The encoder for ``data``; ``others`` are reference non-members."""
        check_task(self, data)
        begun = time.perf_counter()
        guarded = self.train(Lesson(data, rng, others, progress))
        return replace(guarded, seconds=time.perf_counter() - begun)

    @abstractmethod
    def train(self, lesson: Lesson) -> Guarded:
        """The encoder, and what was seen on the way."""


@runtime_checkable
class _Hides(Protocol):
    def hides(self) -> tuple[Hidden, ...]: ...


def hidden_by(guard: object) -> tuple[Hidden, ...]:
    """The secrets that a guard says it hides: none for one that has no secret of its own."""
    return guard.hides() if isinstance(guard, _Hides) else ()


def repeat(guard: Guard, encoder: Encoder) -> Guard:
    """The guard by which an encoder like a trained one is made. One that seeks its own settings says by a
    method ``repeat(encoder)`` what it found, so that they are not sought again."""
    own = getattr(guard, "repeat", None)
    again: Guard = own(encoder) if callable(own) else guard
    return again


def check_task(guard: object, data: Dataset) -> None:
    """Refuse a label that is a number where a guard says that it needs classes."""
    if getattr(guard, "needs_classes", False):
        data.classes_for(type(guard).__name__)


def strength_of(guard: object) -> Strength | None:
    """The strength that a guard says it has, by an attribute ``strength``."""
    own: Strength | None = getattr(guard, "strength", None)
    return own


def told_to(guard: object) -> str | None:
    """The column that a guard says its encoder must be told of each record, by an attribute ``told``."""
    own: str | None = getattr(guard, "told", None)
    return own
