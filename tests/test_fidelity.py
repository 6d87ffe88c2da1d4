"""How like the originals reconstructions are: against other implementations and in closed form."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from builders import refuses
from scipy import ndimage, stats

from leakscope import Column, Transcript, seeded
from leakscope.core.errors import ArgumentError
from leakscope.measures.fidelity import (
    column_errors,
    failures,
    fidelity,
    matched,
    mse,
    psnr,
    recovered,
    ssim,
    trivial,
)


def images(*shape: int, seed: int = 0) -> torch.Tensor:
    """Smooth images with some noise, values from 0 to 1."""
    rough = torch.rand(shape, generator=seeded(seed), dtype=torch.float64).numpy()
    smooth = ndimage.gaussian_filter(rough, sigma=(0,) * (len(shape) - 2) + (2, 2))
    return torch.from_numpy((smooth - smooth.min()) / (smooth.max() - smooth.min()))


def wang(x: np.ndarray, y: np.ndarray) -> float:
    """Wang et al. 2004, section III, window by window, of one channel."""
    at = np.arange(11) - 5
    weights = np.exp(-(at[:, None] ** 2 + at**2) / (2 * 1.5**2))
    weights /= weights.sum()
    values = []
    for i, j in itertools.product(range(x.shape[0] - 10), range(x.shape[1] - 10)):
        a, b = x[i : i + 11, j : j + 11], y[i : i + 11, j : j + 11]
        ma, mb = (weights * a).sum(), (weights * b).sum()
        va, vb = (weights * (a - ma) ** 2).sum(), (weights * (b - mb) ** 2).sum()
        both = (weights * (a - ma) * (b - mb)).sum()
        top = (2 * ma * mb + 0.01**2) * (2 * both + 0.03**2)
        values.append(top / ((ma**2 + mb**2 + 0.01**2) * (va + vb + 0.03**2)))
    return float(np.mean(values))


def test_ssim_is_the_papers_formula_window_by_window():
    x, y = images(1, 2, 3, 14, 17), images(1, 2, 3, 14, 17, seed=1)
    expected = [np.mean([wang(x[0, i, c].numpy(), y[0, i, c].numpy()) for c in range(3)]) for i in range(2)]
    assert ssim(y, x)[0].tolist() == pytest.approx(expected, abs=1e-12)


def test_ssim_agrees_with_torchmetrics_where_the_window_fits():
    metrics = pytest.importorskip("torchmetrics.functional.image", reason="pip install torchmetrics")
    x, y = images(2, 2, 3, 20, 16), images(2, 2, 3, 20, 16, seed=1)
    _, everywhere = metrics.structural_similarity_index_measure(
        y.flatten(0, 1), x.flatten(0, 1), data_range=1.0, reduction="none", return_full_image=True
    )
    theirs = everywhere[..., 5:-5, 5:-5].mean((1, 2, 3))  # without the border, which they reflect
    assert ssim(y, x).flatten().tolist() == pytest.approx(theirs.tolist(), abs=1e-10)


def test_an_image_is_like_itself_and_its_psnr_is_capped():
    x = images(2, 1, 3, 12, 12)
    assert ssim(x, x).tolist() == [[1.0], [1.0]]
    assert mse(x, x).tolist() == [[0.0], [0.0]]
    assert psnr(x, x).tolist() == [[100.0], [100.0]]


def test_psnr_of_a_constant_error_is_its_decibels():
    x = torch.full((1, 1, 1, 12, 12), 0.5)
    assert psnr(x + 0.1, x).item() == pytest.approx(20.0, abs=1e-5)


def test_guesses_beyond_the_range_are_scored_as_clipped():
    x = images(1, 1, 3, 12, 12)
    wild = x + torch.randn(x.shape, generator=seeded(2), dtype=torch.float64)
    for measure in (mse, psnr, ssim):
        assert measure(wild, x).equal(measure(wild.clamp(0, 1), x))
    row = torch.tensor([[[2.0, -3.0]]])  # a table has no such range
    assert mse(row, torch.zeros(1, 1, 2)).item() == 6.5


def test_ssim_refuses_images_smaller_than_its_window_and_records_that_are_no_images():
    with pytest.raises(ArgumentError, match="at least 11 x 11 pixels, got 8 x 12; use mse"):
        ssim(images(1, 1, 1, 8, 12), images(1, 1, 1, 8, 12))
    refuses(ArgumentError, "standardise=False", ssim, images(1, 1, 1, 12, 12), images(1, 1, 1, 12, 12) * 3)
    refuses(ArgumentError, "use mse for tables", psnr, torch.zeros(1, 1, 4), torch.zeros(1, 1, 4))
    refuses(ArgumentError, "originals' shape", mse, torch.zeros(1, 1, 4), torch.zeros(1, 1, 5))


def test_a_batch_is_put_in_the_order_of_least_error_found_by_trying_all():
    originals, guesses = images(5, 4, 1, 12, 12), images(5, 4, 1, 12, 12, seed=3)
    best = matched(Transcript(originals, guesses, torch.empty(0)))
    for i in range(5):
        every = [
            mse(guesses[i : i + 1, list(order)], originals[i : i + 1]).sum()
            for order in itertools.permutations(range(4))
        ]
        assert mse(best[i : i + 1], originals[i : i + 1]).sum() == min(every)
        assert {tuple(g.flatten().tolist()) for g in best[i]} == {
            tuple(g.flatten().tolist()) for g in guesses[i]
        }


def test_a_shuffled_batch_is_recovered_whole():
    originals = images(3, 4, 1, 12, 12)
    shuffled = Transcript(originals, originals[:, [2, 0, 3, 1]], torch.empty(0))
    found = recovered(shuffled)
    assert (found.value, found.n, found.high) == (1.0, 12, 1.0)
    assert found.low == pytest.approx(stats.binomtest(12, 12).proportion_ci(0.95, method="exact").low)
    assert fidelity(shuffled, rng=seeded(0)).value == 1.0


def test_the_mean_fidelity_has_the_bootstrap_interval_of_its_trials():
    originals = torch.full((40, 1, 1, 12, 12), 0.5, dtype=torch.float64)
    shifts = torch.rand(40, generator=seeded(4), dtype=torch.float64) / 2
    found = fidelity(
        Transcript(originals, originals + shifts.view(-1, 1, 1, 1, 1), torch.empty(0)), "mse", rng=seeded(5)
    )
    squares = shifts.square().numpy()
    drawn = np.random.default_rng(0).choice(squares, (20_000, 40)).mean(1)
    assert found.value == pytest.approx(squares.mean(), abs=1e-12)
    spread = drawn.std()
    assert found.low == pytest.approx(np.quantile(drawn, 0.025), abs=0.15 * spread)
    assert found.high == pytest.approx(np.quantile(drawn, 0.975), abs=0.15 * spread)
    assert str(found).startswith("MSE ")


def test_trivial_images_score_as_wangs_formula_says():
    originals, mean = images(1, 1, 3, 12, 12), images(3, 12, 12, seed=6)
    found = trivial(originals, mean)
    flat = np.full((12, 12), 0.5)
    x = originals[0, 0].numpy()
    assert found["grey"].item() == pytest.approx(np.mean([wang(x[c], flat) for c in range(3)]))
    own = np.mean([wang(x[c], np.full((12, 12), x[c].mean())) for c in range(3)])
    assert found["own mean colour"].item() == pytest.approx(own)
    seen = np.mean([wang(x[c], mean[c].numpy()) for c in range(3)])
    assert found["public mean"].item() == pytest.approx(seen)


def test_failures_are_the_trials_whose_guess_is_the_public_mean():
    originals, mean = images(4, 2, 1, 12, 12), images(1, 12, 12, seed=7)
    guesses = originals.clone()
    guesses[1] = mean
    guesses[3, 0] = mean  # half a batch is no failure
    found = failures(Transcript(originals, guesses, torch.empty(0)), mean)
    assert (found.value, found.n) == (0.25, 4)


def test_the_error_of_a_table_stands_by_column():
    columns = (Column("age", 0, 1), Column("sex", 1, 3, values=("F", "M"), standardised=False))
    originals = torch.tensor([[[1.0, 0.0, 1.0]], [[2.0, 1.0, 0.0]]])
    guesses = torch.tensor([[[4.0, 0.0, 1.0]], [[2.0, 0.0, 1.0]]])
    found = column_errors(Transcript(originals, guesses, torch.empty(0)), columns, rng=seeded(0))
    assert {name: e.value for name, e in found.items()} == {"age": 4.5, "sex": 0.5}
