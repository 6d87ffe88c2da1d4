"""Options as a person gives them -> the plan of an audit of one dataset."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from leakscope.core.catalogue import DATA
from leakscope.core.dataset import PUBLIC, SHADOW_SHARE, TRAIN, TRAIN_SHARE, Dataset
from leakscope.core.errors import ArgumentError, DataError
from leakscope.core.fingerprints import keyed
from leakscope.data import from_csv, tabled
from leakscope.data.files import absent, sha256

Table = dict[str, Any]
AUDIT_TRIALS = 100_000  # of the epsilon audit: they are simulated in one number each
CHOICE = 400  # rehearsals by which the strongest attack is chosen
FEWEST_PEOPLE = 30  # private, and public, where there are enough: one person must not stand for a value
TRIED: tuple[Table, ...] = (  # defenses that an audit tries on its first question, unless told otherwise
    {"name": "DPSGD", "clip": 0.02, "noise": 0.6},  # so much noise that it can hold; it costs what it costs
)
NONE = "none"  # the word for no defense
SECRETS = {  # what an audit asks of a known dataset unless told otherwise
    "adult": "sex",
    "digits": "even",
    "synthetic": "group",
    "health": "gender",
    "cremad": "gender",
    "celeba": "High_Cheekbones",
    "utkface": "ethnicity",
}


def stem(data: object) -> str:
    """What a dataset or file is called in the title and in the folder of its audit."""
    name = data if isinstance(data, str | Path) else getattr(data, "name", "table")
    return Path(str(name)).name.split(".")[0]


def open_data(
    data: Any,
    *,
    label: str | None,
    secrets: Sequence[str],
    user: str | None = None,
    drop: Sequence[str] = (),
    needed: bool = True,
) -> tuple[Table, Dataset, Dataset | None]:
    """The plan's data table, the records, and the same records again where they are in memory only: those of
    a `Dataset` or a DataFrame."""
    if isinstance(data, str | Path):
        table = source(str(data), label=label, secrets=secrets, user=user, drop=drop, needed=needed)
        records = tabled({key: value for key, value in table.items() if key != "without"})
        if label is not None and label != records.label:
            raise ArgumentError(
                f"--label is for files, got {label!r}; the label of {data} is {records.label!r}."
            )
        return table, records, None
    if not isinstance(data, Dataset):
        data, drop = _from_frame(data, label=label, secrets=secrets, user=user, drop=drop), ()
    table = {"name": data.name} | ({"without": list(drop)} if drop else {})
    return table, data, data


def _from_frame(
    frame: Any, *, label: str | None, secrets: Sequence[str], user: str | None, drop: Sequence[str]
) -> Dataset:
    """A DataFrame as a table on disk would be read."""
    if not hasattr(frame, "to_csv"):
        raise ArgumentError(
            f"data must be a known name, a path, a Dataset or a DataFrame, got {type(frame).__name__}."
        )
    if label is None or not secrets:
        raise ArgumentError("a DataFrame needs a label and a secret: say which column is which.")
    with TemporaryDirectory() as folder:
        path = Path(folder) / "table.csv"
        frame.to_csv(path, index=False)
        return from_csv(path, label=label, secrets=list(secrets), user=user, drop=list(drop))


def request_audit(
    data: Any,
    *,
    label: str | None,
    secret: str | None,
    user: str | None = None,
    drop: Sequence[str] = (),
    known: Sequence[str] = (),
    title: str = "Audit",
    **options: Any,
) -> tuple[Table, Dataset | None]:
    """The plan for what was asked, every name in it checked, and the records where they are in memory only;
    options are those of `document`."""
    table, records, held = open_data(
        data, label=label, secrets=[secret] if secret else [], user=user, drop=drop
    )
    taken_out = table.get("without", ())
    wanted = secret or SECRETS.get(str(data) if isinstance(data, str) else records.name)
    if wanted is None:
        there = ", ".join(records.private) or "none"
        raise ArgumentError(f"--secret is missing; {stem(data)} has: {there}.")
    columns = [column.name for column in records.columns]
    asked = [name for name in (*taken_out, *known) if name != "*" or not columns]
    present([wanted, *([user] if user else [])], list(records.private), records, "private column")
    present(asked, columns, records, "column")
    records = records.without(*taken_out) if taken_out else records
    name = f"{title} of {stem(data)}"
    return document(records, table, secret=wanted, user=user, known=known, name=name, **options), held


def present(names: Sequence[str], there: Sequence[str], records: Dataset, kind: str) -> None:
    """Refuse a name that is not there, with the one that may be meant."""
    for name in names:
        if name not in there:
            raise absent(name, there, where=records.name, kind=kind)


def source(
    data: str,
    *,
    label: str | None,
    secrets: Sequence[str],
    user: str | None = None,
    drop: Sequence[str] = (),
    needed: bool = True,
) -> Table:
    """The plan's data table; of a file label and secrets must be named, unless no secret is ``needed``."""
    path = Path(data)
    if path.suffix not in (".csv", ".gz", ".npz"):
        if data not in DATA:
            unknown = absent(data, list(DATA), where="the list of known data", kind="dataset")
            ending = "a file of your own must end in .csv, .csv.gz or .npz"
            raise DataError(f"{str(unknown).removesuffix('.')}; {ending}.")
        return {"name": data, "without": list(drop)} if drop else {"name": data}
    if label is None or (needed and not secrets):
        raise ArgumentError(f"{data!r} is a file: say which column is the --label and which the --secret.")
    kind = "npz" if path.suffix == ".npz" else "csv"
    table: Table = {"name": kind, "path": str(path.resolve()), "sha256": keyed(sha256(path))}
    if kind == "npz":
        table |= {"y": label, "secrets": [*secrets, *([user] if user else [])]}
        return table | ({"without": list(drop)} if drop else {})
    table |= {"label": label, "secrets": list(secrets)}
    return table | ({"drop": list(drop)} if drop else {}) | ({"user": user} if user else {})


