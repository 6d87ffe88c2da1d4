"""Results on disk: one file per cell and seed, each written whole or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from leakscope.errors import StoreError

Result = Mapping[str, Any]
SIGNED = "sha256"  # under this key a result on disk says what the rest of it must be
MARK = "# leakscope plan "  # how the plan of a results folder begins, before its digest


def write(path: Path, content: str | bytes) -> None:
    """Write a file atomically: whoever reads it finds the old content or the new, never a part."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content.encode() if isinstance(content, str) else content)
                file.flush()
                os.fsync(file.fileno())
            Path(temporary).chmod(0o644)
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise StoreError(
            f"cannot write {str(path)!r}: {error.strerror or error}; free the disk or choose another folder."
        ) from None


def save(folder: Path, result: Result) -> None:
    """Keep one cell's result, with the fingerprint by which it is known to be what was written."""
    write(_path(folder, result["key"]), _text({SIGNED: _fingerprint(result), **result}))


def load(folder: Path, key: str) -> Result | None:
    """One cell's result as it was written, or None where there is none yet. A result without a
    fingerprint, from before there were any, is taken as it is."""
    path = _path(folder, key)
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
        whole = isinstance(result, dict) and result.get("key") == key
        said = result.pop(SIGNED, None) if whole else None
        whole = whole and said in (None, _fingerprint(result))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise StoreError(f"result {str(path)!r} cannot be read ({error}); delete it and run again.") from None
    if not whole:
        raise StoreError(
            f"result {str(path)!r} does not belong here, or is not what was written; delete it and run again."
        )
    found: Result = result
    return found


def _text(result: Result) -> str:
    return json.dumps(result, indent=1, allow_nan=False)


def _fingerprint(result: Result) -> str:
    return hashlib.sha256(_text(result).encode()).hexdigest()


def results(folder: Path) -> list[Result]:
    """Every result in a folder, by key."""
    found = (load(folder, path.stem) for path in sorted((folder / "cells").glob("*.json")))
    return [result for result in found if result is not None]


def plan(folder: Path) -> str:
    """The plan whose results a folder holds."""
    try:
        text = (folder / "plan.toml").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise StoreError(
            f"folder {str(folder)!r} has no plan.toml that can be read; give a folder that an audit or a run "
            f"wrote."
        ) from None
    try:
        tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise StoreError(
            f"folder {str(folder)!r}: its plan.toml is not valid TOML ({error}); run the plan again."
        ) from None
    return text


def claim(folder: Path, text: str, digest: str) -> None:
    """Make the folder this plan's own: write the plan beside its results, marked with its digest,
    or refuse if another plan's results, or anything else, are there."""
    path, mark = folder / "plan.toml", f"{MARK}{digest}\n"
    try:
        present = path.read_text(encoding="utf-8")
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
            f"folder {str(folder)!r} holds the results of another plan; choose another with --output, or "
            f"delete it."
        )


def _path(folder: Path, key: str) -> Path:
    return folder / "cells" / f"{key}.json"
