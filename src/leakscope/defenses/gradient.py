"""Defenses that change the gradient a client releases: pruning, signs, noise, and their combinations."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from leakscope.core.errors import ArgumentError, require
from leakscope.core.mechanism import Mechanism
from leakscope.core.nouns import Defense, Layers, Loss, Release, flatten, only, shaped
from leakscope.core.rng import laplace

FORMS = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


@dataclass(frozen=True)
class Pruning(Defense):
    """Keep the largest entries of the gradient and release the rest as zero.

    Paper 000, 6.1: ``rate`` of all entries of the whole vector are pruned (0.99; also 0.90 and
    0.95). The null setting is 0.
    """

    processes: ClassVar[bool] = True
    rate: float = 0.99

    def __post_init__(self) -> None:
        require(
            0 <= self.rate < 1,
            "Pruning.rate",
            "in [0, 1)",
            self.rate,
            way_out="to release nothing use Silent()",
        )

    def release(self, layers: Layers, secret: Tensor | None, rng: torch.Generator, *, batch: int) -> Layers:
        flat = flatten(layers)
        kept = max(1, flat.shape[1] - round(self.rate * flat.shape[1]))
        if kept == flat.shape[1]:
            return layers
        where = flat.abs().topk(kept, dim=1, sorted=False).indices
        sparse = torch.zeros_like(flat).scatter_(1, where, flat.gather(1, where))
        return shaped(sparse, layers)


@dataclass(frozen=True)
class Sign(Defense):
    """Release the sign of every entry (SignSGD, paper 000, 6.1), one bit each: 0 is sent as +1.

    ``ternary``: 0 stays 0, a third symbol that tells which units no record of a batch has moved. There is no
    null setting."""

    processes: ClassVar[bool] = True
    ternary: bool = False

    def release(self, layers: Layers, secret: Tensor | None, rng: torch.Generator, *, batch: int) -> Layers:
        if self.ternary:
            return {name: tensor.sign() for name, tensor in layers.items()}
        return {name: torch.where(tensor < 0, -1.0, 1.0).to(tensor.dtype) for name, tensor in layers.items()}


@dataclass(frozen=True)
class Noise(Defense):
    """Add Gaussian noise of standard deviation ``std`` to every entry of the batch's gradient.

    Nothing is clipped, so no differential privacy follows: use DPSGD for that. The null setting is 0.
    """

    processes: ClassVar[bool] = True
    std: float = 0.01

    def __post_init__(self) -> None:
        require(0 <= self.std < float("inf"), "Noise.std", "finite and at least 0", self.std)

    def release(self, layers: Layers, secret: Tensor | None, rng: torch.Generator, *, batch: int) -> Layers:
        return noisy(layers, self.std, rng)

    def noiseless(self) -> Noise:
        return Noise(0.0)

    def deviation(self, batch: int) -> float:
        return self.std


@dataclass(frozen=True)
class LaplaceNoise(Defense):
    """Add Laplace noise of standard deviation ``std`` to every entry (the DP-Laplace of paper 004).

    Nothing is clipped, so no differential privacy follows. The null setting is 0.
    """

    processes: ClassVar[bool] = True
    std: float = 0.01

    def __post_init__(self) -> None:
        require(0 <= self.std < float("inf"), "LaplaceNoise.std", "finite and at least 0", self.std)

    @property
    def adds_noise(self) -> bool:
        return self.std > 0

    def noiseless(self) -> LaplaceNoise:
        return LaplaceNoise(0.0)

    def spread(self, batch: int) -> float:
        return self.std

    def release(self, layers: Layers, secret: Tensor | None, rng: torch.Generator, *, batch: int) -> Layers:
        if self.std == 0:
            return layers
        scale = self.std / math.sqrt(2)
        return {name: tensor + laplace(tensor, scale, rng) for name, tensor in layers.items()}


def noisy(layers: Layers, std: float, rng: torch.Generator) -> Layers:
    """Every entry with its own Gaussian noise; the same layers at 0."""
    if std == 0:
        return layers
    return {
        name: torch.empty_like(tensor).normal_(std=std, generator=rng).add_(tensor)
        for name, tensor in layers.items()
    }


@dataclass(frozen=True)
class Withhold(Defense):
    """Release zeros: with `Within`, layers that are neither shared nor trained (paper 001, section 7)."""

    processes: ClassVar[bool] = True

    def release(self, layers: Layers, secret: Tensor | None, rng: torch.Generator, *, batch: int) -> Layers:
        return {name: torch.zeros_like(tensor) for name, tensor in layers.items()}


@dataclass(frozen=True)
class FirstLayerLocal(Defense):
    """Keep the first layer local: it is neither shared nor trained, and released as zeros.

    It is the one that takes the records: the layer whose parameters come first. There is no null setting."""

    processes: ClassVar[bool] = True

    def release(self, layers: Layers, secret: Tensor | None, rng: torch.Generator, *, batch: int) -> Layers:
        first = next(iter(layers)).rpartition(".")[0]
        return {
            name: torch.zeros_like(tensor) if name.rpartition(".")[0] == first else tensor
            for name, tensor in layers.items()
        }


@dataclass(frozen=True)
class HalfPrecision(Defense):
    """Release every entry in half precision: ``form`` is bfloat16 or float16.

    It is given back in the precision that it came in, with what rounding left. float32 is the null
    setting."""

    processes: ClassVar[bool] = True
    form: str = "bfloat16"

    def __post_init__(self) -> None:
        require(self.form in FORMS, "HalfPrecision.form", f"one of {', '.join(FORMS)}", self.form)

    def release(self, layers: Layers, secret: Tensor | None, rng: torch.Generator, *, batch: int) -> Layers:
        return {name: tensor.to(FORMS[self.form]).to(tensor.dtype) for name, tensor in layers.items()}


@dataclass(frozen=True)
class Within(Defense):
    """A defense limited to the named layers; the others are released as they are, so that no epsilon holds
    for the whole."""

    defense: Defense
    layers: tuple[str, ...]

    def __post_init__(self) -> None:
        require(len(self.layers) > 0, "Within.layers", "at least one layer", self.layers)

    @property
    def adds_noise(self) -> bool:
        return self.defense.adds_noise

    def noiseless(self) -> Defense:
        return Within(self.defense.noiseless(), self.layers)

    def model(self, model: nn.Module) -> nn.Module:
        return self.defense.model(model)

    def loss(self, loss: Loss) -> Loss:
        return self.defense.loss(loss)

    def weigh(self, squares: Mapping[str, Tensor]) -> Mapping[str, Tensor] | None:
        return self.defense.weigh(only(squares, self._known(squares)))

    def release(self, layers: Layers, secret: Tensor | None, rng: torch.Generator, *, batch: int) -> Layers:
        inside = only(layers, self._known(layers))
        return {**layers, **self.defense.release(inside, secret, rng, batch=batch)}

    def prepared(
        self, release: Release, labels: Tensor, rng: torch.Generator, *, people: bool = False
    ) -> Defense:
        def inside() -> Iterator[Layers]:
            for layers in release.blocks():
                yield only(layers, self._known(layers))

        return Within(
            self.defense.prepared(replace(release, blocks=inside), labels, rng, people=people), self.layers
        )

    def _known(self, layers: Mapping[str, Tensor]) -> tuple[str, ...]:
        unknown = [name for name in self.layers if name not in layers]
        if unknown:
            raise ArgumentError(
                f"Within.layers must name layers of the model, got {unknown[0]!r}; it has: "
                f"{', '.join(layers)}."
            )
        return self.layers


@dataclass(frozen=True)
class Chain(Defense):
    """Defenses one after the other. What acts on single records (DPSGD's clipping) comes first of
    itself, as it acts before the batch's mean is formed. The null setting is no defense at all."""

    defenses: tuple[Defense, ...] = ()

    def __init__(self, *defenses: Defense) -> None:
        listed = defenses[0] if len(defenses) == 1 and isinstance(defenses[0], tuple | list) else defenses
        object.__setattr__(self, "defenses", tuple(listed))

    def __repr__(self) -> str:
        return f"Chain({', '.join(map(repr, self.defenses))})"

    @property
    def adds_noise(self) -> bool:
        return any(defense.adds_noise for defense in self.defenses)

    def noiseless(self) -> Defense:
        return Chain(*(defense.noiseless() for defense in self.defenses))

    def spread(self, batch: int) -> float:
        """That of the last, which nothing changes any more; 0 where an earlier one adds noise too."""
        *first, last = self.defenses or (Defense(),)
        return 0.0 if any(defense.adds_noise for defense in first) else last.spread(batch)

    def model(self, model: nn.Module) -> nn.Module:
        for defense in self.defenses:
            model = defense.model(model)
        return model

    def loss(self, loss: Loss) -> Loss:
        for defense in self.defenses:
            loss = defense.loss(loss)
        return loss

    def weigh(self, squares: Mapping[str, Tensor]) -> Mapping[str, Tensor] | None:
        weights = [found for defense in self.defenses if (found := defense.weigh(squares)) is not None]
        if len(weights) > 1:
            raise ArgumentError(
                "Chain must hold at most one defense that clips records, as the second would clip what the "
                "first has not yet clipped; leave one out."
            )
        return weights[0] if weights else None

    def release(self, layers: Layers, secret: Tensor | None, rng: torch.Generator, *, batch: int) -> Layers:
        for defense in self.defenses:
            layers = defense.release(layers, secret, rng, batch=batch)
        return layers

    def prepared(
        self, release: Release, labels: Tensor, rng: torch.Generator, *, people: bool = False
    ) -> Defense:
        return Chain(*(defense.prepared(release, labels, rng, people=people) for defense in self.defenses))

    def mechanism(self, batch: int, entries: int) -> Mechanism | None:
        """That of the first, where all that follow work on what it releases. One that comes before it acts
        on the mean that its noise was made for, and leaves nothing proven."""
        first, *later = self.defenses or (Defense(),)
        return first.mechanism(batch, entries) if all(one.processes for one in later) else None
