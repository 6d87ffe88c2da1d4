"""Who it is, by what a linear layer takes: the closed form, nothing in silence, all where labels agree."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from builders import refuses
from test_joint import nothing_found, people

from leakscope import PLDA, Knowledge, Linear, MeanInput, UserInference, Withhold, play, seeded
from leakscope.attacks.mean_input import _describe, find_layer
from leakscope.core.errors import ArgumentError
from leakscope.games.channels import GradientChannel, Silent
from leakscope.measures.success import auroc, success_rate
from leakscope.models import build, parameters


def stage(data, *, batch: int = 2):
    """A linear model at zero, where every record moves the bias by a half."""
    train, _, public = data.split(seeded(0, "split"), by="person", train=15, public=20, standardise=False)
    model = build(Linear(zeros=True), train, seeded(0))
    game = UserInference(train, "person", candidates=4, batch=batch)
    return game, game.on(public), GradientChannel(model, (parameters(model),))


def agreeing(data):
    """The same people, whose records have one label each."""
    return replace(data, y=data.private["person"] % 2)


def test_of_records_with_one_label_the_release_is_their_mean_input():
    game, _, channel = stage(agreeing(people(0)))
    view, secrets = game.deal(channel, 50, seeded(1))
    layer = find_layer(channel.model, view)
    own, sizes, theirs = _describe(channel.model, layer, view)
    batch = view.public["candidates"]
    torch.testing.assert_close(theirs, batch.data.x.double()[batch.rows].mean(2))
    torch.testing.assert_close(sizes, torch.ones(50).double())
    near = (own[:, None] - theirs).norm(dim=2).argmin(1)
    assert (near == secrets).double().mean() > 0.9  # the person's own mean, but for the spread of two records


def test_all_are_told_where_labels_agree_and_people_are_far_apart():
    game, rehearsal, channel = stage(agreeing(people(0, spread=0.05)))
    knowledge = Knowledge(rehearsal, channel, 600, game.chances)
    transcript = play(game, channel, MeanInput(components=6), knowledge, trials=300, rng=seeded(2))
    assert success_rate(transcript).value > 0.99


def test_it_beats_gradients_held_against_gradients_where_labels_differ():
    game, rehearsal, channel = stage(people(1))
    knowledge = Knowledge(rehearsal, channel, 900, game.chances)
    ours, theirs = (
        auroc(play(game, channel, attack, knowledge, trials=400, rng=seeded(2)))
        for attack in (MeanInput(components=6), PLDA(components=6))
    )
    assert ours.low > theirs.high


@pytest.mark.parametrize("rounds", [1, 3])
def test_nothing_is_found_in_silence_or_without_its_layer(rounds):
    game, rehearsal, channel = stage(people(0))
    silent = Silent(rounds)
    knowledge = Knowledge(rehearsal, silent, 200, game.chances)
    assert nothing_found(play(game, silent, MeanInput(), knowledge, trials=200, rng=seeded(3)))
    still = replace(channel, defense=Withhold())
    knowledge = Knowledge(rehearsal, still, 400, game.chances)
    assert nothing_found(play(game, still, MeanInput(components=6), knowledge, trials=300, rng=seeded(3)))


def test_settings_that_mean_nothing_are_refused():
    for wrong in ({"components": 0}, {"ridge": 0.0}, {"groups": 0}):
        refuses(ArgumentError, f"MeanInput.{next(iter(wrong))} must be", lambda w=wrong: MeanInput(**w))
