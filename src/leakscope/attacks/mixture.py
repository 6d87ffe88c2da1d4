"""Attacks on what is held of a record without a network: the likelihood of the noise, and boosted trees."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol, runtime_checkable

import torch
from sklearn.ensemble import HistGradientBoostingClassifier
from torch import Tensor

from leakscope.attacks.rehearsal import of_view, rehearsed, scale_of, unkeyed
from leakscope.core.dataset import Dataset
from leakscope.core.errors import at_least, check
from leakscope.core.nouns import Guess, Knowledge, View
from leakscope.core.rng import fork, integer
from leakscope.games import Inference
from leakscope.games.releases import label_columns

BLOCK = 1 << 24  # distances that are held at once


@runtime_checkable
class Blurred(Protocol):
    """A channel that says what it would release without noise, and how large the noise is."""

    labelled: bool

    def blur(self, data: Dataset) -> float | None: ...
    def clean(self, data: Dataset) -> Tensor: ...


@dataclass(frozen=True)
class Mixture:
    """The likelihood of a release under each value: a mixture of Gaussians around clean representations.

    The noise's law is known, and so are the adversary's own records without it: P(r | u) is the mean, over
    public records of value u, of the noise's density at r minus their clean representation. There is nothing
    to train, and with many public records nothing does better. A label beside the release counts only records
    of that label. Where the noise is not Gaussian, or there is none, the centres are rehearsed releases and
    the width is Silverman's.
    """

    def __call__(self, knowledge: Knowledge, rng: torch.Generator) -> Guess:
        game, channel = knowledge.game, unkeyed(knowledge, rng).channel
        if (
            isinstance(game, Inference)
            and game.batch == 1
            and not game.known
            and isinstance(channel, Blurred)
        ):
            width = channel.blur(game.data)
            if width is not None:
                return self._of_noise(channel, game, width, len(knowledge.belief))
        return self._of_rehearsals(knowledge, rng)

    def _of_noise(self, channel: Blurred, game: Inference, width: float, m: int) -> Guess:
        centres, codes = channel.clean(game.data) / width, game.data.secret(game.secret)
        labels = label_columns(game.data) if channel.labelled else None
        f = centres.shape[1]

        def guess(view: View) -> Tensor:
            (shown,) = of_view(view)
            beside = None if labels is None else shown[:, -labels.shape[1] :]
            return log_densities(shown[:, :f] / width, centres, codes, m, beside=beside, labels=labels)[None]

        return guess

    def _of_rehearsals(self, knowledge: Knowledge, rng: torch.Generator) -> Guess:
        ((shown, codes),) = rehearsed(knowledge, of_view, rng)
        m, models = len(knowledge.belief), []
        for x in shown:
            mean, std = scale_of(x)
            # what varies by rounding alone says nothing and would count as a dimension
            f = int((x.std(0, correction=0) > 1e-6).sum()) or 1
            width = (4 / (f + 2) / len(x)) ** (1 / (f + 4))
            models.append((mean, std * width, (x - mean) / (std * width)))

        def guess(view: View) -> Tensor:
            said = [
                log_densities((x - mean) / unit, centres, codes, m)
                for x, (mean, unit, centres) in zip(of_view(view), models, strict=True)
            ]
            return torch.stack(said)

        return guess


def log_densities(
    x: Tensor,
    centres: Tensor,
    codes: Tensor,
    m: int,
    *,
    beside: Tensor | None = None,
    labels: Tensor | None = None,
) -> Tensor:
    """The log of the mean Gaussian density of unit width at x (t, f), over the centres (n, f) of each of
    ``m`` values (t, m), up to a constant; with ``labels`` (n, l) those of another label than ``beside``
    (t, l) count as nothing. A value without centres has the least of all."""
    found = []
    sizes = torch.bincount(codes, minlength=m).double()
    order = codes.argsort(stable=True)
    centres = centres[order]
    ends = [0, *sizes.long().cumsum(0).tolist()]
    lengths = centres.square().sum(1) / 2
    for rows in torch.arange(len(x)).split(max(1, BLOCK // max(len(centres), 1))):
        scores = x[rows] @ centres.T - lengths
        if beside is not None and labels is not None:
            other = ~(beside[rows][:, None] == labels[order][None]).all(2)
            scores = scores.masked_fill(other, -math.inf)
        parts = [scores[:, a:b].logsumexp(1) for a, b in pairwise(ends)]
        found.append(torch.stack(parts, 1).double() - sizes.clamp(min=1).log())
    said = torch.cat(found)
    least = said.masked_fill(said.isinf(), math.inf).amin(1, keepdim=True)
    least = torch.where(least.isinf(), torch.zeros_like(least), least)
    return torch.where(said.isinf(), least - 10.0, said)


@dataclass(frozen=True)
class Trees:
    """Boosted trees on rehearsed releases, which need no scale and find corners that networks round off.

    ``draws`` rehearsals with fresh noise stand under each other, and a leaf has at least ``leaf`` of them.
    """

    draws: int = 2
    rounds: int = 60
    rate: float = 0.1
    leaf: int = 50

    def __post_init__(self) -> None:
        check(self, draws=at_least(1), rounds=at_least(1), leaf=at_least(1))

    def __call__(self, knowledge: Knowledge, rng: torch.Generator) -> Guess:
        deal, learn = fork(rng, 2)
        shown = rehearsed(knowledge, of_view, deal, draws=self.draws)
        codes, m = torch.cat([codes for _, codes in shown]), len(knowledge.belief)
        rounds = zip(*(x for x, _ in shown), strict=True)
        models = [self.fitted(torch.cat(x), codes, m, learn) for x in rounds]

        def guess(view: View) -> Tensor:
            return torch.stack([model(x) for model, x in zip(models, of_view(view), strict=True)])

        return guess

    def fitted(self, x: Tensor, codes: Tensor, m: int, rng: torch.Generator) -> Callable[[Tensor], Tensor]:
        """From features (t, f) to log evidence (t, m): how often a value was rehearsed is no evidence."""
        kinds, counts = codes.unique(return_counts=True)
        model = HistGradientBoostingClassifier(
            max_iter=self.rounds,
            learning_rate=self.rate,
            min_samples_leaf=min(self.leaf, max(1, int(counts.min()) // 2)),
            early_stopping=False,
            random_state=integer(rng),
        )
        if len(kinds) > 1:
            model.fit(x.numpy(), codes.numpy())

        def said(shown: Tensor) -> Tensor:
            evidence = torch.zeros(len(shown), m, dtype=torch.double)
            if len(kinds) > 1:
                chances = torch.from_numpy(model.predict_proba(shown.numpy())).clamp(min=1e-9)
                evidence[:, kinds] = chances.log() - counts.double().log()
            return evidence

        return said
