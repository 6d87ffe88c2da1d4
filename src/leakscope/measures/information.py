"""How much an adversary learned, in nats."""

from __future__ import annotations

import math

import torch
from scipy import stats
from torch import Tensor

from leakscope.core.basis import Deviation
from leakscope.core.errors import require
from leakscope.core.nouns import Estimate, Transcript
from leakscope.measures.bounds import entropy, fano_information
from leakscope.measures.success import success_rate

FLOOR = torch.finfo(torch.float64).tiny  # a posterior of 0 for what happened costs 708 nats, not infinity


def log_losses(guesses: Tensor, secrets: Tensor, where: str) -> Tensor:
    """-log of the posterior (t, m) at each secret (t,)."""
    guesses, trials = guesses.double(), (len(guesses), len(secrets))
    require(guesses.dim() == 2, f"{where}'s guesses", "posteriors (t, m)", tuple(guesses.shape))
    require(trials[0] == trials[1] >= 2, f"{where}'s trials", "at least 2, one secret each", trials)
    sums = guesses.sum(1)
    is_posterior = bool((guesses >= 0).all()) and bool(((sums - 1).abs() <= 1e-3).all())
    require(is_posterior, f"{where}'s guesses", "rows of probabilities", "rows that are not")
    stated = guesses.gather(1, secrets.long()[:, None])[:, 0] / sums
    return -stated.clamp(min=FLOOR).log()


def mutual_information(transcript: Transcript, *, level: float = 0.95) -> Estimate:
    """A lower estimate of I(secret; release) in nats: H(prior) minus the mean log loss of the guesses.

    For any posterior q that an adversary states, I = H + E log q(secret) + E KL(truth || q) (Barber and
    Agakov, 2003), so this is I up to the gap of the adversary's model, which it can only fall short by,
    plus sampling error. Nor can so many guesses be right on less than `bounds.fano_information`, which is
    at least 0: where the log loss says less than that at the lower limit of the success rate, that is said
    instead. ``high`` is of the estimate, and no upper limit of I: do not hand it to `bounds.fano_accuracy`.
    With side knowledge in the view it estimates I(secret; release and side knowledge).

    Interval: the normal approximation of the mean log loss; it cannot see confident mistakes so rare
    that no trial shows one. The lower limit is the larger of two, wrong with chances of (1 - level) / 2 and
    (1 - level) / 4. Posteriors are floored at the smallest normal float64."""
    require(0 < level < 1, "mutual_information.level", "between 0 and 1", level)
    losses = log_losses(transcript.guesses, transcript.secrets, "mutual_information")
    value = entropy(transcript.prior) - float(losses.mean())
    half = float(stats.norm.ppf((1 + level) / 2)) * float(losses.std()) / math.sqrt(len(losses))
    low, high, method = value - half, value + half, "normal approximation of the mean log loss"
    basis = Deviation(value, float(losses.std()) / math.sqrt(len(losses)), len(losses))
    rate = success_rate(transcript, level=(1 + level) / 2)
    floor, most = (fano_information(end, transcript.prior) for end in (rate.low, rate.high))
    if low < floor:
        method = "mean log loss by normal approximation, at least Fano's at the limits of the success rate"
        value, low, high = max(value, floor), floor, max(high, most)
    return Estimate("mutual information", value, low, high, level, len(losses), method, basis)
