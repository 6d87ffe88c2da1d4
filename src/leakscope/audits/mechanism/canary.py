"""The per-attribute audit of paper 000, section 7: a record crafted so that one attribute shows.

The game asks which of two neighbouring records, equal but for one attribute, was behind a noisy
clipped gradient. Both test statistics are simulated exactly in the few numbers they depend on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from leakscope.core.dataset import Batch, Dataset
from leakscope.core.errors import ArgumentError, require
from leakscope.core.nouns import Channel, Guess, Knowledge, Params, Transcript, View, flatten
from leakscope.core.rng import integer
from leakscope.core.task import is_number, task_loss
from leakscope.games.channels import GradientChannel

Statistic = Literal["likelihood ratio", "l2"]
Objective = Literal["distance", "cosine"]  # what a record is crafted for
_Statistic = Callable[[Tensor, Tensor, Tensor], Tensor]  # (released, mean under H0, under H1) -> scores


@dataclass(frozen=True, eq=False)
class Canary:
    """Tell which of two neighbouring records is behind a gradient (paper 000, definition 7.2).

    ``pair`` holds the record and its neighbour, which differ in one attribute; the adversary chose
    both and is given them (view.public "pair").
    """

    pair: Dataset

    batch = 1
    kind = "canary"

    def __post_init__(self) -> None:
        require(len(self.pair) == 2, "Canary.pair", "two records", len(self.pair))

    @property
    def chances(self) -> Tensor:
        return torch.full((2,), 0.5, dtype=torch.float64)

    def on(self, data: Dataset) -> Canary:
        return self  # the adversary made the records: it rehearses with the same

    def deal(self, channel: Channel, trials: int, rng: torch.Generator) -> tuple[View, Tensor]:
        require(trials >= 1, "Canary.deal: trials", "at least 1", trials)
        bits = torch.randint(2, (trials,), generator=rng)
        shown = Batch(self.pair, torch.arange(2)[:, None])
        return View(channel(Batch(self.pair, bits[:, None]), bits, rng), {"pair": shown}), bits


@dataclass(frozen=True)
class LikelihoodRatio:
    """The most powerful test between two Gaussian releases of known means: (g - (g0 + g1)/2) (g1 - g0).

    Scores (t,), summed over rounds; the means come from the channel it believes in, noise left out.
    """

    def __call__(self, knowledge: Knowledge, rng: torch.Generator) -> Guess:
        return _guess(knowledge, rng, lambda seen, zero, one: (seen - (zero + one) / 2) @ (one - zero))


@dataclass(frozen=True)
class L2:
    """The paper's statistic: the distance ||g - g0|| to the clipped gradient under the null hypothesis."""

    def __call__(self, knowledge: Knowledge, rng: torch.Generator) -> Guess:
        return _guess(knowledge, rng, lambda seen, zero, one: (seen - zero).norm(dim=1))


def _guess(knowledge: Knowledge, rng: torch.Generator, statistic: _Statistic) -> Guess:
    channel = knowledge.channel
    clean = channel.noiseless() if isinstance(channel, GradientChannel) else channel

    def guess(view: View) -> Tensor:
        pair = view.public.get("pair")
        if not isinstance(pair, Batch):
            raise ArgumentError("this test needs a game that shows its two records; play Canary.")
        means = clean(pair, torch.arange(2), rng)
        scores = []
        for seen, mean in zip(view.releases, means, strict=True):
            zero, one = flatten(mean.layers).double()
            blocks = [statistic(flatten(layers).double(), zero, one) for layers in seen.blocks()]
            scores.append(torch.cat(blocks))
        return torch.stack(scores).sum(0)

    return guess


@dataclass(frozen=True)
class Crafted:
    """A canary: the two records, their label, and how far apart their clipped gradients are."""

    pair: Dataset
    distance: float  # at most twice the clip
    dimensions: int


