"""What an estimate rests on, so that its limits can be had at any error, and the trials that would decide.

Limits are one-sided: each is wrong with at most the ``error`` asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field
from scipy import stats

POWER = 0.9  # how likely so many trials decide, if what was estimated is the truth
MOST = 10**9  # trials
Enough = tuple[int, str]  # trials, and how they were computed


@dataclass(frozen=True)
class Counts:
    """``hits`` of ``n`` guesses, as the share of the way from ``base`` to certainty; base 0: a rate."""

    hits: int
    n: int
    base: float = 0.0
    kind: Literal["counts"] = "counts"

    def low(self, error: float) -> float:
        return self._gain(_lower(self.hits, self.n, error))

    def high(self, error: float) -> float:
        return self._gain(_upper(self.hits, self.n, error))

    def enough(self, limit: float, errors: tuple[float, float]) -> Enough | None:
        """The trials that would put the whole interval on one side of the limit, in ``POWER`` of all
        audits if the estimate is the truth; ``errors`` are those of the lower and upper limit."""
        rate, most = self.hits / self.n, self.base + limit * (1 - self.base)
        if rate == most:
            return None
        if rate < most:
            trials = _first(lambda n: _upper(_quantile(POWER, n, rate), n, errors[1]) <= most)
        else:
            trials = _first(lambda n: _lower(_quantile(1 - POWER, n, rate), n, errors[0]) > most)
        return (trials, "inverting Clopper-Pearson") if trials else None

    def _gain(self, rate: float) -> float:
        return max(rate - self.base, 0.0) / (1 - self.base) if self.base < 1 else 0.0


@dataclass(frozen=True)
class Effective:
    """Wilson's interval around ``value`` for an effective number of trials, by the normal distribution, or
    by Student's where ``degrees`` are given."""

    value: float
    effective: float
    n: int
    degrees: float | None = None
    kind: Literal["effective"] = "effective"

    def low(self, error: float) -> float:
        return self._wilson(error, -1)

    def high(self, error: float) -> float:
        return self._wilson(error, 1)

    def enough(self, limit: float, errors: tuple[float, float]) -> Enough | None:
        gap = abs(limit - self.value)
        if not gap or not 0 < limit < 1:
            return None
        z = self._quantile(errors[1] if limit > self.value else errors[0])
        spread = z * math.sqrt(limit * (1 - limit)) + _z(1 - POWER) * math.sqrt(self.value * (1 - self.value))
        return _bounded(self.n * (spread / gap) ** 2 / self.effective)

    def _wilson(self, error: float, side: int) -> float:
        p, n, z = self.value, self.effective, self._quantile(error)
        half = z * math.sqrt(p * (1 - p) / n + (z / (2 * n)) ** 2)
        return min(max((p + z * z / (2 * n) + side * half) / (1 + z * z / n), 0.0), 1.0)

    def _quantile(self, error: float) -> float:
        return _z(error) if self.degrees is None else float(stats.t.isf(error, self.degrees))


@dataclass(frozen=True)
class Deviation:
    """A mean with its standard error."""

    value: float
    deviation: float
    n: int
    kind: Literal["deviation"] = "deviation"

    def low(self, error: float) -> float:
        return self.value - _z(error) * self.deviation

    def high(self, error: float) -> float:
        return self.value + _z(error) * self.deviation

    def enough(self, limit: float, errors: tuple[float, float]) -> Enough | None:
        return scaled(self.value, self.n, (self.low(errors[0]), self.high(errors[1])), limit, errors)


@dataclass(frozen=True)
class Alarms:
    """True positives at a rate of false alarms: ``accepted[k]`` of ``positives`` are above the loosest
    threshold with at most k false alarms among ``negatives``.

    The threshold that truly has the rate lies between two order statistics of the negatives."""

    value: float
    accepted: tuple[int, ...]
    negatives: int
    positives: int
    fpr: float
    kind: Literal["alarms"] = "alarms"

    def low(self, error: float) -> float:
        strict = int(stats.binom.ppf(error / 2, self.negatives, self.fpr)) - 1
        return _lower(self._accepted(strict), self.positives, error / 2) if strict >= 0 else 0.0

    def high(self, error: float) -> float:
        loose = int(stats.binom.isf(error / 2, self.negatives, self.fpr))
        return _upper(self._accepted(loose), self.positives, error / 2)

    def enough(self, limit: float, errors: tuple[float, float]) -> Enough | None:
        n = self.negatives + self.positives
        return scaled(self.value, n, (self.low(errors[0]), self.high(errors[1])), limit, errors)

    def _accepted(self, alarms: int) -> int:
        return self.accepted[alarms] if alarms < len(self.accepted) else self.positives


Single = Annotated[Counts | Effective | Deviation | Alarms, Field(discriminator="kind")]


@dataclass(frozen=True)
class Mean:
    """A mean of estimates, such as one over clients: its limits are the means of theirs."""

    value: float
    n: int
    parts: tuple[Single, ...]
    kind: Literal["mean"] = "mean"

    def low(self, error: float) -> float:
        return sum(part.low(error) for part in self.parts) / len(self.parts)

    def high(self, error: float) -> float:
        return sum(part.high(error) for part in self.parts) / len(self.parts)

    def enough(self, limit: float, errors: tuple[float, float]) -> Enough | None:
        return scaled(self.value, self.n, (self.low(errors[0]), self.high(errors[1])), limit, errors)


Basis = Annotated[Counts | Effective | Deviation | Alarms | Mean, Field(discriminator="kind")]


def scaled(
    value: float, n: int, ends: tuple[float | None, float | None], limit: float, errors: tuple[float, float]
) -> Enough | None:
    """The trials that would decide, as widths fall with the root of the trials; None where the end that
    counts is not known."""
    gap, z = limit - value, _z(errors[1] if limit > value else errors[0])
    end = ends[1] if gap > 0 else ends[0]
    if end is None or not gap:
        return None
    return _bounded(n * (abs(end - value) * (1 + _z(1 - POWER) / z) / gap) ** 2)


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
