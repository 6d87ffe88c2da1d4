"""What a stored number says at another level than its own: limits on either side, and trials enough.

Limits are one-sided: each is wrong with at most the ``error`` asked for. None: what is stored does not
reach that far.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from scipy import stats

from leakscope.core import Estimate
from leakscope.measures.success import untruncated

POWER = 0.9  # how likely so many trials decide, if what was estimated is the truth
MOST = 10**9  # trials; more are none that anybody plays
Enough = tuple[int, str]  # trials, and how they were computed


class Evidence(Protocol):
    """A number from trials, with its limits at any error or at none."""

    @property
    def value(self) -> float: ...

    @property
    def n(self) -> int: ...

    @property
    def method(self) -> str: ...

    def low(self, error: float) -> float | None: ...

    def high(self, error: float) -> float | None: ...

    def enough(self, limit: float, errors: tuple[float, float]) -> Enough | None:
        """The trials that would put the whole interval on one side of the limit, in ``POWER`` of all
        audits if the estimate is the truth; ``errors`` are those of the lower and upper limit."""
        ...


@dataclass(frozen=True)
class Counted:
    """An advantage over ``base``, from the ``hits`` of ``n`` guesses."""

    hits: int
    n: int
    base: float
    method: str = "Clopper-Pearson"

    @property
    def value(self) -> float:
        return self._gain(self.hits / self.n)

    def low(self, error: float) -> float:
        return self._gain(_lower(self.hits, self.n, error))

    def high(self, error: float) -> float:
        return self._gain(_upper(self.hits, self.n, error))

    def enough(self, limit: float, errors: tuple[float, float]) -> Enough | None:
        rate, most = self.hits / self.n, self.base + limit * (1 - self.base)
        if rate < most:
            found = _first(lambda n: _upper(_quantile(POWER, n, rate), n, errors[1]) <= most)
        elif rate > most:
            found = _first(lambda n: _lower(_quantile(1 - POWER, n, rate), n, errors[0]) > most)
        else:
            return None
        return (found, "inverting Clopper-Pearson") if found else None

    def _gain(self, rate: float) -> float:
        return max(untruncated(rate, self.base), 0.0)


@dataclass(frozen=True)
class Ranked:
    """An AUROC with Wilson's interval for an ``effective`` number of trials."""

    value: float
    effective: float
    n: int
    method: str = "Wilson with DeLong's variance"

    def low(self, error: float) -> float:
        return self._wilson(error, -1)

    def high(self, error: float) -> float:
        return self._wilson(error, 1)

    def enough(self, limit: float, errors: tuple[float, float]) -> Enough | None:
        gap = abs(limit - self.value)
        if not gap or not 0 < limit < 1:
            return None
        z = _z(errors[1] if limit > self.value else errors[0])
        spread = z * math.sqrt(limit * (1 - limit)) + _z(1 - POWER) * math.sqrt(self.value * (1 - self.value))
        return _bounded(self.n * (spread / gap) ** 2 / self.effective)

    def _wilson(self, error: float, side: int) -> float:
        p, n, z = self.value, self.effective, _z(error)
        half = z * math.sqrt(p * (1 - p) / n + (z / (2 * n)) ** 2)
        return min(max((p + z * z / (2 * n) + side * half) / (1 + z * z / n), 0.0), 1.0)


@dataclass(frozen=True)
class Normal:
    """A mean with its standard error."""

    value: float
    deviation: float
    n: int
    method: str = "normal approximation"

    def low(self, error: float) -> float:
        return self.value - _z(error) * self.deviation

    def high(self, error: float) -> float:
        return self.value + _z(error) * self.deviation

    def enough(self, limit: float, errors: tuple[float, float]) -> Enough | None:
        return _scaled(self, limit, errors)


@dataclass(frozen=True)
class Curve:
    """True positives at a rate of false alarms, from a ROC curve on a grid.

    As `measures.tpr_at_fpr`: the threshold that truly has this rate lies between two order statistics of
    the negatives. Where the grid has no such point the next one further out is taken: a little wide."""

    value: float
    points: tuple[tuple[float, float], ...]
    negatives: int
    positives: int
    fpr: float
    method: str = "order statistics and Clopper-Pearson, from the ROC curve"

    @property
    def n(self) -> int:
        return self.negatives + self.positives

    def low(self, error: float) -> float:
        strict = int(stats.binom.ppf(error / 2, self.negatives, self.fpr)) - 1
        found = [tpr for rate, tpr in self.points if rate <= strict / self.negatives * (1 + 1e-12)]
        hits = round(max(found, default=0.0) * self.positives) if strict >= 0 else 0
        return _lower(hits, self.positives, error / 2)

    def high(self, error: float) -> float:
        loose = int(stats.binom.isf(error / 2, self.negatives, self.fpr))
        found = [tpr for rate, tpr in self.points if rate >= loose / self.negatives * (1 - 1e-12)]
        hits = round(min(found, default=1.0) * self.positives)
        return _upper(hits, self.positives, error / 2)

    def enough(self, limit: float, errors: tuple[float, float]) -> Enough | None:
        return _scaled(self, limit, errors)


@dataclass(frozen=True)
class Stored:
    """Intervals that cannot be computed again, as (error on either side, low, high): each is good for its
    own error and larger ones."""

    value: float
    intervals: tuple[tuple[float, float, float | None], ...]
    n: int
    method: str
    delta: float = 0.0  # of an epsilon

    def low(self, error: float) -> float | None:
        fitting = self._fitting(error)
        return fitting[1] if fitting else None

    def high(self, error: float) -> float | None:
        fitting = self._fitting(error)
        return fitting[2] if fitting else None

    @property
    def widest(self) -> tuple[float, float, float | None]:
        return min(self.intervals)

    def enough(self, limit: float, errors: tuple[float, float]) -> Enough | None:
        return _scaled(self, limit, errors)

    def _fitting(self, error: float) -> tuple[float, float, float | None] | None:
        """The narrowest that is sure enough."""
        return max((one for one in self.intervals if one[0] <= error * (1 + 1e-9)), default=None)


