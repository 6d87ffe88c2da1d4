"""All norms of the Jacobian of a record's gradient, against the ways that form its rows.

    python benchmarks/sensitivity.py            the table (a few minutes on one core)
    python benchmarks/sensitivity.py --quick    one round of everything

LeNet on 32 x 32 x 3 and 100 classes: 85,036 parameters by 3,072 inputs, one image. The loop is one double
backward pass a row, timed on rows spread evenly over the parameters and scaled to all of them. jacrev holds
the whole Jacobian, 1.04 GB in float32, and is left out where less than 6 GB are free; it is timed once. The
probes are set against one plain backward pass of the record, and against `per_record`, which makes the same
checks of the model. All sides take turns on one thread; medians of the ratios of process times. Peak memory
(Linux) is what a process of its own adds to what it holds once the record is there.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jacrev
from torch.nn import functional as F

from leakscope.core.dataset import Dataset
from leakscope.gradients import per_record
from leakscope.gradients.jacobian import entries, probed
from leakscope.models import LeNet, parameters

ROWS = 400  # of the loop that are timed
PROBES = 16
FREE = 6_000  # megabytes that jacrev may need
LOOP, PROBED = 20.0, 6.0  # what is asked: the loop at least so many times, the probes at most


def case() -> tuple[nn.Module, dict[str, Tensor], Tensor, Tensor]:
    torch.manual_seed(0)
    x, y = torch.randn(100, 3, 32, 32), torch.arange(100)
    model = LeNet()(Dataset(x, y, {}))
    return model, parameters(model), x[:1], y[:1]


def looped(model: nn.Module, x: Tensor, y: Tensor, rows: int) -> None:
    """So many rows of the Jacobian, spread evenly over all parameters, and their norms."""
    x = x.clone().requires_grad_()
    slopes = torch.autograd.grad(F.cross_entropy(model(x), y), list(model.parameters()), create_graph=True)
    where = [(i, j) for i, slope in enumerate(slopes) for j in range(slope.numel())]
    for i, j in where[:: len(where) // rows][:rows]:
        (row,) = torch.autograd.grad(slopes[i].flatten()[j], x, retain_graph=True)
        row.square().sum(), row.abs().sum(), row.abs().max()


def whole(model: nn.Module, params: dict[str, Tensor], x: Tensor, y: Tensor) -> None:
    def gradient(record: Tensor) -> dict[str, Tensor]:
        return grad(lambda p: F.cross_entropy(functional_call(model, p, (record,)), y))(params)

    for j in jacrev(gradient, chunk_size=64)(x).values():
        j.square().sum(), j.abs().sum(), j.abs().max()


def plain(model: nn.Module, x: Tensor, y: Tensor) -> None:
    torch.autograd.grad(F.cross_entropy(model(x), y), list(model.parameters()))


def seconds(run: Callable[[], object], times: int = 1) -> float:
    start = time.process_time()
    for _ in range(times):
        run()
    return (time.process_time() - start) / times


def compared(rounds: int) -> dict[str, float]:
    """Medians of the loop over the exact pass, of the probes over a gradient, and the exact seconds."""
    model, params, x, y = case()
    size = sum(p.numel() for p in params.values())
    rng = torch.Generator().manual_seed(0)

    def ours() -> object:
        return entries(model, params, x, y)

    def probe() -> object:
        return probed(model, params, x, y, probes=PROBES, rng=rng)

    looped(model, x, y, 2), probe(), plain(model, x, y), per_record(model, params, x, y)
    found: dict[str, list[float]] = {"exact": [], "loop": [], "plain": [], "per_record": []}
    for _ in range(rounds):
        exact = seconds(ours)
        found["exact"].append(exact)
        found["loop"].append(size / ROWS * seconds(lambda: looped(model, x, y, ROWS)) / exact)
        probing = seconds(probe, 20)
        found["plain"].append(probing / seconds(lambda: plain(model, x, y), 50))
        found["per_record"].append(probing / seconds(lambda: per_record(model, params, x, y), 20))
    medians = {name: statistics.median(values) for name, values in found.items()}
    if status("/proc/meminfo", "MemAvailable") > FREE:
        medians["jacrev"] = seconds(lambda: whole(model, params, x, y)) / medians["exact"]
    return medians


def peak() -> float:
    """Megabytes that a process of its own adds while it computes."""
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
    command = [sys.executable, __file__, "--peak"]
    return float(subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout)


def print_peak() -> None:
    model, params, x, y = case()
    entries(model, params, x, y, columns=1, rng=torch.Generator())
    Path("/proc/self/clear_refs").write_text("5")
    before = status("/proc/self/status", "VmRSS")
    entries(model, params, x, y, columns=512, rng=torch.Generator())
    print(status("/proc/self/status", "VmHWM") - before)


def status(file: str, field: str) -> float:
    """Megabytes, as Linux counts them."""
    lines = Path(file).read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one round")
    parser.add_argument("--peak", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.peak:
        print_peak()
        return
    found = compared(1 if options.quick else 5)
    print(f"LeNet, one image, one thread; the loop from {ROWS} of its rows")
    print("| | measured | asked |")
    print("|---|---|---|")
    print(f"| exact pass, all layers, all norms | {found['exact']:.2f} s | |")
    print(f"| loop of double backward / exact | {found['loop']:.1f} | >= {LOOP:g} |")
    jacrev_over = f"{found['jacrev']:.1f}" if "jacrev" in found else "not enough memory"
    print(f"| jacrev / exact | {jacrev_over} | |")
    print(f"| {PROBES} probes / plain gradient | {found['plain']:.1f} | <= {PROBED:g} |")
    print(f"| {PROBES} probes / per_record | {found['per_record']:.1f} | |")
    print(f"| peak memory of the exact pass | {peak():.0f} MB | |")


if __name__ == "__main__":
    main()
