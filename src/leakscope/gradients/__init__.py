"""The gradients of records, and of the batches drawn from them.

A batch's mean gradient is the mean of its records' gradients. Each record's gradient is computed
once, by hand rules where every parameter belongs to a linear layer, a convolution, a normalisation, an
embedding or a self-attention, each used once, and by vmap elsewhere, and all batches are formed by
selection, in blocks of consecutive trials whose memory is bounded whatever the number of trials and of
records. The module's own parameters are neither used nor changed; all is computed where ``x`` and they
live. Where a batch's gradient is not the mean of its records', the model is refused.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from leakscope.core.errors import require
from leakscope.core.nouns import Loss, Params
from leakscope.core.task import task_loss
from leakscope.gradients.aligned import alignment
from leakscope.gradients.records import Kept, Records, Weigh, drawn_from, place
from leakscope.gradients.whitened import moments

__all__ = ["alignment", "batch_means", "blocks", "moments", "per_record"]

BUDGET = 256_000_000  # bytes
CACHE = 2**19  # bytes that stay in the nearest cache while all trials of a block pick from them
PART = 2**24  # bytes of trials handed out at a time: larger allocations are new pages each time


def per_record(
    model: nn.Module, params: Params, x: Tensor, y: Tensor, *, loss: Loss = task_loss
) -> dict[str, Tensor]:
    """Each record's own gradient: name -> (n, *shape)."""
    records = Records.of(model, params, x, y, loss=loss).formed()
    kept = records.keep(torch.arange(len(x), device=x.device), budget=BUDGET // 2)
    return {name: kept["gradient", name].unflatten(1, p.shape) for name, p in records.params.items()}


def batch_means(
    model: nn.Module,
    params: Params,
    x: Tensor,
    y: Tensor,
    rows: Tensor,
    *,
    loss: Loss = task_loss,
    weigh: Weigh | None = None,
) -> dict[str, Tensor]:
    """The mean gradient of every batch ``rows`` (t, k) of indices into ``x``: name -> (t, *shape)."""
    means: dict[str, Tensor] = {}
    start = 0
    for block in blocks(model, params, x, y, rows, loss=loss, weigh=weigh):
        for name, layer in block.items():
            if start == 0:
                means[name] = layer.new_empty(len(rows), *layer.shape[1:])
            means[name][start : start + len(layer)] = layer
        start += len(layer)
    return means


def blocks(
    model: nn.Module,
    params: Params,
    x: Tensor,
    y: Tensor,
    rows: Tensor,
    *,
    loss: Loss = task_loss,
    weigh: Weigh | None = None,
    budget: int = BUDGET,
) -> Iterator[dict[str, Tensor]]:
    """``batch_means`` in blocks of consecutive trials, in about ``budget`` bytes beside the block that
    the consumer still holds, whatever the number of trials and of records.

    A budget of 4/3 of the drawn records' gradients (of their factors, for wide linear layers) has each
    record computed once; with less it is computed again for every block that draws it. ``weigh`` gives
    each record a weight in its batch's mean, per layer, from the squared norms of its own gradient.
    """
    records = Records.of(model, params, x, y, loss=loss, weigh=weigh)
    _check_rows(rows, len(x))
    return _blocks(records, rows.to(x.device), budget)


def _blocks(records: Records, rows: Tensor, budget: int) -> Iterator[dict[str, Tensor]]:
    # A block is handed out in parts, whose copies at the consumer's the allocator recycles.
    part = max(1, PART // records.size)
    for means in _whole_blocks(records, rows, budget):
        trials = len(next(iter(means.values())))
        for start in range(0, trials, part):
            yield {name: layer[start : start + part] for name, layer in means.items()}


def _whole_blocks(records: Records, rows: Tensor, budget: int) -> Iterator[dict[str, Tensor]]:
    share = 1 / rows.shape[1]
    drawn, place_of = drawn_from(rows, len(records.x))
    held = len(drawn) * records.kept_size
    if held > budget * 3 // 4:
        trial = records.size + rows.shape[1] * records.factors_size
        for block in rows.split(max(1, budget // 2 // trial)):
            yield _streamed(records, block, budget=budget // 4, share=share)
        return
    kept = records.keep(drawn, budget=budget // 4, share=share)
    # A block reads all that is held, so it is not made much smaller than that.
    size = min(budget - held, max(PART, held // 2))
    for block in rows.split(max(1, size // records.size)):
        yield _means(records, kept, place_of[block])


def _means(records: Records, kept: Kept, where: Tensor) -> dict[str, Tensor]:
    """A block of means, from what is kept of all its records."""
    starts = torch.arange(0, where.numel(), where.shape[1], device=where.device)
    sums = {}
    for (kind, name), tensor in kept.items():
        if kind == "gradient":
            sums[name] = tensor.new_empty(len(where), tensor.shape[1])
            for room, some in _sums(sums[name], tensor, where.flatten(), starts):
                room.copy_(some)
    return _shaped(records, kept, where, sums)


def _streamed(records: Records, rows: Tensor, *, budget: int, share: float) -> dict[str, Tensor]:
    """The same from one pass of its records after the other, of which only factors are kept."""
    drawn, place_of = drawn_from(rows, len(records.x))
    where = place_of[rows]
    kept: Kept = {}
    sums = {
        name: p.new_zeros(len(rows), p.numel())
        for name, p in records.params.items()
        if name not in records.factored
    }
    for part, new in records.passes(drawn, budget=budget, share=share):
        inside = (where >= part.start) & (where < part.stop)
        count = inside.sum(1)
        for name, total in sums.items():
            tensor = new.pop(("gradient", name))
            for room, some in _sums(total, tensor, where[inside] - part.start, count.cumsum(0) - count):
                room += some
        place(kept, new, where=part, n=len(drawn))
    return _shaped(records, kept, where, sums)


def _sums(out: Tensor, gradients: Tensor, rows: Tensor, starts: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Columns of ``out`` and the sums over each trial's records that belong there, as many columns at
    a time as stay in the cache. One thread, the papers' CNN: all columns at once takes 5 to 7 times as
    long, a dense selection matrix 18 (k=16) and 5 times (k=128)."""
    columns = max(64, CACHE // (len(gradients) * gradients.element_size()))
    for some, room in zip(gradients.split(columns, 1), out.split(columns, 1), strict=True):
        yield room, F.embedding_bag(rows, some, starts, mode="sum")


def _shaped(records: Records, kept: Kept, where: Tensor, sums: dict[str, Tensor]) -> dict[str, Tensor]:
    """All layers in the order of the model, those that are factored from what is kept of them."""
    return {
        name: sums[name].unflatten(1, p.shape)
        if name in sums
        else _products(kept["a", name], kept["b", name], where)
        for name, p in records.params.items()
    }


def _products(a: Tensor, b: Tensor, where: Tensor) -> Tensor:
    """The sum over each trial's records of b a', from as many trials at a time as stay in the cache."""
    k, width = where.shape[1], a.shape[1] + b.shape[1]
    trials = max(1, 2 * CACHE // (k * width * a.element_size()))
    out = a.new_empty(len(where), b.shape[1], a.shape[1])
    for block, room in zip(where.split(trials), out.split(trials), strict=True):
        rows = block.flatten()
        left = b.index_select(0, rows).view(-1, k, b.shape[1])
        right = a.index_select(0, rows).view(-1, k, a.shape[1])
        torch.bmm(left.transpose(1, 2), right, out=room)
    return out


def _check_rows(rows: Tensor, n: int) -> None:
    shape = tuple(rows.shape)
    require(rows.dim() == 2 and rows.numel() > 0, "rows", "indices of shape (trials, k), not empty", shape)
    low, high = int(rows.min()), int(rows.max())
    require(low >= 0 and high < n, "rows", f"indices into x, in [0, {n})", low if low < 0 else high)
