"""Where files are, what is in them, and a plain sentence when they cannot be used."""

from __future__ import annotations

import difflib
import hashlib
import os
import tokenize
import zipfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from leakscope.core.dataset import Column, Dataset
from leakscope.core.errors import DataError, require

FOLDER = "LEAKSCOPE_DATA"  # the environment variable that names the folder of data files
COPIES = 3  # the records, their split, and the split scaled: what an audit holds at once
PARTS = ("train", "test")
Array = NDArray[Any]
Codes = Mapping[str, tuple[Tensor, tuple[str, ...]]]  # column -> its codes and their names
_BROKEN = (
    OSError,
    EOFError,
    ValueError,
    OverflowError,
    MemoryError,
    RuntimeError,  # zipfile's word for an encrypted member
    zipfile.BadZipFile,
    zlib.error,
    SyntaxError,  # of a header that is no Python
    tokenize.TokenError,
    RecursionError,
)


def located(name: str, path: str | Path | None, default: str) -> Path:
    """``path``, or what ``default`` names inside the folder of LEAKSCOPE_DATA."""
    if path is not None:
        return Path(path)
    folder = os.environ.get(FOLDER)
    if not folder:
        raise DataError(
            f"{name} needs {default}, which does not ship with leakscope, and {FOLDER} is not set; "
            f"set {FOLDER} to the folder that holds {default}, or give path=."
        )
    if not (Path(folder) / default).exists():
        raise DataError(
            f"{name} needs {default}, and {FOLDER}={folder} does not hold it; put it there, or give path=."
        )
    return Path(folder) / default


def as_file(path: str | Path) -> Path:
    path = Path(path)
    try:
        there = path.exists()
    except OSError as error:  # a name no file system takes
        raise DataError(f"{str(path)[:40]}... cannot be opened: {error.strerror}; check the name.") from None
    if path.is_dir():
        raise DataError(f"{path} must be a file, and it is a folder; name a file inside it.")
    if not there:
        raise DataError(f"{path} does not exist; check the spelling and the folder you are in.")
    if not path.is_file():  # a pipe may be waited for without end
        raise DataError(f"{path} must be a file, and it is a pipe or a device; write it to a file first.")
    return path


def as_folder(path: Path, *parts: str) -> Path:
    if not path.is_dir():
        raise DataError(f"{path} must be a folder that exists; give the folder the data was unpacked in.")
    for part in parts:
        if not (path / part).exists():
            raise DataError(f"{path} must hold {part}, and does not; unpack the original distribution there.")
    return path


def folder_of(name: str, path: str | Path | None, default: str, *parts: str) -> Path:
    return as_folder(located(name, path, default), *parts)


