"""Records that categories do not fix, by the units of a ReLU layer that are silent for them.

A unit that is silent for a record has no part in its slope, so the record's dual vanishes there: as many
silent units as the space has dimensions give the dual without the record's numbers. And a dual vanishes at
all other records, so the duals of the others fix a record's numbers (compare Dimitrov et al., NeurIPS 2024).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from leakscope.attacks.spans import Span
from leakscope.attacks.tree import Branches

SAME = 0.999  # the cosine from which two duals are one
SILENT = 1e-4  # of a unit's row, below which it is silent for every record
ROUNDS, EASE = 30, 1e-9  # of weighting equations anew, and what keeps each solvable
BLOCK = 8_192  # points whose units are looked at together


def read_duals(
    span: Span, points: Tensor, outputs: Callable[[Tensor], Tensor], *, more: int, close: float
) -> tuple[Tensor, Tensor]:
    """Which points (n, r) have a dual, and it (k, r), up to its length: the vector that vanishes at the units
    that are most silent there by the layer's ``outputs`` (n, rows), ``more`` than there are dimensions. There
    must be only one: ``close`` times what the next one is at these units, and that is not small itself."""
    silent_for_all = span.u.norm(dim=1) < SILENT * span.u.norm(dim=1).max()
    units = span.rank + more
    kept, duals = [], []
    if span.rank < 2 or units > int((~silent_for_all).sum()):
        return torch.zeros(0, dtype=torch.long), points[:0]
    for start, part in zip(range(0, len(points), BLOCK), points.split(BLOCK), strict=True):
        lowest = outputs(part).masked_fill(silent_for_all, torch.inf).topk(units, largest=False)
        rows = span.u[lowest.indices]
        lengths, axes = torch.linalg.eigh(rows.mT @ rows)
        alone = (lengths[:, 0] < close**2 * lengths[:, 1]) & (lengths[:, 1] > close * lengths[:, -1])
        found = alone & (lowest.values[:, -1] < 0)
        kept.append(start + found.nonzero()[:, 0])
        duals.append(axes[found, :, 0])
    return torch.cat(kept), torch.cat(duals)


def tell_apart(duals: Tensor) -> tuple[Tensor, Tensor]:
    """The different ones among duals (n, r) of length 1, and which of them each is (n,)."""
    different, which = duals[:0], []
    for dual in duals:
        near = (different @ dual).abs()
        if not len(near) or float(near.max()) < SAME:
            different = torch.cat([different, dual[None]])
            which.append(len(different) - 1)
        else:
            which.append(int(near.argmax()))
    return different, torch.tensor(which, dtype=torch.long)


def silent_points(
    span: Span,
    found: Branches,
    starts: Tensor,
    numbers: Tensor,
    outputs: Callable[[Tensor], Tensor],
    *,
    more: int,
    close: float,
    far: float,
) -> tuple[Tensor, Tensor]:
    """Points (n, r) of branches whose free directions the duals of other records fix, and these (n, k, r).

    Every branch is tried with the ``numbers`` of other records (s, a), its ``starts``. Points are left out at
    which the others' duals are more than ``far``, as a share of their length."""
    moves = torch.linalg.pinv(span.v[numbers] @ found.free)
    wanted = starts[None] - (found.points @ span.v[numbers].T)[:, None]
    tried = (found.points[:, None] + wanted @ moves.T @ found.free.T).flatten(0, 1)
    rows, duals = read_duals(span, tried, outputs, more=more, close=close)
    different, which = tell_apart(duals)
    pairs = torch.stack([rows // max(1, len(starts)), which], dim=1).unique(dim=0)
    points, fixing = [span.v.new_zeros(0, span.rank)], [span.v.new_zeros(0, len(different), span.rank)]
    for own in range(len(different)):
        others = different / span.s
        others[own] = 0
        base = found.points[pairs[pairs[:, 1] == own, 0]]
        point = base + settle(others @ found.free, -base @ others.T) @ found.free.T
        fits = (point @ others.T).abs() < far * (point / span.s).norm(dim=1, keepdim=True)
        kept = torch.nn.functional.normalize(others, dim=1) * fits[..., None]
        fixed = torch.linalg.svdvals(kept @ found.free)[:, -1] > close
        points.append(point[fixed])
        fixing.append(kept[fixed])
    return torch.cat(points), torch.cat(fixing)


def settle(rows: Tensor, values: Tensor) -> Tensor:
    """Solutions (n, f) of ``rows`` (k, f) t = ``values`` (n, k) that leave most equations right: some are of
    two records that are alike, and do not hold of either. Least absolute errors, by weights."""
    solved, weights = values.new_zeros(len(values), rows.shape[1]), torch.ones_like(values)
    ease = EASE * torch.eye(rows.shape[1], dtype=rows.dtype)
    for _ in range(ROUNDS):
        weighted = (weights[..., None] * rows).mT
        solved = torch.linalg.lstsq(weighted @ rows + ease, weighted @ values[..., None]).solution[..., 0]
        errors = (solved @ rows.T - values).abs()
        scale = errors.amax(1, keepdim=True).clamp(min=torch.finfo(errors.dtype).tiny)
        weights = 1 / (errors / scale + EASE)
    return solved
