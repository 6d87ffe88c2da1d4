"""How each record's gradient lies to a direction: dots and squared norms, no gradient formed.

One forward and one backward pass give the input and output gradient of every layer; a layer's dot
is its output along the direction times the output gradient, its norm follows from both factors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from leakscope.core.errors import ArgumentError, require
from leakscope.core.nouns import Layers, Loss, Params
from leakscope.core.task import as_logits, is_number, task_loss
from leakscope.gradients.factors import FORMED, Convolution, Factors, Lookup, Rule, patches, widest
from leakscope.gradients.records import Records
from leakscope.gradients.whitened import Whitening, refuse_unwhitened

PASS = 512  # records in one pass at most
BUDGET = 2**27  # bytes of a pass, and of gradients where there is no rule
GRAM_BUDGET = 2**30  # bytes of a layer's gradients whose inner products are asked for
GRAM = 1.5  # how much more work a Gram matrix may be and still be as fast

Alignment = dict[str, tuple[Tensor, Tensor]]  # name -> (dots (n,), squared norms (n,))


def alignment(
    model: nn.Module,
    params: Params,
    x: Tensor,
    y: Tensor,
    direction: Params,
    *,
    loss: Loss = task_loss,
    label: Literal["known", "sum"] = "known",
    whitening: Whitening | None = None,
) -> Alignment:
    """Each record's gradient against ``direction``, layer by layer: dots and squared norms.

    ``label="sum"`` adds up the gradients of the cross-entropy towards every label (paper 002, label
    unknown), for which the logits' gradient is C p - 1; ``y`` is not looked at then. With a
    ``whitening`` both are whitened first, and there are weights of linear layers and convolutions only.
    """
    require(
        set(direction) == set(params), "direction", f"the model's own layers, {list(params)}", list(direction)
    )
    require(label in ("known", "sum"), "label", "known or sum", label)
    if label == "sum" and is_number(y):
        raise ArgumentError(
            "label must be known where labels are numbers, got 'sum': there is no list of them."
        )
    loss = loss if label == "known" else every_label
    records = Records.of(model, params, x, y, loss=loss)
    if whitening is not None:
        refuse_unwhitened(records)
    along = {name: direction[name].to(p) for name, p in records.params.items()}
    whitening = whitening.to(next(iter(records.params.values()))) if whitening else None
    n = min(PASS, records.at_once(BUDGET, formed=not records.fast))
    every = torch.arange(len(x), device=x.device).split(n)
    parts = [_pass(records, along, rows, whitening, first=i == 0) for i, rows in enumerate(every)]
    return {
        name: (torch.cat([part[name][0] for part in parts]), torch.cat([part[name][1] for part in parts]))
        for name in records.params
        if name in parts[0]
    }


def whitened_cosines(
    model: nn.Module,
    params: Params,
    x: Tensor,
    y: Tensor,
    updates: Layers,
    whitening: Whitening,
    *,
    loss: Loss = task_loss,
    along: dict[str, list[Tensor]] | None = None,
) -> dict[str, Tensor]:
    """Of each layer that can be whitened, by its weight's name: how each record's gradient lies to every one
    of the updates (u, n), both whitened, over the gradient's length and not the update's. ``along`` keeps the
    updates as they are whitened, which takes longer than all else, for the next call with the same."""
    records = Records.of(model, params, x, y, loss=loss)
    refuse_unwhitened(records)
    whitening = whitening.to(next(iter(records.params.values())))
    n, along = min(PASS, records.at_once(BUDGET, formed=False)), {} if along is None else along
    parts: dict[str, list[Tensor]] = {}
    for rows in torch.arange(len(x), device=x.device).split(n):
        for layer in whitening.layers(records.capture(rows)):
            name = layer.weight
            if name not in along:
                along[name] = [whitening.direction(layer, one.to(layer.a)) for one in updates[name]]
            dots, squares = _products(layer, *along[name])
            length = squares.to(widest(x.device)).sqrt()
            cosines = torch.stack(dots) / length.clamp(min=torch.finfo(length.dtype).tiny)
            parts.setdefault(name, []).append(torch.where(length > 0, cosines, 0.0))
    return {name: torch.cat(several, dim=1) for name, several in parts.items()}


def whitened_gram(
    model: nn.Module,
    params: Params,
    x: Tensor,
    y: Tensor,
    update: Params,
    whitening: Whitening,
    *,
    loss: Loss = task_loss,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Of each layer that can be whitened: the inner products of all records' gradients (n, n), and those
    with the update (n,), all whitened. Layers that are too large (`list_too_large`) are left out; where
    no other moved, that is refused."""
    records = Records.of(model, params, x, y, loss=loss)
    refuse_unwhitened(records)
    whitening = whitening.to(next(iter(records.params.values())))
    kept: dict[str, list[Factors]] = {}
    moved = {name for name in whitening.inputs if bool(update[name].any())}
    for rows in torch.arange(len(x), device=x.device).split(min(PASS, records.at_once(BUDGET, formed=False))):
        for layer in whitening.layers(records.capture(rows)):
            if not _too_large(layer, len(x)):
                kept.setdefault(layer.weight, []).append(layer)
    if moved and moved.isdisjoint(kept):
        raise ArgumentError(
            f"x must be so few records that their gradients of a layer that moved take at most "
            f"{GRAM_BUDGET:,} bytes, got {len(x):,}; take fewer at once (most)."
        )
    for name, layers in kept.items():
        along = whitening.direction(layers[0], update[name].to(layers[0].a))
        dots = torch.cat([_products(layer, along)[0][0] for layer in layers])
        if layers[0].convolution is None and layers[0].a.dim() == 2:
            a, b = (torch.cat([getattr(layer, part) for layer in layers]) for part in ("a", "b"))
            gram = (a @ a.mT) * (b @ b.mT)
        else:
            g = torch.cat([block.flatten(1) for layer in layers for block in layer.blocks()])
            gram = g @ g.mT
        yield gram, dots


