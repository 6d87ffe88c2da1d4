"""Options as a person gives them -> the plan of an audit of one dataset."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from torch import nn

from leakscope.audits.sites.request import ask_federation, name_attacks
from leakscope.core.catalogue import DATA
from leakscope.core.dataset import PUBLIC, SHADOW_SHARE, TRAIN, TRAIN_SHARE, Dataset
from leakscope.core.errors import ArgumentError, DataError, PlanError
from leakscope.core.fingerprints import keyed
from leakscope.data import from_csv, tabled
from leakscope.data.fates import list_kinds
from leakscope.data.files import absent, sha256
from leakscope.data.ranges import RANGES, Bins, list_bins, with_ranges
from leakscope.data.reading import ENDINGS
from leakscope.models import weights

Table = dict[str, Any]
AUDIT_TRIALS = 100_000  # of the epsilon audit: they are simulated in one number each
CHOICE = 400  # rehearsals by which the strongest attack is chosen
RATE = 0.1  # of clients, where no rate is given
FEWEST_PEOPLE = 30  # private, and public, where there are enough: one person must not stand for a value
TRIED: tuple[Table, ...] = (  # defenses that an audit tries on its first question, unless told otherwise
    {"name": "DPSGD", "clip": 0.02, "noise": 0.6},  # so much noise that it can hold; it costs what it costs
)
NONE = "none"  # the word for no defense
OWN_TRAIN, OWN_PUBLIC = 20_000, 10_000  # records of one's own table that are used, where it has so many
SECRETS = {  # what an audit asks of a known dataset unless told otherwise
    "adult": "sex",
    "heart": "sex",
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
    person: str | None = None,
    drop: Sequence[str] = (),
    keep: Sequence[str] = (),
    kinds: Mapping[str, str] | Sequence[str] = (),
    bins: Bins | Sequence[str] = (),
    needed: bool = True,
    raw: bool = False,
) -> tuple[Table, Dataset, Dataset | None]:
    """The plan's data table, the records, and the same records again where they are in memory only: those of
    a `Dataset`, a DataFrame or a pair of inputs and labels. A secret that is a number becomes ranges."""
    cuts = list_bins(bins)
    kinds = dict(kinds) if isinstance(kinds, Mapping) else list_kinds(kinds)
    columns: Table = {"user": user, "person": person, "drop": list(drop), "keep": list(keep), "kinds": kinds}
    columns["bins"] = cuts
    columns = {key: value for key, value in columns.items() if value}
    if isinstance(data, str | Path):
        table = source(str(data), label=label, secrets=secrets, needed=needed, **columns)
        table |= {"raw": True} if raw else {}
        records = tabled({key: value for key, value in table.items() if key != "without"})
        if "path" not in table and (more := _uncut(records, secrets, cuts)):
            table, records = table | {"bins": cuts | more}, with_ranges(records, more)
        if label is not None and label != records.label:
            raise ArgumentError(
                f"--label is for files, got {label!r}; the label of {data} is {records.label!r}."
            )
        return table, records, None
    if not isinstance(data, Dataset):
        frame, label = _frame(data, label)
        if label is None or (needed and not secrets):
            raise ArgumentError("a DataFrame needs a label and a secret: say which column is which.")
        data = from_csv(frame, label=label, secrets=list(secrets), **columns)
        drop, cuts = (), {}
    table = {"name": data.name} | ({"without": list(drop)} if drop else {}) | ({"raw": True} if raw else {})
    data = with_ranges(replace(data, raw=raw or data.raw), {**cuts, **_uncut(data, secrets, cuts)})
    return table, data, data


def _uncut(records: Dataset, secrets: Sequence[str], cuts: Bins) -> dict[str, int]:
    """Numbers among the inputs that are asked for as secrets, and are none yet."""
    numbers = {column.name for column in records.columns if not column.values}
    return {name: RANGES for name in secrets if name in numbers - {*records.private, *cuts}}


def _frame(data: Any, label: str | None) -> tuple[pd.DataFrame, str | None]:
    """A DataFrame, or a pair of inputs and labels as scikit-learn has them, and the name of the label."""
    if isinstance(data, pd.DataFrame):
        return data, label
    if not isinstance(data, tuple) or len(data) != 2 or np.ndim(data[0]) != 2 or np.ndim(data[1]) != 1:
        raise ArgumentError(
            f"data must be a known name, a path, a Dataset, a DataFrame or a pair of inputs (n, columns) and "
            f"labels (n,), got {type(data).__name__}."
        )
    inputs, marks = data
    if len(inputs) != len(marks):
        raise ArgumentError(f"a pair must have as many labels as inputs, got {len(marks)} and {len(inputs)}.")
    name = label or str(getattr(marks, "name", None) or "label")
    if not isinstance(inputs, pd.DataFrame):
        inputs = pd.DataFrame(np.asarray(inputs)).add_prefix("x")
    if name in inputs.columns:
        raise ArgumentError(f"--label must be no column of the inputs, got {name!r}; name it otherwise.")
    return inputs.assign(**{name: np.asarray(marks)}), name


def request_audit(
    data: Any,
    *,
    label: str | None,
    secret: str | Sequence[str] | None,
    user: str | None = None,
    person: str | None = None,
    site: str | None = None,
    drop: Sequence[str] = (),
    keep: Sequence[str] = (),
    kinds: Mapping[str, str] | Sequence[str] = (),
    bins: Bins | Sequence[str] = (),
    known: Sequence[str] = (),
    title: str = "Audit",
    raw: bool = False,
    start: Start | None = None,
    trust: Sequence[str] = (),
    **options: Any,
) -> tuple[Table, Dataset | None]:
    """The plan for what was asked, every name in it checked, and the records where they are in memory only;
    ``start`` is the model, other options are those of `document`."""
    secrets = [secret] if isinstance(secret, str) else list(dict.fromkeys(secret or ()))
    _one_role(site, label=label, secrets=secrets, user=user or person, drop=drop)
    if user and person and user != person:
        raise ArgumentError(f"--user splits by {user!r} already, got --person {person!r} too; leave one out.")
    table, records, held = open_data(
        data,
        label=label,
        secrets=secrets,
        user=user or site,
        person=person,
        drop=drop,
        keep=keep,
        kinds=kinds,
        raw=raw,
        bins=bins,
    )
    taken_out = table.get("without", ())
    usual = SECRETS.get(str(data) if isinstance(data, str) else records.name)
    wanted = secrets or ([usual] if usual else [])
    if not wanted:
        there = ", ".join(records.private) or "none"
        raise ArgumentError(f"--secret is missing; {stem(data)} has: {there}.")
    _one_role(site, label=records.label, secrets=wanted, user=user or person, drop=drop)
    own = "path" in table or not isinstance(data, str | Path | Dataset)
    columns = [column.name for column in records.columns]
    inputs = [name for name in (*taken_out, *known) if name != "*" or not columns]
    people = [name for name in (user, person, site) if name]
    present([*wanted, *people], list(records.private), records, "private column")
    present(inputs, columns, records, "column")
    records = records.without(*taken_out) if taken_out else records
    start, inside = start or Start(), False
    if start.weights and len(wanted) > 1:
        raise ArgumentError("a trained model is audited for one --secret at a time; leave the others out.")
    if start.weights and records.has(wanted[0]):
        inside = takes(start, records, wanted[0], trust)
        if not inside:
            table = table | {"without": [*taken_out, wanted[0]]}
            records = records.without(wanted[0])
    asked = document(
        records,
        table,
        secret=wanted,
        user=user,
        person=person,
        site=site,
        known=known,
        name=f"{title} of {stem(data)}",
        model=start.model,
        weights=start.weights,
        inside=inside,
        most=(OWN_TRAIN, OWN_PUBLIC) if own else None,
        trust=trust,
        **options,
    )
    return asked, held


def _one_role(
    site: str | None, *, label: str | None, secrets: Sequence[str], user: str | None, drop: Sequence[str]
) -> None:
    """Refuse a column of sites that is something else too, with all that it is."""
    roles = {"--label": [label], "--secret": secrets, "--user": [user], "--drop": drop}
    if both := [option for option, names in roles.items() if site is not None and site in names]:
        raise ArgumentError(
            f"--site must name a column that is nothing else, and {site!r} is named by {' and '.join(both)} "
            f"too; choose one."
        )
    if site is not None and user is not None:
        raise ArgumentError(
            f"--site and --user must not both be given, got {site!r} and {user!r}: a site is no person; give "
            f"one."
        )


def takes(start: Start, records: Dataset, secret: str, trust: Sequence[str]) -> bool:
    """Whether a trained model has the secret among its inputs, or all other columns and not that one; refused
    where it takes neither."""
    build = weights.starting(start.model or {}, start.weights, start.net, trusted=trust)
    try:
        build(records.completed(records))
    except PlanError as error:
        try:
            build(records.without(secret).completed(records.without(secret)))
        except PlanError:
            raise PlanError(f"{str(error).removesuffix('.')} (nor does it fit without {secret!r}).") from None
        return False
    return True


def present(names: Sequence[str], there: Sequence[str], records: Dataset, kind: str) -> None:
    """Refuse a name that is not there, with the one that may be meant."""
    for name in names:
        if name not in there:
            raise absent(name, there, where=records.name, kind=kind)


def source(
    data: str, *, label: str | None, secrets: Sequence[str], needed: bool = True, **columns: Any
) -> Table:
    """The plan's data table; of a file label and secrets must be named, unless no secret is ``needed``.
    ``columns`` are the other options of `from_csv`."""
    path, drop = Path(data), columns.get("drop")
    if path.suffix.lower() not in (*ENDINGS, ".npz"):
        if data not in DATA:
            unknown = absent(data, list(DATA), where="the list of known data", kind="dataset")
            ending = f"a file of your own must end in {', '.join((*ENDINGS, '.npz'))}"
            raise DataError(f"{str(unknown).removesuffix('.')}; {ending}.")
        known = {"without": drop, "bins": columns.get("bins")}
        return {"name": data} | {key: value for key, value in known.items() if value}
    if label is None or (needed and not secrets):
        raise ArgumentError(f"{data!r} is a file: say which column is the --label and which the --secret.")
    file: Table = {"path": str(path.resolve()), "sha256": keyed(sha256(path))}
    if path.suffix == ".npz":
        for option in ("keep", "kinds"):
            if columns.get(option):
                word = {"keep": "--keep", "kinds": "--as"}[option]
                raise ArgumentError(f"{word} is for the columns of a table, and {data} holds arrays.")
        people = [columns[key] for key in ("user", "person") if columns.get(key)]
        table: Table = {
            "name": "npz",
            **file,
            "y": label,
            "secrets": list(dict.fromkeys([*secrets, *people])),
        }
        beside = {"without": drop, "bins": columns.get("bins")}
        return table | {key: value for key, value in beside.items() if value}
    return {"name": "csv", **file, "label": label, "secrets": list(secrets), **columns}


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


@dataclass(frozen=True, eq=False)
class Start:
    """The model that is audited, as a plan names it: its table, the ``weights`` that it starts with, and the
    module itself where it is in memory."""

    model: Table | None = None
    weights: Table | None = None
    net: nn.Module | None = None


def parse_model(model: Any, path: str | Path | None, output: str | Path | None = None) -> Start:
    """The model that was asked for: a name, a table or a module in memory, and the file of its weights."""
    if isinstance(model, nn.Module):
        if path is not None:
            raise ArgumentError(
                f"weights must be left out for a module in memory, which has its own, got {str(path)!r}."
            )
        table: Table = {"sha256": weights.fingerprint(weights.serialise(model))}
        if output is not None:
            table["path"] = str((Path(output) / weights.FILE).resolve())
        kind = type(model)
        return Start({"name": f"{kind.__module__}.{kind.__qualname__}"}, table, model)
    part = parse_part(model, "--model", 'MLP:activation="tanh"') if model else None
    if path is None:
        return Start(part)
    if part is None:
        raise ArgumentError(
            f"--weights needs --model, which says what they are the weights of, got {str(path)!r}."
        )
    weights.read(path)  # refuses
    return Start(part, {"path": str(Path(path).resolve()), "sha256": keyed(sha256(path))})


def document(
    records: Dataset,
    table: Table,
    *,
    secret: str | Sequence[str],
    user: str | None = None,
    person: str | None = None,
    site: str | None = None,
    seen: str = "uploads",
    known: Sequence[str] = (),
    train: int | None = None,
    public: int | None = None,
    most: tuple[int, int] | None = None,
    batch: int = 16,
    rounds: int = 15,
    trials: int = 2_000,
    rehearsals: int = 2_000,
    seeds: int = 1,
    model: Table | None = None,
    weights: Table | None = None,
    inside: bool = False,
    training: Table | None = None,
    defenses: Sequence[Table] = (),
    tried: Sequence[Table] = (),
    attack: Table | None = None,
    dp: Table | None = None,
    trust: Sequence[str] = (),
    name: str = "Audit",
) -> Table:
    """The plan of an audit, ready for TOML: attribute inference if the secret is an input, property
    and distributional inference with it taken out, user inference if a column says who is who.

    Each again under every one of ``defenses``, and the first under those to be ``tried``, against an
    adversary who knows it. Every game is played by the strongest of several attacks, or by the ``attack``
    that is named. ``weights`` are those of the ``model``;
    one that has the secret ``inside`` its inputs plays no game without it. ``dp``, a DPSGD table, adds the
    audit of one attribute's epsilon. With a ``user`` or a ``person`` all records are split by person.
    ``train`` and ``public`` count records; without them as many are used as `Dataset.split` says, or up to
    ``most``. Who was trained on is asked of a federation, of which every ``site`` is a client where a column
    names them; not of a model that is trained already."""
    secrets = [secret] if isinstance(secret, str) else list(secret)
    people = user or person
    table = {**table, "by": people} if people else table
    width, model = 3 if records.columns else 10, model or _model(records)
    cells: list[Table] = []
    for one in secrets:
        records.secret(one)
        first = one == secrets[0]
        own = _cells(
            records, table, secret=one, user=user if first else None, known=known, batch=batch, inside=inside
        )
        own = [*_defended(own, defenses), *(_defended(own[:1], tried)[1:] if first else ())]
        ordered = one in records.ordered
        own = [cell | {"attack": attack or attacks_on(cell, width=width, ordered=ordered)} for cell in own]
        own = [cell | {"weights": weights} for cell in own] if weights else own
        own += _audit_cells(records, one, dp) if dp is not None else []
        sizes = _sizes(records, people, train=train, public=public, most=most)
        own = [cell if "user" in cell["game"] else cell | sizes for cell in own]
        several = len(secrets) > 1
        cells += [cell | {"id": f"{cell['id']}, {one}"} if several else cell for cell in own]
    if not weights:
        rate = (training or {}).get("rate", RATE)
        asked = ask_federation(
            records, secrets=secrets, user=people, site=site, seen=seen, rate=rate, rounds=rounds
        )
        cells += [name_attacks(cell, records, model, trust) for cell in _defended(asked, defenses)]
    defaults: Table = {
        "data": table,
        "model": model,
        "rounds": rounds,
        "trials": trials,
        "rehearsals": rehearsals,
    }
    if training:
        defaults["training"] = training
    return {"name": name, "seeds": list(range(seeds)), "defaults": defaults, "cell": cells}


def _defended(cells: Sequence[Table], defenses: Sequence[Table]) -> list[Table]:
    """The cells, and each again under every defense."""
    under = [
        cell | {"id": f"{cell['id']}, {defense['name']}", "defense": defense}
        for defense in defenses
        for cell in cells
    ]
    return [*cells, *under]


def attacks_on(cell: Table, *, width: int, ordered: bool = False) -> Table:
    """The attacks among which the strongest plays a cell: ours in closed form, and the papers'; ``ordered``:
    the secret's values are ranges of a number."""
    game = cell["game"]
    pooled = {"name": "MaxPool", "width": width}
    ordinal = {"ordinal": True} if "column" in game or ordered else {}
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
    inside: bool,
) -> list[Table]:
    cells: list[Table] = []
    inference: Table = {"name": "Inference", "secret": secret, "batch": batch}
    if known:
        inference["known"] = list(known)
    outside = dict(table)
    if records.has(secret):
        cells.append({"id": "attribute", "game": inference})
    if records.has(secret) and not inside:
        outside["without"] = [*table.get("without", ()), secret]
    if not inside:
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


