"""How much an adversary learned, in nats."""

from __future__ import annotations

import math

import torch
from scipy import stats

from leakscope.bounds import entropy
from leakscope.core import Estimate, Transcript
from leakscope.errors import require

FLOOR = torch.finfo(torch.float64).tiny  # a posterior of 0 for what happened costs 708 nats, not infinity


def mutual_information(transcript: Transcript, *, level: float = 0.95) -> Estimate:
    """A lower estimate of I(secret; release) in nats: H(prior) minus the mean log loss of the guesses.

    For any posterior q that an adversary states, I = H + E log q(secret) + E KL(truth || q) (Barber and
    Agakov, 2003), so this is I up to the gap of the adversary's model, which it can only fall short by,
    plus sampling error. It is negative when the guesses are worse than saying the prior, and is reported
    as it is. No upper bound: do not hand it to `bounds.fano_accuracy`. With side knowledge in the view it
    estimates I(secret; release and side knowledge).

    Interval: the normal approximation of the mean log loss; it cannot see confident mistakes so rare
    that no trial shows one. Posteriors are floored at the smallest normal float64."""
    secrets, guesses = transcript.secrets, transcript.guesses.double()
    require(0 < level < 1, "mutual_information.level", "between 0 and 1", level)
    require(guesses.dim() == 2, "mutual_information's guesses", "posteriors (t, m)", tuple(guesses.shape))
    require(len(secrets) >= 2, "mutual_information's trials", "at least 2", len(secrets))
    sums = guesses.sum(1)
    is_posterior = bool((guesses >= 0).all()) and bool(((sums - 1).abs() <= 1e-3).all())
    require(is_posterior, "mutual_information's guesses", "rows of probabilities", "rows that are not")
    stated = guesses.gather(1, secrets.long()[:, None])[:, 0] / sums
    losses = -stated.clamp(min=FLOOR).log()
    value = entropy(transcript.prior) - float(losses.mean())
    half = float(stats.norm.ppf((1 + level) / 2)) * float(losses.std()) / math.sqrt(len(losses))
    method = "normal approximation of the mean log loss"
    return Estimate("mutual information", value, value - half, value + half, level, len(losses), method)
