"""What local training on given records would upload, in a form that can be differentiated through its steps
(compare Dimitrov et al., TMLR 2022)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

from leakscope.attacks.matching import Matching
from leakscope.core.nouns import Layers, Params, only
from leakscope.training.local import Local

BETAS, EPSILON = (0.9, 0.999), 1e-8  # torch.optim.Adam
ROOT = 1e-30  # under Adam's root, whose slope at 0 is infinite


@dataclass(frozen=True, eq=False)
class Unrolled(Matching):
    """Targets that are uploads: the dummies train as the clients do.

    Nobody told the adversary the order of a client's records, so that in every epoch they come as they
    stand. Where a batch holds all of them, as one step does, the order says nothing."""

    local: Local

    def gradients(self, params: Params, x: Tensor, y: Tensor, names: Layers) -> Layers:
        """What training on each problem's records would move, in the layers asked for."""
        own = {name: params[name].detach() for name, _ in self.model.named_parameters()}
        rest = {name: tensor for name, tensor in params.items() if name not in own}

        def lone(moved: Params, records: Tensor, labels: Tensor) -> Tensor:
            return self.loss(functional_call(self.model, {**rest, **moved}, (records,)), labels)

        def upload(records: Tensor, labels: Tensor) -> Layers:
            moved: Layers = own
            state = _State({}, {})
            rows = torch.arange(len(records)).split(self.local.batch)
            for step in range(self.local.steps_of(len(records))):
                some = rows[step % len(rows)]
                slopes = grad(lone)(moved, records[some], labels[some])
                moved, state = state.step(self.local, moved, slopes, step + 1)
            return only({name: own[name] - moved[name] for name in own}, names)

        found: Layers = vmap(upload)(x, y)
        return found


@dataclass(frozen=True, eq=False)
class _State:
    """What an optimiser remembers: means of slopes, and of their squares."""

    slow: Layers
    squares: Layers

    def step(self, local: Local, params: Layers, slopes: Layers, count: int) -> tuple[Layers, _State]:
        """The parameters after one step as torch takes it, and what is remembered of it."""
        slopes = {name: slope + local.decay * params[name] for name, slope in slopes.items()}
        if local.optimiser == "sgd":
            slow = {name: local.momentum * self.slow.get(name, 0.0) + g for name, g in slopes.items()}
            return {name: params[name] - local.rate * slow[name] for name in params}, _State(slow, {})
        first, second = BETAS
        slow = {n: first * self.slow.get(n, 0.0) + (1 - first) * g for n, g in slopes.items()}
        squares = {
            n: second * self.squares.get(n, 0.0) + (1 - second) * g.square() for n, g in slopes.items()
        }
        moved = {}
        for name in params:
            length = (squares[name] / (1 - second**count) + ROOT).sqrt() + EPSILON
            moved[name] = params[name] - local.rate * slow[name] / (1 - first**count) / length
        return moved, _State(slow, squares)
