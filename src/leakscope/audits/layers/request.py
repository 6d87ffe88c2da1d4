"""The audit of a model's layers, typed at the command line, as a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from leakscope.audits.asked import SECRETS, open_data, present, stem
from leakscope.core.dataset import Dataset
from leakscope.core.errors import ArgumentError
from leakscope.data.ranges import Bins
from leakscope.measures.fidelity import WINDOW
from leakscope.results.cell import Table

SEVERAL = {"celeba": ("Male", "Eyeglasses"), "imdb": ("length",)}
PEOPLE = {"celeba": "identity", "lfw": "identity", "cremad": "speaker", "har": "subject"}
IMAGES = 6  # reconstructed, where records are pictures
PRIVATE, PUBLIC = 0.35, 0.5  # of the people: folds of the adversary's need some of every kind


def request_layers(
    data: Any,
    *,
    label: str | None,
    secrets: Sequence[str],
    person: str | None,
    drop: Sequence[str],
    keep: Sequence[str] = (),
    kinds: Mapping[str, str] | Sequence[str] = (),
    raw: bool = False,
    bins: Bins | Sequence[str] = (),
    model: Table | None,
    start: Table | None = None,
    defense: Table | None,
    batch: int,
    rounds: int,
    observed: int,
    trials: int,
    rehearsals: int,
    seeds: int,
    training: Table,
    images: int | None,
    shown: bool,
) -> tuple[Table, Dataset | None]:
    """The plan of one localisation, every name in it checked, and the records if they are in memory only."""
    table, records, held = open_data(
        data,
        label=label,
        secrets=secrets,
        person=person,
        drop=drop,
        keep=keep,
        kinds=kinds,
        bins=bins,
        raw=raw,
    )
    name = stem(data)
    wanted = list(secrets) or [s for s in SEVERAL.get(name, (SECRETS.get(name, ""),)) if s]
    if not wanted:
        raise ArgumentError(f"--secret is missing; {name} has: {', '.join(records.private) or 'none'}.")
    person = person or PEOPLE.get(name)
    present([*wanted, *([person] if person else [])], list(records.private), records, "private column")
    picture = records.x.dim() == 4 and min(records.x.shape[2:]) >= WINDOW
    game: Table = {"name": "LayerAudit", "secrets": wanted, "batch": batch}
    if picture and images != 0:
        game |= {"images": images or IMAGES, "shown": shown}
    elif shown or images:
        raise ArgumentError(
            f"--show-reconstructions and --images need pictures of at least {WINDOW} x {WINDOW} pixels, and "
            f"{name} has records of shape {tuple(records.x.shape[1:])}; leave them out."
        )
    cell: Table = {
        "id": "layers",
        "game": game | ({"people": person} if person else {}),
        "data": table,
        "model": model or _model(records, picture=picture),
        "rounds": rounds,
        "observe": [observed],
        "trials": trials,
        "rehearsals": rehearsals,
        "training": {"batch": 32} | training,
    }
    if start:
        cell["weights"] = start
    if person:
        people = len(records.secret(person).unique())
        cell |= {"train": max(2, int(PRIVATE * people)), "public": max(2, int(PUBLIC * people))}
    if defense:
        cell["defense"] = defense
    return {"name": f"Layers of {name}", "seeds": list(range(seeds)), "cell": [cell]}, held


def _model(records: Dataset, *, picture: bool) -> Table:
    if picture:
        return {"name": "LeNet"}
    if not records.x.is_floating_point():
        return {"name": "TextClf"}
    return {"name": "MLP", "hidden": [64, 64] if records.x[0].numel() > 500 else [32, 16]}
