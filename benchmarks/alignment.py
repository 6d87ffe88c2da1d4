"""Dots and squared norms of every record's gradient against one plain forward and backward pass.

    python benchmarks/alignment.py            the table (a few minutes on one core)
    python benchmarks/alignment.py --quick    one round of everything
    python benchmarks/alignment.py --peers    only the second table: against torch.func and Opacus, each ratio
                                              with the one that is asked

The floor is one forward and backward pass of the same records, in the passes the kernel uses. The loop
is one backward pass a record, timed on some and scaled to all; Opacus forms per-sample gradients (extra
``opacus``). All sides take turns on one thread; the medians of the ratios of process times are compared,
which other work disturbs least. Peak memory (Linux) is what a process of its own adds to what it holds
once the records are there.
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

import peers.alignment
import torch
from peers.table import header, printed
from torch import Tensor, nn
from torch.nn import functional as F

from leakscope import gradients
from leakscope.core.dataset import Dataset
from leakscope.gradients.aligned import PASS
from leakscope.models import MLP, AlexNet, LeNet

CASES = {  # model, records, shape, classes, and the targets: times the floor, loop, Opacus
    "FC 600-1024-512-256-100": (MLP((1024, 512, 256), activation="tanh"), 2_000, (600,), 100, 1.25, 30, 50),
    "AlexNet": (AlexNet(), 1_000, (3, 32, 32), 100, 1.25, 7, 10),
    "LeNet": (LeNet(), 1_000, (1, 32, 32), 10, 2.0, 5, None),
}


def case(name: str) -> tuple[nn.Module, Tensor, Tensor, dict[str, Tensor], dict[str, Tensor]]:
    """Model, records, labels, parameters and the direction."""
    torch.manual_seed(0)
    architecture, n, shape, classes = CASES[name][:4]
    x, y = torch.randn(n, *shape), torch.arange(n) % classes
    model = architecture(Dataset(x, y, {}))
    params = {key: value.detach().clone() for key, value in model.named_parameters()}
    return model, x, y, params, {key: torch.randn_like(value) for key, value in params.items()}


def plain(model: nn.Module, x: Tensor, y: Tensor) -> None:
    for rows in torch.arange(len(x)).split(PASS):
        model.zero_grad(set_to_none=True)
        F.cross_entropy(model(x[rows]), y[rows], reduction="sum").backward()


def looped(model: nn.Module, x: Tensor, y: Tensor, direction: dict[str, Tensor]) -> None:
    for i in range(len(x)):
        model.zero_grad(set_to_none=True)
        F.cross_entropy(model(x[i : i + 1]), y[i : i + 1]).backward()
        for key, p in model.named_parameters():
            assert p.grad is not None
            (p.grad * direction[key]).sum(), p.grad.square().sum()


def sampled(model: nn.Module, x: Tensor, y: Tensor, direction: dict[str, Tensor]) -> None:
    """Opacus: every record's gradient is formed, in chunks that fit into memory."""
    for rows in torch.arange(len(x)).split(64):
        model.zero_grad(set_to_none=True)
        F.cross_entropy(model(x[rows]), y[rows], reduction="sum").backward()
        for key, p in model.named_parameters():
            formed = p.grad_sample.flatten(1)  # type: ignore[union-attr]
            formed @ direction[key.removeprefix("_module.")].flatten(), formed.square().sum(1)
            p.grad_sample = None  # type: ignore[assignment]


def seconds(run: Callable[[], object]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


def compared(name: str, rounds: int) -> dict[str, float]:
    """Medians of ours, whitened, the loop and Opacus, each over the floor beside it."""
    model, x, y, params, direction = case(name)
    found = gradients.moments(model, params, x[:500], y[:500])
    whitening = found.whitening(damping=dict.fromkeys(found.inputs, 0.1))
    some = slice(0, 100)
    sides: dict[str, tuple[Callable[[], object], float]] = {
        "ours": (lambda: gradients.alignment(model, params, x, y, direction), 1.0),
        "whitened": (lambda: gradients.alignment(model, params, x, y, direction, whitening=whitening), 1.0),
        "loop": (lambda: looped(model, x[some], y[some], direction), len(x) / 100),
    }
    try:
        from opacus import GradSampleModule
    except ImportError:
        pass
    else:
        wrapped = GradSampleModule(CASES[name][0](Dataset(x, y, {})))
        sides["Opacus"] = (lambda: sampled(wrapped, x[:256], y[:256], direction), len(x) / 256)
    times: dict[str, list[float]] = {side: [] for side in sides}
    plain(model, x, y)
    for _ in range(rounds):
        for side, (run, scale) in sides.items():
            floor = seconds(lambda: plain(model, x, y))
            spent = scale * seconds(run)
            floor = (floor + seconds(lambda: plain(model, x, y))) / 2
            times[side].append(spent / floor)
    return {side: statistics.median(ratios) for side, ratios in times.items()}


def peak(name: str, what: str) -> float:
    """Megabytes that a process of its own adds while it computes."""
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
    command = [sys.executable, __file__, "--peak", name, what]
    return float(subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout)


def print_peak(name: str, what: str) -> None:
    model, x, y, params, direction = case(name)

    def run(n: int) -> None:
        if what == "plain":
            plain(model, x[:n], y[:n])
        else:
            gradients.alignment(model, params, x[:n], y[:n], direction)

    run(4)
    model.zero_grad(set_to_none=True)
    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    run(len(x))
    print(status("VmHWM") - before)


def status(field: str) -> float:
    """Megabytes of this process, as Linux counts them: VmRSS now, VmHWM at the highest."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one round")
    parser.add_argument("--peers", action="store_true", help="only the comparison with peers")
    parser.add_argument("--peak", nargs=2, metavar=("MODEL", "WHAT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.peak:
        print_peak(*options.peak)
        return
    if not options.peers:
        print_floors(quick=options.quick)
    print(f"\nDots and squared norms, the peer's time over ours, one thread\n{header()}")
    for row in peers.alignment.rows(quick=options.quick, asked_only=True):
        print(printed(row), flush=True)


def print_floors(*, quick: bool) -> None:
    print("Times in units of one plain forward and backward pass of the same records, one thread")
    print(
        "| model | ours (target) | whitened (2.5) | loop / ours (target) | Opacus / ours (target) | peak MB |"
    )
    print("|---|---|---|---|---|---|")
    for name, (*_, floor, loop, opacus) in CASES.items():
        found = compared(name, 1 if quick else 5)
        over = f"{found['Opacus'] / found['ours']:.1f} ({opacus})" if "Opacus" in found else "not installed"
        memory = f"{peak(name, 'ours'):.0f} against {peak(name, 'plain'):.0f} plain"
        print(
            f"| {name} | {found['ours']:.2f} ({floor}) | {found['whitened']:.2f} "
            f"| {found['loop'] / found['ours']:.1f} ({loop}) | {over} | {memory} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
