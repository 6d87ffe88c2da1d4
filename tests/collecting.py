"""What an adversary can collect of each record, beside the one release that was meant for it.

Every way takes an encoder, records and a generator, and gives the releases it leads to: a tuple, in which
each tensor (n, ...) has one row for each record. The generator draws the holder's keys, so that a rehearsal
with another one knows the encoder and not the keys. In `KnownKey` the adversary knows them too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from leakscope.core.errors import POSITIVE, at_least, check
from leakscope.core.rng import integer
from leakscope.guards.encoder import Encoder
from leakscope.guards.keys import Key, rehearsed_key


@dataclass(frozen=True)
class OneRelease:
    """The one release that was meant."""

    def __call__(self, encoder: Encoder, x: Tensor, rng: torch.Generator) -> tuple[Tensor, ...]:
        return (encoder(x, key=_key(rng)),)


@dataclass(frozen=True)
class ManyKeys:
    """The same records, released under ``count`` keys, or with fresh draws: noise that can be averaged."""

    count: int = 16

    def __post_init__(self) -> None:
        check(self, count=at_least(1))

    def __call__(self, encoder: Encoder, x: Tensor, rng: torch.Generator) -> tuple[Tensor, ...]:
        return tuple(encoder(x, rng=rng) for _ in range(self.count))


@dataclass(frozen=True, eq=False)
class ManyEncoders:
    """The same records, released under one key by the encoder and by ``others`` that were saved beside it."""

    others: Sequence[Encoder]

    def __call__(self, encoder: Encoder, x: Tensor, rng: torch.Generator) -> tuple[Tensor, ...]:
        key = _key(rng)
        return tuple(one(x, key=key) for one in (encoder, *self.others))


@dataclass(frozen=True)
class Neighbours:
    """``count`` queries about each record under one key: it and others that differ by up to ``shift`` in
    every input. ``named``: they are asked for under the record's own id, as people are keyed.

    A shift below the grid (1e-5) gets one draw. One above it gets as many draws as there are cells, unless
    people have ids; then it is for the ledger to refuse.
    """

    count: int = 64
    shift: float = 1e-5
    named: bool = False

    def __post_init__(self) -> None:
        check(self, count=at_least(1), shift=POSITIVE)

    def __call__(self, encoder: Encoder, x: Tensor, rng: torch.Generator) -> tuple[Tensor, ...]:
        key, people = _key(rng), range(len(x)) if self.named else None
        shifts = [2 * torch.rand(x.shape, generator=rng, dtype=x.dtype) - 1 for _ in range(self.count - 1)]
        asked = [x, *(x + self.shift * one for one in shifts)]
        return tuple(encoder(one, key=key, people=people) for one in asked)


@dataclass(frozen=True, eq=False)
class ChangedRecord:
    """Two releases of a person under one key: of the record, and of the record as it was ``later``, such as
    after a birthday. ``named``: by the person's id, so that both have the same draw."""

    later: Tensor
    named: bool = True

    def __call__(self, encoder: Encoder, x: Tensor, rng: torch.Generator) -> tuple[Tensor, ...]:
        key, people = _key(rng), range(len(x)) if self.named else None
        return tuple(encoder(one, key=key, people=people) for one in (x, self.later))


@dataclass(frozen=True)
class KnownKey:
    """The one release, by an adversary who has the key and takes the noise off again."""

    def __call__(self, encoder: Encoder, x: Tensor, rng: torch.Generator) -> tuple[Tensor, ...]:
        key = _key(rng)
        r = encoder(x, key=key)
        if encoder.perturbation.silent:
            return (r,)
        return ((r.double() - encoder.perturbation.delta(encoder.draws(x, key))).to(r.dtype),)


def _key(rng: torch.Generator) -> Key:
    return rehearsed_key(integer(rng))
