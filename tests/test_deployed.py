"""Deployed filters: each is the package's own, number for number, and promises no more than it keeps."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from builders import refuses
from scipy import stats

from leakscope import (
    Defense,
    GradientChannel,
    Inference,
    Knowledge,
    Linear,
    Local,
    Posterior,
    RandomForest,
    UpdateChannel,
    Within,
    auroc,
    play,
    seeded,
)
from leakscope.core.dataset import Batch
from leakscope.core.errors import ArgumentError
from leakscope.core.nouns import flatten
from leakscope.data import synthetic
from leakscope.defenses.deployed import (
    FlowerAdaptiveClipping,
    FlowerFixedClipping,
    FlowerLocalDp,
    PercentilePrivacy,
    SVTPrivacy,
)
from leakscope.measures.epsilon import classical_epsilon, gaussian_epsilon
from leakscope.models import build, parameters
from leakscope.training import federate


def release(defense: Defense, layers, *, batch: int = 16, seed: int = 1):
    return defense.release(layers, None, seeded(seed), batch=batch)


DEFAULTS = [
    FlowerLocalDp(),
    FlowerFixedClipping(),
    FlowerAdaptiveClipping(),
    PercentilePrivacy(),
    SVTPrivacy(),
    SVTPrivacy(replace=False, version="2.7", gamma=0.5),
]
NULLS = [
    FlowerLocalDp(math.inf, 0.0),
    FlowerFixedClipping(math.inf, 0.0),
    FlowerAdaptiveClipping(math.inf, 0.0),
    PercentilePrivacy(0.0, math.inf),
    SVTPrivacy(1.0, noise_var=math.inf, gamma=100.0, replace=False),
    SVTPrivacy(1.0, noise_var=math.inf, gamma=100.0, replace=False, version="2.7"),
    Within(FlowerLocalDp(math.inf, 0.0), ("w",)),
]


@pytest.mark.parametrize("defense", NULLS, ids=repr)
def test_at_its_null_setting_a_filter_changes_nothing(defense, layers):
    out = release(defense, layers)
    assert all(out[name].equal(tensor) for name, tensor in layers.items())


@pytest.mark.parametrize("defense", DEFAULTS, ids=repr)
def test_a_filter_repeats_itself_and_leaves_its_input_alone(defense, layers):
    before = {name: tensor.clone() for name, tensor in layers.items()}
    first, second = release(defense, layers), release(defense, layers)
    assert all(first[name].equal(second[name]) for name in layers)
    assert any(not first[name].equal(layers[name]) for name in layers)
    assert all(layers[name].equal(before[name]) for name in layers)
    assert [(t.shape, t.dtype) for t in first.values()] == [(t.shape, t.dtype) for t in layers.values()]


@pytest.mark.parametrize("defense", DEFAULTS, ids=repr)
def test_a_parameter_without_a_shape_goes_out_as_it_is(defense, layers):
    scalar = torch.randn(6, generator=seeded(2))
    assert release(defense, layers | {"s": scalar})["s"].equal(scalar)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: FlowerLocalDp(0.0), r"FlowerLocalDp.clip must be positive, got 0.0; .* use Silent"),
        (lambda: FlowerLocalDp(sensitivity=-1.0), "FlowerLocalDp.sensitivity must be finite and at least 0"),
        (lambda: FlowerLocalDp(epsilon=0.0), "FlowerLocalDp.epsilon must be positive and finite, got 0.0"),
        (lambda: FlowerLocalDp(delta=0.0), r"FlowerLocalDp.delta must be in \(0, 1\), got 0.0"),
        (lambda: FlowerFixedClipping(math.inf), "FlowerFixedClipping.clip must be finite where its noise"),
        (lambda: FlowerFixedClipping(noise=math.nan), "FlowerFixedClipping.noise"),
        (lambda: FlowerFixedClipping(clients=0), "FlowerFixedClipping.clients"),
        (lambda: FlowerAdaptiveClipping(clients=5), "below twice the count's noise, 0.5, got 1.0; raise"),
        (lambda: FlowerAdaptiveClipping(quantile=1.5), "FlowerAdaptiveClipping.quantile"),
        (lambda: FlowerAdaptiveClipping(rate=0.0), "FlowerAdaptiveClipping.rate"),
        (lambda: FlowerAdaptiveClipping(count_noise=-1.0), "FlowerAdaptiveClipping.count_noise"),
        (lambda: FlowerAdaptiveClipping(rule="paper"), "FlowerAdaptiveClipping.rule"),
        (lambda: FlowerAdaptiveClipping().after(2.0, seeded(0)), "after.*in \\[0, 1\\]"),
        (lambda: PercentilePrivacy(101.0), r"PercentilePrivacy.percentile must be in \[0, 100\]"),
        (lambda: PercentilePrivacy(gamma=0.0), "PercentilePrivacy.gamma"),
        (lambda: PercentilePrivacy(steps=0), "PercentilePrivacy.steps"),
        (lambda: SVTPrivacy(0.0), r"SVTPrivacy.fraction must be in \(0, 1\], got 0.0; .* use Silent"),
        (lambda: SVTPrivacy(epsilon=math.inf), "SVTPrivacy.epsilon"),
        (lambda: SVTPrivacy(noise_var=0.0), "SVTPrivacy.noise_var"),
        (lambda: SVTPrivacy(gamma=math.nan), "SVTPrivacy.gamma"),
        (lambda: SVTPrivacy(tau=math.inf), "SVTPrivacy.tau"),
        (lambda: SVTPrivacy(steps=0), "SVTPrivacy.steps"),
        (lambda: SVTPrivacy(version="3"), "SVTPrivacy.version"),
    ],
)
def test_settings_out_of_their_range_are_refused(make, words):
    refuses(ArgumentError, words, make)


# Flower


@pytest.fixture(scope="module")
def flower():
    """Flower's own arithmetic of differential privacy."""
    with warnings.catch_warnings():  # Flower imports typer, which asks click for a name that click retires
        warnings.simplefilter("ignore", DeprecationWarning)
        return pytest.importorskip("flwr.supercore.differential_privacy")


