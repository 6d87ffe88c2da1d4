"""The audit of one attribute: what is crafted, what is simulated, what is certified."""

from __future__ import annotations

import pytest
import torch
from builders import refuses
from scipy import stats

import leakscope as ls
from leakscope.audits.mechanism.audit import play_audit
from leakscope.audits.mechanism.canary import craft, sampled, simulated
from leakscope.core.errors import ArgumentError
from leakscope.gradients import per_record
from leakscope.measures.epsilon import gaussian_epsilon
from leakscope.models import build, parameters


@pytest.fixture(scope="module")
def world():
    """60 records with a one-hot attribute of three values, and a small net."""
    rng = ls.seeded(0, "world")
    code = torch.arange(60) % 3
    x = torch.cat([torch.randn(60, 4, generator=rng), torch.nn.functional.one_hot(code, 3).float()], 1)
    columns = (
        *(ls.Column(f"x{i}", i, i + 1) for i in range(4)),
        ls.Column("kind", 4, 7, values=("a", "b", "c"), standardised=False),
    )
    data = ls.Dataset(
        x,
        torch.randint(2, (60,), generator=rng),
        {"kind": code},
        name="world",
        columns=columns,
        values={"kind": ("a", "b", "c")},
    )
    return data, build(ls.MLP((10,)), data, ls.seeded(1))


def clipped(model, params, x, y, clip):
    flat = torch.cat([g.flatten(1) for g in per_record(model, params, x, y).values()], 1).double()
    return flat * (clip / flat.norm(dim=1, keepdim=True)).clamp(max=1)


def test_a_crafted_record_differs_in_its_attribute_alone_and_takes_real_values(world):
    data, model = world
    found = craft(model, parameters(model), data, "kind", clip=1.0, rng=ls.seeded(2), steps=60)
    one, two = found.pair.x
    assert one[:4].equal(two[:4])
    assert not one[4:].equal(two[4:])
    assert all(sorted(row[4:].tolist()) == [0.0, 0.0, 1.0] for row in found.pair.x)


def test_the_distance_of_a_canary_is_that_of_the_kernels_gradients(world):
    data, model = world
    params = parameters(model)
    for found in (
        craft(model, params, data, "kind", clip=0.5, rng=ls.seeded(3), steps=40),
        sampled(model, params, data, "kind", clip=0.5, rng=ls.seeded(4)),
    ):
        zero, one = clipped(model, params, found.pair.x, found.pair.y, 0.5)
        assert found.distance == pytest.approx((one - zero).norm().item(), rel=1e-4)
        assert found.distance <= 1.0 + 1e-6


def test_crafting_goes_beyond_its_start_and_beyond_real_records(world):
    data, model = world
    params = parameters(model)
    short = craft(model, params, data, "kind", clip=1.0, rng=ls.seeded(5), steps=1)
    long = craft(model, params, data, "kind", clip=1.0, rng=ls.seeded(5), steps=300)
    real = max(sampled(model, params, data, "kind", clip=1.0, rng=ls.seeded(i)).distance for i in range(10))
    assert long.distance > short.distance
    assert long.distance > real


def test_the_best_iterate_is_kept_even_when_the_climb_overshoots(world):
    data, model = world
    reached = [
        craft(model, parameters(model), data, "kind", clip=1.0, rng=ls.seeded(5), steps=n, rate=8.0).distance
        for n in (2, 10, 40)
    ]
    assert reached == sorted(reached)


def test_a_drawn_record_is_a_real_one_and_its_neighbour_has_another_value(world):
    data, model = world
    for seed in range(12):
        pair = sampled(model, parameters(model), data, "kind", clip=1.0, rng=ls.seeded(seed)).pair
        rows = (data.x == pair.x[0]).all(1).nonzero()[:, 0]
        assert len(rows) == 1
        assert pair.y.tolist() == [int(data.y[rows[0]])] * 2
        assert not pair.x[1, 4:].equal(pair.x[0, 4:])


