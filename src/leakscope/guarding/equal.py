"""A fair comparison: a baseline's strength at which it is attacked, or is of use, as a given guard is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any, Literal

import torch

from leakscope.core import Attack, Estimate
from leakscope.dataset import Dataset
from leakscope.errors import require
from leakscope.games import Membership
from leakscope.guarding.audit import Guard
from leakscope.guarding.evaluation import Trial, judged, released, suited, utility
from leakscope.guards.encoder import Encoder
from leakscope.rng import seeded

Json = dict[str, Any]
To = Literal["privacy", "utility"]


def tuned(
    make: Callable[[float], Guard],
    values: Sequence[float],
    trial: Trial,
    *,
    to: To,
    target: float,
    seed: int = 0,
    others: Dataset | None = None,
    attacks: Sequence[Attack] | None = None,
) -> tuple[Guard, Json]:
    """The guard ``make(value)`` whose attack or utility is nearest to ``target``, and what was tried.

    ``values`` go from the weakest to the strongest; they are halved, not all tried, so both numbers should
    fall along them. ``to`` "privacy": what the strongest attack finds, as `strength` has it; "utility": the
    accuracy of a fresh head. Everything is measured on a half of the public records, and for membership on
    members the adversary is told: none of what the final number comes from.
    """
    require(to in ("privacy", "utility"), "tuned.to", "privacy or utility", to)
    require(len(values) >= 1, "tuned.values", "at least one strength", values)
    rehearsed = rehearsal(trial, seed)

    def measured(value: float) -> Estimate:
        encoder = make(value)(trial.train, seeded(seed, "tuned"), others=others).encoder
        if to == "utility":
            found = utility(encoder, replace(rehearsed, train=trial.train))
            return Estimate(**found["fresh"]["accuracy"])
        return strength(released(encoder, replace(rehearsed, train=trial.train)), rehearsed, attacks)

    tried = halved(measured, values, target)
    best = min(tried, key=lambda value: abs(tried[value].value - target))
    estimate = tried[best]
    return make(best), {
        "to": to,
        "target": target,
        "value": best,
        "measured": asdict(estimate),
        "reached": estimate.low <= target <= estimate.high,
        "tried": {str(value): tried[value].value for value in sorted(tried, key=list(values).index)},
    }


def halved(
    measured: Callable[[float], Estimate], values: Sequence[float], target: float
) -> dict[float, Estimate]:
    """What was measured where, falling along ``values``, on the way to the two that ``target`` is between."""
    tried: dict[float, Estimate] = {}
    low, high = -1, len(values)  # above the target up to low, below it from high on
    while high - low > 1:
        middle = (low + high) // 2
        tried[values[middle]] = measured(values[middle])
        if tried[values[middle]].value > target:
            low = middle
        else:
            high = middle
    return tried


def rehearsal(trial: Trial, seed: int) -> Trial:
    """The trial on records that the final number does not see: half of the public ones stand for the test's,
    and for membership the told half of the members for all of them."""
    order = torch.randperm(len(trial.public), generator=seeded(seed, "validation")).chunk(2)
    test, public = (trial.public.take(rows) for rows in order)
    game = trial.games()[1]
    train = game.members if isinstance(game, Membership) else trial.train
    return replace(trial, train=train, test=test, public=public)


def strength(encoder: Encoder, trial: Trial, attacks: Sequence[Attack] | None = None) -> Estimate:
    """What the attack finds that rehearsals choose: balanced accuracy for membership, AUROC for attributes
    and properties; for reconstruction the most likeness, SSIM of images and minus the error of tables."""
    wanted = tuple(attacks) if attacks is not None else suited(trial.secret, encoder)
    found = judged(encoder, trial, wanted)
    if trial.secret == "reconstruction":
        return max((_likeness(entry["estimates"]) for entry in found["attacks"]), key=lambda e: e.value)
    name = "balanced_accuracy" if trial.secret == "membership" else "auroc"
    (chosen,) = (entry for entry in found["attacks"] if entry["chosen"])
    return Estimate(**chosen["estimates"][name])


def _likeness(estimates: Json) -> Estimate:
    if "ssim" in estimates:
        return Estimate(**estimates["ssim"])
    error = Estimate(**estimates["mse"])
    return replace(error, name="minus mse", value=-error.value, low=-error.high, high=-error.low)
