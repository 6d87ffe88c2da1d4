"""The whitened alignment, against gradients that were formed and moments that were inverted."""

from __future__ import annotations

import pytest
import torch
from builders import MODELS, problem, refuses
from torch import nn

from leakscope.core.errors import ArgumentError
from leakscope.gradients import aligned, alignment, moments, per_record
from leakscope.gradients.aligned import whitened_cosines

RULED = [name for name in MODELS if name != "conv1d"]


def matched(gradient, direction, inverse_in, inverse_out):
    """<B^-1 V A^-1, g> with every matrix written out, positions of the kernel and groups apart."""
    groups = gradient.shape[0] // len(inverse_out)
    shape = (groups, len(inverse_out), len(inverse_in), -1)
    g, v = gradient.reshape(shape), direction.reshape(shape)
    total = 0.0
    for group in range(groups):
        for k in range(g.shape[3]):
            total += (inverse_out @ v[group, :, :, k] @ inverse_in * g[group, :, :, k]).sum()
    return total


@pytest.mark.parametrize("name", RULED)
def test_whitened_dots_and_norms_are_those_of_the_matched_filter(name):
    model, params, x, y, direction = problem(name)
    found = moments(model, params, x, y)
    whitening = found.whitening(damping=dict.fromkeys(found.inputs, 0.1))
    result = alignment(model, params, x, y, direction, whitening=whitening)
    every = per_record(model, params, x, y)
    assert set(result) == {key for key in params if params[key].dim() > 1}
    for key, (dots, squares) in result.items():
        inverses = []
        for moment in (found.inputs[key], found.outputs[key]):
            damped = moment.clone()
            damped.diagonal().add_(0.1 * moment.diagonal().mean())
            inverses.append(damped.inverse())
        for i, g in enumerate(every[key]):
            torch.testing.assert_close(dots[i], matched(g, direction[key], *inverses), rtol=1e-9, atol=1e-11)
            torch.testing.assert_close(squares[i], matched(g, g, *inverses), rtol=1e-9, atol=1e-11)


def test_moments_are_the_means_of_outer_products_over_records_and_positions():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(48, 4)).double()
    x, y = torch.randn(9, 2, 4, 4, dtype=torch.float64), torch.arange(9) % 4
    params = {key: value.detach() for key, value in model.named_parameters()}
    found = moments(model, params, x, y)
    columns = x.permute(0, 2, 3, 1).reshape(-1, 2)
    torch.testing.assert_close(found.inputs["0.weight"], columns.mT @ columns / len(columns))
    hidden = model[2](model[1](model[0](x)))
    torch.testing.assert_close(found.inputs["3.weight"], hidden.mT @ hidden / 9)
    errors = model(x).softmax(1) - nn.functional.one_hot(y, 4)
    torch.testing.assert_close(found.outputs["3.weight"], errors.mT @ errors / 9)


def test_moments_do_not_depend_on_how_many_records_share_a_pass(monkeypatch):
    from leakscope.gradients import whitened

    model, params, x, y, direction = problem("convolution", n=20)
    whole = moments(model, params, x, y)
    aligned_whole = alignment(
        model, params, x, y, direction, whitening=whole.whitening(damping=dict.fromkeys(whole.inputs, 0.3))
    )
    monkeypatch.setattr(whitened, "PASS", 6)
    monkeypatch.setattr(aligned, "PASS", 7)
    parts = moments(model, params, x, y)
    aligned_parts = alignment(
        model, params, x, y, direction, whitening=parts.whitening(damping=dict.fromkeys(parts.inputs, 0.3))
    )
    for key in whole.inputs:
        torch.testing.assert_close(whole.inputs[key], parts.inputs[key])
        torch.testing.assert_close(aligned_whole[key], aligned_parts[key])


def test_whitened_gradients_of_the_records_themselves_have_unit_moments():
    model, params, x, y, _ = problem("linear", n=200)
    found = moments(model, params, x, y)
    whitening = found.whitening(damping=dict.fromkeys(found.inputs, 1e-9))
    for key, moment in found.inputs.items():
        root = whitening.inputs[key]
        torch.testing.assert_close(
            root @ moment @ root.mT, torch.eye(len(moment), dtype=torch.float64), atol=1e-6, rtol=0
        )


def test_a_model_without_rules_is_refused_and_told_what_to_use():
    model, params, x, y, _ = problem("conv1d")
    refuses(ArgumentError, "use the cosine", moments, model, params, x, y)


@pytest.mark.parametrize("name", RULED)
def test_several_updates_at_once_are_each_of_them_alone(name):
    model, params, x, y, direction = problem(name)
    found = moments(model, params, x, y)
    whitening = found.whitening(damping=dict.fromkeys(found.inputs, 0.1))
    updates = {key: torch.stack([value, value.flip(0), 0 * value]) for key, value in direction.items()}
    together = whitened_cosines(model, params, x, y, updates, whitening)
    for i in range(3):
        single = {key: value[i] for key, value in updates.items()}
        for key, (dots, squares) in alignment(model, params, x, y, single, whitening=whitening).items():
            torch.testing.assert_close(together[key][i], dots / squares.sqrt(), rtol=1e-9, atol=1e-11)
