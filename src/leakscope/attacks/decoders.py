"""Reconstruction of records from their representations (paper 003, section 3.3)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from leakscope.attacks.rehearsal import converged, parted, released, scale_of, unkeyed
from leakscope.attacks.traits import Traits
from leakscope.core.errors import ArgumentError, require
from leakscope.core.nouns import Guess, Knowledge, View
from leakscope.core.rng import fork, initialised
from leakscope.games import Reconstruction
from leakscope.games.representations import Clean, RepresentationChannel

RIDGE = 1e-6  # of the features' mean square: least squares of fewer records than features
PASS = 256  # records inverted together
MOST = 4_096  # features up to which the decoder starts from least squares
FEW = 256  # images whose places tell the least squares of images


@dataclass(frozen=True)
class Decoder:
    """A network from released representations to records, trained on the adversary's own until it converges.

    It starts from least squares, and a network on top of that starts at zero, so that it is never worse
    than linear regression on the held-out records. Flat representations have two layers of ``width``,
    images of representations three convolutions of ``width`` channels at the resolution of the record, and
    least squares from 3 x 3 places there. ``draws`` rehearsals with fresh noise take turns, one an epoch.
    """

    width: int = 32
    draws: int = 4
    epochs: int = 60
    patience: int = 5
    rate: float = 1e-3
    batch: int = 64

    def __post_init__(self) -> None:
        for name in ("width", "draws", "epochs", "patience", "batch"):
            require(getattr(self, name) >= 1, f"Decoder.{name}", "at least 1", getattr(self, name))
        require(self.rate > 0, "Decoder.rate", "positive", self.rate)

    def __call__(self, knowledge: Knowledge, rng: torch.Generator) -> Guess:
        game, shape = _game(knowledge, "Decoder"), _shape(knowledge)
        cut, deal, stop, learn = fork(rng, 4)
        parts = zip(parted(knowledge, cut), (deal, stop), (self.draws, 1), strict=True)
        shown, (kept,) = (
            [_pair(unkeyed(part, one), one) for one in fork(rng, draws)] for part, rng, draws in parts
        )
        mean, std = scale_of(shown[0][0])
        fit = [((r - mean) / std, x) for r, x in shown]
        record = game.data.x.shape[1:]
        if len(shape) == 3 and len(record) == 3:
            net: nn.Module = initialised(lambda: Upwards(*fit[0], shape, self.width), learn)
        else:
            net = initialised(lambda: Beyond(*fit[0], self.width), learn)
        net = converged(
            net,
            fit,
            ((kept[0] - mean) / std, kept[1]),
            F.mse_loss,
            learn,
            rate=self.rate,
            batch=self.batch,
            patience=self.patience,
            epochs=self.epochs,
        )

        def guess(view: View) -> Tensor:
            r = (released(view.releases[0]) - mean) / std
            found = torch.cat([net(part) for part in r.split(PASS)])
            return _within(found, game)[:, None]

        return guess


@dataclass(frozen=True)
class Inversion:
    """Records whose representation is the released one, by gradient steps on the records themselves.

    The attack of paper 003's code (He et al., ACSAC 2019): Adam with AMSGrad from the public mean record,
    on the squared error of representations relative to their size, plus ``tv`` times the total variation
    of an image and ``ridge`` times the squared distance from that mean. The encoder is known, its noise
    is not.
    """

    iterations: int = 1_000
    tv: float = 0.01
    ridge: float = 0.001
    rate: float = 0.05

    traits = Traits(slow=True)

    def __post_init__(self) -> None:
        require(self.iterations >= 1, "Inversion.iterations", "at least 1", self.iterations)
        require(self.tv >= 0, "Inversion.tv", "at least 0", self.tv)
        require(self.ridge >= 0, "Inversion.ridge", "at least 0", self.ridge)
        require(self.rate > 0, "Inversion.rate", "positive", self.rate)

    def __call__(self, knowledge: Knowledge, rng: torch.Generator) -> Guess:
        game, channel = _game(knowledge, "Inversion"), knowledge.channel
        if not isinstance(channel, RepresentationChannel):
            raise ArgumentError(
                f"Inversion needs a RepresentationChannel, whose encoder it inverts, got {channel!r}."
            )
        encoder = channel.encoder
        network = Clean(encoder.network, normed=encoder.normed).eval()

        def guess(view: View) -> Tensor:
            r = released(view.releases[0])
            return torch.cat([self._inverted(network, part, game) for part in r.split(PASS)])[:, None]

        return guess

    def _inverted(self, network: nn.Module, r: Tensor, game: Reconstruction) -> Tensor:
        mean, size = game.mean, r.square().mean(1).clamp(min=1e-12)
        with torch.enable_grad():
            x = mean.expand(len(r), *mean.shape).clone().requires_grad_()
            adam = torch.optim.Adam([x], self.rate, amsgrad=True)
            for _ in range(self.iterations):
                apart = (network(x).flatten(1) - r).square().mean(1) / size
                loss = apart + self.ridge * (x - mean).square().flatten(1).mean(1)
                if self.tv and x.dim() == 4:
                    loss = loss + self.tv * _variation(x)
                (x.grad,) = torch.autograd.grad(loss.sum(), x)
                adam.step()
        return _within(x.detach(), game)


class Beyond(nn.Module):
    """Least squares from flat r (n, f) to x, and a network that starts at zero on top of it."""

    def __init__(self, r: Tensor, x: Tensor, width: int) -> None:
        super().__init__()
        record, flat = x.shape[1:], x.flatten(1)
        self.linear = nn.Linear(r.shape[1], flat.shape[1])
        if r.shape[1] <= MOST:
            found = _least_squares([(r, flat)])
            self.linear.weight, self.linear.bias = nn.Parameter(found[:-1].T), nn.Parameter(found[-1])
        hidden = nn.Linear(r.shape[1], width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()
        self.rest = nn.Sequential(*hidden, _zero(nn.Linear(width, flat.shape[1])))
        self.shape = nn.Unflatten(1, record) if len(record) > 1 else nn.Identity()

    def forward(self, r: Tensor) -> Tensor:
        found: Tensor = self.shape(self.linear(r) + self.rest(r))
        return found


class Upwards(nn.Module):
    """The same by convolutions, from images of representations (c, h, w), brought to the size of the record
    first."""

    def __init__(self, r: Tensor, x: Tensor, shape: torch.Size, width: int) -> None:
        super().__init__()
        self.shape, self.size = shape, x.shape[2:]
        self.straight = nn.Conv2d(shape[0], x.shape[1], 3, padding=1)
        self.rest = nn.Sequential(
            nn.Conv2d(shape[0], width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.ReLU(),
            _zero(nn.Conv2d(width, x.shape[1], 3, padding=1)),
        )
        places = (
            (
                F.unfold(self._maps(some), 3, padding=1).transpose(1, 2).flatten(0, 1),
                images.flatten(2).transpose(1, 2).flatten(0, 1),
            )
            for some, images in zip(r[:FEW].split(16), x[:FEW].split(16), strict=True)
        )
        found = _least_squares(places)
        weight = found[:-1].T.reshape(self.straight.weight.shape)
        self.straight.weight, self.straight.bias = nn.Parameter(weight), nn.Parameter(found[-1])

    def _maps(self, r: Tensor) -> Tensor:
        maps: Tensor = r.unflatten(1, self.shape)
        if maps.shape[2:] == self.size:
            return maps
        larger: Tensor = F.interpolate(maps, size=tuple(self.size), mode="bilinear", align_corners=False)
        return larger

    def forward(self, r: Tensor) -> Tensor:
        maps = self._maps(r)
        found: Tensor = self.straight(maps) + self.rest(maps)
        return found


L = TypeVar("L", nn.Linear, nn.Conv2d)


def _zero(layer: L) -> L:
    """The layer, saying 0 whatever it is given."""
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)
    return layer


def _least_squares(pairs: Iterable[tuple[Tensor, Tensor]]) -> Tensor:
    """Weights and, in the last row, offsets (f + 1, n) of least squared error, from parts (r, x) of the
    records, in float64."""
    gram: Tensor | float = 0.0
    moment: Tensor | float = 0.0
    for r, x in pairs:
        wide = torch.cat([r, torch.ones(len(r), 1)], dim=1).double()
        gram, moment = gram + wide.T @ wide, moment + wide.T @ x.double()
    assert isinstance(gram, Tensor)
    gram.diagonal()[:-1].add_(RIDGE * max(float(gram.diagonal().mean()), 1e-12))
    found: Tensor = torch.linalg.solve(gram, moment).float().contiguous()
    return found


def _variation(x: Tensor) -> Tensor:
    """Each image's mean absolute difference between neighbours (t,)."""
    down, along = x.diff(dim=2).abs(), x.diff(dim=3).abs()
    return down.flatten(1).mean(1) + along.flatten(1).mean(1)


def _within(found: Tensor, game: Reconstruction) -> Tensor:
    """Clipped to the range the adversary's own records have."""
    lowest, highest = game.limits
    return torch.minimum(torch.maximum(found, lowest), highest)


def _game(knowledge: Knowledge, who: str) -> Reconstruction:
    game = knowledge.game
    if not isinstance(game, Reconstruction) or game.batch != 1:
        raise ArgumentError(f"{who} recovers one record from one release; play Reconstruction(batch=1).")
    return game


def _pair(knowledge: Knowledge, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Rehearsed representations (t, f) and their records (t, *shape)."""
    view, told = knowledge.simulate(rng)
    return released(view.releases[0]), told.flatten(0, 1).float()


def _shape(knowledge: Knowledge) -> torch.Size:
    """The shape of one record's representation, which releases have flat."""
    channel, game = knowledge.channel, knowledge.game
    if isinstance(channel, RepresentationChannel) and isinstance(game, Reconstruction):
        return channel.encoder(game.data.x[:1], key=0).shape[1:]
    return torch.Size((1,))
