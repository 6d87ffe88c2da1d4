"""The papers' experiments as plans, and our measurements beside their printed values.

``papers/*.toml`` hold the cells; ``papers/measured/*.json`` what `leakscope papers --record` wrote.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import tomli_w

from leakscope import store
from leakscope.core import Estimate
from leakscope.errors import PlanError
from leakscope.measures.success import over_seeds, untruncated
from leakscope.plan import Plan, from_document

FOLDER = Path(str(files("leakscope") / "papers"))
SHIPPED = ("adult", "census42", "digits", "synthetic")  # the rest is found through LEAKSCOPE_DATA
MEASURES = ("success", "advantage", "auroc", "tpr_at_1%", "tpr_at_0.1%")
EPSILONS = ("epsilon_any", "epsilon_gaussian")  # lower bounds that an audit certified
Entry = dict[str, Any]


def documents() -> dict[str, dict[str, Any]]:
    """The papers by number."""
    found = [tomllib.loads(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.toml"))]
    return {document["paper"]: document for document in found}


def figures(number: str) -> list[str]:
    """The figures and tables of a paper that have cells."""
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
    here = [cell for cell in cells if _available(cell.get("data", defaults["data"])["name"])]
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
    the trials of an audit of an attribute cost nothing and stay."""
    game = cell["game"]
    if game["name"] == "AttributeAudit":
        return cell
    fewer = {key: min(cell[key], value) for key, value in settings.items() if key in cell}
    if scored and "clients" in game:
        fewer["game"] = game | {"scored": min(scored, game.get("scored", game["clients"]))}
    if rounds := fewer.get("rounds", settings.get("rounds")):
        seen = [r for r in cell.get("observe", ()) if r <= rounds]
        fewer |= {"observe": seen or [rounds]} if "observe" in cell else {}
    return cell | fewer


def _available(name: str) -> bool:
    return name in SHIPPED or bool(os.environ.get("LEAKSCOPE_DATA"))


def entries(results: Sequence[store.Result], *, quick: bool) -> list[Entry]:
    """One entry per cell and measure: ours over seeds, the published value, whether our interval
    covers it, and all that is needed to run it again."""
    cells: dict[str, list[store.Result]] = {}
    for result in results:
        if {"estimates", "audit", "membership", "localisation", "guarding"} & set(result):
            cells.setdefault(result["cell"]["id"], []).append(result)
    found = []
    for runs in cells.values():
        for measure in dict.fromkeys(measure for run in runs for measure in _measures(run)):
            found.append(_entry([run for run in runs if measure in _measures(run)], measure, quick))
    return found


def _measures(result: store.Result) -> tuple[str, ...]:
    if "membership" in result:
        attacks = result["membership"]["attacks"]
        return ("accuracy", *(f"{a['attack']} {measure}" for a in attacks for measure in a["estimates"]))
    if named := _named(result):
        return tuple(named)
    return MEASURES if "estimates" in result else EPSILONS


def _named(result: store.Result) -> dict[str, Any]:
    """The estimates of an audit of layers or of a guard, by what each is called in a table."""
    if "localisation" in result:
        return _layered(result)
    return _hidden(result["guarding"]["judged"]) if "guarding" in result else {}


