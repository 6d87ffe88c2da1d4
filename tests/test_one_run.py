"""Epsilon from one run: the bounds against enumeration and a linear program, and mechanisms of known epsilon."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
import torch
from builders import refuses
from scipy import optimize, special

from leakscope.core.errors import ArgumentError, DataError
from leakscope.core.nouns import Transcript
from leakscope.measures.epsilon import gaussian_epsilon, gaussian_mu
from leakscope.measures.one_run import count_right, least_epsilon, least_mu, one_run_epsilon, p_values
from leakscope.training.recording.canaries import Canaries

DELTA = 1e-5


def tossed(coins, scores) -> Transcript:
    return Transcript(torch.as_tensor(coins), torch.as_tensor(scores), torch.tensor([0.5, 0.5]))


def p_value(m, r, v, epsilon, delta):
    return float(p_values(m, r, v, np.array([epsilon]), delta)[0])


def gaussian_run(rng, mu, m=1000):
    """One run of the Gaussian mechanism on canaries that lie at right angles to each other."""
    coins = rng.integers(0, 2, m)
    return tossed(coins, rng.normal(size=m) + mu * coins)


# --- the bound of Steinke, Nasr and Jagielski ------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0.0, 0.7, 2.0])
@pytest.mark.parametrize("m", [1, 4, 9])
def test_without_delta_the_p_value_is_the_chance_of_randomised_response_counted_out(m, epsilon):
    """Randomised response of every coin, all its 2^m outcomes: no (epsilon, 0)-DP training does better."""
    q = math.exp(epsilon) / (1 + math.exp(epsilon))
    for v in range(m + 1):
        chance = sum(
            math.prod(q if right else 1 - q for right in outcome)
            for outcome in itertools.product((0, 1), repeat=m)
            if sum(outcome) >= v
        )
        assert p_value(m, m, v, epsilon, 0.0) == pytest.approx(chance, abs=1e-12)


def test_with_delta_the_p_value_is_the_formula_term_by_term():
    m, r, q, delta = 12, 9, 1 / (1 + math.exp(-1.3)), 0.01
    chance = [math.comb(r, k) * q**k * (1 - q) ** (r - k) for k in range(r + 1)]
    for v in range(r + 1):
        tail = sum(chance[v:])
        spill = max((sum(chance[max(v - i, 0) : v]) / i for i in range(1, m + 1)), default=0.0)
        assert p_value(m, r, v, 1.3, delta) == pytest.approx(min(tail + 2 * m * delta * spill, 1.0))


@pytest.mark.parametrize("leak", ["each", "all"])
def test_no_training_that_fails_with_chance_delta_is_right_more_often_than_the_p_value(leak):
    """Randomised response that gives a coin away with chance delta, each on its own or all at once."""
    m, epsilon, delta = 8, 0.9, 0.02
    q = math.exp(epsilon) / (1 + math.exp(epsilon))
    share = delta + (1 - delta) * q if leak == "each" else q
    for v in range(m + 1):
        chance = sum(math.comb(m, k) * share**k * (1 - share) ** (m - k) for k in range(v, m + 1))
        chance = chance if leak == "each" else delta + (1 - delta) * chance
        assert chance <= p_value(m, m, v, epsilon, delta) + 1e-12


def test_the_p_value_never_falls_where_epsilon_rises_so_that_the_first_that_is_kept_is_the_bound():
    grid = np.linspace(0, 12, 400)
    for m, r, v, delta in [(1000, 1000, 690, 1e-5), (1000, 62, 58, 1e-3), (40, 20, 20, 1e-2)]:
        assert (np.diff(p_values(m, r, v, grid, delta)) >= -1e-12).all()


def test_the_bound_is_where_the_p_value_crosses_the_error():
    found = least_epsilon(500, 200, 180, DELTA, 0.05)
    assert p_value(500, 200, 180, found, DELTA) == pytest.approx(0.05, abs=1e-5)


# --- the bound of Mahloujifar, Melis and Chaudhuri -------------------------------------------------


def largest_chance(m, r, v, mu):
    """P(at least v right) at most, as a linear program over the chances of every count: what f-DP asks of
    them, the convex h replaced by its tangents, which only allows more."""
    at = np.concatenate([np.logspace(-6, -2, 60), np.linspace(0.01, 0.999, 200)])
    height = special.ndtr(special.ndtri(at) - mu)
    slope = np.exp(mu * special.ndtri(at) - mu**2 / 2)
    counts, rows, limits = np.arange(r + 1), [], []
    for a in range(r):
        correct = np.where(counts >= a + 1, counts, 0) / m
        wrong = np.where(counts >= a, r - counts, 0) / m
        rows += [s * correct - wrong for s in slope]  # wrong >= height + slope (correct - at)
        limits += list(slope * at - height)
    found = optimize.linprog(
        -(counts >= v).astype(float), np.array(rows), limits, np.ones((1, r + 1)), [1.0], bounds=(0, 1)
    )
    return -found.fun


@pytest.mark.parametrize(("m", "r", "v"), [(6, 6, 6), (8, 8, 6), (20, 8, 7), (30, 12, 12)])
def test_the_recursion_is_the_linear_program(m, r, v):
    for error in (0.05, 0.2):
        mu = least_mu(m, r, v, error)
        if mu > 0:
            assert largest_chance(m, r, v, mu) == pytest.approx(error, rel=2e-3)
        else:
            assert largest_chance(m, r, v, 1e-9) >= error * (1 - 1e-6)


def test_of_one_canary_the_bound_on_mu_is_the_trade_off_itself():
    """Right with chance c and wrong with 1 - c: c = Phi(mu / 2)."""
    assert least_mu(1, 1, 1, 0.9) == pytest.approx(2 * special.ndtri(0.9), abs=1e-4)


# --- simulated -------------------------------------------------------------------------------------


def simulated(seed, mu, trade_off, runs=200):
    """The certified epsilons."""
    rng = np.random.default_rng(seed)
    every = (gaussian_run(rng, mu) for _ in range(runs))
    return np.array([one_run_epsilon(run, delta=DELTA, trade_off=trade_off).low for run in every])


@pytest.mark.slow
def test_of_200_runs_that_tell_nothing_at_most_5_percent_certify_anything():
    for trade_off, runs in (("gaussian", 200), ("any", 60)):
        lows = simulated(0, 0.0, trade_off, runs)
        assert (lows > 0).mean() <= 0.05


@pytest.mark.slow
def test_a_gaussian_mechanism_of_epsilon_4_is_certified_by_half_and_never_by_more_than_it_has():
    lows = simulated(1, gaussian_mu(4.0, DELTA), "gaussian")
    assert np.median(lows) >= 2.0
    assert (lows > 4.0).mean() <= 0.05
    plain = simulated(1, gaussian_mu(4.0, DELTA), "any", 40)
    assert 0.8 < np.median(plain) < np.median(lows)
    assert plain.max() < 4.0


def test_canaries_that_are_all_told_apart_certify_the_most_there_is_to_certify():
    coins = np.array([0, 1] * 200)
    run = tossed(coins, coins.astype(float))
    for trade_off in ("any", "gaussian"):
        found = one_run_epsilon(run, delta=DELTA, trade_off=trade_off)
        assert found.low == found.high > 3
        assert found.value <= found.high


def test_training_that_tells_all_at_once_or_nothing_is_no_cause_for_a_claim():
    """With chance 4% every canary is given away: the guesses hang together, and the claims stay rare."""
    rng, claims = np.random.default_rng(4), 0
    for _ in range(300):
        coins = rng.integers(0, 2, 60)
        scores = coins if rng.random() < 0.04 else rng.normal(size=60)
        claims += one_run_epsilon(tossed(coins, scores * 1.0), delta=0.04, trade_off="any").low > 0
    assert claims <= 15


# --- what is counted, and what is refused ----------------------------------------------------------


def test_guesses_are_the_highest_scores_for_in_and_the_lowest_for_out():
    run = tossed([1, 0, 1, 0, 1, 0], [0.9, 0.8, 0.5, 0.4, 0.2, 0.1])
    assert count_right(run, 2) == 2  # the first in, the last out
    assert count_right(run, 3) == 2  # and the second in, which is wrong
    assert count_right(run, 6) == 4


def test_a_stronger_promise_is_never_contradicted_by_its_own_mechanism():
    """mu of the bound turned into epsilon is the epsilon that is said."""
    run = gaussian_run(np.random.default_rng(5), 2.0)
    found = one_run_epsilon(run, delta=DELTA, trade_off="gaussian", guesses=100)
    mu = least_mu(1000, 100, count_right(run, 100), 0.05)
    assert found.low == pytest.approx(gaussian_epsilon(mu, DELTA))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"delta": 0.0}, "delta"),
        ({"level": 1.0}, "level"),
        ({"guesses": 5}, "guesses"),
        ({"guesses": 41}, "guesses"),
        ({"trade_off": "none"}, "trade_off"),
    ],
)
def test_settings_that_say_nothing_are_refused(change, words):
    run = tossed([0, 1] * 20, np.arange(40.0))
    refuses(ArgumentError, words, one_run_epsilon, run, **({"delta": DELTA} | change))


def test_scores_that_are_no_numbers_and_coins_that_are_no_coins_are_refused():
    for run, words in (
        (tossed([0, 1] * 20, np.full(40, np.nan)), "NaN"),
        (tossed([0, 2] * 20, np.arange(40.0)), "0 or 1"),
        (tossed([0, 1], np.arange(2.0)), "10 canaries"),
    ):
        refuses(ArgumentError, words, one_run_epsilon, run, delta=DELTA)


# --- the coins beside a recording ------------------------------------------------------------------

NAMES = [f"canary {i}" for i in range(200)]


def test_coins_are_fair_come_of_the_seed_and_are_read_as_they_were_written(tmp_path):
    canaries = Canaries.toss(NAMES, seed=3)
    canaries.write(tmp_path / "run")
    assert Canaries.read(tmp_path / "run") == canaries == Canaries.toss(NAMES, seed=3)
    assert Canaries.toss(NAMES, seed=4) != canaries
    shares = [len(Canaries.toss(NAMES, seed=seed).included) / 200 for seed in range(40)]
    assert abs(np.mean(shares) - 0.5) < 0.02
    assert np.std(shares) > 0.02  # each on its own, and not exactly half
    assert canaries.included == {name for name in NAMES if canaries.coins[name]}


def test_coins_that_a_training_may_have_used_are_not_written_over(tmp_path):
    Canaries.toss(NAMES, seed=3).write(tmp_path / "run")
    Canaries.toss(NAMES, seed=3).write(tmp_path / "run")
    refuses(DataError, "other coins", Canaries.toss(NAMES, seed=4).write, tmp_path / "run")


def test_coins_that_were_changed_or_lost_are_refused(tmp_path):
    refuses(DataError, "toss them before", Canaries.read, tmp_path / "run")
    Canaries.toss(NAMES, seed=3).write(tmp_path / "run")
    file = tmp_path / "run.canaries.json"
    content = json.loads(file.read_text())
    first = NAMES[0]
    for changed in (
        content | {"coins": content["coins"] | {first: not content["coins"][first]}},
        content | {"seed": "3"},
        content | {"coins": {}},
        content | {"format": "x"},
        [1],
    ):
        file.write_text(json.dumps(changed))
        refuses(DataError, "damaged", Canaries.read, tmp_path / "run")
    refuses(ArgumentError, "all different", Canaries.toss, ["a", "a"], seed=1)
