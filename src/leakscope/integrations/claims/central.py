"""Noise that a server adds to the mean of a round: what it is worth to whom, with all clients or a sample."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import ClassVar

import dp_accounting as dp  # type: ignore[import-untyped]
import torch
from torch import Tensor

from leakscope.audits.mechanism.duel import Duel, duel_of_releases, send_through
from leakscope.defenses.deployed import FlowerFixedClipping
from leakscope.defenses.gradient import noisy
from leakscope.integrations.claims.answer import (
    OUTSIDERS,
    RECORD,
    SERVER,
    Neighbours,
    Promise,
    Standing,
    Whose,
    show,
)
from leakscope.measures.accounting import epsilon_of
from leakscope.measures.epsilon import gaussian_mu

HIDDEN = "nobody who sees the models learns which clients took part in which round"


class Central(ABC):
    """Clip every client's update, add noise to their mean. A record is protected as its client is."""

    usual: ClassVar[tuple[Whose, Neighbours]] = ("client", "add or remove")
    leaves_zero: ClassVar[bool] = True  # a removed client, in a sum that is divided by a constant

    rounds: int | None
    delta: float

    @property
    @abstractmethod
    def people(self) -> int | None: ...

    @property
    @abstractmethod
    def multiplier(self) -> float:
        """The noise on the sum of a round, in units of the clipping norm; 0 if there is none."""

    @property
    @abstractmethod
    def norm(self) -> float:
        """The clipping norm; 1 where noise is in units of it, whatever it is."""

    @property
    @abstractmethod
    def sharing(self) -> float:
        """How many clients the mean is of."""

    @property
    @abstractmethod
    def drawn(self) -> tuple[int, int] | float | None:
        """(of how many clients, how many take part), or the chance of each; None where it is not known."""

    @property
    @abstractmethod
    def weight(self) -> float | None:
        """The largest client's weight in the mean, where 1 is an equal share; None where it is not known."""

    @property
    @abstractmethod
    def std(self) -> str: ...

    @abstractmethod
    def conditions(self) -> tuple[str, ...]: ...

    @abstractmethod
    def idle(self) -> tuple[str, ...]: ...

    @abstractmethod
    def name(self, noise: float) -> str:
        """The configuration with this noise multiplier, in the framework's words."""

    @property
    def promise(self) -> Promise | None:
        return None

    def event(self) -> dp.DpEvent:
        """Of the mean of one round in which the client takes part, for the client that leaves a zero."""
        noise = self.multiplier / (self.weight or 1.0)
        return dp.GaussianDpEvent(noise) if noise else dp.NonPrivateDpEvent()

    def standings(self, delta: float | None) -> tuple[Standing, ...]:
        at = delta or self.delta
        why = "the server sees uploads without noise"
        bare = [
            Standing(whose, SERVER, math.inf, math.inf, at, why, (), secure)
            for whose in ("upload", "client", "record")
            for secure in (False, True)
        ]
        mu = (self.weight or 1.0) / self.multiplier if self.multiplier else math.inf
        moved = f"mu = {mu:.6g} for a client added or removed, {2 * mu:.6g} for one replaced"
        if not self.leaves_zero:
            moved = f"mu = {2 * mu:.6g} for a client added, removed or replaced: the mean is of who answered"
        how = f"{self.std}; {moved}"
        conditions = self.conditions()
        if self.weight is None:
            conditions += ("all clients weigh the same in the mean; FedAvg weighs them by their records",)
        rows = [self._outside("upload", self.event(), at, how, conditions)]
        if self.rounds is not None:
            event = dp.SelfComposedDpEvent(self.event(), self.rounds)
            said = f"{how}; a client that takes part in all {self.rounds} rounds: mu x sqrt({self.rounds})"
            rows += [self._outside(whose, event, at, said, conditions) for whose in ("client", "record")]
            rows += self._sampled(at, conditions)
        return (*rows, *bare)

    def _sampled(self, delta: float, conditions: tuple[str, ...]) -> list[Standing]:
        """Where only some clients take part in a round, and nobody learns which."""
        if (
            self.drawn is None
            or not self.multiplier
            or (isinstance(self.drawn, tuple) and self.drawn[1] >= self.drawn[0])
        ):
            return []
        if isinstance(self.drawn, tuple):
            event = dp.SampledWithoutReplacementDpEvent(*self.drawn, self.event())
            how = f"{self.drawn[1]} of {self.drawn[0]} clients drawn a round, Renyi accountant"
        else:
            event = dp.PoissonSampledDpEvent(self.drawn, self.event())
            how = f"each client drawn with chance {self.drawn:.4g} a round, privacy loss distribution"
        whole = dp.SelfComposedDpEvent(event, self.rounds or 1)
        chance = self.drawn[1] / self.drawn[0] if isinstance(self.drawn, tuple) else self.drawn
        conditions = (*conditions, HIDDEN, "they are drawn anew at random")
        return [
            replace(self._outside(whose, whole, delta, how, conditions), chance=chance)
            for whose in ("client", "record")
        ]

    def _outside(
        self, whose: Whose, event: dp.DpEvent, delta: float, how: str, conditions: tuple[str, ...]
    ) -> Standing:
        replaced = epsilon_of(event, delta, replaced=True)
        added = epsilon_of(event, delta) if self.leaves_zero else replaced
        return Standing(whose, OUTSIDERS, added, replaced, delta, how, conditions)

    def assumed(self) -> tuple[str, ...]:
        words = ["Clients and server do as the package does, and nobody knows the seed of the noise."]
        if self.rounds is None:
            words.append("The rounds are not given: nothing is said of all rounds. Give rounds.")
        return tuple(words)

    def duel(self, row: Standing, neighbours: Neighbours) -> Duel | str:
        """The others' part of the mean is known, so that only the client's own is played, which is clipped; a
        client that is removed leaves a zero, or another in its place that is as far away as it can be."""
        if row.whose == "record":
            return RECORD
        gone = self.leaves_zero and neighbours == "add or remove"
        far = self.norm * (self.weight or 1.0) / self.sharing
        zero = 0.0 if gone else -far
        other = "none" if gone else "the opposite one"
        bare = row.against == SERVER
        std = 0.0 if bare else self.multiplier * self.norm / self.sharing
        clip = FlowerFixedClipping(far, 0.0)

        def release(means: Tensor, rng: torch.Generator) -> Tensor:
            return noisy({"mean": send_through(clip)(means, rng)}, std, rng)["mean"]

        return duel_of_releases(
            release,
            one=far,
            zero=zero,
            absent=zero if neighbours == "add or remove" else 0.0,
            std=std,
            uses=1 if row.whose == "upload" else self.rounds or 1,
            chance=row.chance,
            canary=f"a client's update beyond the clipping norm, or {other}",
        )

    def nearest(self, promise: Promise) -> str:
        times = 1 if promise.whose == "upload" else self.rounds or 1
        far = 1 if self.leaves_zero and promise.neighbours == "add or remove" else 2
        noise = far * math.sqrt(times) * (self.weight or 1.0) / gaussian_mu(promise.epsilon, promise.delta)
        return (
            f"{self.name(noise)}: with it epsilon {show(promise.epsilon)} of the {promise.whose} is true "
            f"against those {OUTSIDERS}, whoever takes part. Against the server nothing here helps: let "
            f"clients add noise."
        )