def list_too_large(
    model: nn.Module, params: Params, x: Tensor, y: Tensor, n: int, *, loss: Loss = task_loss
) -> list[str]:
    """The layers that `whitened_gram` leaves out of ``n`` records such as these, by their weights' names."""
    layers = Records.of(model, params, x, y, loss=loss).capture(torch.arange(len(x), device=x.device))
    return [layer.weight for layer in layers if isinstance(layer, Factors) and _too_large(layer, n)]


def _too_large(layer: Factors, n: int) -> bool:
    """Whether the gradients of so many records must be formed, and then take more than `GRAM_BUDGET`."""
    single = layer.convolution is None and layer.a.dim() == 2
    return not single and layer.shape.numel() * n * layer.a.element_size() > GRAM_BUDGET


def by_layer(found: Alignment) -> Alignment:
    """The same with a layer's weight and bias together, under the layer's name."""
    groups: dict[str, list[tuple[Tensor, Tensor]]] = {}
    for name, pair in found.items():
        groups.setdefault(name.rpartition(".")[0] or name, []).append(pair)
    return {
        name: (_total([dots for dots, _ in pairs]), _total([squares for _, squares in pairs]))
        for name, pairs in groups.items()
    }


def _total(parts: list[Tensor]) -> Tensor:
    return torch.stack(parts).to(widest(parts[0].device)).sum(0)


def every_label(logits: Tensor, y: Tensor) -> Tensor:
    """The sum over all labels of the cross-entropy towards each, its mean over records."""
    logits = as_logits(logits)
    return (logits.shape[1] * logits.logsumexp(1) - logits.sum(1)).mean()


def _pass(
    records: Records, direction: dict[str, Tensor], rows: Tensor, whitening: Whitening | None, *, first: bool
) -> Alignment:
    if not records.fast:
        kept = records.keep(rows, budget=BUDGET)
        return {name: _formed(kept["gradient", name], direction[name]) for name in records.params}
    found: Alignment = {}
    captured = records.capture(rows)
    for layer in captured if whitening is None else whitening.layers(captured):
        if whitening is not None and first and isinstance(layer, Factors):
            # the direction is whitened with the first records
            direction[layer.weight] = whitening.direction(layer, direction[layer.weight])
        found |= align(layer, direction)
    return found


