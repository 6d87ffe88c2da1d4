"""The sets of paper 002: original formats on small files, made-up records, and the real files."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from builders import needs_files, refuses
from PIL import Image

from leakscope.core.errors import ArgumentError, DataError
from leakscope.core.rng import seeded
from leakscope.data import load

RNG = np.random.default_rng


def refusal(name: str, path: Path, **options: object) -> str:
    """The one sentence with which a path is refused."""
    with pytest.raises(DataError) as caught:
        load(name, path=path, **options)
    said = str(caught.value)
    assert "\n" not in said
    assert said.endswith(".")
    return said


# CIFAR


def written_cifar10(folder: Path, *, n: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """The binary version with ``n`` images in every file: a class, then 1,024 reds, greens and blues."""
    images = RNG(0).integers(256, size=(6 * n, 32, 32, 3), dtype=np.uint8)
    classes = RNG(1).integers(10, size=6 * n, dtype=np.uint8)
    folder.mkdir(exist_ok=True)
    for i, file in enumerate([*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]):
        content = b""
        for j in range(n * i, n * i + n):
            colours = [images[j, :, :, channel].tobytes() for channel in range(3)]
            content += bytes([classes[j]]) + b"".join(colours)
        (folder / file).write_bytes(content)
    names = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
    (folder / "batches.meta.txt").write_text("\n".join(names) + "\n\n")
    return images, classes


def test_the_binary_cifar10_is_read_in_its_order_and_planes(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-bin"
    images, classes = written_cifar10(folder)
    data = load("cifar10", path=folder)
    assert torch.equal(data.x, torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255)
    assert data.y.tolist() == classes.tolist()
    assert data.y.dtype == torch.int64
    assert data.classes == 10
    assert data.values["class"][9] == "truck"
    living = {"bird", "cat", "deer", "dog", "frog", "horse"}
    named = [data.values["class"][code] in living for code in data.y.tolist()]
    assert data.private["animal"].bool().tolist() == named
    train, test = (load("cifar10", path=folder, part=part) for part in ("train", "test"))
    assert (len(train), len(test)) == (15, 3)
    assert torch.equal(torch.cat([train.x, test.x]), data.x)
    assert torch.equal(load("cifar10", path=tmp_path).x, data.x)  # the folder above


def test_the_binary_cifar100_has_the_class_behind_the_superclass(tmp_path: Path) -> None:
    for file, classes in (("train.bin", (99, 3)), ("test.bin", (50,))):
        rows = [
            bytes([19, fine]) + bytes([fine]) * 1024 + bytes(1024) + bytes([255]) * 1024 for fine in classes
        ]
        (tmp_path / file).write_bytes(b"".join(rows))
    (tmp_path / "fine_label_names.txt").write_text("".join(f"kind_{i}\n" for i in range(100)))
    (tmp_path / "coarse_label_names.txt").write_text("".join(f"super_{i}\n" for i in range(20)))
    data = load("cifar100", path=tmp_path)
    assert data.y.tolist() == [99, 3, 50]
    assert data.classes == 100
    assert data.values["class"][50] == "kind_50"
    assert torch.equal(data.x[:, 0, 5, 7], torch.tensor([99, 3, 50]) / 255)
    assert data.x[:, 1].max() == 0
    assert data.x[:, 2].min() == 1


def test_the_pickled_cifar_is_refused_by_name_and_never_opened(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
            return Path.touch, (tmp_path / "sprung",)

    ten, hundred = tmp_path / "cifar-10-batches-py", tmp_path / "cifar-100-python"
    for folder, files in ((ten, ("data_batch_1", "test_batch")), (hundred, ("train", "test", "meta"))):
        folder.mkdir()
        for file in files:
            (folder / file).write_bytes(pickle.dumps(Trap()))
    (tmp_path / "cifar-10-python.tar.gz").write_bytes(b"\x1f\x8b")
    paths = [ten, ten / "data_batch_1", tmp_path, tmp_path / "cifar-10-python.tar.gz"]
    for path in paths:
        said = refusal("cifar10", path)
        assert "pickles" in said
        assert "cifar-10-binary.tar.gz" in said
        assert "cifar-10-batches-bin" in said
    for path in (hundred, hundred / "train"):
        assert "fetch cifar-100-binary.tar.gz, the binary version" in refusal("cifar100", path)
    assert not (tmp_path / "sprung").exists()


def test_a_broken_binary_cifar_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "bin"
    written_cifar10(folder)
    first = folder / "data_batch_1.bin"
    whole = first.read_bytes()
    first.write_bytes(whole[:-100])
    assert "data_batch_1.bin must be whole records of 3073 bytes, and it has 9119 bytes" in refusal(
        "cifar10", folder
    )
    first.write_bytes(b"")
    assert "it has 0 bytes" in refusal("cifar10", folder)
    first.write_bytes(bytes([10]) + whole[1:])
    assert "must be integers from 0 to 9, one for each class, and they go from" in refusal("cifar10", folder)
    first.write_bytes(whole)
    (folder / "batches.meta.txt").write_text("airplane\nautomobile\n")
    assert "must name 10 classes, and it names 2" in refusal("cifar10", folder)
    (folder / "data_batch_4.bin").unlink()
    assert "must hold data_batch_4.bin, and does not" in refusal("cifar10", folder)
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "must hold data_batch_1.bin" in refusal("cifar10", empty)
    assert "does not exist" in refusal("cifar10", tmp_path / "nowhere")
    other = tmp_path / "cifar-10-binary.tar.gz"
    other.write_bytes(b"\x1f\x8b")
    assert "must be an npz file or the folder cifar-10-batches-bin" in refusal("cifar10", other)
    with pytest.raises(ArgumentError, match="part must be 'train', 'test' or 'all', got 'val'"):
        load("cifar10", path=folder, part="val")


BYTES = "images of bytes, (n, 32, 32, 3), and they are float64"
FLOATS = {"x_train": np.zeros((2, 32, 32, 3)), "x_test": np.zeros((2, 32, 32, 3))}
WORDS = {"y_train": np.asarray(["a", "b"]), "y_test": np.asarray(["a", "b"])}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"x_test": np.zeros((2, 28, 28, 3), np.uint8)}, "records of one shape"),
        (FLOATS, BYTES),
        ({"y_test": np.asarray([0, 10])}, "integers from 0 to 9, one for each class, and they"),
        ({"y_test": np.asarray([0.5, 1.0])}, "and they are float64"),
        (WORDS, "and they are <U1"),
        ({"y_test": np.asarray([1])}, "column 'class' has 3 rows where x has 4"),
        ({"class_names": np.asarray(list("abcdefghi"))}, "must name 10 classes, and it names 9"),
    ],
)
def test_an_npz_that_is_no_cifar_is_refused(
    tmp_path: Path, changes: dict[str, np.ndarray], said: str
) -> None:
    images, marks = np.zeros((2, 32, 32, 3), np.uint8), np.asarray([0, 9])
    good = {"x_train": images, "y_train": marks, "x_test": images, "y_test": marks}
    good["class_names"] = np.asarray(list("abcdefghij"))
    np.savez(tmp_path / "good.npz", **good)  # type: ignore[arg-type]
    assert load("cifar10", path=tmp_path / "good.npz").y.tolist() == [0, 9, 0, 9]
    np.savez(tmp_path / "bad.npz", **(good | changes))  # type: ignore[arg-type]
    assert said in refusal("cifar10", tmp_path / "bad.npz")


# Location30, Purchase100, Texas100

WIDTHS = {"location30": (446, 30, "bangkok"), "purchase100": (600, 100, "dataset_purchase")}


def table(name: str, n: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """Features, and labels from 0 with the first and the last among them."""
    inputs, classes = {**WIDTHS, "texas100": (6_169, 100, "")}[name][:2]
    x = RNG(2).integers(2, size=(n, inputs), dtype=np.uint8)
    return x, np.asarray([0, classes - 1, *RNG(3).integers(classes, size=n - 2)])


def rows(*columns: np.ndarray) -> str:
    return "".join(",".join(map(str, row)) + "\n" for row in np.column_stack(columns).tolist())


@pytest.mark.parametrize("name", WIDTHS)
def test_the_published_table_has_its_label_first_counted_from_1(tmp_path: Path, name: str) -> None:
    x, y = table(name)
    file = tmp_path / WIDTHS[name][2]
    file.write_text(rows(y + 1, x))
    for path in (file, tmp_path):
        data = load(name, path=path)
        assert torch.equal(data.x, torch.from_numpy(x).float())
        assert data.y.tolist() == y.tolist()
        assert data.classes == WIDTHS[name][1]
    quoted = "".join(f'"{label + 1}",' + rows(row[None]) for label, row in zip(y, x, strict=True))
    file.write_text(quoted.replace("\n", "\r\n"))
    assert torch.equal(load(name, path=file).x, data.x)


def test_the_published_texas_has_its_labels_beside_its_features(tmp_path: Path) -> None:
    x, y = table("texas100")
    (tmp_path / "feats").write_text(rows(x))
    (tmp_path / "labels").write_text(rows(y + 1))
    data = load("texas100", path=tmp_path)
    assert torch.equal(data.x, torch.from_numpy(x).float())
    assert data.y.tolist() == y.tolist()
    assert data.classes == 100
    (tmp_path / "labels").write_text(rows(y[:-1] + 1))
    assert "column 'class' has 4 rows where x has 5" in refusal("texas100", tmp_path)
    (tmp_path / "labels").unlink()
    assert "must hold labels, and does not" in refusal("texas100", tmp_path)


@pytest.mark.parametrize("name", ["location30", "purchase100", "texas100"])
def test_an_npz_may_be_packed_plain_or_one_hot(tmp_path: Path, name: str) -> None:
    x, y = table(name, n=9)
    hot = np.eye(100, dtype=np.float32)[y]
    kinds: list[dict[str, Any]] = [
        {"x_packed": np.packbits(x, axis=1), "n_features": x.shape[1], "y": y.astype(np.uint8)},
        {"x": x.astype(np.float32), "y": y},
        {"features": x, "labels": hot},
        {"features": x, "labels": y[:, None]},
    ]
    for i, kind in enumerate(kinds):
        np.savez(tmp_path / f"{i}.npz", **kind)
        data = load(name, path=tmp_path / f"{i}.npz")
        assert torch.equal(data.x, torch.from_numpy(x).float())
        assert data.y.tolist() == y.tolist()


def test_zeros_and_ones_are_not_scaled_when_they_are_split(tmp_path: Path) -> None:
    x, y = table("location30", n=200)
    (tmp_path / "bangkok").write_text(rows(y + 1, x))
    parts = load("location30", path=tmp_path).split(seeded(0), train=100, public=50)
    assert [set(part.x.unique().tolist()) for part in parts] == [{0.0, 1.0}] * 3


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda text: text[:-400], "(the number of columns changed from 601 to"),
        (lambda text: text.replace("\n", ",1\n"), "must hold 601 numbers in every row, and it holds 602"),
        (lambda text: text.replace("0", "no", 1), "(could not convert string 'no' to uint8"),
        (lambda text: text.replace(",0", ",2", 1), "features that are 0 or 1"),
        (lambda text: "", "(loadtxt: input contained no data"),
        (
            lambda text: text.replace("1,", "0,", 1),
            "integers from 1 to 100, one for each class, and they go from 0 to",
        ),
        (lambda text: text.replace("100,", "101,", 1), "and they go from 1 to 101"),
    ],
)
def test_a_broken_table_of_purchases_is_refused(
    tmp_path: Path, change: Callable[[str], str], said: str
) -> None:
    x, y = table("purchase100")
    y[2:] = 50
    (tmp_path / "dataset_purchase").write_text(change(rows(y + 1, x)))
    assert said in refusal("purchase100", tmp_path / "dataset_purchase")


def test_what_is_no_table_of_purchases_is_refused(tmp_path: Path) -> None:
    (tmp_path / "dataset_purchase.tgz").write_bytes(bytes([0x1F, 0x8B, 8, 0xFF, 0xFE]))
    assert "unpack the original" in refusal("purchase100", tmp_path / "dataset_purchase.tgz")
    assert "must hold dataset_purchase, and does not" in refusal("purchase100", tmp_path)
    x, y = table("purchase100")
    np.savez(tmp_path / "other.npz", data=x, target=y)
    assert "x_packed and n_features and y or x and y or features and labels, and it holds data" in refusal(
        "purchase100", tmp_path / "other.npz"
    )
    np.savez(tmp_path / "narrow.npz", x=x[:, :599], y=y)
    assert "must hold 600 features for each record" in refusal("purchase100", tmp_path / "narrow.npz")
    np.savez(tmp_path / "texts.npz", x=x.astype(str), y=y)
    assert "0 or 1" in refusal("purchase100", tmp_path / "texts.npz")
    np.savez(tmp_path / "wide.npz", x=x, y=y)
    assert "must hold 446 features" in refusal("location30", tmp_path / "wide.npz")


# made-up records


@pytest.mark.parametrize(("name", "inputs"), [("purchase-like", 600), ("texas-like", 6_169)])
def test_made_up_records_say_so_and_are_zeros_and_ones(name: str, inputs: int) -> None:
    data = load(name, records=60, classes=7)
    assert "synthetic" in data.name
    assert data.x.shape == (60, inputs)
    assert set(data.x.unique().tolist()) == {0.0, 1.0}
    assert data.classes == 7
    assert not data.private
    assert torch.equal(load(name, records=60, classes=7).x, data.x)
    assert not torch.equal(load(name, records=60, classes=7, seed=1).x, data.x)
    assert not any(column.standardised for column in data.columns)


def test_made_up_features_come_with_the_frequencies_that_are_stated() -> None:
    """The mean of sigmoid(N(-2, 1 + separation²)), by quadrature, against the share of ones."""
    for separation in (0.0, 1.5):
        data = load("texas-like", records=400, classes=50, separation=separation)
        nodes, weights = np.polynomial.hermite_e.hermegauss(40)
        odds = -2 + np.sqrt(1 + separation**2) * nodes
        expected = float((weights / np.sqrt(2 * np.pi) / (1 + np.exp(-odds))).sum())
        # the odds of 6,169 features vary most: a share's standard deviation is at most 0.2 / sqrt(6,169)
        assert data.x.mean().item() == pytest.approx(expected, abs=4 * 0.2 / np.sqrt(6_169))


def test_without_separation_no_class_can_be_told_and_with_it_most_can() -> None:
    """Naive Bayes, whose form is the records' own, learned from half of them."""
    right = {}
    for separation in (0.0, 1.0):
        data = load("purchase-like", records=4_000, classes=10, separation=separation)
        train, test = data.take(torch.arange(2_000)), data.take(torch.arange(2_000, 4_000))
        share = torch.stack(
            [(train.x[train.y == c].sum(0) + 1) / ((train.y == c).sum() + 2) for c in range(10)]
        )
        scores = test.x @ share.log().T + (1 - test.x) @ (1 - share).log().T
        right[separation] = (scores.argmax(1) == test.y).float().mean().item()
    assert right[0.0] == pytest.approx(0.1, abs=4 * np.sqrt(0.09 / 2_000))
    assert right[1.0] > 0.95


