"""Baselines for guards: null settings are plain training, terms are their formulas, noise has its moments."""

from __future__ import annotations

import copy
import json
import math
import sys
from dataclasses import dataclass, fields, replace

import pytest
import torch
from builders import refuses
from guard_cells import table
from opacus import PrivacyEngine
from scipy import stats
from torch import nn
from torch.nn import functional as F

import leakscope
from leakscope.attacks.members import LossThreshold
from leakscope.attacks.representations import Fisher
from leakscope.audits.guards import Trial, equal, evaluated
from leakscope.audits.guards.equal import Tuned, halved, rehearsal, tuned
from leakscope.core.catalogue import roles
from leakscope.core.dataset import Dataset
from leakscope.core.errors import ArgumentError, DataError, MissingExtra
from leakscope.core.nouns import Estimate
from leakscope.core.rng import initialised, seeded
from leakscope.gradients import per_record
from leakscope.guards.baselines import (
    DPFE,
    AdversarialTraining,
    Compressed,
    DPEncoder,
    DPParameters,
    gaussian_information,
)
from leakscope.guards.batches import Seen
from leakscope.guards.distilled import Distilled
from leakscope.guards.dpsgd_guard import DPSGDGuard, _step, _Told, _Whole, quiet
from leakscope.guards.encoder import Encoder, Guarded, Perturbation
from leakscope.guards.hidden import Hidden, Lesson
from leakscope.guards.inf2guard import Guards, Inf2Guard, protection
from leakscope.guards.losses import mean_distance
from leakscope.guards.membership_baselines import (
    AdvReg,
    Balanced,
    Discriminator,
    NeuGuard,
    Steady,
    gain,
    imbalance,
)
from leakscope.guards.networks import reader
from leakscope.guards.plain import Unguarded, begun
from leakscope.guards.protections import OfMembers, Told
from leakscope.guards.saved import load_encoder
from leakscope.guards.tappfl import TAPPFL
from leakscope.measures.epsilon import gaussian_epsilon
from leakscope.models.encoders import ImageEncoder, TableEncoder
from leakscope.models.layers import perceptron

PLAIN = Unguarded(encoder=TableEncoder((8, 6)), head=(4,), epochs=3, batch=32, rate=0.01)


def state(guarded: Guarded) -> list[torch.Tensor]:
    nets = (guarded.encoder.network, guarded.encoder.head)
    return [weight for net in nets if net is not None for weight in net.state_dict().values()]


def same(a: Guarded, b: Guarded) -> bool:
    return all(torch.equal(x, y) for x, y in zip(state(a), state(b), strict=True))


# Null settings


def test_the_unguarded_is_a_guard_of_lambda_zero_bit_for_bit():
    settings = {name: getattr(PLAIN, name) for name in vars(PLAIN)}
    guard = Inf2Guard("attribute", "sex", lam=0.0, steps=0, **settings)
    assert same(PLAIN(table(), seeded(3)), guard(table(), seeded(3)))


NULLS = [
    DPEncoder(0.0, plain=PLAIN),
    DPParameters(0.0, plain=PLAIN),
    DPParameters(0.0, "laplace", plain=PLAIN),
    Compressed(0.0, plain=PLAIN),
    DPSGDGuard(clip=math.inf, noise=0.0, plain=PLAIN),
    NeuGuard(0.0, 0.0, plain=PLAIN),
    Distilled(0, plain=PLAIN),
    AdversarialTraining("sex", 0.0, plain=PLAIN),
    DPFE("sex", 0.0, plain=PLAIN),
]


@pytest.mark.parametrize("guard", NULLS, ids=lambda guard: type(guard).__name__)
def test_a_null_setting_is_plain_training_bit_for_bit(guard):
    plain, found = PLAIN(table(), seeded(3)), guard(table(), seeded(3))
    assert same(plain, found)
    assert torch.equal(plain.encoder(table().x), found.encoder(table().x))
    assert found.encoder.about["guard"] == [repr(guard)]


