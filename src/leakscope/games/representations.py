"""What an encoder releases of private records, and the game about the share of a property among them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor, nn

from leakscope.core.dataset import Batch, Dataset
from leakscope.core.errors import ArgumentError, require
from leakscope.core.nouns import Layers, Release
from leakscope.core.rng import integer
from leakscope.guards.batches import Aggregate
from leakscope.guards.encoder import Encoder, represented

BLOCK = 4_096  # records that are encoded at once
ENTRIES = 50_000_000  # numbers of one block of trials, before they are aggregated


@dataclass(frozen=True, eq=False)
class RepresentationChannel:
    """Releases the encoder's representation of each record, or the mean or largest of a batch's.

    ``draws`` above 1: the mean of so many fresh draws, as an adversary gets who may query again; 1: the
    one draw that is frozen for each record, seeded by ``key``. A row of -1 stands for no record.
    """

    encoder: Encoder
    aggregate: Aggregate | None = None
    draws: int = 1
    key: int = 0

    def __post_init__(self) -> None:
        require(self.draws >= 1, "RepresentationChannel.draws", "at least 1", self.draws)
        known = self.aggregate in (None, "mean", "max")
        require(known, "RepresentationChannel.aggregate", "None, 'mean' or 'max'", self.aggregate)

    def rehearsed(self, rng: torch.Generator) -> Self:
        """The channel of an adversary who has the encoder, and not the key of its frozen draws."""
        return replace(self, key=integer(rng))

    def __call__(self, batch: Batch, secret: Tensor, rng: torch.Generator) -> tuple[Release, ...]:
        rows = batch.rows
        missing = bool((rows < 0).any())
        if missing and self.aggregate is None:
            raise ArgumentError(
                "RepresentationChannel.aggregate must be 'mean' or 'max' where subsets differ in size, got "
                "None."
            )
        if bool((rows < 0).all(1).any()) or not rows.shape[1]:
            raise ArgumentError(
                "RepresentationChannel must be given at least one record a trial, got an empty subset; leave "
                "such trials out."
            )
        drawn, places = rows.clamp(min=0).unique(return_inverse=True)
        known = torch.cat([self._held(batch.data.take(part), rng) for part in drawn.split(BLOCK)])
        absent = rows < 0
        step = max(1, ENTRIES // (rows.shape[1] * known.shape[1]))

        def blocks() -> Iterator[Layers]:
            for part, gone in zip(places.split(step), absent.split(step), strict=True):
                yield {"representation": self._aggregated(known[part], gone)}

        return (Release({}, blocks),)

    def _held(self, data: Dataset, rng: torch.Generator) -> Tensor:
        """What crosses the wire of each record (n, d)."""
        return self._encoded(data.x, rng)

    def _encoded(self, x: Tensor, rng: torch.Generator) -> Tensor:
        """(n, d), one row for each record."""
        if self.draws == 1:
            return self.encoder(x, key=self.key).flatten(1)
        total = self.encoder(x, rng=rng).flatten(1)
        for _ in range(self.draws - 1):
            total = total + self.encoder(x, rng=rng).flatten(1)
        return total / self.draws

    def _aggregated(self, shown: Tensor, gone: Tensor) -> Tensor:
        """(t, k, d), and which stand for no record (t, k) -> (t, d), or (t, k d) one after the other."""
        if self.aggregate is None:
            return shown.flatten(1)
        if self.aggregate == "max":
            return shown.masked_fill(gone[:, :, None], -torch.inf).amax(1)
        there = (~gone)[:, :, None]
        return (shown * there).sum(1) / there.sum(1)


class Clean(nn.Module):
    """An encoder without its noise as one module, for who differentiates through it."""

    def __init__(self, network: nn.Module, *, normed: bool) -> None:
        super().__init__()
        self.network, self.normed = network, normed

    def forward(self, x: Tensor) -> Tensor:
        return represented(self.network, x, normed=self.normed)


def whole(encoder: Encoder) -> nn.Module:
    """Encoder and head as one model, without the encoder's noise: what a `GradientChannel` attacks."""
    if encoder.head is None:
        raise ArgumentError(
            "whole needs an encoder with a head, and this one has none; train one on its representations."
        )
    return nn.Sequential(Clean(encoder.network, normed=encoder.normed), encoder.head)
