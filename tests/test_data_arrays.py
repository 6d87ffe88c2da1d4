"""Arrays: npz files of one's own, the digits, and the health table."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from builders import needs_files, refuses

from leakscope.core.errors import ArgumentError, DataError
from leakscope.data import from_npz, load
from leakscope.data.files import sha256

N = 6
X = np.arange(N * 2, dtype=np.float64).reshape(N, 2)
Y = np.asarray([0, 1] * 3)
S = np.asarray(["b", "a", "b"] * 2)


def saved(folder: Path, **arrays: Any) -> Path:
    path = folder / "own.npz"
    np.savez(path, **({"x": X, "y": Y, "s": S} | arrays))
    return path


def test_floats_are_kept_and_words_are_coded(tmp_path: Path) -> None:
    data = from_npz(saved(tmp_path), secrets="s")
    assert data.x.dtype == torch.float32
    assert data.x.tolist() == X.tolist()
    assert data.private["s"].tolist() == [1, 0, 1, 1, 0, 1]
    assert data.value_names("s") == ("a", "b")
    assert (data.name, data.label) == ("own", "y")


@pytest.mark.parametrize("shape", [(N, 5, 6, 3), (N, 5, 6), (N, 3, 5, 6)])
def test_bytes_become_images_with_channels_first(tmp_path: Path, shape: tuple[int, ...]) -> None:
    images = np.random.default_rng(0).integers(256, size=shape, dtype=np.uint8)
    data = from_npz(saved(tmp_path, x=images), secrets="s")
    channels = 3 if len(shape) == 4 else 1
    assert data.x.shape == (N, channels, 5, 6)
    first = images[0, 0, 0, 0] if shape[1] == 3 else images[0, 0, 0].reshape(-1)[0]
    assert data.x[0, 0, 0, 0].item() == pytest.approx(int(first) / 255)
    assert 0 <= data.x.min() <= data.x.max() <= 1


def test_names_beside_a_secret_name_its_codes(tmp_path: Path) -> None:
    path = saved(tmp_path, s=np.asarray([2, 0] * 3), s_names=np.asarray(["no", "never", "yes"]))
    data = from_npz(path, secrets=("s",), name="mine")
    assert data.value_names("s") == ("no", "yes")
    assert data.private["s"].tolist() == [1, 0] * 3
    assert data.name == "mine"


def test_a_secret_of_fractions_is_asked_in_ranges_of_as_many_records(tmp_path: Path) -> None:
    fractions = np.random.default_rng(0).permutation(100) + 0.5
    path = saved(tmp_path, x=fractions[:, None], y=np.arange(100) % 2, s=fractions)
    data = from_npz(path, secrets="s")
    assert data.private["s"].tolist() == (np.argsort(np.argsort(fractions)) // 20).tolist()
    assert data.value_names("s")[0].startswith("below ")
    assert data.ordered == {"s"}


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "missing array": ({}, {"secrets": "sex"}, "no array 'sex'; it has 'x', 'y', 's'"),
    "label as secret": ({}, {"secrets": "y"}, "'y' must be the label or a secret"),
    "objects": ({"s": np.asarray([None] * N, dtype=object)}, {}, "'s' .* Python objects"),
    "object records": ({"x": np.asarray([[{}]] * N, dtype=object)}, {}, "'x' .* Python objects"),
    "NaN": ({"x": np.where(X == 3, np.nan, X)}, {}, "'x' .* 1 of 6 records hold NaN"),
    "inf": ({"x": np.where(X > 7, np.inf, X)}, {}, "'x' .* 2 of 6 records"),
    "beyond float32": ({"x": X * 1e300}, {}, "'x' .* must be finite"),
    "words as records": ({"x": S[:, None]}, {}, "'x' .* must hold numbers"),
    "flat records": ({"x": X[:, 0]}, {}, "'x' .* one row per record"),
    "five channels": ({"x": np.zeros((N, 5, 5, 5), np.uint8)}, {}, "1, 3 or 4 channels"),
    "float secret of one value": ({"s": np.full(N, 0.5)}, {}, "'s' .* into 5 ranges .* it has 1 distinct"),
    "float secret without numbers": ({"s": np.full(N, np.nan)}, {}, "'s' .* it has 0 distinct"),
    "secret of two columns": ({"s": X}, {}, "'s' .* integers or words"),
    "constant label": ({"y": np.zeros(N, int)}, {}, "'y' .* at least 2 values"),
    "short secret": ({"s": S[:-1]}, {}, "'s' .* one value per record, and it has 5 where 'x' has 6"),
    "unnamed code": ({"s": Y, "s_names": np.asarray(["no"])}, {}, "'s' .* codes from 0 to 0"),
    "too large": ({}, {"memory": 1e-9}, "GB"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_an_npz_is_refused_in_one_sentence_if_it_has(tmp_path: Path, case: str) -> None:
    changes, options, said = REFUSED[case]
    with pytest.raises(DataError, match=said) as caught:
        from_npz(saved(tmp_path, **changes), **({"secrets": "s"} | options))
    assert "\n" not in str(caught.value)


def test_a_file_that_is_no_npz_is_refused(tmp_path: Path) -> None:
    whole = saved(tmp_path).read_bytes()
    for content in (b"", b"text", whole[:-40], whole[: len(whole) // 2]):
        (tmp_path / "bad.npz").write_bytes(content)
        refuses(DataError, r"bad\.npz", from_npz, tmp_path / "bad.npz", secrets="s")
    np.save(tmp_path / "one.npy", X)
    refuses(DataError, r"one\.npy is not an npz", from_npz, tmp_path / "one.npy", secrets="s")


def test_flipped_bytes_are_noticed(tmp_path: Path) -> None:
    content = bytearray(saved(tmp_path, x=np.random.default_rng(0).random((N, 50))).read_bytes())
    content[500] ^= 255
    (tmp_path / "bad.npz").write_bytes(content)
    refuses(DataError, r"'x' of .* cannot be read", from_npz, tmp_path / "bad.npz", secrets="s")


def test_a_foreign_zip_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "foreign.npz", "w") as archive:
        for name in ("x", "y", "s"):
            archive.writestr(name, "not an array")
    refuses(DataError, "is not an array", from_npz, tmp_path / "foreign.npz", secrets="s")
    refuses(DataError, "does not exist", from_npz, tmp_path / "nowhere.npz", secrets="s")


def test_a_fingerprint_is_the_sha256_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    assert sha256(tmp_path / "empty").startswith("e3b0c44298fc1c14")


def test_digits_are_images_with_a_parity() -> None:
    data = load("digits")
    assert data.x.shape == (1_797, 1, 8, 8)
    assert (data.x.min().item(), data.x.max().item()) == (0.0, 1.0)
    assert data.classes == 10
    assert torch.equal(data.private["even"] == 1, data.private["digit"] % 2 == 0)
    assert data.value_names("even") == ("odd", "even")


@pytest.mark.parametrize("channel", [(), (1,)])
def test_mnist_is_read_with_and_without_a_last_axis(tmp_path: Path, channel: tuple[int, ...]) -> None:
    images = np.random.default_rng(0).integers(256, size=(5, 28, 28), dtype=np.uint8)
    marks = np.asarray([0, 9, 3, 3, 1], dtype=np.uint8)
    parts = {"x_train": images[:3], "y_train": marks[:3], "x_test": images[3:], "y_test": marks[3:]}
    shaped = {
        key: value.reshape(*value.shape, *(channel if key[0] == "x" else ())) for key, value in parts.items()
    }
    np.savez(tmp_path / "mnist.npz", **shaped)  # type: ignore[arg-type]
    data = load("mnist", path=tmp_path / "mnist.npz")
    assert torch.equal(data.x, torch.from_numpy(images)[:, None].float() / 255)
    assert data.y.tolist() == [0, 9, 3, 3, 1]
    assert data.classes == 10
    assert not data.private
    assert torch.equal(load("mnist", path=tmp_path / "mnist.npz", part="test").x, data.x[3:])
    with pytest.raises(ArgumentError, match="part must be 'train', 'test' or 'all', got 'val'"):
        load("mnist", path=tmp_path / "mnist.npz", part="val")
    for changes, said in (
        ({"x_test": images[3:, :27]}, "records of one shape"),
        ({"x_train": images[:3] / 255, "x_test": images[3:] / 255}, r"images of bytes, .* float64"),
        ({"y_test": np.asarray([0, 10])}, "integers from 0 to 9"),
    ):
        np.savez(tmp_path / "bad.npz", **(parts | changes))  # type: ignore[arg-type]
        refuses(DataError, said, load, "mnist", path=tmp_path / "bad.npz")


@needs_files
def test_mnist_has_twelve_thousand_digits_here() -> None:
    assert load("mnist").x.shape == (12_000, 1, 28, 28)
    assert load("mnist", part="train").y[:5].tolist() == [5, 0, 4, 1, 9]  # as everybody knows them


NOT_SHIPPED = [
    "health",
    "cremad",
    "celeba",
    "utkface",
    "uci-adult",
    "utkface-folder",
    "mnist",
    "lfw",
    "imdb",
    "har",
    "lfw-folder",
    "pubfig-folder",
    "har-folder",
    "text-csv",
    "image-folder",
    "cifar10",
    "cifar100",
    "medical-mnist",
    "pneumonia",
    "covid",
    "skin",
    "retina",
    "kidney",
    "bone-age",
    "loans",
    "har561",
    "location30",
    "purchase100",
    "texas100",
]


@pytest.mark.parametrize("name", NOT_SHIPPED)
def test_a_file_that_does_not_ship_says_where_to_put_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LEAKSCOPE_DATA", raising=False)
    refuses(DataError, f"{name} needs .*LEAKSCOPE_DATA is not set; .* or give path=", load, name)
    monkeypatch.setenv("LEAKSCOPE_DATA", str(tmp_path))
    refuses(DataError, f"{name} needs .* does not hold it", load, name)
    refuses(DataError, r"nowhere", load, name, path=tmp_path / "nowhere")


@needs_files
@pytest.mark.parametrize(
    ("name", "shape", "classes", "private"),
    [
        ("skin", (7_017, 3, 28, 28), 7, {"sex", "lesion"}),
        ("retina", (3_448, 1, 64, 64), 4, {"patient"}),
        ("kidney", (1_914, 1, 64, 64), 4, set()),
        ("bone-age", (14_036, 1, 32, 32), 2, {"sex"}),
        ("loans", (36_982, 9), 3, {"Race", "Gender"}),
        ("har561", (10_299, 549), 6, {"subject"}),
    ],
)
def test_sets_of_the_papers_have_their_records(
    name: str, shape: tuple[int, ...], classes: int, private: set[str]
) -> None:
    data = load(name)
    assert data.x.shape == shape
    assert data.classes == classes
    assert set(data.private) == private


@needs_files
def test_hands_and_moves_are_the_published_ones() -> None:
    hands, moves = load("bone-age"), load("har561")
    names = hands.value_names("sex")
    assert float((hands.secret("sex") == names.index("male")).float().mean()) == pytest.approx(
        0.542, abs=5e-4
    )
    assert moves.y.bincount().tolist() == [1722, 1544, 1406, 1777, 1906, 1944]  # as UCI counts them


@needs_files
def test_health_has_gender_inside_and_age_beside() -> None:
    data = load("health")
    assert data.x.shape == (55_924, 123)
    assert data.has("gender")
    assert not data.has("age_band")
    assert data.value_names("gender") == ("male", "female")
    assert len(data.value_names("age_band")) == 9
    assert torch.equal(data.x[:, data.positions("gender")].argmax(1), data.private["gender"])
    assert data.without("gender").x.shape[1] == 121
    assert load("health", inside=()).x.shape[1] == 121
    refuses(ArgumentError, "inside", load, "health", inside="income")
