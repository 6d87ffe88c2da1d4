"""From gradients of tens of thousands of numbers to features a classifier can take.

Releases are read block by block; what is kept is as wide as the features, not the gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal, Protocol, runtime_checkable

import torch
from sklearn.decomposition import PCA as Components
from torch import Tensor, nn

from leakscope.core.errors import require
from leakscope.core.nouns import Layers, Release, flatten
from leakscope.core.rng import integer

HELD = 256_000_000  # bytes of one round's releases that may be kept
Features = Callable[[Release], Tensor]  # (trials, features)


class Reduction(Protocol):
    """Learns from a rehearsed release how to turn releases of that round into features. One that
    ``keeps_noise`` takes noise that is equal and independent in every entry to the same among features."""

    keeps_noise: ClassVar[bool] = False

    def fit(self, release: Release, rng: torch.Generator) -> Features: ...


@runtime_checkable
class Map(Protocol):
    """A reduction that learns nothing: a block's features from its layers alone."""

    keeps_noise: ClassVar[bool] = False

    def of(self, layers: Layers) -> Tensor: ...

    def fit(self, release: Release, rng: torch.Generator) -> Features:
        return _each(self.of)


def _each(reduce: Callable[[Layers], Tensor]) -> Features:
    return lambda release: torch.cat([reduce(layers) for layers in release.blocks()])


@dataclass(frozen=True)
class Flat(Map):
    """The gradient as it is."""

    def of(self, layers: Layers) -> Tensor:
        return flatten(layers)


@dataclass(frozen=True)
class MaxPool(Map):
    """The largest of every ``width`` neighbours, sign kept (paper 000, 5.1.3: 3 for tables, 10
    elsewhere). Width 1 is `Flat`."""

    width: int = 3

    def __post_init__(self) -> None:
        require(self.width >= 1, "MaxPool.width", "at least 1", self.width)

    def of(self, layers: Layers) -> Tensor:
        flat = flatten(layers)
        whole = flat.shape[1] // self.width * self.width
        pooled = flat[:, :whole].unflatten(1, (-1, self.width)).amax(2) if whole else flat[:, :0]
        rest = [flat[:, whole:].amax(1, keepdim=True)] if whole < flat.shape[1] else []
        return torch.cat([pooled, *rest], dim=1)


@dataclass(frozen=True)
class UnitMax(Map):
    """The largest |entry| over a layer's units, one value per input: the features of paper 001's attack.

    Melis et al. (S&P 2019) take the maximum over the last axis of (in, out) weights, which leaves one value
    per input; over "inputs" leaves one per output unit, which finds far less (an embedding's rows, one a
    word, need it). Of a convolution each filter's largest position is kept, and, beyond ``most`` filters
    times channels, only its largest filter too. Biases are left out unless there is nothing else. Every
    trial is scaled to norm 1.
    """

    over: Literal["outputs", "inputs"] = "outputs"
    most: int = 5_000

    def __post_init__(self) -> None:
        require(self.over in ("outputs", "inputs"), "UnitMax.over", "outputs or inputs", self.over)
        require(self.most >= 1, "UnitMax.most", "at least 1", self.most)

    def of(self, layers: Layers) -> Tensor:
        weights = [tensor for tensor in layers.values() if tensor.dim() > 2] or list(layers.values())
        found = torch.cat([self._largest(tensor.abs()) for tensor in weights], dim=1)
        return unit(found)

    def _largest(self, sizes: Tensor) -> Tensor:
        if sizes.dim() == 2:
            return sizes
        if sizes.dim() > 3:
            sizes = sizes.flatten(3).amax(3)
            if sizes[0].numel() <= self.most:
                return sizes.flatten(1)
        return sizes.amax(1 if self.over == "outputs" else 2)


@dataclass(frozen=True)
class Sketch(Map):
    """Signed sums of entries, each entry in one of ``width`` sums: a random projection that takes a layer of
    any size (count sketch, Charikar et al., 2002). The same for every trial; width or fewer entries are
    kept as they are. Every trial is scaled to norm 1."""

    width: int = 512
    seed: int = 0

    def __post_init__(self) -> None:
        require(self.width >= 1, "Sketch.width", "at least 1", self.width)

    def of(self, layers: Layers) -> Tensor:
        flat = unit(flatten(layers))
        entries = flat.shape[1]
        if entries <= self.width:
            return flat
        rng = torch.Generator().manual_seed(self.seed)
        place = torch.randint(self.width, (entries,), generator=rng)
        sign = torch.randint(2, (entries,), generator=rng).to(flat.dtype) * 2 - 1
        sums: Tensor = flat.new_zeros(len(flat), self.width).index_add_(1, place, flat * sign)
        return sums


