"""User inference by what a linear layer takes: told by the release, and computed of the candidates."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from leakscope.attacks.spans import inputs_at
from leakscope.attacks.traits import OF_PEOPLE
from leakscope.attacks.users import log_density, shown_candidates
from leakscope.core.errors import POSITIVE, at_least, check
from leakscope.core.nouns import Guess, Knowledge, Layers, View
from leakscope.models import layers_of

PASS = 512  # records in one forward pass
FLOOR = 0.1  # of the largest bias, below which a release's mean input is not made larger


@dataclass(frozen=True)
class MeanInput:
    """The likeliest candidate by the mean input of the first linear layer, which no label has turned.

    What the layer's gradient gives in closed form (`FirstInput`) is held against the mean of what the layer
    takes of each candidate's records, in a forward pass. The gradient of a candidate's batch would depend on
    its labels too. Evidence is log p(release | candidate) - log p(release), both Gaussian, by a regression on
    public people in ``components`` principal directions of both with ``ridge`` times their mean variance
    added. Records of a batch that pull the bias in opposite directions cancel: releases whose bias is of
    another size, in ``groups`` from none to the largest, have covariances of their own where four times the
    components were rehearsed. All rounds are one vector.
    Where there is no such layer it says nothing. Null setting: a ridge of 1e9.
    """

    plays: ClassVar[tuple[str, ...]] = OF_PEOPLE
    components: int = 30
    ridge: float = 0.3
    groups: int = 3

    def __post_init__(self) -> None:
        check(self, components=at_least(1), ridge=POSITIVE, groups=at_least(1))

    def __call__(self, knowledge: Knowledge, rng: torch.Generator) -> Guess:
        view, secrets = knowledge.simulate(rng)
        model = getattr(knowledge.channel, "model", None)
        layer = find_layer(model, view) if isinstance(model, nn.Module) else None
        if not isinstance(model, nn.Module) or layer is None:
            return lambda view: torch.zeros(1, *shown_candidates(view)[1].shape, dtype=torch.float64)
        still = deepcopy(model).eval()
        own, sizes, theirs = _describe(still, layer, view)
        theirs = theirs[torch.arange(len(own)), secrets]
        whole = _Regression.fit(own, theirs, self)
        edges = sizes.max() * torch.arange(1, self.groups, dtype=sizes.dtype) / self.groups
        place, fitted = torch.bucketize(sizes, edges), []
        for i in range(self.groups):
            few = int((place == i).sum()) < 4 * self.components
            fitted.append(whole if few else _Regression.fit(own[place == i], theirs[place == i], self))

        def guess(view: View) -> Tensor:
            own, sizes, theirs = _describe(still, layer, view)
            place, said = torch.bucketize(sizes, edges), torch.zeros(theirs.shape[:2], dtype=torch.float64)
            for i in place.unique().tolist():
                said[place == i] = fitted[i].ratios(own[place == i], theirs[place == i])
            return said[None]

        return guess


def find_layer(model: nn.Module, view: View) -> str | None:
    """The first linear layer with a bias of which both are released, if it takes one vector of a record."""
    release, batch = view.releases[0], shown_candidates(view)[0]
    if not batch.data.x.is_floating_point():  # words are looked up before any layer takes a vector
        return None
    released = next(iter(release.blocks()), {})
    for name in layers_of(model):
        both = f"{name}.weight" in released and f"{name}.bias" in released
        if both and isinstance(model.get_submodule(name), nn.Linear):
            taken = inputs_at(deepcopy(model).eval(), release.params, name, batch.data.x[:2])
            return name if taken.dim() == 2 else None
    return None


def _describe(model: nn.Module, layer: str, view: View) -> tuple[Tensor, Tensor, Tensor]:
    """Of every trial the mean input that its releases give (t, f), the size of their biases (t,), and the
    mean inputs of its candidates (t, m, f), rounds side by side."""
    batch = shown_candidates(view)[0]
    own, sizes, theirs = [], [], []
    for release in view.releases:
        parts = [_mean_input(layers, layer) for layers in release.blocks()]
        own.append(torch.cat([mean for mean, _ in parts]))
        sizes.append(torch.cat([size for _, size in parts]))
        passes = [inputs_at(model, release.params, layer, x) for x in batch.data.x.split(PASS)]
        theirs.append(torch.cat(passes).double()[batch.rows].mean(2))
    return torch.cat(own, 1), torch.stack(sizes).mean(0), torch.cat(theirs, 2)


def _mean_input(layers: Layers, layer: str) -> tuple[Tensor, Tensor]:
    weight, bias = layers[f"{layer}.weight"].double(), layers[f"{layer}.bias"].double()
    size = bias.abs().sum(1)
    least = (FLOOR * size.max()).clamp(min=torch.finfo(size.dtype).tiny)
    return torch.einsum("to,toi->ti", bias.sign(), weight) / size.clamp(min=least)[:, None], size


@dataclass(frozen=True, eq=False)
class _Regression:
    """Releases less ``centre`` on candidates less ``other``, in the ``basis`` of both."""

    centre: Tensor
    other: Tensor
    basis: Tensor
    gain: Tensor
    alone: Tensor
    given: Tensor

    @staticmethod
    def fit(own: Tensor, theirs: Tensor, attack: MeanInput) -> _Regression:
        centre, other = own.mean(0), theirs.mean(0)
        both = torch.cat([own - centre, theirs - other])
        kept = min(attack.components, *both.shape)
        basis = torch.linalg.svd(both, full_matrices=False)[2][:kept].T
        x, y = (own - centre) @ basis, (theirs - other) @ basis
        floors = [attack.ridge * float(part.square().mean()) + 1e-30 for part in (x, y)]
        xx, yy, yx = x.T @ x / len(x), y.T @ y / len(y), y.T @ x / len(x)
        one = torch.eye(kept, dtype=x.dtype)
        alone, gain = xx + floors[0] * one, torch.linalg.solve(yy + floors[1] * one, yx)
        given = alone - yx.T @ gain
        return _Regression(centre, other, basis, gain, alone, (given + given.T) / 2)

    def ratios(self, own: Tensor, theirs: Tensor) -> Tensor:
        """Log evidence (t, m) for each candidate."""
        x, y = (own - self.centre) @ self.basis, (theirs - self.other) @ self.basis
        return log_density(x[:, None] - y @ self.gain, self.given) - log_density(x, self.alone)[:, None]
