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
from leakscope.models import layers_of, parameters


@dataclass(frozen=True)
class Reach:
    """How a layer told members: its name, the rank of its uploads, the ``most`` that it could be, and the
    score that one in a hundred known non-members reaches. ``gap``: the last singular value that counts over
    the next, or over rounding if that is larger. ``clear``: known non-members do not lie in the space."""

    layer: str
    rank: int
    most: int
    null: float
    gap: float
    clear: bool

    @property
    def open(self) -> bool:
        """Whether the rank could be higher, so that no member is without a dimension, and known non-members
        do not lie in the space."""
        return self.clear and self.rank < self.most


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
    loss_free: ClassVar[bool] = True  # whatever loss the clients descend
    layer: str = "first"
    near: float = 2.5
    steps: int = 25
    kept: float = 1.0

    def __post_init__(self) -> None:
        check(self, steps=at_least(1), near=POSITIVE)
        require(0 < self.kept <= 1, "SpanDistance.kept", "above 0 and at most 1", self.kept)

    def check(self, model: nn.Module, x: Tensor, y: Tensor) -> None:
        """Refuse a model that it cannot be played on."""
        for layer in _linear(model, self.layer):
            _check_vectors(model, layer, x, "SpanDistance.layer")

    def __call__(self, knowledge: Knowledge, rng: torch.Generator) -> Guess:
        model, known = victim(knowledge), candidates(knowledge.simulate(rng)[0])[0]

        def guess(view: View) -> Tensor:
            return self._choose(model, view, known, candidates(view)[0])[1]

        return guess

    def reach(self, model: nn.Module, view: View, known: Tensor) -> Reach:
        """The layer to go by, chosen on known non-members alone."""
        return self._choose(model, view, known, known[:0])[0]

    def _choose(self, model: nn.Module, view: View, known: Tensor, x: Tensor) -> tuple[Reach, Tensor]:
        """The layer to go by, chosen on known non-members alone, and the scores (n,) of records there."""
        choices = []
        for layer in _linear(model, self.layer):
            scores, rank, most, gap = self._scores(model, view, layer, torch.cat([known, x]))
            null = float(scores[: len(known)].quantile(0.99))
            choices.append((Reach(layer, rank, most, null, gap, null < self.near), scores[len(known) :]))
            if choices[-1][0].clear:
                return choices[-1]
        return min(choices, key=lambda choice: choice[0].null)

    def _scores(self, model: nn.Module, view: View, layer: str, x: Tensor) -> tuple[Tensor, int, int, float]:
        """The scores (n,), and the rank, the most that it could be by rows and columns that changed, and the
        gap; of several, of the last round's."""
        scores, rounds = (
            [],
            _stack([_round(model, release, layer, x, self.kept) for release in view.releases]),
        )
        for inputs, matrix, start in rounds:
            eps = torch.finfo(start.dtype).eps
            floor = upload_floor(start, eps, self.steps) * (len(matrix) / len(start)) ** 0.5
            score, rank, gap = _score(inputs, matrix, floor)
            scores.append(score)
        moved = matrix != 0
        return torch.stack(scores).mean(0), rank, min(map(int, (moved.any(0).sum(), moved.any(1).sum()))), gap