@pytest.mark.parametrize("option", [{"records": 1}, {"classes": 1}, {"separation": -0.1}])
def test_settings_of_made_up_records_are_checked(option: dict[str, Any]) -> None:
    refuses(ArgumentError, f"{next(iter(option))} must be at least", load, "purchase-like", **option)


# medical images and folders of images


def test_medical_mnist_is_averaged_down(tmp_path: Path) -> None:
    images = RNG(0).integers(256, size=(3, 64, 64, 1), dtype=np.uint8)
    names = np.asarray(["AbdomenCT", "BreastMRI", "CXR"])
    np.savez(tmp_path / "m.npz", images=images, y=np.asarray([2, 0, 0]), class_names=names)
    whole, half = (load("medical-mnist", path=tmp_path / "m.npz", size=size) for size in (64, 32))
    assert whole.x.shape == (3, 1, 64, 64)
    assert half.x.shape == (3, 1, 32, 32)
    blocks = images[..., 0].reshape(3, 32, 2, 32, 2).mean((2, 4)) / 255
    assert torch.allclose(half.x[:, 0].double(), torch.from_numpy(blocks), atol=1e-6)
    assert whole.classes == 3  # BreastMRI too, though there is none
    with pytest.raises(ArgumentError, match="size must be a divisor of 64, got 48"):
        load("medical-mnist", path=tmp_path / "m.npz", size=48)
    np.savez(tmp_path / "m.npz", images=images / 255, y=np.asarray([2, 0, 0]), class_names=names)
    assert "must hold images of bytes" in refusal("medical-mnist", tmp_path / "m.npz")


