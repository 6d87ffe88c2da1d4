"""Canaries played through a mechanism as it is deployed: which of two worlds is behind what it released?

The auditor chooses what differs, and knows all else but the noise: the worst case that accountants speak of.
A bound from such trials may be looked at after every batch, so that they end as soon as enough is known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import tee

import torch
from torch import Tensor

from leakscope.core.errors import at_least, require
from leakscope.core.nouns import Defense, Estimate, Transcript
from leakscope.measures.sequential import watch_epsilon

Scores = Callable[[Tensor, torch.Generator], Tensor]  # (bits (t,), rng) -> (t,)
Release = Callable[[Tensor, torch.Generator], Tensor]  # (what is meant (t, entries), rng) -> what is sent
BLOCK = 1_000_000  # numbers in memory at once
WORK = 100_000_000  # numbers drawn in all: some seconds
FEWEST, LOOKS = 200, 20  # trials, whatever they cost; looks at them


@dataclass(frozen=True)
class Duel:
    """``scores`` plays a trial for each bit and says how likely 1 is. ``size`` numbers are drawn in a trial.
    ``gaussian``: the best test is between two normal laws of one variance. ``canary`` says what differs."""

    scores: Scores
    size: int
    gaussian: bool
    canary: str


@dataclass(frozen=True)
class DuelBound:
    """What the trials certify: whatever the mechanism, and as it is Gaussian, where it is. Both hold together
    with ``level``."""

    certified: Estimate
    gaussian: Estimate | None
    level: float

    @property
    def low(self) -> float:
        return max(self.certified.low, self.gaussian.low if self.gaussian else 0.0)


def send_through(defense: Defense) -> Release:
    """What ``defense`` sends of updates that are twice as long: it cuts them."""

    def send(updates: Tensor, rng: torch.Generator) -> Tensor:
        return defense.release({"update": 2 * updates}, None, rng, batch=1)["update"]

    return send


def duel_of_releases(
    release: Release,
    *,
    one: float,
    zero: float,
    absent: float = 0.0,
    std: float,
    uses: int = 1,
    chance: float = 1.0,
    canary: str,
) -> Duel:
    """Whether the means of so many ``uses`` were ``one`` or ``zero``. ``release`` adds noise of ``std``; with
    a ``chance`` below 1 each is that only with this chance, and otherwise ``absent``. Scores are
    logarithms of the likelihood ratio; without noise, those of a small one."""
    spread = std or abs(one - zero) / 100

    def log_density(seen: Tensor, mean: float) -> Tensor:
        there = -((seen - mean) ** 2) / (2 * spread**2)
        if chance == 1:
            return there
        gone = -((seen - absent) ** 2) / (2 * spread**2)
        return torch.logaddexp(math.log(chance) + there, math.log1p(-chance) + gone)

    def scores(bits: Tensor, rng: torch.Generator) -> Tensor:
        means = torch.where(bits == 1, one, zero).double()
        total = torch.zeros(len(bits), dtype=torch.float64)
        left, most = uses, max(1, BLOCK // len(bits))
        while left:
            count = min(left, most)
            sent = means[:, None].expand(-1, count)
            if chance < 1:
                drawn = torch.rand(sent.shape, generator=rng, dtype=torch.float64) < chance
                sent = sent.where(drawn, torch.tensor(absent, dtype=torch.float64))
            seen = release(sent.reshape(-1, 1), rng).view(len(bits), count)
            total += (log_density(seen, one) - log_density(seen, zero)).sum(1)
            left -= count
        return total

    return Duel(scores, uses, std > 0 and chance == 1, canary)


def play_duel(
    duel: Duel,
    *,
    delta: float,
    trials: int,
    rng: torch.Generator,
    enough: Callable[[DuelBound], bool],
    watch: Callable[[int, int], None] = lambda done, total: None,
    level: float = 0.95,
) -> DuelBound:
    """Play until what is certified is ``enough``, or ``trials`` are played, or as many as `WORK` allows. What
    it certifies, by one bound or by the larger of two, holds with ``level``."""
    rule, holds = at_least(FEWEST)
    require(holds(trials), "trials", rule, trials)
    most = max(FEWEST, min(trials, WORK // duel.size))
    first, second = tee(_deal(duel, most, rng))
    each = (1 + level) / 2 if duel.gaussian else level  # the larger of two holds if both do
    bounds = watch_epsilon(first, delta=delta, level=each)
    gaussian: Iterator[Estimate | None] = iter(lambda: None, 0)
    if duel.gaussian:
        gaussian = watch_epsilon(second, delta=delta, level=each, trade_off="gaussian")
    for certified, assumed in zip(bounds, gaussian, strict=False):
        played = DuelBound(certified, assumed, level)
        watch(certified.n, most)
        if enough(played):
            break
    return played


def _deal(duel: Duel, trials: int, rng: torch.Generator) -> Iterator[Transcript]:
    prior = torch.full((2,), 0.5, dtype=torch.float64)
    size = -(-trials // LOOKS)
    for start in range(0, trials, size):
        bits = torch.randint(2, (min(size, trials - start),), generator=rng)
        yield Transcript(bits, duel.scores(bits, rng), prior)
