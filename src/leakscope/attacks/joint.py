"""All rounds read together, in closed form: a discriminant of rehearsed releases."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from leakscope.attacks.posterior import require_rehearsed
from leakscope.attacks.reductions import PCA, Features, sampled
from leakscope.attacks.traits import OF_VALUES
from leakscope.core.calibration import calibrate, learn_calibration, log_losses
from leakscope.core.errors import ArgumentError, require
from leakscope.core.nouns import DEEPEST, Guess, Heard, Knowledge, Rehearsed, View, behind
from leakscope.core.rng import fork
from leakscope.games.channels import without_noise
from leakscope.games.heldout import cut

Array = NDArray[np.float64]
Say = Callable[[Array], Array]  # features (t, d) -> log evidence (t, m)
ROWS = 1_000  # challenges that the components of a round are found in
RIDGE = 1e-3  # on the calibration's parameters, which keeps them finite where a fold is told without error


@dataclass(frozen=True)
class Joint:
    """Regularised discriminant analysis (Friedman, 1989) of all rounds' features together.

    Equation 5 of paper 000 adds the rounds' evidence as if each were a witness of its own, and they show the
    same records. Here the features of all rounds are one vector z, and a value's evidence is the density
    of N(its mean, its covariance) at z. Features are ``components`` principal components of each round's
    gradients, fitted without the noise of a defense; the covariance of the noise is then added where its
    deviation is known, and measured on noisy rehearsals where it is not. A value's covariance is that of all
    values and a ridge; among the ``quadratic`` widest directions a share ``own`` of it is the value's own.

    Public records are cut into ``folds``, each of which deals its own challenges. Ridge and share are those
    of the least log loss on folds that were not fitted, and the scale and offsets learned there keep the
    evidence honest. ``width`` bounds z: of more rounds the widest directions are kept. ``ordinal``: the means
    of ordered values lie on one line, as those of a mixed batch's gradients do.
    """

    plays: ClassVar[tuple[str, ...]] = OF_VALUES
    components: int = 50
    ordinal: bool = False
    ridges: tuple[float, ...] = (1e-4, 0.01, 0.03, 0.1, 0.3, 1.0)
    own: tuple[float, ...] = (0.0, 0.5, 0.9)
    quadratic: int = 60
    folds: int = 5
    width: int = 600

    def __post_init__(self) -> None:
        for name in ("components", "quadratic", "width"):
            require(getattr(self, name) >= 1, f"Joint.{name}", "at least 1", getattr(self, name))
        require(self.folds >= 2, "Joint.folds", "at least 2", self.folds)
        positive = bool(self.ridges) and all(ridge > 0 for ridge in self.ridges)
        require(positive, "Joint.ridges", "positive numbers", self.ridges)
        shares = bool(self.own) and all(0 <= share < 1 for share in self.own)
        require(shares, "Joint.own", "shares in [0, 1)", self.own)

    def __call__(self, knowledge: Knowledge, rng: torch.Generator) -> Guess:
        hear, _ = self.crossfit(knowledge, rng)
        return lambda view: hear(view).evidence[None]

    def crossfit(
        self, knowledge: Knowledge, rng: torch.Generator
    ) -> tuple[Callable[[View], Heard], Rehearsed]:
        """How it hears a view, and what it said of folds that it had not learned from."""
        *deals, learn = fork(rng, self.folds + 1)
        channel, std = without_noise(knowledge.channel, behind(knowledge.game))
        parts = cut(replace(knowledge, channel=channel), self.folds, learn)
        shown = [part.simulate(deal) for part, deal in zip(parts, deals, strict=False)]
        reduce = PCA(self.components, ROWS)
        reduced = _reductions([view for view, _ in shown], reduce, learn)
        if std is None:
            parts = [replace(part, channel=knowledge.channel) for part in parts]
            shown = [part.simulate(learn) for part in parts]
        views, secrets = [view for view, _ in shown], torch.cat([told for _, told in shown])
        fold = np.repeat(np.arange(len(shown)), [len(told) for _, told in shown])
        reader, clean = _Reader.fit(views, reduced, self.width)
        noisy = replace(clean, rounds=[_noisy(block, std or 0.0, learn) for block in clean.rounds])
        lesson = _Lesson(secrets.numpy(), fold, len(knowledge.belief), std or 0.0, clean.side.shape[1], self)
        *_, whole = zip(reader.tables(clean), reader.tables(noisy), strict=True)
        settings = lesson.choose(*whole, list(product(self.ridges, self.own)))
        tables = zip(reader.tables(clean), reader.tables(noisy), strict=True)
        fitted = [lesson.fit(x, seen, *settings) for x, seen in tables]

        def hear(view: View) -> Heard:
            read = reader.read([view])
            said = [say(x) for (say, _), x in zip(fitted, reader.tables(read), strict=True)]
            return _heard(said, rounds=len(read.rounds))

        return hear, Rehearsed(_heard([said for _, said in fitted], rounds=len(clean.rounds)), secrets)


def _heard(said: Sequence[Array], *, rounds: int) -> Heard:
    """Evidence in the order of `_Reader.tables`."""
    each = [torch.from_numpy(part) for part in said]
    side = each[0] if len(each) > 2 * rounds else None
    return Heard(torch.stack(each[-2 * rounds : -rounds]), side, together=torch.stack(each[-rounds:]))


def _noisy(block: Array, std: float, rng: torch.Generator) -> Array:
    drawn = torch.randn(block.shape, generator=rng, dtype=torch.float64).numpy() if std else 0.0
    return np.asarray(block + std * drawn)


def _reductions(views: Sequence[View], reduce: PCA, rng: torch.Generator) -> tuple[Features, ...]:
    """The features of every round, found in these views together."""
    if "candidates" in views[0].public:
        raise ArgumentError("Joint tells the values of a column, and this game is about people; use PLDA.")
    releases = zip(*(view.releases for view in views), strict=True)
    return tuple(reduce.fit(sampled(each, reduce.rows), rng) for each in releases)


@dataclass(frozen=True, eq=False)
class _Read:
    """Features of challenges: of their side knowledge (t, s), and of every round (t, components)."""

    side: Array
    rounds: list[Array]


@dataclass(frozen=True, eq=False)
class _Reader:
    """From views to features. Side knowledge is scaled to vary as much as a component does, so that one ridge
    serves both. ``bases`` are, after each round but the first, the directions that are kept of all so far;
    None: all of them."""

    rounds: tuple[Features, ...]
    scale: Array | float = 1.0
    bases: tuple[Array | None, ...] = ()

    @staticmethod
    def fit(views: Sequence[View], rounds: tuple[Features, ...], width: int) -> tuple[_Reader, _Read]:
        """The reader, and what it reads in these views."""
        reader = _Reader(rounds)
        read = reader.read(views)
        first, *others = read.rounds
        size, spread = float(np.mean([block.var(0).mean() for block in read.rounds])) ** 0.5, read.side.std(0)
        scale = np.divide(size or 1.0, spread, out=np.zeros_like(spread), where=spread > 0)
        bases: list[Array | None] = []
        for block in others:
            first = np.concatenate([first, block], axis=1)
            basis = np.linalg.eigh(np.cov(first.T))[1][:, -width:] if first.shape[1] > width else None
            first = first if basis is None else first @ basis
            bases.append(basis)
        return replace(reader, scale=scale, bases=tuple(bases)), replace(read, side=read.side * scale)

    def read(self, views: Sequence[View]) -> _Read:
        sides = [known for view in views if isinstance(known := view.public.get("known"), Tensor)]
        rounds = [
            torch.cat([features(view.releases[i]) for view in views]).double().numpy()
            for i, features in enumerate(self.rounds)
        ]
        side = torch.cat(sides).double().numpy() if sides else np.zeros((len(rounds[0]), 0))
        return _Read(side * self.scale, rounds)

    def tables(self, read: _Read) -> Iterator[Array]:
        """The side knowledge alone, where there is any; with each round; with the first, the first two and so
        on to all."""
        if read.side.shape[1]:
            yield read.side
        for block in read.rounds:
            yield np.concatenate([read.side, block], axis=1)
        first, *others = read.rounds
        yield np.concatenate([read.side, first], axis=1)
        for block, basis in zip(others, self.bases, strict=True):
            first = np.concatenate([first, block], axis=1)
            first = first if basis is None else first @ basis
            yield np.concatenate([read.side, first], axis=1)


@dataclass(frozen=True, eq=False)
class _Lesson:
    """Rehearsed challenges: their secrets (t,) of ``m`` values, their folds (t,), and the deviation ``std``
    of the noise on all features but the first ``side``."""

    secrets: NDArray[np.int64]
    fold: NDArray[np.int64]
    m: int
    std: float
    side: int
    attack: Joint

    def __post_init__(self) -> None:
        require_rehearsed(self.secrets, self.m)

    def choose(self, x: Array, seen: Array, settings: list[tuple[float, float]]) -> tuple[float, float]:
        """Of the least log loss on folds that were not fitted."""
        shapes = self._shapes(x)
        said = [self._cross(shapes, seen, *pair) for pair in settings]
        losses = [log_losses(calibrate(each, self._calibration(each)), self.secrets).mean() for each in said]
        return settings[int(np.argmin(losses))]

    def fit(self, x: Array, seen: Array, ridge: float, own: float) -> tuple[Say, Array]:
        """The discriminant of all folds, and what those of the others say of each; both calibrated."""
        said = self._cross(self._shapes(x), seen, ridge, own)
        way = self._calibration(said)
        last = _Shape.of(x, self.secrets, self.m, self.attack).discriminant(
            self._noise(x), self._ridge(x, ridge), own
        )
        return lambda unseen: calibrate(last(unseen), way), calibrate(said, way)

    def _shapes(self, x: Array) -> list[_Shape]:
        """Of the challenges without each fold."""
        others = [self.fold != i for i in range(self.fold.max() + 1)]
        return [_Shape.of(x[rows], self.secrets[rows], self.m, self.attack) for rows in others]

    def _cross(self, shapes: Sequence[_Shape], seen: Array, ridge: float, own: float) -> Array:
        said = np.empty((len(seen), self.m))
        for i, shape in enumerate(shapes):
            rows = self.fold == i
            said[rows] = shape.discriminant(self._noise(seen), self._ridge(seen, ridge), own)(seen[rows])
        return said

    def _noise(self, x: Array) -> Array:
        return np.where(np.arange(x.shape[1]) < self.side, 0.0, self.std**2)

    def _ridge(self, x: Array, ridge: float) -> Array:
        """Side knowledge is exact, and hardly needs any."""
        return np.where(np.arange(x.shape[1]) < self.side, 1e-3 * ridge, ridge)

    def _calibration(self, said: Array) -> Array:
        return learn_calibration(said, self.secrets, ridge=RIDGE)


@dataclass(frozen=True, eq=False)
class _Shape:
    """Means (m, d) of features by value, their common covariance (d, d), its widest directions (d, q), and
    each value's own covariance there (m, q, q). Values that were never told have none."""

    told: list[int]
    means: Array
    common: Array
    size: float  # the mean variance of all features, whatever the value
    basis: Array
    each: Array

    @staticmethod
    def of(x: Array, secrets: NDArray[np.int64], m: int, attack: Joint) -> _Shape:
        told = [value for value in range(m) if bool((secrets == value).any())]
        means = np.zeros((m, x.shape[1]))
        for value in told:
            means[value] = x[secrets == value].mean(0)
        if attack.ordinal:
            means[told] = _on_a_line(means[told])
        left = x - means[secrets]
        common = left.T @ left / len(left)
        basis = np.linalg.eigh(common)[1][:, -attack.quadratic :]
        inside = left @ basis
        each = np.zeros((m, basis.shape[1], basis.shape[1]))
        for value in told:
            own = inside[secrets == value]
            each[value] = own.T @ own / len(own)
        return _Shape(told, means, common, float(x.var(0).mean()), basis, each)

    def discriminant(self, noise: Array, ridge: float | Array, own: float) -> Say:
        """Log evidence by value, up to what all values share."""
        added = noise + ridge * self.size
        if not added.all():  # nothing varies and there is no noise: nothing to tell
            return lambda x: np.zeros((len(x), len(self.means)))
        weight = np.linalg.solve(self.common + np.diag(added), self.means.T)
        offset = -0.5 * (self.means * weight.T).sum(1)
        floor = self.basis.T @ (added[:, None] * self.basis)
        shared = self.basis.T @ self.common @ self.basis + floor

        def say(x: Array) -> Array:
            said = x @ weight + offset
            for value in self.told if own else ():
                mixed = (1 - own) * shared + own * (self.each[value] + floor)
                apart = (x - self.means[value]) @ self.basis
                change = np.linalg.inv(shared) - np.linalg.inv(mixed)
                said[:, value] += ((apart @ change) * apart).sum(1) / 2 - np.linalg.slogdet(mixed)[1] / 2
            never = [value for value in range(said.shape[1]) if value not in self.told]
            said[:, never] = said[:, self.told].min(1, keepdims=True) + DEEPEST
            return np.asarray(said)

        return say


def _on_a_line(points: Array) -> Array:
    """The points' nearest on the line that is nearest to all."""
    centre = points.mean(0)
    direction = np.linalg.svd(points - centre, full_matrices=False)[2][:1]
    return np.asarray(centre + (points - centre) @ direction.T @ direction)
