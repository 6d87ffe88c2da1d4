"""User inference: what tells other people apart, then the nearest or the likeliest candidate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from leakscope.attacks.reductions import FirstInput, MaxPool, Reduction
from leakscope.attacks.traits import OF_PEOPLE
from leakscope.core.dataset import Batch, joined
from leakscope.core.errors import ArgumentError, require
from leakscope.core.nouns import Guess, Heard, Knowledge, Rehearsed, View, behind
from leakscope.core.rng import fork, initialised, integer
from leakscope.games.channels import without_noise
from leakscope.games.heldout import cut

Encoder = Callable[[Tensor], Tensor]  # features (t, f) -> embeddings (t, e)


@dataclass(frozen=True)
class Prototype:
    """The nearest candidate in an embedding learned by telling other people apart.

    Softmax over minus the distance between the release's embedding and each candidate's (paper
    000, section 4.1); the classifier that taught the embedding is thrown away. Embedding 50 for
    CREMA-D, 100 for CelebA."""

    plays: ClassVar[tuple[str, ...]] = OF_PEOPLE
    embedding: int = 50
    hidden: int = 256
    epochs: int = 50
    rate: float = 1e-3
    reduce: Reduction = field(default_factory=lambda: MaxPool(10))

    def __post_init__(self) -> None:
        for name in ("embedding", "hidden", "epochs"):
            require(getattr(self, name) >= 1, f"Prototype.{name}", "at least 1", getattr(self, name))
        require(self.rate > 0, "Prototype.rate", "positive", self.rate)

    def __call__(self, knowledge: Knowledge, rng: torch.Generator) -> Guess:
        deal, learn = fork(rng, 2)
        view, secrets = knowledge.simulate(deal)
        _, people = shown_candidates(view)
        _, classes = people.gather(1, secrets[:, None])[:, 0].unique(return_inverse=True)
        steps = []
        for release in view.releases:
            features = self.reduce.fit(release, learn)
            steps.append((features, self._encoder(features(release), classes, learn)))
        noise = integer(learn)  # a defense the adversary rehearses may be random

        def guess(view: View) -> Tensor:
            candidates, people = shown_candidates(view)
            t, m, k = candidates.rows.shape
            flat = Batch(candidates.data, candidates.rows.reshape(t * m, k))
            theirs = knowledge.channel(flat, people.flatten(), torch.Generator().manual_seed(noise))
            rounds = []
            for own, other, (features, encode) in zip(view.releases, theirs, steps, strict=True):
                mine = encode(features(own))[:, None]
                shown = encode(features(other)).unflatten(0, (t, m))
                rounds.append(torch.log_softmax(-(shown - mine).double().norm(dim=2), dim=1))
            return torch.stack(rounds)

        return guess

    def _encoder(self, features: Tensor, classes: Tensor, rng: torch.Generator) -> Encoder:
        mean, std = features.mean(0), features.std(0)
        varies = std > torch.finfo(std.dtype).eps * features.abs().amax(0)  # what was constant says nothing
        std = torch.where(varies, std, torch.inf)
        scaled = (features - mean) / std
        people = int(classes.max()) + 1
        net = initialised(lambda: self._net(scaled.shape[1], people), rng)
        optimiser = torch.optim.Adam(net.parameters(), lr=self.rate)
        for _ in range(self.epochs):
            for rows in torch.randperm(len(scaled), generator=rng).split(64):
                optimiser.zero_grad()
                nn.functional.cross_entropy(net(scaled[rows]), classes[rows]).backward()
                optimiser.step()
        body = nn.Sequential(*list(net.children())[:-1]).requires_grad_(False)
        return lambda unseen: body((unseen - mean) / std)

    def _net(self, inputs: int, people: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Linear(inputs, self.hidden),
            nn.ReLU(),
            nn.Linear(self.hidden, self.embedding),
            nn.Linear(self.embedding, people),  # the classifier
        )


@dataclass(frozen=True)
class PLDA:
    """The likeliest candidate by probabilistic linear discriminant analysis (Ioffe, 2006) of other people.

    Features of one person's batches are N(h, W) around a centre h that is N(mean, B) over people. A
    candidate's log evidence is log p(release, its batch | one person) - log p(release) - log p(its batch),
    which is exact for candidates who are independent. The features of all rounds so far are one vector, of
    which ``components`` principal ones are kept; W and B are estimated on public people, each with ``ridge``
    times the features' mean variance added. Under noise of a known deviation, features that keep it are
    fitted without it, and its covariance is added to the release's own. Evidence is calibrated on ``folds``
    of people. Where the first linear layer comes after convolutions, see `MeanInput`.
    """

    plays: ClassVar[tuple[str, ...]] = OF_PEOPLE
    reduce: Reduction = field(default_factory=FirstInput)
    components: int = 60
    ridge: float = 0.01
    folds: int = 3

    def __post_init__(self) -> None:
        require(self.components >= 1, "PLDA.components", "at least 1", self.components)
        require(self.ridge > 0, "PLDA.ridge", "positive", self.ridge)
        require(self.folds >= 2, "PLDA.folds", "at least 2", self.folds)

    def __call__(self, knowledge: Knowledge, rng: torch.Generator) -> Guess:
        deal, learn = fork(rng, 2)
        tell = self._taught(knowledge, deal, learn)
        return lambda view: tell(view).evidence[None]

    def crossfit(
        self, knowledge: Knowledge, rng: torch.Generator
    ) -> tuple[Callable[[View], Heard], Rehearsed]:
        """How it hears a view, and what was said of people of each fold after learning from the others."""
        *seeds, deal, learn = fork(rng, self.folds + 2)
        parts, said, told = cut(knowledge, self.folds, deal), [], []
        for i, (part, seed) in enumerate(zip(parts, seeds, strict=False)):
            others = _together([other for j, other in enumerate(parts) if j != i])
            view, secrets = part.simulate(seed)
            said.append(self._taught(others, seed, learn)(view))
            told.append(secrets)
        rounds, together = (torch.cat([getattr(s, name) for s in said], 1) for name in ("rounds", "together"))
        rehearsed = Rehearsed(Heard(rounds, together=together), torch.cat(told))
        return self._taught(knowledge, deal, learn), rehearsed

    def _taught(
        self, knowledge: Knowledge, deal: torch.Generator, learn: torch.Generator
    ) -> Callable[[View], Heard]:
        channel, std = without_noise(knowledge.channel, behind(knowledge.game))
        if std is None or not self.reduce.keeps_noise:  # the noise is rehearsed as it is
            channel, std = knowledge.channel, 0.0
        view, secrets = replace(knowledge, channel=channel).simulate(deal)
        _, people = shown_candidates(view)
        who = people.gather(1, secrets[:, None])[:, 0]
        reduced = [self.reduce.fit(release, learn) for release in view.releases]
        drawn = integer(learn)  # a defense the adversary rehearses may be random

        def shown(view: View) -> tuple[list[Tensor], list[Tensor]]:
            """Features of each round's releases (t, f), and of the candidates' (t, m, f)."""
            candidates, people = shown_candidates(view)
            t, m, k = candidates.rows.shape
            flat = Batch(candidates.data, candidates.rows.reshape(t * m, k))
            theirs = channel(flat, people.flatten(), torch.Generator().manual_seed(drawn))
            pairs = list(zip(reduced, view.releases, theirs, strict=True))
            own = [features(release).double() for features, release, _ in pairs]
            return own, [features(other).double().unflatten(0, (t, m)) for features, _, other in pairs]

        own = [features(release).double() for features, release in zip(reduced, view.releases, strict=True)]
        spans = [slice(i, i + 1) for i in range(len(own))] + [slice(0, i + 1) for i in range(len(own))]
        models = [_TwoCovariances.fit(torch.cat(own[span], 1), who, std, self) for span in spans]

        def tell(view: View) -> Heard:
            own, theirs = shown(view)
            said = [
                model.ratios(torch.cat(own[span], 1), torch.cat(theirs[span], 2))
                for model, span in zip(models, spans, strict=True)
            ]
            return Heard(torch.stack(said[: len(own)]), together=torch.stack(said[len(own) :]))

        return tell


@dataclass(frozen=True, eq=False)
class _TwoCovariances:
    """Features less ``centre``, in the ``basis``: how people differ and how one person's batches do."""

    centre: Tensor
    basis: Tensor
    between: Tensor
    within: Tensor
    noise: float  # the variance of the noise on a release

    @staticmethod
    def fit(features: Tensor, names: Tensor, std: float, attack: PLDA) -> _TwoCovariances:
        centre = features.mean(0)
        left = features - centre
        kept = min(attack.components, *left.shape)
        basis = (
            torch.linalg.eigh(left.T @ left)[1][:, -kept:]
            if left.shape[1] <= len(left)
            else _thin(left, kept)
        )
        inside = left @ basis
        _, which, counts = names.unique(return_inverse=True, return_counts=True)
        means = (
            torch.zeros(len(counts), kept, dtype=left.dtype).index_add_(0, which, inside) / counts[:, None]
        )
        rest = inside - means[which]
        between, within = means.T @ means / len(means), rest.T @ rest / len(rest)
        floor = attack.ridge * inside.var(0).mean() * torch.eye(kept, dtype=left.dtype)
        return _TwoCovariances(centre, basis, between + floor, within + floor, std**2)

    def ratios(self, own: Tensor, theirs: Tensor) -> Tensor:
        """Log evidence (t, m) for each candidate, from features (t, f) and (t, m, f)."""
        x, y = (own - self.centre) @ self.basis, (theirs - self.centre) @ self.basis
        if not float(self.within.trace()) + float(self.between.trace()):
            return torch.zeros(y.shape[:2], dtype=y.dtype)
        alone = self.between + self.within
        noisy = alone + self.noise * torch.eye(len(alone), dtype=alone.dtype)
        # given y the release is N(B (B + W)^-1 y, B + W + noise - B (B + W)^-1 B)
        gain = torch.linalg.solve(alone, self.between)
        narrow = noisy - self.between @ gain
        return log_density(x[:, None] - y @ gain, narrow) - log_density(x, noisy)[:, None]


