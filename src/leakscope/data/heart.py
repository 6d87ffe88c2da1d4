"""Heart disease at four hospitals (Detrano et al. 1989, UCI, CC BY 4.0): a consortium's table that ships with
the package."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import pandas as pd

from leakscope.core.dataset import Dataset
from leakscope.core.errors import DataError
from leakscope.data.cells import Cells
from leakscope.data.table import dataset
from leakscope.data.tabular import text_table

LABEL, SECRETS, SITE = "disease", ("sex",), "site"
MEASURED = ("age", "trestbps", "chol", "thalach", "oldpeak")  # numbers; the others are codes of a few values
NEVER = ("trestbps", "chol")  # a pressure or a cholesterol of 0 was not measured
CODED = ("cp", "fbs", "restecg", "exang", "slope", "ca", "thal")
SEXES = {"0.0": "female", "1.0": "male"}


def heart(*, path: str | Path | None = None) -> Dataset:
    """The 920 patients of four hospitals, ill or not; sex and site are private, and site is no input.

    A number that was not measured has the median of the others, and a column beside it says so; a code that
    is missing is the category "?".
    """
    with resources.as_file(resources.files("leakscope.data") / "heart4.csv.gz") as shipped:
        file = Path(path) if path is not None else shipped
        rows = text_table(file, "the table of four hospitals", dtype=str, na_filter=False)
    if absent := [name for name in (*MEASURED, *CODED, *SECRETS, "num", SITE) if name not in rows.columns]:
        raise DataError(f"{file} must have the column {absent[0]!r} of the table of four hospitals.")
    columns = {LABEL: rows["num"].map(lambda stage: "no" if stage == "0" else "yes")}
    for name in MEASURED:
        numbers = pd.to_numeric(rows[name])
        known = numbers.notna() & ((numbers != 0) | (name not in NEVER))
        columns[name] = numbers.where(known, numbers[known].median()).map(str)
        if not known.all():
            columns[f"{name} measured"] = known.map({True: "yes", False: "no"})
    columns |= {name: rows[name].map(lambda code: f"code {float(code):g}" if code else "") for name in CODED}
    columns |= {"sex": rows["sex"].map(SEXES), SITE: rows[SITE]}
    roles = {LABEL: "label", SITE: "site", **dict.fromkeys(SECRETS, "secret")}
    cells = [Cells(name, roles.get(name, "column")) for name in columns]
    for column in cells:
        column.add(columns[column.name].to_numpy(dtype=object))
    return dataset(cells, "heart", label=LABEL, secrets=(*SECRETS, SITE))
