"""The accountant: the epsilon of what a mechanism did. A mechanism that it does not know is refused.

The adversary of a game is shown the same records in every observed round, and knows that they are there:
no chance of being drawn protects them. That is not what accountants of a training count, where each step
draws its batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import dp_accounting as dp  # type: ignore[import-untyped]
from dp_accounting.pld import PLDAccountant  # type: ignore[import-untyped]
from dp_accounting.rdp import RdpAccountant  # type: ignore[import-untyped]

from leakscope.core.errors import LeakscopeError, require
from leakscope.core.mechanism import Mechanism, Unit
from leakscope.core.nouns import Defense
from leakscope.measures.epsilon import gaussian_epsilon

MOST_STEPS = 1_000_000  # more on samples would take minutes
POINTS = 1e7  # of a grid of losses
ADDED, REPLACED = dp.NeighboringRelation.ADD_OR_REMOVE_ONE, dp.NeighboringRelation.REPLACE_ONE


@dataclass(frozen=True)
class Accounted:
    """The epsilon at ``delta`` of so many ``releases`` together, and of each alone.

    ``covers`` says which: those that the adversary was shown, or those of the whole training. ``added`` is
    for one ``unit`` added or removed, ``replaced`` for one replaced. Each release has ``batch`` records
    behind it, and each of them was in it with the chance ``sampling``."""

    covers: Literal["shown", "training"]
    unit: Unit
    delta: float
    releases: int
    batch: int
    sampling: float
    added: float
    replaced: float
    added_each: float
    replaced_each: float

    @property
    def records(self) -> int:
        """How many are behind all releases."""
        return max(1, round(self.batch / self.sampling))


def account_shown(
    mechanism: Mechanism | None, *, releases: int, batch: int, delta: float = 1e-5
) -> Accounted | None:
    """Of releases of the same records, all of which are in every one. None where no epsilon holds."""
    return _unsampled("shown", mechanism, releases, batch, delta)


def account_training(
    defense: Defense, *, records: int, batch: int, rounds: int, entries: int, delta: float = 1e-5
) -> Accounted | None:
    """Of a training of so many ``rounds``, each of which sees every one of ``records`` once in batches: as
    if each record joined a batch at random, which is what accountants take shuffled epochs for. That is no
    proof for shuffled ones, so where ``sampling`` is below 1 it is an estimate. Of a filter on uploads, one
    upload a round has a record behind it. None where no epsilon holds."""
    mechanism = defense.mechanism(min(batch, records), entries)
    if mechanism is None or mechanism.unit != "record":
        return _unsampled("training", mechanism, rounds, batch, delta)
    steps, sampling = rounds * math.ceil(records / batch), min(1.0, batch / records)
    drawn = dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(sampling, mechanism.event), steps)
    added, replaced = (epsilon_of(drawn, delta, replaced=far) for far in (False, True))
    each = [_epsilon(event, 1, delta) for event in (mechanism.event, mechanism.replaced)]
    return Accounted("training", "record", delta, steps, batch, sampling, added, replaced, *each)


def epsilon_of(event: dp.DpEvent, delta: float, *, replaced: bool = False) -> float:
    """The epsilon at ``delta`` of what happened, for one unit added or removed (of a sample of fixed size:
    left empty), or one ``replaced``, which moves twice as far.

    Unsampled Gaussians compose to the root of their squared mu, which is exact (Dong et al. 2022, corollary
    3.3); pure epsilons add up, or at a delta above 0 are what their Renyi divergences allow, if that is less.
    Poisson samples of Gaussians go by the privacy loss distribution of dp-accounting, rounded up, samples
    of a fixed size by its Renyi accountant. Infinite where no epsilon holds; unknown events are refused."""
    require(0 <= delta < 1, "epsilon_of.delta", "at least 0 and below 1", delta)
    losses = _losses(event)
    far = 2 if replaced else 1
    noisy = losses.square or losses.sampled
    if math.isinf(losses.square + losses.pure) or (noisy and delta == 0):
        return math.inf
    if not noisy:
        return min(far * losses.pure, _renyi_epsilon(losses, delta) if delta and not replaced else math.inf)
    square = losses.square + math.fsum(count * noise**-2 for _, noise, count in losses.sampled)
    unsampled = gaussian_epsilon(far * math.sqrt(square), delta)
    if losses.sampled:
        unsampled = min(unsampled, _sampled_epsilon(losses, delta, replaced))
    return far * losses.pure + unsampled


def _renyi_epsilon(losses: _Losses, delta: float) -> float:
    """Of pure mechanisms at a delta above 0: what Renyi divergences of Laplace noise allow, and the rest."""
    judge, rest = RdpAccountant(), losses.pure
    for noise, count in losses.laplaces:
        judge.compose(dp.LaplaceDpEvent(noise), count)
        rest -= count / noise
    return max(rest, 0.0) + float(judge.get_epsilon(delta)) if losses.laplaces else losses.pure


@lru_cache(maxsize=256)
def _sampled_epsilon(losses: _Losses, delta: float, replaced: bool) -> float:
    """Of Gaussians on samples, with those on all. It takes up to seconds, and many rows ask for the same."""
    far = 2 if replaced else 1
    if not all(isinstance(drawn, float) for drawn, _, _ in losses.sampled):
        judge = RdpAccountant(neighboring_relation=REPLACED)
        for drawn, noise, count in losses.sampled:
            if isinstance(drawn, float):
                raise LeakscopeError(
                    "the accountant cannot compose Poisson samples with samples of fixed size."
                )
            # its noise is for one replaced by nothing: of one replaced by another it takes half
            judge.compose(dp.SampledWithoutReplacementDpEvent(*drawn, dp.GaussianDpEvent(noise / far)), count)
        if losses.square:
            judge.compose(dp.GaussianDpEvent(losses.square**-0.5 / far))
        return float(judge.get_epsilon(delta))
    steps = sum(count for _, _, count in losses.sampled)
    if steps > MOST_STEPS:
        raise LeakscopeError(
            f"the accountant adds up at most {MOST_STEPS:,} steps on drawn samples, got {steps:,}; give "
            f"fewer epochs or rounds, or larger batches."
        )
    mu = 1 / min(noise for _, noise, _ in losses.sampled)
    grid = 1e-4 * max(1.0, (far * mu) ** 2)  # losses grow with 1 / noise^2; so may their rounding
    if grid > 1:  # nor does a chance of being drawn help where a single step tells all
        return math.inf
    likely = math.fsum(
        count * min((far / noise) ** 2, drawn**2 * math.expm1(min((far / noise) ** 2, 100.0)))  # type: ignore[operator]
        for drawn, noise, count in losses.sampled
    )
    grid = max(grid, likely / POINTS)  # rounded up, a coarser grid says a little more and is still true
    judge = PLDAccountant(REPLACED if replaced else ADDED, value_discretization_interval=grid)
    for chance, noise, count in losses.sampled:
        judge.compose(dp.PoissonSampledDpEvent(chance, dp.GaussianDpEvent(noise)), count)
    if losses.square:
        judge.compose(dp.GaussianDpEvent(losses.square**-0.5))
    return float(judge.get_epsilon(delta))


def _unsampled(
    covers: Literal["shown", "training"], mechanism: Mechanism | None, releases: int, batch: int, delta: float
) -> Accounted | None:
    require(releases >= 1, "releases", "at least 1", releases)
    if mechanism is None:
        return None
    both = (mechanism.event, mechanism.replaced)
    ends = [_epsilon(event, count, delta) for count in (releases, 1) for event in both]
    if not all(map(math.isfinite, ends)):
        return None
    noise = any(_losses(event).square for event in both)
    return Accounted(covers, mechanism.unit, delta if noise else 0.0, releases, batch, 1.0, *ends)


def _epsilon(event: dp.DpEvent, count: int, delta: float) -> float:
    """Of so many of one event: Gaussians compose to mu sqrt(count), which is exact; pure epsilons add."""
    losses = _losses(event)
    require(not losses.sampled, "the event", "of records that are in every release", event)
    if math.isinf(losses.square + losses.pure):
        return math.inf
    noise = gaussian_epsilon(math.sqrt(count * losses.square), delta) if losses.square else 0.0
    return count * losses.pure + noise


@dataclass(frozen=True)
class _Losses:
    """The squared mu of an event's Gaussian part, the pure epsilon of the rest, and Gaussians on samples:
    each with the chance of Poisson or (of how many, how many), the noise multiplier, and how often."""

    square: float = 0.0
    pure: float = 0.0
    sampled: tuple[tuple[float | tuple[int, int], float, int], ...] = ()
    laplaces: tuple[tuple[float, int], ...] = ()  # of the pure epsilon: the noise multiplier, how often

    def times(self, count: int) -> _Losses:
        sampled = tuple((drawn, noise, count * often) for drawn, noise, often in self.sampled)
        laplaces = tuple((noise, count * often) for noise, often in self.laplaces)
        return _Losses(count * self.square, count * self.pure, sampled, laplaces)

    def __add__(self, other: _Losses) -> _Losses:
        return _Losses(
            self.square + other.square,
            self.pure + other.pure,
            self.sampled + other.sampled,
            self.laplaces + other.laplaces,
        )


def _losses(event: dp.DpEvent) -> _Losses:
    match event:
        case dp.NoOpDpEvent():
            return _Losses()
        case dp.NonPrivateDpEvent():
            return _Losses(pure=math.inf)
        case dp.GaussianDpEvent(noise_multiplier=noise):
            return _Losses(square=noise**-2 if noise else math.inf)
        case dp.LaplaceDpEvent(noise_multiplier=noise):
            return _Losses(pure=1 / noise, laplaces=((noise, 1),)) if noise else _Losses(pure=math.inf)
        case dp.RandomizedResponseDpEvent(noise_parameter=noise, num_buckets=k):
            return _Losses(pure=math.log1p(k * (1 - noise) / noise) if noise else math.inf)
        case dp.SelfComposedDpEvent(event=inner, count=count):
            return _losses(inner).times(count)
        case dp.ComposedDpEvent(events=inner):
            return sum(map(_losses, inner), _Losses())
        case dp.PoissonSampledDpEvent(sampling_probability=chance, event=dp.GaussianDpEvent() as inner):
            whole = _losses(inner)
            if chance in (0, 1) or math.isinf(whole.square):
                return whole if chance else _Losses()
            return _Losses(sampled=((float(chance), inner.noise_multiplier, 1),))
        case dp.SampledWithoutReplacementDpEvent(
            source_dataset_size=size, sample_size=drawn, event=dp.GaussianDpEvent() as inner
        ):
            whole = _losses(inner)
            if drawn >= size or math.isinf(whole.square):
                return whole
            return _Losses(sampled=(((size, drawn), inner.noise_multiplier, 1),))
    raise LeakscopeError(
        f"the accountant knows no {type(event).__name__}, so it cannot give an epsilon; give the mechanism "
        f"as Gaussian, Laplace or randomized response events."
    )
