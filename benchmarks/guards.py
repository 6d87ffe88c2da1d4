"""One step of a guard against the sum of its three networks' own steps.

    python benchmarks/guards.py [--quick]

One thread. A network's own step is what it would cost to train it by itself: the encoder on a loss that is
linear in its representations, its gradient capped; the utility network and the privacy network on
representations that are there already, the privacy network ``steps`` times. What a guard adds to that is the
encoder's gradient through the privacy network, or a distance between groups. The two take turns, and the
median of the ratios of processor time should be at most 1.3.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from leakscope.dataset import Dataset
from leakscope.guards.batches import Seen
from leakscope.guards.encoder import represented
from leakscope.guards.inf2guard import Inf2Guard, assembled
from leakscope.guards.trainer import Alternation
from leakscope.models.encoders import ImageEncoder, TableEncoder
from leakscope.rng import seeded

NOISE = {"perturbation": "gaussian", "normed": True}
WIDE = TableEncoder((256, 128))
CASES: dict[str, tuple[Inf2Guard, tuple[int, ...]]] = {
    "table, labels, prior, 2 steps": (Inf2Guard("attribute", "u"), (90,)),
    "table, labels, prior, 2 steps, noise": (Inf2Guard("attribute", "u", **NOISE), (90,)),
    "table, agnostic, prior, 3 steps": (Inf2Guard("attribute", "u", utility="agnostic", steps=3), (90,)),
    "table, labels, adversarial, 1 step": (
        Inf2Guard("attribute", "u", loss="adversarial", steps=1, encoder=WIDE),
        (446,),
    ),
    "table, labels, mmd, 1 step, noise": (Inf2Guard("attribute", "u", loss="mmd", steps=1, **NOISE), (90,)),
    "images, reconstruction, 1 step": (
        Inf2Guard("reconstruction", encoder=ImageEncoder(), batch=64, steps=1, loss="clip"),
        (3, 32, 32),
    ),
}


def own_steps(made: Alternation, seen: Seen) -> None:
    """The three networks, each by itself."""
    r = represented(made.network, seen.x, normed=made.normed)
    made.optimisers["encoder"].zero_grad()
    r.backward(torch.ones_like(r))
    torch.nn.utils.clip_grad_norm_(made.leaves["encoder"], made.cap)
    made.optimisers["encoder"].step()
    fixed = made.perturbed(r.detach(), made.rngs.noise)
    made.optimisers["utility"].zero_grad()
    made.utility.loss(seen, fixed, fixed, made.rngs.utility).backward()
    made.optimisers["utility"].step()
    for _ in range(made.steps):
        fixed = made.perturbed(r.detach(), made.rngs.privacy)
        made.optimisers["privacy"].zero_grad()
        made.protections[0].own(seen, fixed, made.utility.head, made.rngs.privacy).backward()
        made.optimisers["privacy"].step()


def timed(work: Callable[[], object], times: int) -> float:
    """Processor time of one call."""
    begun = time.process_time()
    for _ in range(times):
        work()
    return (time.process_time() - begun) / times


def measured(guard: Inf2Guard, shape: tuple[int, ...], *, repeats: int, times: int) -> tuple[float, float]:
    """Milliseconds of a guard's step, and the median ratio to the networks' own."""
    rng = seeded(0)
    x, codes = torch.randn(guard.batch, *shape, generator=rng), torch.arange(guard.batch) % 2
    data = Dataset(x, codes, {"u": codes.roll(1)})
    made, seen = assembled((guard,), (1.0,), data, seeded(1), seeded(2)), Seen.of(data)
    ratios, costs = [], []
    for i in range(repeats + 1):
        whole = timed(lambda: made.step(seen), times)
        parts = timed(lambda: own_steps(made, seen), times)
        if i:  # the first warms up
            ratios.append(whole / parts)
            costs.append(1_000 * whole)
    return statistics.median(costs), statistics.median(ratios)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer repeats")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    print(f"{'':40s}  ms/step  ratio")
    for name, (guard, shape) in CASES.items():
        cost, ratio = measured(guard, shape, repeats=5 if quick else 15, times=20)
        print(f"{name:40s}  {cost:7.2f}  {ratio:5.2f}")


if __name__ == "__main__":
    main()