def test_pneumonia_may_have_medmnists_names_or_ours(tmp_path: Path) -> None:
    images = RNG(0).integers(256, size=(6, 28, 28), dtype=np.uint8)
    marks = np.asarray([0, 1, 1, 0, 1, 0], dtype=np.uint8)
    cuts = {"train": slice(0, 3), "val": slice(3, 4), "test": slice(4, 6)}
    theirs = {f"{part}_images": images[cut] for part, cut in cuts.items()}
    theirs |= {f"{part}_labels": marks[cut, None] for part, cut in cuts.items()}
    ours = {f"x_{part}": images[cut, ..., None] for part, cut in cuts.items()}
    ours |= {f"y_{part}": marks[cut] for part, cut in cuts.items()}
    for kind in (theirs, ours):
        np.savez(tmp_path / "p.npz", **kind)  # type: ignore[arg-type]
        data = load("pneumonia", path=tmp_path / "p.npz")
        assert torch.equal(data.x[:, 0], torch.from_numpy(images).float() / 255)
        assert data.y.tolist() == marks.tolist()
        assert data.values["finding"] == ("normal", "pneumonia")
        assert load("pneumonia", path=tmp_path / "p.npz", part="val").y.tolist() == [0]
    refuses(ArgumentError, "part must be", load, "pneumonia", path=tmp_path / "p.npz", part="half")
    np.savez(tmp_path / "p.npz", **(ours | {"y_val": np.asarray([2])}))  # type: ignore[arg-type]
    assert "integers from 0 to 1" in refusal("pneumonia", tmp_path / "p.npz")
    del ours["y_val"]
    np.savez(tmp_path / "p.npz", **ours)  # type: ignore[arg-type]
    assert "no array 'y_val'" in refusal("pneumonia", tmp_path / "p.npz")


