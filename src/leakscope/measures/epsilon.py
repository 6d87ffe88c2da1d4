"""Differential privacy in numbers: epsilons that trials certify, and those the Gaussian mechanism promises.

An audit plays the game of paper 000, section 7: b = 0 (H0) or b = 1, a score per trial, larger when
b = 1 looks likelier. Its error rates bound epsilon from below; the analysis bounds it from above.
Logarithms are natural. Epsilon is of the pair of records that was played, at the delta given.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special

from leakscope.core.errors import MissingExtra, require
from leakscope.core.nouns import Estimate, Transcript
from leakscope.measures.success import one_vs_rest

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

_FEWEST = 10  # trials of each secret; fewer certify nothing at any usual level


def epsilon_lower_bound(
    transcript: Transcript,
    *,
    delta: float,
    level: float = 0.95,
    trade_off: Literal["any", "gaussian"] = "any",
) -> Estimate:
    """The epsilon that the trials certify: ``low`` is below the true one with probability ``level``.

    Trials are independent given their secrets. The threshold is chosen on the first half of either
    secret's trials and tested on the second, so choosing costs no validity; trials are exchangeable, so
    the halves need not be random.

    ``"any"`` assumes no more: max of log((1 - delta - FPR) / FNR) and log((1 - delta - FNR) / FPR)
    (paper 000, section 7) at upper Clopper-Pearson limits, each at half the error. It cannot be tight
    at small delta: the outputs whose likelihood ratio reaches e^epsilon have a chance of about delta,
    far too rare to be counted, and the outputs that can be counted tell less.

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
    (choose0, test0), (choose1, test1) = map(_halves, _scores(transcript, "epsilon_lower_bound"))
    method = "threshold from one half, Clopper-Pearson on the other"
    if trade_off == "any":
        n = len(test0), len(test1)
        wrong = _errors(test0, test1, _best_threshold(choose0, choose1, delta=delta, level=level))
        value = float(_epsilon(*_rates(*wrong, n), delta=delta))
        low = float(_epsilon(*_limits(*wrong, n, level=level), delta=delta))
        high = _certifiable(n, delta=delta, level=level)
    else:
        way_out = "use trade_off='any'"  # only a binomial's far tail is above that of two unequal rates
        require(level >= 0.75, "epsilon_lower_bound.level", "at least 0.75", level, way_out=way_out)
        m = min(len(test0), len(test1))
        k = sum(_errors(test0[:m], test1[:m], _least_wrong(choose0, choose1)))
        value = _gaussian_from_error(k / (2 * m), delta)
        low = _gaussian_from_error(float(_upper(k, 2 * m, 1 - level)), delta)
        high = _gaussian_from_error(float(_upper(0, 2 * m, 1 - level)), delta)
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
    negatives, positives = _scores(transcript, "epsilon_point")
    _, false_alarms, misses = _roc(negatives, positives)
    both = (false_alarms > 0) & (misses > 0)
    if both.any():
        false_alarms, misses = false_alarms[both], misses[both]
    n = len(negatives), len(positives)
    rates = _rates(np.maximum(false_alarms, 1), np.maximum(misses, 1), n)
    return max(float(_epsilon(*rates, delta=delta).max()), 0.0)


def saturation(trials: int, delta: float, level: float = 0.95) -> float:
    """The largest ``epsilon_lower_bound(trade_off="any")`` that so many trials could ever certify.

    It is what no error at all on the tested half attains, with equally many trials of both secrets:
    about ln(trials / 4) - 1.3 at level .95. An epsilon above it cannot be confirmed, whoever attacks."""
    require(trials >= 2 * _FEWEST, "saturation.trials", f"at least {2 * _FEWEST}", trials)
    _check(delta, "saturation.delta")
    _check(level, "saturation.level")
    classes = trials // 2, trials - trials // 2
    tested = classes[0] - classes[0] // 2, classes[1] - classes[1] // 2
    return max(_certifiable(tested, delta=delta, level=level), 0.0)


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


