"""How like the originals reconstructed records are: MSE, PSNR, SSIM, and what no release is needed for.

Images are (channels, height, width) with values from 0 to 1, and guesses are clipped to that range before
they are scored. Every interval holds for the trials of one victim.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
import torch
from scipy import stats
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.nn import functional as F

from leakscope.core.dataset import Column
from leakscope.core.errors import ArgumentError, require
from leakscope.core.nouns import Estimate, Transcript
from leakscope.core.rng import integer
from leakscope.measures.success import proportion

WINDOW, SIGMA, K1, K2 = 11, 1.5, 0.01, 0.03  # Wang et al., IEEE Trans. Image Processing 2004, section III
CAP = 100.0  # decibels: of identical images, and of all that differ less than a float32 can tell
RESAMPLES = 2_000

Like = Literal["ssim", "psnr", "mse"]


def mse(guesses: Tensor, originals: Tensor) -> Tensor:
    """Each record's mean squared error (t, k), for images in [0, 1] and for rows of a table."""
    guesses, originals = _pair(guesses, originals)
    return (originals - guesses).square().flatten(2).mean(2)


def psnr(guesses: Tensor, originals: Tensor) -> Tensor:
    """Each image's peak signal-to-noise ratio (t, k) in decibels: the peak is 1 and the most is 100, which
    identical images have."""
    _images(originals)
    return (-10 * mse(guesses, originals).log10()).clamp(max=CAP)


def ssim(guesses: Tensor, originals: Tensor) -> Tensor:
    """Each image's structural similarity (t, k), the mean over channels and over all places where a window
    of 11 x 11 pixels (Gaussian, sigma 1.5) fits; K1 = 0.01, K2 = 0.03 (Wang et al. 2004, equation 13)."""
    _images(originals)
    x, y = _pair(guesses, originals)
    if min(x.shape[-2:]) < WINDOW:
        raise ArgumentError(
            f"ssim needs images of at least {WINDOW} x {WINDOW} pixels, got {x.shape[-2]} x {x.shape[-1]}; "
            f"use mse or psnr."
        )
    size = x.shape[-2:]
    maps = [_blurred(part.reshape(-1, 1, *size)) for part in (x, y, x * x, y * y, x * y)]
    mean_x, mean_y = maps[0], maps[1]
    var_x, var_y, covariance = maps[2] - mean_x**2, maps[3] - mean_y**2, maps[4] - mean_x * mean_y
    light = (2 * mean_x * mean_y + K1**2) / (mean_x**2 + mean_y**2 + K1**2)
    structure = (2 * covariance + K2**2) / (var_x + var_y + K2**2)
    return (light * structure).reshape(*x.shape[:3], -1).mean((2, 3))


def _blurred(images: Tensor) -> Tensor:
    places = torch.arange(WINDOW, dtype=images.dtype) - WINDOW // 2
    line = torch.exp(-places.square() / (2 * SIGMA**2))
    line = line / line.sum()
    return F.conv2d(F.conv2d(images, line.view(1, 1, 1, -1)), line.view(1, 1, -1, 1))


LIKENESS: dict[Like, Callable[[Tensor, Tensor], Tensor]] = {"ssim": ssim, "psnr": psnr, "mse": mse}


def matched(transcript: Transcript) -> Tensor:
    """The guesses (t, k, *shape), each trial's put in the order that has the least squared error in all.

    A batch's gradient has no order, so a reconstruction cannot know one. One to one: no guess counts
    twice."""
    originals, guesses = transcript.secrets, transcript.guesses
    t, k = originals.shape[:2]
    wide = (t, k, k, *originals.shape[2:])
    pairs = guesses[:, None].expand(wide).flatten(1, 2), originals[:, :, None].expand(wide).flatten(1, 2)
    costs = mse(*pairs).view(t, k, k)
    order = torch.stack([torch.from_numpy(linear_sum_assignment(cost.numpy())[1]) for cost in costs])
    return guesses[torch.arange(t)[:, None], order]


def fidelity(
    transcript: Transcript, of: Like = "ssim", *, rng: torch.Generator, level: float = 0.95
) -> Estimate:
    """The mean over trials of how like its originals a reconstruction is, in their best order, with a
    percentile bootstrap over trials."""
    require(of in LIKENESS, "fidelity.of", f"one of {', '.join(LIKENESS)}", of)
    values = LIKENESS[of](matched(transcript), transcript.secrets).mean(1)
    return _mean(of.upper(), values, rng, level=level)


def recovered(transcript: Transcript, *, least: float = 0.9, level: float = 0.95) -> Estimate:
    """The share of images whose SSIM is at least ``least``, in the best order, with the exact interval;
    where a trial has several images they count one by one."""
    hits = ssim(matched(transcript), transcript.secrets) >= least
    return proportion(f"recovered (SSIM >= {least:g})", int(hits.sum()), hits.numel(), level=level)


def failures(transcript: Transcript, mean: Tensor, *, level: float = 0.95) -> Estimate:
    """The share of trials in which the attack gave up: it then says the public ``mean`` record, exactly."""
    gave_up = (transcript.guesses == mean).flatten(1).all(1)
    return proportion("failed", int(gave_up.sum()), len(gave_up), level=level)


def trivial(originals: Tensor, mean: Tensor) -> dict[str, Tensor]:
    """The SSIM (t, k) of what needs no release: the public ``mean`` image, a grey one, and one of the
    image's own mean colour. A reconstruction that is no better has found nothing."""
    said = {
        "public mean": mean.expand_as(originals),
        "grey": torch.full_like(originals, 0.5),
        "own mean colour": originals.mean((-2, -1), keepdim=True).expand_as(originals),
    }
    return {name: ssim(guesses, originals) for name, guesses in said.items()}


def column_errors(
    transcript: Transcript, columns: tuple[Column, ...], *, rng: torch.Generator, level: float = 0.95
) -> dict[str, Estimate]:
    """The mean squared error of every column of a table, in the best order: dummies of a category
    together."""
    apart = (matched(transcript).double() - transcript.secrets.double()).square()
    return {
        column.name: _mean("MSE", apart[..., column.start : column.stop].mean((1, 2)), rng, level=level)
        for column in columns
    }


def _mean(name: str, values: Tensor, rng: torch.Generator, *, level: float) -> Estimate:
    require(len(values) >= 2, "the transcript", "of at least 2 trials", len(values))
    found = stats.bootstrap(
        (values.numpy(),),
        np.mean,
        n_resamples=RESAMPLES,
        confidence_level=level,
        method="percentile",
        rng=np.random.default_rng(integer(rng)),
    ).confidence_interval
    low, high = float(found.low), float(found.high)
    return Estimate(name, float(values.mean()), low, high, level, len(values), "bootstrap")


def _pair(guesses: Tensor, originals: Tensor) -> tuple[Tensor, Tensor]:
    rule = f"of the originals' shape, {tuple(originals.shape)}"
    require(guesses.shape == originals.shape, "guesses", rule, tuple(guesses.shape))
    images = originals.dim() == 5
    return guesses.double().clamp(0, 1) if images else guesses.double(), originals.double()


def _images(originals: Tensor) -> None:
    if originals.dim() != 5 or bool((originals < 0).any()) or bool((originals > 1).any()):
        raise ArgumentError(
            f"originals must be images (t, k, channels, height, width) with values from 0 to 1, got shape "
            f"{tuple(originals.shape)} and values from {float(originals.min()):g} to "
            f"{float(originals.max()):g}; split images with standardise=False, and use mse for tables."
        )
