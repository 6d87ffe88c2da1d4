"""The inference attack of paper 000, section 4: learn P(secret | gradient) on rehearsed games."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from leakscope.attacks.heads import Classifier, Head, RandomForest, fresh
from leakscope.attacks.reductions import PCA, MaxPool, Reduction
from leakscope.attacks.traits import OF_VALUES
from leakscope.core.dataset import Batch
from leakscope.core.errors import ArgumentError, require
from leakscope.core.nouns import Guess, Knowledge, View, behind
from leakscope.core.rng import fork, integer
from leakscope.games.channels import without_noise

FEWEST = 5  # rehearsed challenges of each value
VOTES = 50.0  # of a classifier that does not say how it counts
Array = np.ndarray
Model = Callable[[Array], Array]  # features (t, f) -> probabilities (t, m)


@dataclass(frozen=True)
class Posterior:
    """A fresh classifier per round on rehearsed releases with secrets at equal odds; rounds are
    joined by Bayes' rule and the prior enters once (equation 5).

    ``ordinal``: m-1 models of P(secret > i), for ordered secrets. ``votes``: probabilities are
    smoothed as if counted from so many votes, (votes p + 1) / (votes + m); None: from as many as the head
    says, since forests say 0 and 1, and others say how small a chance is.
    """

    plays: ClassVar[tuple[str, ...]] = OF_VALUES
    head: Head | Classifier = field(default_factory=RandomForest)
    reduce: Reduction = field(default_factory=MaxPool)
    ordinal: bool = False
    votes: float | None = None

    def __post_init__(self) -> None:
        require(self.votes is None or self.votes > 0, "Posterior.votes", "positive", self.votes)

    @property
    def lighter(self) -> Posterior:
        """What tells in less time whether it is worth while."""
        return replace(self, head=getattr(self.head, "lighter", self.head), ordinal=False)

    def __call__(self, knowledge: Knowledge, rng: torch.Generator) -> Guess:
        deal, learn = fork(rng, 2)
        view, secrets = knowledge.simulate(deal)
        return self.taught(view, secrets, len(knowledge.belief), learn)

    def taught(
        self, view: View, secrets: Tensor, m: int, rng: torch.Generator, *, noise: float = 0.0, draws: int = 1
    ) -> Guess:
        """The guess learned from a rehearsed view, each of its challenges shown ``draws`` times with
        Gaussian noise of that standard deviation on its features."""
        steps = []
        for release in view.releases:
            features = self.reduce.fit(release, rng)
            shown = features(release).repeat(draws, 1)
            if noise:
                shown = shown + noise * torch.randn(shown.shape, generator=rng)
            known = view.public.get("known")
            side = {"known": known.repeat(draws, 1)} if isinstance(known, Tensor) else {}
            steps.append((features, self.learn(beside(shown, side), secrets.repeat(draws).numpy(), m, rng)))

        def guess(view: View) -> Tensor:
            rounds = []
            for release, (features, model) in zip(view.releases, steps, strict=True):
                said = self.smoothed(model(beside(features(release), view.public)))
                rounds.append(torch.from_numpy(said).log())
            return torch.stack(rounds)

        return guess

    def smoothed(self, said: Array) -> Array:
        """Probabilities (t, m) as if counted from ``votes``, or as they are: none is 0."""
        said = said.astype(np.float64)
        votes = getattr(self.head, "votes", VOTES) if self.votes is None else self.votes
        if votes is None:
            return np.asarray(np.maximum(said, np.finfo(np.float64).tiny))
        return np.asarray((votes * said + 1) / (votes + said.shape[1]))

    def learn(self, features: Array, secrets: Array, m: int, rng: torch.Generator) -> Model:
        """The head fitted to features (t, f) of one round and their secrets."""
        require_rehearsed(secrets, m)
        if not np.ptp(features, axis=0).any():  # nothing varies, nothing to learn
            return lambda unseen: np.full((len(unseen), m), 1 / m)
        learn = _ordinal if self.ordinal and m > 2 else _nominal
        return learn(self.head, features, secrets, m, rng)


@dataclass(frozen=True)
class NoiseAware:
    """Principal components of clean rehearsed gradients, the known noise drawn among them.

    Against DPSGD and Noise, whose standard deviation the adversary knows. Components fitted to noisy
    gradients spend themselves on the noise; these are fitted to clipped gradients without it. Noise
    that is equal and independent in every entry is so among orthonormal components too, so each
    rehearsed challenge is shown ``draws`` times with fresh noise there. Without noise it is
    `Posterior` with `PCA`.
    """

    plays: ClassVar[tuple[str, ...]] = OF_VALUES
    components: int = 50
    draws: int = 4
    head: Head | Classifier = field(default_factory=RandomForest)
    ordinal: bool = False

    def __post_init__(self) -> None:
        require(self.draws >= 1, "NoiseAware.draws", "at least 1", self.draws)

    @property
    def lighter(self) -> NoiseAware:
        """What tells in less time whether it is worth while."""
        return replace(self, head=getattr(self.head, "lighter", self.head), ordinal=False, draws=1)

    def __call__(self, knowledge: Knowledge, rng: torch.Generator) -> Guess:
        deal, learn = fork(rng, 2)
        channel, std = without_noise(knowledge.channel, behind(knowledge.game))
        if std is None:  # noise of an unknown size is rehearsed as it is
            channel, std = knowledge.channel, 0.0
        view, secrets = replace(knowledge, channel=channel).simulate(deal)
        attack = Posterior(self.head, PCA(self.components), self.ordinal)
        draws = self.draws if std else 1
        return attack.taught(view, secrets, len(knowledge.belief), learn, noise=std, draws=draws)


def require_rehearsed(secrets: Array, m: int) -> None:
    """Refuse to learn from fewer than `FEWEST` challenges of a value, or from one value only."""
    counts = np.bincount(secrets, minlength=m)
    shown = counts[counts > 0]
    if len(shown) < 2 or shown.min() < FEWEST:
        raise ArgumentError(
            f"the adversary must rehearse every value of the secret at least {FEWEST} times, and one was "
            f"shown {0 if len(shown) < 2 else shown.min()} times; raise rehearsals."
        )


def beside(features: Tensor, public: Mapping[str, Tensor | Batch]) -> Array:
    """Features of the release with the side knowledge, if any, in front."""
    known = public.get("known")
    parts = [known, features] if isinstance(known, Tensor) else [features]
    return torch.cat(parts, dim=1).float().numpy()


def _nominal(head: Head | Classifier, features: Array, secrets: Array, m: int, rng: torch.Generator) -> Model:
    # The forest's threads may leave Python without warning filters (scikit-learn 1.9), and every later one
    # would then warn: what holds here is put back.
    with warnings.catch_warnings():
        fitted = fresh(head, integer(rng)).fit(features, secrets)

    def probabilities(unseen: Array) -> Array:
        full = np.zeros((len(unseen), m))
        with warnings.catch_warnings():
            full[:, fitted.classes_] = fitted.predict_proba(unseen)
        return full

    return probabilities


def _ordinal(head: Head | Classifier, features: Array, secrets: Array, m: int, rng: torch.Generator) -> Model:
    """P(a = i) = P(a > i-1) - P(a > i), section 4.1; differences below 0 are clipped and the rest
    renormalised."""
    above = [_nominal(head, features, (secrets > i).astype(int), 2, rng) for i in range(m - 1)]

    def probabilities(unseen: Array) -> Array:
        beyond = [model(unseen)[:, 1] for model in above]
        steps = np.stack([np.ones(len(unseen)), *beyond, np.zeros(len(unseen))])
        full = np.clip(steps[:-1] - steps[1:], 0, None).T
        return np.asarray(full / full.sum(1, keepdims=True))

    return probabilities
