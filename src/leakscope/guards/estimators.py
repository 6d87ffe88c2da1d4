"""Mutual information in nats: bounds that a guard can train with, and estimators built on them.

The bounds are functions of a critic's scores T(x, y), high for pairs that belong together (paper 001's
figure 3, papers 003 and 004), or of log q(y | x) for a model q. ``joint`` (n,) are the scores of pairs
(x_i, y_i), ``product`` (m,) those of pairs that were shuffled; ``scores`` (n, n) has T(x_i, y_j) at (i, j).

An estimator learns its critic on one half of the pairs and evaluates the bound on the other, then the
reverse. A bound that is evaluated where its critic was trained is none: a net finds information in noise.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from scipy import special, stats
from torch import Tensor, nn
from torch.nn import functional

from leakscope.core.errors import CHANCE, POSITIVE, at_least, check, require
from leakscope.core.nouns import Estimate
from leakscope.core.rng import initialised
from leakscope.models.layers import perceptron

BLOCK = 2_048  # held-out pairs that are compared with each other at once
FORGET = 0.1  # the weight of the newest batch in MINE's moving average
LEAST = 16  # pairs, so that each half has some to learn from and some to stop by

Bound = Callable[[Tensor], Tensor]  # scores (n, n) -> what training ascends


def dv(joint: Tensor, product: Tensor) -> Tensor:
    """E[T] - log E[e^T'] <= I(x; y): Donsker and Varadhan's lower bound, as MINE uses it."""
    return joint.mean() - _log_mean_exp(product)


def mine(joint: Tensor, product: Tensor, *, log_average: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The value of `dv` with the gradient of Belghazi et al. (ICML 2018, section 3.2), and the log of the
    moving average of E[e^T'] to hand to the next batch.

    The gradient of a batch's log mean is biased, since the batch's own mean divides it; here the
    average over batches does."""
    now = _log_mean_exp(product.detach())
    if log_average is not None:
        now = torch.logaddexp(log_average + math.log1p(-FORGET), now + math.log(FORGET))
    ascent = joint.mean() - (product - now).exp().mean()
    return ascent + (dv(joint, product) - ascent).detach(), now


def infonce(scores: Tensor) -> Tensor:
    """log n + E[log softmax of a pair's score among its row] <= I(x; y), and at most log n (van den Oord
    et al., 2018)."""
    return _nce_terms(scores).mean()


def jsd(joint: Tensor, product: Tensor) -> Tensor:
    """E[-softplus(-T)] - E[softplus(T')], the Jensen-Shannon objective (DIM; equation 22 of paper 003,
    without constants as there and in paper 004).

    -2 ln 2 at chance and 0 at most; (value + 2 ln 2) / 2 is a lower bound on the Jensen-Shannon divergence
    between joint and product, which is no mutual information: a loss to keep information by."""
    return -functional.softplus(-joint).mean() - functional.softplus(product).mean()


def club(scores: Tensor) -> Tensor:
    """vCLUB (Cheng et al., ICML 2020): mean of log q(y_i | x_i) - mean of log q(y_j | x_i) over all pairs.

    ``scores`` are `categorical_scores` or `gaussian_scores`. Its expectation is (n - 1) / n of a bound that
    is above I(x; y) if q(y | x) is nearer to the truth than to the product of marginals, and nowhere near I
    in general: for two Gaussians of correlation r it is r^2 / (1 - r^2) against -log(1 - r^2) / 2."""
    return scores.diagonal().mean() - scores.mean()


def categorical_scores(logits: Tensor, y: Tensor) -> Tensor:
    """log q(y_j | x_i) at (i, j), from logits (n, m) and codes (n,)."""
    return logits.log_softmax(1)[:, y]


def gaussian_scores(mean: Tensor, log_variance: Tensor, y: Tensor) -> Tensor:
    """log q(y_j | x_i) at (i, j) for q = N(mean_i, diag(exp(log_variance_i))), from tensors (n, d)."""
    precision = (-log_variance).exp()
    squares = precision @ y.square().T - 2 * (precision * mean) @ y.T
    own = (precision * mean.square() + log_variance).sum(1, keepdim=True)
    return -(squares + own + y.shape[1] * math.log(2 * math.pi)) / 2


def posterior_bound(logits: Tensor, y: Tensor, prior: Tensor) -> Tensor:
    """H(y) - cross-entropy <= I(x; y) for any posterior (Barber and Agakov, 2003; equation 17 of paper 003).

    Papers 003 (equations 4, 9 and 16) and 004 have the encoder *minimise* the maximum over q of E[log q] as
    the upper bound vCLUB. Without vCLUB's second term it is this *lower* bound, up to the constant H(y): that
    it is small says that q found nothing, not that nothing is there."""
    known: Tensor = torch.special.entr(prior).sum()
    return known - functional.cross_entropy(logits, y)


def bounds_below(estimator: object) -> bool:
    """Whether an estimator says that it is a lower bound, by an attribute ``lower``."""
    return bool(getattr(estimator, "lower", False))


@dataclass(frozen=True)
class Trained(ABC):
    """What estimators with a network share: two hidden layers of ``hidden`` units on `normal_scores`, Adam at
    ``rate`` for ``epochs`` over batches of ``batch`` pairs. Kept is the epoch, the start included, that is
    best on a quarter of the training half."""

    hidden: int = 64
    epochs: int = 60
    rate: float = 2e-3
    batch: int = 128
    level: float = 0.95

    def __post_init__(self) -> None:
        check(self, hidden=at_least(1), epochs=at_least(1), batch=at_least(2), rate=POSITIVE, level=CHANCE)

    def __call__(self, x: Tensor, y: Tensor, rng: torch.Generator) -> Estimate:
        """I(x; y) in nats from pairs: x (n, ...) numbers, y the same or codes (n,)."""
        x, y = pairs(type(self).__name__, x, y)
        halves = torch.randperm(len(x), generator=rng).chunk(2)
        terms = []
        for seen, held in (halves, halves[::-1]):
            left, right = normal_scores(x, seen), normal_scores(y, seen)
            net = self._fitted(left[seen], right[seen], rng)
            with torch.no_grad():
                terms.append(self._terms([net(left[rows], right[rows]) for rows in _even(held, self._block)]))
        return mean_of(torch.cat(terms), level=self.level, method=self._method)

    def _fitted(self, x: Tensor, y: Tensor, rng: torch.Generator) -> nn.Module:
        net = initialised(lambda: self._net(_width(x), _width(y), codes=not y.is_floating_point()), rng)
        net, ascent, best = net.double(), self._ascent(), -math.inf
        kept = copy.deepcopy(net.state_dict())
        order = torch.randperm(len(x), generator=rng)
        check, fit = order[: len(x) // 4], order[len(x) // 4 :]
        adam = torch.optim.Adam(net.parameters(), self.rate, fused=True)
        for epoch in range(self.epochs + 1):
            shuffled = fit[torch.randperm(len(fit), generator=rng)]
            with torch.enable_grad():
                for rows in _even(shuffled, self.batch) if epoch else ():
                    adam.zero_grad()
                    (-ascent(net(x[rows], y[rows]))).backward()
                    adam.step()
            with torch.no_grad():
                now = float(self._bound(net(x[check], y[check])))
            if now > best:
                best, kept = now, copy.deepcopy(net.state_dict())
        net.load_state_dict(kept)
        return net

    def _net(self, left: int, right: int, *, codes: bool) -> nn.Module:
        return CriticNet(left, right, self.hidden, codes=codes)

    def _ascent(self) -> Bound:
        """What a step ascends, which may remember the steps before."""
        return self._bound

    @property
    def _block(self) -> int:
        return BLOCK

    @property
    @abstractmethod
    def _method(self) -> str: ...

    @abstractmethod
    def _bound(self, scores: Tensor) -> Tensor:
        """What an epoch is judged by."""

    @abstractmethod
    def _terms(self, blocks: list[Tensor]) -> Tensor:
        """From held-out scores to one term a pair: their mean is the bound, their spread its error."""


@dataclass(frozen=True)
class MINE(Trained):
    """Mutual information neural estimation (Belghazi et al., 2018): the lower bound `dv` of a learned critic.

    Interval: the delta method over both expectations, each pair counted in all products it is part of. The
    bound must see about e^I products (McAllester and Stratos, 2020): for more information than the log of
    half the pairs neither value nor interval means anything."""

    lower = True

    @property
    def _method(self) -> str:
        return "held-out Donsker-Varadhan lower bound, cross-fitted, delta method"

    def _ascent(self) -> Bound:
        log_average: Tensor | None = None

        def averaged(scores: Tensor) -> Tensor:
            nonlocal log_average
            value, log_average = mine(scores.diagonal(), _apart(scores), log_average=log_average)
            return value

        return averaged

    def _bound(self, scores: Tensor) -> Tensor:
        return dv(scores.diagonal(), _apart(scores))

    def _terms(self, blocks: list[Tensor]) -> Tensor:
        log_mean = _log_mean_exp(torch.cat([_apart(scores) for scores in blocks]))
        ratios = [(scores - log_mean).exp() - 1 for scores in blocks]
        return torch.cat([s.diagonal() - log_mean - _shares(r) for s, r in zip(blocks, ratios, strict=True)])


@dataclass(frozen=True)
class InfoNCE(Trained):
    """Contrastive predictive coding (van den Oord et al., 2018): the lower bound `infonce` of a learned
    critic among ``batch`` pairs, which is never above log(batch).

    Interval: the normal approximation of its terms, which share their wrong answers within a batch."""

    lower = True

    @property
    def _method(self) -> str:
        cap = f"at most log {self.batch} = {math.log(self.batch):.2f}"
        return f"held-out InfoNCE lower bound, {cap}, cross-fitted, normal approximation"

    @property
    def _block(self) -> int:
        return self.batch

    def _bound(self, scores: Tensor) -> Tensor:
        return infonce(scores)

    def _terms(self, blocks: list[Tensor]) -> Tensor:
        return torch.cat([_nce_terms(scores) for scores in blocks])


@dataclass(frozen=True)
class CLUB(Trained):
    """The contrastive log-ratio upper bound (Cheng et al., 2020) of a learned q(y | x): a Gaussian with
    diagonal covariance, or the chances of codes.

    An upper bound as far as q is right, and a loose one: see `club`. Interval: the delta method, each pair
    counted in all products it is part of."""

    @property
    def _method(self) -> str:
        return "held-out vCLUB, an upper bound if q(y|x) is right, cross-fitted, delta method"

    def _net(self, left: int, right: int, *, codes: bool) -> nn.Module:
        return Conditional(left, right, self.hidden, codes=codes)

    def _bound(self, scores: Tensor) -> Tensor:
        return (
            scores.diagonal().mean()
        )  # the likelihood of q: the nearer to the truth, the more it is a bound

    def _terms(self, blocks: list[Tensor]) -> Tensor:
        mean = torch.cat([_apart(scores) for scores in blocks]).mean()
        return torch.cat([scores.diagonal() - mean - _shares(scores - mean) for scores in blocks])


class CriticNet(nn.Module):
    """T(x, y) = f(x) . g(y), a separable critic (Poole et al., ICML 2019): all pairs of a batch at the price
    of one matrix product."""

    def __init__(self, left: int, right: int, hidden: int, *, codes: bool) -> None:
        super().__init__()
        self.f, self.g = (
            perceptron((left, hidden, hidden, hidden)),
            perceptron((right, hidden, hidden, hidden)),
        )
        self.right, self.codes, self.scale = right, codes, math.sqrt(hidden)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        seen = functional.one_hot(y, self.right).to(x) if self.codes else y
        scores: Tensor = self.f(x) @ self.g(seen).T / self.scale
        return scores


class Conditional(nn.Module):
    """log q(y_j | x_i) for all pairs of a batch: a Gaussian with diagonal covariance, or chances of codes."""

    def __init__(self, left: int, right: int, hidden: int, *, codes: bool) -> None:
        super().__init__()
        self.f, self.codes = perceptron((left, hidden, hidden, right if codes else 2 * right)), codes

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        if self.codes:
            return categorical_scores(self.f(x), y)
        mean, log_variance = self.f(x).chunk(2, dim=1)
        return gaussian_scores(mean, log_variance, y)


def pairs(name: str, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Both sides as rows of float64, y left as codes where it is codes."""
    require(x.is_floating_point(), f"{name}'s x", "numbers (n, ...)", x.dtype)
    require(len(x) == len(y) >= LEAST, f"{name}'s pairs", f"at least {LEAST}, x and y", (len(x), len(y)))
    for side, given in (("x", x), ("y", y)):
        require(bool(given.isfinite().all()), f"{name}'s {side}", "finite", "a value that is not")
    if y.is_floating_point():
        return x.double().reshape(len(x), -1), y.double().reshape(len(y), -1)
    require(y.dim() == 1 and int(y.min()) >= 0, f"{name}'s y", "codes (n,) from 0 on", tuple(y.shape))
    return x.double().reshape(len(x), -1), y.long()


def normal_scores(values: Tensor, by: Tensor) -> Tensor:
    """Each column through the monotone map that makes it normal on the rows ``by``; codes as they are.

    Mutual information is the same after any such map that can be undone, and critics are spared the tails:
    most records of a trained model have gradients next to nothing and a few have all of it."""
    if not values.is_floating_point():
        return values
    mapped = []
    for column in values.T.numpy():
        places, counts = np.unique(column[by.numpy()], return_counts=True)
        ranks = (counts.cumsum() - counts / 2) / counts.sum()
        mapped.append(np.interp(column, places, special.ndtri(ranks)))
    return torch.from_numpy(np.stack(mapped, axis=1))


def _width(values: Tensor) -> int:
    return values.shape[1] if values.is_floating_point() else int(values.max()) + 1


def _even(rows: Tensor, most: int) -> tuple[Tensor, ...]:
    """The rows in blocks of nearly equal size, at most so large, but of two at least."""
    return rows.tensor_split(max(min(-(-len(rows) // most), len(rows) // 2), 1))


def _apart(scores: Tensor) -> Tensor:
    n = len(scores)
    return scores.flatten()[1:].view(n - 1, n + 1)[:, :-1].flatten()


def _shares(centred: Tensor) -> Tensor:
    """What each pair adds to the mean over products, through its row and its column (Hajek's projection)."""
    return (centred.sum(0) + centred.sum(1) - 2 * centred.diagonal()) / (len(centred) - 1)


def _log_mean_exp(scores: Tensor) -> Tensor:
    return scores.flatten().logsumexp(0) - math.log(scores.numel())


def _nce_terms(scores: Tensor) -> Tensor:
    return scores.log_softmax(1).diagonal() + math.log(len(scores))


def mean_of(terms: Tensor, *, level: float, method: str) -> Estimate:
    """The mean of terms with the interval of the normal approximation."""
    value, n = float(terms.mean()), len(terms)
    half = float(stats.norm.ppf((1 + level) / 2)) * float(terms.std()) / math.sqrt(n)
    return Estimate("mutual information", value, value - half, value + half, level, n, method)
