"""Recordings of what we measured: one block for each cell of a paper, one line for each measure.

A block says what a number rests on: seeds, keys, code, date, data, seconds, trials, and what was scaled. What
the paper prints, in which figure, and why a cell differs from the paper stands in the paper's plan alone. The
files are in a checkout (``papers/measured``), not in the package.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from leakscope.core import files
from leakscope.core.errors import DataError
from leakscope.core.fingerprints import same
from leakscope.data import tabled
from leakscope.measures.success import over_seeds
from leakscope.results import kind as kinds
from leakscope.results.cell import group_by, stable
from leakscope.results.result import Result
from leakscope.results.scores import FrozenModel

UNKNOWN: Literal["unknown"] = "unknown"
CHANGED = "the settings have changed since"  # so that a recording is of another experiment
CHECKOUT = Path(__file__).parents[3] / "papers"  # beside src/


class MeasuredValue(FrozenModel):
    """One measure of a cell: the mean over seeds with its interval, each seed's value, and what guessing
    reaches. ``seeds`` where they are not those of the block."""

    value: float
    low: float
    high: float
    guessing: float
    values: tuple[float, ...]
    method: str
    seeds: tuple[int, ...] = ()


class MeasuredCell(FrozenModel):
    """A block. ``code`` are the revisions that made it, ``data`` the digest of its records, ``trials`` those
    of one seed. ``stale`` says why its keys are not those that the paper's plan has today."""

    seeds: tuple[int, ...]
    keys: tuple[str, ...]
    date: str = UNKNOWN
    code: tuple[str, ...] = (UNKNOWN,)
    data: str = UNKNOWN
    seconds: float | Literal["unknown"] = UNKNOWN
    trials: int
    scaled: str = ""
    stale: str = ""
    versions: str
    measures: dict[str, MeasuredValue]


Blocks = dict[str, MeasuredCell]
_BLOCKS = TypeAdapter(Blocks)


def find_folder(folder: Path | None = None) -> Path:
    """The folder of the recordings: the given one, or that of the checkout the package runs from."""
    chosen = folder or CHECKOUT
    if not (chosen / "measured").is_dir():
        raise DataError(
            f"folder {str(chosen)!r} holds no recordings of the papers; they are in a checkout's folder "
            f"papers/: run there, or give it with --recordings."
        )
    return chosen


def load(number: str, folder: Path | None = None) -> Blocks:
    path = find_folder(folder) / "measured" / f"{number}.json"
    if not path.exists():
        return {}
    try:
        return _BLOCKS.validate_json(files.read(path))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise DataError(f"{path.name} is no file of recordings: {where}: {first['msg']}.") from None


def save(number: str, blocks: Mapping[str, MeasuredCell], folder: Path | None = None) -> Path:
    """Write the blocks, a line for each measure, so that a change of one number is a change of one line."""
    path = find_folder(folder) / "measured" / f"{number}.json"
    files.write(path, "{\n" + ",\n".join(_text(name, block) for name, block in blocks.items()) + "\n}\n")
    return path


def _text(name: str, block: MeasuredCell) -> str:
    table = block.model_dump(mode="json", exclude_defaults=True)
    measures = table.pop("measures")
    for field in ("date", "code", "data", "seconds"):
        table.setdefault(field, UNKNOWN if field != "code" else [UNKNOWN])
    head = json.dumps(table)[1:-1]
    lines = [f"  {json.dumps(measure)}: {json.dumps(number)}" for measure, number in measures.items()]
    return f' {json.dumps(name)}: {{{head}, "measures": {{\n' + ",\n".join(lines) + "}}"


def blocks_of(results: Sequence[Result[Any]], *, quick: bool) -> Blocks:
    """What a sweep measured, as blocks; cells that ended with an error have none."""
    whole = [result for result in results if result.found is not None]
    return {name: _block(runs, quick) for name, runs in group_by(whole, lambda run: run.cell.id).items()}


def _block(runs: Sequence[Result[Any]], quick: bool) -> MeasuredCell:
    cell, made = runs[0].cell, [run.made for run in runs]
    tables = [(run.seed, kinds.kind_named(run.kind).entries(run.found)) for run in runs]
    names = dict.fromkeys(name for _, table in tables for name in table)
    sizes = f"{cell.rounds} rounds, {cell.trials:,} trials, {cell.rehearsals:,} rehearsals"
    return MeasuredCell(
        seeds=tuple(run.seed for run in runs),
        keys=tuple(run.key for run in runs),
        date=max(stamp.date for stamp in made) or UNKNOWN,
        code=tuple(sorted({stamp.code or UNKNOWN for stamp in made})),
        seconds=round(sum(stamp.seconds for stamp in made), 1),
        trials=cell.trials,
        scaled=f"{sizes}: a quick run, minutes in place of hours" if quick else "",
        versions=", ".join(f"{package} {version}" for package, version in made[0].versions.items()),
        measures={
            name: _value([(seed, table[name]) for seed, table in tables if name in table], len(runs))
            for name in names
        },
    )


def _value(runs: Sequence[tuple[int, kinds.TableEntry]], all_seeds: int) -> MeasuredValue:
    _, shown = runs[0]
    each = [entry.estimate for _, entry in runs]
    raw = [entry.raw for _, entry in runs if entry.raw is not None]
    whole = raw if len(raw) == len(runs) else None
    mean = over_seeds(each, least=shown.least, most=shown.most, raw=whole)
    return MeasuredValue(
        value=round(mean.value, 4),
        low=round(mean.low, 4),
        high=round(mean.high, 4),
        guessing=round(sum(entry.guessing for _, entry in runs) / len(runs), 4),
        values=tuple(round(estimate.value, 4) for estimate in each),
        method=mean.method,
        seeds=tuple(seed for seed, _ in runs) if len(runs) < all_seeds else (),
    )


def digests_of(results: Sequence[Result[Any]]) -> dict[str, str]:
    """The plain digest of every cell's records, for data that everybody can get; those of the results are
    under a key of their user's, and must be of the same records."""
    found: dict[str, str] = {}
    loaded: dict[str, str] = {}
    for result in results:
        data = stable(result.cell.data)
        if data not in loaded:
            loaded[data] = tabled(result.cell.data).digest
        known = result.made.records.digest if result.made.records else ""
        if known and not same(known, loaded[data]):
            raise DataError(f"cell {result.cell.id!r} was measured on other records than there are now.")
        found[result.cell.id] = loaded[data]
    return found
