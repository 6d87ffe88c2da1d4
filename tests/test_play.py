"""Nothing and everything: through Silent no attack finds anything, through Plain each finds all."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier

import leakscope as ls
from leakscope.core.errors import ArgumentError
from leakscope.core.rng import fork
from leakscope.data import synthetic, synthetic_bayes
from leakscope.games.channels import Release
from leakscope.models import build, parameters

HEADS = [
    ls.RandomForest(20),
    ls.NaiveBayes(),
    ls.LDA(),
    ls.QDA(),
    ls.Perceptron(epochs=30),
    ls.Logistic(),
    KNeighborsClassifier(5),
]
ATTACKS = [ls.Posterior(head, reduce=ls.MaxPool(10)) for head in HEADS]
ATTACKS += [
    ls.Posterior(ls.RandomForest(20), reduce=reduce) for reduce in (ls.Flat(), ls.MaxPool(3), ls.PCA(5))
]


def people(seed: int) -> ls.Dataset:
    """40 made-up people with 12 records each."""
    rng = ls.seeded(seed, "people")
    who = torch.arange(40).repeat_interleave(12)
    x = torch.randn(40, 6, generator=rng)[who] + 0.3 * torch.randn(len(who), 6, generator=rng)
    return ls.Dataset(x, (torch.rand(len(who), generator=rng) < 0.5).long(), {"person": who}, name="people")


def ages() -> ls.Dataset:
    """A table whose secret is a number, in five ranges of it."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"age": rng.normal(60, 10, 1_500).round(1), "weight": rng.normal(size=1_500)})
    return ls.from_csv(frame.assign(died=rng.choice(["no", "yes"], 1_500)), label="died", secrets="age")


def games(parts):
    train, _, public = parts
    named = {
        "inference": (ls.Inference(train, "group", batch=4), ls.Posterior(ls.RandomForest(20))),
        "distribution": (
            ls.Distribution(train, "group", bins=4, batch=12),
            ls.Posterior(ls.RandomForest(20), ordinal=True),
        ),
    }
    split = people(0).split(ls.seeded(0, "split"), by="person", train=15, public=15)
    named["user"] = (
        ls.UserInference(split[0], "person", candidates=4, batch=3),
        ls.Prototype(8, 32, epochs=20),
    )
    whole, others = (cut for i, cut in enumerate(ages().split(ls.seeded(0, "split"), secret="age")) if i != 1)
    ordered = ls.Inference(whole, "age", batch=4)
    named["ranges"] = (ordered, ls.Posterior(ls.RandomForest(20), ordinal=True))
    named["ranges, joint"] = (ordered, ls.Joint(ordinal=True))
    for name in ("inference", "distribution"):
        aware = ls.NoiseAware(head=ls.RandomForest(20), ordinal=name == "distribution")
        named[f"{name}, aware of noise"] = (named[name][0], aware)
    theirs = {"user": split[2], "ranges": others, "ranges, joint": others}
    return {name: (game, game.on(theirs.get(name, public)), attack) for name, (game, attack) in named.items()}


GAMES = ("inference", "distribution", "user", "inference, aware of noise", "distribution, aware of noise")
GAMES += ("ranges", "ranges, joint")


@pytest.mark.filterwarnings("ignore:invalid value encountered in divide:RuntimeWarning")  # no variance
@pytest.mark.parametrize("name", GAMES)
@pytest.mark.parametrize("rounds", [1, 3])
def test_silent_gives_nothing_away(parts, name, rounds):
    game, rehearsal, attack = games(parts)[name]
    knowledge = ls.Knowledge(rehearsal, ls.Silent(rounds), 300, game.chances)
    transcript = ls.play(game, ls.Silent(rounds), attack, knowledge, trials=2_000, rng=ls.seeded(1))
    rate = ls.success_rate(transcript)
    assert rate.low <= float(game.chances.max()) <= rate.high
    area = ls.auroc(transcript)
    assert area.low <= 0.5 <= area.high
    assert ls.advantage(transcript).low == 0.0


