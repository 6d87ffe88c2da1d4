"""Measures against independent arithmetic, and intervals against simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from builders import refuses
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import roc_auc_score, roc_curve

import leakscope as ls
from leakscope.core.errors import ArgumentError
from leakscope.measures.success import untruncated
from leakscope.measures.utility import majority


def scored(scores, secrets) -> ls.Transcript:
    """A binary transcript whose posterior odds are e to the score."""
    scores = torch.as_tensor(np.asarray(scores), dtype=torch.float64)
    return ls.Transcript(
        torch.as_tensor(np.asarray(secrets)).long(),
        torch.stack([torch.sigmoid(-scores), torch.sigmoid(scores)], 1),
        torch.tensor([0.5, 0.5]),
    )


def gaussians(rng, n, gap):
    """Secrets at equal odds and scores that are shifted by the gap for positives."""
    secrets = rng.integers(0, 2, n)
    return rng.normal(size=n) + gap * secrets, secrets


def covers(found: list[ls.Estimate], truth: float) -> bool:
    """Whether the intervals hold the truth as often as they say, but for 1 case in 100."""
    covered = sum(e.low <= truth <= e.high for e in found)
    return stats.binomtest(covered, len(found), 0.95, alternative="less").pvalue > 0.01


def test_success_rate_and_its_interval_equal_the_binomial():
    guesses = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.3, 0.7]])
    rate = ls.success_rate(ls.Transcript(torch.tensor([0, 1, 1, 1]), guesses, torch.tensor([0.5, 0.5])))
    assert rate.value == 0.75
    assert rate.low == pytest.approx(stats.beta.ppf(0.025, 3, 2))
    assert rate.high == pytest.approx(stats.beta.ppf(0.975, 4, 1))


def test_advantage_is_zero_at_the_largest_prior_and_one_at_certainty():
    prior = torch.tensor([0.25, 0.75])
    secrets = torch.tensor([0, 1, 1, 1])
    always = ls.Transcript(secrets, torch.tensor([[0.1, 0.9]] * 4), prior)
    assert ls.guessing(always) == 0.75
    assert ls.advantage(always).value == 0.0
    assert ls.advantage(always).high > 0
    right = ls.Transcript(secrets, torch.nn.functional.one_hot(secrets).double(), prior)
    assert ls.advantage(right).value == 1.0


@given(st.integers(5, 60), st.integers(1, 6), st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_auroc_equals_scikit_learn_with_ties(n, levels, seed):
    rng = np.random.default_rng(seed)
    secrets = np.append(rng.integers(0, 2, n), [0, 1])
    scores = rng.integers(0, levels, n + 2).astype(float)
    assert ls.auroc(scored(scores, secrets)).value == pytest.approx(roc_auc_score(secrets, scores))


def test_auroc_of_many_values_is_the_macro_one_vs_rest():
    rng = np.random.default_rng(0)
    secrets = rng.integers(0, 4, 500)
    posterior = rng.dirichlet(np.ones(4), 500) + 0.5 * np.eye(4)[secrets]
    posterior /= posterior.sum(1, keepdims=True)
    transcript = ls.Transcript(torch.as_tensor(secrets), torch.as_tensor(posterior), torch.full((4,), 0.25))
    expected = roc_auc_score(secrets, posterior, multi_class="ovr", average="macro")
    assert ls.auroc(transcript).value == pytest.approx(expected)


def test_log_odds_tell_apart_what_rounds_to_certainty():
    scores = np.array([50.0, 60.0, 70.0, 45.0])  # all posteriors are 1.0 in float64
    assert ls.auroc(scored(scores, [0, 1, 1, 0])).value == 1.0


@given(
    st.integers(20, 300), st.integers(2, 40), st.sampled_from([0.001, 0.01, 0.1, 0.5]), st.integers(0, 10**6)
)
@settings(max_examples=80, deadline=None)
def test_tpr_at_fpr_is_the_best_real_threshold_ties_together(n, levels, fpr, seed):
    rng = np.random.default_rng(seed)
    secrets = np.append(rng.integers(0, 2, n), [0, 1])
    scores = rng.integers(0, levels, n + 2).astype(float)
    false, true, _ = roc_curve(secrets, scores, drop_intermediate=False)
    expected = true[false <= fpr].max()
    estimate = ls.tpr_at_fpr(scored(scores, secrets), fpr=fpr)
    assert estimate.value == pytest.approx(expected)
    assert estimate.low <= estimate.value <= estimate.high


def test_constant_scores_have_no_true_positives_at_few_false_ones():
    assert ls.tpr_at_fpr(scored(np.zeros(100), np.arange(100) % 2)).value == 0.0


def test_the_roc_starts_at_the_origin_and_ends_at_one_and_is_a_staircase():
    rng = np.random.default_rng(1)
    scores, secrets = gaussians(rng, 1_000, 1.5)
    curve = np.array(ls.roc(scored(scores, secrets)))
    assert tuple(curve[-1]) == (1.0, 1.0)
    assert (np.diff(curve, axis=0) >= 0).all()
    false, true, _ = roc_curve(secrets, scores, drop_intermediate=False)
    for f, t in curve[::10]:
        assert t == pytest.approx(true[false <= f + 1e-12].max())


def test_a_transcript_without_one_of_the_values_is_refused():
    refuses(ArgumentError, "play more trials", ls.auroc, scored([0.1, 0.2], [1, 1]))


@pytest.mark.parametrize(("gap", "n"), [(0.0, 200), (1.0, 200), (2.5, 200), (2.5, 2_000), (4.0, 400)])
def test_auroc_intervals_cover_the_true_area(gap, n):
    rng = np.random.default_rng([int(gap * 10), n])
    truth = stats.norm.cdf(gap / math.sqrt(2))
    found = [ls.auroc(scored(*gaussians(rng, n, gap))) for _ in range(400)]
    assert covers(found, truth)


def test_macro_auroc_intervals_cover_under_no_leak():
    rng, found = np.random.default_rng(3), []
    for _ in range(300):
        secrets, posterior = rng.integers(0, 5, 300), rng.dirichlet(np.ones(5), 300)
        played = ls.Transcript(torch.as_tensor(secrets), torch.as_tensor(posterior), torch.full((5,), 0.2))
        found.append(ls.auroc(played))
    assert covers(found, 0.5)


@pytest.mark.parametrize(
    ("gap", "fpr", "n"), [(0.0, 0.01, 1_000), (2.0, 0.01, 1_000), (2.0, 0.1, 300), (3.5, 0.001, 4_000)]
)
def test_tpr_intervals_cover_the_true_rate(gap, fpr, n):
    rng = np.random.default_rng([int(gap * 10), n])
    truth = stats.norm.sf(stats.norm.isf(fpr) - gap)
    found = [ls.tpr_at_fpr(scored(*gaussians(rng, n, gap)), fpr=fpr) for _ in range(300)]
    assert covers(found, truth)


def test_success_and_advantage_intervals_cover():
    rng, found = np.random.default_rng(4), []
    for _ in range(400):
        scores, secrets = gaussians(rng, 300, 1.0)
        found.append(ls.advantage(scored(scores - 0.5, secrets)))
    assert covers(found, 2 * stats.norm.cdf(0.5) - 1)


def test_a_perfect_area_still_has_a_lower_limit():
    estimate = ls.auroc(scored([-1.0] * 30 + [1.0] * 30, [0] * 30 + [1] * 30))
    assert estimate.value == 1.0
    assert 0.8 < estimate.low < 1.0


def test_over_seeds_is_the_mean_with_students_interval():
    values = [0.90, 0.92, 0.97]
    single = [ls.Estimate("AUROC", v, v - 0.01, v + 0.01, 0.95, 100, "Wilson") for v in values]
    mean = ls.over_seeds(single)
    low, high = stats.t.interval(0.95, 2, np.mean(values), stats.sem(values))
    assert (mean.value, mean.low, mean.high) == pytest.approx((np.mean(values), low, min(high, 1.0)))
    assert ls.over_seeds(single[:1]) == single[0]
    with pytest.raises(ArgumentError):
        ls.over_seeds([])


def test_the_advantage_over_seeds_is_not_biased_by_cutting_at_zero():
    rng, found = np.random.default_rng(9), []
    for _ in range(200):
        rates = rng.binomial(5_000, 0.5, 20) / 5_000
        each = [ls.Estimate("advantage", max(p - 0.5, 0) / 0.5, 0.0, 0.1, 0.95, 5_000, "m") for p in rates]
        found.append(ls.over_seeds(each, raw=[untruncated(p, 0.5) for p in rates]))
    assert covers(found, 0)


def test_utility_equals_scikit_learn():
    rng = np.random.default_rng(5)
    labels = rng.integers(0, 3, 300)
    logits = torch.as_tensor(rng.normal(size=(300, 3)) + np.eye(3)[labels])
    posterior = torch.softmax(logits, 1).numpy()
    assert ls.accuracy(logits, torch.as_tensor(labels)).value == pytest.approx(
        (logits.argmax(1).numpy() == labels).mean()
    )
    assert ls.task_auroc(logits, torch.as_tensor(labels)).value == pytest.approx(
        roc_auc_score(labels, posterior, multi_class="ovr")
    )
    assert majority(torch.tensor([0, 1, 1])) == pytest.approx(2 / 3)


def test_an_advantage_over_side_knowledge_covers_though_guessing_is_measured_too():
    rng, found = np.random.default_rng(6), []
    for _ in range(300):
        secrets = rng.integers(0, 2, 400)
        said, blind = (np.where(rng.random(400) < rate, secrets, 1 - secrets) for rate in (0.8, 0.7))
        guesses, blind = (torch.eye(2, dtype=torch.float64)[torch.as_tensor(one)] for one in (said, blind))
        played = ls.Transcript(torch.as_tensor(secrets), guesses, torch.tensor([0.5, 0.5]), blind=blind)
        found.append(ls.advantage(played))
    assert covers(found, (0.8 - 0.7) / (1 - 0.7))


def test_of_200_audits_of_noise_the_advantage_covers_zero_in_at_least_94_percent():
    rng = np.random.default_rng(11)
    covered = 0
    for _ in range(200):
        scores, secrets = gaussians(rng, 1_000, 0.0)
        covered += ls.advantage(scored(scores, secrets)).low <= 0
    assert covered >= 188


@pytest.mark.parametrize(
    ("prior", "n"), [((0.85, 0.15), 20), ((0.97, 0.03), 200), ((0.85, 0.1, 0.03, 0.01, 0.01), 300)]
)
def test_the_interval_of_an_area_covers_chance_where_a_value_is_rare(prior, n):
    rng, missed, reps = np.random.default_rng(0), 0, 0
    for _ in range(2_000):
        secrets = torch.tensor(rng.choice(len(prior), n, p=prior))
        if len(secrets.unique()) < 2:
            continue
        guesses = torch.tensor(rng.dirichlet(np.ones(len(prior)), n))
        found = ls.auroc(ls.Transcript(secrets, guesses, torch.tensor(prior)))
        missed, reps = missed + (not found.low <= 0.5 <= found.high), reps + 1
    assert reps > 1_800
    assert missed <= stats.binom.ppf(0.999, reps, 0.05)


@pytest.mark.parametrize("rare", [2, 3, 5, 10, 30])
@pytest.mark.parametrize(("shift", "spread"), [(0.0, 1.0), (2.0, 1.0), (0.0, 3.0), (2.0, 3.0)])
def test_the_interval_of_an_area_covers_it_whatever_the_spread_of_a_rare_value(rare, shift, spread):
    """The rare value's scores are N(shift, spread^2), the others' N(0, 1): the area has a closed form."""
    rng = np.random.default_rng(1)
    truth = stats.norm.cdf(shift / np.sqrt(1 + spread**2))
    secrets = torch.arange(200) < rare
    prior = torch.tensor([1 - rare / 200, rare / 200])
    missed = 0
    for _ in range(1_000):
        scores = rng.normal(size=200)
        scores[:rare] = shift + spread * scores[:rare]
        found = ls.auroc(ls.Transcript(secrets.long(), torch.tensor(scores), prior))
        missed += not found.low <= truth <= found.high
    assert missed <= stats.binom.ppf(0.999, 1_000, 0.05)


@pytest.mark.parametrize(("rare", "width"), [(1, 0.22), (2, 0.22), (3, 0.22), (4, 0.22), (10, 0.1)])
def test_one_rare_value_of_seven_widens_the_interval_of_their_mean_by_its_share_at_most(rare, width):
    """The areas are equal by symmetry, whatever the others' values: half a million pairs tell them."""
    rng = np.random.default_rng(2)
    first, second = (rng.normal(size=(500_000, 7)) + 1.5 * np.eye(7)[i] for i in range(2))
    odds = [z[:, 0] - np.log(np.exp(z[:, 1:]).sum(1)) for z in (first, second)]
    truth = float(np.mean(odds[0] > odds[1]))
    counts = [900, 600, 250, 150, 60, 40 - rare, rare]
    secrets = torch.repeat_interleave(torch.arange(7), torch.tensor(counts))
    prior = torch.tensor(counts) / sum(counts)
    missed, wide = 0, 0.0
    for _ in range(300):
        scores = rng.normal(size=(2_000, 7)) + 1.5 * np.eye(7)[secrets.numpy()]
        found = ls.auroc(ls.Transcript(secrets, torch.tensor(scores).softmax(1), prior))
        missed, wide = missed + (not found.low <= truth <= found.high), wide + found.high - found.low
    assert missed <= stats.binom.ppf(0.999, 300, 0.05)
    assert wide / 300 < width


def test_one_trial_of_a_value_tells_nothing_of_the_area():
    found = ls.auroc(ls.Transcript(torch.tensor([0, 0, 0, 1]), torch.arange(4.0), torch.tensor([0.75, 0.25])))
    assert (found.value, found.low, found.high) == (1.0, 0.0, 1.0)


def test_equal_seeds_keep_the_widest_of_their_intervals():
    """Seeds that all found everything have no spread, and know no less than the least sure of them."""
    each = [ls.Estimate("tpr", 1.0, low, 1.0, 0.95, 50, "exact") for low in (0.9, 0.8, 0.85)]
    mean = ls.over_seeds(each)
    assert (mean.value, mean.low, mean.high) == (1.0, 0.8, 1.0)
