"""Labeled Faces in the Wild, and faces with the attribute scores of Kumar et al. (ICCV 2009)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from torch import Tensor

from leakscope.core.dataset import Dataset
from leakscope.core.errors import ArgumentError, DataError, require
from leakscope.data.arrays import records
from leakscope.data.files import Codes, coded, fits, folder_of, listed, marked_by, opened
from leakscope.data.images import GENDERS, SUFFIXES, Crop, read_images, spread

if TYPE_CHECKING:
    from PIL.Image import Image

LEAST = 20  # images of a person to be told from others
SIDE = 250  # pixels of an original image
CROP = (78, 70, 172, 195)  # left, top, right, bottom: the face itself, half of it 62 x 47
FACE = (62, 47)
UNSURE = -0.1  # a face whose best score in a group is below has none of its values
GROUPS = {
    "race": ("Asian", "White", "Black"),
    "glasses": ("Eyeglasses", "Sunglasses", "No Eyewear"),
    "age": ("Baby", "Child", "Youth", "Middle Aged", "Senior"),
    "hair": ("Black Hair", "Blond Hair", "Brown Hair", "Bald"),
}
SIGNS = {"gender": ("Male", ("female", "male")), "smile": ("Smiling", ("no", "yes"))}
ATTRIBUTES = ("race", "glasses", "age", "smile")
_NUMBER = re.compile(r"(?:.*[^0-9])?(\d+)")


def lfw(*, path: str | Path | None = None, label: str = "gender") -> Dataset:
    """Labeled Faces in the Wild (Huang et al., 2007), lfw_gray62x47.npz: 311 people, 62 x 47 and grey.

    ``label`` is "gender", and who it is is private; or "identity" of the 62 people with at least 20
    images, and gender is private. Images of unknown gender are left out.
    """
    require(label in ("gender", "identity"), "label", "'gender' or 'identity'", label)
    wanted = ("images", "identity", "gender", "identity_names")
    found, file = opened("lfw", path, "lfw_gray62x47.npz", wanted, matched=3)
    kept = found["gender"] < len(GENDERS)
    if label == "identity":
        kept &= np.bincount(found["identity"])[found["identity"]] >= LEAST
    if not kept.any():
        raise DataError(f"{file} must hold faces of known gender for label {label!r}, and it holds none.")
    codes = {
        "gender": coded(found["gender"][kept], names=GENDERS),
        "identity": coded(
            found["identity"][kept], names=found["identity_names"].tolist(), where=f"identity of {file}"
        ),
    }
    return marked_by(records(found["images"][kept], f"the images of {file}"), codes, name="lfw", label=label)


def lfw_folder(
    *,
    path: str | Path | None = None,
    label: str = "gender",
    attributes: str | Sequence[str] = ATTRIBUTES,
    limit: int | None = None,
) -> Dataset:
    """LFW as published, Name/Name_0001.jpg in lfw/ or lfw_funneled/, and lfw_attributes.txt beside it.

    Rows 70 to 194 and columns 78 to 171 of each image at half their size, 62 x 47 in colours (paper 001).
    ``label`` and ``attributes`` are "gender", "smile", "race", "glasses", "age", "hair" or a column of
    the list: the sign of a score, or the largest of a group's. Faces whose largest score is below -0.1 in
    one of the groups asked for are left out. Who it is is private too.
    """
    folder = folder_of("lfw-folder", path, "LFW", "lfw_attributes.txt")
    below = [
        folder / name for name in ("lfw", "lfw_funneled", "lfw-deepfunneled") if (folder / name).is_dir()
    ]
    top = below[0] if below else folder
    scores = _scores(folder / "lfw_attributes.txt")
    names = [person.replace(" ", "_") for person in scores["person"]]
    numbers = scores["imagenum"]
    files = [top / name / f"{name}_{n:04}.jpg" for name, n in zip(names, numbers, strict=True)]
    there = [i for i, file in enumerate(files) if file.exists()]
    _refuse_none(there, top, "lfw_attributes.txt")
    chosen, codes = _attributes(scores.iloc[there], label=label, attributes=attributes, limit=limit)
    faces = [files[there[i]] for i in chosen]
    return marked_by(_read(faces, FACE, top, crop=_middle), codes, name="lfw", label=label)


def pubfig_folder(
    *,
    path: str | Path | None = None,
    label: str = "gender",
    attributes: str | Sequence[str] = ATTRIBUTES,
    size: int = 100,
    limit: int | None = None,
) -> Dataset:
    """PubFig (Kumar et al., ICCV 2009): a folder of images for each person, and pubfig_attributes.txt.

    PubFig is published as addresses: give the cropped faces as Name/..._12.jpg, 12 being the list's
    imagenum; spaces in names may be written "_". Whole images are resized to ``size``, 100 in paper 001.
    ``label`` and ``attributes`` are chosen as in lfw-folder; images that are not listed are left out.
    """
    folder = folder_of("pubfig-folder", path, "PubFig", "pubfig_attributes.txt")
    scores = _scores(folder / "pubfig_attributes.txt")
    pairs = zip(scores["person"], scores["imagenum"], strict=True)
    place = {(person.replace("_", " "), int(n)): i for i, (person, n) in enumerate(pairs)}
    files: dict[int, Path] = {}
    for file in sorted(folder.glob("*/*")):
        match = _NUMBER.fullmatch(file.stem)
        if match and file.suffix.lower() in SUFFIXES:
            row = place.get((file.parent.name.replace("_", " "), int(match[1])))
            if row is not None:
                files.setdefault(row, file)
    there = sorted(files)
    _refuse_none(there, folder, "pubfig_attributes.txt")
    chosen, codes = _attributes(scores.iloc[there], label=label, attributes=attributes, limit=limit)
    faces = [files[there[i]] for i in chosen]
    return marked_by(_read(faces, (size, size), folder), codes, name="pubfig", label=label)


def _scores(path: Path) -> pd.DataFrame:
    """The list: a line about the file, one of names that may begin with "#", then person, image, scores."""
    try:
        with path.open(encoding="utf-8") as file:
            first = [file.readline().split("\t") for _ in range(2)]
        header = [i for i, line in enumerate(first) if {"person", "imagenum"} <= set(line)]
        if not header:
            raise ValueError("no line names person and imagenum")
        names = [name.strip() for name in first[header[0]] if name.strip() != "#"]
        table = pd.read_csv(path, sep="\t", skiprows=header[0] + 1, names=names)
        if not isinstance(table.index, pd.RangeIndex):  # pandas took the surplus cells for an index
            raise ValueError(f"rows have more than {len(names)} cells")
        if not len(table) or not np.isfinite(table.drop(columns="person").to_numpy(np.float64)).all():
            raise ValueError("not every cell holds a score")
    except (OSError, ValueError, pd.errors.EmptyDataError, pd.errors.ParserError) as error:
        reason = " ".join(str(error).split())
        raise DataError(f"{path} is not the list of attribute scores ({reason}); fetch it again.") from error
    return table.assign(person=table["person"].astype(str), imagenum=table["imagenum"].astype(np.int64))


def _attributes(
    scores: pd.DataFrame, *, label: str, attributes: str | Sequence[str], limit: int | None
) -> tuple[list[int], Codes]:
    """The rows in which every attribute asked for is known, and their codes."""
    wanted = listed((label, *listed(attributes)))
    known = [*SIGNS, *GROUPS, *(name for name in scores.columns if name not in ("person", "imagenum"))]
    for name in wanted:
        columns = GROUPS.get(name, (SIGNS[name][0] if name in SIGNS else name,))
        if name not in known or not set(columns) <= set(scores.columns):
            raise ArgumentError(
                f"label and attributes must be among {', '.join(known)}, got {name!r}; correct it."
            )
    sure = np.ones(len(scores), dtype=bool)
    for name in wanted:
        if name in GROUPS:
            sure &= scores[list(GROUPS[name])].max(axis=1).to_numpy() >= UNSURE
    rows = spread(np.flatnonzero(sure).tolist(), limit)
    if len(rows) < 2:
        raise DataError(
            f"the list must know {', '.join(wanted)} of at least 2 faces, and it knows them of {len(rows)}; "
            f"ask for fewer attributes."
        )
    part = scores.iloc[rows]
    codes = {name: _codes(part, name) for name in wanted}
    codes["identity"] = coded(part["person"].to_numpy(dtype=str))
    return rows, codes


def _codes(scores: pd.DataFrame, name: str) -> tuple[Tensor, tuple[str, ...]]:
    if name in GROUPS:
        return coded(scores[list(GROUPS[name])].to_numpy().argmax(1), names=GROUPS[name])
    column, words = SIGNS.get(name, (name, ("no", "yes")))
    return coded((scores[column].to_numpy() > 0).astype(np.int64), names=words)


def _refuse_none(there: Sequence[int], folder: Path, listing: str) -> None:
    if not there:
        raise DataError(
            f"{folder} must hold a folder for each person with images that {listing} lists, and it holds "
            f"none; give the folder above those of the persons."
        )


def _read(files: Sequence[Path], size: tuple[int, int], folder: Path, *, crop: Crop | None = None) -> Tensor:
    fits(4.0 * len(files) * size[0] * size[1] * 3, folder)
    return read_images(files, size, crop=crop)


def _middle(image: Image, file: Path) -> Image:
    if image.size != (SIDE, SIDE):
        raise DataError(
            f"{file} must be an image of {SIDE} x {SIDE}, and it is {image.width} x {image.height}; use the "
            f"original LFW."
        )
    return image.crop(CROP)
