"""Per-record gradients: ours, Opacus's GradSampleModule, and vmap(grad) of torch.func.

Same net, weights, records and loss; each side ends with all gradients in memory, (n, *shape) a layer.
The peers take the records in the chunks in which they are quickest. Results are compared first."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from leakscope import gradients
from leakscope.models import CNN, MLP
from peers.sampled import OPACUS, Case, Gradients, Sampler, Transformer, chunks, quickest, samplers
from peers.table import Row, timed_rows, turns

NEEDS = (OPACUS,)
OFF = 1e-10  # of a layer's largest entry
CHECKED = 64  # records


def rows(*, quick: bool) -> Iterator[Row]:
    n, rounds = (128, 3) if quick else (1_000, 9)
    for case, asked in (
        (Case.of("Adult MLP 106-32-16-2", MLP((32, 16)), (106,), classes=2, n=n), 1.0),
        (Case.of("CREMA-D MLP 988-64-64-4", MLP((64, 64)), (988,), classes=4, n=n), 1.0),
        (Case.of("the papers' CNN", CNN(), (3, 32, 32), classes=2, n=n), 1.2),
        (Case.of("a transformer", Transformer(), (32, 128), classes=2, n=128), 1.0),
    ):
        yield from _compared(case, rounds, asked)


def _compared(case: Case, rounds: int, asked: float) -> Iterator[Row]:
    n, own = len(case.x), partial(gradients.per_record, case.model, case.params, case.x, case.y)
    wide, sides = case.doubled(CHECKED), {"ours": own}
    exact, doubles = gradients.per_record(wide.model, wide.params, wide.x, wide.y), samplers(wide)
    for name, sampler in samplers(case).items():
        size = quickest((32, 128, n), partial(formed, case, sampler))
        off = difference(exact, formed(wide, doubles[name], CHECKED))
        assert off < OFF, f"{name} differs from ours by {off:.1e} of the largest entry on {case.name}"
        sides[f"{name} in chunks of {size}"] = partial(formed, case, sampler, size)
    equal = f"weights, {n} records, all gradients in memory; results equal to {OFF:g} in double precision"
    yield from timed_rows(f"per-record gradients, {case.name}", turns(sides, rounds), equal, asked)


def formed(case: Case, sampler: Sampler, size: int) -> Gradients:
    """All records' gradients of one peer."""
    parts = list(chunks(case, sampler, size))
    if len(parts) == 1:
        return parts[0]
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def difference(one: Gradients, other: Gradients) -> float:
    """The largest over layers, each over the layer's largest entry."""
    assert list(one) == list(other), f"layers {list(one)} and {list(other)}"
    return max(float((one[name] - other[name]).abs().max() / one[name].abs().max()) for name in one)
