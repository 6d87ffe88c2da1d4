"""Epsilon lower bounds against mechanisms whose epsilon is known, and closed forms against each other."""

from __future__ import annotations

import itertools
import math
import re

import mpmath
import numpy as np
import pytest
import torch
from builders import refuses
from dp_accounting.gaussian_mechanism import get_epsilon_gaussian
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from leakscope.core.errors import ArgumentError
from leakscope.core.nouns import Estimate, Transcript
from leakscope.measures.epsilon import (
    _certified,
    _upper,
    classical_epsilon,
    epsilon_lower_bound,
    epsilon_point,
    gaussian_epsilon,
    gaussian_mu,
    saturation,
)

DELTA = 1e-5
EPSILONS = [0.5, 1, 2, 4, 8]
MUS = st.floats(1e-3, 100)
DELTAS = st.floats(-12, -0.3).map(lambda power: 10**power)


def played(scores, secrets) -> Transcript:
    scores, secrets = torch.as_tensor(np.asarray(scores)), torch.as_tensor(np.asarray(secrets))
    return Transcript(secrets, scores, torch.tensor([0.5, 0.5]))


def coins(rng, trials):
    return rng.integers(0, 2, trials)


def bound(transcript, trade_off="any", delta=DELTA) -> Estimate:
    return epsilon_lower_bound(transcript, delta=delta, trade_off=trade_off)


def covers(exceeding: int, simulations: int) -> bool:
    """Whether so many bounds above the truth are compatible with a chance of at most 5%."""
    return stats.binomtest(exceeding, simulations, 0.05, alternative="greater").pvalue > 0.01


# --- the bounds, simulated ------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_of_200_audits_of_a_gaussian_mechanism_at_most_5_percent_claim_too_much(epsilon):
    rng, mu = np.random.default_rng([11, int(10 * epsilon)]), gaussian_mu(epsilon, DELTA)
    lows: dict[str, list[float]] = {"any": [], "gaussian": []}
    for _ in range(200):
        secrets = coins(rng, 100_000)
        transcript = played(rng.normal(size=100_000) + mu * secrets, secrets)
        for trade_off in lows:
            lows[trade_off].append(bound(transcript, trade_off).low)
    for found in lows.values():
        assert covers(int((np.array(found) > epsilon).sum()), 200)
    assert np.median(lows["gaussian"]) >= (0.9 if epsilon >= 1 else 0.85) * epsilon
    assert 0 < np.median(lows["any"]) < 0.7 * epsilon  # the telling events are too rare


NULLS = {
    "normal": lambda rng, n: rng.normal(size=n),
    "heavy-tailed": lambda rng, n: rng.standard_cauchy(n) ** 3,
    "tied": lambda rng, n: rng.integers(0, 5, n).astype(float),
    "constant": lambda rng, n: np.full(n, 0.3),
}


@pytest.mark.parametrize("trade_off", ["any", "gaussian"])
@pytest.mark.parametrize("kind", NULLS)
def test_scores_that_know_nothing_certify_nothing(kind, trade_off):
    rng = np.random.default_rng([7, len(kind)])
    lows = []
    for _ in range(200):
        secrets = coins(rng, 5_000)
        lows.append(bound(played(NULLS[kind](rng, 5_000), secrets), trade_off).low)
    assert np.mean(np.array(lows) == 0) >= 0.94


@pytest.mark.parametrize("epsilon", [1, 3])
def test_of_randomised_response_any_certifies_95_percent_and_no_more_than_there_is(epsilon):
    rng, lie = np.random.default_rng(epsilon), 1 / (1 + math.exp(epsilon))
    truth = math.log((1 - lie - DELTA) / lie)  # its epsilon at delta
    lows = []
    for _ in range(100):
        secrets = coins(rng, 100_000)
        answers = np.where(rng.random(100_000) < lie, 1 - secrets, secrets)
        lows.append(bound(played(answers.astype(float), secrets)).low)
    assert covers(int((np.array(lows) > truth).sum()), 100)
    assert np.median(lows) > 0.95 * truth


@pytest.mark.parametrize("dimensions", [10, 10_602])
def test_the_l2_statistic_of_the_paper_stays_below_the_truth(dimensions):
    rng, mu = np.random.default_rng(dimensions), gaussian_mu(4, DELTA)
    lows = []
    for _ in range(100):
        still, moved = rng.chisquare(dimensions, 10_000), rng.noncentral_chisquare(dimensions, mu**2, 10_000)
        transcript = played(np.append(still, moved), np.repeat([0, 1], 10_000))
        lows += [bound(transcript, trade_off).low for trade_off in ("any", "gaussian")]
    assert max(lows) < 4
    assert (np.median(lows) > 0) == (dimensions == 10)  # it drowns in the paper's 10,602 dimensions


