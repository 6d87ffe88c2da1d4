"""Batch mean gradients of many draws against a loop of ordinary backward passes.

    python benchmarks/gradients.py            the table (two to three minutes on one core)
    python benchmarks/gradients.py --quick    the same rows from fewer draws (one minute)
    python benchmarks/gradients.py --peers    only the second table: per-record gradients against torch.func
                                              and Opacus, each ratio with the one that is asked

Both sides flatten and max-pool what they compute, as an attack would. The loop is timed on some of
the draws and scaled to all; the two sides take turns, on one thread, and the medians are compared.
Times depend on the machine and its load: trust the ratios. The targets are for all 5,000 draws: with
fewer, each record's own gradient weighs more. Peak memory (Linux) is what a process of its own adds to
what it holds once the records and the draws are there, with the features thrown away.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import peers.gradients
import torch
from peers.table import header, printed
from torch import Tensor, nn
from torch.nn import functional as F

from leakscope import gradients
from leakscope.core.nouns import flatten

RECORDS = 1_000
TARGETS = {
    ("CNN", 16): 40,
    ("CNN", 128): 200,
    ("Adult MLP", 16): 15,
    ("Adult MLP", 128): 8,
    ("CREMA-D MLP", 16): 2.5,
    ("CREMA-D MLP", 128): 1.7,
}


def cnn() -> nn.Module:
    """Paper 000's convolutional network for 3 x 32 x 32 images."""
    layers: list[nn.Module] = []
    channels = 3
    for i, width in enumerate((8, 16, 16, 32, 32, 32, 32, 32)):
        layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
        layers += [nn.MaxPool2d(3, 3)] if i in (4, 7) else []
        channels = width
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(288, 2))


def mlp(*widths: int) -> nn.Module:
    """A multilayer perceptron."""
    layers: list[nn.Module] = []
    for i, o in pairwise(widths):
        layers += [nn.Linear(i, o), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def case(name: str) -> tuple[nn.Module, Tensor, Tensor, int]:
    """The model, records, labels and the width of the pooling."""
    torch.manual_seed(0)
    model, shape, classes, width = {
        "CNN": (cnn, (3, 32, 32), 2, 10),
        "Adult MLP": (lambda: mlp(106, 32, 16, 2), (106,), 2, 3),
        "CREMA-D MLP": (lambda: mlp(988, 64, 64, 4), (988,), 4, 10),
    }[name]
    built = model()
    if name == "CNN":
        assert sum(p.numel() for p in built.parameters()) == 45_922
    return built, torch.randn(RECORDS, *shape), torch.randint(classes, (RECORDS,)), width


def own_parameters(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def looped(model: nn.Module, x: Tensor, y: Tensor, rows: Tensor) -> Iterator[Tensor]:
    """What one writes first: a backward pass for every draw, one flat gradient each."""
    for row in rows:
        model.zero_grad(set_to_none=True)
        F.cross_entropy(model(x[row]), y[row]).backward()
        yield torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])[None]


def ours(model: nn.Module, x: Tensor, y: Tensor, rows: Tensor) -> Iterator[Tensor]:
    for block in gradients.blocks(model, own_parameters(model), x, y, rows):
        yield flatten(block)


def seconds(flat: Iterator[Tensor], width: int) -> float:
    start = time.perf_counter()
    torch.cat([F.max_pool1d(block, width) for block in flat])
    return time.perf_counter() - start


def compared(
    name: str, k: int, *, draws: int, loop_draws: int, rounds: int
) -> tuple[float, float, float, float]:
    """Seconds of the loop and of ours for all draws, their ratio, and the largest difference."""
    model, x, y, width = case(name)
    rows = torch.randint(RECORDS, (draws, k))
    some = rows[:loop_draws]
    exact = torch.cat(list(looped(model, x, y, some)))
    off = (torch.cat(list(ours(model, x, y, some))) - exact).abs().max() / exact.abs().max()
    loop_times, our_times = [], []
    for _ in range(rounds):
        # Half of the loop before and half after, so that a load that comes or goes meets both sides.
        before = seconds(looped(model, x, y, some[::2]), width)
        our_times.append(seconds(ours(model, x, y, rows), width))
        after = seconds(looped(model, x, y, some[1::2]), width)
        loop_times.append((before + after) * draws / loop_draws)
    ratio = statistics.median(a / b for a, b in zip(loop_times, our_times, strict=True))
    return statistics.median(loop_times), statistics.median(our_times), ratio, float(off)


def peak(name: str, k: int, draws: int) -> float:
    """Megabytes that a process of its own adds while it computes and forgets the features."""
    command = [sys.executable, __file__, "--peak", name, str(k), str(draws)]
    # Freed tensors go back to the system at once, so that what is counted is alive.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
    return float(subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout)


def status(field: str) -> float:
    """Megabytes of this process, as Linux counts them: VmRSS now, VmHWM at the highest."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024


def print_peak(name: str, k: int, draws: int) -> None:
    model, x, y, width = case(name)
    for flat in ours(model, x, y, torch.randint(4, (2, k))):  # what the first pass loads stays loaded
        F.max_pool1d(flat, width)
    rows = torch.randint(RECORDS, (draws, k))
    Path("/proc/self/clear_refs").write_text("5")  # the highest starts again from now
    before = status("VmRSS")
    for flat in ours(model, x, y, rows):
        F.max_pool1d(flat, width)
    print(status("VmHWM") - before)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer draws and rounds")
    parser.add_argument("--peers", action="store_true", help="only the comparison with peers")
    parser.add_argument("--peak", nargs=3, metavar=("MODEL", "K", "DRAWS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.peak:
        name, k, draws = options.peak
        print_peak(name, int(k), int(draws))
        return
    if not options.peers:
        print_batches(quick=options.quick)
    print(f"\nEvery record's own gradient, the peer's time over ours, one thread\n{header()}")
    for row in peers.gradients.rows(quick=options.quick):
        print(printed(row), flush=True)


def print_batches(*, quick: bool) -> None:
    draws, rounds = (1_000, 1) if quick else (5_000, 3)
    print(f"{draws} draws of k from {RECORDS} records; seconds for all of them, one thread")
    print("| model | k | loop | ours | ratio | target | off by | peak MB | peak MB, 4x the draws |")
    print("|---|---|---|---|---|---|---|---|---|")
    for (name, k), target in TARGETS.items():
        loop_draws = max(4, (320 if quick else 1_600) // k) if name == "CNN" else 200
        loop, our, ratio, off = compared(name, k, draws=draws, loop_draws=loop_draws, rounds=rounds)
        memory = [peak(name, k, times * draws) for times in (1, 4)]
        row = f"| {name} | {k} | {loop:.2f} | {our:.2f} | {ratio:.1f} | {target} | {off:.1e} "
        print(row + f"| {memory[0]:.0f} | {memory[1]:.0f} |", flush=True)


if __name__ == "__main__":
    main()
