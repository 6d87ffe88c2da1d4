"""Results on disk: one file per cell and seed, each written whole or not at all."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from leakscope.core import toml
from leakscope.core.errors import ArgumentError, StoreError
from leakscope.core.files import inside, read, write
from leakscope.results import format1
from leakscope.results.cell import Cell, Plan, stable
from leakscope.results.kind import kind_named
from leakscope.results.result import FORMAT, Result

FILES = "files"  # the folder of what belongs to results beside their numbers
PARTS = "parts"  # the folder of what is done of cells that are not finished
SIGNED = "sha256"  # under this key a result on disk says what the rest of it must be
MARK = "# leakscope plan "  # how the plan of a results folder begins, before its digest


@dataclass(frozen=True)
class Part:
    """What a part of a cell gave, the ``mark`` of what it is of, and the ``seconds`` that it took."""

    text: str
    mark: str
    seconds: float


def save(folder: Path, result: Result[Any], extra: Mapping[str, bytes] | None = None) -> None:
    """Keep one cell's result, with the fingerprint by which it is known to be what was written, and the
    ``extra`` files that belong to it, for the user alone."""
    for name, content in (extra or {}).items():
        write(inside(folder, FILES, result.key, name), content, private=True)
    write(_path(folder, result.key), serialise(result))


def serialise(result: Result[Any]) -> str:
    """A result as its file has it, with its fingerprint."""
    table = result.table
    return _text({SIGNED: _fingerprint(table), **table})


def save_part(folder: Path, key: str, name: str, part: Part) -> None:
    """Keep a part of a cell until all are there, for the user alone: it may list records."""
    table = {"name": name, **asdict(part)}
    file = f"{hashlib.sha256(name.encode()).hexdigest()[:24]}.json"
    write(inside(folder, PARTS, key, file), _text({SIGNED: _fingerprint(table), **table}), private=True)


def load_parts(folder: Path, key: str, mark: str) -> dict[str, Part]:
    """The parts of a cell that are done, by name. Those with another ``mark``, and what is not as it was
    written, count as not done."""
    found = {}
    for path in sorted(inside(folder, PARTS, key).glob("*.json")):
        try:
            table = json.loads(read(path))
        except (OSError, ValueError, RecursionError):
            continue
        signed = table.pop(SIGNED, None) if isinstance(table, dict) else None
        if signed == _fingerprint(table) and table.get("mark") == mark:
            name = str(table.pop("name"))
            found[name] = Part(**table)
    return found


def drop_parts(folder: Path, key: str) -> None:
    """Once the cell's result is there."""
    shutil.rmtree(inside(folder, PARTS, key), ignore_errors=True)
    with suppress(OSError):  # parts of others are there still, or none ever were
        (folder / PARTS).rmdir()


def file(folder: Path, key: str, name: str) -> bytes:
    """A file that belongs to a result."""
    path = inside(folder, FILES, key, name)
    try:
        return read(path)
    except OSError as error:
        raise StoreError(
            f"{str(path)!r} cannot be read ({error}); delete the folder and run again."
        ) from None


def load(folder: Path, key: str) -> Result[Any] | None:
    """One cell's result as it was written, or None where there is none yet."""
    path = _path(folder, key)
    try:
        text = read(path)
        table = json.loads(text)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise StoreError(f"result {str(path)!r} cannot be read ({error}); delete it and run again.") from None
    if not isinstance(table, dict) or table.get("key") != key:
        raise StoreError(f"result {str(path)!r} does not belong here; delete it and run again.")
    signed = table.pop(SIGNED, None)
    if signed is None and table.get("format") == FORMAT:
        raise StoreError(f"result {str(path)!r} has no fingerprint; delete it and run again.")
    try:
        forged = signed is not None and not _untouched(text, signed) and signed != _fingerprint(table)
    except ValueError:  # JSON has no infinite numbers, but who reads it takes them
        forged = True
    if forged:
        raise StoreError(f"result {str(path)!r} is not what was written; delete it and run again.")
    return parse(table, where=str(path))


