"""The papers' experiments as plans, and our measurements beside their printed values.

``papers/*.toml`` hold the cells; ``papers/measured/*.json`` what `leakscope papers --record` wrote.
"""

from __future__ import annotations

import json
import os
import statistics
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import tomli_w

from leakscope.core import files
from leakscope.core.errors import PlanError
from leakscope.measures.success import over_seeds
from leakscope.results import kind as kinds
from leakscope.results.cell import Plan
from leakscope.results.result import Result
from leakscope.run.plan import from_document

FOLDER = Path(str(resources.files("leakscope.run") / "papers"))
SHIPPED = ("adult", "census42", "digits", "synthetic")  # the rest is found through LEAKSCOPE_DATA
Entry = dict[str, Any]


def documents() -> dict[str, dict[str, Any]]:
    found = [tomllib.loads(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.toml"))]
    return {document["paper"]: document for document in found}


def figures(number: str) -> list[str]:
    cells = _document(number)["cell"]
    return list(dict.fromkeys(figure for cell in cells for figure in cell["figure"]))


def _document(number: str) -> dict[str, Any]:
    known = documents()
    if number not in known:
        raise PlanError(f"unknown paper {number!r}; known: {', '.join(known)}.")
    return known[number]


def plan(number: str, *, only: Iterable[str] = (), quick: bool = False) -> tuple[Plan, str, list[str]]:
    """The plan of a paper's figures, its text, and the cells left out because their data is not
    here (they need LEAKSCOPE_DATA)."""
    document = _document(number)
    wanted, known = set(only), figures(number)
    for name in wanted - set(known) - {cell["id"] for cell in document["cell"]}:
        raise PlanError(
            f"unknown figure or cell {name!r} of paper {number}; its figures: {', '.join(known)}."
        )
    cells = [cell for cell in document["cell"] if not wanted or wanted & {cell["id"], *cell["figure"]}]
    defaults, seeds = dict(document["defaults"]), document["seeds"]
    if quick:
        settings = dict(document["quick"])
        seeds, scored = settings.pop("seeds"), settings.pop("scored", None)
        observe = defaults.pop("observe", None)
        cells = [
            _reduced({"observe": observe} | cell if observe else cell, settings, scored) for cell in cells
        ]
        defaults |= settings
    every = bool(os.environ.get("LEAKSCOPE_DATA"))
    here = [cell for cell in cells if every or cell.get("data", defaults["data"])["name"] in SHIPPED]
    missing = [cell["id"] for cell in cells if cell not in here]
    if not here:
        raise PlanError(
            f"no cell can run: {', '.join(missing)} need files that do not ship; set LEAKSCOPE_DATA to "
            f"their folder."
        )
    made = {"name": f"paper {number}", "seeds": seeds, "defaults": defaults, "cell": here}
    return from_document(made, where=f"paper {number}"), tomli_w.dumps(made), missing


def _reduced(cell: Entry, settings: Mapping[str, Any], scored: int | None) -> Entry:
    """A cell with no more rounds, trials, rehearsals and clients attacked than the quick settings have;
    the trials of an audit of an attribute cost nothing and stay. Where all observed rounds are later, the
    first of them is reached and observed: another would not be what the cell is called."""
    game = cell["game"]
    if game["name"] == "AttributeAudit":
        return cell
    fewer = {key: min(cell[key], value) for key, value in settings.items() if key in cell}
    if scored and "clients" in game:
        fewer["game"] = game | {"scored": min(scored, game.get("scored", game["clients"]))}
    if rounds := fewer.get("rounds", settings.get("rounds")):
        observe = cell.get("observe", ())
        seen = [r for r in observe if r <= rounds]
        if observe:
            fewer |= {"observe": seen} if seen else {"observe": [min(observe)], "rounds": min(observe)}
    return cell | fewer


def entries(results: Sequence[Result[Any]], *, quick: bool) -> list[Entry]:
    """One entry per cell and measure: ours over seeds, the published value, whether our interval
    covers it, and all that is needed to run it again."""
    cells: dict[str, list[tuple[Result[Any], dict[str, kinds.TableEntry]]]] = {}
    for result in results:
        if result.found is not None:
            table = kinds.kind_named(result.kind).entries(result.found)
            cells.setdefault(result.cell.id, []).append((result, table))
    return [
        _entry([(run, table[measure]) for run, table in runs if measure in table], measure, quick)
        for runs in cells.values()
        for measure in dict.fromkeys(measure for _, table in runs for measure in table)
    ]


def _entry(runs: Sequence[tuple[Result[Any], kinds.TableEntry]], measure: str, quick: bool) -> Entry:
    first, shown = runs[0]
    each = [entry.estimate for _, entry in runs]
    raw = [entry.raw for _, entry in runs if entry.raw is not None]
    whole = raw if len(raw) == len(runs) else None
    mean = over_seeds(each, least=shown.least, most=shown.most, raw=whole)
    cell = first.cell
    theirs = cell.published.get(measure)
    scaled = [cell.note] if cell.note else []
    if quick:
        sizes = f"{cell.rounds} rounds, {cell.trials} trials, {cell.rehearsals} rehearsals"
        scaled.append(f"quick: {sizes}")
    return {
        "cell": cell.id,
        "figure": list(cell.figure),
        "measure": measure,
        "value": round(mean.value, 4),
        "low": round(mean.low, 4),
        "high": round(mean.high, 4),
        "method": mean.method,
        "values": [round(estimate.value, 4) for estimate in each],
        "seeds": [run.seed for run, _ in runs],
        "guessing": round(sum(entry.guessing for _, entry in runs) / len(runs), 4),
        "published": theirs,
        "covers": None if theirs is None else mean.low <= theirs <= mean.high,
        "scaled": "; ".join(scaled),
        "keys": [run.key for run, _ in runs],
        "versions": first.made.versions,
    }


def record(number: str, results: Sequence[Result[Any]], *, quick: bool) -> Path:
    """Put the measured values of these cells into papers/measured/, replacing those cells' own; a
    quick run never replaces a full one."""
    path = FOLDER / "measured" / f"{number}.json"
    present: list[Entry] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    fresh = entries(results, quick=quick)
    full = {(e["cell"], e["measure"]) for e in present if "quick" not in e["scaled"]}
    if quick:
        fresh = [entry for entry in fresh if (entry["cell"], entry["measure"]) not in full]
    replaced = {(entry["cell"], entry["measure"]) for entry in fresh}
    kept = [entry for entry in present if (entry["cell"], entry["measure"]) not in replaced]
    order = [cell["id"] for cell in _document(number)["cell"]]
    merged = sorted(kept + fresh, key=lambda e: order.index(e["cell"]))
    files.write(path, json.dumps(merged, indent=1) + "\n")
    return path


def measured(number: str) -> list[Entry]:
    path = FOLDER / "measured" / f"{number}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else []


def rows(
    found: Iterable[Entry], *, figures: Iterable[str] = (), all_measures: bool = False
) -> list[list[str]]:
    """Table rows: every published value with ours beside it; cells without one show their AUROC. What
    differs is said once for every cell."""
    wanted, lines, said = set(figures), [], ""
    for entry in found:
        always = entry["measure"].endswith(
            ("auroc", "epsilon_gaussian", "plr_at_1%", "information", "utility")
        )
        shown = entry["published"] is not None or always or all_measures
        if not shown or (wanted and not wanted & set(entry["figure"])):
            continue
        spread = statistics.stdev(entry["values"]) if len(entry["values"]) > 1 else 0.0
        theirs = "" if entry["published"] is None else f"{entry['published']:.4f}"
        covers = {None: "", True: "yes", False: "no"}[entry["covers"]]
        ours = f"{entry['value']:.4f} ({entry['low']:.4f} to {entry['high']:.4f})"
        differs = entry["scaled"] if entry["cell"] != said else ""
        said = entry["cell"]
        lines.append([said, entry["measure"], theirs, ours, f"{spread:.4f}", covers, differs])
    return lines


HEADER = ["cell", "measure", "paper", "ours (95% interval)", "std over seeds", "covers", "what differs"]
