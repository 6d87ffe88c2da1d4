"""Conformal p-values, thresholds and discoveries: exact on small cases, valid in simulation."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from builders import refuses
from scipy import stats

from leakscope.core.errors import ArgumentError, DataError
from leakscope.core.nouns import Transcript
from leakscope.measures.membership import conformal, discoveries, p_values, plr_at_fpr, t_test_as_printed

PRIOR = torch.tensor([0.5, 0.5], dtype=torch.float64)


def transcript(members, others, null=None) -> Transcript:
    scores = torch.tensor([*members, *others], dtype=torch.float64)
    secrets = torch.tensor([1] * len(members) + [0] * len(others))
    return Transcript(secrets, scores, PRIOR, null=None if null is None else torch.tensor(null).double())


def test_a_p_value_is_the_rank_among_non_members_ties_counted_against_it():
    found = p_values(transcript([5.0, 2.0, 0.0], [1.0], [0.0, 1.0, 2.0, 3.0]))
    assert found.tolist() == [1 / 5, 3 / 5, 5 / 5, 4 / 5]


def test_p_values_are_those_of_a_loop():
    rng = np.random.default_rng(0)
    scores, null = rng.integers(0, 9, 60).astype(float), rng.integers(0, 9, 40).astype(float)
    found = p_values(transcript(scores[:30], scores[30:], null)).tolist()
    assert found == [(1 + sum(n >= s for n in null)) / 41 for s in scores]


@pytest.mark.parametrize("alpha", [0.01, 0.05, 0.1])
@pytest.mark.parametrize("held", [99, 250])
def test_a_non_member_is_called_at_the_nominal_rate_at_most(alpha, held):
    """One fresh non-member a time, so that the calls are independent: their number is binomial."""
    rng, n = np.random.default_rng(1), 4_000
    scores = np.exp(2 * rng.standard_normal((n, held + 1)))  # far from normal
    above = (scores[:, 1:] >= scores[:, :1]).sum(1)
    calls = int((1 + above <= alpha * (held + 1) * (1 + 1e-12)).sum())
    for i in range(0, n, 400):
        one = transcript([0.0], scores[i, :1], scores[i, 1:])
        assert bool(p_values(one)[1] <= alpha * (1 + 1e-12)) == bool(1 + above[i] <= alpha * (held + 1))
    true = np.floor(alpha * (held + 1) + 1e-9) / (held + 1)
    assert true <= alpha
    assert stats.binom.ppf(1e-4, n, true) <= calls <= stats.binom.ppf(1 - 1e-4, n, true)


def test_conformal_calls_are_those_above_the_order_statistic():
    null = list(range(99))
    false, true = conformal(transcript([98.5, 200.0, 5.0], [98.0, 3.0, 99.0, 1.0], null), fpr=0.01)
    assert (true.value, true.n) == (2 / 3, 3)
    assert (false.value, false.n) == (1 / 4, 4)
    exact = stats.binomtest(1, 4).proportion_ci(0.95, "exact")
    assert (false.low, false.high) == pytest.approx((exact.low, exact.high), rel=1e-12)


def test_too_few_non_members_for_a_rate_says_how_many_are_needed():
    with pytest.raises(DataError, match=r"needs at least 99 held-out non-members, got 98.*at least 0.0101"):
        conformal(transcript([1.0], [0.0], list(range(98))), fpr=0.01)
    conformal(transcript([1.0], [0.0], list(range(99))), fpr=0.01)
    conformal(transcript([1.0], [0.0], list(range(19))), fpr=0.05)


def test_without_held_out_non_members_there_is_no_p_value():
    refuses(ArgumentError, "held", p_values, transcript([1.0], [0.0]))


@pytest.mark.parametrize("stays", [0.0, 1.0])
def test_the_printed_t_test_keeps_its_rate_only_where_rounds_are_independent(stays):
    """Each record's rounds against 0, as scipy has it; what stays the same over rounds breaks it."""
    rng = np.random.default_rng(2)
    rounds = rng.standard_normal((6, 4_000)) + stays * rng.standard_normal(4_000)
    tested = stats.ttest_1samp(rounds, 0.0, alternative="greater")
    alarms, hits = t_test_as_printed(transcript([50.0], tested.statistic), rounds=6, fpr=0.05)
    assert alarms.value == pytest.approx((tested.pvalue <= 0.05).mean())
    assert hits.value == 1
    assert (alarms.low <= 0.05 <= alarms.high) == (not stays)
    assert alarms.value > 0.2 or not stays


def test_discoveries_are_benjamini_and_hochbergs():
    rng = np.random.default_rng(3)
    p = np.concatenate([rng.uniform(size=50), rng.uniform(size=20) * 1e-3])
    order, wanted = np.argsort(p), 0.1
    below = np.flatnonzero(p[order] <= wanted * np.arange(1, 71) / 70)
    expected = np.zeros(70, bool)
    expected[order[: below[-1] + 1]] = True
    assert discoveries(torch.from_numpy(p), rate=wanted).tolist() == expected.tolist()
    assert discoveries(torch.zeros(0)).tolist() == []


def test_the_likelihood_ratio_never_splits_a_tie_and_stops_at_its_ceiling():
    ties = transcript([1.0] * 50, [1.0] * 100)
    assert plr_at_fpr(ties).value == 0
    apart = plr_at_fpr(transcript([2.0] * 50, [1.0] * 100))
    assert (apart.value, apart.high) == (100.0, 100.0)
    chance = np.random.default_rng(4).standard_normal(4_000)
    found = plr_at_fpr(transcript(chance[:2_000], chance[2_000:]))
    assert found.low <= 1 <= found.high
