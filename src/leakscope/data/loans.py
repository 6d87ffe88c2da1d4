"""Loans as papers 003 and 004 have them: 36,982 rows of a table of mortgages."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from leakscope.core.dataset import Dataset
from leakscope.data.files import located
from leakscope.data.tabular import from_csv


def loans(*, path: str | Path | None = None) -> Dataset:
    """Loans, loan.csv.gz: who can afford one, in three grades; race and gender are private.

    One number a column, as in the papers. The grade is an exact function of the columns TIR and BIR: a model
    learns all of it, whatever a guard hides.
    """
    file = located("loans", path, "loan.csv.gz")
    kinds = {"Affordability": "category", "Race": "category", "Gender": "category"}
    table = from_csv(
        file, label="Affordability", secrets=("Race", "Gender"), encoding="label", keep="*", kinds=kinds
    )
    return replace(table, name="loans", fates=())
