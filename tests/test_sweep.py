"""Sweeps: resumable, atomic, the same numbers however they are run."""

from __future__ import annotations

import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import tomli_w
from builders import DEFAULTS, FORMAT1, KINDS, alive, attempts, mark, numbers, refuses, start, wait
from fuzzing import files as files_of

from leakscope.core import catalogue, files
from leakscope.core.errors import ArgumentError, PlanError, StoreError
from leakscope.results import store
from leakscope.run import engines, sweep
from leakscope.run.plan import parse

CELLS = [{"id": "property", **KINDS["game"]}, {"id": "share", **KINDS["share"]}]
DOCUMENT = {"seeds": [0, 1], "defaults": DEFAULTS, "cell": CELLS}
PLAN = tomli_w.dumps(DOCUMENT)


def run(folder, text=PLAN, **options):
    return sweep.run(parse(text), folder, text=text, **options)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a finished sweep, the steps it told and the results it gave."""
    folder, steps = tmp_path_factory.mktemp("sweep") / "out", []
    return folder, steps, run(folder, jobs=1, progress=steps.append)


@pytest.fixture
def folder(finished, tmp_path):
    """A copy of it that a test may spoil."""
    return shutil.copytree(finished[0], tmp_path / "out")


def test_what_is_done_is_not_done_again(finished, folder):
    first = [numbers(result) for result in finished[2]]
    written = {p: p.stat().st_mtime_ns for p in (folder / "cells").iterdir()}
    assert [numbers(result) for result in run(folder, jobs=1)] == first
    assert written == {p: p.stat().st_mtime_ns for p in (folder / "cells").iterdir()}
    next(iter(written)).unlink()
    assert [numbers(result) for result in run(folder, jobs=1)] == first


def test_progress_ends_at_the_whole_and_seeds_differ(finished):
    _, steps, results = finished
    assert len(steps) == len(results) == 4
    assert steps[-1].done == pytest.approx(steps[-1].total)
    assert results[0].found.scores != results[1].found.scores


def test_a_folder_of_another_plan_is_refused_and_left_alone(folder):
    before = sorted(p.name for p in folder.rglob("*"))
    refuses(StoreError, "another plan", run, folder, PLAN.replace("rounds = 2", "rounds = 3"), jobs=1)
    assert before == sorted(p.name for p in folder.rglob("*"))


def test_a_folder_of_an_earlier_format_is_refused_in_one_sentence_and_left_alone(leakscope, tmp_path):
    shutil.copytree(FORMAT1 / "mechanism", tmp_path / "old")
    before = files_of(tmp_path)
    shown = leakscope("run", "old", "--jobs", "1", cwd=tmp_path)
    assert (shown.code, shown.out, shown.err.count("\n")) == (2, "", 1)
    assert "earlier version" in shown.err
    assert files_of(tmp_path) == before


def test_a_result_of_an_earlier_kind_is_run_anew_and_the_sweep_says_so(folder, monkeypatch):
    entry = catalogue.KINDS["inference"]
    monkeypatch.setitem(catalogue.KINDS, "inference", replace(entry, format=entry.format + 1))
    kept = sweep.look(parse(PLAN), folder)
    assert (dict(kept.reuse), kept.stale) == ({}, 4)
    assert "4 not reused" in kept.sentence
    assert len(run(folder, jobs=1)) == 4
    assert sweep.look(parse(PLAN), folder).sentence.startswith("4 of 4 cells kept")
    assert len(store.results(folder)) == 4  # of each the one that would be reused


def test_jobs_below_one_are_refused(tmp_path):
    refuses(ArgumentError, "jobs must be at least 1, got 0", run, tmp_path / "out", jobs=0)


def test_the_check_finds_what_only_the_data_shows():
    for change, words in (
        (('secret = "group"', 'secret = "grup"'), "no private column 'grup'"),
        (("batch = 4", "batch = 200"), "lower the batch size"),
        (("records = 1200", "record = 1200"), "no option 'record'"),
        (("train = 500", "train = 1000"), "you asked for 1000 training records"),
    ):
        refuses(PlanError, words, sweep.check, parse(PLAN.replace(*change)))


def test_a_failed_cell_is_an_error_on_disk_and_is_tried_again(tmp_path):
    diverging = tomli_w.dumps(DOCUMENT | {"cell": [CELLS[0], CELLS[1] | {"training": {"rate": 1e30}}]})
    results = run(tmp_path / "out", diverging, jobs=1)
    assert [bool(result.error) for result in results] == [False, False, True, True]
    assert "lower the rate" in results[2].error
    assert results[2].found is None
    steps = []
    run(tmp_path / "out", diverging, jobs=1, progress=steps.append)
    assert len(steps) == 2


def test_writing_is_all_or_nothing(tmp_path, monkeypatch):
    path = tmp_path / "file.json"
    files.write(path, "old")

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    refuses(StoreError, "No space left on device; free the disk", files.write, path, "new")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["file.json"]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").exists(), reason="processes are told by /proc")
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_says_how_to_go_on_and_leaves_no_worker_behind(tmp_path, sent):
    """By Ctrl-C, which a terminal sends to the workers too, or by a scheduler, which ends the parent alone."""
    mark(tmp_path, "wait", "wait")
    process = start(tmp_path, "--trust", "marking", "--jobs", "2")
    try:
        assert wait(lambda: len(attempts(tmp_path)) == 2)
        (os.killpg if sent == signal.SIGINT else os.kill)(process.pid, sent)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "To go on, run the same command" in errors
    assert "Traceback" not in errors
    assert wait(lambda: not alive(process.pid), seconds=30)


@pytest.mark.parametrize(
    ("cells", "seconds", "jobs", "here"),
    [(6, 1, None, 6), (6, 5, None, 1), (3, 5, None, 3), (13, 1, None, 0), (6, 1, 2, 0)],
)
def test_a_few_short_cells_stay_in_this_process(monkeypatch, cells, seconds, jobs, here):
    clock = [0]

    def run_task(cell, seed, **_):
        clock[0] += seconds
        return "here"

    monkeypatch.setattr(engines, "run_task", run_task)
    monkeypatch.setattr(engines, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    monkeypatch.setattr(engines.Loky, "_in_processes", lambda _, tasks, **options: ["there"] * len(tasks))
    tasks = [(SimpleNamespace(key=lambda seed, i=i: f"{i}-{seed}"), 0) for i in range(cells)]
    done = list(engines.Loky().results(tasks, jobs=jobs, trusted=()))
    assert done == ["here"] * here + ["there"] * (cells - here)
