"""Ray: the same numbers as one process, records lent once, and the dead cost no more than they were doing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
import tomli_w

from leakscope import engines, experiment, store, sweep
from leakscope.errors import ArgumentError, MissingExtra
from leakscope.plan import from_document, parse

KINDS = {
    "game": {"game": {"name": "Inference", "secret": "group", "batch": 4}},
    "share": {
        "game": {"name": "Distribution", "column": "group", "bins": 3, "batch": 6},
        "attack": {"name": "Posterior", "head": {"name": "RandomForest", "trees": 5}, "ordinal": True},
    },
    "canary": {
        "data": {"name": "adult"},
        "game": {"name": "AttributeAudit", "attribute": "sex", "delta": 1e-5, "steps": 5},
        "defense": {"name": "DPSGD", "clip": 1.0, "noise": 1.0},
    },
    "members": {
        "game": {
            "name": "MembershipAudit", "clients": 2, "size": 60, "local": {"name": "Local", "rate": 0.1},
            "attacks": [{"name": "Cosine"}],
        },
    },
    "layers": {
        "game": {
            "name": "LayerAudit", "secrets": ["group"], "batch": 4, "splits": 5, "sensitive": 2,
            "family": {"name": "Family", "folds": 2, "members": [{"name": "Posterior", "head": {"name": "Logistic"}}]},
        },
        "model": {"name": "MLP", "hidden": [4]}, "rounds": 1,
    },
    "guard": {
        "game": {
            "name": "GuardAudit",
            "guard": {
                "name": "Inf2Guard", "secret": "attribute", "column": "group", "epochs": 1,
                "encoder": {"name": "TableEncoder", "widths": [8]},
            },
            "baselines": False,
        },
        "trials": 200, "rehearsals": 200, "train": 200, "public": 200,
    },
}  # fmt: skip
DEFAULTS = {
    "data": {"name": "synthetic", "records": 1200, "shift": 1.0},
    "attack": {"name": "Posterior", "head": {"name": "RandomForest", "trees": 5}},
    "rounds": 2, "trials": 40, "rehearsals": 40, "train": 500, "public": 300,
}  # fmt: skip

MARKING = """
import os, sys, time, uuid
from pathlib import Path
from torch import nn

def net(inputs, classes, cell, fatal=False):
    ray = sys.modules.get("ray")
    if ray and ray.is_initialized():  # with a worker of Ray
        node = ray.get_runtime_context().get_node_id()
        (Path(__file__).parent / "attempts" / f"{cell}.{node}.{uuid.uuid4()}").touch()
        if fatal:
            os._exit(1)
        time.sleep(2)
    return nn.Linear(inputs, classes)
"""
CLUSTER = """
import sys
from ray.cluster_utils import Cluster

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
second = cluster.add_node(num_cpus=1)
print(cluster.address, second.node_id, flush=True)
for line in sys.stdin:
    second.kill_all_processes(check_alive=False, allow_graceful=False, wait=True)
    print("gone", flush=True)
for node in (second, cluster.head_node):
    node.kill_all_processes(check_alive=False, allow_graceful=False, wait=True)
