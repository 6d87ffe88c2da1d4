"""A network whose representations are moved, group by group, to one distribution: the group is an input."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from leakscope.core.dataset import Dataset
from leakscope.core.errors import require
from leakscope.models.layers import MOST_LAYERS, perceptron

TINY = 1e-12  # the least distance of two knots


@dataclass(frozen=True)
class RepairedEncoder:
    """A `TableEncoder` of all inputs but ``start:stop``, which mark the record's group; then its repair.

    ``rounds`` maps of every number by ``levels`` knots, as `learn_repair` finds them.
    """

    widths: tuple[int, ...]
    start: int
    stop: int
    levels: int
    rounds: int

    def __post_init__(self) -> None:
        fine = 1 <= len(self.widths) <= MOST_LAYERS and all(width >= 1 for width in self.widths)
        require(fine, "RepairedEncoder.widths", f"one to {MOST_LAYERS} widths of at least 1", self.widths)
        require(0 <= self.start < self.stop, "RepairedEncoder.start", "below stop", self.start)
        require(self.levels >= 2, "RepairedEncoder.levels", "at least 2", self.levels)
        require(self.rounds >= 1, "RepairedEncoder.rounds", "at least 1", self.rounds)

    def __call__(self, data: Dataset) -> nn.Module:
        inputs = data.x[0].numel() - (self.stop - self.start)
        require(inputs >= 1, "RepairedEncoder", "of at least one input beside the group", inputs)
        return RepairedNetwork(nn.Sequential(*perceptron((inputs, *self.widths))), self)


class RepairedNetwork(nn.Module):
    """Representations that are moved to those of all groups: by ``amount`` of the way, 1 being all of it.

    A record whose group is not marked, or was never seen, has no representation: it is not a number.
    """

    turns: Tensor  # (rounds, d, d)
    sources: Tensor  # (rounds, groups, d, levels): knots, and
    targets: Tensor  # where they go
    amount: Tensor

    def __init__(self, inner: nn.Module, how: RepairedEncoder) -> None:
        super().__init__()
        self.inner, self.start, self.stop = inner, how.start, how.stop
        d, groups = how.widths[-1], how.stop - how.start
        self.register_buffer("turns", torch.eye(d).repeat(how.rounds, 1, 1))
        for name in ("sources", "targets"):
            self.register_buffer(name, torch.zeros(how.rounds, groups, d, how.levels))
        self.register_buffer("amount", torch.zeros(()))

    def reset_parameters(self) -> None:
        """Begin anew: nothing is moved."""
        self.amount.zero_()

    def groups(self, x: Tensor) -> Tensor:
        """The marks (n, groups) of each record's group."""
        return x[:, self.start : self.stop]

    def forward(self, x: Tensor) -> Tensor:
        marks = self.groups(x)
        r: Tensor = self.inner(torch.cat([x[:, : self.start], x[:, self.stop :]], dim=1))
        moved = repair(r, marks, self.turns, self.sources, self.targets)
        known = marks.sum(1, keepdim=True)
        return (r + self.amount * (moved - r)) * (known / known)  # 0 / 0 is not a number


def repair(r: Tensor, marks: Tensor, turns: Tensor, sources: Tensor, targets: Tensor) -> Tensor:
    """Representations r (n, d) moved by the maps of their groups, round by round."""
    for turn, source, target in zip(turns, sources, targets, strict=True):
        shape = (-1, *source.shape[1:])
        knots, places = ((marks @ part.flatten(1)).view(shape) for part in (source, target))
        x = (r @ turn.T)[:, :, None]
        gaps = knots.diff(dim=2).clamp(min=TINY)
        along = ((x - knots[:, :, :-1]) / gaps).clamp(0, 1)
        r = (places[:, :, 0] + (along * places.diff(dim=2)).sum(2)) @ turn
    return r


def learn_repair(
    r: Tensor, codes: Tensor, *, groups: int, levels: int, rounds: int, rng: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """The turns and knots by which every group's representations r (n, d) come to have one distribution.

    In each round the space is turned at random and every number is moved to the mean of the groups' values
    at its own quantile, which is the least move that makes the groups alike in that number (the barycentre of
    optimal transport). One number needs one round; of several, the rounds make all directions alike (sliced
    transport: Pitie et al., 2007; Rabin et al., 2011). A knot is the mean of many records, never one."""
    d, marks = r.shape[1], torch.nn.functional.one_hot(codes, groups).to(r)
    turns, sources, targets = [], [], []
    for i in range(rounds):
        turn = torch.eye(d).to(r)
        if i:
            turn = torch.linalg.qr(torch.randn(d, d, generator=rng, dtype=r.dtype))[0]
        turned = r @ turn.T
        knots = torch.stack([_knots(turned[codes == code], levels) for code in range(groups)])
        shares = marks.mean(0)[:, None, None]
        common = (shares * knots).sum(0)
        places = torch.stack([_level(own, common) for own in knots])
        r = repair(r, marks, turn[None], knots[None], places[None])
        turns.append(turn)
        sources.append(knots)
        targets.append(places)
    return torch.stack(turns), torch.stack(sources), torch.stack(targets)


def _knots(values: Tensor, levels: int) -> Tensor:
    """The means (d, levels) of equal parts of the values (n, d), in their order."""
    parts = values.sort(dim=0).values.tensor_split(levels)
    return torch.stack([part.mean(0) for part in parts], dim=1)


def _level(knots: Tensor, places: Tensor) -> Tensor:
    """Where the knots (d, levels) go: what is one value has one place, the mean of all it would have."""
    found = places.clone()
    for own, row in zip(knots, found, strict=True):
        _, inverse, counts = own.unique_consecutive(return_inverse=True, return_counts=True)
        sums = torch.zeros(len(counts)).to(row).index_add_(0, inverse, row.clone())
        row.copy_((sums / counts)[inverse])
    return found
