"""A cell: what was asked, as data, and how people say it."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import PurePath, PureWindowsPath
from typing import Any, Literal, TypeVar

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from leakscope.core import toml
from leakscope.core.catalogue import KINDS
from leakscope.core.errors import PlanError

MOST_ROUNDS, MOST_TRIALS, MOST_RECORDS = 100_000, 10_000_000, 10**9  # of a cell
MOST_SEEDS, MOST_CELLS = 1_000, 10_000  # of a plan
PATHS = ("path", "recording")  # what names a file or a folder of the user's
FINGERPRINTS = ("sha256", "digest", "preprocessing")  # of records, of what they were scaled by
WORDS = ("id", "figure", "published", "note")  # about a cell, without effect on its numbers
Table = dict[str, Any]
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


def _jsonable(value: Any) -> Any:
    """The same with infinite numbers as words, which JSON has none for, and tuples as lists."""
    if isinstance(value, dict):
        return {key: _jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_jsonable(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


class Training(BaseModel):
    """How the victim is trained: plain SGD. ``mode`` is torch's: "train" has batch statistics and dropout,
    "eval" neither."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    rate: float = Field(default=0.01, gt=0)
    batch: int = Field(default=64, ge=1, le=MOST_RECORDS)
    mode: Literal["train", "eval"] = "train"


