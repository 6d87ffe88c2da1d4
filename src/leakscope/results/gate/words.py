"""A verdict for machines, for people at a terminal, and the words that the page has of it too."""

from __future__ import annotations

from typing import Any

from leakscope.results.cell import capitalise, words
from leakscope.results.gate.appetite import EPSILON, Limit
from leakscope.results.gate.verdict import NEVER, GateVerdict, Judgement, LimitVerdict
from leakscope.results.scores import MEASURES

SCHEMA = 2
ICONS = {"pass": "none", "fail": "severe", "not enough evidence": "inconclusive"}  # of the page


def as_json(verdict: GateVerdict) -> dict[str, Any]:
    """For machines; every number is finite or null.

    {"schema": 2, "verdict", "measured", "declared", "exit_code", "limits": [{"limit": as in the TOML,
    "verdict", "measured", "declared", "reason", "errors": {"low", "high"}: the chance that one lower, one
    upper limit is wrong, "silent": readings that do not measure it, "trials": enough for all that is open
    or null, "trials_by", "judgements": [{"key": of the result, "seed", "kind", "secret", "data", "defense",
    "adversary", "attack", "value", "low", "high", "n", "method", "bound", "promised", "verdict", "measured",
    "declared", "reason", "trials", "trials_by"}]}]}. Verdicts are "pass", "fail", "not enough evidence";
    "verdict" is that of what was measured and what is declared combined. ``low`` and ``high`` are one-sided
    limits; null: what is stored does not give them."""
    return {
        "schema": SCHEMA,
        "verdict": verdict.combined,
        "measured": verdict.measured,
        "declared": verdict.declared,
        "exit_code": verdict.exit_code,
        "limits": [_limit_json(one) for one in verdict.limits],
    }


def _limit_json(one: LimitVerdict) -> dict[str, Any]:
    enough = one.enough or (None, None)
    return {
        "limit": one.limit.model_dump(),
        "verdict": one.combined,
        "measured": one.measured,
        "declared": one.declared,
        "reason": one.reason or (one.decisive.reason if one.decisive else ""),
        "errors": {"low": one.errors[0], "high": one.errors[1]},
        "silent": one.silent,
        "trials": enough[0],
        "trials_by": enough[1],
        "judgements": [_judgement_json(judgement) for judgement in one.judgements],
    }


def _judgement_json(one: Judgement) -> dict[str, Any]:
    reading, number, enough = one.reading, one.number, one.enough or (None, None)
    return {
        "key": reading.key,
        "seed": reading.seed,
        "kind": " or ".join(reading.kinds),
        "secret": reading.secret,
        "data": reading.data,
        "defense": reading.defense,
        "adversary": reading.adversary,
        "attack": reading.attack,
        "value": number.value if number else None,
        "low": one.low,
        "high": one.high,
        "n": number.n if number else None,
        "method": number.method if number else "",
        "bound": number.bound if number else "",
        "promised": one.promised,
        "verdict": one.combined,
        "measured": one.measured,
        "declared": one.declared,
        "reason": one.reason,
        "trials": enough[0],
        "trials_by": enough[1],
    }


def as_text(verdict: GateVerdict) -> list[str]:
    """Lines for people: every limit with what decides it, then the verdict."""
    lines = []
    for one in verdict.limits:
        lines.append(f"{one.combined.upper()}: {say_limit(one.limit)}.")
        lines += [f"  {line}" for line in details(one)]
    return [*lines, *notes(verdict), summarise(verdict)]


def summarise(verdict: GateVerdict) -> str:
    """The verdict in one line."""
    told = verdict.declared_by
    declared = f"You declared epsilon {told.epsilon:g}." if told else "You declared no epsilon."
    bounds = f" Bounds of the mechanism: {verdict.declared}."
    return f"Measurement: {verdict.measured}.{bounds} {declared} Result: {verdict.combined.upper()}."


