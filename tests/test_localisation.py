"""Which layer gives away what: the audit of layers on worlds where the answer is known."""

from __future__ import annotations

import dataclasses
import math
from itertools import pairwise

import layer_cells
import numpy as np
import pytest
import torch
from builders import refuses
from layer_cells import people
from statsmodels.nonparametric.smoothers_lowess import lowess as statsmodels_lowess

import leakscope as ls
from leakscope.attacks.reconstruction import InvertingGradients
from leakscope.audits.layers.audit import join_neighbours
from leakscope.audits.layers.protection import scale_noise
from leakscope.audits.layers.studies import check_claims, correlate, lowess, smooth_trend
from leakscope.core.errors import ArgumentError, DataError
from leakscope.core.nouns import Estimate, behind
from leakscope.models import build, layers_of, parameters
from leakscope.results.scores import Worth

FOREST = {"name": "RandomForest", "trees": 20, "leaf": 5}
MEMBERS = [
    {"name": "Posterior", "head": FOREST, "reduce": {"name": "UnitMax"}},
    {"name": "Posterior", "head": {"name": "Logistic"}, "reduce": {"name": "Sketch", "width": 64}},
]
FAMILY = {
    "secrets": ["group"],
    "splits": 20,
    "sensitive": 3,
    "family": {"name": "Family", "folds": 2, "members": MEMBERS},
}
SIZES = {"model": {"name": "MLP", "hidden": [8, 6]}, "rounds": 2, "observe": [1]}
SIZES |= {"trials": 200, "rehearsals": 300, "train": 500, "public": 400}


@pytest.fixture(scope="module")
def records():
    return people(1_200)


def cell(game=None, **changes):
    return layer_cells.cell(FAMILY | (game or {}), **SIZES | changes)


def find(cell, records):
    return layer_cells.run(cell, records).found


@pytest.fixture(scope="module")
def found(records):
    return find(cell(), records)


def test_the_first_layer_of_a_net_tells_most_about_the_size_of_an_input(found):
    (latent,) = found.latent
    told = {name: leak.information.value for name, leak in latent.layers.items()}
    assert list(told) == ["0", "2", "4"]
    assert max(told, key=told.get) == "0"
    assert latent.layers["0"].information.low > 0.2
    assert latent.most == pytest.approx(math.log(2))
    assert latent.together.information.low > 0.2
    assert latent.labels.information.value == pytest.approx(0, abs=0.01)  # labels are balanced


def test_every_part_of_a_result_has_its_place_and_its_layers(found):
    expected = [("0", 1, "linear"), ("2", 2, "linear"), ("4", 3, "linear")]
    assert [(layer.name, layer.place, layer.kind) for layer in found.layers] == expected
    assert found.layers[0].parameters == 8 * 10 + 8
    assert set(found.sensitivity) == {"F", "1", "inf", "relative"}
    assert set(found.latent[0].subspace) == set(found.latent[0].two_sample) == {"0", "2", "4"}
    assert found.latent[0].together.layers == ("0", "2", "4")
    assert (found.original, found.pictures) == (None, ())
    assert set(found.trend) == {"0", "2", "4"}


def test_what_is_left_falls_as_layers_are_kept_local_and_protection_is_audited_again(found):
    rows = found.protection
    assert rows[0].measure == "none"
    assert rows[0].information.low > 0.2
    local = [row for row in rows if row.measure == "keep local"]
    assert local[0].layers == ("0",)
    assert all(len(a.layers) + 1 == len(b.layers) for a, b in pairwise(local))
    assert local[-1].information.low <= 0 or len(local) == 2
    frozen, noised = rows[-2:]
    assert (frozen.measure, noised.measure) == ("freeze", "noise")
    assert noised.layers == frozen.layers == local[-1].layers
    assert noised.std > 0
    assert noised.information.value < rows[0].information.value / 2


def test_people_are_kept_together_in_folds_and_splits(records):
    people = find(cell({"people": "person", "protect": False}, train=50, public=40), records)
    assert people.protection == ()
    assert people.latent[0].layers["0"].information.low > 0


