"""A guard, typed at the command line, as a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from importlib import import_module
from typing import Any

from leakscope.audits.asked import SECRETS, open_data, parse_part, present, stem
from leakscope.core.catalogue import roles
from leakscope.core.dataset import Dataset
from leakscope.core.errors import ArgumentError
from leakscope.data.ranges import Bins
from leakscope.guards.inf2guard import pace
from leakscope.results.cell import Table

ESTIMATORS = ({"name": "MINE"}, {"name": "CLUB"})
COLUMNED = ("attribute", "property")  # secrets that are a column's
PICTURES = 6  # records that are shown, with what was rebuilt of them
MAPPED = 300  # records of a map of representations
FRONTIER = (  # what a guard of an attribute is drawn with, if all of it is asked for
    "Inf2Guard:loss='mmd'", "Inf2Guard:loss='prior'", "LAFTR", "DPFE", "Repaired",
    "AdversarialTraining", "DPEncoder", "Compressed", "LEACE", "INLP",
)  # fmt: skip
FLAT = ("Repaired", "LEACE", "INLP")  # for tables only


def request_guard(
    data: Any,
    *,
    label: str | None,
    secret: str | Sequence[str] | None,
    against: str,
    person: str | None = None,
    drop: Sequence[str],
    keep: Sequence[str] = (),
    kinds: Mapping[str, str] | Sequence[str] = (),
    bins: Bins | Sequence[str] = (),
    lams: Sequence[float],
    settings: Table,
    width: int,
    train: int | None,
    public: int | None,
    trials: int,
    rehearsals: int,
    seeds: int,
    shadows: int = 0,
    dimensions: int = 2,
    shown: bool = False,
    beside: Sequence[str] = (),
    equal: str | None = None,
    frontier: bool = False,
) -> tuple[Table, Dataset | None]:
    """The plan of a guard at every lambda, and of those ``beside`` it, every name in it checked, and the
    records where they are in memory only. ``frontier``: the usual guards and baselines stand beside it."""
    hidden = _hidden(data, secret, against)
    table, records, held = open_data(
        data,
        label=label,
        secrets=hidden,
        person=person,
        drop=drop,
        keep=keep,
        kinds=kinds,
        bins=bins,
        needed=against in COLUMNED,
    )
    if against in COLUMNED:
        if not hidden:
            there = ", ".join(records.private) or "none"
            raise ArgumentError(f"--secret is missing; {stem(data)} has: {there}.")
        present(hidden, list(records.private), records, "private column")
        gone = [column for column in hidden if against == "attribute" and records.has(column)]
        table = table | ({"without": [*table.get("without", ()), *gone]} if gone else {})
    beside = name_beside(beside, frontier=frontier, against=against, tables=records.x.dim() == 2)
    if len(set(beside)) < len(beside):
        raise ArgumentError(f"--beside must name every guard once, got {', '.join(beside)}.")
    if equal and not beside:
        raise ArgumentError(f"--equal {equal} is for guards --beside, and there are none; name one.")
    third = len(records) // 3  # for the guard, and for the adversary
    sizes = {"train": train or min(12_000, third), "public": public or min(15_000, third)}
    guard: Table = {"name": "Inf2Guard", "secret": against}
    guard |= (pace(sizes["train"]) if against == "attribute" else {}) | settings
    table_encoder = {"name": "TableEncoder", "widths": [64, width]}
    guard["encoder"] = {"name": "ImageEncoder"} if records.x.dim() == 4 else table_encoder
    more = _asked(against, records, shadows=shadows, dimensions=dimensions, shown=shown)
    games: list[tuple[str, Table]] = []
    for i, lam in enumerate(lams):
        game: Table = {"guard": _of_all(guard | {"lam": float(lam)}, hidden), "estimators": [], "mapped": 0}
        if against == "attribute":
            game |= {"estimators": list(ESTIMATORS), "mapped": MAPPED if i == len(lams) - 1 else 0}
        games.append((f"lambda {lam:g}", game | {"baselines": i == 0}))
    asked: Table = {"secret": against, "baselines": False}
    asked |= {"column": hidden[0]} if hidden else {}
    asked |= {"also": hidden[1:]} if hidden[1:] else {}
    for text in beside:
        other = _other(text, guard | {"lam": float(lams[-1])} | ({"column": hidden[0]} if hidden else {}))
        like = _of_all(guard | {"lam": float(lams[-1])}, hidden)
        tuned = {"name": "Tuned", "guard": other, "like": like, "to": equal} if equal else other
        games.append((text, {"guard": tuned} | asked))
    if person:  # sizes then count people
        present([person], list(records.private), records, "private column")
        share = len(records.secret(person).unique()) / len(records)
        table = table | {"by": person}
        sizes = {part: max(2, int(share * size)) for part, size in sizes.items()}
    document = {
        "name": f"Guard of {stem(data)}",
        "seeds": list(range(seeds)),
        "defaults": {"data": table, "trials": trials, "rehearsals": rehearsals} | sizes,
        "cell": [
            {"id": name, "game": {"name": "GuardAudit", **game, **more, "save": True}} for name, game in games
        ],
    }
    return document, held


def _hidden(data: Any, secret: str | Sequence[str] | None, against: str) -> list[str]:
    """The columns that a guard hides; those of the data that ships with the package are known."""
    hidden = [secret] if isinstance(secret, str) else list(secret or ())
    if against not in COLUMNED and hidden:
        raise ArgumentError(f"--secret is a column, and {against} has none; leave it out.")
    if against != "attribute" and len(hidden) > 1:
        raise ArgumentError(f"--secret can be repeated for attributes, got {len(hidden)} against {against}.")
    if len(set(hidden)) < len(hidden):
        raise ArgumentError(f"--secret must name every column once, got {', '.join(hidden)}.")
    if against in COLUMNED and not hidden:
        hidden = [SECRETS[stem(data)]] if stem(data) in SECRETS else []
    return hidden


def _of_all(guard: Table, columns: Sequence[str]) -> Table:
    """The guard of a column, or of several together, which weigh alike."""
    if len(columns) < 2:
        return guard | ({"column": columns[0]} if columns else {})
    return {"name": "Guards", "guards": [guard | {"column": column} for column in columns]}


def name_beside(beside: Sequence[str], *, frontier: bool, against: str, tables: bool) -> list[str]:
    """The guards that stand beside one, as they are typed."""
    if frontier and against != "attribute":
        raise ArgumentError(f"--frontier is for --against attribute, got {against}; name guards by --beside.")
    usual = [text for text in FRONTIER if frontier and (tables or text not in FLAT)]
    return [*beside, *(text for text in usual if text not in beside)]


def name_encoders(lams: Sequence[float], beside: Sequence[str]) -> list[str]:
    """What the encoders of a plan's cells are called, in their order."""
    own = [f"encoder-{lam:g}" for lam in lams]
    return own + [f"encoder-{text.partition(':')[0]}-{i}" for i, text in enumerate(beside, 1)]