def test_covid_leaves_out_what_has_no_finding_and_marks_what_is_not_known(tmp_path: Path) -> None:
    arrays = {
        "images": RNG(0).integers(256, size=(5, 64, 64, 1), dtype=np.uint8),
        "finding": np.asarray([1, 0, 2, 1, 0]),
        "finding_names": np.asarray(["No Finding", "COVID-19", "todo"]),
        "is_covid": np.asarray([1, 0, 0, 1, 0]),
        "sex": np.asarray([0, 255, 1, 1, 0], dtype=np.uint8),
        "patient": np.asarray([4, 7, 8, 4, 9], dtype=np.uint16),
    }
    np.savez(tmp_path / "c.npz", **arrays)  # type: ignore[arg-type]
    data = load("covid", path=tmp_path / "c.npz", size=16)
    assert data.x.shape == (4, 1, 16, 16)
    assert data.y.tolist() == [1, 0, 1, 0]
    assert [data.value_names("sex")[i] for i in data.private["sex"]] == ["male", "?", "female", "male"]
    assert [data.value_names("patient")[i] for i in data.private["patient"]] == ["4", "7", "4", "9"]
    for change, said in (
        ({"sex": arrays["sex"][:4]}, "'sex' of .* must have one value per record, and its shape is .4"),
        ({"sex": np.asarray([0, 1, 3, 1, 3])}, "'sex' of .* codes from 0 to 2"),
        ({"is_covid": np.asarray([1, 0, 0, 2, 0])}, "integers from 0 to 1"),
    ):
        np.savez(tmp_path / "c.npz", **(arrays | change))  # type: ignore[arg-type]
        refuses(DataError, said, load, "covid", path=tmp_path / "c.npz")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two classes: one in colour, one grey, one image deeper than the others, and what is no image."""
    for name in ("b normal", "a ill/left"):
        (tmp_path / name).mkdir(parents=True)
    for i in range(3):
        Image.new("RGB", (20, 10), (51, 102, 255)).save(tmp_path / "b normal" / f"{i}.PNG")
    Image.new("L", (8, 8), 204).save(tmp_path / "a ill" / "left" / "x.jpeg", quality=95)
    Image.new("L", (8, 8), 0).save(tmp_path / "a ill" / "y.bmp")
    (tmp_path / "a ill" / "Thumbs.db").write_bytes(b"no image")
    (tmp_path / "b normal" / "._0.png").write_bytes(b"no image")
    (tmp_path / ".cache").mkdir()
    return tmp_path


def test_a_folder_of_images_has_a_class_for_every_folder(folder: Path) -> None:
    data = load("image-folder", path=folder, size=16)
    assert data.x.shape == (5, 3, 16, 16)
    assert data.values["class"] == ("a ill", "b normal")
    assert data.y.tolist() == [0, 0, 1, 1, 1]
    assert data.name == folder.name
    assert torch.allclose(data.x[0], torch.tensor(0.8), atol=0.01)
    assert data.x[1].max() == 0
    assert torch.allclose(data.x[2, :, 5, 5], torch.tensor([0.2, 0.4, 1.0]))
    assert load("image-folder", path=folder, size=8, limit=3).y.tolist() == [0, 0, 1]


def test_a_folder_of_images_may_be_read_in_grey(folder: Path) -> None:
    data = load("image-folder", path=folder, size=8, channels=1)
    assert data.x.shape == (5, 1, 8, 8)
    grey = (299 * 51 + 587 * 102 + 114 * 255) / 1000  # ITU-R 601-2, Pillow's own rule
    assert data.x[3].mean().item() * 255 == pytest.approx(grey, abs=0.6)
    with pytest.raises(ArgumentError, match="channels must be 1 for grey or 3 for colours, got 4"):
        load("image-folder", path=folder, channels=4)


def test_a_folder_that_is_none_of_images_is_refused(folder: Path, tmp_path: Path) -> None:
    deep = folder / "b normal" / "deep.png"
    Image.fromarray(np.full((4, 4), 4_000, dtype=np.uint16)).save(deep)
    assert "deep.png must have 8 bits for each channel, and it has more (I;16)" in refusal(
        "image-folder", folder
    )
    deep.write_bytes(b"\x89PNG nothing")
    assert "deep.png is not an image that can be read" in refusal("image-folder", folder)
    for file in (folder / "b normal").iterdir():
        file.unlink()
    assert "b normal must hold images (.jpg, " in refusal("image-folder", folder)
    (folder / "b normal").rmdir()
    assert "at least 2 classes, and it holds 1" in refusal("image-folder", folder)
    empty = tmp_path / "a ill" / "none"
    empty.mkdir()
    assert "at least 2 classes, and it holds 0" in refusal("image-folder", empty)
    assert "must be a folder that exists" in refusal("image-folder", tmp_path / "nowhere")


# the real files


@needs_files
@pytest.mark.parametrize(
    ("name", "classes", "each"), [("cifar10", 10, (500, 100)), ("cifar100", 100, (80, 20))]
)
def test_the_compact_cifars_are_balanced(name: str, classes: int, each: tuple[int, int]) -> None:
    train, test = load(name, part="train"), load(name, part="test")
    assert train.x.shape == (classes * each[0], 3, 32, 32)
    assert train.y.bincount().tolist() == [each[0]] * classes
    assert test.y.bincount().tolist() == [each[1]] * classes
    assert (train.x.min().item(), train.x.max().item()) == (0.0, 1.0)
    assert train.values == test.values


@needs_files
def test_location30_is_complete() -> None:
    data = load("location30")
    assert data.x.shape == (5_010, 446)
    assert data.y.bincount(minlength=30).min() == 97
    assert data.y.bincount().max() == 308
    assert data.x.mean().item() == pytest.approx(0.12041, abs=5e-6)


@needs_files
def test_the_medical_sets_have_their_numbers() -> None:
    scans = load("medical-mnist", size=32)
    assert scans.x.shape == (2_400, 1, 32, 32)
    assert scans.classes == 6
    rays = load("pneumonia")
    assert rays.x.shape == (5_856, 1, 28, 28)
    assert rays.y.sum() == 4_273  # of MedMNIST's 5,856
    chests = load("covid")
    assert chests.x.shape == (768, 1, 64, 64)
    assert chests.y.sum() == 497
    assert chests.private["sex"].bincount().tolist() == [444, 262, 62]
    assert len(chests.value_names("patient")) == 418
