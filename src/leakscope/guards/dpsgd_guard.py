"""DP-SGD as a guard: encoder and head trained with differential privacy by Opacus."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from leakscope.dataset import Dataset
from leakscope.errors import ArgumentError, MissingExtra, require
from leakscope.guards.batches import Source
from leakscope.guards.encoder import Guarded
from leakscope.guards.inf2guard import representation_shape
from leakscope.guards.plain import Unguarded, begun, encoded, renamed
from leakscope.guards.trainer import Alternation, Progress, check_finite


@dataclass(frozen=True)
class DPSGDGuard:
    """Encoder and head trained by DP-SGD: per-record clipping, noise and accounting are Opacus' own.

    Every record's gradient is clipped to ``clip``; the noise is what ``epsilon`` at ``delta`` allows in
    ``plain.epochs``, or the multiplier ``noise``. Batches are Poisson samples, steps are Adam's. The epsilon
    that was spent, for one record more or less, stands in the encoder's ``about``. Has a loop of its own,
    since the trainer differentiates encoder and head apart and DP-SGD clips them together. The null setting
    is clip = inf, noise = 0.
    """

    clip: float = 1.0
    epsilon: float = 8.0
    noise: float | None = None
    delta: float = 1e-5
    plain: Unguarded = field(default_factory=Unguarded)

    def __post_init__(self) -> None:
        require(self.clip > 0, "DPSGDGuard.clip", "positive", self.clip)
        require(0 < self.epsilon < math.inf, "DPSGDGuard.epsilon", "finite and above 0", self.epsilon)
        rule = "None or finite and at least 0"
        require(self.noise is None or 0 <= self.noise < math.inf, "DPSGDGuard.noise", rule, self.noise)
        require(0 < self.delta < 1, "DPSGDGuard.delta", "between 0 and 1", self.delta)
        rule, patience = "None, since stopping by records held back has no epsilon", self.plain.patience
        require(patience is None, "DPSGDGuard.plain.patience", rule, patience)
        if self.clip == math.inf and self.noise != 0:
            raise ArgumentError(
                "DPSGDGuard.clip must be finite where there is noise, which is in units of it, got inf."
            )

    def __call__(
        self,
        data: Dataset,
        rng: torch.Generator,
        *,
        others: Dataset | None = None,
        progress: Progress | None = None,
    ) -> Guarded:
        """See `Inf2Guard`."""
        if self.clip == math.inf:
            return renamed(self.plain(data, rng, others=others, progress=progress), self)
        since, opacus = time.perf_counter(), _opacus()
        source, made, _ = begun(self.plain, data, rng, others=others)
        made = replace(made, name=type(self).__name__)
        with quiet():
            engine = opacus.PrivacyEngine()
            history = self._trained(engine, source, made, progress)
            spent = float(engine.get_epsilon(self.delta)) if self.noise != 0 else None
        encoder = encoded(self, self.plain, made, data, rng, epsilon=spent, delta=self.delta)
        return Guarded(encoder, None, history, time.perf_counter() - since)

    def _trained(
        self, engine: Any, source: Source, made: Alternation, progress: Progress | None
    ) -> tuple[dict[str, float], ...]:
        history, epochs = [], self.plain.epochs
        model, optimiser, batches = self._private(engine, source, made)
        for epoch in range(epochs):
            lost = [_step(model, optimiser, x, y) for x, y in batches]
            table = {"epoch": float(epoch), "utility": sum(lost) / len(lost), "privacy": 0.0}
            table |= made.watched(source.watched(made.rngs.watch))
            check_finite(made, table, f"epoch {epoch}")
            history.append(table)
            if progress is not None:
                progress(epoch, epochs, table)
        model.to_standard_module()
        return tuple(history)

    def _private(self, engine: Any, source: Source, made: Alternation) -> tuple[Any, Any, Any]:
        """Model, optimiser and batches, as Opacus makes them."""
        model = _whole(made, source.data)
        wrong = _opacus().validators.ModuleValidator.validate(model, strict=False)
        if wrong:
            kinds = {type(layer).__name__ for layer in model.modules() if "Norm" in type(layer).__name__}
            raise ArgumentError(
                f"DPSGDGuard.plain.encoder must have layers that see one record at a time, got "
                f"{', '.join(sorted(kinds)) or type(wrong[0]).__name__}; take TableEncoder."
            )
        shared = {
            "module": model.train(),
            "optimizer": torch.optim.Adam(model.parameters(), lr=self.plain.rate),
            "data_loader": DataLoader(
                TensorDataset(source.data.x, source.data.y), source.batch, generator=made.rngs.order
            ),
            "max_grad_norm": self.clip,
            "noise_generator": made.rngs.noise,
        }
        if self.noise is not None:
            return tuple(engine.make_private(**shared, noise_multiplier=self.noise))
        goal = {"target_epsilon": self.epsilon, "target_delta": self.delta, "epochs": self.plain.epochs}
        return tuple(engine.make_private_with_epsilon(**shared, **goal))


def _opacus() -> Any:
    try:
        import opacus
        import opacus.validators
    except ImportError as error:
        raise MissingExtra('DPSGDGuard needs Opacus; run: pip install "leakscope[opacus]"') from error
    return opacus


@contextmanager
def quiet() -> Iterator[None]:
    """Without Opacus' usual warnings: a generator that can be seeded again is not its secure one, records
    need no gradient, its first bound on epsilon is rough, and log(0) where every batch is all records."""
    with warnings.catch_warnings(), np.errstate(divide="ignore"):
        warnings.filterwarnings("ignore", message="Secure RNG turned off")
        warnings.filterwarnings("ignore", message="Full backward hook is firing")
        warnings.filterwarnings("ignore", message="Optimal order is the")
        yield


def _whole(made: Alternation, data: Dataset) -> nn.Sequential:
    """Encoder and head as one model."""
    shape = representation_shape(made.network, data, normed=made.normed)
    norm = [nn.LayerNorm(shape, elementwise_affine=False)] if made.normed else []
    return nn.Sequential(made.network, *norm, made.utility.net)


def _step(model: nn.Module, optimiser: torch.optim.Optimizer, x: Tensor, y: Tensor) -> float:
    """One step, also of an empty batch, whose noise counts."""
    optimiser.zero_grad()
    lost = F.cross_entropy(model(x), y, reduction="sum") / max(len(y), 1)
    lost.backward()
    optimiser.step()
    return float(lost.detach())
