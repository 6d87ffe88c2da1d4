"""Human activity by a telephone's sensors (Anguita et al., ESANN 2013, CC BY 4.0)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from leakscope.core.dataset import Dataset
from leakscope.core.errors import DataError
from leakscope.data.arrays import records
from leakscope.data.files import Array, coded, fits, folder_of, labels, marked_by, opened, parts_of
from leakscope.data.tabular import text_table

FEATURES = 561
ACTIVITIES = ("walking", "upstairs", "downstairs", "sitting", "standing", "laying")
NOT_REMADE = range(65, 77)  # features of gravity that no other program makes as the published ones


def har(*, path: str | Path | None = None, part: str = "all") -> Dataset:
    """UCI HAR's accelerations, uci_har_acc.npz: six activities, and which of 30 people it was is private.

    A record is a window of 128 samples as 384 numbers in g, all of the first axis, then of the second and
    the third. ``part`` is "train" or "test", which share no people, or "all" for every window.
    """
    parts_of(part)
    wanted = ("x", "activity", "subject", "is_test", "activity_names")
    found, file = opened("har", path, "uci_har_acc.npz", wanted, matched=4)
    windows = found["x"]
    if windows.ndim != 3 or windows.shape[2] != 3:
        raise DataError(
            f"{file} must hold windows (n, samples, 3), and their shape is {windows.shape}; write it again."
        )
    kept = (found["is_test"] == (part == "test")) | (part == "all")
    return _har(
        windows[kept].transpose(0, 2, 1).reshape(int(kept.sum()), -1),
        found["activity"][kept].astype(np.int64),
        found["subject"][kept],
        tuple(str(name) for name in found["activity_names"]),
        where=file,
    )


def har561(*, path: str | Path | None = None, times: float = 1.0) -> Dataset:
    """UCI HAR's features made again from its windows, har561.npz: 549 of the 561, those that come out as the
    published ones do, each ``times`` a number (10 in paper 003's code). Which of 30 people it was is
    private."""
    wanted = ("x", "y", "subject")
    found, file = opened("har561", path, "har561.npz", wanted, matched=3)
    x = np.delete(found["x"].astype(np.float32), NOT_REMADE, axis=1) * np.float32(times)
    return _har(x, found["y"].astype(np.int64), found["subject"], ACTIVITIES, where=file)


def har_folder(*, path: str | Path | None = None, part: str = "all") -> Dataset:
    """UCI HAR as published, "UCI HAR Dataset" with its train/X_train.txt: the 561 features.

    Paper 003 calls it Activity. ``part`` is "train" or "test", which share no people, or "all" for one
    after the other.
    """
    parts = parts_of(part)
    kinds = ("X", "y", "subject")
    files = [f"{one}/{kind}_{one}.txt" for kind in kinds for one in parts]
    folder = folder_of("har-folder", path, "UCI HAR Dataset", *files, "activity_labels.txt")
    fits(2.0 * sum((folder / file).stat().st_size for file in files), folder)
    x, y, subject = (
        np.concatenate([_numbers(folder / one / f"{kind}_{one}.txt", width) for one in parts])
        for kind, width in zip(kinds, (FEATURES, 1, 1), strict=True)
    )
    lines = (folder / "activity_labels.txt").read_text(encoding="utf-8", errors="replace").split("\n")
    names = tuple(line.split()[-1] for line in lines if line.strip())
    return _har(x, y[:, 0].astype(np.int64) - 1, subject[:, 0].astype(np.int64), names, where=folder)


def _har(x: Array, activity: Array, subject: Array, names: tuple[str, ...], *, where: Path) -> Dataset:
    y = labels(activity, names, where=f"the activities of {where}")
    codes = {"activity": (y, names), "subject": coded(subject)}
    return marked_by(records(x, f"the records of {where}"), codes, name="har")


def _numbers(file: Path, width: int) -> Array:
    table = text_table(file, "a file of numbers", sep=r"\s+", header=None, dtype=np.float64)
    if table.shape[1] != width:
        raise DataError(
            f"{file} must have {width} numbers in every row, and it has {table.shape[1]}; fetch it again."
        )
    return table.to_numpy()
