"""Tiny audits of guards, really run: what tests of the page, the numbers and the audit share."""

from __future__ import annotations

from typing import Any

import torch

from leakscope import Dataset, seeded
from leakscope.audits.guards.found import GuardsFound
from leakscope.audits.guards.kind import KIND
from leakscope.results.cell import Cell
from leakscope.results.kind import World
from leakscope.results.result import Made, Result

TABLE = {"name": "TableEncoder", "widths": [16, 8]}
GUARD: dict[str, Any] = {
    "name": "Inf2Guard", "column": "u", "lam": 0.5, "loss": "mean", "epochs": 3, "batch": 64, "encoder": TABLE,
}  # fmt: skip
NOISE = {"perturbation": "gaussian", "scale": 0.5, "normed": True}
SMALL = {"trials": 200, "rehearsals": 300, "train": 400, "public": 400}


def people(n: int = 1_200, *, shift: float = 3.0, seed: int = 0) -> Dataset:
    """The secret u shifts the first input, the label is the sign of the second, and v is nowhere."""
    rng = torch.Generator().manual_seed(seed)
    u, v = (torch.rand(n, generator=rng) < 0.4).long(), torch.randint(3, (n,), generator=rng)
    x = torch.randn(n, 10, generator=rng)
    x[:, 0] += shift * u
    values = {"u": ("no", "yes"), "v": ("a", "b", "c"), "label": ("minus", "plus")}
    return Dataset(x, (x[:, 1] > 0).long(), {"u": u, "v": v}, values=values, name="people")


def table(n: int = 160, seed: int = 0) -> Dataset:
    """Six numbers; the label is the first's sign, the secret the second's."""
    x = torch.randn(n, 6, generator=seeded(seed, "table"))
    private = {"sex": (x[:, 1] > 0).long(), "same": torch.zeros(n, dtype=torch.long)}
    return Dataset(x, (x[:, 0] > 0).long(), private, name="made up")


def nobody(n: int = 300) -> Dataset:
    """Records whose labels nothing predicts."""
    rng = torch.Generator().manual_seed(0)
    return Dataset(torch.randn(n, 6, generator=rng), torch.randint(3, (n,), generator=rng), {}, name="nobody")


def pictures(n: int = 90) -> Dataset:
    x = torch.randint(256, (n, 3, 12, 12), generator=torch.Generator().manual_seed(0)) / 255
    return Dataset(x, torch.arange(n) % 2, {}, name="pictures")


def cell(guard: dict[str, Any] | None = None, *, sizes: dict[str, int] | None = None, **game: Any) -> Cell:
    table = {
        "name": "GuardAudit",
        "guard": guard or GUARD,
        "baselines": False,
        "draws": 1,
        "rows": False,
        **game,
    }
    return Cell.model_validate({"data": {"name": "people"}, "game": table, **(sizes or SMALL)})


def run(asked: Cell, records: Dataset | None = None, *, seed: int = 0) -> Result[GuardsFound]:
    """The result of a cell, as it is kept."""
    world = World(asked, seed, people() if records is None else records)
    KIND.check(world)
    measured = KIND.run(world)
    made = Made(records=measured.records)
    return Result[GuardsFound](
        key=asked.key(seed), seed=seed, kind="guards", cell=asked, found=measured.found, made=made
    )


def fail(asked: Cell, reason: str = "ArgumentError: diverged", *, seed: int = 0) -> Result[GuardsFound]:
    return Result[GuardsFound](key=asked.key(seed), seed=seed, kind="guards", cell=asked, error=reason)
