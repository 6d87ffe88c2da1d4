"""From a description to a module with weights, and from a module to its parameters."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from leakscope.core.dataset import Dataset
from leakscope.core.errors import ArgumentError, DataError
from leakscope.core.nouns import Defense
from leakscope.core.rng import initialised

Architecture = Callable[[Dataset], nn.Module] | nn.Module


def build(
    architecture: Architecture, data: Dataset, rng: torch.Generator, *, defense: Defense | None = None
) -> nn.Module:
    """The module for ``data``, with what the defense adds to it, initialised by ``rng``; a ready module
    keeps its own weights."""
    if lacking := [column.name for column in data.columns if not column.learned]:
        raise DataError(
            f"{data.name} must be complete, and gaps or codes of {', '.join(map(repr, lacking[:8]))} are "
            f"still to be learned from training records; use Dataset.split, or complete the columns.",
            public="columns with gaps or codes must be completed by training records first.",
        )

    def make() -> nn.Module:
        made = architecture if isinstance(architecture, nn.Module) else architecture(data)
        if not isinstance(made, nn.Module):
            raise ArgumentError(f"{architecture!r} must build a torch.nn.Module, got {type(made).__name__}.")
        return defense.model(made) if defense else made

    return initialised(make, rng)


def parameters(model: nn.Module) -> dict[str, torch.Tensor]:
    """A copy of the module's parameters by name, out of autograd's sight."""
    return {name: tensor.detach().clone() for name, tensor in model.named_parameters()}


def layers_of(model: nn.Module) -> dict[str, tuple[str, ...]]:
    """Layer -> the names of its parameters (weight and bias together), in model order. Of layers that
    share weights none can be told to leak, so such a model is refused."""
    seen: dict[int, str] = {}
    found: dict[str, list[str]] = {}
    for name, tensor in model.named_parameters(remove_duplicate=False):
        if id(tensor) in seen:
            raise ArgumentError(
                f"the model's layers must not share weights, and {seen[id(tensor)]!r} is also {name!r}; "
                f"give each layer its own."
            )
        seen[id(tensor)] = name
        found.setdefault(name.rpartition(".")[0] or name, []).append(name)
    return {layer: tuple(names) for layer, names in found.items()}
