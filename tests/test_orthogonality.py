"""Cosines between records' gradients, against gradients that were formed."""

from __future__ import annotations

import torch
from torch import nn

from leakscope.core.dataset import Dataset
from leakscope.gradients import per_record
from leakscope.measures.orthogonality import orthogonality, update_cosines


def setting(width: int = 5):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(width, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    params = {key: value.detach() for key, value in model.named_parameters()}
    members, others = (
        Dataset(torch.randn(n, width, dtype=torch.float64), torch.arange(n) % 3, {}) for n in (7, 9)
    )
    return model, params, members, others


def formed(model, params, data, layer):
    every = per_record(model, params, data.x, data.y)
    flat = torch.cat([g.flatten(1) for name, g in every.items() if name.startswith(layer)], dim=1)
    return nn.functional.normalize(flat, dim=1)


def test_pairs_are_the_cosines_of_formed_gradients_without_a_record_with_itself():
    model, params, members, others = setting()
    found = orthogonality(model, params, members, others, among=4)
    for layer in ("0", "2"):
        ours, theirs = (formed(model, params, data, layer) for data in (members, others))
        expected = (ours[:4] @ ours.mT)[~torch.eye(4, 7, dtype=torch.bool)]
        torch.testing.assert_close(found.members[layer], expected)
        torch.testing.assert_close(found.mixed[layer], (ours[:4] @ theirs.mT).flatten())
        expected = (theirs[:4] @ theirs.mT)[~torch.eye(4, 9, dtype=torch.bool)]
        torch.testing.assert_close(found.others[layer], expected)


def test_the_cosine_with_an_update_is_that_of_formed_gradients():
    model, params, members, _ = setting()
    update = {name: torch.randn_like(p) for name, p in params.items()}
    for layer, cosines in update_cosines(model, params, update, members).items():
        along = torch.cat([part.flatten() for name, part in update.items() if name.startswith(layer)])
        expected = formed(model, params, members, layer) @ along / along.norm()
        torch.testing.assert_close(cosines, expected)


def test_wider_layers_bring_gradients_nearer_to_orthogonal():
    """Paper 002, section 2.2: the cosines of independent records spread less the more inputs there are."""
    spreads = []
    for width in (5, 50, 500):
        model, params, members, others = setting(width)
        spreads.append(float(orthogonality(model, params, members, others).mixed["0"].std()))
    assert spreads == sorted(spreads, reverse=True)
