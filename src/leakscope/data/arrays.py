"""Records that are already arrays: your own npz file, digits, the Heritage Health table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from leakscope.core.dataset import Column, Dataset
from leakscope.core.errors import DataError, refuse_all, require
from leakscope.data.cells import LABELS
from leakscope.data.files import (
    Array,
    arrays,
    coded,
    in_parts,
    labels,
    listed,
    located,
    marked_by,
    opened,
    parts_of,
    pixels,
)
from leakscope.data.ranges import UNKNOWN, Bins, cut, stray_bins


def from_npz(
    path: str | Path,
    *,
    x: str = "x",
    y: str = "y",
    secrets: str | Sequence[str],
    name: str | None = None,
    bins: Bins | None = None,
    memory: float | None = None,
) -> Dataset:
    """Arrays of an npz file by name; nothing in it is unpickled.

    ``x`` as bytes of shape (n, height, width[, channels]) are images and become floats from 0 to
    1, channels first; other numbers are kept. The label and the secrets are integers or words; an
    array named after one of them with ``_names`` behind it gives the words for its integers. A label of
    fractions, or of more than 100 integers, is a number to come near to; a secret of fractions is asked in
    quantile ranges, and ``bins`` says of a label or a secret how many ranges it is cut into, or their edges.
    """
    path, secrets = Path(path), listed(secrets)
    if y in secrets:
        raise DataError(f"array {y!r} must be the label or a secret, and both name it; choose one.")
    found = arrays(path, (x, y, *secrets), memory=memory)
    rows = records(found[x], f"array {x!r} of {path}")
    marked, ordered, bins = {}, set(), bins or {}
    refuse_all(stray_bins(bins, (y, *secrets)), str(path))
    for column in (y, *secrets):
        where, values = f"array {column!r} of {path}", found[column]
        fractions = values.dtype.kind == "f" and values.ndim == 1 and len(values) > 0
        if column in bins or (fractions and column != y):
            marked[column] = _ranges(values, bins.get(column), where)
            ordered |= {column} if column != y and UNKNOWN not in marked[column][1] else set()
        elif column == y and (fractions or _many(values, found.get(f"{column}_names"))):
            marked[column] = _numbers(values, where), ()
        else:
            marked[column] = _marks(values, found.get(f"{column}_names"), where)
        if len(found[column]) != len(rows):
            raise DataError(
                f"array {column!r} of {path} must have one value per record, and it has "
                f"{len(found[column])} where {x!r} has {len(rows)}; write it again."
            )
    return replace(marked_by(rows, marked, name=name or path.stem, label=y), ordered=frozenset(ordered))


def _many(values: Array, names: Array | None) -> bool:
    """Whether integers are too many to be classes."""
    return (
        names is None and values.ndim == 1 and values.dtype.kind in "ui" and len(np.unique(values)) > LABELS
    )


def _ranges(values: Array, bins: int | Sequence[float] | None, where: str) -> tuple[Tensor, tuple[str, ...]]:
    if values.ndim != 1 or values.dtype.kind not in "uif":
        raise DataError(f"--bins is for numbers, and {where} holds {values.dtype}; leave it out of --bins.")
    return cut(values.astype(np.float64), bins, where)


def _numbers(values: Array, where: str) -> Tensor:
    """A label that is a number, or the refusal of what is none or always the same."""
    if bad := int((~np.isfinite(values)).sum()):
        raise DataError(
            f"{where} must be finite, and {bad} of {len(values)} are NaN or infinite; fill or remove them."
        )
    if len(np.unique(values)) < 2:
        raise DataError(f"{where} must have at least 2 values, and every record has {values[0]!r}.")
    return torch.from_numpy(values.astype(np.float32))


def records(x: Array, where: str) -> Tensor:
    """Numbers as floats; bytes of shape (n, height, width[, channels]) as images from 0 to 1."""
    if x.dtype.kind not in "buif" or x.ndim < 2 or not x.size:
        raise DataError(
            f"{where} must hold numbers, one row per record, and it holds {x.dtype} of shape {x.shape}; "
            f"write features as (n, inputs) and images as (n, height, width, channels)."
        )
    if x.dtype == np.uint8 and x.ndim == 3:
        return pixels(x[..., None])
    if x.dtype == np.uint8 and x.ndim == 4:
        if x.shape[-1] in (1, 3, 4):
            return pixels(x)
        if x.shape[1] in (1, 3, 4):
            return pixels(np.moveaxis(x, 1, -1))
        raise DataError(f"{where} must have 1, 3 or 4 channels, and its shape is {x.shape}; put them last.")
    with np.errstate(over="ignore"):
        rows = x.astype(np.float32)
    if bad := int((~np.isfinite(rows)).reshape(len(rows), -1).any(1).sum()):
        raise DataError(
            f"{where} must be finite, and {bad} of {len(x)} records hold NaN or infinite numbers; "
            f"fill or remove them."
        )
    return torch.from_numpy(rows)


def byte_images(images: Array, file: Path, form: str, *, fit: bool) -> Tensor:
    if images.dtype != np.uint8 or not fit:
        raise DataError(
            f"{file} must hold images of bytes, {form}, and they are {images.dtype} of shape {images.shape}; "
            f"write pixels from 0 to 255."
        )
    return records(images, f"the images of {file}")


def _marks(values: Array, names: Array | None, where: str) -> tuple[Tensor, tuple[str, ...]]:
    if values.ndim != 1 or values.dtype.kind not in "buiUS" or not len(values):
        raise DataError(
            f"{where} must hold integers or words, one per record, and it holds {values.dtype} of shape "
            f"{values.shape}; bin numbers and write codes."
        )
    if values.dtype.kind == "S":
        values = np.char.decode(values, "utf-8", "replace")
    if names is not None and values.dtype.kind != "U":
        codes, words = coded(values.astype(np.int64), names=names.tolist(), where=where)
    else:
        codes, words = coded(values)
    if len(words) < 2:
        raise DataError(f"{where} must have at least 2 values, and every record has {words[0]!r}.")
    return codes, words


def digits() -> Dataset:
    """Handwritten digits (Alpaydin and Kaynak, UCI 1998) as scikit-learn ships them: 1,797 of 8 x 8."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    y = torch.from_numpy(bunch.target.astype(np.int64))
    return Dataset(
        torch.from_numpy(bunch.images.astype(np.float32)[:, None] / 16),
        y,
        {"even": (y % 2 == 0).long(), "digit": y},
        name="digits",
        values={"digit": tuple("0123456789"), "even": ("odd", "even")},
        label="digit",
    )