def test_against_membership_a_null_setting_trains_on_all_records_and_looks_at_no_others():
    data, others = table(), table(seed=1)
    plain = PLAIN(data, seeded(3), others=others)
    assert same(plain, AdvReg(0.0, plain=PLAIN)(data, seeded(3), others=others))
    assert same(plain, PLAIN(data, seeded(3), others=table(50, seed=2)))
    assert not same(plain, PLAIN(data, seeded(3)))


STRONG = [
    DPEncoder(0.5, plain=PLAIN),
    DPParameters(0.1, plain=PLAIN),
    Compressed(0.5, plain=PLAIN),
    DPSGDGuard(noise=1.0, plain=PLAIN),
    NeuGuard(plain=PLAIN),
    Distilled(2, models=4, epochs=2, plain=PLAIN),
    AdvReg(plain=PLAIN),
    AdversarialTraining("sex", plain=PLAIN),
    DPFE("sex", plain=PLAIN),
]
SETTINGS = {name: getattr(PLAIN, name) for name in vars(PLAIN)} | {"hidden": (8,)}
GUARDS = [
    Inf2Guard("attribute", "sex", perturbation="gaussian", **SETTINGS | {"normed": True}),
    Inf2Guard("attribute", "sex", utility="agnostic", **SETTINGS),
    Inf2Guard("reconstruction", perturbation="learned", **SETTINGS),
    TAPPFL(
        "sex",
        devices=4,
        rounds=3,
        batch=10,
        encoder=TableEncoder((8, 6)),
        perturbation="gaussian",
        normed=True,
    ),
]


@pytest.mark.parametrize("guard", [*STRONG, *GUARDS], ids=lambda guard: type(guard).__name__)
def test_a_guard_repeats_and_comes_back_from_its_folder_bit_for_bit(guard, tmp_path):
    data = table()
    others = table(seed=1) if isinstance(guard, AdvReg) else None
    found, again, other = (guard(data, seeded(seed), others=others) for seed in (3, 3, 4))
    assert same(found, again)
    assert not same(found, other)
    assert found.history == again.history
    assert len(found.history) == PLAIN.epochs
    plain = PLAIN(data, seeded(3), others=others).encoder
    assert not torch.equal(found.encoder(data.x, key=0), plain(data.x))
    loaded = load_encoder(found.encoder.save(tmp_path))
    assert torch.equal(loaded(data.x, key=7), found.encoder(data.x, key=7))
    assert (loaded.head is None) == (found.encoder.head is None)
    if loaded.head is not None:
        assert torch.equal(loaded.logits(data.x, key=7), found.encoder.logits(data.x, key=7))
    assert loaded.about == json.loads(json.dumps(found.encoder.about))


# After plain training


def test_the_encoders_noise_is_in_units_of_its_representations_deviation():
    data = table()
    found = DPEncoder(0.5, plain=PLAIN)(data, seeded(3)).encoder
    clean = PLAIN(data, seeded(3)).encoder(data.x)
    assert found.perturbation.scale == pytest.approx(0.5 * float(clean.var(0, correction=0).mean()) ** 0.5)
    literal = DPEncoder(0.5, relative=False, plain=PLAIN)(data, seeded(3)).encoder
    assert literal.perturbation.scale == 0.5
    drawn = torch.cat([literal(data.x, rng=seeded(i)) - clean for i in range(50)])
    assert float(drawn.std()) == pytest.approx(0.5, rel=0.02)


@pytest.mark.parametrize(("kind", "fourth", "eighth"), [("gaussian", 3, 105), ("laplace", 6, 2_520)])
def test_noise_on_parameters_has_the_second_and_fourth_moments_of_its_kind(kind, fourth, eighth):
    n = 400_000
    drawn = DPParameters(0.3, kind).noise(torch.empty(n, dtype=torch.float64), seeded(0))
    assert float(drawn.square().mean()) == pytest.approx(0.09, abs=5 * 0.09 * math.sqrt((fourth - 1) / n))
    found = float(drawn.pow(4).mean()) / 0.3**4
    assert found == pytest.approx(fourth, abs=5 * math.sqrt((eighth - fourth**2) / n))
    assert abs(float(drawn.mean())) < 5 * 0.3 / math.sqrt(n)


