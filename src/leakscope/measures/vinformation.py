"""V-information: what a release tells an attack family, in nats (paper 001, section 4.3)."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupKFold, StratifiedKFold
from torch import Tensor

from leakscope.core.errors import require
from leakscope.core.nouns import Estimate, Transcript
from leakscope.core.rng import integer, seeded
from leakscope.measures.bounds import entropy
from leakscope.measures.fidelity import matched, ssim
from leakscope.measures.success import one_vs_rest

Array = NDArray[np.float64]
MOST = 2 * math.pi**2  # nats of a perfect picture: the density's exponent at SSIM 0
DRAWS = 1_000  # of the bootstrap


def v_information(
    transcript: Transcript,
    *,
    calibrate: bool = True,
    people: Tensor | None = None,
    baseline: Tensor | None = None,
    normalised: bool = False,
    level: float = 0.95,
    rng: torch.Generator | None = None,
) -> Estimate:
    """What the release told the attack family: mean log f(release) - log f(nothing), equation 6.

    Of a secret with m values f is the probability given to the true one and f(nothing) its prior; the most
    is the prior's entropy. ``calibrate`` fits the probabilities, or scores, to the secrets by logistic
    regression in five folds, each scored by the fit of the others and disjoint in ``people`` (t,) where they
    are given; leave it out for an adversary that calibrates itself, as `Family` does. The prior is mixed in
    with weight 1 / (t + 1), so that nothing costs infinitely much.

    Of reconstructed images f is the density exp(-(1 - SSIM)^2 2π^2) of equation 8, and f(nothing) that of
    the image ``baseline``, such as the public mean (None: SSIM 0, as printed, under which a grey picture
    already gains 5 nats); the most is 2π^2 = 19.7. ``normalised`` divides by the most.

    A lower estimate: no attack is sure to be the best of its family. V-information is never negative, since
    a family may ignore the release, but its estimate can be, and is reported as it is. Interval: the
    bootstrap's percentiles over trials, for one victim and its records: that trials share people, and what
    another victim would give, is not in it. An adversary who guesses has no width."""
    require(0 < level < 1, "v_information.level", "between 0 and 1", level)
    if transcript.secrets.dim() > 1:
        gains, most = _original(transcript, baseline), MOST
    else:
        gains, most = _latent(transcript, calibrate, people), entropy(transcript.prior)
    require(len(gains) >= 2, "v_information's trials", "at least 2", len(gains))
    if normalised:
        gains = gains / most
    rng = rng or seeded(0, "v_information")
    generator, n = np.random.default_rng(integer(rng)), len(gains)
    means = [float(gains[generator.integers(n, size=n)].mean()) for _ in range(DRAWS)]
    low, high = map(float, np.quantile(means, [(1 - level) / 2, (1 + level) / 2]))
    return Estimate("V-information", float(gains.mean()), low, high, level, n, "bootstrap over trials")


def _latent(transcript: Transcript, calibrate: bool, people: Tensor | None) -> Array:
    prior = transcript.prior.double()
    truth = transcript.secrets.long()
    if calibrate:
        posterior = _calibrated(transcript, people)
    else:
        guesses = transcript.guesses.double()
        require(guesses.dim() == 2, "v_information's guesses", "posteriors unless calibrated", "scores")
        posterior = guesses / guesses.sum(1, keepdim=True)
    weight, odds = 1 / (len(truth) + 1), prior[truth]
    told = (1 - weight) * posterior.gather(1, truth[:, None])[:, 0] + weight * odds
    return np.asarray((told.log() - odds.log()).numpy())


def _calibrated(transcript: Transcript, people: Tensor | None) -> Tensor:
    """(t, m): every trial's log odds turned into probabilities by a fit to other folds of trials."""
    scores, _ = one_vs_rest(transcript)
    x, y = scores.T, transcript.secrets.long().numpy()
    m = max(len(transcript.prior), int(y.max()) + 1)
    spread = x.std(0)
    x = (x - x.mean(0)) / np.where(spread > 0, spread, 1.0)
    if people is None:
        count = min(5, int(np.bincount(y)[np.unique(y)].min()))
        require(count >= 2, "v_information's trials", "at least 2 of every value, to calibrate", count)
        parts = StratifiedKFold(count, shuffle=True, random_state=0).split(x, y)
    else:
        count = min(5, len(people.unique()))
        require(count >= 2, "v_information.people", "at least 2 different people", count)
        parts = GroupKFold(count).split(x, y, people.numpy())
    found = np.zeros((len(y), m))
    for fitted, held in parts:
        model = LogisticRegression(C=10.0, max_iter=1_000).fit(x[fitted], y[fitted])
        found[np.ix_(held, model.classes_)] = model.predict_proba(x[held])
    return torch.from_numpy(found)


def _original(transcript: Transcript, baseline: Tensor | None) -> Array:
    """One number a trial: the mean over its images, each beside the reconstruction assigned to it."""
    originals, guesses = transcript.secrets, matched(transcript)
    ours = (1 - ssim(guesses, originals).clamp(min=0)) ** 2
    if baseline is None:
        trivial = torch.ones_like(ours)
    else:
        trivial = (1 - ssim(baseline.expand_as(originals), originals).clamp(min=0)) ** 2
    return np.asarray((MOST * (trivial - ours)).flatten(1).mean(1).double().numpy())
