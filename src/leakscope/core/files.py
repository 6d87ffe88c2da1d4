"""Files: read if they are files of a sane size, written whole or not at all, never through a link."""

from __future__ import annotations

import os
import secrets
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from leakscope.core.errors import StoreError

if sys.platform != "win32":
    import fcntl

Keep = Callable[[str, bytes], None]  # keeps a file of this plain name beside a result
MOST = 1 << 28  # bytes of a file that is read at once, if nothing else is said
_UNLINKED = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


def read(path: Path, *, most: int = MOST) -> bytes:
    """The bytes of a file. A pipe, which may be waited for without end, a device and a file of more than
    ``most`` bytes are refused by an `OSError` that says so."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with os.fdopen(handle, "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise OSError("it is no file")
        content = file.read(most + 1) if found.st_size <= most else b""
        if found.st_size > most or len(content) > most:
            raise OSError(f"it has more than {most:,} bytes")
        return content


def inside(folder: Path, *parts: str) -> Path:
    """The path of ``parts`` in a folder; refused if a link on the way leads out of it."""
    path = folder.joinpath(*parts)
    plain = all(part not in ("", ".", "..") and Path(part).name == part for part in parts)
    try:
        within = plain and path.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError):  # links in a circle
        within = False
    if not within:
        raise StoreError(
            f"{str(path)!r} leads out of its folder by a link; remove the link, or choose another folder."
        )
    return path


def write(path: Path, content: str | bytes, *, private: bool = False) -> None:
    """Write a file atomically: whoever reads it finds the old content or the new, never a part. Who may
    read it is for the user's umask to say; a ``private`` one is for the user alone."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _UNLINKED
        handle = os.open(temporary, flags, 0o600 if private else 0o666)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content.encode() if isinstance(content, str) else content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise StoreError(
            f"cannot write {str(path)!r}: {error.strerror or error}; free the disk or choose another folder."
        ) from None


def append(path: Path, content: str, *, private: bool = False) -> None:
    """Add to the end of a file. If that is cut short, a part of ``content`` may be there: whoever reads must
    be able to tell."""
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | _UNLINKED
        handle = os.open(path, flags, 0o600 if private else 0o666)
        with os.fdopen(handle, "ab") as file:
            file.write(content.encode())
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise StoreError(
            f"cannot write {str(path)!r}: {error.strerror or error}; free the disk or choose another folder."
        ) from None


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Nobody else holds this file's lock; that of a process that is killed goes with it. What a file of
    this name holds stays as it is."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | _UNLINKED, 0o600)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(f"{path.name} is no file")
        if sys.platform != "win32":
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
