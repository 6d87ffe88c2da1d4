"""The audit of records, typed at the command line, as a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from leakscope.audits.asked import Start, open_data, stem
from leakscope.audits.records.kind import KIND
from leakscope.audits.records.preflight import Preflight, foresee, list_public
from leakscope.core.dataset import Dataset
from leakscope.core.errors import ArgumentError
from leakscope.core.rng import seeded
from leakscope.core.tables import construct
from leakscope.data import tabled
from leakscope.data.ranges import Bins
from leakscope.models import build, weights
from leakscope.results.cell import Cell, Table, words
from leakscope.results.kind import World

WORTH = 5  # epochs after which it is said what a defense costs
SHOWN = 4  # records of each size that are shown, where they are asked for
BESIDE = 8  # releases of each number of records, where other questions are asked too
APART = ("name", "attacks", "records", "centred")  # of the game about members, what is not the records'
QUICK = {  # in an audit that asks for more than this
    "name": "RowSpace", "branches": 5_000, "tried": 1_000, "together": 2, "samples": 1_000, "silent": 1_000,
}  # fmt: skip


def request_records(
    data: Any,
    *,
    label: str | None,
    person: str | None,
    drop: Sequence[str],
    keep: Sequence[str] = (),
    kinds: Mapping[str, str] | Sequence[str] = (),
    bins: Bins | Sequence[str] = (),
    raw: bool = False,
    train: int | None,
    public: int | None,
    start: Start,
    width: int,
    batches: Sequence[int],
    local: Table | None,
    clients: int,
    sums: bool,
    trained: int,
    trials: int,
    seeds: int,
    training: Table,
    defenses: Sequence[Table],
    shown: bool,
    attack: Table | None = None,
) -> tuple[Table, Dataset | None]:
    """The plan of one audit of records, every name in it checked, and the records if they are in memory."""
    _consistent(clients=clients, sums=sums)
    table, _, held = open_data(
        data,
        label=label,
        secrets=(),
        person=person,
        drop=drop,
        keep=keep,
        kinds=kinds,
        bins=bins,
        needed=False,
        raw=raw,
    )
    name = stem(data)
    game: Table = {"name": "RecordsAudit", "batches": sorted(set(batches))}
    game |= {"local": local} if local else {}
    game |= {"clients": clients} if clients > 1 else {}
    game |= {"shown": SHOWN} if shown else {}
    game |= {"reconstruct": attack} if attack else {}
    cell: Table = {
        "id": "records",
        "data": table | ({"by": person} if person else {}),
        "game": game,
        "model": start.model or {"name": "MLP", "hidden": [width, max(width // 2, 2)]},
        "rounds": max(trained + 1, WORTH if defenses else 1),
        "observe": [trained + 1],
        "trials": trials,
        "training": training,
    }
    cell |= {"weights": start.weights} if start.weights else {}
    cell |= {key: value for key, value in {"train": train, "public": public}.items() if value is not None}
    under = [cell | {"id": f"records, {words(one)}", "defense": one} for one in defenses]
    return {"name": f"Records of {name}", "seeds": list(range(seeds)), "cell": [cell, *under]}, held


def ask_records() -> Table:
    """The cell about records that an audit of other questions asks beside them: a few releases of the model
    as it starts, in a search that is bounded, or why they cannot be read."""
    game = {"name": "RecordsAudit", "batches": [4, 8], "patience": 2, "optional": True, "reconstruct": QUICK}
    return {"id": "records", "game": game, "rounds": 1, "observe": [1], "trials": BESIDE}


def ask_recorded(cell: Table, *, shown: bool, quick: bool, trust: Sequence[str]) -> Table:
    """The cell about records beside the ``cell`` about members of a recording, refused where they cannot be
    read. ``quick``: a search that is bounded more narrowly, for who asked about members."""
    game = {key: value for key, value in cell["game"].items() if key not in APART}
    game |= {"name": "RecordedRecords"} | ({"shown": SHOWN} if shown else {})
    game |= {"attacks": [QUICK]} if quick else {}
    asked = {key: value for key, value in cell.items() if key != "note"} | {"id": "records", "game": game}
    KIND.check(World(Cell.model_validate(asked), 0, tabled(asked["data"]), tuple(trust)))
    return asked


def request_preflight(
    data: Any,
    *,
    start: Start,
    width: int,
    batches: Sequence[int],
    clients: int,
    sums: bool,
    local: Table | None,
    trust: Sequence[str],
    **columns: Any,
) -> Preflight:
    """What is foreseen for this table and this model, before anything is trained; ``columns`` are those of
    `open_data`."""
    _consistent(clients=clients, sums=sums)
    _, records, _ = open_data(data, secrets=(), needed=False, **columns)
    some = list_public(records)
    table = start.model or {"name": "MLP", "hidden": [width, max(width // 2, 2)]}
    built = weights.starting(table, start.weights, start.net, trusted=trust)
    model = build(built, some, seeded(0, "model"))
    training = construct(local, "training", trusted=trust) if local else None
    return foresee(model, some, batches, local=training, clients=clients)


def describe_local(epochs: int | None, batch: int, optimiser: str, rate: float) -> Table | None:
    """The plan's table of local training; None: gradients are released."""
    if epochs is None:
        if optimiser != "sgd":
            raise ArgumentError(
                f"--optimiser is for uploads, got {optimiser!r} for gradients; give --local-epochs too."
            )
        return None
    steps = {"epochs": epochs, "batch": batch, "momentum": 0.0, "decay": 0.0}
    return {"name": "Local", "rate": rate, "optimiser": optimiser} | steps


def _consistent(*, clients: int, sums: bool) -> None:
    """Refuse options that say nothing together."""
    if (clients > 1) != sums:
        raise ArgumentError(
            f"--clients and --sums go together, got --clients {clients} and {'' if sums else 'no '}--sums: a "
            f"sum is of two clients or more, and what each client releases alone is asked without both."
        )
