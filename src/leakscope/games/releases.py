"""What an adversary may hold of one record: more than one release, the label beside it, or the key.

A guard is judged by one release of each record. Whoever uses it gives out more: labels travel with
representations, records are encoded again, by another encoder, after a change, under a key that may be lost.
Each such holding is a channel of its own, so that every attack can be played against it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Self, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from leakscope.core.dataset import Dataset
from leakscope.core.errors import ArgumentError, require
from leakscope.core.task import is_number
from leakscope.games.representations import RepresentationChannel
from leakscope.guards.encoder import BLOCK, Encoder

Holding = Literal["once", "again", "beside", "near", "stepped", "changed", "named", "keyed", "nothing"]
HOLDINGS: tuple[Holding, ...] = get_args(Holding)
NEAR = 1e-5  # how far a neighbouring query lies from the record: what nobody would notice
SOME = 256  # records by which it is seen who gets a draw of its own
SAME = 0.1  # of the deviation of noise: draws that differ by less, as a grid makes them, are one


@dataclass(frozen=True, eq=False)
class HoldingChannel(RepresentationChannel):
    """What the adversary holds of each record, in one row of numbers.

    "once": one release. "again": the mean of ``draws`` fresh ones, which says as much as all of them where
    noise is Gaussian. "beside": the releases of two encoders under one key, and their difference. "near": the
    mean of ``draws`` releases of queries that nobody would tell from the record; "stepped": of queries one
    step of the encoder's grid away, where whoever has no id gets another draw. "changed": the record's
    release, that of the record after one number has moved by ``change``, and their difference; "named": the
    same of a person who is keyed by an id. "keyed": the release without its noise, as whoever has the key
    takes it off. "nothing": no release. ``labelled``: the task's label too.

    Which of these share a draw is not assumed: the encoder is asked. Means of many fresh draws are drawn by
    their law in place of one by one, and a record that has a neighbour with a draw of its own counts as if
    all had one. ``by_law``: so is every draw that no other release shares, as in a rehearsal, which has no
    key to respect.
    """

    holding: Holding = "once"
    labelled: bool = False
    second: Encoder | None = None
    change: float = 0.1
    by_law: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        known = self.holding in HOLDINGS
        require(known, "HoldingChannel.holding", f"one of {', '.join(HOLDINGS)}", self.holding)
        require(self.aggregate is None, "HoldingChannel.aggregate", "None", self.aggregate)
        if (self.holding == "beside") != (self.second is not None):
            raise ArgumentError(
                "HoldingChannel.second must be an encoder where two stand beside each other, and None "
                f"otherwise, got {type(self.second).__name__} for {self.holding!r}."
            )

    def rehearsed(self, rng: torch.Generator) -> Self:
        return replace(super().rehearsed(rng), by_law=True)

    def blur(self, data: Dataset) -> float | None:
        """The deviation of the noise on each of the numbers that `clean` gives, where it is one for all and
        independent; None where it is not, or there is none. ``data`` are records to see it by."""
        noise = self.encoder.perturbation
        if (
            self.holding in ("changed", "named", "keyed", "nothing")
            or noise.silent
            or noise.kind == "learned"
        ):
            return None
        if self.second is None:
            asked = self.holding in ("near", "stepped")
            one = self.holding == "once" or (asked and self._fresh(data.x) < 0.5)
            return noise.scale / math.sqrt(1 if one else self.draws)
        other = self.second.perturbation
        alike = (other.kind, other.scale) == (noise.kind, noise.scale)
        return noise.scale if alike and not self._shared(data.x) else None

    def clean(self, data: Dataset) -> Tensor:
        """The first numbers of a row (n, f), had there been no noise."""
        both = [self.encoder] if self.second is None else [self.encoder, self.second]
        return torch.cat([without_noise(one, data.x) for one in both], dim=1)

    def _held(self, data: Dataset, rng: torch.Generator) -> Tensor:
        shown = self._shown(data.x, rng)
        return torch.cat([shown, label_columns(data)], dim=1) if self.labelled else shown

    def _shown(self, x: Tensor, rng: torch.Generator) -> Tensor:
        if self.holding == "nothing":
            return torch.zeros(len(x), 1)
        if self.holding == "keyed":
            return without_noise(self.encoder, x)
        if self.holding == "again":
            return self._mean(x, torch.full((len(x),), self.draws), rng)
        if self.holding in ("near", "stepped"):
            fresh = torch.rand(len(x), generator=rng) < self._fresh(x)
            return self._mean(x, torch.where(fresh, self.draws, 1), rng)
        if self.by_law and self.holding == "once":
            drawn: Tensor = self.encoder(x, rng=rng)
            return drawn.flatten(1)
        people = range(len(x)) if self.holding == "named" else None
        first = self._frozen(self.encoder, x, people)
        if self.holding == "once":
            return first
        if self.second is not None:
            other = self._frozen(self.second, x)
        else:
            other = self._frozen(self.encoder, moved(x, self.change), people)
        difference = [first - other] if first.shape == other.shape else []
        return torch.cat([first, other, *difference], dim=1)

    def _frozen(self, encoder: Encoder, x: Tensor, people: Sequence[object] | None = None) -> Tensor:
        """The release of each record under the key."""
        released: Tensor = encoder(x, key=self.key, people=people)
        return released.flatten(1)

    def _mean(self, x: Tensor, counts: Tensor, rng: torch.Generator) -> Tensor:
        """The mean of so many fresh draws of each record; of Gaussian noise by its law."""
        noise, clean = self.encoder.perturbation, without_noise(self.encoder, x)
        if noise.silent:
            return clean
        if noise.kind == "gaussian":
            return clean + noise.delta(noise.draws(clean, rng)) / counts.sqrt()[:, None]
        total = torch.zeros_like(clean)
        for i in range(int(counts.max())):
            drawn = self.encoder(x, rng=rng).flatten(1)
            total += torch.where((i < counts)[:, None], drawn, torch.zeros_like(drawn))
        return total / counts[:, None]

    def _fresh(self, x: Tensor) -> float:
        """The share of neighbouring queries that get a draw of their own."""
        some, away = x[:SOME], NEAR if self.holding == "near" else self.encoder.input_step
        return self._apart(self.encoder, some, self.encoder, some + away)

    def _shared(self, x: Tensor) -> bool:
        """Whether both encoders' draws are one."""
        assert self.second is not None
        same = without_noise(self.encoder, x[:1]).shape == without_noise(self.second, x[:1]).shape
        return same and self._apart(self.encoder, x[:SOME], self.second, x[:SOME]) < 0.5

    def _apart(self, one: Encoder, x: Tensor, other: Encoder, near: Tensor) -> float:
        if one.perturbation.silent or other.perturbation.silent:
            return 0.0
        first, second = (
            self._frozen(e, part) - without_noise(e, part) for e, part in ((one, x), (other, near))
        )
        gap = (first / one.perturbation.scale - second / other.perturbation.scale).abs().amax(1)
        return float((gap > SAME).double().mean())


@torch.no_grad()
def without_noise(encoder: Encoder, x: Tensor) -> Tensor:
    """Clean representations (n, f)."""
    return torch.cat([encoder.clean(part) for part in x.split(BLOCK)]).flatten(1)


def label_columns(data: Dataset) -> Tensor:
    """The task's label of each record as numbers (n, l)."""
    if is_number(data.y):
        return data.y.float().reshape(len(data), -1)
    return F.one_hot(data.y, data.classes).float()


def moved(x: Tensor, change: float) -> Tensor:
    """Records after a birthday: the first of their numbers that takes more than two values moves by so much;
    of marks that are all 0 or 1 the first is turned over."""
    flat = x.flatten(1).clone()
    for place in range(flat.shape[1]):
        if len(flat[:, place].unique()) > 2:
            flat[:, place] += change
            return flat.view_as(x)
    flat[:, 0] = 1 - flat[:, 0]
    return flat.view_as(x)