def parse_part(part: str | Table, option: str, example: str) -> Table:
    """The plan's table of a part: one already, or typed as ``Name:key=value,key=value``."""
    if not isinstance(part, str):
        return dict(part)
    name, _, settings = part.partition(":")
    try:
        return {"name": name, **tomllib.loads(settings.replace(",", "\n"))}
    except tomllib.TOMLDecodeError:
        raise ArgumentError(
            f"{option} must be a name, or a name with settings such as {example}, got {part!r}."
        ) from None


def list_defenses(defenses: Sequence[str | Table]) -> list[Table]:
    """The plan's tables of the defenses to audit; the word none stands for none of them."""
    named = [part for part in defenses if part != NONE]
    if named and len(named) < len(defenses):
        raise ArgumentError(
            f"--defense {NONE} must stand alone, got {len(named)} more; leave one of them out."
        )
    return [parse_part(part, "--defense", "Pruning:rate=0.99") for part in named]


def document(
    records: Dataset,
    table: Table,
    *,
    secret: str,
    user: str | None = None,
    known: Sequence[str] = (),
    batch: int = 16,
    rounds: int = 5,
    trials: int = 2_000,
    rehearsals: int = 2_000,
    seeds: int = 1,
    model: Table | None = None,
    training: Table | None = None,
    defenses: Sequence[Table] = (),
    tried: Sequence[Table] = (),
    attack: Table | None = None,
    dp: Table | None = None,
    name: str = "Audit",
) -> Table:
    """The plan of an audit, ready for TOML: attribute inference if the secret is an input, property
    and distributional inference with it taken out, user inference if a column says who is who.

    Each again under every one of ``defenses``, and the first under those to be ``tried``, against an
    adversary who knows it. Every game is played by the
    strongest of several attacks, or by the ``attack`` that is named. ``dp``, a DPSGD table, adds the audit
    of one attribute's epsilon. With a ``user`` all records are split by person."""
    records.secret(secret)
    table = {**table, "by": user} if user else table
    width = 3 if records.columns else 10
    cells = _cells(records, table, secret=secret, user=user, known=known, batch=batch)
    bare = list(cells)
    for defense, chosen in [*((one, bare) for one in defenses), *((one, bare[:1]) for one in tried)]:
        cells += [cell | {"id": f"{cell['id']}, {defense['name']}", "defense": defense} for cell in chosen]
    cells = [cell | {"attack": attack or attacks_on(cell, width=width)} for cell in cells]
    if dp is not None:
        cells += _audit_cells(records, secret, dp)
    if user:
        people = _people(records, secret, user)
        cells = [cell if "user" in cell["game"] else cell | people for cell in cells]
    defaults: Table = {
        "data": table,
        "model": model or _model(records),
        "rounds": rounds,
        "trials": trials,
        "rehearsals": rehearsals,
    }
    if training:
        defaults["training"] = training
    return {"name": name, "seeds": list(range(seeds)), "defaults": defaults, "cell": cells}


