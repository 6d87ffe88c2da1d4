"""Any table with a ``name`` is a constructor call, recursively. Names come from the public catalogue, or,
dotted, from a module that the user trusts by name on the command line."""

from __future__ import annotations

import copy
import difflib
import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError
from torch import Tensor, nn

from leakscope.core.catalogue import roles
from leakscope.core.errors import PlanError
from leakscope.core.trust import Foreign, imported

if TYPE_CHECKING:
    from leakscope.core.dataset import Dataset
    from leakscope.core.task import Task

Table = dict[str, Any]
COLUMNS = 60  # that a refusal lists


def construct(table: Mapping[str, Any], role: str, *, trusted: Iterable[str] = (), **given: Any) -> Any:
    target, arguments = called(table, (role,), trusted, given=set(given))
    return _made(target, arguments | given)


def _made(target: Any, arguments: Table) -> Any:
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
    target, arguments = called(table, ("model",), trusted, given={"data", "inputs", "classes"})
    wanted = inspect.signature(target).parameters

    def build(data: Dataset) -> Any:
        known = {"data": data, "inputs": data.x[0].numel(), "classes": data.task.outputs}
        with Foreign(f"model {table['name']!r} cannot be built"):
            made = target(**{key: value for key, value in known.items() if key in wanted}, **arguments)
            made = made if hasattr(made, "parameters") or not callable(made) else made(data)
        return try_model(str(table["name"]), made, data)

    return build


def try_model(name: str, made: Any, data: Dataset) -> Any:
    """A model of the user's own, if it takes these records and gives what a task needs. It is tried as a copy
    in evaluation mode, so that no running statistics move."""
    shape = tuple(data.x.shape[1:])
    way_out = f"build it from data, or from inputs and classes; {describe_inputs(data)}"
    with Foreign(f"model {name!r} cannot take records of shape {shape} ({way_out})"):
        out = (copy.deepcopy(made).eval() if isinstance(made, nn.Module) else made)(data.x[:2])
    _usable(name, made, out, data.task)
    return made


def describe_inputs(data: Dataset) -> str:
    """What a model is given of these records, column by column."""
    widths = [(column.name, column.stop - column.start) for column in data.columns]
    named = [f"{name} ({width})" if width > 1 else name for name, width in widths[:COLUMNS]]
    more = f" and {len(widths) - COLUMNS} more columns" if len(widths) > COLUMNS else ""
    columns = f", in this order: {', '.join(named)}{more}" if named else ""
    return f"{data.name} has {data.x[0].numel():,} inputs{columns}"


def _usable(name: str, made: Any, out: Any, task: Task) -> None:
    """Refuse a model that has nothing to share, or that does not give the real numbers that a task takes."""
    if not isinstance(made, nn.Module) or not any(True for _ in made.parameters()):
        raise PlanError(f"model {name!r} must be a torch.nn.Module with parameters; give it some to train.")
    real = isinstance(out, Tensor) and out.is_floating_point() and out.dim() in (1, 2) and len(out) == 2
    if not real or not task.takes(out):
        kind = f"{out.dtype} of shape {tuple(out.shape)}" if isinstance(out, Tensor) else type(out).__name__
        raise PlanError(
            f"model {name!r} must give a tensor of real numbers, {task.wanted}, and "
            f"for 2 records it gives {kind}; return the logits alone."
        )


_ARGUMENTS = {  # which arguments a part of each role is given as
    "head": ("head",),
    "reduction": ("reduce",),
    "defense": ("defense", "defenses", "upload"),
    "attack": ("attacks", "members", "family", "reconstruct", "origin", "content", "algebra"),
    "estimator": ("estimator", "estimators"),
    "guard": ("guard", "plain", "guards", "like"),
    "encoder": ("encoder",),
    "training": ("local",),
    "model": ("backbone",),
}
PARTS = {argument: role for role, arguments in _ARGUMENTS.items() for argument in arguments}


def called(
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
                f"{name} has no argument {key!r}{meant(key, known)}; it takes: {', '.join(known) or 'none'}."
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
        raise PlanError(f"unknown {wanted[0]} {name!r}{meant(name, known)}; known: {', '.join(known)}.")
    return imported(name, trusted)


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
    if hint is Any or hint in (int, float, str, bool, type(None), Ellipsis, dict, list, tuple):
        return True
    if typing.get_origin(hint) is typing.Literal:
        return True
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) in (tuple, list, dict, typing.Union):
        return all(_plain(part) for part in typing.get_args(hint))
    return False


def meant(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