def _other(text: str, guard: Table) -> Table:
    """Another guard, typed with its settings, with encoder, epochs and column of ``guard``. One of
    its kind has all of its settings that are not typed."""
    table = parse_part(text, "--beside", "Distilled:without=10")
    known = roles("guard")
    if table["name"] not in known:
        raise ArgumentError(f"--beside must be a guard, got {table['name']!r}; known: {', '.join(known)}.")
    if table["name"] == guard["name"]:
        return guard | table
    made = getattr(import_module(known[table["name"]].module), table["name"])
    takes = {one.name for one in fields(made)}
    like: Table = {key: guard[key] for key in ("encoder", "epochs") if key in guard}
    if "plain" in takes:
        table.setdefault("plain", {"name": "Unguarded", **like})
        like = {}
    like |= {key: guard[key] for key in ("secret", "column") if key in guard}
    return {key: value for key, value in like.items() if key in takes} | table


def _asked(against: str, records: Dataset, *, shadows: int, dimensions: int, shown: bool) -> Table:
    """What is asked for beside the usual, if it can be."""
    if shadows and against != "membership":
        raise ArgumentError(f"--shadows is for --against membership, got {shadows} against {against}.")
    if shown and (against != "reconstruction" or records.x.dim() != 4):
        raise ArgumentError(
            "--show-reconstructions is for pictures and --against reconstruction; leave it out."
        )
    if dimensions not in (2, 3):
        raise ArgumentError(f"--dimensions must be 2 or 3, got {dimensions}.")
    asked: Table = {"shadows": shadows, "shown": PICTURES if shown else 0}
    return {key: value for key, value in asked.items() if value} | (
        {"dimensions": dimensions} if dimensions == 3 else {}
    )
