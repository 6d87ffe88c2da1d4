"""Lower bounds of epsilon: ours, jax_privacy's and privacy-estimates' on the same trials of one mechanism.

A trial draws b by a fair coin and a score from N(b mu, 1), or from Laplace noise around b, whose epsilon at
a delta is known; at mu = 0 nothing leaks. Reported are how often a bound claims more than the truth (at
95 % at most 5 % of the times, if it is valid), the median bound (the nearer to the truth the tighter), and
the time of one bound. The Laplace mechanism is where a bound that assumes nothing can come near the truth,
and so where its validity is tried. Bounds that assume nothing are compared with ours of "any" trade-off,
those that assume a Gaussian one with ours of "gaussian", on Gaussian trials only. privacy-estimates takes
counts of errors and leaves the threshold to others: it is given the one at which Clopper-Pearson limits
certify most on the first half of the trials, which is in its time, and the counts of the second half. Its
joint-beta method takes minutes for one bound of 2,000 trials, and is in the quick table alone.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from leakscope import Transcript, epsilon_lower_bound, seeded
from leakscope.measures.epsilon import gaussian_epsilon, gaussian_mu
from leakscope.measures.success import proportion
from peers.table import Peer, Row, duration

JAX = Peer("jax_privacy", ("jax-privacy", "jax"))
COUNTS = Peer("privacy_estimates", ("privacy-estimates",))
NEEDS = (JAX, COUNTS)
DELTA, LEVEL = 1e-5, 0.95
Assumption = Literal["any", "gaussian"]
Bound = Callable[[Transcript], float]
Scores = NDArray[np.float64]


@dataclass(frozen=True)
class Mechanism:
    """Scores of b = 0 and b = 1, and the epsilon at DELTA that they have."""

    name: str
    truth: float
    scores: Callable[[Tensor, torch.Generator], Tensor]  # (bits (t,), rng) -> (t,)
    assumptions: tuple[Assumption, ...]


def gaussian(mu: float) -> Mechanism:
    def scores(bits: Tensor, rng: torch.Generator) -> Tensor:
        return mu * bits + torch.randn(len(bits), generator=rng, dtype=torch.float64)

    return Mechanism(f"Gaussian mu = {mu:g}", gaussian_epsilon(mu, DELTA), scores, ("any", "gaussian"))


def laplace(epsilon: float) -> Mechanism:
    """Noise of scale 1 / epsilon; at delta its epsilon is smaller by 2 log(1 / (1 - delta))."""

    def scores(bits: Tensor, rng: torch.Generator) -> Tensor:
        u = torch.rand(len(bits), generator=rng, dtype=torch.float64) - 0.5
        return bits - u.sign() * torch.log1p(-2 * u.abs()) / epsilon

    return Mechanism(f"Laplace {epsilon:g}", epsilon + 2 * math.log1p(-DELTA), scores, ("any",))


@dataclass(frozen=True)
class Claims:
    """The bounds of one method over repetitions of the trials, and the seconds each took."""

    bounds: tuple[float, ...]
    taken: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.bounds)

    def described(self, truth: float) -> str:
        above = proportion("above", sum(bound > truth for bound in self.bounds), len(self.bounds))
        share = f"above the truth {above.value:.1%} ({above.low:.1%} to {above.high:.1%})"
        return f"{share}, median {self.median:.2f}, {duration(self.taken)}"


@dataclass(frozen=True)
class Size:
    """So many trials of one mechanism, again and again."""

    mechanism: Mechanism
    trials: int
    repetitions: int


def sizes(*, quick: bool) -> list[Size]:
    if quick:
        return [Size(one, 400, 8) for one in (gaussian(0.0), gaussian(1.0), laplace(1.0))]
    known = [gaussian(gaussian_mu(epsilon, DELTA)) for epsilon in (0.5, 1.0, 2.0, 4.0)]
    return [
        Size(gaussian(0.0), 2_000, 400),
        Size(laplace(1.0), 2_000, 100),
        Size(gaussian(1.0), 2_000, 100),
        Size(gaussian(1.0), 10_000, 40),
        *(Size(one, 100_000, 8) for one in known),
        Size(gaussian(1.0), 1_000_000, 3),
    ]


def rows(*, quick: bool) -> Iterator[Row]:
    for size in sizes(quick=quick):
        mechanism = size.mechanism
        played = [transcript(mechanism, size.trials, seed) for seed in range(size.repetitions)]
        for assumed in mechanism.assumptions:
            for name, (bound, share, most) in peers(assumed).items():
                if size.trials > most:
                    continue
                some = played[: math.ceil(share * size.repetitions)]
                mine, other = claims((partial(own, assumed), bound), some)
                ratio = statistics.median(b / a for a, b in zip(mine.taken, other.taken, strict=True))
                yield Row(
                    f"epsilon, {mechanism.name}, truth {mechanism.truth:.2f}",
                    f'"{assumed}": {mine.described(mechanism.truth)}',
                    f"{name}: {other.described(mechanism.truth)}",
                    f"median {mine.median - other.median:+.2f}, time {ratio:.2g}x",
                    f"{size.trials} trials, delta {DELTA:g}, level {LEVEL:g}, {len(some)} repetitions",
                )


def transcript(mechanism: Mechanism, trials: int, seed: int) -> Transcript:
    rng = seeded(seed, "trials")
    bits = torch.randint(2, (trials,), generator=rng)
    return Transcript(bits, mechanism.scores(bits, rng), torch.full((2,), 0.5, dtype=torch.float64))


def claims(bounds: tuple[Bound, ...], played: list[Transcript]) -> list[Claims]:
    """What each bound claims of each transcript, in turns."""
    found: list[list[tuple[float, float]]] = [[] for _ in bounds]
    for one in played:
        for bound, results in zip(bounds, found, strict=True):
            started = time.process_time()
            claimed = float(bound(one))
            results.append((claimed, time.process_time() - started))
    return [Claims(*zip(*results, strict=True)) for results in found]


def own(assumed: Assumption, played: Transcript) -> float:
    return epsilon_lower_bound(played, delta=DELTA, level=LEVEL, trade_off=assumed).low


Runs = tuple[Bound, float, int]  # with the share of the repetitions, and the most trials, its speed allows
ALL = 10_000_000


def peers(assumed: Assumption) -> dict[str, Runs]:
    """Bounds with the same assumption."""
    found: dict[str, Runs] = {}
    if JAX.installed:
        found |= _jax(assumed)
    if COUNTS.installed and assumed == "any":
        found |= {
            "privacy-estimates beta (Clopper-Pearson)": (partial(_counted, "beta"), 1.0, ALL),
            "privacy-estimates joint-beta": (partial(_counted, "joint-beta"), 0.125, 500),
        }
    return found


def _jax(assumed: Assumption) -> dict[str, Runs]:
    from jax_privacy import auditing

    def auditor(played: Transcript) -> auditing.CanaryScoreAuditor:
        zero, one = _scores(played)
        return auditing.CanaryScoreAuditor(one, zero)

    def pearson(strategy: object, played: Transcript) -> float:
        return auditor(played).epsilon_clopper_pearson(
            1 - LEVEL, DELTA, one_sided=False, threshold_strategy=strategy
        )

    if assumed == "gaussian":
        return {
            "jax_privacy epsilon_from_gdp": (
                lambda p: auditor(p).epsilon_from_gdp(1 - LEVEL, DELTA),
                1.0,
                ALL,
            ),
            "jax_privacy epsilon_one_run_fdp": (
                lambda p: auditor(p).epsilon_one_run_fdp(1 - LEVEL, DELTA),
                0.1,
                10_000,
            ),
        }
    return {
        "jax_privacy Clopper-Pearson, Bonferroni": (partial(pearson, auditing.Bonferroni()), 1.0, 100_000),
        "jax_privacy Clopper-Pearson, split": (partial(pearson, auditing.Split(seed=0)), 1.0, ALL),
        "jax_privacy epsilon_one_run": (
            lambda p: auditor(p).epsilon_one_run(1 - LEVEL, DELTA),
            1.0,
            10_000,
        ),
    }


def _counted(method: str, played: Transcript) -> float:
    from privacy_estimates import AttackResults, compute_eps_lo

    (choose0, test0), (choose1, test1) = (np.array_split(scores, 2) for scores in _scores(played))
    cut = certifying(choose0, choose1)
    alarms, misses = int((test0 >= cut).sum()), int((test1 < cut).sum())
    counts = AttackResults(FN=misses, FP=alarms, TN=len(test0) - alarms, TP=len(test1) - misses)
    return compute_eps_lo(counts, DELTA, 1 - LEVEL, method)


def certifying(zero: Scores, one: Scores) -> float:
    """The score from which on to say b = 1, where Clopper-Pearson limits certify most."""
    cuts = np.sort(np.concatenate([zero, one]))
    alarms, misses = len(zero) - np.searchsorted(np.sort(zero), cuts), np.searchsorted(np.sort(one), cuts)
    false, missed = (
        np.where(k < n, stats.beta.ppf((1 + LEVEL) / 2, k + 1, np.maximum(n - k, 1)), 1.0)
        for k, n in ((alarms, len(zero)), (misses, len(one)))
    )
    ratios = np.maximum((1 - DELTA - false) / missed, (1 - DELTA - missed) / false)
    return float(cuts[np.argmax(ratios)])


def _scores(played: Transcript) -> tuple[Scores, Scores]:
    """Of the trials with b = 0 and with b = 1."""
    return played.guesses[played.secrets == 0].numpy(), played.guesses[played.secrets == 1].numpy()
