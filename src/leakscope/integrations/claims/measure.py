"""What trials certify beside what is accounted: a canary through the mechanism that was claimed."""

from __future__ import annotations

from collections.abc import Callable

from leakscope.audits.mechanism.duel import DuelBound, play_duel
from leakscope.core.rng import seeded
from leakscope.integrations.claims.answer import (
    Claimed,
    Configuration,
    MeasuredStanding,
    Neighbours,
    Standing,
)

Watch = Callable[[int, int], None]  # (trials so far, trials in all)
TRIALS = 20_000
LEAST = 1e-9  # the delta of trials where none is asked for: they can tell nothing at 0


def measure_claim(
    found: Configuration, answer: Claimed, *, trials: int, seed: int, watch: Watch
) -> tuple[MeasuredStanding, ...]:
    """Of all that was promised, or would be; with secure sums nothing is played."""
    promise = answer.promise
    whose, neighbours = (promise.whose, promise.neighbours) if promise else found.usual
    rows = [row for row in answer.standings if row.whose == whose and not row.secure]
    bound = promise.epsilon if promise else float("inf")
    return tuple(
        _measure(found, row, neighbours, bound, trials=trials, seed=seed, part=part, watch=watch)
        for part, row in enumerate(rows)
    )


def _measure(
    found: Configuration,
    row: Standing,
    neighbours: Neighbours,
    promised: float,
    *,
    trials: int,
    seed: int,
    part: int,
    watch: Watch,
) -> MeasuredStanding:
    duel = found.duel(row, neighbours)
    if isinstance(duel, str):
        return MeasuredStanding(row, neighbours, None, why=duel)
    accounted = row.epsilon(neighbours)

    def enough(played: DuelBound) -> bool:
        return played.low > min(promised, accounted)

    rng = seeded(seed, "claim", part)
    played = play_duel(duel, delta=row.delta or LEAST, trials=trials, rng=rng, enough=enough, watch=watch)
    return MeasuredStanding(row, neighbours, played, duel.canary)
