"""Adult (Becker and Kohavi, UCI 1996, CC BY 4.0): the census table that ships with the package."""

from __future__ import annotations

from dataclasses import replace
from importlib import resources
from pathlib import Path

import pandas as pd

from leakscope.data.files import as_folder, located
from leakscope.data.table import Cells, dataset
from leakscope.data.tabular import from_csv
from leakscope.dataset import Dataset
from leakscope.errors import DataError

LABEL = "income"
SECRETS = ("sex", "race", "marital-status")
COLUMNS = (
    "age",
    "workclass",
    "fnlwgt",
    "education",
    "education-num",
    "marital-status",
    "occupation",
    "relationship",
    "race",
    "sex",
    "capital-gain",
    "capital-loss",
    "hours-per-week",
    "native-country",
    LABEL,
)


def adult(*, path: str | Path | None = None, encoding: str = "onehot") -> Dataset:
    """All 48,842 rows, "?" being a category; 108 inputs one-hot (6 numbers, 102 dummies), else 14."""
    if path is not None:
        table = from_csv(path, label=LABEL, secrets=SECRETS, encoding=encoding, drop="split")
    else:
        with resources.as_file(resources.files("leakscope.data") / "adult.csv.gz") as shipped:
            table = from_csv(shipped, label=LABEL, secrets=SECRETS, encoding=encoding, drop="split")
    return replace(table, name="adult")


def uci_adult(*, path: str | Path | None = None, encoding: str = "onehot") -> Dataset:
    """The same table from UCI's own files, adult.data and adult.test in one folder."""
    folder = as_folder(located("uci-adult", path, "adult"), "adult.data", "adult.test")
    parts = [_uci(folder / "adult.data", skip=0), _uci(folder / "adult.test", skip=1)]
    rows = pd.concat(parts, ignore_index=True)
    # The test file ends its labels in a dot.
    rows[LABEL] = [word.removesuffix(".") for word in rows[LABEL]]
    roles = {LABEL: "label", **dict.fromkeys(SECRETS, "secret")}
    cells = [Cells(name, roles.get(name, "column")) for name in COLUMNS]
    for column in cells:
        column.add(rows[column.name].to_numpy(dtype=object))
    return dataset(cells, "adult", label=LABEL, secrets=SECRETS, encoding=encoding)


def _uci(path: Path, *, skip: int) -> pd.DataFrame:
    try:
        rows = pd.read_csv(
            path,
            names=list(COLUMNS),
            skiprows=skip,
            dtype=object,
            na_filter=False,
            skipinitialspace=True,
        )
    except (pd.errors.EmptyDataError, pd.errors.ParserError, UnicodeDecodeError) as error:
        raise DataError(f"{path} is not UCI's file ({str(error).strip()}); fetch it again.") from error
    if not isinstance(rows.index, pd.RangeIndex) or (rows[LABEL] == "").any():
        raise DataError(f"{path} must have {len(COLUMNS)} cells in every row; fetch it from UCI again.")
    return rows
