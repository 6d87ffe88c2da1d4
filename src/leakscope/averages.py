"""Estimates and curves over seeds: the mean, its interval, and the spread that it comes from."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import stdev
from typing import Any

from leakscope import svg
from leakscope.core import Estimate
from leakscope.measures.success import over_seeds, untruncated

Json = Mapping[str, Any]
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


def averages(
    runs: Sequence[Json], bases: Sequence[float] = (), *, most: Mapping[str, float] | None = None
) -> dict[str, Average]:
    """Every measure that all runs have in finite numbers; ``most`` is what it can reach, if not 1. The
    advantage is averaged before it is cut at zero, from the success rates and what guessing achieved."""
    names = [name for name in (runs[0] if runs else ()) if all(finite(run.get(name)) for run in runs)]
    found = {name: average([run[name] for run in runs], most=(most or {}).get(name, 1.0)) for name in names}
    if "advantage" in found and "success" in found and len(bases) == len(runs):
        raw = [untruncated(run["success"]["value"], base) for run, base in zip(runs, bases, strict=True)]
        found["advantage"] = average([run["advantage"] for run in runs], raw)
    return found


def average(
    estimates: Sequence[Json], raw: Sequence[float] | None = None, *, least: float = 0.0, most: float = 1.0
) -> Average:
    """The mean over seeds; the spread that its interval comes from is kept beside it."""
    mean = over_seeds([Estimate(**estimate) for estimate in estimates], raw=raw, least=least, most=most)
    values = [float(estimate["value"]) for estimate in estimates] if raw is None else list(raw)
    std = stdev(values) if len(values) > 1 else None
    return Average(mean.value, mean.low, mean.high, mean.level, mean.n, len(values), std, mean.method)


def finite(estimate: Json | None) -> bool:
    """Whether an estimate is there with its interval, all in numbers."""
    limits = [estimate.get(key) for key in ("value", "low", "high")] if estimate else [None]
    return all(limit is not None and math.isfinite(limit) for limit in limits)


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
    targets = (svg.FLOOR ** (1 - i / (points - 1)) for i in range(points))
    kept = {0, *(max(0, bisect_right(rates, target * (1 + 1e-9)) - 1) for target in targets)}
    return tuple(curve[i] for i in sorted(kept))


def needed(level: float, fpr: float, *, kinds: int = 1) -> int:
    """The trials without the secret that `tpr_at_fpr` needs for a lower limit above 0, for each of
    ``kinds`` values. Until (1 - fpr)^n falls below its part of the error, not even n trials without a
    false alarm show that the threshold keeps to ``fpr``."""
    return math.floor(math.log((1 - level) / 4 / kinds) / math.log1p(-fpr)) + 1
