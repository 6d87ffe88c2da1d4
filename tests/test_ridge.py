"""The kernel-ridge adversary in closed form, and what an encoder is asked to lose by it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from builders import refuses
from guard_cells import people
from sklearn.kernel_ridge import KernelRidge

from leakscope import Column, Dataset, Inf2Guard, TableEncoder, seeded
from leakscope.core.errors import ArgumentError
from leakscope.guards import losses
from leakscope.guards.batches import Seen, derangement
from leakscope.guards.inf2guard import assembled
from leakscope.guards.kernels import WIDTHS
from leakscope.guards.protections import codes_of
from leakscope.guards.ridge import ridge
from leakscope.guards.trainer import Alternation


def batch(n: int = 40, values: int = 2, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    rng = seeded(seed)
    r = torch.randn(n, 3, generator=rng, dtype=torch.float64)
    return r, torch.randint(values, (n,), generator=rng)


def kernel(r: torch.Tensor) -> torch.Tensor:
    squares = (r[:, None] - r).square().sum(2)
    unit = float(squares.mean().detach())
    return torch.stack([(-squares / (2 * width**2 * unit)).exp() for width in WIDTHS]).mean(0)


def test_it_is_what_scikit_learns_kernel_ridge_explains_of_the_batch():
    r, codes = batch()
    c = codes.double() - codes.double().mean()
    model = KernelRidge(alpha=len(r) * 0.02, kernel="precomputed").fit(kernel(r).numpy(), c.numpy())
    explained = float(c.numpy() @ model.predict(kernel(r).numpy())) / float(c.square().sum())
    assert float(ridge(r, codes, strength=0.02)) == pytest.approx(explained, rel=1e-9)


def test_of_a_number_in_ranges_the_number_is_explained_beside_them():
    r, codes = batch(values=3)
    number = codes + torch.rand(len(codes), generator=seeded(4), dtype=torch.float64)
    z = (number - number.mean()) / number.std(correction=0)
    c = torch.cat([torch.nn.functional.one_hot(codes).double(), z[:, None]], dim=1)
    c = (c - c.mean(0)).numpy()
    model = KernelRidge(alpha=len(r) * 0.01, kernel="precomputed").fit(kernel(r).numpy(), c)
    explained = float((c * model.predict(kernel(r).numpy())).sum() / np.square(c).sum())
    assert float(ridge(r, codes, number=100 + 7 * number)) == pytest.approx(explained, rel=1e-9)
    missing = number.clone()
    missing[3] = torch.nan
    assert math.isfinite(float(ridge(r, codes, number=missing)))


def test_a_guard_of_ranges_loses_the_number_as_well():
    """What is inside the ranges counts: an encoder that tells a number within its range is penalised."""
    n = 64
    number = torch.arange(n) / n
    data = Dataset(
        torch.randn(n, 3, generator=seeded(0)), torch.arange(n) % 2, {"age": (number * 2).long()},
        columns=tuple(Column(name, i, i + 1) for i, name in enumerate(("a", "b", "age"))), ordered=frozenset({"age"}),
    )  # fmt: skip
    data = replace(data, x=torch.cat([data.x[:, :2], number[:, None]], dim=1)).without("age")
    assert torch.equal(data.numbers["age"], number)
    assert torch.equal(data.take(torch.tensor([5, 7])).numbers["age"], number[[5, 7]])
    made = assembled((Inf2Guard("attribute", "age", loss="ridge"),), (1.0,), data, seeded(1), seeded(2))
    inside = (4 * number % 2).float()[:, None]  # within each range, and between them not
    (secret,) = made.protections
    found = secret.penalty(Seen.of(data), inside, None, seeded(3))
    without = secret.penalty(Seen.of(replace(data, numbers={})), inside, None, seeded(3))
    assert float(found) > 2 * float(without)


@pytest.mark.parametrize("values", [2, 3])
@pytest.mark.parametrize("conditional", [False, True])
def test_its_gradient_is_that_of_autograd_through_the_inverse(values, conditional):
    r, codes = batch(values=values)
    given = torch.randint(3, (len(r),), generator=seeded(9)) if conditional else None
    r.requires_grad_()
    value = ridge(r, codes, given)
    wanted = torch.nn.functional.one_hot(codes).double()
    alike = torch.ones(len(r), len(r), dtype=torch.double) if given is None else (given[:, None] == given)
    c = torch.stack([row - wanted[alike[i] > 0].mean(0) for i, row in enumerate(wanted)])
    masked = kernel(r) * alike
    fitted = torch.linalg.inv(masked + len(r) * 0.01 * torch.eye(len(r), dtype=torch.double)) @ masked
    expected = (c * (fitted @ c)).sum() / c.square().sum()
    assert float(value.detach()) == pytest.approx(float(expected.detach()), rel=1e-9)
    slopes = [torch.autograd.grad(one, r)[0] for one in (value, expected)]
    assert torch.allclose(*slopes, rtol=1e-7, atol=1e-12)


def test_nothing_is_explained_of_one_value_nor_by_a_constant_and_all_but_the_ridge_of_a_copy():
    r, codes = batch()
    assert float(ridge(r, torch.zeros_like(codes))) == 0
    assert float(ridge(torch.ones_like(r), codes)) == pytest.approx(0, abs=1e-9)
    assert float(ridge(10.0 * codes[:, None].double(), codes)) > 0.95
    assert float(ridge(r, codes, codes)) == 0  # beyond itself nothing tells it


def test_representations_far_from_zero_are_told_apart_in_single_precision():
    """Distances of rows that lie close together were lost to rounding, and the system had no factor."""
    r, codes = batch(200)
    near = (1_000 + 1e-2 * r).float()
    assert float(ridge(near, codes, strength=1e-4)) == pytest.approx(
        float(ridge(r, codes, strength=1e-4)), abs=0.05
    )


def test_what_is_explained_beyond_the_label_is_not_what_the_label_explains():
    rng = seeded(0)
    y = torch.arange(400) % 2
    u = torch.where(torch.rand(400, generator=rng) < 0.9, y, 1 - y)
    r = (y[:, None] + 0.1 * torch.randn(400, 2, generator=rng)).double()
    assert float(ridge(r, u)) > 0.5
    assert float(ridge(r, u, y)) < 0.1
    apart = losses.distance_given("mmd", r, u, y)
    assert float(apart) < 0.1 * float(losses.distance("mmd", r, u))


def test_a_number_is_given_by_its_quarter():
    assert codes_of(torch.tensor([3.0, 1.0, 2.0, 4.0])).tolist() == [2, 0, 1, 3]
    assert codes_of(torch.tensor([1, 0])).tolist() == [1, 0]


def test_a_made_up_pair_is_never_a_record_with_itself():
    for seed in range(200):
        other = derangement(5, seeded(seed))
        assert sorted(other.tolist()) == [0, 1, 2, 3, 4]
        assert not bool((other == torch.arange(5)).any())


def made(guard: Inf2Guard):
    data = people(64)
    return assembled((guard,), (1.0,), data, seeded(1), seeded(2)), Seen.of(data)


NOISY = Inf2Guard(
    column="u", loss="ridge", steps=0, lam=1.0, perturbation="gaussian", scale=3.0, normed=True,
    encoder=TableEncoder((16, 8)),
)  # fmt: skip


@pytest.mark.parametrize("before", [True, False])
def test_the_privacy_term_is_of_representations_before_the_noise_unless_that_is_asked_for(before):
    alternation, seen = made(replace(NOISY, before_noise=before))
    clean = torch.nn.functional.layer_norm(alternation.network(seen.x), (8,)).detach()
    _, lost = alternation.step(seen)
    expected = losses.SHARE * float(ridge(clean, seen.private["u"]))
    assert (lost == pytest.approx(expected, rel=1e-4)) == before


def test_weights_of_label_and_entropy_are_settings_with_ends():
    refuses(ArgumentError, r"given_label must be in \[0, 1\]", replace, NOISY, given_label=1.5)
    refuses(ArgumentError, "and 0 with loss 'prior'", replace, NOISY, loss="prior", steps=1, given_label=0.5)
    refuses(ArgumentError, "entropy_weight", replace, NOISY, entropy_weight=-1.0)
    learned = replace(NOISY, perturbation="learned", entropy_weight=0.3)
    assert made(learned)[0].entropy_weight == 0.3
    assert math.isfinite(made(replace(NOISY, given_label=0.5))[0].step(made(NOISY)[1])[1])
    assert np.isfinite(made(learned)[0].step(made(learned)[1])).all()


@pytest.mark.parametrize("normed", [False, True])
def test_training_that_runs_away_is_one_sentence_and_no_failed_factor(normed):
    guard = Inf2Guard("attribute", "u", loss="ridge", lam=0.9, rate=1e12, epochs=2, normed=normed)
    with pytest.raises(ArgumentError, match="diverged in epoch 0"):
        guard(people(400), seeded(0))


@pytest.mark.parametrize("last", [1.0, 0.1])
def test_all_rates_fall_along_half_a_cosine_to_their_last_share(last, monkeypatch):
    seen: list[list[float]] = []
    step = Alternation.step

    def watched(self, batch, **settings):
        seen.append([group["lr"] for o in self.optimisers.values() for group in o.param_groups])
        return step(self, batch, **settings)

    monkeypatch.setattr(Alternation, "step", watched)
    replace(NOISY, epochs=4, warm_up=0, lam=0.5, rate=0.01, batch=400, last_rate=last)(people(400), seeded(0))
    shares = [last + (1 - last) * math.cos(math.pi * epoch / 8) ** 2 for epoch in range(4)]
    assert np.array(seen) == pytest.approx(0.01 * np.array(shares)[:, None] * np.ones((4, 2)))


def test_the_last_rate_is_a_share():
    for wrong in (0.0, 1.5, math.nan):
        refuses(ArgumentError, "last_rate must be above 0 and at most 1", replace, NOISY, last_rate=wrong)
