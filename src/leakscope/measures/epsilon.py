"""Differential privacy in numbers: epsilons that trials certify, and those the Gaussian mechanism promises.

An audit plays the game of paper 000, section 7: b = 0 (H0) or b = 1, a score per trial, larger when
b = 1 looks likelier. Its error rates bound epsilon from below; the analysis bounds it from above.
Logarithms are natural. Epsilon is of the pair of records that was played, at the delta given.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special

from leakscope.core.errors import require
from leakscope.core.nouns import Estimate, Transcript
from leakscope.measures.success import one_vs_rest

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

_FEWEST = 10  # trials of each secret; fewer certify nothing at any usual level
_CHOOSING = 5  # one trial in so many chooses what the others test
_LUCK = 0.1  # one-sided error of the limits by which it is chosen
_ASIDE = 0.01  # of the error, for the rate that delta is held against


def epsilon_lower_bound(
    transcript: Transcript,
    *,
    delta: float,
    level: float = 0.95,
    trade_off: Literal["any", "gaussian"] = "any",
) -> Estimate:
    """The epsilon that the trials certify: ``low`` is below the true one with probability ``level``.

    Trials are independent given their secrets, and as many of either are used. What to test is chosen on the
    first fifth of either secret's trials and tested on the others, so choosing costs no validity; trials are
    exchangeable, so it need not be drawn which they are.

    ``"any"`` assumes no more. A test says b = 1 from a threshold on, or b = 0 below it, and nothing
    elsewhere. Where it is right at rate R and wrong at rate W, epsilon is at least log((R - delta) / W)
    (paper 000, section 7, for either error). Of the trials in which it speaks the share W / (R + W) is wrong:
    one count, and one Clopper-Pearson limit at 99% of the error, while a limit for R at the rest is held
    against delta. With as many trials of either secret the count is less spread than a binomial, and the
    error was not exceeded for any two rates of a grid, at 5, 30 and 120 trials of either, with every count at
    its exact chance: shown there, and not proven for all rates. It cannot be tight at
    small delta: the outputs whose likelihood ratio reaches e^epsilon have a chance of about delta, far too
    rare to be counted, and the outputs that can be counted tell less.

    ``"gaussian"`` assumes that the two records are exactly as hard to tell apart as N(0, 1) and N(mu, 1)
    (the trade-off curve G_mu of Dong et al. 2022): the Gaussian mechanism, composed or not, without
    sampling. Of any score the mean error (FPR + FNR) / 2 is then at least Phi(-mu / 2), and equal to it
    for the likelihood ratio. The errors in equally many trials of either secret are one count, less
    spread than a binomial (Hoeffding 1956), so one Clopper-Pearson limit at the whole error bounds mu,
    and `gaussian_epsilon` turns it into epsilon. The assumption reaches far beyond what the trials show;
    where it fails, so does the bound.

    ``value`` is the estimate at the tested threshold without limits, ``high`` the most that so many
    trials could certify, by making no error at all: not an upper limit of epsilon. All are at least
    0, and ``value`` is cut at ``high``."""
    _check(delta, "epsilon_lower_bound.delta")
    _check(level, "epsilon_lower_bound.level")
    require(
        trade_off in ("any", "gaussian"), "epsilon_lower_bound.trade_off", "'any' or 'gaussian'", trade_off
    )
    choose, test = _parted(*played_scores(transcript, "epsilon_lower_bound"))
    n = len(test[0])
    method = "test chosen on a fifth, Clopper-Pearson on the others"
    if trade_off == "any":
        threshold, above = _best_test(choose, n, delta=delta, level=level)
        wrong, right = _answers(*_errors(*test, threshold), n, above=above)
        value = float(_ratio(right / n - delta, wrong / n))
        low = float(_certified(wrong, right, n, delta=delta, level=level))
        high = float(_certified(0, n, n, delta=delta, level=level))
    else:
        way_out = "use trade_off='any'"  # only a binomial's far tail is above that of two unequal rates
        require(level >= 0.75, "epsilon_lower_bound.level", "at least 0.75", level, way_out=way_out)
        k = sum(_errors(*test, least_wrong(*choose)))
        value = _gaussian_from_error(k / (2 * n), delta)
        low = _gaussian_from_error(float(_upper(k, 2 * n, 1 - level)), delta)
        high = _gaussian_from_error(float(_upper(0, 2 * n, 1 - level)), delta)
        method += ", Gaussian trade-off assumed"
    value, low, high = max(value, 0.0), max(low, 0.0), max(high, 0.0)
    name = f"epsilon at delta {delta:g}"
    return Estimate(name, min(value, high), low, high, level, len(transcript.secrets), method)


def epsilon_point(transcript: Transcript, *, delta: float) -> float:
    """Paper 000's estimate to the letter: its formula maximised over all thresholds on all trials.

    Not a bound: with no leak at all it averages about 1 at 5,000 trials, since the best of many
    thresholds is a lucky one; and with any large leak it is the logarithm of the trials of one secret,
    ln(n / 2) for n trials. Thresholds with FPR * FNR = 0 are skipped, being infinite; if that leaves
    none, a count of zero is taken for one. `epsilon_lower_bound` is what to report."""
    _check(delta, "epsilon_point.delta")
    negatives, positives = played_scores(transcript, "epsilon_point")
    _, false_alarms, misses = _roc(negatives, positives)
    both = (false_alarms > 0) & (misses > 0)
    if both.any():
        false_alarms, misses = false_alarms[both], misses[both]
    n = len(negatives), len(positives)
    rates = _rates(np.maximum(false_alarms, 1), np.maximum(misses, 1), n)
    return max(float(_epsilon(*rates, delta=delta).max()), 0.0)


def saturation(trials: int, delta: float, level: float = 0.95) -> float:
    """The largest ``epsilon_lower_bound(trade_off="any")`` that so many trials could ever certify.

    It is what no error at all on the tested trials attains, with equally many of both secrets: about
    ln(trials) - 2 at level .95. An epsilon above it cannot be confirmed, whoever attacks."""
    require(trials >= 2 * _FEWEST, "saturation.trials", f"at least {2 * _FEWEST}", trials)
    _check(delta, "saturation.delta")
    _check(level, "saturation.level")
    n = trials // 2 - _chosen(trials // 2)
    return max(float(_certified(0, n, n, delta=delta, level=level)), 0.0)


def classical_epsilon(clip: float, std: float, delta: float) -> float:
    """Paper 000's epsilon of clipping to ``clip`` and adding N(0, std^2).

    clip sqrt(2 ln(1.25 / delta)) / std, where clip stands for the distance of the two gradients.
    Valid for results up to 1 only (Dwork and Roth 2014, theorem A.1). Above, the true epsilon can be
    larger: 284, not 96.9, at clip / std = 20 and delta 1e-5. `gaussian_epsilon` is exact."""
    for name, number in (("clip", clip), ("std", std)):
        require(0 < number < math.inf, f"classical_epsilon.{name}", "positive and finite", number)
    _check(delta, "classical_epsilon.delta")
    return clip * math.sqrt(2 * math.log(1.25 / delta)) / std


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The exact epsilon of telling N(0, 1) from N(mu, 1) at ``delta``: the Gaussian mechanism with
    mu = (distance of the two means) / (standard deviation of the noise).

    The root of delta = Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu), Balle and Wang
    2018, theorem 8; 0 where delta alone covers the difference."""
    require(0 <= mu < math.inf, "gaussian_epsilon.mu", "at least 0 and finite", mu)
    _check(delta, "gaussian_epsilon.delta")
    target = math.log(delta)
    if mu == 0 or _log_delta(0.0, mu) <= target:  # at epsilon 0 it is the total variation
        return 0.0
    most = mu * (mu / 2 - float(special.ndtri(delta)))  # where the first term alone is delta
    return float(optimize.brentq(lambda e: _log_delta(e, mu) - target, 0.0, most, xtol=1e-13, rtol=1e-14))


