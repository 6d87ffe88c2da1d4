"""The bound that no adversary can pass, beside what one measured."""

from __future__ import annotations

import math

from leakscope.audits.inference.found import Bounds
from leakscope.core.errors import LeakscopeError
from leakscope.core.nouns import Transcript
from leakscope.games.channels import GradientChannel
from leakscope.measures import bounds
from leakscope.measures.success import advantage

SURE = 1 - 1e-6  # of a measurement above a bound, before anything is accused


def bound_releases(transcript: Transcript, channel: GradientChannel, batch: int) -> Bounds:
    """The most that any adversary could have learned from exactly these releases, where noise bounds it.

    A measured lower limit above the bound is an error of one of the two, never a figure."""
    limit = _limit(transcript, channel, batch)
    measured = advantage(transcript, level=SURE)
    if limit.advantage is not None and measured.low > limit.advantage + 1e-9:
        raise LeakscopeError(
            f"the measured advantage is at least {measured.low:.3f}, above the bound of "
            f"{limit.advantage:.3f} that holds for every adversary ({limit.method}); either the defense does "
            f"not do what it says or the bound is wrong: report this."
        )
    return limit


def _limit(transcript: Transcript, channel: GradientChannel, batch: int) -> Bounds:
    """The tighter of two bounds: Fano with the capacity of the Gaussian channel, and the trade-off of
    Gaussian noise between any two clipped means, at most twice the clip apart. Rounds add up. What the noise
    is added to has a norm of at most the clip; the noise is the same in every entry, fresh in every round."""
    sizes = [value.numel() if value.dim() else 0 for value in channel.rounds[0].values()]
    defenses = channel.fitted or (channel.defense,) * len(channel.rounds)
    noise = any(defense.adds_noise for defense in defenses)
    seen = [one for defense in defenses if (one := defense.mechanism(batch, sum(sizes))) and one.std]
    told = transcript.blind is not None  # side knowledge changes the odds of every trial
    if told or len(seen) < len(defenses) or 0 in sizes:  # a number without a shape may pass a filter as it is
        return Bounds(noise=noise)
    capacity = sum(bounds.clipped_capacity(one.clip, one.std, sum(sizes)) for one in seen)
    by_capacity = bounds.fano_accuracy(capacity, transcript.prior)
    apart = math.sqrt(sum((2 * one.clip / one.std) ** 2 for one in seen))
    by_noise = bounds.gaussian_accuracy(apart, transcript.prior)
    accuracy = min(by_capacity, by_noise)
    method = "Fano, Gaussian capacity" if by_capacity <= by_noise else "Gaussian trade-off of clipped means"
    return Bounds(
        advantage=bounds.advantage_of(accuracy, transcript.prior),
        accuracy=accuracy,
        information=capacity,
        method=f"{method}, {len(seen)} rounds",
        noise=noise,
    )
