"""Mutual information from distances alone, with nothing to train."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import special, stats
from sklearn.neighbors import KDTree, NearestNeighbors
from torch import Tensor

from leakscope.core.errors import CHANCE, at_least, check, require
from leakscope.core.nouns import Estimate
from leakscope.guards.estimators import pairs

Array = NDArray[np.float64]

PARTS = 10  # of the pairs, each left out in turn for the interval


@dataclass(frozen=True)
class NearestNeighbours:
    """Kraskov, Stoegbauer and Grassberger's estimator (2004, their first) from distances to the ``k``-th
    neighbour, and Ross's (2014) where y are codes; both for vectors, in the largest difference.

    Equal to scikit-learn's mutual_info_regression and mutual_info_classif for one column, where those are
    above zero, and for vectors too. No bound: in many dimensions it falls short.

    Interval: the jackknife over ten parts, each left out in turn, with Student's t; a little wide, and for
    sampling error only, not for the shortfall."""

    k: int = 3
    level: float = 0.95

    def __post_init__(self) -> None:
        check(self, k=at_least(1), level=CHANCE)

    def __call__(self, x: Tensor, y: Tensor, rng: torch.Generator) -> Estimate:
        """I(x; y) in nats from pairs: x (n, ...) numbers, y the same or codes (n,)."""
        x, y = pairs("NearestNeighbours", x, y)
        n, least = len(x), PARTS * (self.k + 2)
        require(n >= least, "NearestNeighbours's pairs", f"at least {least} for {self.k} neighbours", n)
        left, right = (_untied(side, rng) for side in (x, y))
        kind, estimate = ("KSG", self._between) if y.is_floating_point() else ("Ross", self._among)
        part = torch.randperm(n, generator=rng).numpy() % PARTS
        without = np.array([estimate(left[part != i], right[part != i]) for i in range(PARTS)])
        error = math.sqrt((PARTS - 1) * without.var())
        half = float(stats.t.ppf((1 + self.level) / 2, PARTS - 1)) * error
        value = estimate(left, right)
        method = f"{self.k} nearest neighbours ({kind}), no bound, jackknife over {PARTS} parts"
        return Estimate("mutual information", value, value - half, value + half, self.level, n, method)

    def _between(self, x: Array, y: Array) -> float:
        radius = _radius(np.hstack([x, y]), self.k)
        counts = special.digamma(_within(x, x, radius)) + special.digamma(_within(y, y, radius))
        return float(special.digamma(self.k) + special.digamma(len(x)) - counts.mean())

    def _among(self, x: Array, codes: Array) -> float:
        _, place, counts = np.unique(codes, return_inverse=True, return_counts=True)
        kept = counts[place] > 1  # a code that occurs once has no neighbour
        require(bool(kept.any()), "NearestNeighbours's y", "codes of which one occurs twice", len(counts))
        terms = np.zeros(len(x))
        for code in np.flatnonzero(counts > 1):
            own = x[place == code]
            k = min(self.k, len(own) - 1)
            inside = special.digamma(_within(x[kept], own, _radius(own, k)))
            terms[place == code] = special.digamma(k) - special.digamma(len(own)) - inside
        return float(terms[kept].mean() + special.digamma(kept.sum()))


def _untied(values: Tensor, rng: torch.Generator) -> Array:
    """Columns of standard deviation 1 with noise of 1e-10 that breaks ties, as scikit-learn has it; codes as
    they are."""
    if not values.is_floating_point():
        return values.numpy()
    std = values.std(0)
    noise = torch.randn(values.shape, generator=rng, dtype=torch.float64)
    return (values / torch.where(std > 0, std, 1.0) + 1e-10 * noise).numpy()


def _radius(points: Array, k: int) -> Array:
    """Just less than each point's distance to its k-th neighbour."""
    found = NearestNeighbors(n_neighbors=k, metric="chebyshev").fit(points).kneighbors()[0][:, -1]
    return np.asarray(np.nextafter(found, 0))


def _within(points: Array, centres: Array, radius: Array) -> Array:
    """How many points are within each centre's radius, itself included."""
    return np.asarray(KDTree(points, metric="chebyshev").query_radius(centres, radius, count_only=True))
