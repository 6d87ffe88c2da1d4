"""Rounds of FedAvg: Flower's simulation against `leakscope.training.federate`.

    python benchmarks/flower.py [--quick] [--width 32]

The digits of examples/flower in 100 shards, 5 local steps of 16 records drawn from the shard, plain SGD. Both
draw the same batches and must end at the same parameters: in float64, as in float32 the order in which
uploads are added is seen at 1e-6 after some rounds. Flower's rounds count from the third on, when Ray
and its workers are there and have met most shards, and ours after a round for warming up; what comes before
is given apart. Flower's clients run on every core, ours on one. Processor time is that of this process and of
all that it started, which needs Linux's /proc. The larger ``--width``, the hidden units of the net, the more
of a round is training and the less is overhead.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

EXAMPLE = Path(__file__).parent.parent / "examples" / "flower"
CLIENTS, RATE, STEPS, BATCH = 100, 0.1, 5, 16
WARM = 2  # Flower's rounds before the first that counts
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

from leakscope import Dataset, seeded  # noqa: E402
from leakscope.core.rng import initialised  # noqa: E402
from leakscope.training import Local, federate  # noqa: E402


@dataclass(frozen=True)
class Spent:
    """Seconds on the clock and of processors, since some moment."""

    wall: float
    cpu: float

    def __sub__(self, other: Spent) -> Spent:
        return Spent(self.wall - other.wall, self.cpu - other.cpu)

    def __truediv__(self, n: int) -> Spent:
        return Spent(self.wall / n, self.cpu / n)


Run = tuple[Spent, Spent, Mapping[str, Tensor]]  # before what counts, a round, the last parameters


def spent() -> Spent:
    """Until now, by this process and by all that it started and that still run."""
    ticks, parents = {}, {}
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            parents[int(entry.name)] = int(fields[1])
            ticks[int(entry.name)] = sum(map(int, fields[11:15]))  # its own and of children that ended
    family, found = {os.getpid()}, 0
    while len(family) > found:
        found = len(family)
        family |= {child for child, parent in parents.items() if parent in family}
    return Spent(time.perf_counter(), sum(ticks[one] for one in family) / os.sysconf("SC_CLK_TCK"))


def net(width: int) -> nn.Module:
    return initialised(
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10)),
        seeded(0, "net"),
    ).double()


def shard(partition: int) -> Dataset:
    data = task.shard(partition, CLIENTS)
    return replace(data, x=data.x.double())


def rows(partition: int, records: int, r: int) -> Tensor:
    """What a client trains on in round ``r``, 1 being the first."""
    return torch.randint(records, (STEPS, BATCH), generator=seeded(0, "order", partition, r))


def ours(rounds: int, width: int) -> Run:
    start = spent()
    shards = [shard(i) for i in range(CLIENTS)]
    local = Local(rate=RATE, batch=BATCH, steps=STEPS, momentum=0.0, decay=0.0)

    def history(rounds: int) -> tuple[Mapping[str, Tensor], ...]:
        return federate(
            net(width),
            shards,
            rounds=rounds,
            rng=seeded(0),
            local=local,
            weighted=False,
            order=lambda i, r: list(rows(i, len(shards[i]), r + 1)),
        )

    history(1)
    warm = spent()
    last = history(rounds)[-1]
    return warm - start, (spent() - warm) / rounds, last


class Timed(FedAvg):
    """FedAvg that notes when each round ends."""

    def __init__(self, ticks: list[Spent]) -> None:
        super().__init__(fraction_evaluate=0.0, min_train_nodes=CLIENTS, min_available_nodes=CLIENTS)
        self.ticks = ticks

    def aggregate_train(self, *arguments: Any) -> Any:
        found = super().aggregate_train(*arguments)
        self.ticks.append(spent())
        return found


def client(width: int) -> ClientApp:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        partition, r = int(context.node_config["partition-id"]), message.content["config"]["server-round"]
        data, model = shard(partition), net(width)
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        task.train(model, data, rows(partition, len(data), r), rate=RATE)
        metrics = MetricRecord({"num-examples": STEPS * BATCH})
        content = {"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}
        return Message(RecordDict(content), reply_to=message)

    return app


def flowers(rounds: int, width: int) -> Run:
    ticks: list[Spent] = []
    results: list[Mapping[str, Tensor]] = []
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        result = Timed(ticks).start(grid, ArrayRecord(net(width).state_dict()), num_rounds=rounds)
        results.append(dict(result.arrays.to_torch_state_dict()))

    start = spent()
    with tempfile.TemporaryDirectory() as folder:  # a cluster of its own, whoever else left one here
        backend = {
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"address": "local", "_temp_dir": folder},
        }
        run_simulation(server, client(width), num_supernodes=CLIENTS, backend_config=backend)
    return ticks[WARM - 1] - start, (ticks[-1] - ticks[WARM - 1]) / (rounds - WARM), results[0]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--quick", action="store_true", help="4 rounds in place of 12")
    arguments.add_argument("--width", type=int, default=32, help="hidden units of the net")
    given = arguments.parse_args()
    rounds = 4 if given.quick else 12
    torch.set_num_threads(1)
    loads = [os.getloadavg()[0]]
    *theirs, expected = flowers(rounds, given.width)
    loads.append(os.getloadavg()[0])
    *own, params = ours(rounds, given.width)
    torch.testing.assert_close(dict(params), dict(expected), rtol=0, atol=1e-6)
    apart = max((params[name] - value).abs().max().item() for name, value in expected.items())
    print(
        f"{CLIENTS} clients, {rounds} rounds, {STEPS} steps of {BATCH}, {given.width} hidden units; "
        f"parameters differ by at most {apart:.0e}; "
        f"load {loads[0]:.1f} before Flower, {loads[1]:.1f} before ours"
    )
    print(f"{'':<12}{'before':>12}{'of CPU':>12}{'a round':>12}{'of CPU':>12}")
    for name, times in (("Flower", theirs), ("leakscope", own)):
        print(f"{name:<12}" + "".join(f"{part:>10.3f} s" for one in times for part in (one.wall, one.cpu)))
    ratios = [(a.wall / b.wall, a.cpu / b.cpu) for a, b in zip(theirs, own, strict=True)]
    print(f"{'ratio':<12}" + "".join(f"{part:>10.1f}  " for pair in ratios for part in pair))


if __name__ == "__main__":
    main()
