"""Batches whose records depend on each other: batch statistics join them, dropout draws for every pass anew.

A record then has no gradient of its own, and a batch's gradient is not the mean of its records'. Each batch
gets a pass of its own, in the model's own mode: slower than by records, and what a client computes. The
gradient of a single record is that of the model in evaluation mode, with the statistics it has by then.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.modules.batchnorm import _NormBase

from leakscope.core.nouns import Loss, Params, flatten
from leakscope.core.rng import seeded
from leakscope.core.task import task_loss
from leakscope.gradients.capture import Stateless, close
from leakscope.gradients.records import JointRecords, Records

PART = 2**24  # bytes of trials handed out at a time
PASS = 1024  # records that share one pass at most


def draws(model: nn.Module, params: Params, x: Tensor) -> bool:
    """Whether the model, as it is now, draws at random: a pass of a few records moves torch's generator."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        before = torch.get_rng_state()
        Stateless.of(model)(params, x[:3].clone())
        return not torch.equal(before, torch.get_rng_state())


def mixes(model: nn.Module, params: Params, x: Tensor, y: Tensor, *, loss: Loss = task_loss) -> bool:
    """Whether a batch's gradient is not the mean of its records', in the mode the model is in."""
    try:
        Records.of(model, params, x, y, loss=loss)
    except JointRecords:
        return True
    return draws(model, params, x)


def with_statistics(model: nn.Module, params: Params, *, still: bool = False) -> tuple[nn.Module, Params]:
    """The model with the statistics among ``params``, and the parameters alone. Where it is asked to be
    ``still`` it is in evaluation mode. The model that was given is not changed."""
    buffers = dict(model.named_buffers())
    statistics = {name: value for name, value in params.items() if name in buffers}
    if not statistics and not still:
        return model, params
    own = copy.deepcopy(model)
    held = dict(own.named_buffers())
    for name, value in statistics.items():
        held[name].copy_(value)
    rest = {name: value for name, value in params.items() if name not in statistics}
    return own.eval() if still else own, rest


def is_batchwise(model: nn.Module) -> bool:
    """Whether layers normalise a record by its batch in training, and by running statistics afterwards."""
    return any(isinstance(part, _NormBase) and part.running_mean is not None for part in model.modules())


def normalise_by(model: nn.Module, params: Params, x: Tensor, *, batch: int) -> nn.Module:
    """The model in evaluation mode, whose running statistics are those that these records have under
    ``params`` in batches of at most ``batch``: a record's gradient is then about what it adds to that of a
    batch in training. Those that a model keeps lag behind its weights, at first by far. A model without any
    is given back."""
    if not is_batchwise(model):
        return model
    own = copy.deepcopy(model).eval()
    for part in own.modules():
        if isinstance(part, _NormBase) and part.running_mean is not None:
            part.reset_running_stats()
            part.momentum = None  # the plain mean over batches
            part.train()
    with torch.no_grad():
        for some in x.tensor_split(-(-len(x) // batch)):
            functional_call(own, dict(params), (some,))
    return own.eval()


def joint_blocks(
    model: nn.Module,
    params: Params,
    x: Tensor,
    y: Tensor,
    rows: Tensor,
    *,
    loss: Loss = task_loss,
    seed: int = 0,
) -> Iterator[dict[str, Tensor]]:
    """The gradient of every batch ``rows`` (t, k) of indices into ``x``, each by a pass of its own, in blocks
    of consecutive trials. What layers draw comes from ``seed`` and the trial's number alone."""
    own = copy.deepcopy(model).requires_grad_()
    with torch.no_grad():
        for name, value in own.named_parameters():
            value.copy_(params[name])
    rows, start = rows.to(x.device), 0
    together = _agree(own, x, y, rows[:2], loss)
    size = sum(p.numel() * p.element_size() for p in own.parameters())
    for block in rows.split(max(1, min(PASS // rows.shape[1], PART // size))):
        found = _stack(own, x, y, block, loss) if together else None
        rngs = [seeded(seed, "layers", start + i) for i in range(len(block))]
        yield found or _loop(own, x, y, block, loss, rngs)
        start += len(block)


def _agree(own: nn.Module, x: Tensor, y: Tensor, rows: Tensor, loss: Loss) -> bool:
    """Whether batches can have their passes together: vmap takes the model, and finds what a loop does."""
    found = _stack(own, x, y, rows, loss)
    if found is None:
        return False
    looped = _loop(own, x, y, rows, loss, [seeded(0)] * len(rows))
    return close(flatten(found), flatten(looped))  # as a whole: a bias before normalisation has no gradient


def _stack(own: nn.Module, x: Tensor, y: Tensor, rows: Tensor, loss: Loss) -> dict[str, Tensor] | None:
    """The passes of several batches together; None where vmap does not take them, as it takes no draws. One
    thread, a table's net with batch normalisation, batches of 16: a loop takes 5 times as long."""
    params = {name: p.detach() for name, p in own.named_parameters()}
    state = {name: b.expand(len(rows), *b.shape).clone() for name, b in own.named_buffers()}

    def value(params: Params, state: Params, x: Tensor, y: Tensor) -> Tensor:
        return loss(functional_call(own, {**params, **state}, (x,)), y)

    try:
        with torch.inference_mode(False), torch.enable_grad():
            found = vmap(grad(value), (None, 0, 0, 0))(params, state, x[rows], y[rows])
    except RuntimeError:
        return None
    return {name: found[name].detach() for name in params}


def _loop(
    own: nn.Module, x: Tensor, y: Tensor, rows: Tensor, loss: Loss, rngs: Sequence[torch.Generator]
) -> dict[str, Tensor]:
    """One pass for each trial; a pass finds the model's statistics as they were before the first."""
    leaves = dict(own.named_parameters())
    found = {name: leaf.new_empty(len(rows), *leaf.shape) for name, leaf in leaves.items()}
    buffers = {name: buffer.clone() for name, buffer in own.named_buffers()}
    with torch.inference_mode(False), torch.enable_grad(), torch.random.fork_rng(devices=[]):
        for i, (trial, rng) in enumerate(zip(rows, rngs, strict=True)):
            torch.default_generator.manual_seed(rng.initial_seed())
            value = loss(own(x[trial]), y[trial])
            slopes = torch.autograd.grad(value, [*leaves.values()], allow_unused=True, materialize_grads=True)
            for room, slope in zip(found.values(), slopes, strict=True):
                room[i] = slope
            for name, buffer in own.named_buffers():
                buffer.copy_(buffers[name])
    return {name: room.detach() for name, room in found.items()}
