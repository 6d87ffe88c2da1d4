"""Audits of guards as format 1 wrote them: dictionaries under ``guarding``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from leakscope.core.catalogue import roles

Json = Mapping[str, Any]
NEEDLESS = {"raw inputs": "raw", "plain training": "plain", "plain noise": "noise"}  # by their names then


def reshape_guards(result: Json) -> dict[str, Any]:
    """What `audits.guards.found.Found` takes, from a result of format 1."""
    found: Json = result["guarding"]
    lam = found.get("lam")
    return {
        "judged": [_judged(one) for one in found["judged"]],
        "lam": None if isinstance(lam, list) else lam,
        "history": found["history"],
        "seconds": found["seconds"],
        "pictures": found.get("pictures") or [],
        "tuned": found.get("tuned"),
    }


def _judged(one: Json) -> dict[str, Any]:
    promise, picture = one.get("guarantee"), one.get("map")
    return {
        "secret": one["secret"],
        "column": one["column"],
        "values": one["values"],
        "utility": _utility(one["utility"], one["secret"]),
        "attacks": [_attack(entry) for entry in one["attacks"]],
        "stale": _attack(one["stale"]) if one.get("stale") else None,
        "single": [_attack(entry) for entry in one.get("single") or ()],
        "baselines": [_baseline(plain, one) for plain in one.get("baselines") or ()],
        "theorem": {key: promise[key] for key in ("entropy", "bound", "measured")} if promise else None,
        "information": {
            name: {"estimate": estimate, "lower": _lower(name)}
            for name, estimate in _finite(one.get("information") or {}).items()
        },
        "map": {key: picture[key] for key in ("before", "after")} if picture else None,
    }


def _attack(entry: Json) -> dict[str, Any]:
    scores = {"success" if k == "success_rate" else k: v for k, v in _finite(entry["estimates"]).items()}
    kept = {key: value for key, value in entry.items() if key != "estimates"}
    return kept | {"scores": scores}


def _utility(worth: Json, secret: str) -> dict[str, Any]:
    own, common = worth.get("own"), {"majority": worth["majority"]}
    return {
        "head": "released" if secret == "membership" else "fresh",
        "task": _finite(worth["fresh"]) | common,
        "own": _finite(own) | _finite({"trained": worth.get("trained")}) | common if own else None,
    }


def _baseline(plain: Json, one: Json) -> dict[str, Any]:
    name = plain["baseline"]
    other = "without" if one["column"] and name == f"without {one['column']}" else "early"
    return {
        "name": name,
        "needless": NEEDLESS.get(name, other),
        "utility": _utility(plain["utility"], one["secret"]),
        "attacks": [_attack(entry) for entry in plain["attacks"]],
    }


def _lower(name: str) -> bool:
    """Whether the estimator of that name is a lower bound: it says so itself."""
    known = roles("estimator")
    return name in known and bool(getattr(getattr(import_module(known[name].module), name), "lower", False))


def _finite(table: Json) -> dict[str, Any]:
    """The estimates that are numbers; format 1 could write others."""
    return {
        name: estimate
        for name, estimate in table.items()
        if estimate and all(math.isfinite(estimate[key]) for key in ("value", "low", "high"))
    }