"""


def numbers(found):
    """Everything measured, without how long it took."""
    if isinstance(found, dict):
        return {key: numbers(value) for key, value in found.items() if key != "seconds"}
    return [numbers(value) for value in found] if isinstance(found, list | tuple) else found


@dataclass(frozen=True)
class Pair:
    """Two nodes on this machine, a processor each, and the process that keeps them."""

    address: str
    second: str
    keeper: subprocess.Popen[str]

    def remove_second(self) -> None:
        self.keeper.stdin.write("remove\n")
        self.keeper.stdin.flush()
        assert self.keeper.stdout.readline() == "gone\n"


@contextmanager
def pair() -> Iterator[Pair]:
    settings = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}  # on loopback
    keeper = subprocess.Popen(
        [sys.executable, "-c", CLUSTER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=os.environ | settings,
    )
    try:
        address, second = keeper.stdout.readline().split()
        yield Pair(address, second, keeper)
    finally:
        try:
            keeper.communicate(timeout=60)  # the end of its input is the end of its nodes
        finally:
            keeper.kill()


@pytest.fixture
def marked(tmp_path) -> str:
    """Eight cells whose model leaves a file for every attempt of a worker, and takes its time."""
    (tmp_path / "marking.py").write_text(MARKING)
    (tmp_path / "attempts").mkdir()
    cells = "".join(
        f'[[cell]]\nid = "c{i}"\ngame = {{name = "Inference", secret = "group", batch = {i + 4}}}\n'
        f'model = {{name = "marking.net", cell = {i}}}\n'
        for i in range(8)
    )
    text = (
        '[defaults]\ndata = {name = "synthetic", records = 1200, shift = 1.0}\nrounds = 1\ntrials = 40\n'
        'rehearsals = 40\ntrain = 500\npublic = 300\nattack = {name = "Posterior", head = {name = '
        f'"RandomForest", trees = 5}}}}\n{cells}'
    )
    (tmp_path / "plan.toml").write_text(text)
    return text


def attempts(folder: Path) -> list[tuple[int, str]]:
    """Cell and node of every attempt."""
    parts = [path.name.split(".") for path in (folder / "attempts").iterdir()]
    return [(int(cell), node) for cell, node, _ in parts]


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "leakscope.cli", "run", "plan.toml", "-o", "out", *arguments]


def leakscope(folder: Path, *arguments: str, timeout: int = 600) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments), capture_output=True, text=True, cwd=folder, timeout=timeout, check=False
    )


def saved(folder: Path) -> dict[str, store.Result]:
    """What is on disk, by the names of the cells."""
    return {result["cell"]["id"]: result for result in store.results(folder / "out")}


def serial(folder: Path, text: str, monkeypatch) -> dict[str, store.Result]:
    """The same cells in this process, without Ray."""
    monkeypatch.syspath_prepend(str(folder))
    plan = parse(text, trusted=["marking"])
    results = sweep.run(plan, folder / "serial", text=text, jobs=1, trusted=["marking"])
    return {result["cell"]["id"]: result for result in results}


def members(session: int) -> list[int]:
    """The processes of a session that are still running."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, _, owner = path.read_text().rpartition(")")[2].split()[:4]
            if int(owner) == session and state != "Z":
                found.append(int(path.parent.name))
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_no_cell_writes_into_the_records_it_borrows(kind):
    cell = from_document({"defaults": DEFAULTS, "cell": [KINDS[kind]]}).cell[0]
    lent = engines.lendable(cell)
    for array in (lent["x"], lent["y"], *lent["private"].values()):
        array.flags.writeable = False  # as it comes out of the object store
    records = engines.borrowed(lent)
    assert records.x.data_ptr() == lent["x"].ctypes.data
    before = records.digest
    found = engines.measured(cell, 0, trusted=(), spare=1, records=records)
    assert "error" not in found
    assert found["data"]["digest"] == records.digest == before == experiment.dataset(cell.data).digest


def test_records_that_cannot_be_loaded_are_left_to_the_cell_to_tell():
    cell = from_document({"defaults": DEFAULTS, "cell": [KINDS["game"]]}).cell[0]
    gone = cell.model_copy(update={"data": {"name": "npz", "path": "nowhere.npz", "secrets": ["group"]}})
    assert engines.lendable(gone) is None
    assert "nowhere.npz" in engines.measured(gone, 0, trusted=(), spare=1)["error"]


def test_an_address_without_ray_is_refused():
    with pytest.raises(ArgumentError, match="--engine ray"):
        engines.chosen("loky", address="127.0.0.1:6379")


@pytest.mark.parametrize(
    "address", ["", "auto", "host", "host:port", "host:99999", ":6379", "ray://", "[::1"]
)
def test_an_address_that_is_none_is_refused(address):
    with pytest.raises(ArgumentError, match="must be HOST:PORT or ray://HOST:PORT"):
        engines.chosen("ray", address=address)


def test_an_engine_of_another_name_is_refused():
    with pytest.raises(ArgumentError, match="engine must be loky or ray, got 'spark'"):
        engines.chosen("spark")


def test_without_ray_the_pip_line_is_given(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtra, match=r'pip install "leakscope\[ray\]"'):
        engines.chosen("ray")