def test_the_gaussian_bound_claims_too_much_where_its_assumption_fails():
    rng, lie = np.random.default_rng(3), 1 / (1 + math.e)
    secrets = coins(rng, 10_000)
    answers = np.where(rng.random(10_000) < lie, 1 - secrets, secrets)  # epsilon 1, and no tail at all
    assert bound(played(answers.astype(float), secrets), "gaussian").low > 4


# --- the bounds, by construction -----------------------------------------------------------------


@pytest.mark.parametrize("trials", [20, 1_000, 5_000, 100_001])
def test_saturation_is_what_a_perfect_separator_attains(trials):
    secrets = np.arange(trials) % 2
    separated = played(np.random.default_rng(0).normal(size=trials) + 100 * secrets, secrets)
    found = bound(separated)
    assert found.low == found.value == found.high == pytest.approx(saturation(trials, DELTA, 0.95))
    assert found.low > 0
    found = bound(separated, "gaussian")
    assert found.low == found.value == found.high


def test_saturation_at_the_papers_5_000_trials_is_below_what_the_paper_reports():
    wrong = 1 - (0.99 * 0.05) ** (1 / 2_000)  # of 2,000 answers none
    assert saturation(5_000, DELTA, 0.95) == pytest.approx(math.log((1 - wrong) / wrong), abs=2e-5)
    assert 6.4 < saturation(5_000, DELTA, 0.95) < 6.5


@pytest.mark.parametrize("error", [0.25, 0.05, 0.001])
@pytest.mark.parametrize(("n", "delta"), [(5, 1e-5), (30, 0.05), (120, 1e-5)])
def test_of_any_two_rates_no_more_than_the_error_is_certified_too_high(n, delta, error):
    """Every count of wrong and right answers, with its exact chance: no simulation, no limit theorem."""
    counts = np.arange(n + 1)
    lows = _certified(*np.meshgrid(counts, counts, indexing="ij"), n, delta=delta, level=1 - error)
    small = np.geomspace(0.2 / n, 0.5, 12)
    for right, wrong in itertools.product((*small, *(1 - small), 1.0), repeat=2):
        truth = max(math.log((right - delta) / wrong), 0.0) if right > delta else 0.0
        chances = np.outer(stats.binom.pmf(counts, n, wrong), stats.binom.pmf(counts, n, right))
        assert chances[lows > truth + 1e-12].sum() <= error


@pytest.mark.parametrize(("trials", "least"), [(2_000, 1.37), (10_000, 1.9)])
def test_of_a_gaussian_mechanism_of_mu_1_any_certifies_more_than_every_threshold_at_once(trials, least):
    """1.37 is what Clopper-Pearson limits of every threshold, corrected by Bonferroni, give of 2,000."""
    rng, lows = np.random.default_rng(trials), []
    for _ in range(60):
        secrets = coins(rng, trials)
        lows.append(bound(played(rng.normal(size=trials) + secrets, secrets)).low)
    assert least < np.median(lows) < gaussian_epsilon(1, DELTA)


@pytest.mark.parametrize("trade_off", ["any", "gaussian"])
def test_what_is_tested_was_not_chosen_on(trade_off):
    """The first fifth of either secret's trials moves the test, and never counts."""
    rng = np.random.default_rng(3)
    secrets = np.arange(2_000) % 2
    scores = rng.normal(size=2_000) + 2 * secrets
    scores[:400] = np.where(secrets[:400] == 1, -100.0, 100.0)  # where to choose, the wrong way round
    found = bound(played(scores, secrets), trade_off)
    scores[400:] = rng.normal(size=1_600)  # what is tested knows nothing, what is chosen on all
    scores[:400] = 100.0 * secrets[:400]
    assert found.low < gaussian_epsilon(2, DELTA)
    assert bound(played(scores, secrets), trade_off).low == 0


def test_a_transcript_sorted_by_secret_is_parted_within_each_secret():
    rng = np.random.default_rng(1)
    secrets = np.repeat([0, 1], 5_000)
    found = bound(played(rng.normal(size=10_000) + 2 * secrets, secrets), "gaussian")
    assert 0.85 * gaussian_epsilon(2, DELTA) < found.low < gaussian_epsilon(2, DELTA)


