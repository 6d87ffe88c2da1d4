"""The tables and the curve of one federation, in words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from leakscope.audits.membership.view import AttackOverSeeds, Federation, Site
from leakscope.report.pages import percent, write_measure
from leakscope.report.plot import VACUOUS
from leakscope.results.averages import Average, needed, thinned
from leakscope.results.chapter import SEVERITIES
from leakscope.results.scores import MEASURES, Scores

POINTS = 80  # drawn of one ROC curve, at most
NAMES = ("plr_at_1%", "auroc", "tpr_at_1%", "tpr_at_0.1%")
COLUMNS = tuple(MEASURES[name].title for name in NAMES)
RARE = {"tpr_at_1%": 0.01, "tpr_at_0.1%": 0.001}
USES = {"updates": "updates", "models": "global models only, no update"}
NOT_ENOUGH = "not enough evidence"
LABELS = {
    "known": "knows the record's label",
    "predicted": "does not know the record's label: takes the one the model predicts",
    "sum": "does not know the record's label: sums over all",
    "max": "does not know the record's label: tries each",
}


@dataclass(frozen=True)
class ClientRow:
    """A number in a table, its interval, and a remark."""

    value: str
    between: str = ""
    remark: str = ""


@dataclass(frozen=True)
class Row:
    name: str
    remarks: tuple[str, ...]
    entries: tuple[ClientRow, ...]
    severity: str = ""

    @property
    def word(self) -> str:
        return SEVERITIES.get(self.severity, "")


def attack_rows(federation: Federation) -> list[Row]:
    """Every attack, and what needs none."""
    guessing = Row(
        "Guessing", (), tuple(ClientRow(write_measure(name, MEASURES[name].chance)) for name in NAMES)
    )
    return [*(_attack_row(federation, attack) for attack in federation.attacks), guessing]


def _attack_row(federation: Federation, attack: AttackOverSeeds) -> Row:
    uses = USES.get(attack.first.uses or "", "")
    knows = LABELS.get(attack.first.label or "", "")
    taught = "More knowledge: taught by half of the members" if attack.taught else ""
    remarks = (taught, "; ".join(part for part in (uses, knows) if part))
    averages = dict(attack.scores.present())
    entries = tuple(
        _entry(attack.deviation, name, averages.get(name), _too_few(federation, name, averages.get(name)))
        for name in NAMES
    )
    return Row(attack.attack, tuple(filter(None, remarks)), entries, attack.severity)


def site_row(site: Site) -> Row:
    """One client; no number where none would mean anything."""
    entries = [ClientRow(f"{site.members:,}"), ClientRow(site.attack)]
    for name, average, few in (("tpr_at_1%", site.found, site.few), ("auroc", site.auroc, False)):
        empty = few or average.high - average.low > VACUOUS
        entries.append(ClientRow(NOT_ENOUGH) if empty else _entry(None, name, average))
    taught = ("taught by half of its members",) if site.taught else ()
    return Row(site.client, taught, tuple(entries), site.severity)


def test_rows(federation: Federation) -> Iterator[Row]:
    for attack in federation.attacks:
        averages, entries = dict(attack.scores.present()), []
        for rate, false, true in federation.tests:
            high = "above nominal" if federation.unlikely(rate, averages[false]) else ""
            entries.append(_entry(attack.deviation, false, averages[false], high))
            entries.append(_entry(attack.deviation, true, averages[true]))
        yield Row(attack.attack, ("taught by members",) if attack.taught else (), tuple(entries))


def curve(federation: Federation) -> dict[str, Any]:
    """What is drawn of the strongest attack: its ROC curve and two points of it with intervals."""
    attack = federation.strongest
    marks = [
        (rate, (a.value, a.low, a.high), f"at {percent(rate)}: {percent(a.value)} ({_between(name, a)})")
        for name, a in attack.scores.present()
        if (rate := RARE.get(name))
    ]
    mean = f", both the mean of {attack.games} clients" if attack.games > 1 else ""
    seeds = ", mean over seeds" if len(federation.keys) > 1 else ""
    note = f"Points: 0.1% and 1% false alarms with intervals. Line: the whole curve{mean}{seeds}."
    return {"points": thinned(attack.roc, POINTS), "marks": marks, "note": note}


def _entry(
    deviation: Scores[float] | None, name: str, average: Average | None, remark: str = ""
) -> ClientRow:
    if average is None:
        return ClientRow("–")
    std = dict(deviation.present()).get(name) if deviation else None
    spread = f" ± {write_measure(name, std)}" if std is not None else ""
    return ClientRow(write_measure(name, average.value) + spread, _between(name, average), remark)


def _between(name: str, average: Average) -> str:
    return f"{write_measure(name, average.low)} to {write_measure(name, average.high)}"


def _too_few(federation: Federation, name: str, average: Average | None) -> str:
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
