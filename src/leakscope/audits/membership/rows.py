"""The tables and the curve of one federation, in words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from leakscope.audits.membership.view import AttackOverSeeds, Federation
from leakscope.report.pages import interval, number, percent
from leakscope.report.plot import VACUOUS
from leakscope.results.averages import Average, needed, thinned

POINTS = 80  # drawn of one ROC curve, at most
NAMES = ("plr_at_1%", "auroc", "tpr_at_1%", "tpr_at_0.1%")
RARE = {"tpr_at_1%": 0.01, "tpr_at_0.1%": 0.001}
USES = {"updates": "updates", "models": "global models only, no update"}
NOT_ENOUGH = "not enough evidence"
NO_NUMBER = "no number: members differ from the others in more than membership"
LABELS = {
    "known": "knows the record's label",
    "predicted": "does not know the record's label: takes the one the model predicts",
    "sum": "does not know the record's label: sums over all",
    "max": "does not know the record's label: tries each",
}


def list_remarks(attack: AttackOverSeeds) -> Iterator[str]:
    """What an attack is told, and what it looks at."""
    if attack.taught:
        yield "More knowledge: half of the members"
    known = (USES.get(attack.first.uses or ""), LABELS.get(attack.first.label or ""))
    yield from filter(None, ["; ".join(part for part in known if part)])


def says_nothing(average: Average) -> bool:
    """Whether an interval rules nothing out."""
    return average.high - average.low > VACUOUS


def write_chance(p: float) -> str:
    """A p-value; the smallest are not written out."""
    return number(p) if p >= 0.001 else "below 0.001"


def curve(federation: Federation) -> dict[str, Any]:
    """What is drawn of the strongest attack: its ROC curve and two points of it with intervals."""
    attack = federation.strongest
    marks = [
        (rate, (a.value, a.low, a.high), f"at {percent(rate)}: {interval(a, percent)}")
        for name, a in attack.scores.present()
        if (rate := RARE.get(name))
    ]
    mean = f", both the mean of {attack.games} clients" if attack.games > 1 else ""
    seeds = ", mean over seeds" if len(federation.keys) > 1 else ""
    note = f"Points: 0.1% and 1% false alarms with intervals. Line: the whole curve{mean}{seeds}."
    return {"points": thinned(attack.roc, POINTS), "marks": marks, "note": note}


def say_too_few(federation: Federation, name: str, average: Average | None) -> str:
    """Where fewer non-members were judged than a lower limit above 0 takes, or, over several seeds, than it
    takes to allow one false alarm."""
    if name not in RARE or average is None:
        return ""
    one, judged = average.seeds == 1, federation.first.judged
    wanted = needed(average.level, RARE[name]) if one else round(1 / RARE[name])
    if judged >= wanted or (one and average.low > 0):
        return ""
    vague = not one or average.high >= VACUOUS
    reason = f"takes {wanted:,} non-members, {judged:,} were judged"
    return f"{NOT_ENOUGH}: {reason}" if vague else f"no lower limit: {reason}"
