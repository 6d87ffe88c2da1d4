"""Clients of a recording are looked at apart: by one process, by several, or after an interruption, with the
same numbers to the last digit."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tomli_w
import torch
from builders import Named, numbers, refuses

import leakscope as ls
from leakscope.audits.membership.kind import KIND
from leakscope.core.errors import ArgumentError, StoreError
from leakscope.core.rng import seeded
from leakscope.data import synthetic
from leakscope.models import MLP, build
from leakscope.results import store
from leakscope.run import engines, experiment, sweep
from leakscope.run.plan import from_document
from leakscope.training import Local, federate
from leakscope.training.recording import Recorder, checks

NAMES = ("a", "b", "c")
ATTACKS = [{"name": "FedMIA"}, {"name": "SpanDistance"}]


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A recording and its candidates as arrays, in which clients are named."""
    folder = tmp_path_factory.mktemp("clients")
    data = synthetic(records=110, inputs=40, seed=3)
    members = [data.take(torch.arange(10 * i, 10 * i + 10)) for i in range(len(NAMES))]
    model = build(MLP((32,)), data, seeded(0, "model"))
    recorder = Named(Recorder(folder / "run", model, model_name="mlp"), NAMES)
    local = Local(0.1, batch=10)
    federate(model, members, rounds=2, rng=seeded(0, "training"), local=local, recorder=recorder)
    client = np.array([*np.repeat(NAMES, 10), *["nobody"] * 80])
    np.savez(folder / "candidates.npz", x=data.x.numpy(), y=data.y.numpy(), client=client)
    return folder


def plan(place: Path, **game):
    game = {"name": "RecordingAudit", "recording": str(place / "run"), "attacks": ATTACKS} | game
    data = {"name": "npz", "path": str(place / "candidates.npz"), "y": "y", "secrets": ["client"]}
    cell = {"id": "m", "data": data, "model": {"name": "MLP", "hidden": [32]}, "trials": 60, "game": game}
    document = {"name": "clients", "seeds": [0], "cell": [cell]}
    return document, from_document(document)


def run(place: Path, folder: Path, *, jobs: int = 1, whole: bool = False, **game):
    document, made = plan(place, **game)
    tried = sweep.check(made)
    steps: list[sweep.SweepStep] = []
    results = sweep.run(
        made,
        folder,
        text=tomli_w.dumps(document),
        jobs=jobs,
        tried=None if whole else tried,
        progress=steps.append,
    )
    return results, steps


@pytest.fixture(scope="module")
def whole(place, tmp_path_factory):
    """Cells that are run as one."""
    folder = tmp_path_factory.mktemp("whole")
    results, steps = run(place, folder, whole=True, records=True)
    assert not any(step.partly for step in steps)
    return results, files(folder)


def files(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted((folder / store.FILES).rglob("*.csv"))]


def test_clients_by_themselves_give_what_all_at_once_give(place, whole, tmp_path):
    results, steps = run(place, tmp_path, records=True)
    assert list(map(numbers, results)) == list(map(numbers, whole[0]))
    assert files(tmp_path) == whole[1]
    assert [step.partly for step in steps].count(True) == len(NAMES) - 1
    assert steps[-1].done == pytest.approx(steps[-1].total)
    assert not (tmp_path / store.PARTS).exists()
    assert all(result.made.seconds > 0 for result in results)


def test_two_processes_give_what_one_gives(place, whole, tmp_path):
    results, _ = run(place, tmp_path, jobs=2, records=True)
    assert list(map(numbers, results)) == list(map(numbers, whole[0]))
    assert files(tmp_path) == whole[1]


