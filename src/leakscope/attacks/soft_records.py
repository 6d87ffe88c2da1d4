"""Records of a table as an optimisation moves them, and what several such searches say together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from leakscope.attacks.encoding import Encoding
from leakscope.core.dataset import Dataset
from leakscope.core.pairing import compare_cells, pair

NEVER = -1e4  # the logit of what cannot be
TINY = 1e-9  # of a residual or loss whose logarithm is taken


@dataclass(frozen=True, eq=False)
class SoftTable:
    """Variables of a record: a logit for every option of every category, then the numbers, centred and
    scaled."""

    encoding: Encoding

    @property
    def sizes(self) -> list[int]:
        return [len(group.options) for group in self.encoding.groups]

    @property
    def width(self) -> int:
        return sum(self.sizes) + len(self.encoding.numbers)

    def possible(self, active: Tensor) -> Tensor:
        """Which options a record can have, if only ``active`` (d,) positions are not 0 in all records."""
        parts = []
        for group in self.encoding.groups:
            fits = (group.options[:, ~active[group.positions]] == 0).all(1)
            parts.append(fits if bool(fits.any()) else ~fits)
        return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.bool)

    def soften(self, variables: Tensor, possible: Tensor) -> Tensor:
        """Scaled records (..., d): each category the mean of its options, as likely as their logits say."""
        logits = torch.where(possible, variables[..., : sum(self.sizes)], NEVER)
        records = variables.new_zeros(*variables.shape[:-1], len(self.encoding.scale))
        for group, part in zip(self.encoding.groups, logits.split(self.sizes, dim=-1), strict=True):
            records[..., group.positions] = part.softmax(-1) @ group.options.to(part.dtype)
        records[..., self.encoding.numbers] = variables[..., sum(self.sizes) :]
        return records

    def harden(self, scaled: Tensor) -> Tensor:
        """The same records with the nearest option of every category."""
        records = scaled.clone()
        for group in self.encoding.groups:
            options = group.options.to(scaled.dtype)
            near = torch.cdist(scaled[..., group.positions].flatten(0, -2), options).argmin(1)
            records[..., group.positions] = options[near].view(*scaled.shape[:-1], -1)
        return records


def fix_least(v: Tensor, numbers: Tensor) -> float:
    """How far categories, and the 1 of a bias, move in the direction of the space ``v`` (w, r) in which they
    move least: where that is nothing, numbers alone decide."""
    fixed = torch.ones(len(v), dtype=torch.bool)
    fixed[numbers] = False
    return float(torch.linalg.svdvals(v[fixed])[-1]) if int(fixed.sum()) >= v.shape[1] else 0.0


def settle(records: Tensor, v: Tensor, numbers: Tensor, trust: float) -> tuple[Tensor, Tensor]:
    """Scaled records (n, w), the 1 of a bias included, whose ``numbers`` are those of the point of the space
    ``v`` (w, r) that is nearest to their categories, numbers counting ``trust`` of these; and how far the
    categories (n,) are from that point."""
    weight = torch.ones(len(v), dtype=v.dtype)
    weight[numbers] = trust
    near = (records.to(v.dtype) * weight) @ torch.linalg.pinv(v * weight[:, None], rtol=TINY).T @ v.T
    off = (near - records) * (weight == 1)
    settled = records.clone()
    settled[:, numbers] = near[:, numbers].to(records.dtype)
    return settled, off.norm(dim=1).to(records.dtype)


@dataclass(frozen=True, eq=False)
class Pooled:
    """The records (k, d) that searches say together, and what there is to say of each cell (k, columns,
    features): the share of searches that say it, the share that say the whole record, how far its
    categories are from the space, the least loss of all searches, how little categories move in the
    direction of the space that they fix least (all three as logarithms), and whether it is a number."""

    records: Tensor
    features: Tensor

    FEATURES: ClassVar[int] = 6

    @staticmethod
    def of(
        searches: Tensor, off: Tensor, losses: Tensor, least: float, public: Dataset, within: float
    ) -> Pooled:
        """Of ``searches`` (s, k, d), records as they are written. The records of each are paired with those
        of the best; what most of them say of a record stands, of these the nearest to the space. ``least``
        is how far categories move in the direction that they fix least."""
        base = searches[losses.argmin()]
        orders = torch.stack([pair(compare_cells(base, other, public, within))[1] for other in searches])
        every = torch.arange(len(searches))[:, None]
        own, distance = searches[every, orders].transpose(0, 1), off[every, orders].T  # (k, s, d), (k, s)
        agree = torch.stack([compare_cells(same, same, public, within) for same in own])  # (k, s, s, columns)
        votes = agree.all(3).double().mean(2)
        best = (votes - distance / (1 + distance) / len(searches)).argmax(1)
        chosen = torch.arange(len(own)), best
        said, whole = agree[chosen].double().mean(1), votes[chosen]
        kinds = [float(not column.values) for column in public.columns]
        features = torch.stack(
            [
                said,
                whole[:, None].expand_as(said),
                (distance[chosen].double() + TINY).log10()[:, None].expand_as(said),
                (losses.min().double() + TINY).log10().expand_as(said),
                torch.tensor(least + TINY).double().log10().expand_as(said),
                torch.tensor(kinds, dtype=torch.float64).expand_as(said),
            ],
            dim=2,
        )
        return Pooled(own[chosen], features)
