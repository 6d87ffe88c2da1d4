"""All records that a row space holds: a search over the categories of a table (one branch a category)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from leakscope.attacks.encoding import Choice

BLOCK = 2**22  # numbers that are held at once while branches are tried


@dataclass(frozen=True, eq=False)
class Branches:
    """Base points (p, r) of what is left of all branches, the directions (r, f) that are free in each, the
    most branches there were at a time, and whether the search was stopped because they were too many."""

    points: Tensor
    free: Tensor
    peak: int = 1
    stopped: bool = False

    @property
    def left(self) -> int:
        """How many dimensions are free."""
        return self.free.shape[1]


@dataclass(frozen=True)
class Tree:
    """All points of an affine space that take one of the options of every group.

    A point is ``v`` c with ``unit`` . c = 1. The branches differ in their base point and share their free
    directions. Groups that are decided already only prune; of the others that comes first which branches
    least for the dimensions that it fixes. A branch ends where a group's entries are further than
    ``tolerance`` from all options, a direction counts if it moves a group by more than ``cut``, and at more
    than ``branches`` the search stops."""

    tolerance: float
    cut: float
    branches: int

    def search(self, v: Tensor, unit: Tensor, groups: Sequence[Choice], zero: Tensor) -> Branches:
        """``zero`` (k, r): what must vanish at every point besides."""
        fixed = torch.cat([unit[None], zero])
        target = torch.zeros(len(fixed), dtype=v.dtype)
        target[0] = 1
        base = (torch.linalg.pinv(fixed) @ target)[None]
        free = torch.linalg.svd(fixed, full_matrices=True)[2][len(fixed) :].T
        return self.grow(v, Branches(base, free), groups)

    def grow(self, v: Tensor, found: Branches, groups: Sequence[Choice]) -> Branches:
        """What is left of branches once these groups are decided too."""
        todo, points, free, peak = list(groups), found.points, found.free, found.peak
        while todo and len(points):
            group, size = self._next(v, free, todo)
            grown = self._grown(v[group.positions], group.options, points, free, size)
            if grown is None:
                return Branches(points[:0], free, self.branches, stopped=True)
            points, free = grown
            peak = max(peak, len(points))
        return Branches(points, free, peak)

    def _next(self, v: Tensor, free: Tensor, todo: list[Choice]) -> tuple[Choice, int]:
        """The group to decide next, taken out of those to do, and how many dimensions it fixes."""
        costs = []
        for group in todo:
            moves = v[group.positions] @ free
            size = int((torch.linalg.svdvals(moves) > self.cut).sum()) if free.shape[1] else 0
            cost = math.log(len(group.options)) / size if size else len(group.options) - 1e9
            costs.append((cost, size))
        first = min(range(len(todo)), key=lambda i: costs[i][0])
        return todo.pop(first), costs[first][1]

    def _grown(
        self, rows: Tensor, options: Tensor, points: Tensor, free: Tensor, size: int
    ) -> tuple[Tensor, Tensor] | None:
        u, s, vh = torch.linalg.svd(rows @ free, full_matrices=True)
        u, pull, after = u[:, :size], (vh[:size].T / s[:size]), free @ vh[size:].T
        back, kept, count = free @ pull, [], 0
        for part in points.split(max(1, BLOCK // options.numel())):
            wanted = options - (part @ rows.T)[:, None]
            along = wanted @ u
            fits = (wanted - along @ u.T).abs().amax(-1) < self.tolerance
            p, o = fits.nonzero(as_tuple=True)
            kept.append(part[p] + along[p, o] @ back.T)
            count += len(p)
            if count > self.branches:
                return None
        return torch.cat(kept), after
