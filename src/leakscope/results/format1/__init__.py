"""Results as they were before they had types: the only reader of their dictionaries.

Each kind had its own key in a result. What its findings are called now is said here, once; the models of the
kinds then check it like any other result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from scipy import stats

from leakscope.results.format1.guards import reshape_guards
from leakscope.results.format1.layers import reshape_layers
from leakscope.results.format1.membership import reshape_membership

Table = dict[str, Any]
WILSON = "Wilson with DeLong's variance"
COUNTED = "Clopper-Pearson on the success rate"


def reshape(result: Mapping[str, Any]) -> Table:
    """A result of format 1 as the present model takes it."""
    cell = result["cell"]
    key = next((key for key in _KINDS if result.get(key)), None)
    data = result.get("data") or {}
    made: Table = {"versions": result.get("versions") or {}, "seconds": result.get("seconds") or 0.0}
    if data:
        made["records"] = data
    if result.get("model"):
        made["model"] = result["model"]
    kind, shape = _KINDS[key] if key else (_kind(cell), dict)
    return {
        "format": 1,
        "key": result["key"],
        "seed": result["seed"],
        "kind": kind,
        "cell": cell,
        "found": shape(result) if key else None,
        "error": result.get("error") or "",
        "made": made,
    }


def _kind(cell: Mapping[str, Any]) -> str:
    from leakscope.results.cell import Cell

    return Cell.model_validate(cell).kind


def _played(result: Mapping[str, Any]) -> Table:
    bounds, guessing = result.get("bounds") or {}, result["guessing"]
    scores = rest(result["estimates"], guessing) | {"information": bounds.get("information")}
    return {
        "secret": result["secret"],
        "scores": {name: estimate for name, estimate in scores.items() if estimate},
        "guessing": guessing,
        "rounds": result.get("rounds") or [],
        "roc": result.get("roc") or [],
        "selfcheck": result.get("selfcheck"),
        "bounds": {name: bounds.get(f"{name}_bound") for name in ("advantage", "accuracy", "information")}
        | {"method": bounds.get("method") or "", "noise": bool(result.get("guarantee"))},
        "guarantee": {},  # it was accounted for other releases than those that were shown
        "utility": result.get("utility") or {},
    }


def _certified(result: Mapping[str, Any]) -> Table:
    audit = dict(result["audit"])
    audit["certified"] = audit.pop("any")
    audit["sure"] = (audit.get("sure") or {}).get("any")
    return {"exact_added": None, "selfcheck": None, "values": []} | audit


def rest(estimates: Mapping[str, Any], guessing: float | None) -> Table:
    """Estimates with what they rest on, where that follows from them: an advantage from the success rate, an
    AUROC from the width of Wilson's interval."""
    named = {"success" if name == "success_rate" else name: value for name, value in estimates.items()}
    success, gain, area = (named.get(name) for name in ("success", "advantage", "auroc"))
    if success and gain and guessing is not None and gain.get("method") == COUNTED:
        hits = round(success["value"] * success["n"])
        named["advantage"] = gain | {
            "basis": {"kind": "counts", "hits": hits, "n": success["n"], "base": guessing}
        }
    if area and area.get("method") == WILSON and (effective := _effective(area)):
        basis = {"kind": "effective", "value": area["value"], "effective": effective, "n": area["n"]}
        named["auroc"] = area | {"basis": basis}
    return named


def _effective(area: Mapping[str, Any]) -> float | None:
    """The trials behind Wilson's interval: width² (1 + z²/n)² = 4 z² (p (1 - p) / n + z² / (4 n²)), which is
    a quadratic in 1/n."""
    z = float(stats.norm.isf((1 - area["level"]) / 2))
    p, width = area["value"], area["high"] - area["low"]
    a, b, c = z**4 * (width**2 - 1), 2 * z**2 * width**2 - 4 * z**2 * p * (1 - p), width**2
    roots = [(-b + s * math.sqrt(max(b * b - 4 * a * c, 0.0))) / (2 * a) for s in (1, -1)] if a else []
    return next((1 / root for root in roots if root > 0), None)


_KINDS: dict[str, tuple[str, Callable[[Mapping[str, Any]], Table]]] = {
    "membership": ("membership", reshape_membership),
    "audit": ("mechanism", _certified),
    "localisation": ("layers", reshape_layers),
    "guarding": ("guards", reshape_guards),
    "estimates": ("inference", _played),
}
