"""TOML that somebody else may have written, within bounds."""

from __future__ import annotations

import re
import tomllib
from typing import Any

LONGEST = 1 << 22  # characters
DEEPEST = 32  # tables in tables
# tomllib takes time with the square of a key's parts, so that they are counted before it reads them.
_DEEP = re.compile(rf"""(?<![\w-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){{{DEEPEST}}}""")


def parsed(text: str) -> dict[str, Any]:
    """The document; what is no TOML, too long or too deep is refused by a `ValueError` that says so."""
    if len(text) > LONGEST:
        raise ValueError(f"it has more than {LONGEST:,} characters")
    if _DEEP.search(text):
        raise ValueError(f"it has a key of more than {DEEPEST} parts")
    try:
        document = tomllib.loads(text)
    except RecursionError:
        raise ValueError(f"it is more than {DEEPEST} tables deep") from None
    level: list[Any] = [document]
    for _ in range(DEEPEST):
        level = [part for table in level for part in _parts(table)]
    if level:
        raise ValueError(f"it is more than {DEEPEST} tables deep")
    return document


def _parts(value: object) -> list[Any]:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [part for part in inner if isinstance(part, dict | list)]
