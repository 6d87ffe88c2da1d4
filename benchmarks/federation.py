"""One round of federated averaging: clients together, one by one, and as a plain loop of torch.optim.

    python benchmarks/federation.py [--quick]

Ten clients, one local epoch, one thread. The loop is what one writes first: a copy of the global model
for each client, an optimiser, the mean of what they end with. The ways take turns, and the median of the
ratios to the loop's processor time is what counts. ``federate`` takes the way it believes to be the
faster one, and should never be slower than the loop by more than a few percent.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from leakscope import Dataset, Defense, seeded
from leakscope.core.rng import initialised
from leakscope.training import Local, federate
from leakscope.training.local import Task, alone, together
from leakscope.training.step import Step, state

CLIENTS = 10


def mlp(*widths: int) -> nn.Module:
    """Fully connected, tanh."""
    layers: list[nn.Module] = []
    for wide, narrow in pairwise(widths):
        layers += [nn.Linear(wide, narrow), nn.Tanh()]
    return nn.Sequential(*layers[:-1])


def alexnet(classes: int, width: float) -> nn.Module:
    """The net of paper 002 for images of 32 x 32, its channels scaled by ``width``."""
    a, b, c, d = (int(width * channels) for channels in (64, 192, 384, 256))
    return nn.Sequential(
        *(nn.Conv2d(3, a, 11, 4, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(a, b, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(b, c, 3, padding=1), nn.ReLU(), nn.Conv2d(c, d, 3, padding=1), nn.ReLU()),
        *(nn.Conv2d(d, d, 3, padding=1), nn.ReLU(), nn.AdaptiveMaxPool2d(1), nn.Flatten()),
        nn.Linear(d, classes),
    )


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int, int, Local]] = {
    "106-32-16-2, SGD": (lambda: mlp(106, 32, 16, 2), (106,), 2, 300, Local(0.1, batch=64)),
    "446-128-64-30, Adam": (
        lambda: mlp(446, 128, 64, 30),
        (446,),
        30,
        300,
        Local(1e-3, optimiser="adam"),
    ),
    "446-1024-512-256-30, Adam": (
        lambda: mlp(446, 1024, 512, 256, 30),
        (446,),
        30,
        300,
        Local(1e-3, optimiser="adam"),
    ),
    "446-1024-512-256-30, SGD": (lambda: mlp(446, 1024, 512, 256, 30), (446,), 30, 300, Local(0.1)),
    "AlexNet / 4, SGD": (lambda: alexnet(100, 0.25), (3, 32, 32), 100, 100, Local(0.02, batch=25)),
}


def plain(model: nn.Module, clients: list[Dataset], local: Local) -> dict[str, Tensor]:
    """A round as one writes it first."""
    net, mean = copy.deepcopy(model), {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for data in clients:
        net.load_state_dict(model.state_dict())
        if local.optimiser == "adam":
            optimiser: torch.optim.Optimizer = torch.optim.Adam(
                net.parameters(), lr=local.rate, weight_decay=local.decay
            )
        else:
            optimiser = torch.optim.SGD(
                net.parameters(), lr=local.rate, momentum=local.momentum, weight_decay=local.decay
            )
        for rows in torch.randperm(len(data)).split(local.batch):
            optimiser.zero_grad()
            F.cross_entropy(net(data.x[rows]), data.y[rows]).backward()
            optimiser.step()
        with torch.no_grad():
            for name, parameter in net.named_parameters():
                mean[name] += parameter / len(clients)
    return mean


def seconds(run: Callable[[], object]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


def compared(model: nn.Module, clients: list[Dataset], local: Local, repeats: int) -> tuple[float, ...]:
    """Milliseconds of the loop, and the times of the three ways in units of it."""
    step, start = (
        Step.of(model, loss=F.cross_entropy, defense=Defense()).on(copy.deepcopy(model)),
        state(model),
    )
    tasks = [Task(data.x, data.y, local.order(len(data), seeded(i)), i) for i, data in enumerate(clients)]
    ways: tuple[Callable[[], object], ...] = (
        lambda: plain(model, clients, local),
        lambda: together(step, start, tasks, local=local, rate=local.rate),
        lambda: [alone(step, start, task, local=local, rate=local.rate) for task in tasks],
        lambda: federate(model, clients, rounds=1, rng=seeded(0), local=local),
    )
    for run in ways:
        run()
    loop, *others = zip(*([seconds(run) for run in ways] for _ in range(repeats)), strict=True)
    ratios = [statistics.median(a / b for a, b in zip(other, loop, strict=True)) for other in others]
    return 1_000 * statistics.median(loop), *ratios


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--quick", action="store_true", help="fewer repetitions")
    repeats = 5 if arguments.parse_args().quick else 21
    torch.set_num_threads(1)
    print("| model | loop, ms | together / loop | one by one / loop | federate / loop |")
    print("|---|---|---|---|---|")
    for name, (make, shape, classes, n, local) in CASES.items():
        rng = seeded(0, name)
        clients = [
            Dataset(torch.randn(n, *shape, generator=rng), torch.randint(classes, (n,), generator=rng), {})
            for _ in range(CLIENTS)
        ]
        loop, *ratios = compared(initialised(make, rng), clients, local, repeats)
        print(f"| {name} | {loop:.0f} | {' | '.join(f'{ratio:.2f}' for ratio in ratios)} |", flush=True)


if __name__ == "__main__":
    main()
