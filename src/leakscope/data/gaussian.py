"""Synthetic records whose leakage is known in closed form: the ruler the attacks are held against."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch
from scipy import stats

from leakscope.core.dataset import Column, Dataset
from leakscope.core.errors import require
from leakscope.core.rng import seeded
from leakscope.data.files import fits, marked_by


def synthetic(
    records: int = 8_000, inputs: int = 10, *, shift: float = 0.5, positive: float = 0.7, seed: int = 0
) -> Dataset:
    """Made-up records: a secret group a in {0, 1} at equal odds, which shifts the first input.

    x ~ N(a * shift * e_1, I) and y ~ Bernoulli(positive) independently of everything, so the task
    teaches nothing and the group is a property beside ``x``. At ``shift=0`` nothing leaks.
    """
    require(records >= 2, "records", "at least 2", records)
    require(inputs >= 1, "inputs", "at least 1", inputs)
    _check(shift=shift, positive=positive)
    fits(4.0 * records * inputs, Path("synthetic"))
    rng = seeded(seed, "synthetic")
    group = torch.randint(2, (records,), generator=rng)
    y = (torch.rand(records, generator=rng) < positive).long()
    x = torch.randn(records, inputs, generator=rng)
    x[:, 0] += shift * group
    columns = tuple(Column(f"x{i + 1}", i, i + 1) for i in range(inputs))
    codes = {"label": (y, ("negative", "positive")), "group": (group, ("0", "1"))}
    return marked_by(x, codes, name="synthetic", columns=columns)


def synthetic_bayes(*, shift: float, batch: int, positive: float) -> float:
    r"""The best success rate at guessing the group of a batch from its gradient.

    The model is a softmax layer with two classes and all parameters zero, and the k records of the
    batch share the group a. Both probabilities are 1/2, so with s_i = +1 for label 1 and -1 for
    label 0 the gradient of the mean loss for class 1 is

        d/db = -(1 / 2k) sum_i s_i = -c / 2k,      d/dw = -(1 / 2k) sum_i s_i x_i,

    and for class 0 the same with the sign turned: the gradient is (c, sum_i s_i x_i) and nothing
    else. c does not depend on a. Given c, the first coordinate sum_i s_i x_i1 is N(c a shift, k),
    the others are N(0, k) whatever a is. At equal odds the best rule asks whether that sum is
    nearer to 0 or to c * shift, and it is right with chance Phi(|c| shift / (2 sqrt k)). Hence

        E_c[ Phi(|c| shift / (2 sqrt k)) ],        c = 2 Binomial(k, positive) - k.

    Scaling ``x`` by known statistics is invertible and changes nothing.
    """
    require(batch >= 1, "batch", "at least 1", batch)
    _check(shift=shift, positive=positive)
    ones = np.arange(batch + 1)
    right = stats.norm.cdf(np.abs(2 * ones - batch) * shift / (2 * math.sqrt(batch)))
    return float(stats.binom.pmf(ones, batch, positive) @ right)


def _check(*, shift: float, positive: float) -> None:
    require(0 <= shift < math.inf, "shift", "at least 0 and finite", shift)
    require(0 < positive < 1, "positive", "between 0 and 1", positive)
