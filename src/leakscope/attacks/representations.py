"""Attacks on representations (papers 003 and 004): adversaries trained anew on what the encoder releases.

Each learns from the adversary's own records and stops by others of them that it did not learn from. An
adversary that was trained along with the encoder, and then left as it is, is here too, under its name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from leakscope.attacks.heads import Logistic
from leakscope.attacks.posterior import Posterior
from leakscope.attacks.rehearsal import (
    Features,
    Pair,
    column_of,
    converged,
    of_view,
    parted,
    reader,
    rehearsed,
    released,
    scale_of,
    unkeyed,
    with_label,
)
from leakscope.attacks.traits import Traits
from leakscope.core.dataset import Batch, Dataset
from leakscope.core.errors import ArgumentError, require
from leakscope.core.nouns import Guess, Knowledge, Loss, View
from leakscope.core.rng import fork, initialised
from leakscope.core.task import task_loss
from leakscope.games import Distribution, Ratio
from leakscope.games.channels import Silent
from leakscope.games.representations import RepresentationChannel
from leakscope.models.layers import perceptron

SHRUNK = 1e-3  # of Fisher's covariance towards the identity, so that it can be inverted


@dataclass(frozen=True)
class Network:
    """A network trained on rehearsed representations until held-out records no longer gain.

    Representations are standardised. ``draws`` rehearsals, each with fresh noise, take turns, one an epoch:
    who has the encoder can draw as often as it likes. Training ends after ``patience`` epochs without gain,
    and the best epoch is kept.
    """

    hidden: tuple[int, ...] = (128, 64)
    draws: int = 8
    patience: int = 10
    epochs: int = 200
    rate: float = 1e-3
    batch: int = 256

    def __post_init__(self) -> None:
        require(all(width >= 1 for width in self.hidden), "Network.hidden", "of at least 1", self.hidden)
        for name in ("draws", "patience", "epochs", "batch"):
            require(getattr(self, name) >= 1, f"Network.{name}", "at least 1", getattr(self, name))
        require(self.rate > 0, "Network.rate", "positive", self.rate)

    def __call__(self, knowledge: Knowledge, rng: torch.Generator) -> Guess:
        return self.taught(knowledge, of_view, rng)

    def taught(self, knowledge: Knowledge, features: Features, rng: torch.Generator) -> Guess:
        """The guess learned from features of rehearsed views, one network for each observed round."""
        cut, deal, stop, learn = fork(rng, 4)
        first, second = parted(knowledge, cut)
        fit = rehearsed(first, features, deal, draws=self.draws)
        held = rehearsed(second, features, stop, draws=2)
        m = len(knowledge.belief)
        nets = [
            self.fitted([(x[i], told) for x, told in fit], [(x[i], told) for x, told in held], m, learn)
            for i in range(len(fit[0][0]))
        ]

        def guess(view: View) -> Tensor:
            return torch.stack([net(x) for net, x in zip(nets, features(view), strict=True)])

        return guess

    def fitted(
        self, fit: Sequence[Pair], held: Sequence[Pair], m: int, rng: torch.Generator
    ) -> Callable[[Tensor], Tensor]:
        """From features (t, f) to log evidence (t, m): how often a value was rehearsed is no evidence."""
        mean, std = scale_of(fit[0][0])
        net: nn.Module = initialised(lambda: perceptron((len(mean), *self.hidden, m)), rng)
        net = self.converged(
            net,
            [((x - mean) / std, told) for x, told in fit],
            (torch.cat([(x - mean) / std for x, _ in held]), torch.cat([told for _, told in held])),
            F.cross_entropy,
            rng,
        )
        odds = torch.bincount(fit[0][1], minlength=m).clamp(min=1).double().log()
        return lambda x: (net((x - mean) / std).double() - odds).log_softmax(1)

    def converged(
        self, net: nn.Module, fit: Sequence[Pair], held: Pair, loss: Loss, rng: torch.Generator
    ) -> nn.Module:
        """A net trained as this one is."""
        return converged(
            net,
            fit,
            held,
            loss,
            rng,
            rate=self.rate,
            batch=self.batch,
            patience=self.patience,
            epochs=self.epochs,
        )


@dataclass(frozen=True)
class Fisher:
    """One direction fitted to single records of the adversary's own, then one number for each release.

    Fisher's discriminant between records with and without the property; several values of a secret give
    a direction each. A mean of representations projects to the mean of their projections, so that against
    a mean this is stronger than a network on as many means. Logistic regression ends it, on the
    number, the side knowledge and their products: with a subset's size known, the exact Bayes form of a
    Gaussian mean.
    """

    def __call__(self, knowledge: Knowledge, rng: torch.Generator) -> Guess:
        single, deal, learn = fork(rng, 3)
        directions = self.directions(knowledge, single)
        view, secrets = unkeyed(knowledge, deal).simulate(deal)
        ending, m = Posterior(head=Logistic(strength=100.0)), len(knowledge.belief)
        models = [
            ending.learn(_projected(view, i, way), secrets.numpy(), m, learn)
            for i, way in enumerate(directions)
        ]

        def guess(view: View) -> Tensor:
            said = [model(_projected(view, i, directions[i])) for i, model in enumerate(models)]
            return torch.stack([torch.from_numpy(ending.smoothed(one)).log() for one in said])

        return guess

    def directions(self, knowledge: Knowledge, rng: torch.Generator) -> list[Tensor]:
        """One (f, c) for each observed round, fitted to all records of the rehearsal, one by one."""
        data, codes = _records(knowledge)
        own = unkeyed(knowledge, rng)
        batch = Batch(data, torch.arange(len(data))[:, None])
        return [_fisher(released(release), codes) for release in own.channel(batch, codes, rng)]


@dataclass(frozen=True)
class Stale:
    """The network that was trained along with the encoder, as it was left: the papers' literal attacker.

    It was not trained on the encoder it is asked about, so that its failure is no privacy; a fresh one
    stands beside it wherever it is reported. What it says is taken as its own posterior. ``label_aware``:
    it also takes label, the head's output and loss, as `LabelAware` does.
    """

    privacy: nn.Module | None = None
    label_aware: bool = False

    def __call__(self, knowledge: Knowledge, rng: torch.Generator) -> Guess:
        if self.privacy is None:
            raise ArgumentError(
                "Stale.privacy must be the network that was trained along with the encoder, got None; guards "
                "without an adversary leave none."
            )
        net, prior = self.privacy, knowledge.belief.double().log()
        if isinstance(knowledge.channel, Silent):
            return lambda view: torch.zeros(1, len(released(view.releases[0])), len(prior)).double()
        shown = partial(with_label, reader(knowledge)) if self.label_aware else _in_shape(knowledge)

        def guess(view: View) -> Tensor:
            net.eval()
            with torch.no_grad():
                said = torch.cat([net(part) for part in shown(view).split(4_096)]).double()
            if said.shape[1] == 1:  # one logit, of the second value
                said = torch.cat([torch.zeros_like(said), said], dim=1)
            return (said.log_softmax(1) - prior)[None]

        return guess


@dataclass(frozen=True)
class Decensored:
    """Censored representations mapped to those of an uncensored model, and the secret inferred from these.

    De-censoring of Song and Shmatikov (ICLR 2020): the adversary trains an auxiliary model for the task on
    its own records, a network from the released representation to the auxiliary one, by squared error, and
    its `Network` on what that gives.
    """

    hidden: tuple[int, ...] = (128, 128)
    width: int = 128
    network: Network = field(default_factory=Network)

    traits = Traits(slow=True, censored_only=True)

    def __post_init__(self) -> None:
        require(self.width >= 1, "Decensored.width", "at least 1", self.width)

    def __call__(self, knowledge: Knowledge, rng: torch.Generator) -> Guess:
        auxiliary, transform, learn = fork(rng, 3)
        data, codes = _records(knowledge)
        require(knowledge.game.batch == 1, "Decensored: the game's batch", "1", knowledge.game.batch)
        order = torch.randperm(len(data), generator=auxiliary)
        parts = order.split(-(-4 * len(data) // 5))
        wanted = self._auxiliary(data, parts, auxiliary)
        own = unkeyed(knowledge, transform)
        batch = Batch(data, torch.arange(len(data))[:, None])
        shown = [released(release) for release in own.channel(batch, codes, transform)]
        maps = [self._mapped(r, wanted, parts, transform) for r in shown]

        def features(view: View) -> list[Tensor]:
            return [way(released(release)) for way, release in zip(maps, view.releases, strict=True)]

        return self.network.taught(knowledge, features, learn)

    def _auxiliary(self, data: Dataset, parts: Sequence[Tensor], rng: torch.Generator) -> Tensor:
        """What the last hidden layer of an uncensored model says of the adversary's records (n, width)."""
        x = data.x.flatten(1).float()
        mean, std = scale_of(x[parts[0]])
        x = (x - mean) / std
        net = initialised(lambda: perceptron((x.shape[1], *self.hidden, self.width, data.task.outputs)), rng)
        fit, held = ((x[rows], data.y[rows]) for rows in parts)
        body = self.network.converged(net, [fit], held, task_loss, rng)
        return torch.cat([nn.Sequential(*list(body.children())[:-1])(part) for part in x.split(4_096)])

    def _mapped(
        self, r: Tensor, wanted: Tensor, parts: Sequence[Tensor], rng: torch.Generator
    ) -> Callable[[Tensor], Tensor]:
        mean, std = scale_of(r[parts[0]])
        net = initialised(lambda: perceptron((r.shape[1], *self.hidden, wanted.shape[1])), rng)
        fit, held = (((r[rows] - mean) / std, wanted[rows]) for rows in parts)
        done = self.network.converged(net, [fit], held, F.mse_loss, rng)
        return lambda unseen: done((unseen - mean) / std)


