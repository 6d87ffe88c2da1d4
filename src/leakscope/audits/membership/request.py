"""The audit of a recording, typed at the command line: everything is checked before anything is written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from leakscope.audits.inference.request import parse_part, stem
from leakscope.audits.membership.kind import KIND
from leakscope.audits.membership.recorded import HEADER
from leakscope.core import files
from leakscope.core.dataset import Dataset
from leakscope.core.errors import ArgumentError, DataError
from leakscope.core.fingerprints import keyed
from leakscope.core.rng import seeded
from leakscope.core.tables import architecture, construct
from leakscope.data import tabled
from leakscope.data.files import sha256
from leakscope.data.reading import ENDINGS
from leakscope.gradients import moments
from leakscope.models import build, parameters
from leakscope.results.cell import Cell, Table
from leakscope.results.kind import World
from leakscope.training.recording import Recording
from leakscope.training.recording.index import INDEX, Shapes

ATTACKS = ("Cosine", "Whitened", "Loss", "FedLoss")
FILES = (*ENDINGS, ".npz")


def request_recording(
    data: str,
    *,
    recording: Path,
    client: str | None,
    label: str | None,
    model: str | None,
    seen: str,
    centred: bool,
    records: bool,
    drop: Sequence[str],
    trials: int,
    seeds: int,
    trust: Sequence[str],
    preprocessing: str | None = None,
) -> Table:
    """The plan of the audit of one recording, after a rehearsal of all that can go wrong with it."""
    held = Recording(recording)
    for option, given in (("--client", client), ("--label", label), ("--model", model)):
        if given is None:
            calls = f"; the recording calls its model {held.model_name!r}" if option == "--model" else ""
            raise ArgumentError(f"--recording needs {option} beside it{calls}.")
    held.complete()
    table = _table(data, label=str(label), client=str(client), drop=drop)
    candidates = tabled(table)
    chosen, notes = _model(str(model), held)
    built = build(architecture(chosen, trusted=trust), candidates, seeded(0, "model")).eval()
    attacks, left_out = _attacks(built, candidates, chosen["name"])
    game: Table = {
        "name": "RecordingAudit",
        "recording": str(recording.resolve()),
        "digest": sha256(recording / INDEX),
        "attacks": [{"name": name} for name in attacks],
        "column": client,
        "seen": seen,
        "centred": centred,
    }
    if preprocessing is not None:
        game["preprocessing"] = preprocessing
    if records:
        game["records"] = True
    cell: Table = {"id": "membership", "game": game, "data": table, "model": chosen, "trials": trials}
    if notes or left_out:
        cell["note"] = " ".join([*notes, *left_out])
    KIND.check(World(Cell.model_validate(cell), 0, candidates, tuple(trust)))
    construct(game, "audit", trusted=trust).believe(held)
    return {"name": f"Audit of {stem(data)}", "seeds": list(range(seeds)), "cell": [cell]}


def _table(data: str, *, label: str, client: str, drop: Sequence[str]) -> Table:
    """The candidates: the column of clients beside the inputs, never among them."""
    path = Path(data)
    if path.suffix not in FILES:
        raise ArgumentError(
            f"with --recording DATA must be a file of candidates that ends in {', '.join(FILES)}, got "
            f"{data!r}."
        )
    if label == client:
        raise ArgumentError(f"--label and --client must name two columns, got {label!r} for both.")
    file = {"path": str(path.resolve()), "sha256": keyed(sha256(path))}
    if path.suffix == ".npz":
        if drop:
            raise ArgumentError(
                f"--drop is for the columns of a table, and {data} holds arrays; leave it out."
            )
        return {"name": "npz", **file, "y": label, "secrets": [client]}
    table = {"name": "csv", **file, "label": label, "secrets": [], "user": client, "keep": ["*"]}
    return table | ({"drop": list(drop)} if drop else {})


def _model(text: str, recording: Recording) -> tuple[Table, list[str]]:
    """The model's table; what shapes say of an MLP is taken from the recording."""
    table = parse_part(text, "--model", 'MLP:activation="tanh"')
    if table["name"] != "MLP" or "hidden" in table:
        return table, []
    widths = _widths(recording.layers)
    if widths is None:
        return table, []
    said = table.get("activation", "relu")
    note = f"Layer sizes {list(widths)} come from the recording. The activation is taken to be {said}."
    return table | {"hidden": list(widths)}, [note]


def _widths(layers: Shapes) -> tuple[int, ...] | None:
    """The hidden widths of a net whose layers are named and shaped as `MLP` has them."""
    weights = {name: shape for name, shape in layers.items() if name.endswith(".weight")}
    places = [name.removesuffix(".weight") for name in weights]
    shapes = list(weights.values())
    first = int(places[0] == "1") if places else 0  # records of more than one dimension are flattened first
    expected = [f"{first + 2 * i}.{part}" for i in range(len(places)) for part in ("weight", "bias")]
    if list(layers) != expected or any(len(shape) != 2 for shape in shapes):
        return None
    return tuple(shape[0] for shape in shapes[:-1])


def _attacks(model: nn.Module, candidates: Dataset, name: str) -> tuple[tuple[str, ...], list[str]]:
    """The attacks that the model allows, and in words why one is left out."""
    some = candidates.take(torch.arange(2))
    try:
        moments(model, parameters(model), some.x, some.y)
    except ArgumentError:
        note = f"Whitened is left out: {name} has layers other than linear ones and convolutions."
        return tuple(attack for attack in ATTACKS if attack != "Whitened"), [note]
    return ATTACKS, []


def writable(records: Path, seeds: int) -> None:
    """Refuse a place for the table of records where it would overwrite anything but its like."""
    if seeds > 1:
        raise ArgumentError(f"--records lists one audit, got --seeds {seeds}; leave one of them out.")
    if not records.parent.is_dir() or records.is_dir():
        raise DataError(f"--records must be a file in a folder that exists, got {str(records)!r}.")
    if records.exists():
        try:
            first = files.read(records).partition(b"\n")[0].decode().strip()
        except (OSError, UnicodeDecodeError):
            first = ""
        if first != ",".join(HEADER):
            raise DataError(f"--records would overwrite {str(records)!r}, which holds something else.")
