"""Canaries through claimed mechanisms: below what is accounted, near it where the best test is known, and no
promise is ever kept by a lower bound."""

from __future__ import annotations

import json
import math

import pytest
import torch
from builders import refuses
from test_claims import EVERY, FIXED, LOCAL, OPACUS, SPARSE, TFF
from typer.testing import CliRunner

import leakscope
from leakscope.audits.mechanism import duel as duels
from leakscope.audits.mechanism.duel import Duel, duel_of_releases, play_duel, send_through
from leakscope.cli import app
from leakscope.core.errors import ArgumentError
from leakscope.core.rng import seeded
from leakscope.defenses.deployed import FlowerLocalDp
from leakscope.defenses.gradient import Withhold
from leakscope.integrations.claims import words
from leakscope.integrations.claims.flower import LocalDpMod
from leakscope.measures.epsilon import gaussian_epsilon

NOTHING = {"enough": lambda played: False, "delta": 1e-5}


def measured(source, settings, **more):
    return leakscope.claim(source, settings, measure=True, **{"trials": 2_000} | more)


@pytest.mark.parametrize(("framework", "settings"), EVERY)
def test_trials_never_certify_more_than_is_accounted_and_keep_nothing(framework, settings):
    few = settings | ({"iterations": 3} if framework == "jax-privacy" else {})
    answer = measured(framework, few, promise=1e6, trials=400)
    assert answer.verdict == "holds only if"
    assert answer.measured
    for one, said in zip(answer.measured, words.say_measured(answer), strict=True):
        assert one.low <= one.standing.epsilon(one.neighbours)
        assert not one.contradicts
        assert "confirms no promise" in said or "clears nobody" in said or one.played is None


def test_of_local_dp_the_trials_come_near_and_break_the_promise_alone():
    answer = measured("flower-local", LOCAL, trials=20_000, seed=1)
    (one,) = answer.measured
    assert 1 < one.low < 1.61
    assert one.played.certified.n < 20_000  # they end as soon as the promise is broken
    assert "The trials alone break the promise" in words.say_measured(answer)[0]
    true = measured("flower-local", LOCAL | {"sensitivity": 2.0}, trials=20_000)
    (one,) = true.measured
    assert 0.5 * one.standing.replaced < one.low < one.standing.replaced <= 1
    assert true.verdict == "holds only if"
    assert "A lower bound confirms no promise" in words.say_measured(true)[0]


def test_rounds_and_sampled_steps_are_played_too():
    rounds = measured("flower-local", LOCAL | {"rounds": 10}, promise=100.0, per="client", trials=6_000)
    (one,) = rounds.measured
    assert 0.8 * one.standing.replaced < one.low < one.standing.replaced
    assert one.low > gaussian_epsilon(0.412813, 1e-5)  # one upload could not show it
    sampled = measured("opacus", OPACUS | {"epochs": 1}, promise=100.0, trials=20_000)
    (one,) = sampled.measured
    assert one.played.gaussian is None  # no Gaussian trade-off holds for what is drawn
    assert 0.1 < one.low < one.standing.added


@pytest.mark.parametrize("neighbours", ["add or remove", "replace"])
def test_noise_on_a_mean_is_played_for_both_neighbours_and_the_server_is_told_all(neighbours):
    answer = measured("tff", TFF | {"rounds": 3}, promise=100.0, neighbours=neighbours)
    known, drawn, server = answer.measured
    assert 0.7 * known.standing.epsilon(neighbours) < known.low < known.standing.epsilon(neighbours)
    assert drawn.standing.chance == 0.1
    assert drawn.low < known.low
    assert math.isinf(server.standing.added)
    assert server.low > 5  # the most that so many trials can certify
    assert "Accounted: none holds" in words.say_measured(answer)[2]


def test_a_record_in_an_upload_is_not_played_and_that_is_said():
    answer = measured("flower-fixed", FIXED | {"rounds": 2}, promise=1.0, per="record")
    assert all(one.played is None for one in answer.measured)
    assert all("not played" in said for said in words.say_measured(answer))


