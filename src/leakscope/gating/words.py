"""A verdict for machines, for people at a terminal, and for the page."""

from __future__ import annotations

from typing import Any

from leakscope.gating.appetite import Limit
from leakscope.gating.verdict import NEVER, Judged, Judgement, Verdict
from leakscope.sections import words

SCHEMA = 1
NAMES = {
    "advantage": "advantage",
    "auroc": "AUROC",
    "tpr_at_1%": "TPR at 1% FPR",
    "information": "information in nats",
    "epsilon": "epsilon",
}
ICONS = {"pass": "none", "fail": "severe", "not enough evidence": "inconclusive"}  # of the page


def as_json(verdict: Verdict) -> dict[str, Any]:
    """For machines; every number is finite or null.

    {"schema": 1, "verdict", "measured", "declared", "exit_code", "limits": [{"limit": as in the TOML,
    "verdict", "measured", "declared", "reason", "errors": {"low", "high"}: the chance that one lower, one
    upper limit is wrong, "silent": readings that do not measure it, "trials": enough for all that is open
    or null, "trials_by", "judgements": [{"key": of the result, "seed", "kind", "secret", "data", "defense",
    "adversary", "attack", "value", "low", "high", "n", "method", "promised", "verdict", "measured",
    "declared", "reason", "trials", "trials_by"}]}]}. Verdicts are "pass", "fail", "not enough evidence";
    "verdict" is that of what was measured and what is declared combined. ``low`` and ``high`` are one-sided
    limits; null: what is stored does not give them."""
    return {
        "schema": SCHEMA,
        "verdict": verdict.combined,
        "measured": verdict.measured,
        "declared": verdict.declared,
        "exit_code": verdict.exit_code,
        "limits": [_limit_json(judged) for judged in verdict.limits],
    }


def _limit_json(judged: Judged) -> dict[str, Any]:
    enough = judged.enough or (None, None)
    return {
        "limit": judged.limit.model_dump(),
        "verdict": judged.combined,
        "measured": judged.measured,
        "declared": judged.declared,
        "reason": judged.reason or (judged.decisive.reason if judged.decisive else ""),
        "errors": {"low": judged.errors[0], "high": judged.errors[1]},
        "silent": judged.silent,
        "trials": enough[0],
        "trials_by": enough[1],
        "judgements": [_judgement_json(one) for one in judged.judgements],
    }


def _judgement_json(one: Judgement) -> dict[str, Any]:
    reading, enough = one.reading, one.enough or (None, None)
    return {
        "key": reading.key,
        "seed": reading.seed,
        "kind": " or ".join(reading.kinds),
        "secret": reading.secret,
        "data": reading.data,
        "defense": reading.defense,
        "adversary": reading.adversary,
        "attack": reading.attack,
        "value": one.value,
        "low": one.low,
        "high": one.high,
        "n": one.n,
        "method": one.method,
        "promised": one.promised,
        "verdict": one.combined,
        "measured": one.measured,
        "declared": one.declared,
        "reason": one.reason,
        "trials": enough[0],
        "trials_by": enough[1],
    }


def text(verdict: Verdict) -> list[str]:
    """Lines for people: every limit with what decides it, then the verdict."""
    lines = []
    for judged in verdict.limits:
        lines.append(f"{judged.combined.upper()}: {asked(judged.limit)}.")
        lines += [f"  {line}" for line in _details(judged)]
    lines += notes(verdict)
    lines.append(
        f"Measured: {verdict.measured}. Declared: {verdict.declared}. Combined: {verdict.combined.upper()}."
    )
    return lines


def _details(judged: Judged) -> list[str]:
    """What decides a limit, and what would."""
    one = judged.decisive
    if one is None:
        return [f"{judged.reason}."]
    where = f"{_setting(one)}, seed {one.reading.seed}"
    lines = [f"{where}: {_numbers(one)}."] if one.value is not None or one.promised is not None else [where]
    if one.reason:
        lines.append(f"{one.reason[:1].upper()}{one.reason[1:]}.")
    if judged.enough:
        lines.append(_trials(judged))
    open_, several = sum(o.combined == one.combined for o in judged.judgements), len(judged.judgements)
    if several > 1:
        lines.append(f"{open_} of {several} readings: {one.combined}.")
    if judged.combined == "pass" and _unaware(judged):
        lines.append("Defended, but tried only by an adversary who does not know of the defense.")
    return lines