def details(one: LimitVerdict) -> list[str]:
    """What decides a limit, and what would."""
    decisive = one.decisive
    if decisive is None:
        return [f"{capitalise(one.reason)}."]
    where = f"{name_setting(decisive)}, seed {decisive.reading.seed}"
    told = _numbers(decisive)
    lines = [f"{where}: {told}." if told else f"{where}."]
    if decisive.reason:
        lines.append(f"{capitalise(decisive.reason)}.")
    if one.enough:
        lines.append(say_trials(one))
    same, several = sum(o.combined == decisive.combined for o in one.judgements), len(one.judgements)
    if several > 1:
        lines.append(f"{same} of {several} readings: {decisive.combined}.")
    if tried_unaware(one):
        lines.append("Only an adversary who does not know the defense was tried.")
    return lines


def say_trials(one: LimitVerdict) -> str:
    """How many trials would be enough, where any number would."""
    if one.enough is None:
        return ""
    trials, by = one.enough
    return f"About {trials:,} trials would probably decide (computed by {by})."


def tried_unaware(one: LimitVerdict) -> bool:
    """Whether it passes, and only an adversary who does not know of the defense was tried."""
    tried = [judgement.reading.adversaries for judgement in one.judgements]
    static = ("static",) in tried and not any("adaptive" in adversaries for adversaries in tried)
    return one.combined == "pass" and static


def say_limit(limit: Limit) -> str:
    """A limit in words."""
    who = {"adaptive": "an adaptive adversary", "static": "a static adversary", "any": "any adversary"}
    known = MEASURES.get(limit.measure)
    measure = known.title if known else limit.measure.replace("_", " ")
    accounted = f"at delta {limit.delta:g}, of what was {limit.releases}, one record: {limit.neighbours}"
    if limit.releases == "training":
        accounted = f"at delta {limit.delta:g}, of the whole training, one record: {limit.neighbours}"
    parts = [
        "every secret" if limit.secret == "*" else limit.secret,
        f"{measure} at most {limit.at_most:g}",
        accounted if limit.measure == EPSILON else "",
        f"{limit.game} game" if limit.game != "*" else "",
        who[limit.adversary],
        f"defense {words(limit.defense)}" if limit.defense is not None else "",
        f"confidence {100 * limit.confidence:g}%",
    ]
    return ", ".join(part for part in parts if part)


def notes(verdict: GateVerdict) -> list[str]:
    """How errors are shared, and what an epsilon needs."""
    count = len(verdict.limits)
    shares = ", ".join(
        f"{100 * (1 - one.errors[1]):.4g}% and {100 * (1 - one.errors[0]):.4g}%" for one in verdict.limits
    )
    lines = [
        f"Upper and lower limits are one-sided, at {shares}. Bonferroni: over {count} "
        f"limit{'s' if count > 1 else ''} and the seeds of each; for lower limits over settings and attacks "
        f"too, since one of them is enough to fail."
    ]
    if any(one.limit.measure == EPSILON for one in verdict.limits):
        lines.append(f"{capitalise(NEVER)}. You need an accountant for that.")
    return lines


def name_setting(one: Judgement) -> str:
    """What was attacked, and by whom."""
    reading = one.reading
    parts = (reading.secret, reading.data, f"defense {reading.defense}", reading.attack)
    return ", ".join(part for part in parts if part)


def _numbers(one: Judgement) -> str:
    parts = []
    if one.number is not None and one.number.value is not None:
        ends = f"{shown(one.low)} to {shown(one.high)}"
        trials = f"{one.number.n:,} trials, " if one.number.n else ""
        parts.append(f"measured {one.number.value:.3f} ({ends}; {trials}{one.number.method})")
    if one.promised is not None:
        parts.append(f"promised at most {one.promised:.3g}")
    return ", ".join(parts)


def shown(value: float | None) -> str:
    """Three digits, a true minus, and a dash where there is none."""
    return "–" if value is None else f"{value:.3f}".replace("-", "−")
