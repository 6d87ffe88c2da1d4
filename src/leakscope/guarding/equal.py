"""A fair comparison: a baseline's strength at which it is attacked, or is of use, as a given guard is."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, cast

import torch

from leakscope.core import Attack, Estimate
from leakscope.dataset import Dataset
from leakscope.errors import require
from leakscope.games import Membership
from leakscope.guarding.audit import Guard
from leakscope.guarding.evaluation import Secret, Trial, judged, released, suited, utility
from leakscope.guards.encoder import Encoder, Guarded
from leakscope.guards.trainer import Progress
from leakscope.rng import integer, seeded

Json = dict[str, Any]
To = Literal["privacy", "utility"]


def tuned(
    make: Callable[[float], Guard],
    values: Sequence[float],
    trial: Trial,
    *,
    to: To,
    target: float | Guard,
    seed: int = 0,
    others: Dataset | None = None,
    attacks: Sequence[Attack] | None = None,
) -> tuple[Guard, Json]:
    """The guard ``make(value)`` whose attack or utility is nearest to ``target``, and what was tried.

    A ``target`` that is a guard is trained and measured alike.
    ``values`` go from the weakest to the strongest; they are halved, not all tried, so both numbers should
    fall along them. ``to`` "privacy": what the strongest attack finds, as `strength` has it; "utility": the
    accuracy of a fresh head. Everything is measured on a half of the public records, and for membership on
    members the adversary is told: none of what the final number comes from.
    """
    require(to in ("privacy", "utility"), "tuned.to", "privacy or utility", to)
    require(len(values) >= 1, "tuned.values", "at least one strength", values)
    rehearsed = rehearsal(trial, seed)

    def measured(guard: Guard) -> Estimate:
        encoder = guard(trial.train, seeded(seed, "tuned"), others=others).encoder
        if to == "utility":
            found = utility(encoder, replace(rehearsed, train=trial.train))
            return Estimate(**found["fresh"]["accuracy"])
        return strength(released(encoder, replace(rehearsed, train=trial.train)), rehearsed, attacks)

    goal = measured(target).value if callable(target) else target
    tried = halved(lambda value: measured(make(value)), values, goal)
    best = min(tried, key=lambda value: abs(tried[value].value - goal))
    estimate = tried[best]
    return make(best), {
        "to": to,
        "target": goal,
        "value": best,
        "measured": asdict(estimate),
        "reached": estimate.low <= goal <= estimate.high,
        "tried": {str(value): tried[value].value for value in sorted(tried, key=list(values).index)},
    }


STRENGTHS: dict[str, tuple[str, tuple[float, ...]]] = {  # a guard's one strength, weakest first
    "Unguarded": ("epochs", (35, 20, 12, 8, 6, 4, 3, 2, 1)),
    "DPEncoder": ("scale", (0.0, 0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)),
    "DPParameters": ("scale", (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)),
    "Compressed": ("rate", (0.0, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98)),
    "AdversarialTraining": ("lam", (0.0, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)),
    "DPFE": ("weight", (0.0, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)),
    "DPSGDGuard": ("epsilon", (64.0, 32.0, 16.0, 8.0, 4.0, 2.0, 1.0, 0.5)),
    "AdvReg": ("alpha", (0.0, 0.3, 1.0, 3.0, 10.0, 30.0)),
    "NeuGuard": ("alpha", (0.0, 0.5, 5.0, 50.0, 500.0)),
    "Distilled": ("without", (0, 1, 2, 5, 10, 15, 20)),
    "Inf2Guard": ("lam", (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)),
}


@dataclass(frozen=True)
class Tuned:
    """A guard at the strength at which it is as useful, or as private, as another one: a fair comparison.

    ``guard`` is given the strength, of those in ``values`` (its usual ones if there are none), at which its
    utility, or the attack on it, is nearest to that of ``like``, ``to`` either. All are measured on a third
    of the guard's own records, on which no number is reported, after training on the others. The guard at
    that strength is then trained on all. An epsilon of its own would not count the search, so none is said.
    """

    guard: Guard
    like: Guard
    to: To = "utility"
    values: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        require(self.to in ("privacy", "utility"), "Tuned.to", "privacy or utility", self.to)
        known = ", ".join(STRENGTHS)
        require(self.kind in STRENGTHS, "Tuned.guard", f"one with a strength ({known})", self.kind)
        guards = getattr(self.like, "guards", None)
        require(guards is None, "Tuned.like", "one guard, of one secret", guards)

    @property
    def kind(self) -> str:
        """The class of the guard that is tuned."""
        return type(self.guard).__name__

    @property
    def secret(self) -> Secret:
        """What ``like`` guards."""
        found: Secret = getattr(self.like, "secret", "attribute")
        return found

    @property
    def column(self) -> str | None:
        """See `secret`."""
        return getattr(self.like, "column", None)

    @property
    def usual(self) -> tuple[float, ...]:
        """The strengths that are tried, weakest first."""
        most = getattr(self.guard, "models", math.inf)  # Distilled leaves a record to one model at least
        return tuple(value for value in STRENGTHS[self.kind][1] if value < most)

    def at(self, value: float) -> Guard:
        """The guard at a strength."""
        made: Any = self.guard
        name = STRENGTHS[self.kind][0]
        return cast(Guard, replace(made, **{name: type(getattr(made, name))(value)}))

    def __call__(
        self,
        data: Dataset,
        rng: torch.Generator,
        *,
        others: Dataset | None = None,
        progress: Progress | None = None,
    ) -> Guarded:
        """See `Inf2Guard`; progress is that of the last training."""
        order = torch.randperm(len(data), generator=rng)
        fit, held = (data.take(rows) for rows in order.tensor_split([2 * len(data) // 3]))
        trial = Trial(fit, held, held, self.secret, self.column, trials=1_000, rehearsals=2_000)
        values = self.values or self.usual
        guard, found = tuned(
            self.at, values, trial, to=self.to, target=self.like, seed=integer(rng), others=others
        )
        made = guard(data, rng, others=others, progress=progress)
        about = {**made.encoder.about, "tuned": found | {"strength": STRENGTHS[self.kind][0]}}
        about |= {"epsilon": None} if "epsilon" in about else {}
        return replace(made, encoder=replace(made.encoder, about=about))


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