def _trials(judged: Judged) -> str:
    trials, by = judged.enough or (0, "")
    return (
        f"{trials:,} trials would be enough in nine audits of ten, if what was measured is the truth "
        f"(computed by {by})."
    )


def _unaware(judged: Judged) -> bool:
    """Whether only an adversary who does not know of the defense was tried."""
    tried = [one.reading for one in judged.judgements]
    return any(r.adversaries == ("static",) for r in tried) and not any(
        "adaptive" in r.adversaries for r in tried
    )


def asked(limit: Limit) -> str:
    """A limit in words."""
    who = {"adaptive": "an adaptive adversary", "static": "a static adversary", "any": "any adversary"}
    parts = [
        "every secret" if limit.secret == "*" else limit.secret,
        f"{NAMES[limit.measure]} at most {limit.at_most:g}",
        f"at delta {limit.delta:g}" if limit.measure == "epsilon" else "",
        f"{limit.game} game" if limit.game != "*" else "",
        who[limit.adversary],
        f"defense {words(limit.defense)}" if limit.defense is not None else "",
        f"confidence {100 * limit.confidence:g}%",
    ]
    return ", ".join(part for part in parts if part)


def notes(verdict: Verdict) -> list[str]:
    """How errors are shared, and what is declared."""
    count = len(verdict.limits)
    shares = ", ".join(
        f"{100 * (1 - judged.errors[1]):.4g}% and {100 * (1 - judged.errors[0]):.4g}%"
        for judged in verdict.limits
    )
    lines = [
        f"Upper and lower limits are one-sided, at {shares}: Bonferroni over {count} "
        f"limit{'s' if count > 1 else ''} and the seeds of each, for lower limits over its settings and "
        f"attacks too, since one of them is enough to fail."
    ]
    if any(judged.limit.measure == "epsilon" for judged in verdict.limits):
        lines.append(f"{NEVER[:1].upper()}{NEVER[1:]}; that takes an accountant.")
    if verdict.declared_by:
        told = verdict.declared_by
        lines.append(f"Declared by the operator: epsilon {told.epsilon:g} at delta {told.delta:g}.")
    return lines


def _setting(one: Judgement) -> str:
    reading = one.reading
    parts = (reading.secret, reading.data, f"defense {reading.defense}", reading.attack)
    return ", ".join(part for part in parts if part)


def _numbers(one: Judgement) -> str:
    parts = []
    if one.value is not None:
        ends = f"{_shown(one.low)} to {_shown(one.high)}"
        parts.append(f"measured {one.value:.3f} ({ends}; {one.n:,} trials, {one.method})")
    if one.promised is not None:
        parts.append(f"promised at most {one.promised:.3g}")
    return ", ".join(parts)


def _shown(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}".replace("-", "−")


def section(verdict: Verdict) -> dict[str, Any]:
    """What the template gate.html shows: words and numbers ready for it, none of them markup."""
    return {
        "word": verdict.combined,
        "icon": ICONS[verdict.combined],
        "measured": verdict.measured,
        "declared": verdict.declared,
        "limits": [
            {
                "asked": asked(judged.limit),
                "at_most": f"{judged.limit.at_most:g}",
                "measure": NAMES[judged.limit.measure],
                "word": judged.combined,
                "icon": ICONS[judged.combined],
                "measured": judged.measured,
                "declared": judged.declared,
                "reason": judged.reason,
                "trials": _trials(judged) if judged.enough else "",
                "unaware": judged.combined == "pass" and _unaware(judged),
                "rows": [_row(one) for one in judged.judgements],
            }
            for judged in verdict.limits
        ],
        "notes": notes(verdict),
    }


def _row(one: Judgement) -> dict[str, Any]:
    return {
        "setting": _setting(one),
        "seed": one.reading.seed,
        "value": _shown(one.value),
        "interval": "" if one.value is None else f"{_shown(one.low)} to {_shown(one.high)}",
        "promised": "–" if one.promised is None else f"{one.promised:.3g}",
        "n": one.n,
        "word": one.combined,
        "icon": ICONS[one.combined],
        "reason": one.reason,
    }
