"""The victim: a model trained on private records, and its parameters after every round."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad

from leakscope.core import Defense, Loss, Params
from leakscope.dataset import Dataset
from leakscope.errors import ArgumentError, require
from leakscope.gradients import batch_means
from leakscope.models import parameters


def fit(
    model: nn.Module,
    data: Dataset,
    *,
    rounds: int,
    rng: torch.Generator,
    rate: float = 0.01,
    batch: int = 64,
    defense: Defense | None = None,
    loss: Loss = nn.functional.cross_entropy,
) -> tuple[Params, ...]:
    """θ0..θr: plain SGD, one epoch of ``data`` per round (step 7 of definition 3.1, paper 000).

    The defense acts on the loss and on every step's gradient, as it does on what is released; what it
    adds to the model is there already if the model was built with it (`models.build`).
    """
    require(rounds >= 0, "fit.rounds", "at least 0", rounds)
    require(rate > 0, "fit.rate", "positive", rate)
    require(batch >= 1, "fit.batch", "at least 1", batch)
    defense = defense or Defense()
    loss = defense.loss(loss)
    params = parameters(model)
    history: list[Params] = [params]
    for i in range(rounds):
        for rows in torch.randperm(len(data), generator=rng).split(batch):
            step = _gradient(model, params, data.x[rows], data.y[rows], loss, defense, rng)
            params = {name: value - rate * step[name] for name, value in params.items()}
        if not all(value.isfinite().all() for value in params.values()):
            raise ArgumentError(
                f"fit diverged in round {i + 1} at rate {rate}; lower the rate or scale the inputs."
            )
        history.append(params)
    return tuple(history)


def _gradient(
    model: nn.Module, params: Params, x: Tensor, y: Tensor, loss: Loss, defense: Defense, rng: torch.Generator
) -> Params:
    """The gradient one step descends: a batch of one trial through the defense."""
    if type(defense).weigh is not Defense.weigh:  # records are clipped one by one
        rows = torch.arange(len(x))[None]
        layers = batch_means(model, params, x, y, rows, loss=loss, weigh=defense.weigh)
    else:
        mean = grad(lambda p: loss(functional_call(model, p, (x,)), y))(dict(params))
        layers = {name: tensor[None] for name, tensor in mean.items()}
    released = defense.release(layers, None, rng, batch=len(x))
    return {name: tensor[0] for name, tensor in released.items()}


def logits(model: nn.Module, params: Params, data: Dataset, *, block: int = 4_096) -> Tensor:
    """The model's output for every record, in evaluation mode; columns beyond the labels, such as a
    bottleneck's divergence, are left out."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            parts = [functional_call(model, dict(params), (x,)) for x in data.x.split(block)]
    finally:
        model.train(training)
    return torch.cat(parts)[:, : data.classes]