def _untouched(text: bytes, signed: object) -> bool:
    """Whether the file is, letter by letter, what was signed. Where it is not, its values may be."""
    head, _, rest = text.partition(b",\n")
    own = head == f'{{\n "{SIGNED}": {json.dumps(signed)}'.encode()
    return own and hashlib.sha256(b"{\n" + rest).hexdigest() == signed


def parse(table: dict[str, Any], *, where: str) -> Result[Any]:
    """A result as a file has it, checked: of a format and kind that is known."""
    form = table.get("format")
    if form not in (1, FORMAT):
        raise StoreError(
            f"result {where!r} has the format {form!r}, and this version reads 1 and {FORMAT}; read it with "
            f"the version that wrote it."
        )
    try:
        if form == 1:
            table = format1.reshape(table)
        found = table.pop("found", None)
        if found is not None:
            found = kind_named(str(table.get("kind"))).found.model_validate(found)
        result = Result[Any].model_validate(table | {"found": found})
        kind_named(result.kind).ask(result.cell)  # as every reader will
        return result
    except (ValueError, ArithmeticError, LookupError, TypeError, AttributeError, ArgumentError) as error:
        reason = _reason(error)
        raise StoreError(
            f"result {where!r} is damaged or of another program ({reason}); delete it and run again."
        ) from None


def _reason(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg'].lower()}"
    return f"{type(error).__name__.lower()} {error}"


def _text(table: Mapping[str, Any]) -> str:
    return json.dumps(table, indent=1, allow_nan=False)


def _fingerprint(table: Mapping[str, Any]) -> str:
    return hashlib.sha256(_text(table).encode()).hexdigest()


def results(folder: Path) -> list[Result[Any]]:
    """Every result in a folder, by key; of one cell and seed the one that the present code would reuse.

    Results of several formats in one folder are refused: nobody wrote them in one run."""
    every = [load(folder, path.stem) for path in sorted((folder / "cells").glob("*.json"))]
    found = [result for result in every if result is not None]
    if len({result.format for result in found}) > 1:
        raise StoreError(
            f"folder {str(folder)!r} holds results of several formats; give each version a folder of its own."
        )
    chosen: dict[str, Result[Any]] = {}
    for result in found:
        name = stable([result.cell.meaning, result.seed])
        if name not in chosen or result.key == result.cell.key(result.seed):
            chosen[name] = result
    return list(chosen.values())


def asked(plan: Plan) -> dict[str, tuple[Cell, int]]:
    """What a plan asks for, by the names of its results; equal cells are run once."""
    return {cell.key(seed): (cell, seed) for cell in plan.cell for seed in plan.seeds}


def plan(folder: Path) -> str:
    """The plan whose results a folder holds."""
    try:
        text = read(inside(folder, "plan.toml")).decode()
    except (OSError, UnicodeDecodeError):
        raise StoreError(
            f"folder {str(folder)!r} has no plan.toml that can be read; give a folder that an audit or a run "
            f"wrote."
        ) from None
    try:
        toml.parsed(text)
    except ValueError as error:
        raise StoreError(
            f"folder {str(folder)!r}: its plan.toml is not valid TOML ({error}); run the plan again."
        ) from None
    return text


def claim(folder: Path, text: str, digest: str) -> None:
    """Make the folder this plan's own: write the plan beside its results, marked with its digest,
    or refuse if another plan's results, or anything else, are there."""
    path, mark = inside(folder, "plan.toml"), f"{MARK}{digest}\n"
    try:
        present = read(path).decode()
    except FileNotFoundError:
        if folder.is_dir() and any(not item.name.startswith(".") for item in folder.iterdir()):
            raise StoreError(
                f"folder {str(folder)!r} holds other files and no plan; choose an empty one with --output."
            ) from None
        body = text.partition("\n")[2] if text.startswith(MARK) else text
        write(path, mark + body)
        return
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(
            f"folder {str(folder)!r} cannot be used ({error}); choose another folder with --output."
        ) from None
    if not present.startswith(mark):
        raise StoreError(
            f"folder {str(folder)!r} holds the results of another plan, or of an earlier version; choose "
            f"another with --output, or delete it."
        )


def _path(folder: Path, key: str) -> Path:
    return inside(folder, "cells", f"{key}.json")