def test_layers_are_looked_at_together_in_runs_of_neighbours(records):
    pairs = find(cell({"together": 2, "sensitive": 0}), records)
    expected = {"0+2": ("0", "2"), "2+4": ("2", "4")}
    assert {key: leak.layers for key, leak in pairs.latent[0].layers.items()} == expected
    assert pairs.sensitivity == {}
    assert pairs.protection == ()
    refuses(ArgumentError, "at most the model's 3 layers", join_neighbours, ["a", "b", "c"], 4)


def test_pictures_are_rebuilt_and_kept_only_when_asked_for():
    rng = torch.Generator().manual_seed(0)
    data = ls.Dataset(
        torch.rand(60, 1, 16, 16, generator=rng),
        torch.arange(60) % 2,
        {"kind": torch.arange(60) // 2 % 2},
        name="dots",
    )
    train, public = data.take(torch.arange(30)), data.take(torch.arange(30, 60))
    model = build(ls.LeNet(), train, ls.seeded(0, "model"))
    channel = ls.GradientChannel(model, (parameters(model),))
    attack = InvertingGradients(label="known", iterations=3)

    def audit(train, **changes):
        return ls.LayerAudit(images=2, sensitive=0, reconstruct=attack, **changes).run(
            train,
            public,
            lambda d: (channel, None),
            ls.Defense(),
            Worth[Estimate](),
            rehearsals=10,
            trials=10,
            seed=0,
        )

    for shown in (False, True):
        found = audit(train, shown=shown)
        assert found.original.whole.layers == ("conv1", "conv2", "fc1", "fc2", "fc3")
        assert found.original.sets[0].layers == ("conv1", "conv2")
        assert bool(found.pictures) == shown
    assert found.pictures[0].original.startswith("iVBOR")  # a PNG's first bytes in base64
    small = dataclasses.replace(train, x=train.x[:, :, :8, :8])
    refuses(ArgumentError, "at least 11 x 11 pixels", audit, small)


def test_noise_has_the_asked_ratio_to_the_layers_own_gradient(records):
    train, _, public = records.split(ls.seeded(0, "split"), secret="group", train=500, public=400)
    model = build(ls.MLP((8, 6)), train, ls.seeded(0, "model"))
    channel = ls.GradientChannel(model, (parameters(model),))
    game = ls.Inference(public, "group", 4)
    names = layers_of(model)["0"]
    std = scale_noise(channel, game, names, rng=ls.seeded(0, "noise"), ratio=4.0)
    view, _ = game.deal(channel, 50, ls.seeded(0, "noise"))
    layers = view.releases[0].layers
    own = torch.cat([layers[name].flatten(1) for name in names], dim=1)
    assert std * math.sqrt(own.shape[1]) == pytest.approx(
        4 * float(own.square().sum(1).mean().sqrt()), rel=0.06
    )


def test_withheld_layers_are_neither_released_nor_trained(records):
    from leakscope.training import fit

    train, _, _ = records.split(ls.seeded(0, "split"), secret="group", train=500, public=400)
    model = build(ls.MLP((8,)), train, ls.seeded(0, "model"))
    history = fit(
        model,
        train,
        rounds=1,
        rng=ls.seeded(0, "fit"),
        defense=ls.Within(ls.Withhold(), ("0.weight", "0.bias")),
    )
    assert torch.equal(history[0]["0.weight"], history[1]["0.weight"])
    assert not torch.equal(history[0]["2.weight"], history[1]["2.weight"])
    release = ls.Chain(ls.Withhold(), ls.Noise(0.0)).release(
        {"w": torch.ones(2, 3)}, None, ls.seeded(0, "r"), batch=1
    )
    assert not release["w"].any()


def test_batches_are_balanced_in_the_label_whatever_the_secret_and_others_are_mixed_in(records):
    seen = {}

    class Spy:
        def __call__(self, batch, secret, rng):
            seen["rows"] = batch.rows
            return ()

    game = ls.Inference(records, "group", 6, balanced=True, others=9)
    _, secrets = game.deal(Spy(), 200, ls.seeded(0, "deal"))
    rows = seen["rows"]
    assert rows.shape == (200, 15)
    assert behind(game) == 15
    assert (records.y[rows[:, :6]].sum(1) == 3).all()
    assert set(records.y[rows[:, 6:]].sum(1).tolist()) == {4, 5}
    assert (records.private["group"][rows[:, :6]] == secrets[:, None]).all()
    mixed = records.private["group"][rows[:, 6:]].double().mean()
    assert 0.4 < float(mixed) < 0.6
    told = dataclasses.replace(records, y=records.private["group"])
    refuses(DataError, "cannot be balanced against the secret", ls.Inference, told, "group", 6, balanced=True)


def with_information(latent, values):
    """The same secret, had so much been found in each layer."""
    layers = {
        name: leak.model_copy(update={"information": dataclasses.replace(leak.information, value=value)})
        for (name, leak), value in zip(latent.layers.items(), values, strict=True)
    }
    return latent.model_copy(update={"layers": layers})


def test_correlations_are_those_of_numpy_and_width_is_shown_beside(found):
    (latent,) = found.latent
    secrets = [latent, with_information(latent, (0.1, 0.4, 0.2))]
    rows = {row.measure: row for row in correlate(secrets, None, {})}
    distance = [one.subspace[name].distance.value for one in secrets for name in one.layers]
    width = [math.sqrt(one.subspace[name].rank) for one in secrets for name in one.layers]
    information = [leak.information.value for one in secrets for leak in one.layers.values()]
    assert rows["subspace distance"].r == pytest.approx(np.corrcoef(distance, information)[0, 1])
    assert rows["subspace distance"].n == 6
    assert rows["square root of rank"].r == pytest.approx(np.corrcoef(width, information)[0, 1])
    assert rows["square root of rank"].low <= rows["square root of rank"].r
    constant = with_information(latent, (0.1, 0.1, 0.1))
    assert not list(correlate([constant, constant], None, {}))  # a constant correlates with nothing


def test_a_peak_of_neighbours_counts_for_each_of_them_and_a_tie_for_none(found):
    (latent,) = found.latent
    claim = "latent peak at the first classifier layer"
    kinds = ("convolution", "linear", "linear")
    layers = [
        layer.model_copy(update={"kind": kind}) for layer, kind in zip(found.layers, kinds, strict=True)
    ]
    for values, held in (((0.1, 0.3, 0.0), 1), ((0.3, 0.1, 0.0), 0), ((0.0, 0.0, 0.0), 0)):
        assert check_claims(layers, [with_information(latent, values)], None, {})[claim].value == held
    pair = latent.layers["0"].model_copy(update={"layers": ("0", "2")})
    joined = latent.model_copy(update={"layers": {"0+2": pair, "4": latent.layers["4"]}})
    assert check_claims(layers, [with_information(joined, (0.3, 0.1))], None, {})[claim].value == 1
    share = check_claims(layers, [latent], None, {})["subspace distance beats random splits there"]
    assert share.value == (latent.subspace["2"].p <= 0.05)


def test_the_trend_is_a_line_through_points_on_a_line(found):
    x = [0, 1, 2, 3, 4, 5]
    assert lowess(x, [2 * v + 1 for v in x]) == pytest.approx([2 * v + 1 for v in x])
    assert lowess([0, 1], [1.0, 3.0]) == pytest.approx([1, 3])
    assert smooth_trend([]) == {}
    (latent,) = found.latent
    line = with_information(latent, (0.1, 0.2, 0.3))
    assert smooth_trend([line]) == pytest.approx(
        {"0": 0.1 / latent.most, "2": 0.2 / latent.most, "4": 0.3 / latent.most}
    )


@pytest.mark.parametrize(("count", "span"), [(8, 0.75), (30, 0.75), (100, 0.3)])
def test_lowess_is_that_of_statsmodels(count, span):
    draw = np.random.default_rng(count)
    x = draw.normal(size=count)
    y = np.sin(x) + 0.2 * draw.normal(size=count) + 3 * (np.arange(count) == 0)  # one outlier
    expected = statsmodels_lowess(y, x, frac=span, return_sorted=False)
    assert lowess(list(x), list(y), span=span) == pytest.approx(list(expected), abs=1e-6)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"secrets": ("group",), "batch": 0}, "batch must be at least 1"),
        ({"secrets": (), "sensitive": 0}, "at least one"),
        ({"sensitive": 1}, "0 or at least 2"),
        ({"secrets": ("group",), "together": 0}, "together must be at least 1"),
    ],
)
def test_bad_settings_are_refused_in_one_sentence(settings, words):
    refuses(ArgumentError, words, ls.LayerAudit, **settings)
