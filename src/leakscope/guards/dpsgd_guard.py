"""DP-SGD as a guard: encoder and head trained with differential privacy by Opacus."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain, repeat
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from leakscope.core.dataset import Dataset
from leakscope.core.errors import ArgumentError, MissingExtra, require
from leakscope.core.task import task_loss
from leakscope.guards.batches import Source
from leakscope.guards.encoder import Guarded, represented
from leakscope.guards.hidden import Hidden, Lesson, Strength, TimedGuard
from leakscope.guards.inf2guard import Inf2Guard, check_column, finished, protection, representation_shape
from leakscope.guards.losses import against
from leakscope.guards.plain import Unguarded, begun, renamed
from leakscope.guards.protections import Told
from leakscope.guards.trainer import Alternation, Progress, check_finite

GIVEN = "the scaling of the records, the base rate of a guarded column, and a secret seed"
SINGLE = ("prior", "adversarial")  # losses that are a mean over records


@dataclass(frozen=True)
class DPSGDGuard(TimedGuard):
    """Encoder and head trained by DP-SGD: per-record clipping, noise and accounting are Opacus' own.

    Every record's gradient is clipped to ``clip``; the noise is what ``epsilon`` at ``delta`` allows in
    ``plain.epochs``, or the multiplier ``noise``. Batches are Poisson samples, steps are Adam's. The epsilon
    that was spent, for one record more or less, stands in the encoder's ``about``, with what it takes for
    given: the scaling of the records, if they were standardised by themselves, and noise that nobody can
    draw again, which a plan's small seeds are not. Has a loop of its own, since the trainer differentiates
    encoder and head apart and DP-SGD clips them together.

    With a ``guard`` of an attribute the same encoder hides that too: of the guard column, lam, loss, steps
    and hidden layers count. Its privacy network looks at private records, so it is trained by DP-SGD as
    well, on samples of its own, and one accountant counts the steps of both; the base rate of the column is
    taken for known. The null setting is clip = inf, noise = 0, without a guard.
    """

    clip: float = 1.0
    epsilon: float = 8.0
    noise: float | None = None
    delta: float = 1e-5
    plain: Unguarded = field(default_factory=Unguarded)
    guard: Inf2Guard | None = None

    strength = Strength("epsilon", (64.0, 32.0, 16.0, 8.0, 4.0, 2.0, 1.0, 0.5))

    def __post_init__(self) -> None:
        require(self.clip > 0, "DPSGDGuard.clip", "positive", self.clip)
        require(0 < self.epsilon < math.inf, "DPSGDGuard.epsilon", "finite and above 0", self.epsilon)
        rule = "None or finite and at least 0"
        require(self.noise is None or 0 <= self.noise < math.inf, "DPSGDGuard.noise", rule, self.noise)
        require(0 < self.delta < 1, "DPSGDGuard.delta", "between 0 and 1", self.delta)
        rule, patience = "None, since stopping by records held back has no epsilon", self.plain.patience
        require(patience is None, "DPSGDGuard.plain.patience", rule, patience)
        if self.clip == math.inf and (self.noise != 0 or self.guard is not None):
            raise ArgumentError(
                "DPSGDGuard.clip must be finite where there is noise, which is in units of it, or a guard, "
                "got inf."
            )
        if self.guard is not None and (self.guard.secret != "attribute" or self.guard.loss not in SINGLE):
            raise ArgumentError(
                f"DPSGDGuard.guard must hide an attribute by a loss of single records ({', '.join(SINGLE)}), "
                f"whose gradient can be clipped, got {self.guard.secret} by {self.guard.loss}."
            )
        if self.guard is not None and self.guard != self._said(self.guard):
            raise ArgumentError(
                "DPSGDGuard.guard may set column, lam, loss, steps and hidden only; what else it has comes "
                "from DPSGDGuard.plain."
            )

    @staticmethod
    def _said(guard: Inf2Guard) -> Inf2Guard:
        parts = {name: getattr(guard, name) for name in ("column", "lam", "loss", "steps", "hidden")}
        return Inf2Guard("attribute", **parts)

    def hides(self) -> tuple[Hidden, ...]:
        """What its guard hides, if it has one."""
        return () if self.guard is None else self.guard.hides()

    def train(self, lesson: Lesson) -> Guarded:
        if self.clip == math.inf:
            return renamed(self.plain.train(lesson), self)
        opacus, data = _opacus(), lesson.data
        source, made, private = begun(self.plain, lesson)
        made = replace(made, name=type(self).__name__)
        if self.guard is not None:
            check_column(data, self.guard.column)
            shape = representation_shape(made.network, data, normed=made.normed)
            told = protection(self.guard, source.data, shape, private, head=True)
            made = replace(made, protections=(told,), weights=(1.0,), lam=self.guard.lam)
        with quiet():
            engine = opacus.PrivacyEngine()
            history = self._trained(engine, source, made, lesson.progress)
            spent = float(engine.get_epsilon(self.delta)) if self.noise != 0 else None
        spending: dict[str, Any] = {"epsilon": spent, "delta": self.delta, "given": GIVEN}
        guarded = finished(made, self.plain.encoder, self.plain.head, (self,), data, history, **spending)
        privacy = made.protections[0].net.eval() if made.protections else None
        return replace(guarded, privacy=privacy)

    def _trained(
        self, engine: Any, source: Source, made: Alternation, progress: Progress | None
    ) -> tuple[dict[str, float], ...]:
        history, epochs = [], self.plain.epochs
        records = self.records(source.data)
        model, optimiser, batches = self._private(engine, _Whole(made, source.data), records, made)
        told = _Told(self, engine, records, made, optimiser.noise_multiplier) if self.guard else None
        for epoch in range(epochs):
            lost = [_step(model, optimiser, batch, told) for batch in batches]
            table = {"epoch": float(epoch), "utility": sum(lost) / len(lost), "privacy": 0.0}
            table |= made.watched(source.watched(made.rngs.watch))
            check_finite(made, table, f"epoch {epoch}")
            history.append(table)
            if progress is not None:
                progress(epoch, epochs, table)
        model.to_standard_module()
        if told is not None:
            told.model.to_standard_module()
        return tuple(history)

    def records(self, data: Dataset) -> TensorDataset:
        column = self.guard.column if self.guard else None
        return TensorDataset(data.x, data.y, data.y if column is None else data.secret(column))

    def _private(
        self,
        engine: Any,
        model: nn.Module,
        records: TensorDataset,
        made: Alternation,
        noise: float | None = None,
    ) -> tuple[Any, Any, Any]:
        """Model, optimiser and batches, as Opacus makes them; ``noise`` in place of this one's own."""
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
            "data_loader": DataLoader(records, self.plain.batch, generator=made.rngs.order),
            "max_grad_norm": self.clip,
            "noise_generator": made.rngs.noise,
        }
        noise = self.noise if noise is None else noise
        if noise is not None:
            return tuple(engine.make_private(**shared, noise_multiplier=noise))
        passes = self.plain.epochs * (1 + (self.guard.steps if self.guard else 0))
        goal = {"target_epsilon": self.epsilon, "target_delta": self.delta, "epochs": passes}
        return tuple(engine.make_private_with_epsilon(**shared, **goal))


