"""Differentially private gradients: clip every record, add Gaussian noise to the batch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from leakscope.core.errors import require
from leakscope.core.mechanism import Mechanism, gaussian
from leakscope.core.nouns import Defense, Layers
from leakscope.defenses.gradient import noisy

Convention = Literal["paper", "opacus"]


@dataclass(frozen=True)
class DPSGD(Defense):
    """Clip each record's gradient to norm ``clip`` and add Gaussian noise to the batch's mean.

    ``convention="paper"``: every record gets noise of standard deviation ``noise`` before the mean
    is taken, hence noise / sqrt(k) on the mean of k (paper 000, 6.1; 2 and 0.1 by default).
    ``"opacus"``: ``noise`` is a multiplier of the clip, the sum gets noise * clip (Abadi et al.,
    2016), the mean noise * clip / k. The null setting is clip = inf, noise = 0.
    """

    clip: float = 2.0
    noise: float = 0.1
    convention: Convention = "paper"

    def __post_init__(self) -> None:
        require(self.clip > 0, "DPSGD.clip", "positive", self.clip, way_out="to release nothing use Silent()")
        require(0 <= self.noise < float("inf"), "DPSGD.noise", "finite and at least 0", self.noise)
        require(
            self.convention in ("paper", "opacus"), "DPSGD.convention", "paper or opacus", self.convention
        )

    def weigh(self, squares: Mapping[str, Tensor]) -> Mapping[str, Tensor] | None:
        norm = torch.stack(list(squares.values())).sum(0).sqrt()
        weight = (self.clip / norm.clamp(min=torch.finfo(norm.dtype).tiny)).clamp(max=1)
        return dict.fromkeys(squares, weight)

    def release(self, layers: Layers, secret: Tensor | None, rng: torch.Generator, *, batch: int) -> Layers:
        return noisy(layers, self.deviation(batch), rng)

    def noiseless(self) -> DPSGD:
        return replace(self, noise=0.0)

    def deviation(self, batch: int) -> float:
        """The standard deviation of the noise on the mean of ``batch`` records."""
        if self.convention == "paper":
            return self.noise / math.sqrt(batch)
        return self.noise * self.clip / batch if self.noise else 0.0

    def multiplier(self, batch: int) -> float:
        """Noise on the sum of ``batch`` records in units of the clip: the noise multiplier of the
        accountants, for records that are added or removed."""
        return self.deviation(batch) * batch / self.clip

    def mechanism(self, batch: int, entries: int) -> Mechanism | None:
        if not self.noise or math.isinf(self.clip):
            return None
        noise = self.multiplier(batch)  # a record replaced can move the sum by twice the clip
        return gaussian(noise, noise / 2, "record", clip=self.clip, std=self.deviation(batch))
