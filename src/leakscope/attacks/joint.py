"""All rounds read together, in closed form: a discriminant of rehearsed releases."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from leakscope.attacks.discriminant import Array, Codes, Folded, Say, Shape
from leakscope.attacks.posterior import require_rehearsed
from leakscope.attacks.reductions import PCA, Features, held, sampled
from leakscope.attacks.traits import OF_VALUES
from leakscope.core.calibration import calibrate, learn_calibration, log_losses
from leakscope.core.errors import ArgumentError, require
from leakscope.core.nouns import Guess, Heard, Knowledge, Rehearsed, View, behind
from leakscope.core.rng import fork
from leakscope.games.channels import without_noise
from leakscope.games.heldout import cut

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

    Public records are cut into ``folds``, each of which deals its own challenges; where they are too few for
    so many, they are cut again until there are. Ridge and share are those of the least log loss on folds
    that were not fitted, and the scale and offsets learned there keep the evidence honest. A challenge's
    evidence is the mean of what those discriminants say that left a fold out, since the offsets are theirs.
    A discriminant of all records has others: the fewer the records of a value, the further its mean is off,
    and the less its own evidence.

    ``width`` bounds z: of more rounds all are kept with fewer components, or fewer with all of theirs,
    whichever has the lesser loss there. ``ordinal``: the means of ordered values lie on one line, as those of
    a mixed batch's gradients do.
    """

    plays: ClassVar[tuple[str, ...]] = OF_VALUES
    components: int = 50
    ordinal: bool = False
    ridges: tuple[float, ...] = (1e-4, 0.01, 0.03, 0.1, 0.3, 1.0)
    own: tuple[float, ...] = (0.0, 0.5, 0.9)
    quadratic: int = 60
    folds: int = 5
    width: int = 1_200

    def __post_init__(self) -> None:
        for name in ("components", "quadratic", "width"):
            require(getattr(self, name) >= 1, f"Joint.{name}", "at least 1", getattr(self, name))
        require(self.folds >= 2, "Joint.folds", "at least 2", self.folds)
        positive = bool(self.ridges) and all(ridge > 0 for ridge in self.ridges)
        require(positive, "Joint.ridges", "positive numbers", self.ridges)
        shares = bool(self.own) and all(0 <= share < 1 for share in self.own)
        require(shares, "Joint.own", "shares in [0, 1)", self.own)

    def __call__(self, knowledge: Knowledge, rng: torch.Generator) -> Guess:
        reader, lesson = self._rehearse(knowledge, rng)
        say, _ = lesson.fit(reader.spans, last=True)[-1]

        def guess(view: View) -> Tensor:
            said = torch.from_numpy(say(reader.read(view)))[None]
            return Heard(said, together=said).evidence[None]

        return guess

    def crossfit(
        self, knowledge: Knowledge, rng: torch.Generator
    ) -> tuple[Callable[[View], Heard], Rehearsed]:
        """How it hears a view, and what it said of folds that it had not learned from."""
        reader, lesson = self._rehearse(knowledge, rng)
        fitted, rounds = lesson.fit(reader.spans), len(reader.rounds)

        def hear(view: View) -> Heard:
            x = reader.read(view)
            return _heard([say(x) for say, _ in fitted], rounds=rounds)

        said = _heard([said for _, said in fitted], rounds=rounds)
        return hear, Rehearsed(said, torch.from_numpy(lesson.secrets))

    def _rehearse(self, knowledge: Knowledge, rng: torch.Generator) -> tuple[_Reader, _Lesson]:
        """What reads views, and the rehearsed challenges of every fold."""
        deal, learn = fork(rng, 2)
        channel, std = without_noise(knowledge.channel, behind(knowledge.game))
        cuts = self._cuts(replace(knowledge, channel=channel), learn)
        parts = [part for folds in cuts for part in folds]
        shown = [part.simulate(own) for part, own in zip(parts, fork(deal, len(parts)), strict=True)]
        views = [view for view, _ in shown]
        if std is None:
            shown = [replace(part, channel=knowledge.channel).simulate(learn) for part in parts]
        told = [told for _, told in shown]
        secrets, fold = torch.cat(told), np.repeat(np.arange(len(told)), [len(part) for part in told])
        noisy = [view for view, _ in shown] if std is None else None
        reader, clean = _Reader.fit(views, noisy, PCA(self.components, ROWS, turns=1), learn)
        side = np.arange(clean.shape[1]) < reader.sides
        hidden = np.where(side, 0.0, std or 0.0)
        lesson = _Lesson(
            clean,
            clean + hidden * torch.randn(clean.shape, generator=learn, dtype=torch.float64).numpy()
            if std
            else clean,
            secrets.numpy(),
            fold,
            len(cuts[0]),
            len(knowledge.belief),
            hidden**2,
            np.where(side, 1e-3, 1.0),  # side knowledge is exact, and hardly needs any ridge
            self,
        )
        return reader, lesson

    def _cuts(self, knowledge: Knowledge, rng: torch.Generator) -> list[list[Knowledge]]:
        """The public records cut into folds, as often as it takes to have so many; all deal as many
        rehearsals together as one cut would."""
        cuts = [cut(knowledge, self.folds, rng)]
        while len(cuts) * len(cuts[0]) < self.folds:
            cuts.append(cut(knowledge, self.folds, rng))
        return [[replace(part, trials=-(-part.trials // len(cuts))) for part in parts] for parts in cuts]


def _heard(said: Sequence[Array], *, rounds: int) -> Heard:
    """Evidence in the order of `_Lesson.fit`."""
    each = [torch.from_numpy(part) for part in said]
    side = each[0] if len(each) > 2 * rounds else None
    return Heard(torch.stack(each[-2 * rounds : -rounds]), side, together=torch.stack(each[-rounds:]))


@dataclass(frozen=True, eq=False)
class _Reader:
    """From views to features (t, d): those of the side knowledge, then of each round, less their means. Side
    knowledge is scaled to vary as much as a component does, so that one ridge serves both. ``spans`` are
    the columns of each round, and of the side knowledge before them."""

    rounds: tuple[Features, ...]
    centre: Array
    scale: Array
    spans: tuple[Codes, ...]

    @property
    def sides(self) -> int:
        return len(self.spans[0])

    @staticmethod
    def fit(
        clean: Sequence[View], noisy: Sequence[View] | None, reduce: PCA, rng: torch.Generator
    ) -> tuple[_Reader, Array]:
        """The reader whose components are found in ``clean`` views, and what it reads there, or in ``noisy``
        ones; a round at a time, so that no more than its releases are in memory."""
        if "candidates" in clean[0].public:
            raise ArgumentError(
                "Joint tells the values of a column, and this game is about people; use PLDA."
            )
        rounds, blocks = [], []
        for i in range(len(clean[0].releases)):
            releases = held([view.releases[i] for view in clean])
            rounds.append(reduce.fit(sampled(releases, reduce.rows), rng))
            releases = [view.releases[i] for view in noisy] if noisy else releases
            blocks.append(np.concatenate([rounds[-1](release).double().numpy() for release in releases]))
        blocks.insert(0, _side(noisy or clean, len(blocks[0])))
        size, spread = float(np.mean([block.var(0).mean() for block in blocks[1:]])) ** 0.5, blocks[0].std(0)
        ends = np.cumsum([block.shape[1] for block in blocks])
        spans = tuple(np.arange(end - block.shape[1], end) for block, end in zip(blocks, ends, strict=True))
        features = np.concatenate(blocks, axis=1)
        centre, scale = features.mean(0), np.ones(features.shape[1])
        scale[spans[0]] = np.divide(size or 1.0, spread, out=np.zeros_like(spread), where=spread > 0)
        return _Reader(tuple(rounds), centre, scale, spans), (features - centre) * scale

    def read(self, view: View) -> Array:
        pairs = zip(self.rounds, view.releases, strict=True)
        rounds = [features(release).double().numpy() for features, release in pairs]
        features = np.concatenate([_side([view], len(rounds[0])), *rounds], axis=1)
        return np.asarray((features - self.centre) * self.scale)


def _side(views: Sequence[View], trials: int) -> Array:
    """The side knowledge of the challenges of all views (trials, s)."""
    known = [one.double().numpy() for view in views if isinstance(one := view.public.get("known"), Tensor)]
    return np.concatenate(known) if known else np.zeros((trials, 0))


@dataclass(frozen=True, eq=False)
class _Lesson:
    """Rehearsed challenges: their features (n, d) without noise and as they are ``seen``, their secrets (n,)
    of ``m`` values, their folds (n,), of which ``each`` in a row are a cut of all records, and of every
    feature the variance of its noise and its share of the ridge."""

    x: Array
    seen: Array
    secrets: Codes
    fold: Codes
    each: int
    m: int
    noise: Array
    shrink: Array
    attack: Joint

    def __post_init__(self) -> None:
        require_rehearsed(self.secrets, self.m)

    def fit(self, spans: Sequence[Codes], *, last: bool = False) -> list[tuple[Say, Array]]:
        """What the discriminants say of unseen challenges, and what each says of the fold that it left out,
        both calibrated: of the side knowledge alone, where there is any; with each round; with the first, the
        first two and so on to all. ``last``: of all rounds only."""
        side, *rounds = spans
        choices = [
            (self.choose(np.concatenate([side, *kept])), kept) for kept in _narrow(rounds, self.attack.width)
        ]
        (_, ridge, own), kept = min(choices, key=lambda choice: choice[0][0])
        tables = [[side]] if len(side) else []
        tables += [[side, one] for one in rounds]
        tables += [[side, *kept[: i + 1]] for i in range(len(kept))]
        return [self._fit(np.concatenate(table), ridge, own) for table in tables[-1 if last else 0 :]]

    def choose(self, columns: Codes) -> tuple[float, float, float]:
        """The least log loss on folds that were not fitted, and the ridge and share that have it."""
        shapes = self._shapes(columns)
        found = []
        for ridge in self.attack.ridges:
            says = self._says(shapes, columns, ridge, self.attack.own)
            for own, said in zip(self.attack.own, self._cross(says, columns), strict=True):
                loss = log_losses(calibrate(said, self._calibration(said)), self.secrets).mean()
                found.append((float(loss), ridge, own))
        return min(found, key=lambda one: one[0])

    def _fit(self, columns: Codes, ridge: float, own: float) -> tuple[Say, Array]:
        says = self._says(self._shapes(columns), columns, ridge, [own])
        (said,) = self._cross(says, columns)
        way = self._calibration(said)

        def say(unseen: Array) -> Array:
            shown = unseen[:, columns]
            return calibrate(np.mean([one(shown) for (one,) in says], axis=0), way)

        return say, calibrate(said, way)

    @cached_property
    def _parts(self) -> list[Folded]:
        folds = [self.fold == i for i in range(self.fold.max() + 1)]
        return [Folded.of(self.x[rows], self.secrets[rows], self.m) for rows in folds]

    @cached_property
    def _others(self) -> list[Folded]:
        """Those of the challenges of a cut without each fold."""
        return [
            Folded.together([self._parts[other] for other in self._rest(i)]) for i in range(len(self._parts))
        ]

    def _rest(self, i: int) -> list[int]:
        """The other folds of the same cut."""
        first = i // self.each * self.each
        return [other for other in range(first, first + self.each) if other != i]

    def _shapes(self, columns: Codes) -> list[Shape]:
        return [
            self._shape(columns, others, np.isin(self.fold, self._rest(i)))
            for i, others in enumerate(self._others)
        ]

    def _shape(self, columns: Codes, moments: Folded, rows: NDArray[np.bool_]) -> Shape:
        def shown() -> tuple[Array, Codes]:
            return self.x[np.ix_(rows, columns)], self.secrets[rows]

        return Shape(moments.among(columns), shown, self.attack.quadratic, self.attack.ordinal)

    def _says(
        self, shapes: Sequence[Shape], columns: Codes, ridge: float, owns: Sequence[float]
    ) -> list[list[Say]]:
        """The discriminants that each leave a fold out, for every share of ``owns``."""
        return [
            shape.discriminants(self.noise[columns], ridge * self.shrink[columns], owns) for shape in shapes
        ]

    def _cross(self, says: Sequence[Sequence[Say]], columns: Codes) -> list[Array]:
        """What is said of each fold by the discriminant that left it out, for every share."""
        said = [np.empty((len(self.seen), self.m)) for _ in says[0]]
        for i, shares in enumerate(says):
            rows = self.fold == i
            seen = self.seen[np.ix_(rows, columns)]
            for room, say in zip(said, shares, strict=True):
                room[rows] = say(seen)
        return said

    def _calibration(self, said: Array) -> Array:
        return learn_calibration(said, self.secrets, ridge=RIDGE)


def _narrow(rounds: Sequence[Codes], width: int) -> list[list[Codes]]:
    """Ways to keep at most ``width`` columns of all rounds: as many of each, the widest first, or all of
    rounds at equal distances."""
    if sum(map(len, rounds)) <= width:
        return [list(rounds)]
    each = max(1, width // len(rounds))
    some = set(np.linspace(0, len(rounds) - 1, max(1, width // max(map(len, rounds)))).round().astype(int))
    none = np.arange(0)
    return [[one[:each] for one in rounds], [one if i in some else none for i, one in enumerate(rounds)]]
