"""Records without categories: half of a ReLU layer is silent for a record, and hardly any of it for a sum."""

from __future__ import annotations

import torch
from torch import Tensor

from leakscope.attacks.certificates import independent
from leakscope.attacks.spans import Span

PART = 2_000  # samples at a time
ZERO = 1e-3  # of a column's largest entry, below which an entry is silent
APART = 1e-2  # of a direction's length: what is left of it outside those chosen before


def sparse_points(span: Span, unit: Tensor, samples: int, rng: torch.Generator) -> Tensor:
    """Points (r, r) of a gradient's row space whose slopes are silent at most units (Dimitrov et al., NeurIPS
    2024, without its filter); none where fewer than r directions are sparse.

    A sample takes r - 1 units and the one direction in which all of them are silent: if these are silent for
    a record, it is that record's dual, and about half of all other units are silent with them."""
    rows, r = span.u * span.s, span.rank
    best, counts = rows.new_zeros(0, r), torch.zeros(0, dtype=torch.long)
    for start in range(0, samples if len(rows) > r > 1 else 0, PART):
        size = min(PART, samples - start)
        units = torch.rand(size, len(rows), generator=rng).topk(r - 1).indices
        duals = torch.linalg.svd(rows[units], full_matrices=True)[2][:, -1]
        entries = (duals @ rows.T).abs()
        silent = (entries < ZERO * entries.amax(1, keepdim=True)).sum(1)
        best, counts = torch.cat([best, duals]), torch.cat([counts, silent])
        order = counts.argsort(descending=True)[: 8 * PART]
        best, counts = best[order], counts[order]
    sparse = (counts >= r + (len(rows) - r) // 10).nonzero()[:, 0]
    duals_kept = independent(best, sparse, r, close=APART)
    if len(duals_kept) < r or r < 2:
        return unit[None] / unit.square().sum() if r == 1 else rows.new_zeros(0, r)
    points = torch.linalg.inv(best[duals_kept]).T
    ones = points @ unit
    kept = ones.abs() > ZERO
    return torch.div(points[kept], ones[kept, None])