@pytest.mark.filterwarnings("ignore:invalid value encountered in divide:RuntimeWarning")  # no variance
@pytest.mark.parametrize("name", GAMES)
@pytest.mark.parametrize("rounds", [1, 3])
def test_plain_gives_everything_away(parts, name, rounds):
    game, rehearsal, attack = games(parts)[name]
    knowledge = ls.Knowledge(rehearsal, ls.Plain(rounds), 600, game.chances)
    transcript = ls.play(game, ls.Plain(rounds), attack, knowledge, trials=500, rng=ls.seeded(1))
    assert ls.success_rate(transcript).value == 1.0
    assert ls.auroc(transcript).value == 1.0
    assert ls.advantage(transcript).value == 1.0


@pytest.mark.parametrize("attack", ATTACKS, ids=repr)
def test_every_head_and_reduction_finds_everything_in_plain_and_nothing_in_noise(parts, attack):
    game = ls.Inference(parts[0], "group", batch=4)
    knowledge = ls.Knowledge(game.on(parts[2]), ls.Plain(), 400, game.chances)
    assert (
        ls.success_rate(ls.play(game, ls.Plain(), attack, knowledge, trials=300, rng=ls.seeded(2))).value
        == 1.0
    )

    def noise(batch, secret, rng):
        return (Release.of({"noise": torch.randn(len(batch), 12, generator=rng)}),)

    knowledge = dataclasses.replace(knowledge, channel=noise)
    area = ls.auroc(ls.play(game, noise, attack, knowledge, trials=1_500, rng=ls.seeded(3)), level=0.999)
    assert area.low <= 0.5 <= area.high


def test_noise_aware_finds_nothing_where_noise_drowns_the_gradients_and_much_without():
    train, _, public = synthetic(records=2_000, shift=2.0, positive=0.9).split(ls.seeded(0), secret="group")
    model = build(ls.Linear(), train, ls.seeded(0))
    game, attack, found = ls.Inference(train, "group", batch=16), ls.NoiseAware(head=ls.LDA()), []
    for std in (1e6, 0.0):
        channel = ls.GradientChannel(model, (parameters(model),), ls.Noise(std))
        knowledge = ls.Knowledge(game.on(public), channel, 400, game.chances)
        found.append(ls.play(game, channel, attack, knowledge, trials=800, rng=ls.seeded(13)))
    assert ls.auroc(found[0]).low <= 0.5 <= ls.auroc(found[0]).high
    assert ls.advantage(found[0]).low == 0.0
    assert ls.advantage(found[1]).low > 0.5


@pytest.fixture
def pair(parts):
    """Two records that differ in their first input alone."""
    one = parts[0].take(torch.tensor([0, 0]))
    x = one.x.clone()
    x[1, 0] += 3.0
    return dataclasses.replace(one, x=x)


def told_apart(pair, channel, attack):
    game = ls.Canary(pair)
    return ls.play(game, channel, attack, ls.Knowledge(game, channel, 2), trials=2_000, rng=ls.seeded(14))


@pytest.mark.parametrize("attack", [ls.LikelihoodRatio(), ls.L2()], ids=repr)
@pytest.mark.parametrize("rounds", [1, 3])
def test_a_test_between_two_records_finds_nothing_in_silence_and_everything_in_plain(pair, attack, rounds):
    nothing, everything = (told_apart(pair, channel(rounds), attack) for channel in (ls.Silent, ls.Plain))
    assert ls.auroc(nothing).low <= 0.5 <= ls.auroc(nothing).high
    assert ls.success_rate(nothing).low <= 0.5 <= ls.success_rate(nothing).high
    assert ls.advantage(nothing).low == 0.0
    assert (
        ls.auroc(everything).value
        == ls.success_rate(everything).value
        == ls.advantage(everything).value
        == 1.0
    )


@pytest.mark.parametrize("attack", [ls.LikelihoodRatio(), ls.L2()], ids=repr)
def test_a_test_finds_nothing_between_equal_records_and_everything_without_noise(pair, channel, attack):
    noisy = dataclasses.replace(channel, defense=ls.DPSGD(clip=1.0, noise=0.5))
    equal = dataclasses.replace(pair, x=pair.x[:1].repeat(2, 1))
    area = ls.auroc(told_apart(equal, noisy, attack))
    assert area.low <= 0.5 <= area.high
    silent = dataclasses.replace(channel, defense=ls.DPSGD(clip=1.0, noise=0.0))
    assert ls.auroc(told_apart(pair, silent, attack)).value == 1.0