def test_where_nobody_answers_nothing_is_written(tmp_path, marked):
    pytest.importorskip("ray")
    refused = leakscope(
        tmp_path, "--trust", "marking", "--engine", "ray", "--address", "127.0.0.1:9", timeout=60
    )
    assert refused.returncode == 2
    assert refused.stderr.count("\n") == 1
    assert "no Ray cluster at --address 127.0.0.1:9" in refused.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_serial_loky_and_ray_give_the_same_numbers_cell_for_cell(tmp_path):
    pytest.importorskip("ray")
    text = tomli_w.dumps({"defaults": DEFAULTS, "cell": [{"id": kind, **KINDS[kind]} for kind in KINDS]})
    (tmp_path / "plan.toml").write_text(text)
    alone = sweep.run(parse(text), tmp_path / "serial", text=text, jobs=1)
    loky = sweep.run(parse(text), tmp_path / "loky", text=text, jobs=2)
    shown = leakscope(tmp_path, "--engine", "ray", "--jobs", "2")
    assert shown.returncode == 0, shown.stderr
    assert shown.stderr.count(": ") >= len(KINDS)  # a line about every cell
    ray = [saved(tmp_path)[kind] for kind in KINDS]
    assert numbers(alone) == numbers(loky) == numbers(ray)


@pytest.mark.slow
def test_a_node_that_dies_costs_the_cells_it_was_running_and_no_other(tmp_path, marked, monkeypatch):
    pytest.importorskip("ray")
    with pair() as nodes:
        process = subprocess.Popen(
            command("--trust", "marking", "--engine", "ray", "--address", nodes.address),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
        )
        try:
            for _ in range(1_200):  # until the second node is at its second cell
                there = [cell for cell, node in attempts(tmp_path) if node == nodes.second]
                if len(there) >= 2:
                    break
                time.sleep(0.1)
            nodes.remove_second()
            _, errors = process.communicate(timeout=120)
        finally:
            process.kill()
    assert process.returncode == 0, errors
    tries = attempts(tmp_path)
    there = [cell for cell, node in tries if node == nodes.second]
    again = [cell for cell, times in Counter(cell for cell, _ in tries).items() if times > 1]
    assert len(there) == 2
    assert len(again) == 1  # the one it was running; the one it had finished is kept
    assert set(again) < set(there)
    assert len(tries) == 9
    expected = serial(tmp_path, marked, monkeypatch)
    assert numbers(saved(tmp_path)) == numbers(expected)


@pytest.mark.slow
def test_a_cell_that_no_worker_survives_fails_alone_and_is_tried_again(tmp_path, marked, monkeypatch):
    pytest.importorskip("ray")
    text = marked.replace("cell = 5}", "cell = 5, fatal = true}")
    (tmp_path / "plan.toml").write_text(text)
    shown = leakscope(tmp_path, "--trust", "marking", "--engine", "ray", "--jobs", "2")
    assert shown.returncode == 2
    assert "1 of 8 cells failed" in shown.stderr
    assert Counter(cell for cell, _ in attempts(tmp_path)) == {i: 3 if i == 5 else 1 for i in range(8)}
    assert "died in each of 3 attempts" in saved(tmp_path)["c5"]["error"]
    again = leakscope(tmp_path, "--trust", "marking", "--jobs", "1")
    assert again.returncode == 0, again.stderr
    assert "7 of 8 cells kept from before" in again.stderr
    expected = serial(tmp_path, text, monkeypatch)
    assert numbers(saved(tmp_path)) == numbers(expected)


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_keeps_what_is_finished_and_leaves_no_ray_behind(tmp_path, marked, sent):
    pytest.importorskip("ray")
    process = subprocess.Popen(
        command("--trust", "marking", "--engine", "ray", "--jobs", "1"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        for _ in range(1_200):  # until one is finished and another is running
            if len(attempts(tmp_path)) >= 2 and len(saved(tmp_path)) >= 1:
                break
            time.sleep(0.1)
        process.send_signal(sent)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "the same command goes on" in errors
    assert "Traceback" not in errors
    assert 1 <= len(saved(tmp_path)) < 8
    assert all("estimates" in result for result in saved(tmp_path).values())
    for _ in range(100):
        if not members(process.pid):
            break
        time.sleep(0.1)
    assert not members(process.pid)
