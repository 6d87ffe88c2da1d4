"""Lower bounds of epsilon that may be looked at after every batch of trials, by who may stop at any time.

A gambler bets, before each batch, against "epsilon is at most this", for every epsilon of a grid. If that is
true, the game is unfair to the gambler: the stake that it makes, or more, comes with a chance of at most one
over it, however often one looks (Ville 1939; Ramdas et al. 2023). An epsilon is ruled out once the stake has
grown to 1 / (1 - level).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import special

from leakscope.core.errors import require
from leakscope.core.nouns import Estimate, Transcript
from leakscope.measures.epsilon import best_side, gaussian_epsilon, least_wrong, played_scores

Array = NDArray[np.float64]
LARGEST = 12.0  # epsilon, or mu, of the grid: no number of trials that can be played rules out more
GRID = np.append(np.arange(0.0, 3.0, 0.005), np.arange(3.0, LARGEST, 0.01))
STAKES = np.array([0.01, 0.02, 0.04, 0.08, 0.16, 0.3, 0.5, 0.7, 0.85, 0.95, 0.99])  # of what may be lost
AT_ONCE = 128  # numbers of the grid
FEWEST = 10  # trials of each secret from which a test is chosen
ANEW = 1.25  # a test is chosen again where so many times the trials are known


def watch_epsilon(
    batches: Iterable[Transcript],
    *,
    delta: float,
    level: float = 0.95,
    trade_off: Literal["any", "gaussian"] = "any",
) -> Iterator[Estimate]:
    """After each batch the epsilon that all trials so far certify: with probability ``level`` none of the
    ``low`` is above the true one, so that one may look at each and stop at any.

    Each secret is drawn by a fair coin, whatever came before. What to test is chosen on earlier batches; on
    the first nothing is staked. ``"any"`` assumes no more: a test that is right at rate R and wrong at rate W
    has R <= e^epsilon W + delta, so that "1 for a right answer, minus e^epsilon for a wrong one" is worth at
    most delta / 2 a trial. One third of the stake each is on answers above a threshold, below one, and both.
    ``"gaussian"`` assumes the trade-off of N(0, 1) and N(mu, 1): the chance of an error is then at least
    Phi(-mu / 2) in every trial. The stake is spread over `STAKES`, and on each of them it is never moved.

    ``value`` is the estimate without limits, ``high`` the most that so many trials could certify, by making
    no error at all: not an upper limit of epsilon. For one look `epsilon_lower_bound` is tighter."""
    for name, chance in (("delta", delta), ("level", level)):
        require(0 < chance < 1, f"watch_epsilon.{name}", "between 0 and 1", chance)
    require(trade_off in ("any", "gaussian"), "watch_epsilon.trade_off", "'any' or 'gaussian'", trade_off)
    game = _Any(delta) if trade_off == "any" else _Gaussian(delta)
    stake = _Stake(game, -math.log1p(-level), ((0, 0, 0),) * game.tests)
    zeros, ones = np.empty(0), np.empty(0)
    tests: tuple[_Test, ...] = ()
    known = trials = 0
    for batch in batches:
        fair = torch.allclose(batch.prior.double(), torch.full((2,), 0.5, dtype=torch.float64))
        require(fair, "watch_epsilon: prior", "a fair coin's, 0.5 and 0.5", batch.prior.tolist())
        zero, one = played_scores(batch, "watch_epsilon", fewest=0)
        stake = stake.after([test.count(zero, one) for test in tests]) if tests else stake
        zeros, ones = np.append(zeros, zero), np.append(ones, one)
        trials += len(zero) + len(one)
        n = min(len(zeros), len(ones))
        if n >= FEWEST and n >= ANEW * known:
            tests, known = game.choose(zeros[:n], ones[:n], level), n
        yield stake.estimate(trials, level)


Odds = tuple[Array | float, Array, float]


@dataclass(frozen=True)
class _Test:
    """Says 1 from ``above`` on and 0 below ``below``; nothing where it has no such threshold."""

    above: float = math.inf
    below: float = -math.inf

    def count(self, zeros: Array, ones: Array) -> Answers:
        """How often it is right, wrong and silent."""
        right = int((ones >= self.above).sum() + (zeros < self.below).sum())
        wrong = int((zeros >= self.above).sum() + (ones < self.below).sum())
        return right, wrong, len(zeros) + len(ones) - right - wrong


@dataclass(frozen=True)
class _Any:
    """Bets against (epsilon, delta)-DP."""

    delta: float
    tests: ClassVar[int] = 3
    assumed: ClassVar[str] = ""

    def choose(self, zeros: Array, ones: Array, level: float) -> tuple[_Test, ...]:
        above, below = (
            best_side((zeros, ones), len(zeros), above=side, delta=self.delta, level=level)[1]
            for side in (True, False)
        )
        above = max(above, below)  # so that no score is on both sides
        return _Test(above=above), _Test(below=below), _Test(above, below)

    def odds(self, grid: Array) -> list[Odds]:
        """For each test what a right answer wins, and what a wrong one and silence cost."""
        wrong = np.exp(grid)
        fees = (self.delta / 2, self.delta / 2, self.delta)
        return [(1 - fee, wrong + fee, fee) for fee in fees]

    def value(self, right: int, wrong: int, trials: int) -> float:
        if not right:
            return 0.0
        kept = right - self.delta * trials / 2
        return math.log(kept / wrong) if wrong and kept > 0 else math.inf if kept > 0 else 0.0

    def epsilon(self, reached: float) -> float:
        return reached


@dataclass(frozen=True)
class _Gaussian:
    """Bets against mu-GDP."""

    delta: float
    tests: ClassVar[int] = 1
    assumed: ClassVar[str] = ", Gaussian trade-off assumed"

    def choose(self, zeros: Array, ones: Array, level: float) -> tuple[_Test, ...]:
        threshold = least_wrong(zeros, ones)
        return (_Test(threshold, threshold),)

    def odds(self, grid: Array) -> list[Odds]:
        error = special.ndtr(-grid / 2)
        return [(error, 1 - error, 0.0)]

    def value(self, right: int, wrong: int, trials: int) -> float:
        mu = -2 * float(special.ndtri(wrong / trials)) if wrong else LARGEST
        return self.epsilon(max(mu, 0.0))

    def epsilon(self, reached: float) -> float:
        return gaussian_epsilon(reached, self.delta)


Answers = tuple[int, int, int]  # how many are right, wrong, and silent


@dataclass(frozen=True)
class _Stake:
    """All answers so far, of each test, and how many numbers of the grid they have ruled out: all below the
    first that they have not. What a stake became depends on the answers' numbers alone."""

    game: _Any | _Gaussian
    wanted: float  # the logarithm of what 1 must become
    counts: tuple[Answers, ...]
    ruled_out: int = 0

    def after(self, answers: Sequence[Answers]) -> _Stake:
        pairs = zip(self.counts, answers, strict=True)
        counts = tuple((a[0] + b[0], a[1] + b[1], a[2] + b[2]) for a, b in pairs)
        return replace(self, counts=counts, ruled_out=self._reached(counts))

    def _reached(self, counts: Sequence[Answers]) -> int:
        """The numbers of the grid that are ruled out in a row, from those that already are."""
        reached = self.ruled_out
        while reached < len(GRID):
            grown = self._grow(counts, GRID[reached : reached + AT_ONCE])
            kept = np.flatnonzero(grown < self.wanted)
            if len(kept):
                return reached + int(kept[0])
            reached += len(grown)
        return reached

    def _grow(self, counts: Sequence[Answers], grid: Array) -> Array:
        """The logarithm of what 1 became in bets against each of ``grid``, spread over tests and shares."""
        logs = []
        for (right, wrong, silent), (win, loss, fee) in zip(counts, self.game.odds(grid), strict=True):
            bet = STAKES[:, None] / loss
            logs.append(
                right * np.log1p(bet * win) + wrong * np.log1p(-bet * loss) + silent * np.log1p(-bet * fee)
            )
        whole = np.concatenate(logs)
        top = whole.max(0)
        return np.asarray(top + np.log(np.exp(whole - top).mean(0)))

    def _epsilon(self, ruled_out: int) -> float:
        """The last that is ruled out: it is above the true one only if the first of the grid that is not
        below the true one was ruled out, which has a small chance."""
        return self.game.epsilon(float(GRID[ruled_out - 1])) if ruled_out else 0.0

    def estimate(self, trials: int, level: float) -> Estimate:
        low = self._epsilon(self.ruled_out)
        high = self._epsilon(self._reached([(sum(self.counts[0]), 0, 0)] * self.game.tests))
        found = max((self.game.value(r, w, r + w + s) for r, w, s in self.counts if r + w), default=0.0)
        name = f"epsilon at delta {self.game.delta:g}"
        method = "bets, valid at any time" + self.game.assumed
        return Estimate(name, min(max(found, low), high), low, high, level, trials, method)
