"""Shares at clients of whom only sums are seen, by the linear model of who took part in which sum.

What a linear reader says of a sum is the sum of what it says of the uploads in it. So the adversary learns on
rehearsed clients to read a share off an upload, round by round, reads the sums, and solves for every client's
share: a linear system, whose matrix is who took part. It rehearses whole federations with the same matrix, so
that what is solved for has the same errors in both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from leakscope.core.dataset import Batch
from leakscope.core.nouns import Channel, Layers, Release
from leakscope.training.recording import RecordedChannel, Recording

LEARNED = 2 / 3  # of the rehearsed clients that a reader is fitted to; the rest say what it is worth
RIDGES = (1e-3, 1e-2, 0.1, 1.0)  # of mean squared lengths, of which the best on the rest is taken


@dataclass(frozen=True, eq=False)
class Participation:
    """Who is in which sum: ``weights`` (rounds, clients) is the part of each client in each."""

    rounds: tuple[int, ...]
    clients: tuple[str, ...]
    weights: Tensor

    @staticmethod
    def of(recording: Recording, rounds: tuple[int, ...]) -> Participation:
        """By the records of each client, or equal parts where a sum does not say them."""
        there = {r: recording.clients_in(r) for r in rounds}
        clients = tuple(dict.fromkeys(name for names in there.values() for name in names))
        weights = torch.zeros(len(rounds), len(clients), dtype=torch.float64)
        for i, (r, names) in enumerate(there.items()):
            apart = recording.parts_in(r) == names
            for name in names:
                weights[i, clients.index(name)] = recording.samples(r, name) if apart else 1
        return Participation(rounds, clients, weights / weights.sum(1, keepdim=True))

    @property
    def tells_apart(self) -> bool:
        """Whether not everybody is in every sum with the same part."""
        return bool((self.weights - self.weights[0]).abs().max() > 0)

    def solve(self, noise: Tensor, spread: float) -> Tensor:
        """(clients, rounds): what gives each client's share, less its mean, from what is read off the sums.

        Of clients with shares of variance ``spread``, each read in round r with an error of variance
        ``noise``, this is the linear estimate of least error. Where nothing can be read, it is infinite."""
        precision = 1 / (noise * self.weights.square().sum(1))
        weighed = self.weights.T * precision
        inner = weighed @ self.weights + torch.eye(len(self.clients), dtype=torch.float64) / spread
        solution: Tensor = torch.linalg.solve(inner, weighed)
        return solution


@dataclass(frozen=True, eq=False)
class LinearReader:
    """Of one round: what is read off an upload, a linear function that is 0 at the mean of clients and whose
    error has the variance ``noise``."""

    along: Layers
    middle: float
    noise: float

    @staticmethod
    def fit(release: Release, shares: Tensor) -> LinearReader:
        """By ridge regression of the ``shares`` on most of the rehearsed uploads. On the others it is scaled
        to the shares, and its error is measured."""
        layers = release.layers
        flat = torch.cat([part.flatten(1) for part in layers.values()], 1).double()
        cut = int(LEARNED * len(flat))
        x, s = flat - flat[:cut].mean(0), shares.double() - shares[:cut].double().mean()
        inner, best = x @ x[:cut].T, (torch.zeros(cut, dtype=torch.float64), torch.inf)
        for ridge in RIDGES:
            gram = inner[:cut] + (ridge * inner[:cut].diagonal().mean() + 1e-30) * torch.eye(cut).double()
            dual = torch.linalg.solve(gram, s[:cut])
            said, true = inner[cut:] @ dual, s[cut:]
            gain = float((said - said.mean()) @ true / ((true - true.mean()) @ true))
            if gain > 0:
                noise = float((said / gain - true).var())
                best = min(best, (dual / gain, noise), key=lambda pair: pair[1])
        along = best[0] @ x[:cut]
        shapes = {name: part.shape[1:] for name, part in layers.items()}
        parts = along.float().split([shape.numel() for shape in shapes.values()])
        named = {name: part.reshape(shapes[name]) for name, part in zip(shapes, parts, strict=True)}
        return LinearReader(named, float(flat[:cut].mean(0) @ along), best[1])

    def read(self, layers: Layers) -> Tensor:
        """(n,): what is said of uploads, or of sums whose parts are 1 together."""
        said = sum((part.flatten(1) @ self.along[name].flatten() for name, part in layers.items()), 0.0)
        assert isinstance(said, Tensor)
        return said.double() - self.middle


@dataclass(frozen=True, eq=False)
class SolvedSums:
    """The share of each asked client, at these ``places`` of the solution, from the sums of a recording."""

    channel: RecordedChannel
    readers: Sequence[LinearReader]
    solution: Tensor
    places: tuple[int, ...]

    def __call__(self, batch: Batch, secret: Tensor, rng: torch.Generator) -> tuple[Release, ...]:
        releases = self.channel(batch, secret, rng)
        pairs = zip(self.readers, releases, strict=True)
        said = torch.cat([reader.read(release.layers) for reader, release in pairs])
        shares = self.solution[list(self.places)] @ said
        return (Release.of({"share": shares.float()[:, None]}, releases[0].params),)


@dataclass(frozen=True, eq=False)
class RehearsedSums:
    """The same of rehearsed federations: every trial is a client, the next trials being those that are summed
    with it, and at the end those at the beginning again. ``channel`` releases what each uploads in every
    round; ``weights`` are as `Participation` has them."""

    channel: Channel
    readers: Sequence[LinearReader]
    weights: Tensor
    solution: Tensor

    def __call__(self, batch: Batch, secret: Tensor, rng: torch.Generator) -> tuple[Release, ...]:
        trials, clients = len(batch), self.weights.shape[1]
        releases = self.channel(batch, secret, rng)
        said = [
            torch.cat([reader.read(layers) for layers in release.blocks()])
            for reader, release in zip(self.readers, releases, strict=True)
        ]
        dealt = torch.arange(-(-trials // clients) * clients).view(-1, clients) % trials
        sums = torch.einsum("rk,rfk->rf", self.weights, torch.stack(said)[:, dealt])
        shares = (self.solution @ sums).T.flatten()[:trials]
        return (Release.of({"share": shares.float()[:, None]}, releases[0].params),)
