"""The typed door: all that is kept of one cell and seed, and all that any reader ever sees of it."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from typing import Any, Generic, TypeVar, get_args

from pydantic import Field, SerializeAsAny

from leakscope.core.columns import Fate
from leakscope.core.nouns import Estimate
from leakscope.measures.shuffled import SelfCheck
from leakscope.results.cell import Cell
from leakscope.results.scores import FrozenModel

FORMAT = 2  # of the file; what a kind's findings mean has a format of its own, in the cell's key
Estimates = dict[str, Estimate]
F = TypeVar("F", bound=FrozenModel)


class RecordsUsed(FrozenModel):
    """The data: how many records, and how they were split where they were."""

    name: str
    label: str
    records: int
    inputs: int
    classes: int | None  # None: the label is a number
    train: int | None = None
    test: int | None = None
    public: int | None = None
    digest: str = ""
    fates: tuple[Fate, ...] = ()


class Net(FrozenModel):
    """The model that was trained. ``given``: it came with weights of its own, ``start`` is its accuracy on
    test records with these, ``idle`` that the most frequent label may do as well. ``joins``: batch
    statistics mix the records of a batch; ``draws``: it draws at random, as dropout does; ``statistics``: it
    has running statistics, which are no part of a gradient; ``still``: it was trained in evaluation mode."""

    name: str
    parameters: int
    given: bool = False
    start: float | None = None
    idle: bool = False
    joins: bool = False
    draws: bool = False
    statistics: bool = False
    still: bool = False


class Made(FrozenModel):
    """When, by what and from what a result was made. Of its ``seconds`` the defense itself took
    ``defending``: what it does with gradients and records' weights, not that these are taken one by one."""

    date: str = ""  # of a result that does not say, none
    code: str = ""  # a hash of this package's own sources
    versions: dict[str, str] = Field(default_factory=dict)
    records: RecordsUsed | None = None
    model: Net | None = None
    seconds: float = 0.0
    defending: float = 0.0


class Result(FrozenModel, Generic[F]):
    """One cell with one seed: what was found, or the error that it ended with."""

    format: int = FORMAT
    key: str
    seed: int
    kind: str
    cell: Cell
    found: SerializeAsAny[F] | None = None
    error: str = ""
    made: Made = Made()

    @property
    def table(self) -> dict[str, Any]:
        """All of it as JSON has it."""
        return self.model_dump(mode="json") | {"cell": self.cell.described}

    def __reduce__(self) -> tuple[Any, ...]:
        """Between processes it travels as it is on disk: generic models cannot be pickled."""
        return _arrive, (self.table,)


def _arrive(table: dict[str, Any]) -> Result[Any]:
    from leakscope.results.store import parse  # it knows the kinds, which know results

    return parse(table, where="a worker")


@cache
def revision() -> str:
    """A hash of the package's own sources, which tells versions apart without git."""
    digest = hashlib.sha256()
    root = files("leakscope")
    for path, text in sorted(_sources(root, "")):
        digest.update(f"{path}\0{hashlib.sha256(text).hexdigest()}\n".encode())
    return digest.hexdigest()[:12]


def _sources(folder: object, prefix: str) -> Iterator[tuple[str, bytes]]:
    for item in folder.iterdir():  # type: ignore[attr-defined]
        if item.is_dir() and not item.name.startswith(("__pycache__", ".")):
            yield from _sources(item, f"{prefix}{item.name}/")
        elif item.name.endswith(".py"):
            yield f"{prefix}{item.name}", item.read_bytes()


def make(records: RecordsUsed | None, model: Net | None, seconds: float, *, defending: float = 0.0) -> Made:
    """The stamp of a result that is made now."""
    return Made(
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        code=revision(),
        versions={
            "leakscope": version("leakscope"),
            "torch": version("torch"),
            "scikit-learn": version("scikit-learn"),
            "numpy": version("numpy"),
            "python": platform.python_version(),
        },
        records=records,
        model=model,
        seconds=round(seconds, 2),
        defending=round(defending, 2),
    )


def find_checks(found: object, where: tuple[str, ...] = ()) -> Iterator[tuple[str, SelfCheck]]:
    """Every self-check inside what was found, with what names it on the way: a secret, an attack, a layer."""
    if isinstance(found, SelfCheck):
        yield ", ".join(dict.fromkeys(part for part in where if part)), found
    elif isinstance(found, FrozenModel):
        named = next((v for n in ("name", "secret") if isinstance(v := getattr(found, n, None), str)), "")
        for field in _checked(type(found)):
            yield from find_checks(getattr(found, field), (*where, named))
    elif isinstance(found, dict):
        for key, value in found.items():
            yield from find_checks(value, (*where, str(key)))
    elif isinstance(found, list | tuple):
        for item in found:
            yield from find_checks(item, where)


@cache
def _checked(model: type[FrozenModel]) -> tuple[str, ...]:
    """The fields that may hold a self-check, by their types: curves of thousands of points do not."""
    return tuple(name for name, field in model.model_fields.items() if _may_hold(field.annotation))


def _may_hold(annotation: Any) -> bool:
    if isinstance(annotation, type) and issubclass(annotation, FrozenModel):
        return bool(_checked(annotation))
    inner = get_args(annotation)
    return any(map(_may_hold, inner)) if inner else annotation in (SelfCheck, Any)
