"""Ray: the same numbers as one process, records lent once, and the dead cost no more than they were doing."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, chdir
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import tomli_w
from builders import DEFAULTS, KINDS, MARKING, alive, attempts, cell, mark, numbers, refuses, start, wait

from leakscope.core.dataset import Dataset
from leakscope.core.errors import ArgumentError, MissingExtra
from leakscope.core.fingerprints import same
from leakscope.data import tabled
from leakscope.results import store
from leakscope.results.result import Result
from leakscope.run import engines, sweep
from leakscope.run.plan import parse

CLUSTER = """
import sys
from ray.cluster_utils import Cluster

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
print(cluster.address, flush=True)
nodes = [cluster.head_node]
for line in sys.stdin:
    if line == "add\\n":
        nodes.append(cluster.add_node(num_cpus=1))
    else:
        nodes[-1].kill_all_processes(check_alive=False, allow_graceful=False, wait=True)
    print(nodes[-1].node_id, flush=True)
for node in reversed(nodes):
    node.kill_all_processes(check_alive=False, allow_graceful=False, wait=True)
"""


@dataclass(frozen=True)
class Cluster:
    """Nodes on this machine, and the process that keeps them."""

    address: str
    keeper: subprocess.Popen[str]

    def ask(self, words: str) -> str:
        """``add`` a node of one processor, which is named, or ``remove`` it."""
        self.keeper.stdin.write(f"{words}\n")
        self.keeper.stdin.flush()
        return self.keeper.stdout.readline().strip()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> Iterator[Cluster]:
    """A node of two processors that this process is connected to, so that its workers start once."""
    if importlib.util.find_spec("ray") is None:  # the engine imports it, with its own settings
        pytest.skip('Ray is not installed; run: pip install "leakscope[ray]"')
    folder = tmp_path_factory.mktemp("ray")
    (folder / "marking.py").write_text(MARKING)
    loopback = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    keeper = subprocess.Popen(
        [sys.executable, "-c", CLUSTER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=os.environ | loopback,
    )
    try:
        address = keeper.stdout.readline().strip()
        with patch.dict(os.environ), patch.object(sys, "path", [str(folder), *sys.path]):
            connected = engines._connected(engines._imported(address), address, cpus=2)
            with ExitStack() as stack:
                with chdir(folder):  # whose modules the workers will find
                    stack.enter_context(connected)
                yield Cluster(address, keeper)
    finally:
        try:
            keeper.communicate(timeout=60)  # the end of its input is the end of its nodes
        finally:
            keeper.kill()


def saved(folder: Path) -> dict[str, Result[Any]]:
    """What is on disk, by the names of the cells."""
    return {result.cell.id: result for result in store.results(folder / "out")}


def measured(results: dict[str, Result[Any]]) -> dict[str, Any]:
    return {name: numbers(result) for name, result in results.items()}


def serial(folder: Path, text: str) -> dict[str, Result[Any]]:
    """The same cells in this process, without Ray."""
    plan = parse(text, trusted=["marking"])
    results = sweep.run(plan, folder / "serial", text=text, jobs=1, trusted=["marking"])
    return {result.cell.id: result for result in results}


PLAN = tomli_w.dumps({"defaults": DEFAULTS, "cell": [{"id": kind, **KINDS[kind]} for kind in KINDS]})


@pytest.fixture(scope="module")
def alone() -> list[tuple[Dataset, Result[Any]]]:
    """A cell of every kind in this process, one after the other, and the records that each borrowed: to
    write into them is an error, as it is for those that come out of Ray's object store."""
    found = []
    for borrower in parse(PLAN).cell:
        lent = engines.lendable(borrower)
        for array in (lent["x"], lent["y"], *lent["private"].values()):
            array.flags.writeable = False
        records = engines.borrowed(lent)
        assert records.x.data_ptr() == lent["x"].ctypes.data
        finished = engines.run_task(borrower, 0, trusted=(), spare=1, records=records)
        found.append((records, finished.result))
    return found


def test_no_cell_writes_into_the_records_it_borrows(alone):
    for borrower, (records, found) in zip(parse(PLAN).cell, alone, strict=True):
        assert not found.error
        assert records.digest == tabled(borrower.data).digest
        assert same(found.made.records.digest, records.digest)


def test_records_that_cannot_be_loaded_are_left_to_the_cell_to_tell():
    gone = cell("game", data={"name": "npz", "path": "nowhere.npz", "secrets": ["group"]})
    assert engines.lendable(gone) is None
    assert "nowhere.npz" in engines.run_task(gone, 0, trusted=(), spare=1).said


ADDRESSES = ("", "auto", "host", "host:port", "host:99999", ":6379", "ray://", "[::1")


@pytest.mark.parametrize(
    ("engine", "address", "words"),
    [
        ("loky", "127.0.0.1:6379", "--engine ray"),
        ("spark", None, "engine must be loky or ray, got 'spark'"),
        *(("ray", address, "must be HOST:PORT or ray://HOST:PORT") for address in ADDRESSES),
    ],
)
def test_an_engine_or_address_that_is_none_is_refused(engine, address, words):
    refuses(ArgumentError, words, engines.chosen, engine, address=address)


