"""What the victim's model is worth: accuracy and AUROC on records nobody trained on."""

from __future__ import annotations

import torch
from torch import Tensor

from leakscope.core.nouns import Estimate, Transcript
from leakscope.measures.success import auroc, proportion


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
