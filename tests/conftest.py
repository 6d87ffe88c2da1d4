"""Small worlds the tests share."""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from hypothesis import settings

from leakscope import MLP, Dataset, GradientChannel, seeded
from leakscope.data import synthetic
from leakscope.models import build
from leakscope.training import fit

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # typer takes names that click 8.5 is giving up
    from leakscope import cli

# The same cases everywhere, and no deadline: --hypothesis-profile=default draws new ones.
settings.load_profile("ci")


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def _own_state(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The key of fingerprints is made in a folder of the tests' own."""
    os.environ["LEAKSCOPE_STATE"] = str(tmp_path_factory.mktemp("state"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with most slow tests go first, so that none of them is left alone at the end with one worker."""
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: -slow[item.path])


class Said(NamedTuple):
    """How a command ended and what it printed."""

    code: int
    out: str
    err: str


@pytest.fixture
def leakscope(monkeypatch, capsys) -> Callable[..., Said]:
    """The command line in this process: torch is imported once and not once a command."""
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))

    def command(*words: object, cwd=None) -> Said:
        if cwd is not None:
            monkeypatch.chdir(cwd)
        monkeypatch.setattr(sys, "argv", ["leakscope", *map(str, words)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return Said(ended.value.code, *capsys.readouterr())

    return command


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


@pytest.fixture
def layers() -> dict[str, torch.Tensor]:
    """Six releases of two layers."""
    rng = seeded(0, "layers")
    return {"w": torch.randn(6, 4, 5, generator=rng), "b": torch.randn(6, 7, generator=rng)}
