"""Time to an image: ours against breaching 0.1.2 on the same net, gradient, label, starts and machine.

    python benchmarks/peers/breaching.py [--images 6] [--seconds 120]

Needs LEAKSCOPE_DATA/cifar100.npz. Both match the whole gradient of iDLG's sigmoid net by L-BFGS without a
line search. breaching runs its "deepleakage" settings with the label given, as ours has it (as it ships, it
searches for the label too), one image after the other; ours run alone and all in one batch. A clock stops
when the image at hand has an SSIM of 0.9, looked at every 20 evaluations and off the clock, or when
``seconds`` are over. One thread; process time, which other work disturbs least; both take turns.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from leakscope import load, seeded
from leakscope.attacks.matching import Matching, evaluated, lbfgs, squared
from leakscope.measures.fidelity import ssim
from leakscope.models import SigmoidNet, parameters

# The folder above, and not this one, whose file has the peer's name.
sys.path[0] = str(Path(__file__).parents[1])
from reconstruction import SSIM, Case, case, model_of  # noqa: E402

PIP = "pip install breaching==0.1.2 hydra-core torchvision"
LOOK = 20  # evaluations between two looks at the images


@dataclass
class Clock:
    """Stops for every image once it is like its original; looks do not count."""

    originals: Tensor
    limit: float
    started: float = field(default_factory=time.process_time)
    looking: float = 0.0
    calls: int = 0
    done: dict[int, float] = field(default_factory=dict)

    def look(self, which: list[int], images: Tensor) -> bool:
        """Whether to go on, after one evaluation of these images."""
        now = time.process_time()
        self.calls += 1
        if self.calls % LOOK == 0:
            found = ssim(images[:, None], self.originals[which])[:, 0] >= SSIM
            for i, hit in zip(which, found.tolist(), strict=True):
                if hit:
                    self.done.setdefault(i, now - self.started - self.looking)
            self.looking += time.process_time() - now
        over = now - self.started - self.looking > self.limit
        return not over and len(self.done) < len(self.originals)


def ours(one: Case, starts: Tensor, limit: float) -> dict[int, float]:
    """Seconds to each image, all in one batch."""
    model, told = model_of(one), one.view.public["labels"]
    assert isinstance(told, Tensor)
    problem = Matching(model, F.cross_entropy, ((parameters(model), one.view.releases[0].layers),), squared)
    clock = Clock(one.secrets, limit)

    def objective(v: Tensor, which: Tensor) -> tuple[Tensor, Tensor]:
        x = v.view(-1, *one.secrets.shape[1:])
        losses, slopes = evaluated(x, lambda leaf: problem.losses(leaf, told[which], which))
        if not clock.look(which.tolist(), x[:, 0]):
            losses = torch.full_like(losses, torch.nan)  # which ends a problem
        for i in clock.done:
            losses[which == i] = torch.nan
        return losses, slopes.flatten(1)

    lbfgs(objective, starts.flatten(1), evaluations=24_000)
    return clock.done


def theirs(breaching: Any, one: Case, i: int, start: Tensor, limit: float) -> float | None:
    """Seconds to one image."""
    settings = breaching.get_attack_config("deepleakage", overrides=["++attack_type=optimization"])
    model, loss = model_of(one), nn.CrossEntropyLoss()
    attacker = breaching.attacks.prepare_attack(model, loss, settings)
    release, told = one.view.releases[0], one.view.public["labels"]
    assert isinstance(told, Tensor)
    payload = [
        {
            "parameters": [p.detach() for p in model.parameters()],
            "buffers": [],
            "metadata": SimpleNamespace(shape=tuple(one.secrets.shape[2:]), modality="vision"),
        }
    ]
    shared = [
        {
            "gradients": [layer[i] for layer in release.layers.values()],
            "buffers": None,
            "metadata": {"num_data_points": 1, "labels": told[i], "local_hyperparams": None},
        }
    ]
    clock = Clock(one.secrets[i : i + 1], limit)
    attacker.objective = _Watched(attacker.objective, clock)
    attacker.reconstruct(payload, shared, {}, initial_data=start)
    return clock.done.get(0)


class _Watched:
    """Their objective, looked at; the interrupt is how their loop is ended early."""

    def __init__(self, inner: Any, clock: Clock) -> None:
        self.inner, self.clock = inner, clock

    def initialize(self, *args: Any) -> None:
        self.inner.initialize(*args)

    def __call__(self, model: Any, gradients: Any, candidate: Tensor, labels: Tensor) -> Any:
        if not self.clock.look([0], candidate.detach()):
            raise KeyboardInterrupt
        return self.inner(model, gradients, candidate, labels)


def described(name: str, seconds: list[float | None]) -> str:
    hit = [s for s in seconds if s is not None]
    middle = f"{statistics.median(hit):.1f} s" if hit else "none"
    return f"{name:24} {len(hit)}/{len(seconds)} images, median of these {middle}: " + " ".join(
        "-" if s is None else f"{s:.1f}" for s in seconds
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=120.0)
    asked = parser.parse_args()
    try:
        import breaching  # type: ignore[import-not-found]
    except ImportError as error:
        print(f"skipped: breaching cannot be imported ({error}); {PIP}")
        return
    torch.set_num_threads(1)
    one = case(load("cifar100"), SigmoidNet(), 10, images=asked.images)
    starts = torch.randn(one.secrets.shape, generator=seeded(10, "start"))
    every = range(asked.images)
    alone: list[float | None] = []
    other: list[float | None] = []
    for i in every:  # in turns, so that both meet the same load
        own = one.narrowed(torch.tensor([i]))
        alone.append(ours(own, starts[i : i + 1], asked.seconds).get(0))
        other.append(theirs(breaching, one, i, starts[i], asked.seconds))
    batch = ours(one, starts, asked.seconds * asked.images)
    print(described("ours, one by one", alone))
    print(described("ours, in one batch", [batch.get(i) for i in every]))
    print(f"{'':24} the whole batch in {max(batch.values(), default=0):.1f} s")
    print(described("breaching 0.1.2", other))


if __name__ == "__main__":
    main()
