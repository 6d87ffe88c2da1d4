"""What crosses the wire: gradients, and the two channels every attack is tested against."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from leakscope import gradients
from leakscope.core import Channel, Defense, Layers, Loss, Params, Release, only
from leakscope.dataset import Batch
from leakscope.errors import ArgumentError
from leakscope.rng import integer

BLOCK = 256 * 2**20  # bytes of gradients held at once


@dataclass(frozen=True, eq=False)
class GradientChannel:
    """Each observed round releases the batch's mean gradient at that round's parameters, through
    the defense. The batch is the same in every round (definition 3.1 of paper 000)."""

    model: nn.Module
    rounds: tuple[Params, ...]
    defense: Defense = field(default_factory=Defense)
    loss: Loss = nn.functional.cross_entropy

    def undefended(self) -> GradientChannel:
        """The channel a static adversary believes in."""
        return replace(self, defense=Defense())

    def __call__(self, batch: Batch, secret: Tensor, rng: torch.Generator) -> tuple[Release, ...]:
        return tuple(self._release(params, batch, secret, integer(rng)) for params in self.rounds)

    def _release(self, params: Params, batch: Batch, secret: Tensor, seed: int) -> Release:
        kernel = gradients.per_record_blocks if self.defense.per_record else gradients.blocks

        def blocks() -> Iterator[Layers]:
            rng, start = torch.Generator().manual_seed(seed), 0
            data = batch.data
            for layers in kernel(
                self.model, params, data.x, data.y, batch.rows, loss=self.loss, budget=BLOCK
            ):
                stop = start + len(next(iter(layers.values())))
                yield self.defense.release(layers, secret[start:stop], rng)
                start = stop

        return Release(params, blocks)


@dataclass(frozen=True, eq=False)
class Through:
    """The same channel seen through some of its layers only."""

    channel: Channel
    names: tuple[str, ...]

    def __call__(self, batch: Batch, secret: Tensor, rng: torch.Generator) -> tuple[Release, ...]:
        return tuple(self._narrow(release) for release in self.channel(batch, secret, rng))

    def _narrow(self, release: Release) -> Release:
        def blocks() -> Iterator[Layers]:
            for layers in release.blocks():
                unknown = [name for name in self.names if name not in layers]
                if unknown:
                    raise ArgumentError(
                        f"Through.names must name layers of the channel, got {unknown[0]!r}; it has: "
                        f"{', '.join(layers)}."
                    )
                yield only(layers, self.names)

        return replace(release, blocks=blocks)


@dataclass(frozen=True)
class Silent:
    """Releases nothing: through it no attack may find anything."""

    rounds: int = 1

    def __call__(self, batch: Batch, secret: Tensor, rng: torch.Generator) -> tuple[Release, ...]:
        return tuple(Release.of({"nothing": torch.zeros(len(batch), 1)}) for _ in range(self.rounds))


@dataclass(frozen=True)
class Plain:
    """Releases the secret's code, bit by bit: through it every attack must find everything.

    A bit is repeated so that pooling over neighbours keeps it."""

    rounds: int = 1
    bits: int = 16
    repeats: int = 32

    def __call__(self, batch: Batch, secret: Tensor, rng: torch.Generator) -> tuple[Release, ...]:
        code = (secret[:, None] >> torch.arange(self.bits)) & 1
        code = code.float().repeat_interleave(self.repeats, dim=1)
        return tuple(Release.of({"secret": code}) for _ in range(self.rounds))