def test_without_ray_the_pip_line_is_given(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with patch.dict(os.environ), pytest.raises(MissingExtra, match=r'pip install "leakscope\[ray\]"'):
        engines.chosen("ray")


RAY = ("--trust", "marking", "--engine", "ray")


def test_where_nobody_answers_nothing_is_written(leakscope, cluster, tmp_path):
    mark(tmp_path, "go on")
    with patch.dict(os.environ):  # its patience is that of this command only
        refused = leakscope("run", "plan.toml", "-o", "out", *RAY, "--address", "127.0.0.1:9", cwd=tmp_path)
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert "no Ray cluster at --address 127.0.0.1:9" in refused.err
    assert not (tmp_path / "out").exists()


def test_serial_and_loky_give_the_same_numbers_cell_for_cell(alone, tmp_path):
    found = sweep.run(parse(PLAN), tmp_path / "out", text=PLAN, jobs=2)
    assert list(map(numbers, found)) == [numbers(result) for _, result in alone]


def test_serial_and_ray_give_the_same_numbers_cell_for_cell(alone, leakscope, cluster, tmp_path):
    (tmp_path / "plan.toml").write_text(PLAN)
    shown = leakscope("run", "plan.toml", "-o", "out", "--engine", "ray", "--jobs", "2", cwd=tmp_path)
    assert shown.code == 0, shown.err
    assert shown.err.count(": ") >= len(KINDS)  # a line about every cell
    found = saved(tmp_path)
    assert [numbers(found[kind]) for kind in KINDS] == [numbers(result) for _, result in alone]


def test_a_node_that_dies_costs_the_cells_it_was_running_and_no_other(cluster, tmp_path, monkeypatch):
    doomed = cluster.ask("add")
    text = mark(tmp_path, *[f"doomed: {doomed}"] * 5)
    monkeypatch.chdir(tmp_path)  # where a trusted module is looked for

    def there() -> list[int]:
        return [attempt.cell for attempt in attempts(tmp_path) if attempt.node == doomed]

    def remove() -> None:
        wait(lambda: len(there()) == 2)
        cluster.ask("remove")

    remover = threading.Thread(target=remove)
    remover.start()
    plan = parse(text, trusted=["marking"])
    sweep.run(plan, tmp_path / "out", text=text, trusted=["marking"], engine=engines.Ray())
    remover.join()
    tries = Counter(attempt.cell for attempt in attempts(tmp_path))
    again = [number for number, times in tries.items() if times > 1]
    assert len(there()) == 2
    assert len(again) == 1  # the one it was running; the one it had finished is kept
    assert set(again) < set(there())
    assert tries.total() == 6
    assert measured(saved(tmp_path)) == measured(serial(tmp_path, text))


def test_a_cell_that_no_worker_survives_fails_alone_and_is_tried_again(leakscope, cluster, tmp_path):
    text = mark(tmp_path, "go on", "die", "go on")
    command = ("run", "plan.toml", "-o", "out", "--trust", "marking")
    shown = leakscope(*command, "--engine", "ray", "--jobs", "2", cwd=tmp_path)
    assert shown.code == 2
    assert "1 of 3 cells failed" in shown.err
    assert Counter(attempt.cell for attempt in attempts(tmp_path)) == {0: 1, 1: 3, 2: 1}
    assert "died in each of 3 attempts" in saved(tmp_path)["c1"].error
    again = leakscope(*command, "--jobs", "1")
    assert again.code == 0, again.err
    assert "2 of 3 cells kept from before" in again.err
    assert measured(saved(tmp_path)) == measured(serial(tmp_path, text))


@pytest.mark.slow
@pytest.mark.parametrize(("sent", "own"), [(signal.SIGINT, False), (signal.SIGTERM, True)])
def test_interrupted_it_keeps_what_is_finished_and_leaves_nothing_running(cluster, tmp_path, sent, own):
    """By either signal; on a Ray of its own, which goes away, and on a cluster, where its cells do."""
    mark(tmp_path, "go on", "wait", "wait")
    where = ("--jobs", "1") if own else ("--jobs", "1", "--address", cluster.address)
    process = start(tmp_path, *RAY, *where)
    try:
        assert wait(lambda: len(attempts(tmp_path)) == 2 and len(saved(tmp_path)) == 1)
        process.send_signal(sent)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "To go on, run the same command" in errors
    assert "Traceback" not in errors
    assert [result.found is not None for result in saved(tmp_path).values()] == [True]
    assert wait(lambda: not alive(process.pid), seconds=30)
    workers = {Path(f"/proc/{attempt.pid}") for attempt in attempts(tmp_path)}
    assert wait(lambda: not any(worker.exists() for worker in workers), seconds=30)
