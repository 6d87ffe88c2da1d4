"""One step of a guard against the sum of its three networks' own steps.

    python benchmarks/guards.py [--quick]

One thread. A network's own step is what it would cost to train it by itself: the encoder on a loss that is
linear in its representations, its gradient capped; the utility network and the privacy network on
representations that are there already, the privacy network ``steps`` times. What a guard adds to that is the
encoder's gradient through the privacy network, or a distance between groups. The two take turns, and the
median of the ratios of processor time should be at most 1.3.

Then guards and baselines as they are called, on the same table: processor time of a whole training over its
iterations, and against plain training.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from leakscope.core.dataset import Dataset
from leakscope.core.rng import seeded
from leakscope.guards.baselines import DPFE, AdversarialTraining
from leakscope.guards.batches import Seen
from leakscope.guards.distilled import Distilled
from leakscope.guards.dpsgd_guard import DPSGDGuard
from leakscope.guards.encoder import represented
from leakscope.guards.inf2guard import Inf2Guard, assembled, pace
from leakscope.guards.membership_baselines import AdvReg, NeuGuard
from leakscope.guards.plain import Unguarded
from leakscope.guards.trainer import Alternation
from leakscope.models.encoders import ImageEncoder, TableEncoder

NOISE = {"perturbation": "gaussian", "normed": True}
WIDE, NARROW = TableEncoder((256, 128)), TableEncoder((64, 8))
CASES: dict[str, tuple[Inf2Guard, tuple[int, ...]]] = {
    "table, labels, prior, 2 steps": (Inf2Guard("attribute", "u"), (90,)),
    "table, labels, prior, 2 steps, noise": (Inf2Guard("attribute", "u", **NOISE), (90,)),
    "table, agnostic, prior, 3 steps": (Inf2Guard("attribute", "u", utility="agnostic", steps=3), (90,)),
    "table, labels, adversarial, 1 step": (
        Inf2Guard("attribute", "u", loss="adversarial", steps=1, encoder=WIDE),
        (446,),
    ),
    "table, labels, mmd, 1 step, noise": (Inf2Guard("attribute", "u", loss="mmd", steps=1, **NOISE), (90,)),
    "table, labels, mmd of 128 records, 1 step": (
        Inf2Guard("attribute", "u", loss="mmd", steps=1, compared=128, **NOISE),
        (90,),
    ),
    "table, labels, ridge, 1 step, noise": (
        Inf2Guard("attribute", "u", loss="ridge", steps=1, **NOISE),
        (90,),
    ),
    "table, labels, ridge, 2 steps, noise": (Inf2Guard("attribute", "u", loss="ridge", **NOISE), (90,)),
    "table, labels, ridge of 128 records, 1 step": (
        Inf2Guard("attribute", "u", loss="ridge", steps=1, compared=128, **NOISE),
        (90,),
    ),
    "as leakscope guard trains it, ridge, 2 steps": (
        Inf2Guard("attribute", "u", loss="ridge", encoder=NARROW, **pace(12_000), **NOISE),
        (90,),
    ),
    "as leakscope guard trains it, mmd, 2 steps": (
        Inf2Guard("attribute", "u", loss="mmd", encoder=NARROW, **pace(12_000), **NOISE),
        (90,),
    ),
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
        noisy = made.protections[0].noisy
        fixed = made.perturbed(r.detach(), made.rngs.privacy) if noisy else r.detach()
        made.optimisers["privacy"].zero_grad()
        made.protections[0].own(seen, fixed, made.head, made.rngs.privacy).backward()
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


PLAIN = Unguarded(epochs=3, batch=128)
SETTINGS = {"epochs": 3, "batch": 128, "warm_up": 0}
CALLED: dict[str, Callable[..., object]] = {
    "plain training": PLAIN,
    "Inf2Guard, prior": Inf2Guard("attribute", "u", **SETTINGS),
    "Inf2Guard, mmd, no network": Inf2Guard("attribute", "u", loss="mmd", steps=0, **SETTINGS),
    "Inf2Guard, membership, aware": Inf2Guard("membership", label_aware=True, **SETTINGS),
    "AdversarialTraining": AdversarialTraining("u", plain=PLAIN),
    "DPFE": DPFE("u", plain=PLAIN),
    "AdvReg": AdvReg(plain=PLAIN),
    "NeuGuard": NeuGuard(alpha=1.0, beta=1.0, plain=PLAIN),
    "Distilled, 25 models": Distilled(epochs=3, plain=PLAIN),
    "DP-SGD (Opacus)": DPSGDGuard(noise=1.0, plain=PLAIN),
    "DP-SGD with a guard": DPSGDGuard(noise=1.0, plain=PLAIN, guard=Inf2Guard("attribute", "u", steps=1)),
}


def called(guard: Callable[..., object], *, repeats: int) -> float:
    """Milliseconds of processor time of one iteration, in whole trainings; the least of some."""
    rng = seeded(0)
    x, codes = torch.randn(2_560, 90, generator=rng), torch.arange(2_560) % 2
    data = Dataset(x, codes, {"u": codes.roll(1)})
    members = isinstance(guard, AdvReg | NeuGuard | Distilled) or getattr(guard, "secret", "") == "membership"
    others = data if members else None
    costs = []
    for _ in range(repeats):
        begun = time.process_time()
        guard(data, seeded(1), others=others)
        costs.append(time.process_time() - begun)
    return 1_000 * min(costs) / (3 * 2_560 / 128)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer repeats")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    print(f"{'':40s}  ms/step  ratio")
    for name, (guard, shape) in CASES.items():
        cost, ratio = measured(guard, shape, repeats=5 if quick else 15, times=20)
        print(f"{name:40s}  {cost:7.2f}  {ratio:5.2f}")
    print(f"\n{'whole trainings':40s}  ms/iteration  against plain")
    plain = 0.0
    for name, guard in CALLED.items():
        cost = called(guard, repeats=2 if quick else 5)
        plain = plain or cost
        print(f"{name:40s}  {cost:12.2f}  {cost / plain:13.2f}")


if __name__ == "__main__":
    main()
