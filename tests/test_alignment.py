"""Dots and squared norms of every record's gradient, against gradients that were formed."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from leakscope.errors import ArgumentError
from leakscope.gradients import aligned, alignment, per_record


def conv(*args, **kwargs):
    return nn.Sequential(
        nn.Conv2d(*args, **kwargs),
        nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.LazyLinear(3),
    )


MODELS = {
    "linear": (lambda: nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 3, bias=False)), (6,)),
    "sequence": (lambda: nn.Sequential(nn.Linear(4, 5), nn.Flatten(), nn.Linear(15, 3)), (3, 4)),
    "convolution": (lambda: conv(3, 6, 3, padding=1), (3, 7, 7)),
    "stride and dilation": (lambda: conv(4, 6, 3, stride=2, dilation=2, padding=2), (4, 9, 9)),
    "groups": (lambda: conv(4, 6, 3, groups=2, bias=False), (4, 6, 6)),
    "wide, few positions": (lambda: conv(12, 30, 3), (12, 4, 4)),
    "conv1d": (lambda: nn.Sequential(nn.Conv1d(2, 4, 3), nn.Flatten(), nn.Linear(16, 3)), (2, 6)),
    "norms": (
        lambda: nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GroupNorm(2, 8), nn.Linear(8, 3)),
        (6,),
    ),
}


def problem(name: str, n: int = 11):
    make, shape = MODELS[name]
    torch.manual_seed(0)
    model, x = make().double(), torch.randn(n, *shape, dtype=torch.float64)
    model(x[:2])
    params = {key: value.detach() for key, value in model.named_parameters()}
    direction = {key: torch.randn_like(value) for key, value in params.items()}
    return model, params, x, torch.arange(n) % 3, direction


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