def sha256(path: str | Path) -> str:
    """The digest of a file. It can be guessed: what is stored is `fingerprints.keyed` of it."""
    with as_file(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fits(size: float, path: Path, *, memory: float | None = None) -> None:
    """Refuse records of so many bytes if an audit of them needs more than ``memory`` gigabytes (by default,
    what the machine has free)."""
    need = COPIES * size
    limit = memory * 1e9 if memory is not None else free_memory()
    if limit is not None and need > limit:
        raise DataError(
            f"{path.name} needs about {need / 1e9:.3g} GB of memory once encoded, and {limit / 1e9:.3g} GB "
            f"are available; sample its rows, or drop columns with many values."
        )


def free_memory() -> float | None:
    """The bytes a new program may use, or None where the system does not say."""
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return float(line.split()[1]) * 1024
    if "SC_AVPHYS_PAGES" in getattr(os, "sysconf_names", {}):
        return float(os.sysconf("SC_AVPHYS_PAGES")) * os.sysconf("SC_PAGE_SIZE")
    return None


def listed(names: str | Iterable[str]) -> tuple[str, ...]:
    """Names, each once; one name may come without a tuple around it."""
    return tuple(dict.fromkeys((names,) if isinstance(names, str) else names))


def absent(
    names: str | Sequence[str], known: Sequence[str], *, where: str, kind: str = "column"
) -> DataError:
    """The refusal of names that are not there, each with those that may be meant."""
    said = []
    for name in [names] if isinstance(names, str) else names:
        close = difflib.get_close_matches(name, known, n=3, cutoff=0.6)
        said.append(repr(name) + (f" (did you mean {' or '.join(map(repr, close))}?)" if close else ""))
    return DataError(f"{where} has no {kind} {', '.join(said)}; it has {list_names(known)}.")


def list_names(names: Sequence[str]) -> str:
    """The first names, as a refusal tells them."""
    return (", ".join(map(repr, names[:40])) + (", ..." if len(names) > 40 else "")) or "none"


def sizes_of(path: Path) -> dict[str, int]:
    """The names of the arrays in an npz file, and their bytes."""
    try:
        with zipfile.ZipFile(as_file(path)) as archive:
            return {member.filename.removesuffix(".npy"): member.file_size for member in archive.infolist()}
    except _BROKEN as error:
        raise DataError(f"{path} is not an npz file that can be read ({error}); write it again.") from error


def arrays(path: Path, wanted: Sequence[str], *, memory: float | None = None) -> dict[str, Array]:
    """The ``wanted`` arrays of an npz file, and every ``..._names`` array beside them; never unpickled."""
    sizes = sizes_of(path)
    for name in wanted:
        if name not in sizes:
            raise absent(name, list(sizes), where=str(path), kind="array")
    chosen = [*wanted, *(name for name in sizes if name.endswith("_names") and name not in wanted)]
    # The float32 copy of bytes is four times their size, and the widest array dominates.
    fits(4.0 * sum(sizes[name] for name in chosen), path, memory=memory)
    found = {}
    for name in chosen:
        try:
            with np.load(path, allow_pickle=False) as archive:
                found[name] = archive[name]
        except _BROKEN as error:
            reason = "it holds Python objects" if "pickle" in str(error) or "Object" in str(error) else error
            raise DataError(
                f"array {name!r} of {path} cannot be read ({reason}); write it again as numbers or text."
            ) from error
        if not isinstance(found[name], np.ndarray):
            raise DataError(f"{name!r} of {path} is not an array; write the file with numpy.savez.")
    return found


def opened(
    name: str, path: str | Path | None, default: str, wanted: Sequence[str], *, matched: int = 0
) -> tuple[dict[str, Array], Path]:
    """The arrays of a set's npz file, and the file. The first so many must be ``matched``: have one value for
    each row of the first."""
    file = located(name, path, default)
    found = arrays(file, wanted)
    for other in wanted[1:matched]:
        rows = len(found[wanted[0]])
        if found[other].ndim != 1 or len(found[other]) != rows:
            raise DataError(
                f"array {other!r} of {file} must have one value per record, and its shape is "
                f"{found[other].shape} where {wanted[0]!r} has {rows} rows; write it again."
            )
    return found, file


def coded(
    values: Array, *, names: Sequence[str] | None = None, where: str = "a column"
) -> tuple[Tensor, tuple[str, ...]]:
    """Codes 0, 1, ... of the values that occur, and their names; ``names[v]`` names the value v."""
    kinds, codes = np.unique(values, return_inverse=True)
    if names is not None and len(kinds) and not 0 <= int(kinds[0]) <= int(kinds[-1]) < len(names):
        raise DataError(
            f"{where} must hold codes from 0 to {len(names) - 1}, as many as it has names, and they go from "
            f"{kinds[0]} to {kinds[-1]}; write its names again."
        )
    words = tuple(str(kind) if names is None else str(names[int(kind)]) for kind in kinds)
    return torch.from_numpy(codes.reshape(-1).astype(np.int64)), words


def labels(values: Array, names: Sequence[str], *, where: str, first: int = 0) -> Tensor:
    """The codes of a task whose classes are all known, whether they occur or not, counted from 0."""
    codes = values.reshape(-1)
    last = first + len(names) - 1
    if not len(codes) or codes.dtype.kind not in "bui":
        found = f"they are {codes.dtype}" if len(codes) else "there are none"
    elif codes.min() < first or codes.max() > last:
        found = f"they go from {codes.min()} to {codes.max()}"
    else:
        return torch.from_numpy(codes.astype(np.int64) - first)
    raise DataError(
        f"{where} must be integers from {first} to {last}, one for each class, and {found}; fetch or write "
        f"the file again."
    )


def in_parts(file: Path, parts: Sequence[str], *kinds: str) -> list[Array]:
    """The arrays of each kind, such as "x_{}", the parts one below the other."""
    found = arrays(file, [kind.format(part) for part in parts for kind in kinds])
    stacks = [[found[kind.format(part)] for part in parts] for kind in kinds]
    for stack in stacks:
        shapes = {part.shape[1:] for part in stack}
        if len(shapes) > 1:
            raise DataError(
                f"{file} must hold records of one shape, and theirs are {shapes}; write it again."
            )
    return [np.concatenate(stack) for stack in stacks]


def parts_of(part: str, parts: tuple[str, ...] = PARTS) -> tuple[str, ...]:
    """The official parts of a set that are asked for; "all": one after the other."""
    require(part in (*parts, "all"), "part", f"{', '.join(map(repr, parts))} or 'all'", part)
    return parts if part == "all" else (part,)


def marked_by(
    x: Tensor, codes: Codes, *, name: str, label: str | None = None, columns: tuple[Column, ...] = ()
) -> Dataset:
    """Records whose label, the first of the codes unless it is named, and private columns are ``codes``."""
    label = label or next(iter(codes))
    private = {column: found for column, (found, _) in codes.items() if column != label}
    values = {column: words for column, (_, words) in codes.items()}
    return Dataset(x, codes[label][0], private, name=name, columns=columns, values=values, label=label)


def pixels(images: Array) -> Tensor:
    """Images of bytes, channels last, as floats from 0 to 1, channels first."""
    return torch.from_numpy(np.ascontiguousarray(np.moveaxis(images, -1, 1), dtype=np.float32) / 255)