def gaussian_mu(epsilon: float, delta: float) -> float:
    """The inverse of `gaussian_epsilon`: the largest mu whose epsilon at ``delta`` is ``epsilon``."""
    require(0 <= epsilon < math.inf, "gaussian_mu.epsilon", "at least 0 and finite", epsilon)
    _check(delta, "gaussian_mu.delta")
    least = math.sqrt(8) * float(special.erfinv(delta))  # the answer for epsilon 0
    if epsilon == 0:
        return least
    target, most = math.log(delta), 2 * least
    while _log_delta(epsilon, most) < target:
        most *= 2
    return float(
        optimize.brentq(lambda mu: _log_delta(epsilon, mu) - target, least, most, xtol=1e-14, rtol=1e-14)
    )


def _check(chance: float, argument: str) -> None:
    require(0 < chance < 1, argument, "between 0 and 1", chance)


def played_scores(transcript: Transcript, caller: str, *, fewest: int = _FEWEST) -> tuple[Array, Array]:
    """The scores of the trials with b = 0 and with b = 1, in the order they were played."""
    secrets, guesses = transcript.secrets, transcript.guesses
    shape = tuple(guesses.shape)
    fits = shape in ((len(secrets),), (len(secrets), 2))
    require(fits, f"{caller}: guesses", f"scores (t,) or posteriors (t, 2) of {len(secrets)} trials", shape)
    require(not bool(guesses.isnan().any()), f"{caller}: guesses", "free of NaN", "NaN")
    if guesses.dim() == 2:
        chances = bool(((guesses >= 0) & (guesses <= 1)).all())
        way_out = "pass the score of b = 1 as (t,)"
        require(chances, f"{caller}: guesses (t, 2)", "chances", "values outside [0, 1]", way_out=way_out)
    ones, zeros = int((secrets == 1).sum()), int((secrets == 0).sum())
    require(ones + zeros == len(secrets), f"{caller}: secrets", "0 or 1", "other values")
    rule, counted = f"at least {fewest} trials of 0 and of 1", f"{zeros} of 0 and {ones} of 1"
    way_out = "play more trials, drawing the secret at equal odds"
    require(min(ones, zeros) >= fewest, f"{caller}: secrets", rule, counted, way_out=way_out)
    scores, labels = one_vs_rest(transcript)
    largest = np.finfo(np.float64).max / 2
    finite = np.clip(scores[0], -largest, largest)  # so that scores have differences and middles
    return finite[~labels[0]], finite[labels[0]]