def test_a_mechanism_with_less_noise_than_it_says_contradicts_its_accounting_and_keeps_nothing(monkeypatch):
    def weak(self, layers, secret, rng, *, batch):
        return FlowerLocalDp(self.clip, self.sensitivity / 2, self.epsilon, self.delta).release(
            layers, secret, rng, batch=batch
        )

    right = LocalDpMod(1.0, 2.0, 1.0, 1e-5).defense

    class Weak(FlowerLocalDp):
        release = weak

    plain = leakscope.claim("flower-local", LOCAL | {"sensitivity": 2.0})
    assert plain.verdict == "holds only if"
    monkeypatch.setattr(LocalDpMod, "defense", property(lambda self: Weak(right.clip, right.sensitivity)))
    answer = measured("flower-local", LOCAL | {"sensitivity": 2.0}, promise=1.0, trials=20_000)
    assert answer.measured[0].contradicts
    assert answer.verdict == "broken"
    assert "one of the two is wrong" in words.say_measured(answer)[0]
    assert "trials contradict the accounting" in words.say_verdict(answer)


def test_through_silence_nothing_is_certified_and_without_a_defense_all_that_can_be():
    options = NOTHING | {"trials": 2_000}
    silent = duel_of_releases(send_through(Withhold()), one=1.0, zero=-1.0, std=1.0, canary="")
    assert play_duel(silent, rng=seeded(0), **options).low == 0
    bare = duel_of_releases(lambda means, rng: means, one=1.0, zero=-1.0, std=0.0, canary="")
    played = play_duel(bare, rng=seeded(0), **options)
    assert played.certified.low > 0.9 * played.certified.high


def test_scores_of_drawn_uses_are_the_likelihood_ratio():
    """Against an autonomous sum over which uses the canary was drawn for."""
    chance, std, uses = 0.3, 1.1, 3
    seen: list[torch.Tensor] = []

    def release(means, rng):
        seen.append(means + std * torch.randn(means.shape, generator=rng, dtype=torch.float64))
        return seen[-1]

    duel = duel_of_releases(release, one=1.0, zero=0.0, std=std, uses=uses, chance=chance, canary="")
    scores = duel.scores(torch.tensor([1, 0, 1, 1]), seeded(3))
    normal = torch.distributions.Normal(torch.zeros((), dtype=torch.float64), std)
    for score, row in zip(scores, seen[0].view(4, uses), strict=True):
        total = 0.0
        for pattern in range(2**uses):
            here = [(pattern >> i) & 1 for i in range(uses)]
            weight = math.prod(chance if bit else 1 - chance for bit in here)
            total += weight * math.exp(float(normal.log_prob(row - torch.tensor(here)).sum()))
        assert float(score) == pytest.approx(math.log(total) - float(normal.log_prob(row).sum()))


def test_costly_trials_are_fewer_and_the_same_seed_gives_the_same(monkeypatch):
    duel = Duel(lambda bits, rng: bits.double(), duels.WORK // 300, False, "")
    assert play_duel(duel, rng=seeded(0), trials=10_000, **NOTHING).certified.n == 300
    dear = Duel(duel.scores, 2 * duels.WORK, False, "")
    assert play_duel(dear, rng=seeded(0), trials=10_000, **NOTHING).certified.n == duels.FEWEST
    one, two, other = (measured("flower-local", LOCAL, seed=s).measured for s in (1, 1, 2))
    assert one == two != other


def test_sparse_uploads_are_played_through_all_their_filters():
    answer = measured("nvflare", SPARSE | {"rounds": 2}, trials=400)
    (one,) = answer.measured
    assert one.low > 0.1
    assert "The trials alone break the promise" in words.say_measured(answer)[0]
    assert one.played.certified.n <= 100
    bare = measured("nvflare", {"filter": "PercentilePrivacy", "entries": 10}, promise=1.0, trials=400)
    assert bare.measured[0].low > 1


def test_the_command_measures_too():
    typed = [part for name, value in LOCAL.items() for part in ("--set", f"{name}={value}")]
    asked = ["claim", "flower-local", *typed, "--measure", "--trials", "1000", "--promise", "50"]
    shown = CliRunner().invoke(app, asked)
    assert shown.exit_code == 0
    assert "Measured, one upload (replace) against those who see every upload: epsilon" in shown.stdout
    assert "The three agree. A lower bound confirms no promise" in shown.stdout
    (one,) = json.loads(CliRunner().invoke(app, [*asked, "--json"]).stdout)["measured"]
    assert 0 <= one["low_any"] <= one["low"] < 1.61
    assert (one["trials"], one["level"]) == (1_000, 0.95)
    refuses(
        ArgumentError, "trials must be at least 200, got 10", lambda: measured("opacus", OPACUS, trials=10)
    )
