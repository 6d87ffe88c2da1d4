"""Results over seeds: one section per cell, ready for words and pictures."""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import stdev
from typing import Any

from scipy import stats

from leakscope import svg
from leakscope.catalogue import roles
from leakscope.core import Estimate
from leakscope.measures.success import over_seeds, untruncated

Json = Mapping[str, Any]
SLIGHT, SEVERE = 0.1, 0.5  # where the words for severity change; stated on the page
SEVERITIES = ("severe", "substantial", "ranking", "slight", "inconclusive", "none", "failed")  # worst first
SEEN = ("single", "accumulated")  # one round alone, or all rounds so far


@dataclass(frozen=True)
class Average:
    """One measure over seeds: ``n`` trials in each of ``seeds`` runs; ``std`` is None for one seed."""

    value: float
    low: float
    high: float
    level: float
    n: int
    seeds: int
    std: float | None
    method: str


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
    roc: tuple[tuple[float, float], ...]
    utility: Mapping[str, Average]
    majority: float | None
    information: Average | None = None  # nats; may be negative
    bounds: Bounds | None = None  # None: none was sought

    @property
    def severity(self) -> str:
        """A word from the lower limit of the advantage; a reading aid, not a standard."""
        advantage, auroc = self.estimates.get("advantage"), self.estimates.get("auroc")
        if advantage is None:
            return "failed"
        if advantage.low >= SLIGHT:
            return "severe" if advantage.low >= SEVERE else "substantial"
        if advantage.low > 0:
            return "slight"
        told = (self.cell.get("game") or {}).get("known")  # side knowledge alone may rank
        if auroc is not None and auroc.low > 0.5 and not told:
            return "ranking"
        return "none" if advantage.high < SLIGHT else "inconclusive"

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

    def curve(self, points: int) -> tuple[tuple[float, float], ...]:
        """At most ``points`` of the ROC curve, even on the logarithmic axis, each as measured."""
        rates = [fpr for fpr, _ in self.roc]
        if len(rates) <= points:
            return self.roc
        targets = (svg.FLOOR ** (1 - i / (points - 1)) for i in range(points))
        kept = {0, *(max(0, bisect_right(rates, target * (1 + 1e-9)) - 1) for target in targets)}
        return tuple(self.roc[i] for i in sorted(kept))


def summarise(results: Sequence[Json]) -> list[Section]:
    """One section per cell, averaged over seeds, in the order in which the cells first appear."""
    return [_section(runs) for runs in _cells(result for result in results if not _audited(result))]


def _cells(results: Iterable[Json]) -> list[list[Json]]:
    """The results of each cell, by seed."""
    cells: dict[str, list[Json]] = {}
    for result in results:
        cells.setdefault(stable(result["cell"]), []).append(result)
    return [sorted(runs, key=lambda run: int(run["seed"])) for runs in cells.values()]


def stable(value: object) -> str:
    """The same text for the same value, whatever the order of its keys."""
    return json.dumps(value, sort_keys=True, default=str)


def _section(results: Sequence[Json]) -> Section:
    failures = tuple((int(r["seed"]), str(r["error"])) for r in results if r.get("error"))
    runs = tuple(r for r in results if not r.get("error"))
    utilities = [run["utility"] for run in runs if run.get("utility")]
    majorities = [u["majority"] for u in utilities if u.get("majority") is not None]
    bases = [float(run["guessing"]) for run in runs if run.get("guessing") is not None]
    estimates = _averages([run.get("estimates") or {} for run in runs], bases)
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
        guessing=_mean([float(run["guessing"]) for run in runs]),
        rounds=tuple(
            {seen: _averages([run["rounds"][i].get(seen, {}) for run in runs], bases) for seen in SEEN}
            for i in range(observed)
        ),
        roc=_mean_roc([run["roc"] for run in runs if run.get("roc")]),
        utility=_averages([{k: v for k, v in u.items() if k != "majority"} for u in utilities]),
        majority=_mean(majorities) if majorities else None,
        information=_information([run.get("bounds") or {} for run in runs]),
        bounds=_bounds([run["bounds"] or {} for run in runs if "bounds" in run], len(runs)),
    )