def mnist(*, path: str | Path | None = None, part: str = "all") -> Dataset:
    """MNIST (LeCun et al., 1998), mnist.npz: handwritten digits, 28 x 28 and grey; nothing is private in it.

    The file has x_train, y_train, x_test and y_test, as Keras publishes it; ``part`` is "train" or "test",
    "all" for one after the other.
    """
    parts, file = parts_of(part), located("mnist", path, "mnist.npz")
    x, y = in_parts(file, parts, "x_{}", "y_{}")
    images = byte_images(x, file, "(n, 28, 28[, 1])", fit=x.shape[1:3] == (28, 28))
    digit = tuple("0123456789")
    codes = labels(y, digit, where=f"the labels of {file}")
    return marked_by(images, {"digit": (codes, digit)}, name="mnist")


def health(*, path: str | Path | None = None, inside: str | Sequence[str] = ("gender",)) -> Dataset:
    """Heritage Health Prize, year 3: 55,924 members, 121 counts, is the Charlson index positive?

    The table has no column of its own for gender and age; those named in ``inside`` are put into
    ``x`` as dummies, so that they can be played as attributes and taken out as properties.
    """
    inside = listed(inside)
    wanted = ("x", "charlson_positive", "gender", "gender_names", "age_band", "age_names", "feature_names")
    found, _ = opened("health", path, "health.npz", wanted)
    marked = {
        "gender": coded(found["gender"], names=found["gender_names"].tolist()),
        "age_band": coded(found["age_band"], names=found["age_names"].tolist()),
    }
    require(set(inside) <= set(marked), "inside", f"among {', '.join(marked)}", inside)
    parts = [torch.from_numpy(found["x"].astype(np.float32))]
    columns = [Column(str(name), i, i + 1) for i, name in enumerate(found["feature_names"])]
    for name in inside:
        codes, words = marked[name]
        start = columns[-1].stop
        columns.append(Column(name, start, start + len(words), values=words, standardised=False))
        parts.append(torch.nn.functional.one_hot(codes, len(words)).float())
    y = torch.from_numpy(found["charlson_positive"].astype(np.int64))
    every = {"charlson_positive": (y, ("no", "yes")), **marked}
    return marked_by(torch.cat(parts, 1), every, name="health", columns=tuple(columns))