def test_posteriors_count_as_their_log_odds():
    rng = np.random.default_rng(2)
    secrets = coins(rng, 2_000)
    scores = torch.as_tensor(rng.normal(size=2_000) + secrets)
    posteriors = torch.stack([torch.sigmoid(-scores), torch.sigmoid(scores)], 1)
    for trade_off in ("any", "gaussian"):
        assert bound(played(posteriors, secrets), trade_off).low == pytest.approx(
            bound(played(scores, secrets), trade_off).low
        )


def test_infinite_scores_are_only_very_large():
    secrets = np.arange(400) % 2
    certain = played(np.where(secrets == 1, np.inf, -np.inf), secrets)
    assert bound(certain).low == saturation(400, DELTA, 0.95)


def test_tied_scores_are_accepted_together():
    secrets = np.repeat([1, 0], 500)  # sorted so that a threshold inside the tie would separate them
    assert bound(played(np.zeros(1_000), secrets)).low == 0
    assert epsilon_point(played(np.zeros(1_000), secrets), delta=DELTA) == 0


def test_scores_that_point_the_wrong_way_certify_nothing():
    secrets = np.arange(2_000) % 2
    assert bound(played(-secrets.astype(float), secrets)).low == 0


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=10, max_size=60),
    st.sampled_from(["any", "gaussian"]),
    st.floats(0.75, 0.999),
)
def test_zero_low_value_and_high_are_in_order(pairs, trade_off, level):
    scores = np.array(list(itertools.chain(*pairs)), dtype=float)
    found = epsilon_lower_bound(
        played(scores, np.arange(len(scores)) % 2), delta=0.01, level=level, trade_off=trade_off
    )
    assert 0 <= found.low <= found.value <= found.high < math.inf


def test_the_estimate_says_how_it_was_made():
    secrets = np.arange(100) % 2
    found = bound(played(secrets.astype(float), secrets), "gaussian")
    assert (found.name, found.level, found.n) == ("epsilon at delta 1e-05", 0.95, 100)
    assert found.method == "test chosen on a fifth, Clopper-Pearson on the others, Gaussian trade-off assumed"


@pytest.mark.parametrize(
    ("k", "n"), [(0, 10), (3, 10), (10, 10), (0, 25_000), (17, 25_000), (24_999, 25_000)]
)
@pytest.mark.parametrize("error", [0.05, 0.025, 0.001])
def test_the_upper_limit_is_clopper_and_pearsons(k, n, error):
    limits = stats.binomtest(k, n, alternative="less").proportion_ci(1 - error, method="exact")
    assert float(_upper(k, n, error)) == pytest.approx(limits.high, rel=1e-9)


# --- the point estimate --------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(2, 8)), min_size=10, max_size=40))
def test_the_point_estimate_is_the_papers_formula_at_its_best_threshold(pairs):
    negatives, positives = np.array(pairs, dtype=float).T
    found = [0.0]
    for c in range(9):
        fpr, fnr = (negatives >= c).mean(), (positives < c).mean()
        if fpr * fnr > 0:
            found += [math.log((1 - 0.01 - a) / b) for a, b in ((fpr, fnr), (fnr, fpr)) if a < 0.99]
    if len(found) > 1:
        transcript = played(np.array(pairs, dtype=float).ravel(), np.arange(2 * len(pairs)) % 2)
        assert epsilon_point(transcript, delta=0.01) == pytest.approx(max(found))


def test_the_point_estimate_averages_about_one_when_nothing_leaks_and_saturates_when_all_does():
    rng = np.random.default_rng(0)
    null = [epsilon_point(played(rng.normal(size=5_000), coins(rng, 5_000)), delta=DELTA) for _ in range(200)]
    assert np.mean(null) == pytest.approx(1, abs=0.15)
    secrets = np.arange(5_000) % 2
    all_told = epsilon_point(played(rng.normal(size=5_000) + 100 * secrets, secrets), delta=DELTA)
    assert all_told == pytest.approx(math.log(2_500), abs=1e-3)


# --- the Gaussian mechanism ----------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(MUS, DELTAS)
def test_delta_at_the_epsilon_of_delta_is_delta(mu, delta):
    epsilon = gaussian_epsilon(mu, delta)
    with mpmath.workdps(60):
        m, e = mpmath.mpf(mu), mpmath.mpf(epsilon)
        found = mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m)
        assert found <= delta if epsilon == 0 else float(found / delta) == pytest.approx(1, rel=1e-6)


