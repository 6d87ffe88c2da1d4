"""Membership by the row space of an upload: members' inputs of a linear layer lie in it, others' do not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from leakscope.attacks.alignment import Sees, candidates, victim
from leakscope.attacks.spans import inputs_at, upload_floor, with_one
from leakscope.core.errors import POSITIVE, ArgumentError, at_least, check, require
from leakscope.core.nouns import Guess, Knowledge, Release, View
from leakscope.models import layers_of


@dataclass(frozen=True, eq=False)
class Reach:
    """How a layer told members: its name, the rank of its uploads, how many dimensions there are, and the
    score that one in a hundred known non-members reaches."""

    layer: str
    rank: int
    width: int
    null: float


@dataclass(frozen=True)
class SpanDistance:
    """How near a record's input of a linear layer lies to the row space of the layer's upload.

    The score is minus the decimal logarithm of that distance, as a share of the input's length; directions
    count as far as they stand above the rounding of ``steps`` local steps. Rounds are stacked where the
    layer's inputs are the same in all of them, else their scores are averaged. ``kept`` is the share of its
    start that a parameter keeps under L2 decay. ``layer``: a name, or "first", the first linear layer in
    whose row space known non-members do not lie: at most one in a hundred scores ``near`` or more; if there
    is none, the layer where they score least. Beyond the rank, and under Adam, Whitened finds more."""

    sees: ClassVar[Sees] = "updates"
    taught: ClassVar[bool] = False  # by members it is told
    layer: str = "first"
    near: float = 2.5
    steps: int = 25
    kept: float = 1.0

    def __post_init__(self) -> None:
        check(self, steps=at_least(1), near=POSITIVE)
        require(0 < self.kept <= 1, "SpanDistance.kept", "above 0 and at most 1", self.kept)

    def check(self, model: nn.Module, x: Tensor, y: Tensor) -> None:
        """Refuse a model that it cannot be played on."""
        _linear(model, self.layer)

    def __call__(self, knowledge: Knowledge, rng: torch.Generator) -> Guess:
        model, known = victim(knowledge), candidates(knowledge.simulate(rng)[0])[0]

        def guess(view: View) -> Tensor:
            x = candidates(view)[0]
            reach = self.reach(model, view, known)
            return self._scores(model, view, reach.layer, x)[0]

        return guess

    def reach(self, model: nn.Module, view: View, known: Tensor) -> Reach:
        """The layer to go by, chosen on known non-members alone."""
        found = []
        for layer in _linear(model, self.layer):
            scores, rank, width = self._scores(model, view, layer, known)
            found.append(Reach(layer, rank, width, float(scores.quantile(0.99))))
        clear = [reach for reach in found if reach.null < self.near]
        return clear[0] if clear else min(found, key=lambda reach: reach.null)

    def _scores(self, model: nn.Module, view: View, layer: str, x: Tensor) -> tuple[Tensor, int, int]:
        """The scores (n,), and the rank and width of the row space; of several, of the last round's."""
        rounds = [_round(model, release, layer, x, self.kept) for release in view.releases]
        if all(torch.equal(inputs, rounds[0][0]) for inputs, _, _ in rounds):
            stacked = torch.cat([matrix for _, matrix, _ in rounds])
            rounds = [(rounds[0][0], stacked, rounds[0][2])]
        scores = []
        for inputs, matrix, start in rounds:
            eps = torch.finfo(start.dtype).eps
            floor = upload_floor(start, eps, self.steps) * (len(matrix) / len(start)) ** 0.5
            score, rank = _score(inputs, matrix, floor)
            scores.append(score)
        return torch.stack(scores).mean(0), rank, matrix.shape[1]


def _round(
    model: nn.Module, release: Release, layer: str, x: Tensor, kept: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The layer's inputs (n, d) of candidates, its upload (m, d) and its start (m, d), each with the bias."""
    params, layers = dict(release.params), release.layers
    names = [name for name in (f"{layer}.weight", f"{layer}.bias") if name in layers]
    for name in names:
        require(len(layers[name]) == 1, f"the release's layer {name!r}", "of one client", len(layers[name]))
    start = torch.cat([params[name].reshape(len(params[name]), -1) for name in names], dim=1)
    change = torch.cat([layers[name][0].reshape(len(start), -1) for name in names], dim=1).double()
    inputs = inputs_at(model, params, layer, x).double()
    inputs = inputs if len(names) == 1 else with_one(inputs)
    return inputs, change - (1 - kept) * start.double(), start


def _score(inputs: Tensor, matrix: Tensor, floor: float) -> tuple[Tensor, int]:
    _, s, vh = torch.linalg.svd(matrix, full_matrices=False)
    along = (inputs @ vh.T).square()
    length = inputs.square().sum(1)
    damped = torch.where(s > floor, floor**2 / (s**2 + floor**2), 1.0)
    missed = (length - along.sum(1)).clamp(min=0) + (along * damped).sum(1)
    share = (missed / length).clamp(min=torch.finfo(matrix.dtype).eps ** 2)
    return -0.5 * share.log10(), int((s > floor).sum())


def _linear(model: nn.Module, layer: str) -> list[str]:
    """The linear layers to choose among."""
    known = [name for name in layers_of(model) if isinstance(model.get_submodule(name), nn.Linear)]
    if not known or layer not in ("first", *known):
        raise ArgumentError(
            f"SpanDistance.layer must be 'first' or a linear layer of the model, got {layer!r}; it has: "
            f"{', '.join(known) or 'none'}."
        )
    return known if layer == "first" else [layer]