def _parted(zeros: Array, ones: Array) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Trials to choose on and trials to test on, as many of either secret."""
    most = min(len(zeros), len(ones))
    first = _chosen(most)
    return (zeros[:first], ones[:first]), (zeros[first:most], ones[first:most])


def _chosen(trials: int) -> int:
    return max(trials // _CHOOSING, _FEWEST // 2)


def _roc(negatives: Array, positives: Array) -> tuple[Array, Counts, Counts]:
    """Every threshold, with the false alarms and the misses of saying b = 1 from it on: one below all
    scores, and one between any two neighbours, so that tied scores stay together."""
    pooled = np.concatenate([negatives, positives])
    order = np.argsort(pooled)
    first = np.flatnonzero(np.append(True, np.diff(pooled[order]) > 0))  # of each distinct score
    distinct, misses = pooled[order][first], np.append(0, np.cumsum(order >= len(negatives)))[first]
    lower, upper = distinct[:-1], distinct[1:]
    middle = lower / 2 + upper / 2
    thresholds = np.append(distinct[:1], np.where(middle > lower, middle, upper))
    return thresholds, len(negatives) - (first - misses), misses


def _corners(negatives: Array, positives: Array) -> tuple[Array, Counts, Counts]:
    """The thresholds that no other beats in false alarms and misses at once."""
    thresholds, false_alarms, misses = _roc(negatives, positives)
    kept = np.append(np.diff(misses) > 0, True) & np.append(True, np.diff(false_alarms) < 0)
    return thresholds[kept], false_alarms[kept], misses[kept]


def _errors(negatives: Array, positives: Array, threshold: float) -> tuple[int, int]:
    return int((negatives >= threshold).sum()), int((positives < threshold).sum())


def least_wrong(negatives: Array, positives: Array) -> float:
    """The middle of all scores, which is best for two equal shapes, unless another threshold makes clearly
    fewer errors: the best of many is a lucky one."""
    thresholds, false_alarms, misses = _corners(negatives, positives)
    wrong = false_alarms + misses
    middle = float(np.median(np.concatenate([negatives, positives])))
    best, clear = int(np.argmin(wrong)), 2 * math.sqrt(len(negatives))
    if sum(_errors(negatives, positives, middle)) - wrong[best] > clear:
        return float(thresholds[best])
    return middle


def _best_test(choose: tuple[Array, Array], n: int, *, delta: float, level: float) -> tuple[float, bool]:
    """The threshold, and whether to speak above it, of the better side."""
    sides = [(*best_side(choose, n, above=above, delta=delta, level=level), above) for above in (True, False)]
    _, threshold, above = max(sides)
    return threshold, above


def best_side(
    choose: tuple[Array, Array], n: int, *, above: bool, delta: float, level: float
) -> tuple[float, float]:
    """What a test that speaks ``above`` a threshold or below it would certify with so many trials, and the
    threshold where it would certify most, if they went as those to choose on, but for luck: the share of
    wrong answers is taken at its limit."""
    thresholds, false_alarms, misses = _corners(*choose)
    moved = (np.diff(_bucket(false_alarms)) != 0) | (np.diff(_bucket(misses)) != 0)
    tried = np.append(True, moved)  # of thresholds that differ by less than noise, the first
    wrong, right = _answers(false_alarms[tried], misses[tried], len(choose[0]), above=above)
    spoken, share = n / len(choose[0]) * (wrong + right), _upper(wrong, wrong + right, _LUCK)
    sure = _certified(spoken * share, spoken * (1 - share), n, delta=delta, level=level)
    best = int(np.argmax(sure))
    return float(sure[best]), float(thresholds[tried][best])


def _answers(false_alarms: Any, misses: Any, n: int, *, above: bool) -> tuple[Any, Any]:
    """How often a test is wrong and right that speaks above its threshold, or below it."""
    return (false_alarms, n - misses) if above else (misses, n - false_alarms)


def _bucket(counts: Counts) -> Counts:
    """Exact for small counts, of 2% width for large ones: limits for every count would be slow."""
    steps = 50 * np.log(np.maximum(counts, 50) / 50)
    return np.minimum(counts, 50) + steps.astype(np.int64)


def _epsilon(fpr: Array, fnr: Array, *, delta: float) -> Array:
    """The paper's formula; minus infinity where the rates say nothing, beyond any other at rate 0."""
    return np.maximum(_ratio(1 - delta - fpr, fnr), _ratio(1 - delta - fnr, fpr))


