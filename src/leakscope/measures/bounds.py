"""What no adversary can exceed: Fano's inequality, Gaussian channels, differential privacy.

Information is in nats (natural logarithms). ``prior`` is the chance of each value of the secret; values
of chance zero do not count among its m values. A bound holds for every adversary, however strong, when
its assumptions hold; a *measured* mutual information is no such bound, because it is a lower estimate.
The chain is secret -> records -> gradient g -> release g~, so I(secret; g~) <= I(g; g~). Rounds with
fresh noise add: I(secret; g~_1 .. g~_r) <= sum_i I(g_i; g~_i), also when a round's model follows from
earlier releases, since h(g~_i | earlier) <= h(g~_i) and h(g~_i | earlier, secret) >= h(noise).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import optimize, special
from torch import Tensor

from leakscope.core.errors import ArgumentError, require

Array = NDArray[np.float64]
Chances = Tensor | Sequence[float] | Array

BLOCK = 512  # rows whose distances are in memory at once


def entropy(prior: Chances) -> float:
    """H(X) = -sum p log p, in nats."""
    return float(special.entr(_prior(prior)).sum())


def fano_accuracy(mutual_information: float, prior: Chances) -> float:
    """The best accuracy any adversary can reach who learns at most ``mutual_information`` nats.

    Equation 6 of paper 000 solved exactly: 1 - e for the smallest error e in [0, 1 - 1/m] with
    H(X) - I <= H2(e) + e log(m - 1), for every m from 2 on. Since log m - H2(e) - e log(m - 1) is the
    divergence d(1 - e || 1/m) of two coins, it is the largest accuracy a with
    d(a || 1/m) <= I + log m - H(X). Attained by the m-ary symmetric channel at equal odds."""
    _nonnegative("fano_accuracy.mutual_information", mutual_information)
    chances = _prior(prior)
    m = len(chances)
    if np.ptp(chances) == 0:  # where rounding of H(X) would show
        return _inverse_divergence(mutual_information, 1 / m)
    missing = max(float(special.kl_div(chances, 1 / m).sum()), 0.0)  # log m - H(X)
    return max(_inverse_divergence(mutual_information + missing, 1 / m), float(chances.max()))


def divergence_accuracy(mutual_information: float, prior: Chances) -> float:
    """The best accuracy by Han and Verdu's form of Fano's inequality: d(a || p*) <= I.

    Data processing of the event "the guess is right": it has probability a when guess and secret are
    joint and at most p* = max prior when they are independent. Equal to `fano_accuracy` at equal odds;
    for other priors exact at I = 0 (it is p*), but loose near I = H(X). Both hold, so does the smaller."""
    _nonnegative("divergence_accuracy.mutual_information", mutual_information)
    return _inverse_divergence(mutual_information, float(_prior(prior).max()))


def fano_information(accuracy: float, prior: Chances) -> float:
    """The least information, in nats, with which guesses can be right that often.

    `fano_accuracy` and `divergence_accuracy` inverted: d(a || 1/m) - (log m - H(X)) and d(a || p*). Both
    hold, so does the larger. 0 up to p*, which takes no information."""
    require(0 <= accuracy <= 1, "fano_information.accuracy", "between 0 and 1", accuracy)
    chances = _prior(prior)
    best, m = float(chances.max()), len(chances)
    if accuracy <= best:
        return 0.0
    missing = float(special.kl_div(chances, 1 / m).sum())  # log m - H(X)
    return max(_divergence(accuracy, 1 / m) - missing, _divergence(accuracy, best))


def fano_accuracy_closed(mutual_information: float, prior: Chances) -> float:
    """1 minus the error of equation 7, which replaces H2(e) by log 2; never below `fano_accuracy`."""
    _nonnegative("fano_accuracy_closed.mutual_information", mutual_information)
    chances = _prior(prior)
    m = len(chances)
    if m == 2:
        raise ArgumentError(
            "fano_accuracy_closed.prior must have more than two possible values, got 2; equation 7 is "
            "vacuous there, use fano_accuracy."
        )
    error = (entropy(chances) - mutual_information - math.log(2)) / math.log(m - 1)
    return min(1 - error, 1.0)


def advantage_of(accuracy: float, prior: Chances) -> float:
    """max(p - p*, 0) / (1 - p*) of paper 000, 5.1.2: the share of the gap between guessing and
    certainty that an accuracy closes; p* is the largest prior."""
    require(0 <= accuracy <= 1, "advantage_of.accuracy", "between 0 and 1", accuracy)
    base = float(_prior(prior).max())
    return max(accuracy - base, 0.0) / (1 - base)


def fano_advantage(mutual_information: float, prior: Chances) -> float:
    """Equation 8 made exact: the advantage of `fano_accuracy`, from 0 to 1."""
    return advantage_of(fano_accuracy(mutual_information, prior), prior)


def gaussian_capacity(power: float, std: float, dimensions: int) -> float:
    """I(g; g + N(0, std^2 I)) <= n/2 log(1 + P / std^2) nats, if E||g||^2 <= n P.

    P is the power per dimension. Section 6.3 of paper 000 prints one dimension's 1/2 log(1 + P / std^2)
    for the whole vector, which is too small by the factor n. Attained by g ~ N(0, P I)."""
    _nonnegative("gaussian_capacity.power", power, finite=True)
    _positive("gaussian_capacity.std", std)
    require(dimensions >= 1, "gaussian_capacity.dimensions", "at least 1", dimensions)
    return dimensions / 2 * math.log1p(power / std / std)


def clipped_capacity(clip: float, std: float, dimensions: int) -> float:
    """I(g; g + N(0, std^2 I)) <= n/2 log(1 + clip^2 / (n std^2)) nats, if ||g|| <= clip.

    Proof: g + noise has covariance K with tr K <= clip^2 + n std^2. A Gaussian has the largest entropy
    for K, and the log of det K is concave, so among all K of that trace the multiple of I has the
    largest: h(g + noise) <= n/2 log(2 pi e (clip^2 / n + std^2)); subtract the noise's entropy,
    n/2 log(2 pi e std^2). Grows with n towards clip^2 / (2 std^2). ``std`` is the noise on what is
    released: with noise of std s on each of k averaged records it is s / sqrt(k)."""
    _nonnegative("clipped_capacity.clip", clip, finite=True)
    require(dimensions >= 1, "clipped_capacity.dimensions", "at least 1", dimensions)
    return gaussian_capacity(clip**2 / dimensions, std, dimensions)


def variance_information(means: Tensor, std: float, *, weights: Chances | None = None) -> float:
    """I(g; g + N(0, std^2 I)) <= sum_i w_i ||m_i - mean||^2 / (2 std^2) nats.

    g is row i of ``means`` (n, d) with chance w_i (equal if None). I is the smallest value over Q of
    sum_i w_i KL(N(m_i, std^2 I) || Q); here Q is N(mean, std^2 I). The bound is for this distribution
    of g: rows that are a sample of the gradients that could occur bound the sample only."""
    rows, chances = _mixture(means, std, weights)
    centre = _centre(rows, chances)
    norms = torch.cat([(part.double() - centre).square().sum(1) for part in rows.split(BLOCK)])
    return float(norms @ chances) / std / std / 2


def pairwise_information(means: Tensor, std: float, *, weights: Chances | None = None) -> float:
    """I(g; g + N(0, std^2 I)) <= sum_ij w_i w_j ||m_i - m_j||^2 / (2 std^2) nats.

    The mean divergence between two inputs, by convexity of KL in its second argument. By the variance
    identity it is exactly twice `variance_information`, which is how it is computed; same assumptions."""
    return 2 * variance_information(means, std, weights=weights)


def mixture_information(means: Tensor, std: float, *, weights: Chances | None = None) -> float:
    """I(g; g + N(0, std^2 I)) <= -sum_i w_i log sum_j w_j exp(-||m_i - m_j||^2 / (2 std^2)) nats.

    Kolchinsky and Tracey (Entropy, 2017), their upper bound with the KL divergence. At most the entropy of w
    (keep j = i only) and at most `pairwise_information` (Jensen), not always at most
    `variance_information`; same assumptions. Time n^2 d, memory a block of rows."""
    rows, chances = _mixture(means, std, weights)
    centre, log_chances = _centre(rows, chances), chances.log()
    total = 0.0
    for start in range(0, len(rows), BLOCK):
        here = rows[start : start + BLOCK].double() - centre
        overlaps = torch.cat([_overlap(here, part.double() - centre, std) for part in rows.split(BLOCK)], 1)
        overlaps.diagonal(start).zero_()  # a row overlaps fully with itself, whatever the rounding
        inner = torch.logsumexp(overlaps + log_chances, dim=1)
        total -= float(inner @ chances[start : start + BLOCK])
    return max(total, 0.0)


def dp_accuracy(epsilon: float, delta: float, prior: Chances) -> float:
    """The best accuracy when the outputs for every two values are (epsilon, delta)-indistinguishable.

    delta + (1 - delta) max_k P_k e^eps / (e^eps + k - 1), P_k the sum of the k largest chances; no bound
    is better. Proof: let p_a = P(guess a | a) and r_a = max(p_a - delta, 0). By indistinguishability
    P(guess a | b) >= e^-eps r_a, so row b of the confusion matrix gives r_b + e^-eps sum_{a != b} r_a <=
    1 - delta where p_b > delta, and therefore everywhere. The vertices of these inequalities have r equal
    on k values and 0 elsewhere; the best take the k likeliest. Attained: with probability delta the secret
    itself comes out, else randomised response over the k likeliest values, where other values say one of
    the k at random. For two values it is the vertex (or the end) of the trade-off f_{eps, delta}:
    (e^eps + delta) / (1 + e^eps) at equal odds.

    Mixing over batches keeps it: the outputs given a secret are indistinguishable when those of every two
    batches are. A secret that a batch of k records shares needs `group` first."""
    _nonnegative("dp_accuracy.epsilon", epsilon)
    require(0 <= delta <= 1, "dp_accuracy.delta", "between 0 and 1", delta)
    likeliest = np.cumsum(np.sort(_prior(prior))[::-1])
    others = np.arange(len(likeliest))
    best = float((likeliest / (1 + others * math.exp(-epsilon))).max())
    return min(delta + (1 - delta) * best, 1.0)


def gaussian_accuracy(mu: float, prior: Chances) -> float:
    """The best accuracy when the outputs for every two values are mu-GDP apart.

    Two values: Neyman and Pearson's test of N(0, 1) against N(mu, 1) at that prior; exact. More values:
    with p_a = P(guess a | a), mu-GDP gives P(guess a | b) >= h(p_a), h(p) = Phi(Phi^-1(p) - mu), so row b
    of the confusion matrix gives p_b + sum_{a != b} h(p_a) <= 1. h is convex, and the Lagrange dual of
    maximising sum_a prior_a p_a bounds it at *any* multipliers, hence whatever the optimiser returns.
    At equal odds it is the root of p + (m - 1) h(p) = 1, attained by randomised response; for other priors
    over more than two values it is a bound that may not be attained. By convexity of the trade-off, mixing
    over batches keeps it. A secret that a batch of k records shares needs `group_gaussian` first."""
    _nonnegative("gaussian_accuracy.mu", mu)
    chances = np.sort(_prior(prior))[::-1]
    top = float(chances[0])
    if mu == 0 or mu > 80:  # an error of Phi(-40) is none
        return top if mu == 0 else 1.0
    if len(chances) == 2:
        threshold = mu / 2 + math.log(top / float(chances[1])) / mu
        return float(top * special.ndtr(threshold) + chances[1] * special.ndtr(mu - threshold))
    starts = [_multipliers(mu, chances, k) for k in range(1, len(chances) + 1)]
    start = min(starts, key=lambda multipliers: _dual(multipliers, mu, chances)[0])
    limits = [(0.0, 1.0)] * len(chances)
    found = optimize.minimize(_dual, start, (mu, chances), "SLSQP", jac=True, bounds=limits, tol=1e-12)
    bound = min(_dual(multipliers, mu, chances)[0] for multipliers in (start, found.x.clip(0, 1)))
    return float(np.clip(bound, top, 1.0))


def group(epsilon: float, delta: float, k: int) -> tuple[float, float]:
    """(k eps, k e^((k - 1) eps) delta): what (epsilon, delta)-DP per record promises for k records.

    Record-level DP does not protect a secret that all k records of a batch share: two batches with
    different secrets are k replacements apart. ``epsilon`` is for replacing one record; if it is for
    adding or removing one, a replacement is two steps: give 2 k. delta is at most 1, where nothing is
    promised."""
    _nonnegative("group.epsilon", epsilon)
    require(0 <= delta <= 1, "group.delta", "between 0 and 1", delta)
    require(k >= 1, "group.k", "at least 1", k)
    if delta == 0:
        return k * epsilon, 0.0
    return k * epsilon, math.exp(min(math.log(k) + (k - 1) * epsilon + math.log(delta), 0.0))


def group_gaussian(mu: float, k: int) -> float:
    """k mu: what mu-GDP per record promises for k records (Dong, Roth and Su, 2022, group privacy)."""
    _nonnegative("group_gaussian.mu", mu)
    require(k >= 1, "group_gaussian.k", "at least 1", k)
    return k * mu


def _inverse_divergence(nats: float, base: float) -> float:
    """The largest a in [base, 1] with d(a || base) <= nats."""
    if nats >= -math.log(base):
        return 1.0

    def excess(a: float) -> float:
        return _divergence(a, base) - nats

    if excess(base) >= 0:  # no information, or less than rounding
        return base
    return float(optimize.brentq(excess, base, 1.0, xtol=1e-15))


def _divergence(a: float, base: float) -> float:
    """d(a || base) = a log(a/base) + (1-a) log((1-a)/(1-base)), which rounding could take below 0."""
    return max(float(special.kl_div(a, base) + special.kl_div(1 - a, 1 - base)), 0.0)


def _dual(multipliers: Array, mu: float, chances: Array) -> tuple[float, Array]:
    """The Lagrange dual of `gaussian_accuracy` and its slope: sum(l) + sum_a max_p (u_a p - v_a h(p))
    with u = prior - l, v = sum(l) - l; each maximum is a Neyman-Pearson test of weight v_a / u_a."""
    u, v = chances - multipliers, np.maximum(multipliers.sum() - multipliers, 0.0)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        threshold = np.where(u > 0, mu / 2 + np.log(v / u) / mu, np.inf)
    hit, alarm = special.ndtr(mu - threshold), special.ndtr(-threshold)
    value = multipliers.sum() + (u * hit - v * alarm).sum()
    return float(value), 1 - hit - (alarm.sum() - alarm)


def _multipliers(mu: float, chances: Array, k: int) -> Array:
    """The multipliers that are optimal if the k likeliest values have equal odds and the rest none."""

    def surplus(z: float) -> float:
        return float(special.ndtr(z) + (k - 1) * special.ndtr(z - mu)) - 1

    slope = 0.0
    if k > 1:
        z = float(optimize.brentq(surplus, -40.0, 40.0))
        slope = math.exp(min(mu * z - mu**2 / 2, 700.0))
    multipliers = np.zeros(len(chances))
    multipliers[:k] = chances[:k].sum() / k / (1 + (k - 1) * slope)
    return multipliers


def _centre(rows: Tensor, chances: Tensor) -> Tensor:
    parts = zip(rows.split(BLOCK), chances.split(BLOCK), strict=True)
    return torch.stack([weight @ part.double() for part, weight in parts]).sum(0)


def _overlap(here: Tensor, there: Tensor, std: float) -> Tensor:
    """Minus the KL divergence of every Gaussian here from every one there."""
    squares = here.square().sum(1)[:, None] + there.square().sum(1) - 2 * here @ there.T
    return -squares.clamp(min=0) / std / std / 2


def _mixture(means: Tensor, std: float, weights: Chances | None) -> tuple[Tensor, Tensor]:
    """The rows that can occur and their chances in float64."""
    _positive("std", std)
    require(means.dim() == 2 and means.numel() > 0, "means", "rows (n, d)", tuple(means.shape))
    require(bool(means.isfinite().all()), "means", "finite", "a value that is not")
    rows = means.detach().cpu()
    if weights is None:
        return rows, torch.full((len(rows),), 1 / len(rows), dtype=torch.float64)
    chances = torch.from_numpy(_chances("weights", weights))
    require(len(chances) == len(rows), "weights", f"one per row of means ({len(rows)})", len(chances))
    return rows[chances > 0], chances[chances > 0]


def _prior(prior: Chances) -> Array:
    """The positive chances, in float64, summing to 1."""
    chances = _chances("prior", prior)
    possible = chances[chances > 0]
    certain = len(possible) < 2 or float(possible.max()) >= 1
    require(not certain, "prior", "positive for at least two values", chances.tolist()[:10])
    return possible


def _chances(name: str, values: Chances) -> Array:
    given = values.detach().cpu().numpy() if isinstance(values, Tensor) else values
    chances = np.array(given, dtype=np.float64)
    require(chances.ndim == 1 and len(chances) > 0, name, "probabilities (m,)", chances.shape)
    require(bool((chances >= 0).all()), name, "non-negative", chances.tolist()[:10])
    total = float(chances.sum())
    require(abs(total - 1) <= 1e-6, name, "of sum 1", total, way_out="divide it by its sum")
    return chances / total


def _nonnegative(argument: str, value: float, *, finite: bool = False) -> None:
    holds = value >= 0 and not (finite and math.isinf(value))
    require(holds, argument, "finite and at least 0" if finite else "at least 0", value)


def _positive(argument: str, value: float) -> None:
    require(0 < value < math.inf, argument, "finite and above 0", value)
