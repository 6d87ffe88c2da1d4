"""A plan is data: TOML in, frozen and checked cells out, before anything is computed.

Any table with a ``name`` is a constructor call, recursively. Names come from the public
catalogue, or, dotted, from a module the user trusts by name on the command line.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pydantic import ValidationError

from leakscope.core import files, toml
from leakscope.core.catalogue import roles
from leakscope.core.errors import LeakscopeError, PlanError
from leakscope.core.tables import architecture, called, construct, meant
from leakscope.results.cell import Cell, Plan, Table, Training

MOST_RUNS = 100_000  # cells times seeds of one plan
MOST_ROWS = 10**9  # records drawn for the challenges of one cell


def read(path: Path, *, trusted: Iterable[str] = ()) -> Plan:
    try:
        text = files.read(path).decode()
    except FileNotFoundError:
        raise PlanError(f"plan {str(path)!r} does not exist; give the path of a TOML file.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(f"plan {str(path)!r} cannot be read: {error}.") from None
    return parse(text, trusted=trusted, where=str(path))


def parse(text: str, *, trusted: Iterable[str] = (), where: str = "the plan") -> Plan:
    """The plan in a TOML text, checked: ``[defaults]`` fill in what a ``[[cell]]`` leaves out."""
    try:
        document = toml.parsed(text)
    except ValueError as error:
        raise PlanError(f"{where} is not valid TOML: {error}.") from None
    return from_document(document, trusted=trusted, where=where)


def from_document(
    document: Table, *, trusted: Iterable[str] = (), where: str = "the plan", built: bool = False
) -> Plan:
    """The plan of a document, checked; its model is not looked up where it is ``built`` already."""
    document = dict(document)
    defaults = document.pop("defaults", {})
    cells = document.get("cell", [])
    if not isinstance(defaults, dict) or not isinstance(cells, list) or not cells:
        raise PlanError(
            f"{where} needs at least one [[cell]] table, and [defaults] must be a table if given."
        )
    document["cell"] = [{**defaults, **cell} if isinstance(cell, dict) else cell for cell in cells]
    try:
        plan = Plan.model_validate(document)
    except ValidationError as error:
        raise PlanError(f"{where}: {_sentence(error)}") from None
    if len(plan.cell) * len(plan.seeds) > MOST_RUNS:
        raise PlanError(
            f"{where} must have at most {MOST_RUNS:,} runs, and its {len(plan.cell):,} cells with "
            f"{len(plan.seeds):,} seeds are {len(plan.cell) * len(plan.seeds):,}; cut it into several plans."
        )
    for i, cell in enumerate(plan.cell):
        try:
            check(cell, trusted=trusted, built=built)
        except LeakscopeError as error:
            raise PlanError(f"{where}, cell {cell.id or i + 1}: {error}") from None
    return plan


def check(cell: Cell, *, trusted: Iterable[str] = (), built: bool = False) -> None:
    """Every name known, every argument of the right kind: no data is touched."""
    batch = cell.game.get("batch", 1)
    drawn = max(cell.trials, cell.rehearsals) * (batch if isinstance(batch, int) else 1)
    if drawn > MOST_ROWS:
        raise PlanError(
            f"trials and rehearsals must draw at most {MOST_ROWS:,} records each, and with batches of "
            f"{batch:,} they draw {drawn:,}; lower them."
        )
    seen = cell.observe if cell.observe is not None else (1,)
    if not seen or len(set(seen)) < len(seen) or any(not 1 <= i <= cell.rounds for i in seen):
        raise PlanError(f"observe must name rounds 1 to {cell.rounds}, each once, got {list(seen)}.")
    if cell.game_name in roles("audit"):
        construct(cell.game, "audit", trusted=trusted)
    elif cell.game_name == "Reconstruction":
        raise PlanError("a plan plays Reconstruction through LayerAudit; give that, with images above 0.")
    else:
        called(cell.game, ("game",), trusted, given={"data"})
    construct(cell.attack, "attack", trusted=trusted)
    if not built or cell.weights is None:
        architecture(cell.model, trusted=trusted)
    if cell.weights is not None and not {*cell.weights} <= {"path", "sha256"}:
        raise PlanError(f"weights must be a table of path and sha256, got {sorted(cell.weights)}.")
    if cell.defense is not None:
        construct(cell.defense, "defense", trusted=trusted)
    if "name" not in cell.data:
        raise PlanError('data must be a table with a name, such as {name = "adult"}.')


def _sentence(error: ValidationError) -> str:
    """The first complaint of pydantic, as one sentence in our words."""
    first = error.errors()[0]
    where = ".".join(str(part + 1 if isinstance(part, int) else part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        fields = Cell.model_fields if len(first["loc"]) == 3 else Plan.model_fields
        if len(first["loc"]) == 4:
            fields = Training.model_fields
        name = str(first["loc"][-1])
        return f"unknown setting {where!r}{meant(name, fields)}; known: {', '.join(fields)}."
    reason = first["msg"].removeprefix("Input ").lower()
    if first["type"] == "too_long":
        return f"{where} must have at most {first['ctx']['max_length']:,} entries; cut the plan into several."
    return f"{where} {reason}, got {first['input']!r}."