def composed_epsilon(
    noise_multiplier: float, delta: float, *, steps: int, sampling: float = 1.0, replaced: bool = False
) -> float:
    """The epsilon of a whole run of DP-SGD: ``steps`` Gaussian releases, each of records drawn with
    chance ``sampling``, their noise ``noise_multiplier`` times the clipping norm.

    Neighbours differ by one record added or removed, so that mu = 1 / noise_multiplier per step; one
    that is ``replaced`` can move the sum twice as far. Exact for sampling 1, where steps compose to
    mu sqrt(steps) (Dong et al. 2022, corollary 3.3); for Poisson sampling the privacy loss
    distribution of dp-accounting, which rounds up."""
    way_out = "without noise epsilon is infinite"
    argument, noisy = "composed_epsilon.noise_multiplier", 0 < noise_multiplier < math.inf
    require(noisy, argument, "positive and finite", noise_multiplier, way_out=way_out)
    _check(delta, "composed_epsilon.delta")
    require(steps >= 1 and steps == int(steps), "composed_epsilon.steps", "a whole number from 1 on", steps)
    require(0 < sampling <= 1, "composed_epsilon.sampling", "in (0, 1]", sampling)
    mu = (2 if replaced else 1) / noise_multiplier
    unsampled = gaussian_epsilon(math.sqrt(steps) * mu, delta)
    if sampling == 1:
        return unsampled
    try:
        import dp_accounting  # type: ignore[import-untyped]
        from dp_accounting.pld import PLDAccountant  # type: ignore[import-untyped]
    except ImportError as error:
        line = "composed_epsilon with sampling below 1 needs dp-accounting; run: pip install dp-accounting"
        raise MissingExtra(line) from error
    step = dp_accounting.PoissonSampledDpEvent(sampling, dp_accounting.GaussianDpEvent(noise_multiplier))
    neighbours = dp_accounting.NeighboringRelation
    relation = neighbours.REPLACE_ONE if replaced else neighbours.ADD_OR_REMOVE_ONE
    grid = 1e-4 * max(1.0, mu**2)  # losses grow with 1 / noise^2; so may their rounding
    accountant = PLDAccountant(relation, value_discretization_interval=grid)
    return min(float(accountant.compose(step, int(steps)).get_epsilon(delta)), unsampled)


def _check(chance: float, argument: str) -> None:
    require(0 < chance < 1, argument, "between 0 and 1", chance)


def _scores(transcript: Transcript, caller: str) -> tuple[Array, Array]:
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
    rule, counted = f"at least {_FEWEST} trials of 0 and of 1", f"{zeros} of 0 and {ones} of 1"
    way_out = "play more trials, drawing the secret at equal odds"
    require(min(ones, zeros) >= _FEWEST, f"{caller}: secrets", rule, counted, way_out=way_out)
    scores, labels = one_vs_rest(transcript)
    largest = np.finfo(np.float64).max / 2
    finite = np.clip(scores[0], -largest, largest)  # so that scores have differences and middles
    return finite[~labels[0]], finite[labels[0]]


def _halves(scores: Array) -> tuple[Array, Array]:
    return scores[: len(scores) // 2], scores[len(scores) // 2 :]


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


def _least_wrong(negatives: Array, positives: Array) -> float:
    thresholds, false_alarms, misses = _corners(negatives, positives)
    return float(thresholds[np.argmin(false_alarms / len(negatives) + misses / len(positives))])


def _best_threshold(negatives: Array, positives: Array, *, delta: float, level: float) -> float:
    """Where these trials would certify most: limits and all, so that luck with few errors counts little."""
    thresholds, false_alarms, misses = _corners(negatives, positives)
    n = len(negatives), len(positives)
    moved = (np.diff(_bucket(false_alarms)) != 0) | (np.diff(_bucket(misses)) != 0)
    tried = np.append(True, moved)  # of thresholds that differ by less than noise, the first
    limits = _limits(false_alarms[tried], misses[tried], n, level=level)
    return float(thresholds[tried][np.argmax(_epsilon(*limits, delta=delta))])


def _bucket(counts: Counts) -> Counts:
    """Exact for small counts, of 2% width for large ones: limits for every count would be slow."""
    steps = 50 * np.log(np.maximum(counts, 50) / 50)
    return np.minimum(counts, 50) + steps.astype(np.int64)


def _epsilon(fpr: Array, fnr: Array, *, delta: float) -> Array:
    """The paper's formula; minus infinity where the rates say nothing, beyond any other at rate 0."""
    tiny = np.finfo(np.float64).tiny
    one = np.maximum(1 - delta - fpr, 0) / np.maximum(fnr, tiny)
    other = np.maximum(1 - delta - fnr, 0) / np.maximum(fpr, tiny)
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(np.maximum(one, other)))


def _rates(false_alarms: Counts | int, misses: Counts | int, n: tuple[int, int]) -> tuple[Array, Array]:
    return np.asarray(false_alarms) / n[0], np.asarray(misses) / n[1]


def _limits(
    false_alarms: Counts | int, misses: Counts | int, n: tuple[int, int], *, level: float
) -> tuple[Array, Array]:
    """Upper limits of FPR and FNR that hold together at ``level``."""
    return _upper(false_alarms, n[0], (1 - level) / 2), _upper(misses, n[1], (1 - level) / 2)


def _upper(k: Counts | int, n: int, error: float) -> Array:
    """Clopper and Pearson's one-sided upper limit of a rate, after k of n; 1 if k = n."""
    k = np.asarray(k)
    limit = special.betaincinv(k + 1.0, np.maximum(n - k, 1.0), 1 - error)
    return np.where(k < n, limit, 1.0)


def _certifiable(n: tuple[int, int], *, delta: float, level: float) -> float:
    return float(_epsilon(*_limits(0, 0, n, level=level), delta=delta))


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
