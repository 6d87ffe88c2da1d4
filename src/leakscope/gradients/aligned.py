"""How each record's gradient lies to a direction: dots and squared norms, no gradient formed.

One forward and one backward pass give the input and output gradient of every layer; a layer's dot
is its output along the direction times the output gradient, its norm follows from both factors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from leakscope.core import Loss, Params
from leakscope.errors import require
from leakscope.gradients.factors import Factors, capture
from leakscope.gradients.records import Records

PASS = 512  # records in one pass
FORMED = 2**22  # entries of convolution gradients formed at a time, where that is cheaper than a Gram matrix
GRAM = 1.5  # how much more work a Gram matrix may be and still be as fast

Alignment = dict[str, tuple[Tensor, Tensor]]  # name -> (dots (n,), squared norms (n,))


def alignment(
    model: nn.Module,
    params: Params,
    x: Tensor,
    y: Tensor,
    direction: Params,
    *,
    loss: Loss = F.cross_entropy,
    label: Literal["known", "sum"] = "known",
) -> Alignment:
    """Each record's gradient against ``direction``, layer by layer: dots and squared norms.

    ``label="sum"`` adds up the gradients of the cross-entropy towards every label (paper 002, label
    unknown), for which the logits' gradient is C p - 1; ``y`` is not looked at then.
    """
    require(
        set(direction) == set(params), "direction", f"the model's own layers, {list(params)}", list(direction)
    )
    require(label in ("known", "sum"), "label", "known or sum", label)
    loss = loss if label == "known" else every_label
    records = Records.of(model, params, x, y, loss=loss)
    parts = [_pass(records, direction, rows) for rows in torch.arange(len(x)).split(PASS)]
    return {
        name: (torch.cat([part[name][0] for part in parts]), torch.cat([part[name][1] for part in parts]))
        for name in records.params
    }


def every_label(logits: Tensor, y: Tensor) -> Tensor:
    """The sum over all labels of the cross-entropy towards each, its mean over records."""
    return (logits.shape[1] * logits.logsumexp(1) - logits.sum(1)).mean()


def _pass(records: Records, direction: Params, rows: Tensor) -> Alignment:
    x, y = records.x.index_select(0, rows), records.y.index_select(0, rows)
    if not records.fast:
        kept = records.formed().keep(rows, budget=FORMED * 8)
        return {name: _formed(kept["gradient", name], direction[name]) for name in records.params}
    layers = capture(records.model, records.params, x, y, loss=records.loss).layers or []
    found: Alignment = {}
    for layer in layers:
        found |= _aligned(layer, direction)
    return found


def _formed(gradients: Tensor, direction: Tensor) -> tuple[Tensor, Tensor]:
    flat = gradients.flatten(1)
    return flat @ direction.to(flat.dtype).flatten(), flat.square().sum(1)


def _aligned(layer: Factors, direction: Mapping[str, Tensor]) -> Alignment:
    along = direction[layer.weight].to(layer.a.dtype)
    found = {layer.weight: _convolution(layer, along) if layer.convolution else _linear(layer, along)}
    if layer.bias is not None:
        own = layer.b.flatten(2).sum(2) if layer.convolution else layer.b
        own = own if own.dim() == 2 else own.flatten(1, -2).sum(1)
        found[layer.bias] = _formed(own, direction[layer.bias])
    return found


def _linear(layer: Factors, along: Tensor) -> tuple[Tensor, Tensor]:
    a, b = layer.a, layer.b
    dots = (F.linear(a, along) * b).flatten(1).sum(1)
    if a.dim() == 2:
        return dots, a.square().sum(1) * b.square().sum(1)
    a, b = a.flatten(1, -2), b.flatten(1, -2)
    return dots, ((a @ a.mT) * (b @ b.mT)).sum((1, 2)).clamp(min=0)


def _convolution(layer: Factors, along: Tensor) -> tuple[Tensor, Tensor]:
    c, shape = layer.convolution, layer.shape
    assert c is not None
    positions = layer.b.shape[2] * layer.b.shape[3]
    inside, outside = shape[1:].numel(), shape[0] // c.groups
    if positions * (inside + outside) >= GRAM * inside * outside:
        n = max(1, FORMED // shape.numel())
        parts = [
            _formed(Factors(layer.weight, None, shape, a, b, c).gradients()[layer.weight], along)
            for a, b in zip(layer.a.split(n), layer.b.split(n), strict=True)
        ]
        return torch.cat([dots for dots, _ in parts]), torch.cat([norms for _, norms in parts])
    out = F.conv2d(layer.a, along, None, c.stride, c.padding, c.dilation, c.groups)
    dots = (out * layer.b).flatten(1).sum(1)
    patches = F.unfold(layer.a, shape[2:], c.dilation, c.padding, c.stride)
    a = patches.view(len(layer.a) * c.groups, inside, positions)
    b = layer.b.reshape(len(layer.b) * c.groups, outside, positions)
    norms = ((a.mT @ a) * (b.mT @ b)).sum((1, 2)).view(-1, c.groups).sum(1)
    return dots, norms.clamp(min=0)
