"""Rows of a table that came back: exact, certified, wrongly certified, and cell by cell beside a guess.

A cell is right if its category is, or its number within ``within`` standard deviations of public records. A
batch's records come in no order: they are matched one to one, exact ones first, then by cells that are right.
Records of one batch are found or lost together, so an interval counts a batch as one trial.
"""

from __future__ import annotations

import torch
from scipy import stats
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from leakscope.core.dataset import Column, Dataset
from leakscope.core.errors import require
from leakscope.core.nouns import CERTIFIED, Estimate, Transcript

WITHIN = 0.05


def exact_records(
    transcript: Transcript, public: Dataset, *, within: float = WITHIN, level: float = 0.95
) -> Estimate:
    """The share of records that came back exactly: every category, and every number."""
    right, _ = _right(transcript, public, within)
    return _share("exact", right.all(2).double().mean(1), level)


def certified_records(
    transcript: Transcript, public: Dataset, *, within: float = WITHIN, level: float = 0.95
) -> Estimate:
    """The share of records that came back exactly and that the attack had certified."""
    right, order = _right(transcript, public, within)
    certified = _certified(transcript).gather(1, order) & right.all(2)
    return _share("exact and certified", certified.double().mean(1), level)


def false_certificates(
    transcript: Transcript, public: Dataset, *, within: float = WITHIN, level: float = 0.95
) -> Estimate:
    """How many records in a batch the attack certified that are not there, with the exact Poisson
    interval."""
    right, order = _right(transcript, public, within)
    wrong = _certified(transcript).gather(1, order) & ~right.all(2)
    count, t, tail = int(wrong.sum()), len(wrong), (1 - level) / 2
    low = float(stats.chi2.ppf(tail, 2 * count)) / 2 if count else 0.0
    high = float(stats.chi2.isf(tail, 2 * count + 2)) / 2
    return Estimate("false certificates a batch", count / t, low / t, high / t, level, t, "Poisson")


def right_cells(
    transcript: Transcript, public: Dataset, *, within: float = WITHIN, level: float = 0.95
) -> dict[str, tuple[Estimate, Estimate]]:
    """Column by column, and of all under "all": the share of cells that are right, and the share that are if
    the commonest public value is said of every record."""
    right, _ = _right(transcript, public, within)
    guess = torch.stack([_mode(public, column) for column in public.columns], dim=0)
    said = _cells(guess.sum(0).expand_as(transcript.secrets), transcript.secrets, public, within)
    found = {}
    for i, column in enumerate(public.columns):
        pair = (part[:, :, i].double().mean(1) for part in (right, said))
        one, other = pair
        found[column.name] = (_share("right cells", one, level), _share("right by the mode", other, level))
    one, other = (part.double().mean((1, 2)) for part in (right, said))
    return {"all": (_share("right cells", one, level), _share("right by the mode", other, level)), **found}


def _certified(transcript: Transcript) -> Tensor:
    require(transcript.status is not None, "the transcript", "of an attack that certifies records", "none")
    assert transcript.status is not None
    return transcript.status == CERTIFIED


def _right(transcript: Transcript, public: Dataset, within: float) -> tuple[Tensor, Tensor]:
    """Which cells (t, k, columns) of the originals came back, and the guess (t, k) matched to each."""
    require(bool(public.columns), "public.columns", "those of a table", public.columns)
    require(within > 0, "within", "above 0", within)
    rights, orders = [], []
    for guesses, originals in zip(transcript.guesses, transcript.secrets, strict=True):
        k = len(originals)
        pairs = guesses[None].expand(k, k, -1), originals[:, None].expand(k, k, -1)
        cells = _cells(*pairs, public, within)
        worth = cells.double().mean(2) + k * cells.all(2)
        rows, order = linear_sum_assignment(-worth.numpy())
        rights.append(cells[torch.from_numpy(rows), torch.from_numpy(order)])
        orders.append(torch.from_numpy(order))
    return torch.stack(rights), torch.stack(orders)


def _cells(guesses: Tensor, originals: Tensor, public: Dataset, within: float) -> Tensor:
    """Whether each cell of guesses is that of the originals: (..., columns)."""
    parts = []
    for column in public.columns:
        one, other = (x[..., column.start : column.stop].double() for x in (guesses, originals))
        if column.stop - column.start > 1:
            parts.append((one - other).abs().amax(-1) < 0.5)
        else:
            spread = public.x[:, column.start].double().std(correction=0)
            far = within * (float(spread) or 1.0)
            parts.append((one - other).abs()[..., 0] <= far)
    return torch.stack(parts, dim=-1)


def _mode(public: Dataset, column: Column) -> Tensor:
    """The commonest value of a column among public records, at its place in a record of zeros."""
    values, counts = public.x[:, column.start : column.stop].unique(dim=0, return_counts=True)
    record = torch.zeros_like(public.x[0])
    record[column.start : column.stop] = values[counts.argmax()]
    return record


def _share(name: str, shares: Tensor, level: float) -> Estimate:
    """The mean of shares (t,) between 0 and 1. The interval is Clopper and Pearson's for as many
    all-or-nothing trials, which vary most of all that have this mean."""
    t, tail = len(shares), (1 - level) / 2
    hits = float(shares.sum())
    low = float(stats.beta.ppf(tail, hits, t - hits + 1)) if hits > 0 else 0.0
    high = float(stats.beta.isf(tail, hits + 1, t - hits)) if hits < t else 1.0
    return Estimate(name, hits / t, low, high, level, t, "Clopper-Pearson, a batch as one trial")
