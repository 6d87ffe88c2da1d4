"""What must hold of a result: the bound that no adversary can pass, beside what one measured.

The bounds are those of DP-SGD's channel: every clipped mean has a norm of at most the clip, and the
noise is Gaussian, the same in every entry and fresh in every round.
"""

from __future__ import annotations

import math
from dataclasses import asdict
from functools import partial
from typing import Any

from leakscope import bounds, epsilon
from leakscope.canary import AttributeAudit, Crafted, simulated
from leakscope.channels import GradientChannel
from leakscope.core import Defense, Transcript
from leakscope.defenses.deployed import (
    FlowerAdaptiveClipping,
    FlowerFixedClipping,
    FlowerLocalDp,
    SVTPrivacy,
)
from leakscope.defenses.dpsgd import DPSGD
from leakscope.errors import LeakscopeError
from leakscope.measures.information import mutual_information
from leakscope.measures.shuffled import shuffled
from leakscope.measures.success import advantage

BINS = 60  # of the histogram of a test statistic
SURER = 0.999  # for who holds several limits against one audit
SURE = 1 - 1e-6  # of a measurement above a bound, before anything is accused


def bounded(transcript: Transcript, channel: GradientChannel, batch: int) -> dict[str, Any]:
    """What the adversary learned in nats, and, for DP-SGD, the most that any could have learned.

    A measured lower limit above the bound is an error of one of the two, never a figure.
    """
    found: dict[str, Any] = {"information": asdict(mutual_information(transcript))}
    limit = _limit(transcript, channel, batch)
    found |= limit or dict.fromkeys(("information_bound", "accuracy_bound", "advantage_bound", "method"))
    measured = advantage(transcript, level=SURE)
    if limit and measured.low > limit["advantage_bound"] + 1e-9:
        raise LeakscopeError(
            f"the measured advantage is at least {measured.low:.3f}, above the bound of "
            f"{limit['advantage_bound']:.3f} that holds for every adversary ({limit['method']}); either the "
            f"defense does not do what it says or the bound is wrong: report this."
        )
    return found


def _limit(transcript: Transcript, channel: GradientChannel, batch: int) -> dict[str, Any] | None:
    """The tighter of two bounds: Fano with the capacity of the Gaussian channel, and the trade-off of
    Gaussian noise between any two clipped means, at most twice the clip apart. Rounds add up."""
    defense, rounds = channel.defense, len(channel.rounds)
    if not isinstance(defense, DPSGD) or not defense.noise or math.isinf(defense.clip):
        return None
    if transcript.blind is not None:  # side knowledge changes the odds of every trial
        return None
    std = defense.deviation(batch)
    entries = sum(value.numel() for value in channel.rounds[0].values())
    capacity = rounds * bounds.clipped_capacity(defense.clip, std, entries)
    by_capacity = bounds.fano_accuracy(capacity, transcript.prior)
    by_noise = bounds.gaussian_accuracy(math.sqrt(rounds) * 2 * defense.clip / std, transcript.prior)
    accuracy = min(by_capacity, by_noise)
    method = "Fano, Gaussian capacity" if by_capacity <= by_noise else "Gaussian trade-off of clipped means"
    return {
        "information_bound": capacity,
        "accuracy_bound": accuracy,
        "advantage_bound": bounds.advantage_of(accuracy, transcript.prior),
        "method": f"{method}, {rounds} rounds",
    }


def guaranteed(
    defense: Defense, *, records: int, batch: int, rounds: int, entries: int, delta: float = 1e-5
) -> dict[str, Any] | None:
    """The epsilon of one step of DP-SGD and of the whole training, one record added or removed: exactly
    for the step, by privacy loss distributions for batches drawn from ``records`` (as if each record
    joined at random, which is what accountants take shuffled epochs for).

    Of a deployed filter on uploads of so many ``entries`` the epsilon of one, and of one in every round,
    whatever is changed behind them. Flower's central noise is on the mean alone: its ``unit`` is "mean",
    for a client of equal weight who is changed, and it holds against nobody who sees uploads. Its adaptive
    rule has no bound on how small the noise can get, so that only Andrew's has one."""
    if isinstance(defense, SVTPrivacy):
        one = defense.proven(entries)
        found = {"delta": 0.0, "step": one, "run": rounds * one, "unit": "upload"}
        return found if math.isfinite(one) else None
    if isinstance(defense, FlowerLocalDp):
        return _gaussian(defense.mu, rounds, delta, "upload")
    if isinstance(defense, FlowerFixedClipping) or (
        isinstance(defense, FlowerAdaptiveClipping) and defense.rule == "andrew"
    ):
        return _gaussian(2 / defense.noise if defense.noise else math.inf, rounds, delta, "mean")
    if not isinstance(defense, DPSGD) or not defense.noise or math.isinf(defense.clip):
        return None
    multiplier, steps = defense.multiplier(batch), rounds * math.ceil(records / batch)
    run = epsilon.composed_epsilon(multiplier, delta, steps=steps, sampling=min(1.0, batch / records))
    step = epsilon.gaussian_epsilon(1 / multiplier, delta)
    return {"delta": delta, "step": step, "run": run, "unit": "record"}


