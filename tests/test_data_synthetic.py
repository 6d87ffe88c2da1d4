"""Synthetic records and the best success rate they allow."""

from __future__ import annotations

import math

import pytest
import torch
from builders import refuses
from torch import nn
from torch.func import grad, vmap

from leakscope.core.errors import ArgumentError
from leakscope.core.rng import seeded
from leakscope.data import load, synthetic, synthetic_bayes


def test_the_group_shifts_the_first_input_and_nothing_else() -> None:
    data = synthetic(40_000, 3, shift=0.8)
    one = data.private["group"] == 1
    gap = data.x[one].mean(0) - data.x[~one].mean(0)
    assert gap[0].item() == pytest.approx(0.8, abs=0.05)
    assert gap[1:].abs().max() < 0.05
    assert data.x.std(0)[1:].sub(1).abs().max() < 0.02
    assert one.double().mean().item() == pytest.approx(0.5, abs=0.01)
    assert data.y.double().mean().item() == pytest.approx(0.7, abs=0.01)
    assert data.y[one].double().mean().item() == pytest.approx(0.7, abs=0.015)


def test_the_group_is_a_property_and_the_name_says_it_is_made_up() -> None:
    data = load("synthetic", records=100)
    assert data.name == "synthetic"
    assert not data.has("group")
    assert data.x.shape == (100, 10)


def test_a_seed_decides_the_records() -> None:
    assert torch.equal(synthetic(50, seed=3).x, synthetic(50, seed=3).x)
    assert not torch.equal(synthetic(50, seed=3).x, synthetic(50, seed=4).x)


@pytest.mark.parametrize(("shift", "batch", "positive"), [(0.5, 16, 0.7), (1.0, 4, 0.5), (2.0, 1, 0.3)])
def test_the_bayes_rate_is_what_the_likelihood_ratio_of_real_gradients_reaches(
    shift: float, batch: int, positive: float
) -> None:
    trials = 20_000
    rng = seeded(0, "bayes", batch)
    group = torch.randint(2, (trials,), generator=rng)
    y = (torch.rand(trials, batch, generator=rng) < positive).long()
    x = torch.randn(trials, batch, 2, generator=rng)
    x[:, :, 0] += shift * group[:, None]
    zero = {"w": torch.zeros(2, 2), "b": torch.zeros(2)}

    def loss(params: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(x @ params["w"].T + params["b"], y)

    seen = vmap(grad(loss), in_dims=(None, 0, 0))(zero, x, y)
    c = -2 * batch * seen["b"][:, 1]
    total = -2 * batch * seen["w"][:, 1, 0]
    # log p(total | a = 1) - log p(total | a = 0) for N(c a shift, k); a tie is a coin flip
    ratio = (total**2 - (total - c * shift) ** 2) / (2 * batch)
    coin = torch.rand(trials, generator=rng) < 0.5
    guess = torch.where(c.abs() < 0.5, coin, ratio > 0).long()
    rate = (guess == group).double().mean().item()
    best = synthetic_bayes(shift=shift, batch=batch, positive=positive)
    assert abs(rate - best) < 4 * math.sqrt(best * (1 - best) / trials)


def test_the_bayes_rate_is_chance_without_a_shift_and_one_with_a_large_one() -> None:
    assert synthetic_bayes(shift=0, batch=16, positive=0.7) == pytest.approx(0.5)
    assert synthetic_bayes(shift=100, batch=15, positive=0.7) == pytest.approx(1.0)
    assert synthetic_bayes(shift=100, batch=2, positive=0.5) == pytest.approx(0.75)


@pytest.mark.parametrize(
    "options", [{"records": 1}, {"inputs": 0}, {"shift": -1.0}, {"shift": math.inf}, {"positive": 1.0}]
)
def test_settings_out_of_range_are_refused(options: dict[str, float]) -> None:
    refuses(ArgumentError, next(iter(options)), synthetic, **options)  # type: ignore[arg-type]
    refuses(ArgumentError, "batch", synthetic_bayes, shift=1, batch=0, positive=0.5)
