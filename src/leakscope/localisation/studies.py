"""How measures of the same layers go together, and which of paper 001's claims they bear out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats

from leakscope.core import Estimate
from leakscope.measures.success import proportion

LEVEL = 0.95
RARE = 0.05


def correlations(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Pearson's r of each measure without an attack with the latent information of the same layer and
    secret, and of the square root of the layer's rank, which is width alone; and of the reconstructions'
    information with sensitivity. Points of one model are not independent, so p is too small."""
    rows = []
    for name, pairs in _points(found).items():
        x, y = (np.array(values) for values in zip(*pairs, strict=True)) if pairs else (np.array([]),) * 2
        if len(x) > 3 and np.ptp(x) > 0 and np.ptp(y) > 0:
            rows.append({"measure": name[0], "with": name[1]} | pearson(x, y))
    return rows


def pearson(x: Any, y: Any) -> dict[str, Any]:
    """r with Fisher's interval and its p-value."""
    r = stats.pearsonr(x, y)
    limits = r.confidence_interval(LEVEL)
    return {
        "r": float(r.statistic),
        "low": float(limits.low),
        "high": float(limits.high),
        "p": float(r.pvalue),
        "n": len(x),
        "note": "",
    }


def _points(found: Mapping[str, Any]) -> dict[tuple[str, str], list[tuple[float, float]]]:
    points: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for measure, target, x, y in _measured(found):
        points.setdefault((measure, target), []).append((x, y))
    return points


def _measured(found: Mapping[str, Any]) -> Iterator[tuple[str, str, float, float]]:
    for secret in found["latent"]:
        for layer, row in secret["layers"].items():
            information = row["information"]["value"]
            if layer in secret["subspace"]:
                distance = secret["subspace"][layer]
                yield "subspace distance", "latent information", distance["distance"]["value"], information
                yield "its random split", "latent information", distance["null_mean"], information
                yield "square root of rank", "latent information", math.sqrt(distance["rank"]), information
            if layer in secret["two_sample"]:
                ratio = secret["two_sample"][layer]["log_ratio"]["value"]
                yield "two-sample log ratio", "latent information", ratio, information
    original, sensitivity = found["original"], found["sensitivity"]
    if original and sensitivity:
        for row in original["sets"].values():
            if len(row["layers"]) == 2:
                for norm in ("F", "relative"):
                    mean = float(np.mean([sensitivity[norm][layer]["value"] for layer in row["layers"]]))
                    yield f"{norm} sensitivity", "original information", mean, row["information"]["value"]


def lowess(x: Sequence[float], y: Sequence[float], *, span: float = 0.75) -> list[float]:
    """The locally weighted regression of y on x (Cleveland, 1979) at every x, as the paper smooths figures
    5 and 7; a straight line where there are fewer than four different x."""
    from statsmodels.nonparametric.smoothers_lowess import lowess as smooth

    if len(set(x)) < 4:
        fitted = stats.linregress(x, y)
        return [float(fitted.intercept + fitted.slope * value) for value in x]
    return [float(v) for v in smooth(np.asarray(y), np.asarray(x), frac=span, return_sorted=False)]


def claims(found: Mapping[str, Any]) -> dict[str, Estimate]:
    """The share of cases in which each of the paper's claims holds here: secrets for what is latent, the one
    model for the rest. A claim says which layer has the largest value, however close the next one is."""
    names = [layer["name"] for layer in found["layers"]]
    dense = next((layer["name"] for layer in found["layers"] if layer["kind"] == "linear"), None)
    peaks = [_peak({n: row["information"] for n, row in s["layers"].items()}) for s in found["latent"]]
    cases = {
        "latent peak at the first classifier layer": [dense in (peak or "").split("+") for peak in peaks]
    }
    inside = [secret["subspace"][dense]["p"] for secret in found["latent"] if dense in secret["subspace"]]
    cases["subspace distance beats random splits there"] = [p <= RARE for p in inside]
    if found["original"]:
        sets = {n: r["information"] for n, r in found["original"]["sets"].items() if len(r["layers"]) == 2}
        cases["original peak at the first layers"] = [_peak(sets) == next(iter(sets))] if sets else []
    for norm, layers in (found["sensitivity"] or {}).items():
        cases[f"{norm} sensitivity peak at the first layer"] = [_peak(layers) == names[0]]
    return {name: proportion(name, sum(held), len(held)) for name, held in cases.items() if held}


def _peak(estimates: Mapping[str, Mapping[str, Any]]) -> str | None:
    """The name of the largest; None where all are equal, and no layer peaks."""
    values = {name: estimate["value"] for name, estimate in estimates.items()}
    return max(values, key=lambda name: values[name]) if len(set(values.values())) > 1 else None


def trend(found: Mapping[str, Any], *, span: float = 0.75) -> dict[str, float]:
    """Latent information over layers, all secrets together, each as a share of its own entropy: the curve of
    figure 5."""
    points = [
        (place, row["information"]["value"] / secret["most"])
        for secret in found["latent"]
        for place, row in enumerate(secret["layers"].values())
    ]
    if not points:
        return {}
    x, y = zip(*points, strict=True)
    smooth = dict(zip(x, lowess(x, y, span=span), strict=True))
    names = list(found["latent"][0]["layers"])
    return {name: smooth[place] for place, name in enumerate(names) if place in smooth}