def _in_shape(knowledge: Knowledge) -> Callable[[View], Tensor]:
    """Representations in the shape the encoder gives them."""
    channel, data = knowledge.channel, getattr(knowledge.game, "data", None)
    others = getattr(knowledge.game, "others", None)
    some = data if isinstance(data, Dataset) else others
    shape = torch.Size((-1,))
    if isinstance(channel, RepresentationChannel) and isinstance(some, Dataset):
        shape = channel.encoder(some.x[:1], key=0).shape[1:]
    return lambda view: released(view.releases[0]).unflatten(1, shape)


def _records(knowledge: Knowledge) -> tuple[Dataset, Tensor]:
    """The adversary's own records, and what it knows of each: its value, or whether it has the property."""
    game = knowledge.game
    data, column = getattr(game, "data", None), column_of(game)
    if not isinstance(data, Dataset) or column is None:
        raise ArgumentError(
            f"the adversary must know the secret of single records, and {type(game).__name__} is about none; "
            f"play Inference, Distribution or Ratio, or use Network."
        )
    codes = data.secret(column)
    if isinstance(game, Distribution | Ratio):
        codes = (codes == data.value_names(column).index(game.trait)).long()
    return data, codes


def _fisher(shown: Tensor, codes: Tensor) -> Tensor:
    """Directions (f, c) in the units of ``shown`` (n, f); zero where nothing varies.

    Linear discriminant analysis, as `LDA` has it. The covariance, pulled towards the identity, has a Cholesky
    factor; and of fewer records than features only the span counts, to which they are rotated: pictures'
    representations have thousands of features."""
    mean, std = scale_of(shown.double())
    x = (shown.double() - mean) / std
    basis = None
    if x.shape[1] > len(x):
        basis, rotated = torch.linalg.qr(x.T)
        x = rotated.T
    group = codes.unique(return_inverse=True)[1]
    sizes = torch.bincount(group).double()
    means = x.new_zeros(len(sizes), x.shape[1]).index_add_(0, group, x) / sizes[:, None]
    within = x - means[group]
    covariance = (1 - SHRUNK) / len(x) * (within.T @ within)
    covariance.diagonal().add_(SHRUNK)
    ways = torch.cholesky_solve(means.T, torch.linalg.cholesky(covariance))
    if len(sizes) == 2:
        ways = ways[:, 1:] - ways[:, :1]
    return ((ways if basis is None else basis @ ways) / std[:, None]).float()


def _projected(view: View, i: int, directions: Tensor) -> np.ndarray:
    number = released(view.releases[i]) @ directions
    known = view.public.get("known")
    if not isinstance(known, Tensor):
        return number.numpy()
    side = known.float()
    products = (number[:, :, None] * side[:, None]).flatten(1)
    return torch.cat([number, side, products], dim=1).numpy()
