"""How far evidence is to be trusted: a scale and an offset for each value, learned where secrets are known.

Rounds that show the same records say much the same again. Their evidence, added up as if each round were a
witness of its own, is far too sure, and against an uneven prior an adversary who trusts it is worse than one
who guesses.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
STEPS = 100  # of Newton's method; ten are usual
ENOUGH = 1e-14  # nats that another step would gain


def calibrate(said: Array, way: Array) -> Array:
    """Log evidence (t, m), scaled and moved as was learned: ``way`` is the scale, then an offset for each
    of the m values."""
    return np.asarray(way[0] * said + way[1:])


def log_losses(said: Array, told: NDArray[np.int64]) -> Array:
    """Minus log p (t,) of what was ``told``, from log evidence (t, m) at equal odds."""
    return np.asarray(np.logaddexp.reduce(said, axis=1) - said[np.arange(len(told)), told])


def learn_calibration(
    said: Array,
    told: NDArray[np.int64],
    *,
    prior: Array | None = None,
    scales: tuple[float, float] = (0.0, math.inf),
    ridge: float,
) -> Array:
    """The scale and offsets of least log loss on evidence ``said`` (t, m) whose truth was ``told`` (t,).

    Each trial weighs as its value does in ``prior``, which the evidence is then held against; None: as
    they come, the evidence alone. The loss is convex, and ``ridge`` times half the squared distance from
    trusting the evidence as it is, scale 1 and offsets 0, keeps it finite where all is told without error.
    A value that is never told, or that the prior rules out, keeps the offset 0.
    """
    counts = np.bincount(told, minlength=said.shape[1])
    used = counts > 0 if prior is None else (counts > 0) & (prior > 0)
    way = np.append(1.0, np.zeros(said.shape[1]))
    if prior is None:
        odds, weights = np.zeros(said.shape[1]), np.ones(len(told))
    else:
        odds, weights = np.log(np.where(used, prior, 1.0)), (prior / np.maximum(counts, 1))[told]
    rows, places = used[told], np.cumsum(used) - 1
    if used.sum() < 2:
        return way
    kept = np.append(True, used)
    shares = weights[rows] / weights[rows].sum()
    trials = _Trials(said[rows][:, used], places[told[rows]], shares, odds[used], ridge)
    best = trials.least()
    if not scales[0] <= best[0] <= scales[1]:  # convex, so that the best scale allowed is the nearest
        best = trials.least(scale=min(max(best[0], scales[0]), scales[1]))
    way[kept] = best
    return way


@dataclass(frozen=True, eq=False)
class _Trials:
    """What a calibration is learned from: its loss in the scale and offsets, and where that is least."""

    said: Array
    told: NDArray[np.int64]
    weights: Array
    odds: Array
    ridge: float

    def least(self, scale: float | None = None) -> Array:
        """By Newton's method, halving steps that overshoot; at a ``scale`` that is given, of the offsets."""
        way = np.append(1.0 if scale is None else scale, np.zeros(len(self.odds)))
        free = slice(0 if scale is None else 1, None)
        for _ in range(STEPS):
            value, slope, curve = self.loss(way)
            step = np.zeros_like(way)
            step[free] = -np.linalg.solve(curve[free, free], slope[free])
            if -(slope @ step) < ENOUGH:  # less than rounding can tell
                return way + step
            while self.loss(way + step)[0] > value + 1e-4 * slope @ step:
                step /= 2
            way = way + step
        return way

    def loss(self, way: Array) -> tuple[float, Array, Array]:
        """The loss, its slope and its curvature."""
        scores = calibrate(self.said, way) + self.odds
        scores = scores - scores.max(1, keepdims=True)
        q = np.exp(scores)
        total = q.sum(1)
        trials, pull = np.arange(len(self.told)), way - np.eye(len(way))[0]
        value = (self.weights * (np.log(total) - scores[trials, self.told])).sum()
        q *= (self.weights / total)[:, None]
        mean = (q * self.said).sum(1) / self.weights
        off = q.copy()
        off[trials, self.told] -= self.weights
        cross = q * (self.said - mean[:, None])
        curve = np.diag(np.append((cross * self.said).sum(), q.sum(0)) + self.ridge)
        curve[1:, 1:] -= (q / self.weights[:, None]).T @ q
        curve[0, 1:] = curve[1:, 0] = cross.sum(0)
        slope = np.append((off * self.said).sum(), off.sum(0)) + self.ridge * pull
        return float(value + self.ridge / 2 * pull @ pull), slope, curve
