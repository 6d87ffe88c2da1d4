"""A plan is data: TOML in, frozen and checked cells out, before anything is computed.

Any table with a ``name`` is a constructor call, recursively. Names come from the public
catalogue, or, dotted, from a module the user trusts by name on the command line.
"""

from __future__ import annotations

import difflib
import hashlib
import inspect
import json
import math
import tomllib
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from leakscope.catalogue import roles
from leakscope.dataset import Dataset
from leakscope.errors import LeakscopeError, PlanError

FORMAT = 1  # of results: a change of meaning changes every cell's key
WORDS = ("id", "figure", "published", "note")  # about a cell, without effect on its numbers
Table = dict[str, Any]


def _jsonable(value: Any) -> Any:
    """The same with infinite numbers as words, which JSON has none for, and tuples as lists."""
    if isinstance(value, dict):
        return {key: _jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_jsonable(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


class Training(BaseModel):
    """How the victim is trained: plain SGD."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    rate: float = Field(default=0.01, gt=0)
    batch: int = Field(default=64, ge=1)


class Cell(BaseModel):
    """One experiment: a game on data, a victim, a defense, an adversary.

    ``train`` and ``public`` count records (people for user inference, and where ``data.by`` names
    them); ``rounds`` are trained and observed, unless ``observe`` names some of them, 1 being the first;
    ``rehearsals`` are the adversary's simulated challenges; ``trials`` the real ones.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    id: str = ""
    data: Table
    game: Table
    model: Table = Field(default_factory=lambda: {"name": "MLP"})
    attack: Table = Field(default_factory=lambda: {"name": "Posterior"})
    defense: Table | None = None
    adaptive: bool = True
    rounds: int = Field(default=5, ge=1)
    observe: tuple[int, ...] | None = None
    trials: int = Field(default=2_000, ge=2)
    rehearsals: int = Field(default=2_000, ge=2)
    train: int | None = Field(default=None, ge=2)
    public: int | None = Field(default=None, ge=2)
    training: Training = Training()
    figure: tuple[str, ...] = ()
    published: dict[str, float] = {}
    note: str = ""

    @property
    def meaning(self) -> Table:
        """Everything that decides the numbers, and nothing else."""
        meaning: Table = _jsonable(self.model_dump(exclude=set(WORDS)))
        return meaning

    @property
    def described(self) -> Table:
        """The cell with what it is called and compared with."""
        described: Table = _jsonable(self.model_dump())
        return described

    def key(self, seed: int) -> str:
        """The name of this cell's result on disk."""
        text = json.dumps([FORMAT, self.meaning, seed], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def observed(self) -> tuple[int, ...]:
        """The observed rounds, 0 being the first."""
        return tuple(i - 1 for i in self.observe) if self.observe else tuple(range(self.rounds))


class Plan(BaseModel):
    """Cells and the seeds each is run with."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    name: str = "plan"
    seeds: tuple[int, ...] = Field(default=(0,), min_length=1)
    cell: tuple[Cell, ...] = Field(min_length=1)

    @property
    def digest(self) -> str:
        """Equal for plans that give the same results."""
        keys = sorted(cell.key(seed) for cell in self.cell for seed in self.seeds)
        return hashlib.sha256(json.dumps(keys).encode()).hexdigest()[:16]


def read(path: Path, *, trusted: Iterable[str] = ()) -> Plan:
    """The plan in a TOML file, checked."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise PlanError(f"plan {str(path)!r} does not exist; give the path of a TOML file.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(f"plan {str(path)!r} cannot be read: {error}.") from None
    return parse(text, trusted=trusted, where=str(path))


def parse(text: str, *, trusted: Iterable[str] = (), where: str = "the plan") -> Plan:
    """The plan in a TOML text, checked: ``[defaults]`` fill in what a ``[[cell]]`` leaves out."""
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # of TOML, of numbers and of depth beyond all bounds
        raise PlanError(f"{where} is not valid TOML: {error}.") from None
    return from_document(document, trusted=trusted, where=where)


def from_document(document: Table, *, trusted: Iterable[str] = (), where: str = "the plan") -> Plan:
    """The plan of a TOML document that is already read."""
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
    for i, cell in enumerate(plan.cell):
        try:
            check(cell, trusted=trusted)
        except LeakscopeError as error:
            raise PlanError(f"{where}, cell {cell.id or i + 1}: {error}") from None
    return plan


def check(cell: Cell, *, trusted: Iterable[str] = ()) -> None:
    """Every name known, every argument of the right kind: no data is touched."""
    seen = cell.observe if cell.observe is not None else (1,)
    if not seen or len(set(seen)) < len(seen) or any(not 1 <= i <= cell.rounds for i in seen):
        raise PlanError(f"observe must name rounds 1 to {cell.rounds}, each once, got {list(seen)}.")
    if audits(cell):
        construct(cell.game, "audit", trusted=trusted)
        mechanism = cell.defense or {}
        certain = mechanism.get("name") == "DPSGD" and mechanism.get("noise", 1)
        if cell.game["name"] == "AttributeAudit" and not certain:
            raise PlanError("the audit of an attribute needs the defense DPSGD with noise above 0.")
    elif cell.game.get("name") == "Reconstruction":
        raise PlanError("a plan plays Reconstruction through LayerAudit; give that, with images above 0.")
    else:
        _call(cell.game, ("game",), trusted, given={"data"})
    construct(cell.attack, "attack", trusted=trusted)
    architecture(cell.model, trusted=trusted)
    if cell.defense is not None:
        construct(cell.defense, "defense", trusted=trusted)
    if "name" not in cell.data:
        raise PlanError('data must be a table with a name, such as {name = "adult"}.')


def audits(cell: Cell) -> bool:
    """Whether the cell is an audit of a mechanism rather than a game about records."""
    return str(cell.game.get("name")) in roles("audit")


def federated(cell: Cell) -> bool:
    """Whether the cell is the audit of a federation."""
    return str(cell.game.get("name")) in ("MembershipAudit", "RecordingAudit")


def localises(cell: Cell) -> bool:
    """Whether the cell is the audit of a model's layers."""
    return str(cell.game.get("name")) == "LayerAudit"


def guards(cell: Cell) -> bool:
    """Whether the cell is the audit of a guard."""
    return str(cell.game.get("name")) == "GuardAudit"


def construct(table: Mapping[str, Any], role: str, *, trusted: Iterable[str] = (), **given: Any) -> Any:
    """The object a table names; ``given`` are arguments that are not in the table."""
    target, arguments = _call(table, (role,), trusted, given=set(given))
    return _called(target, arguments | given)


def _called(target: Any, arguments: Table) -> Any:
    """The call; what a star collects, such as Chain's defenses, is given by position."""
    stars = [p.name for p in inspect.signature(target).parameters.values() if p.kind is p.VAR_POSITIONAL]
    collected = arguments.get(stars[0], ()) if stars else ()
    return target(*collected, **{key: value for key, value in arguments.items() if key not in stars})


def architecture(table: Mapping[str, Any], *, trusted: Iterable[str] = ()) -> Callable[[Dataset], Any]:
    """What builds the victim's model for a dataset: one of ours, or a user's class or function. It is
    given the training records if it has an argument ``data``, and how many ``inputs`` and ``classes``
    they have if it asks; what it makes may itself be called with the records, as our own are."""
    if str(table.get("name")) in roles("model"):
        ours: Callable[[Dataset], Any] = construct(table, "model", trusted=trusted)

        def built(data: Dataset) -> Any:
            try:
                return ours(data)
            except (RuntimeError, OverflowError, MemoryError) as error:  # of sizes no machine has room for
                reason = (str(error).splitlines() or [type(error).__name__])[0]
                raise PlanError(
                    f"model {dict(table)!r} cannot be built ({reason}); lower its sizes."
                ) from None

        return built
    target, arguments = _call(table, ("model",), trusted, given={"data", "inputs", "classes"})
    wanted = inspect.signature(target).parameters

    def build(data: Dataset) -> Any:
        known = {"data": data, "inputs": data.x[0].numel(), "classes": data.classes}
        made = target(**{key: value for key, value in known.items() if key in wanted}, **arguments)
        made = made if hasattr(made, "parameters") or not callable(made) else made(data)
        try:
            made(data.x[:2])
        except (RuntimeError, TypeError, ValueError) as error:
            reason = str(error).splitlines()[0]
            shape = tuple(data.x.shape[1:])
            raise PlanError(
                f"model {table['name']!r} cannot take records of shape {shape}: {reason}; build it from "
                f"data, or from inputs and classes."
            ) from None
        return made

    return build


PARTS = {  # the role of a part, by the argument it is given as
    "head": "head",
    "reduce": "reduction",
    "defense": "defense",
    "defenses": "defense",
    "upload": "defense",
    "attacks": "attack",
    "members": "attack",
    "family": "attack",
    "reconstruct": "attack",
    "estimator": "estimator",
    "estimators": "estimator",
    "guard": "guard",
    "plain": "guard",
    "guards": "guard",
    "like": "guard",
    "encoder": "encoder",
    "local": "training",
    "backbone": "model",
}


def _call(
    table: Mapping[str, Any], wanted: tuple[str, ...], trusted: Iterable[str], *, given: set[str]
) -> tuple[Any, Table]:
    """What to call and with which arguments, everything checked."""
    if not isinstance(table, Mapping) or not isinstance(table.get("name"), str):
        raise PlanError(f'{wanted[0]} must be a table with a name, such as {{name = "..."}}, got {table!r}.')
    name = table["name"]
    target = _resolve(name, wanted, trusted)
    parameters = inspect.signature(target).parameters
    hints = typing.get_type_hints(target)  # of a dataclass: its fields
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    known = [key for key in parameters if key not in given and key not in ("args", "kwargs")]
    arguments: Table = {}
    for key, value in table.items():
        if key == "name":
            continue
        if key not in known and not open_ended:
            raise PlanError(
                f"{name} has no argument {key!r}{_meant(key, known)}; it takes: {', '.join(known) or 'none'}."
            )
        arguments[key] = _value(f"{name}.{key}", value, hints.get(key, Any), trusted)
    for key in known:
        needed = parameters[key].default is inspect.Parameter.empty
        needed = needed and parameters[key].kind is not inspect.Parameter.VAR_POSITIONAL
        if needed and key not in arguments and not open_ended:
            raise PlanError(f"{name} needs the argument {key!r}; it takes: {', '.join(known)}.")
    return target, arguments


def _resolve(name: str, wanted: tuple[str, ...], trusted: Iterable[str]) -> Any:
    known = roles(*wanted)
    if name in known:
        return getattr(import_module(known[name].module), name)
    if "." not in name:
        raise PlanError(f"unknown {wanted[0]} {name!r}{_meant(name, known)}; known: {', '.join(known)}.")
    module, _, attribute = name.rpartition(".")
    if not any(module == allowed or module.startswith(f"{allowed}.") for allowed in trusted):
        raise PlanError(
            f"{name!r} would import the module {module!r}; if you trust its code say so with "
            f"--trust {module.partition('.')[0]}."
        )
    try:
        target = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, SyntaxError, TypeError, ValueError) as error:
        raise PlanError(f"{name!r} cannot be imported: {error}.") from None
    home = str(getattr(target, "__module__", ""))
    if not callable(target) or not any(home == t or home.startswith(f"{t}.") for t in trusted):
        raise PlanError(
            f"{name!r} must be a class or function that {module!r} defines; it comes from {home!r}."
        )
    return target


def _value(where: str, value: Any, hint: Any, trusted: Iterable[str]) -> Any:
    """An argument: a nested constructor call, or plain data of the annotated type."""
    role = PARTS.get(where.rpartition(".")[2])
    several = typing.get_origin(hint) is tuple and not _plain(hint)
    if (
        isinstance(value, list)
        and role
        and (any(isinstance(v, Mapping) for v in value) or (several and not value))
    ):
        return tuple(_value(where, item, hint, trusted) for item in value)
    if isinstance(value, Mapping) and "name" in value:
        if role is None:
            raise PlanError(f"{where} must be plain data, got a table with a name, {value!r}.")
        return construct(value, role, trusted=trusted)
    if not _plain(hint):
        raise PlanError(f"{where} must be a table with a name, got {value!r}.")
    try:
        value = tuple(value) if isinstance(value, list) else value
        return TypeAdapter(hint).validate_python(value, strict=True)
    except ValidationError as error:
        reason = error.errors()[0]["msg"].removeprefix("Input ").lower()
        raise PlanError(f"{where}: {reason}, got {value!r}.") from None


def _plain(hint: Any) -> bool:
    """Whether an annotation is made of plain data only."""
    if hint is Any or hint in (int, float, str, bool, type(None), Ellipsis, dict, list, tuple):
        return True
    if typing.get_origin(hint) is typing.Literal:
        return True
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) in (tuple, list, dict, typing.Union):
        return all(_plain(part) for part in typing.get_args(hint))
    return False


def _meant(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _sentence(error: ValidationError) -> str:
    """The first complaint of pydantic, as one sentence in our words."""
    first = error.errors()[0]
    where = ".".join(str(part + 1 if isinstance(part, int) else part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        fields = Cell.model_fields if len(first["loc"]) == 3 else Plan.model_fields
        if len(first["loc"]) == 4:
            fields = Training.model_fields
        name = str(first["loc"][-1])
        return f"unknown setting {where!r}{_meant(name, fields)}; known: {', '.join(fields)}."
    reason = first["msg"].removeprefix("Input ").lower()
    return f"{where} {reason}, got {first['input']!r}."
