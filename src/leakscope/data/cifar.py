"""CIFAR-10 and CIFAR-100 (Krizhevsky, 2009): compact npz files, or the binary version as published."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from zipfile import is_zipfile

import numpy as np

from leakscope.core.dataset import Dataset
from leakscope.core.errors import DataError
from leakscope.data.arrays import byte_images
from leakscope.data.files import (
    Array,
    arrays,
    as_file,
    as_folder,
    fits,
    in_parts,
    labels,
    located,
    marked_by,
    parts_of,
)

ANIMALS = (2, 7)  # bird to horse
SIDE, CHANNELS = 32, 3
PYTHON = ("cifar-10-python", "cifar-10-batches-py", "cifar-100-python")  # archives and folders of pickles


@dataclass(frozen=True)
class _Published:
    """How a set was published: in ``folder``, each image behind ``marks`` bytes of which the last is its
    class; ``pickled`` are the files of the other version, which nobody should open."""

    classes: int
    folder: str
    files: dict[str, tuple[str, ...]]
    names: str
    marks: int
    archive: str
    pickled: tuple[str, ...]


TEN = _Published(
    10,
    "cifar-10-batches-bin",
    {"train": tuple(f"data_batch_{i}.bin" for i in range(1, 6)), "test": ("test_batch.bin",)},
    "batches.meta.txt",
    1,
    "cifar-10-binary.tar.gz",
    (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch", "batches.meta"),
)
HUNDRED = _Published(
    100,
    "cifar-100-binary",
    {"train": ("train.bin",), "test": ("test.bin",)},
    "fine_label_names.txt",
    2,  # the superclass comes first
    "cifar-100-binary.tar.gz",
    ("train", "test", "meta"),
)


def cifar10(*, path: str | Path | None = None, part: str = "all") -> Dataset:
    """CIFAR-10: cifar10.npz, or ``path`` of the folder cifar-10-batches-bin; whether it shows an animal is
    private (paper 004).

    ``part`` is "train" or "test" for the official parts, "all" for one after the other.
    """
    data = _cifar("cifar10", path, part, TEN)
    animal = ((data.y >= ANIMALS[0]) & (data.y <= ANIMALS[1])).long()
    return replace(data, private={"animal": animal}, values={**data.values, "animal": ("no", "yes")})


def cifar100(*, path: str | Path | None = None, part: str = "all") -> Dataset:
    """CIFAR-100 with its 100 fine classes: cifar100.npz, or ``path`` of the folder cifar-100-binary.

    ``part`` is "train" or "test" for the official parts, "all" for one after the other.
    """
    return _cifar("cifar100", path, part, HUNDRED)


def _cifar(name: str, path: str | Path | None, part: str, published: _Published) -> Dataset:
    parts = parts_of(part)
    where = located(name, path, f"{name}.npz")
    _refuse_pickles(where, published)
    read = _binary if where.is_dir() else _npz
    images, codes, names = read(where, parts, published)
    x = byte_images(images, where, "(n, 32, 32, 3)", fit=images.shape[1:] == (SIDE, SIDE, CHANNELS))
    if len(names) != published.classes:
        raise DataError(
            f"{where} must name {published.classes} classes, and it names {len(names)}; fetch it again."
        )
    y = labels(codes, names, where=f"the labels of {where}")
    return marked_by(x, {"class": (y, names)}, name=name)


def _refuse_pickles(path: Path, published: _Published) -> None:
    """The Python version is pickles, and a pickle runs whatever it likes when it is opened."""
    if path.is_dir():
        whole = any(path.glob("*.bin")) or (path / published.folder).is_dir()
        held = [] if whole else [i.name for i in path.iterdir() if i.is_file() or i.name in PYTHON]
    else:
        held = [] if is_zipfile(path) else [path.name.removesuffix(".tar.gz")]
    if any(name in published.pickled or name in PYTHON for name in held):
        raise DataError(
            f"{path} is the Python version, whose files are pickles that run code when they are opened, and "
            f"leakscope opens none; fetch {published.archive}, the binary version, and give the folder "
            f"{published.folder} that is in it."
        )


def _npz(path: Path, parts: tuple[str, ...], published: _Published) -> tuple[Array, Array, tuple[str, ...]]:
    if as_file(path).suffix != ".npz" and not is_zipfile(path):
        raise DataError(
            f"{path} must be an npz file or the folder {published.folder}, and it is neither; unpack "
            f"{published.archive}, the binary version, and give that folder."
        )
    names = arrays(path, ("class_names",))["class_names"]
    images, codes = in_parts(path, parts, "x_{}", "y_{}")
    return images, codes, tuple(str(name) for name in names)


def _binary(
    path: Path, parts: tuple[str, ...], published: _Published
) -> tuple[Array, Array, tuple[str, ...]]:
    folder = path / published.folder if (path / published.folder).is_dir() else path
    files = [file for part in parts for file in published.files[part]]
    as_folder(folder, *files, published.names)
    fits(4.0 * sum((folder / file).stat().st_size for file in files), folder)
    rows = np.concatenate([_rows(folder / file, published.marks) for file in files])
    planes = rows[:, published.marks :].reshape(-1, CHANNELS, SIDE, SIDE)
    names = (folder / published.names).read_text(encoding="utf-8", errors="replace").split()
    return np.moveaxis(planes, 1, -1), rows[:, published.marks - 1], tuple(names)


def _rows(file: Path, marks: int) -> Array:
    size = marks + CHANNELS * SIDE * SIDE
    content = np.fromfile(file, dtype=np.uint8)
    if not len(content) or len(content) % size:
        raise DataError(
            f"{file} must be whole records of {size} bytes, and it has {len(content)} bytes; it was cut off "
            f"or is another file: fetch it again."
        )
    return content.reshape(-1, size)
