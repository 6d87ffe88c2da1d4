"""Evidence is trusted as far as rehearsals bear it out: against closed forms, and where it used to mislead."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, special, stats

import leakscope as ls
from leakscope.audits.inference.audit import measure_rounds
from leakscope.core.calibration import calibrate, learn_calibration
from leakscope.core.nouns import Heard, Rehearsed, Transcript
from leakscope.data import synthetic, synthetic_bayes
from leakscope.games.heldout import hold_out
from leakscope.measures import bounds
from leakscope.measures.information import mutual_information
from leakscope.models import build, parameters

RARE = 0.15  # the chance of the second value


@dataclass(frozen=True)
class Repeated:
    """One number a batch, 1 higher for the second value, in unit noise: shown again in every round."""

    rounds: int

    def __call__(self, batch, secret, rng):
        told = secret[:, None] + torch.randn(len(batch), 1, generator=rng)
        return tuple(ls.Release.of({"told": told}) for _ in range(self.rounds))


@dataclass(frozen=True)
class Bayes:
    """The exact evidence of one round, stated once for every round: what adding up takes for independent."""

    def __call__(self, knowledge, rng):
        def guess(view):
            told = [release.layers["told"].double() for release in view.releases]
            return torch.stack([torch.cat([torch.zeros_like(x), x - 0.5], 1) for x in told])

        return guess


def world(rare=RARE, records=2_000):
    group = (torch.arange(records) < rare * records).long()
    data = ls.Dataset(torch.zeros(records, 1), group * 0, {"group": group}, name="rare")
    return ls.Inference(data, "group", batch=4)


def played(rounds=10, *, trials=4_000, **settings):
    game, channel = world(), Repeated(rounds)
    knowledge = ls.Knowledge(game.on(game.data), channel, 2_000, game.chances, **settings)
    return ls.play(game, channel, Bayes(), knowledge, trials=trials, rng=ls.seeded(3))


def truth(rare=RARE):
    """I(b; b + N(0, 1)) by numerical integration, and the best success rate."""
    axis = np.linspace(-12, 13, 20_001)
    densities = np.array([1 - rare, rare])[:, None] * stats.norm.pdf(axis - np.array([[0.0], [1.0]]))
    total = densities.sum(0)
    left = integrate.trapezoid(-special.xlogy(densities, densities / total).sum(0), axis)
    return bounds.entropy([1 - rare, rare]) - left, integrate.trapezoid(densities.max(0), axis)


def test_rounds_that_repeat_each_other_do_not_make_an_attack_worse_than_guessing():
    """Ten times the same evidence, taken for ten, drowns the prior of a rare value."""
    transcript, (nats, best) = played(), truth()
    rate = ls.success_rate(transcript, level=0.999)
    assert rate.low <= best <= rate.high
    assert rate.high >= ls.guessing(transcript)
    told = mutual_information(transcript, level=0.999)
    assert told.low <= nats <= told.high
    for part in (transcript.single(4), transcript.after(3)):
        assert mutual_information(part, level=0.999).low <= nats <= mutual_information(part, level=0.999).high
    trusting = played(calibration=0)  # what it was before
    assert ls.success_rate(trusting).high < ls.guessing(trusting)
    assert mutual_information(replace(trusting, guesses=trusting.guesses)).value == 0


def test_what_is_ranked_stays_as_it_was_and_so_does_the_evidence():
    calibrated, trusting = played(), played(calibration=0)
    assert torch.equal(calibrated.rounds, trusting.rounds)
    assert torch.equal(calibrated.secrets, trusting.secrets)
    for measure in (ls.auroc, ls.tpr_at_fpr):
        assert measure(calibrated).value == pytest.approx(measure(trusting).value, abs=1e-12)


def test_a_single_honest_round_is_left_nearly_as_it_is():
    calibrated, trusting = played(1), played(1, calibration=0)
    assert (calibrated.guesses - trusting.guesses).abs().max() < 0.03


def test_a_played_game_does_not_use_the_callers_randomness_for_calibration(parts):
    game = ls.Inference(parts[0], "group", batch=4)
    left = []
    for calibration in (0, 200):
        rng = ls.seeded(1)
        knowledge = ls.Knowledge(game.on(parts[2]), ls.Plain(), 300, game.chances, calibration)
        ls.play(game, ls.Plain(), ls.Posterior(ls.RandomForest(5)), knowledge, trials=50, rng=rng)
        left.append(torch.rand(1, generator=rng))
    assert left[0] == left[1]


@dataclass(frozen=True)
class Memory:
    """Knows the records it has learned from by heart, and of others says what it makes of their first number."""

    def __call__(self, knowledge, rng):
        known = {tuple(row.tolist()) for row in knowledge.game.data.x}
        codes = knowledge.game.data.secret("group")
        means = torch.stack([knowledge.game.data.x[codes == c, 0].mean() for c in (0, 1)]).double()

        def guess(view):
            shown = view.releases[0].layers["record"]
            apart = 20 * (shown[:, :1].double() - means.mean()) * (means[1] - means[0]).sign()
            seen = torch.tensor([tuple(row.tolist()) in known for row in shown])
            truth = 20.0 * (2 * shown[:, 1:2].double() - 1)  # a mark that only who knows the record may use
            return torch.cat([torch.zeros(len(shown), 1), torch.where(seen[:, None], truth, apart)], 1)[None]

        return guess


def test_an_attack_that_knows_its_records_by_heart_is_heard_on_others():
    rng = ls.seeded(0)
    group = (torch.rand(4_000, generator=rng) < RARE).long()
    x = torch.stack([0.3 * group + torch.randn(4_000, generator=rng), group.float()], 1)
    data = ls.Dataset(x, group * 0, {"group": group}, name="marked")
    private, public = data.take(torch.arange(2_000)), data.take(torch.arange(2_000, 4_000))

    def channel(batch, secret, rng):
        return (ls.Release.of({"record": batch.data.x[batch.rows[:, 0]]}),)

    game = ls.Inference(private, "group", batch=1)
    knowledge = ls.Knowledge(game.on(public), channel, 1_000, game.chances)
    transcript = ls.play(game, channel, Memory(), knowledge, trials=2_000, rng=ls.seeded(1))
    assert ls.success_rate(transcript).high >= ls.guessing(transcript)
    trusting = Transcript.of_rounds(transcript.secrets, transcript.heard, game.chances, belief=game.chances)
    assert ls.success_rate(trusting).high < ls.guessing(trusting)


@pytest.mark.parametrize(("batch", "share"), [(4, 0.2), (64, 0.35), (100, 0.5), (200, None)])
def test_records_are_held_out_while_there_are_enough_of_every_value(batch, share):
    """500 of the rarer value; both parts need twice the batch."""
    group = (torch.arange(2_000) % 4 == 0).long()
    data = ls.Dataset(torch.arange(2_000.0)[:, None], group * 0, {"group": group}, name="enough")
    knowledge = ls.Knowledge(ls.Inference(data, "group", batch=batch), ls.Silent(), 500)
    learned, held = hold_out(knowledge, ls.seeded(0))
    if share is None:
        assert learned is knowledge
        assert held.game is knowledge.game
    else:
        codes = held.game.data.secret("group")
        assert [int((codes == c).sum()) for c in (0, 1)] == [1_500 * share, 500 * share]
        both = torch.cat([learned.game.data.x, held.game.data.x])[:, 0].sort().values
        assert torch.equal(both, torch.arange(2_000.0))  # every record once
    assert hold_out(replace(knowledge, calibration=0), ls.seeded(0))[0].game is knowledge.game


def test_silent_tells_nothing_and_plain_everything():
    game = world()
    for channel, nats in ((ls.Silent(5), 0.0), (ls.Plain(5), bounds.entropy([RARE, 1 - RARE]))):
        knowledge = ls.Knowledge(game.on(game.data), channel, 400, game.chances)
        transcript = ls.play(
            game, channel, ls.Posterior(ls.RandomForest(10)), knowledge, trials=500, rng=ls.seeded(0)
        )
        told = mutual_information(transcript)
        assert told.low <= nats <= told.high + 0.03  # a forest is never quite sure
        assert (told.low > 0.3) == (nats > 0)
        assert (ls.advantage(transcript).low > 0.9) == (nats > 0)


def test_side_knowledge_is_calibrated_as_the_release_is_and_counts_once(parts):
    """Told a column and shown nothing: with and without the release the adversary says the same."""
    game = ls.Inference(parts[0], "group", batch=1, known=("x1",))
    knowledge = ls.Knowledge(game.on(parts[2]), ls.Silent(8), 500, game.chances)
    transcript = ls.play(game, ls.Silent(8), ls.Posterior(ls.LDA()), knowledge, trials=500, rng=ls.seeded(1))
    torch.testing.assert_close(transcript.guesses, transcript.blind)
    assert ls.advantage(transcript).value == 0


def information_of_a_batch(*, shift, batch, positive):
    """I(group; gradient) of `synthetic_bayes` in nats: given c, the sum is N(0, k) or N(c shift, k)."""
    axis, found = np.linspace(-12, 12, 4_001), 0.0
    for ones in range(batch + 1):
        apart = abs(2 * ones - batch) * shift / math.sqrt(batch)
        densities = stats.norm.pdf(axis[None] - np.array([[-apart / 2], [apart / 2]])) / 2
        left = integrate.trapezoid(-special.xlogy(densities, densities / densities.sum(0)).sum(0), axis)
        found += stats.binom.pmf(ones, batch, positive) * (math.log(2) - left)
    return found


def test_gradients_shown_ten_times_tell_what_the_closed_form_says():
    shift, batch, positive = 0.3, 16, 0.95
    data = synthetic(records=40_000, shift=shift, positive=positive)
    train, _, public = data.split(
        ls.seeded(5, "split"), secret="group", train=15_000, public=20_000, standardise=False
    )
    model = build(ls.Linear(zeros=True), train, ls.seeded(5))
    channel = ls.GradientChannel(model, (parameters(model),) * 10)
    game = ls.Inference(train, "group", batch=batch, prior="uniform")
    knowledge = ls.Knowledge(game.on(public), channel, 4_000, game.chances, calibration=4_000)
    transcript = ls.play(
        game, channel, ls.Posterior(ls.LDA(), ls.Flat()), knowledge, trials=4_000, rng=ls.seeded(5)
    )
    best = synthetic_bayes(shift=shift, batch=batch, positive=positive)
    nats = information_of_a_batch(shift=shift, batch=batch, positive=positive)
    rate, told = ls.success_rate(transcript, level=0.999), mutual_information(transcript, level=0.999)
    assert rate.low <= best <= rate.high
    assert told.low <= nats <= told.high
    assert nats / 2 < told.low  # and not by being wide
    trusting = Transcript.of_rounds(
        transcript.secrets, transcript.heard, game.chances, belief=knowledge.belief
    )
    assert mutual_information(trusting).value < told.low


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10_000), st.floats(0.02, 1.0), st.integers(2, 5))
def test_an_adversary_who_trusts_itself_too_much_learns_by_how_much(seed, scale, m):
    rng = np.random.default_rng(seed)
    prior, told = rng.dirichlet(np.full(m, 5.0)), rng.integers(m, size=4_000)
    means = 1.5 * rng.permutation(m)  # apart, or there is no evidence to scale
    honest = stats.norm.logpdf((means[told] + rng.normal(size=len(told)))[:, None], means)
    way = learn_calibration(honest / scale, told, prior=prior, ridge=1e-4)
    assert way[0] == pytest.approx(scale, rel=0.35)
    gap = special.log_softmax(calibrate(honest / scale, way) + np.log(prior), axis=1)
    assert np.abs(np.exp(gap) - special.softmax(honest + np.log(prior), axis=1)).mean() < 0.05


def test_values_that_nobody_rehearsed_or_that_cannot_be_keep_their_evidence():
    secrets = torch.arange(40) % 2
    evidence = torch.log_softmax(torch.randn(1, 40, 4, generator=ls.seeded(0)), -1)
    heard, belief = Heard(evidence), torch.tensor([0.5, 0.2, 0.3, 0.0], dtype=torch.float64)
    told = Transcript.of_rounds(secrets, heard, belief, belief=belief, rehearsed=Rehearsed(heard, secrets))
    assert bool(told.guesses.isfinite().all())
    assert bool((told.guesses[:, 3] == 0).all())
    one = Rehearsed(heard, torch.zeros(40, dtype=torch.long))
    alone = Transcript.of_rounds(secrets, heard, belief, belief=belief, rehearsed=one)
    as_it_is = Transcript.of_rounds(secrets, heard, belief, belief=belief)
    torch.testing.assert_close(alone.guesses, as_it_is.guesses)


def test_evidence_that_rules_a_value_out_has_a_number_all_the_same():
    sure = torch.tensor([[[0.0, -torch.inf], [-torch.inf, 0.0]]]).repeat(3, 20, 1)
    secrets, belief = torch.arange(40) % 2, torch.tensor([0.9, 0.1], dtype=torch.float64)
    heard = Heard(sure)
    told = Transcript.of_rounds(secrets, heard, belief, belief=belief, rehearsed=Rehearsed(heard, secrets))
    assert ls.success_rate(told).value == 1
    assert bool(told.guesses.isfinite().all())


def test_every_round_of_a_stored_result_is_calibrated():
    transcript = played(3)
    for entry in measure_rounds(transcript):
        for part in (entry.single, entry.accumulated):
            assert part.success.high >= ls.guessing(transcript)