def _gaussian(mu: float, rounds: int, delta: float, unit: str) -> dict[str, Any] | None:
    """Of Gaussian noise, where two releases are at most ``mu`` of its deviations apart."""
    if math.isinf(mu):
        return None
    step, run = (epsilon.gaussian_epsilon(math.sqrt(r) * mu, delta) for r in (1, rounds))
    return {"delta": delta, "step": step, "run": run, "unit": unit}


def certified(
    audit: AttributeAudit, crafted: Crafted, defense: DPSGD, transcript: Transcript
) -> dict[str, Any]:
    """What the trials certify about epsilon, beside what the mechanism promises.

    Two records that differ in an attribute are up to twice the clip apart, which is what ``exact``
    takes; ``exact_added`` and the classical formula take the clip, as for a record added or removed.
    """
    std, delta = defense.deviation(1), audit.delta
    return {
        "attribute": audit.attribute,
        "statistic": audit.statistic,
        "delta": delta,
        "crafted": audit.crafted,
        "distance": crafted.distance,
        "clip": defense.clip,
        "std": std,
        "dimensions": crafted.dimensions,
        "trials": len(transcript.secrets),
        "point": epsilon.epsilon_point(transcript, delta=delta),
        "any": asdict(epsilon.epsilon_lower_bound(transcript, delta=delta)),
        "gaussian": asdict(epsilon.epsilon_lower_bound(transcript, delta=delta, trade_off="gaussian")),
        "sure": {"any": asdict(epsilon.epsilon_lower_bound(transcript, delta=delta, level=SURER))},
        "saturation": epsilon.saturation(len(transcript.secrets), delta),
        "classical": epsilon.classical_epsilon(defense.clip, std, delta),
        "exact": epsilon.gaussian_epsilon(2 * defense.clip / std, delta),
        "exact_added": epsilon.gaussian_epsilon(defense.clip / std, delta),
        "histogram": _histogram(transcript),
    }


def _histogram(transcript: Transcript) -> dict[str, list[float]]:
    scores = transcript.guesses.double()
    low, high = float(scores.min()), float(scores.max())
    width = (high - low) / BINS or 1.0
    counts = [scores[transcript.secrets == b].histc(BINS, low, low + BINS * width).tolist() for b in (0, 1)]
    edges = [low + i * width for i in range(BINS + 1)]
    return {"edges": edges, "h0": counts[0], "h1": counts[1]}


def played(
    audit: AttributeAudit, crafted: Crafted, defense: DPSGD, *, trials: int, rng: Any
) -> dict[str, Any]:
    """The audit game, simulated exactly, and what it certifies; a bound above the guarantee is an error."""
    std = defense.deviation(1)
    transcript = simulated(crafted, std=std, trials=trials, rng=rng, statistic=audit.statistic)
    found = certified(audit, crafted, defense, transcript)
    least = partial(epsilon.epsilon_lower_bound, delta=audit.delta)
    found["selfcheck"] = shuffled(transcript, least, tail=0.05, rng=rng)
    for kind in ("any", "gaussian") if audit.statistic == "likelihood ratio" else ("any",):
        if found[kind]["low"] > found["exact"] + 1e-9:
            raise LeakscopeError(
                f"the trials certify epsilon {found[kind]['low']:.3f}, above the mechanism's own "
                f"{found['exact']:.3f}; the mechanism does not do what it says: report this."
            )
    return found