def test_noise_on_parameters_is_on_the_encoders_and_not_on_the_heads():
    plain, found = PLAIN(table(), seeded(3)), DPParameters(0.1, plain=PLAIN)(table(), seeded(3))
    pairs = zip(plain.encoder.network.parameters(), found.encoder.network.parameters(), strict=True)
    assert all(not torch.equal(a, b) for a, b in pairs)
    assert all(torch.equal(a, b) for a, b in zip(state(plain)[4:], state(found)[4:], strict=True))


@pytest.mark.parametrize("rate", [0.25, 0.5, 0.9])
def test_compression_keeps_exactly_the_largest_share(rate):
    before = torch.cat([w.flatten() for w in PLAIN(table(), seeded(3)).encoder.network.parameters()])
    found = Compressed(rate, plain=PLAIN)(table(), seeded(3)).encoder.network
    after = torch.cat([w.flatten() for w in found.parameters()])
    kept = after != 0
    assert int((~kept).sum()) == round(rate * len(before))
    assert torch.equal(after[kept], before[kept])
    assert float(before[kept].abs().min()) >= float(before[~kept].abs().max())


def test_of_equal_parameters_no_more_go_than_the_share():
    assert Compressed(0.5).kept(torch.ones(7)).tolist() == [0, 0, 0, 0, 1, 1, 1]


# DP-SGD


def test_a_step_of_dp_sgd_is_the_sum_of_clipped_gradients_over_the_expected_batch():
    guard = DPSGDGuard(clip=0.05, noise=0.0, plain=PLAIN)
    data = table(64)
    _, made, _ = begun(PLAIN, Lesson(data, seeded(3), others=data))
    with quiet():
        whole, records = _Whole(made, data), guard.records(data)
        model, optimiser, batches = guard._private(PrivacyEngine(), whole, records, made)
        batch = next(iter(batches))
        start = {f"whole.{name}": w.detach().clone() for name, w in model._module.named_parameters()}
        _step(model, optimiser, batch)
    taken = {f"whole.{name}": w.grad.clone() for name, w in model._module.named_parameters()}
    each = per_record(_Logits(model.to_standard_module()), start, *batch[:2])
    norms = torch.stack([g.flatten(1).square().sum(1) for g in each.values()]).sum(0).sqrt()
    assert float(norms.min()) > 0.05  # so that every record is clipped
    for name, slope in taken.items():
        clipped = each[name] * (0.05 / norms).view(-1, *[1] * (each[name].dim() - 1))
        assert torch.allclose(slope, clipped.sum(0) / 32, rtol=1e-4, atol=1e-8)


class _Logits(nn.Module):
    """The head's logits alone."""

    def __init__(self, whole: nn.Module) -> None:
        super().__init__()
        self.whole = whole

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.whole(x)[1]


def test_a_guarded_step_of_dp_sgd_clips_every_records_gradient_of_both_losses_together():
    secret = Inf2Guard("attribute", "sex", lam=0.4, steps=1, loss="prior", hidden=(4,))
    guard = DPSGDGuard(clip=0.02, noise=0.0, plain=PLAIN, guard=secret)
    data = table(64)
    _, made, private = begun(PLAIN, Lesson(data, seeded(3), others=data))
    net = protection(secret, data, (6,), private, head=True)
    made = replace(made, protections=(net,), weights=(1.0,), lam=0.4)
    whole, adversary = copy.deepcopy(_Whole(made, data)), copy.deepcopy(net.net)
    with quiet():
        engine, records = PrivacyEngine(), guard.records(data)
        model, optimiser, batches = guard._private(engine, _Whole(made, data), records, made)
        told = _Told(guard, engine, records, made, 0.0)
        told.learn = lambda: None  # the network stays where it is: its own step is another's business
        batch = next(iter(batches))
        _step(model, optimiser, batch, told)
    expected = [torch.zeros_like(w) for w in whole.parameters()]
    for x, y, _ in zip(*batch, strict=True):
        r, logits = whole(x[None])
        spread = -(adversary(r).log_softmax(1)[0] @ net.prior)
        lost = 0.6 * torch.nn.functional.cross_entropy(logits, y[None]) + 0.4 * spread
        slopes = torch.autograd.grad(lost, [*whole.parameters()])
        norm = torch.cat([slope.flatten() for slope in slopes]).norm()
        assert float(norm) > 0.02  # so that every record is clipped
        expected = [total + slope * 0.02 / norm / 32 for total, slope in zip(expected, slopes, strict=True)]
    for weight, slope in zip(model._module.parameters(), expected, strict=True):
        assert torch.allclose(weight.grad, slope, rtol=1e-4, atol=1e-8)


