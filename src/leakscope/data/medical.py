"""Medical images: Medical MNIST, PneumoniaMNIST and the COVID-19 X-rays, from npz files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from torch import Tensor
from torch.nn import functional as F

from leakscope.core.dataset import Dataset
from leakscope.core.errors import DataError, require
from leakscope.data.arrays import records
from leakscope.data.files import Array, arrays, coded, labels, located, matched, sizes_of, stacked

PARTS = ("train", "val", "test")
FINDINGS = ("normal", "pneumonia")
SEXES = ("male", "female", "?")  # the word for what is not known, as in tables
UNKNOWN = ("todo", "Unknown")  # findings that are none


def medical_mnist(*, path: str | Path | None = None, size: int = 64) -> Dataset:
    """Medical MNIST (B. Erickson, CC BY-SA 4.0), medical_mnist64.npz: six kinds of scan, 64 x 64 and grey.

    ``size`` makes them smaller by averaging, 32 for paper 002. The original set, a folder per class,
    is read by image-folder.
    """
    file = located("medical-mnist", path, "medical_mnist64.npz")
    found = arrays(file, ("images", "y", "class_names"))
    names = tuple(str(name) for name in found["class_names"])
    return Dataset(
        _averaged(_images(found["images"], file), size),
        labels(found["y"], names, where=f"the labels of {file}"),
        {},
        name="medical-mnist",
        values={"class": names},
        label="class",
    )


def pneumonia(*, path: str | Path | None = None, part: str = "all") -> Dataset:
    """PneumoniaMNIST (Yang et al., 2023; Kermany et al., 2018; CC BY 4.0): chest X-rays, 28 x 28 and grey.

    pneumoniamnist.npz with the arrays x_train, y_train, ..., or with train_images, train_labels, ..., as
    MedMNIST publishes it. ``part`` is "train", "val" or "test", or "all" for one after the other.
    """
    require(part in (*PARTS, "all"), "part", "'train', 'val', 'test' or 'all'", part)
    file = located("pneumonia", path, "pneumoniamnist.npz")
    x, y = ("{}_images", "{}_labels") if "train_images" in sizes_of(file) else ("x_{}", "y_{}")
    parts = PARTS if part == "all" else (part,)
    found = arrays(file, [kind.format(one) for one in parts for kind in (x, y)])
    return Dataset(
        _images(stacked([found[x.format(one)] for one in parts], where=str(file)), file),
        labels(
            stacked([found[y.format(one)] for one in parts], where=str(file)),
            FINDINGS,
            where=f"the labels of {file}",
        ),
        {},
        name="pneumonia",
        values={"finding": FINDINGS},
        label="finding",
    )


def covid(*, path: str | Path | None = None, size: int = 64) -> Dataset:
    """COVID-19 image data collection (Cohen et al., 2020), covid_cxr64.npz: X-rays, is it COVID-19?

    Sex ("?" where it is not known) and patient are private; 83 images without a finding are left out.
    ``size`` makes the images smaller by averaging.
    """
    wanted = ("images", "is_covid", "sex", "patient", "finding", "finding_names")
    file = located("covid", path, "covid_cxr64.npz")
    found = arrays(file, wanted)
    matched(found, wanted[:5], file)
    unknown = [i for i, name in enumerate(found["finding_names"]) if str(name) in UNKNOWN]
    kept = ~np.isin(found["finding"], unknown)
    sex = np.where(found["sex"][kept] == 255, SEXES.index("?"), found["sex"][kept])
    private = {
        "sex": coded(sex, names=SEXES, where=f"array 'sex' of {file}"),
        "patient": coded(found["patient"][kept]),
    }
    return Dataset(
        _averaged(_images(found["images"][kept], file), size),
        labels(found["is_covid"][kept], ("no", "yes"), where=f"the labels of {file}"),
        {name: codes for name, (codes, _) in private.items()},
        name="covid",
        values={"is_covid": ("no", "yes")} | {name: words for name, (_, words) in private.items()},
        label="is_covid",
    )


def _images(images: Array, file: Path) -> Tensor:
    if images.dtype != np.uint8 or images.ndim not in (3, 4):
        raise DataError(
            f"{file} must hold images of bytes, (n, height, width[, channels]), and they are {images.dtype} "
            f"of shape {images.shape}; write pixels from 0 to 255."
        )
    return records(images, f"the images of {file}")


def _averaged(images: Tensor, size: int) -> Tensor:
    side = images.shape[2]
    require(1 <= size <= side and side % size == 0, "size", f"a divisor of {side}", size)
    return F.avg_pool2d(images, side // size) if size < side else images