@pytest.fixture
def logged_out(monkeypatch):
    """Flower logs for a task that its own processes are told of."""
    identity = pytest.importorskip("flwr.supercore.task_identity")
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(identity.TaskIdentity, name, 1)


@pytest.fixture
def draws():
    """numpy's own stream, which both packages draw from, given back as it was."""
    before = np.random.get_state()
    yield np.random.seed
    np.random.set_state(before)


def doubles(layers):
    return {name: tensor.double() for name, tensor in layers.items()}


@pytest.mark.parametrize("clip", [0.1, 3.0, 100.0])
def test_clipping_is_flowers(flower, layers, clip):
    layers = doubles(layers)
    ours = release(FlowerFixedClipping(clip, 0.0), layers)
    assert release(FlowerLocalDp(clip, 0.0), layers).keys() == ours.keys()
    for i in range(6):
        start = [np.full(tensor.shape[1:], 0.25) for tensor in layers.values()]
        sent = [s + tensor[i].numpy() for s, tensor in zip(start, layers.values(), strict=True)]
        flower.compute_clip_model_update(sent, start, clip)
        for s, theirs, mine in zip(start, sent, ours.values(), strict=True):
            np.testing.assert_allclose(theirs - s, mine[i].numpy(), rtol=1e-13, atol=1e-14)


