"""V-information: what a release told an attack family, against channels whose information is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from builders import refuses
from scipy import integrate, stats

from leakscope import Transcript, v_information
from leakscope.core.errors import ArgumentError
from leakscope.measures.fidelity import ssim

HALVES = torch.tensor([0.5, 0.5], dtype=torch.float64)
SHIFT = 1.5


def truth(shift: float = SHIFT) -> float:
    """I(secret; secret * shift + N(0, 1)) at equal odds, by numerical integration."""
    axis = np.linspace(-12, 14, 20_001)
    densities = [stats.norm.pdf(axis, mean) for mean in (0.0, shift)]
    mixture = sum(densities) / 2
    return float(sum(0.5 * integrate.trapezoid(d * np.log(d / mixture), axis) for d in densities))


def seen(rng, n, shift=SHIFT):
    secrets = rng.integers(2, size=n)
    return secrets, rng.normal(shift * secrets)


def posterior(values, shift=SHIFT, temper=1.0):
    odds = temper * (shift * values - shift**2 / 2)
    p = 1 / (1 + np.exp(-odds))
    return torch.as_tensor(np.stack([1 - p, p], axis=1))


def test_the_best_posterior_has_the_true_information_calibrated_again_or_not():
    secrets, values = seen(np.random.default_rng(0), 20_000)
    played = Transcript(torch.as_tensor(secrets), posterior(values), HALVES)
    for calibrate in (True, False):
        found = v_information(played, calibrate=calibrate, level=0.999)
        assert found.low <= truth() <= found.high
        assert found.value == pytest.approx(truth(), abs=0.01)


def test_calibration_mends_a_posterior_that_trusts_itself_four_times_too_much():
    secrets, values = seen(np.random.default_rng(1), 20_000)
    played = Transcript(torch.as_tensor(secrets), posterior(values, temper=4.0), HALVES)
    assert v_information(played, calibrate=False).value < 0
    assert v_information(played).value == pytest.approx(truth(), abs=0.01)


def test_scores_of_any_scale_are_turned_into_nats():
    secrets, values = seen(np.random.default_rng(2), 20_000)
    played = Transcript(torch.as_tensor(secrets), torch.as_tensor(1e-6 * values), HALVES)
    assert v_information(played).value == pytest.approx(truth(), abs=0.01)
    refuses(ArgumentError, "posteriors unless calibrated", v_information, played, calibrate=False)


def test_the_interval_covers_the_truth_as_often_as_it_claims():
    rng, hits, runs, known = np.random.default_rng(3), 0, 300, truth()
    for _ in range(runs):
        secrets, values = seen(rng, 400)
        played = Transcript(torch.as_tensor(secrets), posterior(values), HALVES)
        found = v_information(played, calibrate=False)
        hits += found.low <= known <= found.high
    assert hits >= stats.binom.ppf(1e-4, runs, 0.95)


def test_nothing_is_found_in_scores_of_nothing_and_certainty_is_the_priors_entropy():
    rng = np.random.default_rng(4)
    secrets = torch.as_tensor(rng.integers(2, size=2_000))
    nothing = Transcript(secrets, torch.as_tensor(rng.normal(size=2_000)), HALVES)
    assert abs(v_information(nothing).value) < 0.01
    certain = Transcript(secrets, torch.nn.functional.one_hot(secrets, 2).double(), HALVES)
    found = v_information(certain, calibrate=False)
    assert found.value == pytest.approx(math.log(2), abs=1e-3)
    assert v_information(certain, calibrate=False, normalised=True).value == pytest.approx(1, abs=1e-3)


def test_a_posterior_of_zero_for_what_happened_costs_a_finite_amount():
    secrets = torch.tensor([0, 1] * 50)
    wrong = torch.nn.functional.one_hot(1 - secrets, 2).double()
    found = v_information(Transcript(secrets, wrong, HALVES), calibrate=False)
    assert found.value == pytest.approx(-math.log(101))


def test_folds_disjoint_by_person_do_not_learn_who_a_person_is():
    """Ten people, each with a secret and a score of their own: by trial the score tells the secret, of a new
    person it tells nothing."""
    rng = np.random.default_rng(5)
    people = torch.arange(10).repeat(40)
    secrets = (people % 2).long()
    scores = torch.nn.functional.one_hot(people, 10).double() @ torch.as_tensor(rng.normal(size=10))
    odds = torch.sigmoid(scores)
    played = Transcript(secrets, torch.stack([1 - odds, odds], 1), HALVES)
    apart = v_information(played, people=people)
    assert apart.value < v_information(played).value
    assert apart.low < 0


def test_a_perfect_picture_is_two_pi_squared_and_the_baseline_is_subtracted():
    rng = torch.Generator().manual_seed(0)
    images = torch.rand(4, 1, 3, 16, 16, generator=rng)
    mean = images.mean((0, 1))
    played = Transcript(images, images.clone(), torch.empty(0))
    assert v_information(played).value == pytest.approx(2 * math.pi**2)
    trivial = Transcript(images, mean.expand_as(images), torch.empty(0))
    assert v_information(trivial, baseline=mean).value == 0
    likeness = ssim(mean.expand_as(images), images).clamp(min=0)
    above = float((2 * math.pi**2 * (1 - (1 - likeness) ** 2)).mean())
    assert v_information(trivial).value == pytest.approx(above)


def test_the_order_of_a_batch_does_not_matter():
    images = torch.rand(3, 4, 1, 16, 16, generator=torch.Generator().manual_seed(1))
    turned = Transcript(images, images[:, [2, 0, 3, 1]], torch.empty(0))
    assert v_information(turned).value == pytest.approx(2 * math.pi**2)
