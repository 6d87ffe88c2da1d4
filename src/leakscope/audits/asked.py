"""What a person names when she asks for an audit -> tables of a plan: her data, a part, her model."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from torch import nn

from leakscope.core.catalogue import DATA
from leakscope.core.dataset import Dataset
from leakscope.core.errors import ArgumentError, DataError
from leakscope.core.fingerprints import keyed
from leakscope.data import from_csv, tabled
from leakscope.data.cells import PEOPLE
from leakscope.data.fates import list_kinds
from leakscope.data.files import absent, list_names, sha256
from leakscope.data.ranges import RANGES, Bins, list_bins, with_ranges
from leakscope.data.reading import ENDINGS, open_table
from leakscope.models import weights

Table = dict[str, Any]
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
    site: str | None = None,
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
    columns: Table = {"user": user, "person": person, "site": site, "drop": list(drop), "keep": list(keep)}
    columns |= {"kinds": kinds, "bins": cuts}
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
            there = list_names([str(name) for name in frame.columns])
            raise ArgumentError(
                f"a DataFrame needs a label and a secret: say which column is which; it has {there}."
            )
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
    read = [word for key, word in {"keep": "--keep", "kinds": "--as"}.items() if columns.get(key)]
    if path.suffix.lower() not in (*ENDINGS, ".npz"):
        if data not in DATA:
            ending = f"a file of your own must end in {', '.join((*ENDINGS, '.npz'))}"
            if path.exists():
                kind = "folder" if path.is_dir() else "file of a kind that is not read"
                raise DataError(f"{data!r} is a {kind}; {ending}.")
            unknown = absent(data, list(DATA), where="the list of known data", kind="dataset")
            raise DataError(f"{str(unknown).removesuffix('.')}; {ending}.")
        if read:
            raise ArgumentError(
                f"{' and '.join(read)} must go with a file of your own, and {data} is a known dataset, whose "
                f"columns are read already; leave {'it' if len(read) == 1 else 'them'} out."
            )
        known = {"without": drop, "bins": columns.get("bins")}
        return {"name": data} | {key: value for key, value in known.items() if value}
    if label is None or (needed and not secrets):
        there = "" if path.suffix == ".npz" else f"; it has {list_names(open_table(path).header)}"
        raise ArgumentError(
            f"{data!r} is a file: say which column is the --label and which the --secret{there}."
        )
    file: Table = {"path": str(path.resolve()), "sha256": keyed(sha256(path))}
    if path.suffix == ".npz":
        if read:
            raise ArgumentError(
                f"{' and '.join(read)} must go with the columns of a table, and {data} holds arrays; leave "
                f"{'it' if len(read) == 1 else 'them'} out."
            )
        people = [columns[key] for key in PEOPLE if columns.get(key)]
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