def test_an_estimate_reads_as_a_sentence_and_its_repr_evaluates_back():
    estimate = ls.Estimate("AUROC", 0.9821, 0.975, 0.98849, 0.95, 2_000, "bootstrap")
    assert str(estimate) == "AUROC 0.982 (0.975 to 0.988 at 95%, n = 2,000, bootstrap)"
    assert f"{dataclasses.replace(estimate, level=0.999)}".endswith("at 99.9%, n = 2,000, bootstrap)")
    assert eval(repr(estimate), {"Estimate": ls.Estimate}) == estimate


def test_gradients_leak_the_group_and_two_rounds_are_joined(parts, channel):
    game = ls.Inference(parts[0], "group", batch=16)
    knowledge = ls.Knowledge(game.on(parts[2]), channel, 600, game.chances, calibration=0)
    transcript = ls.play(
        game, channel, ls.Posterior(ls.RandomForest(30)), knowledge, trials=500, rng=ls.seeded(4)
    )
    assert ls.advantage(transcript).low > 0
    expected = torch.softmax(transcript.rounds.sum(0) + game.chances.log(), dim=1)
    torch.testing.assert_close(transcript.guesses, expected)
    assert transcript.after(1).guesses.equal(transcript.single(0).guesses)
    assert transcript.after(2).guesses.equal(transcript.guesses)


def test_no_attack_beats_bayes_where_bayes_is_known():
    """A linear model at zero: the best success rate has a closed form; LDA comes near, nobody above."""
    shift, batch, positive = 0.6, 16, 0.7
    data = synthetic(records=40_000, shift=shift, positive=positive)
    train, _, public = data.split(
        ls.seeded(5, "split"), secret="group", train=15_000, public=20_000, standardise=False
    )
    model = build(ls.Linear(zeros=True), train, ls.seeded(5))
    channel = ls.GradientChannel(model, (parameters(model),))
    game = ls.Inference(train, "group", batch=batch, prior="uniform")
    knowledge = ls.Knowledge(game.on(public), channel, 6_000, game.chances)
    best = synthetic_bayes(shift=shift, batch=batch, positive=positive)
    for head, reach in ((ls.LDA(), 0.03), (ls.RandomForest(50), 0.06)):
        rate = ls.success_rate(
            ls.play(
                game, channel, ls.Posterior(head, reduce=ls.Flat()), knowledge, trials=4_000, rng=ls.seeded(6)
            ),
            level=0.99,
        )
        assert rate.low <= best, "above the best any adversary can do"
        assert rate.high >= best - reach, "far below what an adversary can do"


def test_side_knowledge_raises_the_bar_of_guessing(parts):
    """Told a column that gives the secret away, an adversary gains nothing more from the gradients."""
    table = torch.cat([parts[0].x, parts[0].private["group"][:, None].float()], dim=1)
    from leakscope import Column

    columns = (Column("inputs", 0, 10), Column("copy", 10, 11))
    data = ls.Dataset(table, parts[0].y, parts[0].private, name="told", columns=columns)
    game = ls.Inference(data, "group", batch=2, known=("copy",))
    knowledge = ls.Knowledge(game.on(data), ls.Silent(), 400, game.chances)
    transcript = ls.play(
        game, ls.Silent(), ls.Posterior(ls.RandomForest(20)), knowledge, trials=300, rng=ls.seeded(7)
    )
    assert ls.success_rate(transcript).value == 1.0
    assert ls.guessing(transcript) == 1.0
    assert ls.advantage(transcript).value == 0.0


def test_the_same_generator_gives_the_same_transcript(parts, channel):
    game = ls.Inference(parts[0], "group", batch=4)
    knowledge = ls.Knowledge(game.on(parts[2]), channel, 200, game.chances)
    first, second = (
        ls.play(game, channel, ls.Posterior(ls.RandomForest(10)), knowledge, trials=100, rng=ls.seeded(8))
        for _ in range(2)
    )
    assert first.guesses.equal(second.guesses)
    assert first.secrets.equal(second.secrets)


