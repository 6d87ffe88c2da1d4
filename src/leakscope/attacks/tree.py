"""All records that a row space holds: a search over the categories of a table (one branch a category)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from leakscope.attacks.encoding import Options

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
    than ``branches`` the search stops. ``settled``: after every group the base point is the one that is
    nearest to all options taken so far, so that no error of one entry grows from group to group."""

    tolerance: float
    cut: float
    branches: int
    settled: bool = False

    def search(self, v: Tensor, unit: Tensor, groups: Sequence[Options], zero: Tensor) -> Branches:
        """``zero`` (k, r): what must vanish at every point besides."""
        fixed = torch.cat([unit[None], zero])
        fixed = fixed / fixed.norm(dim=1, keepdim=True)
        target = torch.zeros(len(fixed), dtype=v.dtype)
        target[0] = 1 / unit.norm()
        base = (torch.linalg.pinv(fixed) @ target)[None]
        free = torch.linalg.svd(fixed, full_matrices=True)[2][len(fixed) :].T
        return self.grow(v, Branches(base, free), groups, (fixed, target) if self.settled else None)

    def grow(
        self,
        v: Tensor,
        found: Branches,
        groups: Sequence[Options],
        fixed: tuple[Tensor, Tensor] | None = None,
    ) -> Branches:
        """What is left of branches once these groups are decided too; ``fixed``: the rows and values of all
        that was decided before, if base points may move."""
        todo, points, free, peak = list(groups), found.points, found.free, found.peak
        done: list[Options] = []
        taken = torch.zeros(len(points), 0, dtype=torch.long)
        while todo and len(points):
            group, size = self._next(v, free, todo)
            grown = self._grown(v[group.positions], group.options, points, free, size)
            if grown is None:
                return Branches(points[:0], free, self.branches, stopped=True)
            points, free, parents, options = grown
            peak, done = max(peak, len(points)), [*done, group]
            taken = torch.cat([taken[parents], options[:, None]], dim=1)
            if fixed is not None:
                points, free = _settled(v, fixed, done, taken, self.cut)
        return Branches(points, free, peak)

    def _next(self, v: Tensor, free: Tensor, todo: list[Options]) -> tuple[Options, int]:
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
    ) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
        u, s, vh = torch.linalg.svd(rows @ free, full_matrices=True)
        u, pull, after = u[:, :size], (vh[:size].T / s[:size]), free @ vh[size:].T
        back, kept, parents, taken, count, start = free @ pull, [], [], [], 0, 0
        for part in points.split(max(1, BLOCK // options.numel())):
            wanted = options - (part @ rows.T)[:, None]
            along = wanted @ u
            fits = (wanted - along @ u.T).abs().amax(-1) < self.tolerance
            p, o = fits.nonzero(as_tuple=True)
            kept.append(part[p] + along[p, o] @ back.T)
            parents.append(start + p)
            taken.append(o)
            count, start = count + len(p), start + len(part)
            if count > self.branches:
                return None
        return torch.cat(kept), after, torch.cat(parents), torch.cat(taken)


def _settled(
    v: Tensor, fixed: tuple[Tensor, Tensor], groups: list[Options], taken: Tensor, cut: float
) -> tuple[Tensor, Tensor]:
    """The points (p, r) nearest to the options (p, groups) that each branch took, along the directions that
    move these by more than ``cut``, and the other directions (r, f)."""
    rows, target = fixed
    parts = [v[group.positions] for group in groups]
    every = torch.cat([rows, *parts])
    moved, axes = torch.linalg.eigh(every.T @ every)
    kept = moved > cut**2
    inverse = (axes[:, kept] / moved[kept]) @ axes[:, kept].T
    points = (inverse @ (rows.T @ target)).expand(len(taken), -1).clone()
    for i, (group, part) in enumerate(zip(groups, parts, strict=True)):
        points += (group.options @ part @ inverse)[taken[:, i]]
    return points, axes[:, ~kept]
