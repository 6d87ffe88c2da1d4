"""What the first format kept of an audit of a federation, as its `Found` has it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from leakscope.core.errors import LeakscopeError
from leakscope.core.tables import construct

Table = Mapping[str, Any]


def reshape_membership(result: Table) -> dict[str, Any]:
    """What `Found.model_validate` takes. No client had numbers of its own, and bases of intervals were not
    kept."""
    kept, cell, utility = result["membership"], result["cell"], result.get("utility") or {}
    asked = cell["game"].get("attacks") or ()
    tables = [asked[i] if i < len(asked) else {} for i in range(len(kept["attacks"]))]
    trials = int(cell.get("trials", 2_000))
    return {
        "attacks": [_attempt(*pair) for pair in zip(kept["attacks"], tables, strict=True)],
        **{key: kept[key] for key in ("clients", "members", "known", "held", "others", "watched", "rounds")},
        "judged": min(trials - trials // 2, kept["others"]),
        "seen": kept.get("seen", "uploads"),
        "centred": kept.get("centred", False),
        "utility": _finite({key: utility.get(key) for key in ("accuracy", "trained")})
        | {"majority": utility.get("majority")},
        "guarantee": _guarantee(result.get("guarantee"), cell),
    }


def _attempt(kept: Table, table: Table) -> dict[str, Any]:
    try:
        attack = construct(table, "attack")
    except LeakscopeError:  # an attack of the user's own, or from a plan of its time
        attack = None
    scores = _finite(kept["estimates"])
    return {
        "name": kept["attack"],
        "uses": getattr(attack, "sees", None),
        "label": getattr(attack, "label", None),
        "taught": getattr(attack, "taught", False),
        "games": kept.get("clients", 1),
        "scores": scores,
        "deviation": {key: value for key, value in (kept.get("deviation") or {}).items() if key in scores},
        "roc": kept.get("roc") or (),
        "selfcheck": kept.get("selfcheck"),
    }


def _finite(estimates: Table) -> dict[str, Any]:
    """The estimates that are numbers; the first format let others in."""
    parts = ("value", "low", "high")
    return {
        name: dict(estimate)
        for name, estimate in estimates.items()
        if estimate
        and all(isinstance(estimate[p], int | float) and math.isfinite(estimate[p]) for p in parts)
    }


def _guarantee(kept: Table | None, cell: Table) -> dict[str, Any] | None:
    """Of one upload in every round; what was seen comes from all of them only if the last was observed."""
    if not kept:
        return None
    rounds = int(cell.get("rounds", 5))
    unit, last = kept.get("unit", "upload"), max(cell.get("observe") or (rounds,))
    return {
        "covers": "shown" if unit == "upload" and last == rounds else "training",
        "unit": unit,
        "delta": kept["delta"],
        "releases": rounds,
        "batch": 1,
        "sampling": 1.0,
        **dict.fromkeys(("added", "replaced"), kept["run"]),
        **dict.fromkeys(("added_each", "replaced_each"), kept["step"]),
    }
