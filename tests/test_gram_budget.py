"""Layers whose gradients are too many to be regressed together are never left out in silence."""

from __future__ import annotations

import pytest
import torch
from builders import refuses
from torch import nn

from leakscope.attacks.joint_regression import JointRegression
from leakscope.audits.membership.kind import KIND
from leakscope.core.dataset import Dataset
from leakscope.core.errors import ArgumentError
from leakscope.core.rng import seeded
from leakscope.gradients import aligned, moments
from leakscope.models import parameters
from leakscope.results.cell import Cell
from leakscope.results.kind import World

SIDE, CLASSES = 6, 3
TOO_FEW = 4 * 4 * 9 * 20  # bytes: the gradients of the convolution, 4 x 9 floats, of 20 records


def images(n: int) -> Dataset:
    rng = seeded(100, "images")
    x, y = torch.randn(n, 1, SIDE, SIDE, generator=rng), torch.randint(CLASSES, (n,), generator=rng)
    return Dataset(x, y, {})


def headed(inputs: int, classes: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(64, CLASSES))


def headless() -> nn.Module:
    """Every layer is a convolution."""
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Conv2d(4, CLASSES, 4), nn.Flatten())


def test_nothing_is_regressed_on_no_layer(monkeypatch):
    torch.manual_seed(100)
    model, data = headless(), images(40)
    params = parameters(model)
    white = moments(model, params, data.x, data.y).whitening(
        damping=dict.fromkeys(("0.weight", "2.weight"), 0.1)
    )
    assert len(list(aligned.whitened_gram(model, params, data.x, data.y, params, white))) == 2
    monkeypatch.setattr(aligned, "GRAM_BUDGET", 10)
    words = "so few records that their gradients of a layer that moved take at most 10 bytes, got 40"
    refuses(ArgumentError, words, list, aligned.whitened_gram(model, params, data.x, data.y, params, white))
    still = {name: torch.zeros_like(tensor) for name, tensor in params.items()}
    assert not list(aligned.whitened_gram(model, params, data.x, data.y, still, white))


@pytest.mark.parametrize("groups", [1, 9])
def test_the_layers_that_are_too_large_are_named_on_the_page(monkeypatch, groups):
    """Of 170 candidates in one group; in nine of at most 19 every layer is looked at."""
    monkeypatch.setattr(aligned, "GRAM_BUDGET", TOO_FEW)
    attack = {"name": JointRegression.__name__, "most": -(-170 // groups)}
    game = {"name": "MembershipAudit", "attacks": [attack], "clients": 2, "size": 20, "known": 40, "held": 30}
    game |= {"local": {"name": "Local", "rate": 0.2, "batch": 10}, "seen": "sum"}
    tables = {"data": {"name": "images"}, "game": game, "model": {"name": f"{__name__}.headed"}}
    cell = Cell.model_validate({"rounds": 1, "observe": (1,), "trials": 200} | tables)
    found = KIND.run(World(cell, 0, images(210), (__name__,))).found
    said = [remark for remark in found.remarks if "too large to be regressed together" in remark]
    assert len(said) == (groups == 1)
    assert all("JointRegression" in remark and "0.weight" in remark for remark in said)