def test_a_canary_by_cosine_turns_more_than_a_real_record_and_one_by_distance(world):
    """The paper's other distance: checked against gradients of the kernels."""
    data, model = world
    params = parameters(model)

    def cosine(found):
        one, two = clipped(model, params, found.pair.x, found.pair.y, 1e9)
        return float(torch.nn.functional.cosine_similarity(one, two, dim=0))

    settings = {"clip": 1.0, "steps": 60}
    moved = craft(model, params, data, "kind", rng=ls.seeded(2), **settings)
    turned = craft(model, params, data, "kind", rng=ls.seeded(2), objective="cosine", **settings)
    one, two = clipped(model, params, turned.pair.x, turned.pair.y, 1.0)
    assert turned.distance == pytest.approx(float((one - two).norm()), rel=1e-4)
    assert cosine(turned) < cosine(moved)
    assert cosine(turned) < cosine(sampled(model, params, data, "kind", clip=1.0, rng=ls.seeded(4)))
    audit = ls.AttributeAudit("kind", steps=60, objective="cosine")
    again = audit.record(model, params, data, clip=1.0, rng=ls.seeded(2))
    assert again.distance == turned.distance
    wrong = ls.AttributeAudit("kind", objective="angle")
    refuses(ArgumentError, "objective must be distance or cosine, got 'angle'",
            lambda: wrong.record(model, params, data, clip=1.0, rng=ls.seeded(2)))  # fmt: skip


@pytest.mark.parametrize(
    ("attack", "statistic"), [(ls.LikelihoodRatio(), "likelihood ratio"), (ls.L2(), "l2")]
)
def test_the_simulated_statistic_has_the_distribution_of_the_played_one(world, attack, statistic):
    data, model = world
    params = parameters(model)
    found = craft(model, params, data, "kind", clip=1.0, rng=ls.seeded(6), steps=50)
    defense = ls.DPSGD(1.0, 0.4)
    channel = ls.GradientChannel(model, (params,), defense)
    game = ls.Canary(found.pair)
    real = ls.play(game, channel, attack, ls.Knowledge(game, channel, 2), trials=3_000, rng=ls.seeded(7))
    quick = simulated(found, std=0.4, trials=3_000, rng=ls.seeded(8), statistic=statistic)
    scale = found.distance * 0.4 if statistic == "likelihood ratio" else 1.0
    for bit in (0, 1):
        played_scores = real.guesses[real.secrets == bit].numpy() / scale
        assert stats.ks_2samp(played_scores, quick.guesses[quick.secrets == bit].numpy()).pvalue > 1e-3


def test_the_likelihood_ratio_certifies_what_the_distance_allows_and_no_more(world):
    data, model = world
    found = sampled(model, parameters(model), data, "kind", clip=1.0, rng=ls.seeded(9))
    std = found.distance  # mu = 1
    transcript = simulated(found, std=std, trials=200_000, rng=ls.seeded(10))
    truth = gaussian_epsilon(1.0, 1e-5)
    certified = ls.epsilon_lower_bound(transcript, delta=1e-5, trade_off="gaussian").low
    assert 0.85 * truth < certified <= truth


def test_an_audit_reports_the_guarantee_beside_what_it_certified(world):
    data, model = world
    audit = ls.AttributeAudit("kind", steps=20)
    defense = ls.DPSGD(1.0, 0.5)
    record = audit.record(model, parameters(model), data, clip=1.0, rng=ls.seeded(11))
    found = play_audit(audit, record, defense, trials=4_000, rng=ls.seeded(12))
    assert found.certified.low <= found.gaussian.low <= found.exact
    assert found.exact_added <= found.exact
    assert sum(found.histogram.h0) + sum(found.histogram.h1) == 4_000
    assert len(found.histogram.edges) == len(found.histogram.h0) + 1


def test_what_cannot_be_audited_is_refused(world):
    data, model = world
    record = sampled(model, parameters(model), data, "kind", clip=1.0, rng=ls.seeded(13))
    refuses(ArgumentError, "std must be positive", simulated, record, std=0.0, trials=100, rng=ls.seeded(0))
    refuses(ArgumentError, "delta", ls.AttributeAudit, "kind", delta=0.0)
    refuses(ArgumentError, "two records", ls.Canary, data)
