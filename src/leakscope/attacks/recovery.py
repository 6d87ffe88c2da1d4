"""What an attack that looks for whole records of a table found of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from leakscope.attacks.closed_form import SeenLayer
from leakscope.core.nouns import CERTIFIED, NOT_FOUND, Knowledge, View


@runtime_checkable
class Recovering(Protocol):
    """An attack that tells all it knows of the records that it looks for."""

    def check(self, knowledge: Knowledge, view: View) -> None:
        """Refuse what it cannot read, before any search."""
        ...

    def prepare(self, knowledge: Knowledge, rng: torch.Generator) -> Callable[[View], Recovery]:
        """How to recover records from what is seen."""
        ...


@dataclass(frozen=True, eq=False)
class Recovery:
    """What came of every trial: records (t, k, d), the status (t, k) of each, its label (t, k), -1 where it
    is not known, and how far the search came: the rank (t,) of what was released, the gap (t,) below it, how
    many dimensions (t,) were free when categories were decided, the most branches (t,), whether it was
    stopped (t,) at too many, the smallest singular value (t,) that was kept, and whether something disturbed
    (t,) the space and did not drown it: it has more dimensions than records, or a weak one. ``ended``
    (t,): all records are proven, or it went through all that can be records of a space which has as many
    dimensions as there are records; where it did not, what was not found may still be there. ``fitted``
    (t,): whether records that are not proven were fitted, which never ends by itself; ``confidence`` (t, k,
    columns): how often cells like each are right, 0 where nothing is known; no columns: it was not asked."""

    records: Tensor
    status: Tensor
    labels: Tensor
    ranks: Tensor
    gaps: Tensor
    free: Tensor
    branches: Tensor
    stopped: Tensor
    weakest: Tensor
    disturbed: Tensor
    fitted: Tensor
    confidence: Tensor

    @property
    def ended(self) -> Tensor:
        through = (
            ~self.fitted
            & ~self.stopped
            & ~self.disturbed
            & (self.free == 0)
            & (self.ranks == self.records.shape[1])
        )
        return through | (self.status == CERTIFIED).all(1)

    @staticmethod
    def nothing(seen: SeenLayer) -> Recovery:
        """Before any search: the public mean, which nobody found."""
        t, k = seen.trials, seen.game.batch
        whole, real, truth = (
            partial(torch.zeros, t, dtype=kind) for kind in (torch.long, torch.float64, torch.bool)
        )
        return Recovery(
            records=seen.game.mean.expand(t, *seen.shape).clone(),
            status=torch.full((t, k), NOT_FOUND),
            labels=torch.full((t, k), -1),
            ranks=whole(),
            gaps=real(),
            free=whole(),
            branches=whole(),
            stopped=truth(),
            weakest=real(),
            disturbed=truth(),
            fitted=truth(),
            confidence=torch.zeros(t, k, 0, dtype=torch.float64),
        )

    @staticmethod
    def joined(parts: Sequence[Recovery]) -> Recovery:
        return Recovery(
            *(torch.cat(each) for each in zip(*(vars(part).values() for part in parts), strict=True))
        )
