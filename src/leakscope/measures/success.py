"""How well an adversary did: success rate, advantage, AUROC, true positives at few false alarms.

Every interval holds for the trials of one victim: it covers the draw of batches and secrets.
Ties never help the adversary: a threshold keeps or drops all trials of one score together.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from scipy.special import betaincinv

from leakscope.core.basis import Alarms, Counts, Effective
from leakscope.core.errors import ArgumentError, require
from leakscope.core.nouns import Estimate, Transcript

FEW = 50  # trials of a class below which DeLong's variance is not believed alone
LEAST = 1e-9  # error of a limit, below which the hits behind it are not kept
RARE = 4  # trials below which one of several values' areas would widen their mean by more than its share
Array = NDArray[np.float64]
Bools = NDArray[np.bool_]


def proportion(name: str, hits: int, n: int, *, level: float = 0.95) -> Estimate:
    """A share of trials with its exact (Clopper-Pearson) interval."""
    tail = (1 - level) / 2
    low = float(betaincinv(hits, n - hits + 1, tail)) if hits else 0.0
    high = float(betaincinv(hits + 1, n - hits, 1 - tail)) if hits < n else 1.0
    return Estimate(name, hits / n, low, high, level, n, "Clopper-Pearson", Counts(hits, n))


def success_rate(transcript: Transcript, *, level: float = 0.95) -> Estimate:
    """How often the likeliest secret was the right one (ASR); scores (t,) say 1 above zero, else 0."""
    hits = _hits(transcript.guesses, transcript.secrets)
    return proportion("success rate", hits, len(transcript.secrets), level=level)


def guessing(transcript: Transcript) -> float:
    """The best success rate without the release: the likeliest value of the prior, or what the
    adversary's side knowledge alone achieves, whichever is better."""
    prior = float(transcript.prior.max())
    if transcript.blind is None:
        return prior
    return max(prior, _hits(transcript.blind, transcript.secrets) / len(transcript.secrets))


def advantage(transcript: Transcript, *, level: float = 0.95) -> Estimate:
    """The share of the gap between guessing and certainty that the release closed.

    max(p - p*, 0) / (1 - p*) of paper 000, 5.1.2; p* is the largest prior, or what side knowledge
    alone achieves."""
    base = guessing(transcript)
    if transcript.blind is None:
        p, least, most = success_rate(transcript, level=level), base, base
        method = "Clopper-Pearson on the success rate"
        basis = Counts(_hits(transcript.guesses, transcript.secrets), p.n, base)
    else:  # what side knowledge achieves is measured too: both limits must hold
        shared = (1 + level) / 2
        p = success_rate(transcript, level=shared)
        hits = _hits(transcript.blind, transcript.secrets)
        blind = proportion("guessing", hits, len(transcript.secrets), level=shared)
        prior = float(transcript.prior.max())
        least, most = max(prior, blind.low), max(prior, blind.high)
        method = "Clopper-Pearson on the success rate and on guessing from side knowledge"
        basis = None
    value, low, high = _gain(p.value, base), _gain(p.low, most), _gain(p.high, least)
    return Estimate("advantage", value, low, high, level, p.n, method, basis)


def _gain(rate: float, base: float) -> float:
    return max(rate - base, 0.0) / (1 - base) if base < 1 else 0.0


def auroc(transcript: Transcript, *, level: float = 0.95) -> Estimate:
    """Area under the ROC curve, one-vs-rest and macro-averaged for more than two values.

    Interval: Wilson's, with the effective number of trials that DeLong's variance implies, at most the
    number of trials. A value of fewer than 50 trials tells little of its own spread: there the variance is at
    least Hanley and McNeil's (1982), and Student's t, with Welch's degrees, takes the place of the normal. Of
    one of two values with one trial, and of one of several with fewer than four, nothing is known: its area
    is between 0 and 1."""
    scores, labels = one_vs_rest(transcript)
    areas, influence = zip(*(_area(s, b) for s, b in zip(scores, labels, strict=True)), strict=True)
    n, m, area = labels.shape[1], len(labels), float(np.mean(areas))
    sides = np.minimum(labels.sum(1), (~labels).sum(1))
    known = [i for i in range(m) if sides[i] >= (2 if m == 1 else RARE)]
    share, low, high, basis = len(known) / m, 0.0, 1.0, None
    if known:
        basis = _effective([areas[i] for i in known], [influence[i] for i in known], labels[known])
        quantile = stats.norm.ppf if basis.degrees is None else partial(stats.t.ppf, df=basis.degrees)
        low, high = _wilson(basis.value, basis.effective, float(quantile((1 + level) / 2)))
    method = "Wilson with DeLong's variance" + (" and Student's t" if sides.min() < FEW else "")
    low, high = share * low, share * high + 1 - share
    return Estimate("AUROC", area, low, high, level, n, method, basis if share == 1 else None)


