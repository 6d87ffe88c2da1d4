"""What an estimate rests on gives its own limits at every level, and the trials that would decide."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from builders import measure, transcript
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter
from scipy import stats

from leakscope import Transcript, advantage, auroc, seeded, success_rate, tpr_at_fpr
from leakscope.core.basis import POWER, Alarms, Basis, Counts, Deviation, Effective, Mean
from leakscope.measures.information import mutual_information

ERRORS = (0.025, 0.025)
SIMULATED = 4_000
ROUNDED = 1e-12
LEAST = stats.binom.ppf(0.001, SIMULATED, POWER) / SIMULATED  # where 9 of 10 shows, but for 1 in 1,000
MEASURES = {
    Counts: (success_rate, advantage),
    Effective: (auroc,),
    Alarms: (tpr_at_fpr, partial(tpr_at_fpr, fpr=0.05)),
    Deviation: (mutual_information,),
}


@pytest.mark.parametrize("level", [0.5, 0.8, 0.95, 0.999])
@pytest.mark.parametrize(("hits", "n"), [(0, 60), (20, 40), (31, 40), (40, 40), (5, 9), (540, 900)])
@pytest.mark.parametrize("kind", MEASURES)
def test_a_basis_of_one_level_has_the_limits_that_the_measure_has_at_another(kind, hits, n, level):
    """AUROC of few trials by Student's t, of many by the normal distribution."""
    played = transcript(hits, n, prior=0.4)
    for take in MEASURES[kind]:
        basis, other = take(played).basis, take(played, level=level)
        assert type(basis) is kind
        low, high = basis.low((1 - level) / 2), basis.high((1 - level) / 2)
        if kind is Deviation:  # its floor by Fano is not part of the basis, which is then the weaker
            assert low <= other.low + 1e-9
        else:
            assert (low, high) == pytest.approx((other.low, other.high), abs=1e-9)


def test_a_mean_over_clients_has_the_mean_of_their_limits():
    (attempt,) = measure("members").found.attacks
    basis, each = attempt.scores.auroc.basis, [client.scores.auroc for client in attempt.clients]
    assert isinstance(basis, Mean)
    assert basis.parts == tuple(one.basis for one in each)
    for error in (0.1, 0.025, 0.001):
        assert basis.low(error) == pytest.approx(np.mean([one.basis.low(error) for one in each]))
        assert basis.high(error) == pytest.approx(np.mean([one.basis.high(error) for one in each]))


def test_a_basis_is_the_same_after_it_was_written():
    adapter = TypeAdapter(Basis)
    kept = [take(transcript(30, 40)).basis for takes in MEASURES.values() for take in takes]
    for basis in (*kept, Mean(0.5, 40, tuple(kept))):
        assert adapter.validate_json(adapter.dump_json(basis)) == basis


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 60), st.floats(0, 0.9), st.floats(1e-6, 0.4), st.floats(1e-6, 0.4))
def test_limits_hold_the_value_and_widen_as_less_error_is_allowed(hits, base, one, other):
    value = max(hits / 60 - base, 0) / (1 - base)
    for basis, v in ((Counts(hits, 60, base), value), (Effective(hits / 60, 30.0, 60), hits / 60)):
        surer, looser = sorted((one, other))
        inner, outer = basis.low(looser), basis.high(looser)
        assert basis.low(surer) - ROUNDED <= inner <= v + ROUNDED
        assert basis.high(surer) + ROUNDED >= outer >= v - ROUNDED


def decided(basis, limit):
    return basis.high(ERRORS[1]) <= limit or basis.low(ERRORS[0]) > limit


@pytest.mark.parametrize("limit", [0.05, 0.2, 0.45, 0.7])
def test_enough_counts_decide_in_nine_of_ten_and_fewer_do_not(limit):
    small = Counts(65, 100, base=0.5)  # an advantage of 0.3
    n, by = small.enough(limit, ERRORS)
    assert by == "inverting Clopper-Pearson"

    def share(trials):
        drawn = np.random.default_rng(0).binomial(trials, 0.65, SIMULATED)
        hits, times = np.unique(drawn, return_counts=True)
        return np.average([decided(Counts(int(k), trials, 0.5), limit) for k in hits], weights=times)

    assert share(n) >= LEAST
    assert share(round(n * 0.8)) < POWER


@pytest.mark.parametrize(("value", "limit"), [(0.7, 0.8), (0.7, 0.65), (0.55, 0.5), (0.9, 0.95)])
def test_enough_trials_for_wilson_and_for_a_mean_decide_in_nine_of_ten(value, limit):
    """Wilson's interval by as many effective trials; of a mean its standard error falls with the root."""
    rng = np.random.default_rng(0)
    n, _ = Effective(value, 50.0, 100).enough(limit, ERRORS)
    effective = n / 2
    values = rng.binomial(round(effective), value, SIMULATED) / round(effective)
    assert np.mean([decided(Effective(v, effective, n), limit) for v in values]) >= LEAST
    n, _ = Deviation(value, 0.1, 100).enough(limit, ERRORS)
    spread = 0.1 * (100 / n) ** 0.5
    told = [decided(Deviation(v, spread, n), limit) for v in rng.normal(value, spread, SIMULATED)]
    assert np.mean(told) >= LEAST


def play(n, seed):
    """Scores whose true positives at 5% false alarms are known: members are one and a half higher."""
    rng = seeded(seed, "alarms")
    secrets = (torch.arange(n) % 2).long()
    scores = torch.randn(n, generator=rng, dtype=torch.float64) + 1.5 * secrets
    return tpr_at_fpr(Transcript(secrets, scores, torch.full((2,), 0.5)), fpr=0.05)


@pytest.mark.parametrize("limit", [0.25, 0.65])
def test_enough_trials_for_few_false_alarms_decide_in_nine_of_ten(limit):
    truth = float(stats.norm.sf(stats.norm.isf(0.05) - 1.5))
    first = next(one for one in (play(600, seed) for seed in range(99)) if abs(one.value - truth) < 0.01)
    n, _ = first.basis.enough(limit, ERRORS)
    told = [decided(play(n, 100 + seed).basis, limit) for seed in range(300)]
    assert np.mean(told) >= stats.binom.ppf(0.001, 300, POWER) / 300


def test_what_no_number_of_trials_decides_is_not_promised():
    assert Counts(50, 100).enough(0.5, ERRORS) is None
    assert Counts(50, 100).enough(0.5 + 1e-6, ERRORS) is None  # more than can be played
    assert Effective(0.7, 50.0, 100).enough(1.0, ERRORS) is None
    assert Deviation(0.5, 0.1, 100).enough(0.5, ERRORS) is None
