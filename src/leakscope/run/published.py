"""The papers' experiments as plans, and our measurements beside their printed values.

``papers/*.toml`` hold the cells; `measured` has what ``leakscope papers --record`` wrote.
"""

from __future__ import annotations

import os
import statistics
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import tomli_w

from leakscope.core.errors import PlanError
from leakscope.results.cell import Cell, Plan
from leakscope.results.result import Result
from leakscope.run import measured
from leakscope.run.measured import Blocks, MeasuredCell, MeasuredValue
from leakscope.run.plan import from_document

FOLDER = Path(str(resources.files("leakscope.run") / "papers"))
SHIPPED = ("adult", "census42", "digits", "synthetic")  # the rest is found through LEAKSCOPE_DATA
Table = dict[str, Any]


@dataclass(frozen=True)
class PaperLine:
    """A measure of a cell beside what the paper prints. ``asked`` is how many seeds the plan has; ``void``:
    the cell's model has learned nothing, so that no number of it means anything."""

    cell: Cell
    block: MeasuredCell
    measure: str
    number: MeasuredValue
    asked: int = 0
    void: bool = False

    @property
    def seeds(self) -> tuple[int, ...]:
        return self.number.seeds or self.block.seeds

    @property
    def published(self) -> float | None:
        return self.cell.published.get(self.measure)

    @property
    def covers(self) -> bool | None:
        """Whether our interval contains the printed value; None where none is printed."""
        return None if self.published is None else self.number.low <= self.published <= self.number.high

    @property
    def differs(self) -> str:
        """What is not as in the paper, and why."""
        few = len(self.seeds) < self.asked
        seeds = f"{len(self.seeds)} of {self.asked} seeds" if few else ""
        void = f"its model learned nothing{self._accuracy}: this means nothing" if self.void else ""
        return "; ".join(part for part in (void, self.cell.note, self.block.scaled, seeds) if part)

    @property
    def _accuracy(self) -> str:
        accuracy = self.block.measures.get("accuracy")
        return f" (accuracy {accuracy.value:.3f})" if accuracy else ""


def documents() -> dict[str, dict[str, Any]]:
    tables = [tomllib.loads(path.read_text(encoding="utf-8")) for path in FOLDER.glob("*.toml")]
    found = {document["paper"]: document for document in sorted(tables, key=lambda table: table["paper"])}
    return {number: document | {"cell": spelt_out(document["cell"])} for number, document in found.items()}


def spelt_out(cells: Iterable[Table]) -> list[Table]:
    """Cells with what they have of an earlier one, which ``like`` names: all but its published values."""
    known: dict[str, Table] = {}
    for cell in cells:
        other = known[cell["like"]] if "like" in cell else {}
        inherited = {key: value for key, value in other.items() if key != "published"}
        known[cell["id"]] = _merged(inherited, {key: cell[key] for key in cell if key != "like"})
    return [*known.values()]


def _merged(base: Table, changes: Table) -> Table:
    """``changes`` over ``base``, table by table; another name is another table."""
    if changes.get("name", base.get("name")) != base.get("name"):
        return changes
    both = {key: _merged(base[key], changes[key]) for key in changes if isinstance(base.get(key), dict)}
    return {
        **base,
        **changes,
        **{key: value for key, value in both.items() if isinstance(changes[key], dict)},
    }


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
    table = _tabled(number, document, quick=quick)
    cells = [cell for cell in table["cell"] if not wanted or wanted & {cell["id"], *cell["figure"]}]
    every = bool(os.environ.get("LEAKSCOPE_DATA"))
    default = document["defaults"]["data"]
    table["cell"] = [cell for cell in cells if every or cell.get("data", default)["name"] in SHIPPED]
    missing = [cell["id"] for cell in cells if cell not in table["cell"]]
    if not table["cell"]:
        raise PlanError(
            f"no cell can run: {', '.join(missing)} need files that do not ship; set LEAKSCOPE_DATA to "
            f"their folder."
        )
    return from_document(table, where=f"paper {number}"), tomli_w.dumps(table), missing


