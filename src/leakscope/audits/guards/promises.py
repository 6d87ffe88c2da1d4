"""What theorems would promise of an encoder: each with what it rests on, and refused where that is not so."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from leakscope.attacks.representations import Network
from leakscope.audits.guards.found import LeastError, LocalPrivacy, RebuildingRisk, Theorem
from leakscope.audits.guards.trial import Trial, balanced_accuracy
from leakscope.core.calibration import calibrate, learn_calibration
from leakscope.core.calibration import log_losses as evidence_losses
from leakscope.core.nouns import Estimate, Transcript
from leakscope.guards.encoder import Encoder
from leakscope.measures.epsilon import gaussian_epsilon
from leakscope.measures.success import success_rate
from leakscope.measures.theorems import (
    conditional_entropy,
    inference_accuracy,
    reconstruction_risk,
    task_error,
)

RIDGE = 1e-2  # towards trusting an attacker as it is
CLEARLY = 2.0  # standard errors by which a recalibrated attacker must lose less to be called badly calibrated
WORTH = 0.005  # nats that it must lose less at least
DELTA = 1e-5  # of local differential privacy
NEAREST = 500  # records that a radius is seen by


def bound_accuracy(encoder: Encoder, trial: Trial) -> Theorem | None:
    """Theorem 1 of paper 003 (2 of 004) with H(u | r) as a fresh network leaves it, beside that network.

    A badly calibrated network loses more than what it knows: H(u | r) would be overstated and the bound too
    low, which is the comfortable side. There is no bound then."""
    if trial.secret not in ("attribute", "property"):
        return None
    transcript = trial.play(encoder, Network())
    entropy, measured = conditional_entropy(transcript.guesses, transcript.secrets), success_rate(transcript)
    gain, error = miscalibration(transcript)
    if gain > max(CLEARLY * error, WORTH):
        return Theorem(entropy=entropy, bound=None, measured=measured, miscalibrated=gain)
    m = len(transcript.prior)  # a network that finds nothing has a little more loss than guessing
    bound = inference_accuracy(min(entropy.value, math.log(m)), values=m)
    return Theorem(entropy=entropy, bound=float(bound), measured=measured, miscalibrated=gain)


def miscalibration(transcript: Transcript) -> tuple[float, float]:
    """The nats that posteriors lose for being too sure or too shy: what a scale and offsets, learned on one
    half of the trials, save on the other; and its standard error."""
    said = transcript.guesses.double().clamp(min=1e-300).log().numpy()
    told = transcript.secrets.long().numpy()
    saved = np.empty(len(told))
    for half in (0, 1):
        way = learn_calibration(said[half::2], told[half::2], ridge=RIDGE)
        other = said[1 - half :: 2], told[1 - half :: 2]
        saved[1 - half :: 2] = evidence_losses(*other) - evidence_losses(calibrate(other[0], way), other[1])
    return float(saved.mean()), float(saved.std()) / math.sqrt(len(saved))


def least_task_error(transcript: Transcript, trial: Trial, accuracy: Estimate | None) -> LeastError | None:
    """Theorem 1 of paper 004: a task that goes with the secret cannot be kept where the secret is lost."""
    test = trial.test
    codes = test.secret(str(trial.column)) if trial.secret == "attribute" else torch.zeros(0)
    if accuracy is None or len(transcript.prior) != 2 or test.task.outputs != 2:
        return None
    if test.y.is_floating_point() or len(codes.unique()) != 2:
        return None
    shares = [float(test.y[codes == code].double().mean()) for code in (0, 1)]
    balanced = balanced_accuracy(transcript)
    advantage = min(max(2 * balanced.value - 1, 0.0), 1.0)
    prior = torch.bincount(codes, minlength=2).double() / len(codes)
    gap = abs(shares[0] - shares[1])
    return LeastError(
        gap=gap,
        advantage=advantage,
        least=task_error(gap, advantage, prior.tolist()),
        measured=1 - accuracy.value,
    )


def bound_reconstruction(encoder: Encoder, trial: Trial) -> RebuildingRisk | None:
    """Theorem 3 of paper 003, with the capacity of the noise for I(x; r): every normed representation of d
    numbers has squared length d, so that Gaussian noise lets through d / 2 log(1 + 1 / variance) at most."""
    information = capacity(encoder, trial.test.x[:1])
    if trial.secret != "reconstruction" or information is None:
        return None
    rng = torch.Generator().manual_seed(trial.seed)
    test, public = (
        part.x.flatten(1).double()[torch.randperm(len(part), generator=rng)[:NEAREST]]
        for part in (trial.test, trial.public)
    )
    radius = float((test - test.mean(0)).square().sum(1).mean().sqrt()) / 2
    guesses = torch.cat([public, public.mean(0, keepdim=True)])
    hits = int((torch.cdist(test, guesses) <= radius).sum(0).max())
    chance = (hits + 1) / (len(test) + 1)  # of the best guess without r, as far as these records show
    return RebuildingRisk(
        information=information,
        radius=radius,
        chance=chance,
        least=reconstruction_risk(information, math.log(chance)),
    )


def capacity(encoder: Encoder, like: Tensor) -> float | None:
    """The most information, in nats, that any record's release can hold; None where there is no limit."""
    noise = encoder.perturbation
    if not encoder.normed or noise.silent or noise.kind != "gaussian":
        return None
    with torch.no_grad():
        d = encoder.clean(like)[0].numel()
    return d / 2 * math.log1p(1 / noise.scale**2)


def state_local_privacy(encoder: Encoder, like: Tensor) -> LocalPrivacy:
    """Local differential privacy of one release: normed representations of d numbers lie within 2 sqrt(d) of
    each other, whosoever they are, and Gaussian noise covers that as far as it does. No other noise that is
    known here does: a bounded one rules records out."""
    noise = encoder.perturbation
    if noise.silent:
        return LocalPrivacy(delta=DELTA, reason="no noise is added")
    if noise.kind != "gaussian":
        return LocalPrivacy(delta=DELTA, reason=f"{noise.kind} noise is bounded, and rules records out")
    if not encoder.normed:
        return LocalPrivacy(delta=DELTA, reason="representations have no bound that the noise could cover")
    with torch.no_grad():
        reach = 2 * math.sqrt(encoder.clean(like)[0].numel())
    epsilon = gaussian_epsilon(reach / noise.scale, DELTA)
    return LocalPrivacy(delta=DELTA, sensitivity=reach, epsilon=epsilon)
