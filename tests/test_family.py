"""An attack family: chosen and calibrated on people it was not fitted to."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from builders import refuses

import leakscope as ls
from leakscope.attacks.family import RIDGE, _calibrated
from leakscope.core.calibration import learn_calibration
from leakscope.core.errors import ArgumentError, DataError
from leakscope.core.nouns import Release
from leakscope.data import synthetic
from leakscope.models import build, parameters

FOREST = ls.RandomForest(30, leaf=5)
SMALL = ls.Family(
    (
        ls.Posterior(FOREST, ls.UnitMax()),
        ls.Posterior(FOREST, ls.Sketch(64)),
        ls.Posterior(ls.Logistic(), ls.Sketch(64)),
    )
)


@pytest.fixture(scope="module")
def world():
    """Records whose group shifts the first input far, and the gradients of a small net before training."""
    train, _, public = synthetic(records=3_000, shift=4.0).split(
        ls.seeded(0, "split"), secret="group", train=1_500, public=800
    )
    model = build(ls.MLP((8,)), train, ls.seeded(0, "model"))
    games = ls.Inference(train, "group", 8, "uniform"), ls.Inference(public, "group", 8, "uniform")
    return *games, ls.GradientChannel(model, (parameters(model),))


def told(own, public, channel, *, rehearsals=300, trials=300, seed=0, **options):
    knowledge = ls.Knowledge(public, channel, rehearsals, **options)
    return ls.play(own, channel, SMALL, knowledge, trials=trials, rng=ls.seeded(seed, "play"))


def test_nothing_is_found_through_silence_and_all_through_plain_words(world):
    own, public, _ = world
    for channel, information, rate in ((ls.Silent(), 0.0, 0.5), (ls.Plain(), math.log(2), 1.0)):
        played = told(own, public, channel)
        assert ls.v_information(played, calibrate=False).value == pytest.approx(information, abs=0.05)
        found = ls.success_rate(played)
        assert found.low <= rate <= found.high


def test_a_layer_alone_and_a_layer_that_tells_nothing(world):
    own, public, channel = world
    first, last = (
        ls.v_information(
            told(own, public, ls.Through(channel, names), rehearsals=400, trials=400, seed=1), calibrate=False
        )
        for names in (("0.weight", "0.bias"), ("2.bias",))
    )
    assert first.low > 0.1
    assert last.value < first.low


def test_its_probabilities_are_calibrated_without_being_fitted_again(world):
    played = told(*world, rehearsals=600, trials=1_000, seed=2, calibration=0)
    as_said, again = ls.v_information(played, calibrate=False), ls.v_information(played)
    assert as_said.value == pytest.approx(again.value, abs=0.03)


def test_a_family_that_only_sees_noise_loses_next_to_nothing_by_it(world):
    def noise(batch, secret, rng):
        return (Release.of({"noise": torch.randn(len(batch), 40, generator=rng)}),)

    played = told(*world[:2], noise, trials=200)
    assert ls.v_information(played, calibrate=False).value == pytest.approx(0, abs=0.02)


def test_the_calibration_is_that_of_scikit_learns_platt_scaling():
    from sklearn.linear_model import LogisticRegression

    rng = np.random.default_rng(0)
    told = rng.integers(2, size=4_000)
    odds = 3 * rng.normal(told - 0.5, 1.0)
    said = np.log(np.stack([1 / (1 + np.exp(odds)), 1 / (1 + np.exp(-odds))], axis=1))
    ours = _calibrated(said, learn_calibration(said, told, ridge=RIDGE))
    theirs = LogisticRegression(C=1e6).fit(odds[:, None], told).predict_proba(odds[:, None])
    assert np.abs(ours - theirs).max() < 5e-3


def test_each_fold_is_dealt_from_its_own_people():
    data = synthetic(records=600)
    people = torch.arange(600) // 5
    data = ls.Dataset(
        data.x, data.y, {**data.private, "person": people}, values=data.values, columns=data.columns
    )
    family = ls.Family(by="person", folds=3)
    parts = family.folded(ls.Knowledge(ls.Inference(data, "group", 4), ls.Silent(), 90), ls.seeded(0, "fold"))
    groups = [set(part.game.data.private["person"].tolist()) for part in parts]
    assert sum(map(len, groups)) == len(set.union(*groups)) == 120
    assert [part.trials for part in parts] == [30, 30, 30]
    with pytest.raises(DataError, match="cannot be cut into"):
        ls.Family(by="group", folds=3).folded(
            ls.Knowledge(ls.Inference(data, "group", 4), ls.Silent(), 90), ls.seeded(0, "f")
        )


def test_a_family_refuses_what_it_cannot_read():
    refuses(
        ArgumentError,
        "on reductions that learn nothing",
        ls.Family,
        (ls.Posterior(ls.Logistic(), ls.PCA(5)),),
    )
    refuses(ArgumentError, "at least 2", ls.Family, folds=1)


def test_unit_max_is_one_value_per_input_of_a_linear_layer_and_per_filter_of_a_convolution():
    rng = torch.Generator().manual_seed(0)
    linear, conv, bias = (torch.randn(3, *shape, generator=rng) for shape in ((5, 7), (2, 3, 4, 4), (5,)))
    found = ls.UnitMax().of({"weight": linear, "bias": bias})
    expected = linear.abs().amax(1)
    assert torch.allclose(found, expected / expected.norm(dim=1, keepdim=True))
    assert ls.UnitMax("inputs").of({"weight": linear}).shape == (3, 5)
    assert ls.UnitMax().of({"conv": conv}).shape == (3, 6)
    assert ls.UnitMax(most=5).of({"conv": conv}).shape == (3, 3)
    assert ls.UnitMax().of({"bias": bias}).shape == (3, 5)
    assert not ls.UnitMax().of({"weight": torch.zeros(2, 5, 7)}).isnan().any()


def test_a_sketch_keeps_distances_on_average_and_narrow_layers_whole():
    rng = torch.Generator().manual_seed(0)
    wide = torch.randn(40, 5_000, generator=rng)
    found = ls.Sketch(512).of({"w": wide})
    scaled = wide / wide.norm(dim=1, keepdim=True)
    ratio = torch.pdist(found).square() / torch.pdist(scaled).square()
    assert found.shape == (40, 512)
    assert float(ratio.mean()) == pytest.approx(1, abs=0.02)
    assert torch.equal(ls.Sketch(512).of({"w": wide}), found)
    assert ls.Sketch(512).of({"w": wide[:, :9]}).shape == (40, 9)


def test_a_game_without_records_to_cut_is_refused():
    class Bare:
        batch, chances = 1, torch.tensor([0.5, 0.5])

    refuses(
        ArgumentError, "cut into folds", SMALL, ls.Knowledge(Bare(), ls.Silent(), 100), ls.seeded(0, "bare")
    )
