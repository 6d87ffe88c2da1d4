"""UCI HAR: the accelerations of the compact file, and the features as published."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from builders import needs_files, refuses

from leakscope.core.errors import ArgumentError, DataError
from leakscope.data import load

NAMES = ["WALKING", "WALKING_UPSTAIRS", "WALKING_DOWNSTAIRS", "SITTING", "STANDING", "LAYING"]


def saved(path: Path, **changes: np.ndarray) -> Path:
    arrays = {
        "x": np.arange(4 * 6, dtype=np.float16).reshape(4, 2, 3),
        "activity": np.asarray([5, 0, 1, 5], np.uint8),
        "subject": np.asarray([7, 7, 30, 2], np.uint8),
        "is_test": np.asarray([False, False, True, False]),
        "activity_names": np.asarray(NAMES),
    }
    np.savez(path, **(arrays | changes))  # type: ignore[arg-type]
    return path


def test_windows_are_flat_one_axis_after_the_other(tmp_path: Path) -> None:
    data = load("har", path=saved(tmp_path / "har.npz"))
    assert data.x.dtype == torch.float32
    assert data.x[0].tolist() == [0, 3, 1, 4, 2, 5]
    assert data.y.tolist() == [5, 0, 1, 5]
    assert data.classes == 6
    assert data.private["subject"].tolist() == [1, 1, 2, 0]
    assert data.value_names("subject") == ("2", "7", "30")
    train, test = (load("har", path=tmp_path / "har.npz", part=part) for part in ("train", "test"))
    assert train.y.tolist() == [5, 0, 5]
    assert torch.equal(test.x, data.x[2:3])
    refuses(ArgumentError, "part must be", load, "har", path=tmp_path / "har.npz", part="val")


def test_a_broken_file_of_windows_is_refused(tmp_path: Path) -> None:
    cases: list[tuple[dict[str, np.ndarray], str]] = [
        ({"x": np.zeros((4, 6))}, r"must hold windows \(n, samples, 3\), and their shape is \(4, 6\)"),
        ({"subject": np.zeros(3)}, "'subject' of .* must have one value per record"),
        ({"activity": np.asarray([0, 1, 6, 2])}, "must be integers from 0 to 5"),
        ({"x": np.full((4, 2, 3), np.nan)}, "must be finite, and 4 of 4 records"),
    ]
    for changes, said in cases:
        refuses(DataError, said, load, "har", path=saved(tmp_path / "bad.npz", **changes))


@pytest.fixture
def published(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for part, activity, subject in (("train", [1, 6, 2], [1, 1, 3]), ("test", [3, 6], [2, 2])):
        (tmp_path / part).mkdir()
        x = rng.uniform(-1, 1, (len(activity), 561))
        lines = ["".join(f"{value: .7e} " for value in row) + "\n" for row in x]
        (tmp_path / part / f"X_{part}.txt").write_text("".join(" " + line for line in lines))
        (tmp_path / part / f"y_{part}.txt").write_text("".join(f"{code}\n" for code in activity))
        (tmp_path / part / f"subject_{part}.txt").write_text("".join(f"{who}\n" for who in subject))
    (tmp_path / "activity_labels.txt").write_text("".join(f"{i} {n}\n" for i, n in enumerate(NAMES, 1)))
    return tmp_path


def test_the_published_features_are_read_with_their_people(published: Path) -> None:
    data = load("har-folder", path=published)
    assert data.x.shape == (5, 561)
    expected = np.random.default_rng(0).uniform(-1, 1, (3, 561))
    assert np.abs(data.x[:3].numpy() - expected).max() < 1e-7
    assert data.y.tolist() == [0, 5, 1, 2, 5]
    assert data.values["activity"] == tuple(NAMES)
    assert data.private["subject"].tolist() == [0, 0, 2, 1, 1]
    assert torch.equal(load("har-folder", path=published, part="test").x, data.x[3:])


def test_a_broken_folder_of_features_is_refused(published: Path) -> None:
    file = published / "test" / "X_test.txt"
    whole = file.read_text()
    for content, said in (
        ("", "X_test.txt is not a file of numbers"),
        ("1 2 3\n", "must have 561 numbers in every row, and it has 3"),
        (whole.replace("e", "u", 1), "X_test.txt is not a file of numbers"),
        (whole.splitlines()[0] + "\n", "column 'activity' has 5 rows where x has 4"),
    ):
        file.write_text(content)
        with pytest.raises(DataError, match=said) as caught:
            load("har-folder", path=published)
        assert "\n" not in str(caught.value)
    file.write_text(whole)
    (published / "test" / "y_test.txt").write_text("0\n6\n")
    refuses(DataError, "must be integers from 0 to 5", load, "har-folder", path=published)
    file.unlink()
    refuses(DataError, r"must hold test/X_test\.txt", load, "har-folder", path=published)


@needs_files
def test_har_has_30_people_of_whom_9_are_for_testing() -> None:
    data = load("har")
    assert data.x.shape == (10_119, 384)
    assert len(data.value_names("subject")) == 30
    test = load("har", part="test")
    assert len(test.value_names("subject")) == 9
    assert len(test) + len(load("har", part="train")) == len(data)
    gravity = data.x.unflatten(1, (3, 128)).mean(2).norm(dim=1)
    assert 0.9 < gravity.median() < 1.1  # the mean of a window is gravity, 1 g in some direction
