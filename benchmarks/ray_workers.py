"""Two Ray workers against one on a sweep of 16 cells.

    python benchmarks/ray_workers.py [--quick]

Sixteen property inferences on Adult, alike but for their seeds. Ray is started before, and each worker has
done a cell, so that neither its start nor the import of torch is in the times; loading the records is. A
worker computes with one thread. The ratio is what counts, and the load is printed beside it, because two
workers need two idle cores. (A file named ray.py would be taken for Ray itself.)
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

from leakscope.run import sweep
from leakscope.run.engines import Engine, chosen
from leakscope.run.plan import parse

PLAN = """
seeds = {seeds}
[[cell]]
data = {{name = "adult"}}
game = {{name = "Inference", secret = "sex", batch = 16}}
attack = {{name = "Posterior", head = {{name = "RandomForest", trees = 50}}}}
rounds = {rounds}
trials = {trials}
rehearsals = {trials}
"""
CELLS = 16


def seconds(engine: Engine, text: str, workers: int) -> float:
    """Of a whole sweep into a new folder."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        sweep.run(parse(text), Path(folder), text=text, jobs=workers, engine=engine)
        return time.perf_counter() - start


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--quick", action="store_true", help="2 rounds of 500 trials")
    rounds, trials = (2, 500) if arguments.parse_args().quick else (5, 2_000)
    engine = chosen("ray")
    import ray  # after its settings

    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        seconds(engine, PLAN.format(seeds=[0, 1], rounds=rounds, trials=trials), 2)
        text = PLAN.format(seeds=list(range(CELLS)), rounds=rounds, trials=trials)
        before = os.getloadavg()[0]
        one, two = seconds(engine, text, 1), seconds(engine, text, 2)
    finally:
        ray.shutdown()
    print(f"{CELLS} cells of {rounds} rounds, {trials} rehearsals and trials; load {before:.1f} before")
    print(f"{'one worker':<24}{one:8.1f} s")
    print(f"{'two workers':<24}{two:8.1f} s")
    print(f"{'ratio':<24}{one / two:8.2f}   (wanted: at least 1.7)")


if __name__ == "__main__":
    main()