@pytest.mark.slow
def test_the_command_on_ray_gives_what_one_process_gives(place, tmp_path):
    """In a process of its own, which Ray leaves its files open in."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed")
    given = ["--recording", str(place / "run"), "--client", "client", "--label", "y", "--model", "MLP"]
    words = [sys.executable, "-m", "leakscope.cli", "audit", str(place / "candidates.npz"), *given]
    words += ["--trials", "60", "--jobs"]
    for folder, more in (("ray", ["2", "--engine", "ray"]), ("one", ["1"])):
        output = ["--output", str(tmp_path / folder)]
        subprocess.run([*words, *more, *output], check=True, capture_output=True)
    ray, one = (list(map(numbers, store.results(tmp_path / folder))) for folder in ("ray", "one"))
    assert ray == one


def test_sums_whose_clients_are_told_apart_are_looked_at_apart(place, tmp_path, monkeypatch):
    """Only where some are away: of sums in which everyone is, all clients are one game."""
    _, made = plan(place, seen="sum", attacks=[{"name": "Whitened"}])
    assert not sweep.check(made).divisions
    away = [(0, "a"), (1, "b")]
    load = checks.check_recording
    monkeypatch.setattr(
        "leakscope.audits.membership.recorded.check_recording",
        lambda recording, **options: load(recording.choose(without=away), **options),
    )
    game = {"seen": "sum", "attacks": [{"name": "InOut"}]}
    (first, *_), _ = run(place, tmp_path / "whole", whole=True, **game)
    results, steps = run(place, tmp_path / "parts", **game)
    assert results[0].found == first.found
    assert first.found.took_part == (1, 1, 2)
    assert any(step.partly for step in steps)


def test_an_interrupted_audit_goes_on_with_the_clients_that_are_left(place, whole, tmp_path, monkeypatch):
    class Enough(Exception):
        pass

    document, made = plan(place, records=True)
    text, tried = tomli_w.dumps(document), sweep.check(made)

    def stop(step: sweep.SweepStep) -> None:
        raise Enough

    with pytest.raises(Enough):
        sweep.run(made, tmp_path, text=text, jobs=1, tried=tried, progress=stop)
    kept = list((tmp_path / store.PARTS).rglob("*.json"))
    assert len(kept) == 1
    assert not kept[0].stat().st_mode & 0o077  # it lists records
    steps = []
    results = sweep.run(made, tmp_path, text=text, jobs=1, tried=sweep.check(made), progress=steps.append)
    assert [result.found for result in results] == [result.found for result in whole[0]]
    assert len(steps) == len(NAMES) - 1
    assert not (tmp_path / store.PARTS).exists()


def test_parts_of_other_records_or_not_as_they_were_written_are_done_again(tmp_path):
    part = store.Part("{}", "mark", 1.0)
    store.save_part(tmp_path, "key", "client/../a", part)
    assert store.load_parts(tmp_path, "key", "mark") == {"client/../a": part}
    assert store.load_parts(tmp_path, "key", "another") == {}
    (path,) = (tmp_path / store.PARTS).rglob("*.json")
    path.write_text(path.read_text().replace('"{}"', '"{ }"'))
    assert store.load_parts(tmp_path, "key", "mark") == {}
    path.write_text("[]")
    assert store.load_parts(tmp_path, "key", "mark") == {}


def test_a_link_in_the_place_of_parts_lets_nothing_out_and_deletes_nothing(tmp_path):
    (tmp_path / "outside" / "key").mkdir(parents=True)
    (tmp_path / "outside" / "key" / "mine.json").write_text("{}")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / store.PARTS).symlink_to(tmp_path / "outside")
    for act, more in (
        (store.save_part, ("a", store.Part("{}", "mark", 1.0))),
        (store.load_parts, ("mark",)),
        (store.drop_parts, ()),
    ):
        refuses(StoreError, "link", act, tmp_path / "out", "key", *more)
    assert [path.name for path in (tmp_path / "outside").rglob("*.json")] == ["mine.json"]


def test_a_division_is_marked_by_recording_records_and_code(place, monkeypatch):
    _, made = plan(place)
    cell = made.cell[0]
    world = experiment.enter(cell, 0)
    mark = KIND.divide(world).mark
    assert KIND.divide(world).mark == mark
    fewer = world.records.take(torch.arange(len(world.records) - 1))
    assert KIND.divide(replace(world, records=fewer)).mark != mark
    monkeypatch.setattr("leakscope.audits.membership.recorded.revision", lambda: "other")
    assert KIND.divide(world).mark != mark


def test_the_recording_is_read_through_once_for_all_clients_and_seeds(place, tmp_path, monkeypatch):
    calls, look = [], checks.check_recording

    def count(recording, **options):
        calls.append(recording)
        return look(recording, **options)

    monkeypatch.setattr("leakscope.audits.membership.recorded.check_recording", count)
    run(place, tmp_path)
    assert len(calls) == 1


def test_a_client_that_fails_fails_the_cell_and_the_others_are_kept(place, tmp_path, monkeypatch):
    judge = engines.run_task

    def fail(cell, seed, *, names=(), **options):
        if names == ("b",):
            return engines._fail(cell, seed, "it broke")
        return judge(cell, seed, names=names, **options)

    monkeypatch.setattr(engines, "run_task", fail)
    results, steps = run(place, tmp_path)
    assert [result.error for result in results] == ["it broke"]
    assert len(list((tmp_path / store.PARTS).rglob("*.json"))) == len(NAMES) - 1
    monkeypatch.undo()
    results, steps = run(place, tmp_path)
    assert [result.error for result in results] == [""]
    assert len(steps) == 1  # one client was left


def test_many_clients_are_cut_into_blocks(place, tmp_path):
    made = plan(place)[1].cell[0]
    for n, tasks, size in ((3, 3, 1), (64, 64, 1), (100, 50, 2), (5_000, 313, 16)):
        names = tuple(f"c{i}" for i in range(n))
        division = sweep.Divided(sweep.Division(names, None, "m"), tmp_path, "k")
        cut = sweep._cut(made, 0, division)
        assert (len(cut), len(cut[0].names)) == (tasks, size)
        assert [name for task in cut for name in task.names] == list(names)


def test_workers_that_are_none_are_refused(place):
    given = {"client": "client", "label": "y", "model": "MLP", "quiet": True, "trials": 60}
    run, file = place / "run", place / "candidates.npz"
    refuses(ArgumentError, "loky or ray", ls.audit_recording, run, file, engine="dask", **given)
    refuses(ArgumentError, "--engine ray", ls.audit_recording, run, file, address="h:1", **given)


def test_engines_are_for_recordings(leakscope):
    told = leakscope("audit", "adult", "--engine", "ray")
    assert told.code == 2
    assert "--engine is for the audit of a recording" in told.err
