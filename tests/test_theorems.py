"""The guards' theorems against joint distributions small enough to know the best adversary of."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from builders import refuses
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import special

from leakscope.core.errors import ArgumentError
from leakscope.measures import bounds
from leakscope.measures.theorems import (
    conditional_entropy,
    group_errors,
    inference_accuracy,
    inference_accuracy_closed,
    log_ball,
    reconstruction_risk,
    reconstruction_risk_closed,
    squared_error,
    task_error,
)

ROUNDING = 1e-9


def joints(*shapes):
    """Probability tables of one of these shapes, zeros and near-zeros included."""
    entries = st.floats(0, 1) | st.sampled_from([0.0, 1e-6, 1.0])
    tables = [arrays(float, shape, elements=entries).filter(lambda t: t.sum() > 0.01) for shape in shapes]
    return st.one_of(*tables).map(lambda table: table / table.sum())


def entropy_given(joint):
    """H(row | column) in nats."""
    return float(special.entr(joint).sum() - special.entr(joint.sum(0)).sum())


def information(joint):
    return max(float(special.entr(joint.sum(1)).sum()) - entropy_given(joint), 0.0)


@settings(deadline=None)
@given(joints((2, 1), (2, 3), (3, 2), (4, 4), (7, 2)))
def test_the_best_adversary_is_within_the_accuracy_bound(joint):
    best = float(joint.max(0).sum())
    remaining = max(entropy_given(joint), 0.0)
    assert best <= inference_accuracy(remaining, values=len(joint)) + ROUNDING
    if len(joint) == 2:
        assert best <= inference_accuracy_closed(remaining) + ROUNDING


@given(st.floats(0, 1))
def test_the_printed_accuracy_is_never_below_the_exact_one(bits):
    nats = bits * math.log(2)
    assert inference_accuracy(nats) <= inference_accuracy_closed(nats) + ROUNDING


@pytest.mark.parametrize("values", [2, 3, 7])
@pytest.mark.parametrize("error", [0.0, 0.01, 0.1, 0.3])
def test_the_accuracy_bound_is_attained_when_all_errors_are_alike(values, error):
    remaining = float(special.entr(error) + special.entr(1 - error)) + error * math.log(values - 1)
    assert inference_accuracy(remaining, values=values) == pytest.approx(1 - error, abs=1e-7)


def test_the_accuracy_bound_ends_at_guessing_and_at_certainty():
    assert inference_accuracy(math.log(7), values=7) == pytest.approx(1 / 7)
    assert inference_accuracy(0.0, values=7) == 1.0
    assert inference_accuracy_closed(0.0) == 1.0
    assert inference_accuracy_closed(math.log(2)) == pytest.approx(1 - 1 / (2 * math.log2(6)))


def test_the_printed_formula_is_exceeded_by_secrets_of_more_than_two_values():
    def printed(bits):
        return 1 - bits / (2 * math.log2(6 / bits))

    prior = np.array([0.645, *[0.355 / 3] * 3])  # and a representation that says nothing
    bits = bounds.entropy(prior) / math.log(2)
    assert printed(bits) < 0.63 < prior.max() <= inference_accuracy(bits * math.log(2), values=4)
    assert printed(math.log2(7)) < 0
    refuses(ArgumentError, r"between 0 and 0\.6931 nats", inference_accuracy_closed, bits * math.log(2))


@settings(deadline=None)
@given(joints((2, 3), (3, 3)), st.integers(0, 2**31))
def test_log_loss_is_the_conditional_entropy_for_the_true_posterior_and_above_it_for_others(joint, seed):
    counts = np.rint(joint * 400).astype(int)
    assume(counts.sum() >= 2)
    secrets, seen = (
        torch.from_numpy(i.repeat(counts.ravel())) for i in np.indices(counts.shape).reshape(2, -1)
    )
    exact = counts / counts.sum()
    posterior = torch.from_numpy(exact / np.maximum(exact.sum(0), 1e-300)).T
    found = conditional_entropy(posterior[seen], secrets)
    assert found.value == pytest.approx(entropy_given(exact), abs=1e-9)
    other = (
        torch.rand(posterior.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 1e-3
    )
    stated = (other / other.sum(1, keepdim=True))[seen]
    assert conditional_entropy(stated, secrets).value >= found.value - ROUNDING


def test_a_measured_conditional_entropy_certifies_nothing():
    secrets = torch.arange(400) % 2  # the representation is the secret; this adversary does not look
    found = conditional_entropy(torch.full((400, 2), 0.5), secrets)
    assert inference_accuracy(found.low) < 1.0
    assert "no certificate" in found.method


def test_the_conditional_entropys_interval_covers_it():
    rng, odds = np.random.default_rng(0), 0.85
    truth = float(special.entr(odds) + special.entr(1 - odds))
    hits = 0
    for _ in range(400):
        right = torch.from_numpy(rng.random(300) < odds).long()
        found = conditional_entropy(torch.tensor([[1 - odds, odds]]).expand(300, 2), right)
        hits += found.low <= truth <= found.high
    assert 0.92 <= hits / 400 <= 0.98


@settings(deadline=None)
@given(joints((5, 1), (5, 3), (9, 2), (9, 4)), st.sampled_from([0.3, 1.0, 1.5, 3.0]))
def test_no_decoder_misses_less_often_than_the_reconstruction_risk(joint, radius):
    side = 3 if len(joint) == 9 else 1
    places = np.array(list(itertools.product(range(len(joint) // side), range(side))), dtype=float)
    guesses = np.array(list(itertools.product(np.arange(-1, 6, 0.5), repeat=2)))
    near = np.linalg.norm(guesses[:, None] - places, axis=2) <= radius  # guess, x
    within = float((near @ joint).max(0).sum())  # the best guess for every r
    chance = float((near @ joint.sum(1)).max())
    log_chance = min(math.log(chance), 0.0)
    risk = reconstruction_risk(information(joint), log_chance)
    assert 1 - within >= risk - 1e-7
    if log_chance < 0:
        assert reconstruction_risk_closed(information(joint), log_chance) <= risk + ROUNDING


@given(st.floats(0, 3), st.integers(2, 30))
def test_the_reconstruction_risk_is_fanos_error_for_points_at_equal_odds(nats, points):
    error = 1 - bounds.fano_accuracy(nats, [1 / points] * points)
    assert reconstruction_risk(nats, -math.log(points)) == pytest.approx(error, abs=1e-7)


def test_the_reconstruction_risk_holds_in_many_dimensions():
    log_chance = log_ball(3_072, 0.1 * math.sqrt(3_072))  # x uniform on a cube of volume 1
    assert log_chance < -2_000
    assert reconstruction_risk(0.0, log_chance) == 1.0
    exact = reconstruction_risk(100.0, log_chance)
    assert reconstruction_risk_closed(100.0, log_chance) < exact < 1.0
    assert reconstruction_risk(-log_chance, log_chance) == 0.0


def test_volumes_of_boundaries_bound_nothing():
    side, radius = np.linspace(0, 1, 21), 1.2
    angles = np.linspace(0, 2 * np.pi, 100_000, endpoint=False)
    circle = radius * np.stack([np.cos(angles), np.sin(angles)])
    arcs = []
    for centre in itertools.product(side, side):
        points = circle + np.array(centre)[:, None]
        arcs.append(((points >= 0) & (points <= 1)).all(0).mean() * 2 * np.pi * radius)
    assert max(arcs) == pytest.approx(0.479, abs=1e-3)
    printed = 1 - math.log(2) / (math.log(4) - math.log(max(arcs)))
    assert printed > 0.67
    farthest = math.dist((0.5, 0.5), (0, 0))
    assert farthest < radius  # whoever says the centre never misses by so much
    assert reconstruction_risk(0.0, 0.0) == 0.0  # the chance of that guess being 1


def test_the_volume_of_x_says_nothing_where_x_is_not_uniform():
    uniform = log_ball(2, 0.01) - math.log(1.0)
    assert reconstruction_risk_closed(0.0, uniform) > 0.9  # true for x uniform on the unit square
    constant = 0.0  # a constant x in that square is guessed with certainty
    assert reconstruction_risk(0.0, constant) == 0.0


@pytest.mark.parametrize(
    ("dimensions", "p", "volume"),
    [
        (1, 2.0, 4.0),
        (2, 2.0, 4 * math.pi),
        (3, 2.0, 32 * math.pi / 3),
        (3, 1.0, 32 / 3),
        (4, math.inf, 256.0),
    ],
)
def test_the_log_of_a_balls_volume_is_known(dimensions, p, volume):
    assert log_ball(dimensions, 2.0, p=p) == pytest.approx(math.log(volume))


@given(st.floats(0.01, 10), st.integers(1, 50))
def test_the_squared_error_is_attained_by_gaussian_noise(noise, dimensions):
    least = noise**2 / (1 + noise**2)  # of x ~ N(0, I) from x + N(0, noise^2 I)
    remaining = dimensions / 2 * math.log(2 * math.pi * math.e * least)
    assert squared_error(remaining, dimensions) == pytest.approx(least)


def test_the_squared_error_holds_for_a_uniform_number():
    assert squared_error(0.0, 1) == pytest.approx(1 / (2 * math.pi * math.e))
    assert squared_error(0.0, 1) < 1 / 12


@settings(deadline=None)
@given(joints((2, 2, 1), (2, 2, 2), (2, 2, 4)))
def test_no_task_classifier_errs_less_than_the_trade_off_allows(joint):
    groups = joint.sum((1, 2))  # joint: u, y, r
    assume(groups.min() >= 1e-6)
    label = joint[:, 1].sum(1) / groups
    given_group = joint.sum(1) / groups[:, None]
    gap, advantage = abs(label[0] - label[1]), abs(given_group[0] - given_group[1]).sum() / 2
    gap, advantage = min(gap, 1.0), min(advantage, 1.0)
    for says in itertools.product([0, 1], repeat=joint.shape[2]):
        wrong = np.stack([joint[:, 1 - said, r] for r, said in enumerate(says)]).sum(0)
        assert wrong.sum() >= task_error(gap, advantage, groups) - ROUNDING
        assert (wrong / groups).sum() >= group_errors(gap, advantage) - ROUNDING


def test_equation_9_as_printed_is_exceeded_by_a_coin():
    gap, advantage, error = 1.0, 0.0, 0.5  # y = u at equal odds, a constant representation
    printed = gap - 2 * 1.0 * 1.0 * advantage
    assert error < printed
    assert task_error(gap, advantage, [0.5, 0.5]) == error
    assert group_errors(gap, advantage) == 1.0


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: inference_accuracy(-0.1),
            "inference_accuracy.conditional_entropy must be between 0 and 0.6931",
        ),
        (lambda: inference_accuracy(0.1, values=1), "inference_accuracy.values must be at least 2, got 1"),
        (lambda: conditional_entropy(torch.ones(3), torch.ones(3)), r"posteriors \(t, m\)"),
        (lambda: conditional_entropy(torch.ones(3, 2), torch.ones(3)), "rows of probabilities"),
        (lambda: conditional_entropy(torch.ones(3, 1), torch.ones(2)), "one secret each"),
        (
            lambda: reconstruction_risk(-1.0, -1.0),
            "reconstruction_risk.mutual_information must be at least 0",
        ),
        (lambda: reconstruction_risk(1.0, 0.5), "reconstruction_risk.log_chance must be at most 0, got 0.5"),
        (lambda: reconstruction_risk_closed(1.0, 0.0), "log_chance must be below 0, got 0.0"),
        (lambda: log_ball(2, 1.0, p=0.5), "log_ball.p must be at least 1, got 0.5"),
        (lambda: squared_error(1.0, 0), "squared_error.dimensions must be at least 1, got 0"),
        (lambda: group_errors(1.5, 0.0), "group_errors.gap must be between 0 and 1, got 1.5"),
        (lambda: task_error(0.5, 0.0, [0.2, 0.3, 0.5]), "task_error.prior must be the chances of two values"),
        (lambda: task_error(0.5, 0.0, [0.2, 0.3]), "of sum 1"),
    ],
)
def test_what_is_no_entropy_or_chance_is_refused(call, words):
    refuses(ArgumentError, words, call)