def _averages(runs: Sequence[Json], bases: Sequence[float] = ()) -> dict[str, Average]:
    """Every measure that all runs have in finite numbers; the advantage is averaged before it is cut at
    zero, from the success rates and what guessing achieved."""
    names = [name for name in (runs[0] if runs else ()) if all(_finite(run.get(name)) for run in runs)]
    averages = {name: _average([run[name] for run in runs]) for name in names}
    if "advantage" in averages and "success" in averages and len(bases) == len(runs):
        raw = [untruncated(run["success"]["value"], base) for run, base in zip(runs, bases, strict=True)]
        averages["advantage"] = _average([run["advantage"] for run in runs], raw)
    return averages


def _finite(estimate: Json | None) -> bool:
    limits = [estimate.get(key) for key in ("value", "low", "high")] if estimate else [None]
    return all(limit is not None and math.isfinite(limit) for limit in limits)


def _average(estimates: Sequence[Json], raw: Sequence[float] | None = None) -> Average:
    """The mean over seeds; the spread that its interval comes from is kept beside it."""
    mean = over_seeds([Estimate(**estimate) for estimate in estimates], raw=raw)
    values = [float(estimate["value"]) for estimate in estimates] if raw is None else list(raw)
    std = stdev(values) if len(values) > 1 else None
    return Average(mean.value, mean.low, mean.high, mean.level, mean.n, len(values), std, mean.method)


def _information(bounds: Sequence[Json]) -> Average | None:
    """As `over_seeds`, but free to leave 0 to 1: information is in nats, and may be found negative."""
    found = [table["information"] for table in bounds if _finite(table.get("information"))]
    if not found or len(found) < len(bounds):
        return None
    values, first = [float(estimate["value"]) for estimate in found], found[0]
    level, n, seeds = float(first.get("level", 0.95)), int(first.get("n", 0)), len(found)
    if seeds == 1:
        method = str(first.get("method", ""))
        return Average(values[0], first["low"], first["high"], level, n, 1, None, method)
    mean, std = _mean(values), stdev(values)
    if std < 1e-12:
        low, high = min(e["low"] for e in found), max(e["high"] for e in found)
        return Average(mean, low, high, level, n, seeds, std, f"widest of {seeds} seeds, all equal")
    half = float(stats.t.ppf((1 + level) / 2, seeds - 1)) * std / math.sqrt(seeds)
    return Average(mean, mean - half, mean + half, level, n, seeds, std, f"Student's t over {seeds} seeds")


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
        return str((self.cell.get("data") or {}).get("name", "data"))

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
    for runs in _cells(result for result in results if _audited(result)):
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


def _audited(result: Json) -> bool:
    """Whether a result is of an audit, or would have been had it not failed."""
    if result.get("audit") or result.get("estimates"):
        return bool(result.get("audit"))
    return (result["cell"].get("game") or {}).get("name") in roles("audit")


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def _mean_roc(curves: Sequence[Sequence[Sequence[float]]]) -> tuple[tuple[float, float], ...]:
    """The hits reached within each rate of false alarms, averaged over seeds; no interpolation."""
    steps: list[tuple[list[float], list[float]]] = []
    for curve in curves:
        best = dict(sorted((float(fpr), float(tpr)) for fpr, tpr in curve))  # the last, highest hit stays
        steps.append((list(best), list(accumulate(best.values(), max))))
    grid = sorted({rate for rates, _ in steps for rate in rates})
    grid = grid[max(0, bisect_right(grid, 0.001) - 1) :]  # left of 0.1% one point is enough
    reached = [
        [hits[bisect_right(rates, rate) - 1] if rate >= rates[0] else 0.0 for rates, hits in steps]
        for rate in grid
    ]
    return tuple((float(rate), _mean(values)) for rate, values in zip(grid, reached, strict=True))
