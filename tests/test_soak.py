"""A sweep that is killed again and again ends with the numbers of one that is left alone."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest
import tomli_w
from builders import DEFAULTS, KINDS, alive, numbers, start, wait

from leakscope.results import store
from leakscope.run import sweep
from leakscope.run.plan import parse

FOREST = {"name": "RandomForest", "trees": 10}
LONGER = {"attack": {"name": "Posterior", "head": FOREST}, "trials": 60, "rehearsals": 80}
GAMES = [KINDS["share"]["game"], KINDS["game"]["game"]]
DEFENSES = (
    {"name": "Sign"},
    {"name": "Pruning", "rate": 0.9},
    {"name": "Noise", "std": 0.1},
    {"name": "Sign"},
)
CELLS = [{"id": f"cell {i}", "game": GAMES[i % 2], "defense": one} for i, one in enumerate(DEFENSES)]


def done(folder: Path) -> int:
    """How many results there are, each of them whole."""
    return sum(result.found is not None for result in store.results(folder))


def killed(folder: Path, rng: random.Random, *, jobs: int, working: bool) -> tuple[int, bool]:
    """Start the sweep and kill its parent: at a random moment after its next result if it is to be found
    ``working``, else at one of its first seconds, or with a result that comes before. The results it
    added, and whether all its workers went away with it."""
    before, latest = done(folder / "out"), 200.0 if working else rng.uniform(0.5, 8)
    cells = folder / "out" / "cells"
    process = start(folder, "--jobs", str(jobs))
    wait(lambda: len(list(cells.glob("[!.]*.json"))) > before, seconds=latest)
    time.sleep(rng.uniform(0, 0.2))
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL, "it ended before it was killed"
    gone = wait(lambda: not alive(process.pid), seconds=30)
    for pid in alive(process.pid):
        os.kill(pid, signal.SIGKILL)
    return done(folder / "out") - before, gone


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").exists(), reason="processes are told by /proc")
@pytest.mark.parametrize(("kills", "seeds"), [(3, 3), pytest.param(20, 10, marks=pytest.mark.soak)])
def test_killed_again_and_again_a_sweep_ends_with_the_same_results_and_leaves_no_process(
    tmp_path, kills, seeds
):
    """With one worker and with two, after a result and before any; twenty times where there is time."""
    text = tomli_w.dumps({"seeds": list(range(seeds)), "defaults": DEFAULTS | LONGER, "cell": CELLS})
    expected = list(map(numbers, sweep.run(parse(text), tmp_path / "calm", text=text, jobs=1)))
    (tmp_path / "plan.toml").write_text(text)
    rng = random.Random(0)
    told = [killed(tmp_path, rng, jobs=1 + i % 2, working=i % 4 < 2) for i in range(kills)]
    print(f"{kills} kills, results added before each: {[added for added, _ in told]}")
    assert all(gone for _, gone in told)
    assert kills // 2 <= sum(added for added, _ in told) < len(expected)
    assert list(map(numbers, sweep.run(parse(text), tmp_path / "out", text=text, jobs=1))) == expected
    names = {path.name for path in (tmp_path / "out" / "cells").iterdir() if path.name[0] != "."}
    assert names == {path.name for path in (tmp_path / "calm" / "cells").iterdir()}
    for name in names:
        one, other = (store.load(tmp_path / run, name.removesuffix(".json")) for run in ("out", "calm"))
        assert numbers(one) == numbers(other)
