"""Time to an image, and images in equal time: ours against breaching on the same net, gradient and label.

Needs LEAKSCOPE_DATA/cifar100.npz. Sigmoid net of iDLG: both match the whole gradient by L-BFGS without a line
search, from the same starts. breaching runs its "deepleakage" settings with the label given, as ours has it
(as it ships, it searches for the label too), one image after the other; ours run alone and all in one batch.
A clock stops when the image at hand has an SSIM of 0.9, looked at every 20 evaluations and off the clock, or
when ``seconds`` are over. `LayerByLayer` solves for the image and has no start; its clock is its whole run,
its own check included.

ReLU LeNet, whose pools lose what they take: both match directions, with total variation. breaching runs its
"invertinggradients" settings, of whose 24,000 iterations as many as fit into ``seconds``, its rate falling
with them; ours have the same ``seconds`` for each release, all releases in one batch. Process time.
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

from leakscope import Transcript, load, seeded
from leakscope.attacks.layer_by_layer import LayerByLayer
from leakscope.attacks.matching import Matching, evaluated, lbfgs, squared
from leakscope.attacks.reconstruction import InvertingGradients
from leakscope.measures.fidelity import matched, ssim
from leakscope.models import LeNet, SigmoidNet, parameters
from peers.table import Peer, Row

NEEDS = (Peer("breaching", ("breaching", "hydra-core", "torchvision")),)
LOOK = 20  # evaluations between two looks at the images
SEED, FRESH = 10, 41  # of the sigmoid net, and of LeNet, whose settings were chosen on another
TV = 0.05  # of ours: the best of .2 (breaching's own), .05, .02 and .01 on six images of seed 20
PACE = 100  # iterations that tell how many fit into the seconds


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
    attacker = breaching.attacks.prepare_attack(model_of(one), nn.CrossEntropyLoss(), settings)
    payload, shared = _told(one, i)
    clock = Clock(one.secrets[i : i + 1], limit)
    attacker.objective = _Watched(attacker.objective, clock)
    attacker.reconstruct(payload, shared, {}, initial_data=start)
    return clock.done.get(0)


def _told(one: Case, i: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """A release as breaching has it, the labels with it."""
    release, told = one.view.releases[0], one.view.public["labels"]
    assert isinstance(told, Tensor)
    shape = SimpleNamespace(shape=tuple(one.secrets.shape[2:]), modality="vision")
    parameters = [p.detach() for p in model_of(one).parameters()]
    payload = [{"parameters": parameters, "buffers": [], "metadata": shape}]
    known = {"num_data_points": one.secrets.shape[1], "labels": told[i], "local_hyperparams": None}
    gradients = [layer[i] for layer in release.layers.values()]
    return payload, [{"gradients": gradients, "buffers": None, "metadata": known}]


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
    with contextlib.redirect_stdout(sys.stderr):  # breaching prints what it loads
        breaching = _imported()
    yield from _smooth(breaching, quick=quick)
    for batch, releases in ((1, 2 if quick else 8), (4, 1 if quick else 3)):
        yield _pooled(breaching, batch, releases, 2.0 if quick else 6.0)


def _smooth(breaching: Any, *, quick: bool) -> Iterator[Row]:
    images, limit = (2, 30.0) if quick else (6, 120.0)
    one = case(load("cifar100"), SigmoidNet(), SEED, images=images)
    starts = torch.randn(one.secrets.shape, generator=seeded(SEED, "start"))
    with contextlib.redirect_stdout(sys.stderr):
        alone, solved, other = _raced(breaching, one, starts, limit)
    held = f"net, gradients, labels and starts of {images} CIFAR-100 images; SSIM {SSIM}"
    task, theirs = "reconstruction, sigmoid net", f"breaching: {described(other)}"
    equal = f"{held} within {limit:g} s each"
    yield Row(task, f"layer by layer: {described(solved)}", theirs, ratio(solved, other), equal)
    yield Row(task, f"one by one: {described(alone)}", theirs, ratio(alone, other), equal)
    done = ours(one, starts, limit)
    share = max(done.values(), default=0.0) / images
    batch: Times = [share if i in done else None for i in range(images)]
    equal = f"{held}; ours all in {limit:g} s, the time until the last one shared out"
    yield Row(task, f"in one batch: {described(batch)}", theirs, ratio(batch, other), equal)


def _raced(breaching: Any, one: Case, starts: Tensor, limit: float) -> tuple[Times, Times, Times]:
    """Ours, ours by equations, and breaching image by image, in turns, so that all meet the same load."""
    alone: Times = []
    solved: Times = []
    other: Times = []
    for i in range(len(starts)):
        own = one.narrowed(torch.tensor([i]))
        alone.append(ours(own, starts[i : i + 1], limit).get(0))
        solved.append(_solved(own))
        other.append(theirs(breaching, one, i, starts[i], limit))
    return alone, solved, other


def _solved(one: Case) -> float | None:
    """Seconds to one image by linear equations; None where what they give is not like it."""
    started = time.process_time()
    attempt = LayerByLayer().attempt(one.knowledge, one.view)
    taken = time.process_time() - started
    return taken if float(one.scores(attempt).min()) >= SSIM else None


def _pooled(breaching: Any, batch: int, releases: int, seconds: float) -> Row:
    """The SSIM of both in equal time where nobody recovers much."""
    one = case(load("cifar100"), LeNet(), FRESH, images=batch * releases, batch=batch)
    with contextlib.redirect_stdout(sys.stderr):
        pace = min(_inverted(breaching, one, 0, PACE)[1] for _ in range(2)) / PACE  # the first is cold
        parts = [_inverted(breaching, one, i, int(seconds / pace)) for i in range(releases)]
    other = torch.cat([part[0] for part in parts]), sum(part[1] for part in parts) / releases
    pace = min(_inverted_here(one, PACE)[1] for _ in range(2)) / PACE
    own = _inverted_here(one, int(seconds / pace))
    sides = [
        f"SSIM {found.mean():.3f} in {taken:.1f} s, {int((found >= SSIM).sum())}/{found.numel()} at {SSIM}"
        for found, taken in (own, other)
    ]
    return Row(
        f"reconstruction, ReLU LeNet, batch of {batch}",
        f"InvertingGradients: {sides[0]}",
        f"breaching: {sides[1]}",
        f"{float(own[0].mean() - other[0].mean()):+.3f}",
        f"net, gradients and labels of {releases} releases, {seconds:g} s each; public mean {one.floor:.3f}",
    )


def _inverted_here(one: Case, iterations: int) -> tuple[Tensor, float]:
    """The SSIM (t, k) of all releases, and the seconds that one took."""
    attack = InvertingGradients(label="known", iterations=iterations, tv=TV)
    started = time.process_time()
    attempt = attack.attempt(one.knowledge, one.view, seeded(FRESH, "start"))
    return one.scores(attempt), (time.process_time() - started) / len(one.secrets)


def _inverted(breaching: Any, one: Case, i: int, iterations: int) -> tuple[Tensor, float]:
    """The same of breaching, for one release (1, k)."""
    settings = breaching.get_attack_config("invertinggradients", overrides=["++attack_type=optimization"])
    settings.optim.max_iterations, settings.optim.callback = iterations, iterations + 1
    attacker = breaching.attacks.prepare_attack(model_of(one), nn.CrossEntropyLoss(), settings)
    payload, shared = _told(one, i)
    start = torch.randn(one.secrets.shape[1:], generator=seeded(FRESH, "start", i))
    started = time.process_time()
    found, _ = attacker.reconstruct(payload, shared, {}, initial_data=start)
    taken = time.process_time() - started
    secret = one.secrets[i : i + 1]
    return ssim(matched(Transcript(secret, found["data"][None], torch.empty(0))), secret), taken


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
