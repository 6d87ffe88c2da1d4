"""From gradients of tens of thousands of numbers to features a classifier can take.

Releases are read block by block; what is kept is as wide as the features, not the gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from sklearn.decomposition import PCA as Components
from torch import Tensor

from leakscope.core import Release, flatten
from leakscope.errors import require
from leakscope.rng import integer

Features = Callable[[Release], Tensor]  # (trials, features)


class Reduction(Protocol):
    """Learns from a rehearsed release how to turn releases of that round into features."""

    def fit(self, release: Release, rng: torch.Generator) -> Features: ...


def _each(reduce: Callable[[Tensor], Tensor]) -> Features:
    return lambda release: torch.cat([reduce(flatten(layers)) for layers in release.blocks()])


@dataclass(frozen=True)
class Flat:
    """The gradient as it is."""

    def fit(self, release: Release, rng: torch.Generator) -> Features:
        return _each(lambda flat: flat)


@dataclass(frozen=True)
class MaxPool:
    """The largest of every ``width`` neighbours, sign kept (paper 000, 5.1.3: 3 for tables, 10
    elsewhere). Width 1 is `Flat`."""

    width: int = 3

    def __post_init__(self) -> None:
        require(self.width >= 1, "MaxPool.width", "at least 1", self.width)

    def fit(self, release: Release, rng: torch.Generator) -> Features:
        return _each(self.pool)

    def pool(self, flat: Tensor) -> Tensor:
        whole = flat.shape[1] // self.width * self.width
        pooled = flat[:, :whole].unflatten(1, (-1, self.width)).amax(2) if whole else flat[:, :0]
        rest = [flat[:, whole:].amax(1, keepdim=True)] if whole < flat.shape[1] else []
        return torch.cat([pooled, *rest], dim=1)


@dataclass(frozen=True)
class PCA:
    """Principal components of the rehearsed gradients (paper 000, table 2: 50), fitted on at most
    ``rows`` of them so that memory stays bounded."""

    components: int = 50
    rows: int = 2_000

    def __post_init__(self) -> None:
        require(self.components >= 1, "PCA.components", "at least 1", self.components)
        require(self.rows >= 2, "PCA.rows", "at least 2", self.rows)

    def fit(self, release: Release, rng: torch.Generator) -> Features:
        sample = _head(release, self.rows)
        wanted = min(self.components, *sample.shape)
        fitted = Components(wanted, svd_solver="randomized", random_state=integer(rng)).fit(sample.numpy())
        return _each(lambda flat: torch.from_numpy(fitted.transform(flat.numpy())))


def _head(release: Release, rows: int) -> Tensor:
    """The first ``rows`` trials; trials are exchangeable, so these are as good as any."""
    parts, have = [], 0
    for layers in release.blocks():
        flat = flatten(layers)[: rows - have]
        parts.append(flat)
        have += len(flat)
        if have >= rows:
            break
    return torch.cat(parts)
