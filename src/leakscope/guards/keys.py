"""Keys, kept in files: a person's noise is drawn from one, and a ledger knows people under it."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import stat
import sys
from dataclasses import dataclass, field
from pathlib import Path

from leakscope.core import files
from leakscope.core.errors import ArgumentError

LEAST = 16  # bytes: 128 bits
BYTES = 32  # of a new key
MOST = 1 << 16  # bytes of a file that may be a key
_OPEN = stat.S_IRWXG | stat.S_IRWXO  # what others than the owner may do with a file
_WAY_OUT = "make one by: leakscope key new FILE"


@dataclass(frozen=True, eq=False)
class Key:
    """A secret of at least 128 bits: whoever has it can take a release's noise off again."""

    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.secret) < LEAST:
            raise ArgumentError(
                f"a key must have at least {8 * LEAST} bits, got {8 * len(self.secret)}; {_WAY_OUT}."
            )

    @classmethod
    def read(cls, path: str | Path) -> Key:
        """The key in a file that its owner alone can read."""
        path = Path(path)
        if not path.exists() and path.name.lstrip("+-").isdigit():
            raise ArgumentError(
                f"a key must be the name of a file, got the number {path.name}, which a command line's "
                f"history keeps and anybody can try; {_WAY_OUT}."
            )
        try:
            mode = path.stat().st_mode
            content = files.read(path, most=MOST)
        except OSError as error:
            reason = error.strerror or error
            raise ArgumentError(f"the key {str(path)!r} cannot be read ({reason}); {_WAY_OUT}.") from None
        if sys.platform != "win32" and mode & _OPEN:
            raise ArgumentError(
                f"the key {str(path)!r} must be readable by its owner alone, and its mode is "
                f"{mode & 0o777:04o}; run: chmod 600 {path}, or make a new one if others may have read it."
            )
        try:
            return cls(bytes.fromhex(content.decode("ascii")))
        except ValueError:
            raise ArgumentError(
                f"the key {str(path)!r} must hold hexadecimal digits and nothing else; {_WAY_OUT}."
            ) from None

    @classmethod
    def new(cls, path: str | Path) -> Key:
        """A new key, written to a file that its owner alone can read and that was not there."""
        path, key = Path(path), cls(secrets.token_bytes(BYTES))
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        files.write(temporary, key.secret.hex() + "\n", private=True)
        try:
            os.link(temporary, path)  # whole from the first moment, and never in place of one that is there
        except FileExistsError:
            raise ArgumentError(
                f"the key {str(path)!r} exists, and releases under it could not be made again without it; "
                f"choose another name."
            ) from None
        finally:
            temporary.unlink(missing_ok=True)
        return key

    def derive(self, *parts: str | bytes) -> bytes:
        """32 bytes for one use (HMAC-SHA256): the parts are told apart, whatever is in them."""
        own = hmac.new(self.secret, digestmod=hashlib.sha256)
        for part in parts:
            content = part.encode() if isinstance(part, str) else part
            own.update(len(content).to_bytes(8, "little") + content)
        return own.digest()


def rehearsed_key(number: int) -> Key:
    """The key of a game that is played over again from its seed. It protects nobody."""
    return Key(hashlib.sha256(f"game {number}".encode()).digest())
