"""What results say in a line: of a finished cell, and notes about what was asked of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from leakscope.plan import Plan
    from leakscope.store import Result

UNITS = {  # of what an epsilon is, if not of the whole training
    "upload": ", an upload in every round together",
    "mean": " for who sees nothing but the mean of all clients; no epsilon holds against the server",
}
THRESHOLD = 99  # records of nobody, so that one in a hundred can be told apart


def headline(result: Result) -> str:
    """One line about a finished cell."""
    if "error" in result:
        return f"failed: {result['error']}"
    if "audit" in result:
        audit = result["audit"]
        return (
            f"epsilon at least {audit['any']['low']:.2f} whatever the mechanism, "
            f"{audit['gaussian']['low']:.2f} as it is Gaussian (promised: at most {audit['exact']:.2f})"
        )
    if "localisation" in result:
        told = [
            (s["secret"], s["together"]["information"]["value"], s["most"])
            for s in result["localisation"]["latent"]
        ]
        return (
            "; ".join(f"{secret}: {nats:.2f} of {most:.2f} nats" for secret, nats, most in told) or "measured"
        )
    if "guarding" in result:
        return "; ".join(_guarded(one) for one in result["guarding"]["judged"])
    if "membership" in result:
        return "; ".join(
            f"{found['attack']} finds {found['estimates']['tpr_at_1%']['value']:.0%} of members at 1% false "
            f"alarms"
            for found in result["membership"]["attacks"]
        )
    success, base = result["estimates"]["success"], result["guessing"]
    words = f"right in {success['value']:.1%} of trials, guessing {base:.1%}"
    if promise := result.get("guarantee"):
        from leakscope.pages import promised, small

        pair = f"({promised(promise['run'])}, {small(promise['delta'])})-DP"
        each = UNITS.get(promise.get("unit", ""), "")
        words += f"; by its own accounting {pair}{each}"
    return words


def _guarded(judged: Mapping[str, Any]) -> str:
    """What the strongest attacker still finds about one secret, and what the task is worth."""
    fresh = [entry for entry in judged["attacks"] if entry["queries"] == 1]
    entry = next((one for one in fresh if one["chosen"]), fresh[0])
    shown = [
        (name, entry["estimates"][name]["value"]) for name in ("auroc", "ssim") if name in entry["estimates"]
    ]
    found = ", ".join(f"{name} {value:.3f}" for name, value in shown)
    worth = judged["utility"]["fresh"]["accuracy"]["value"]
    return f"{judged['column'] or judged['secret']}: {entry['name']} {found}, task accuracy {worth:.3f}"


def notes(plan: Plan, results: Sequence[Result]) -> Iterator[str]:
    """What is easily overlooked about a plan's results."""
    from leakscope.plan import audits, federated

    measured = [result["utility"] for result in results if "utility" in result and "estimates" in result]
    idle = sum(utility["accuracy"]["low"] <= utility["majority"] for utility in measured)
    if idle:
        yield (
            f"in {idle} of {len(measured)} cells the model is not clearly better than always saying the most "
            f"frequent label; with more --rounds or a higher --rate it would have learned more."
        )
    yield from dict.fromkeys(cell.note for cell in plan.cell if federated(cell) and cell.note)
    yield from dict.fromkeys(note for result in results for note in _federated_notes(result))
    told = {cell.game["name"] for cell in plan.cell if cell.game.get("known")}
    games = dict.fromkeys(cell.game["name"] for cell in plan.cell if not audits(cell))
    untold = [name for name in games if name not in told]
    if told and untold:
        yield (
            f"--known does not reach {' and '.join(untold)}: there the adversary is told no column of the "
            f"batch, and guessing knows none."
        )


def _federated_notes(result: Result) -> Iterator[str]:
    """What is easily overlooked about the audit of a federation."""
    from leakscope.averages import needed

    found, game = result.get("membership"), result["cell"]["game"]
    if not found:
        return
    utility, trials = result["utility"], result["cell"]["trials"]
    if utility["accuracy"]["low"] <= utility["majority"]:
        yield (
            "the federation's model is not clearly better than always saying the most frequent label; one "
            "that has learned more may give away more."
        )
    if found["held"] < THRESHOLD:
        yield (
            f"the test at 1% was left out: its threshold takes {THRESHOLD} records of nobody, and there were "
            f"{found['held']}{_in_all(game, 'held', THRESHOLD)}."
        )
    drawn, wanted = trials - trials // 2, needed(0.95, 0.01)
    if min(drawn, found["others"]) < wanted:
        way = f"; raise --trials to {2 * wanted}" if drawn < wanted else _in_all(game, "others", wanted)
        yield (
            f"a lower limit of what is found at 1% false alarms takes {wanted} judged records of nobody, and "
            f"there were {min(drawn, found['others'])}{way}."
        )
    if game.get("records") and not Path(game["records"]).exists():
        yield f"{game['records']} is gone, and kept results do not bring it back; audit into another folder."


def _in_all(game: Mapping[str, Any], part: str, wanted: int) -> str:
    """How many candidates of nobody the audit of a recording needs for so many in one part."""
    if game["name"] != "RecordingAudit":
        return ""
    known, held = game.get("known", 0.4), game.get("held", 0.3)
    share = held if part == "held" else 1 - known - held
    return f"; give {math.ceil(wanted / share - 1e-9)} candidates of nobody or more"