def craft(
    model: nn.Module,
    params: Params,
    data: Dataset,
    attribute: str,
    *,
    clip: float,
    rng: torch.Generator,
    steps: int = 2_000,
    rate: float = 0.05,
    objective: Objective = "distance",
) -> Crafted:
    """The record whose clipped gradient moves most when ``attribute`` changes (paper 000, A.3), or, for the
    ``objective`` "cosine", turns most, which the paper tried too: of two short gradients it does not show.

    Adam on a start from N(0, I) in the encoded space, the attribute's own columns held at two of its
    real values; every pair of values and every label (of a number, the least and the largest) is tried and
    the best iterate kept.
    """
    require(clip > 0, "craft.clip", "positive", clip)
    require(steps >= 1, "craft.steps", "at least 1", steps)
    require(rate > 0, "craft.rate", "positive", rate)
    require(objective in get_args(Objective), "craft.objective", "distance or cosine", objective)
    positions = data.positions(attribute)
    values = _encodings(data, attribute, positions)
    every = data.y.aminmax() if is_number(data.y) else torch.arange(data.classes)
    tries = [(pair, label) for pair in combinations(values, 2) for label in every]
    starts = torch.randn(len(tries), *data.x.shape[1:], generator=rng)
    ends = torch.stack([torch.stack(pair) for pair, _ in tries])  # (tries, 2, columns)
    labels = torch.stack([label for _, label in tries])
    apart = _distance(model, params, positions, clip)
    climbed = apart if objective == "distance" else _distance(model, params, positions, clip, turned=True)
    best = _climb(lambda records: climbed(records, ends, labels), starts, steps=steps, rate=rate)
    distance = apart(best, ends, labels).detach().sqrt()
    i = int(distance.argmax())
    x = _with(best[i], ends[i], positions)
    pair = Dataset(x, labels[i].repeat(2), {attribute: torch.arange(2)}, name="canary", columns=data.columns)
    return Crafted(pair, float(distance[i]), sum(value.numel() for value in params.values()))


def sampled(
    model: nn.Module, params: Params, data: Dataset, attribute: str, *, clip: float, rng: torch.Generator
) -> Crafted:
    """A real record and its neighbour: what the audit finds without crafting (figure 8a)."""
    positions = data.positions(attribute)
    values = _encodings(data, attribute, positions)
    row = int(torch.randint(len(data), (1,), generator=rng))
    own = data.x[row, positions]
    ends = torch.stack([own, next(value for value in values if not value.equal(own))])[None]
    start, label = data.x[row][None], data.y[row][None]
    distance = _distance(model, params, positions, clip)(start, ends, label).sqrt()
    x = _with(start[0], ends[0], positions)
    pair = Dataset(x, label.repeat(2), {attribute: torch.arange(2)}, name="record", columns=data.columns)
    return Crafted(pair, float(distance[0]), sum(value.numel() for value in params.values()))


def _encodings(data: Dataset, attribute: str, positions: Tensor) -> list[Tensor]:
    """What the attribute's columns hold for each of its values, as the data encodes them."""
    codes = data.secret(attribute)
    return [data.x[codes == code][0, positions] for code in codes.unique()]


def _with(record: Tensor, values: Tensor, positions: Tensor) -> Tensor:
    """(2, inputs): the record with each of two values in the attribute's columns."""
    return record.expand(2, -1).index_copy(1, positions, values)


def _distance(
    model: nn.Module, params: Params, positions: Tensor, clip: float, *, turned: bool = False
) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """(records, their two values each, labels) -> the squared distance between the clipped gradients of each
    record's two versions; ``turned``: 1 less their cosine."""

    def gradient(record: Tensor, label: Tensor) -> Tensor:
        def loss(p: Params) -> Tensor:
            return task_loss(functional_call(model, dict(p), (record[None],)), label[None])

        flat: Tensor = torch.cat([g.flatten() for g in grad(loss)(dict(params)).values()])
        clipped: Tensor = flat * (clip / flat.norm().clamp(min=1e-12)).clamp(max=1)
        return clipped

    def apart(record: Tensor, values: Tensor, label: Tensor) -> Tensor:
        zero, one = _with(record, values, positions)
        here, there = gradient(one, label), gradient(zero, label)
        if turned:
            size = here.norm() * there.norm()  # of a gradient of 0 there is no angle
            angle: Tensor = torch.where(size > 1e-12, 1 - here @ there / size.clamp(min=1e-12), 0.0)
            return angle
        return (here - there).square().sum()

    squares: Callable[[Tensor, Tensor, Tensor], Tensor] = vmap(apart)
    return squares