def test_the_steps_of_a_guards_network_are_counted_too():
    secret = Inf2Guard("attribute", "sex", lam=0.5, steps=2, hidden=(4,))
    plain = replace(PLAIN, epochs=4, batch=40)
    both = DPSGDGuard(noise=2.0, plain=plain, guard=secret)(table(40), seeded(0), others=table(8))
    exact = gaussian_epsilon(math.sqrt(4 * 3) / 2.0, 1e-5)  # 4 steps of the encoder, 8 of the network
    assert exact <= both.encoder.about["epsilon"] <= exact + 0.02
    assert both.privacy is not None
    asked = DPSGDGuard(epsilon=3.0, plain=plain, guard=secret)(table(40), seeded(0), others=table(8))
    assert 2.9 < asked.encoder.about["epsilon"] <= 3.0


@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_a_guard_with_dp_sgd_hides_what_dp_sgd_alone_shows(noise):
    def joined(seed: int) -> Dataset:  # the task needs the secret's number too
        data = table(800, seed)
        return replace(data, y=(data.x[:, 0] + data.x[:, 1] > 0).long())

    secret = Inf2Guard("attribute", "sex", lam=0.9, steps=2, hidden=(16,))
    plain = Unguarded(encoder=TableEncoder((16, 6)), head=(4,), epochs=15, batch=128, rate=0.01)
    fresh, shares = joined(1), []
    for one in (None, secret):
        encoders = [DPSGDGuard(noise=noise, plain=plain, guard=one)(joined(0), seeded(i)) for i in range(3)]
        shown = [guarded.encoder(fresh.x) for guarded in encoders]
        shares.append(sum(float(mean_distance(r, fresh.secret("sex")) / r.var(0).sum()) for r in shown))
    assert shares[1] < 0.5 * shares[0]


def test_an_encoder_says_nothing_by_which_its_training_could_be_repeated():
    for guard in (DPSGDGuard(noise=1.0, plain=PLAIN), PLAIN, Inf2Guard("attribute", "sex", epochs=1)):
        assert not {"seed", "digest"} & set(guard(table(), seeded(0)).encoder.about)


def test_epsilon_is_that_of_gaussian_noise_where_every_step_sees_all_records():
    plain = replace(PLAIN, epochs=4, batch=40)
    about = DPSGDGuard(noise=2.0, plain=plain)(table(40), seeded(0), others=table(8)).encoder.about
    exact = gaussian_epsilon(math.sqrt(4) / 2.0, 1e-5)
    assert exact <= about["epsilon"] <= exact + 0.02  # Opacus rounds up, by 0.01 at most
    assert about["delta"] == 1e-5
    assert DPSGDGuard(noise=0.0, plain=plain)(table(40), seeded(0)).encoder.about["epsilon"] is None
    asked = DPSGDGuard(epsilon=3.0, plain=replace(plain, epochs=1))
    assert 2.9 < asked(table(40), seeded(0), others=table(8)).encoder.about["epsilon"] <= 3.0


def test_dp_sgd_goes_on_through_empty_batches():
    plain = replace(PLAIN, batch=2, epochs=4)
    history = DPSGDGuard(noise=0.5, plain=plain)(table(16), seeded(1), others=table(8)).history
    assert all(math.isfinite(value) for row in history for value in row.values())


def test_dp_sgd_leaves_no_trace_of_opacus_on_the_encoder():
    found = DPSGDGuard(noise=1.0, plain=PLAIN)(table(), seeded(0)).encoder
    assert not any(hasattr(weight, "grad_sample") for weight in found.network.parameters())
    assert not any(layer._forward_hooks or layer._backward_hooks for layer in found.network.modules())