def _ratio(right: Any, wrong: Any) -> Array:
    """log(right / wrong)."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(np.maximum(right, 0) / np.maximum(wrong, np.finfo(np.float64).tiny)))


def _certified(wrong: Any, right: Any, n: int, *, delta: float, level: float) -> Array:
    """The lower limit of log((R - delta) / W) after so many wrong and right of n trials of either secret."""
    error = 1 - level
    share = _upper(wrong, wrong + right, (1 - _ASIDE) * error)
    least = 1 - _upper(n - np.asarray(right), n, _ASIDE * error)
    kept = 1 - delta / np.maximum(least, np.finfo(np.float64).tiny)
    return _ratio((1 - share) * kept, share)


def _rates(false_alarms: Counts | int, misses: Counts | int, n: tuple[int, int]) -> tuple[Array, Array]:
    return np.asarray(false_alarms) / n[0], np.asarray(misses) / n[1]


def _upper(k: Any, n: Any, error: float) -> Array:
    """Clopper and Pearson's one-sided upper limit of a rate, after k of n; 1 if k = n."""
    k = np.asarray(k)
    limit = special.betaincinv(k + 1.0, np.maximum(n - k, np.finfo(np.float64).tiny), 1 - error)
    return np.where(k < n, limit, 1.0)


def _gaussian_from_error(rate: float, delta: float) -> float:
    """Epsilon where the mean error Phi(-mu / 2) is ``rate``; infinity at rate 0."""
    if rate == 0:
        return math.inf
    return gaussian_epsilon(max(-2 * float(special.ndtri(rate)), 0.0), delta)


def _log_delta(epsilon: float, mu: float) -> float:
    """ln delta of Balle and Wang's formula; in logarithms, as e^epsilon overflows where Phi vanishes."""
    first = float(special.log_ndtr(mu / 2 - epsilon / mu))
    second = epsilon + float(special.log_ndtr(-mu / 2 - epsilon / mu))
    return first + math.log(-math.expm1(second - first)) if second < first else -math.inf