@dataclass(frozen=True)
class FirstInput(Map):
    """The mean input of the first linear layer with a bias, each record weighing as it moved the layer.

    Row i of the weight's gradient is the batch's mean of d_i x and entry i of the bias's that of d_i, so that
    the sum of sign(bias) weight over the sum of |bias| is a weighted mean of the inputs x themselves. Without
    such a layer it is `Flat`; where nothing moved, zero."""

    def of(self, layers: Layers) -> Tensor:
        for name, weight in layers.items():
            bias = layers.get(f"{name.removesuffix('weight')}bias")
            if weight.dim() == 3 and bias is not None and bias.shape == weight.shape[:2]:
                size = bias.abs().sum(1, keepdim=True)
                return torch.einsum("to,toi->ti", bias.sign(), weight) / torch.where(size > 0, size, 1.0)
        return flatten(layers)


@dataclass(frozen=True)
class PCA:
    """Principal components of the rehearsed gradients (paper 000, table 2: 50), fitted on at most
    ``rows`` of them so that memory stays bounded. ``turns`` of the power method find them: 1 finds the
    widest, and for the others directions that are nearly as wide, in a third of the time; None: as many as
    scikit-learn thinks right, 4 or 7."""

    keeps_noise: ClassVar[bool] = True
    components: int = 50
    rows: int = 2_000
    turns: int | None = None

    def __post_init__(self) -> None:
        require(self.components >= 1, "PCA.components", "at least 1", self.components)
        require(self.rows >= 2, "PCA.rows", "at least 2", self.rows)
        require(self.turns is None or self.turns >= 1, "PCA.turns", "at least 1", self.turns)

    def fit(self, release: Release, rng: torch.Generator) -> Features:
        sample = _head(release, self.rows)
        lowest, highest = sample.amin(0), sample.amax(0)  # nan if anything is
        finite = bool(lowest.isfinite().all() and highest.isfinite().all())
        require(finite, "PCA: what is released", "finite numbers", "nan or inf")
        if lowest.equal(highest):  # nothing varies: there is no direction to find
            return _each(lambda layers: flatten(layers)[:, :1] * 0)
        wanted = min(self.components, *sample.shape)
        turns: int | Literal["auto"] = self.turns or "auto"
        fitted = Components(
            wanted, svd_solver="randomized", iterated_power=turns, random_state=integer(rng)
        ).fit(sample.numpy())
        basis = torch.from_numpy(fitted.components_.T.copy())
        centre = torch.from_numpy(fitted.mean_).to(basis.dtype) @ basis
        return _each(lambda layers: flatten(layers).to(basis.dtype) @ basis - centre)


def unit(rows: Tensor) -> Tensor:
    """Each row scaled to norm 1; a row of zeros stays one."""
    return nn.functional.normalize(rows, dim=1, eps=torch.finfo(rows.dtype).tiny)


def _head(release: Release, rows: int) -> Tensor:
    """The first ``rows`` trials; trials are exchangeable, so these are as good as any."""
    parts, have = [], 0
    for layers in release.blocks():
        flat = flatten(layers)[: rows - have]
        parts.append(flat)
        have += len(flat)
        if have >= rows:
            break
    return torch.cat(parts)


def held(releases: Sequence[Release]) -> list[Release]:
    """Releases of one round that are computed once and kept, where all of them take at most `HELD` bytes."""
    kept, size = [], 0
    for release in releases:
        blocks = []
        for layers in release.blocks():
            blocks.append(layers)
            size += sum(tensor.nbytes for tensor in layers.values())
            if size > HELD:
                return list(releases)
        kept.append(Release(release.params, partial(iter, blocks)))
    return kept


def sampled(releases: Sequence[Release], rows: int) -> Release:
    """The first trials of several releases of one round as those of one, as many of each, ``rows`` in all."""

    def blocks() -> Iterator[Layers]:
        for release in releases:
            left = -(-rows // len(releases))
            for layers in release.blocks():
                part = {name: tensor[:left] for name, tensor in layers.items()}
                yield part
                left -= len(next(iter(part.values())))
                if left <= 0:
                    break

    return Release(releases[0].params, blocks)
