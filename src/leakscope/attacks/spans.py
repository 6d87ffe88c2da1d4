"""The row space of what a linear layer released, which the inputs of its records span."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from leakscope.core.nouns import Params
from leakscope.training.local import Local

GRADIENT, UPLOAD = 3.0, 2.0  # rounding errors, in units that the floors below are in


@dataclass(frozen=True, eq=False)
class Span:
    """The part of a matrix (rows, d) above its floor, U S V': ``u`` (rows, r), ``s`` (r,), ``v`` (d, r).

    ``above``: how many singular values are above the floor, of which at most the asked number are kept;
    ``noise``: the next one, or the floor if that is larger; ``gap``: the last kept one over it."""

    u: Tensor
    s: Tensor
    v: Tensor
    above: int
    noise: float

    @property
    def rank(self) -> int:
        return len(self.s)

    @property
    def gap(self) -> float:
        return float(self.s[-1]) / self.noise if self.rank else 0.0

    @staticmethod
    def of(matrix: Tensor, floor: float, most: int | None = None) -> Span:
        u, s, vh = torch.linalg.svd(matrix.double(), full_matrices=False)
        above = int((s > floor).sum())
        r = above if most is None else min(above, most)
        noise = max(floor, float(s[r]) if r < len(s) else 0.0, torch.finfo(s.dtype).tiny)
        return Span(u[:, :r], s[:r], vh[:r].T, above, noise)

    def distance(self, inputs: Tensor) -> Tensor:
        """How far inputs (n, d) are from the space, as shares (n,) of their length."""
        outside = inputs - inputs @ self.v @ self.v.T
        length = torch.linalg.vector_norm(inputs, dim=1).clamp(min=torch.finfo(inputs.dtype).tiny)
        return torch.div(torch.linalg.vector_norm(outside, dim=1), length)


def gradient_floor(matrix: Tensor, eps: float) -> float:
    """The singular value below which a gradient of numbers of precision ``eps`` is rounding."""
    return GRADIENT * eps / 2 * largest(matrix.double())


def largest(matrix: Tensor) -> float:
    """The largest singular value, from the products of the shorter side: a fraction of the time of all of
    them, and just as sharp, which the smallest would not be."""
    products = matrix.T @ matrix if matrix.shape[0] > matrix.shape[1] else matrix @ matrix.T
    return float(torch.linalg.eigvalsh(products)[-1].clamp(min=0).sqrt())


def upload_floor(start: Tensor, eps: float, steps: int) -> float:
    """The same of the change of a matrix that ``steps`` steps were taken from, each of them rounded."""
    m, d = start.shape
    return UPLOAD * eps / 2 * float(start.abs().mean()) * float(m**0.5 + d**0.5) * float(max(1, steps) ** 0.5)


def kept_by_decay(local: Local, steps: int) -> float:
    """The share of its start that a parameter keeps after ``steps`` steps of SGD with L2 decay, were there no
    gradient; what is beyond it is a combination of gradients, whatever the momentum."""
    kept, velocity = 1.0, 0.0
    for _ in range(steps):
        velocity = local.momentum * velocity + local.decay * kept
        kept -= local.rate * velocity
    return kept


def inputs_at(model: nn.Module, params: Params, layer: str, x: Tensor) -> Tensor:
    """What ``layer`` takes when the model is given records ``x``."""
    taken: list[Tensor] = []
    hook = model.get_submodule(layer).register_forward_pre_hook(lambda _, given: taken.append(given[0]))
    try:
        with torch.no_grad():
            functional_call(model, dict(params), (x.to(params[f"{layer}.weight"].dtype),))
    finally:
        hook.remove()
    return taken[0]


def with_one(inputs: Tensor) -> Tensor:
    """Inputs (n, d) with the 1 that a bias multiplies."""
    return torch.cat([inputs, inputs.new_ones(len(inputs), 1)], dim=1)