@cache
def cells(number: str, *, quick: bool = False) -> dict[str, Cell]:
    """Every cell of a paper, whether its data is here or not."""
    table = _tabled(number, _document(number), quick=quick)
    return {cell.id: cell for cell in from_document(table, where=f"paper {number}").cell}


def _tabled(number: str, document: Mapping[str, Any], *, quick: bool) -> Table:
    """The plan's document, with fewer seeds, rounds and trials if ``quick``."""
    tables = document["cell"]
    defaults, seeds = dict(document["defaults"]), document["seeds"]
    if quick:
        settings = dict(document["quick"])
        seeds, scored = settings.pop("seeds"), settings.pop("scored", None)
        observe = defaults.pop("observe", None)
        tables = [
            _reduced({"observe": observe} | cell if observe else cell, settings, scored) for cell in tables
        ]
        defaults |= settings
    return {"name": f"paper {number}", "seeds": seeds, "defaults": defaults, "cell": tables}


def _reduced(cell: Table, settings: Mapping[str, Any], scored: int | None) -> Table:
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


def compare(results: Sequence[Result[Any]], *, quick: bool) -> list[PaperLine]:
    """What a sweep measured, beside the published values."""
    by_name = {result.cell.id: result.cell for result in results}
    return _lines(measured.blocks_of(results, quick=quick), by_name)


def recorded(number: str, folder: Path | None = None) -> list[PaperLine]:
    """What is recorded of a paper, beside its published values."""
    document = _document(number)
    asked, void = len(document["seeds"]), document.get("void", ())
    return _lines(measured.load(number, folder), cells(number), asked=asked, void=void)


def _lines(
    blocks: Blocks, known: Mapping[str, Cell], *, asked: int = 0, void: Sequence[str] = ()
) -> list[PaperLine]:
    return [
        PaperLine(known[name], block, measure, value, asked, name in void)
        for name, block in blocks.items()
        for measure, value in block.measures.items()
    ]


def record(number: str, results: Sequence[Result[Any]], *, quick: bool, folder: Path | None = None) -> Path:
    """Put the blocks of these cells into the recordings, each in place of the cell's own; a quick run never
    replaces a full one."""
    present = measured.load(number, folder)
    digests = measured.digests_of(results)
    fresh = {
        name: block.model_copy(update={"data": digests[name]})
        for name, block in measured.blocks_of(results, quick=quick).items()
        if not (quick and name in present and not present[name].scaled)
    }
    both = present | fresh
    return measured.save(number, {name: both[name] for name in cells(number) if name in both}, folder)


def find_stale(number: str, folder: Path | None = None) -> dict[str, str]:
    """The recorded cells whose keys are not those that the plan gives today, and why."""
    full, quick = cells(number), cells(number, quick=True)
    reasons = {}
    for name, block in measured.load(number, folder).items():
        asked = [tuple(plan[name].key(seed) for seed in block.seeds) for plan in (full, quick)]
        if block.keys not in asked:
            reasons[name] = block.stale or measured.CHANGED
    return reasons


def rows(
    lines: Iterable[PaperLine], *, figures: Iterable[str] = (), all_measures: bool = False
) -> list[list[str]]:
    """Table rows: every published value with ours beside it; cells without one show their AUROC. What
    differs is said once for every cell."""
    wanted, table, said = set(figures), [], ""
    for line in lines:
        always = line.measure.endswith(("auroc", "epsilon_gaussian", "plr_at_1%", "information", "utility"))
        shown = line.published is not None or always or all_measures
        if not shown or (wanted and not wanted & set(line.cell.figure)):
            continue
        number = line.number
        spread = statistics.stdev(number.values) if len(number.values) > 1 else 0.0
        theirs = "" if line.published is None else f"{line.published:.4f}"
        covers = {None: "", True: "yes", False: "no"}[line.covers]
        ours = f"{number.value:.4f} ({number.low:.4f} to {number.high:.4f})"
        differs = line.differs if line.cell.id != said else ""
        said = line.cell.id
        table.append([said, line.measure, theirs, ours, f"{spread:.4f}", covers, differs])
    return table


HEADER = ["cell", "measure", "paper", "ours (95% interval)", "std over seeds", "covers", "what differs"]
