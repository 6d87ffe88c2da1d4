"""How measures of the same layers go together, and which of paper 001's claims they bear out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from scipy import stats

from leakscope.audits.layers.found import Correlation, Latent, Layer, Original
from leakscope.core.nouns import Estimate
from leakscope.measures.success import proportion

LEVEL = 0.95
RARE = 0.05
Sensitivity = Mapping[str, Mapping[str, Estimate]]


def correlate(
    latent: Sequence[Latent[Estimate]], original: Original[Estimate] | None, sensitivity: Sensitivity
) -> Iterator[Correlation]:
    """Pearson's r of each measure without an attack with the latent information of the same layer and
    secret, and of the square root of the layer's rank, which is width alone; and of the reconstructions'
    information with sensitivity. With Fisher's interval; points of one model are not independent, so p is too
    small."""
    points: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for measure, target, x, y in (*_latent_points(latent), *_original_points(original, sensitivity)):
        points.setdefault((measure, target), []).append((x, y))
    for (measure, target), pairs in points.items():
        one, other = (np.array(values) for values in zip(*pairs, strict=True))
        if len(pairs) > 3 and np.ptp(one) > 0 and np.ptp(other) > 0:
            r = stats.pearsonr(one, other)
            low, high = map(float, r.confidence_interval(LEVEL))
            value, p = float(r.statistic), float(r.pvalue)
            yield Correlation(measure=measure, target=target, r=value, low=low, high=high, p=p, n=len(pairs))


def _latent_points(secrets: Sequence[Latent[Estimate]]) -> Iterator[tuple[str, str, float, float]]:
    target = "latent information"
    for secret in secrets:
        for layer, leak in secret.layers.items():
            information = leak.information.value
            if distance := secret.subspace.get(layer):
                yield "subspace distance", target, distance.distance.value, information
                yield "its random split", target, distance.null_mean, information
                yield "square root of rank", target, math.sqrt(distance.rank), information
            if ratio := secret.two_sample.get(layer):
                yield "two-sample log ratio", target, ratio.log_ratio.value, information


def _original_points(
    original: Original[Estimate] | None, sensitivity: Sensitivity
) -> Iterator[tuple[str, str, float, float]]:
    for pair in original.sets if original else ():
        for norm in ("F", "relative"):
            known = sensitivity.get(norm, {})
            if known.keys() >= set(pair.layers):
                mean = float(np.mean([known[layer].value for layer in pair.layers]))
                yield f"{norm} sensitivity", "original information", mean, pair.information.value


def lowess(x: Sequence[float], y: Sequence[float], *, span: float = 0.75, rounds: int = 3) -> list[float]:
    """The locally weighted regression of y on x (Cleveland, 1979) at every x, as the paper smooths figures
    5 and 7; a straight line where there are fewer than four different x."""
    if len(set(x)) < 4:
        fitted = stats.linregress(x, y)
        return [float(fitted.intercept + fitted.slope * value) for value in x]
    at, values = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    far = np.abs(at[:, None] - at)
    reach = np.sort(far, axis=1)[:, [max(int(span * len(at) + 1e-10), 2) - 1]]
    near = np.clip(1 - (far / np.maximum(reach, np.finfo(float).tiny)) ** 3, 0, None) ** 3
    trust, curve = np.ones_like(values), values
    for _ in range(rounds + 1):
        weight = near * trust
        weight /= weight.sum(1, keepdims=True)
        centre, mean = weight @ at, weight @ values
        moved = weight * (at - centre[:, None])
        spread = (moved * (at - centre[:, None])).sum(1)
        slope = np.divide(
            moved @ values, spread, out=np.zeros_like(spread), where=spread > 1e-12 * np.ptp(at) ** 2
        )
        curve = mean + slope * (at - centre)
        scale = 6 * np.median(np.abs(values - curve))
        if scale <= 1e-9 * np.ptp(values):
            break
        trust = np.clip(1 - ((values - curve) / scale) ** 2, 1e-6, None) ** 2
    return [float(value) for value in curve]


def check_claims(
    layers: Sequence[Layer],
    latent: Sequence[Latent[Estimate]],
    original: Original[Estimate] | None,
    sensitivity: Sensitivity,
) -> dict[str, Estimate]:
    """The share of cases in which each of the paper's claims holds here: secrets for what is latent, the one
    model for the rest. A claim says which layer has the largest value, however close the next one is."""
    dense = next((layer.name for layer in layers if layer.kind == "linear"), None)
    peaks = [(secret, _peak({n: leak.information for n, leak in secret.layers.items()})) for secret in latent]
    cases = {
        "latent peak at the first classifier layer": [
            peak is not None and dense in secret.layers[peak].layers for secret, peak in peaks
        ],
        "subspace distance beats random splits there": [
            secret.subspace[dense].p <= RARE for secret in latent if dense in secret.subspace
        ],
    }
    if original:
        sets = {pair.name: pair.information for pair in original.sets}
        cases["original peak at the first layers"] = [_peak(sets) == next(iter(sets))] if sets else []
    for norm, values in sensitivity.items():
        cases[f"{norm} sensitivity peak at the first layer"] = [_peak(values) == layers[0].name]
    return {name: proportion(name, sum(held), len(held)) for name, held in cases.items() if held}


def _peak(estimates: Mapping[str, Estimate]) -> str | None:
    """The name of the largest; None where all are equal, and no layer peaks."""
    values = {name: estimate.value for name, estimate in estimates.items()}
    return max(values, key=lambda name: values[name]) if len(set(values.values())) > 1 else None


def smooth_trend(latent: Sequence[Latent[Estimate]], *, span: float = 0.75) -> dict[str, float]:
    """Latent information over layers, all secrets together, each as a share of its own entropy: the curve of
    figure 5."""
    points = [
        (place, leak.information.value / secret.most)
        for secret in latent
        for place, leak in enumerate(secret.layers.values())
    ]
    if not points:
        return {}
    x, y = zip(*points, strict=True)
    curve = dict(zip(x, lowess(x, y, span=span), strict=True))
    return {name: curve[place] for place, name in enumerate(latent[0].layers) if place in curve}
