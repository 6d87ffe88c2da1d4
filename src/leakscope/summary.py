"""Results over seeds: one section per cell, ready for words and pictures."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from leakscope.averages import Average, Curve, Json, average, averages, finite, mean, mean_roc
from leakscope.catalogue import roles

SLIGHT, SEVERE = 0.1, 0.5  # where the words for severity change; stated on the page
SEVERITIES = ("severe", "substantial", "ranking", "slight", "inconclusive", "none", "failed")  # worst first
SEEN = ("single", "accumulated")  # one round alone, or all rounds so far


@dataclass(frozen=True)
class Bounds:
    """What no adversary can exceed: the weakest over seeds, None where one of them has no bound."""

    advantage: float | None
    accuracy: float | None
    information: float | None  # nats
    method: str


@dataclass(frozen=True)
class Section:
    """One cell of a plan over its seeds. Without ``estimates`` every seed failed."""

    cell: Json
    secret: Json
    runs: tuple[Json, ...]  # the results that were averaged, by seed
    failures: tuple[tuple[int, str], ...]  # (seed, reason)
    estimates: Mapping[str, Average]
    guessing: float
    rounds: tuple[Mapping[str, Mapping[str, Average]], ...]
    roc: Curve
    utility: Mapping[str, Average]
    majority: float | None
    information: Average | None = None  # nats; may be negative
    bounds: Bounds | None = None  # None: none was sought
    guarantee: Json | None = None  # the epsilon and delta that DP-SGD accounts for; the largest over seeds

    @property
    def severity(self) -> str:
        """A word from the lower limit of the advantage; a reading aid, not a standard."""
        advantage, auroc = self.estimates.get("advantage"), self.estimates.get("auroc")
        if advantage is None:
            return "failed"
        told = (self.cell.get("game") or {}).get("known")  # side knowledge alone may rank
        return reading(advantage, None if told else auroc)

    @property
    def worst_first(self) -> tuple[int, float, str]:
        advantage = self.estimates.get("advantage")
        return SEVERITIES.index(self.severity), -advantage.low if advantage else 0.0, stable(self.cell)

    @property
    def observed(self) -> int:
        """How many rounds the adversary saw."""
        given = self.cell.get("rounds")
        return len(self.rounds) or (given if isinstance(given, int) else 1)

    @property
    def informed(self) -> bool:
        """Whether the adversary knows of the defense."""
        return bool(self.cell.get("adaptive"))

    def by_round(self, seen: str, measure: str = "auroc") -> list[Average]:
        """One measure for every round, ``single`` or ``accumulated``; empty unless all rounds have it."""
        found = [averages[seen][measure] for averages in self.rounds if measure in averages[seen]]
        return found if len(found) == len(self.rounds) else []


def summarise(results: Sequence[Json]) -> list[Section]:
    """One section per cell, averaged over seeds, in the order in which the cells first appear."""
    return [_section(runs) for runs in cells(results, "estimates")]


def reading(advantage: Average, auroc: Average | None) -> str:
    """The word for an advantage by its lower limit, or by that of the ranking where it shows none."""
    if advantage.low >= SLIGHT:
        return "severe" if advantage.low >= SEVERE else "substantial"
    if advantage.low > 0:
        return "slight"
    if auroc is not None and auroc.low > 0.5:
        return "ranking"
    return "none" if advantage.high < SLIGHT else "inconclusive"


def cells(results: Iterable[Json], kind: str) -> list[list[Json]]:
    """The results of each cell, by seed, of one kind: of games ("estimates"), of audits of an attribute
    ("audit"), of a federation ("membership"), of a model's layers ("localisation") or of a guard
    ("guarding")."""
    found: dict[str, list[Json]] = {}
    for result in results:
        if _kind(result) == kind:
            found.setdefault(stable(result["cell"]), []).append(result)
    return [sorted(runs, key=lambda run: int(run["seed"])) for runs in found.values()]


def stable(value: object) -> str:
    """The same text for the same value, whatever the order of its keys."""
    return json.dumps(value, sort_keys=True, default=str)


def source(cell: Json) -> str:
    """What the records are called: a known name, or that of the user's own file."""
    data = cell.get("data") or {}
    name = str(data.get("name", "data"))
    return PurePath(str(data["path"])).name if name in ("csv", "npz") and data.get("path") else name


def _section(results: Sequence[Json]) -> Section:
    failures = tuple((int(r["seed"]), str(r["error"])) for r in results if r.get("error"))
    runs = tuple(r for r in results if not r.get("error"))
    utilities = [run["utility"] for run in runs if run.get("utility")]
    majorities = [u["majority"] for u in utilities if u.get("majority") is not None]
    bases = [float(run["guessing"]) for run in runs if run.get("guessing") is not None]
    estimates = averages([run.get("estimates") or {} for run in runs], bases)
    if runs and not {"success", "advantage"} <= estimates.keys():  # no number is better than half of one
        failures += tuple((int(run["seed"]), "no finite success rate and advantage") for run in runs)
        runs, estimates = (), {}
    observed = min((len(run.get("rounds") or ()) for run in runs), default=0)
    return Section(
        cell=results[0]["cell"],
        secret=next((r["secret"] for r in results if r.get("secret")), {}),
        runs=runs,
        failures=failures,
        estimates=estimates,
        guessing=mean([float(run["guessing"]) for run in runs]),
        rounds=tuple(
            {seen: averages([run["rounds"][i].get(seen, {}) for run in runs], bases) for seen in SEEN}
            for i in range(observed)
        ),
        roc=mean_roc([run["roc"] for run in runs if run.get("roc")]),
        utility=averages([{k: v for k, v in u.items() if k != "majority"} for u in utilities]),
        majority=mean(majorities) if majorities else None,
        information=_information([run.get("bounds") or {} for run in runs]),
        bounds=_bounds([run["bounds"] or {} for run in runs if "bounds" in run], len(runs)),
        guarantee=_guarantee([run.get("guarantee") for run in runs]),
    )


