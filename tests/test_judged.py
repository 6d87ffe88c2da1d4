"""Bounds beside attacks, and the search for a defense."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import replace

import pytest
import torch

from leakscope import (
    DPSGD,
    Defense,
    FlowerAdaptiveClipping,
    FlowerFixedClipping,
    FlowerLocalDp,
    GradientChannel,
    Inference,
    Knowledge,
    NoiseAware,
    PercentilePrivacy,
    Plain,
    Posterior,
    RandomForest,
    SVTPrivacy,
    advantage,
    play,
    seeded,
)
from leakscope.epsilon import gaussian_epsilon
from leakscope.errors import ArgumentError, LeakscopeError
from leakscope.judged import bounded, guaranteed
from leakscope.plan import parse
from leakscope.tuning import FAMILIES, Family, Risk, cheapest, search


def transcript_of(parts, channel, attack, seed=0):
    game = Inference(parts[0], "group", batch=8)
    return play(
        game,
        channel,
        attack,
        Knowledge(game.on(parts[2]), channel, 400, game.chances),
        trials=500,
        rng=seeded(seed),
    )


def test_a_channel_without_noise_has_no_bound_and_still_says_what_was_learned(parts, channel):
    found = bounded(transcript_of(parts, channel, Posterior(RandomForest(20))), channel, 8)
    assert found["advantage_bound"] is None
    assert found["information"]["value"] < torch.log(torch.tensor(2.0)).item()


@pytest.mark.parametrize("noise", [0.5, 20.0, 200.0])
def test_the_measured_advantage_stays_under_the_bound_of_dpsgd(parts, channel, noise):
    noisy = dataclasses.replace(channel, defense=DPSGD(1.0, noise))
    transcript = transcript_of(parts, noisy, NoiseAware(components=10, head=RandomForest(20)))
    found = bounded(transcript, noisy, 8)
    assert advantage(transcript).low <= found["advantage_bound"] <= 1


def test_rounds_add_up_in_the_bound_on_information(parts, channel):
    transcript = transcript_of(parts, channel, Posterior(RandomForest(5)))
    noisy = dataclasses.replace(channel, defense=DPSGD(1.0, 50.0))
    quiet = dataclasses.replace(transcript, guesses=transcript.prior.expand(500, 2))
    both = bounded(quiet, noisy, 8)["information_bound"]
    one = bounded(quiet, dataclasses.replace(noisy, rounds=noisy.rounds[:1]), 8)["information_bound"]
    assert both == pytest.approx(2 * one)


def test_side_knowledge_leaves_no_bound(parts, channel):
    transcript = transcript_of(parts, channel, Posterior(RandomForest(5)))
    told = dataclasses.replace(transcript, blind=transcript.guesses)
    assert bounded(told, dataclasses.replace(channel, defense=DPSGD(1.0, 50.0)), 8)["advantage_bound"] is None


def test_more_noise_makes_a_smaller_bound(parts, channel):
    transcript = transcript_of(parts, channel, Posterior(RandomForest(5)))
    quiet = dataclasses.replace(transcript, guesses=transcript.prior.expand(500, 2))
    limits = [
        bounded(quiet, dataclasses.replace(channel, defense=DPSGD(1.0, noise)), 8)["advantage_bound"]
        for noise in (5.0, 50.0, 500.0)
    ]
    assert limits[0] > limits[1] > limits[2] > 0


def test_the_guarantee_of_a_run_is_dp_accountings_and_grows_with_its_length():
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
    from dp_accounting.pld import PLDAccountant

    defense = DPSGD(1.0, 1.2, "opacus")
    short, long = (
        guaranteed(defense, records=1_000, batch=100, rounds=rounds, entries=9) for rounds in (1, 5)
    )
    accountant = PLDAccountant()
    accountant.compose(SelfComposedDpEvent(PoissonSampledDpEvent(0.1, GaussianDpEvent(1.2)), 10))
    assert short["run"] == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-3)
    assert short["run"] < long["run"]
    assert short["step"] == pytest.approx(gaussian_epsilon(1 / 1.2, 1e-5))
    assert guaranteed(Defense(), records=10, batch=2, rounds=1, entries=9) is None


def test_an_advantage_above_a_valid_bound_is_an_error(parts, channel):
    everything = transcript_of(parts, Plain(2), Posterior(RandomForest(10)))
    with pytest.raises(LeakscopeError, match="above the bound"):
        bounded(everything, dataclasses.replace(channel, defense=DPSGD(1.0, 500.0)), 8)


CELL = """
[[cell]]
data = {name = "synthetic", records = 1500, shift = 2.0, positive = 0.9}
game = {name = "Inference", secret = "group", batch = 8}
attack = {name = "Posterior", head = {name = "RandomForest", trees = 10}}
model = {name = "Linear"}
rounds = 1
trials = 300
rehearsals = 200
train = 700
public = 400
"""
NOISE = next(family for family in FAMILIES if family.name == "Noise")


def test_the_search_finds_the_weakest_strength_that_meets_the_risk(tmp_path):
    cell = parse(CELL).cell[0]
    risk = Risk(advantage=0.25, loss=1.0)
    points = list(
        search(cell, risk, tmp_path, families=[dataclasses.replace(NOISE, attacks=())], halvings=4, jobs=1)
    )
    assert [point.family for point in points] == ["none", *["Noise"] * 5]
    found = min(point.defense["std"] for point in points[1:] if point.high <= 0.25)
    tried = [point.defense["std"] for point in points[1:] if point.high > 0.25]
    assert tried
    assert max(tried) < found < 30.0
    assert found / max(tried) == pytest.approx((30.0 / 1e-3) ** (1 / 16), rel=0.02)
    assert cheapest(points, risk) in points[1:]
    again = list(
        search(cell, risk, tmp_path, families=[dataclasses.replace(NOISE, attacks=())], halvings=4, jobs=1)
    )
    assert [point.results for point in again] == [point.results for point in points]  # read, not played again


def test_a_risk_nothing_can_meet_is_answered_with_nothing(tmp_path):
    cell = parse(CELL).cell[0]
    useless = Family("Sign", 1.0, 1.0, lambda _: {"name": "Sign"})
    risk = Risk(advantage=0.0, loss=0.0)
    points = list(search(cell, risk, tmp_path, families=[useless], jobs=1))
    assert len(points) == 2
    assert cheapest(points, risk) is None


@pytest.mark.parametrize(
    "wish",
    [{"advantage": -0.1, "loss": 0.1}, {"advantage": 1.0, "loss": 0.1}, {"advantage": 0.1, "loss": 2.0}],
)
def test_a_risk_out_of_its_range_is_refused(wish):
    with pytest.raises(ArgumentError, match="max-"):
        Risk(**wish)


def test_the_null_defense_is_what_an_undefended_channel_has(channel):
    assert channel.defense == Defense()
    assert channel.undefended().defense == Defense()
    assert isinstance(channel, GradientChannel)


def test_a_deployed_filter_promises_what_its_noise_is_worth_for_an_upload_and_for_all():
    size = {"records": 10, "batch": 2, "rounds": 4, "entries": 50}
    local = FlowerLocalDp(clip=1.0, sensitivity=1.0, epsilon=1.0)
    found = guaranteed(local, **size)
    std = math.sqrt(2 * math.log(1.25e5))
    assert found["step"] == pytest.approx(gaussian_epsilon(2 / std, 1e-5))
    assert found["run"] == pytest.approx(gaussian_epsilon(2 * 2 / std, 1e-5))
    assert found["unit"] == "upload"
    adaptive = FlowerAdaptiveClipping(0.1, 4.0, 400, rule="andrew")
    for central in (FlowerFixedClipping(clip=0.1, noise=4.0, clients=4), adaptive):
        promise = guaranteed(central, **size)
        assert promise["step"] == pytest.approx(gaussian_epsilon(0.5, 1e-5))  # 2 clip / n over 4 clip / n
        assert promise["unit"] == "mean"
    assert (
        guaranteed(replace(adaptive, rule="flower"), **size) is None
    )  # its noise can get as small as it likes
    sparse = SVTPrivacy()
    assert guaranteed(sparse, **size)["run"] == pytest.approx(4 * sparse.proven(50))
    assert guaranteed(sparse, **size)["delta"] == 0


def test_a_filter_without_noise_promises_nothing():
    size = {"records": 10, "batch": 2, "rounds": 4, "entries": 50}
    bare = [
        FlowerLocalDp(sensitivity=0.0),
        FlowerFixedClipping(noise=0.0),
        FlowerAdaptiveClipping(noise=0.0),
        PercentilePrivacy(),
        SVTPrivacy(version="2.7"),
    ]
    assert [guaranteed(one, **size) for one in bare] == [None] * 5
