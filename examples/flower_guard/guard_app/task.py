"""The task: Adult, whose sex the encoder shall not tell. Everything is a function of its arguments."""

from __future__ import annotations

from functools import cache

import torch

from leakscope import TAPPFL, Dataset, TableEncoder, load, seeded

DEVICES, RECORDS = 2, 120  # of each device
SEED = 0  # for an example that can be repeated: real devices draw from the system
PLAN = TAPPFL(
    "sex",
    devices=DEVICES,
    fraction=1.0,
    rounds=3,
    local_epochs=2,
    rate=0.05,
    pretraining=1,
    encoder=TableEncoder((64, 16)),
)


@cache  # a process that is many devices reads the records once for all
def everybody() -> Dataset:
    """Adult without the columns that are the secret in other words, some of it, shuffled once."""
    data = load("adult").without("sex", "relationship", "marital-status")
    return data.take(torch.randperm(len(data), generator=seeded(0, "devices"))[:6_000]).distinct()


def shard(device: int) -> Dataset:
    """What a device has: so many records that nobody else has, not scaled."""
    return everybody().take(torch.arange(RECORDS) + device * RECORDS)


def others(n: int, *, after: int = 0) -> Dataset:
    """Records that no device has."""
    return everybody().take(torch.arange(n) + DEVICES * RECORDS + after)
