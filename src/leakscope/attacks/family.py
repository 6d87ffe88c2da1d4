"""An attack family: several classifiers, the best of them chosen and calibrated on people they have not seen.

V-information (Xu et al., ICLR 2020; paper 001, section 4.3) is a property of a family of attackers, not of
one feature map, and it needs probabilities that mean what they say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from leakscope.attacks.heads import Logistic, RandomForest
from leakscope.attacks.posterior import Model, Posterior, beside
from leakscope.attacks.reductions import Map, Sketch, UnitMax
from leakscope.attacks.traits import OF_VALUES
from leakscope.core.calibration import calibrate, learn_calibration
from leakscope.core.dataset import Dataset
from leakscope.core.errors import ArgumentError, DataError, require
from leakscope.core.nouns import Guess, Knowledge, View
from leakscope.core.rng import fork

Array = np.ndarray
Features = Mapping[str, Array]  # reduction -> (trials, features)
RIDGE = 1e-3  # on the calibration's parameters, which keeps them finite where a fold is told without error


FOREST = RandomForest(trees=100, leaf=5)
MEMBERS = (
    Posterior(FOREST, UnitMax("outputs")),
    Posterior(Logistic(strength=0.01), UnitMax("outputs")),
    Posterior(FOREST, UnitMax("inputs")),
    Posterior(FOREST, Sketch(512)),
)


@dataclass(frozen=True, eq=False)
class Learned:
    """The chosen member fitted once without every fold, and its calibration; None: none beat guessing.
    ``gain`` are the nats it gained on folds it was not fitted to."""

    member: Posterior | None
    models: tuple[Model, ...]
    way: Array
    m: int
    gain: float

    def posterior(self, features: Features) -> Array:
        """(trials, m) at equal odds: the mean over folds of calibrated probabilities."""
        if self.member is None:
            return np.full((len(next(iter(features.values()))), self.m), 1 / self.m)
        x, smoothed = features[repr(self.member.reduce)], self.member.smoothed
        said = [_calibrated(np.log(smoothed(model(x))), self.way) for model in self.models]
        return np.asarray(np.mean(said, axis=0))


@dataclass(frozen=True)
class Family:
    """The best of several classifiers, chosen and calibrated on people they were not fitted to.

    The adversary's public records are cut into ``folds``, by the private column ``by`` where a person has
    several, and each fold's challenges are dealt from its own people. Every member is fitted to all folds
    but one and heard on that one, and what it says of all is calibrated by a temperature and an offset for
    each value. The member with the least log loss on folds whose calibration did not see them is kept, or
    none if guessing has less, so that what is found in the real game is found by a choice that did not see
    it. Rounds are read together.
    """

    plays: ClassVar[tuple[str, ...]] = OF_VALUES
    members: tuple[Posterior, ...] = MEMBERS
    folds: int = 3
    by: str | None = None

    def __post_init__(self) -> None:
        require(len(self.members) > 0, "Family.members", "at least one", self.members)
        require(self.folds >= 2, "Family.folds", "at least 2", self.folds)
        for member in self.members:
            require(
                isinstance(member.reduce, Map), "Family.members", "on reductions that learn nothing", member
            )

    def __call__(self, knowledge: Knowledge, rng: torch.Generator) -> Guess:
        *deals, learn = fork(rng, self.folds + 1)
        parts = self.folded(knowledge, learn)
        shown = [part.simulate(deal) for part, deal in zip(parts, deals, strict=True)]
        learned = self.learned(
            [self.features(view)[""] for view, _ in shown],
            [secrets for _, secrets in shown],
            len(knowledge.belief),
            learn,
        )

        def guess(view: View) -> Tensor:
            return torch.from_numpy(learned.posterior(self.features(view)[""])).log()[None]

        return guess

    def folded(self, knowledge: Knowledge, rng: torch.Generator) -> list[Knowledge]:
        """The adversary's rehearsal on each fold of its people."""
        game = knowledge.game
        data = getattr(game, "data", None)
        if not isinstance(data, Dataset):
            raise ArgumentError(
                f"Family needs a game on records that can be cut into folds, got {type(game).__name__}; use "
                f"Posterior."
            )
        people = data.secret(self.by).unique(return_inverse=True)[1] if self.by else torch.arange(len(data))
        count = int(people.max()) + 1
        if count < self.folds:
            raise DataError(
                f"{data.name}: {count} values of {self.by!r} cannot be cut into {self.folds} folds; lower "
                f"Family.folds or give more public records."
            )
        fold = (torch.randperm(count, generator=rng) % self.folds)[people]
        trials = max(2, knowledge.trials // self.folds)
        return [
            replace(knowledge, game=game.on(data.take((fold == i).nonzero()[:, 0])), trials=trials)
            for i in range(self.folds)
        ]

    def features(
        self, view: View, groups: Mapping[str, tuple[str, ...]] | None = None
    ) -> dict[str, dict[str, Array]]:
        """What every reduction leaves of each group of layers (None: all of them, under ""), in one pass
        over every release."""
        reductions = {repr(r): r for member in self.members if isinstance(r := member.reduce, Map)}
        rounds = []
        for release in view.releases:
            parts: dict[tuple[str, str], list[Tensor]] = {}
            for layers in release.blocks():
                for group, names in (groups or {"": tuple(layers)}).items():
                    inside = {name: layers[name] for name in names}
                    for key, reduction in reductions.items():
                        parts.setdefault((group, key), []).append(reduction.of(inside))
            rounds.append({place: torch.cat(found) for place, found in parts.items()})
        joined = {place: torch.cat([found[place] for found in rounds], dim=1) for place in rounds[0]}
        found: dict[str, dict[str, Array]] = {}
        for (group, key), tensor in joined.items():
            found.setdefault(group, {})[key] = beside(tensor, view.public)
        return found

    def learned(
        self, features: Sequence[Features], secrets: Sequence[Tensor], m: int, rng: torch.Generator
    ) -> Learned:
        """The member of the family that does best on folds it was not fitted to, and its models."""
        told = [s.numpy() for s in secrets]
        best, kept, way, least = None, [], np.zeros(1 + m), float(np.log(m))
        for member in self.members:
            key, models, said = repr(member.reduce), [], []
            for i in range(self.folds):
                rest = [j for j in range(self.folds) if j != i]
                x = np.concatenate([features[j][key] for j in rest])
                models.append(member.learn(x, np.concatenate([told[j] for j in rest]), m, rng))
                said.append(np.log(member.smoothed(models[i](features[i][key]))))
            loss = _cross_fitted(said, told)
            if loss < least:
                best, kept, least = member, models, loss
                way = learn_calibration(np.concatenate(said), np.concatenate(told), ridge=RIDGE)
        return Learned(best, tuple(kept), way, m, float(np.log(m)) - least)


def _calibrated(said: Array, way: Array) -> Array:
    scores = calibrate(said, way)
    scores = np.exp(scores - scores.max(1, keepdims=True))
    return np.asarray(scores / scores.sum(1, keepdims=True))


def _cross_fitted(said: Sequence[Array], told: Sequence[Array]) -> float:
    """The log loss of every fold under the calibration of the others."""
    losses = []
    for i in range(len(said)):
        rest = [j for j in range(len(said)) if j != i]
        others = (np.concatenate([part[j] for j in rest]) for part in (said, told))
        way = learn_calibration(*others, ridge=RIDGE)
        losses.append(-np.log(_calibrated(said[i], way)[np.arange(len(told[i])), told[i]]))
    return float(np.concatenate(losses).mean())
