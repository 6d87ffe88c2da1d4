"""Medical images: Medical MNIST, PneumoniaMNIST and the COVID-19 X-rays, from npz files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from torch import Tensor
from torch.nn import functional as F

from leakscope.core.dataset import Dataset
from leakscope.core.errors import require
from leakscope.data.arrays import byte_images
from leakscope.data.files import (
    Array,
    coded,
    in_parts,
    labels,
    located,
    marked_by,
    opened,
    parts_of,
    sizes_of,
)

PARTS = ("train", "val", "test")
FINDINGS = ("normal", "pneumonia")
SEXES = ("male", "female", "?")  # the word for what is not known, as in tables
UNKNOWN = ("todo", "Unknown")  # findings that are none


def medical_mnist(*, path: str | Path | None = None, size: int = 64) -> Dataset:
    """Medical MNIST (B. Erickson, CC BY-SA 4.0), medical_mnist64.npz: six kinds of scan, 64 x 64 and grey.

    ``size`` makes them smaller by averaging, 32 for paper 002. The original set, a folder per class,
    is read by image-folder.
    """
    wanted = ("images", "y", "class_names")
    found, file = opened("medical-mnist", path, "medical_mnist64.npz", wanted)
    names = tuple(str(name) for name in found["class_names"])
    y = labels(found["y"], names, where=f"the labels of {file}")
    images = _averaged(_images(found["images"], file), size)
    return marked_by(images, {"class": (y, names)}, name="medical-mnist")


def pneumonia(*, path: str | Path | None = None, part: str = "all") -> Dataset:
    """PneumoniaMNIST (Yang et al., 2023; Kermany et al., 2018; CC BY 4.0): chest X-rays, 28 x 28 and grey.

    pneumoniamnist.npz with the arrays x_train, y_train, ..., or with train_images, train_labels, ..., as
    MedMNIST publishes it. ``part`` is "train", "val" or "test", or "all" for one after the other.
    """
    parts, file = parts_of(part, PARTS), located("pneumonia", path, "pneumoniamnist.npz")
    published = "train_images" in sizes_of(file)
    kinds = ("{}_images", "{}_labels") if published else ("x_{}", "y_{}")
    images, codes = in_parts(file, parts, *kinds)
    finding = labels(codes, FINDINGS, where=f"the labels of {file}")
    return marked_by(_images(images, file), {"finding": (finding, FINDINGS)}, name="pneumonia")


def covid(*, path: str | Path | None = None, size: int = 64) -> Dataset:
    """COVID-19 image data collection (Cohen et al., 2020), covid_cxr64.npz: X-rays, is it COVID-19?

    Sex ("?" where it is not known) and patient are private; 83 images without a finding are left out.
    ``size`` makes the images smaller by averaging.
    """
    wanted = ("images", "is_covid", "sex", "patient", "finding", "finding_names")
    found, file = opened("covid", path, "covid_cxr64.npz", wanted, matched=5)
    unknown = [i for i, name in enumerate(found["finding_names"]) if str(name) in UNKNOWN]
    kept = ~np.isin(found["finding"], unknown)
    sex = np.where(found["sex"][kept] == 255, SEXES.index("?"), found["sex"][kept])
    y = labels(found["is_covid"][kept], ("no", "yes"), where=f"the labels of {file}")
    codes = {
        "is_covid": (y, ("no", "yes")),
        "sex": coded(sex, names=SEXES, where=f"array 'sex' of {file}"),
        "patient": coded(found["patient"][kept]),
    }
    return marked_by(_averaged(_images(found["images"][kept], file), size), codes, name="covid")


def _images(images: Array, file: Path) -> Tensor:
    return byte_images(images, file, "(n, height, width[, channels])", fit=images.ndim in (3, 4))


def _averaged(images: Tensor, size: int) -> Tensor:
    side = images.shape[2]
    require(1 <= size <= side and side % size == 0, "size", f"a divisor of {side}", size)
    return F.avg_pool2d(images, side // size) if size < side else images
