"""Is a claim of privacy true? A deployed configuration in, the epsilons that really hold out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from leakscope.audits.mechanism.duel import FEWEST
from leakscope.core.errors import refuse_all, require
from leakscope.integrations.claims.answer import (
    DELTA,
    EPSILON,
    NEIGHBOURS,
    WHOSE,
    Claimed,
    MeasuredStanding,
    Promise,
    Standing,
    allow_delta,
)
from leakscope.integrations.claims.measure import TRIALS, Watch, measure_claim
from leakscope.integrations.claims.read import parse_settings, read_source

__all__ = ["Claimed", "MeasuredStanding", "Promise", "Standing", "claim"]


def claim(
    source: str | Path,
    settings: Mapping[str, Any] | Sequence[str] = (),
    *,
    promise: float | None = None,
    per: str | None = None,
    delta: float | None = None,
    neighbours: str | None = None,
    measure: bool = False,
    trials: int = TRIALS,
    seed: int = 0,
    watch: Watch = lambda done, total: None,
) -> Claimed:
    """Say which epsilon a deployed configuration really has, and whether it keeps what was promised.

    ``source`` is a pyproject.toml of a Flower app, a client's job config of NVFlare as .json, .conf or
    .yml, or the name of a framework: flower-local, flower-fixed, flower-adaptive, nvflare, opacus, tff,
    jax-privacy. ``settings`` are in that framework's words. ``promise`` is an epsilon that was promised
    ``per`` upload, client or record, for ``neighbours`` "replace" or "add or remove"; without it, the one in
    the configuration, if it has one. ``delta`` is the delta to ask at; without it, the configuration's.

    ``measure`` plays up to so many ``trials`` with a canary through the mechanism itself, and says what they
    certify beside what is accounted and promised; ``watch`` is told how far they are. They end early where
    they break the promise, or what was accounted."""
    asked = (
        ("promise", promise, EPSILON),
        ("per", per, WHOSE),
        ("delta", delta, DELTA),
        ("neighbours", neighbours, NEIGHBOURS),
    )
    bad = [
        f"{name} must be {words}, got {value!r}."
        for name, value, (words, holds) in asked
        if value is not None and not holds(value)
    ]
    refuse_all(bad, "the question")
    require(trials >= FEWEST, "trials", f"at least {FEWEST}", trials)
    framework, found, named = read_source(source, parse_settings(settings))
    made = found.promise
    at = delta if delta is not None else (made.delta if made else getattr(found, "delta", 1e-5))
    if promise is not None:
        made = Promise(promise, at, *found.usual)
    if made is not None:
        own = {"delta": at, "whose": per or made.whose, "neighbours": neighbours or made.neighbours}
        made = replace(made, **own)  # type: ignore[arg-type]
    named += allow_delta(at, found.people)
    standings = tuple(row.only(named) for row in found.standings(delta))
    answer = Claimed(framework, repr(found), made, standings, found.assumed(), found.idle())
    if measure:
        answer = replace(answer, measured=measure_claim(found, answer, trials=trials, seed=seed, watch=watch))
    broken = made is not None and answer.verdict == "broken"
    return replace(answer, instead=found.nearest(made)) if made and broken else answer
