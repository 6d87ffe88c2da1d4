"""Defenses: what each releases, against a second implementation, and at its null setting."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from builders import refuses
from scipy import stats
from torch import nn

import leakscope as ls
from leakscope.core.dataset import Batch
from leakscope.core.errors import ArgumentError
from leakscope.core.nouns import Release, flatten
from leakscope.gradients import batch_means, per_record
from leakscope.models import build, parameters
from leakscope.training import fit, logits


def release(defense: ls.Defense, layers, *, secret=None, batch: int = 16, seed: int = 1):
    return defense.release(layers, secret, ls.seeded(seed), batch=batch)


NULLS = [
    ls.Defense(),
    ls.Pruning(0.0),
    ls.Noise(0.0),
    ls.DPSGD(math.inf, 0.0),
    ls.AdversarialPerturbation(radius=0.0),
    ls.Chain(),
    ls.Within(ls.Noise(0.0), ("w",)),
]


@pytest.mark.parametrize("defense", NULLS, ids=repr)
def test_at_its_null_setting_a_defense_changes_nothing(defense, layers):
    out = release(defense, layers, secret=torch.zeros(6, dtype=torch.long))
    assert all(out[name].equal(tensor) for name, tensor in layers.items())


@pytest.mark.parametrize(
    "defense",
    [ls.Pruning(0.9), ls.Sign(), ls.Noise(0.1), ls.DPSGD(), ls.Chain(ls.Pruning(0.5), ls.Sign())],
    ids=repr,
)
def test_a_defense_repeats_itself_and_leaves_its_input_alone(defense, layers):
    before = {name: tensor.clone() for name, tensor in layers.items()}
    first, second = release(defense, layers), release(defense, layers)
    assert all(first[name].equal(second[name]) for name in layers)
    assert all(layers[name].equal(before[name]) for name in layers)
    assert [first[name].shape for name in layers] == [layers[name].shape for name in layers]


def test_pruning_keeps_exactly_the_largest_entries_of_the_whole_vector(layers):
    out, flat = flatten(release(ls.Pruning(0.8), layers)), flatten(layers)
    for row, sparse in zip(flat, out, strict=True):
        kept = row.abs().argsort(descending=True)[: 27 - 22]  # 21.6, rounded
        expected = torch.zeros(27).index_copy(0, kept, row[kept])
        assert sparse.equal(expected)


def test_sign_and_noise_are_what_they_say(layers):
    assert set(flatten(release(ls.Sign(), layers)).unique().tolist()) <= {-1.0, 0.0, 1.0}
    wide = {"w": torch.zeros(200, 500)}
    drawn = release(ls.Noise(0.3), wide)["w"]
    assert drawn.std().item() == pytest.approx(0.3, rel=0.02)
    assert drawn.mean().abs().item() < 0.01


def test_a_chain_is_one_after_the_other(layers):
    chained = release(ls.Chain(ls.Pruning(0.5), ls.Sign()), layers)
    by_hand = release(ls.Sign(), release(ls.Pruning(0.5), layers))
    assert all(chained[name].equal(by_hand[name]) for name in layers)
    with pytest.raises(ArgumentError, match="at most one defense that clips"):
        ls.Chain(ls.DPSGD(), ls.DPSGD()).weigh({"w": torch.ones(3)})


def test_within_leaves_the_other_layers_alone(layers):
    out = release(ls.Within(ls.Sign(), ("b",)), layers)
    assert out["w"].equal(layers["w"])
    assert out["b"].equal(layers["b"].sign())
    refuses(ArgumentError, "'x'; it has: w, b", release, ls.Within(ls.Sign(), ("x",)), layers)


def small(kind: str) -> tuple[nn.Module, ls.Dataset]:
    rng = ls.seeded(2, kind)
    shape = (3, 9, 9) if kind == "cnn" else (40,)
    data = ls.Dataset(2 * torch.randn(30, *shape, generator=rng), torch.randint(3, (30,), generator=rng), {})
    return build(ls.CNN(width=2) if kind == "cnn" else ls.MLP((60, 8)), data, rng), data


@pytest.mark.parametrize("kind", ["mlp", "cnn"])
def test_clipped_batch_means_equal_clipping_every_record_by_hand(kind):
    model, data = small(kind)
    params = parameters(model)
    rows = torch.randint(30, (12, 5), generator=ls.seeded(3))
    every = {name: g.double() for name, g in per_record(model, params, data.x, data.y).items()}
    norm = torch.cat([g.flatten(1) for g in every.values()], 1).norm(dim=1)
    clip = float(norm.median())
    weight = (clip / norm).clamp(max=1)
    found = batch_means(model, params, data.x, data.y, rows, weigh=ls.DPSGD(clip, 0.0).weigh)
    for name, g in every.items():
        expected = (g * weight.view(-1, *[1] * (g.dim() - 1)))[rows].mean(1)
        torch.testing.assert_close(found[name].double(), expected, rtol=1e-4, atol=1e-6)


def test_clipping_within_a_layer_clips_that_layer_by_its_own_norm():
    model, data = small("mlp")
    params, name = parameters(model), "2.weight"
    rows = torch.arange(30)[:, None]
    every = per_record(model, params, data.x, data.y)
    found = batch_means(
        model, params, data.x, data.y, rows, weigh=ls.Within(ls.DPSGD(0.01, 0.0), (name,)).weigh
    )
    assert found[name].flatten(1).norm(dim=1).max().item() <= 0.01 * (1 + 1e-5)
    torch.testing.assert_close(found["0.weight"], every["0.weight"])


@pytest.mark.parametrize("kind", ["mlp", "cnn"])
def test_our_dpsgd_is_opacus_on_the_same_batch_clip_and_noise(kind):
    opacus = pytest.importorskip("opacus")
    from opacus.optimizers import DPOptimizer

    model, data = small(kind)
    clip, multiplier, k = 0.7, 1.3, 16
    params = parameters(model)
    wrapped = opacus.GradSampleModule(
        build(ls.CNN(width=2) if kind == "cnn" else ls.MLP((60, 8)), data, ls.seeded(2, kind))
    )
    wrapped.load_state_dict({f"_module.{name}": value for name, value in params.items()})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # opacus registers hooks that torch comments on
        nn.functional.cross_entropy(wrapped(data.x[:k]), data.y[:k]).backward()
    generator = torch.Generator().manual_seed(5)
    optimiser = DPOptimizer(
        torch.optim.SGD(wrapped.parameters(), lr=1.0),
        noise_multiplier=multiplier,
        max_grad_norm=clip,
        expected_batch_size=k,
        generator=generator,
    )
    optimiser.pre_step()
    theirs = {name.removeprefix("_module."): p.grad.clone() for name, p in wrapped.named_parameters()}
    defense = ls.DPSGD(clip, multiplier, "opacus")
    rows = torch.arange(k)[None]
    clean = batch_means(model, params, data.x, data.y, rows, weigh=defense.weigh)
    draw = torch.Generator().manual_seed(5)
    for name, mean in clean.items():
        noise = torch.normal(0.0, multiplier * clip, mean[0].shape, generator=draw) / k
        torch.testing.assert_close(theirs[name], mean[0] + noise, rtol=1e-5, atol=1e-6)
    noise = flatten(defense.release({"w": torch.zeros(200, 1_000)}, None, ls.seeded(6), batch=k))
    assert noise.std().item() == pytest.approx(multiplier * clip / k, rel=0.01)


def test_the_two_conventions_of_noise():
    assert ls.DPSGD(2.0, 0.1).deviation(16) == pytest.approx(0.1 / 4)
    assert ls.DPSGD(2.0, 0.1, "opacus").deviation(16) == pytest.approx(0.1 * 2 / 16)
    assert ls.DPSGD(2.0, 0.1, "opacus").multiplier(16) == pytest.approx(0.1)
    assert ls.DPSGD(2.0, 0.1).multiplier(1) == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: ls.Pruning(1.0),
            r"Pruning.rate must be in \[0, 1\), got 1.0; to release nothing use Silent",
        ),
        (lambda: ls.Pruning(-0.1), "Pruning.rate"),
        (lambda: ls.Pruning(math.nan), "Pruning.rate"),
        (lambda: ls.Noise(-1.0), "Noise.std"),
        (lambda: ls.Noise(math.nan), "Noise.std"),
        (lambda: ls.DPSGD(clip=0.0), "DPSGD.clip must be positive, got 0.0; to release nothing use Silent"),
        (lambda: ls.DPSGD(noise=math.nan), "DPSGD.noise"),
        (lambda: ls.DPSGD(convention="abadi"), "DPSGD.convention"),
        (lambda: ls.VIB(-1.0), "VIB.beta"),
        (lambda: ls.AdversarialPerturbation(radius=-1.0), "AdversarialPerturbation.radius"),
        (lambda: ls.AdversarialPerturbation(steps=-1), "AdversarialPerturbation.steps"),
        (lambda: ls.Within(ls.Sign(), ()), "Within.layers"),
        (lambda: ls.MixupMMD(alpha=-1.0), "MixupMMD.alpha"),
        (lambda: ls.MixupMMD(weight=math.nan), "MixupMMD.weight"),
        (lambda: ls.MixupMMD(bandwidth=0.0), "MixupMMD.bandwidth"),
    ],
)
def test_strengths_out_of_their_range_are_refused(make, words):
    refuses(ArgumentError, words, make)


def test_a_model_that_joins_the_records_of_a_batch_is_refused():
    data = small("mlp")[1]
    model = nn.Sequential(nn.Linear(40, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    refuses(
        ArgumentError, r"GroupNorm|eval", fit, model, data, rounds=1, rng=ls.seeded(0), defense=ls.DPSGD()
    )


def test_the_defense_acts_inside_training():
    model, data = small("mlp")
    plain, pruned, signed = (
        fit(model, data, rounds=1, rng=ls.seeded(7), batch=30, rate=0.1, defense=defense)
        for defense in (ls.Defense(), ls.Pruning(0.9), ls.Sign())
    )
    start = parameters(model)
    step = {name: start[name] - pruned[1][name] for name in start}
    moved = sum(int((value != 0).sum()) for value in step.values())
    total = sum(value.numel() for value in step.values())
    assert moved <= total - int(0.9 * total)
    assert all(((start[name] - signed[1][name]).abs() <= 0.1 + 1e-6).all() for name in start)
    assert any(not plain[1][name].equal(pruned[1][name]) for name in start)


def test_dpsgd_training_with_nothing_clipped_and_no_noise_is_plain_training():
    model, data = small("mlp")
    plain = fit(model, data, rounds=2, rng=ls.seeded(8), batch=10)
    private = fit(model, data, rounds=2, rng=ls.seeded(8), batch=10, defense=ls.DPSGD(math.inf, 0.0))
    for name in plain[-1]:
        torch.testing.assert_close(plain[-1][name], private[-1][name], rtol=1e-4, atol=1e-6)


def test_a_perturbed_gradient_stays_within_the_radius_and_fools_its_classifier(parts, channel):
    game = ls.Inference(parts[0], "group", batch=8)
    defended = ls.GradientChannel(
        channel.model, channel.rounds, ls.AdversarialPerturbation(0.01, 0.004)
    ).prepared(game.on(parts[2]), ls.seeded(9), trials=400)
    rows = torch.randint(1_000, (60, 8), generator=ls.seeded(10))
    secret = torch.randint(2, (60,), generator=ls.seeded(11))
    clean = channel(Batch(parts[0], rows), secret, ls.seeded(12))[0].layers
    moved = defended(Batch(parts[0], rows), secret, ls.seeded(12))[0].layers
    assert (flatten(moved) - flatten(clean)).abs().max().item() <= 0.01 + 1e-6
    net = defended.fitted[0].classifier
    right = [(net(flatten(g)).argmax(1) == secret).double().mean().item() for g in (clean, moved)]
    assert right[1] < right[0]
    refuses(
        ArgumentError, "prepared", ls.AdversarialPerturbation().release, clean, secret, ls.seeded(0), batch=8
    )


def test_a_targeted_perturbation_does_not_depend_on_the_secret(layers):
    labels = torch.arange(6) % 3
    fitted = ls.AdversarialPerturbation(0.1, 0.05, targeted=True).prepared(
        Release.of(layers), labels, ls.seeded(13)
    )
    one, two = (release(fitted, layers, secret=secret) for secret in (labels, labels.flip(0)))
    assert all(one[name].equal(two[name]) for name in layers)


def test_a_bottleneck_draws_once_per_record_and_model_and_prices_its_divergence():
    _, data = small("mlp")
    defense = ls.VIB(0.5)
    model = build(ls.MLP((8,)), data, ls.seeded(14), defense=defense)
    out = model(data.x)
    assert out.shape == (30, 4)
    assert model(data.x[5:9]).equal(out[5:9]) or torch.allclose(model(data.x[5:9]), out[5:9], atol=1e-6)
    loss = defense.loss(nn.functional.cross_entropy)
    expected = nn.functional.cross_entropy(out[:, :3], data.y) + 0.5 * out[:, 3].mean()
    assert loss(out, data.y).item() == pytest.approx(expected.item())
    hidden = model.encoder(data.x)
    mean, spread = model.mean(hidden), (model.spread(hidden) / 2).exp()
    exact = torch.distributions.kl_divergence(
        torch.distributions.Normal(mean, spread), torch.distributions.Normal(0.0, 1.0)
    ).sum(1)
    torch.testing.assert_close(out[:, 3], exact, rtol=1e-4, atol=1e-5)
    model.eval()
    assert model(data.x)[:, :3].equal(model.decoder(mean))
    refuses(ArgumentError, "Sequential", defense.model, nn.Linear(3, 2))


def test_the_draws_of_a_bottleneck_are_standard_normal_and_new_for_every_model():
    from leakscope.defenses.bottleneck import _draw

    x = torch.randn(2_000, 6, generator=ls.seeded(15))
    drawn = _draw(x, torch.zeros(8), 40)
    assert drawn.mean().abs().item() < 0.02
    assert drawn.std().item() == pytest.approx(1, abs=0.02)
    assert torch.corrcoef(drawn.T).fill_diagonal_(0).abs().max().item() < 0.12
    other = _draw(x, torch.ones(8), 40)
    assert torch.corrcoef(torch.stack([drawn.flatten(), other.flatten()]))[0, 1].abs().item() < 0.02


def test_vib_trains_and_its_gradients_have_the_kernels_blessing():
    _, data = small("mlp")
    model = build(ls.MLP((8,)), data, ls.seeded(16), defense=ls.VIB())
    history = fit(model, data, rounds=2, rng=ls.seeded(17), defense=ls.VIB())
    assert logits(model, history[-1], data).shape == (30, 3)
    channel = ls.GradientChannel(model, history[:1], ls.VIB())
    found = channel(Batch(data, torch.arange(30)[None]), torch.zeros(1, dtype=torch.long), ls.seeded(18))[
        0
    ].layers
    loss = ls.VIB().loss(nn.functional.cross_entropy)
    expected = torch.autograd.grad(
        loss(
            torch.func.functional_call(
                model, {n: p.requires_grad_() for n, p in history[0].items()}, (data.x,)
            ),
            data.y,
        ),
        list(history[0].values()),
    )
    for tensor, by_hand in zip(found.values(), expected, strict=True):
        torch.testing.assert_close(tensor[0], by_hand, rtol=1e-4, atol=1e-6)


def test_knowing_the_noise_beats_not_knowing_it():
    """A linear model at zero under heavy noise: components fitted to clean gradients find the group."""
    from leakscope.data import synthetic

    train, _, public = synthetic(records=6_000, inputs=60, shift=2.0, positive=0.9).split(
        ls.seeded(19), secret="group", train=3_000, public=2_000
    )
    model = build(ls.Linear(zeros=True), train, ls.seeded(20))
    channel = ls.GradientChannel(model, (parameters(model),), ls.DPSGD(clip=10.0, noise=2.0))
    game = ls.Inference(train, "group", batch=16)
    knowledge = ls.Knowledge(game.on(public), channel, 800, game.chances)
    aware = ls.auroc(
        ls.play(game, channel, ls.NoiseAware(components=5), knowledge, trials=1_500, rng=ls.seeded(21))
    )
    pooled = ls.auroc(
        ls.play(game, channel, ls.Posterior(ls.RandomForest(50)), knowledge, trials=1_500, rng=ls.seeded(21))
    )
    assert aware.low > pooled.high


def test_laplace_noise_is_laplace():
    layers = {"w": torch.zeros(1, 20_000)}
    drawn = ls.LaplaceNoise(0.3).release(layers, None, ls.seeded(0), batch=1)["w"][0]
    assert stats.kstest(drawn.numpy(), stats.laplace(scale=0.3 / 2**0.5).cdf).pvalue > 0.01
    assert ls.LaplaceNoise(0.0).release(layers, None, ls.seeded(0), batch=1) is layers


def test_a_sign_is_one_bit_unless_a_third_symbol_is_asked_for():
    entries = {"w": torch.tensor([[-2.0, -0.0, 0.0, 3.0]])}
    assert release(ls.Sign(), entries)["w"].tolist() == [[-1.0, 1.0, 1.0, 1.0]]
    assert release(ls.Sign(ternary=True), entries)["w"].tolist() == [[-1.0, 0.0, 0.0, 1.0]]


@pytest.mark.parametrize(("rate", "kept"), [(0.29, 71), (0.58, 42), (0.5, 50), (0.999, 1)])
def test_pruning_keeps_the_share_it_says(rate, kept):
    out = release(ls.Pruning(rate), {"w": torch.arange(1.0, 101.0)[None]})["w"]
    assert int((out != 0).sum()) == kept


def test_secrets_keep_their_codes_where_some_do_not_occur():
    """Codes 1 and 2 alone: each is pushed away from itself, and neither is taken for another."""
    rng = ls.seeded(0)
    labels = torch.randint(1, 3, (300,), generator=rng)
    flat = torch.randn(300, 6, generator=rng) + 3 * (labels[:, None] == 2)
    fitted = ls.AdversarialPerturbation(radius=2.0, step=0.5, steps=8).prepared(
        Release.of({"w": flat}), labels, ls.seeded(1)
    )
    moved = release(fitted, {"w": flat}, secret=labels)["w"]
    towards = (moved - flat).mean(1)
    assert (towards[labels == 1] > 0).float().mean() > 0.9
    assert (towards[labels == 2] < 0).float().mean() > 0.9


@pytest.mark.parametrize(
    ("defense", "spread"),
    [
        (ls.LaplaceNoise(0.3), 0.3),
        (ls.Chain(ls.Pruning(0.5), ls.Noise(0.2)), 0.2),
        (ls.Chain(ls.DPSGD(noise=0.4)), 0.1),
        (ls.Chain(ls.DPSGD(noise=0.4), ls.Pruning(0.5)), 0.0),
        (ls.Chain(ls.DPSGD(noise=0.4), ls.Noise(0.1)), 0.0),
        (ls.Within(ls.Noise(0.2), ("w",)), 0.0),
        (ls.Chain(), 0.0),
    ],
)
def test_noise_that_comes_last_can_be_taken_off_and_its_size_is_known(defense, spread):
    layers = {"w": torch.arange(1.0, 1_001.0).repeat(16, 1)}
    assert defense.spread(16) == pytest.approx(spread)
    clean = release(defense.noiseless(), layers)["w"]
    added = release(defense, layers)["w"] - clean
    assert release(defense.noiseless(), layers, seed=2)["w"].equal(clean)
    assert not defense.noiseless().adds_noise
    if spread:
        assert added.std().item() == pytest.approx(spread, rel=0.05)


def test_half_precision_is_torchs_own_rounding_and_the_first_layer_alone_stays_local():
    layers = {
        f"{i}.{part}": torch.randn(2, 3, generator=ls.seeded(i))
        for i in (0, 2)
        for part in ("weight", "bias")
    }
    for form in ("bfloat16", "float16"):
        rounded = release(ls.HalfPrecision(form), layers)
        for name, tensor in layers.items():
            assert torch.equal(rounded[name], tensor.to(getattr(torch, form)).float())
            assert not torch.equal(rounded[name], tensor)
    assert all(torch.equal(x, layers[n]) for n, x in release(ls.HalfPrecision("float32"), layers).items())
    kept = release(ls.FirstLayerLocal(), layers)
    assert not bool(kept["0.weight"].any() or kept["0.bias"].any())
    assert torch.equal(kept["2.weight"], layers["2.weight"])
    refuses(ArgumentError, "HalfPrecision.form must be one of", ls.HalfPrecision, "int8")