class Cell(BaseModel):
    """One experiment: a game on data, a victim, a defense, an adversary.

    ``train`` and ``public`` count records (people for user inference, and where ``data.by`` names
    them); ``rounds`` are trained and observed, unless ``observe`` names some of them, 1 being the first;
    ``rehearsals`` are the adversary's simulated challenges; ``trials`` the real ones. ``weights`` name a file
    (``path``, ``sha256``) with those that the model starts with.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    id: str = ""
    data: Table
    game: Table
    model: Table = Field(default_factory=lambda: {"name": "MLP"})
    weights: Table | None = None
    attack: Table = Field(default_factory=lambda: {"name": "Posterior"})
    defense: Table | None = None
    adaptive: bool = True
    rounds: int = Field(default=5, ge=1, le=MOST_ROUNDS)
    observe: tuple[int, ...] | None = None
    trials: int = Field(default=2_000, ge=2, le=MOST_TRIALS)
    rehearsals: int = Field(default=2_000, ge=2, le=MOST_TRIALS)
    train: int | None = Field(default=None, ge=2, le=MOST_RECORDS)
    public: int | None = Field(default=None, ge=2, le=MOST_RECORDS)
    training: Training = Training()
    figure: tuple[str, ...] = ()
    published: dict[str, float] = {}
    note: str = ""

    @property
    def meaning(self) -> Table:
        """Everything that decides the numbers, and nothing else. Later settings of cells are not in it where
        they are left out, so that the keys of earlier results stay."""
        meaning: Table = _jsonable(self.model_dump(exclude=set(WORDS)))
        weights = meaning.pop("weights")
        if weights is not None:  # where a file is says nothing once its fingerprint is known
            known = "sha256" in weights
            meaning["weights"] = {k: v for k, v in weights.items() if not (known and k == "path")}
        if self.training.mode == "train":
            del meaning["training"]["mode"]
        return meaning

    @property
    def described(self) -> Table:
        """The cell with what it is called and compared with."""
        described: Table = _jsonable(self.model_dump())
        return described

    def key(self, seed: int) -> str:
        """The name of this cell's result on disk; it changes with the format of what its kind finds."""
        text = json.dumps([self.kind, KINDS[self.kind].format, self.meaning, seed], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def game_name(self) -> str:
        return str(self.game.get("name", ""))

    @property
    def kind(self) -> str:
        """The kind of audit that its game belongs to."""
        own = (name for name, entry in KINDS.items() if self.game_name in entry.games)
        return next(own, next(iter(KINDS)))

    @property
    def source(self) -> str:
        """What the records are called: a known name, or that of the user's own file."""
        name, path = str(self.data.get("name", "data")), self.data.get("path")
        return PurePath(str(path)).name if name in ("csv", "npz") and path else name

    @property
    def observed(self) -> tuple[int, ...]:
        """The observed rounds, 0 being the first."""
        return tuple(i - 1 for i in self.observe) if self.observe else tuple(range(self.rounds))


class Plan(BaseModel):
    """Cells and the seeds each is run with."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    name: str = "plan"
    seeds: tuple[int, ...] = Field(default=(0,), min_length=1, max_length=MOST_SEEDS)
    cell: tuple[Cell, ...] = Field(min_length=1, max_length=MOST_CELLS)

    @property
    def digest(self) -> str:
        """Equal for plans that give the same results."""
        asked = sorted(stable([cell.meaning, seed]) for cell in self.cell for seed in self.seeds)
        return hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:16]


def plan_of(text: str) -> Plan:
    """The plan that a results folder keeps, without a look at what its names mean."""
    try:
        document = toml.parsed(text)
        defaults = document.pop("defaults", {})
        cells = [{**defaults, **cell} for cell in document.get("cell", ())]
        return Plan.model_validate({**document, "cell": cells})
    except (TypeError, ValueError, ValidationError):
        raise PlanError(
            "this folder holds no plan of leakscope; give a folder that an audit or a run wrote."
        ) from None


def group_by(items: Iterable[V], key: Callable[[V], K]) -> dict[K, list[V]]:
    """Items of one key together, in the order in which they first appear."""
    groups: dict[K, list[V]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def stable(value: object) -> str:
    """The same text for the same value, whatever the order of its keys."""
    return json.dumps(value, sort_keys=True, default=str)


def shown(table: Mapping[str, Any]) -> Table:
    """A table as others may see it: of a path the name alone, and no fingerprint."""
    return {key: _shown(key, value) for key, value in table.items() if key not in FINGERPRINTS}


def _shown(key: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return shown(value)
    if isinstance(value, list | tuple):
        return [_shown(key, item) for item in value]
    if not isinstance(value, str):
        return value
    path = PureWindowsPath(value) if "\\" in value else PurePath(value)
    return path.name or value if path.is_absolute() or key in PATHS else value


def shown_plan(text: str) -> str:
    """A plan's text as others may see it; it runs where its files are."""
    return tomli_w.dumps(shown(toml.parsed(text))) if text.strip() else text


def differences(tables: Sequence[Mapping[str, Any]], told: Iterable[str]) -> list[str]:
    """What tells tables apart, other than the keys of which the page tells elsewhere."""
    flat = [dict(_leaves(shown(table))) for table in tables]
    paths = sorted({path for leaves in flat for path in leaves})
    vary = [p for p in paths if p[0] not in told and len({stable(leaves.get(p)) for leaves in flat}) > 1]
    return [
        ", ".join(
            f"{' '.join(p[:-1] if p[-1] == 'name' else p)} {words(leaves[p])}" for p in vary if p in leaves
        )
        for leaves in flat
    ]


def _leaves(table: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], object]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, (*path, str(key)))
        else:
            yield (*path, str(key)), value


def list_shields(value: object) -> Iterator[Table]:
    """A plan's defense or guard, and those inside it that are in place too; what it is compared with is
    not."""
    if isinstance(value, Mapping):
        if value.get("name"):
            yield dict(value)
        for key in ("guard", "defense", "guards", "defenses"):
            yield from list_shields(value.get(key))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from list_shields(item)


def capitalise(text: str) -> str:
    """The first letter large, the others as they are."""
    return text[:1].upper() + text[1:]


def words(value: object) -> str:
    """A plan's table as people say it: ``Pruning (rate 0.99)``."""
    if isinstance(value, Mapping):
        value = shown(value)
        rest = ", ".join(
            f"{key} {words(item)}" for key, item in value.items() if key != "name" and item is not None
        )
        name = str(value.get("name", ""))
        return f"{name} ({rest})" if name and rest else name or rest
    if isinstance(value, list | tuple):
        return " + ".join(words(item) for item in value)
    text = str(value)
    return f"{value:.6g}" if isinstance(value, float) and len(text) > 8 else text  # 0.04, not 0.04000000001
