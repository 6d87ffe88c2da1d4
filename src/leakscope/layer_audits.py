"""The audit of a model's layers, typed at the command line, as a plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from leakscope import experiment
from leakscope.audits import SECRETS, present, source, stem
from leakscope.dataset import Dataset
from leakscope.errors import ArgumentError
from leakscope.measures.fidelity import WINDOW

Table = dict[str, Any]
SEVERAL = {"celeba": ("Male", "Eyeglasses"), "imdb": ("length",)}
PEOPLE = {"celeba": "identity", "lfw": "identity", "cremad": "speaker", "har": "subject"}
IMAGES = 6  # reconstructed, where records are pictures
PRIVATE, PUBLIC = 0.35, 0.5  # of the people: folds of the adversary's need some of every kind


def requested(
    data: str,
    *,
    label: str | None,
    secrets: Sequence[str],
    user: str | None,
    drop: Sequence[str],
    model: Table | None,
    defense: Table | None,
    batch: int,
    rounds: int,
    observed: int,
    trials: int,
    rehearsals: int,
    seeds: int,
    rate: float,
    images: int | None,
    shown: bool,
) -> Table:
    """The plan of one localisation, every name in it checked."""
    table = source(data, label=label, secrets=secrets, user=user, drop=drop)
    records = experiment.dataset(table)
    if label is not None and label != records.label:
        raise ArgumentError(f"--label is for files, got {label!r}; the label of {data} is {records.label!r}.")
    wanted = list(secrets) or [s for s in SEVERAL.get(data, (SECRETS.get(data, ""),)) if s]
    if not wanted:
        raise ArgumentError(f"--secret is missing; {data} has: {', '.join(records.private)}.")
    user = user or PEOPLE.get(data)
    present([*wanted, *([user] if user else [])], list(records.private), records, "private column")
    picture = records.x.dim() == 4 and min(records.x.shape[2:]) >= WINDOW
    game: Table = {"name": "LayerAudit", "secrets": wanted, "batch": batch}
    if picture and images != 0:
        game |= {"images": images or IMAGES, "shown": shown}
    elif shown or images:
        raise ArgumentError(
            f"--show-reconstructions and --images need pictures of at least {WINDOW} x {WINDOW} pixels, and "
            f"{data} has records of shape {tuple(records.x.shape[1:])}; leave them out."
        )
    cell: Table = {
        "id": "layers",
        "game": game | ({"people": user} if user else {}),
        "data": table,
        "model": model or _model(records, picture=picture),
        "rounds": rounds,
        "observe": [observed],
        "trials": trials,
        "rehearsals": rehearsals,
        "training": {"rate": rate, "batch": 32},
    }
    if user:
        people = len(records.secret(user).unique())
        cell |= {"train": max(2, int(PRIVATE * people)), "public": max(2, int(PUBLIC * people))}
    if defense:
        cell["defense"] = defense
    return {"name": f"Layers of {stem(data)}", "seeds": list(range(seeds)), "cell": [cell]}


def _model(records: Dataset, *, picture: bool) -> Table:
    if picture:
        return {"name": "LeNet"}
    if not records.x.is_floating_point():
        return {"name": "TextClf"}
    return {"name": "MLP", "hidden": [64, 64] if records.x[0].numel() > 500 else [32, 16]}
