"""Alignment: every record's dot with one direction and its squared norm, layer by layer.

Ours forms no per-record gradient; the peers form them chunk by chunk and multiply. (Opacus's ghost
clipping gives norms without gradients too, but no dots.) Results are compared first."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from leakscope import gradients
from leakscope.core.rng import seeded
from leakscope.models import CNN, MLP, AlexNet, LeNet
from peers.sampled import OPACUS, Case, Gradients, Sampler, Transformer, chunks, quickest, samplers
from peers.table import Row, timed_rows, turns

NEEDS = (OPACUS,)
OFF = 1e-10
CHECKED = 64  # records
Aligned = dict[str, tuple[Tensor, Tensor]]  # parameter name -> dots (n,), squared norms (n,)


def rows(*, quick: bool, asked_only: bool = False) -> Iterator[Row]:
    n, rounds = (64, 3) if quick else (512, 5)
    wide = MLP((1024, 512, 256), activation="tanh")
    cases: list[tuple[Case, float | None]] = [
        (Case.of("MLP 600-1024-512-256-100", wide, (600,), classes=100, n=n), 30),
        (Case.of("the papers' CNN", CNN(), (3, 32, 32), classes=2, n=n), 1.3),
        (Case.of("LeNet", LeNet(), (1, 32, 32), classes=10, n=n), 2),
        (Case.of("a transformer", Transformer(), (32, 128), classes=2, n=min(n, 128)), 1),
        (Case.of("AlexNet", AlexNet(), (3, 32, 32), classes=100, n=n), None),
    ]
    for case, asked in cases:
        if asked is not None or not asked_only:
            yield from _compared(case, rounds, asked)


def _compared(case: Case, rounds: int, asked: float | None) -> Iterator[Row]:
    rng = seeded(0, "direction")
    direction = {name: torch.randn(value.shape, generator=rng) for name, value in case.params.items()}
    wide, along = case.doubled(CHECKED), {name: value.double() for name, value in direction.items()}
    exact = gradients.alignment(wide.model, wide.params, wide.x, wide.y, along)
    doubles = samplers(wide)
    sides = {"ours": partial(gradients.alignment, case.model, case.params, case.x, case.y, direction)}
    for name, sampler in samplers(case).items():
        size = quickest((16, 64, 256), partial(aligned, case, sampler, direction))
        off = difference(exact, aligned(wide, doubles[name], along, 16), along)
        assert off < OFF, f"{name} differs from ours by {off:.1e} on {case.name}"
        sides[f"{name} in chunks of {size}"] = partial(aligned, case, sampler, direction, size)
    equal = f"weights, {len(case.x)} records, direction; results equal to {OFF:g} in double precision"
    yield from timed_rows(f"alignment, {case.name}", turns(sides, rounds), equal, asked)


def aligned(case: Case, sampler: Sampler, direction: Gradients, size: int) -> Aligned:
    """Dots and squared norms from one peer's gradients, a chunk of which is alive at a time."""
    parts: dict[str, list[tuple[Tensor, Tensor]]] = {name: [] for name in direction}
    for found in chunks(case, sampler, size):
        for name, layer in found.items():
            flat = layer.flatten(1)
            parts[name].append((flat @ direction[name].flatten(), flat.square().sum(1)))
    return {name: tuple(map(torch.cat, zip(*part, strict=True))) for name, part in parts.items()}


def difference(one: Aligned, other: Aligned, direction: Gradients) -> float:
    """The largest over layers and records: of dots over the product of the lengths, of squared norms over
    the layer's largest."""
    worst = 0.0
    for name, (dots, squares) in one.items():
        most = squares.double().max()
        length = most.sqrt() * direction[name].double().norm()
        off = (dots - other[name][0]).abs().max() / length, (squares - other[name][1]).abs().max() / most
        worst = max(worst, *map(float, off))
    return worst
