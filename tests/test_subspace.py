"""Distances of subspaces and t-statistics of groups: closed forms, scipy, and their nulls simulated."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch
from builders import refuses
from scipy import stats

from leakscope.core.errors import ArgumentError
from leakscope.core.rng import seeded
from leakscope.measures.people import People
from leakscope.measures.subspace import subspace_distance, two_sample

ANGLES = 0.3, 1.1  # between the planes below
CLOSED = {
    "grassmann": math.hypot(*ANGLES),
    "asimov": 1.1,
    "fubini-study": math.acos(math.cos(0.3) * math.cos(1.1)),
    "chordal": math.hypot(math.sin(0.3), math.sin(1.1)),
    "procrustes": 2 * math.hypot(math.sin(0.15), math.sin(0.55)),
}


def planes() -> tuple[torch.Tensor, torch.Tensor]:
    """Two 6 x 2 matrices whose column spaces meet at the two angles, in a random frame and basis."""
    frame, _ = torch.linalg.qr(torch.randn(6, 6, dtype=torch.float64, generator=seeded(0, "frame")))
    first = frame[:, :2]
    angles = torch.tensor(ANGLES, dtype=torch.float64)
    second = frame[:, :2] * angles.cos() + frame[:, 2:4] * angles.sin()
    mix = torch.tensor([[2.0, 1.0], [-1.0, 3.0]], dtype=torch.float64)
    return first @ mix, second @ mix.mT


def alike(matrix: torch.Tensor, n: int = 4) -> dict[str, torch.Tensor]:
    """A layer in which all records have the same gradient."""
    return {"fc.weight": matrix.expand(n, *matrix.shape), "fc.bias": torch.ones(n, len(matrix))}


def noise(n: int, shape: tuple[int, ...], *seed: str | int) -> torch.Tensor:
    return torch.randn(n, *shape, dtype=torch.float64, generator=seeded(0, *seed))


@pytest.mark.parametrize("metric", CLOSED)
@pytest.mark.parametrize("shape", ["tall", "wide", "convolution"])
def test_planes_at_known_angles_are_as_far_apart_as_the_closed_form_says(metric, shape):
    first, second = planes()
    if shape == "wide":
        first, second = first.mT, second.mT
    if shape == "convolution":  # (out, in, kh, kw) is out x (in kh kw), here 2 x 6 and so stood upright
        first, second = first.mT.reshape(2, 1, 2, 3), second.mT.reshape(2, 1, 2, 3)
    found = subspace_distance(alike(first), alike(second), metric=metric, splits=9, rng=seeded(1))
    assert list(found) == ["fc"]
    assert found["fc"].estimate.value == pytest.approx(CLOSED[metric], abs=1e-12)
    assert found["fc"].normalised == pytest.approx(CLOSED[metric] / math.sqrt(2), abs=1e-12)
    assert found["fc"].rank == 2
    assert found["fc"].estimate.low == pytest.approx(found["fc"].estimate.high)  # all people are alike


def test_directions_below_a_millionth_of_the_largest_are_cut_and_equal_ranks_compared():
    frame, _ = torch.linalg.qr(noise(5, (5,), "frame"))
    right, _ = torch.linalg.qr(noise(3, (3,), "right"))
    third = torch.diag(torch.tensor([1.0, 0.5, 3e-7], dtype=torch.float64))
    whole = torch.diag(torch.tensor([1.0, 0.5, 3e-6], dtype=torch.float64))
    cut, kept = frame[:, :3] @ third @ right, frame[:, :3] @ whole @ right
    apart = frame[:, [0, 1, 4]] @ whole @ right
    assert subspace_distance(alike(cut), alike(kept), splits=2, rng=seeded(0))["fc"].rank == 2
    assert subspace_distance(alike(cut), alike(apart), splits=2, rng=seeded(0))["fc"].estimate.value < 1e-7
    found = subspace_distance(alike(kept), alike(apart), splits=2, rng=seeded(0))["fc"]
    # scipy tells angles near 0 and π/2 apart to the root of float64's precision
    assert (found.rank, found.estimate.value) == (3, pytest.approx(math.pi / 2, abs=1e-7))


def test_energy_keeps_the_leading_directions_that_hold_it():
    frame, _ = torch.linalg.qr(noise(5, (5,), "frame"))
    scale = torch.tensor([3.0, 1.0], dtype=torch.float64)  # 90 % and 10 % of the squares
    first, second = frame[:, :2] * scale, frame[:, [0, 2]] * scale
    ranks = {
        energy: subspace_distance(alike(first), alike(second), energy=energy, splits=2, rng=seeded(0))["fc"]
        for energy in (0.89, 0.9, 0.91, 1.0)
    }
    assert [ranks[energy].rank for energy in ranks] == [1, 1, 2, 2]
    assert ranks[0.9].estimate.value < 1e-7
    assert ranks[0.91].estimate.value == pytest.approx(math.pi / 2)


def test_gradients_that_are_all_zero_have_no_subspace_and_no_distance():
    layers = {"fc.weight": torch.zeros(3, 4, 2)}
    found = subspace_distance(layers, layers, splits=5, rng=seeded(0))["fc"]
    assert (found.estimate.value, found.normalised, found.rank, found.p, found.excess) == (0, 0, 0, 1, 0)


def test_a_layer_without_a_matrix_is_left_out_with_the_reason():
    layers = {"fc.weight": noise(4, (3, 2)), "norm.weight": noise(4, (3,)), "norm.bias": noise(4, (3,))}
    with pytest.warns(UserWarning, match=r"left out, as they have no matrix and so no subspace: norm\."):
        found = subspace_distance(
            layers, layers | {"fc.weight": noise(4, (3, 2), 1)}, splits=2, rng=seeded(0)
        )
    assert list(found) == ["fc"]


def test_a_layer_of_two_matrices_has_each_under_its_own_name():
    layers = {"lstm.weight_ih": noise(4, (3, 2)), "lstm.weight_hh": noise(4, (3, 2), 1)}
    found = subspace_distance(layers, layers, splits=2, rng=seeded(0))
    assert list(found) == ["lstm.weight_ih", "lstm.weight_hh"]


def test_float32_gradients_are_compared_in_float64():
    first, second = ({"w": noise(9, (5, 3), side).float()} for side in "ab")
    single = subspace_distance(first, second, splits=5, rng=seeded(0))["w"]
    double = subspace_distance(
        {"w": first["w"].double()}, {"w": second["w"].double()}, splits=5, rng=seeded(0)
    )
    assert single == double["w"]


def test_the_distance_of_pure_noise_is_that_of_its_null():
    """400 records, width 120: far apart, and no farther than any random split of the same records."""
    rows = noise(400, (120, 60), "noise")
    found = subspace_distance({"fc": rows[:200]}, {"fc": rows[200:]}, splits=12, rng=seeded(0))["fc"]
    assert found.estimate.value > 7  # of at most (π/2) √60 = 12.2
    assert abs(found.excess) < 4 * found.null_sd
    assert found.null_sd < 0.2
    assert found.p > 1 / 13


def test_a_strong_difference_has_the_smallest_p_value_and_an_excess():
    first, second = planes()
    parts = [
        matrix + 0.1 * noise(20, (6, 2), side) for side, matrix in zip("ab", (first, second), strict=True)
    ]
    found = subspace_distance({"w": parts[0]}, {"w": parts[1]}, splits=39, rng=seeded(0))["w"]
    assert found.p == 1 / 40
    assert found.excess > 5 * found.null_sd > 0
    assert found.excess == pytest.approx(found.estimate.value - found.null_mean)
    assert found.estimate.low < CLOSED["grassmann"] < found.estimate.high


def limits(n: int, share: float) -> tuple[float, float]:
    """Where a binomial count lies in all but one of ten thousand cases."""
    return tuple(stats.binom.ppf([5e-5, 1 - 5e-5], n, share))


def test_p_values_of_subspaces_are_uniform_under_the_null():
    runs, small = 150, 0
    for run in range(runs):
        rows = noise(12, (4, 2), run) + 1
        found = subspace_distance({"w": rows[:6]}, {"w": rows[6:]}, splits=9, rng=seeded(run, "splits"))["w"]
        small += found.p <= 0.3
    low, high = limits(runs, 0.3)
    assert low <= small <= high


def test_p_values_of_two_samples_are_uniform_under_the_null_also_with_people():
    """Records of a person share most of what they are; permuting records would call that a difference."""
    runs, by_person, by_record = 300, 0, 0
    people0, people1 = torch.arange(8).repeat_interleave(5), 8 + torch.arange(8).repeat_interleave(5)
    for run in range(runs):
        rows = noise(16, (4,), run).repeat_interleave(5, 0) + 0.3 * noise(80, (4,), run, "own")
        sides, rng = (rows[:40], rows[40:]), seeded(run, "splits")
        by_person += two_sample(*sides, people0=people0, people1=people1, splits=19, rng=rng).p <= 0.1
        by_record += two_sample(*sides, splits=19, rng=rng).p <= 0.1
    low, high = limits(runs, 0.1)
    assert low <= by_person <= high
    assert by_record > 2 * high


def test_the_statistic_is_the_mean_of_scipys_squared_t():
    first, second = noise(11, (6,), "a") * 3 + 5, noise(7, (6,), "b") * 3
    found = two_sample(first, second, splits=5, rng=seeded(0))
    expected = np.mean(stats.ttest_ind(first.numpy(), second.numpy()).statistic ** 2)
    assert found.statistic == pytest.approx(expected, rel=1e-12)
    assert found.log_ratio.value == pytest.approx(math.log(found.statistic / found.null_mean), rel=1e-12)
    assert found.log_ratio.low < found.log_ratio.value < found.log_ratio.high


def test_the_null_of_two_samples_has_the_mean_of_students_squared_t():
    """Of n records t² has the mean (n - 2) / (n - 4), exactly so for normal ones."""
    found = two_sample(noise(10, (4000,), "a"), noise(12, (4000,), "b"), splits=50, rng=seeded(0))
    assert found.null_mean == pytest.approx(20 / 18, rel=0.02)
    assert abs(found.log_ratio.value) < 0.1


def test_a_difference_shows_and_grows_and_constant_columns_do_not_count():
    first, second = noise(30, (5,), "a"), noise(30, (5,), "b")
    weak, strong = (two_sample(first, second + by, splits=99, rng=seeded(0)) for by in (1.0, 3.0))
    assert weak.p == strong.p == 1 / 100
    assert weak.log_ratio.low > 0
    assert weak.log_ratio.high < strong.log_ratio.value
    constant = torch.full((30, 3), 7.3)
    padded = (torch.cat([part.float(), constant], 1) for part in (first, second))
    bare = two_sample(first.float(), second.float(), splits=9, rng=seeded(0))
    assert two_sample(*padded, splits=9, rng=seeded(0)) == bare


def test_a_column_that_separates_perfectly_is_finite():
    found = two_sample(torch.zeros(5, 1), torch.ones(5, 1), splits=9, rng=seeded(0))
    assert math.isfinite(found.statistic)
    assert math.isfinite(found.log_ratio.value)
    assert found.statistic > 1e6


def test_sums_over_people_are_those_of_their_records_and_draws_keep_people_whole():
    people0, people1 = torch.tensor([7, 7, 3]), torch.tensor([9, 4, 9, 5])
    people = People.of(3, 4, people0, people1, where="test")
    rows = noise(7, (2,))
    expected = torch.stack([rows[2], rows[0] + rows[1], rows[4], rows[6], rows[3] + rows[5]])
    torch.testing.assert_close(people.sums(rows), expected)
    assert people.counts.tolist() == [1, 2, 1, 1, 2]
    first, second = people.permuted(200, seeded(0))
    assert bool((first + second == 1).all())
    assert bool((first.sum(1) == 2).all())
    assert len(first.unique(dim=0)) == 10  # all pairs of five people
    first, second = people.resampled(200, seeded(0))
    assert bool((first[:, 2:] == 0).all())
    assert bool((second[:, :2] == 0).all())
    assert bool((first.sum(1) == 2).all())
    assert bool((second.sum(1) == 3).all())


def test_the_same_randomness_gives_the_same_answer_and_inputs_stay():
    first, second = ({"w": noise(6, (4, 3), side)} for side in "ab")
    before = first["w"].clone()
    found = [subspace_distance(first, second, splits=7, rng=seeded(4)) for _ in range(2)]
    assert found[0] == found[1]
    assert torch.equal(first["w"], before)


LAYERS = {"w": noise(4, (4, 3))}
PEOPLE = torch.arange(4)


@pytest.mark.parametrize(
    ("words", "settings"),
    [
        ("subspace_distance.metric must be one of grassmann, asimov", {"metric": "angle"}),
        ("subspace_distance.energy must be in (0, 1], or None, got 0", {"energy": 0}),
        ("subspace_distance.splits must be at least 2, got 1", {"splits": 1}),
        ("subspace_distance.level must be between 0 and 1", {"level": 95}),
        ("subspace_distance.layers1['w'] must be (4, *shape)", {"layers1": {"w": noise(4, (3, 4))}}),
        ("subspace_distance.layers1['w'] must be finite", {"layers1": {"w": LAYERS["w"] * math.nan}}),
        ("and 'v' is in one of them only", {"layers1": {"v": LAYERS["w"]}}),
        ("people0 and people1, or neither", {"people0": PEOPLE}),
        ("people0 must be at least 2 people, got 1", {"people0": torch.zeros(4), "people1": PEOPLE + 1}),
        ("people1 must be one number for each of 4 records", {"people0": PEOPLE, "people1": PEOPLE[:3]}),
        ("got person 2 on both sides", {"people0": torch.tensor([1, 1, 2, 2]), "people1": PEOPLE + 2}),
    ],
)
def test_bad_settings_of_a_distance_are_told_in_one_sentence(words, settings):
    given = {"layers0": LAYERS, "layers1": LAYERS, "rng": seeded(0)} | settings
    refuses(ArgumentError, re.escape(words), subspace_distance, **given)


def test_no_matrix_at_all_one_person_and_unlike_features_are_refused():
    biases = {"b": torch.ones(4, 3)}
    refuses(ArgumentError, "needs a layer with a matrix", subspace_distance, biases, biases, rng=seeded(0))
    with pytest.raises(ArgumentError, match=r"two_sample\.people1 must be at least 2 people, got 1"):
        two_sample(noise(3, (2,)), noise(1, (2,)), rng=seeded(0))
    with pytest.raises(ArgumentError, match=r"two_sample\.features1 must be \(n, f\)"):
        two_sample(noise(3, (2,)), noise(3, (4,)), rng=seeded(0))
    refuses(ArgumentError, "constants only", two_sample, torch.ones(3, 2), torch.ones(3, 2), rng=seeded(0))
    with pytest.raises(ArgumentError, match="must be finite"):
        two_sample(noise(3, (2,)) * math.nan, noise(3, (2,)), rng=seeded(0))


def test_two_square_layers_of_full_rank_are_no_distance_apart_and_no_evidence():
    rng = torch.Generator().manual_seed(0)
    layers = [{"w": torch.randn(40, 8, 8, generator=rng, dtype=torch.float64) + 5 * i} for i in range(2)]
    found = subspace_distance(*layers, splits=20, rng=rng)["w"]
    assert found.estimate.value == 0
    assert found.p == 1
