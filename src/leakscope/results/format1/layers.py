"""Audits of layers as the first format had them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

WHOLE, COUNTS = "all layers", "counts of labels"
Table = dict[str, Any]


def reshape_layers(result: Mapping[str, Any]) -> Table:
    """What the kind's findings take: layers have a place, views say which layers they are of, all layers at
    once stand apart, and what has no value is left out."""
    old = dict(result["localisation"])
    names = [layer["name"] for layer in old["layers"]]
    return {
        "layers": [{**layer, "place": place} for place, layer in enumerate(old["layers"], start=1)],
        "latent": [_latent(secret, names) for secret in old["latent"]],
        "original": _original(old["original"]),
        "sensitivity": {
            norm: {layer: table for layer, table in layers.items() if math.isfinite(table["value"])}
            for norm, layers in (old["sensitivity"] or {}).items()
        },
        "protection": old["protection"],
        "mutual": old.get("mutual", {}),
        "correlations": [_correlation(row) for row in old["correlations"]],
        "claims": old["claims"],
        "trend": old["trend"],
        "pictures": old["pictures"] or [],
        "utility": result["utility"],
    }


def _latent(secret: Table, names: list[str]) -> Table:
    views = {
        key: _leak(table, key, [key] if key in names else key.split("+"))
        for key, table in secret["layers"].items()
    }
    together = _leak(secret["together"], WHOLE, names)
    return secret | {"layers": views, "together": together, "labels": _leak(secret["labels"], COUNTS, [])}


def _leak(table: Table, name: str, layers: list[str]) -> Table:
    return {"selfcheck": None} | table | {"name": name, "layers": layers}


def _original(table: Table | None) -> Table | None:
    if not table:
        return None
    sets = {name: {**row, "name": name} for name, row in table["sets"].items()}
    return table | {"whole": sets.pop(WHOLE), "sets": list(sets.values())}


def _correlation(row: Table) -> Table:
    kept = {key: value for key, value in row.items() if key not in ("with", "note")}
    return kept | {"target": row["with"]}
