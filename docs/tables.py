"""Tables and values of the papers' pages, put in when the site is built.

    <!-- table 002 table1: Cosine auroc; Whitened auroc -->   these measures of a figure's cells
    <!-- table 002 table1 -->                                  what the paper prints a value for
    {{ 000 attribute-adult: auroc }}                           one value of ours with its interval

Nothing is written back, so no page can say anything else than ``papers/measured/``.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from leakscope.core.errors import DataError
from leakscope.run import published

TABLE = re.compile(r"<!-- table (\S+) ([^\s:]+)(?:: (.+?))? -->")
VALUE = re.compile(r"\{\{ (\S+) ([^\s:]+): (.+?) \}\}")
recorded = cache(published.recorded)


def table(number: str, figure: str, measures: str | None) -> str:
    """The cells of a figure as a Markdown table."""
    lines = [line for line in recorded(number) if figure in line.cell.figure]
    printed = [line.measure for line in lines if line.published is not None]
    wanted = measures.split("; ") if measures else printed
    for measure in wanted or [measures]:
        if measure not in [line.measure for line in lines]:
            raise DataError(f"{measure!r} of {figure} of paper {number} is not measured.")
    chosen = [line for line in lines if line.measure in wanted and (measures or line.published is not None)]
    rows = published.rows(chosen, all_measures=True)
    table = [published.HEADER, ["---"] * len(published.HEADER), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in table)


def value(number: str, cell: str, measure: str) -> str:
    """One measured value: ``0.999 (0.998 to 1.000)``."""
    for line in recorded(number):
        if (line.cell.id, line.measure) == (cell, measure):
            return f"{line.number.value:.3f} ({line.number.low:.3f} to {line.number.high:.3f})"
    raise DataError(f"{measure!r} of cell {cell!r} of paper {number} is not measured.")


def filled(text: str) -> str:
    """A page with its tables and values."""
    text = TABLE.sub(lambda mark: table(*mark.groups()), text)
    return VALUE.sub(lambda mark: value(*mark.groups()), text)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """ProperDocs' hook: a page before it is rendered."""
    return filled(markdown)
