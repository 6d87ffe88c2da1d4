"""Estimates of mutual information against closed forms, other implementations and their own promises."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from builders import refuses
from scipy import integrate, special, stats
from sklearn.feature_selection import mutual_info_classif, mutual_info_regression

from leakscope import Batch, Dataset, GradientChannel, Linear, Noise, seeded
from leakscope.core.errors import ArgumentError
from leakscope.guards import estimators
from leakscope.guards.estimators import CLUB, MINE, InfoNCE, club, dv, infonce, jsd, mine
from leakscope.guards.neighbours import NearestNeighbours
from leakscope.measures.mutual import layer_information
from leakscope.models import MLP, build, parameters

JOINT = torch.tensor([[0.3, 0.1, 0.05], [0.05, 0.2, 0.3]], dtype=torch.float64)
QUICK = {"hidden": 32, "epochs": 20, "rate": 5e-3}


def normal(*shape, rng):
    return torch.randn(*shape, generator=rng, dtype=torch.float64)


def gaussians(dimensions, nats, n, rng):
    """Pairs of vectors with this mutual information, the same in every dimension, and the correlation."""
    r = math.sqrt(1 - math.exp(-2 * nats / dimensions))
    x = normal(n, dimensions, rng=rng)
    return x, r * x + math.sqrt(1 - r**2) * normal(n, dimensions, rng=rng), r


def exact_scores(x, y, r):
    """log p(y_j | x_i), and the log of its ratio to p(y_j): the best critic there is."""
    variance = torch.full_like(x, math.log(1 - r**2))
    conditional = estimators.gaussian_scores(r * x, variance, y)
    return conditional, conditional + (y.square().sum(1) + y.shape[1] * math.log(2 * math.pi)) / 2


def exact_information(joint):
    product = joint.sum(1, keepdim=True) * joint.sum(0)
    return float((joint * (joint / product).log()).sum())


def labelled(n, rng, *, shift=1.0):
    """A fair coin, a number around +shift or -shift in units of its noise, and their information."""
    y = torch.randint(2, (n,), generator=rng)
    x = (2 * y - 1) * shift + normal(n, rng=rng)

    def density(v):
        here, there = stats.norm.pdf(v, shift), stats.norm.pdf(v, -shift)
        return special.xlogy(here, 2 * here / (here + there))

    return x, y, integrate.quad(density, -10, 10 + shift)[0]


@pytest.mark.parametrize("nats", [0.0, 0.25, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("dimensions", [1, 2, 5])
def test_lower_bounds_stay_below_the_truth_and_clubs_above_it(dimensions, nats):
    rng = seeded(0, "gaussians", dimensions, str(nats))
    x, y, _ = gaussians(dimensions, nats, 400, rng)
    for lower in (MINE(**QUICK), InfoNCE(**QUICK)):
        found = lower(x, y, rng)
        assert found.low <= nats, lower
        assert "lower bound" in found.method
    above = CLUB(**QUICK)(x, y, rng)
    assert above.high >= nats
    assert "upper bound" in above.method
    assert NearestNeighbours()(x, y, rng).low <= nats


@pytest.mark.parametrize("nats", [0.0, 0.25, 0.5, 1.0, 2.0])
def test_nearest_neighbours_find_the_information_of_two_numbers(nats):
    rng = seeded(1, "numbers", str(nats))
    x, y, _ = gaussians(1, nats, 1_000, rng)
    found = NearestNeighbours()(x, y, rng)
    assert found.low <= nats <= found.high


@pytest.mark.parametrize("kind", [MINE, InfoNCE])
def test_a_learned_critic_finds_most_of_one_nat(kind):
    rng = seeded(2, "one nat")
    x, y, _ = gaussians(2, 1.0, 2_000, rng)
    found = kind(**QUICK)(x, y, rng)
    assert found.value > 0.8
    assert found.low <= 1.0


def test_heavy_tails_hide_nothing_from_a_critic():
    rng = seeded(2, "tails")
    x, y, _ = gaussians(2, 1.0, 2_000, rng)
    found = MINE(**QUICK)(x**9, (3 * y).exp(), rng)
    assert found.value > 0.8
    assert found.low <= 1.0


def test_normal_scores_are_monotone_normal_where_fitted_and_even_for_ties():
    values = torch.tensor(
        [[3.0, 1.0], [-8.0, 1.0], [100.0, 0.0], [5.0, 0.0], [4.0, 7.0]], dtype=torch.float64
    )
    found = estimators.normal_scores(values, torch.arange(4))
    wanted = stats.norm.ppf([[3 / 8, 3 / 4], [1 / 8, 3 / 4], [7 / 8, 1 / 4], [5 / 8, 1 / 4]])
    torch.testing.assert_close(found[:4], torch.from_numpy(wanted))
    assert found[4].tolist() == pytest.approx(
        [0.0, wanted[0, 1]]
    )  # halfway between ranks 3/8 and 5/8; beyond all
    codes = torch.arange(5)
    assert estimators.normal_scores(codes, codes) is codes


@pytest.mark.parametrize("kind", [MINE, InfoNCE, CLUB])
def test_of_independent_variables_nothing_is_found(kind):
    rng = seeded(3, "independent")
    found = kind(**QUICK)(normal(600, 3, rng=rng), normal(600, 2, rng=rng), rng)
    assert abs(found.value) < 0.05
    codes = torch.randint(4, (600,), generator=rng)
    found = kind(**QUICK)(normal(600, 3, rng=rng), codes, rng)
    assert abs(found.value) < 0.05


@pytest.mark.parametrize("kind", [MINE, InfoNCE])
def test_lower_bounds_of_a_label_are_below_and_near_its_information(kind):
    rng = seeded(4, "label")
    x, y, truth = labelled(1_000, rng)
    found = kind(**QUICK)(x, y, rng)
    assert found.low <= truth <= found.high + 0.05


def test_club_and_neighbours_of_a_label_agree_with_its_information():
    rng = seeded(5, "label")
    x, y, truth = labelled(1_000, rng)
    assert CLUB(**QUICK)(x, y, rng).high >= truth
    found = NearestNeighbours()(x, y, rng)
    assert found.low <= truth <= found.high


def test_a_label_that_is_given_away_has_its_entropy():
    rng = seeded(6, "given away")
    y = torch.randint(3, (600,), generator=rng)
    x = 20.0 * y[:, None].double() + normal(600, 2, rng=rng)
    entropy = float(special.entr(np.bincount(y) / 600).sum())
    assert NearestNeighbours()(x, y, rng).value == pytest.approx(entropy, abs=0.02)
    for lower in (MINE(hidden=32), InfoNCE(hidden=32)):
        assert entropy - 0.1 < lower(x, y, rng).value < entropy + 0.05


def test_neighbours_equal_scikit_learn_where_it_has_one_column():
    rng = seeded(7, "scikit-learn")
    x, y, _ = gaussians(1, 0.5, 300, rng)
    theirs = mutual_info_regression(x.numpy(), y[:, 0].numpy(), n_neighbors=3, random_state=0)[0]
    assert NearestNeighbours()(x, y, rng).value == pytest.approx(theirs, abs=1e-6)
    x, codes, _ = labelled(300, rng)
    theirs = mutual_info_classif(x[:, None].numpy(), codes.numpy(), n_neighbors=5, random_state=0)[0]
    assert NearestNeighbours(k=5)(x, codes, rng).value == pytest.approx(theirs, abs=1e-6)


@pytest.mark.parametrize(("dimensions", "nats"), [(1, 0.5), (5, 0.5)])
def test_the_delta_method_covers_what_a_known_critic_promises(dimensions, nats):
    rng, trials = seeded(8, "coverage", dimensions), 300
    expected = dimensions * (math.exp(2 * nats / dimensions) - 1)  # r^2 / (1 - r^2) in every dimension
    hits = {MINE: 0, CLUB: 0}
    for _ in range(trials):
        x, y, r = gaussians(dimensions, nats, 300, rng)
        conditional, ratio = exact_scores(x, y, r)
        for kind, scores, truth in ((MINE, ratio, nats), (CLUB, conditional, expected)):
            terms = kind()._terms([scores[:150, :150], scores[150:, 150:]])
            found = estimators.mean_of(terms, level=0.95, method="")
            hits[kind] += found.low <= truth <= found.high
    for count in hits.values():
        assert 0.90 <= count / trials <= 0.99


def test_the_interval_covers_what_infonce_expects():
    rng = seeded(9, "coverage")

    def blocks(n):
        return [exact_scores(*gaussians(1, 0.5, 50, rng))[1] for _ in range(n)]

    expected = float(torch.stack([infonce(scores) for scores in blocks(3_000)]).mean())
    intervals = [estimators.mean_of(InfoNCE()._terms(blocks(6)), level=0.95, method="") for _ in range(300)]
    assert 0.90 <= sum(found.low <= expected <= found.high for found in intervals) / 300 <= 0.99


def test_the_terms_average_to_the_bound():
    rng = seeded(10, "terms")
    scores = normal(40, 40, rng=rng)
    apart = scores[~torch.eye(40, dtype=torch.bool)]
    assert float(MINE()._terms([scores]).mean()) == pytest.approx(float(dv(scores.diagonal(), apart)))
    assert float(InfoNCE()._terms([scores]).mean()) == pytest.approx(float(infonce(scores)))
    assert float(CLUB()._terms([scores]).mean()) == pytest.approx(float(club(scores)) * 40 / 39)


def test_donsker_and_varadhan_reach_the_information_at_the_log_ratio():
    ratio = (JOINT / (JOINT.sum(1, keepdim=True) * JOINT.sum(0))).log()
    counts = (JOINT * 2_000).round().long()  # exact multiplicities of every pair
    product = ((JOINT.sum(1, keepdim=True) * JOINT.sum(0)) * 40_000).round().long()
    joint = ratio.flatten().repeat_interleave(counts.flatten())
    shuffled = ratio.flatten().repeat_interleave(product.flatten())
    assert float(dv(joint, shuffled)) == pytest.approx(exact_information(JOINT), abs=1e-9)
    divergence = JOINT / (JOINT.sum(1, keepdim=True) * JOINT.sum(0))
    middle = (1 + divergence) / 2
    q = JOINT.sum(1, keepdim=True) * JOINT.sum(0)
    shannon = float((JOINT * (divergence / middle).log()).sum() - (q * middle.log()).sum()) / 2
    assert (float(jsd(joint, shuffled)) + 2 * math.log(2)) / 2 == pytest.approx(shannon, abs=1e-9)


def test_jensen_and_shannon_are_at_minus_two_log_two_by_chance():
    nothing = torch.zeros(5)
    assert float(jsd(nothing, nothing)) == pytest.approx(-2 * math.log(2))


def test_infonce_is_never_above_the_log_of_its_batch():
    scores = 100 * torch.eye(8, dtype=torch.float64)
    assert float(infonce(scores)) == pytest.approx(math.log(8))
    rng = seeded(11, "cap")
    assert float(infonce(100 * normal(8, 8, rng=rng))) <= math.log(8)
    x = normal(300, rng=rng)
    capped = InfoNCE(hidden=32, epochs=5, rate=5e-3, batch=8)(x, x.clone(), rng)
    assert capped.value <= math.log(8)
    assert "at most log 8 = 2.08" in capped.method


def test_mine_has_the_value_of_its_bound_and_the_gradient_of_the_average():
    rng = seeded(12, "mine")
    joint, product = normal(6, rng=rng).requires_grad_(), normal(9, rng=rng).requires_grad_()
    value, first = mine(joint, product)
    assert value.item() == pytest.approx(dv(joint, product).item())
    plain = torch.autograd.grad(dv(joint, product), [joint, product])
    for ours, theirs in zip(torch.autograd.grad(value, [joint, product]), plain, strict=True):
        torch.testing.assert_close(ours, theirs)  # the first batch is its own average
    before = torch.tensor(1.5, dtype=torch.float64)
    value, now = mine(joint, product, log_average=before)
    average = 0.9 * math.exp(1.5) + 0.1 * float(first.exp())
    assert float(now.exp()) == pytest.approx(average)
    slope = torch.autograd.grad(value, product)[0]
    torch.testing.assert_close(slope, -product.detach().exp() / 9 / average)


def test_scores_are_the_log_densities_of_all_pairs():
    rng = seeded(13, "scores")
    mean, spread, y = normal(4, 3, rng=rng), normal(4, 3, rng=rng), normal(4, 3, rng=rng)
    scores = estimators.gaussian_scores(mean, spread, y)
    for i in range(4):
        wanted = torch.distributions.Normal(mean[i], (spread[i] / 2).exp()).log_prob(y).sum(1)
        torch.testing.assert_close(scores[i], wanted)
    logits, codes = normal(4, 5, rng=rng), torch.tensor([0, 4, 4, 2])
    scores = estimators.categorical_scores(logits, codes)
    for i in range(4):
        torch.testing.assert_close(
            scores[i], torch.distributions.Categorical(logits=logits[i]).log_prob(codes)
        )


def test_the_posterior_bound_is_the_information_for_the_true_posterior_only():
    counts = (JOINT * 20).round().long().flatten()
    x, y = (
        index.repeat_interleave(counts) for index in torch.cartesian_prod(torch.arange(2), torch.arange(3)).T
    )
    posterior = (JOINT / JOINT.sum(1, keepdim=True)).log()
    truth = exact_information(JOINT)
    assert float(estimators.posterior_bound(posterior[x], y, JOINT.sum(0))) == pytest.approx(truth)
    assert float(estimators.posterior_bound(2 * posterior[x], y, JOINT.sum(0))) < truth


@pytest.mark.parametrize("kind", [MINE, InfoNCE, CLUB, NearestNeighbours])
def test_an_estimator_repeats_itself_and_leaves_its_inputs_alone(kind):
    made = kind() if kind is NearestNeighbours else kind(hidden=8, epochs=2)
    x, y, _ = gaussians(2, 0.5, 100, seeded(14, "pairs"))
    before = x.clone(), y.clone()
    state = torch.random.get_rng_state()
    first, second = (made(x, y, seeded(15, "again")) for _ in range(2))
    assert first == second
    assert first.n == 100
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(x, before[0])
    assert torch.equal(y, before[1])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: MINE(hidden=0), "MINE.hidden must be at least 1, got 0"),
        (lambda: InfoNCE(batch=1), "InfoNCE.batch must be at least 2, got 1"),
        (lambda: CLUB(level=1.0), "CLUB.level must be between 0 and 1, got 1.0"),
        (lambda: NearestNeighbours(k=0), "NearestNeighbours.k must be at least 1, got 0"),
        (lambda: MINE()(torch.zeros(9), torch.zeros(9), seeded(0)), "at least 16"),
        (lambda: MINE()(torch.full((20,), math.nan), torch.zeros(20), seeded(0)), "finite"),
        (lambda: CLUB()(torch.zeros(20), torch.zeros(20, 2).long(), seeded(0)), r"codes \(n,\) from 0 on"),
        (lambda: NearestNeighbours()(torch.zeros(20), torch.zeros(20), seeded(0)), "at least 50 for 3"),
    ],
)
def test_what_cannot_be_estimated_is_refused(make, words):
    refuses(ArgumentError, words, make)


def records(n, rng):
    x, y = torch.randn(n, 4, generator=rng), torch.randint(3, (n,), generator=rng)
    return Dataset(x, y, {})


def test_the_bias_gradient_of_a_zero_layer_has_the_labels_entropy():
    rng = seeded(16, "layers")
    data = records(400, rng)
    model = build(Linear(zeros=True), data, rng)
    channel = GradientChannel(model, (parameters(model),))
    found = layer_information(
        channel, Batch(data, torch.arange(400)[:, None]), NearestNeighbours(), target="label", rng=rng
    )
    (estimate,) = found.values()
    assert estimate.name == "I(label; gradient)"
    assert "of 10 principal components" in estimate.method  # of 15, as the three rows sum to zero
    entropy = float(special.entr(np.bincount(data.y) / 400).sum())
    assert estimate.value == pytest.approx(entropy, abs=0.1)


def test_each_layer_of_a_net_is_measured_and_noise_hides_all_of_them():
    rng = seeded(17, "layers")
    data = records(400, rng)
    model = build(MLP(hidden=(8,)), data, rng)
    batch = Batch(data, torch.randperm(400, generator=rng)[:, None])
    channel = GradientChannel(model, (parameters(model),))
    quick = InfoNCE(**QUICK)
    plain = layer_information(channel, batch, quick, components=4, rng=rng)
    assert list(plain) == ["0", "2"]
    assert all(estimate.low > 0.5 for estimate in plain.values())
    hidden = dataclasses.replace(channel, defense=Noise(std=1e6))
    for target in ("input", "label"):
        for estimate in layer_information(
            hidden, batch, quick, target=target, components=4, rng=rng
        ).values():
            assert abs(estimate.value) < 0.05


def test_layers_are_measured_on_single_distinct_records_of_one_round():
    rng = seeded(18, "layers")
    data = records(60, rng)
    model = build(Linear(), data, rng)
    once = GradientChannel(model, (parameters(model),))
    rows = torch.arange(60)[:, None]

    def measure(channel, rows, **settings):
        return layer_information(channel, Batch(data, rows), NearestNeighbours(), rng=rng, **settings)

    refuses(ArgumentError, "of one record a trial, got 2", measure, once, rows.view(30, 2))
    with pytest.raises(ArgumentError, match="of distinct records, got '60 repetitions'"):
        measure(once, torch.cat([rows, rows]))
    with pytest.raises(ArgumentError, match="of one round, got 2"):
        measure(dataclasses.replace(once, rounds=once.rounds * 2), rows)
    refuses(ArgumentError, "'input' or 'label', got 'sex'", measure, once, rows, target="sex")
