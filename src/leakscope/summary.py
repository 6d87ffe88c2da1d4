"""Results over seeds: one section per cell, ready for words and pictures."""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import stdev
from typing import Any

from leakscope import svg
from leakscope.core import Estimate
from leakscope.measures.success import over_seeds

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
        if auroc is not None and auroc.low > 0.5:
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
    cells: dict[str, list[Json]] = {}
    for result in results:
        cells.setdefault(stable(result["cell"]), []).append(result)
    return [_section(sorted(runs, key=lambda run: int(run["seed"]))) for runs in cells.values()]


def stable(value: object) -> str:
    """The same text for the same value, whatever the order of its keys."""
    return json.dumps(value, sort_keys=True, default=str)


def _section(results: Sequence[Json]) -> Section:
    failures = tuple((int(r["seed"]), str(r["error"])) for r in results if r.get("error"))
    runs = tuple(r for r in results if not r.get("error"))
    utilities = [run["utility"] for run in runs if run.get("utility")]
    majorities = [u["majority"] for u in utilities if u.get("majority") is not None]
    estimates = _averages([run["estimates"] for run in runs])
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
            {seen: _averages([run["rounds"][i].get(seen, {}) for run in runs]) for seen in SEEN}
            for i in range(observed)
        ),
        roc=_mean_roc([run["roc"] for run in runs if run.get("roc")]),
        utility=_averages([{k: v for k, v in u.items() if k != "majority"} for u in utilities]),
        majority=_mean(majorities) if majorities else None,
    )


def _averages(runs: Sequence[Json]) -> dict[str, Average]:
    """Every measure that all runs have in finite numbers."""
    names = [name for name in (runs[0] if runs else ()) if all(_finite(run.get(name)) for run in runs)]
    return {name: _average([run[name] for run in runs]) for name in names}


def _finite(estimate: Json | None) -> bool:
    limits = [estimate.get(key) for key in ("value", "low", "high")] if estimate else [None]
    return all(limit is not None and math.isfinite(limit) for limit in limits)


def _average(estimates: Sequence[Json]) -> Average:
    """The mean over seeds; the spread that its interval comes from is kept beside it."""
    mean = over_seeds([Estimate(**estimate) for estimate in estimates])
    values = [float(estimate["value"]) for estimate in estimates]
    std = stdev(values) if len(values) > 1 else None
    return Average(mean.value, mean.low, mean.high, mean.level, mean.n, len(values), std, mean.method)


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
