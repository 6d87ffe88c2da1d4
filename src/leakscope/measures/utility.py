"""What the victim's model is worth: accuracy and AUROC on records nobody trained on."""

from __future__ import annotations

import warnings

import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from leakscope.core.dataset import Dataset
from leakscope.core.nouns import Estimate, Transcript
from leakscope.measures.success import auroc, proportion

WIDEST = 2_000  # inputs of a logistic regression: more take longer than the audit


def accuracy(logits: Tensor, labels: Tensor, *, level: float = 0.95) -> Estimate:
    """Share of records whose likeliest label is right."""
    hits = int((logits.argmax(1) == labels).sum())
    return proportion("accuracy", hits, len(labels), level=level)


def task_auroc(logits: Tensor, labels: Tensor, *, level: float = 0.95) -> Estimate:
    """AUROC of the task, macro one-vs-rest over the labels that occur."""
    counts = torch.bincount(labels, minlength=logits.shape[1]).double()
    posterior = torch.softmax(logits.double(), dim=1)
    return auroc(Transcript(labels, posterior, counts / counts.sum()), level=level)


def majority(labels: Tensor) -> float:
    """The accuracy of always saying the most frequent label."""
    return float(torch.bincount(labels).max()) / len(labels)


def linear(train: Dataset, test: Dataset) -> float | None:
    """The accuracy of a logistic regression on the same records; None for what is no table of at most
    `WIDEST` numbers."""
    if train.x.dim() != 2 or not train.x.is_floating_point() or train.x.shape[1] > WIDEST:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # nearly there is near enough for a comparison
        fitted = LogisticRegression(max_iter=200).fit(train.x.numpy(), train.y.numpy())
    return float(fitted.score(test.x.numpy(), test.y.numpy()))
