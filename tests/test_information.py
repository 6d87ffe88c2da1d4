"""Information of a transcript, mutual and by an attack family, against channels whose information is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from builders import refuses
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import integrate, stats

from leakscope import Transcript, success_rate, v_information
from leakscope.core.errors import ArgumentError
from leakscope.measures import bounds
from leakscope.measures.fidelity import ssim
from leakscope.measures.information import mutual_information

PRIOR = np.array([0.5, 0.3, 0.2])
MEANS = np.array([-1.0, 0.5, 2.0])


def bayes(rng, n, *, temper=1.0):
    """What the best adversary says of secret + N(0, 1); tempered, one that trusts it too much."""
    secrets = rng.choice(3, n, p=PRIOR)
    evidence = stats.norm.logpdf(rng.normal(MEANS[secrets])[:, None], MEANS) * temper
    guesses = torch.softmax(torch.as_tensor(evidence + np.log(PRIOR)), 1)
    return Transcript(torch.as_tensor(secrets), guesses, torch.as_tensor(PRIOR))


def truth():
    """I(secret; secret's mean + N(0, 1)) by numerical integration."""
    axis = np.linspace(-15, 15, 20_001)
    densities = stats.norm.pdf(axis, MEANS[:, None])
    ratio = stats.norm.logpdf(axis, MEANS[:, None]) - np.log(PRIOR @ densities)
    return float(PRIOR @ integrate.trapezoid(densities * ratio, axis))


def test_the_best_adversary_measures_the_true_information_under_the_upper_bounds():
    found = mutual_information(bayes(np.random.default_rng(0), 40_000), level=0.999)
    rows = torch.as_tensor(MEANS)[:, None]
    assert found.low <= truth() <= found.high
    assert found.value == pytest.approx(truth(), abs=0.02)
    for bound in (bounds.mixture_information, bounds.variance_information, bounds.pairwise_information):
        assert found.high <= bound(rows, 1.0, weights=PRIOR)


def test_an_adversary_with_the_wrong_model_measures_less():
    rng = np.random.default_rng(1)
    for temper in (0.2, 4.0):
        assert mutual_information(bayes(rng, 20_000, temper=temper)).high < truth()


def test_saying_the_prior_measures_nothing_and_certainty_measures_the_entropy():
    secrets = torch.as_tensor(np.random.default_rng(2).choice(3, 5_000, p=PRIOR))
    prior = torch.as_tensor(PRIOR)
    nothing = mutual_information(Transcript(secrets, prior.expand(5_000, 3), prior))
    assert nothing.low <= 0 <= nothing.high
    certain = mutual_information(Transcript(secrets, torch.eye(3)[secrets], prior))
    assert certain.value == pytest.approx(bounds.entropy(PRIOR))


def test_confident_mistakes_measure_nothing_and_never_less():
    secrets, prior = torch.tensor([0, 1, 0, 1]), torch.tensor([0.5, 0.5])
    wrong = torch.tensor([[0.1, 0.9], [0.8, 0.2], [0.1, 0.9], [0.6, 0.4]])
    for guesses in (wrong, 1 - torch.eye(2)[secrets]):
        found = mutual_information(Transcript(secrets, guesses, prior))
        assert found.value == found.low == 0
        assert 0 < found.high < math.log(2)  # four trials rule little out


def test_what_is_right_too_often_has_at_least_the_information_that_fano_asks_for():
    """Ranked by a sound adversary, stated by one who is a hundred times too sure."""
    played = bayes(np.random.default_rng(5), 20_000, temper=100.0)
    found, rate = mutual_information(played), success_rate(played)
    least = bounds.fano_information(rate.low, PRIOR)
    assert least > 0
    assert found.low == pytest.approx(least, rel=0.1)
    assert found.low <= found.value <= found.high <= truth()
    assert "Fano" in found.method


@given(st.lists(st.floats(0.01, 1), min_size=2, max_size=6), st.floats(0, 1))
@example(chances=[0.5, 0.5, 0.125], share=5.126699630386321e-09)  # a divergence that rounds below 0
def test_the_least_information_is_what_the_accuracies_give_back(chances, share):
    prior = np.array(chances) / sum(chances)
    accuracy = prior.max() + share * (1 - prior.max())
    nats = bounds.fano_information(accuracy, prior)
    again = min(bounds.fano_accuracy(nats, prior), bounds.divergence_accuracy(nats, prior))
    assert again == pytest.approx(accuracy, abs=1e-6)
    assert 0 <= nats <= -math.log(prior.max()) + bounds.entropy(prior)
    assert bounds.fano_information(prior.max() * share, prior) == 0


def test_a_binary_symmetric_channel_gives_back_its_error_through_fano():
    rng, error = np.random.default_rng(3), 0.1
    secrets = rng.integers(0, 2, 50_000)
    said = np.where(rng.random(50_000) < error, 1 - secrets, secrets)
    posterior = torch.tensor([[1 - error, error], [error, 1 - error]])[torch.as_tensor(said)]
    played = Transcript(torch.as_tensor(secrets), posterior, torch.tensor([0.5, 0.5]))
    found = mutual_information(played, level=0.999)
    assert found.low <= math.log(2) - stats.entropy([error, 1 - error]) <= found.high
    assert bounds.fano_accuracy(found.value, [0.5, 0.5]) == pytest.approx(1 - error, abs=0.01)


@pytest.mark.parametrize("level", [0.8, 0.95])
def test_the_interval_covers_the_true_information_as_often_as_it_says(level):
    rng, known = np.random.default_rng(4), truth()
    found = [mutual_information(bayes(rng, 400), level=level) for _ in range(800)]
    covered = np.mean([e.low <= known <= e.high for e in found])
    assert covered == pytest.approx(level, abs=0.035)
    assert found[0].level == level
    assert found[0].n == 400


def test_what_is_no_posterior_is_refused():
    secrets, prior = torch.tensor([0, 1]), torch.tensor([0.5, 0.5])
    for guesses in (torch.tensor([0.1, 2.0]), torch.full((2, 2), math.nan), torch.ones(2, 2)):
        with pytest.raises(ArgumentError, match=r"mutual_information's guesses must be"):
            mutual_information(Transcript(secrets, guesses, prior))
    with pytest.raises(ArgumentError, match="at least 2"):
        mutual_information(Transcript(secrets[:1], torch.ones(1, 2) / 2, prior))
    with pytest.raises(ArgumentError, match="level"):
        mutual_information(Transcript(secrets, torch.ones(2, 2) / 2, prior), level=1.0)


# What a release told an attack family

HALVES = torch.tensor([0.5, 0.5], dtype=torch.float64)
APART = 1.5


def separated(shift: float = APART) -> float:
    """I(secret; secret * shift + N(0, 1)) at equal odds, by numerical integration."""
    axis = np.linspace(-12, 14, 20_001)
    densities = [stats.norm.pdf(axis, mean) for mean in (0.0, shift)]
    mixture = sum(densities) / 2
    return float(sum(0.5 * integrate.trapezoid(d * np.log(d / mixture), axis) for d in densities))


def seen(rng, n, shift=APART):
    secrets = rng.integers(2, size=n)
    return secrets, rng.normal(shift * secrets)


def posterior(values, shift=APART, temper=1.0):
    odds = temper * (shift * values - shift**2 / 2)
    p = 1 / (1 + np.exp(-odds))
    return torch.as_tensor(np.stack([1 - p, p], axis=1))


def test_the_best_posterior_has_the_true_information_calibrated_again_or_not():
    secrets, values = seen(np.random.default_rng(0), 20_000)
    played = Transcript(torch.as_tensor(secrets), posterior(values), HALVES)
    for calibrate in (True, False):
        found = v_information(played, calibrate=calibrate, level=0.999)
        assert found.low <= separated() <= found.high
        assert found.value == pytest.approx(separated(), abs=0.01)


def test_calibration_mends_a_posterior_that_trusts_itself_four_times_too_much():
    secrets, values = seen(np.random.default_rng(1), 20_000)
    played = Transcript(torch.as_tensor(secrets), posterior(values, temper=4.0), HALVES)
    assert v_information(played, calibrate=False).value < 0
    assert v_information(played).value == pytest.approx(separated(), abs=0.01)


def test_scores_of_any_scale_are_turned_into_nats():
    secrets, values = seen(np.random.default_rng(2), 20_000)
    played = Transcript(torch.as_tensor(secrets), torch.as_tensor(1e-6 * values), HALVES)
    assert v_information(played).value == pytest.approx(separated(), abs=0.01)
    refuses(ArgumentError, "posteriors unless calibrated", v_information, played, calibrate=False)


def test_the_interval_covers_the_truth_as_often_as_it_claims():
    rng, hits, runs, known = np.random.default_rng(3), 0, 300, separated()
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
