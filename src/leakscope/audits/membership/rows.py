"""The tables and the curve of one federation, in words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import takewhile
from typing import Any

from leakscope.audits.membership.view import SUBSTANTIAL, AttackOverSeeds, Federation
from leakscope.report.pages import interval, listed, number, percent, plural
from leakscope.report.plot import VACUOUS
from leakscope.results.averages import Average, average, needed, thinned

POINTS = 80  # drawn of one ROC curve, at most
NAMES = ("plr_at_1%", "auroc", "tpr_at_1%", "tpr_at_0.1%")
RARE = {"tpr_at_1%": 0.01, "tpr_at_0.1%": 0.001}
USES = {
    "updates": "updates",
    "models": "global models only, no update",
    "all updates": "updates, the other clients' too",
    "participation": "updates, and who took part in which round",
}
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


def say_spaces(federation: Federation) -> Iterator[str]:
    """How an attack by row spaces saw the updates, and whether it made no error here."""
    for i, attack in enumerate(federation.attacks):
        spaces = [space for found in federation.founds for space in found.attacks[i].reach]
        if not spaces or not attack.alike:
            continue
        ranks, layers = [space.rank for space in spaces], dict.fromkeys(space.layer for space in spaces)
        several = f"{min(ranks):,} to {max(ranks):,}" if min(ranks) < max(ranks) else f"{min(ranks):,}"
        most = dict.fromkeys(f"{space.most:,}" for space in spaces)
        full = [space for space in spaces if not space.open]
        yield (
            f"{attack.attack} asks whether a record lies in the space that the updates of a linear layer "
            f"span (layer {listed(layers)}): rank {several}, at most {listed(most)}; gap "
            f"{number(min(space.gap for space in spaces), 1)} or more."
        )
        if full:
            yield (
                f"In {len(full)} of {plural(len(spaces), 'space')} the rank is as high as it can be, or "
                f"records of nobody lie in it too: there are more records than the rank, or decay, Adam or "
                f"noise disturbed the updates. {attack.attack} says little there. Go by the other attacks."
            )
        elif not attack.few and attack.found.value == 1:
            yield (
                f"Members of a client below the rank are found without error: here all of those that were "
                f"judged, at 1% false alarms ({100 * attack.found.level:.4g}% interval "
                f"{percent(attack.found.low)} to {percent(attack.found.high)})."
            )


def say_sums(federation: Federation) -> Iterator[str]:
    """What sums give away: by who took part in them, and with every round in which all did."""
    found, readings = federation.first, {attack.first.uses: attack for attack in reversed(federation.attacks)}
    told = readings.get("participation")
    if found.took_part and min(found.took_part) < found.rounds:
        least, most = min(found.took_part), max(found.took_part)
        yield (
            f"Clients took part in {least} to {most} of {plural(found.rounds, 'round')}. A sum hides a "
            f"client only among those who are always there with it: whoever knows who took part holds the "
            f"sums with a client against those without it."
        )
        if told and not told.few:
            plain = readings.get("updates")
            beside = f", the sums alone {interval(plain.found, percent)}" if plain else ""
            finds = interval(told.found, percent)
            yield f"That finds {finds} of a client's members at 1% false alarms{beside}."
    attack = federation.attacks[0]
    if len(growth := list_growth(federation)) > 1 and not attack.few:
        steps = [f"{interval(after, percent)} after {plural(count, 'round')}" for count, after in growth]
        yield (
            f"With every client in every sum, {attack.attack} finds at 1% false alarms {', '.join(steps)}. "
            f"{_say_rounds(federation, growth)}"
        )


def list_growth(federation: Federation) -> list[tuple[int, Average]]:
    """What the first attack finds after so many rounds, the last being all: means over seeds, between the
    lowest and the highest limit of any."""
    attack = federation.attacks[0]
    every = [run.attacks[0].growth for run in federation.founds]
    if not all(every):
        return []
    counts = [[count for count, _ in steps] for steps in every]
    if any(one != counts[0] for one in counts):
        return []
    growth = []
    for step in zip(*every, strict=True):
        count, estimates = step[0][0], [estimate for _, estimate in step]
        whole = average(estimates, least=0.0, most=1.0)
        low, high = min(one.low for one in estimates), max(one.high for one in estimates)
        growth.append((count, replace(whole, low=low, high=high)))
    return [*growth, (federation.first.rounds, attack.found)]


def _say_rounds(federation: Federation, growth: list[tuple[int, Average]]) -> str:
    """How many rounds stay below the limit from which a finding is substantial, if that can be said."""
    limit = f"{SUBSTANTIAL:.0%}"
    below = [count for count, after in takewhile(lambda step: step[1].high < SUBSTANTIAL, growth)]
    if growth[0][1].low >= SUBSTANTIAL:
        return f"One round is already above {limit}: no number of rounds stays below it."
    if below and not federation.doubts and federation.attacks[0].alike:
        return (
            f"Up to {plural(below[-1], 'round')} its upper limit stays below {limit}. A stronger attack may "
            f"find more."
        )
    return f"How many rounds would stay below {limit} cannot be said from these records."
