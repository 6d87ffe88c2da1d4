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

from leakscope.core.errors import ArgumentError, require
from leakscope.core.nouns import Loss, Params
from leakscope.gradients.factors import Convolution, Factors, capture
from leakscope.gradients.records import Records
from leakscope.gradients.whitened import Whitening

PASS = 512  # records in one pass
FORMED = 2**22  # entries of a convolution's gradients, or of its patches, held at a time
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
    whitening: Whitening | None = None,
) -> Alignment:
    """Each record's gradient against ``direction``, layer by layer: dots and squared norms.

    ``label="sum"`` adds up the gradients of the cross-entropy towards every label (paper 002, label
    unknown), for which the logits' gradient is C p - 1; ``y`` is not looked at then. With a
    ``whitening`` both are whitened first, and there are weights only, no biases.
    """
    require(
        set(direction) == set(params), "direction", f"the model's own layers, {list(params)}", list(direction)
    )
    require(label in ("known", "sum"), "label", "known or sum", label)
    loss = loss if label == "known" else every_label
    records = Records.of(model, params, x, y, loss=loss)
    if whitening is not None and not records.fast:
        raise ArgumentError("a whitening needs a model of linear layers and convolutions only.")
    along = dict(direction)
    whitening = whitening.to(next(iter(records.params.values())).dtype) if whitening else None
    parts = [_pass(records, along, rows, whitening) for rows in torch.arange(len(x)).split(PASS)]
    return {
        name: (torch.cat([part[name][0] for part in parts]), torch.cat([part[name][1] for part in parts]))
        for name in records.params
        if name in parts[0]
    }


def by_layer(found: Alignment) -> Alignment:
    """The same with a layer's weight and bias together, under the layer's name."""
    groups: dict[str, list[tuple[Tensor, Tensor]]] = {}
    for name, pair in found.items():
        groups.setdefault(name.rpartition(".")[0] or name, []).append(pair)
    return {
        name: (
            torch.stack([dots.double() for dots, _ in pairs]).sum(0),
            torch.stack([squares.double() for _, squares in pairs]).sum(0),
        )
        for name, pairs in groups.items()
    }


def every_label(logits: Tensor, y: Tensor) -> Tensor:
    """The sum over all labels of the cross-entropy towards each, its mean over records."""
    return (logits.shape[1] * logits.logsumexp(1) - logits.sum(1)).mean()


def _pass(
    records: Records, direction: dict[str, Tensor], rows: Tensor, whitening: Whitening | None
) -> Alignment:
    x, y = records.x.index_select(0, rows), records.y.index_select(0, rows)
    if not records.fast:
        kept = records.formed().keep(rows, budget=FORMED * 8)
        return {name: _formed(kept["gradient", name], direction[name]) for name in records.params}
    layers = capture(records.model, records.params, x, y, loss=records.loss).layers or []
    found: Alignment = {}
    for layer in layers:
        if whitening is not None:
            if rows[0] == 0:  # the direction is whitened with the first records
                direction[layer.weight] = whitening.direction(layer, direction[layer.weight])
            layer = whitening.layer(layer)
        found |= _aligned(layer, direction)
    return found


def _formed(gradients: Tensor, direction: Tensor) -> tuple[Tensor, Tensor]:
    flat = gradients.flatten(1)
    return flat @ direction.to(flat.dtype).flatten(), _squared(flat)


def _squared(rows: Tensor) -> Tensor:
    """The squared norm of every row, without a copy of its squares."""
    lengths: Tensor = torch.linalg.vector_norm(rows, dim=1)
    return lengths.square()


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
        return dots, _squared(a) * _squared(b)
    a, b = a.flatten(1, -2), b.flatten(1, -2)
    return dots, ((a @ a.mT) * (b @ b.mT)).sum((1, 2)).clamp(min=0)


def _convolution(layer: Factors, along: Tensor) -> tuple[Tensor, Tensor]:
    c, shape = layer.convolution, layer.shape
    assert c is not None
    positions = layer.b.shape[2] * layer.b.shape[3]
    inside, outside = shape[1:].numel(), shape[0] // c.groups
    formed = positions * (inside + outside) >= GRAM * inside * outside
    n = max(1, FORMED // (shape.numel() if formed else positions * inside * c.groups))
    pairs = zip(layer.a.split(n), layer.b.split(n), strict=True)
    if formed:
        parts = [
            _formed(Factors(layer.weight, None, shape, a, b, c).gradients()[layer.weight], along)
            for a, b in pairs
        ]
        return torch.cat([dots for dots, _ in parts]), torch.cat([norms for _, norms in parts])
    out = F.conv2d(layer.a, along, None, c.stride, c.padding, c.dilation, c.groups)
    dots = (out * layer.b).flatten(1).sum(1)
    return dots, torch.cat([_gram(a, b, shape, c) for a, b in pairs])


def _gram(a: Tensor, b: Tensor, shape: torch.Size, c: Convolution) -> Tensor:
    """The squared norms of a convolution's gradients: it is a linear layer on patches, and its gradient
    a sum over their positions."""
    patches = _patches(a, shape, c)
    rows = b.flatten(2).unflatten(1, (c.groups, -1)).mT  # (n, groups, positions, out)
    norms: Tensor = ((patches @ patches.mT) * (rows @ rows.mT)).sum((1, 2, 3))
    return norms.clamp(min=0)


def _patches(a: Tensor, shape: torch.Size, c: Convolution) -> Tensor:
    """What every position of the kernel sees: (n, groups, positions, height * width * channels).

    Copied out of a padded image with its channels last, in runs of a kernel's row: F.unfold takes five
    times as long on maps of 4 x 4."""
    (n, channels, height, width), (high, wide) = a.shape, shape[2:]
    down, right = c.padding
    image = a.new_zeros(n, height + 2 * down, width + 2 * right, channels)
    image[:, down : down + height, right : right + width] = a.permute(0, 2, 3, 1)
    by_record, by_row, by_column, by_channel = image.stride()
    out = [(image.shape[i + 1] - c.dilation[i] * (shape[i + 2] - 1) - 1) // c.stride[i] + 1 for i in (0, 1)]
    seen = image.as_strided(
        (n, c.groups, *out, high, wide, channels // c.groups),
        (
            by_record,
            by_channel * (channels // c.groups),
            by_row * c.stride[0],
            by_column * c.stride[1],
            by_row * c.dilation[0],
            by_column * c.dilation[1],
            by_channel,
        ),
    )
    return seen.reshape(n, c.groups, out[0] * out[1], -1)