def test_without_opacus_the_pip_line_is_given(monkeypatch):
    monkeypatch.setitem(sys.modules, "opacus", None)
    refuses(MissingExtra, r'pip install "leakscope\[opacus\]"', DPSGDGuard(plain=PLAIN), table(), seeded(0))


# Terms


def test_the_gain_pushes_members_probabilities_where_the_discriminator_sees_non_members():
    net = Discriminator(1, 2).double()
    for layer in (net.outputs[0][0], net.outputs[0][2], net.labels, net.both[0], net.both[2]):
        nn.init.zeros_(layer.weight)
    with torch.no_grad():  # the score is the first probability, through the first neuron of every layer
        for layer in (net.outputs[0][0], net.outputs[0][2], net.both[0], net.both[2]):
            layer.weight[0, 0] = 1
    told = Told(OfMembers(label_aware=True), net, "adversarial", torch.full((2,), 0.5))
    r = torch.tensor([[0.4], [-1.0], [2.0]], dtype=torch.float64, requires_grad=True)
    head = nn.Linear(1, 2, dtype=torch.float64)
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[1.0], [0.0]]))
        head.bias.zero_()
    seen = Seen(r.detach(), torch.tensor([0, 1, 0]), {}, own=2)
    value = gain(told)(seen, r, head)
    p = torch.sigmoid(r.detach()[:, 0])
    belief = torch.sigmoid(p)
    assert float(value.detach()) == pytest.approx(float(belief[:2].mean()) - 0.5, abs=1e-12)
    (slope,) = torch.autograd.grad(value, r)
    expected = belief * (1 - belief) * p * (1 - p) / 2
    assert torch.allclose(slope[:2, 0], expected[:2], atol=1e-12)
    assert float(slope[2]) == 0  # others are not moved


def test_the_discriminator_has_the_published_shape_and_reads_label_and_probabilities_alone():
    net = initialised(lambda: Discriminator(3, 5), seeded(0))
    shapes = [tuple(layer.weight.shape) for layer in net.modules() if isinstance(layer, nn.Linear)]
    assert shapes == [(512, 5), (64, 512), (64, 5), (64, 128), (1, 64)]
    assert float(net.outputs[0][2].weight.detach().std()) == pytest.approx(0.01, rel=0.03)
    inputs = torch.randn(4, 3 + 5 + 5 + 1)
    other = torch.cat([torch.randn(4, 3), inputs[:, 3:8], inputs[:, 8:13] + 2.0, torch.randn(4, 1)], 1)
    assert torch.allclose(net(inputs), net(other), atol=1e-7)


def test_imbalance_is_the_squared_difference_of_halves_over_the_width():
    activations = torch.tensor([[1.0, 2.0, 0.5, 0.5], [0.0, 1.0, 3.0, 0.0]])
    assert float(imbalance(activations)) == pytest.approx(((3 - 1) ** 2 + (1 - 3) ** 2) / 4 / 2)


def test_the_imbalance_of_every_layer_comes_back_through_the_representations():
    inner = initialised(lambda: perceptron((3, 6, 4)), seeded(0)).double()
    x, slope = torch.randn(5, 3, dtype=torch.float64), torch.randn(5, 4, dtype=torch.float64)
    torch.autograd.backward(Balanced(inner, 0.7)(x), slope)
    found = [w.grad.clone() for w in inner.parameters()]
    hidden = torch.relu(F.linear(x, inner[0].weight, inner[0].bias))
    r = F.linear(hidden, inner[2].weight, inner[2].bias)
    whole = (slope * r).sum()
    for layer in (hidden, r):
        half = layer.shape[1] // 2
        gaps = layer[:, :half].sum(1) - layer[:, half:].sum(1)
        whole = whole + 0.7 * (gaps**2).sum() / len(x) / layer.shape[1]
    for mine, expected in zip(found, torch.autograd.grad(whole, [*inner.parameters()]), strict=True):
        assert torch.allclose(mine, expected, atol=1e-12)
    assert torch.equal(Balanced(inner, 0.7).eval()(x), inner(x))


