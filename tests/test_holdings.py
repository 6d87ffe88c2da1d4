"""What is held of a record beside one release: labels, draws, encoders, neighbours, changes and the key."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from builders import SURE, Nothing, people
from sklearn.metrics import roc_auc_score
from torch import nn

from leakscope import Dataset, Inference, Mixture, Plain, Silent, Trees, auroc, play, seeded, success_rate
from leakscope.attacks.mixture import log_densities
from leakscope.attacks.representations import Fisher
from leakscope.core.errors import ArgumentError
from leakscope.core.nouns import Knowledge, Transcript
from leakscope.games.releases import HoldingChannel, label_columns, moved, without_noise
from leakscope.guards.encoder import Encoder, Perturbation


def noisy(scale: float = 2.0, network: nn.Module | None = None) -> Encoder:
    return Encoder(network or nn.Identity(), {}, Perturbation("gaussian", scale))


def told(attack, channel, *, public: Dataset | None = None, data: Dataset | None = None) -> Transcript:
    game = Inference(data or people(600, 1), "u", batch=1)
    knowledge = Knowledge(game.on(public or people(1_200, 2)), channel, 1_200, game.chances, calibration=0)
    return play(game, channel, attack, knowledge, trials=1_500, rng=seeded(0, "play"))


@pytest.mark.parametrize("attack", [Mixture(), Trees()])
@pytest.mark.parametrize(
    "nothing",
    [Silent(), HoldingChannel(Encoder(Nothing(), {}, Perturbation("gaussian", 1.0)))],
    ids=["silent", "constant"],
)
def test_through_nothing_chance_is_covered(attack, nothing):
    area = auroc(told(attack, nothing), level=SURE)
    assert area.low <= 0.5 <= area.high


@pytest.mark.parametrize("attack", [Mixture(), Trees()])
def test_through_plain_everything_is_found(attack):
    assert success_rate(told(attack, Plain())).value == 1


def test_the_likelihood_of_the_noise_is_as_good_as_the_closed_form():
    """u shifts the first number, the others say nothing, and all have noise: the best score is that number."""
    channel = HoldingChannel(noisy())
    data = people(600, 1)
    game = Inference(data, "u", batch=1)
    view, secrets = game.deal(channel, 4_000, seeded(0, "deal"))
    shown = view.releases[0].layers["representation"]
    best = roc_auc_score(secrets, shown[:, 0])
    knowledge = Knowledge(game.on(people(4_000, 2)), channel, 100, game.chances)
    said = Mixture()(knowledge, seeded(0))(view)[0]
    assert roc_auc_score(secrets, said[:, 1] - said[:, 0]) > best - 0.015


def test_densities_are_means_over_the_centres_of_a_value_and_label():
    x, centres = torch.tensor([[0.0, 1.0]]), torch.tensor([[0.0, 0.0], [3.0, 0.0], [1.0, 1.0]])
    codes, labels = torch.tensor([0, 1, 1]), torch.tensor([[0.0], [0.0], [1.0]])
    density = (-(x - centres).square().sum(1) / 2).exp()
    said = log_densities(x, centres, codes, 2)[0]
    expected = torch.stack([density[0], density[1:].mean()]).log()
    assert torch.allclose(said.diff(), expected.diff().double())
    given = log_densities(x, centres, codes, 2, beside=torch.tensor([[0.0]]), labels=labels)[0]
    assert torch.allclose(given.diff(), torch.stack([density[0], density[1] / 2]).log().diff().double())


@pytest.mark.parametrize("attack", [Mixture(), Fisher(), Trees()])
def test_a_label_that_tells_the_secret_is_found_beside_a_release_that_does_not(attack):
    """The label is the secret of three records in four, and nothing else tells it."""

    def labelled(n: int, seed: int) -> Dataset:
        data = people(n, seed, shift=0.0)
        wrong = torch.rand(n, generator=seeded(seed, "wrong")) < 0.25
        return replace(data, y=torch.where(wrong, 1 - data.private["u"], data.private["u"]))

    data, public = labelled(3_000, 1), labelled(1_200, 2)
    found = [
        auroc(told(attack, HoldingChannel(noisy(), **more), data=data, public=public)).value
        for more in ({}, {"labelled": True}, {"labelled": True, "holding": "nothing"})
    ]
    assert found[0] == pytest.approx(0.5, abs=0.05)
    assert found[1] > 0.7
    assert found[2] == pytest.approx(0.75, abs=0.04)


def test_more_draws_tell_more_and_the_key_tells_most():
    found = [
        auroc(told(Mixture(), HoldingChannel(noisy(6.0), draws=draws, holding=holding))).value
        for holding, draws in (("once", 1), ("again", 16), ("keyed", 1))
    ]
    assert found[0] + 0.1 < found[1] < found[2]


class Shared(Encoder):
    """An encoder whose draws are those of every other one, as all were under one key."""

    def forward(self, x, *, rng=None, key=None, people=None):
        own = torch.Generator().manual_seed(0 if key is None else key) if rng is None else rng
        clean = without_noise(self, x)
        return clean + self.perturbation.delta(self.perturbation.draws(clean, own))


class Half(nn.Module):
    """Half of the first number: what two encoders with one draw have between them."""

    def forward(self, x):
        return x / 2


def test_two_encoders_that_share_a_draw_give_away_what_neither_does():
    encoders = [Shared(net, {}, Perturbation("gaussian", 20.0)) for net in (nn.Identity(), Half())]
    alone = auroc(told(Fisher(), HoldingChannel(encoders[0]))).value
    both = HoldingChannel(encoders[0], holding="beside", second=encoders[1])
    assert both.blur(people(300, 1)) is None
    clean = auroc(told(Fisher(), HoldingChannel(encoders[0], holding="keyed"))).value
    assert alone < 0.65 < 0.8 < clean
    assert auroc(told(Fisher(), both)).value == pytest.approx(clean, abs=0.01)


class Fresh(Shared):
    """An encoder that draws anew for every query."""

    def forward(self, x, *, rng=None, key=None, people=None):
        own = torch.Generator().manual_seed(int(1e6 * float(x.sum())) % 2**31) if rng is None else rng
        return super().forward(x, rng=own)


@pytest.mark.parametrize(("kind", "blur"), [(Shared, 6.0), (Fresh, 0.75)])
def test_neighbouring_queries_average_the_noise_only_where_they_get_draws_of_their_own(kind, blur):
    channel = HoldingChannel(kind(nn.Identity(), {}, Perturbation("gaussian", 6.0)), holding="near", draws=64)
    data = people(300, 1)
    assert channel.blur(data) == pytest.approx(blur)
    rest = channel._held(data, seeded(0)) - data.x
    assert float(rest.std()) == pytest.approx(blur, rel=0.1)


def test_encoders_as_they_are_share_no_draw_and_give_neighbours_the_same():
    data, net = people(300, 1), nn.Linear(people(2, 1).x.shape[1], 8)
    pair = HoldingChannel(noisy(2.0, net), holding="beside", second=noisy(2.0, nn.Linear(net.in_features, 8)))
    assert pair.blur(data) == 2.0
    near = HoldingChannel(noisy(2.0, net), holding="near", draws=64)
    assert near._fresh(data.x) < 0.05
    assert near.blur(data) == 2.0


def test_queries_a_grid_step_away_get_draws_of_their_own_and_average_the_noise():
    data = people(300, 1)
    away = HoldingChannel(noisy(6.0), holding="stepped", draws=64)
    assert away._fresh(data.x) > 0.95
    assert away.blur(data) == pytest.approx(0.75)
    found = [
        auroc(told(Mixture(), HoldingChannel(noisy(6.0), draws=64, holding=holding))).value
        for holding in ("near", "stepped")
    ]
    assert found[0] + 0.1 < found[1]


def test_a_named_person_keeps_the_draw_through_a_change_and_the_difference_has_no_noise():
    data = people(300, 1)
    clean = without_noise(noisy(), data.x) - moved(data.x, 0.1)
    for holding, silent in (("named", True), ("changed", False)):
        shown = HoldingChannel(noisy(), holding=holding)._held(data, seeded(0))
        rest = (shown[:, -data.x.shape[1] :] - clean).abs().max()
        assert bool(rest < 2.0 / 16) == silent  # but for the grid


def test_a_record_changes_in_one_number():
    x = people(50, 1).x
    assert ((moved(x, 0.1) - x).abs() > 0).sum(1).tolist() == [1] * 50
    marks = (x > 0).float()
    assert ((moved(marks, 0.1) - marks).abs() == 1).sum(1).tolist() == [1] * 50


def test_labels_are_columns_and_numbers_themselves():
    data = people(50, 1)
    assert label_columns(data).argmax(1).tolist() == data.y.tolist()
    number = replace(data, y=torch.rand(50, generator=seeded(0)), values={"u": data.values["u"]})
    assert label_columns(number).shape == (50, 1)


def test_two_encoders_need_a_second():
    with pytest.raises(ArgumentError, match="second must be an encoder where two stand"):
        HoldingChannel(noisy(), holding="beside")
