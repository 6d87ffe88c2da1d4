"""The task: scikit-learn's handwritten digits. Everything is a function of its arguments."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor, nn

from leakscope import Dataset, load, seeded
from leakscope.core.rng import initialised


def net() -> nn.Sequential:
    """The model everyone starts from; its layers are those of Leakscope's MLP((32,)) for digits."""
    return initialised(
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)), seeded(0, "net")
    )


def normed_net() -> nn.Sequential:
    """The same with batch normalisation, whose statistics are sent and averaged too."""
    return initialised(
        lambda: nn.Sequential(
            nn.Flatten(), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10)
        ),
        seeded(0, "net"),
    )


@cache  # a process that is many clients reads the records once for each
def shard(partition: int, partitions: int) -> Dataset:
    """A client's records: every ``partitions``-th of one shuffled set, so that shards are i.i.d."""
    data = load("digits")
    return data.take(torch.randperm(len(data), generator=seeded(0, "shards"))[partition::partitions])


def batches(records: int, partition: int, r: int, *, batch: int, steps: int) -> Tensor:
    """The rows (steps, batch) of its shard that a client trains on in round ``r``."""
    order = torch.randperm(records, generator=seeded(0, "order", partition, r))
    return order[: steps * batch].view(steps, batch)


def train(model: nn.Module, data: Dataset, rows: Tensor, *, rate: float) -> None:
    """Plain SGD, one step for each of ``rows``."""
    optimiser = torch.optim.SGD(model.parameters(), lr=rate)
    for step in rows:
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(data.x[step]), data.y[step]).backward()
        optimiser.step()
