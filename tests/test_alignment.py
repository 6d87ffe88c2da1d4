"""Dots and squared norms of every record's gradient, against gradients that were formed."""

from __future__ import annotations

import pytest
import torch
from builders import MODELS, problem
from torch import nn
from torch.nn import functional as F

from leakscope.core.errors import ArgumentError
from leakscope.gradients import aligned, alignment, factors, per_record


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("label", ["known", "sum"])
def test_dots_and_norms_are_those_of_the_gradients_themselves(name, label):
    model, params, x, y, direction = problem(name)
    found = alignment(model, params, x, y, direction, label=label)
    if label == "known":
        every = per_record(model, params, x, y)
    else:
        each = [per_record(model, params, x, torch.full_like(y, a)) for a in range(3)]
        every = {key: sum(one[key] for one in each) for key in params}
    assert list(found) == list(params)
    for key, g in every.items():
        dots, squares = found[key]
        torch.testing.assert_close(dots, g.flatten(1) @ direction[key].flatten(), rtol=1e-9, atol=1e-11)
        torch.testing.assert_close(squares, g.flatten(1).square().sum(1), rtol=1e-9, atol=1e-11)


def test_embeddings_and_other_layers_go_the_slow_way_and_agree():
    torch.manual_seed(1)
    model = nn.Sequential(nn.Embedding(10, 4), nn.Flatten(), nn.Linear(12, 3)).double()
    x, y = torch.randint(10, (9, 3)), torch.arange(9) % 3
    params = {key: value.detach() for key, value in model.named_parameters()}
    direction = {key: torch.randn_like(value) for key, value in params.items()}
    found = alignment(model, params, x, y, direction)
    for key, g in per_record(model, params, x, y).items():
        torch.testing.assert_close(found[key][0], g.flatten(1) @ direction[key].flatten())


def test_more_records_than_one_pass_are_joined(monkeypatch):
    model, params, x, y, direction = problem("convolution", n=20)
    whole = alignment(model, params, x, y, direction)
    monkeypatch.setattr(aligned, "PASS", 7)
    monkeypatch.setattr(aligned, "FORMED", 1)
    monkeypatch.setattr(factors, "BLOCK", 1)
    for key, (dots, squares) in alignment(model, params, x, y, direction).items():
        torch.testing.assert_close(dots, whole[key][0])
        torch.testing.assert_close(squares, whole[key][1])


def test_float32_agrees_to_a_millionth_of_the_norm():
    model, params, x, y, direction = problem("convolution")
    exact = alignment(model, params, x, y, direction)
    single = alignment(
        model.float(),
        {k: v.float() for k, v in params.items()},
        x.float(),
        y,
        {k: v.float() for k, v in direction.items()},
    )
    for key, (dots, squares) in single.items():
        scale = exact[key][1].sqrt() * direction[key].norm()
        assert ((dots.double() - exact[key][0]).abs() / scale.clamp(min=1e-12)).max().item() < 2e-6
        torch.testing.assert_close(squares.double(), exact[key][1], rtol=2e-5, atol=1e-9)


def test_what_does_not_fit_is_refused():
    model, params, x, y, direction = problem("linear")
    with pytest.raises(ArgumentError, match="direction must be"):
        alignment(model, params, x, y, {"0.weight": direction["0.weight"]})
    with pytest.raises(ArgumentError, match="label must be known or sum"):
        alignment(model, params, x, y, direction, label="all")


def test_the_summed_label_is_the_sum_of_cross_entropies():
    logits = torch.randn(4, 5, dtype=torch.float64)
    expected = sum(F.cross_entropy(logits, torch.full((4,), a)) for a in range(5))
    assert aligned.every_label(logits, torch.zeros(4)).item() == pytest.approx(expected.item())
