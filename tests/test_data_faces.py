"""Faces, from npz files and from folders as they were published: crops, lists of scores, and who is left out."""

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
    expected = ["Asian", "Indian", "Black", "White"]
    assert [data.value_names("ethnicity")[i] for i in data.private["ethnicity"]] == expected


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


# LFW and PubFig

COLUMNS = ["Male", "Asian", "White", "Black", "Smiling", "Eyeglasses", "Sunglasses", "No Eyewear", "Bangs"]
SCORES = {  # person and image -> the scores
    ("Ann Lee", 1): [-1.5, 0.5, -1.0, -2.0, 1.0, -1.0, -1.0, 2.0, 0.3],
    ("Ann Lee", 2): [-0.5, 0.4, -1.0, -2.0, -1.0, 1.0, -1.0, -2.0, -0.3],
    ("Bo de Vries", 1): [1.5, -1.0, -0.05, -2.0, 1.0, -1.0, 1.5, -2.0, -0.3],  # race hardly known
    ("Bo de Vries", 3): [1.5, -1.0, -0.2, -2.0, 1.0, -1.0, 1.5, -2.0, -0.3],  # race not known
    ("Cy", 10): [2.0, -1.0, -2.0, 0.7, -1.0, -1.0, -0.5, -0.3, 0.1],  # glasses not known
}


def listing(path: Path, *, mark: bool = True) -> None:
    lines = ["\t".join([*(["#"] if mark else []), "person", "imagenum", *COLUMNS])]
    lines += ["\t".join([who, str(n), *map(repr, scores)]) for (who, n), scores in SCORES.items()]
    path.write_text(("# LFW Attributes v1 - lfw_attributes.txt - www\n" if mark else "") + "\n".join(lines))


@pytest.fixture
def lfw(tmp_path: Path) -> Path:
    listing(tmp_path / "lfw_attributes.txt")
    pixels = np.full((250, 250, 3), 255, dtype=np.uint8)  # white around what is kept
    for i, (who, n) in enumerate(SCORES):
        name = who.replace(" ", "_")
        (tmp_path / "lfw" / name).mkdir(parents=True, exist_ok=True)
        pixels[70:195, 78:172] = (40 * i, 40 * i + 20, 0)
        Image.fromarray(pixels).save(tmp_path / "lfw" / name / f"{name}_{n:04}.jpg", quality=95)
    return tmp_path


def test_the_published_lfw_is_cropped_to_the_face_at_half_its_size(lfw: Path) -> None:
    data = load("lfw-folder", path=lfw, attributes=())
    assert data.x.shape == (5, 3, 62, 47)
    inner = data.x[:, :, 3:-3, 3:-3] * 255
    assert torch.allclose(inner[:, 0].mean((1, 2)), 40.0 * torch.arange(5), atol=4)
    assert torch.allclose(inner[:, 1].mean((1, 2)), 40.0 * torch.arange(5) + 20, atol=4)
    assert data.x[:, 2].mean() < 0.05  # no white from around it
    assert data.label == "gender"
    assert [data.values["gender"][i] for i in data.y] == ["female"] * 2 + ["male"] * 3
    assert list(data.private) == ["identity"]
    assert data.private["identity"].tolist() == [0, 0, 1, 1, 2]
    assert data.value_names("identity") == ("Ann Lee", "Bo de Vries", "Cy")


def test_a_group_is_its_largest_score_and_faces_below_minus_a_tenth_are_left_out(lfw: Path) -> None:
    data = load("lfw-folder", path=lfw, attributes="race")
    assert [data.value_names("race")[i] for i in data.private["race"]] == ["Asian", "Asian", "White", "Black"]
    data = load("lfw-folder", path=lfw, attributes=("race", "glasses", "smile"))
    words = [data.value_names("glasses")[i] for i in data.private["glasses"]]
    assert words == ["No Eyewear", "Eyeglasses", "Sunglasses"]
    assert data.private["smile"].tolist() == [1, 0, 1]
    assert data.value_names("smile") == ("no", "yes")


def test_any_column_of_the_list_can_be_the_label(lfw: Path) -> None:
    data = load("lfw-folder", path=lfw, label="Bangs", attributes=("gender",))
    assert data.y.tolist() == [1, 0, 0, 0, 1]
    assert list(data.private) == ["gender", "identity"]
    assert len(load("lfw-folder", path=lfw, attributes=(), limit=2)) == 2
    for label, attributes in (("Beard", ()), ("gender", ("hair",)), ("person", ())):
        with pytest.raises(ArgumentError, match="label and attributes must be among gender, smile, race"):
            load("lfw-folder", path=lfw, label=label, attributes=attributes)


def test_images_that_are_missing_are_left_out_and_the_list_may_lack_its_first_line(lfw: Path) -> None:
    (lfw / "lfw" / "Cy" / "Cy_0010.jpg").unlink()
    listing(lfw / "lfw_attributes.txt", mark=False)
    (lfw / "lfw").rename(lfw / "lfw_funneled")
    assert load("lfw-folder", path=lfw, attributes=()).private["identity"].tolist() == [0, 0, 1, 1]


