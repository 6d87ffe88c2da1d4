"""A sweep that is killed again and again ends with the numbers of one that is left alone."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from leakscope import store, sweep
from leakscope.plan import parse

KILLS = 20
PLAN = """
seeds = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
[defaults]
data = {name = "synthetic", records = 1200, shift = 1.0}
attack = {name = "Posterior", head = {name = "RandomForest", trees = 10}}
rounds = 2
trials = 60
rehearsals = 80
train = 500
public = 300
"""
for i, defense in enumerate(('"Sign"', '"Pruning", rate = 0.9', '"Noise", std = 0.1', '"Sign"')):
    game = '"Inference", secret = "group"' if i % 2 else '"Distribution", column = "group", bins = 3'
    PLAN += f"""
[[cell]]
id = "cell {i}"
game = {{name = {game}, batch = 8}}
defense = {{name = {defense}}}
"""


def numbers(results) -> list:
    """Everything measured, without how long it took."""
    return [{key: value for key, value in result.items() if key != "seconds"} for result in results]


def done(folder: Path) -> int:
    """How many results there are, each of them whole."""
    return sum("estimates" in result for result in store.results(folder))


def alive(group: int) -> list[int]:
    """The processes of a group that still run; those that are dead and not yet buried do not count."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, own = stat.read_text().rpartition(")")[2].split()[:3]
        except (OSError, ValueError):
            continue
        if int(own) == group and state != "Z":
            found.append(int(stat.parent.name))
    return found


def killed(folder: Path, rng: random.Random, *, jobs: int, working: bool) -> tuple[int, bool]:
    """Start the sweep and kill its parent: at a random moment after its next result if it is to be found
    ``working``, else at one of its first seconds, or with a result that comes before. The results it
    added, and whether all its workers went away with it."""
    command = [sys.executable, "-m", "leakscope.cli", "run", str(folder / "plan.toml")]
    before, latest = done(folder / "out"), 200.0 if working else rng.uniform(0.5, 8)
    process = subprocess.Popen(
        [*command, "-o", str(folder / "out"), "--jobs", str(jobs)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    end = time.monotonic() + latest
    while time.monotonic() < end and len(list((folder / "out" / "cells").glob("[!.]*.json"))) == before:
        time.sleep(0.01)
    time.sleep(rng.uniform(0, 0.2))
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, "it ended before it was killed"
    end = time.monotonic() + 30
    while (left := alive(process.pid)) and time.monotonic() < end:
        time.sleep(0.1)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    return done(folder / "out") - before, not left


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").exists(), reason="processes are told by /proc")
def test_killed_twenty_times_a_sweep_ends_with_the_same_results_and_leaves_no_process(tmp_path):
    expected = numbers(sweep.run(parse(PLAN), tmp_path / "calm", text=PLAN, jobs=1))
    (tmp_path / "plan.toml").write_text(PLAN)
    rng = random.Random(0)
    told = [killed(tmp_path, rng, jobs=1 + i % 2, working=i % 4 < 2) for i in range(KILLS)]
    print(f"{KILLS} kills, results added before each: {[added for added, _ in told]}")
    assert all(gone for _, gone in told)
    assert KILLS // 2 <= sum(added for added, _ in told) < len(expected)
    assert numbers(sweep.run(parse(PLAN), tmp_path / "out", text=PLAN, jobs=1)) == expected
    names = {path.name for path in (tmp_path / "out" / "cells").iterdir() if path.name[0] != "."}
    assert names == {path.name for path in (tmp_path / "calm" / "cells").iterdir()}
    for name in names:
        one, other = (json.loads((tmp_path / run / "cells" / name).read_text()) for run in ("out", "calm"))
        assert numbers([one | {store.SIGNED: ""}]) == numbers([other | {store.SIGNED: ""}])