@dataclass(frozen=True)
class WhitenedSpan:
    """How little of a record's whitened input of a linear layer lies where the layer's uploads are small.

    Every row of an upload is a sum over the members' inputs a, whatever loss they descend: nothing needs to
    be known of it, nor of the networks behind the layer. With w = A^(-1/2) a, A the second moment of known
    non-members' inputs with ``damping`` times its mean diagonal added, and the upload times A^(-1/2) =
    U S V', the score is minus the logarithm of the sum over j of (v_j . w)^2 / (s_j^2 + e^2), over |w|^2,
    where e is ``floor`` times the largest s; rounds as in `SpanDistance`. It goes on where members are more
    than the rank, and is weaker than `Whitened` where the loss is known. ``layer``: a name, or "first", the
    first linear layer. Null setting: a floor of 1e9, where everybody scores the same."""

    sees: ClassVar[Sees] = "updates"
    taught: ClassVar[bool] = False
    loss_free: ClassVar[bool] = True
    layer: str = "first"
    damping: float = 1e-3
    floor: float = 1e-3

    def __post_init__(self) -> None:
        check(self, damping=POSITIVE, floor=POSITIVE)

    def check(self, model: nn.Module, x: Tensor, y: Tensor) -> None:
        """Refuse a model that it cannot be played on."""
        _check_vectors(model, _linear(model, self.layer)[0], x, "WhitenedSpan.layer")

    def __call__(self, knowledge: Knowledge, rng: torch.Generator) -> Guess:
        model, known = victim(knowledge), candidates(knowledge.simulate(rng)[0])[0]
        require(len(known) >= 4, "WhitenedSpan's known non-members", "at least 4", len(known))
        layer = _linear(model, self.layer)[0]

        def guess(view: View) -> Tensor:
            x = torch.cat([known, candidates(view)[0]])
            rounds = _stack([_round(model, release, layer, x, 1.0) for release in view.releases])
            scores = [self._scores(inputs, matrix, len(known)) for inputs, matrix, _ in rounds]
            return torch.stack(scores).mean(0)

        return guess

    def _scores(self, inputs: Tensor, matrix: Tensor, known: int) -> Tensor:
        """Of the inputs after those of so many known non-members, in units of their spread."""
        moment = inputs[:known].T @ inputs[:known] / known
        values, vectors = torch.linalg.eigh(moment)
        root = vectors / (values.clamp(min=0) + self.damping * moment.diagonal().mean()).sqrt()
        _, s, vh = torch.linalg.svd(matrix @ root)
        if not bool(s[0] > 0):
            return torch.zeros(len(inputs) - known, dtype=torch.float64)
        stretch = torch.zeros(len(vh), dtype=torch.float64)
        stretch[: len(s)] = s
        white = inputs @ root
        outside = (white @ vh.T).square() @ (stretch.square() + (self.floor * s[0]) ** 2).reciprocal()
        score = -(outside / white.square().sum(1)).log()
        null = score[:known]
        spread = null.std()
        standardised: Tensor = (score[known:] - null.mean()) / (spread if spread > 0 else 1.0)
        return standardised


def largest_rank(model: nn.Module, rounds: int, *, first: bool = False) -> int:
    """How many dimensions the updates of a linear layer (the ``first``, or any) span at most: clients of so
    many records, or more, are beyond it. Of the first layer, whose inputs are the records, all rounds count
    together. 0 where the model does not begin with a linear layer."""
    modules = dict(model.named_modules())
    layers = [modules.get(name) for name in layers_of(model)]
    if not layers or not isinstance(layers[0], nn.Linear):
        return 0
    shapes = [layer.weight.shape for layer in layers if isinstance(layer, nn.Linear)]
    ranks = [min(m * (rounds if i == 0 else 1), d + 1) for i, (m, d) in enumerate(shapes)]
    return ranks[0] if first else max(ranks)


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


def _stack(rounds: list[tuple[Tensor, Tensor, Tensor]]) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Rounds in which the inputs are the same as one, with their uploads below each other."""
    inputs, _, start = rounds[0]
    if not all(torch.equal(other, inputs) for other, _, _ in rounds):
        return rounds
    return [(inputs, torch.cat([matrix for _, matrix, _ in rounds]), start)]


def _check_vectors(model: nn.Module, layer: str, x: Tensor, name: str) -> None:
    taken = inputs_at(model, parameters(model), layer, x)
    rule = f"layers that take one vector of each record, and {layer!r} does not"
    require(taken.dim() == 2, name, rule, layer, way_out="name another layer")


def _score(inputs: Tensor, matrix: Tensor, floor: float) -> tuple[Tensor, int, float]:
    _, s, vh = torch.linalg.svd(matrix, full_matrices=False)
    along = (inputs @ vh.T).square()
    length = inputs.square().sum(1)
    damped = torch.where(s > floor, floor**2 / (s**2 + floor**2), 1.0)
    missed = (length - along.sum(1)).clamp(min=0) + (along * damped).sum(1)
    share = (missed / length).clamp(min=torch.finfo(matrix.dtype).eps ** 2)
    rank = int((s > floor).sum())
    below = max(floor, float(s[rank]) if rank < len(s) else 0.0)
    return -0.5 * share.log10(), rank, float(s[rank - 1]) / below if rank and below else 0.0


def _linear(model: nn.Module, layer: str) -> list[str]:
    """The linear layers to choose among."""
    known = [name for name in layers_of(model) if isinstance(model.get_submodule(name), nn.Linear)]
    if not known or layer not in ("first", *known):
        raise ArgumentError(
            f"layer must be 'first' or a linear layer of the model, got {layer!r}; it has: "
            f"{', '.join(known) or 'none'}."
        )
    return known if layer == "first" else [layer]