def _effective(areas: Sequence[float], influence: Sequence[Array], labels: Bools) -> Effective:
    """What the interval of the mean of areas rests on, each of a value with two trials at least."""
    n, m, area = labels.shape[1], len(labels), float(np.mean(areas))
    sides = np.minimum(labels.sum(1), (~labels).sum(1))
    each = np.array([one.var() / n for one in influence])
    variance, spread = float(np.mean(influence, axis=0).var()) / n, area * (1 - area)
    smallest = int(sides.min())
    if smallest < FEW:
        sizes = zip(labels.sum(1).tolist(), (~labels).sum(1).tolist(), strict=True)
        least = [
            _hanley(_drawn_in(a, min(size)), *size) if min(size) < FEW else 0.0
            for a, size in zip(areas, sizes, strict=True)
        ]
        each = np.maximum(each, least)
        variance = max(variance, float(each.sum()) / m**2)
        spread = max(spread, (drawn := _drawn_in(area, smallest)) * (1 - drawn))
    effective = float(np.clip(spread / variance, 1, n)) if variance > 0 else smallest
    if smallest >= FEW:
        return Effective(area, effective, n)
    degrees = each.sum() ** 2 / (each**2 / (sides - 1)).sum() if each.any() else smallest - 1
    return Effective(area, effective, n, float(degrees))


def _hanley(area: float, positives: int, negatives: int) -> float:
    """The variance of an area of this size, for scores that are exponential on either side."""
    both, twice = area / (2 - area), 2 * area**2 / (1 + area)
    more = (positives - 1) * (both - area**2) + (negatives - 1) * (twice - area**2)
    return (area * (1 - area) + more) / (positives * negatives)


def _drawn_in(area: float, trials: int) -> float:
    """An area drawn towards one half by one more trial, since few trials can all be lucky."""
    return (trials * area + 0.5) / (trials + 1)


def tpr_at_fpr(transcript: Transcript, *, fpr: float = 0.01, level: float = 0.95) -> Estimate:
    """Largest true positive rate of a threshold whose false positive rate is at most ``fpr``.

    Interval: exact whatever the distribution. The threshold that truly has this false positive
    rate lies between two order statistics of the negatives; Clopper-Pearson at each."""
    require(0 < fpr < 1, "tpr_at_fpr.fpr", "between 0 and 1", fpr)
    scores, labels = one_vs_rest(transcript)
    tail = (1 - level) / 4 / len(scores)  # two threshold limits, two rates, every class
    parts = np.array([_tpr(s, b, fpr, tail) for s, b in zip(scores, labels, strict=True)])
    value, low, high = (float(part) for part in parts.mean(0))
    name = f"TPR at {fpr:.1%} FPR".replace(".0%", "%")
    basis = _alarms(value, scores[0], labels[0], fpr) if len(scores) == 1 else None
    method = "order statistics and Clopper-Pearson"
    return Estimate(name, value, low, high, level, labels.shape[1], method, basis)


def _alarms(value: float, scores: Array, positive: Bools, fpr: float) -> Alarms:
    """The hits at every number of false alarms that a limit of `tpr_at_fpr` can need."""
    pos, neg = np.sort(scores[positive]), np.sort(scores[~positive])[::-1]
    most = min(int(stats.binom.isf(LEAST, len(neg), fpr)), len(neg) - 1)
    accepted = len(pos) - np.searchsorted(pos, neg[: most + 1], side="right")
    return Alarms(value, tuple(int(hits) for hits in accepted), len(neg), len(pos), fpr)


