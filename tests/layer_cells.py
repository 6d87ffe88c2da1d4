"""Cells of audits layer by layer, as small as can be: what tests of the page, the numbers and the audit share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from leakscope import Dataset
from leakscope.audits.layers.found import LayersFound
from leakscope.audits.layers.kind import KIND
from leakscope.data import synthetic
from leakscope.results.cell import Cell
from leakscope.results.kind import World
from leakscope.results.result import Result

LINEAR = {"name": "Posterior", "head": {"name": "LDA"}, "reduce": {"name": "UnitMax"}}
GAME: dict[str, Any] = {
    "name": "LayerAudit", "secrets": ["group", "coin"], "batch": 4, "splits": 5, "sensitive": 2,
    "family": {"name": "Family", "folds": 2, "members": [LINEAR]},
}  # fmt: skip
TABLE: dict[str, Any] = {
    "data": {"name": "synthetic"}, "model": {"name": "MLP", "hidden": [6, 4]}, "rounds": 1,
    "trials": 150, "rehearsals": 200, "train": 300, "public": 300,
}  # fmt: skip


def people(n: int = 900) -> Dataset:
    """The group makes the first input six times as large, the coin is in no input; ten records a person."""
    made = synthetic(records=n, shift=0.0)
    x = made.x.clone()
    x[:, 0] *= 1 + 5 * made.private["group"]
    coin = torch.randint(2, (n,), generator=torch.Generator().manual_seed(0))
    return replace(made, x=x, private={**made.private, "coin": coin, "person": torch.arange(n) // 10})


def cell(game: dict[str, Any] | None = None, **changes: Any) -> Cell:
    return Cell.model_validate(TABLE | {"game": GAME | (game or {})} | changes)


def run(asked: Cell, records: Dataset, seed: int = 0) -> Result[LayersFound]:
    """The result of a cell, as it is kept."""
    world = World(asked, seed, records)
    KIND.check(world)
    found = KIND.run(world).found
    return Result[LayersFound](key=asked.key(seed), seed=seed, kind="layers", cell=asked, found=found)
