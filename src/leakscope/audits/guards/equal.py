"""A fair comparison: a baseline's strength at which it is attacked, or is of use, as a given guard is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import torch
from torch import Tensor

from leakscope.audits.guards.evaluation import choose_attacks, try_attacks
from leakscope.audits.guards.found import Tuning
from leakscope.audits.guards.task import measure_task, with_head, worth_each
from leakscope.audits.guards.trial import Trial
from leakscope.core.dataset import Dataset
from leakscope.core.errors import require
from leakscope.core.nouns import Attack, Estimate
from leakscope.core.rng import integer, seeded
from leakscope.games import Membership
from leakscope.guards.encoder import Encoder, Guarded
from leakscope.guards.estimators import mean_of
from leakscope.guards.hidden import Guard, Hidden, Strength, hidden_by, strength_of
from leakscope.guards.trainer import Progress
from leakscope.results.scores import Scores

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
) -> tuple[Guard, Tuning]:
    """The guard ``make(value)`` whose attack or utility is nearest to ``target``, and what was tried.

    A ``target`` that is a guard is trained and measured alike.
    ``values`` go from the weakest to the strongest; they are halved, not all tried, so both numbers should
    fall along them. ``to`` "privacy": what the strongest attack finds, as `strength` has it; "utility": the
    accuracy of a fresh head, where the target is a guard on the same records for both (`compare_utility`).
    Everything else is measured on a half of the public records, and for membership on members the adversary
    is told: none of what the final number comes from.
    """
    require(to in ("privacy", "utility"), "tuned.to", "privacy or utility", to)
    require(len(values) >= 1, "tuned.values", "at least one strength", values)
    if to == "utility" and callable(target):
        return compare_utility(make, values, trial, like=target, seed=seed, others=others)
    rehearsed = rehearsal(trial, seed)

    def measured(guard: Guard) -> Estimate:
        encoder = guard(trial.train, seeded(seed, "tuned"), others=others).encoder
        if to == "utility":
            return measure_task(encoder, replace(rehearsed, train=trial.train))
        return strength(with_head(encoder, replace(rehearsed, train=trial.train)), rehearsed, attacks)

    goal = measured(target).value if callable(target) else target
    tried = halved(lambda value: measured(make(value)), values, goal)
    best = min(tried, key=lambda value: abs(tried[value].value - goal))
    estimate = tried[best]
    return make(best), Tuning(
        to=to,
        target=goal,
        value=best,
        measured=estimate,
        reached=estimate.low <= goal <= estimate.high,
        tried={str(value): tried[value].value for value in sorted(tried, key=list(values).index)},
    )


def compare_utility(
    make: Callable[[float], Guard],
    values: Sequence[float],
    trial: Trial,
    *,
    like: Guard,
    seed: int = 0,
    others: Dataset | None = None,
    folds: int = 2,
) -> tuple[Guard, Tuning]:
    """The guard ``make(value)`` that is as useful as another, by what both are worth on the same records.

    The guard's own records are cut into ``folds``; each guard is trained on all but one of them, and its
    fresh head judged on that one. The difference of two guards is taken record by record, so that what makes
    a record hard for both does not count as chance."""
    data = trial.train

    def worth(guard: Guard) -> Tensor:
        found = torch.empty(len(data), dtype=torch.double)
        order = torch.randperm(len(data), generator=seeded(seed, "folds"))
        for i, held in enumerate(order.chunk(folds)):
            fit = data.take(order[~torch.isin(order, held)])
            encoder = guard(fit, seeded(seed, "tuned", i), others=others).encoder
            found[held] = worth_each(encoder, replace(trial, train=fit, test=data.take(held)))
        return found

    goal = worth(like)
    each = {}

    def difference(value: float) -> Estimate:
        each[value] = worth(make(value))
        return _mean("difference of utility", each[value] - goal)

    tried = halved(difference, values, 0.0)
    best = min(tried, key=lambda value: abs(tried[value].value))
    ways = sorted(tried, key=list(values).index)
    apart = tried[best]
    return make(best), Tuning(
        to="utility",
        target=float(goal.mean()),
        value=best,
        measured=_mean("utility", each[best]),
        reached=apart.low <= 0 <= apart.high,
        tried={str(value): float(each[value].mean()) for value in ways},
        difference=apart,
        alike=tuple(str(v) for v in ways if v != best and tried[v].low <= 0 <= tried[v].high),
    )


def _mean(name: str, values: Tensor, level: float = 0.95) -> Estimate:
    return replace(mean_of(values, level=level, method="cross-fitted, record by record"), name=name)


@dataclass(frozen=True)
class Tuned:
    """A guard at the strength at which it is as useful, or as private, as another one: a fair comparison.

    ``guard`` is given the strength, of those in ``values`` (its usual ones if there are none), at which its
    utility, or the attack on it, is nearest to that of ``like``, ``to`` either. Utilities are compared record
    by record, across folds of the guard's own records (`compare_utility`); attacks are measured on a third of
    them, after training on the others. On none of these is a number reported. The guard at that strength is
    then trained on all. An epsilon of its own would not count the search, so none is said.
    """

    guard: Guard
    like: Guard
    to: To = "utility"
    values: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        require(self.to in ("privacy", "utility"), "Tuned.to", "privacy or utility", self.to)
        name, way_out = type(self.guard).__name__, "give a guard that has one, alone"
        can = strength_of(self.guard) is not None
        require(can, "Tuned.guard", "one with a strength", name, way_out=way_out)
        hidden = [one.column or one.secret for one in hidden_by(self.like)]
        require(len(hidden) == 1, "Tuned.like", "one guard, of one secret", hidden)

    @property
    def _strength(self) -> Strength:
        """The setting of the guard that is tuned, and the values that are tried, weakest first."""
        own = strength_of(self.guard)
        assert own is not None
        return Strength(own.setting, self.values or own.values)

    def hides(self) -> tuple[Hidden, ...]:
        """What ``like`` hides; a network that was trained along is the tuned guard's."""
        aware = any(own.label_aware for own in hidden_by(self.guard))
        return tuple(replace(own, lam=None, label_aware=aware) for own in hidden_by(self.like))

    @property
    def needs_classes(self) -> bool:
        return bool(getattr(self.guard, "needs_classes", False))

    def at(self, value: float) -> Guard:
        """The guard at a strength."""
        made: Any = self.guard
        name = self._strength.setting
        return cast(Guard, replace(made, **{name: type(getattr(made, name))(value)}))

    def repeat(self, encoder: Encoder) -> Guard:
        """The guard at the strength that was found for an encoder."""
        return self.at(float(encoder.about["tuned"]["value"]))

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
        (hidden,) = self.hides()
        trial = Trial.about(
            hidden, data if self.to == "utility" else fit, held, held, trials=1_000, rehearsals=2_000
        )
        guard, found = tuned(
            self.at,
            self._strength.values,
            trial,
            to=self.to,
            target=self.like,
            seed=integer(rng),
            others=others,
        )
        made = guard(data, rng, others=others, progress=progress)
        told = found.model_copy(update={"strength": self._strength.setting})
        about = {**made.encoder.about, "tuned": told.model_dump(mode="json")}
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
    wanted = tuple(attacks) if attacks is not None else choose_attacks(trial.secret, encoder, trial.train)
    found = try_attacks(encoder, trial, wanted)
    if trial.secret == "reconstruction":
        return max((_likeness(one.scores) for one in found), key=lambda e: e.value)
    (chosen,) = (one.scores for one in found if one.chosen)
    estimate = chosen.balanced_accuracy if trial.secret == "membership" else chosen.auroc
    assert estimate is not None
    return estimate


def _likeness(scores: Scores[Estimate]) -> Estimate:
    if scores.ssim is not None:
        return scores.ssim
    assert scores.mse is not None
    error = scores.mse
    return replace(error, name="minus mse", value=-error.value, low=-error.high, high=-error.low)