def test_a_view_through_a_layer_holds_that_layer_only(parts, channel):
    game = ls.Inference(parts[0], "group", batch=4)
    view, _ = game.deal(ls.Through(channel, ("0.bias",)), 10, ls.seeded(9))
    assert list(view.releases[0].layers) == ["0.bias"]
    view, _ = game.deal(ls.Through(channel, ("no such",)), 10, ls.seeded(9))
    with pytest.raises(ArgumentError, match=r"no such.*0\.weight"):
        _ = view.releases[0].layers


def test_a_release_can_be_read_twice_and_says_the_same(parts, channel):
    view, _ = ls.Inference(parts[0], "group", batch=4).deal(channel, 50, ls.seeded(10))
    for release in view.releases:
        again = release.layers
        assert all(tensor.equal(again[name]) for name, tensor in release.layers.items())


def test_forked_generators_differ_from_each_other_and_repeat():
    first = [torch.rand(3, generator=rng) for rng in fork(ls.seeded(0), 2)]
    second = [torch.rand(3, generator=rng) for rng in fork(ls.seeded(0), 2)]
    assert first[0].equal(second[0])
    assert not first[0].equal(first[1])
    assert not torch.rand(3, generator=ls.seeded(0, "a")).equal(torch.rand(3, generator=ls.seeded(0, "b")))


def test_prototype_refuses_a_game_without_candidates(parts):
    game = ls.Inference(parts[0], "group", batch=4)
    with pytest.raises(ArgumentError, match="UserInference"):
        ls.Prototype()(ls.Knowledge(game.on(parts[2]), ls.Silent(), 10), ls.seeded(0))


def test_what_was_constant_in_rehearsals_says_nothing_of_people():
    """A thousand entries that never move in rehearsals and move by dust in the game must not drown the rest."""
    parts = people(0).split(ls.seeded(0, "split"), by="person", train=15, public=20)
    game = ls.UserInference(parts[0], "person", candidates=4, batch=3)

    def dusty(level):
        def channel(batch, secret, rng):
            mean = batch.data.x[batch.rows].mean(1)
            dust = level * torch.rand(len(mean), 1_000, generator=rng)
            return (Release.of({"w": torch.cat([mean, dust], 1)}),)

        return channel

    attack = ls.Prototype(8, 32, epochs=20, reduce=ls.Flat())
    knowledge = ls.Knowledge(game.on(parts[2]), dusty(0.0), 400, game.chances)
    clean, dirty = (
        ls.auroc(ls.play(game, dusty(level), attack, knowledge, trials=300, rng=ls.seeded(3))).value
        for level in (0.0, 1e-6)
    )
    assert dirty == pytest.approx(clean, abs=0.02)


def test_probabilities_that_are_computed_do_not_become_ties():
    """Votes are counted by forests alone: LDA says how small a chance is, and its ranking keeps it."""
    rng = np.random.default_rng(0)
    secrets = rng.integers(0, 2, 4_000)
    x = rng.normal(size=(4_000, 1)) + 6 * secrets[:, None]
    attack = ls.Posterior(ls.LDA(), ls.Flat())
    said = np.log(attack.smoothed(attack.learn(x, secrets, 2, ls.seeded(0))(x)))
    assert len(np.unique(said[:, 1] - said[:, 0])) > 3_900
    forest = ls.Posterior(ls.RandomForest(20), ls.Flat())
    counted = forest.smoothed(np.array([[1.0, 0.0]]))
    assert counted[0].tolist() == pytest.approx([51 / 52, 1 / 52])
    foreign = ls.Posterior(KNeighborsClassifier(5), ls.Flat())
    assert foreign.smoothed(np.array([[1.0, 0.0]])).min() > 0
    assert ls.Posterior(ls.LDA(), ls.Flat(), votes=8.0).smoothed(np.array([[1.0, 0.0]]))[
        0, 1
    ] == pytest.approx(0.1)
