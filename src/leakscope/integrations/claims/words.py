"""An answer in plain words for a terminal, and as a table for machines."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from leakscope.integrations.claims.answer import Claimed, show

WHAT = {"upload": "one upload", "client": "a client in all rounds", "record": "a record in all rounds"}
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
    least = min(row.epsilon(promise.neighbours) for row in answer.asked)
    real = "no epsilon holds" if math.isinf(least) else f"the epsilon that holds is {show(least)}"
    return f"Promised: {said}. It is not kept: {real}."


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
    lines = _listed("Only if", numbered)
    lines += _listed("Arithmetic", dict.fromkeys(row.how for row in answer.standings if not row.secure))
    lines += _listed("Gives nothing", answer.idle)
    lines += _listed("Assumed", answer.assumed)
    return lines + ([f"Instead: {answer.instead}"] if answer.instead else [])


def as_json(answer: Claimed) -> dict[str, Any]:
    """Where no epsilon holds, it is null."""
    table: dict[str, Any] = asdict(answer)
    table["standings"] = [
        {name: None if value == math.inf else value for name, value in asdict(row).items()}
        for row in answer.standings
    ]
    return {**table, "verdict": answer.verdict, "sentence": say_verdict(answer)}


def _listed(title: str, lines: Iterable[str]) -> list[str]:
    found = [f"  {line}" for line in lines]
    return [f"{title}:", *found] if found else []
