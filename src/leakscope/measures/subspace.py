"""Whether gradients with and without an attribute differ, by no attack: subspaces and t-statistics.

Both come with their permutation null. The subspace distance of paper 001 (section 5.2) needs it: the many
weak directions of a mean gradient are sampling noise, and each adds up to π/2. On LeNet, 400 images a side,
the first dense layer is as far apart for a random split as for an attribute, and wide layers are always
farther apart than narrow ones. Never rank layers by the raw distance; read ``excess`` and ``p``.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from scipy.linalg import subspace_angles
from torch import Tensor

from leakscope.core.errors import ArgumentError, require
from leakscope.core.nouns import Estimate, Layers
from leakscope.measures.people import People, Weights, p_value

Metric = Literal["grassmann", "asimov", "fubini-study", "chordal", "procrustes"]
Array = NDArray[np.float64]

RANK = 1e-6  # singular values below this share of the largest are rounding
DRAWS = 2**26  # bytes of group means formed at once

METRICS: dict[str, Callable[[Array], float]] = {  # of principal angles (k,); Edelman et al., 1998, 4.3
    "grassmann": lambda angles: float(np.linalg.norm(angles)),
    "asimov": lambda angles: float(angles.max(initial=0.0)),
    "fubini-study": lambda angles: float(np.arccos(np.clip(np.cos(angles).prod(), 0.0, 1.0))),
    "chordal": lambda angles: float(np.linalg.norm(np.sin(angles))),
    "procrustes": lambda angles: 2 * float(np.linalg.norm(np.sin(angles / 2))),
}


@dataclass(frozen=True)
class Distance:
    """How far apart a layer's mean gradients span, and how far by chance.

    ``estimate`` is the raw distance of subspaces of dimension ``rank``, ``normalised`` it over its root;
    ``null_mean`` and ``null_sd`` are of the same people on random sides, ``p`` is the chance of a distance
    as large among them, ``excess`` the raw distance beyond their mean.
    """

    estimate: Estimate
    normalised: float
    rank: int
    null_mean: float
    null_sd: float
    p: float
    excess: float


@dataclass(frozen=True)
class TwoSample:
    """How much more two groups' features differ than random groups' do: ``statistic`` is the mean squared
    t, ``null_mean`` its mean over permutations, ``log_ratio`` the logarithm of one over the other."""

    log_ratio: Estimate
    p: float
    statistic: float
    null_mean: float


def subspace_distance(
    layers0: Layers,
    layers1: Layers,
    *,
    metric: Metric = "grassmann",
    energy: float | None = None,
    people0: Tensor | None = None,
    people1: Tensor | None = None,
    splits: int = 100,
    rng: torch.Generator,
    level: float = 0.95,
) -> dict[str, Distance]:
    """Layer by layer, the distance between the column spaces of two mean gradients (equations 12 and 13).

    ``layers0`` and ``layers1`` are gradients of single records without and with the attribute. A layer's
    weight is taken as a matrix of its outputs, stood upright: a wide one spans everything, and so does a
    square one of full rank, whose distance is 0. The bias has no subspace, and a layer without a matrix is
    left out with a warning. Singular values below 1e-6 of the largest are cut, and as many leading
    directions compared as the smaller of both ranks; with ``energy`` only those that hold this share of the
    squared singular values.

    The null moves people to random sides, all records of a person together; without people every record
    is one. Interval: the raw distance and the spread of a bootstrap over people, normal. It does not
    remove the distance that noise alone makes: 400 records of pure noise and width 120 are as far apart
    as their null.
    """
    require(metric in METRICS, "subspace_distance.metric", f"one of {', '.join(METRICS)}", metric)
    require(energy is None or 0 < energy <= 1, "subspace_distance.energy", "in (0, 1], or None", energy)
    _check(splits, level, "subspace_distance")
    matrices = _matrices(layers0, layers1)
    n0, n1 = (len(next(iter(layers.values()))) for layers in (layers0, layers1))
    people = People.of(n0, n1, people0, people1, where="subspace_distance")
    draws = people.observed(), people.permuted(splits, rng), people.resampled(splits, rng)
    found = {}
    for layer, name in matrices.items():
        rows = torch.cat([layers[name].flatten(1) for layers in (layers0, layers1)])
        height = layers0[name].shape[1]
        sums = people.sums(rows)
        (raw, ranks), (null, _), (resampled, _) = (
            _distances(sums, people.counts, height, some, metric, energy) for some in draws
        )
        value, rank = float(raw[0]), ranks[0]
        estimate = _estimate(f"{metric} distance", value, resampled, len(rows), splits, level)
        found[layer] = Distance(
            estimate=estimate,
            normalised=value / math.sqrt(rank) if rank else 0.0,
            rank=rank,
            null_mean=float(null.mean()),
            null_sd=float(null.std()),
            p=p_value(value, null),
            excess=value - float(null.mean()),
        )
    return found


def two_sample(
    features0: Tensor,
    features1: Tensor,
    *,
    people0: Tensor | None = None,
    people1: Tensor | None = None,
    splits: int = 100,
    rng: torch.Generator,
    level: float = 0.95,
) -> TwoSample:
    """The mean squared t-statistic between two groups over feature columns, against its permutation null.

    ``features0`` (n0, f) and ``features1`` (n1, f) are of records or of batches. In the feature space of an
    attack this follows what the attack learns, with nothing trained. t is Student's with pooled variance;
    columns that never vary are left out. The null moves people, as in `subspace_distance`. Interval: the
    log ratio and the spread of a bootstrap over people and of the null's mean, normal.
    """
    _check(splits, level, "two_sample")
    for i, features in enumerate((features0, features1)):
        fits = features.dim() == 2 and features.shape[1] == features0.shape[-1]
        require(fits, f"two_sample.features{i}", "(n, f), f the same for both", tuple(features.shape))
    people = People.of(len(features0), len(features1), people0, people1, where="two_sample")
    rows = torch.cat([features0, features1]).double()
    require(bool(rows.isfinite().all()), "two_sample's features", "finite", "nan or inf")
    rows = rows[:, (rows != rows[0]).any(0)]
    require(rows.shape[1] > 0, "two_sample's features", "not constant in every column", "constants only")
    rows = (rows - rows.mean(0)) / rows.std(0)
    sums, squares = people.sums(rows), people.sums(rows.square())
    observed, null, resampled = (
        _squared_t(sums, squares, people.counts, some)
        for some in (people.observed(), people.permuted(splits, rng), people.resampled(splits, rng))
    )
    statistic, null_mean = float(observed[0]), float(null.mean())
    tiny = torch.finfo(torch.float64).tiny
    value = math.log(max(statistic, tiny) / max(null_mean, tiny))
    spread = math.hypot(
        float(resampled.clamp(min=tiny).log().std()), float(null.std()) / max(null_mean, tiny) / splits**0.5
    )
    half = float(stats.norm.ppf((1 + level) / 2)) * spread
    method = f"bootstrap over people, normal; {splits} permutations"
    estimate = Estimate("log t² ratio", value, value - half, value + half, level, len(rows), method)
    return TwoSample(estimate, p_value(statistic, null), statistic, null_mean)


def _check(splits: int, level: float, where: str) -> None:
    require(splits >= 2, f"{where}.splits", "at least 2", splits)
    require(0 < level < 1, f"{where}.level", "between 0 and 1", level)


def _matrices(layers0: Layers, layers1: Layers) -> dict[str, str]:
    """Layer -> the name of its weight; a layer of several matrices has each under its own name."""
    require(len(layers0) > 0, "subspace_distance.layers0", "at least one layer", dict(layers0))
    differ = set(layers0) ^ set(layers1)
    if differ:
        raise ArgumentError(
            f"subspace_distance.layers1 must have the layers of layers0, and {min(differ)!r} is in one of "
            f"them only; take both from the same model."
        )
    for i, layers in enumerate((layers0, layers1)):
        n = len(next(iter(layers.values())))
        for name, tensor in layers.items():
            fits = len(tensor) == n and tensor.shape[1:] == layers0[name].shape[1:]
            rule = f"({n}, *shape) with the shape it has in layers0"
            require(fits, f"subspace_distance.layers{i}[{name!r}]", rule, tuple(tensor.shape))
            require(bool(tensor.isfinite().all()), f"subspace_distance.layers{i}[{name!r}]", "finite", "nan")
    groups: dict[str, list[str]] = {}
    for name, tensor in layers0.items():
        of = groups.setdefault(name.rpartition(".")[0] or name, [])
        of += [name] if tensor.dim() > 2 else []
    without = [layer for layer, names in groups.items() if not names]
    if len(without) == len(groups):
        raise ArgumentError("subspace_distance needs a layer with a matrix, and no tensor given has one.")
    if without:
        warnings.warn(
            f"left out, as they have no matrix and so no subspace: {', '.join(without)}.", stacklevel=3
        )
    return {(layer if len(names) == 1 else name): name for layer, names in groups.items() for name in names}


def _distances(
    sums: Tensor, counts: Tensor, height: int, weights: Weights, metric: str, energy: float | None
) -> tuple[Tensor, list[int]]:
    """The distance between the two sides' mean gradients, and the dimension, of every draw."""
    at_once = max(1, DRAWS // (2 * sums.shape[1] * sums.element_size()))
    found: list[float] = []
    ranks: list[int] = []
    for some in zip(*(side.split(at_once) for side in weights), strict=True):
        means = [(side @ sums) / (side @ counts)[:, None] for side in some]
        for pair in zip(*(mean.unflatten(1, (height, -1)) for mean in means), strict=True):
            bases = [_basis(matrix, energy) for matrix in pair]
            k = min(basis.shape[1] for basis in bases)
            whole = k == bases[0].shape[0]  # both span everything: not even rounding is between them
            angles = np.zeros(k) if whole or not k else subspace_angles(*(basis[:, :k] for basis in bases))
            found.append(METRICS[metric](angles))
            ranks.append(k)
    return torch.tensor(found, dtype=torch.float64), ranks


def _basis(matrix: Tensor, energy: float | None) -> Array:
    tall = matrix if matrix.shape[0] >= matrix.shape[1] else matrix.mT
    u, s, _ = torch.linalg.svd(tall, full_matrices=False)
    k = int((s > RANK * s[0]).sum())
    if energy is not None and k:
        share = s[:k].square().cumsum(0) / s[:k].square().sum()
        k = min(k, 1 + int((share < energy - 1e-12).sum()))
    basis: Array = u[:, :k].numpy()
    return basis


def _estimate(name: str, value: float, resampled: Tensor, n: int, splits: int, level: float) -> Estimate:
    half = float(stats.norm.ppf((1 + level) / 2)) * float(resampled.std())
    method = f"bootstrap over people, normal; {splits} permutations"
    return Estimate(name, value, max(value - half, 0.0), value + half, level, n, method)


def _squared_t(sums: Tensor, squares: Tensor, counts: Tensor, weights: Weights) -> Tensor:
    """The mean over columns of Student's squared t, of every draw. From sums: between the groups over
    within them, times the degrees of freedom. A column that separates perfectly counts as far as float64
    tells it from one that does not quite."""
    first, second = weights
    n0, n1 = (side @ counts for side in weights)
    n = n0 + n1
    s0, s1 = first @ sums, second @ sums
    total = (first + second) @ squares - (s0 + s1).square() / n[:, None]
    between = s0.square() / n0[:, None] + s1.square() / n1[:, None] - (s0 + s1).square() / n[:, None]
    within = torch.maximum(total - between, 1e-12 * total)
    t = torch.where(total > 1e-12 * n[:, None], between / within, 0.0)
    return (t * (n - 2)[:, None]).mean(1)
