"""Reconstruction of records from the gradients they left (paper 001, sections 3 and 7).

The adversary has the model, the round's parameters and the released layers, and searches for records whose
gradients are these, as if no defense had changed them. Where it fails it says the public mean record, never
a number that is none: `measures.fidelity.failures` counts this in a transcript, and ``attempt`` tells all
that the attack itself knows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from leakscope.attacks.closed_form import Attempt, SeenLayer, labels_of
from leakscope.attacks.matching import (
    PASS,
    Descent,
    Matching,
    Objective,
    adam,
    cosine,
    evaluated,
    in_turn,
    lbfgs,
    squared,
)
from leakscope.core.errors import ArgumentError, require
from leakscope.core.nouns import Guess, Knowledge, View
from leakscope.core.rng import integer

Label = Literal["analytic", "known", "optimised"]
Precision = Literal["float32", "float64"]
LABELS = ("analytic", "known", "optimised")
PRECISIONS = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True)
class DeepLeakage:
    """Records whose gradients have the least squared distance to the released ones, by L-BFGS (DLG).

    ``label``: "optimised" searches for the label too (Zhu et al., NeurIPS 2019, algorithm 1), "analytic"
    reads it off the last layer (iDLG: Zhao et al. 2020), "known" takes it from the game. ``layers`` narrows
    what is matched further than the release does. A search is given up after ``patience`` evaluations if the
    distance is above ``restart_loss`` times the released gradient's own square, and such a trial starts again
    up to ``restarts`` times; the best of its searches stands. A noisy gradient cannot be met so closely:
    math.inf keeps what is found. ``turn``: of a batch, one record is moved for so many evaluations, then the
    next, as DLG has it for batches (20 are a step of the reference); None: all together. Defaults are the
    reference's: 300 x 20 evaluations, start N(0, 1), no line search. It works on smooth nets; on ReLU it
    mostly diverges.
    """

    label: Label = "analytic"
    layers: tuple[str, ...] | None = None
    evaluations: int = 6_000
    restarts: int = 1
    restart_loss: float = 0.002
    patience: int = 1_000
    precision: Precision = "float32"
    turn: int | None = None

    def __post_init__(self) -> None:
        _check("DeepLeakage", self.label, LABELS, self.restarts, self.precision)
        require(self.evaluations >= 1, "DeepLeakage.evaluations", "at least 1", self.evaluations)
        require(self.patience >= 1, "DeepLeakage.patience", "at least 1", self.patience)
        require(self.turn is None or self.turn >= 1, "DeepLeakage.turn", "None, or at least 1", self.turn)
        require(self.restart_loss > 0, "DeepLeakage.restart_loss", "above 0", self.restart_loss)

    def __call__(self, knowledge: Knowledge, rng: torch.Generator) -> Guess:
        seed = integer(rng)
        return lambda view: self.attempt(knowledge, view, torch.Generator().manual_seed(seed)).records

    def attempt(self, knowledge: Knowledge, view: View, rng: torch.Generator) -> Attempt:
        """What came of every trial, its loss the squared distance."""
        dtype = PRECISIONS[self.precision]
        seen = SeenLayer.of(knowledge, view, layers=self.layers, dtype=dtype)
        if not seen.rounds:
            return seen.nothing()
        labels = _labels(seen, view, self.label, "DeepLeakage")
        search = _Search(seen, Matching(seen.model, seen.loss, seen.rounds, squared), labels)
        least = self.restart_loss * sum(
            (part.square().flatten(1).sum(1) for _, layers in seen.rounds for part in layers.values()),
            start=torch.zeros(seen.trials, dtype=dtype),
        )
        found = Descent.of(torch.zeros(seen.trials, search.width, dtype=dtype))
        for wave_number in range(1 + self.restarts):  # nobody is solved before the first search
            again = (~(found.losses <= least) | (wave_number == 0)).nonzero()[:, 0]
            if not len(again):
                break
            descend = lbfgs if self.turn is None else partial(in_turn, blocks=search.blocks, turn=self.turn)
            wave = descend(
                search.among(again),
                torch.randn(len(again), search.width, generator=rng, dtype=dtype),
                evaluations=self.evaluations,
                patience=self.patience,
                hopeless=least[again],
            )
            found.join(again, wave)
        return search.attempt(found, least)


@dataclass(frozen=True)
class InvertingGradients:
    """Records whose gradients point where the released ones do, smooth ones first, by Adam (Geiping et al.,
    NeurIPS 2020, equation 4).

    One minus the cosine plus ``tv`` times the total variation (the mean absolute difference of neighbours
    down plus that across; records that are no images have none). ``signed`` uses the slopes' signs only,
    ``boxed`` keeps records within the public range. The rate falls to a tenth after 3/8, 5/8 and 7/8 of the
    ``iterations``. All ``restarts`` run beside each other, and the one of least loss stands.
    """

    label: Literal["analytic", "known"] = "analytic"
    layers: tuple[str, ...] | None = None
    iterations: int = 4_800
    tv: float = 0.1
    rate: float = 0.1
    signed: bool = True
    boxed: bool = True
    restarts: int = 0
    precision: Precision = "float32"

    def __post_init__(self) -> None:
        _check("InvertingGradients", self.label, LABELS[:2], self.restarts, self.precision)
        require(self.iterations >= 1, "InvertingGradients.iterations", "at least 1", self.iterations)
        require(self.tv >= 0, "InvertingGradients.tv", "at least 0", self.tv)
        require(self.rate > 0, "InvertingGradients.rate", "above 0", self.rate)

    def __call__(self, knowledge: Knowledge, rng: torch.Generator) -> Guess:
        seed = integer(rng)
        return lambda view: self.attempt(knowledge, view, torch.Generator().manual_seed(seed)).records

    def attempt(self, knowledge: Knowledge, view: View, rng: torch.Generator) -> Attempt:
        """What came of every trial, its loss the cosine distance with the total variation."""
        dtype = PRECISIONS[self.precision]
        seen = SeenLayer.of(knowledge, view, layers=self.layers, dtype=dtype)
        if not seen.rounds:
            return seen.nothing()
        labels = _labels(seen, view, self.label, "InvertingGradients")
        search = _Search(seen, Matching(seen.model, seen.loss, seen.rounds, cosine), labels, self.tv)
        every = torch.arange(seen.trials)
        start = torch.randn((1 + self.restarts) * seen.trials, search.width, generator=rng, dtype=dtype)
        lowest, highest = (limit.to(dtype).expand(seen.shape).flatten() for limit in seen.game.limits)
        wave = adam(
            search.among(every.repeat(1 + self.restarts)),
            start,
            iterations=self.iterations,
            rate=self.rate,
            signed=self.signed,
            limits=(lowest, highest) if self.boxed else None,
        )
        found = Descent.of(torch.zeros(seen.trials, search.width, dtype=dtype))
        for part in torch.arange(len(start)).split(seen.trials):
            found.join(every, wave.take(part))
        return search.attempt(found, torch.full((seen.trials,), torch.finfo(dtype).max, dtype=dtype))


@dataclass(frozen=True, eq=False)
class _Search:
    """Variables are the records of a trial in one row, and the labels' logits where these are searched."""

    seen: SeenLayer
    matching: Matching
    labels: Tensor | None
    tv: float = 0.0

    @property
    def width(self) -> int:
        k, *shape = self.seen.shape
        logits = self.seen.logits(self.seen.game.mean[None]).shape[1] if self.labels is None else 0
        return k * (torch.Size(shape).numel() + logits)

    @property
    def blocks(self) -> list[Tensor]:
        """The variables of each record: its entries, and its label's logits where these are searched."""
        k, *shape = self.seen.shape
        size = torch.Size(shape).numel()
        every = torch.arange(self.width)
        entries, logits = every[: k * size].view(k, size), every[k * size :].view(k, -1)
        return [*torch.cat([entries, logits], dim=1)]

    def among(self, trials: Tensor) -> Objective:
        """The objective of problems that are these trials', some of them perhaps more than once."""

        def objective(variables: Tensor, which: Tensor) -> tuple[Tensor, Tensor]:
            parts = zip(variables.split(PASS), trials[which].split(PASS), strict=True)
            every = [evaluated(part, partial(self._losses, trials=of)) for part, of in parts]
            losses, slopes = zip(*every, strict=True)
            return torch.cat(losses), torch.cat(slopes)

        return objective

    def _losses(self, variables: Tensor, trials: Tensor) -> Tensor:
        size = torch.Size(self.seen.shape).numel()
        x = variables[:, :size].view(-1, *self.seen.shape)
        if self.labels is None:
            y = variables[:, size:].view(len(x), self.seen.game.batch, -1).softmax(-1)
        else:
            y = self.labels[trials]
        losses = self.matching.losses(x, y, trials)
        return losses + self.tv * _variation(x) if self.tv and x.dim() == 5 else losses

    def attempt(self, found: Descent, least: Tensor) -> Attempt:
        records = found.variables[:, : torch.Size(self.seen.shape).numel()]
        made = self.seen.attempt(records, found.losses, least=least, evaluations=found.evaluations)
        return replace(made, labels=self.labels)


def _variation(x: Tensor) -> Tensor:
    down, across = x.diff(dim=-2).abs(), x.diff(dim=-1).abs()
    return down.flatten(1).mean(1) + across.flatten(1).mean(1)


def _labels(seen: SeenLayer, view: View, label: Label, who: str) -> Tensor | None:
    """The labels (t, k) to match with; None: they are searched for."""
    if label == "analytic":
        return labels_of(seen, who)
    if label == "optimised":
        seen.game.data.classes_for(f"{who}.label = 'optimised'")
    told = view.public.get("labels")
    if label == "known" and not isinstance(told, Tensor):
        raise ArgumentError(
            f"{who}.label = 'known' needs a game that tells the labels, and this one does not; use "
            f"Reconstruction(labels=True), or label='analytic'."
        )
    return told if label == "known" and isinstance(told, Tensor) else None


def _check(who: str, label: str, labels: tuple[str, ...], restarts: int, precision: str) -> None:
    require(label in labels, f"{who}.label", f"one of {', '.join(labels)}", label)
    require(restarts >= 0, f"{who}.restarts", "at least 0", restarts)
    require(precision in PRECISIONS, f"{who}.precision", "float32 or float64", precision)
