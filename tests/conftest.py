"""Small worlds the tests share."""

from __future__ import annotations

import pytest
import torch

from leakscope import MLP, Dataset, GradientChannel, seeded
from leakscope.data import synthetic
from leakscope.models import build
from leakscope.training import fit


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def parts() -> tuple[Dataset, Dataset, Dataset]:
    """Synthetic records whose group shifts the first input: train, test, public."""
    return synthetic(records=3_000, shift=1.0).split(
        seeded(0, "split"), secret="group", train=1_500, public=800
    )


@pytest.fixture(scope="session")
def channel(parts: tuple[Dataset, Dataset, Dataset]) -> GradientChannel:
    """Two observed rounds of a small net trained on them."""
    model = build(MLP((8,)), parts[0], seeded(0, "model"))
    return GradientChannel(model, fit(model, parts[0], rounds=2, rng=seeded(0, "fit"))[:2])
