"""Why membership shows: gradients of different records are nearly orthogonal in wide networks (paper 002).

A member's gradient keeps its own direction inside the update, and a non-member's has none there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from leakscope.core.dataset import Dataset
from leakscope.core.errors import require
from leakscope.core.nouns import Params
from leakscope.gradients import alignment, per_record
from leakscope.gradients.aligned import by_layer

Cosines = dict[str, Tensor]  # layer -> cosines; its weight and bias are together


@dataclass(frozen=True, eq=False)
class Pairs:
    """Layer by layer, the cosines between the gradients of two different records: both members, a
    member and another, both others."""

    members: Mapping[str, Tensor]
    mixed: Mapping[str, Tensor]
    others: Mapping[str, Tensor]


def orthogonality(
    model: nn.Module, params: Params, members: Dataset, others: Dataset, *, among: int = 20
) -> Pairs:
    """The cosines of ``among`` members, and of as many others, with all records given (figure 1).

    One pass of the alignment kernel for each of them: never are all gradients held at once."""
    for name, data in (("members", members), ("others", others)):
        require(len(data) >= 2, f"orthogonality.{name}", "at least 2 records", len(data))
    require(among >= 1, "orthogonality.among", "at least 1", among)
    ours, theirs = (data.take(torch.arange(min(among, len(data)))) for data in (members, others))
    return Pairs(
        {name: _apart(found) for name, found in _between(model, params, ours, members).items()},
        {name: found.flatten() for name, found in _between(model, params, ours, others).items()},
        {name: _apart(found) for name, found in _between(model, params, theirs, others).items()},
    )


def update_cosines(model: nn.Module, params: Params, update: Params, data: Dataset) -> Cosines:
    """The cosine of each record's gradient with an update, layer by layer (figure 2): the narrower the
    non-members', the easier members are told apart."""
    found = by_layer(alignment(model, params, data.x, data.y, update))
    sizes = {name: (part.flatten()[:1], part.double().square().sum()) for name, part in update.items()}
    own = {name: square for name, (_, square) in by_layer(sizes).items()}
    cosines = {}
    for name, (dots, squares) in found.items():
        length = (squares * own[name]).sqrt()
        cosines[name] = torch.where(length > 0, dots / length.clamp(min=1e-300), 0.0)
    return cosines


def _between(model: nn.Module, params: Params, some: Dataset, data: Dataset) -> Cosines:
    """Of the gradients of some records with those of others: layer -> (some, others)."""
    rows = []
    for i in range(len(some)):
        own = per_record(model, params, some.x[i : i + 1], some.y[i : i + 1])
        rows.append(update_cosines(model, params, {name: g[0] for name, g in own.items()}, data))
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


def _apart(square: Tensor) -> Tensor:
    """Without the cosines of a record with itself, the first records being the same on both sides."""
    same = torch.eye(*square.shape, dtype=torch.bool)
    return square[~same]
