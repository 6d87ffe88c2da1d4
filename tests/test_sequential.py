"""Bounds that may be looked at after every batch: valid at all looks together, and near those of one look."""

from __future__ import annotations

import itertools
import math
import re

import numpy as np
import pytest
import torch
from builders import refuses
from test_epsilon import DELTA, NULLS, covers

from leakscope.core.errors import ArgumentError
from leakscope.core.nouns import Transcript
from leakscope.measures.epsilon import epsilon_lower_bound, gaussian_epsilon
from leakscope.measures.sequential import GRID, STAKES, watch_epsilon

FAIR = torch.full((2,), 0.5, dtype=torch.float64)


def batches(rng, count, size, scores):
    """So many batches, each trial's secret by the toss of a coin."""
    for _ in range(count):
        secrets = rng.integers(0, 2, size)
        yield Transcript(torch.from_numpy(secrets), torch.from_numpy(scores(rng, secrets)), FAIR)


def watched(found, **more):
    return list(watch_epsilon(found, **{"delta": DELTA} | more))


def answer(epsilon):
    """Randomised response, of which a test can certify all."""
    lie = 1 / (1 + math.exp(epsilon))
    return lambda rng, secrets: np.where(rng.random(len(secrets)) < lie, 1 - secrets, secrets).astype(float)


def normal(mu):
    return lambda rng, secrets: rng.normal(size=len(secrets)) + mu * secrets


def above(truth, scores, repetitions, *, seed, count=8, size=250, **more):
    """How often any look of an audit is above the truth, and the medians of the last look."""
    rng = np.random.default_rng(seed)
    runs = [watched(batches(rng, count, size, scores), **more) for _ in range(repetitions)]
    return sum(max(one.low for one in run) > truth for run in runs), float(
        np.median([r[-1].low for r in runs])
    )


@pytest.mark.parametrize("kind", ["normal", "tied"])
@pytest.mark.parametrize("trade_off", ["any", "gaussian"])
def test_of_scores_that_know_nothing_no_look_certifies_anything(kind, trade_off):
    def scores(rng, secrets):
        return NULLS[kind](rng, len(secrets))

    exceeding, _ = above(0.0, scores, 40, seed=5, trade_off=trade_off)
    assert covers(exceeding, 40)


@pytest.mark.parametrize("epsilon", [0.5, 2])
def test_of_randomised_response_no_look_is_above_the_truth_and_the_last_is_near_it(epsilon):
    exceeding, last = above(epsilon, answer(epsilon), 40, seed=[1, int(10 * epsilon)], delta=1e-9)
    assert covers(exceeding, 40)
    assert last > 0.6 * epsilon


@pytest.mark.parametrize("trade_off", ["any", "gaussian"])
def test_of_a_gaussian_mechanism_no_look_is_above_the_truth(trade_off):
    truth = gaussian_epsilon(1.0, DELTA)
    exceeding, last = above(truth, normal(1.0), 40, seed=3, trade_off=trade_off)
    assert covers(exceeding, 40)
    assert last > (0.75 if trade_off == "gaussian" else 0.25) * truth


@pytest.mark.slow
@pytest.mark.parametrize("trade_off", ["any", "gaussian"])
@pytest.mark.parametrize("mu", [0.0, 0.5, 2.0])
def test_of_400_audits_with_a_look_at_every_batch_at_most_5_percent_claim_too_much(mu, trade_off):
    truth = gaussian_epsilon(mu, DELTA)
    exceeding, _ = above(truth, normal(mu), 400, seed=[7, int(10 * mu)], count=6, trade_off=trade_off)
    assert covers(exceeding, 400)


def test_stopping_early_costs_little_against_one_look_at_the_end():
    rng = np.random.default_rng(2)
    found = list(batches(rng, 16, 500, normal(2.0)))
    whole = Transcript(torch.cat([b.secrets for b in found]), torch.cat([b.guesses for b in found]), FAIR)
    for trade_off, least in (("any", 0.8), ("gaussian", 0.93)):
        last = watched(found, trade_off=trade_off)[-1]
        assert last.low > least * epsilon_lower_bound(whole, delta=DELTA, trade_off=trade_off).low
        assert (last.n, last.level) == (8_000, 0.95)
        assert last.low <= last.value <= last.high


def test_what_grows_is_the_product_of_all_bets():
    """A second implementation: trial by trial, with the test of an answer that is 0 or 1."""
    rng = np.random.default_rng(4)
    first, second = batches(rng, 2, 60, answer(3.0))
    low = watched([first, second])[-1].low

    def grown(epsilon):
        stakes = []
        for fee, says in ((DELTA / 2, (1,)), (DELTA / 2, (0,)), (DELTA, (0, 1))):
            for share in STAKES:
                bet, money = share / (math.exp(epsilon) + fee), 1.0
                for secret, said in zip(second.secrets.tolist(), second.guesses.tolist(), strict=True):
                    won = 0.0 if said not in says else 1.0 if said == secret else -math.exp(epsilon)
                    money *= 1 + bet * (won - fee)
                stakes.append(money)
        return np.mean(stakes)

    last = int(np.flatnonzero(low == GRID)[0])
    assert last > 20
    assert all(grown(epsilon) >= 20 for epsilon in (*GRID[:last:20], low))
    assert grown(GRID[last + 1]) < 20


def test_on_the_first_batch_nothing_is_staked_and_no_later_look_takes_back():
    rng = np.random.default_rng(6)
    found = watched(batches(rng, 5, 200, lambda rng, secrets: secrets + 0.0))
    assert found[0].low == 0
    lows = [one.low for one in found]
    assert lows == sorted(lows)
    assert all(one.low > 0.9 * one.high for one in found[1:])  # no error was made


@pytest.mark.parametrize("trade_off", ["any", "gaussian"])
def test_a_batch_is_not_tested_by_what_was_chosen_on_it(trade_off):
    """Each batch points another way than those before it: who chose on it would certify much."""
    rng = np.random.default_rng(9)

    def turned():
        for sign in itertools.islice(itertools.cycle((1, -1)), 2):
            (one,) = batches(rng, 1, 400, lambda rng, secrets, sign=sign: sign * (2.0 * secrets - 1))
            yield one

    assert watched(turned(), trade_off=trade_off)[-1].low == 0


def test_it_is_lazy_so_that_who_stops_plays_no_more():
    played = []

    def counted():
        for one in batches(np.random.default_rng(0), 50, 100, normal(3.0)):
            played.append(one)
            yield one

    next(one for one in watch_epsilon(counted(), delta=DELTA) if one.low > 0.5)
    assert 1 < len(played) < 10


SKEWED = Transcript(torch.arange(40) % 2, torch.arange(40.0), torch.tensor([0.3, 0.7]))


@pytest.mark.parametrize(
    ("batch", "more", "words"),
    [
        (SKEWED, {}, "prior must be a fair coin's, 0.5 and 0.5"),
        (SKEWED, {"delta": 0.0}, "watch_epsilon.delta must be between 0 and 1"),
        (SKEWED, {"level": 1.0}, "watch_epsilon.level must be between 0 and 1"),
        (SKEWED, {"trade_off": "laplace"}, "trade_off must be 'any' or 'gaussian'"),
    ],
)
def test_what_cannot_be_watched_is_refused(batch, more, words):
    refuses(ArgumentError, re.escape(words), lambda: watched([batch], **more))
