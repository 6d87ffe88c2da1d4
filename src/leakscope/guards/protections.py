"""What an encoder is guarded against: what a privacy network sees of a step, and what it has to tell.

Each is used twice in a step: the encoder descends ``penalty``, and the privacy network descends ``own``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from leakscope.guards.batches import Aggregate, Seen, aggregated
from leakscope.guards.estimators import jsd
from leakscope.guards.losses import DISTANCES, against, against_critic, distance, entropy
from leakscope.guards.networks import Critic


class Protection(Protocol):
    """A secret, the network that looks for it, and the loss against that network."""

    @property
    def net(self) -> nn.Module:
        """The network that looks for it."""
        ...

    def penalty(self, seen: Seen, r: Tensor, head: nn.Module | None, rng: torch.Generator) -> Tensor:
        """What the encoder descends, a function of representations r (n, ...)."""
        ...

    def own(self, seen: Seen, r: Tensor, head: nn.Module | None, rng: torch.Generator) -> Tensor:
        """What the privacy network descends."""
        ...

    def watched(self, seen: Seen, r: Tensor, head: nn.Module | None, rng: torch.Generator) -> Watched:
        """What the network finds in records that neither it nor the encoder was trained on."""
        ...


@dataclass(frozen=True, eq=False)
class Watched:
    """The network's loss, what it knows in nats at the least (0: nothing found), and its answers, if it
    answers with one of several values."""

    cross_entropy: float
    found: float
    posterior: Tensor | None = None
    target: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Told:
    """A secret that takes one of several values: what there is to tell comes from ``sight``."""

    sight: Sight
    net: nn.Module
    loss: str
    prior: Tensor

    def penalty(self, seen: Seen, r: Tensor, head: nn.Module | None, rng: torch.Generator) -> Tensor:
        """See `Protection`."""
        if self.loss in DISTANCES:
            return distance(self.loss, *self.sight.groups(seen, r, head))
        inputs, target = self.sight.pairs(seen, r, head)
        return against(self.loss, self.net(inputs), target, self.prior)

    def own(self, seen: Seen, r: Tensor, head: nn.Module | None, rng: torch.Generator) -> Tensor:
        """See `Protection`."""
        inputs, target = self.sight.pairs(seen, r, head)
        return F.cross_entropy(self.net(inputs), target)

    def watched(self, seen: Seen, r: Tensor, head: nn.Module | None, rng: torch.Generator) -> Watched:
        """See `Protection`."""
        inputs, target = self.sight.pairs(seen, r, head)
        logits = self.net(inputs)
        lost = float(F.cross_entropy(logits, target))
        if self.loss in DISTANCES:
            found = float(distance(self.loss, *self.sight.groups(seen, r, head)))
        else:
            found = max(0.0, entropy(self.prior) - lost)
        return Watched(lost, found, logits.softmax(1), target)


class Sight(Protocol):
    """What of a step a privacy network sees."""

    def pairs(self, seen: Seen, r: Tensor, head: nn.Module | None) -> tuple[Tensor, Tensor]:
        """Its inputs and what it has to tell."""
        ...

    def groups(self, seen: Seen, r: Tensor, head: nn.Module | None) -> tuple[Tensor, Tensor]:
        """What a distance between groups is taken of, and the groups' codes."""
        ...


@dataclass(frozen=True)
class OfRecords:
    """An attribute of each record, from its representation."""

    column: str

    def pairs(self, seen: Seen, r: Tensor, head: nn.Module | None) -> tuple[Tensor, Tensor]:
        """See `Sight`."""
        return r[: seen.own], seen.private[self.column]

    groups = pairs


@dataclass(frozen=True)
class OfSubsets:
    """The share of a value among the records of a subset, from their aggregate. A distance is between the
    records with that value and those without: it is through them that an aggregate depends on the share."""

    column: str
    value: int
    aggregate: Aggregate

    def pairs(self, seen: Seen, r: Tensor, head: nn.Module | None) -> tuple[Tensor, Tensor]:
        """See `Sight`."""
        assert seen.subset is not None
        assert seen.shares is not None
        return aggregated(r[: seen.own], seen.subset, len(seen.shares), self.aggregate), seen.shares

    def groups(self, seen: Seen, r: Tensor, head: nn.Module | None) -> tuple[Tensor, Tensor]:
        """See `Sight`."""
        return r[: seen.own], (seen.private[self.column] == self.value).long()


@dataclass(frozen=True)
class OfMembers:
    """Membership, from the representation alone, as the papers' code has it, or (``label_aware``) from
    representation, label, the head's logits and its loss: the adversary A(f(x), y) that paper 003 defines.
    """

    label_aware: bool = False

    def pairs(self, seen: Seen, r: Tensor, head: nn.Module | None) -> tuple[Tensor, Tensor]:
        """See `Sight`."""
        member = (torch.arange(len(r)) < seen.own).long()
        if not self.label_aware or head is None:
            return r, member
        logits = head(r)
        label = F.one_hot(seen.y, logits.shape[1]).to(r)
        lost = F.cross_entropy(logits, seen.y, reduction="none")[:, None]
        return torch.cat([r.flatten(1), label, logits, lost], 1), member

    groups = pairs


@dataclass(frozen=True, eq=False)
class OfInputs:
    """The record itself, from its perturbed representation: the Jensen-Shannon critic of paper 003,
    equation 22, with pairs made up by drawing another record of the batch."""

    net: Critic
    loss: str

    def penalty(self, seen: Seen, r: Tensor, head: nn.Module | None, rng: torch.Generator) -> Tensor:
        """See `Protection`."""
        return against_critic(self.loss, *self._scores(seen, r, rng))

    def own(self, seen: Seen, r: Tensor, head: nn.Module | None, rng: torch.Generator) -> Tensor:
        """See `Protection`."""
        return -jsd(*self._scores(seen, r, rng))

    def watched(self, seen: Seen, r: Tensor, head: nn.Module | None, rng: torch.Generator) -> Watched:
        """See `Protection`."""
        lost = float(self.own(seen, r, head, rng))
        return Watched(lost, max(0.0, 2 * math.log(2) - lost))

    def _scores(self, seen: Seen, r: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        other = torch.randperm(seen.own, generator=rng)
        scores: tuple[Tensor, Tensor] = self.net(seen.x[: seen.own], r[: seen.own], None, other)
        return scores