def test_output_variance_is_around_the_running_mean_of_the_class():
    head = initialised(lambda: reader((2,), 3, (4,)), seeded(0)).double()
    steady = Steady(head, 0.3, 2.0, torch.full((3, 3), math.nan, dtype=torch.float64))
    means: dict[int, torch.Tensor] = {}
    for step in range(3):
        r = torch.randn(6, 2, generator=seeded(step), dtype=torch.float64)
        y = torch.tensor([0, 0, 1, 1, 1, 0]) if step else torch.tensor([0] * 6)
        found = steady.loss(Seen(r, y, {}, own=6), r, r, seeded(0))
        hidden = torch.relu(F.linear(r, head[1][0].weight, head[1][0].bias))
        logits = F.linear(hidden, head[1][2].weight, head[1][2].bias)
        said = logits.softmax(1)
        for code in set(y.tolist()):
            now = said[y == code].mean(0).detach()
            means[code] = 0.9 * means[code] + 0.1 * now if code in means else now
        far = torch.stack([(p - means[int(c)]).square().sum() for p, c in zip(said, y, strict=True)]).mean()
        gaps = (hidden[:, :2].sum(1) - hidden[:, 2:].sum(1)).square().mean() / 4
        expected = F.cross_entropy(logits, y) + 0.3 * gaps + 2.0 * far
        assert float(found.detach()) == pytest.approx(float(expected.detach()), rel=1e-12)
    head.eval()
    unseen = Seen(r, torch.full((6,), 2), {}, own=6)
    assert math.isfinite(float(steady.loss(unseen, r, r, seeded(0)).detach()))
    assert bool(steady.means[2].isnan().all())  # held records are not followed, and cost nothing here


def test_gaussian_information_is_that_of_the_linear_regression_of_the_secret():
    rng = seeded(0)
    u = (torch.rand(400, generator=rng) < 0.3).long()
    r = torch.randn(400, 5, generator=rng, dtype=torch.float64) + u[:, None] * torch.arange(5.0) / 3
    design = torch.cat([r, torch.ones(400, 1, dtype=torch.float64)], 1)
    fitted = design @ torch.linalg.lstsq(design, u.double()[:, None]).solution
    left = float(
        (u.double()[:, None] - fitted).square().sum() / (u.double() - u.double().mean()).square().sum()
    )
    assert float(gaussian_information(r, u)) == pytest.approx(-math.log(left) / 2, rel=1e-9)


def test_gaussian_information_is_finite_with_fewer_records_than_coordinates_and_zero_for_one_value():
    r = torch.randn(10, 30, generator=seeded(0), requires_grad=True)
    value = gaussian_information(r, torch.arange(10) % 2, ridge=0.01)
    (slope,) = torch.autograd.grad(value, r)
    assert float(value.detach()) > 0
    assert bool(slope.isfinite().all())
    assert float(gaussian_information(r.detach(), torch.zeros(10, dtype=torch.long), ridge=0.01)) == 0


def test_dpfe_hides_the_means_that_plain_training_shows():
    data, plain = table(800), replace(PLAIN, epochs=10)
    found = [guard(data, seeded(0)).encoder(data.x) for guard in (plain, DPFE("sex", 3.0, plain=plain))]
    told = [float(gaussian_information(r, data.private["sex"], ridge=0.01)) for r in found]
    assert told[1] < told[0] / 3


def test_adversarial_training_is_the_guard_with_the_papers_loss():
    found = AdversarialTraining("sex", 3.0, plain=PLAIN)
    settings = {name: getattr(PLAIN, name) for name in vars(PLAIN)}
    guard = Inf2Guard("attribute", "sex", lam=0.75, loss="adversarial", steps=1, **settings)
    assert found.guard == guard
    assert same(found(table(), seeded(1)), guard(table(), seeded(1)))


def test_the_network_of_advreg_is_a_stale_attacker_that_can_be_asked():
    data, others = table(200), table(400, seed=1)
    guarded = AdvReg(plain=PLAIN)(data, seeded(0), others=others.take(torch.arange(100)))
    rows = torch.arange(100, 400).chunk(2)
    trial = Trial(data, *(others.take(part) for part in rows), "membership", trials=100, rehearsals=100)
    found = evaluated(guarded, trial, attacks=(LossThreshold(),), label_aware=True, baselines=False)
    assert found.stale.scores.auroc.n == 100


