"""An audit: every secret of one dataset, attacked through one victim's gradients, as a plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from leakscope import experiment, report, store
from leakscope.dataset import Dataset
from leakscope.errors import DataError
from leakscope.plan import from_document

SECRETS = {  # what an audit asks of a known dataset unless told otherwise
    "adult": "sex",
    "digits": "even",
    "synthetic": "group",
    "health": "gender",
    "cremad": "gender",
    "celeba": "High_Cheekbones",
    "utkface": "ethnicity",
}


@dataclass(frozen=True, eq=False)
class Report:
    """The results of an audit and the plan that gave them."""

    results: tuple[store.Result, ...]
    plan: str

    def html(self) -> str:
        """One self-contained page."""
        return report.render(self.results, plan=self.plan, title="Leakscope audit")

    def save(self, path: str | Path) -> None:
        """Write the page."""
        store.write(Path(path), self.html())


def document(
    records: Dataset,
    table: dict[str, Any],
    *,
    secret: str,
    user: str | None = None,
    known: Sequence[str] = (),
    batch: int = 16,
    rounds: int = 5,
    trials: int = 2_000,
    rehearsals: int = 2_000,
    seeds: int = 1,
    model: dict[str, Any] | None = None,
    training: dict[str, Any] | None = None,
    name: str = "audit",
) -> dict[str, Any]:
    """The plan of an audit, ready for TOML: attribute inference if the secret is an input, property
    and distributional inference with it taken out, user inference if a column says who is who."""
    records.secret(secret)
    tabular = bool(records.columns)
    reduce = {"name": "MaxPool", "width": 3 if tabular else 10}
    cells: list[dict[str, Any]] = []
    inference = {"name": "Inference", "secret": secret, "batch": batch}
    if known:
        inference["known"] = list(known)
    outside = dict(table)
    if records.has(secret):
        cells.append({"id": "attribute", "game": inference})
        outside["without"] = [*table.get("without", ()), secret]
    cells.append({"id": "property", "game": inference, "data": outside})
    cells.append(
        {
            "id": "distribution",
            "data": outside,
            "game": {"name": "Distribution", "column": secret, "batch": 8 * batch},
            "attack": {"name": "Posterior", "ordinal": True, "reduce": reduce},
        }
    )
    if user:
        cells.append(_user_cell(records, user, batch=max(batch // 2, 1)))
    defaults: dict[str, Any] = {
        "data": table,
        "model": model or _model(records),
        "attack": {"name": "Posterior", "reduce": reduce},
        "rounds": rounds,
        "trials": trials,
        "rehearsals": rehearsals,
    }
    if training:
        defaults["training"] = training
    return {"name": name, "seeds": list(range(seeds)), "defaults": defaults, "cell": cells}


def audit(dataset: Dataset, *, secret: str, **options: Any) -> Report:
    """Every secret of a dataset, attacked through one victim's gradients.

    For records in memory; options as on the command line (user, known, batch, rounds, trials,
    rehearsals, seeds, model)."""
    plan_document = document(dataset, {"name": dataset.name}, secret=secret, **options)
    plan = from_document(plan_document)
    results = []
    for cell in plan.cell:
        taken_out = cell.data.get("without", ())
        records = dataset.without(*taken_out) if taken_out else dataset
        results += [experiment.run(cell, seed, records=records) for seed in plan.seeds]
    return Report(tuple(results), tomli_w.dumps(plan_document))


def _model(records: Dataset) -> dict[str, Any]:
    if records.x.dim() == 4 and min(records.x.shape[2:]) >= 9:
        return {"name": "CNN"}
    wide = records.x[0].numel() > 500
    return {"name": "MLP", "hidden": [64, 64] if wide else [32, 16]}


def _user_cell(records: Dataset, user: str, *, batch: int) -> dict[str, Any]:
    """User inference with the largest batch, up to ``batch``, that half of the people can give twice."""
    counts = records.secret(user).unique(return_counts=True)[1]
    batch = min(batch, int(counts.median()) // 2)
    if batch < 1:
        raise DataError(
            f"{records.name}: most values of {user!r} have one record; user inference needs at least 2 each."
        )
    return {
        "id": "user",
        "game": {"name": "UserInference", "user": user, "batch": batch},
        "attack": {"name": "Prototype"},
    }