def attacks_on(cell: Table, *, width: int) -> Table:
    """The attacks among which the strongest plays a cell: ours in closed form, and the papers'."""
    game = cell["game"]
    pooled = {"name": "MaxPool", "width": width}
    ordinal = {"ordinal": True} if "column" in game else {}
    attacks: list[Table] = [
        {"name": "Joint"} | ordinal,
        {"name": "Posterior", "reduce": pooled} | ordinal,
    ]
    if "defense" in cell:
        attacks.append({"name": "NoiseAware"} | ordinal)
    if "user" in game:
        components = {"name": "PCA", "components": 60}
        smooth = {"name": "PLDA", "ridge": 0.1, "reduce": components}
        attacks = [smooth, {"name": "PLDA"}] if "defense" in cell else [{"name": "PLDA"}, smooth]
        attacks.append({"name": "Prototype"})
    return {"name": "Strongest", "by": "loss", "rehearsals": CHOICE, "attacks": attacks}


def _cells(
    records: Dataset,
    table: Table,
    *,
    secret: str,
    user: str | None,
    known: Sequence[str],
    batch: int,
) -> list[Table]:
    cells: list[Table] = []
    inference: Table = {"name": "Inference", "secret": secret, "batch": batch}
    if known:
        inference["known"] = list(known)
    outside = dict(table)
    if records.has(secret):
        cells.append({"id": "attribute", "game": inference})
        outside["without"] = [*table.get("without", ()), secret]
    cells.append({"id": "property", "game": inference, "data": outside})
    cells.append(
        {
            "id": "distribution",
            "data": outside,
            "game": {"name": "Distribution", "column": secret, "batch": 8 * batch},
        }
    )
    if user:
        cells.append(_user_cell(records, user, batch=max(batch // 2, 1)))
    return cells


def _audit_cells(records: Dataset, secret: str, dp: Table) -> list[Table]:
    if not records.has(secret):
        raise DataError(
            f"{records.name}: the audit of an attribute changes it inside a record, and {secret!r} is not "
            f"among the inputs; choose a secret that is."
        )
    settings = {key: value for key, value in dp.items() if key != "delta"}
    game = {"name": "AttributeAudit", "attribute": secret, "delta": dp.get("delta", 1e-5)}
    return [
        {
            "id": f"epsilon, {'crafted' if crafted else 'sampled'} record",
            "game": game | {"crafted": crafted},
            "defense": settings,
            "model": {"name": "MLP", "hidden": [100]},
            "rounds": 1,
            "trials": AUDIT_TRIALS,
        }
        for crafted in (True, False)
    ]


def _model(records: Dataset) -> Table:
    if not records.x.is_floating_point():
        return {"name": "TextClf"}
    if records.x.dim() == 4 and min(records.x.shape[2:]) >= 9:
        return {"name": "CNN"}
    wide = records.x[0].numel() > 500
    return {"name": "MLP", "hidden": [64, 64] if wide else [32, 16]}


def _people(records: Dataset, secret: str, user: str) -> Table:
    """How many people are private and how many public: as many as have the records `Dataset.split` takes
    when it splits records, within the same shares, and `FEWEST_PEOPLE` of each where there are so many."""
    counts = records.secret(secret).unique(return_counts=True)[1]
    people = len(records.secret(user).unique())
    wanted = people * PUBLIC / len(counts) / int(counts.min())
    public = round(min(max(wanted, FEWEST_PEOPLE), SHADOW_SHARE * people))
    train = int(min(max(people * TRAIN / len(records), FEWEST_PEOPLE), TRAIN_SHARE * (people - public)))
    return {"train": max(train, 2), "public": max(public, 2)}


def _user_cell(records: Dataset, user: str, *, batch: int) -> Table:
    """User inference with the largest batch, up to ``batch``, that half of the people can give twice."""
    counts = records.secret(user).unique(return_counts=True)[1]
    batch = min(batch, int(counts.median()) // 2)
    if batch < 1:
        raise DataError(
            f"{records.name}: most values of {user!r} have one record; user inference needs at least 2 each."
        )
    return {"id": "user", "game": {"name": "UserInference", "user": user, "batch": batch}}
