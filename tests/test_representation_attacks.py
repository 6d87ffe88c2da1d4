"""Attacks on representations: through encoders that say nothing and everything, and against closed forms."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from builders import QUICK, SURE, WIDTH, Nothing, identity, people, refuses
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from torch import nn
from torch.nn import functional as F

from leakscope import Dataset, Inference, Plain, Silent, auroc, play, seeded, success_rate
from leakscope.attacks.representations import Decensored, Fisher, Stale
from leakscope.attacks.strongest import Strongest
from leakscope.audits.guards import balanced_accuracy
from leakscope.core.errors import ArgumentError
from leakscope.core.nouns import Knowledge, Transcript
from leakscope.games import Ratio
from leakscope.games.representations import RepresentationChannel
from leakscope.guards.encoder import Encoder


def told(attack, channel, *, data: Dataset | None = None) -> Transcript:
    game = Inference(data or people(400, 1), "u", batch=1)
    knowledge = Knowledge(game.on(people(800, 2)), channel, 800, game.chances)
    return play(game, channel, attack, knowledge, trials=1_000, rng=seeded(0, "play"))


@pytest.mark.parametrize("attack", [QUICK, Fisher(), Decensored(network=QUICK), Strongest((QUICK, Fisher()))])
@pytest.mark.parametrize(
    "nothing", [Silent(), RepresentationChannel(Encoder(Nothing(), {}))], ids=["silent", "constant"]
)
def test_through_nothing_every_attack_covers_chance(attack, nothing):
    found = told(attack, nothing)
    chance = balanced_accuracy(found, level=SURE)
    assert chance.low <= 0.5 <= chance.high
    area = auroc(found, level=SURE)
    assert area.low <= 0.5 <= area.high


@pytest.mark.parametrize("attack", [QUICK, Fisher(), Strongest((QUICK, Fisher()))])
def test_through_plain_every_attack_finds_everything(attack):
    assert success_rate(told(attack, Plain())).value == 1


@pytest.mark.parametrize("attack", [QUICK, Fisher(), Strongest((QUICK, Fisher()))])
def test_through_the_identity_attacks_find_what_stands_in_the_records(attack):
    game = Inference(people(400, 1, shift=9.0), "u", batch=1)
    knowledge = Knowledge(game.on(people(800, 2, shift=9.0)), RepresentationChannel(identity()), 800)
    found = play(game, RepresentationChannel(identity()), attack, knowledge, trials=500, rng=seeded(0, "p"))
    assert success_rate(found).value > 0.99


def test_decensoring_infers_what_the_task_is_known_by():
    """Where the label follows the secret, an uncensored model of the task must know the secret."""
    public, private = (
        replace(d, y=d.private["u"]) for d in (people(800, 2, shift=6.0), people(400, 1, shift=6.0))
    )
    game, channel = Inference(private, "u", batch=1), RepresentationChannel(identity())
    attack = Decensored(hidden=(32,), width=8, network=QUICK)
    found = play(
        game, channel, attack, Knowledge(game.on(public), channel, 800), trials=500, rng=seeded(0, "p")
    )
    assert success_rate(found).value > 0.97
    with pytest.raises(ArgumentError, match="batch must be 1"):
        attack(Knowledge(replace(game, batch=2), channel), seeded(0, "a"))


@dataclass(frozen=True)
class Best:
    """The statistic that no attack can beat here: the first number, as it was released."""

    def __call__(self, knowledge, rng):
        return lambda view: view.releases[0].layers["representation"][:, 0]


@pytest.mark.parametrize("noise", [0.0, 2.0])
def test_the_network_comes_near_to_the_best_that_can_be_done(noise):
    game, channel = (
        Inference(people(2_000, 1), "u", batch=1),
        RepresentationChannel(identity("gaussian", noise)),
    )
    knowledge = Knowledge(game.on(people(3_000, 2)), channel, 3_000)
    best, found = (
        auroc(play(game, channel, attack, knowledge, trials=2_000, rng=seeded(0, "play"))).value
        for attack in (Best(), replace(QUICK, draws=8))  # noise needs the draws that an audit takes
    )
    assert best - 0.02 < found < best + 0.01


def test_averaged_draws_give_back_what_noise_hid():
    """The area of a shift d between Gaussians of variance v is the normal distribution at d / sqrt(2 v)."""
    data, normal = people(2_000, 1), torch.distributions.Normal(0.0, 1.0)
    for draws in (1, 16):
        channel = RepresentationChannel(identity("gaussian", 2.0), draws=draws)
        found = auroc(told(Fisher(), channel, data=data), level=SURE)
        best = float(normal.cdf(torch.tensor(1.5 / (2 * (1 + 4.0 / draws)) ** 0.5)))
        assert found.low <= best <= found.high


def test_fishers_direction_is_that_of_the_closed_form_and_of_scikit_learn():
    data = people(2_000, 3)
    mixing = torch.randn(WIDTH, WIDTH, generator=seeded(0, "mix"))
    mixed = Encoder(nn.Linear(WIDTH, WIDTH, bias=False), {})
    mixed.network.weight.data = mixing
    knowledge = Knowledge(Inference(data, "u", batch=1), RepresentationChannel(mixed), 100)
    (found,) = Fisher().directions(knowledge, seeded(0, "fit"))
    r, u = (data.x @ mixing.T).double(), data.private["u"]
    within = sum((r[u == c] - r[u == c].mean(0)).T @ (r[u == c] - r[u == c].mean(0)) for c in (0, 1))
    closed = torch.linalg.solve(within, r[u == 1].mean(0) - r[u == 0].mean(0))
    assert float(F.cosine_similarity(found[:, 0].double(), closed, dim=0)) > 0.99
    lda = LinearDiscriminantAnalysis(solver="lsqr").fit(r.numpy(), u.numpy())
    assert float(F.cosine_similarity(closed, torch.from_numpy(lda.coef_[0]), dim=0)) == pytest.approx(
        1, abs=1e-6
    )


@pytest.mark.parametrize("rehearsed", ["mean", "max"])
def test_fisher_reads_a_share_off_a_mean_and_a_substitute_aggregator_can_be_rehearsed(rehearsed):
    data, channel = people(4_000, 5, shift=4.0), RepresentationChannel(identity(), "mean")
    game = Ratio(data, "u", ratios=(0.1, 0.5, 0.9), sizes=(20, 40))
    believed = replace(channel, aggregate=rehearsed)
    knowledge = Knowledge(game.on(people(4_000, 6, shift=4.0)), believed, 2_000)
    found = play(game, channel, Fisher(), knowledge, trials=600, rng=seeded(0, "play"))
    assert success_rate(found).value > (0.95 if rehearsed == "mean" else 0.3)


class Guesser(nn.Module):
    """Says yes where the first number is above a half of the shift."""

    def forward(self, r: torch.Tensor) -> torch.Tensor:
        return torch.stack([torch.zeros(len(r)), 10 * (r[:, 0] - 0.75)], dim=1)


def test_the_stale_network_says_what_it_says_and_nothing_is_relearned():
    data = people(500, 1)
    found = told(Stale(Guesser()), RepresentationChannel(identity()), data=data)
    upside_down = Encoder(nn.Linear(WIDTH, WIDTH, bias=False), {})
    upside_down.network.weight.data = -torch.eye(WIDTH)
    flipped = told(Stale(Guesser()), RepresentationChannel(upside_down), data=data)
    fresh = told(QUICK, RepresentationChannel(upside_down), data=data)
    assert auroc(found).value > 0.8
    assert auroc(flipped).value < 0.2
    assert auroc(fresh).value > 0.8
    refuses(ArgumentError, r"Stale\.privacy", told, Stale(), RepresentationChannel(identity()))


@dataclass(frozen=True)
class Spy:
    """An attack that writes down which game it learned on, and answers by one input with this sign."""

    games: list
    sign: float

    def __call__(self, knowledge, rng):
        self.games.append(knowledge.game.data.digest)

        def guess(view):
            score = self.sign * view.releases[0].layers["representation"][:, 0]
            return torch.stack([-score, score], dim=1)[None]

        return guess


def test_the_strongest_is_chosen_on_held_out_rehearsals_and_never_on_the_real_game():
    """The real game's records are upside down: a choice that saw them would be the other one."""
    backwards = people(500, 8, shift=-3.0)
    game = Inference(backwards, "u", batch=1)
    public = people(1_000, 9, shift=3.0)
    games: list[str] = []
    attack = Strongest((Spy(games, -1.0), Spy(games, 1.0)))
    channel = RepresentationChannel(identity())
    knowledge = Knowledge(game.on(public), channel, 800, calibration=0)
    found = play(game, channel, attack, knowledge, trials=500, rng=seeded(0, "play"))
    assert auroc(found).value < 0.1
    assert attack.chosen(knowledge, seeded(0, "choice")) == 1
    assert backwards.digest not in games
    assert games[2] == public.digest  # the chosen one then learns from all there is
