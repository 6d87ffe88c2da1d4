"""Adult (Becker and Kohavi, UCI 1996, CC BY 4.0): the census table that ships with the package."""

from __future__ import annotations

from dataclasses import replace
from importlib import resources
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor

from leakscope.core.dataset import Column, Dataset
from leakscope.core.errors import DataError
from leakscope.data.cells import Cells
from leakscope.data.files import folder_of
from leakscope.data.table import dataset
from leakscope.data.tabular import from_csv, text_table

LABEL = "income"
SECRETS = ("sex", "race", "marital-status")
COLUMNS = (
    "age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation",
    "relationship", "race", "sex", "capital-gain", "capital-loss", "hours-per-week", "native-country", LABEL,
)  # fmt: skip
CENSUS = {  # the values that have no dummy in paper 003, which leaves 6 + 12 + 3 + 2 + 7 + 6
    "workclass": ("?", "Never-worked", "Without-pay"),
    "occupation": ("?", "Priv-house-serv", "Armed-Forces"),
    "race": ("Asian-Pac-Islander", "Amer-Indian-Eskimo"),
    "sex": (),
    "marital-status": (),
    "relationship": (),
}
SPREAD = ("fnlwgt", "capital-gain", "capital-loss")  # as (x - mean) / deviation
RANGE = ("age", "hours-per-week", "education-num")  # as (x - least) / most


def adult(*, path: str | Path | None = None, encoding: str = "onehot") -> Dataset:
    """All 48,842 rows, "?" being a category; 108 inputs one-hot (6 numbers, 102 dummies), else 14."""
    with resources.as_file(resources.files("leakscope.data") / "adult.csv.gz") as shipped:
        table = from_csv(
            path or shipped, label=LABEL, secrets=SECRETS, encoding=encoding, drop="split", keep="*"
        )
    return replace(table, name="adult", fates=())


def uci_adult(*, path: str | Path | None = None, encoding: str = "onehot") -> Dataset:
    """The same table from UCI's own files, adult.data and adult.test in one folder."""
    folder = folder_of("uci-adult", path, "adult", "adult.data", "adult.test")
    parts = [_uci(folder / "adult.data", skip=0), _uci(folder / "adult.test", skip=1)]
    rows = pd.concat(parts, ignore_index=True)
    # The test file ends its labels in a dot.
    rows[LABEL] = [word.removesuffix(".") for word in rows[LABEL]]
    roles = {LABEL: "label", **dict.fromkeys(SECRETS, "secret")}
    cells = [Cells(name, roles.get(name, "column")) for name in COLUMNS]
    for column in cells:
        column.add(rows[column.name].to_numpy(dtype=object))
    table = dataset(cells, "adult", label=LABEL, secrets=SECRETS, encoding=encoding, keep=("*",))
    return replace(table, fates=())


def census42(*, path: str | Path | None = None) -> Dataset:
    """Adult with the 42 inputs of paper 003: 6 numbers and 36 dummies, all 48,842 rows.

    As Suri and Evans (PETS 2022) prepare it: education and native-country are left out; race is White,
    Black or Other; rare or missing values of workclass and occupation have no dummy, so that their rows
    hold zeros. Numbers are scaled here, over all rows, and not again by ``Dataset.split``.
    """
    whole = adult(path=path)
    race = _merged(whole, "race", CENSUS["race"], into="Other")
    blocks: list[tuple[Tensor, Column]] = []
    start = 0
    for name in (*SPREAD, *RANGE, *CENSUS):
        if name in CENSUS:
            codes, words = race if name == "race" else _coded(whole, name)
            kept = tuple(word for word in words if word not in CENSUS[name])
            block = torch.stack([codes == words.index(word) for word in kept], 1).float()
        else:
            numbers = whole.x[:, whole.positions(name)].double()
            shift, scale = numbers.min(), numbers.max()
            if name in SPREAD:
                shift, scale = numbers.mean(), numbers.std()
            kept, block = (), ((numbers - shift) / scale).float()
        column = Column(name, start, start + block.shape[1], values=kept, standardised=False)
        blocks.append((block, column))
        start = column.stop
    return replace(
        whole,
        x=torch.cat([block for block, _ in blocks], 1),
        private={**whole.private, "race": race[0]},
        name="census42",
        columns=tuple(column for _, column in blocks),
        values={**whole.values, "race": race[1]},
    )


def _coded(data: Dataset, name: str) -> tuple[Tensor, tuple[str, ...]]:
    words = next(column.values for column in data.columns if column.name == name)
    return data.x[:, data.positions(name)].argmax(1), words


def _merged(data: Dataset, name: str, rare: tuple[str, ...], *, into: str) -> tuple[Tensor, tuple[str, ...]]:
    codes, words = _coded(data, name)
    renamed = [into if word in rare else word for word in words]
    kept = tuple(sorted(set(renamed)))
    return torch.tensor([kept.index(word) for word in renamed])[codes], kept


def _uci(path: Path, *, skip: int) -> pd.DataFrame:
    text = {"dtype": object, "na_filter": False, "skipinitialspace": True}
    rows = text_table(path, "UCI's file", names=list(COLUMNS), skiprows=skip, **text)
    if not isinstance(rows.index, pd.RangeIndex) or (rows[LABEL] == "").any():
        raise DataError(f"{path} must have {len(COLUMNS)} cells in every row; fetch it from UCI again.")
    return rows
