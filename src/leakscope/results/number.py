"""The numbers of results for other programs: `results.csv` and `results.json`, a row for every cell, seed
and measure.

Both hold aggregates only: no record, no picture, no score of a person. The JSON is described by
`results.schema.json`. What was found round by round, and curves, stay in the files of the results.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from leakscope.core.basis import Basis
from leakscope.core.nouns import Estimate
from leakscope.results.scores import MEASURES, Bound, Scores, Worth

FORMAT = 2  # of both files: a change of meaning changes it
FORMULAS = ("=", "+", "-", "@", "\t", "\r", "＝", "＋", "－", "＠")  # how what a spreadsheet runs begins
About = Literal["leakage", "utility", "baseline", "bound", "protection", "diagnostic"]


@dataclass(frozen=True)
class Number:
    """One measure of one cell and seed, or the error that it failed with.

    ``cell`` is the same for every seed of a cell, ``key`` is the name of one result. ``about`` says what is
    measured: leakage, utility, a baseline that needs no defense, a bound that holds for every adversary, a
    protection that was tried, or a diagnostic. ``question`` is the game that is played about the secret.
    ``part`` tells apart what one result measures several times: attacks, clients, layers, heads.
    ``adaptive``: whether the adversary knows of the defense; None: there is none to know of. ``guessing`` is
    what the measure is without any release. ``bound``: an "estimate" is of the attack that was played, a
    "lower" one of what leaks at least, an "upper" one of what any adversary can have. ``covers`` says of an
    upper bound for which releases it holds ("shown": exactly those that the adversary saw) and ``delta`` at
    which delta."""

    key: str = ""
    id: str = ""
    cell: str = ""
    kind: str = ""
    data: str = ""
    game: str = ""
    question: str = ""
    secret: str = ""
    attack: str = ""
    defense: str = ""
    adaptive: bool | None = None
    seed: int = 0
    about: About = "leakage"
    part: str = ""
    measure: str = ""
    value: float | None = None
    low: float | None = None
    high: float | None = None
    level: float | None = None
    n: int | None = None
    method: str = ""
    guessing: float | None = None
    bound: Bound = "estimate"
    covers: str = ""
    delta: float | None = None
    error: str = ""
    basis: Basis | None = None  # not written: it is in the result
    behind: int | None = None  # the records behind an accounted epsilon; not written either


COLUMNS = tuple(field.name for field in fields(Number) if field.name not in ("basis", "behind"))


def of_estimate(about: Number, measure: str, estimate: Estimate, guessing: float | None = None) -> Number:
    """One measure with its interval and what it rests on."""
    known = MEASURES.get(measure)
    return replace(
        about,
        measure=measure,
        value=estimate.value,
        low=estimate.low,
        high=estimate.high,
        level=estimate.level,
        n=estimate.n,
        method=estimate.method,
        guessing=guessing if guessing is not None or known is None else known.chance,
        bound=known.bound if known else "estimate",
        basis=estimate.basis,
    )


def of_scores(about: Number, scores: Scores[Estimate], *, guessing: float | None = None) -> Iterator[Number]:
    """A row for every measure of one attack; ``guessing`` is the success rate without the release."""
    for name, estimate in scores.present():
        yield of_estimate(about, name, estimate, guessing if name == "success" else None)


def of_worth(about: Number, worth: Worth[Estimate] | None) -> Iterator[Number]:
    """What the model is worth, whoever attacks it."""
    if worth is None:
        return
    about = replace(about, about="utility", attack="")
    if worth.main:
        yield of_estimate(about, worth.judged_by, worth.main, worth.majority)
    if worth.mae:
        yield of_estimate(about, "mae", worth.mae, worth.mae_of_mean)
    if worth.auroc:
        yield of_estimate(about, "auroc", worth.auroc)
    if worth.trained:
        yield of_estimate(about, "trained", worth.trained)


def of_value(about: Number, measure: str, value: float | None, **more: Any) -> Iterator[Number]:
    """A number that has no interval, because it is computed and not estimated."""
    if value is not None:
        yield replace(about, measure=measure, value=float(value), method="computed", **more)


def as_csv(numbers: Iterable[Number]) -> str:
    """A table with a head. Text that a spreadsheet would run as a formula is set off by an apostrophe."""
    text = io.StringIO()
    table = csv.writer(text)
    table.writerow(COLUMNS)
    for number in numbers:
        table.writerow([harmless(getattr(number, column)) for column in COLUMNS])
    return text.getvalue()


def harmless(value: object) -> object:
    """A value as a cell of a spreadsheet: never a formula, and true and false in small letters."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"'{value}" if isinstance(value, str) and value.lstrip(" ").startswith(FORMULAS) else value


def as_json(numbers: Iterable[Number], *, title: str) -> str:
    """A document that `results.schema.json` describes."""
    rows = [json.dumps(as_table(number), allow_nan=False, ensure_ascii=False) for number in numbers]
    head = f'{{"format": {FORMAT}, "title": {json.dumps(title, ensure_ascii=False)}, "numbers": [\n'
    return head + ",\n".join(rows) + "\n]}\n"


def as_table(number: Number) -> Mapping[str, Any]:
    """A number as both files have it."""
    return {column: getattr(number, column) for column in COLUMNS}
