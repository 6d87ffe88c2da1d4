"""The victim: a model trained on private records, and its parameters after every round."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.func import functional_call

from leakscope.core.dataset import Dataset
from leakscope.core.errors import ArgumentError, require
from leakscope.core.nouns import Defense, Loss, Params
from leakscope.core.rng import seeded
from leakscope.core.task import task_loss
from leakscope.training.step import Step, state


def fit(
    model: nn.Module,
    data: Dataset,
    *,
    rounds: int,
    rng: torch.Generator,
    rate: float = 0.01,
    batch: int = 64,
    defense: Defense | None = None,
    loss: Loss = task_loss,
) -> tuple[Params, ...]:
    """θ0..θr: plain SGD, one epoch of ``data`` per round (step 7 of definition 3.1, paper 000).

    The defense acts on the loss and on every step's gradient, as it does on what is released; what it
    adds to the model is there already if the model was built with it (`models.build`). What layers draw,
    such as dropout's masks, comes from the seed of ``rng``.
    """
    require(rounds >= 0, "fit.rounds", "at least 0", rounds)
    require(rate > 0, "fit.rate", "positive", rate)
    require(batch >= 1, "fit.batch", "at least 1", batch)
    step = Step.of(model, loss=loss, defense=defense or Defense())
    few = not step.takes(torch.arange(min(batch, len(data))))
    require(not few, "fit.batch", "at least 2 for a model with batch statistics", batch)
    params = state(model)
    history: list[Params] = [params]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seeded(rng.initial_seed(), "layers").initial_seed())
        for i in range(rounds):
            params = {name: value if name in step.names else value.clone() for name, value in params.items()}
            every = torch.randperm(len(data), generator=rng).split(batch)
            for rows in filter(step.takes, every):
                leaves = {name: params[name].detach().requires_grad_() for name in step.names}
                predict = partial(_logits, model, {**params, **leaves})
                found = step.gradient(predict, leaves, data.x[rows], data.y[rows], rng)
                params = params | {name: params[name] - rate * slope for name, slope in found.items()}
            if not all(value.isfinite().all() for value in params.values()):
                raise ArgumentError(
                    f"fit diverged in round {i + 1} at rate {rate}; lower the rate or scale the inputs."
                )
            history.append(params)
    return tuple(history)


def logits(model: nn.Module, params: Params, data: Dataset, *, block: int = 4_096) -> Tensor:
    """What the model says of every record, in evaluation mode: a logit for each class, or the number that it
    predicts. Columns ``beside`` these, such as a bottleneck's divergence, are left out."""
    modes = [(part, part.training) for part in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            parts = [_logits(model, params, x) for x in data.x.split(block)]
    finally:
        for part, training in modes:
            part.training = training
    outputs, beside = torch.cat(parts), getattr(model, "beside", 0)
    return data.task.read(outputs[:, : outputs.shape[1] - beside] if beside else outputs)


def _logits(model: nn.Module, params: Params, x: Tensor) -> Tensor:
    out: Tensor = functional_call(model, dict(params), (x,))
    return out