class _Told:
    """The privacy network of a guard, trained with differential privacy, and what it costs the encoder."""

    def __init__(
        self, plan: DPSGDGuard, engine: Any, records: TensorDataset, made: Alternation, noise: float
    ) -> None:
        assert plan.guard is not None
        self.guard, self.made = plan.guard, made
        (own,) = made.protections
        assert isinstance(own, Told)
        self.told, self.glass = own, copy.deepcopy(own.net)  # without Opacus' hooks
        self.model, self.optimiser, batches = plan._private(engine, own.net, records, made, noise)
        self.batches = chain.from_iterable(repeat(batches))

    def learn(self) -> None:
        for _ in range(self.guard.steps):
            x, _, codes = next(self.batches)
            with torch.no_grad():
                r = represented(self.made.network, x, normed=self.made.normed)
            self.optimiser.zero_grad()
            lost = F.cross_entropy(self.model(r), codes, reduction="sum") / max(len(codes), 1)
            lost.backward()
            self.optimiser.step()

    def mixed(self, lost: Tensor, r: Tensor, codes: Tensor) -> Tensor:
        """The task's loss and the guard's, weighed; the privacy network is only looked through."""
        if len(codes) == 0 or self.guard.lam == 0:
            return lost
        fixed = {name: weight.detach() for name, weight in self.told.net.named_parameters()}
        said = torch.func.functional_call(self.glass, fixed, (r,))
        term = against(self.guard.loss, said, codes, self.told.prior)
        return (1 - self.guard.lam) * lost + self.guard.lam * term


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


class _Whole(nn.Module):
    """Encoder and head as one model, which says the representation and the head's logits."""

    def __init__(self, made: Alternation, data: Dataset) -> None:
        super().__init__()
        shape = representation_shape(made.network, data, normed=made.normed)
        norm = nn.LayerNorm(shape, elementwise_affine=False) if made.normed else nn.Identity()
        self.encoder, self.head = nn.Sequential(made.network, norm), made.utility.net

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        r = self.encoder(x)
        return r, self.head(r)


def _step(
    model: nn.Module, optimiser: Any, batch: tuple[Tensor, Tensor, Tensor], told: _Told | None = None
) -> float:
    """One step, also of an empty batch, whose noise counts. Its loss for the task."""
    if told is not None:
        told.learn()
    x, y, codes = batch
    optimiser.zero_grad()
    r, logits = model(x)
    lost = task_loss(logits, y, reduction="sum") / max(len(y), 1)
    whole = lost if told is None else told.mixed(lost, r, codes)
    whole.backward()
    optimiser.step()
    return float(lost.detach())