def _information(bounds: Sequence[Json]) -> Average | None:
    """Free to leave 0 to 1: information is in nats, and may be found negative."""
    found = [table["information"] for table in bounds if finite(table.get("information"))]
    if not found or len(found) < len(bounds):
        return None
    return average(found, least=-math.inf, most=math.inf)


def _bounds(tables: Sequence[Json], seeds: int) -> Bounds | None:
    if not tables:
        return None

    def weakest(name: str) -> float | None:
        found = [float(table[name]) for table in tables if _number(table.get(name))]
        return max(found) if len(found) == seeds else None

    methods = dict.fromkeys(str(table["method"]) for table in tables if table.get("method"))
    return Bounds(
        advantage=weakest("advantage_bound"),
        accuracy=weakest("accuracy_bound"),
        information=weakest("information_bound"),
        method="; ".join(methods),
    )


def _guarantee(found: Sequence[Json | None]) -> Json | None:
    tables = [table for table in found if table]
    if not tables or len(tables) < len(found):
        return None
    worst = {name: max(float(table[name]) for table in tables) for name in ("delta", "step", "run")}
    return worst | {"unit": tables[0].get("unit", "record")}


def _number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


@dataclass(frozen=True)
class Audit:
    """One audit of differential privacy over its seeds. Without ``tables`` every seed failed.

    Of every number it shows the one that claims least: the smallest certified epsilon, the largest
    guarantee."""

    cell: Json
    runs: tuple[Json, ...]
    tables: tuple[Json, ...]  # their "audit" entries
    failures: tuple[tuple[int, str], ...]

    def fact(self, name: str, otherwise: Any = None) -> Any:
        """What is the same for every seed; a failed audit has what its plan says."""
        sources = (*self.tables[:1], self.cell.get("game") or {})
        return next((source[name] for source in sources if source.get(name) is not None), otherwise)

    def numbers(self, name: str) -> list[float]:
        """One number for every seed; empty unless all have it."""
        found = [float(table[name]) for table in self.tables if _number(table.get(name))]
        return found if len(found) == len(self.tables) else []

    def largest(self, name: str) -> float | None:
        return max(self.numbers(name), default=None)

    def certified(self, assuming: str) -> Average | None:
        """The epsilon that every seed certifies (``low``), of at most ``high`` that could have been."""
        found = [table.get(assuming) or {} for table in self.tables]
        if not found or not all(_number(estimate.get("low")) for estimate in found):
            return None
        value, low, high = (
            min((float(e[key]) for e in found if _number(e.get(key))), default=math.nan)
            for key in ("value", "low", "high")
        )
        level, n = float(found[0].get("level", 0.95)), int(found[0].get("n") or self.fact("trials", 0))
        return Average(value, low, high, level, n, len(found), None, str(found[0].get("method", "")))

    @property
    def attribute(self) -> str:
        return str(self.fact("attribute", "?"))

    @property
    def data(self) -> str:
        return source(self.cell)

    @property
    def record(self) -> str:
        """How the record was come by: in one word, or none."""
        return {True: "crafted", False: "sampled"}.get(self.fact("crafted"), "")

    @property
    def values(self) -> tuple[str, str]:
        """What the attribute is under either hypothesis."""
        given = [str(value) for value in self.fact("values") or ()]
        return (given[0], given[1]) if len(given) == 2 else ("one value", "another")

    @property
    def setting(self) -> tuple[float, ...]:
        """Clip, noise, trials; beyond all others where they are not known."""
        values = (self.fact(name) for name in ("clip", "std", "trials"))
        return tuple(float(value) if _number(value) else math.inf for value in values)

    @property
    def histogram(self) -> tuple[list[float], list[float], list[float]] | None:
        """Edges, and how often the statistic fell between them under either hypothesis; first seed."""
        table = self.fact("histogram") or {}
        edges, h0, h1 = ([float(v) for v in table.get(key) or ()] for key in ("edges", "h0", "h1"))
        whole = len(h0) == len(h1) == len(edges) - 1 > 0 and edges[0] < edges[-1]
        return (edges, h0, h1) if whole and sum(h0) > 0 and sum(h1) > 0 else None


def audits(results: Sequence[Json]) -> list[Audit]:
    """One audit per cell and per kind of record, clip and noise in it."""
    found = []
    for runs in cells(results, "audit"):
        failures = tuple(
            (int(r["seed"]), str(r.get("error", "no audit"))) for r in runs if not r.get("audit")
        )
        kinds: dict[str, list[Json]] = {}
        for run in runs:
            if run.get("audit"):
                same = ("attribute", "values", "statistic", "delta", "crafted", "clip", "std", "trials")
                kinds.setdefault(stable([run["audit"].get(key) for key in same]), []).append(run)
        for group in kinds.values() or [[]]:
            tables = tuple(run["audit"] for run in group)
            found.append(Audit(runs[0]["cell"], tuple(group), tables, failures))
            failures = ()  # said once
    return found


def _kind(result: Json) -> str:
    """What a result is of, or would have been had it not failed."""
    for kind in ("membership", "audit", "localisation", "guarding", "estimates"):
        if result.get(kind):
            return kind
    entry = roles("audit").get(str((result["cell"].get("game") or {}).get("name")))
    if entry is None:
        return "estimates"
    part = entry.module.removeprefix("leakscope.")
    return part if part in ("membership", "localisation", "guarding") else "audit"