def roc(transcript: Transcript, *, points: int = 200) -> list[tuple[float, float]]:
    """The ROC curve as (false, true) positive rates: no interpolation, ties together, thinned to a
    grid that keeps its low-FPR end; the mean over values for more than two."""
    scores, labels = one_vs_rest(transcript)
    smallest = 1 / int((~labels).sum(1).max())
    grid = np.unique(
        np.concatenate([[0.0], np.geomspace(smallest, 1, points), np.linspace(0, 1, points // 4)])
    )
    curves = [_staircase(s, b) for s, b in zip(scores, labels, strict=True)]
    mean = np.mean([tpr[np.searchsorted(fpr, grid, side="right") - 1] for fpr, tpr in curves], axis=0)
    return [(float(f), float(t)) for f, t in zip(grid, mean, strict=True)]


def untruncated(success: float, base: float) -> float:
    """An advantage that may be negative, so that chance above and below zero cancels in a mean."""
    return (success - base) / (1 - base) if base < 1 else 0.0


def over_seeds(
    estimates: Sequence[Estimate],
    *,
    level: float = 0.95,
    least: float = 0.0,
    most: float = 1.0,
    raw: Sequence[float] | None = None,
    shared: bool = False,
) -> Estimate:
    """The mean over seeds with Student's interval, kept within ``least`` and ``most``; a single seed
    keeps its own. ``raw`` are the values to average where the estimates' own are truncated.

    Seeds that agree exactly would give an interval of no width; then the widest of their own is kept. So it
    is where they have their cases in common (``shared``): what differs between them is not what an interval
    must allow for."""
    if not estimates:
        raise ArgumentError("over_seeds needs at least one estimate, got none.")
    first, n = estimates[0], len(estimates)
    if n == 1:
        return first
    values = np.array([estimate.value for estimate in estimates] if raw is None else list(raw))
    mean, std = float(values.mean()), float(values.std(ddof=1))
    if shared or std < 1e-12:
        alike = "all equal" if std < 1e-12 else "which have their cases in common"
        value, low, high = mean, min(e.low for e in estimates), max(e.high for e in estimates)
        value, low, high = (float(np.clip(v, least, most)) for v in (value, low, high))
        return Estimate(first.name, value, low, high, level, first.n, f"the widest of {n} seeds, {alike}")
    half = float(stats.t.ppf((1 + level) / 2, n - 1) * std / np.sqrt(n))
    value, low, high = (float(np.clip(v, least, most)) for v in (mean, mean - half, mean + half))
    return Estimate(first.name, value, low, high, level, first.n, f"Student's t over {n} seeds")


def one_vs_rest(transcript: Transcript) -> tuple[Array, Bools]:
    """Scores (c, t) and whether each trial is positive (c, t): the second value against the first
    for two values, each against the rest for more. Posteriors become log odds, which still tell
    apart what is rounded to 1."""
    guesses, secrets = transcript.guesses.double(), transcript.secrets
    if guesses.dim() == 1:
        scores, labels = guesses[None], (secrets == 1)[None]
    else:
        m = guesses.shape[1]
        kinds = [1] if m == 2 else [c for c in range(m) if bool((secrets == c).any())]
        tiny = torch.finfo(torch.float64).tiny
        rest = [guesses[:, [j for j in range(m) if j != c]].sum(1) for c in kinds]
        scores = torch.stack([guesses[:, c].clamp(min=tiny).log() for c in kinds])
        scores = scores - torch.stack(rest).clamp(min=tiny).log()
        labels = torch.stack([secrets == c for c in kinds])
    if not (labels.any(1) & ~labels.all(1)).all():
        raise ArgumentError(
            "a ROC needs trials with and without every value of the secret, got a transcript that lacks "
            "one; play more trials."
        )
    return scores.numpy(), labels.numpy()


def _hits(guesses: torch.Tensor, secrets: torch.Tensor) -> int:
    if guesses.dim() == 1:
        return int(((guesses > 0).long() == secrets).sum())
    return int((guesses.argmax(1) == secrets).sum())


def _area(scores: Array, positive: Bools) -> tuple[float, Array]:
    """The area, ties counting half, and each trial's influence on it (DeLong's components)."""
    pos, neg = scores[positive], scores[~positive]
    wins = _share_below(neg, pos)  # for each positive, the share of negatives it beats
    losses = 1 - _share_below(pos, neg)  # for each negative, the share of positives that beat it
    area = float(wins.mean())
    influence = np.empty(len(scores))
    influence[positive] = (wins - area) * len(scores) / len(pos)
    influence[~positive] = (losses - area) * len(scores) / len(neg)
    return area, influence


def _share_below(reference: Array, values: Array) -> Array:
    ordered = np.sort(reference)
    below = np.searchsorted(ordered, values, side="left") + np.searchsorted(ordered, values, side="right")
    return below / 2 / len(ordered)


def _wilson(p: float, n: float, z: float) -> tuple[float, float]:
    z2 = z**2
    centre = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = np.sqrt(z2 * (p * (1 - p) / n + z2 / (4 * n**2))) / (1 + z2 / n)
    return float(max(centre - half, 0.0)), float(min(centre + half, 1.0))


def _staircase(scores: Array, positive: Bools) -> tuple[Array, Array]:
    """Rates of every threshold, from none accepted to all, tied scores accepted together."""
    order = np.argsort(-scores, kind="stable")
    last = np.flatnonzero(np.append(np.diff(scores[order]) != 0, True))
    true = np.cumsum(positive[order])[last] / positive.sum()
    false = np.cumsum(~positive[order])[last] / (~positive).sum()
    return np.concatenate([[0.0], false]), np.concatenate([[0.0], true])


def _tpr(scores: Array, positive: Bools, fpr: float, tail: float) -> tuple[float, float, float]:
    pos, neg = scores[positive], np.sort(scores[~positive])[::-1]

    def accepted(alarms: int) -> int:
        """Positives accepted by the loosest threshold with at most so many false alarms."""
        if alarms >= len(neg):
            return len(pos)
        return int((pos > neg[alarms]).sum())

    strict = int(stats.binom.ppf(tail, len(neg), fpr)) - 1  # truly at most fpr, but for this tail
    loose = int(stats.binom.ppf(1 - tail, len(neg), fpr))
    hits = accepted(int(np.floor(fpr * len(neg) * (1 + 1e-12))))
    low = stats.beta.ppf(tail, accepted(strict), len(pos) - accepted(strict) + 1) if strict >= 0 else 0.0
    most = accepted(loose)
    high = stats.beta.ppf(1 - tail, most + 1, len(pos) - most) if most < len(pos) else 1.0
    return hits / len(pos), float(np.nan_to_num(low)), float(high)
