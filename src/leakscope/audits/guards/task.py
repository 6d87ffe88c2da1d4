"""The task on representations: a fresh head, and what it is worth beside the guard's own."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from leakscope.attacks.rehearsal import converged
from leakscope.audits.guards.found import TaskWorth
from leakscope.audits.guards.trial import Trial
from leakscope.audits.world import judge_outputs
from leakscope.core.dataset import Dataset
from leakscope.core.nouns import Estimate
from leakscope.core.rng import initialised, seeded
from leakscope.core.task import is_number, task_loss
from leakscope.guards.encoder import Encoder
from leakscope.guards.networks import reader


def train_head(encoder: Encoder, trial: Trial, *, patience: int = 8, epochs: int = 200) -> nn.Module:
    """A head trained on the representations of the training records until a fifth of them, held back, no
    longer gains."""
    train, rng = trial.train, seeded(trial.seed, "utility")
    drawn = [encoder(train.x, rng=rng) for _ in range(1 if encoder.perturbation.silent else trial.draws)]
    r = drawn[0]
    mean, std = r.mean(0), r.std(0, correction=0).clamp(min=1e-6)
    order = torch.randperm(len(train), generator=rng)
    held, fit = order[: len(train) // 5], order[len(train) // 5 :]
    head: nn.Module = initialised(lambda: reader(tuple(r.shape[1:]), train.task.outputs, (64,)), rng)
    own = [((each[fit] - mean) / std, train.y[fit]) for each in drawn]
    other = ((r[held] - mean) / std, train.y[held])
    head = converged(head, own, other, task_loss, rng, rate=1e-3, batch=128, patience=patience, epochs=epochs)
    return nn.Sequential(_Scaled(mean, std), head)


class _Scaled(nn.Module):
    """Representations as a fresh head takes them."""

    mean: torch.Tensor
    std: torch.Tensor

    def __init__(self, mean: torch.Tensor, std: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)

    def forward(self, r: torch.Tensor) -> torch.Tensor:
        return (r - self.mean) / self.std


def measure_utility(encoder: Encoder, trial: Trial) -> TaskWorth:
    """The task on test records. Where members are to be hidden it is by the head that is released, since what
    that gives away counts; otherwise by a fresh one. And by the guard's own, on training records too."""
    released = encoder.head if trial.secret == "membership" else None
    head = train_head(encoder, trial) if released is None else released
    train, test = trial.train, trial.test
    shown = encoder(test.x, key=trial.seed + 1)
    task, own = judge_outputs(head(shown), test), None
    if encoder.head is not None:
        trained = judge_outputs(encoder.logits(train.x, key=trial.seed + 1), train, ranked=False).main
        own = judge_outputs(encoder.head(shown), test).model_copy(update={"trained": trained})
    return TaskWorth(head="fresh" if released is None else "released", task=task, own=own)


def measure_task(encoder: Encoder, trial: Trial) -> Estimate:
    """What a fresh head is worth on test records, by the one measure that its task is judged by."""
    outputs = train_head(encoder, trial)(encoder(trial.test.x, key=trial.seed + 1))
    worth = judge_outputs(outputs, trial.test, ranked=False)
    assert worth.main is not None
    return worth.main


def worth_each(encoder: Encoder, trial: Trial) -> Tensor:
    """What a fresh head is worth on each test record (n,): whether it is right; of a number, how much of its
    variance it explains."""
    test = trial.test
    outputs: Tensor = train_head(encoder, trial)(encoder(test.x, key=trial.seed + 1)).double()
    if not is_number(test.y):
        return (outputs.argmax(1) == test.y).double()
    spread = trial.train.y.double().var(correction=0).clamp(min=1e-12)
    return 1 - (outputs[:, 0] - test.y.double().flatten()).square() / spread


def with_head(encoder: Encoder, trial: Trial) -> Encoder:
    """The encoder as it is released: against membership with a head, a fresh one if it has none."""
    if trial.secret != "membership" or encoder.head is not None:
        return encoder
    return replace(encoder, head=train_head(encoder, trial))


def with_any_head(encoder: Encoder, data: Dataset) -> Encoder:
    """The encoder with a head for the task, an untrained one where it has none: plain training needs one."""
    if encoder.head is not None:
        return encoder
    with torch.no_grad():
        shape = tuple(encoder.clean(data.x[:1]).shape[1:])
    return replace(encoder, head=reader(shape, data.task.outputs, (64,)))
