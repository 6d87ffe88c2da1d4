"""Time to an image: ours against breaching on the same net, gradient, label and starts.

Needs LEAKSCOPE_DATA/cifar100.npz. Both match the whole gradient of iDLG's sigmoid net by L-BFGS without a
line search. breaching runs its "deepleakage" settings with the label given, as ours has it (as it ships, it
searches for the label too), one image after the other; ours run alone and all in one batch. A clock stops
when the image at hand has an SSIM of 0.9, looked at every 20 evaluations and off the clock, or when
``seconds`` are over. Process time; both take turns.
"""

from __future__ import annotations

import contextlib
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from reconstruction import SSIM, Case, case, model_of  # of the benchmarks, not this file
from torch import Tensor, nn
from torch.nn import functional as F

from leakscope import load, seeded
from leakscope.attacks.matching import Matching, evaluated, lbfgs, squared
from leakscope.measures.fidelity import ssim
from leakscope.models import SigmoidNet, parameters
from peers.table import Peer, Row

NEEDS = (Peer("breaching", ("breaching", "hydra-core", "torchvision")),)
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


Times = list[float | None]  # seconds to each image; None where it was not reached


def rows(*, quick: bool) -> Iterator[Row]:
    if not NEEDS[0].installed:
        return
    images, limit = (2, 30.0) if quick else (6, 120.0)
    one = case(load("cifar100"), SigmoidNet(), 10, images=images)
    starts = torch.randn(one.secrets.shape, generator=seeded(10, "start"))
    with contextlib.redirect_stdout(sys.stderr):  # breaching prints what it loads
        alone, other = _raced(one, starts, limit)
    held = f"net, gradients, labels and starts of {images} CIFAR-100 images; SSIM {SSIM}"
    task, theirs = "reconstruction, sigmoid net", f"breaching: {described(other)}"
    equal = f"{held} within {limit:g} s each"
    yield Row(task, f"one by one: {described(alone)}", theirs, ratio(alone, other), equal)
    done = ours(one, starts, limit)
    share = max(done.values(), default=0.0) / images
    batch: Times = [share if i in done else None for i in range(images)]
    equal = f"{held}; ours all in {limit:g} s, the time until the last one shared out"
    yield Row(task, f"in one batch: {described(batch)}", theirs, ratio(batch, other), equal)


def _raced(one: Case, starts: Tensor, limit: float) -> tuple[Times, Times]:
    """Ours and breaching image by image, in turns, so that both meet the same load."""
    breaching = _imported()
    alone: Times = []
    other: Times = []
    for i in range(len(starts)):
        own = one.narrowed(torch.tensor([i]))
        alone.append(ours(own, starts[i : i + 1], limit).get(0))
        other.append(theirs(breaching, one, i, starts[i], limit))
    return alone, other


def _imported() -> Any:
    """breaching; beside a CPU build of torch, its torchvision cannot be imported before two operators that
    nothing here calls are declared."""
    try:
        import torchvision  # type: ignore[import-not-found] # noqa: F401
    except RuntimeError:
        declared = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            declared.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        import breaching  # type: ignore[import-not-found]

        breaching.declared = declared  # which end with the library that declares them
    import breaching

    return breaching


def described(seconds: Times) -> str:
    hit = [s for s in seconds if s is not None]
    middle = f", median {statistics.median(hit):.1f} s" if hit else ""
    return f"{len(hit)}/{len(seconds)} images{middle}"


def ratio(own: Times, other: Times) -> str:
    """The median over the images that both reached."""
    both = [b / a for a, b in zip(own, other, strict=True) if a is not None and b is not None]
    return f"{statistics.median(both):.2f}x ({len(both)} images both reached)" if both else "no image in both"
