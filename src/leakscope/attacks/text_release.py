"""What is released of a model of texts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from leakscope.attacks.closed_form import SeenLayer
from leakscope.attacks.first_attention import Additive, FirstAttention
from leakscope.attacks.words import embedding_of, released_matrix
from leakscope.core.errors import ArgumentError, require
from leakscope.core.nouns import Knowledge, Params
from leakscope.games.channels import GradientChannel, Summed, Through, UpdateChannel
from leakscope.training.local import Local


@dataclass(frozen=True, eq=False)
class ReleasedLayers:
    """What is seen of a model of texts: its first attention, if it has one, what that takes of all words, the
    embedding's weight, if it is released, the channel that is believed in, its local training (None:
    gradients) and steps, and the precision."""

    seen: SeenLayer
    channel: GradientChannel
    attention: FirstAttention | None
    additive: Additive | None
    embedding: str | None
    local: Local | None
    steps: int
    eps: float

    @staticmethod
    def of(seen: SeenLayer, knowledge: Knowledge, length: int, who: str) -> ReleasedLayers:
        channel = knowledge.channel
        while isinstance(channel, Through | Summed):
            channel = channel.channel
        assert isinstance(channel, GradientChannel)  # of no other is a round seen
        local = channel.local if isinstance(channel, UpdateChannel) else None
        data = seen.game.data
        text = data.x.dim() == 2 and data.x.dtype == torch.int64 and len(data.columns) == 1
        require(text, f"{who}: the records", "texts, whose words are numbered", f"{data.x.dtype}")
        words, (params, layers) = len(data.columns[0].values), seen.rounds[0]
        for name, tensor in layers.items():
            finite = bool(tensor.isfinite().all())
            require(finite, f"{who}: the released layer {name!r}", "finite", "nan or inf")
        embedding, additive = embedding_of(seen.model, layers, words), None
        attention = FirstAttention.find(seen.model)
        if attention is not None and not any(name in layers for name in attention.inside):
            attention = None
        if attention is None and embedding is None:
            raise ArgumentError(
                f"{who} reads the words' embedding, or queries, keys and values of a first attention as "
                f"torch or BERT have it, and none is released by {type(seen.model).__name__}; what later "
                f"layers alone tell of texts is not known."
            )
        if local is not None and local.optimiser != "sgd" and embedding is None:
            raise ArgumentError(
                f"{who} reads uploads of SGD, whose steps are sums of gradients, got Local.optimiser = "
                f"{local.optimiser!r}; what such uploads give away is not known."
            )
        if attention is not None:
            additive = attention.additive(params, words, length, who)
        steps = 0 if local is None else local.steps_of(seen.game.batch)
        eps = torch.finfo(next(iter(layers.values())).dtype).eps
        return ReleasedLayers(seen, channel, attention, additive, embedding, local, steps, eps)

    @property
    def params(self) -> Params:
        return self.seen.rounds[0][0]

    def matrix(self, names: tuple[str, ...], trial: int) -> tuple[Tensor, float]:
        """Weights of the first round that take the same vectors, and their floor."""
        params, layers = self.seen.rounds[0]
        return released_matrix(params, layers, names, trial, self.local, self.steps, self.eps)

    @cached_property
    def double(self) -> Params:
        return {n: p.double() if p.is_floating_point() else p for n, p in self.params.items()}

    def has(self, name: str) -> bool:
        return name in self.seen.rounds[0][1]
