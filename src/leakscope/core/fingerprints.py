"""Fingerprints under a key of this user's own.

A plain digest of records can be guessed: whoever knows all of a table but one cell tries every value of it.
Under a key that never leaves the machine a fingerprint still says whether records have changed, to its user
and nobody else.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from pathlib import Path

from leakscope.core import files
from leakscope.core.errors import StoreError

STATE = "LEAKSCOPE_STATE"  # the environment variable that names the folder of the key
BYTES = 32


def keyed(digest: str) -> str:
    """The fingerprint of a digest, which only this user can make again."""
    return hmac.new(_key(), digest.encode(), hashlib.sha256).hexdigest()[:32]


def same(known: str, digest: str) -> bool:
    """Whether a fingerprint is of this digest. One from before there was a key is the digest itself."""
    return hmac.compare_digest(known.encode(), digest.encode()) or hmac.compare_digest(
        known.encode(), keyed(digest).encode()
    )


def _key() -> bytes:
    path = _folder() / "key"
    try:
        if not path.exists():
            _create(path)
        key = files.read(path, most=BYTES)
    except OSError as error:
        raise StoreError(f"{_unusable(path)} ({error}).") from None
    if len(key) != BYTES:
        raise StoreError(f"{_unusable(path)}: it must have {BYTES} bytes, and it has {len(key)}; delete it.")
    return key


def _create(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    new = path.with_name(f".key.{secrets.token_hex(4)}")
    files.write(new, secrets.token_bytes(BYTES), private=True)
    try:
        os.link(new, path)  # whole from the first moment, and never in place of one that is there
    except FileExistsError:
        pass
    finally:
        new.unlink()


def _folder() -> Path:
    if named := os.environ.get(STATE):
        return Path(named)
    if state := os.environ.get("XDG_STATE_HOME"):
        return Path(state) / "leakscope"
    try:
        return Path.home() / ".local" / "state" / "leakscope"
    except RuntimeError:
        raise StoreError(
            f"the key of fingerprints needs a folder, and this user has no home; name one by {STATE}."
        ) from None


def _unusable(path: Path) -> str:
    return f"the key {str(path)!r} cannot be used; name another folder by {STATE}"
