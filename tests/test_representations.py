"""Representations on the wire: one row for each release, frozen draws, averaged draws, subsets."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from builders import refuses
from torch import nn
from torch.nn import functional as F

from leakscope import Dataset, GradientChannel, Inference, seeded
from leakscope.attacks.rehearsal import of_view, parted, released
from leakscope.core.dataset import Batch
from leakscope.core.errors import ArgumentError, DataError
from leakscope.core.nouns import Knowledge
from leakscope.games import Distribution, Membership, Ratio
from leakscope.games.representations import RepresentationChannel, whole
from leakscope.guards.encoder import Encoder, Perturbation
from leakscope.models.building import parameters

WIDTH = 6


def records(n: int, seed: int = 0) -> Dataset:
    rng = torch.Generator().manual_seed(seed)
    codes = (torch.arange(n) % 3 == 0).long()
    x = torch.randn(n, WIDTH, generator=rng)
    return Dataset(
        x,
        torch.randint(2, (n,), generator=rng),
        {"u": codes},
        values={"u": ("no", "yes"), "label": ("a", "b")},
    )


def identity(kind: str = "none", scale: float = 1.0) -> Encoder:
    return Encoder(nn.Identity(), {}, Perturbation(kind, scale))


def sent(channel: RepresentationChannel, data: Dataset, rows: torch.Tensor, seed: int = 0) -> torch.Tensor:
    (release,) = channel(Batch(data, rows), torch.zeros(len(rows), dtype=torch.long), seeded(seed, "wire"))
    return release.layers["representation"]


def test_one_record_a_release_is_the_encoders_row_and_several_stand_side_by_side():
    data, rows = records(20), torch.tensor([[3], [7], [3]])
    assert torch.equal(sent(RepresentationChannel(identity()), data, rows), data.x[rows[:, 0]])
    pairs = torch.tensor([[0, 1], [5, 5]])
    assert torch.equal(sent(RepresentationChannel(identity()), data, pairs), data.x[pairs].flatten(1))


@pytest.mark.parametrize("aggregate", ["mean", "max"])
def test_a_subset_is_aggregated_over_the_records_that_are_there(aggregate):
    data, rows = records(20), torch.tensor([[3, 7, -1], [1, -1, -1], [2, 4, 9]])
    found = sent(RepresentationChannel(identity(), aggregate), data, rows)
    for i, subset in enumerate(([3, 7], [1], [2, 4, 9])):
        own = data.x[subset]
        assert torch.allclose(found[i], own.mean(0) if aggregate == "mean" else own.amax(0))


def test_an_empty_subset_and_subsets_without_aggregate_are_refused_in_one_sentence():
    data = records(20)
    with pytest.raises(ArgumentError, match="empty subset"):
        sent(RepresentationChannel(identity(), "mean"), data, torch.tensor([[1, 2], [-1, -1]]))
    with pytest.raises(ArgumentError, match="aggregate must be 'mean' or 'max'"):
        sent(RepresentationChannel(identity()), data, torch.tensor([[1, -1]]))
    refuses(ArgumentError, "draws must be at least 1", RepresentationChannel, identity(), draws=0)


def test_a_records_draw_is_frozen_whatever_the_rng_and_another_under_another_key():
    data, rows = records(20), torch.arange(20)[:, None]
    channel = RepresentationChannel(identity("gaussian"))
    once, again = sent(channel, data, rows, 1), sent(channel, data, rows.flip(0), 2).flip(0)
    assert torch.equal(once, again)
    other = sent(channel.rehearsed(seeded(0, "key")), data, rows)
    assert float(((once - data.x) * (other - data.x)).mean().abs()) < 0.3  # two draws of variance 1
    assert float((once == other).float().mean()) < 0.05  # both stand on a grid


def test_averaging_sixteen_draws_leaves_a_quarter_of_the_noise():
    data, rows = records(4_000), torch.arange(4_000)[:, None]
    channel = RepresentationChannel(identity("gaussian", 2.0))
    one, many = (sent(replace(channel, draws=d), data, rows) - data.x for d in (1, 16))
    assert float(one.std()) == pytest.approx(2.0, rel=0.02)
    assert float(many.std()) == pytest.approx(0.5, rel=0.02)


def test_blocks_say_the_same_again_and_join_to_the_whole(monkeypatch):
    data, rows = records(30), torch.randint(30, (11, 4), generator=seeded(0, "rows"))
    channel = RepresentationChannel(identity("gaussian"), "mean", draws=3)
    expected = sent(channel, data, rows)
    monkeypatch.setattr("leakscope.games.representations.ENTRIES", 3 * 4 * WIDTH)
    (release,) = channel(Batch(data, rows), torch.zeros(11, dtype=torch.long), seeded(0, "wire"))
    assert [len(block["representation"]) for block in release.blocks()] == [3, 3, 3, 2]
    assert torch.equal(release.layers["representation"], expected)
    assert torch.equal(release.layers["representation"], expected)


def test_the_whole_model_is_encoder_norm_and_head_and_its_gradients_can_be_released():
    torch.manual_seed(0)
    encoder = Encoder(nn.Linear(WIDTH, 5), {}, normed=True, head=nn.Linear(5, 2))
    data, model = records(40), whole(encoder)
    assert torch.allclose(model(data.x), encoder.head(F.layer_norm(encoder.network(data.x), (5,))))
    game = Inference(data, "u", batch=2)
    view, _ = game.deal(GradientChannel(model, (parameters(model),)), 3, seeded(0, "deal"))
    assert set(view.releases[0].layers) == {"0.network.weight", "0.network.bias", "1.weight", "1.bias"}
    assert float(view.releases[0].layers["0.network.weight"].abs().max()) > 0
    refuses(ArgumentError, "encoder with a head", whole, identity())


def test_subsets_have_the_ratio_they_were_drawn_for_and_a_size_that_says_nothing():
    data = records(600)
    game = Ratio(data, "u", sizes=(20, 60))
    marked = Dataset(data.private["u"][:, None].float(), data.y, data.private, values=data.values)
    view, secrets = replace(game, data=marked).deal(
        RepresentationChannel(identity(), "mean"), 4_000, seeded(0, "deal")
    )
    share, size = released(view.releases[0])[:, 0], view.public["known"][:, 0]
    for i, ratio in enumerate(game.ratios):
        assert float((share * size)[secrets == i].sum() / size[secrets == i].sum()) == pytest.approx(
            ratio, abs=0.005
        )
        assert bool(((share * size - ratio * size)[secrets == i].abs() < 1).all())
        assert float(size[secrets == i].mean()) == pytest.approx(40, abs=1.5)
    assert of_view(view)[0].shape == (4_000, 2)
    assert int(size.min()) == 20
    assert int(size.max()) == 60


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"ratios": (0.2,)}, "at least 2 different shares"),
        ({"ratios": (0.2, 1.2)}, "from 0 to 1"),
        ({"sizes": (0, 5)}, "from at least 1"),
        ({"value": "maybe"}, "must be a value of 'u'"),
    ],
)
def test_a_ratio_that_cannot_be_is_refused_in_one_sentence(settings, words):
    refuses((ArgumentError, DataError), words, Ratio, records(30), "u", **settings)


def test_the_records_an_adversary_stops_by_are_not_those_it_learns_from():
    data = records(99)
    first, second = parted(
        Knowledge(Inference(data, "u", batch=1), RepresentationChannel(identity()), 50), seeded(0, "c")
    )
    own, held = ({tuple(row) for row in part.game.data.x.tolist()} for part in (first, second))
    assert not own & held
    assert own | held == {tuple(row) for row in data.x.tolist()}
    assert (first.trials, second.trials) == (40, 10)
    for part in (first, second):
        assert float(part.game.data.private["u"].float().mean()) == pytest.approx(1 / 3, abs=0.03)
    members, others = records(50, 1), records(70, 2)
    first, second = parted(
        Knowledge(Membership(members, others), RepresentationChannel(identity()), 50), seeded(0, "c")
    )
    assert (len(first.game.members), len(second.game.members)) == (40, 10)
    assert (len(first.game.others), len(second.game.others)) == (56, 14)


@pytest.mark.parametrize(("rare", "held"), [(2, 0), (3, 0), (4, 2), (7, 2), (9, 2), (30, 6)])
@pytest.mark.parametrize("before", [0, 1, 2, 3, 4])
def test_of_a_rare_value_either_part_has_two_records_or_one_part_all(rare, held, before):
    """A game asks for two of every value that occurs, however the values before the rare one fall."""
    codes = torch.tensor([0] * (50 + before) + [1] * rare + [2] * 40)
    data = replace(records(len(codes)), private={"u": codes}, values={})
    knowledge = Knowledge(Inference(data, "u", batch=1), RepresentationChannel(identity()), 50)
    first, second = parted(knowledge, seeded(0, "c"))
    assert [int((part.game.data.private["u"] == 1).sum()) for part in (first, second)] == [rare - held, held]
    assert len(first.simulate(seeded(0, "d"))[1]) == 40  # a game that lacks records refuses here
    if held:
        assert len(second.simulate(seeded(0, "d"))[1]) == 10
    own, other = ({tuple(row) for row in part.game.data.x.tolist()} for part in (first, second))
    assert not own & other
    assert len(own | other) == len(data)


@pytest.mark.parametrize("game", [Ratio, Distribution])
def test_the_cut_of_subsets_keeps_shares_however_large_a_subset_may_be(game):
    codes = (torch.arange(1_000) % 10 < 3).long()
    data = replace(records(1_000), private={"u": codes}, values={"u": ("no", "yes")})
    knowledge = Knowledge(game(data, "u", value="yes"), RepresentationChannel(identity()), 50)
    first, second = parted(knowledge, seeded(0, "c"))
    assert (len(first.game.data), len(second.game.data)) == (800, 200)
    assert int(second.game.data.private["u"].sum()) == 60


def test_records_that_cannot_be_kept_apart_are_refused_in_one_sentence():
    data = replace(records(30), private={"u": torch.arange(30) % 10}, values={})
    knowledge = Knowledge(Inference(data, "u", batch=1), RepresentationChannel(identity()), 50)
    with pytest.raises(DataError, match="too few have the same value for the adversary to keep some"):
        parted(knowledge, seeded(0, "c"))
