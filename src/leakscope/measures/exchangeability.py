"""Whether members and non-members differ in who was trained on, and in nothing else.

An attack that is given members of one hospital and non-members of another tells hospitals apart, and its
numbers look like those of one that finds members. So both are compared before any update is looked at: by a
classifier of their records and labels, and by their losses under a model that has seen neither.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from scipy import stats
from torch import Tensor
from torch.nn import functional as F

from leakscope.core.dataset import Dataset, joined
from leakscope.core.task import is_number

MOST = 400  # records of either side that are compared, drawn at random
PERMUTATIONS = 499
FOLDS = 5
RIDGE = 0.01  # of the mean square of a record, for each record that is learned from
BUCKETS = 512  # of the words of a text


@dataclass(frozen=True)
class Exchangeability:
    """How well so many ``members`` and ``others`` of one ``client`` (of all, if it has no name) are told
    apart without any update.

    ``records`` is the p-value of a classifier of records and labels that is judged on records it did not
    learn from, and ``area`` its area under the ROC curve; ``loss`` is the p-value of the difference in loss
    under the first global model, None where that model may have seen members. ``level`` is the chance that
    records which differ in membership alone fail."""

    client: str
    members: int
    others: int
    records: float
    area: float
    loss: float | None
    level: float

    @property
    def p(self) -> float:
        """Of both tests together, by Bonferroni."""
        return min(1.0, 2 * min(self.records, self.loss if self.loss is not None else 1.0))

    @property
    def passed(self) -> bool:
        return self.p >= self.level


def exchangeability(
    members: Dataset,
    others: Dataset,
    members_loss: Tensor | None = None,
    others_loss: Tensor | None = None,
    *,
    rng: torch.Generator,
    client: str = "",
    people: str | None = None,
    level: float = 0.05,
) -> Exchangeability:
    """Members and non-members compared: their records with their labels, and their losses where given.

    Both tests hold the difference against that of relabelled records, which is exact where the records are
    exchangeable; beyond all relabellings the p-value is that of a normal distribution of their spread. Where
    the private column ``people`` says whose a record is, people are relabelled, not records.
    """
    rows = [torch.randperm(len(part), generator=rng)[:MOST] for part in (members, others)]
    both = joined([part.take(some) for part, some in zip((members, others), rows, strict=True)])
    inside = torch.arange(len(both)) < len(rows[0])
    labels = _relabelled(inside, both.secret(people) if people else None, rng)
    features = _features(both)
    folds = torch.randperm(len(both), generator=rng) % FOLDS
    kernels = (_linear(features), _smooth(features))
    areas = torch.stack([_areas(_learned(kernel, folds, labels), labels) for kernel in kernels]).amax(0)
    told = None
    if members_loss is not None and others_loss is not None:
        loss = torch.cat([members_loss[rows[0]], others_loss[rows[1]]]).double()
        told = _p_value((_areas(loss[:, None].expand(-1, labels.shape[1]), labels) - 0.5).abs())
    return Exchangeability(client, len(rows[0]), len(rows[1]), _p_value(areas), float(areas[0]), told, level)


def _relabelled(inside: Tensor, whose: Tensor | None, rng: torch.Generator) -> Tensor:
    """Who is a member (n, 1 + permutations): as it is, then relabelled."""
    if whose is None:
        units, which = inside, torch.arange(len(inside))
    else:
        people, which = whose.unique(return_inverse=True)
        units = torch.zeros(len(people), dtype=torch.bool)
        units[which[inside]] = True
    orders = [torch.arange(len(units))]
    orders += [torch.randperm(len(units), generator=rng) for _ in range(PERMUTATIONS)]
    return units[torch.stack(orders, 1)][which].double()


def _features(data: Dataset) -> Tensor:
    """Records and labels as standardised numbers (n, d)."""
    x = data.x.flatten(1)
    if not x.is_floating_point():  # the words of texts: how often each bucket of them occurs
        x = torch.zeros(len(x), BUCKETS).scatter_add_(1, x % BUCKETS, torch.ones(x.shape))
    labels = data.y[:, None] if is_number(data.y) else F.one_hot(data.y, data.classes)
    both = torch.cat([x.double(), labels.double()], 1)
    spread = both.std(0)
    kept = spread > 1e-9
    return (both[:, kept] - both[:, kept].mean(0)) / spread[kept]


def _linear(features: Tensor) -> Tensor:
    return features @ features.T / max(features.shape[1], 1)


def _smooth(features: Tensor) -> Tensor:
    squares = torch.cdist(features, features).square()
    width = squares.flatten()[:: max(1, squares.numel() // 10_000)].median().clamp(min=1e-9)
    return (-squares / width).exp()


def _learned(kernel: Tensor, folds: Tensor, labels: Tensor) -> Tensor:
    """What ridge regression with this kernel says (n, labellings) of records it did not learn from."""
    said = torch.zeros_like(labels)
    ridge = RIDGE * float(kernel.diagonal().mean())
    for fold in range(FOLDS):
        out, used = folds == fold, folds != fold
        system = kernel[used][:, used] + ridge * max(int(used.sum()), 1) * torch.eye(int(used.sum())).double()
        target = labels[used] - labels[used].mean(0)
        said[out] = kernel[out][:, used] @ torch.linalg.solve(system, target)
    return said


def _areas(scores: Tensor, labels: Tensor) -> Tensor:
    """The area under the ROC curve of every column; equal scores share their places."""
    scores, labels = scores.T.contiguous(), labels.T.contiguous()
    ordered, order = scores.sort(1)
    first, last = (torch.searchsorted(ordered, ordered, side=side) for side in ("left", "right"))
    positives = labels.sum(1)
    total = ((first + 1 + last).double() / 2 * labels.gather(1, order)).sum(1)
    pairs = positives * (labels.shape[1] - positives)
    return torch.where(pairs > 0, (total - positives * (positives + 1) / 2) / pairs.clamp(min=1), 0.5)


def _p_value(statistics: Tensor) -> float:
    """The share of labellings, the true one among them, with a statistic as large as the first; beyond all of
    them, the tail of a normal distribution."""
    found, null = statistics[0], statistics[1:]
    above = int((null >= found - 1e-12).sum())
    p = (1 + above) / (1 + len(null))
    spread = float(null.std())
    if above or spread == 0:
        return p
    return min(p, float(stats.norm.sf((float(found) - float(null.mean())) / spread)) or math.ulp(0.0))
