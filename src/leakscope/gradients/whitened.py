"""Gradients in the coordinates in which those of unrelated records look alike in every direction.

An update is a sum of gradients with a strongly uneven covariance. To second order that covariance is a
Kronecker product, of the moments of a layer's inputs and of its output gradients, so that whitening a
gradient is whitening its two factors: nothing larger than a layer's weight is ever inverted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from leakscope.core.errors import ArgumentError, require
from leakscope.core.nouns import Loss, Params
from leakscope.core.task import task_loss
from leakscope.gradients.factors import Factors, Rule, widest
from leakscope.gradients.records import Records

PASS = 512  # records in one pass at most
BUDGET = 2**27  # bytes of a pass


@dataclass(frozen=True, eq=False)
class Moments:
    """Of every linear layer and convolution, by the weight's name: E[a aᵀ] of its inputs and E[b bᵀ] of
    its output gradients, over records, positions and groups, in float64 where there is one."""

    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]

    def whitening(self, *, damping: Mapping[str, float]) -> Whitening:
        """The inverse Cholesky factors of both, each with so many times its mean diagonal added."""
        return Whitening(
            {name: _inverse_root(moment, damping[name]) for name, moment in self.inputs.items()},
            {name: _inverse_root(moment, damping[name]) for name, moment in self.outputs.items()},
        )


@dataclass(frozen=True, eq=False)
class Whitening:
    """What maps a layer's inputs, and its output gradients, to coordinates of equal variance."""

    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]

    def to(self, like: Tensor) -> Whitening:
        """The same in the precision the gradients have, and where they live."""
        parts = [{name: root.to(like) for name, root in part.items()} for part in (self.inputs, self.outputs)]
        return Whitening(*parts)

    def layers(self, every: Iterable[Rule]) -> Iterator[Factors]:
        """Those of the layers that can be whitened, in these coordinates."""
        return (self.layer(layer) for layer in every if isinstance(layer, Factors))

    def layer(self, layer: Factors) -> Factors:
        """The layer's factors in these coordinates. Its bias, whose gradient is b alone, is left out."""
        groups = layer.convolution.groups if layer.convolution else 1
        inside, outside = self.inputs[layer.weight], self.outputs[layer.weight]
        if layer.convolution is None:
            a, b = F.linear(layer.a, inside), F.linear(layer.b, outside)
        else:
            a, b = _channels(layer.a, inside, groups), _channels(layer.b, outside, groups)
        return replace(layer, a=a, b=b, bias=None)

    def direction(self, layer: Factors, direction: Tensor) -> Tensor:
        """The direction B^-1/2 V A^-1/2: its inner product with a whitened gradient is that of the
        matched filter B^-1 V A^-1 with the gradient itself."""
        groups = layer.convolution.groups if layer.convolution else 1
        inside, outside = self.inputs[layer.weight], self.outputs[layer.weight]
        along = direction.to(layer.a.dtype).reshape(groups, len(outside), len(inside), -1)
        along = torch.einsum("qi,gpik->gpqk", inside, torch.einsum("po,goik->gpik", outside, along))
        return along.reshape(direction.shape)


def moments(model: nn.Module, params: Params, x: Tensor, y: Tensor, *, loss: Loss = task_loss) -> Moments:
    """The moments of these records' gradients, from one forward and one backward pass of each."""
    records = Records.of(model, params, x, y, loss=loss)
    refuse_unwhitened(records)
    inputs: dict[str, Tensor] = {}
    outputs: dict[str, Tensor] = {}
    at_once = min(PASS, records.at_once(BUDGET, formed=False))
    for rows in torch.arange(len(x), device=x.device).split(at_once):
        for layer in records.capture(rows):
            if not isinstance(layer, Factors):  # scales and shifts of normalisations, embeddings
                continue
            for moment, part in ((inputs, layer.a), (outputs, layer.b)):
                term = _second(part, layer).div_(len(x))
                moment[layer.weight] = moment[layer.weight].add_(term) if layer.weight in moment else term
    return Moments(inputs, outputs)


def refuse_unwhitened(records: Records) -> None:
    """Refuse a model of which no layer can be whitened: a product of factors that is used once."""
    if not records.whitens:
        raise ArgumentError(
            "whitening needs linear layers or convolutions, and layers that are each used once and have a "
            "rule, and this model has others; use the cosine."
        )


def _second(part: Tensor, layer: Factors) -> Tensor:
    """The sum over records of the mean over positions and groups of v vᵀ."""
    if layer.convolution is None:
        flat = part.flatten(0, -2).mT
        share = len(part) / flat.shape[1]
    else:
        grouped = part.unflatten(1, (layer.convolution.groups, -1))
        flat = grouped.transpose(0, 2).flatten(1)
        share = len(part) / flat.shape[1]
    return (flat @ flat.mT).to(widest(part.device)).mul_(share)


def _channels(part: Tensor, matrix: Tensor, groups: int) -> Tensor:
    """The matrix applied to the channels of every group, position by position: a 1 x 1 convolution."""
    kernel = matrix[:, :, None, None].repeat(groups, 1, 1, 1)
    return F.conv2d(part, kernel, groups=groups)


def _inverse_root(moment: Tensor, damping: float) -> Tensor:
    require(damping > 0, "damping", "positive", damping)
    scale = moment.diagonal().mean().clamp(min=torch.finfo(torch.float32).tiny)
    damped = moment.clone()
    damped.diagonal().add_(damping * scale)
    root, failed = torch.linalg.cholesky_ex(damped)
    if int(failed):
        raise ArgumentError(
            "whitening needs gradients whose moments are finite, and these are not; lower the rate of the "
            "training that they are of."
        )
    del damped  # of a wide layer this is as large as everything else
    identity = torch.eye(len(moment), dtype=moment.dtype, device=moment.device)
    inverse: Tensor = torch.linalg.solve_triangular(root, identity, upper=False)
    return inverse
