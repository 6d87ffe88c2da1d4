"""Baselines that take a secret out of a plain representation by a linear map: LEACE and INLP.

Both leave nothing that a linear attacker finds. A network is none: what of the secret is not linear stays.
They are here as a warning, under the same attackers as every guard.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from leakscope.core.errors import at_least, check, require
from leakscope.guards.encoder import Guarded
from leakscope.guards.hidden import Hidden, Lesson, Strength, TimedGuard
from leakscope.guards.inf2guard import check_column
from leakscope.guards.plain import Unguarded, renamed
from leakscope.models.encoders import TableEncoder

SMALL = 1e-5  # of the largest variance: directions with less are none


@dataclass(frozen=True)
class LEACE(TimedGuard):
    """The least change of a plain representation after which no linear attacker finds the secret.

    Least-squares concept erasure (Belrose et al., NeurIPS 2023): r - W^+ P W (r - mean), W whitening r and P
    the projection onto what of W r varies with the secret. Every value then has the same mean. The null
    setting is erase = 0.
    """

    column: str
    erase: int = 1
    plain: Unguarded = field(default_factory=Unguarded)

    strength = Strength("erase", (0, 1))

    def __post_init__(self) -> None:
        require(self.erase in (0, 1), "LEACE.erase", "0 or 1", self.erase)
        _check_plain("LEACE", self.plain)

    def hides(self) -> tuple[Hidden, ...]:
        return (Hidden("attribute", self.column),)

    def train(self, lesson: Lesson) -> Guarded:
        check_column(lesson.data, self.column)
        found = self.plain.train(lesson)
        if not self.erase:
            return renamed(found, self)
        r = found.encoder(lesson.data.x).double()
        matrix, shift = leace(r, lesson.data.secret(self.column))
        return renamed(found, self, network=folded(found.encoder.network, matrix, shift))


@dataclass(frozen=True)
class INLP(TimedGuard):
    """Iterative null-space projection (Ravfogel et al., ACL 2020) of a plain representation.

    ``rounds`` times a linear attacker is fitted to the secret, by least squares, and the direction it uses is
    taken out of the representation. The null setting is rounds = 0.
    """

    column: str
    rounds: int = 4
    plain: Unguarded = field(default_factory=Unguarded)

    strength = Strength("rounds", (0, 1, 2, 3, 4, 6, 8))

    def __post_init__(self) -> None:
        check(self, rounds=at_least(0))
        _check_plain("INLP", self.plain)

    def hides(self) -> tuple[Hidden, ...]:
        return (Hidden("attribute", self.column),)

    def train(self, lesson: Lesson) -> Guarded:
        check_column(lesson.data, self.column)
        found = self.plain.train(lesson)
        r, codes = found.encoder(lesson.data.x).double(), lesson.data.secret(self.column)
        projection = null_space(r, codes, self.rounds)
        return renamed(
            found, self, network=folded(found.encoder.network, projection, torch.zeros(len(projection)))
        )


def leace(r: Tensor, codes: Tensor) -> tuple[Tensor, Tensor]:
    """The affine map (matrix, shift) that takes the secret's linear part out of r (n, d)."""
    mean = r.mean(0)
    x, z = r - mean, F.one_hot(codes).to(r)
    values, vectors = torch.linalg.eigh(x.T @ x / len(x))
    kept = values > SMALL * values.max()
    roots = torch.where(kept, values.clamp(min=1e-30).sqrt(), torch.zeros_like(values))
    inverse = torch.where(kept, 1 / roots.clamp(min=1e-30), torch.zeros_like(roots))
    whiten, colour = vectors * inverse @ vectors.T, vectors * roots @ vectors.T
    across = whiten @ (x.T @ (z - z.mean(0))) / len(x)
    left, sizes, _ = torch.linalg.svd(across, full_matrices=False)
    ways = left[:, sizes > SMALL * sizes.max()]
    taken = colour @ (ways @ ways.T) @ whiten
    return torch.eye(len(mean)).to(r) - taken, taken @ mean


def null_space(r: Tensor, codes: Tensor, rounds: int) -> Tensor:
    """The projection (d, d) onto what so many linear attackers, each after the one before, do not use."""
    whole = torch.eye(r.shape[1]).to(r)
    used, wanted = r.new_zeros(r.shape[1], 0), F.one_hot(codes).to(r)
    wanted = wanted - wanted.mean(0)
    for _ in range(rounds):
        x = (r - r.mean(0)) @ (whole - used @ used.T)
        ridge = SMALL * x.square().sum() * whole
        fitted = torch.linalg.solve(x.T @ x + ridge, x.T @ wanted)
        left, sizes, _ = torch.linalg.svd(fitted, full_matrices=False)
        ways = left[:, sizes > SMALL * sizes.max()]
        used, _ = torch.linalg.qr(torch.cat([used, ways], 1))
    return whole - used @ used.T


def folded(network: nn.Module, matrix: Tensor, shift: Tensor) -> nn.Module:
    """The network whose representation r becomes matrix r + shift: its last layer, which is linear, takes the
    map up, so that the encoder is saved as it was."""
    made = copy.deepcopy(network)
    last = list(made.children())[-1]
    assert isinstance(last, nn.Linear)
    with torch.no_grad():
        weight, bias = last.weight.double(), last.bias.double()
        last.weight.copy_(matrix @ weight)
        last.bias.copy_(matrix @ bias + shift.to(bias))
    return made


def _check_plain(name: str, plain: Unguarded) -> None:
    ends = isinstance(plain.encoder, TableEncoder)
    rule = "a TableEncoder, which ends in a linear layer that takes the map up"
    require(ends, f"{name}.plain.encoder", rule, type(plain.encoder).__name__)
    require(not plain.normed, f"{name}.plain.normed", "False, since a norm undoes a linear map", plain.normed)
