"""The null calibrations that results carry, for the page: how often shuffled secrets seemed to leak."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from leakscope.averages import Json

NAMES = ("name", "attack", "secret")  # of a table within a result, the first that is a word


@dataclass(frozen=True)
class Check:
    """One of them; see `measures.shuffled`."""

    cell: str
    seed: int
    where: str  # what within the result: an attack, a layer
    measure: str
    shuffles: int
    alarms: int
    expected: float
    largest: float
    passed: bool


def selfchecks(results: Iterable[Json]) -> list[Check]:
    """Every one in the results, those that failed first."""
    found = [check for result in results for check in _of(result)]
    return sorted(found, key=lambda check: (check.passed, -check.alarms / check.shuffles))


def _of(result: Json) -> Iterator[Check]:
    cell = result.get("cell") or {}
    name = str(cell.get("id") or (cell.get("game") or {}).get("name") or "")
    for where, table in _tables(result, ()):
        numbers = [table.get(key) for key in ("shuffles", "alarms", "expected", "largest")]
        if not all(isinstance(n, int | float) and math.isfinite(n) for n in numbers) or not table["shuffles"]:
            continue
        yield Check(
            name,
            int(result["seed"]),
            ", ".join(dict.fromkeys(where)),
            str(table.get("measure", "")),
            int(table["shuffles"]),
            int(table["alarms"]),
            float(table["expected"]),
            float(table["largest"]),
            bool(table.get("passed")),
        )


def _tables(value: object, where: tuple[str, ...], key: str = "") -> Iterator[tuple[tuple[str, ...], Json]]:
    """Each table under the key "selfcheck", and what names it on the way: a secret, an attack, a layer."""
    if isinstance(value, list):
        for item in value:
            yield from _tables(item, where)
    if not isinstance(value, Mapping):
        return
    label = next((str(value[name]) for name in NAMES if isinstance(value.get(name), str)), "")
    inner = (*where, label) if label else where
    if isinstance(value.get("selfcheck"), Mapping):
        yield (*inner, key) if key and not label else inner, value["selfcheck"]
    for name, item in value.items():
        if name != "cell":
            yield from _tables(item, inner, str(name))
