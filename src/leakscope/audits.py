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

Table = dict[str, Any]
AUDIT_TRIALS = 100_000  # of the epsilon audit: they are simulated in one number each
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
    table: Table,
    *,
    secret: str,
    user: str | None = None,
    known: Sequence[str] = (),
    batch: int = 16,
    rounds: int = 5,
    trials: int = 2_000,
    rehearsals: int = 2_000,
    seeds: int = 1,
    model: Table | None = None,
    training: Table | None = None,
    defenses: Sequence[Table] = (),
    dp: Table | None = None,
    name: str = "Audit",
) -> Table:
    """The plan of an audit, ready for TOML: attribute inference if the secret is an input, property
    and distributional inference with it taken out, user inference if a column says who is who.

    Each again under every one of ``defenses``, against an adversary who knows it. ``dp``, a DPSGD
    table, adds the audit of one attribute's epsilon."""
    records.secret(secret)
    reduce = {"name": "MaxPool", "width": 3 if records.columns else 10}
    cells = _cells(records, table, secret=secret, user=user, known=known, batch=batch, reduce=reduce)
    for defense in defenses:
        cells += [
            cell | {"id": f"{cell['id']}, {defense['name']}", "defense": defense}
            for cell in cells
            if "defense" not in cell
        ]
    if dp is not None:
        cells += _audit_cells(records, secret, dp)
    defaults: Table = {
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


def _cells(
    records: Dataset,
    table: Table,
    *,
    secret: str,
    user: str | None,
    known: Sequence[str],
    batch: int,
    reduce: Table,
) -> list[Table]:
    cells: list[Table] = []
    inference: Table = {"name": "Inference", "secret": secret, "batch": batch}
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
    return cells


def _audit_cells(records: Dataset, secret: str, dp: Table) -> list[Table]:
    if not records.has(secret):
        raise DataError(
            f"{records.name}: the audit of an attribute changes it inside a record, and {secret!r} is not "
            f"among the inputs; choose a secret that is."
        )
    settings = {key: value for key, value in dp.items() if key != "delta"}
    game = {"name": "AttributeAudit", "attribute": secret, "delta": dp.get("delta", 1e-5)}
    return [
        {
            "id": f"epsilon, {'crafted' if crafted else 'sampled'} record",
            "game": game | {"crafted": crafted},
            "defense": settings,
            "model": {"name": "MLP", "hidden": [100]},
            "rounds": 1,
            "trials": AUDIT_TRIALS,
        }
        for crafted in (True, False)
    ]


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


def _model(records: Dataset) -> Table:
    if records.x.dim() == 4 and min(records.x.shape[2:]) >= 9:
        return {"name": "CNN"}
    wide = records.x[0].numel() > 500
    return {"name": "MLP", "hidden": [64, 64] if wide else [32, 16]}


def _user_cell(records: Dataset, user: str, *, batch: int) -> Table:
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