def align(layer: Rule, direction: Mapping[str, Tensor]) -> Alignment:
    """A layer's records against the direction: name -> dots and squared norms."""
    if isinstance(layer, Factors):
        (dots,), squares = _products(layer, direction[layer.weight])
        found, biases = {layer.weight: (dots, squares)}, layer.gradients(weight=False)
    elif isinstance(layer, Lookup):
        return {layer.weight: _lookup(layer, direction[layer.weight])}
    else:
        found, biases = {}, layer.gradients()
    return found | {name: _formed(g, direction[name]) for name, g in biases.items()}


def _formed(gradients: Tensor, direction: Tensor) -> tuple[Tensor, Tensor]:
    if gradients.dim() == 5 and gradients.stride(2) == 1:  # a convolution's, channels last
        gradients, direction = gradients.movedim(2, -1), direction.movedim(1, -1)
    flat = gradients.flatten(1)
    return flat @ direction.flatten(), _squared(flat)


def _squared(rows: Tensor) -> Tensor:
    """The squared norm of every row, without a copy of its squares."""
    lengths: Tensor = torch.linalg.vector_norm(rows, dim=1)
    return lengths.square()


def _lookup(layer: Lookup, along: Tensor) -> tuple[Tensor, Tensor]:
    """What an embedding found along the direction, and the Gram form: rows looked up twice add up."""
    ids = layer.a.reshape(len(layer.a), -1)
    b = layer.b.reshape(*ids.shape, -1)
    b = b if layer.padding is None else b * (ids != layer.padding)[:, :, None]
    dots = (F.embedding(ids, along) * b).sum((1, 2))
    pairs = zip(*(part.split(max(1, FORMED // ids.shape[1] ** 2)) for part in (ids, b)), strict=True)
    norms = [((b @ b.mT) * (ids[:, :, None] == ids[:, None, :])).sum((1, 2)) for ids, b in pairs]
    return dots, torch.cat(norms).clamp(min=0)


def _products(layer: Factors, *along: Tensor) -> tuple[list[Tensor], Tensor]:
    """The dots with each direction, and the squared norms. Gradients are formed, some at a time, where that
    is less work than the Gram matrices of both factors over positions; otherwise the direction's own output
    gives the dots."""
    a, b, c, shape = layer.a, layer.b, layer.convolution, layer.shape
    if c is None and a.dim() == 2:
        return [(F.linear(a, one) * b).sum(1) for one in along], _squared(a) * _squared(b)
    groups = 1 if c is None else c.groups
    positions = b[0, 0].numel() if c else b[0].numel() // shape[0]
    inside, outside = shape[1:].numel(), shape[0] // groups
    formed = positions * (inside + outside) >= GRAM * inside * outside
    if formed:
        parts = [[_formed(block, one) for one in along] for block in layer.blocks()]
        dots = [torch.cat([part[i][0] for part in parts]) for i in range(len(along))]
        return dots, torch.cat([part[0][1] for part in parts])
    entries = positions * max(inside * groups, positions * groups)
    pairs = zip(*(part.split(max(1, FORMED // entries)) for part in (a, b)), strict=True)
    if c is None:
        norms = [_gram(*pair) for pair in pairs]
        every = [F.linear(a, one) for one in along]
    else:
        norms = [_convolution_gram(a, b, shape, c) for a, b in pairs]
        every = [F.conv2d(a, one, None, c.stride, c.padding, c.dilation, c.groups) for one in along]
    return [(out * b).flatten(1).sum(1) for out in every], torch.cat(norms)


def _gram(a: Tensor, b: Tensor) -> Tensor:
    """The squared norms of a linear layer's gradients, each a sum of products over positions."""
    a, b = a.flatten(1, -2), b.flatten(1, -2)
    norms: Tensor = ((a @ a.mT) * (b @ b.mT)).sum((1, 2))
    return norms.clamp(min=0)


def _convolution_gram(a: Tensor, b: Tensor, shape: torch.Size, c: Convolution) -> Tensor:
    """The squared norms of a convolution's gradients: it is a linear layer on patches, and its gradient
    a sum over their positions."""
    seen = patches(a, shape, c)
    rows = b.flatten(2).unflatten(1, (c.groups, -1)).mT  # (n, groups, positions, out)
    norms: Tensor = ((seen @ seen.mT) * (rows @ rows.mT)).sum((1, 2, 3))
    return norms.clamp(min=0)
