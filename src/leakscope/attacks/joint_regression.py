"""Membership inference from sums in which everyone is: all candidates' gradients explain the sum together."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn

from leakscope.attacks.alignment import (
    Sees,
    candidates,
    labels_for,
    loss_for,
    seen_in,
    sign_of,
    victim,
)
from leakscope.attacks.whitened import OnWhitened, Records, Whitened
from leakscope.core.errors import POSITIVE, ArgumentError, at_least, check
from leakscope.core.nouns import Guess, Knowledge, Release, View
from leakscope.core.rng import integer
from leakscope.gradients.aligned import list_too_large, whitened_gram
from leakscope.models import parameters


@dataclass(frozen=True)
class JointRegression(OnWhitened):
    """The coefficient of a record's gradient in the sum, of a regression on all candidates' at once.

    In coordinates as `Whitened` has them, the gradients of each layer of unit length in the mean, the
    update u is regressed on the gradients G of all candidates: b = (GGᵀ + cI)⁻¹Gu, where c is ``ridge``
    times the mean squared length of a gradient. The score is b over its standard error if the rest of u were
    noise, over its root mean square in the round, and the mean over rounds. Every candidate enters alike, so
    that held-out non-members among them stay exchangeable with the judged ones. The more of the records
    behind the update are listed, the less of it is noise, and the more is found. More than ``most`` are
    regressed in groups, drawn at random. Null setting: a ridge without end, the cosine of `Whitened`.
    """

    sees: ClassVar[Sees] = "updates"
    together: ClassVar[bool] = True  # what is said of a record depends on which others are listed
    whitened: Whitened = field(default_factory=Whitened)
    ridge: float = 0.3
    most: int = 5_000

    def __post_init__(self) -> None:
        check(self, ridge=POSITIVE, most=at_least(2))
        if self.whitened.label == "max":
            raise ArgumentError("JointRegression.whitened.label must be known, predicted or sum, got 'max'.")

    def list_left_out(self, model: nn.Module, x: Tensor, y: Tensor, n: int) -> list[str]:
        """The layers that it does not look at where ``n`` candidates such as these are asked about."""
        loss, at_once = loss_for(model, "known"), -(-n // -(-n // self.most))
        return list_too_large(model, parameters(model), x, y, at_once, loss=loss)

    def __call__(self, knowledge: Knowledge, rng: torch.Generator) -> Guess:
        model, known, seed = victim(knowledge), self.whitened.known(knowledge, rng), integer(rng)

        def guess(view: View) -> Tensor:
            x, y = candidates(view)
            groups = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
            total = torch.zeros(len(x), dtype=torch.float64)
            for release in view.releases:
                for rows in groups.tensor_split(-(-len(x) // self.most)):
                    total[rows] += self._regress(model, release, (x[rows], y[rows]), known).double()
            return total / len(view.releases)

        return guess

    def _regress(self, model: nn.Module, release: Release, asked: Records, known: Records) -> Tensor:
        """Each candidate's coefficient over its standard error, in units of the round's."""
        params, update = seen_in(release)
        model = self.whitened.settle(model, release, known)
        whitening = self.whitened.whitening(model, params, release.layers, known)
        y, loss = labels_for(model, params, *asked, self.label), loss_for(model, self.label)
        gram, along = torch.zeros(()), torch.zeros(())
        for inner, dots in whitened_gram(model, params, asked[0], y, update, whitening, loss=loss):
            if bool(dots.any()):  # it moved
                weight = 1 / float(inner.diagonal().mean())
                gram, along = gram + weight * inner, along + weight * dots
        if gram.dim() == 0:
            return torch.zeros(len(y))
        c = float(self.ridge * gram.diagonal().mean())
        gram.diagonal().add_(c)
        inverse = torch.cholesky_inverse(torch.linalg.cholesky(gram))
        error = (inverse.diagonal() - c * inverse.square().sum(1)).clamp(min=torch.finfo(gram.dtype).tiny)
        t = sign_of(self.label) * (inverse @ along) / error.sqrt()
        return t / t.square().mean().sqrt().clamp(min=torch.finfo(t.dtype).tiny)