def test_what_goes_out_of_flowers_local_dp_mod_is_ours_but_for_the_draws(flower, logged_out, draws):
    from flwr.app import ArrayRecord, Context, Message, RecordDict
    from flwr.clientapp.mod import LocalDpMod

    rng = seeded(3)
    received = {"w": torch.randn(30, 40, generator=rng).double(), "s": torch.tensor(2.0).double()}
    trained = {name: tensor + torch.randn(tensor.shape, generator=rng) for name, tensor in received.items()}

    def client(message, context):
        return Message(RecordDict({"arrays": ArrayRecord(trained)}), reply_to=message)

    defense = FlowerLocalDp(2.0, 0.7, 0.5, 1e-4)
    mod = LocalDpMod(2.0, 0.7, 0.5, 1e-4)
    message = Message(RecordDict({"arrays": ArrayRecord(received)}), dst_node_id=1, message_type="train")
    draws(5)
    reply = mod(message, Context(1, 1, {}, RecordDict(), {}), client)
    theirs = reply.content["arrays"].to_torch_state_dict()
    draws(5)
    noise = torch.from_numpy(np.random.normal(0, defense.deviation(1), (30, 40)))
    update = {name: (received[name] - trained[name])[None] for name in received}
    clean = release(defense.noiseless(), update)
    torch.testing.assert_close(received["w"] - theirs["w"], clean["w"][0] - noise, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(received["s"] - theirs["s"], clean["s"][0], rtol=1e-12, atol=1e-12)
    drawn = release(defense, update)["w"] - clean["w"]
    assert stats.kstest(drawn.flatten() / defense.deviation(1), "norm").pvalue > 0.01


@pytest.mark.parametrize("clients", [1, 9])
def test_the_mean_of_so_many_uploads_has_the_noise_of_flowers_server(flower, clients):
    defense = FlowerFixedClipping(0.4, 1.5, clients)
    mean = release(defense, {"w": torch.zeros(clients, 40_000)})["w"].mean(0)
    std = flower.compute_stdv(1.5, 0.4, clients)
    assert stats.kstest(mean.numpy(), "norm", args=(0, std)).pvalue > 0.01
    assert defense.deviation(1) / math.sqrt(clients) == pytest.approx(std, rel=1e-14)


def replies_of(updates, records):
    """One reply a client that moved zeros to its update."""
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict

    found = []
    for update, n in zip(updates, records, strict=True):
        content = {"arrays": ArrayRecord({"w": update}), "metrics": MetricRecord({"num-examples": n})}
        asked = Message(RecordDict(), dst_node_id=1, message_type="train")
        found.append(Message(RecordDict(content), reply_to=asked))
    return found


def adapted(norms, *, entries: int, clip: float, noise: float) -> list[tuple[float, np.ndarray]]:
    """Each round's norm by Flower's own strategy, for updates of these norms, and the noise it added."""
    from flwr.app import ArrayRecord
    from flwr.serverapp.strategy import DifferentialPrivacyServerSideAdaptiveClipping, FedAvg

    clients = norms.shape[1]
    strategy = DifferentialPrivacyServerSideAdaptiveClipping(FedAvg(), noise, clients, clip)
    strategy.current_arrays = ArrayRecord({"w": torch.zeros(entries).double()})
    found = []
    for r, row in enumerate(norms):
        now, each = strategy.clipping_norm, row / math.sqrt(entries)
        updates = [torch.full((entries,), float(value)).double() for value in each]
        arrays, _ = strategy.aggregate_train(r, replies_of(updates, [1] * clients))
        mean = float(row.clamp(max=now).mean()) / math.sqrt(entries)
        found.append((now, arrays["w"].numpy() - mean))
    return [*found, (strategy.clipping_norm, np.zeros(entries))]


def test_the_clipping_norm_moves_as_flowers_does(flower, logged_out):
    norms = 2 * torch.rand(6, 12, generator=seeded(6), dtype=torch.float64)
    theirs = adapted(norms, entries=4, clip=1.0, noise=0.0)
    ours = FlowerAdaptiveClipping(1.0, 0.0, 12).in_rounds(norms, seeded(0))
    assert [one.clip for one in ours] == pytest.approx([clip for clip, _ in theirs[:-1]], rel=1e-12)


def test_flowers_noise_is_that_of_the_next_rounds_norm(flower, logged_out, draws):
    norms = torch.full((2, 12), 0.5, dtype=torch.float64)
    draws(0)
    first, second, third = adapted(norms, entries=20_000, clip=0.1, noise=1.0)
    raised = flower.compute_adaptive_noise_params(1.0, 12, None)[1]
    for noise, clip in ((first[1], second[0]), (second[1], third[0])):
        assert stats.kstest(noise, "norm", args=(0, raised * clip / 12)).pvalue > 0.01
    defense = FlowerAdaptiveClipping(0.1, 1.0, 12)
    assert defense.deviation(1) == pytest.approx(raised * 0.1 / math.sqrt(12))
    one, two = defense.in_rounds(norms, seeded(0))
    assert one.deviation(1) == pytest.approx(raised * two.clip / math.sqrt(12))
    one, _ = replace(defense, rule="andrew").in_rounds(norms, seeded(0))
    assert one.deviation(1) == pytest.approx(raised * one.clip / math.sqrt(12))


def test_the_count_of_the_clipped_has_its_noise():
    defense = FlowerAdaptiveClipping(1.0, 1.0, 40, quantile=0.3, rate=0.5)
    rng = seeded(7)
    moved = np.array([math.log(defense.after(0.75, rng).clip) for _ in range(2_000)])
    assert stats.kstest(moved, "norm", args=(-0.5 * (0.75 - 0.3), 0.5 * 2 / 40)).pvalue > 0.01


@pytest.mark.parametrize("start", [0.5, 3.0])
def test_andrews_rule_finds_the_quantile_and_flowers_flees_from_it(flower, logged_out, start):
    norms = (0.3 * torch.randn(80, 30, generator=seeded(8), dtype=torch.float64)).exp()
    rounds = FlowerAdaptiveClipping(start, 0.0, 30, quantile=0.7, rule="andrew").in_rounds(norms, seeded(0))
    assert rounds[-1].clip == pytest.approx(float(norms.quantile(0.7)), rel=0.1)
    theirs = [clip for clip, _ in adapted(norms, entries=1, clip=start, noise=0.0)]
    ours = [one.clip for one in FlowerAdaptiveClipping(start, 0.0, 30).in_rounds(norms, seeded(0))]
    assert ours == pytest.approx(theirs[:-1], rel=1e-9)
    assert ours[-1] < 0.001 if start < 1 else ours[-1] > 1_000


def test_a_client_of_many_records_moves_flowers_mean_by_more_than_its_noise_is_meant_for(flower, logged_out):
    from flwr.app import ArrayRecord
    from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg

    strategy = DifferentialPrivacyServerSideFixedClipping(FedAvg(), 0.0, 0.1, 2)
    strategy.current_arrays = ArrayRecord({"w": torch.zeros(4)})
    arrays, _ = strategy.aggregate_train(1, replies_of([torch.ones(4), torch.full((4,), 1e-9)], [9, 1]))
    assert float(np.linalg.norm(arrays["w"].numpy())) == pytest.approx(0.9 * 0.1, rel=1e-6)  # not 0.1 / 2


def test_local_dp_keeps_its_promise_only_for_the_right_sensitivity_and_a_small_epsilon():
    delta = 1e-5
    right = FlowerLocalDp(2.0, 4.0, 0.8, delta)
    assert classical_epsilon(2 * right.clip, right.deviation(1), delta) == pytest.approx(right.epsilon)
    assert gaussian_epsilon(right.mu, delta) < right.epsilon
    assert gaussian_epsilon(FlowerLocalDp(2.0, 2.0, 0.8, delta).mu, delta) > 0.8
    assert gaussian_epsilon(FlowerLocalDp(2.0, 4.0, 40.0, delta).mu, delta) > 40
    assert FlowerLocalDp(1.0, 0.0).mu == math.inf


# NVFlare


def test_what_is_below_the_percentile_is_zero_and_the_rest_is_cut(layers):
    out, flat = flatten(release(PercentilePrivacy(60.0, 0.9), layers)), flatten(layers)
    for row, sent in zip(flat.numpy(), out.numpy(), strict=True):
        kept = np.abs(row) >= np.percentile(np.abs(row), 60)
        assert (sent == np.where(kept, np.clip(row, np.float32(-0.9), np.float32(0.9)), 0)).all()
    whole = release(PercentilePrivacy(60.0, 0.9, steps=4), {name: 4 * t for name, t in layers.items()})
    assert flatten(whole).equal(4 * out)


def by_passes(update, rng, *, c, epsilon, noise_var, gamma, tau, replacing, version):
    """SVTPrivacy as it is described: pass after pass over what is not yet accepted."""
    ratio = (2 * c) ** (2 / 3)
    if version == "2.8":
        scales = gamma * (1 + ratio) / epsilon, 2 * c * gamma * (1 + ratio) / (ratio * epsilon)
    else:
        scales = 2 * gamma / epsilon, 4 * c * gamma / (ratio * epsilon)
    size, bar = np.minimum(np.abs(update), gamma), tau + rng.laplace(scale=scales[0])
    accepted = np.zeros(len(update), dtype=bool)
    while accepted.sum() < c:
        accepted |= size + rng.laplace(scale=scales[1], size=len(update)) >= bar
    places = rng.choice(np.flatnonzero(accepted), size=c, replace=replacing)
    noise, out = rng.laplace(scale=2 * gamma / noise_var, size=c), np.zeros(len(update))
    cut = lambda values: np.clip(values, -gamma, gamma)  # noqa: E731
    out[places] = cut(update[places] + noise) if version == "2.7" else cut(update[places]) + noise
    return out


UPDATE = np.array([0.0, 0.1, -0.2, 0.5, -0.6, 0.7, 0.9, -1.5, 2.0, 0.05, 0.3, -0.8])


def alike(ours, theirs) -> None:
    """Which entries are sent, how many, and what is sent for one of them, are distributed the same."""
    for count in (
        lambda sent: (sent != 0).sum(0),
        lambda sent: np.bincount((sent != 0).sum(1), minlength=13),
    ):
        table = np.stack([count(ours), count(theirs)])
        table = table[:, table.sum(0) > 20]
        if table.shape[1] > 1:
            assert stats.chi2_contingency(table).pvalue > 0.001
    for entry in (1, 7):
        values = [sent[:, entry][sent[:, entry] != 0] for sent in (ours, theirs)]
        assert min(map(len, values)) > 200
        assert stats.ks_2samp(*values).pvalue > 0.001


SETTINGS = [
    (version, replacing, tau)
    for version in ("2.8", "2.7")
    for replacing in (True, False)
    for tau in (0.1, 2.0)
]


@pytest.mark.parametrize(("version", "replacing", "tau"), SETTINGS)
def test_drawing_the_pass_is_passing_again_and_again(version, replacing, tau):
    settings = {"epsilon": 8.0, "noise_var": 6.0, "gamma": 1.0, "tau": tau}
    defense = SVTPrivacy(5 / 12, replace=replacing, version=version, **settings)
    ours = release(defense, {"w": torch.from_numpy(UPDATE).expand(1_500, 12)})["w"].numpy()
    rng = np.random.default_rng(9)
    theirs = [
        by_passes(UPDATE, rng, c=5, replacing=replacing, version=version, **settings) for _ in range(1_500)
    ]
    alike(ours, np.stack(theirs))
    if not replacing and version == "2.8":
        assert ((ours != 0).sum(1) == 5).all()


def test_a_threshold_that_no_entry_would_pass_in_a_lifetime_ends_all_the_same():
    sent = release(SVTPrivacy(0.25, tau=1e6), {"w": torch.ones(50, 40)})["w"]
    assert ((sent != 0).sum(1) <= 10).all()
    assert (sent != 0).any(1).all()


def test_the_choice_is_the_smaller_part_of_what_svt_costs():
    defense = SVTPrivacy()
    assert defense.claimed(7_000_000) == pytest.approx(0.1 + 700_000 * 0.1)
    noise = 2 * 100 / (0.1 * 200 ** (2 / 3) / (1 + 200 ** (2 / 3)))  # of a query, in units of gamma
    threshold = 0.1 / (1 + 200 ** (2 / 3))
    assert defense.proven(1_000) == pytest.approx(threshold + 1_000 * 2 / noise + 100 * 0.1)
    assert defense.proven(1_000) > defense.claimed(1_000)
    assert replace(defense, fraction=1.0).proven(1_000) == pytest.approx(1_000 * 0.1)
    assert replace(defense, version="2.7").claimed(1_000) == 0.1
    assert replace(defense, version="2.7").proven(1_000) == math.inf


def filtered(kind, update, *, steps=1):
    """What NVFlare's own filter makes of an update."""
    from nvflare.apis.dxo import DXO, DataKind, MetaKey
    from nvflare.apis.fl_context import FLContext
    from nvflare.apis.shareable import Shareable

    copied = {name: np.array(value) for name, value in update.items()}
    dxo = DXO(DataKind.WEIGHT_DIFF, copied, meta={MetaKey.NUM_STEPS_CURRENT_ROUND: steps})
    return kind.process_dxo(dxo, Shareable(), FLContext()).data


@pytest.mark.parametrize("steps", [1, 7])
@pytest.mark.parametrize("percentile", [0.0, 10.0, 77.7, 100.0])
def test_the_percentile_filter_is_nvflares(layers, percentile, steps):
    module = pytest.importorskip("nvflare.app_common.filters.percentile_privacy")
    layers = layers | {"s": torch.randn(6, generator=seeded(4))}
    ours = release(PercentilePrivacy(percentile, 0.2, steps=steps), layers)
    for i in range(6):
        update = {name: tensor[i].numpy() for name, tensor in layers.items()}
        theirs = filtered(module.PercentilePrivacy(percentile, 0.2), update, steps=steps)
        for name in layers:
            np.testing.assert_allclose(ours[name][i].numpy(), theirs[name], rtol=1e-6)


@pytest.mark.parametrize("replacing", [True, False])
def test_the_sparse_vector_filter_is_nvflares(replacing, draws):
    module = pytest.importorskip("nvflare.app_common.filters.svt_privacy")
    settings = {"epsilon": 8.0, "noise_var": 6.0, "gamma": 1.0, "tau": 0.1, "replace": replacing}
    defense, theirs = SVTPrivacy(5 / 12, steps=3, **settings), module.SVTPrivacy(5 / 12, **settings)
    ours = release(defense, {"w": torch.from_numpy(3 * UPDATE).expand(1_000, 12)})["w"].numpy()
    draws(10)
    sent = [filtered(theirs, {"w": 3 * UPDATE}, steps=3)["w"] for _ in range(1_000)]
    alike(ours, np.stack(sent))
    assert theirs.get_privacy_spent() == pytest.approx(1_000 * defense.claimed(12))


# In channels, federations and audits


def test_the_filters_act_on_updates_and_the_clipping_norm_may_change_by_the_round(parts, channel):
    local = Local(rate=0.1, batch=8)
    adaptive = FlowerAdaptiveClipping(0.5, 0.0, 4)
    batch = Batch(parts[0], torch.arange(24).view(3, 8))
    bare = UpdateChannel(channel.model, channel.rounds, local=local)
    updates = [flatten(one.layers) for one in bare(batch, torch.zeros(3), seeded(0))]
    fitted = adaptive.in_rounds(torch.stack([update.norm(dim=1) for update in updates]), seeded(0))
    sent = replace(bare, defense=adaptive, fitted=fitted)(batch, torch.zeros(3), seeded(0))
    for update, one, clipped in zip(updates, sent, fitted, strict=True):
        expected = update.norm(dim=1).clamp(max=clipped.clip)
        torch.testing.assert_close(flatten(one.layers).norm(dim=1), expected, rtol=1e-5, atol=1e-6)
    assert fitted[0].clip != fitted[1].clip


@pytest.mark.parametrize("defense", DEFAULTS, ids=repr)
def test_a_federation_uploads_through_a_filter(defense, parts, channel):
    clients = [parts[0].take(torch.arange(i, i + 20)) for i in (0, 20)]
    if isinstance(defense, FlowerAdaptiveClipping):
        defense = replace(defense, clients=2, noise=0.1)

    def final(upload):
        return federate(
            channel.model, clients, rounds=1, rng=seeded(1), local=Local(rate=0.1, batch=10), upload=upload
        )[-1]

    plain, filtered = final(None), final(defense)
    assert any(not plain[name].equal(filtered[name]) for name in plain)


@pytest.mark.parametrize(
    "defense",
    [
        PercentilePrivacy(50.0, 1e-3),
        FlowerFixedClipping(0.1, 0.0),
        SVTPrivacy(0.9, noise_var=50.0, gamma=0.01, replace=False),
    ],
    ids=repr,
)
def test_who_knows_the_filter_learns_more_than_who_does_not(defense):
    train, _, public = synthetic(records=3_000, inputs=20, shift=2.0, positive=0.9).split(
        seeded(19), secret="group", train=1_500, public=1_000
    )
    model = build(Linear(zeros=True), train, seeded(20))
    channel, game = GradientChannel(model, (parameters(model),), defense), Inference(train, "group", batch=8)

    def found(belief):
        knowledge = Knowledge(game.on(public), belief, 400, game.chances)
        return auroc(play(game, channel, Posterior(RandomForest(30)), knowledge, trials=500, rng=seeded(11)))

    assert found(channel).low > found(channel.undefended()).high