def _sizes(
    records: Dataset,
    people: str | None,
    *,
    train: int | None,
    public: int | None,
    most: tuple[int, int] | None,
) -> Table:
    """How many records, or people, are private and how many public, where `Dataset.split` is not left to say
    it. Of people: as many as have so many records, within the same shares, and `FEWEST_PEOPLE` of each where
    there are so many."""
    wanted = most or (TRAIN, PUBLIC)
    if people:
        number = len(records.secret(people).unique())
        shadow = number * (public or wanted[1]) / len(records)
        shadow = round(min(max(shadow, FEWEST_PEOPLE), SHADOW_SHARE * number))
        private = number * (train or wanted[0]) / len(records)
        private = int(min(max(private, FEWEST_PEOPLE), TRAIN_SHARE * (number - shadow)))
        return {"train": max(private, 2), "public": max(shadow, 2)}
    sizes: Table = {"train": train, "public": public}
    if most:
        sizes["public"] = public or min(wanted[1], int(SHADOW_SHARE * len(records)))
        sizes["train"] = train or min(wanted[0], int(TRAIN_SHARE * (len(records) - sizes["public"])))
    return {key: value for key, value in sizes.items() if value is not None}


def _user_cell(records: Dataset, user: str, *, batch: int) -> Table:
    """User inference with the largest batch, up to ``batch``, that half of the people can give twice."""
    counts = records.secret(user).unique(return_counts=True)[1]
    batch = min(batch, int(counts.median()) // 2)
    if batch < 1:
        raise DataError(
            f"{records.name}: most values of {user!r} have one record; user inference needs at least 2 each."
        )
    return {"id": "user", "game": {"name": "UserInference", "user": user, "batch": batch}}