# Equal terms


def falling(value: float) -> Estimate:
    return Estimate("stand-in", math.exp(-value), 0.0, 1.0, 0.95, 1, "none")


@pytest.mark.parametrize("target", [0.9, 0.5, 0.051, 2.0, -1.0])
def test_halving_finds_the_two_values_that_a_target_is_between(target):
    values = [i / 10 for i in range(41)]
    asked: list[float] = []

    def measured(value: float) -> Estimate:
        asked.append(value)
        return falling(value)

    tried = halved(measured, values, target)
    best = min(tried, key=lambda value: abs(tried[value].value - target))
    assert abs(math.exp(-best) - target) == min(abs(math.exp(-value) - target) for value in values)
    assert len(asked) == len(set(asked)) <= 6


def release(scale: float):
    """A guard that adds noise to one number."""

    def guard(data, rng, *, others=None, progress=None):
        return Guarded(Encoder(nn.Identity(), {}, Perturbation("gaussian", scale)), None, (), 0.0)

    return guard


def shifted(n: int, seed: int) -> Dataset:
    """N(u, 1): the area under the curve of who sees it with noise s is Phi(1 / sqrt(2 (1 + s^2)))."""
    u = torch.arange(n) % 2
    x = u[:, None] + torch.randn(n, 1, generator=seeded(seed, "shifted"))
    return Dataset(x, (x[:, 0] > 0).long(), {"u": u}, name="shifted")


def test_a_strength_is_found_at_which_an_attack_is_as_good_as_it_should_be():
    trial = Trial(shifted(100, 0), shifted(100, 1), shifted(6_000, 2), "attribute", "u", trials=3_000)
    scales = [0.0, 0.5, 1.0, 2.0, 4.0, 8.0]
    target = float(stats.norm.cdf(1 / math.sqrt(2 * (1 + 2.0**2))))
    guard, found = tuned(release, scales, trial, to="privacy", target=target, attacks=(Fisher(),))
    assert found.value == 2.0
    assert found.reached
    assert guard(trial.train, seeded(0)).encoder.perturbation.scale == 2.0
    assert len(found.tried) <= 3


def test_a_strength_is_found_at_which_utility_is_what_it_should_be():
    trial = Trial(shifted(400, 0), shifted(10, 1), shifted(1_000, 2), "attribute", "u")
    guard, found = tuned(release, [0.0, 3.0], trial, to="utility", target=0.97)
    assert found.value == 0.0
    assert guard(trial.train, seeded(0)).encoder.perturbation.silent


def test_tuning_sees_neither_test_records_nor_the_members_that_are_asked_about():
    data = table(400)
    train, test, public = (data.take(rows) for rows in torch.arange(400).split([200, 50, 150]))
    trial = Trial(train, test, public, "membership")
    tried = rehearsal(trial, 0)
    final = set(test.hashes) | set(trial.games()[0].members.hashes)
    for game in tried.games():
        assert not final & (set(game.members.hashes) | set(game.others.hashes))
    first, second = (set(part.hashes) for part in (tried.test, tried.public))
    assert not first & second
    assert first | second == set(public.hashes)


def test_a_guard_is_tuned_to_be_as_useful_or_as_private_as_another(monkeypatch):
    """Noise of one scale, tuned to be like noise of that scale, is found again. One attacker of those that
    are suited is enough to tell the scales apart."""
    monkeypatch.setattr(equal, "choose_attacks", lambda *_: (Fisher(),))
    data = shifted(1_200, 0)
    data = replace(data, x=torch.cat([data.x, torch.zeros(1_200, 1)], 1))
    plain = Unguarded(encoder=TableEncoder((16, 8)), epochs=3)
    scales = (0.0, 1.0, 16.0)
    for scale in (0.0, 16.0):
        other = Known("u", DPEncoder(scale, plain=plain))
        for to in ("utility", "privacy"):
            guard = Tuned(DPEncoder(plain=plain), other, to, values=scales)
            found = guard(data, seeded(0)).encoder.about["tuned"]
            assert (found["strength"], found["value"], found["to"]) == ("scale", scale, to)
    assert guard.hides() == (Hidden("attribute", "u"),)


