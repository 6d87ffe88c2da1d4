"""What an encoder is guarded against: what a privacy network sees of a step, and what it has to tell.

A protection is a secret, the ``net`` that looks for it, and the loss against that net. It is used twice in a
step: the encoder descends ``penalty``, a function of representations r (n, ...), and the net ``own``. What
the net finds in records that nobody was trained on is ``watched``: its loss, and what it knows in nats at the
least (0: nothing found).

A sight is what of a step a net sees: ``pairs`` are its inputs and what it has to tell, ``groups`` what a
distance between groups is taken of, and the groups' codes; ``number`` the number whose ranges the codes are.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from scipy import stats
from torch import Tensor, nn
from torch.nn import functional as F

from leakscope.core.task import is_number, task_loss
from leakscope.guards.batches import Aggregate, Seen, aggregated, derangement
from leakscope.guards.estimators import jsd
from leakscope.guards.losses import DISTANCES, against, against_critic, distance, distance_given, entropy
from leakscope.guards.networks import Critic

Term = Callable[[Seen, Tensor, nn.Module | None], Tensor]  # of records, representations and the task head


@dataclass(frozen=True, eq=False)
class Told:
    """A secret that takes one of several values: what there is to tell comes from ``sight``. With a ``term``
    the encoder descends that in place of the loss. A distance counts by ``given`` what is there beyond the
    task's label, by 1 - given what is there without it; the encoder descends that of at most ``compared``
    records of a step. ``noisy``: all are of representations with noise."""

    sight: Sight
    net: nn.Module
    loss: str
    prior: Tensor
    term: Term | None = None
    given: float = 0.0
    noisy: bool = False
    compared: int | None = None

    def penalty(self, seen: Seen, r: Tensor, head: nn.Module | None, rng: torch.Generator) -> Tensor:
        if self.term is not None:
            return self.term(seen, r, head)
        if self.loss in DISTANCES:
            return self._distance(seen, r, head, self.compared)
        inputs, target = self.sight.pairs(seen, r, head)
        return against(self.loss, self.net(inputs), target, self.prior)

    def own(self, seen: Seen, r: Tensor, head: nn.Module | None, rng: torch.Generator) -> Tensor:
        inputs, target = self.sight.pairs(seen, r, head)
        return F.cross_entropy(self.net(inputs), target)

    def watched(
        self, seen: Seen, r: Tensor, head: nn.Module | None, rng: torch.Generator
    ) -> dict[str, float]:
        inputs, target = self.sight.pairs(seen, r, head)
        logits = self.net(inputs)
        lost = float(F.cross_entropy(logits, target))
        if self.loss in DISTANCES:
            found = float(self._distance(seen, r, head))
        else:
            found = max(0.0, entropy(self.prior) - lost)
        return {"cross_entropy": lost, "found": found, "auroc": auroc(logits.softmax(1), target)}

    def _distance(self, seen: Seen, r: Tensor, head: nn.Module | None, compared: int | None = None) -> Tensor:
        shown, codes = self.sight.groups(seen, r, head)
        y, number = seen.y[: len(codes)], self.sight.number(seen)
        if compared is not None and compared < len(codes):  # from all over: others stand after members
            rows = torch.arange(compared) * len(codes) // compared
            shown, codes, y = shown[rows], codes[rows], y[rows]
            number = None if number is None else number[rows]
        terms = []
        if self.given < 1:
            terms.append((1 - self.given) * distance(self.loss, shown, codes, number))
        if self.given > 0:
            terms.append(self.given * distance_given(self.loss, shown, codes, codes_of(y), number))
        return torch.stack(terms).sum()


def codes_of(y: Tensor) -> Tensor:
    """Labels as codes; of a number, the quarter of the batch that it lies in."""
    if not is_number(y):
        return y
    ranks = y.flatten().argsort().argsort()
    return ranks * 4 // len(ranks)


class _Named:
    """A secret that is no number."""

    def number(self, seen: Seen) -> Tensor | None:
        return None


@dataclass(frozen=True)
class OfRecords:
    """An attribute of each record, from its representation."""

    column: str

    def pairs(self, seen: Seen, r: Tensor, head: nn.Module | None) -> tuple[Tensor, Tensor]:
        return r[: seen.own], seen.private[self.column]

    groups = pairs

    def number(self, seen: Seen) -> Tensor | None:
        """The attribute itself, where its codes are ranges of a number."""
        return seen.numbers.get(self.column)


@dataclass(frozen=True)
class OfSubsets(_Named):
    """The share of a value among the records of a subset, from their aggregate. A distance is between the
    records with that value and those without: it is through them that an aggregate depends on the share."""

    column: str
    value: int
    aggregate: Aggregate

    def pairs(self, seen: Seen, r: Tensor, head: nn.Module | None) -> tuple[Tensor, Tensor]:
        assert seen.subset is not None
        assert seen.shares is not None
        return aggregated(r[: seen.own], seen.subset, len(seen.shares), self.aggregate), seen.shares

    def groups(self, seen: Seen, r: Tensor, head: nn.Module | None) -> tuple[Tensor, Tensor]:
        return r[: seen.own], (seen.private[self.column] == self.value).long()


@dataclass(frozen=True)
class OfMembers(_Named):
    """Membership, from the representation alone, as the papers' code has it, or (``label_aware``) from
    representation, label, the head's logits and its loss: the adversary A(f(x), y) that paper 003 defines.
    """

    label_aware: bool = False

    def pairs(self, seen: Seen, r: Tensor, head: nn.Module | None) -> tuple[Tensor, Tensor]:
        member = (torch.arange(len(r)) < seen.own).long()
        if not self.label_aware or head is None:
            return r, member
        logits = head(r)
        label = seen.y[:, None] if is_number(seen.y) else F.one_hot(seen.y, logits.shape[1]).to(r)
        lost = task_loss(logits, seen.y, reduction="none")[:, None]
        return torch.cat([r.flatten(1), label, logits, lost], 1), member

    groups = pairs


@dataclass(frozen=True, eq=False)
class OfInputs:
    """The record itself, from its perturbed representation: the Jensen-Shannon critic of paper 003,
    equation 22, with pairs made up by drawing another record of the batch."""

    net: Critic
    loss: str

    noisy = True  # without noise a record can be told from its representation, whatever is done

    def penalty(self, seen: Seen, r: Tensor, head: nn.Module | None, rng: torch.Generator) -> Tensor:
        return against_critic(self.loss, *self._scores(seen, r, rng))

    def own(self, seen: Seen, r: Tensor, head: nn.Module | None, rng: torch.Generator) -> Tensor:
        return -jsd(*self._scores(seen, r, rng))

    def watched(
        self, seen: Seen, r: Tensor, head: nn.Module | None, rng: torch.Generator
    ) -> dict[str, float]:
        lost = float(self.own(seen, r, head, rng))
        return {"cross_entropy": lost, "found": max(0.0, 2 * math.log(2) - lost)}

    def _scores(self, seen: Seen, r: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        other = derangement(seen.own, rng)
        scores: tuple[Tensor, Tensor] = self.net(seen.x[: seen.own], r[: seen.own], None, other)
        return scores


def auroc(posterior: Tensor, target: Tensor) -> float:
    """Area under the ROC curve, one against the rest, its mean over the values that occur: ranks alone."""
    areas = []
    for value in target.unique().tolist():
        hit = (target == value).numpy()
        yes, no = int(hit.sum()), int((~hit).sum())
        if yes and no:
            ranks = stats.rankdata(posterior[:, value].numpy())
            areas.append((ranks[hit].sum() - yes * (yes + 1) / 2) / (yes * no))
    return float(sum(areas) / len(areas)) if areas else 0.5


Sight = OfRecords | OfSubsets | OfMembers
Protection = Told | OfInputs
