"""What a defense adds to the time of the gradients it acts on.

    python benchmarks/defenses.py [--quick]

5,000 draws from 1,000 records, consumed block by block as an attack does, one thread; defended and
undefended runs alternate and the ratio of their medians is what counts.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

from leakscope import DPSGD, MLP, Dataset, Defense, GradientChannel, Pruning, Sign, seeded
from leakscope.core.dataset import Batch
from leakscope.models import build, parameters

DEFENSES = {"Pruning(0.99)": Pruning(0.99), "Sign()": Sign(), "DPSGD(2, 0.1)": DPSGD()}


def seconds(channel: GradientChannel, batch: Batch) -> float:
    """The time to read every block of one round."""
    secret = torch.zeros(len(batch), dtype=torch.long)
    start = time.perf_counter()
    for release in channel(batch, secret, seeded(0)):
        for layers in release.blocks():
            sum(float(tensor[0, 0].sum()) for tensor in layers.values())
    return time.perf_counter() - start


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--quick", action="store_true", help="fewer repetitions")
    repeats = 3 if arguments.parse_args().quick else 9
    torch.set_num_threads(1)
    print(f"{'model':<12}{'k':>5}  {'defense':<16}{'ratio':>7}   (wanted: at most 1.30)")
    for name, inputs, hidden, classes in (("Adult", 106, (32, 16), 2), ("CREMA-D", 988, (64, 64), 4)):
        rng = seeded(0, name)
        x, y = torch.randn(1_000, inputs, generator=rng), torch.randint(classes, (1_000,), generator=rng)
        data = Dataset(x, y, {}, name=name)
        model = build(MLP(hidden), data, rng)
        for k in (16, 128):
            batch = Batch(data, torch.randint(1_000, (5_000, k), generator=rng))
            free = GradientChannel(model, (parameters(model),), Defense())
            for words, defense in DEFENSES.items():
                guarded = GradientChannel(model, (parameters(model),), defense)
                pairs = [(seconds(free, batch), seconds(guarded, batch)) for _ in range(repeats)]
                ratio = statistics.median(b for _, b in pairs) / statistics.median(a for a, _ in pairs)
                print(f"{name:<12}{k:>5}  {words:<16}{ratio:>7.2f}", flush=True)


if __name__ == "__main__":
    main()
