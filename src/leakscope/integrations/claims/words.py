"""An answer in plain words for a terminal, and as a table for machines."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any

from scipy.special import expit

from leakscope.integrations.claims.answer import Claimed, MeasuredStanding, Promise, show

WHAT = {"upload": "one upload", "client": "a client in all rounds", "record": "a record in all rounds"}
NEVER = "A lower bound confirms no promise: that rests on the accounting and its conditions."
HEADER = ["epsilon of", "against those", "uploads", "added or removed", "replaced", "delta", "only if"]


def say_verdict(answer: Claimed) -> str:
    """In one sentence, never more than is known."""
    promise = answer.promise
    if promise is None:
        return "Nothing was promised: the configuration names no epsilon. The table says what holds."
    said = f"epsilon {show(promise.epsilon)} at delta {promise.delta:g} per {promise.whose}"
    said += f" ({promise.neighbours})"
    if answer.kept:
        best = answer.kept[0]
        return (
            f"Promised: {said}. It holds only against those {best.against}, and only if the conditions hold."
        )
    if not answer.asked:
        return f"Promised: {said}. Nothing can be said of it with these settings: see what is assumed."
    if any(one.contradicts for one in answer.measured):
        return f"Promised: {said}. Nobody can say that it is kept: trials contradict the accounting."
    least = min(row.epsilon(promise.neighbours) for row in answer.asked)
    real = "no epsilon holds" if math.isinf(least) else f"the epsilon that holds is {show(least)}"
    return f"Promised: {said}. It is not kept: {real}."


def say_measured(answer: Claimed) -> list[str]:
    """What trials certify, and whether measured, accounted and promised agree, a line each."""
    return [_say_one(one, answer.promise) for one in answer.measured]


def _say_one(one: MeasuredStanding, promise: Promise | None) -> str:
    row, accounted = one.standing, one.standing.epsilon(one.neighbours)
    head = f"Measured, {WHAT[row.whose]} ({one.neighbours}) against those {row.against}"
    if row.chance < 1:
        head += ", drawn in secret"
    if one.played is None:
        return f"{head}: not played, since {one.why}."
    certified, gaussian = one.played.certified, one.played.gaussian
    bare = f"; {show(certified.low)} if nothing is assumed of the noise" if gaussian else ""
    low = "none above 0" if one.low == 0 else f"at least {show(one.low)}"
    said = f"{head}: epsilon {low} ({one.played.level:.0%}, {certified.n:,} trials with {one.canary}{bare}). "
    said += "Accounted: none holds. " if math.isinf(accounted) else f"Accounted: {show(accounted)}. "
    if one.contradicts:
        return said + "The trials show more than was accounted for: one of the two is wrong. Rely on neither."
    if promise is None:
        return said + f"The two agree. {NEVER}"
    said += f"Promised: {show(promise.epsilon)}. "
    if one.low > promise.epsilon:
        return said + "The trials alone break the promise."
    if accounted > promise.epsilon * (1 + 1e-9):
        return (
            said + "The accounting does not keep the promise. That the trials did not show it clears nobody."
        )
    return said + f"The three agree. {NEVER}"


def rows(answer: Claimed) -> list[list[str]]:
    """What stands, with the numbers of its conditions; a client and a record of one epsilon in one row."""
    numbered = conditions(answer)
    found: dict[tuple[str, ...], list[str]] = {}
    for row in answer.standings:
        only_if = ", ".join(str(numbered.index(sentence) + 1) for sentence in row.only_if)
        sums = "with secure sums" if row.secure else "as it is"
        ends = (row.against, sums, show(row.added), show(row.replaced), f"{row.delta:g}", only_if)
        found.setdefault(ends, []).append(WHAT[row.whose])
    return [[" or ".join(whose), *ends] for ends, whose in found.items()]


def conditions(answer: Claimed) -> list[str]:
    return list(dict.fromkeys(sentence for row in answer.standings for sentence in row.only_if))


def notes(answer: Claimed) -> list[str]:
    """What stands below the table."""
    numbered = [f"{i}. {sentence}" for i, sentence in enumerate(conditions(answer), start=1)]
    lines = _listed("Means", _meanings(answer))
    lines += _listed("Only if", numbered)
    lines += _listed("Arithmetic", dict.fromkeys(row.how for row in answer.standings if not row.secure))
    lines += _listed("Gives nothing", answer.idle)
    lines += _listed("Assumed", answer.assumed)
    return lines + ([f"Instead: {answer.instead}"] if answer.instead else [])


def _meanings(answer: Claimed) -> Iterator[str]:
    """What the epsilon of what was promised lets everybody find who sees as much: the largest, which needs
    the fewest conditions."""
    promise = answer.promise
    if promise is None:
        return
    rising = sorted(answer.asked, key=lambda row: row.epsilon(promise.neighbours))
    for against, row in {row.against: row for row in rising}.items():
        epsilon = row.epsilon(promise.neighbours)
        right = min(1.0, expit(epsilon) + row.delta * expit(-epsilon))
        worth = "no epsilon" if math.isinf(epsilon) else f"epsilon {show(epsilon)}"
        yield (
            f"with {worth}, those {against} and must say which of two it was are right in up to "
            f"{100 * right:.4g}% of cases, where 50% is guessing"
        )


def as_json(answer: Claimed) -> dict[str, Any]:
    """Where no epsilon holds, it is null."""
    table: dict[str, Any] = asdict(answer)
    table["standings"] = [
        {name: None if value == math.inf else value for name, value in asdict(row).items()}
        for row in answer.standings
    ]
    table["measured"] = [
        {
            "whose": one.standing.whose,
            "against": one.standing.against,
            "neighbours": one.neighbours,
            "delta": one.standing.delta,
            "chance": one.standing.chance,
            "low": one.low if one.played else None,
            "low_any": one.played.certified.low if one.played else None,
            "level": one.played.level if one.played else None,
            "trials": one.played.certified.n if one.played else 0,
            "canary": one.canary,
            "sentence": said,
        }
        for one, said in zip(answer.measured, say_measured(answer), strict=True)
    ]
    return {**table, "verdict": answer.verdict, "sentence": say_verdict(answer)}


def _listed(title: str, lines: Iterable[str]) -> list[str]:
    found = [f"  {line}" for line in lines]
    return [f"{title}:", *found] if found else []