def test_a_broken_lfw_is_refused(lfw: Path) -> None:
    image = lfw / "lfw" / "Cy" / "Cy_0010.jpg"
    Image.new("RGB", (64, 64)).save(image)
    with pytest.raises(DataError, match=r"Cy_0010\.jpg must be an image of 250 x 250, and it is 64 x 64"):
        load("lfw-folder", path=lfw, attributes=())
    marks = lfw / "lfw_attributes.txt"
    whole = marks.read_text()
    for content, said in (
        ("", "no line names person and imagenum"),
        ("# a\n# b\nc\n", "no line names person and imagenum"),
        (whole.replace("-1.5", "none"), "is not the list of attribute scores .could not convert"),
        (whole.replace("-1.5", ""), "not every cell holds a score"),
        (whole[: whole.index("Ann")], "not every cell holds a score"),
        (whole.replace("-1.5", "-1.5\t0"), "rows have more than 11 cells"),
        (whole.replace("2.0\t-1.0\t-2.0\t0.7", "2.0\t-1.0\t-2.0\t0.7\t0"), "Expected 11 fields"),
    ):
        marks.write_text(content)
        with pytest.raises(DataError, match=said) as caught:
            load("lfw-folder", path=lfw)
        assert "\n" not in str(caught.value)
    marks.write_text(whole.replace("Ann Lee", "Dee").replace("Bo de", "Bob").replace("Cy", "Si"))
    with pytest.raises(DataError, match=r"images that lfw_attributes\.txt lists, and it holds none"):
        load("lfw-folder", path=lfw)
    marks.unlink()
    refuses(DataError, r"must hold lfw_attributes\.txt", load, "lfw-folder", path=lfw)


def test_pubfig_is_matched_by_folder_and_number(tmp_path: Path) -> None:
    listing(tmp_path / "pubfig_attributes.txt")
    for file in (
        "Ann_Lee/1.png",
        "Ann_Lee/Ann_Lee_0002.jpg",
        "Bo de Vries/b1-3.jpg",
        "Cy/7.jpg",
        "Dee/1.jpg",
    ):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        Image.new("RGB", (120, 90), (0, 128, 255)).save(tmp_path / file)
    (tmp_path / "Cy" / "notes_10.txt").write_text("no image")
    data = load("pubfig-folder", path=tmp_path, attributes=("smile",))
    assert data.x.shape == (3, 3, 100, 100)  # image 7 of Cy is not listed, and image 10 is none
    assert data.y.tolist() == [0, 0, 1]
    assert data.private["smile"].tolist() == [1, 0, 1]
    assert torch.allclose(data.x.mean((0, 2, 3)) * 255, torch.tensor([0.0, 128.0, 255.0]), atol=4)
    assert load("pubfig-folder", path=tmp_path, attributes=(), size=16, limit=2).x.shape == (2, 3, 16, 16)
    (tmp_path / "Ann_Lee" / "1.png").unlink()
    with pytest.raises(DataError, match="know gender, race of at least 2 faces, and it knows them of 1"):
        load("pubfig-folder", path=tmp_path, attributes="race")


def saved(path: Path, **changes: np.ndarray) -> Path:
    arrays = {
        "images": np.arange(23 * 12, dtype=np.uint8).reshape(23, 4, 3, 1),
        "identity": np.repeat([2, 0], [20, 3]),
        "gender": np.asarray([0] * 20 + [1, 1, 255], dtype=np.uint8),
        "identity_names": np.asarray(["Ann", "Bo", "Cy"]),
    }
    np.savez(path, **(arrays | changes))  # type: ignore[arg-type]
    return path


def test_lfws_people_need_twenty_images_to_be_told_apart(tmp_path: Path) -> None:
    data = load("lfw", path=saved(tmp_path / "lfw.npz"))
    assert data.x.shape == (22, 1, 4, 3)
    assert torch.equal(data.x[0, 0], torch.arange(12.0).reshape(4, 3) / 255)
    assert data.y.tolist() == [0] * 20 + [1, 1]
    assert data.private["identity"].tolist() == [1] * 20 + [0, 0]
    assert data.value_names("identity") == ("Ann", "Cy")
    who = load("lfw", path=tmp_path / "lfw.npz", label="identity")
    assert len(who) == 20
    assert who.values["identity"] == ("Cy",)
    assert list(who.private) == ["gender"]
    with pytest.raises(ArgumentError, match="label must be 'gender' or 'identity', got 'age'"):
        load("lfw", path=tmp_path / "lfw.npz", label="age")


def test_a_broken_lfw_file_is_refused(tmp_path: Path) -> None:
    cases: list[tuple[dict[str, np.ndarray], str]] = [
        ({"gender": np.zeros(5, np.uint8)}, "'gender' of .* must have one value per record"),
        ({"identity": np.full(23, 3)}, "identity of .* must hold codes from 0 to 2"),
        ({"gender": np.full(23, 255, np.uint8)}, "must hold faces of known gender"),
        ({"images": np.zeros((23, 5, 6, 2), np.uint8)}, "must have 1, 3 or 4 channels"),
    ]
    for changes, said in cases:
        refuses(DataError, said, load, "lfw", path=saved(tmp_path / "bad.npz", **changes))


@needs_files
def test_lfw_has_311_people_and_62_with_twenty_images() -> None:
    data = load("lfw")
    assert data.x.shape == (5_424, 1, 62, 47)
    assert data.y.bincount().tolist() == [4_565, 859]
    assert len(data.value_names("identity")) == 311
    who = load("lfw", label="identity")
    assert len(who) == 3_023
    assert who.classes == 62
    assert who.y.bincount().min() >= 20


@needs_files
def test_celeba_is_there_in_64_pixels_too() -> None:
    data = load("celeba", size=64)
    assert data.x.shape == (800, 3, 64, 64)
    assert data.private["identity"].bincount().tolist() == [5] * 160
    refuses(ArgumentError, "size must be 32 or 64 pixels, got 48", load, "celeba", size=48)