@settings(max_examples=150, deadline=None)
@given(MUS, DELTAS)
def test_mu_and_epsilon_are_inverse(mu, delta):
    epsilon = gaussian_epsilon(mu, delta)
    assert gaussian_mu(epsilon, delta) == pytest.approx(mu, rel=1e-6) if epsilon > 0 else True
    assert gaussian_epsilon(gaussian_mu(epsilon, delta), delta) == pytest.approx(epsilon, abs=1e-8, rel=1e-8)


@pytest.mark.parametrize("mu", [0.01, 0.2, 1, 5, 20, 100])
@pytest.mark.parametrize("delta", [1e-12, 1e-5, 0.1])
def test_the_gaussian_epsilon_is_dp_accountings(mu, delta):
    assert gaussian_epsilon(mu, delta) == pytest.approx(
        get_epsilon_gaussian(1 / mu, delta), rel=1e-5, abs=1e-6
    )


def test_the_papers_classical_epsilon_is_far_below_the_exact_one_where_it_does_not_hold():
    assert classical_epsilon(2, 0.1, DELTA) == pytest.approx(96.90, abs=0.005)
    assert gaussian_epsilon(2 / 0.1, DELTA) == pytest.approx(284.39, abs=0.005)
    assert classical_epsilon(2, 1.5, DELTA) == pytest.approx(6.46, abs=0.005)
    assert classical_epsilon(0.1, 1, DELTA) > gaussian_epsilon(0.1, DELTA)  # and above it where it does


def test_no_difference_and_a_difference_below_delta_cost_nothing():
    assert gaussian_epsilon(0, DELTA) == 0
    assert gaussian_epsilon(gaussian_mu(0, 0.1), 0.1) == pytest.approx(0, abs=1e-9)


# --- refusals ------------------------------------------------------------------------------------

FAIR = played(np.arange(40.0), np.arange(40) % 2)
NAN = played(np.where(np.arange(40) == 7, np.nan, 1.0), np.arange(40) % 2)
ONE = played(np.arange(40.0), np.zeros(40, dtype=int))
FEW = played(np.arange(18.0), np.arange(18) % 2)
THREE = played(np.arange(40.0), np.arange(40) % 3)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: bound(FAIR, delta=0), "epsilon_lower_bound.delta must be between 0 and 1, got 0."),
        (lambda: bound(FAIR, "laplace"), "trade_off must be 'any' or 'gaussian', got 'laplace'"),
        (lambda: epsilon_lower_bound(FAIR, delta=0.1, level=95), "level must be between 0 and 1, got 95"),
        (lambda: epsilon_lower_bound(FAIR, delta=0.1, level=0.5, trade_off="gaussian"), "at least 0.75"),
        (lambda: bound(NAN), "guesses must be free of NaN"),
        (lambda: bound(ONE), "got '40 of 0 and 0 of 1'; play more trials, drawing the secret at equal odds"),
        (lambda: bound(FEW), "at least 10 trials of 0 and of 1, got '9 of 0 and 9 of 1'"),
        (lambda: bound(THREE), "secrets must be 0 or 1"),
        (lambda: bound(played(np.ones((40, 3)) / 3, np.arange(40) % 2)), "got (40, 3)"),
        (lambda: bound(played(np.ones(39), np.arange(40) % 2)), "of 40 trials, got (39,)"),
        (lambda: bound(played(np.full((40, 2), 3.0), np.arange(40) % 2)), "pass the score of b = 1 as (t,)"),
        (lambda: epsilon_point(NAN, delta=DELTA), "epsilon_point: guesses must be free of NaN"),
        (lambda: saturation(10, DELTA, 0.95), "saturation.trials must be at least 20"),
        (lambda: gaussian_epsilon(-1, DELTA), "gaussian_epsilon.mu must be at least 0"),
        (lambda: gaussian_epsilon(math.nan, DELTA), "gaussian_epsilon.mu must be at least 0"),
        (lambda: gaussian_epsilon(1, 1), "gaussian_epsilon.delta must be between 0 and 1"),
        (lambda: gaussian_mu(-1, DELTA), "gaussian_mu.epsilon must be at least 0"),
        (lambda: classical_epsilon(1, 0, DELTA), "classical_epsilon.std must be positive"),
    ],
)
def test_what_cannot_be_computed_is_refused_with_the_way_out(call, words):
    refuses(ArgumentError, re.escape(words), call)
