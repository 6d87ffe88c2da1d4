"""A guard that is taught by models which never saw what they are asked about."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
import torch
from builders import refuses
from torch import Tensor
from torch.nn import functional as F

from leakscope.attacks.members import LiRA, LossThreshold
from leakscope.core.dataset import Dataset
from leakscope.core.errors import ArgumentError, DataError
from leakscope.core.nouns import Attack, Knowledge
from leakscope.core.rng import dealt, fork, seeded
from leakscope.games import Membership
from leakscope.games.referee import play
from leakscope.games.representations import RepresentationChannel
from leakscope.guards.distilled import Distilled
from leakscope.guards.encoder import Encoder
from leakscope.guards.plain import Unguarded
from leakscope.measures.success import auroc
from leakscope.models.encoders import TableEncoder

PLAIN = Unguarded(encoder=TableEncoder((32, 16)), head=(), epochs=4, batch=32, rate=3e-3)
GUARD = Distilled(2, models=5, epochs=3, plain=PLAIN)


def made_up(n: int, seed: int, *, wrong: float = 0.0) -> Dataset:
    rng = seeded(seed, "made up")
    x = torch.randn(n, 20, generator=rng)
    y = (x[:, 0] > 0).long()
    flipped = torch.rand(n, generator=rng) < wrong
    return Dataset(x, torch.where(flipped, 1 - y, y), {}, values={"label": ("no", "yes")})


@pytest.mark.parametrize(("sets", "n", "each"), [(5, 40, 2), (16, 7, 8), (3, 1, 0)])
def test_every_thing_is_dealt_to_so_many_sets(sets: int, n: int, each: int) -> None:
    found = dealt(sets, n, each, seeded(0))
    assert found.shape == (sets, n)
    assert found.sum(0).tolist() == [each] * n


def test_things_are_dealt_to_all_sets_alike() -> None:
    shares = dealt(5, 20_000, 2, seeded(1)).double().mean(1)
    assert float((shares - 0.4).abs().max()) < 0.02


def test_what_a_record_is_taught_does_not_depend_on_its_own_label() -> None:
    data, held = made_up(40, 0), made_up(20, 1)
    other = replace(data, y=data.y.clone())
    other.y[7] = 1 - other.y[7]
    first, second = (GUARD.beliefs(one, held, seeded(0)) for one in (data, other))
    assert torch.equal(first[7], second[7])
    assert not torch.equal(first, second)


def test_beliefs_are_the_mean_of_the_models_that_were_not_shown_a_record() -> None:
    data, held = made_up(40, 0), made_up(20, 1)
    deal, *own = fork(seeded(0), 6)
    absent = dealt(5, 40, 2, deal)
    teacher = replace(PLAIN, epochs=3)
    models = [
        teacher(data.take((~out).nonzero()[:, 0]), one, others=held).encoder
        for out, one in zip(absent, own, strict=True)
    ]
    found = GUARD.beliefs(data, held, seeded(0))
    for i in range(40):
        said = [models[k].logits(data.x[i : i + 1]).softmax(1)[0] for k in range(5) if absent[k, i]]
        torch.testing.assert_close(found[i], torch.stack(said).mean(0))
    torch.testing.assert_close(found.sum(1), torch.ones(40))


def test_taught_the_labels_themselves_it_is_plain_training(monkeypatch: pytest.MonkeyPatch) -> None:
    def labels(self: Distilled, data: Dataset, *args: object, **kwargs: object) -> Tensor:
        return F.one_hot(data.y, data.classes).float()

    monkeypatch.setattr(Distilled, "beliefs", labels)
    data = made_up(60, 0)
    plain, found = (guard(data, seeded(3)).encoder for guard in (PLAIN, GUARD))
    torch.testing.assert_close(found.logits(data.x), plain.logits(data.x), rtol=1e-4, atol=1e-5)


def attacked(attack: Attack, encoder: Encoder, members: Dataset, others: Dataset) -> float:
    half = torch.arange(len(members)).chunk(2)
    asked, told = (Membership(members.take(rows), others.take(rows)) for rows in half)
    channel = RepresentationChannel(encoder)
    knowledge = Knowledge(told, channel, 400)
    return auroc(play(asked, channel, attack, knowledge, trials=400, rng=seeded(0, "play"))).value


@pytest.mark.slow
def test_members_that_plain_training_knows_by_heart_are_hidden_and_the_task_is_kept() -> None:
    plain = replace(PLAIN, encoder=TableEncoder((64, 32)), epochs=40)
    guard = Distilled(4, models=10, epochs=10, plain=plain)
    members, others, test = made_up(300, 1, wrong=0.2), made_up(300, 2, wrong=0.2), made_up(2_000, 3)
    bare, guarded = (one(members, seeded(0), others=others).encoder for one in (plain, guard))
    right = [float((one.logits(test.x).argmax(1) == test.y).float().mean()) for one in (bare, guarded)]
    assert right[1] > right[0]
    lira = LiRA(4, plain)
    for attack in ((LossThreshold(), LossThreshold()), (lira, replace(lira, guard=guard))):
        found = [
            attacked(one, encoder, members, others)
            for one, encoder in zip(attack, (bare, guarded), strict=True)
        ]
        assert found[0] > 0.65
        assert found[0] - 0.5 > 2 * (found[1] - 0.5)


def test_progress_runs_through_all_models_and_the_last_training() -> None:
    heard: list[tuple[int, int]] = []
    GUARD(made_up(40, 0), seeded(0), progress=lambda epoch, epochs, _: heard.append((epoch, epochs)))
    assert heard == [(epoch, 19) for epoch in range(19)]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"models": 1, "without": 0}, "Distilled.models must be at least 2"),
        ({"without": 25}, "Distilled.without must be from 0 to models - 1 = 24"),
        ({"without": -1}, "Distilled.without"),
        ({"epochs": 0}, "Distilled.epochs"),
    ],
)
def test_settings_that_cannot_be_are_refused_in_one_sentence(settings: dict[str, int], words: str) -> None:
    refuses(ArgumentError, words, Distilled, **settings)


def test_its_time_is_that_of_all_its_models() -> None:
    begun = time.perf_counter()
    found = GUARD(made_up(400, 0), seeded(0))
    assert 0.5 * (time.perf_counter() - begun) < found.seconds


def test_models_that_lack_a_label_without_a_name_know_of_it() -> None:
    data = made_up(40, 0)
    y = data.y.clone()
    y[0] = 2
    unnamed = replace(data, y=y, values={})
    encoder = Distilled(2, models=5, epochs=1, plain=PLAIN)(unnamed, seeded(0), others=made_up(10, 1)).encoder
    assert encoder.logits(data.x).shape == (40, 3)


def test_too_few_records_for_its_models_are_refused() -> None:
    with pytest.raises(DataError, match="fewer than 2"):
        Distilled(4, models=5, plain=PLAIN)(made_up(8, 0), seeded(0), others=made_up(8, 1))
