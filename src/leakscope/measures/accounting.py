"""The accountant: the epsilon of what a mechanism did. A mechanism that it does not know is refused.

The adversary of a game is shown the same records in every observed round, and knows that they are there:
no chance of being drawn protects them. That is not what accountants of a training count, where each step
draws its batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import dp_accounting as dp  # type: ignore[import-untyped]

from leakscope.core.errors import LeakscopeError, require
from leakscope.core.mechanism import Mechanism, Unit
from leakscope.core.nouns import Defense
from leakscope.measures.epsilon import composed_epsilon, gaussian_epsilon


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


def account_shown(
    mechanism: Mechanism | None, *, releases: int, batch: int, delta: float = 1e-5
) -> Accounted | None:
    """Of releases of the same records, all of which are in every one. None where no epsilon holds."""
    return _unsampled("shown", mechanism, releases, batch, delta)


def account_training(
    defense: Defense, *, records: int, batch: int, rounds: int, entries: int, delta: float = 1e-5
) -> Accounted | None:
    """Of a training of so many ``rounds``, each of which sees every one of ``records`` once in batches: as
    if each record joined a batch at random, which is what accountants take shuffled epochs for. Of a filter
    on uploads, one upload a round has a record behind it. None where no epsilon holds."""
    mechanism = defense.mechanism(min(batch, records), entries)
    if mechanism is None or mechanism.unit != "record":
        return _unsampled("training", mechanism, rounds, batch, delta)
    require(isinstance(mechanism.event, dp.GaussianDpEvent), "the event", "Gaussian", mechanism.event)
    multiplier = mechanism.event.noise_multiplier
    steps, sampling = rounds * math.ceil(records / batch), min(1.0, batch / records)
    added, replaced = (
        composed_epsilon(multiplier, delta, steps=steps, sampling=sampling, replaced=r) for r in (False, True)
    )
    each = [_epsilon(event, 1, delta) for event in (mechanism.event, mechanism.replaced)]
    return Accounted("training", "record", delta, steps, batch, sampling, added, replaced, *each)


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
    noise = any(_losses(event)[0] for event in both)
    return Accounted(covers, mechanism.unit, delta if noise else 0.0, releases, batch, 1.0, *ends)


def _epsilon(event: dp.DpEvent, count: int, delta: float) -> float:
    """Of so many of one event: Gaussians compose to mu sqrt(count), which is exact; pure epsilons add."""
    square, pure = _losses(event)
    if math.isinf(square + pure):
        return math.inf
    return count * pure + (gaussian_epsilon(math.sqrt(count * square), delta) if square else 0.0)


def _losses(event: dp.DpEvent) -> tuple[float, float]:
    """The squared mu of the Gaussian part of an event, and the pure epsilon of the rest."""
    match event:
        case dp.NoOpDpEvent():
            return 0.0, 0.0
        case dp.NonPrivateDpEvent():
            return 0.0, math.inf
        case dp.GaussianDpEvent(noise_multiplier=noise):
            return (noise**-2 if noise else math.inf), 0.0
        case dp.LaplaceDpEvent(noise_multiplier=noise):
            return 0.0, (1 / noise if noise else math.inf)
        case dp.RandomizedResponseDpEvent(noise_parameter=noise, num_buckets=k):
            return 0.0, (math.log1p(k * (1 - noise) / noise) if noise else math.inf)
        case dp.SelfComposedDpEvent(event=inner, count=count):
            square, pure = _losses(inner)
            return count * square, count * pure
        case dp.ComposedDpEvent(events=inner):
            squares, pures = zip(*map(_losses, inner), strict=True)
            return sum(squares), sum(pures)
    raise LeakscopeError(
        f"the accountant knows no {type(event).__name__}, so it cannot give an epsilon; give the mechanism "
        f"as Gaussian, Laplace or randomized response events."
    )
