"""The bound that holds for every adversary, beside what one measured."""

from __future__ import annotations

import dataclasses

import pytest

import leakscope as ls
from leakscope.audits.inference.bounds import bound_releases
from leakscope.core.errors import LeakscopeError


def transcript_of(parts, channel, attack, seed=0):
    game = ls.Inference(parts[0], "group", batch=8)
    knowledge = ls.Knowledge(game.on(parts[2]), channel, 400, game.chances)
    return ls.play(game, channel, attack, knowledge, trials=500, rng=ls.seeded(seed))


def test_a_channel_without_noise_has_no_bound(parts, channel):
    limit = bound_releases(transcript_of(parts, channel, ls.Posterior(ls.RandomForest(20))), channel, 8)
    assert limit.advantage is limit.accuracy is limit.information is None
    assert not limit.noise


@pytest.mark.parametrize("noise", [0.5, 20.0, 200.0])
def test_the_measured_advantage_stays_under_the_bound_of_dpsgd(parts, channel, noise):
    noisy = dataclasses.replace(channel, defense=ls.DPSGD(1.0, noise))
    transcript = transcript_of(parts, noisy, ls.NoiseAware(components=10, head=ls.RandomForest(20)))
    found = bound_releases(transcript, noisy, 8)
    assert ls.advantage(transcript).low <= found.advantage <= 1


def test_rounds_add_up_in_the_bound_on_information(parts, channel):
    transcript = transcript_of(parts, channel, ls.Posterior(ls.RandomForest(5)))
    noisy = dataclasses.replace(channel, defense=ls.DPSGD(1.0, 50.0))
    quiet = dataclasses.replace(transcript, guesses=transcript.prior.expand(500, 2))
    both = bound_releases(quiet, noisy, 8).information
    one = bound_releases(quiet, dataclasses.replace(noisy, rounds=noisy.rounds[:1]), 8).information
    assert both == pytest.approx(2 * one)


def test_side_knowledge_leaves_no_bound(parts, channel):
    transcript = transcript_of(parts, channel, ls.Posterior(ls.RandomForest(5)))
    told = dataclasses.replace(transcript, blind=transcript.guesses)
    assert (
        bound_releases(told, dataclasses.replace(channel, defense=ls.DPSGD(1.0, 50.0)), 8).advantage is None
    )


def test_more_noise_makes_a_smaller_bound(parts, channel):
    transcript = transcript_of(parts, channel, ls.Posterior(ls.RandomForest(5)))
    quiet = dataclasses.replace(transcript, guesses=transcript.prior.expand(500, 2))
    limits = [
        bound_releases(quiet, dataclasses.replace(channel, defense=ls.DPSGD(1.0, noise)), 8).advantage
        for noise in (5.0, 50.0, 500.0)
    ]
    assert limits[0] > limits[1] > limits[2] > 0


def test_the_bound_asks_the_defense_what_it_did(parts, channel):
    transcript = transcript_of(parts, channel, ls.Posterior(ls.RandomForest(5)))
    quiet = dataclasses.replace(transcript, guesses=transcript.prior.expand(500, 2))

    def limit(defense):
        return bound_releases(quiet, dataclasses.replace(channel, defense=defense), 8).advantage

    alone = limit(ls.DPSGD(1.0, 50.0))
    assert limit(ls.Chain(ls.DPSGD(1.0, 50.0), ls.Pruning(0.5))) == alone  # working on it tells no more
    assert limit(ls.Chain(ls.Pruning(0.5), ls.DPSGD(1.0, 50.0))) is None
    local = ls.FlowerLocalDp(clip=1.0, sensitivity=1.0, epsilon=0.3)
    assert limit(local) == pytest.approx(limit(ls.DPSGD(1.0, local.deviation(8) * 8**0.5)))
    assert limit(ls.FlowerFixedClipping(noise=50.0)) is None  # on a mean that uploads are not


def test_an_advantage_above_a_valid_bound_is_an_error(parts, channel):
    everything = transcript_of(parts, ls.Plain(2), ls.Posterior(ls.RandomForest(10)))
    with pytest.raises(LeakscopeError, match="above the bound"):
        bound_releases(everything, dataclasses.replace(channel, defense=ls.DPSGD(1.0, 500.0)), 8)
