"""What the victim's model is worth on records nobody trained on: accuracy and AUROC, or R² and the error."""

from __future__ import annotations

import warnings

import numpy as np
import torch
from scipy import stats
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, Ridge
from torch import Tensor

from leakscope.core.dataset import Dataset
from leakscope.core.errors import ArgumentError
from leakscope.core.nouns import Estimate, Transcript
from leakscope.core.task import is_number
from leakscope.measures.success import auroc, proportion

WIDEST = 2_000  # inputs of a linear model: more take longer than the audit


def accuracy(logits: Tensor, labels: Tensor, *, level: float = 0.95) -> Estimate:
    """Share of records whose likeliest label is right."""
    hits = int((logits.argmax(1) == labels).sum())
    return proportion("accuracy", hits, len(labels), level=level)


def task_auroc(logits: Tensor, labels: Tensor, *, level: float = 0.95) -> Estimate:
    """AUROC of the task, macro one-vs-rest over the labels that occur."""
    counts = torch.bincount(labels, minlength=logits.shape[1]).double()
    posterior = torch.softmax(logits.double(), dim=1)
    return auroc(Transcript(labels, posterior, counts / counts.sum()), level=level)


def r_squared(predicted: Tensor, labels: Tensor, *, level: float = 0.95) -> Estimate:
    """Share of the labels' variance that predictions explain: 1 - mean (y - f)² / mean (y - ȳ)².

    It is 0 for the best constant and below for what is worse. Interval: the delta method, since it is a
    ratio of two means over the same records, with Student's t."""
    y = labels.double()
    lost, spread = (y - predicted.detach().double()[:, 0]).square(), (y - y.mean()).square()
    if not float(spread.mean()) > 0:
        raise ArgumentError("R² needs labels that differ, and these are all the same; give more records.")
    value = 1 - float(lost.mean() / spread.mean())
    influence = (lost - (1 - value) * spread) / spread.mean()
    return _mean_estimate("R²", influence.numpy(), value, "delta method and Student's t", level, most=1.0)


def mean_error(predicted: Tensor, labels: Tensor, *, unit: float = 1.0, level: float = 0.95) -> Estimate:
    """Mean absolute error of predictions, times the ``unit`` that labels were divided by."""
    lost = (labels.double() - predicted.detach().double()[:, 0]).abs().numpy() * unit
    return _mean_estimate("mean absolute error", lost, float(lost.mean()), "Student's t", level, least=0.0)


def _mean_estimate(
    name: str,
    parts: np.ndarray[tuple[int], np.dtype[np.float64]],
    value: float,
    method: str,
    level: float,
    *,
    least: float = -np.inf,
    most: float = np.inf,
) -> Estimate:
    """A mean of ``parts``, each a record's share in it, and Student's interval around its ``value``."""
    n = len(parts)
    half = float(stats.t.ppf((1 + level) / 2, max(n - 1, 1)) * parts.std(ddof=min(1, n - 1)) / np.sqrt(n))
    low, high = max(value - half, least), min(value + half, most)
    return Estimate(name, value, low, high, level, n, method)


def majority(labels: Tensor) -> float:
    """What always saying the same reaches: the accuracy of the most frequent label, or the R² of the mean."""
    return 0.0 if is_number(labels) else float(torch.bincount(labels).max()) / len(labels)


def linear(train: Dataset, test: Dataset) -> float | None:
    """The accuracy of a logistic regression on the same records, or the R² of a ridge regression; None for
    what is no table of at most `WIDEST` numbers."""
    if train.x.dim() != 2 or not train.x.is_floating_point() or train.x.shape[1] > WIDEST:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # nearly there is near enough for a comparison
        model = Ridge() if is_number(train.y) else LogisticRegression(max_iter=200)
        fitted = model.fit(train.x.numpy(), train.y.numpy())
    return float(fitted.score(test.x.numpy(), test.y.numpy()))