def _climb(apart: Callable[[Tensor], Tensor], starts: Tensor, *, steps: int, rate: float) -> Tensor:
    """All tries at once: the best iterate of each (the last can be half as good)."""
    records = starts.clone().requires_grad_()
    optimiser = torch.optim.Adam([records], lr=rate)
    best, reached = starts.clone(), torch.full((len(starts),), -1.0)
    for _ in range(steps + 1):
        squares = apart(records)
        better = squares.detach() > reached
        best = torch.where(better[:, None], records.detach(), best)
        reached = torch.where(better, squares.detach(), reached)
        optimiser.zero_grad()
        (-squares.sum()).backward()
        optimiser.step()
    return best


def simulated(
    canary: Crafted,
    *,
    std: float,
    trials: int,
    rng: torch.Generator,
    statistic: Statistic = "likelihood ratio",
) -> Transcript:
    """The audit game played ``trials`` times, exactly, in the numbers the statistic depends on.

    With noise N(0, std² I) the likelihood ratio depends on the projection on g1 - g0 alone, a normal
    number whose mean is 0 or the distance; the squared l2 statistic is std² times a chi-square of as
    many degrees of freedom as the gradient has entries, non-central under the alternative.
    """
    require(
        std > 0, "simulated.std", "positive", std, way_out="without noise any two gradients are told apart"
    )
    require(trials >= 2, "simulated.trials", "at least 2", trials)
    bits = torch.randint(2, (trials,), generator=rng)
    if statistic == "likelihood ratio":
        shift = canary.distance / std
        scores = shift * bits + torch.randn(trials, generator=rng, dtype=torch.float64) - shift / 2
    elif statistic == "l2":
        draw = np.random.default_rng(integer(rng))
        centre = (canary.distance / std) ** 2 * bits.numpy()
        scores = torch.from_numpy(std * np.sqrt(draw.noncentral_chisquare(canary.dimensions, centre)))
    else:
        raise ArgumentError(f"statistic must be 'likelihood ratio' or 'l2', got {statistic!r}.")
    return Transcript(bits, scores, torch.full((2,), 0.5, dtype=torch.float64))


@dataclass(frozen=True)
class AttributeAudit:
    """How much one DP-SGD step gives away about one attribute of a chosen record, as an epsilon.

    ``crafted``: the record is made for it, as in the worst case, by the distance of its two clipped gradients
    or, for the ``objective`` "cosine", their angle; otherwise drawn from the data.
    """

    attribute: str
    statistic: Statistic = "likelihood ratio"
    delta: float = 1e-5
    crafted: bool = True
    steps: int = 2_000
    objective: Objective = "distance"

    batch = 1
    kind = "canary"

    def __post_init__(self) -> None:
        require(0 < self.delta < 1, "AttributeAudit.delta", "between 0 and 1", self.delta)
        require(self.steps >= 1, "AttributeAudit.steps", "at least 1", self.steps)

    def record(
        self, model: nn.Module, params: Params, data: Dataset, *, clip: float, rng: torch.Generator
    ) -> Crafted:
        """The record and its neighbour that are played with."""
        if self.crafted:
            return craft(
                model,
                params,
                data,
                self.attribute,
                clip=clip,
                rng=rng,
                steps=self.steps,
                objective=self.objective,
            )
        return sampled(model, params, data, self.attribute, clip=clip, rng=rng)
