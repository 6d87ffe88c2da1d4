"""Defenses that change what a client trains for: mixtures of records, and confidences like others'."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from leakscope.core.dataset import Dataset
from leakscope.core.errors import ArgumentError, require
from leakscope.core.nouns import Defense, Loss, Objective
from leakscope.core.rng import integer


@dataclass(frozen=True)
class MixupMMD(Defense):
    """Train on mixtures of records, and pull members' confidences towards those of held-out records.

    Li, Li and Ribeiro (CODASPY 2021), as in paper 002, 2.5. Mix-up: records x and x' of a step are mixed
    as s x + (1 - s) x', their losses likewise, with one s ~ Beta(``alpha``, ``alpha``) a step. MMD:
    ``weight`` times the squared maximum mean discrepancy, with a Gaussian kernel of standard deviation
    ``bandwidth``, between the confidences in their labels of the step's records as they are and of as many
    records of ``held``, each with the label of its counterpart; records whose label is not held are left
    out of it, and only the members' side is differentiated. The null setting is alpha = 0 and weight = 0.
    """

    alpha: float = 1.0
    weight: float = 1.0
    held: Dataset | None = field(default=None, repr=False)
    bandwidth: float = 1.0

    def __post_init__(self) -> None:
        for name in ("alpha", "weight"):
            value = getattr(self, name)
            require(0 <= value < float("inf"), f"MixupMMD.{name}", "finite and at least 0", value)
        require(0 < self.bandwidth < float("inf"), "MixupMMD.bandwidth", "positive", self.bandwidth)

    def objective(self, loss: Loss) -> Objective | None:
        if self.alpha == 0 and self.weight == 0:
            return None
        if self.held is None and self.weight > 0:
            raise ArgumentError(
                f"MixupMMD.held must be records that are not trained on, got None with weight {self.weight}; "
                f"give some, or weight 0 for mix-up alone."
            )
        held = self.held

        def joint(predict: Callable[[Tensor], Tensor], x: Tensor, y: Tensor, rng: torch.Generator) -> Tensor:
            out, mixed = _mixed(predict, x, y, loss=loss, alpha=self.alpha, rng=rng)
            if held is None or self.weight == 0:
                return mixed
            held.classes_for("MixupMMD with a weight above 0")
            own, others = counterparts(y, held.y, rng)
            if len(own) == 0:
                return mixed
            with torch.no_grad():
                theirs = confidences(predict(held.x[others]), held.y[others])
            ours = confidences(predict(x) if out is None else out, y)[own]
            return mixed + self.weight * discrepancy(ours, theirs, self.bandwidth)

        return joint


def _mixed(
    predict: Callable[[Tensor], Tensor],
    x: Tensor,
    y: Tensor,
    *,
    loss: Loss,
    alpha: float,
    rng: torch.Generator,
) -> tuple[Tensor | None, Tensor]:
    """The loss of mixed records; without mixing, the logits of the records as they are, too."""
    if alpha == 0:
        out = predict(x)
        return out, loss(out, y)
    s = float(np.random.default_rng(integer(rng)).beta(alpha, alpha))
    other = torch.randperm(len(x), generator=rng)
    out = predict(s * x + (1 - s) * x[other])
    return None, s * loss(out, y) + (1 - s) * loss(out, y[other])


def confidences(logits: Tensor, y: Tensor) -> Tensor:
    """The softmax probability (n, 1) of each record's own label."""
    return logits.softmax(1).gather(1, y[:, None])


def counterparts(y: Tensor, held: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """The places in ``y`` whose label is held, and for each a random place in ``held`` of that label."""
    by_label = held.argsort()
    ordered = held[by_label]
    first, after = torch.searchsorted(ordered, y), torch.searchsorted(ordered, y, right=True)
    drawn = first + (torch.rand(len(y), generator=rng, dtype=torch.float64) * (after - first)).long()
    own = (after > first).nonzero()[:, 0]
    return own, by_label[drawn[own]]


def discrepancy(a: Tensor, b: Tensor, bandwidth: float) -> Tensor:
    """The squared maximum mean discrepancy of two samples (n, d) and (m, d) with the Gaussian kernel
    exp(-|u - v|^2 / (2 bandwidth^2)): the biased estimate, which is at least 0 (Gretton et al., 2012,
    equation 5)."""

    def kernel(u: Tensor, v: Tensor) -> Tensor:
        return (-(u[:, None] - v).square().sum(2) / (2 * bandwidth**2)).exp().mean()

    return kernel(a, a) + kernel(b, b) - 2 * kernel(a, b)
