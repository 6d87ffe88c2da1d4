"""Bounds against closed forms, against channels that attain them, and against the best adversary there is."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from builders import refuses
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, optimize, special, stats

from leakscope.core.errors import ArgumentError
from leakscope.measures import bounds

AXIS = np.linspace(-30, 30, 20_001)

priors = st.lists(st.floats(0.01, 1), min_size=2, max_size=8).map(lambda p: [q / sum(p) for q in p])
nats = st.floats(0, 3)


def mixture(rng, n):
    """Chances and means on a line, and the densities of mean + N(0, 1) on an axis."""
    weights, means = rng.dirichlet(np.ones(n)), rng.normal(scale=rng.uniform(0.1, 4), size=n)
    return weights, means, stats.norm.pdf(AXIS, means[:, None])


def information(weights, densities):
    """Mutual information of input and output by numerical integration."""
    ratio = np.log(np.maximum(densities, 1e-300)) - np.log(np.maximum(weights @ densities, 1e-300))
    return float(weights @ integrate.trapezoid(densities * ratio, AXIS))


def upper(weights, means, std=1.0):
    """Every upper bound on the mutual information of a mixture of Gaussians."""
    rows, power, n = torch.as_tensor(means).reshape(len(means), -1), np.square(means), np.size(means[0])
    power = power.reshape(len(means), -1).sum(1)
    return {
        "pairwise": bounds.pairwise_information(rows, std, weights=weights),
        "variance": bounds.variance_information(rows, std, weights=weights),
        "mixture": bounds.mixture_information(rows, std, weights=weights),
        "gaussian": bounds.gaussian_capacity(float(weights @ power) / n, std, n),
        "clipped": bounds.clipped_capacity(float(power.max()) ** 0.5, std, n),
    }


def programme(epsilon, delta, prior):
    """The best confusion matrix under (epsilon, delta) for *every* event, as a linear programme:
    the positive parts of C[a, s] - e^eps C[b, s] sum to at most delta."""
    m = len(prior)
    pairs = [(a, b) for a in range(m) for b in range(m) if a != b]
    size = m * m + len(pairs) * m
    rows, limits = [], []
    for i, (a, b) in enumerate(pairs):
        total = np.zeros(size)
        for s in range(m):
            part = np.zeros(size)
            part[a * m + s], part[b * m + s], part[m * m + i * m + s] = 1, -math.exp(epsilon), -1
            total[m * m + i * m + s] = 1
            rows.append(part)
            limits.append(0.0)
        rows.append(total)
        limits.append(delta)
    sums = np.hstack([np.kron(np.eye(m), np.ones(m)), np.zeros((m, size - m * m))])
    gain = np.concatenate([-np.diag(prior).ravel(), np.zeros(size - m * m)])
    found = optimize.linprog(gain, np.array(rows), limits, sums, np.ones(m))
    return -found.fun


def test_entropy_of_equal_odds_is_log_m_and_impossible_values_do_not_count():
    assert bounds.entropy([0.25] * 4) == pytest.approx(math.log(4))
    assert bounds.entropy(torch.tensor([0.5, 0.0, 0.5])) == pytest.approx(math.log(2))
    assert bounds.fano_accuracy(0.1, [0.5, 0.0, 0.5]) == bounds.fano_accuracy(0.1, [0.5, 0.5])


@pytest.mark.parametrize("m", [2, 3, 7, 49])
def test_without_information_fano_leaves_guessing_and_with_all_of_it_certainty(m):
    equal = [1 / m] * m
    assert bounds.fano_accuracy(0.0, equal) == 1 / m
    assert bounds.fano_accuracy(math.log(m), equal) == 1
    assert bounds.fano_accuracy(math.inf, equal) == 1
    assert bounds.fano_advantage(0.0, equal) == 0
    assert bounds.fano_advantage(math.log(m), equal) == 1


@pytest.mark.parametrize("error", [0.0, 1e-6, 0.01, 0.2, 0.4999])
@pytest.mark.parametrize("m", [2, 3, 10])
def test_a_symmetric_channel_attains_fano(m, error):
    """Its information is log m - H2(e) - e log(m - 1); for two values log 2 - H2(e)."""
    leaked = math.log(m) - stats.entropy([error, 1 - error]) - error * math.log(m - 1)
    assert bounds.fano_accuracy(leaked, [1 / m] * m) == pytest.approx(1 - error, abs=1e-9)
    assert bounds.divergence_accuracy(leaked, [1 / m] * m) == pytest.approx(1 - error, abs=1e-9)


@given(priors, nats, nats)
@settings(max_examples=80, deadline=None)
def test_fano_grows_with_information_between_the_largest_prior_and_one(prior, less, more):
    less, more = sorted((less, more))
    low, high = bounds.fano_accuracy(less, prior), bounds.fano_accuracy(more, prior)
    assert max(prior) - 1e-12 <= low <= high + 1e-12 <= 1 + 1e-12
    assert bounds.fano_accuracy(bounds.entropy(prior), prior) == pytest.approx(1)
    assert bounds.divergence_accuracy(0.0, prior) == pytest.approx(max(prior))


@given(priors, nats)
@settings(max_examples=80, deadline=None)
def test_fano_solves_equation_6(prior, leaked):
    error, m = 1 - bounds.fano_accuracy(leaked, prior), len(prior)
    room = stats.entropy([error, 1 - error]) + error * math.log(m - 1)
    assert room == pytest.approx(max(bounds.entropy(prior) - leaked, 0), abs=1e-6)


@given(priors.filter(lambda p: len(p) > 2), nats)
@settings(max_examples=80, deadline=None)
def test_the_closed_form_is_never_sharper(prior, leaked):
    closed = bounds.fano_accuracy_closed(leaked, prior)
    assert bounds.fano_accuracy(leaked, prior) <= closed + 1e-9
    assert closed <= 1


def test_the_closed_form_is_equation_7_and_refuses_two_values():
    expected = 1 - (math.log(16) - 0.5 - math.log(2)) / math.log(15)
    assert bounds.fano_accuracy_closed(0.5, [1 / 16] * 16) == pytest.approx(expected)
    assert bounds.fano_accuracy_closed(9.0, [1 / 16] * 16) == 1
    refuses(ArgumentError, "vacuous there, use fano_accuracy", bounds.fano_accuracy_closed, 0.1, [0.5, 0.5])


def test_advantage_is_the_share_of_the_gap_to_certainty():
    assert bounds.advantage_of(0.9437, [0.68, 0.32]) == pytest.approx((0.9437 - 0.68) / 0.32)
    assert bounds.advantage_of(0.5, [0.68, 0.32]) == 0
    assert bounds.fano_advantage(0.2, [0.6, 0.4]) == bounds.advantage_of(
        bounds.fano_accuracy(0.2, [0.6, 0.4]), [0.6, 0.4]
    )


def test_capacity_counts_every_dimension_and_a_clipped_gradient_has_less():
    assert bounds.gaussian_capacity(3.0, 1.0, 10) == pytest.approx(5 * math.log(4))
    assert bounds.clipped_capacity(2.0, 0.5, 1) == pytest.approx(0.5 * math.log(17))
    assert bounds.clipped_capacity(2.0, 0.5, 10**9) == pytest.approx(8.0)
    assert bounds.clipped_capacity(0.0, 0.5, 10) == 0


def test_pairwise_and_mixture_information_equal_their_double_sums():
    rng = np.random.default_rng(0)
    means, weights = rng.normal(size=(700, 5)) + 100, rng.dirichlet(np.ones(700))
    squares = np.square(means[:, None] - means).sum(-1) / (2 * 0.7**2)
    rows = torch.as_tensor(means)
    assert bounds.pairwise_information(rows, 0.7, weights=weights) == pytest.approx(
        weights @ squares @ weights
    )
    mixed = -weights @ np.log(np.exp(-squares) @ weights)
    assert bounds.mixture_information(rows, 0.7, weights=weights) == pytest.approx(mixed)
    equal = torch.full((700,), 1 / 700, dtype=torch.float64)
    for bound in (bounds.pairwise_information, bounds.variance_information, bounds.mixture_information):
        assert bound(rows.float(), 0.7) == pytest.approx(bound(rows, 0.7, weights=equal), rel=1e-5)


def test_one_possible_gradient_says_nothing_and_distant_ones_say_all():
    one = torch.full((3, 4), 1e3)
    assert bounds.pairwise_information(one, 0.1) == 0
    assert bounds.mixture_information(one, 0.1) == 0
    assert bounds.mixture_information(torch.eye(5) * 1e4, 1e-200) == pytest.approx(math.log(5))


@pytest.mark.parametrize("seed", range(12))
def test_the_true_information_and_the_bayes_accuracy_stay_under_every_bound(seed):
    rng = np.random.default_rng(seed)
    weights, means, densities = mixture(rng, int(rng.integers(2, 7)))
    truth = information(weights, densities)
    bayes = float(integrate.trapezoid((weights[:, None] * densities).max(0), AXIS))
    assert bayes <= bounds.divergence_accuracy(truth, weights) + 1e-7
    assert bayes <= bounds.fano_accuracy(truth, weights) + 1e-7
    found = upper(weights, means)
    for name, bound in found.items():
        assert truth <= bound + 1e-7, name
        assert bayes <= bounds.fano_accuracy(bound, weights) + 1e-7, name
    assert found["mixture"] <= min(bounds.entropy(weights), found["pairwise"]) + 1e-12


@pytest.mark.parametrize("seed", range(4))
def test_in_twenty_dimensions_the_simulated_bayes_accuracy_stays_under_every_bound(seed):
    rng = np.random.default_rng(seed)
    weights, means = rng.dirichlet(np.ones(5) * 3), rng.normal(size=(5, 20)) * rng.uniform(0.1, 0.6)
    secrets = rng.choice(5, 20_000, p=weights)
    seen = means[secrets] + rng.normal(size=(20_000, 20)) * 0.8
    scores = np.log(weights) + (seen @ means.T - np.square(means).sum(1) / 2) / 0.64
    hits = int((scores.argmax(1) == secrets).sum())
    low = stats.binomtest(hits, 20_000).proportion_ci(0.999).low
    for name, bound in upper(weights, means, 0.8).items():
        assert low <= bounds.fano_accuracy(bound, weights), name


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 0.0), (1.0, 0.0), (1.0, 1e-2), (3.0, 0.2), (0.5, 1.0)])
def test_dp_accuracy_of_two_values_is_the_vertex_of_the_trade_off(epsilon, delta):
    odds = math.exp(epsilon)
    assert bounds.dp_accuracy(epsilon, delta, [0.5, 0.5]) == pytest.approx((odds + delta) / (1 + odds))
    alarms = np.linspace(0, 1, 200_001)
    misses = np.maximum(0, np.maximum(1 - delta - odds * alarms, (1 - delta - alarms) / odds))
    best = 1 - (0.7 * alarms + 0.3 * misses).min()
    assert bounds.dp_accuracy(epsilon, delta, [0.3, 0.7]) == pytest.approx(best, abs=1e-5)


@pytest.mark.parametrize("m", [2, 3, 10])
def test_randomised_response_attains_dp_accuracy(m):
    assert bounds.dp_accuracy(1.5, 0.0, [1 / m] * m) == pytest.approx(math.exp(1.5) / (math.exp(1.5) + m - 1))
    assert bounds.dp_accuracy(0.0, 0.0, [1 / m] * m) == pytest.approx(1 / m)
    assert bounds.dp_accuracy(math.inf, 0.0, [1 / m] * m) == pytest.approx(1)


@pytest.mark.parametrize("seed", range(12))
def test_dp_accuracy_is_the_best_confusion_matrix_of_a_linear_programme(seed):
    rng = np.random.default_rng(seed)
    prior = rng.dirichlet(np.ones(rng.integers(2, 6)))
    epsilon, delta = float(rng.exponential(1.5)), float(rng.choice([0, 1e-3, 0.1, 0.5]))
    best = programme(epsilon, delta, prior)
    assert bounds.dp_accuracy(epsilon, delta, prior) == pytest.approx(best, abs=1e-7)


@given(st.floats(0.05, 6), st.floats(0.05, 0.95))
@settings(max_examples=30, deadline=None)
def test_gaussian_accuracy_of_two_values_is_the_integral_of_the_larger_density(mu, first):
    larger = np.maximum(first * stats.norm.pdf(AXIS), (1 - first) * stats.norm.pdf(AXIS, mu))
    best = float(integrate.trapezoid(larger, AXIS))
    assert bounds.gaussian_accuracy(mu, [first, 1 - first]) == pytest.approx(best, abs=1e-5)


def test_gaussian_accuracy_at_equal_odds_is_attained_by_randomised_response():
    """The confusion matrix with p on the diagonal and q off it is mu-GDP: its power curve has corners
    at (q, p) and (1 - p, 1 - q), both on the Gaussian one, which is concave."""
    for m, mu in [(2, 1.0), (3, 0.5), (6, 2.0), (6, 4.0)]:
        p = bounds.gaussian_accuracy(mu, [1 / m] * m)
        q = (1 - p) / (m - 1)
        assert p == pytest.approx(special.ndtr(special.ndtri(q) + mu), abs=1e-6)
        assert 1 - q == pytest.approx(special.ndtr(special.ndtri(1 - p) + mu), abs=1e-6)


@pytest.mark.parametrize("seed", range(8))
def test_gaussian_accuracy_of_many_values_bounds_equidistant_gaussians_and_improves_on_dp(seed):
    rng = np.random.default_rng(seed)
    m, mu = int(rng.integers(3, 7)), float(rng.uniform(0.3, 3))
    prior = rng.dirichlet(np.ones(m) * 2)
    secrets = rng.choice(m, 20_000, p=prior)
    seen = np.eye(m)[secrets] * mu / math.sqrt(2) + rng.normal(size=(20_000, m))  # every two mu apart
    hits = int(((seen * mu / math.sqrt(2) + np.log(prior)).argmax(1) == secrets).sum())
    bound = bounds.gaussian_accuracy(mu, prior)
    assert stats.binomtest(hits, 20_000).proportion_ci(0.999).low <= bound
    for epsilon in (0.1, 1.0, 3.0):
        delta = special.ndtr(mu / 2 - epsilon / mu) - math.exp(epsilon) * special.ndtr(-mu / 2 - epsilon / mu)
        assert bound <= bounds.dp_accuracy(epsilon, float(delta), prior) + 1e-7


def test_gaussian_accuracy_of_many_values_ends_at_guessing_and_at_certainty():
    prior = [0.5, 0.3, 0.2]
    assert bounds.gaussian_accuracy(0.0, prior) == 0.5
    assert bounds.gaussian_accuracy(1e-9, prior) == pytest.approx(0.5)
    assert bounds.gaussian_accuracy(20.0, prior) == pytest.approx(1)
    assert bounds.gaussian_accuracy(math.inf, prior) == 1


def test_a_secret_of_k_records_has_k_times_the_epsilon():
    assert bounds.group(0.5, 1e-5, 1) == (0.5, pytest.approx(1e-5))
    epsilon, delta = bounds.group(0.5, 1e-5, 4)
    assert epsilon == 2.0
    assert delta == pytest.approx(4 * math.exp(1.5) * 1e-5)
    assert bounds.group(0.5, 0.0, 16) == (8.0, 0.0)
    assert bounds.group(100.0, 1e-5, 1_000)[1] == 1
    assert bounds.group_gaussian(0.25, 16) == 4.0
    assert bounds.dp_accuracy(*bounds.group(0.5, 0.0, 16), [0.5, 0.5]) > 0.999


EYE = torch.eye(3)
REFUSED = {
    "nan information": lambda: bounds.fano_accuracy(math.nan, [0.5, 0.5]),
    "negative information": lambda: bounds.fano_accuracy(-0.1, [0.5, 0.5]),
    "prior of sum 0.9": lambda: bounds.fano_accuracy(0.1, [0.5, 0.4]),
    "negative prior": lambda: bounds.entropy([1.5, -0.5]),
    "nan prior": lambda: bounds.entropy([math.nan, 1.0]),
    "certain prior": lambda: bounds.entropy([1.0, 0.0]),
    "prior in a table": lambda: bounds.entropy(torch.full((2, 2), 0.25)),
    "accuracy above 1": lambda: bounds.advantage_of(1.1, [0.5, 0.5]),
    "std 0": lambda: bounds.gaussian_capacity(1.0, 0.0, 2),
    "std nan": lambda: bounds.clipped_capacity(1.0, math.nan, 2),
    "negative power": lambda: bounds.gaussian_capacity(-1.0, 1.0, 2),
    "infinite clip": lambda: bounds.clipped_capacity(math.inf, 1.0, 2),
    "no dimension": lambda: bounds.clipped_capacity(1.0, 1.0, 0),
    "means of std 0": lambda: bounds.pairwise_information(EYE, 0.0),
    "nan means": lambda: bounds.mixture_information(EYE * math.nan, 1.0),
    "means in a row": lambda: bounds.mixture_information(torch.ones(3), 1.0),
    "weights too few": lambda: bounds.pairwise_information(EYE, 1.0, weights=[0.5, 0.5]),
    "negative epsilon": lambda: bounds.dp_accuracy(-1.0, 0.0, [0.5, 0.5]),
    "delta above 1": lambda: bounds.dp_accuracy(1.0, 1.1, [0.5, 0.5]),
    "negative mu": lambda: bounds.gaussian_accuracy(-1.0, [0.5, 0.5]),
    "group of none": lambda: bounds.group(1.0, 0.0, 0),
    "gaussian group of none": lambda: bounds.group_gaussian(1.0, 0),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_breaks_a_rule_is_refused_with_the_rule(case):
    refuses(ArgumentError, r"must be .*, got", REFUSED[case])
