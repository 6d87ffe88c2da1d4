"""Rounds of FedAvg: Flower's simulation against `leakscope.training.federate`.

    python benchmarks/flower.py [--quick]

The digits of examples/flower in 10 shards, 5 local steps of 16 records, plain SGD. Both draw the same
batches and must end at the same parameters. Flower's rounds count from the second on, when Ray and its
workers are there, and ours after a round for warming up; what comes before is given apart. A client of
Flower's loads its shard with every message, as each may reach another worker.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

EXAMPLE = Path(__file__).parent.parent / "examples" / "flower"
CLIENTS, RATE, STEPS, BATCH = 10, 0.1, 5, 16
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "PYTHONPATH": str(EXAMPLE),  # Ray's workers import the example too
    "OMP_NUM_THREADS": "1",
}
os.environ.update(QUIET)
sys.path.insert(0, str(EXAMPLE))

from digits_app import task  # noqa: E402
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict  # noqa: E402
from flwr.clientapp import ClientApp  # noqa: E402
from flwr.serverapp import Grid, ServerApp  # noqa: E402
from flwr.serverapp.strategy import FedAvg  # noqa: E402
from flwr.simulation import run_simulation  # noqa: E402

from leakscope import seeded  # noqa: E402
from leakscope.training import Local, federate  # noqa: E402


def rows(partition: int, records: int, r: int) -> Tensor:
    """What a client trains on in round ``r``, 1 being the first."""
    return task.batches(records, partition, r, batch=BATCH, steps=STEPS)


def ours(rounds: int) -> tuple[float, float, Mapping[str, Tensor]]:
    """Seconds per round, seconds before, and the last parameters."""
    start = time.perf_counter()
    shards = [task.shard(i, CLIENTS) for i in range(CLIENTS)]
    local = Local(rate=RATE, batch=BATCH, steps=STEPS, momentum=0.0, decay=0.0)

    def history(rounds: int) -> tuple[Mapping[str, Tensor], ...]:
        return federate(
            task.net(),
            shards,
            rounds=rounds,
            rng=seeded(0),
            local=local,
            weighted=False,
            order=lambda i, r: list(rows(i, len(shards[i]), r + 1)),
        )

    history(1)
    warm = time.perf_counter()
    last = history(rounds)[-1]
    return (time.perf_counter() - warm) / rounds, warm - start, last


class Timed(FedAvg):
    """FedAvg that notes when each round ends."""

    def __init__(self, ticks: list[float]) -> None:
        super().__init__(fraction_evaluate=0.0, min_train_nodes=CLIENTS, min_available_nodes=CLIENTS)
        self.ticks = ticks

    def aggregate_train(self, *arguments: Any) -> Any:
        found = super().aggregate_train(*arguments)
        self.ticks.append(time.perf_counter())
        return found


def client() -> ClientApp:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        partition, r = int(context.node_config["partition-id"]), message.content["config"]["server-round"]
        data, model = task.shard(partition, CLIENTS), task.net()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        task.train(model, data, rows(partition, len(data), r), rate=RATE)
        metrics = MetricRecord({"num-examples": STEPS * BATCH})
        content = {"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}
        return Message(RecordDict(content), reply_to=message)

    return app


def flowers(rounds: int) -> tuple[float, float, Mapping[str, Tensor]]:
    """The same of Flower, whose first round ends what comes before."""
    ticks: list[float] = []
    results: list[Mapping[str, Tensor]] = []
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        result = Timed(ticks).start(grid, ArrayRecord(task.net().state_dict()), num_rounds=rounds)
        results.append(dict(result.arrays.to_torch_state_dict()))

    start = time.perf_counter()
    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server, client(), num_supernodes=CLIENTS, backend_config=resources)
    return (ticks[-1] - ticks[0]) / (rounds - 1), ticks[0] - start, results[0]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--quick", action="store_true", help="3 rounds in place of 10")
    rounds = 3 if arguments.parse_args().quick else 10
    torch.set_num_threads(1)
    slow, before, theirs = flowers(rounds)
    fast, warming, params = ours(rounds)
    torch.testing.assert_close(theirs, dict(params))
    print(f"{CLIENTS} clients, {rounds} rounds, {STEPS} steps of {BATCH}; both end at the same parameters")
    print(f"{'':<12}{'before':>12}{'a round':>12}")
    print(f"{'Flower':<12}{before:>10.2f} s{slow:>10.4f} s")
    print(f"{'leakscope':<12}{warming:>10.2f} s{fast:>10.4f} s")
    print(f"{'ratio':<12}{before / warming:>10.1f}  {slow / fast:>10.1f}")


if __name__ == "__main__":
    main()
