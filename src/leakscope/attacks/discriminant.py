"""Regularised discriminant analysis (Friedman, 1989) from moments, which a fold can be taken out of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve

from leakscope.core.nouns import DEEPEST

Array = NDArray[np.float64]
Codes = NDArray[np.int64]
Say = Callable[[Array], Array]  # features (t, d) -> log evidence (t, m)
TURNS = 3  # of the power method by which the widest directions are found


@dataclass(frozen=True, eq=False)
class Moments:
    """Of features by value: how many (m,), their sums (m, d), and the sum of their squares (d, d)."""

    counts: Array
    sums: Array
    squares: Array

    @staticmethod
    def of(x: Array, secrets: Codes, m: int) -> Moments:
        told = np.eye(m)[secrets]
        return Moments(told.sum(0), told.T @ x, x.T @ x)

    @staticmethod
    def together(parts: Sequence[Moments]) -> Moments:
        return Moments(
            np.sum([part.counts for part in parts], axis=0),
            np.sum([part.sums for part in parts], axis=0),
            np.sum([part.squares for part in parts], axis=0),
        )

    def among(self, columns: Codes) -> Moments:
        return Moments(self.counts, self.sums[:, columns], self.squares[np.ix_(columns, columns)])


@dataclass(frozen=True, eq=False)
class Shape:
    """Values by the means (m, d) of their features and by their common covariance (d, d); ``rows`` are what
    the moments are of, features (n, d) and secrets (n,). ``ordinal``: the means lie on one line. Among the
    ``quadratic`` widest directions each value has a covariance of its own. Values that were never told have
    none."""

    moments: Moments
    rows: Callable[[], tuple[Array, Codes]]
    quadratic: int
    ordinal: bool = False

    @cached_property
    def told(self) -> list[int]:
        return [int(value) for value in self.moments.counts.nonzero()[0]]

    @cached_property
    def means(self) -> Array:
        means = np.zeros_like(self.moments.sums)
        means[self.told] = self.moments.sums[self.told] / self.moments.counts[self.told, None]
        if self.ordinal:
            means[self.told] = _on_a_line(means[self.told])
        return means

    @cached_property
    def common(self) -> Array:
        """The mean of (x - its value's mean)(x - its value's mean)'."""
        sums, counts, means = self.moments.sums, self.moments.counts, self.means
        cross = sums.T @ means
        left = self.moments.squares - cross - cross.T + (means * counts[:, None]).T @ means
        return np.asarray(left / counts.sum())

    @cached_property
    def size(self) -> float:
        """The mean variance of all features, whatever the value."""
        n = self.moments.counts.sum()
        spread = self.moments.squares.diagonal() / n - (self.moments.sums.sum(0) / n) ** 2
        return float(np.maximum(spread, 0.0).mean())

    @cached_property
    def basis(self) -> Array:
        """The widest directions (d, q) of the common covariance, or nearly so."""
        d = len(self.common)
        if d <= self.quadratic:
            return np.linalg.eigh(self.common)[1]
        basis = np.eye(d)[:, np.argsort(-self.common.diagonal(), kind="stable")[: self.quadratic]]
        for _ in range(TURNS):
            basis = np.linalg.qr(self.common @ basis)[0]
        return basis

    @cached_property
    def each(self) -> Array:
        """Each value's own covariance (m, q, q) there."""
        x, secrets = self.rows()
        inside = (x - self.means[secrets]) @ self.basis
        own = [inside[secrets == value] for value in range(len(self.means))]
        return np.stack([part.T @ part / max(len(part), 1) for part in own])

    def discriminants(self, noise: Array, ridge: Array, owns: Sequence[float]) -> list[Say]:
        """Log evidence by value, up to what all values share, for each share ``owns`` of a value's own
        covariance. ``noise`` and ``ridge`` times the features' size are added to the variances (d,)."""
        added = noise + ridge * self.size
        if not added.all():  # nothing varies and there is no noise: nothing to tell
            return [lambda x: np.zeros((len(x), len(self.means)))] * len(owns)
        weight = cho_solve(cho_factor(self.common + np.diag(added)), self.means.T)
        offset = -0.5 * (self.means * weight.T).sum(1)
        return [self._say(weight, offset, added, own) for own in owns]

    def _say(self, weight: Array, offset: Array, added: Array, own: float) -> Say:
        bent = self._bent(added, own) if own else []

        def say(x: Array) -> Array:
            said = x @ weight + offset
            inside = x @ self.basis if bent else x
            for value, centre, change, constant in bent:
                apart = inside - centre
                said[:, value] += ((apart @ change) * apart).sum(1) / 2 + constant
            never = [value for value in range(said.shape[1]) if value not in self.told]
            said[:, never] = said[:, self.told].min(1, keepdims=True) + DEEPEST
            return np.asarray(said)

        return say

    def _bent(self, added: Array, own: float) -> list[tuple[int, Array, Array, float]]:
        """Of every value: its mean among the widest directions, and what its own covariance changes there."""
        floor = self.basis.T @ (added[:, None] * self.basis)
        shared = self.basis.T @ self.common @ self.basis + floor
        straight, centres = np.linalg.inv(shared), self.means @ self.basis
        bent: list[tuple[int, Array, Array, float]] = []
        for value in self.told:
            mixed = (1 - own) * shared + own * (self.each[value] + floor)
            constant = -np.linalg.slogdet(mixed)[1] / 2
            change = np.asarray(straight - np.linalg.inv(mixed), dtype=np.float64)
            bent.append((value, centres[value], change, float(constant)))
        return bent


def _on_a_line(points: Array) -> Array:
    """The points' nearest on the line that is nearest to all."""
    centre = points.mean(0)
    direction = np.linalg.svd(points - centre, full_matrices=False)[2][:1]
    return np.asarray(centre + (points - centre) @ direction.T @ direction)
