"""What an encoder keeps: the task's labels, or as much of the record as possible, whatever the task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from leakscope.guards.batches import Seen
from leakscope.guards.estimators import jsd
from leakscope.guards.networks import Critic

Kind = Literal["labels", "agnostic", "autoencoder"]
Negatives = Literal["random", "rolled"]


class Utility(Protocol):
    """A network beside the encoder, and the loss that both descend."""

    @property
    def net(self) -> nn.Module:
        """The network beside the encoder."""
        ...

    @property
    def head(self) -> nn.Module | None:
        """The task head, where there is one."""
        ...

    def loss(self, seen: Seen, clean: Tensor, r: Tensor, rng: torch.Generator) -> Tensor:
        """What both descend, from representations before (``clean``) and after the perturbation."""
        ...


@dataclass(frozen=True, eq=False)
class Labels:
    """The cross-entropy of a task head, for the data's own records (equation 6 of paper 003); ``both``
    adds that of the unperturbed representation (equations 23 and 24)."""

    net: nn.Module
    both: bool = False

    @property
    def head(self) -> nn.Module | None:
        """See `Utility`."""
        return self.net

    def loss(self, seen: Seen, clean: Tensor, r: Tensor, rng: torch.Generator) -> Tensor:
        """See `Utility`."""
        y = seen.y[: seen.own]
        lost = F.cross_entropy(self.net(r[: seen.own]), y)
        return lost + F.cross_entropy(self.net(clean[: seen.own]), y) if self.both else lost


@dataclass(frozen=True, eq=False)
class Agnostic:
    """Minus the Jensen-Shannon objective of I(x; r | u) (paper 004): a critic h(x, r, u) tells records from
    others of the batch, drawn at random, or (``rolled``) the neighbour, as the published code does. ``given``
    names the private column u of ``values`` values; None: no u."""

    net: Critic
    given: str | None = None
    values: int = 0
    negatives: Negatives = "random"

    @property
    def head(self) -> nn.Module | None:
        """See `Utility`."""
        return None

    def loss(self, seen: Seen, clean: Tensor, r: Tensor, rng: torch.Generator) -> Tensor:
        """See `Utility`."""
        n = seen.own
        rolled = torch.arange(n).roll(1)
        other = rolled if self.negatives == "rolled" else torch.randperm(n, generator=rng)
        u = None if self.given is None else F.one_hot(seen.private[self.given], self.values).to(r)
        return -jsd(*self.net(seen.x[:n], r[:n], u, other))


@dataclass(frozen=True, eq=False)
class Autoencoder:
    """The mean squared error of a decoder, in units of the records' variance."""

    net: nn.Module
    variance: float

    @property
    def head(self) -> nn.Module | None:
        """See `Utility`."""
        return None

    def loss(self, seen: Seen, clean: Tensor, r: Tensor, rng: torch.Generator) -> Tensor:
        """See `Utility`."""
        return F.mse_loss(self.net(r[: seen.own]), seen.x[: seen.own]) / self.variance
