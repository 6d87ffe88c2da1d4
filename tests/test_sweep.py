"""Sweeps: resumable, atomic, the same numbers however they are run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from leakscope import store, sweep
from leakscope.errors import ArgumentError, PlanError, StoreError
from leakscope.plan import parse

PLAN = """
seeds = [0, 1]
[defaults]
data = {name = "synthetic", records = 1200, shift = 1.0}
attack = {name = "Posterior", head = {name = "RandomForest", trees = 10}}
rounds = 2
trials = 60
rehearsals = 80
train = 500
public = 300
[[cell]]
id = "property"
game = {name = "Inference", secret = "group", batch = 8}
[[cell]]
id = "share"
game = {name = "Distribution", column = "group", bins = 4, batch = 12}
attack = {name = "Posterior", head = {name = "RandomForest", trees = 10}, ordinal = true}
"""


def numbers(results) -> list:
    """Everything measured, without how long it took."""
    return [{key: value for key, value in result.items() if key != "seconds"} for result in results]


def run(folder, text=PLAN, **options):
    return sweep.run(parse(text), folder, text=text, **options)


def test_serial_and_parallel_give_the_same_numbers(tmp_path):
    serial, parallel = run(tmp_path / "one", jobs=1), run(tmp_path / "two", jobs=2)
    assert numbers(serial) == numbers(parallel)
    assert len(serial) == 4
    assert serial[0]["estimates"] != serial[1]["estimates"]


def test_what_is_done_is_not_done_again(tmp_path):
    first = run(tmp_path / "out", jobs=1)
    written = {p: p.stat().st_mtime_ns for p in (tmp_path / "out" / "cells").iterdir()}
    assert numbers(run(tmp_path / "out", jobs=1)) == numbers(first)
    assert written == {p: p.stat().st_mtime_ns for p in (tmp_path / "out" / "cells").iterdir()}
    next(iter(written)).unlink()
    assert numbers(run(tmp_path / "out", jobs=1)) == numbers(first)


def test_progress_ends_at_the_whole(tmp_path):
    steps = []
    run(tmp_path / "out", jobs=1, progress=steps.append)
    assert len(steps) == 4
    assert steps[-1].done == pytest.approx(steps[-1].total)


def test_a_folder_of_another_plan_is_refused_and_left_alone(tmp_path):
    run(tmp_path / "out", jobs=1)
    before = sorted(p.name for p in (tmp_path / "out").rglob("*"))
    with pytest.raises(StoreError, match="another plan"):
        run(tmp_path / "out", PLAN.replace("rounds = 2", "rounds = 3"), jobs=1)
    assert before == sorted(p.name for p in (tmp_path / "out").rglob("*"))


def test_a_folder_with_other_files_is_refused(tmp_path):
    (tmp_path / "holiday.jpg").touch()
    with pytest.raises(StoreError, match="holds other files"):
        run(tmp_path, jobs=1)


def test_results_of_other_records_are_not_taken_for_ones_own(tmp_path):
    import numpy as np

    def written(shift):
        rng = np.random.default_rng(0)
        group = rng.integers(0, 2, 900)
        np.savez(
            tmp_path / "d.npz",
            x=(rng.normal(size=(900, 4)) + shift * group[:, None]).astype("float32"),
            y=rng.integers(0, 2, 900),
            group=group,
        )

    text = PLAN.replace(
        '{name = "synthetic", records = 1200, shift = 1.0}',
        f'{{name = "npz", path = "{tmp_path / "d.npz"}", secrets = ["group"]}}',
    )
    written(1.0)
    plan = parse(text)
    sweep.run(plan, tmp_path / "out", text=text, jobs=1, digests=sweep.check(plan))
    sweep.run(plan, tmp_path / "out", text=text, jobs=1, digests=sweep.check(plan))
    written(2.0)
    with pytest.raises(StoreError, match="other records"):
        sweep.run(plan, tmp_path / "out", text=text, jobs=1, digests=sweep.check(plan))


def test_jobs_below_one_are_refused(tmp_path):
    with pytest.raises(ArgumentError, match="jobs must be at least 1, got 0"):
        run(tmp_path / "out", jobs=0)


def test_the_check_finds_what_only_the_data_shows():
    for change, words in (
        (('"group", batch = 8', '"grup", batch = 8'), "no private column 'grup'"),
        (("batch = 8", "batch = 200"), "lower the batch size"),
        (("records = 1200", "record = 1200"), "no option 'record'"),
        (("train = 500", "train = 1000"), "1000 training records were asked"),
    ):
        with pytest.raises(PlanError, match=words):
            sweep.check(parse(PLAN.replace(*change)))


def test_a_failed_cell_is_an_error_on_disk_and_is_tried_again(tmp_path):
    diverging = PLAN + "training = {rate = 1e30}\n"
    results = run(tmp_path / "out", diverging, jobs=1)
    assert ["error" in result for result in results] == [False, False, True, True]
    assert "lower the rate" in results[2]["error"]
    assert "estimates" not in results[2]
    steps = []
    run(tmp_path / "out", diverging, jobs=1, progress=steps.append)
    assert len(steps) == 2


def test_a_damaged_result_is_named_and_not_overwritten(tmp_path):
    run(tmp_path / "out", jobs=1)
    path = next((tmp_path / "out" / "cells").iterdir())
    path.write_text(path.read_text()[:100])
    with pytest.raises(StoreError, match=f"{path.name}.*delete it"):
        run(tmp_path / "out", jobs=1)


def test_writing_is_all_or_nothing(tmp_path, monkeypatch):
    path = tmp_path / "file.json"
    store.write(path, "old")

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match="No space left on device; free the disk"):
        store.write(path, "new")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["file.json"]


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="choose another folder"):
        run(tmp_path / "file" / "out", jobs=1)


@pytest.mark.slow
def test_killed_at_any_moment_it_goes_on_where_it_was(tmp_path):
    text = PLAN.replace("seeds = [0, 1]", "seeds = [0, 1, 2, 3]")
    expected = numbers(run(tmp_path / "calm", text, jobs=1))
    (tmp_path / "plan.toml").write_text(text)
    command = [
        sys.executable,
        "-m",
        "leakscope.cli",
        "run",
        str(tmp_path / "plan.toml"),
        "-o",
        str(tmp_path / "out"),
        "--jobs",
        "2",
    ]
    for wait in (5, 7):
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        time.sleep(wait)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for path in (tmp_path / "out").rglob("*.json"):
            json.loads(path.read_text())  # whole, whatever was being written
    assert numbers(run(tmp_path / "out", text, jobs=1)) == expected


def started(folder, *, trees: int) -> subprocess.Popen:
    """A long run in a process group of its own, where an interrupt is heard as at a terminal."""
    text = PLAN.replace("rehearsals = 80", "rehearsals = 4000").replace("trees = 10", f"trees = {trees}")
    (folder / "plan.toml").write_text(text)
    run = [sys.executable, "-m", "leakscope.cli", "run", str(folder / "plan.toml")]
    return subprocess.Popen(
        [*run, "-o", str(folder / "out"), "--jobs", "2"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


@pytest.mark.slow
def test_ctrl_c_ends_cleanly_and_says_how_to_go_on(tmp_path):
    process = started(tmp_path, trees=400)
    time.sleep(8)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "the same command goes on" in errors
    assert "Traceback" not in errors


@pytest.mark.slow
def test_ended_from_outside_it_leaves_no_worker_behind(tmp_path):
    process = started(tmp_path, trees=2_000)
    time.sleep(10)
    process.terminate()  # the parent alone, as a scheduler would
    process.communicate(timeout=60)
    assert process.returncode == 130
    time.sleep(3)
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
