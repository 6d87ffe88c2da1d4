"""The head to head's own pieces, which need no peer: the table, the missing packages, what is held equal."""

from __future__ import annotations

import math
import sys
from importlib import import_module
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from leakscope import Transcript

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
PARTS = ("gradients", "alignment", "reconstruction", "membership", "epsilon")


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch):
    """Imports a module of the head to head."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))

    def module(name: str) -> ModuleType:
        return import_module(f"peers.{name}")

    return module


def test_every_missing_package_is_named_with_its_pinned_version_in_one_pip_line(peers) -> None:
    pinned = peers("table").REQUIREMENTS.read_text().splitlines()
    for part in PARTS:
        for peer in peers(part).NEEDS:
            said = peer.missing
            assert "\n" not in said
            assert said.startswith(f"skipped: {peer.module} is not installed; pip install ")
            asked = said.split("constraints.txt ")[1].split()
            assert asked
            assert set(asked) <= set(pinned)


def test_without_packages_the_table_is_empty_and_each_is_said_to_be_missing_once(
    peers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers("table"), "find_spec", lambda name: None)
    said = list(peers("__main__").lines(["membership", "reconstruction", "epsilon", "epsilon"], quick=True))
    table, skipped = said[: said.index("")], said[said.index("") + 1 :]
    assert table == [peers("table").header()]
    assert [line.split()[1] for line in skipped] == ["art", "breaching", "jax_privacy", "privacy_estimates"]


def test_a_row_has_a_cell_for_each_heading_whatever_it_says(peers) -> None:
    table = peers("table")
    row = table.Row("a|b", "1 s", "them: 2 s", "2.00x", "records")
    heading = table.header().splitlines()[0]
    assert table.printed(row).replace("\\|", "").count("|") == heading.count("|") == 6


def test_sides_take_turns_and_the_first_time_is_not_counted(peers) -> None:
    calls: list[str] = []
    sides = {name: (lambda name=name: calls.append(name)) for name in ("ours", "theirs")}
    taken = peers("table").turns(sides, 2)
    assert calls == ["ours", "theirs"] * 3
    assert {name: len(times) for name, times in taken.items()} == {"ours": 2, "theirs": 2}


def test_the_ratio_is_the_median_over_rounds_of_the_peers_time_over_ours(peers) -> None:
    (row,) = peers("table").timed_rows("t", {"ours": [1.0, 2.0, 4.0], "peer": [3.0, 2.0, 8.0]}, "all")
    assert (row.ours, row.peer, row.compared) == ("2.00 s", "peer: 3.00 s", "2.00x")


def test_no_module_has_the_name_of_one_that_can_be_imported(peers) -> None:
    others = [path for path in sys.path if Path(path).resolve() != BENCHMARKS]
    compared = {peer.module for part in PARTS for peer in peers(part).NEEDS}
    for path in (BENCHMARKS / "peers").glob("[!_]*.py"):
        assert path.stem not in sys.stdlib_module_names | compared
        assert PathFinder.find_spec(path.stem, others) is None


def test_the_laplace_mechanism_has_the_stated_epsilon_at_delta(peers) -> None:
    epsilon = peers("epsilon")
    truth = epsilon.laplace(1.0).truth

    def excess(s: float) -> float:
        return max(stats.laplace.pdf(s, 1) - math.exp(truth) * stats.laplace.pdf(s), 0.0)

    delta = integrate.quad(excess, 0.9, 1.0, points=[1.0], epsabs=1e-12)[0]
    delta += integrate.quad(excess, 1.0, 60.0, epsabs=1e-12)[0]
    assert delta == pytest.approx(epsilon.DELTA, rel=1e-5)


@pytest.mark.parametrize("bit", [0, 1])
def test_laplace_scores_are_laplace_around_their_bit(peers, bit: int) -> None:
    bits = torch.full((4_000,), bit)
    scores = peers("epsilon").laplace(2.0).scores(bits, torch.Generator().manual_seed(0))
    assert stats.kstest(scores.numpy(), stats.laplace(bit, 0.5).cdf).pvalue > 0.01


def test_the_threshold_lent_to_a_peer_certifies_as_much_as_any_other(peers) -> None:
    epsilon, rng = peers("epsilon"), np.random.default_rng(0)
    zero, one = rng.normal(size=60), rng.normal(1.5, size=50)

    def certified(cut: float) -> float:
        alarms, misses = int((zero >= cut).sum()), int((one < cut).sum())
        false, missed = (
            stats.binomtest(k, n).proportion_ci(epsilon.LEVEL, method="exact").high
            for k, n in ((alarms, len(zero)), (misses, len(one)))
        )
        return max((1 - epsilon.DELTA - false) / missed, (1 - epsilon.DELTA - missed) / false)

    best = max(certified(cut) for cut in np.concatenate([zero, one]))
    assert certified(epsilon.certifying(zero, one)) == pytest.approx(best, rel=1e-9)


def test_the_membership_threshold_has_the_best_balanced_accuracy(peers) -> None:
    rng = torch.Generator().manual_seed(1)
    secrets = torch.arange(80) % 2
    scores = torch.randn(80, generator=rng, dtype=torch.float64) + secrets
    said = Transcript(secrets, scores, torch.full((2,), 0.5, dtype=torch.float64))

    def right(cut: float) -> int:
        return int(((scores > cut) == (secrets == 1)).sum())

    levels = scores.sort().values
    best = max(right(float(cut)) for cut in (levels[1:] + levels[:-1]) / 2)
    assert right(peers("membership").threshold(said)) == best


def test_gradients_differ_in_units_of_the_layers_largest_entry(peers) -> None:
    exact = {"w": torch.tensor([[1.0, 2.0]])}
    assert peers("gradients").difference(exact, {"w": torch.tensor([[1.0, 2.5]])}) == 0.25
