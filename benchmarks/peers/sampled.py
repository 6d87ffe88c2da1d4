"""Every record's own gradient by Opacus and by torch.func, for the parts that start from these."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

from leakscope import Dataset
from leakscope.core.rng import seeded
from leakscope.models import Architecture, build, parameters
from peers.table import Peer, seconds

OPACUS = Peer("opacus", ("opacus",))
Gradients = dict[str, Tensor]  # parameter name -> (n, *shape)
Sampler = Callable[["Case", Tensor], Gradients]  # (case, rows) -> their gradients


@dataclass(frozen=True, eq=False)
class Case:
    """A net with fresh weights, Gaussian records and their labels."""

    name: str
    model: nn.Module
    params: Gradients
    x: Tensor
    y: Tensor

    @staticmethod
    def of(name: str, architecture: Architecture, shape: tuple[int, ...], *, classes: int, n: int) -> Case:
        rng = seeded(0, name)
        x, y = torch.randn(n, *shape, generator=rng), torch.arange(n) % classes
        model = build(architecture, Dataset(x, y, {}), rng)
        return Case(name, model, parameters(model), x, y)

    def doubled(self, n: int) -> Case:
        """Its first records in double precision, in which both sides can be held to each other: in single
        precision one ReLU that rounding opens or shuts changes a gradient for good."""
        params = {name: value.double() for name, value in self.params.items()}
        x = self.x[:n].double() if self.x.is_floating_point() else self.x[:n]
        return Case(self.name, copy.deepcopy(self.model).double(), params, x, self.y[:n])


class Transformer(nn.Module):
    """torch's own encoder of two layers, 128 wide, and a linear head over the mean of its positions."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(128, 4, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(128, 2)

    def forward(self, x: Tensor) -> Tensor:
        pooled: Tensor = self.head(self.encoder(x).mean(1))
        return pooled


def samplers(case: Case) -> dict[str, Sampler]:
    """torch.func, and Opacus where it is installed and has a rule (it has none for torch's attention)."""
    found: dict[str, Sampler] = {"torch.func": _functional(case.model)}
    attends = any(isinstance(module, nn.MultiheadAttention) for module in case.model.modules())
    if OPACUS.installed and not attends:
        found["Opacus"] = _hooked(case.model)
    return found


def chunks(case: Case, sampler: Sampler, size: int) -> Iterator[Gradients]:
    for rows in torch.arange(len(case.x)).split(size):
        yield sampler(case, rows)


def quickest(sizes: tuple[int, ...], run: Callable[[int], object]) -> int:
    """The size at which a peer does best: it is compared at its own best, not at ours."""
    run(sizes[0])
    return min(sizes, key=lambda size: seconds(lambda: run(size)))


def _functional(model: nn.Module) -> Sampler:
    def loss(params: Gradients, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(model, params, (x[None],)), y[None])

    every = vmap(grad(loss), in_dims=(None, 0, 0))
    return lambda case, rows: every(case.params, case.x[rows], case.y[rows])


def _hooked(model: nn.Module) -> Sampler:
    from opacus import GradSampleModule

    wrapped = GradSampleModule(copy.deepcopy(model), loss_reduction="sum")

    def sampler(case: Case, rows: Tensor) -> Gradients:
        wrapped.zero_grad(set_to_none=True)
        F.cross_entropy(wrapped(case.x[rows]), case.y[rows], reduction="sum").backward()
        found = {}
        for name, parameter in wrapped.named_parameters():
            found[name.removeprefix("_module.")] = parameter.grad_sample
            parameter.grad_sample = None
        return found

    return sampler
