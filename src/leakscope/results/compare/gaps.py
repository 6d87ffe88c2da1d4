"""How far two runs are apart in one measure, and how surely.

Paired over the seeds that both have, because a seed stands for the same split, the same first weights and
the same challenges in both: what it makes easier or harder for both cancels in their difference. The
estimate is the mean difference with Student's interval. Its p is that of all sign flips (Fisher 1935) up to
``EXACT`` seeds, where so few could not show whether differences are normal, and Student's beyond. With
several seeds each but not the same, Welch's. With one run each, two intervals become that of their
difference as if they were independent (Newcombe 1998; Zou and Donner 2008): the chance of the trials alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy import stats

from leakscope.results.number import Number

LEVEL = 0.95
EXACT = 10  # seeds up to which all sign flips are tried
TINY = 1e-12  # a spread below is that of rounding
PAIRED, WELCH, SINGLE = "paired over seeds", "seeds of their own", "one run each"


class Interval(Protocol):
    """An estimate with its limits, wherever it comes from."""

    @property
    def value(self) -> float | None: ...
    @property
    def low(self) -> float | None: ...
    @property
    def high(self) -> float | None: ...
    @property
    def level(self) -> float | None: ...


@dataclass(frozen=True)
class Gap:
    """B minus A, over so many ``seeds`` of each; no limits or no p where there are none to be had."""

    a: float
    b: float
    low: float | None
    high: float | None
    p: float | None
    seeds: int
    method: str

    @property
    def value(self) -> float:
        return self.b - self.a


def gap(a: Mapping[int, Number], b: Mapping[int, Number], raw: Sequence[Mapping[int, float]]) -> Gap:
    """By seed: the estimates of A and B, and the ``raw`` values where theirs are cut at zero."""
    shared = sorted(a.keys() & b.keys())
    if len(shared) > 1:
        found = paired(*([side[seed] for seed in shared] for side in raw))
        alike = found.low == found.high and found.value != 0
        return _widest(found, [independent(a[seed], b[seed]) for seed in shared]) if alike else found
    if min(len(a), len(b)) > 1:
        return unpaired(*(list(side.values()) for side in raw))
    one, other = (side[shared[0]] if shared else side[min(side)] for side in (a, b))
    return independent(one, other)


def paired(a: Sequence[float], b: Sequence[float]) -> Gap:
    """The mean of the differences, seed by seed."""
    d, n = np.subtract(b, a), len(a)
    value, spread = float(d.mean()), float(d.std(ddof=1))
    half = float(stats.t.ppf((1 + LEVEL) / 2, n - 1)) * spread / math.sqrt(n) if spread > TINY else 0.0
    if spread <= TINY:
        p = least(n) if abs(value) > TINY else 1.0  # all sign flips, whatever their number
    elif n <= EXACT:
        flips = stats.permutation_test((d,), np.mean, permutation_type="samples", n_resamples=2**EXACT)
        p = float(flips.pvalue)
    else:
        p = float(stats.ttest_1samp(d, 0.0).pvalue)
    return Gap(_mean(a), _mean(b), value - half, value + half, p, n, PAIRED)


def unpaired(a: Sequence[float], b: Sequence[float]) -> Gap:
    """The difference of two means, each over its own seeds."""
    seeds = min(len(a), len(b))
    if max(np.std(a), np.std(b)) <= TINY:
        return Gap(_mean(a), _mean(b), None, None, None, seeds, WELCH)
    test = stats.ttest_ind(b, a, equal_var=False)
    low, high = test.confidence_interval(LEVEL)
    return Gap(_mean(a), _mean(b), float(low), float(high), float(test.pvalue), seeds, WELCH)


def independent(a: Interval, b: Interval) -> Gap:
    """The difference of two estimates from their intervals, as if they knew nothing of each other. Its p is
    that of the level at which the interval would touch 0, were both normal."""
    av, bv = float(a.value or 0.0), float(b.value or 0.0)
    if (
        a.low is None
        or a.high is None
        or b.low is None
        or b.high is None
        or not a.level
        or a.level != b.level
    ):
        return Gap(av, bv, None, None, None, 1, SINGLE)
    value = bv - av
    below, above = math.hypot(bv - b.low, a.high - av), math.hypot(b.high - bv, av - a.low)
    facing = below if value > 0 else above
    z = float(stats.norm.ppf((1 + a.level) / 2))
    p = 1.0 if value == 0 else 2 * float(stats.norm.sf(z * abs(value) / facing)) if facing > 0 else None
    return Gap(av, bv, value - below, value + above, p, 1, SINGLE)


def least(seeds: int) -> float:
    """The smallest p that all sign flips of so many seeds can give."""
    return 2.0 ** (1 - seeds)


def holm(ps: Sequence[float | None]) -> list[float | None]:
    """Holm's (1979) correction of one family; what has no p is no part of it."""
    known = np.array([p for p in ps if p is not None])
    order = known.argsort()
    corrected = np.empty_like(known)
    corrected[order] = np.maximum.accumulate(known[order] * np.arange(len(known), 0, -1)).clip(max=1.0)
    rest = iter(corrected.tolist())
    return [None if p is None else float(next(rest)) for p in ps]


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))


def _widest(found: Gap, alone: Sequence[Gap]) -> Gap:
    """Seeds that agree exactly would give an interval of no width; then the widest of theirs stands."""
    lows, highs = [one.low for one in alone], [one.high for one in alone]
    low = min((low for low in lows if low is not None), default=None)
    high = max((high for high in highs if high is not None), default=None)
    return Gap(found.a, found.b, low, high, found.p, found.seeds, found.method)