def _hidden(judged: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What a guard's representations are worth, and what is found in them of each secret."""
    named: dict[str, Any] = {}
    for one in judged:
        prefix = f"{one['column'] or one['secret']} " if len(judged) > 1 else ""
        named[f"{prefix}utility"] = one["utility"]["fresh"]["accuracy"]
        entries = [("strongest", a) for a in one["attacks"] if a["chosen"]]
        several = {a["queries"]: f", {a['queries']} draws" for a in one["attacks"] if a["queries"] > 1}
        entries += [(f"{a['name']}{several.get(a['queries'], '')}", a) for a in one["attacks"]]
        entries += [("stale", one["stale"])] if one["stale"] else []
        for name, entry in entries:
            named |= {f"{prefix}{name} {measure}": e for measure, e in entry["estimates"].items()}
    return named


def _layered(result: store.Result) -> dict[str, Any]:
    """Every estimate of an audit of layers, by what it is called in a table."""
    found = result["localisation"]
    named: dict[str, Any] = {"accuracy": result["utility"]["accuracy"]}
    for secret in found["latent"]:
        rows = secret["layers"] | {"all layers": secret["together"], "labels alone": secret["labels"]}
        named |= {
            f"{secret['secret']} {layer} information": row["information"] for layer, row in rows.items()
        }
        named |= {
            f"{secret['secret']} {layer} distance": d["distance"] for layer, d in secret["subspace"].items()
        }
    for layers, row in ((found["original"] or {}).get("sets") or {}).items():
        named |= {f"{layers} original": row["information"], f"{layers} SSIM": row["ssim"]}
    for norm, layers in (found["sensitivity"] or {}).items():
        named |= {f"{layer} {norm} sensitivity": estimate for layer, estimate in layers.items()}
    for one in found["correlations"]:
        limits = {key: one[key] for key in ("low", "high", "n")} | {"level": 0.95, "method": "Fisher"}
        named[f"{one['measure']} correlation"] = {"name": "r", "value": one["r"], **limits}
    for target, layers in (found.get("mutual") or {}).items():
        named |= {f"{layer} I({target}; gradient)": estimate for layer, estimate in layers.items()}
    named |= found["claims"]
    return named


def _estimate(result: store.Result, measure: str) -> Estimate:
    """A measure of a game, of one attack on a federation ("Cosine auroc") or of its model, or an epsilon
    an audit certified: its lower bound is the value then."""
    if "estimates" in result:
        return Estimate(**result["estimates"][measure])
    if "membership" in result:
        if measure == "accuracy":
            return Estimate(**result["utility"]["accuracy"])
        attack, _, name = measure.rpartition(" ")
        found = next(a for a in result["membership"]["attacks"] if a["attack"] == attack)
        return Estimate(**found["estimates"][name])
    if named := _named(result):
        return Estimate(**named[measure])
    found = Estimate(**result["audit"][measure.removeprefix("epsilon_")])
    return replace(found, value=found.low)


def _entry(runs: Sequence[store.Result], measure: str, quick: bool) -> Entry:
    first = runs[0]
    each = [_estimate(run, measure) for run in runs]
    raw = None
    if measure == "advantage":
        raw = [untruncated(run["estimates"]["success"]["value"], run["guessing"]) for run in runs]
    elif measure.endswith(" advantage"):
        rate = measure.removesuffix("advantage") + "success_rate"
        raw = [untruncated(_estimate(run, rate).value, _guessing(run, measure)) for run in runs]
    least, most = _limits(measure)
    mean = over_seeds(each, least=least, most=most, raw=raw)
    values = [round(estimate.value, 4) for estimate in each]
    cell = first["cell"]
    theirs = cell["published"].get(measure)
    scaled = [cell["note"]] if cell["note"] else []
    if quick:
        rounds = "" if "guarding" in first else f"{cell['rounds']} rounds, "
        scaled.append(f"quick: {rounds}{cell['trials']} trials, {cell['rehearsals']} rehearsals")
    return {
        "cell": cell["id"],
        "figure": cell["figure"],
        "measure": measure,
        "value": round(mean.value, 4),
        "low": round(mean.low, 4),
        "high": round(mean.high, 4),
        "method": mean.method,
        "values": values,
        "seeds": [run["seed"] for run in runs],
        "guessing": round(sum(_guessing(run, measure) for run in runs) / len(runs), 4),
        "published": theirs,
        "covers": None if theirs is None else mean.low <= theirs <= mean.high,
        "scaled": "; ".join(scaled),
        "keys": [run["key"] for run in runs],
        "versions": first["versions"],
    }


def _guessing(run: store.Result, measure: str) -> float:
    """How often guessing is right in the game that a measure is of; 0 where there is nothing to guess."""
    for one in run.get("guarding", {}).get("judged", ()):
        prefix = f"{one['column'] or one['secret']} " if len(run["guarding"]["judged"]) > 1 else ""
        if measure.startswith(prefix) and not measure.endswith("utility"):
            return float(one["majority"] or 0.0)
    return float(run.get("guessing", 0.0))


UNLIMITED = ("information", "original", "distance", "sensitivity", "gradient)", "psnr", "mse")


def _limits(measure: str) -> tuple[float, float]:
    """The smallest and the largest value a measure can have."""
    ratios = {"plr_at_1%": 100.0, "plr_at_2%": 50.0, "plr_at_5%": 20.0}
    if measure in EPSILONS:
        return 0.0, math.inf
    if measure.endswith(UNLIMITED):
        return -math.inf, math.inf
    least = -1.0 if measure.endswith(("correlation", "SSIM", "ssim")) else 0.0
    return least, ratios.get(measure.rpartition(" ")[2], 1.0)


def record(number: str, results: Sequence[store.Result], *, quick: bool) -> Path:
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
    store.write(path, json.dumps(merged, indent=1) + "\n")
    return path


def measured(number: str) -> list[Entry]:
    """What is recorded of a paper."""
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
