"""What is added to a representation before it leaves, and the draw of it that belongs to a person."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from leakscope.core.errors import require
from leakscope.guards.keys import Key

Kind = Literal["none", "gaussian", "uniform", "learned"]
KINDS = ("none", "gaussian", "uniform", "learned")


@dataclass(frozen=True, eq=False)
class Perturbation:
    """What is added to a representation before it leaves: delta, drawn anew or frozen for each person.

    "gaussian" and "uniform" have standard deviation ``scale``. "learned" is ``scale`` tanh(``mean`` +
    ``deviation`` z) with z standard normal (equation 21 of paper 003), the two of the representation's shape.
    """

    kind: Kind = "none"
    scale: float = 1.0
    mean: Tensor | None = None
    deviation: Tensor | None = None

    def __post_init__(self) -> None:
        require(self.kind in KINDS, "perturbation", f"one of {', '.join(KINDS)}", self.kind)
        require(0 <= self.scale < math.inf, "scale", "finite and at least 0", self.scale)

    @property
    def silent(self) -> bool:
        return self.kind == "none" or self.scale == 0

    def draws(self, like: Tensor, rng: torch.Generator) -> Tensor:
        """Fresh draws for representations (n, ...), before they are scaled and shaped."""
        draw = torch.rand if self.kind == "uniform" else torch.randn
        return draw(like.shape, generator=rng, dtype=like.dtype)

    def frozen(self, people: Iterable[bytes], shape: Sequence[int], key: Key, encoder: str) -> Tensor:
        """One draw (n, ...) for each person, the same whenever it is asked for, and another for another
        encoder (by its fingerprint): two releases under one key share nothing that a difference takes off.
        Who does not know the key cannot draw it again."""
        secret = key.derive("draw", encoder)
        rows = []
        for person in people:
            digest = hashlib.blake2b(person, key=secret, digest_size=16).digest()
            own = np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))
            rows.append(own.random(shape) if self.kind == "uniform" else own.standard_normal(shape))
        return torch.from_numpy(np.stack(rows) if rows else np.zeros((0, *shape)))

    def delta(self, draws: Tensor) -> Tensor:
        if self.kind == "uniform":
            return self.scale * math.sqrt(3) * (2 * draws - 1)
        if self.kind == "learned":
            assert self.mean is not None
            assert self.deviation is not None
            return self.scale * torch.tanh(self.mean + self.deviation * draws)
        return self.scale * draws
