"""Faces, CelebA and UTKFace, from npz files or as they were published; and any folder of images."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch
from torch import Tensor

from leakscope.core.dataset import Dataset
from leakscope.core.errors import DataError, MissingExtra, require
from leakscope.data.files import Array, coded, fits, folder_of, marked_by, opened, pixels
from leakscope.data.tabular import text_table

if TYPE_CHECKING:
    from PIL.Image import Image

ALIGNED = (178, 218)  # the width and height of an aligned CelebA image
SQUARE = (0, 20, 178, 198)  # left, top, right, bottom: rows 20 to 197
LISTING = "CelebA's list"
FIRST = ("High_Cheekbones", "Male")  # the attributes the papers infer
AGES = ("0-30", "31-60", "61+")  # paper 000, section 5.1.1
GENDERS = ("male", "female")
ETHNICITIES = ("White", "Black", "Asian", "Indian", "Others")
SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp")
_UTK = re.compile(r"(\d{1,3})_([01])_([0-4])_\d+\.jpg(\.chip\.jpg)?", re.IGNORECASE)
T = TypeVar("T")
Crop = Callable[["Image", Path], "Image"]


def celeba(*, path: str | Path | None = None, label: str = "Smiling", size: int = 32) -> Dataset:
    """CelebA (Liu et al., ICCV 2015), celeba32.npz: one attribute is the task, the others are private.

    ``size`` of 64 reads celeba64.npz, fewer people in larger images; a ``path`` goes before it.
    """
    require(size in (32, 64), "size", "32 or 64 pixels", size)
    wanted = ("images", "identity", "attributes", "attribute_names")
    found, _ = opened("celeba", path, f"celeba{size}.npz", wanted)
    names = [str(name) for name in found["attribute_names"]]
    return _celeba(pixels(found["images"]), found["identity"], found["attributes"], names, label=label)


def celeba_folder(
    *, path: str | Path | None = None, label: str = "Smiling", size: int = 32, limit: int | None = None
) -> Dataset:
    """CelebA as published: img_align_celeba/, list_attr_celeba.txt and identity_CelebA.txt.

    Rows 20 to 197 of each aligned image, resized to ``size`` by Lanczos; ``limit`` images at most,
    evenly spaced through the list.
    """
    parts = ("img_align_celeba", "list_attr_celeba.txt", "identity_CelebA.txt")
    folder = folder_of("celeba-folder", path, "CelebA", *parts)
    marks = text_table(folder / parts[1], LISTING, sep=r"\s+", skiprows=1)
    named = text_table(folder / parts[2], LISTING, sep=r"\s+", names=["image", "identity"])
    people = named.set_index("image")["identity"]
    there = {file.name for file in (folder / parts[0]).iterdir()}
    rows = [image for image in marks.index if image in there and image in people.index]
    if not rows:
        raise DataError(
            f"{folder / parts[0]} must hold images that {parts[1]} and {parts[2]} list, and it holds none; "
            f"unpack the original distribution there."
        )
    rows = spread(rows, limit)
    images = read_images([folder / parts[0] / row for row in rows], (size, size), crop=_aligned)
    attributes = (marks.loc[rows].to_numpy(dtype=np.int64) > 0).astype(np.int64)
    names = [str(name) for name in marks.columns]
    return _celeba(images, people.loc[rows].to_numpy(dtype=np.int64), attributes, names, label=label)


def _celeba(images: Tensor, identity: Array, attributes: Array, names: list[str], *, label: str) -> Dataset:
    require(label in names, "label", f"an attribute ({', '.join(names)})", label)
    order = [name for name in FIRST if name in names] + [name for name in names if name not in FIRST]
    codes = {name: coded(attributes[:, names.index(name)], names=("no", "yes")) for name in order}
    codes["identity"] = coded(identity)
    return marked_by(images, codes, name="celeba", label=label)


def _aligned(image: Image, file: Path) -> Image:
    if image.size != ALIGNED:
        raise DataError(
            f"{file} must be an aligned image of {ALIGNED[0]} x {ALIGNED[1]}, and it is "
            f"{image.width} x {image.height}; use img_align_celeba."
        )
    return image.crop(SQUARE)


def utkface(*, path: str | Path | None = None) -> Dataset:
    """UTKFace (Zhang et al., CVPR 2017), utkface32.npz: three age groups; ethnicity "Others" is left out."""
    wanted = ("images", "age", "gender", "ethnicity")
    found, _ = opened("utkface", path, "utkface32.npz", wanted)
    known = found["ethnicity"] < ETHNICITIES.index("Others")
    rows = [found[name][known].astype(np.int64) for name in ("age", "gender", "ethnicity")]
    return _utkface(pixels(found["images"][known]), *rows)


def utkface_folder(*, path: str | Path | None = None, size: int = 32, limit: int | None = None) -> Dataset:
    """UTKFace as published: age_gender_race_date.jpg, resized to ``size`` by Lanczos.

    Files with other names are left out, as is ethnicity "Others"; ``limit`` images at most, evenly
    spaced through the names, which are sorted by age.
    """
    folder = folder_of("utkface-folder", path, "UTKFace")
    found = [(file, _UTK.fullmatch(file.name)) for file in sorted(folder.iterdir())]
    faces = [(file, tuple(map(int, match.groups()[:3]))) for file, match in found if match]
    faces = [(file, face) for file, face in faces if face[2] < ETHNICITIES.index("Others")]
    if not faces:
        raise DataError(
            f"{folder} must hold images named age_gender_race_date.jpg with a race from 0 to 3, and none of "
            f"its {len(found)} files is; give the folder of the images themselves."
        )
    faces = sorted(faces, key=lambda pair: (pair[1], pair[0].name))
    faces = spread(faces, limit)
    images = read_images([file for file, _ in faces], (size, size))
    age, gender, ethnicity = np.asarray([face for _, face in faces], dtype=np.int64).T
    return _utkface(images, age, gender, ethnicity)


def _utkface(images: Tensor, age: Array, gender: Array, ethnicity: Array) -> Dataset:
    codes = {
        "age_group": coded(np.digitize(age, (31, 61)), names=AGES),
        "ethnicity": coded(ethnicity, names=ETHNICITIES),
        "gender": coded(gender, names=GENDERS),
    }
    return marked_by(images, codes, name="utkface")


def image_folder(
    *, path: str | Path | None = None, size: int = 64, channels: int = 3, limit: int | None = None
) -> Dataset:
    """A folder per class with its images, at any depth: the class is the folder's name, nothing is private.

    Whole images are resized to ``size`` x ``size`` by Lanczos, to 3 colours or 1 grey channel; files with
    other endings than those of images are left out; ``limit`` images at most, evenly spaced.
    """
    require(channels in (1, 3), "channels", "1 for grey or 3 for colours", channels)
    folder = folder_of("image-folder", path, "image-folder")
    names = tuple(sorted(item.name for item in folder.iterdir() if item.is_dir() and item.name[0] != "."))
    if len(names) < 2:
        raise DataError(
            f"{folder} must hold a folder for each of at least 2 classes, and it holds {len(names)}; give "
            f"the folder above those of the classes."
        )
    found: list[tuple[Path, int]] = []
    for code, name in enumerate(names):
        files = [file for file in sorted((folder / name).rglob("[!.]*")) if file.suffix.lower() in SUFFIXES]
        if not files:
            raise DataError(
                f"{folder / name} must hold images ({', '.join(SUFFIXES)}), and it holds none; remove the "
                f"folder, or give the one above those of the classes."
            )
        found += [(file, code) for file in files]
    found = spread(found, limit)
    fits(4.0 * len(found) * size**2 * channels, folder)
    images = read_images([file for file, _ in found], (size, size), channels=channels)
    y = torch.tensor([code for _, code in found])
    return marked_by(images, {"class": (y, names)}, name=folder.resolve().name)


def spread(rows: Sequence[T], limit: int | None) -> list[T]:
    """At most ``limit`` of ``rows``, evenly spaced."""
    require(limit is None or limit >= 2, "limit", "at least 2, or None for all", limit)
    if limit is None or limit >= len(rows):
        return list(rows)
    return [rows[i * len(rows) // limit] for i in range(limit)]


def read_images(
    files: Sequence[Path], size: tuple[int, int], *, crop: Crop | None = None, channels: int = 3
) -> Tensor:
    """Image files, cropped, and resized to ``size``, a height and a width, by Lanczos."""
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtra('image files need Pillow; run: pip install "leakscope[images]"') from error
    height, width = size
    require(min(size) >= 1, "size", "at least 1 pixel", min(size))
    stack = np.empty((len(files), height, width, channels), dtype=np.uint8)
    for i, file in enumerate(files):
        try:
            with Image.open(file) as image:
                deep = image.mode.startswith(("I", "F"))  # which Pillow would cut off at 255
                picture = image.convert("RGB" if channels == 3 else "L")
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            raise DataError(f"{file} is not an image that can be read ({error}); fetch it again.") from error
        if deep:
            raise DataError(
                f"{file} must have 8 bits for each channel, and it has more ({image.mode}); scale its values "
                f"to 0 to 255 and save it again."
            )
        if crop is not None:
            picture = crop(picture, file)
        small = np.asarray(picture.resize((width, height), Image.Resampling.LANCZOS))
        stack[i] = small.reshape(height, width, channels)
    return pixels(stack)