def _thin(left: Tensor, kept: int) -> Tensor:
    """The widest directions of more columns than rows."""
    directions: Tensor = torch.linalg.svd(left, full_matrices=False)[2]
    return directions[:kept].T


def log_density(x: Tensor, covariance: Tensor) -> Tensor:
    """Of N(0, covariance) at x (..., d), up to a constant."""
    factor = torch.linalg.cholesky(covariance)
    z = torch.linalg.solve_triangular(factor, x.reshape(-1, x.shape[-1]).T, upper=False)
    density: Tensor = -(z**2).sum(0) / 2 - factor.diagonal().log().sum()
    return density.view(x.shape[:-1])


def _together(parts: Sequence[Knowledge]) -> Knowledge:
    """Knowledge of the records of several parts."""
    first: Any = parts[0].game
    games: Any = [part.game for part in parts]
    trials = sum(part.trials for part in parts)
    return replace(parts[0], game=first.on(joined([game.data for game in games])), trials=trials)


def shown_candidates(view: View) -> tuple[Batch, Tensor]:
    """The candidates' records (t, m, k), and who they are."""
    candidates, people = view.public.get("candidates"), view.public.get("people")
    if not isinstance(candidates, Batch) or not isinstance(people, Tensor):
        raise ArgumentError(
            "an attack on people needs a game that shows candidates; play UserInference, or use Posterior."
        )
    return candidates, people
