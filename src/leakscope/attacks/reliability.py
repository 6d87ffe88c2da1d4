"""How often cells like this one were right, where the truth was known: confidence that holds what it says."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.isotonic import isotonic_regression
from sklearn.linear_model import LogisticRegression
from torch import Tensor

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Reliability:
    """A score of every cell from its features, and how often cells of such a score were right: ``edges``
    (b,) at which steps begin, the lowest first, and the share (b,) of each that was right."""

    model: LogisticRegression | None
    edges: Array
    shares: Array

    @staticmethod
    def learn(features: Tensor, right: Tensor, batches: Tensor, least: int) -> Reliability | None:
        """From cells (n, f), whether each was right (n,), and of which batch (n,) it was; in steps of at
        least so many cells. Cells are scored by what the other batches say, since a score that has seen a
        batch flatters it. None: there are too few."""
        x, y, of = (part.double().numpy() for part in (features, right, batches))
        places = np.unique(of)
        if len(y) < least or len(places) < 2:
            return None
        scores = np.empty(len(y))
        for place in places:
            scores[of == place] = _score(_model(x[of != place], y[of != place]), x[of == place])
        order = np.argsort(scores, kind="stable")
        steps = np.array_split(order, max(1, len(order) // least))
        counts = np.array([len(step) for step in steps], dtype=float)
        hits = np.array([y[step].sum() for step in steps])
        shares = isotonic_regression((hits + 1) / (counts + 2), sample_weight=counts)
        return Reliability(_model(x, y), np.array([scores[step[0]] for step in steps]), shares)

    def rate(self, features: Tensor) -> Tensor:
        """The share of cells like each of these (..., f) that were right."""
        x = features.double().reshape(-1, features.shape[-1]).numpy()
        step = np.searchsorted(self.edges, _score(self.model, x), side="right") - 1
        return torch.from_numpy(self.shares[step.clip(0)]).view(features.shape[:-1])


def _model(x: Array, y: Array) -> LogisticRegression | None:
    return LogisticRegression(max_iter=1_000).fit(x, y) if len(np.unique(y)) == 2 else None


def _score(model: LogisticRegression | None, x: Array) -> Array:
    return np.zeros(len(x)) if model is None else np.asarray(model.decision_function(x))
