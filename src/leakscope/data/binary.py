"""Records of zeros and ones: Location30, Purchase100 and Texas100, and made-up ones of their shape.

The three sets are those of Shokri et al., "Membership Inference Attacks Against Machine Learning Models",
S&P 2017, as published at github.com/privacytrustlab/datasets. Features stay 0 and 1 when they are split.
"""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from zipfile import is_zipfile

import numpy as np
import torch
from torch import Tensor

from leakscope.core.dataset import Column, Dataset
from leakscope.core.errors import DataError, require
from leakscope.core.rng import seeded
from leakscope.data.files import Array, arrays, as_file, as_folder, fits, labels, located, marked_by, sizes_of

LOCATION, PURCHASE, TEXAS = (446, 30), (600, 100), (6_169, 100)  # inputs and classes
KINDS = (("x_packed", "n_features", "y"), ("x", "y"), ("features", "labels"))  # the arrays of an npz file


def location30(*, path: str | Path | None = None) -> Dataset:
    """Check-ins of 5,010 people at 446 places of Bangkok, in 30 clusters (Yang et al., 2016).

    location30.npz, or ``path`` of the original file bangkok: a label from 1 to 30, then the features.
    """
    return _one_file("location30", path, "bangkok", LOCATION)


def purchase100(*, path: str | Path | None = None) -> Dataset:
    """What 197,324 shoppers bought of 600 products, in 100 clusters.

    purchase100.npz, or ``path`` of the original file dataset_purchase: a label from 1 to 100, then the
    features.
    """
    return _one_file("purchase100", path, "dataset_purchase", PURCHASE)


def texas100(*, path: str | Path | None = None) -> Dataset:
    """Hospital stays of 67,330 patients, 6,169 features, and which of 100 procedures was done.

    texas100.npz, or ``path`` of the original folder texas/100 with its files feats and labels, which go
    from 1 to 100. Paper 002 speaks of 6,170 features; the files have 6,169.
    """
    where = located("texas100", path, "texas100.npz")
    if not where.is_dir():
        return _from_npz("texas100", where, TEXAS)
    as_folder(where, "feats", "labels")
    codes = _digits(where / "labels", 1)[:, 0]
    return _dataset("texas100", _digits(where / "feats", TEXAS[0]), codes, TEXAS, where, first=1)


def _one_file(name: str, path: str | Path | None, published: str, shape: tuple[int, int]) -> Dataset:
    """The set from its npz file, or from the published file of labels and features, or its folder."""
    where = located(name, path, f"{name}.npz")
    if where.is_dir():
        where = as_folder(where, published) / published
    if where.suffix == ".npz" or is_zipfile(as_file(where)):
        return _from_npz(name, where, shape)
    rows = _digits(where, 1 + shape[0])
    return _dataset(name, rows[:, 1:], rows[:, 0], shape, where, first=1)


def _from_npz(name: str, path: Path, shape: tuple[int, int]) -> Dataset:
    """Labels from 0, or one-hot; features as they are, or packed eight to a byte."""
    held = sizes_of(path)
    kind = next((kind for kind in KINDS if set(kind) <= set(held)), None)
    if kind is None:
        raise DataError(
            f"{path} must hold the arrays {' or '.join(' and '.join(kind) for kind in KINDS)}, and it holds "
            f"{', '.join(held) or 'none'}; write it again."
        )
    found = arrays(path, kind)
    features, codes = found[kind[0]], found[kind[-1]]
    if kind[0] == "x_packed":
        fits(4.0 * 8 * features.size, path)
        features = np.unpackbits(features, axis=1)[:, : int(found["n_features"])]
    if codes.ndim == 2 and codes.shape[1] > 1:
        codes = codes.argmax(1)
    return _dataset(name, features, codes, shape, path, first=0)


def _digits(path: Path, width: int) -> Array:
    """A published table: small integers between commas, the same number in every row."""
    fits(4.0 * path.stat().st_size / 2, path)  # a digit and a comma for each
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", "loadtxt: input contained no data")
            rows = np.loadtxt(path, np.uint8, comments=None, delimiter=",", ndmin=2, quotechar='"')
    except (ValueError, UserWarning) as error:  # a UnicodeDecodeError is a ValueError
        reason = str(error).partition(";")[0].rstrip(".")
        raise DataError(
            f"{path} must hold {width} small integers in every row ({reason}); unpack the original, or fetch "
            f"it again if it was cut off."
        ) from error
    if rows.shape[1] != width:
        raise DataError(
            f"{path} must hold {width} numbers in every row, and it holds {rows.shape[1]}; give the file as "
            f"it was published."
        )
    return rows


def _dataset(
    name: str, features: Array, codes: Array, shape: tuple[int, int], where: Path, *, first: int
) -> Dataset:
    inputs, classes = shape
    if features.ndim != 2 or features.shape[1] != inputs:
        raise DataError(
            f"{where} must hold {inputs} features for each record, and their shape is {features.shape}; give "
            f"the whole set."
        )
    if features.dtype.kind not in "buif" or not ((features == 0) | (features == 1)).all():
        raise DataError(f"{where} must hold features that are 0 or 1, and others are there; fetch it again.")
    y = labels(codes, _words(classes), where=f"the labels of {where}", first=first)
    return _flags(torch.from_numpy(features.astype(np.float32)), y, classes, name)


def _flags(x: Tensor, y: Tensor, classes: int, name: str) -> Dataset:
    places = [Column(f"x{i + 1}", i, i + 1, values=("0", "1"), standardised=False) for i in range(x.shape[1])]
    return marked_by(x, {"class": (y, _words(classes))}, name=name, columns=tuple(places))


def _words(classes: int) -> tuple[str, ...]:
    return tuple(str(i) for i in range(1, classes + 1))


def purchase_like(
    records: int = 20_000, *, classes: int = 100, separation: float = 0.5, seed: int = 0
) -> Dataset:
    """Synthetic, no one's purchases: made-up records of Purchase100's shape, 600 features of 0 and 1.

    Feature j of a record of class c is 1 with log-odds -2 + b_j + ``separation`` z_cj, b and z standard
    normal, drawn once; classes are equally likely. At ``separation=0`` there is nothing to learn; at 0.5
    an MLP of 1024-512-256 learns 10,000 records by heart and is right about 0.6 of others.
    """
    return _made_up("purchase-like", records, PURCHASE[0], classes, separation, seed)


def texas_like(
    records: int = 5_000, *, classes: int = 100, separation: float = 0.25, seed: int = 0
) -> Dataset:
    """Synthetic, no one's hospital stays: made-up records of Texas100's shape, 6,169 features of 0 and 1.

    Drawn as those of purchase-like are; an MLP of 256 learns 4,000 by heart and is right about 0.57 of
    others.
    """
    return _made_up("texas-like", records, TEXAS[0], classes, separation, seed)


def _made_up(name: str, records: int, inputs: int, classes: int, separation: float, seed: int) -> Dataset:
    require(records >= 2, "records", "at least 2", records)
    require(classes >= 2, "classes", "at least 2", classes)
    require(0 <= separation < math.inf, "separation", "at least 0 and finite", separation)
    rng = seeded(seed, name)
    odds = torch.randn(inputs, generator=rng) - 2
    odds = odds + separation * torch.randn(classes, inputs, generator=rng)
    y = torch.randint(classes, (records,), generator=rng)
    x = torch.rand(records, inputs, generator=rng)
    for rows in torch.arange(records).split(1_000):  # in blocks, so that only one copy of x is held
        x[rows] = (x[rows] < odds[y[rows]].sigmoid()).float()
    return _flags(x, y, classes, f"{name} (synthetic)")