def stored(found: Estimate, *, sure: Estimate | None = None) -> Stored:
    """As it stands, half the error on either side; ``sure`` is the same number at a higher level."""
    ends = tuple(((1 - one.level) / 2, one.low, one.high) for one in (found, sure) if one is not None)
    return Stored(found.value, ends, found.n, found.method)


def counted(
    found: Estimate, *, base: float, hits: int | None = None, sure: Estimate | None = None
) -> Evidence:
    """An advantage, computed again if its own interval follows from hits and trials; else as stored.

    Where the hits are not known they are the most that give the stored interval."""
    if found.method != "Clopper-Pearson on the success rate" or not 0 <= base < 1:
        return stored(found, sure=sure)
    error = (1 - found.level) / 2
    if hits is None:
        most = base + found.high * (1 - base)
        hits = int(stats.binom.ppf(error * (1 + 1e-6), found.n, most)) if 0 < most < 1 else found.n
    for k in (hits, hits - 1):
        if 0 <= k <= found.n:
            again = Counted(k, found.n, base)
            ends = (found.low, found.high)
            if all(
                abs(a - b) < 1e-7 for a, b in zip((again.low(error), again.high(error)), ends, strict=True)
            ):
                return again
    return stored(found, sure=sure)


def ranked(found: Estimate, *, sure: Estimate | None = None) -> Evidence:
    """An AUROC, computed again where its interval is Wilson's: its effective trials follow from its width."""
    if found.method != Ranked.method:
        return stored(found, sure=sure)
    z, width = _z((1 - found.level) / 2), found.high - found.low
    p = found.value
    # width^2 (1 + z^2/n)^2 = 4 z^2 (p (1 - p) / n + z^2 / (4 n^2)), a quadratic in 1/n
    a, b, c = z**4 * (width**2 - 1), 2 * z**2 * width**2 - 4 * z**2 * p * (1 - p), width**2
    roots = [(-b + s * math.sqrt(max(b * b - 4 * a * c, 0.0))) / (2 * a) for s in (1, -1)] if a else []
    for inverse in roots:
        if inverse > 0:
            again = Ranked(p, 1 / inverse, found.n)
            error = (1 - found.level) / 2
            if abs(again.low(error) - found.low) < 1e-7 and abs(again.high(error) - found.high) < 1e-7:
                return again
    return stored(found, sure=sure)


def normal(found: Estimate) -> Evidence:
    """A number of nats, computed again where its interval is the normal approximation's."""
    if not found.method.startswith("normal approximation"):
        return stored(found)
    return Normal(found.value, (found.high - found.low) / 2 / _z((1 - found.level) / 2), found.n)


def curved(found: Estimate, roc: object, *, fpr: float, sure: Estimate | None = None) -> Evidence:
    """True positives at few false alarms, computed again from one ROC curve of a secret of two values; its
    first step is one false alarm."""
    points = _points(roc)
    negatives = round(1 / points[1][0]) if len(points) > 1 and points[1][0] > 0 else 0
    positives = found.n - negatives
    if found.method != "order statistics and Clopper-Pearson" or negatives < 50 or positives < 1:
        return stored(found, sure=sure)
    whole = all(abs(tpr * positives - round(tpr * positives)) < 1e-6 * positives for _, tpr in points)
    again, error = Curve(found.value, points, negatives, positives, fpr), (1 - found.level) / 2
    around = again.low(error) <= found.low + 1e-7 and again.high(error) >= found.high - 1e-7
    return again if whole and around else stored(found, sure=sure)


def _points(roc: object) -> tuple[tuple[float, float], ...]:
    """The curve in order, if it is one."""
    rows = roc if isinstance(roc, list | tuple) else ()
    pairs = [row for row in rows if isinstance(row, list | tuple) and len(row) == 2]
    numbers = [(a, b) for a, b in pairs if all(_rate(v) for v in (a, b))]
    whole = len(numbers) == len(rows)
    return tuple(sorted((float(a), float(b)) for a, b in numbers)) if whole else ()


def _rate(value: object) -> bool:
    return isinstance(value, int | float) and 0 <= value <= 1


def _scaled(evidence: Evidence, limit: float, errors: tuple[float, float]) -> Enough | None:
    """As widths fall with the root of the trials; None where the interval cannot be had at this error."""
    gap = limit - evidence.value
    end = evidence.high(errors[1]) if gap > 0 else evidence.low(errors[0])
    if end is None or not gap:
        return None
    z = _z(errors[1] if gap > 0 else errors[0])
    return _bounded(evidence.n * (abs(end - evidence.value) * (1 + _z(1 - POWER) / z) / gap) ** 2)


def _bounded(trials: float) -> Enough | None:
    return (math.ceil(trials), "normal approximation") if trials <= MOST else None


def _first(holds: Callable[[int], bool]) -> int | None:
    """The first number of trials for which it holds, by doubling and halving."""
    high = 1
    while not holds(high):
        high *= 2
        if high > MOST:
            return None
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _quantile(share: float, n: int, rate: float) -> int:
    return int(stats.binom.ppf(share, n, rate))


def _lower(hits: int, n: int, error: float) -> float:
    return float(stats.beta.ppf(error, hits, n - hits + 1)) if hits > 0 else 0.0


def _upper(hits: int, n: int, error: float) -> float:
    return float(stats.beta.isf(error, hits + 1, n - hits)) if hits < n else 1.0


def _z(error: float) -> float:
    return float(stats.norm.isf(error))
