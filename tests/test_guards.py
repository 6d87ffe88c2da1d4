"""Guards: what their losses are in closed form, that lambda = 0 is plain training, and what is refused."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch
from builders import refuses
from guard_cells import table
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional as F

from leakscope.core.dataset import Dataset
from leakscope.core.errors import ArgumentError, DataError
from leakscope.core.rng import fork, initialised, seeded
from leakscope.defenses.training import discrepancy
from leakscope.guards import losses
from leakscope.guards.batches import Seen, Source, Subsets, aggregated
from leakscope.guards.encoder import Encoder, Perturbation
from leakscope.guards.inf2guard import Guards, Inf2Guard, assembled
from leakscope.guards.networks import reader
from leakscope.guards.protections import auroc
from leakscope.guards.saved import load_encoder
from leakscope.guards.trainer import Phi
from leakscope.models.encoders import ImageEncoder, TableEncoder

SMALL = {"encoder": TableEncoder((8, 6)), "head": (4,), "hidden": (8,), "batch": 32, "rate": 0.01}


IMAGES = Dataset(torch.rand(48, 1, 8, 8, generator=seeded(0, "images")), torch.arange(48) % 2, {})


def same(a: nn.Module, b: nn.Module) -> bool:
    pairs = zip(a.state_dict().values(), b.state_dict().values(), strict=True)
    return all(torch.equal(x, y) for x, y in pairs)


# Lambda


def test_lambda_zero_is_a_plain_loop_of_torch_optim_bit_for_bit():
    data, guard = table(), Inf2Guard("attribute", "sex", lam=0.0, epochs=3, steps=2, **SMALL)
    found = guard(data, seeded(3)).encoder
    split, nets, steps = fork(seeded(3), 3)
    source = Source.of(data, 32, split)
    own, beside, _ = fork(nets, 3)
    network = initialised(lambda: guard.encoder(source.data), own)
    head = initialised(lambda: reader((6,), 2, (4,)), beside)
    optimisers = [torch.optim.Adam(net.parameters(), lr=0.01, fused=True) for net in (network, head)]
    order = fork(steps, 5)[0]
    for _ in range(3):
        for rows in torch.randperm(len(source.data), generator=order).split(32):
            for optimiser in optimisers:
                optimiser.zero_grad()
            F.cross_entropy(head(network(source.data.x[rows])), source.data.y[rows]).backward()
            for optimiser in optimisers:
                optimiser.step()
    assert same(found.network, network)
    assert found.head is not None
    assert same(found.head, head)


@pytest.mark.parametrize("utility", ["labels", "agnostic", "autoencoder"])
def test_with_lambda_zero_a_privacy_network_makes_no_difference_to_the_encoder(utility):
    guard = Inf2Guard(
        "attribute", "sex", lam=0.0, epochs=2, perturbation="gaussian", utility=utility, **SMALL
    )
    with_net = guard(table(), seeded(1))
    without = replace(guard, steps=0)(table(), seeded(1))
    other_loss = replace(guard, loss="adversarial", steps=5)(table(), seeded(1))
    assert without.privacy is None
    assert same(with_net.encoder.network, without.encoder.network)
    assert same(with_net.encoder.network, other_loss.encoder.network)


@pytest.mark.parametrize(
    ("secret", "loss", "options"),
    [("attribute", loss, {"column": "sex", "warm_up": 1, "epochs": 12}) for loss in losses.LOSSES]
    + [
        ("reconstruction", loss, {"perturbation": "learned", "epochs": 6})
        for loss in ("adversarial", "prior", "clip")
    ],
)
def test_lambda_one_ends_with_finite_losses_whatever_the_loss(secret, loss, options):
    history = Inf2Guard(secret, lam=1.0, loss=loss, **SMALL | options)(table(), seeded(0)).history
    assert len(history) == options["epochs"]
    assert all(math.isfinite(value) for row in history for value in row.values())


# Losses


def test_the_prior_loss_is_the_divergence_from_the_base_rate_and_its_gradient_is_answer_minus_prior():
    logits = torch.tensor([[0.3, -0.2], [1.0, 2.0]], dtype=torch.float64, requires_grad=True)
    prior = torch.tensor([0.7, 0.3], dtype=torch.float64)
    value = losses.to_prior(logits, torch.tensor([0, 1]), prior)
    answer = logits.detach().softmax(1)
    expected = (prior * (prior / answer).log()).sum(1).mean()
    assert float(value.detach()) == pytest.approx(float(expected), abs=1e-12)
    (slope,) = torch.autograd.grad(value, logits)
    assert torch.allclose(slope, (answer - prior) / 2, atol=1e-12)


def test_the_adversarial_gradient_is_minus_that_of_cross_entropy():
    logits = torch.tensor([[0.3, -0.2], [1.0, 2.0]], dtype=torch.float64, requires_grad=True)
    target, prior = torch.tensor([0, 1]), torch.tensor([0.5, 0.5])
    (slope,) = torch.autograd.grad(losses.adversarial(logits, target, prior), logits)
    expected = (F.one_hot(target) - logits.detach().softmax(1)) / 2
    assert torch.allclose(slope, expected, atol=1e-12)


def test_the_clipped_loss_pushes_until_the_network_is_as_bad_as_the_base_rate_and_no_further():
    prior, target = torch.tensor([0.5, 0.5]), torch.tensor([0, 0])
    for confident, pushes in ((2.0, True), (-2.0, False)):  # right, and wrong
        logits = torch.tensor([[confident, 0.0]] * 2, requires_grad=True)
        value = losses.clipped(logits, target, prior)
        (slope,) = torch.autograd.grad(value, logits)
        assert bool(slope.abs().sum() > 0) == pushes
        assert float(value.detach()) >= -math.log(2) - 1e-6


def test_the_mean_loss_is_the_squared_distance_of_group_means_and_pulls_them_together():
    r = torch.tensor([[0.0, 0.0], [2.0, 0.0], [4.0, 4.0]], dtype=torch.float64, requires_grad=True)
    value = losses.mean_distance(r, torch.tensor([0, 0, 1]))
    assert float(value.detach()) == 3.0**2 + 4.0**2
    (slope,) = torch.autograd.grad(value, r)
    gap = torch.tensor([-3.0, -4.0], dtype=torch.float64)
    assert torch.allclose(slope, torch.stack([gap, gap, -2 * gap]), atol=1e-12)


def test_the_mmd_is_a_sum_over_kernels():
    rng = seeded(0)
    r = torch.randn(20, 3, generator=rng, dtype=torch.float64, requires_grad=True)
    codes = (torch.rand(20, generator=rng) < 0.4).long()
    unit = float((r[:, None] - r).square().sum(2).mean().detach())
    direct = [discrepancy(r[codes == 1], r[codes == 0], width * math.sqrt(unit)) for width in (0.5, 2.0)]
    expected, found = unit * torch.stack(direct).mean(), losses.mmd(r, codes, (0.5, 2.0))
    assert float(found.detach()) == pytest.approx(float(expected.detach()), rel=1e-10)
    slopes = [torch.autograd.grad(value, r)[0] for value in (found, expected)]
    assert torch.allclose(*slopes, rtol=1e-9, atol=1e-12)


def test_the_mmd_of_a_wide_kernel_is_the_distance_of_means():
    r, codes = torch.randn(30, 3, generator=seeded(1), dtype=torch.float64), torch.arange(30) % 3
    wide = 1e3**2 * float(losses.mmd(r, codes, (1e3,)))
    assert wide == pytest.approx(float(losses.mean_distance(r, codes)), rel=1e-4)


def test_one_group_alone_is_at_no_distance():
    r = torch.randn(4, 2, requires_grad=True)
    for loss in losses.DISTANCES:
        value = losses.distance(loss, r, torch.ones(4, dtype=torch.long))
        value.backward()
        assert float(value.detach()) == 0


def test_a_critic_at_chance_has_the_values_of_chance():
    zeros = torch.zeros(5)
    assert float(losses.against_critic("adversarial", zeros, zeros)) == pytest.approx(-2 * math.log(2))
    assert float(losses.against_critic("prior", zeros, zeros)) == pytest.approx(0, abs=1e-6)
    fooled = losses.against_critic("clip", zeros - 9, zeros + 9)
    assert float(fooled) == pytest.approx(-2 * math.log(2))


def test_the_entropy_of_learned_noise_is_that_of_its_density():
    phi = Phi((1,)).double()
    with torch.no_grad():
        phi.mean.fill_(0.3)
        phi.raw.fill_(0.1)
    deviation = float(F.softplus(phi.raw.detach()))
    draws = torch.randn(200_000, 1, generator=seeded(0), dtype=torch.float64)
    t = torch.linspace(-1 + 1e-9, 1 - 1e-9, 400_001, dtype=torch.float64)
    normal = torch.distributions.Normal(0.3, deviation)
    log_density = normal.log_prob(torch.atanh(t)) - torch.log1p(-t.square())
    expected = torch.trapezoid(-log_density.exp() * log_density, t)
    error = 4 * 0.7 / math.sqrt(200_000)
    assert float(phi.entropy(draws).detach()) == pytest.approx(float(expected), abs=error)


# What guards do


def test_a_guard_of_noise_and_means_hides_a_secret_that_plain_training_shows():
    data = table(800)
    noise = {"normed": True, "perturbation": "gaussian", "scale": 0.3}
    settings = {**SMALL, **noise, "encoder": TableEncoder((32, 24)), "epochs": 15}
    hidden = Inf2Guard("attribute", "sex", lam=0.5, loss="mean", **settings)(data, seeded(0))
    plain = Inf2Guard("attribute", "sex", lam=0.0, utility="autoencoder", **settings)(data, seeded(0))
    assert hidden.history[-1]["auroc"] < 0.65 < 0.85 < plain.history[-1]["auroc"]
    right = hidden.encoder.logits(data.x, key=0).argmax(1) == data.y
    assert float(right.float().mean()) > 0.8


def test_a_label_aware_membership_network_sees_label_logits_and_loss():
    data, others = table(), table(seed=1)
    guard = Inf2Guard("membership", label_aware=True, epochs=1, **SMALL)
    made = assembled((guard,), (1.0,), data, seeded(0), seeded(1))
    seen = Seen.of(data.take(torch.arange(3))).beside(others.take(torch.arange(2)))
    r = made.network(seen.x)
    inputs, member = made.protections[0].sight.pairs(seen, r, made.utility.net)
    assert member.tolist() == [1, 1, 1, 0, 0]
    logits = made.utility.net(r)
    lost = F.cross_entropy(logits, seen.y, reduction="none")[:, None]
    assert torch.equal(inputs, torch.cat([r, F.one_hot(seen.y, 2).float(), logits, lost], 1))
    assert guard(data, seeded(0), others=others).privacy is not None


def test_a_property_guard_sees_subsets_of_the_shares_it_was_asked_for_and_of_any_size():
    data = table(2_000)
    seen = Subsets("sex", 1, (0.25, 0.75), (4, 40), count=400).draw(data, 400, seeded(0))
    assert seen.subset is not None
    assert seen.shares is not None
    sizes = torch.bincount(seen.subset)
    assert int(sizes.min()) == 4
    assert int(sizes.max()) == 40
    have = torch.bincount(seen.subset, weights=seen.private["sex"].double())
    wanted = torch.tensor([0.25, 0.75])[seen.shares] * sizes
    assert bool(((have - wanted).abs() < 1).all())
    small, large = (sizes[seen.shares == code].double().mean() for code in (0, 1))
    assert abs(float(small - large)) < 4 * 10.7 * math.sqrt(2 / 200)  # sizes do not tell the share
    guard = Inf2Guard("property", "sex", epochs=1, shares=(0.3, 0.6), sizes=(2, 10), aggregate="max", **SMALL)
    assert guard(table(400), seeded(0)).privacy is not None


def test_aggregates_are_means_and_largest_values_of_each_subset():
    r = torch.randn(7, 2, 3)
    subset = torch.tensor([1, 0, 1, 2, 0, 1, 2])
    for how, direct in (("mean", lambda part: part.mean(0)), ("max", lambda part: part.amax(0))):
        expected = torch.stack([direct(r[subset == i]) for i in range(3)])
        assert torch.allclose(aggregated(r, subset, 3, how), expected, atol=1e-6)


def test_one_encoder_can_be_guarded_against_several_secrets_at_once():
    data, others = table(400), table(200, seed=1)
    attribute = Inf2Guard("attribute", "sex", epochs=2, **SMALL)
    member, inputs = Inf2Guard("membership", label_aware=True, **SMALL), Inf2Guard("reconstruction", **SMALL)
    found = Guards(attribute, member, inputs, weights=(2, 1, 1))(data, seeded(0), others=others)
    assert found.encoder.about["weights"] == [0.5, 0.25, 0.25]
    assert {"found", "found1", "found2"} <= set(found.history[-1])
    alone = Guards(attribute)(data, seeded(0))
    assert same(alone.encoder.network, attribute(data, seeded(0)).encoder.network)


def test_images_have_representations_that_are_images():
    guard = Inf2Guard("reconstruction", encoder=ImageEncoder(2), epochs=1, batch=16, perturbation="learned")
    found = guard(IMAGES, seeded(0)).encoder
    assert found(IMAGES.x, key=0).shape == (48, 2, 8, 8)
    assert found.logits(IMAGES.x, key=0).shape == (48, 2)


def test_early_stopping_keeps_the_epoch_that_was_best_on_held_records():
    guard = Inf2Guard(
        "attribute", "sex", lam=0.2, epochs=40, patience=2, warm_up=1, **{**SMALL, "rate": 0.05}
    )
    found = guard(table(80), seeded(0))
    totals = [row["held_total"] for row in found.history[1:]]
    assert len(found.history) < 40
    best = totals.index(min(totals))
    assert len(totals) == best + 3
    stopped = replace(guard, epochs=best + 2, patience=None)(table(80), seeded(0))
    assert same(stopped.encoder.network, found.encoder.network)


def test_progress_is_told_every_epoch():
    told: list[tuple[int, int]] = []
    guard = Inf2Guard("attribute", "sex", epochs=3, **SMALL)
    history = guard(table(), seeded(0), progress=lambda i, n, row: told.append((i, n))).history
    assert told == [(0, 3), (1, 3), (2, 3)]
    assert {"utility", "privacy", "cross_entropy", "auroc"} <= set(history[-1])


def test_the_area_is_the_share_of_pairs_in_the_right_order():
    posterior = torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.6, 0.4], [0.2, 0.8]])
    assert auroc(posterior, torch.tensor([0, 0, 1, 1])) == pytest.approx(3.5 / 4)


# Releases


@pytest.mark.parametrize("kind", ["gaussian", "uniform"])
def test_noise_has_the_standard_deviation_it_was_asked_for(kind):
    noise = Perturbation(kind, 2.0)
    like = torch.zeros(40_000, 1)
    assert float(noise.delta(noise.draws(like, seeded(0))).std()) == pytest.approx(2, rel=0.02)
    x = torch.arange(20_000.0)[:, None]
    frozen = Encoder(nn.Identity(), {}, noise)(x, key=0) - x
    assert float(frozen.std()) == pytest.approx(2, rel=0.02)
    assert abs(float(frozen.mean())) < 0.05


def test_noise_needs_a_key_that_somebody_chose_or_fresh_draws():
    encoder = Encoder(nn.Identity(), {}, Perturbation("gaussian", 1.0))
    refuses(ArgumentError, "needs key, a Key that you keep to yourself", encoder, torch.zeros(2, 3))
    assert encoder(torch.zeros(2, 3), key=5).shape == (2, 3)
    assert torch.equal(Encoder(nn.Identity(), {})(torch.zeros(2, 3)), torch.zeros(2, 3))


def test_a_record_has_one_frozen_draw_that_depends_on_it_and_on_the_key():
    guard = Inf2Guard("attribute", "sex", epochs=1, perturbation="gaussian", normed=True, **SMALL)
    data = table()
    encoder = guard(data, seeded(0)).encoder
    released = encoder(data.x, key=0)
    draws = encoder.draws(data.x, 0)
    assert torch.equal(draws, encoder.draws(data.x.flip(0), 0).flip(0))  # wherever it stands in a batch
    assert torch.equal(encoder(data.x, key=0), released)
    assert torch.equal(encoder(data.x, draws), released)
    clean = replace(encoder, perturbation=Perturbation())(data.x)
    step = encoder.output_step * encoder.perturbation.scale
    assert float((clean + draws - released).abs().max()) <= step / 2 + 1e-6
    assert len({tuple(row.tolist()) for row in draws}) == len(data)
    assert not torch.equal(encoder(data.x, key=1), released)
    assert not torch.equal(encoder(data.x, rng=seeded(0)), released)
    assert torch.equal(encoder(data.x, rng=seeded(0)), encoder(data.x, rng=seeded(0)))


def test_an_encoder_of_another_architecture_is_refused(tmp_path):
    encoder = Inf2Guard("attribute", "sex", epochs=1, **SMALL)(table(), seeded(0)).encoder
    encoder.save(tmp_path)
    described = json.loads((tmp_path / "encoder.json").read_text())
    other = described | {"architecture": {**described["architecture"], "widths": [8, 7]}}
    (tmp_path / "encoder.json").write_text(json.dumps(other))
    refuses(DataError, "do not belong together", load_encoder, tmp_path)
    (tmp_path / "encoder.json").write_text(json.dumps(described | {"architecture": {"name": "os.system"}}))
    refuses(DataError, "must be one of TableEncoder, ImageEncoder", load_encoder, tmp_path)
    (tmp_path / "encoder.json").write_text(json.dumps(described))
    tensors = load_file(tmp_path / "encoder.safetensors")
    save_file({name: tensor + 1 for name, tensor in tensors.items()}, tmp_path / "encoder.safetensors")
    refuses(DataError, "describes another", load_encoder, tmp_path)
    refuses(DataError, "holds no encoder", load_encoder, tmp_path / "nowhere")


# Refusals


AGNOSTIC = Inf2Guard("attribute", "sex", epochs=1, utility="agnostic", **SMALL)
REFUSED = {
    r"Inf2Guard\.lam must be in \[0, 1\], got -0.1": lambda: Inf2Guard("attribute", "sex", lam=-0.1),
    r"Inf2Guard\.lam must be in \[0, 1\], got 1.1": lambda: Inf2Guard("attribute", "sex", lam=1.1),
    r"Inf2Guard\.lam must be in \[0, 1\], got nan": lambda: Inf2Guard("attribute", "sex", lam=math.nan),
    "'same' has one value only": lambda: Inf2Guard("attribute", "same", **SMALL)(table(), seeded(0)),
    "subset 1 is empty": lambda: aggregated(torch.ones(2, 3), torch.tensor([0, 2]), 3, "mean"),
    "empty subset has no aggregate": lambda: Inf2Guard("property", "sex", sizes=(0, 5)),
    "lower sizes": lambda: Inf2Guard("property", "sex", sizes=(2, 500), **SMALL)(table(), seeded(0)),
    "has no groups": lambda: Inf2Guard("reconstruction", loss="mmd"),
    "must name a private column": lambda: Inf2Guard("attribute"),
    "reference non-members": lambda: Inf2Guard("membership", **SMALL)(table(), seeded(0)),
    "looks at the task head": lambda: Inf2Guard("membership", label_aware=True, utility="agnostic"),
    "at least 1 with loss 'prior'": lambda: Inf2Guard("attribute", "sex", steps=0),
    "no task head": lambda: AGNOSTIC(table(), seeded(0)).encoder.logits(table().x),
    r"shape \(6,\)": lambda: AGNOSTIC(table(), seeded(0)).encoder(torch.zeros(2, 5)),
    r"diverged in epoch 0 .* lower rate 0.01 or lam 0.5": lambda: replace(AGNOSTIC, utility="autoencoder")(
        replace(table(), x=table().x * 1e30), seeded(0)
    ),
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_does_not_go_together_is_refused(words):
    refuses((ArgumentError, DataError), words, REFUSED[words])
