"""The gradients of records, and of the batches drawn from them.

A batch's mean gradient is the mean of its records' gradients. Each record's gradient is computed
once, by hand rules where every parameter belongs to a linear layer or a convolution and by vmap
elsewhere, and all batches are formed by selection, in blocks of consecutive trials whose memory is
bounded whatever the number of trials and of records. The module's own parameters are neither used
nor changed. Where a batch's gradient is not the mean of its records', the model is refused.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from leakscope.core import Loss, Params
from leakscope.errors import require
from leakscope.gradients.records import Kept, Records, place

BUDGET = 256_000_000  # bytes
CACHE = 2**19  # bytes that stay in the nearest cache while all trials of a block pick from them
BLOCK = 30_000_000  # bytes: just under what the allocator recycles, where larger ones are new pages each time


def per_record(
    model: nn.Module, params: Params, x: Tensor, y: Tensor, *, loss: Loss = F.cross_entropy
) -> dict[str, Tensor]:
    """Each record's own gradient: name -> (n, *shape)."""
    records = Records.of(model, params, x, y, loss=loss).formed()
    kept = records.keep(torch.arange(len(x)), budget=BUDGET // 4)
    return {name: kept["gradient", name].unflatten(1, p.shape) for name, p in records.params.items()}


def batch_means(
    model: nn.Module, params: Params, x: Tensor, y: Tensor, rows: Tensor, *, loss: Loss = F.cross_entropy
) -> dict[str, Tensor]:
    """The mean gradient of every batch ``rows`` (t, k) of indices into ``x``: name -> (t, *shape)."""
    parts = list(blocks(model, params, x, y, rows, loss=loss))
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def blocks(
    model: nn.Module,
    params: Params,
    x: Tensor,
    y: Tensor,
    rows: Tensor,
    *,
    loss: Loss = F.cross_entropy,
    budget: int = BUDGET,
) -> Iterator[dict[str, Tensor]]:
    """``batch_means`` in blocks of consecutive trials, in about ``budget`` bytes.

    With a budget of 4/3 of what is kept of the drawn records (at most their gradients), each is
    computed once; with less, once for every block that draws it.
    """
    records = Records.of(model, params, x, y, loss=loss)
    _check_rows(rows, len(x))
    return _blocks(records, rows, budget)


def _blocks(records: Records, rows: Tensor, budget: int) -> Iterator[dict[str, Tensor]]:
    share = 1 / rows.shape[1]
    drawn, where = rows.unique(return_inverse=True)
    held = len(drawn) * records.kept_size
    if held > budget * 3 // 4:
        trial = records.size + rows.shape[1] * records.factors_size
        for block in rows.split(max(1, budget // 4 // trial)):
            yield _streamed(records, block, budget=budget // 4, share=share)
        return
    kept = records.keep(drawn, budget=budget // 4, share=share)
    # Two blocks can be alive, the consumer's and the next. A block reads all that is held, so it is
    # not made much smaller than that.
    size = min((budget - held) // 2, max(BLOCK, held // 6))
    for block in where.split(max(1, size // records.size)):
        yield _means(records, kept, block)


def _streamed(records: Records, rows: Tensor, *, budget: int, share: float) -> dict[str, Tensor]:
    """A block of means, from one pass of its records after the other: only factors are kept."""
    drawn, where = rows.unique(return_inverse=True)
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
            _add_sums(total, new.pop(("gradient", name)), where[inside] - part.start, count.cumsum(0) - count)
        place(kept, new, where=part, n=len(drawn))
    return _shaped(records, kept, where, sums)


def per_record_blocks(
    model: nn.Module,
    params: Params,
    x: Tensor,
    y: Tensor,
    rows: Tensor,
    *,
    loss: Loss = F.cross_entropy,
    budget: int = BUDGET,
) -> Iterator[dict[str, Tensor]]:
    """The drawn records' own gradients in blocks of consecutive trials: name -> (tb, k, *shape)."""
    records = Records.of(model, params, x, y, loss=loss)
    _check_rows(rows, len(x))
    return _per_record_blocks(records.formed(), rows, budget)


def _per_record_blocks(records: Records, rows: Tensor, budget: int) -> Iterator[dict[str, Tensor]]:
    drawn, where = rows.unique(return_inverse=True)
    held = len(drawn) * records.size
    kept = records.keep(drawn, budget=budget // 4) if held <= budget * 3 // 4 else None
    size = (budget - held) // 2 if kept is not None else budget // 4
    trials = max(1, size // (records.size * rows.shape[1]))
    for some, at in zip(rows.split(trials), where.split(trials), strict=True):
        block, place_of = kept, at
        if block is None:
            drawn, place_of = some.unique(return_inverse=True)
            block = records.keep(drawn, budget=budget // 4)
        yield {
            name: block["gradient", name][place_of].unflatten(2, p.shape)
            for name, p in records.params.items()
        }


def _means(records: Records, kept: Kept, where: Tensor) -> dict[str, Tensor]:
    every = torch.arange(0, where.numel(), where.shape[1])
    sums = {}
    for name, p in records.params.items():
        if name not in records.factored:
            sums[name] = p.new_zeros(len(where), p.numel())
            _add_sums(sums[name], kept["gradient", name], where.flatten(), every)
    return _shaped(records, kept, where, sums)


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


def _add_sums(total: Tensor, gradients: Tensor, rows: Tensor, starts: Tensor) -> None:
    """Add to each trial its records, from as many columns at a time as stay in the cache."""
    columns = max(64, CACHE // (len(gradients) * gradients.element_size()))
    for some, room in zip(gradients.split(columns, 1), total.split(columns, 1), strict=True):
        room += F.embedding_bag(rows, some, starts, mode="sum")


def _check_rows(rows: Tensor, n: int) -> None:
    shape = tuple(rows.shape)
    require(rows.dim() == 2 and rows.numel() > 0, "rows", "indices of shape (trials, k), not empty", shape)
    low, high = int(rows.min()), int(rows.max())
    require(low >= 0 and high < n, "rows", f"indices into x, in [0, {n})", low if low < 0 else high)