@dataclass(frozen=True)
class Known:
    """A baseline of which it is known what it guards."""

    column: str
    guard: DPEncoder

    def hides(self):
        return (Hidden("attribute", self.column),)

    def __call__(self, data, rng, *, others=None, progress=None):
        return self.guard(data, rng, others=others, progress=progress)


def test_a_search_over_epsilon_leaves_none_to_be_said():
    guard = Tuned(DPSGDGuard(plain=PLAIN), Known("sex", DPEncoder(plain=PLAIN)), values=(8.0,))
    about = guard(table(), seeded(0)).encoder.about
    assert about["epsilon"] is None
    assert about["tuned"]["value"] == 8.0


def test_a_strength_has_the_kind_of_number_that_its_guard_takes():
    guard = Tuned(Unguarded(), Inf2Guard("attribute", "sex"), values=(6.0, 2.0))
    assert guard.at(6.0) == Unguarded(epochs=6)
    assert isinstance(guard.at(6.0).epochs, int)


def test_no_strength_is_tried_that_its_guard_cannot_have():
    guard = Tuned(Distilled(1, models=3, plain=PLAIN), Inf2Guard("attribute", "sex"))
    assert [guard.at(value).without for value in guard.guard.strength.values] == [0, 1, 2]


@pytest.mark.parametrize(
    "name", [name for name in roles("guard") if name not in ("Guards", "TAPPFL", "Tuned")]
)
def test_every_strength_is_a_setting_of_its_guard_at_every_value(name):
    made = getattr(leakscope, name)
    takes = {one.name for one in fields(made)}
    guard = made(column="sex") if "column" in takes else made()
    strength = guard.strength
    tried = [Tuned(guard, Inf2Guard("attribute", "sex")).at(value) for value in strength.values]
    assert [getattr(one, strength.setting) for one in tried] == list(strength.values)


# Refusals


SEX = Inf2Guard("attribute", "sex")
IMAGES = Dataset(torch.rand(24, 1, 8, 8), torch.arange(24) % 2, {})
TRIAL = Trial(shifted(10, 0), shifted(10, 1), shifted(10, 2), "attribute", "u")
REFUSED = {
    r"DPSGDGuard\.guard may set column, lam, loss, steps and hidden": lambda: DPSGDGuard(
        guard=replace(SEX, perturbation="gaussian")
    ),
    "by a loss of single records": lambda: DPSGDGuard(guard=replace(SEX, loss="mmd")),
    "BatchNorm2d; take TableEncoder": lambda: DPSGDGuard(
        noise=1.0, plain=Unguarded(ImageEncoder(2), epochs=1, batch=8)
    )(IMAGES, seeded(0)),
    r"DPSGDGuard\.clip must be finite where there is noise": lambda: DPSGDGuard(clip=math.inf),
    r"DPSGDGuard\.plain\.patience must be None": lambda: DPSGDGuard(plain=Unguarded(patience=2)),
    r"Tuned\.guard must be one with a strength": lambda: Tuned(Known("sex", DPEncoder()), SEX),
    r"Tuned\.to must be privacy or utility": lambda: Tuned(DPEncoder(), SEX, "both"),
    r"Tuned\.like must be one guard": lambda: Tuned(DPEncoder(), Guards(SEX, replace(SEX, column="race"))),
    r"tuned\.to must be privacy or utility": lambda: tuned(release, [1.0], TRIAL, to="both", target=0.5),
    r"Compressed\.rate must be in \[0, 1\), got 1\.0": lambda: Compressed(1.0),
    r"DPParameters\.kind must be gaussian or laplace": lambda: DPParameters(kind="uniform"),
    r"DPEncoder\.scale must be finite and at least 0": lambda: DPEncoder(-1.0),
    "AdvReg needs others": lambda: AdvReg(plain=PLAIN)(table(), seeded(0)),
    "'same' has one value only": lambda: DPFE("same", plain=PLAIN)(table(), seeded(0)),
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_breaks_a_rule_is_refused_in_one_sentence(words):
    refuses((ArgumentError, DataError), words, REFUSED[words])
