"""Nothing and everything: through Silent no attack finds anything, through Plain each finds all."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier

from leakscope import (
    DPSGD,
    L2,
    LDA,
    PCA,
    QDA,
    Canary,
    Dataset,
    Distribution,
    Estimate,
    Flat,
    GradientChannel,
    Inference,
    Knowledge,
    LikelihoodRatio,
    Linear,
    Logistic,
    MaxPool,
    NaiveBayes,
    Noise,
    NoiseAware,
    Perceptron,
    Plain,
    Posterior,
    Prototype,
    RandomForest,
    Silent,
    Through,
    UserInference,
    advantage,
    auroc,
    guessing,
    play,
    seeded,
    success_rate,
)
from leakscope.core.errors import ArgumentError
from leakscope.core.rng import fork
from leakscope.data import synthetic, synthetic_bayes
from leakscope.games.channels import Release
from leakscope.models import build, parameters

HEADS = [
    RandomForest(20),
    NaiveBayes(),
    LDA(),
    QDA(),
    Perceptron(epochs=30),
    Logistic(),
    KNeighborsClassifier(5),
]
ATTACKS = [Posterior(head, reduce=MaxPool(10)) for head in HEADS]
ATTACKS += [Posterior(RandomForest(20), reduce=reduce) for reduce in (Flat(), MaxPool(3), PCA(5))]


def people(seed: int) -> Dataset:
    """40 made-up people with 12 records each."""
    rng = seeded(seed, "people")
    who = torch.arange(40).repeat_interleave(12)
    x = torch.randn(40, 6, generator=rng)[who] + 0.3 * torch.randn(len(who), 6, generator=rng)
    return Dataset(x, (torch.rand(len(who), generator=rng) < 0.5).long(), {"person": who}, name="people")


def games(parts):
    train, _, public = parts
    named = {
        "inference": (Inference(train, "group", batch=4), Posterior(RandomForest(20))),
        "distribution": (
            Distribution(train, "group", bins=4, batch=12),
            Posterior(RandomForest(20), ordinal=True),
        ),
    }
    split = people(0).split(seeded(0, "split"), by="person", train=15, public=15)
    named["user"] = (UserInference(split[0], "person", candidates=4, batch=3), Prototype(8, 32, epochs=20))
    for name in ("inference", "distribution"):
        aware = NoiseAware(head=RandomForest(20), ordinal=name == "distribution")
        named[f"{name}, aware of noise"] = (named[name][0], aware)
    return {
        name: (game, game.on(split[2] if name == "user" else public), attack)
        for name, (game, attack) in named.items()
    }


GAMES = ("inference", "distribution", "user", "inference, aware of noise", "distribution, aware of noise")


@pytest.mark.filterwarnings("ignore:invalid value encountered in divide:RuntimeWarning")  # no variance
@pytest.mark.parametrize("name", GAMES)
@pytest.mark.parametrize("rounds", [1, 3])
def test_silent_gives_nothing_away(parts, name, rounds):
    game, rehearsal, attack = games(parts)[name]
    knowledge = Knowledge(rehearsal, Silent(rounds), 300, game.chances)
    transcript = play(game, Silent(rounds), attack, knowledge, trials=2_000, rng=seeded(1))
    rate = success_rate(transcript)
    assert rate.low <= float(game.chances.max()) <= rate.high
    area = auroc(transcript)
    assert area.low <= 0.5 <= area.high
    assert advantage(transcript).low == 0.0


@pytest.mark.filterwarnings("ignore:invalid value encountered in divide:RuntimeWarning")  # no variance
@pytest.mark.parametrize("name", GAMES)
@pytest.mark.parametrize("rounds", [1, 3])
def test_plain_gives_everything_away(parts, name, rounds):
    game, rehearsal, attack = games(parts)[name]
    knowledge = Knowledge(rehearsal, Plain(rounds), 600, game.chances)
    transcript = play(game, Plain(rounds), attack, knowledge, trials=500, rng=seeded(1))
    assert success_rate(transcript).value == 1.0
    assert auroc(transcript).value == 1.0
    assert advantage(transcript).value == 1.0


@pytest.mark.parametrize("attack", ATTACKS, ids=repr)
def test_every_head_and_reduction_finds_everything_in_plain_and_nothing_in_noise(parts, attack):
    game = Inference(parts[0], "group", batch=4)
    knowledge = Knowledge(game.on(parts[2]), Plain(), 400, game.chances)
    assert success_rate(play(game, Plain(), attack, knowledge, trials=300, rng=seeded(2))).value == 1.0

    def noise(batch, secret, rng):
        return (Release.of({"noise": torch.randn(len(batch), 12, generator=rng)}),)

    knowledge = dataclasses.replace(knowledge, channel=noise)
    area = auroc(play(game, noise, attack, knowledge, trials=1_500, rng=seeded(3)), level=0.999)
    assert area.low <= 0.5 <= area.high


def test_noise_aware_finds_nothing_where_noise_drowns_the_gradients_and_much_without():
    train, _, public = synthetic(records=2_000, shift=2.0, positive=0.9).split(seeded(0), secret="group")
    model = build(Linear(), train, seeded(0))
    game, attack, found = Inference(train, "group", batch=16), NoiseAware(head=LDA()), []
    for std in (1e6, 0.0):
        channel = GradientChannel(model, (parameters(model),), Noise(std))
        knowledge = Knowledge(game.on(public), channel, 400, game.chances)
        found.append(play(game, channel, attack, knowledge, trials=800, rng=seeded(13)))
    assert auroc(found[0]).low <= 0.5 <= auroc(found[0]).high
    assert advantage(found[0]).low == 0.0
    assert advantage(found[1]).low > 0.5


@pytest.fixture
def pair(parts):
    """Two records that differ in their first input alone."""
    one = parts[0].take(torch.tensor([0, 0]))
    x = one.x.clone()
    x[1, 0] += 3.0
    return dataclasses.replace(one, x=x)


def told_apart(pair, channel, attack):
    game = Canary(pair)
    return play(game, channel, attack, Knowledge(game, channel, 2), trials=2_000, rng=seeded(14))


@pytest.mark.parametrize("attack", [LikelihoodRatio(), L2()], ids=repr)
@pytest.mark.parametrize("rounds", [1, 3])
def test_a_test_between_two_records_finds_nothing_in_silence_and_everything_in_plain(pair, attack, rounds):
    nothing, everything = (told_apart(pair, channel(rounds), attack) for channel in (Silent, Plain))
    assert auroc(nothing).low <= 0.5 <= auroc(nothing).high
    assert success_rate(nothing).low <= 0.5 <= success_rate(nothing).high
    assert advantage(nothing).low == 0.0
    assert auroc(everything).value == success_rate(everything).value == advantage(everything).value == 1.0


@pytest.mark.parametrize("attack", [LikelihoodRatio(), L2()], ids=repr)
def test_a_test_finds_nothing_between_equal_records_and_everything_without_noise(pair, channel, attack):
    noisy = dataclasses.replace(channel, defense=DPSGD(clip=1.0, noise=0.5))
    equal = dataclasses.replace(pair, x=pair.x[:1].repeat(2, 1))
    area = auroc(told_apart(equal, noisy, attack))
    assert area.low <= 0.5 <= area.high
    silent = dataclasses.replace(channel, defense=DPSGD(clip=1.0, noise=0.0))
    assert auroc(told_apart(pair, silent, attack)).value == 1.0


def test_an_estimate_reads_as_a_sentence_and_its_repr_evaluates_back():
    estimate = Estimate("AUROC", 0.9821, 0.975, 0.98849, 0.95, 2_000, "bootstrap")
    assert str(estimate) == "AUROC 0.982 (0.975 to 0.988 at 95%, n = 2,000, bootstrap)"
    assert f"{dataclasses.replace(estimate, level=0.999)}".endswith("at 99.9%, n = 2,000, bootstrap)")
    assert eval(repr(estimate)) == estimate


def test_gradients_leak_the_group_and_two_rounds_are_joined(parts, channel):
    game = Inference(parts[0], "group", batch=16)
    knowledge = Knowledge(game.on(parts[2]), channel, 600, game.chances, calibration=0)
    transcript = play(game, channel, Posterior(RandomForest(30)), knowledge, trials=500, rng=seeded(4))
    assert advantage(transcript).low > 0
    expected = torch.softmax(transcript.rounds.sum(0) + game.chances.log(), dim=1)
    torch.testing.assert_close(transcript.guesses, expected)
    assert transcript.after(1).guesses.equal(transcript.single(0).guesses)
    assert transcript.after(2).guesses.equal(transcript.guesses)


def test_no_attack_beats_bayes_where_bayes_is_known():
    """A linear model at zero: the best success rate has a closed form; LDA comes near, nobody above."""
    shift, batch, positive = 0.6, 16, 0.7
    data = synthetic(records=40_000, shift=shift, positive=positive)
    train, _, public = data.split(
        seeded(5, "split"), secret="group", train=15_000, public=20_000, standardise=False
    )
    model = build(Linear(zeros=True), train, seeded(5))
    channel = GradientChannel(model, (parameters(model),))
    game = Inference(train, "group", batch=batch, prior="uniform")
    knowledge = Knowledge(game.on(public), channel, 6_000, game.chances)
    best = synthetic_bayes(shift=shift, batch=batch, positive=positive)
    for head, reach in ((LDA(), 0.03), (RandomForest(50), 0.06)):
        rate = success_rate(
            play(game, channel, Posterior(head, reduce=Flat()), knowledge, trials=4_000, rng=seeded(6)),
            level=0.99,
        )
        assert rate.low <= best, "above the best any adversary can do"
        assert rate.high >= best - reach, "far below what an adversary can do"


def test_side_knowledge_raises_the_bar_of_guessing(parts):
    """Told a column that gives the secret away, an adversary gains nothing more from the gradients."""
    table = torch.cat([parts[0].x, parts[0].private["group"][:, None].float()], dim=1)
    from leakscope import Column

    columns = (Column("inputs", 0, 10), Column("copy", 10, 11))
    data = Dataset(table, parts[0].y, parts[0].private, name="told", columns=columns)
    game = Inference(data, "group", batch=2, known=("copy",))
    knowledge = Knowledge(game.on(data), Silent(), 400, game.chances)
    transcript = play(game, Silent(), Posterior(RandomForest(20)), knowledge, trials=300, rng=seeded(7))
    assert success_rate(transcript).value == 1.0
    assert guessing(transcript) == 1.0
    assert advantage(transcript).value == 0.0


def test_the_same_generator_gives_the_same_transcript(parts, channel):
    game = Inference(parts[0], "group", batch=4)
    knowledge = Knowledge(game.on(parts[2]), channel, 200, game.chances)
    first, second = (
        play(game, channel, Posterior(RandomForest(10)), knowledge, trials=100, rng=seeded(8))
        for _ in range(2)
    )
    assert first.guesses.equal(second.guesses)
    assert first.secrets.equal(second.secrets)


def test_a_view_through_a_layer_holds_that_layer_only(parts, channel):
    game = Inference(parts[0], "group", batch=4)
    view, _ = game.deal(Through(channel, ("0.bias",)), 10, seeded(9))
    assert list(view.releases[0].layers) == ["0.bias"]
    view, _ = game.deal(Through(channel, ("no such",)), 10, seeded(9))
    with pytest.raises(ArgumentError, match=r"no such.*0\.weight"):
        _ = view.releases[0].layers


def test_a_release_can_be_read_twice_and_says_the_same(parts, channel):
    view, _ = Inference(parts[0], "group", batch=4).deal(channel, 50, seeded(10))
    for release in view.releases:
        again = release.layers
        assert all(tensor.equal(again[name]) for name, tensor in release.layers.items())


def test_forked_generators_differ_from_each_other_and_repeat():
    first = [torch.rand(3, generator=rng) for rng in fork(seeded(0), 2)]
    second = [torch.rand(3, generator=rng) for rng in fork(seeded(0), 2)]
    assert first[0].equal(second[0])
    assert not first[0].equal(first[1])
    assert not torch.rand(3, generator=seeded(0, "a")).equal(torch.rand(3, generator=seeded(0, "b")))


def test_prototype_refuses_a_game_without_candidates(parts):
    game = Inference(parts[0], "group", batch=4)
    with pytest.raises(ArgumentError, match="UserInference"):
        Prototype()(Knowledge(game.on(parts[2]), Silent(), 10), seeded(0))
