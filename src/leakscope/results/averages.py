"""Estimates and curves over seeds: the mean, its interval, and the spread that it comes from."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import stdev

from leakscope.core.nouns import Estimate
from leakscope.measures.success import over_seeds

RAREST = 7e-4  # of false alarms, where a logarithmic axis begins: a little left of 0.1%
Curve = tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Average:
    """One measure over seeds: ``n`` trials in each of ``seeds`` runs; ``std`` is None for one seed."""

    value: float
    low: float
    high: float
    level: float
    n: int
    seeds: int
    std: float | None
    method: str


def average(
    estimates: Sequence[Estimate],
    raw: Sequence[float] | None = None,
    *,
    least: float = 0.0,
    most: float = 1.0,
    shared: bool = False,
) -> Average:
    """The mean over seeds; the spread that its interval comes from is kept beside it. ``raw``: the values to
    average, where the estimates' own are cut off. ``shared``: the seeds have their cases in common."""
    mean = over_seeds(estimates, raw=raw, least=least, most=most, shared=shared)
    values = [estimate.value for estimate in estimates] if raw is None else list(raw)
    std = stdev(values) if len(values) > 1 else None
    return Average(mean.value, mean.low, mean.high, mean.level, mean.n, len(values), std, mean.method)


def average_free(estimates: Sequence[Estimate]) -> Average:
    """Over seeds, of what may leave 0 to 1."""
    return average(estimates, least=-math.inf, most=math.inf)


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def mean_roc(curves: Sequence[Sequence[Sequence[float]]]) -> Curve:
    """The hits reached within each rate of false alarms, averaged over seeds; no interpolation."""
    steps: list[tuple[list[float], list[float]]] = []
    for curve in curves:
        best = dict(sorted((float(fpr), float(tpr)) for fpr, tpr in curve))  # the last, highest hit stays
        steps.append((list(best), list(accumulate(best.values(), max))))
    grid = sorted({rate for rates, _ in steps for rate in rates})
    grid = grid[max(0, bisect_right(grid, 0.001) - 1) :]  # left of 0.1% one point is enough
    reached = [
        [hits[bisect_right(rates, rate) - 1] if rate >= rates[0] else 0.0 for rates, hits in steps]
        for rate in grid
    ]
    return tuple((float(rate), mean(values)) for rate, values in zip(grid, reached, strict=True))


def thinned(curve: Curve, points: int) -> Curve:
    """At most ``points`` of a ROC curve, even on the logarithmic axis, each as measured."""
    rates = [fpr for fpr, _ in curve]
    if len(rates) <= points:
        return curve
    targets = (RAREST ** (1 - i / (points - 1)) for i in range(points))
    kept = {0, *(max(0, bisect_right(rates, target * (1 + 1e-9)) - 1) for target in targets)}
    return tuple(curve[i] for i in sorted(kept))


def needed(level: float, fpr: float, *, kinds: int = 1) -> int:
    """The trials without the secret that `tpr_at_fpr` needs for a lower limit above 0, for each of
    ``kinds`` values. Until (1 - fpr)^n falls below its part of the error, not even n trials without a
    false alarm show that the threshold keeps to ``fpr``."""
    return math.floor(math.log((1 - level) / 4 / kinds) / math.log1p(-fpr)) + 1
