"""Guards, judged: members and records read off representations, and the evaluation of an encoder."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from builders import CLASSES, QUICK, SURE, WIDTH, Nothing, identity, people, refuses
from torch import Tensor, nn
from torch.nn import functional as F

from leakscope import Dataset, Membership, auroc, play, seeded, success_rate
from leakscope.attacks.decoders import Decoder, Inversion
from leakscope.attacks.heads import LDA
from leakscope.attacks.members import HeadConfidence, LabelAware, LiRA, LossThreshold, _ratio, plainly
from leakscope.attacks.representations import SHRUNK, Fisher, _fisher
from leakscope.audits.guards import Trial, balanced_accuracy, evaluated, evaluation
from leakscope.audits.guards.found import Judged
from leakscope.core.errors import ArgumentError
from leakscope.core.nouns import Heard, Knowledge, Transcript
from leakscope.games import Reconstruction
from leakscope.games.representations import RepresentationChannel
from leakscope.guards.encoder import Encoder, Guarded, Perturbation
from leakscope.measures.fidelity import mse


def noisy_labels(n: int, seed: int) -> Dataset:
    """Labels that nothing predicts: what a model knows of them it knows by heart."""
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 40, generator=rng)
    y = torch.randint(CLASSES, (n,), generator=rng)
    return Dataset(x, y, {}, values={"label": tuple("abcde")})


BLANK = Encoder(
    nn.Sequential(nn.Linear(40, 64), nn.ReLU(), nn.Linear(64, 16), nn.ReLU()), {}, head=nn.Linear(16, CLASSES)
)
MEMBERS, OTHERS = noisy_labels(160, 1), noisy_labels(160, 2)


@pytest.fixture(scope="module")
def by_heart() -> Encoder:
    return plainly(BLANK, MEMBERS, seeded(0, "train"), epochs=40, rate=3e-3, batch=32)


def joined_up(attack, encoder: Encoder, members: Dataset = MEMBERS) -> Transcript:
    half = torch.arange(80)
    game = Membership(members.take(half), OTHERS.take(half))
    channel = RepresentationChannel(encoder)
    knowledge = Knowledge(Membership(members.take(half + 80), OTHERS.take(half + 80)), channel, 160)
    return play(game, channel, attack, knowledge, trials=160, rng=seeded(0, "play"))


LEARNED = LabelAware(QUICK)
SHADOWS = LiRA(shadows=8, epochs=40, rate=3e-3, batch=32)


@pytest.mark.parametrize(
    "attack", [LossThreshold(), HeadConfidence(), LEARNED, SHADOWS], ids=lambda a: type(a).__name__
)
def test_members_are_found_in_a_model_that_knows_them_by_heart(attack, by_heart):
    assert float((by_heart.logits(MEMBERS.x).argmax(1) == MEMBERS.y).float().mean()) == 1
    assert auroc(joined_up(attack, by_heart)).value > 0.8
    assert success_rate(joined_up(attack, by_heart)).value > 0.7


@pytest.mark.parametrize(
    "attack", [LossThreshold(), HeadConfidence(), LEARNED, SHADOWS], ids=lambda a: type(a).__name__
)
def test_nothing_is_found_in_a_model_that_has_not_seen_them(attack, by_heart):
    found = joined_up(attack, by_heart, members=noisy_labels(160, 3))
    area, rate = auroc(found, level=SURE), success_rate(found, level=SURE)
    assert area.low <= 0.5 <= area.high
    assert rate.low <= 0.5 <= rate.high


class ByHeart(nn.Module):
    """A head that is sure of the labels of the records it was given, and knows nothing of any other."""

    def __init__(self, data: Dataset) -> None:
        super().__init__()
        self.data = data

    def forward(self, r: Tensor) -> Tensor:
        same = (r[:, None] == self.data.x[None]).all(2)
        return 10.0 * same.to(r) @ F.one_hot(self.data.y, CLASSES).to(r)


def shown(data: Dataset, *args: object, **kwargs: object) -> Guarded:
    """A guard that releases every record as it is, with a head that knows all of them by heart."""
    return Guarded(Encoder(nn.Identity(), {}, head=ByHeart(data)), None, (), 0.0)


@pytest.mark.parametrize(
    "attack",
    [LossThreshold(), HeadConfidence(), LabelAware(), LiRA(shadows=8, guard=shown)],
    ids=lambda a: type(a).__name__,
)
def test_members_are_all_found_where_records_are_shown_with_a_head_that_knows_them(attack):
    found = joined_up(attack, shown(MEMBERS).encoder)
    assert auroc(found).value > 0.99
    assert success_rate(found).value > 0.99


@pytest.mark.parametrize("attack", [LossThreshold(), HeadConfidence(), LEARNED, SHADOWS])
def test_members_are_not_found_where_every_representation_is_the_same(attack):
    found = joined_up(attack, Encoder(Nothing(), {}, head=nn.Linear(4, CLASSES)))
    area, rate = auroc(found, level=SURE), success_rate(found, level=SURE)
    assert area.low <= 0.5 <= area.high
    assert rate.low <= 0.5 <= rate.high


def test_lira_trains_shadows_by_the_guard_on_halves_that_hold_every_record_equally_often(by_heart):
    seen: list[tuple[int, int]] = []

    def guard(data, rng, *, others):
        seen.append((len(data), len(others)))
        return SimpleNamespace(encoder=plainly(BLANK, data, rng, epochs=1))

    joined_up(LiRA(shadows=4, guard=guard), by_heart)
    assert len(seen) == 4
    assert sum(size for size, _ in seen) == 2 * (160 + 80 + 40)  # candidates, members, half of the others
    assert {others for _, others in seen} == {40}


def test_lira_without_known_members_or_with_one_known_other_still_answers(by_heart):
    channel, half = RepresentationChannel(by_heart), torch.arange(80)
    game = Membership(MEMBERS.take(half), OTHERS.take(half))
    for known in (
        game.on(OTHERS.take(half + 80)),
        Membership(MEMBERS.take(half + 80), OTHERS.take(half[:1] + 80)),
    ):
        knowledge = Knowledge(known, channel, 160)
        for attack in (SHADOWS, replace(SHADOWS, guard=lambda data, rng, *, others: shown(data))):
            found = play(game, channel, attack, knowledge, trials=160, rng=seeded(0, "play"))
            assert found.guesses.isfinite().all()
            assert 0 < float((found.guesses > 0).float().mean()) < 1


def test_lira_takes_the_median_of_an_even_number_of_shadows_to_lie_between_the_middle_two():
    said = torch.tensor([[0.0], [2.0], [10.0], [14.0]], dtype=torch.double)
    inside = torch.tensor([[True], [True], [False], [False]])
    ratio = _ratio(torch.tensor([6.5], dtype=torch.double), said, inside)
    expected = -((6.5 - 1.0) ** 2) / 2 - (-((6.5 - 12.0) ** 2) / 8 - math.log(4) / 2)
    assert float(ratio) == pytest.approx(expected)


def test_a_rehearsal_of_lira_has_the_real_candidates_beside_its_own(by_heart):
    trial = Trial(MEMBERS, OTHERS, noisy_labels(100, 5), "membership", trials=100, rehearsals=100)
    asked = evaluation._asked_about(by_heart, trial)
    real: list[Dataset] = []

    def look(knowledge, rng):
        def guess(view):
            real.append(view.public["candidates"].data)
            return torch.zeros(len(real[0]))

        return guess

    trial.play(by_heart, look)
    assert torch.equal(asked.x, real[0].x)
    assert not asked.private
    pools: list[int] = []

    def counted(data, rng, *, others):
        pools.append(len(data))
        return shown(data)

    evaluation.try_attacks(by_heart, trial, [LiRA(4, counted)])
    assert sum(pools[:4]) == 2 * (100 + 80 + 50)  # asked about, known members, half of the known others
    assert sum(pools[4:]) == 2 * (20 + 64 + 40 + 100)  # the same of a rehearsal, and the real candidates


def test_plain_training_starts_from_new_weights_and_leaves_its_model_alone():
    before = {name: value.clone() for name, value in BLANK.network.state_dict().items()}
    one = plainly(BLANK, MEMBERS, seeded(1, "train"), epochs=1)
    two = plainly(BLANK, MEMBERS, seeded(1, "train"), epochs=1)
    assert all(torch.equal(before[name], value) for name, value in BLANK.network.state_dict().items())
    assert torch.equal(one.network[0].weight, two.network[0].weight)
    assert not torch.isclose(one.network[0].weight, before["0.weight"]).any()


def test_membership_attacks_without_known_members_or_head_are_refused_in_one_sentence(by_heart):
    channel = RepresentationChannel(by_heart)
    alone = Knowledge(Membership(MEMBERS, OTHERS).on(OTHERS), channel, 100)
    refuses(ArgumentError, "known members", LossThreshold(), alone, seeded(0, "a"))
    headless = replace(channel, encoder=replace(by_heart, head=None))
    refuses(ArgumentError, "head", LossThreshold(), replace(alone, channel=headless), seeded(0, "a"))


def recovered(attack, encoder: Encoder, data: Dataset, public: Dataset) -> Transcript:
    game, channel = Reconstruction(data), RepresentationChannel(encoder)
    knowledge = Knowledge(game.on(public), channel, len(public))
    return play(game, channel, attack, knowledge, trials=100, rng=seeded(0, "play"))


def linear(outputs: int) -> Encoder:
    torch.manual_seed(2)
    layer = nn.Linear(WIDTH, outputs, bias=False)
    nn.init.orthogonal_(layer.weight)
    return Encoder(layer, {})


@pytest.mark.parametrize("outputs", [4, WIDTH])
def test_a_decoder_is_as_good_as_the_pseudo_inverse_of_a_linear_encoder(outputs):
    """For standard normal records the best guess of x from Wx is pinv(W) W x."""
    encoder, data = linear(outputs), people(300, 1, shift=0.0)
    found = recovered(Decoder(epochs=10), encoder, data, people(2_000, 2, shift=0.0))
    originals = found.secrets[:, 0]
    weight = encoder.network.weight
    best = (torch.linalg.pinv(weight) @ weight @ originals.T).T[:, None]
    least = float(mse(best, found.secrets).mean())
    assert float(mse(found.guesses, found.secrets).mean()) == pytest.approx(least, rel=0.03, abs=5e-3)


def test_an_inversion_finds_the_record_of_an_encoder_that_can_be_inverted():
    public = people(500, 2)
    found = recovered(Inversion(iterations=400, ridge=0.0), linear(WIDTH), people(300, 1), public)
    nearest = found.secrets.clamp(public.x.amin(0), public.x.amax(0))
    assert float((found.guesses - nearest).abs().max()) < 0.02


@pytest.mark.parametrize("attack", [Decoder(width=8, epochs=10), Inversion(iterations=200, tv=0.0)])
def test_images_of_representations_are_decoded_and_noise_hides_them(attack):
    rng = seeded(0, "images")
    blocks = torch.rand(360, 3, 4, 4, generator=rng)
    images = F.interpolate(blocks, size=(16, 16))
    data = Dataset(images, torch.zeros(360, dtype=torch.long), {})
    torch.manual_seed(0)
    plain = Encoder(nn.Conv2d(3, 6, 3, padding=1), {})
    hidden = replace(plain, perturbation=Perturbation("gaussian", 5.0))
    test, public = data.take(torch.arange(60)), data.take(torch.arange(60, 360))
    clear, noisy = (
        float(mse(t.guesses, t.secrets).mean())
        for t in (recovered_few(attack, e, test, public) for e in (plain, hidden))
    )
    assert clear < 0.25 * float(images.var())
    assert noisy > 2 * clear


def recovered_few(attack, encoder, data, public) -> Transcript:
    game, channel = Reconstruction(data), RepresentationChannel(encoder)
    knowledge = Knowledge(game.on(public), channel, len(public))
    return play(game, channel, attack, knowledge, trials=20, rng=seeded(0, "play"))


def test_a_decoder_of_nothing_says_the_mean_record():
    data = people(300, 1)
    found = recovered(Decoder(epochs=3), Encoder(Nothing(), {}), data, people(500, 2))
    mean = people(500, 2).x.mean(0)
    assert float((found.guesses[:, 0] - mean).abs().max()) < 0.2


def test_balanced_accuracy_is_the_mean_recall_whatever_the_prior_was_added():
    secrets = torch.tensor([0] * 8 + [1] * 2)
    evidence = torch.tensor([[0.6, 0.4]] * 6 + [[0.4, 0.6]] * 2 + [[0.4, 0.6]] + [[0.6, 0.4]]).log()
    prior = torch.tensor([0.8, 0.2], dtype=torch.float64)
    found = Transcript.of_rounds(secrets, Heard(evidence[None]), prior, belief=prior)
    assert success_rate(found).value == 0.8
    assert balanced_accuracy(found).value == pytest.approx((6 / 8 + 1 / 2) / 2)
    assert balanced_accuracy(Transcript(secrets, torch.ones(10), prior)).value == 0.5


def test_an_evaluation_shows_stale_beside_fresh_repeated_queries_and_baselines():
    torch.manual_seed(0)
    encoder = Encoder(
        nn.Linear(WIDTH, 8), {}, Perturbation("gaussian", 1.0), normed=True, head=nn.Linear(8, 2)
    )
    trial = Trial(
        people(300, 1), people(300, 2), people(400, 3), "attribute", "u", trials=300, rehearsals=400
    )
    guarded = Guarded(encoder, nn.Linear(8, 2), (), 0.0)
    found = evaluated(guarded, trial, attacks=(QUICK, Fisher()), epochs=2)
    expected = [("Network", 1), ("Fisher", 1), ("Network", 16), ("Fisher", 16)]
    assert [(one.name, one.queries) for one in found.attacks] == expected
    assert sum(one.chosen for one in found.attacks) == 1
    assert found.stale.attack == "Stale"
    assert [one.name for one in found.baselines] == ["raw inputs", "plain noise"]
    raw = found.baselines[0]
    assert raw.utility.task.accuracy.value > 0.85
    assert raw.attacks[0].scores.auroc.value > found.attacks[0].scores.auroc.value
    assert found.attacks[0].guessing == pytest.approx(float(1 - trial.test.private["u"].float().mean()))


def test_every_secret_can_be_evaluated_and_is_the_same_after_it_was_written(by_heart):
    members = Trial(MEMBERS, OTHERS.take(torch.arange(80)), OTHERS.take(torch.arange(80, 160)), "membership")
    found = evaluated(
        Guarded(by_heart, None, (), 0.0), members, attacks=(LossThreshold(), HeadConfidence()), epochs=5
    )
    assert found.stale is None
    expected = ["plain training", "plain training, 6 epochs", "plain training, 8 epochs"]
    assert [one.name for one in found.baselines] == expected
    assert Judged.model_validate_json(found.model_dump_json()) == found
    own = people(200, 1), people(200, 2), people(200, 3)
    shares = Trial(*own, "property", "u", value=1, sizes=(2, 20), trials=200, rehearsals=300)
    privacy = nn.Linear(WIDTH, 4)
    found = evaluated(Guarded(identity(), privacy, (), 0.0), shares, attacks=(Fisher(),), baselines=False)
    assert len(found.single) == 2
    assert found.stale.scores.success.n == 200
    back = Trial(*own, "reconstruction", trials=50, rehearsals=300)
    found = evaluated(Guarded(identity(), None, (), 0.0), back, attacks=(Decoder(epochs=2),), baselines=False)
    assert found.attacks[0].scores.mse.value < 0.1
    assert Judged.model_validate_json(found.model_dump_json()) == found
    refuses(ArgumentError, "column must name", Trial, *own, "attribute")


@pytest.mark.parametrize("values", [2, 3])
@pytest.mark.parametrize(("n", "features"), [(300, 12), (40, 100), (60, 60)])
def test_fishers_directions_are_those_of_scikit_learn_with_few_records_too(values, n, features):
    rng = seeded(0, "fisher")
    codes = torch.arange(n) % values
    shown = torch.randn(n, features, generator=rng) @ torch.randn(features, features, generator=rng)
    shown[:, 0] += codes
    shown[:, 1] = 3.0  # does not vary
    scaler, lda = LDA(SHRUNK).fresh(0).fit(shown.double().numpy(), codes.numpy())
    wanted = torch.from_numpy(lda.coef_ / scaler.scale_).T
    torch.testing.assert_close(_fisher(shown, codes).double(), wanted, rtol=1e-4, atol=1e-5)
