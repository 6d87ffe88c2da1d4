"""Which functions have parameters, and how a call of each becomes a layer with a rule for its gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from leakscope.gradients.factors import Convolution, Factors, Lookup, Pair, Rule, Scaling

Make = Callable[[str, Any, torch.Size, Tensor, Tensor], Rule]  # (weight, bias, shape, input, b) -> layer
# input, weight, bias, and what makes a layer of them: None where no rule fits, and vmap will do
Bound = tuple[Tensor, Tensor | None, Tensor | None, Make | None]


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Bound:  # noqa: A002
    return input, weight, bias, Factors if input.dim() >= 2 and weight.dim() == 2 else None


def conv2d(
    input: Tensor,  # noqa: A002
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Bound:
    dilation = _pair(dilation)
    if padding == "same":
        around = [d * (size - 1) for d, size in zip(dilation, weight.shape[2:], strict=True)]
        padding = [total // 2 if total % 2 == 0 else -1 for total in around]  # -1: not symmetric
    elif padding == "valid":
        padding = 0
    slides = Convolution(_pair(stride), _pair(padding), dilation, groups)

    def make(name: str, shift: str | None, shape: torch.Size, a: Tensor, b: Tensor) -> Rule:
        return Factors(name, shift, shape, a, b, slides)

    return input, weight, bias, make if input.dim() == 4 and min(slides.padding) >= 0 else None


def layer_norm(
    input: Tensor,  # noqa: A002
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Bound:
    own = input.dim() - len(normalized_shape)  # dimensions of records and of their places
    normalise = _scale(lambda a: F.layer_norm(a, normalized_shape, eps=eps), tuple(range(1, own)))
    return input, weight, bias, normalise if own >= 1 and weight is not None else None


def group_norm(
    input: Tensor,  # noqa: A002
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Bound:
    normalise = _scale(lambda a: F.group_norm(a, num_groups, eps=eps), tuple(range(2, input.dim())))
    return input, weight, bias, normalise if weight is not None else None


def batch_norm(
    input: Tensor,  # noqa: A002
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Bound:
    normalise = _scale(
        lambda a: F.batch_norm(a, running_mean, running_var, eps=eps), tuple(range(2, input.dim()))
    )
    return input, weight, bias, normalise if weight is not None and not training else None


def embedding(
    input: Tensor,  # noqa: A002
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Bound:
    padding = None if padding_idx is None else padding_idx % len(weight)

    def make(name: str, shift: None, shape: torch.Size, a: Tensor, b: Tensor) -> Rule:
        return Lookup(name, shape, a, b, padding)

    return input, weight, None, None if scale_grad_by_freq else make


BINDERS: dict[Callable[..., Any], Callable[..., Bound]] = {
    F.linear: linear,
    F.conv2d: conv2d,
    F.layer_norm: layer_norm,
    F.group_norm: group_norm,
    F.batch_norm: batch_norm,
    F.embedding: embedding,
}
PRODUCTS = (F.linear, F.conv2d)  # their gradients are products of two factors, summed over positions


def _scale(normalise: Callable[[Tensor], Tensor], shared: tuple[int, ...]) -> Make:
    def make(name: str, shift: str | None, shape: torch.Size, a: Tensor, b: Tensor) -> Rule:
        return Scaling(name, shift, shape, normalise(a), b, shared)

    return make


def _pair(value: Any) -> Pair:
    first, second = (value, value) if isinstance(value, int) else (tuple(value) * 2)[:2]
    return int(first), int(second)
