"""Medical images, from npz files: scans, X-rays of chests and hands, skin, retinas and kidneys."""

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
RETINAS = ("CNV", "DME", "DRUSEN", "NORMAL")
KIDNEYS = ("cyst", "normal", "stone", "tumor")
NO_YES = ("no", "yes")
MONTHS = 132  # above this age of a hand's bones a child counts as older, as in paper 003


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
    y = labels(found["is_covid"][kept], NO_YES, where=f"the labels of {file}")
    codes = {
        "is_covid": (y, NO_YES),
        "sex": coded(sex, names=SEXES, where=f"array 'sex' of {file}"),
        "patient": coded(found["patient"][kept]),
    }
    return marked_by(_averaged(_images(found["images"][kept], file), size), codes, name="covid")


def skin(*, path: str | Path | None = None) -> Dataset:
    """HAM10000 (Tschandl et al., 2018, CC BY-NC 4.0), ham10000_28.npz: 7,017 skin images of 28 x 28, seven
    diagnoses. Sex and lesion are private: a lesion has up to six images."""
    wanted = ("x", "y", "sex", "lesion", "dx_names", "sex_names")
    found, file = opened("skin", path, "ham10000_28.npz", wanted, matched=4)
    names = tuple(str(name) for name in found["dx_names"])
    codes = {
        "diagnosis": (labels(found["y"], names, where=f"the labels of {file}"), names),
        "sex": coded(found["sex"], names=found["sex_names"].tolist(), where=f"array 'sex' of {file}"),
        "lesion": coded(found["lesion"]),
    }
    return marked_by(_images(found["x"], file), codes, name="skin")


def retina(*, path: str | Path | None = None, size: int = 64) -> Dataset:
    """Retinas by optical coherence tomography (Kermany et al., 2018, CC BY 4.0), oct64.npz: 3,448 images,
    four findings. The patient is private. ``size`` makes the images smaller by averaging."""
    found, file = opened("retina", path, "oct64.npz", ("x", "y", "patient"), matched=3)
    y = labels(found["y"], RETINAS, where=f"the labels of {file}")
    codes = {"finding": (y, RETINAS), "patient": coded(found["patient"])}
    return marked_by(_averaged(_images(found["x"], file), size), codes, name="retina")


def kidney(*, path: str | Path | None = None, size: int = 64) -> Dataset:
    """Kidneys by computed tomography (Islam et al., 2022), ct_kidney64.npz: 1,914 images, four findings.

    They are consecutive slices of unnamed patients: neighbours are nearly the same image. ``size`` makes them
    smaller by averaging."""
    found, file = opened("kidney", path, "ct_kidney64.npz", ("x", "y"), matched=2)
    y = labels(found["y"], KIDNEYS, where=f"the labels of {file}")
    return marked_by(_averaged(_images(found["x"], file), size), {"finding": (y, KIDNEYS)}, name="kidney")


def bone_age(*, path: str | Path | None = None) -> Dataset:
    """RSNA's hands (Halabi et al., 2019), boneage32.npz: 14,036 X-rays of 32 x 32; are the bones older than
    11 years? Sex is private."""
    found, file = opened("bone-age", path, "boneage32.npz", ("x", "boneage", "male"), matched=3)
    older = (found["boneage"] > MONTHS).astype(np.int64)
    codes = {
        "older": (labels(older, NO_YES, where=f"the labels of {file}"), NO_YES),
        "sex": coded(1 - found["male"].astype(np.int64), names=SEXES[:2], where=f"array 'male' of {file}"),
    }
    return marked_by(_images(found["x"], file), codes, name="bone-age")


def _images(images: Array, file: Path) -> Tensor:
    return byte_images(images, file, "(n, height, width[, channels])", fit=images.ndim in (3, 4))


def _averaged(images: Tensor, size: int) -> Tensor:
    side = images.shape[2]
    require(1 <= size <= side and side % size == 0, "size", f"a divisor of {side}", size)
    return F.avg_pool2d(images, side // size) if size < side else images
