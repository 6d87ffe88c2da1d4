"""What games deal: who is drawn, how often, and what they refuse."""

from __future__ import annotations

import pytest
import torch
from scipy import stats

from leakscope import Column, Dataset, Distribution, Inference, Silent, UserInference, seeded
from leakscope.core.errors import ArgumentError, DataError
from leakscope.core.nouns import Release


class Recorder:
    """A channel that keeps what it was given."""

    def __call__(self, batch, secret, rng):
        self.batch, self.secret = batch, secret
        return (Release.of({"nothing": torch.zeros(len(batch), 1)}),)


@pytest.fixture
def table() -> Dataset:
    """200 records: sex inside x (one-hot), age inside x, 20 people of 10 records each."""
    rng = seeded(0)
    sex = (torch.rand(200, generator=rng) < 0.3).long()
    x = torch.cat([torch.randn(200, 1, generator=rng), torch.nn.functional.one_hot(sex, 2).float()], dim=1)
    columns = (Column("age", 0, 1), Column("sex", 1, 3, values=("F", "M"), standardised=False))
    private = {"sex": sex, "person": torch.arange(200) // 10}
    label = (torch.rand(200, generator=rng) < 0.5).long()
    return Dataset(x, label, private, name="table", columns=columns, values={"sex": ("F", "M")})


def test_every_record_of_a_batch_has_the_secret_value(table):
    channel = Recorder()
    _, secrets = Inference(table, "sex", batch=7).deal(channel, 300, seeded(1))
    assert channel.batch.rows.shape == (300, 7)
    assert (table.private["sex"][channel.batch.rows] == secrets[:, None]).all()


def test_secrets_are_drawn_at_the_prior_asked_for(table):
    share = table.private["sex"].double().mean().item()
    for prior, p in (("empirical", share), ("uniform", 0.5)):
        game = Inference(table, "sex", batch=2, prior=prior)
        assert game.chances.tolist() == pytest.approx([1 - p, p])
        _, secrets = game.deal(Recorder(), 2_000, seeded(2))
        assert stats.binomtest(int(secrets.sum()), 2_000, p).pvalue > 1e-3
    assert Inference(table, "sex", batch=2).on(table).chances.tolist() == [0.5, 0.5]


def test_a_column_inside_x_is_an_attribute_and_outside_a_property(table):
    assert Inference(table, "sex", batch=2).kind == "attribute"
    assert Inference(table.without("sex"), "sex", batch=2).kind == "property"


def test_side_knowledge_is_the_batch_mean_of_the_known_columns_and_never_the_secret(table):
    channel = Recorder()
    view, _ = Inference(table, "sex", batch=3, known=("age",)).deal(channel, 5, seeded(3))
    assert view.public["known"].squeeze(1).tolist() == pytest.approx(
        table.x[channel.batch.rows, 0].mean(1).tolist()
    )
    view, _ = Inference(table, "sex", batch=3, known=("*",)).deal(channel, 5, seeded(3))
    assert view.public["known"].shape == (5, 1)
    with pytest.raises(ArgumentError, match="must not contain the secret"):
        Inference(table, "sex", batch=3, known=("sex",))


def test_a_group_smaller_than_two_batches_is_refused_with_the_way_out(table):
    smallest = int(table.private["sex"].sum())
    Inference(table, "sex", batch=smallest // 2)
    with pytest.raises(
        DataError, match=r"'M' has .* fewer than 2 x batch .* lower the batch size .* to \d+ or less"
    ):
        Inference(table, "sex", batch=smallest // 2 + 1)


def test_a_secret_with_one_value_is_refused(table):
    constant = Dataset(table.x, table.y, {"sex": torch.zeros(200, dtype=torch.long)}, name="c")
    with pytest.raises(DataError, match="one value only"):
        Inference(constant, "sex", batch=2)


@pytest.mark.parametrize(("argument", "value"), [("batch", 0), ("prior", "flat")])
def test_inference_refuses_bad_settings(table, argument, value):
    with pytest.raises(ArgumentError, match=f"Inference.{argument}"):
        Inference(table, "sex", **{argument: value})


def test_the_share_of_the_property_lies_in_the_secret_range(table):
    channel, bins, k = Recorder(), 6, 40
    _, secrets = Distribution(table, "sex", bins=bins, batch=k).deal(channel, 3_000, seeded(4))
    counts = (table.private["sex"][channel.batch.rows] == 1).sum(1)
    assert (counts[secrets == 0] == 0).all()
    for i in range(1, bins):
        inside = counts[secrets == i].double()
        assert inside.min() >= (i - 1) / (bins - 1) * k
        assert inside.max() <= i / (bins - 1) * k
    lowest = (counts[secrets == 1] == 0).sum().item()  # one of the eight counts 0 to 7 of the first range
    assert stats.binomtest(lowest, int((secrets == 1).sum()), 1 / 8).pvalue > 1e-3
    assert stats.chisquare(torch.bincount(secrets).numpy()).pvalue > 1e-3


def test_distribution_takes_any_value_as_the_property(table):
    game = Distribution(table, "sex", value="F", batch=8)
    channel = Recorder()
    _, secrets = game.deal(channel, 200, seeded(5))
    assert (table.private["sex"][channel.batch.rows[secrets == 0]] == 1).all()
    with pytest.raises(DataError, match="F, M"):
        Distribution(table, "sex", value="X", batch=8)


def test_distribution_refuses_fewer_records_than_ranges(table):
    with pytest.raises(ArgumentError, match="at least bins - 1"):
        Distribution(table, "sex", bins=6, batch=4)


def test_candidates_are_different_people_shown_by_other_records(table):
    channel = Recorder()
    game = UserInference(table, "person", candidates=4, batch=5)
    view, secrets = game.deal(channel, 400, seeded(6))
    shown, people = view.public["candidates"], view.public["people"]
    who = table.private["person"]
    assert shown.rows.shape == (400, 4, 5)
    assert (who[shown.rows] == people[:, :, None]).all()
    assert all(len(set(row.tolist())) == 4 for row in people)
    true = people.gather(1, secrets[:, None])
    assert (who[channel.batch.rows] == true).all()
    assert channel.secret.equal(true[:, 0])
    for own, others in zip(channel.batch.rows, shown.rows[torch.arange(400), secrets], strict=True):
        assert not set(own.tolist()) & set(others.tolist())
    assert stats.chisquare(torch.bincount(secrets).numpy()).pvalue > 1e-3


def test_people_with_too_few_records_are_left_out_and_too_few_people_refused(table):
    with pytest.raises(DataError, match="lower batch or candidates"):
        UserInference(table, "person", candidates=4, batch=6)


def test_splits_are_disjoint_alike_and_scaled_by_training_statistics(table):
    numbered = Dataset(
        table.x, table.y, {**table.private, "row": torch.arange(200)}, name="t", columns=table.columns
    )
    train, test, public = numbered.split(seeded(7), secret="sex", train=100, public=40)
    rows = [set(part.private["row"].tolist()) for part in (train, test, public)]
    assert [len(r) for r in rows] == [100, 60, 40]
    assert len(rows[0] | rows[1] | rows[2]) == 200
    assert torch.bincount(public.private["sex"]).tolist() == [26, 14]  # as among all 200
    assert train.x[:, 0].mean().item() == pytest.approx(0, abs=1e-6)
    assert train.x[:, 0].std(correction=0).item() == pytest.approx(1, abs=1e-5)
    assert set(train.x[:, 1:].unique().tolist()) == {0.0, 1.0}
    raw = table.x[train.private["row"], 0]
    expected = (table.x[test.private["row"], 0] - raw.mean()) / raw.std(correction=0)
    torch.testing.assert_close(test.x[:, 0], expected)


def test_a_split_leaves_every_part_the_population_it_came_from():
    """A rare value that is kept for the public records is gone from the private ones: guessing, advantage and
    utility would be about other people."""
    kind = torch.tensor([0] * 892 + [1] * 108)
    data = Dataset(torch.randn(1_000, 2, generator=seeded(0)), torch.arange(1_000) % 2, {"kind": kind})
    shares = [part.private["kind"].double().mean().item() for part in data.split(seeded(0), secret="kind")]
    assert shares[2] == pytest.approx(0.108, abs=0.005)
    assert shares[0] == pytest.approx(0.108, abs=0.02)
    rest = [part.private["kind"] for part in data.split(seeded(0), secret="kind")[:2]]
    assert torch.cat(rest).double().mean().item() == pytest.approx(0.108, abs=0.005)
    private, _, public = data.split(seeded(0), secret="kind")
    _, secrets = Inference(private, "kind", batch=4).on(public).deal(Silent(), 2_000, seeded(1))
    assert secrets.double().mean().item() == pytest.approx(0.5, abs=0.04)  # rehearsals are balanced


def test_of_several_values_the_public_share_of_one_is_its_own():
    race = torch.tensor([0] * 500 + [1] * 250 + [2] * 150 + [3] * 100)
    data = Dataset(torch.randn(1_000, 2, generator=seeded(0)), torch.arange(1_000) % 2, {"race": race})
    public = data.split(seeded(0), secret="race", train=300, public=400)[2]
    assert torch.bincount(public.private["race"]).tolist() == [200, 100, 60, 40]


def test_people_are_split_whole(table):
    train, test, public = table.split(seeded(8), by="person", train=5, public=8)
    people = [set(part.private["person"].tolist()) for part in (train, test, public)]
    assert [len(p) for p in people] == [5, 7, 8]
    assert len(people[0] | people[1] | people[2]) == 20


@pytest.mark.parametrize(
    "sizes", [{"train": 200}, {"public": 200}, {"public": 1}, {"by": "person", "train": 15, "public": 5}]
)
def test_impossible_splits_are_refused(table, sizes):
    secret = None if "by" in sizes else "sex"
    with pytest.raises(DataError):
        table.split(seeded(9), secret=secret, **sizes)


def test_a_split_with_one_label_is_refused(table):
    rare = Dataset(table.x, (torch.arange(200) == 0).long(), table.private, name="rare", label="ill")
    with pytest.raises(DataError, match="single value of label 'ill'"):
        rare.split(seeded(10), secret="sex", train=100, public=40)


def test_taking_a_column_out_keeps_the_others_in_place(table):
    out = table.without("age")
    assert out.x.equal(table.x[:, 1:])
    assert out.columns == (Column("sex", 0, 2, values=("F", "M"), standardised=False),)
    with pytest.raises(DataError, match="no column 'nose' in x; it has: age, sex"):
        table.without("nose")
