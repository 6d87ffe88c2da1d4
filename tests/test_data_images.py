"""Faces, from npz files and from folders as they were published."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from builders import needs_files, refuses
from PIL import Image

from leakscope.core.errors import ArgumentError, DataError
from leakscope.data import load
from leakscope.data.images import spread


@pytest.fixture
def celeba_folder(tmp_path: Path) -> Path:
    images = tmp_path / "img_align_celeba"
    images.mkdir()
    pixels = np.zeros((218, 178, 3), dtype=np.uint8)
    pixels[:20] = pixels[198:] = 255  # white above and below what is kept
    for i in range(1, 7):
        pixels[20:198] = 30 * i
        Image.fromarray(pixels).save(images / f"{i:06}.jpg", quality=95)
    marks = ["8", "High_Cheekbones Male Smiling Young"]
    marks += [f"{i:06}.jpg {-1 if i % 2 else 1:2d} {1 if i > 3 else -1:2d}  1 -1" for i in range(1, 9)]
    (tmp_path / "list_attr_celeba.txt").write_text("\n".join(marks) + "\n")
    (tmp_path / "identity_CelebA.txt").write_text(
        "".join(f"{i:06}.jpg {2880 + i // 2}\n" for i in range(1, 9))
    )
    return tmp_path


def test_the_published_celeba_is_cropped_resized_and_labelled(celeba_folder: Path) -> None:
    data = load("celeba-folder", path=celeba_folder, label="High_Cheekbones", size=16)
    assert data.x.shape == (6, 3, 16, 16)
    assert torch.allclose(data.x[:, 0].mean((1, 2)) * 255, 30.0 * torch.arange(1, 7), atol=3)
    assert data.x[0].max() < 0.2
    assert data.y.tolist() == [0, 1, 0, 1, 0, 1]
    assert list(data.private) == ["Male", "Smiling", "Young", "identity"]
    assert data.private["Male"].tolist() == [0, 0, 0, 1, 1, 1]
    assert data.value_names("identity") == ("2880", "2881", "2882", "2883")


def test_a_limit_takes_images_evenly(celeba_folder: Path) -> None:
    data = load("celeba-folder", path=celeba_folder, label="Male", limit=3, size=8)
    assert data.y.tolist() == [0, 0, 1]
    assert spread(range(10), 3) == [0, 3, 6]
    assert spread(range(2), 5) == [0, 1]
    refuses(ArgumentError, "limit must be at least 2", load, "celeba-folder", path=celeba_folder, limit=0)


def test_a_broken_celeba_folder_is_refused(celeba_folder: Path) -> None:
    with pytest.raises(ArgumentError, match=r"label must be an attribute .*Smiling.* got 'Happy'"):
        load("celeba-folder", path=celeba_folder, label="Happy")
    first = celeba_folder / "img_align_celeba" / "000001.jpg"
    Image.new("RGB", (64, 64)).save(first)
    with pytest.raises(DataError, match=r"000001\.jpg must be an aligned image of 178 x 218"):
        load("celeba-folder", path=celeba_folder)
    first.write_bytes(b"\xff\xd8\xffnothing")
    refuses(DataError, r"000001\.jpg is not an image", load, "celeba-folder", path=celeba_folder)
    for image in (celeba_folder / "img_align_celeba").iterdir():
        image.unlink()
    refuses(DataError, "holds none", load, "celeba-folder", path=celeba_folder)
    (celeba_folder / "identity_CelebA.txt").unlink()
    refuses(DataError, r"must hold identity_CelebA\.txt", load, "celeba-folder", path=celeba_folder)


def test_the_published_utkface_is_read_from_its_names(tmp_path: Path) -> None:
    names = [
        "100_1_0_20170112213500903.jpg.chip.jpg",
        "30_0_2_20161219203650636.jpg",
        "31_1_3_20161219203650637.jpg",
        "61_0_1_20161219203650638.jpg",
        "9_0_4_20161219203650639.jpg",  # ethnicity "Others"
        "39_1_20170116174525125.jpg",  # no ethnicity
    ]
    for name in names:
        Image.new("RGB", (200, 200), (51, 102, 255)).save(tmp_path / name)
    (tmp_path / "readme.txt").write_text("not an image")
    data = load("utkface-folder", path=tmp_path, size=8)
    assert data.x.shape == (4, 3, 8, 8)
    assert torch.allclose(data.x[0, :, 4, 4], torch.tensor([0.2, 0.4, 1.0]), atol=0.02)
    assert data.y.tolist() == [0, 1, 2, 2]
    assert data.values["age_group"] == ("0-30", "31-60", "61+")
    assert data.private["gender"].tolist() == [0, 1, 0, 1]
    assert [data.value_names("ethnicity")[i] for i in data.private["ethnicity"]] == [
        "Asian",
        "Indian",
        "Black",
        "White",
    ]


def test_a_folder_without_utkface_names_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cat.jpg").write_bytes(b"")
    with pytest.raises(DataError, match=r"age_gender_race_date\.jpg .* none of its 1 files"):
        load("utkface-folder", path=tmp_path)


@needs_files
def test_celeba_has_every_other_attribute_and_identity_private() -> None:
    data = load("celeba")
    assert data.x.shape == (6_000, 3, 32, 32)
    assert 0 <= data.x.min() < data.x.max() <= 1
    assert list(data.private)[:2] == ["High_Cheekbones", "Male"]
    assert len(data.private) == 40
    assert "Smiling" not in data.private
    assert data.private["identity"].bincount().tolist() == [5] * 1_200
    assert "Smiling" in load("celeba", label="Male").private


@needs_files
def test_utkface_has_three_age_groups_and_four_ethnicities() -> None:
    data = load("utkface")
    assert data.x.shape == (7_439, 3, 32, 32)
    assert data.private["ethnicity"].bincount().tolist() == [3_392, 1_483, 1_196, 1_368]
    assert data.classes == 3
    assert data.value_names("gender") == ("male", "female")
