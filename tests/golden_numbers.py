"""The golden numbers: what the tiny cells of golden/cells.toml gave when they were recorded, and give now."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).parent / "golden"
NUMBERS = GOLDEN / "numbers.json"
COMPARED = ("value", "low", "high", "n", "method", "guessing")
ROUNDED = {  # (cell, measure; "": all) whose methods turn the last digit, which processors differ in, into more
    ("property, DPSGD, NoiseAware, seed 0", ""): "a search whose steps depend on it",
    (
        "layers and what protects them, seed 0",
        "information_input",
    ): "a network that is trained to convergence",
}
NAMED = ("about", "secret", "part", "covers")  # what tells numbers of one measure apart
Row = dict[str, Any]


@dataclass(frozen=True)
class Difference:
    """One number that is not what it was; a missing number has no fields."""

    game: str
    cell: str
    part: str
    measure: str
    old: Row
    new: Row

    def __str__(self) -> str:
        return f"{self.cell} | {self.part} | {self.measure} | {self.old or 'none'} | {self.new or 'none'}"


def run(folder: Path) -> list[Row]:
    """Run the plan with this Python's leakscope into an empty folder and return its numbers."""
    command = [sys.executable, "-m", "leakscope.cli", "run", "cells.toml", "--output", str(folder)]
    done = subprocess.run([*command, "--jobs", "1"], cwd=GOLDEN, capture_output=True, text=True)
    if not folder.joinpath("results.json").exists():
        raise RuntimeError(f"the plan did not run: {done.stderr}")
    return numbers(folder)


def numbers(folder: Path) -> list[Row]:
    """Every number that a run wrote into its folder; a failed cell has its error in place of a measure. The
    only reader of results here."""
    written = json.loads((folder / "results.json").read_text(encoding="utf-8"))["numbers"]
    rows = [
        {
            "game": number["game"],
            "cell": f"{number['id']}, seed {number['seed']}",
            "part": ", ".join(filter(None, (*(number[key] for key in NAMED), _level(number)))),
            "measure": number["measure"] or number["error"],
            **{field: number[field] for field in COMPARED},
        }
        for number in written
    ]
    return sorted(rows, key=_name)


def differences(old: list[Row], new: list[Row], *, tolerance: float = 0.0) -> list[Difference]:
    """The numbers that differ by more than a relative tolerance, or are on one side only. Those of `ROUNDED`
    differ where either is outside the other's interval."""
    before, after = _by_name(old), _by_name(new)
    found = []
    for name in {**before, **after}:
        was, now = before.get(name, {}), after.get(name, {})
        apart = [f for f in COMPARED if not _same(was.get(f), now.get(f), tolerance)]
        if was and now and {(name[0], ""), (name[0], name[2])} & ROUNDED.keys() and _alike(was, now):
            apart = []
        if apart or not was or not now:
            game = (was or now)["game"]
            left, right = ({f: row[f] for f in apart if f in row} for row in (was, now))
            found.append(Difference(game, *name, left, right))
    return found


def record(rows: list[Row]) -> None:
    """Write the numbers, one a line."""
    lines = ",\n".join(json.dumps(row, allow_nan=False) for row in rows)
    NUMBERS.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def recorded() -> list[Row]:
    """The golden numbers."""
    rows: list[Row] = json.loads(NUMBERS.read_text(encoding="utf-8"))
    return rows


def _level(number: Row) -> str:
    """Of an interval at another level than most."""
    return f"at {number['level']:g}" if number["level"] not in (None, 0.95) else ""


def _name(row: Row) -> tuple[str, str, str]:
    return row["cell"], row["part"], row["measure"]


def _by_name(rows: list[Row]) -> dict[tuple[str, str, str], Row]:
    named = {_name(row): row for row in rows}
    assert len(named) == len(rows), "two numbers have one name"
    return named


def _alike(was: Row, now: Row) -> bool:
    """Whether each number is within the interval of the other, of as many trials."""
    if was["n"] != now["n"] or None in (was["low"], was["high"], now["low"], now["high"]):
        return False
    return all(one["low"] <= other["value"] <= one["high"] for one, other in ((was, now), (now, was)))


def _same(was: Any, now: Any, tolerance: float) -> bool:
    """Equal, or both numbers and close; what is below a thousandth of the tolerance is as good as 0."""
    if was == now or not all(isinstance(value, int | float) for value in (was, now)):
        return bool(was == now)
    return math.isclose(was, now, rel_tol=tolerance, abs_tol=tolerance / 1_000)
