"""Rows of a table that came back: exact, certified, wrongly certified, and cell by cell beside a guess.

A cell is right if its category is, or its number within ``within`` standard deviations of public records. A
batch's records come in no order: they are matched one to one, exact ones first, then by cells that are right.
Records of one batch are found or lost together, so an interval counts a batch as one trial.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from scipy import stats
from torch import Tensor

from leakscope.core.dataset import Column, Dataset
from leakscope.core.errors import require
from leakscope.core.nouns import CERTIFIED, Estimate, Transcript
from leakscope.core.pairing import Ruler, pair

WITHIN = 0.05
SURE = 0.95  # the confidence above which a cell is called
COUNTED = "counted in this recording"


@dataclass(frozen=True, eq=False)
class Matched:
    """Which cells (t, k, columns) of the ``originals`` came back, which guess (t, k) is matched to each of
    them, whether it was certified, and how sure the attack is of each cell (t, k, columns) of it."""

    originals: Tensor
    public: Dataset
    ruler: Ruler
    right: Tensor
    order: Tensor
    certified: Tensor | None
    confidence: Tensor | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.public.columns)

    @cached_property
    def mode(self) -> Tensor:
        """Which cells would be right if the commonest public value were said of every record."""
        guess = torch.stack([_mode(self.public, column) for column in self.public.columns]).sum(0)
        said = [self.ruler.compare(batch, guess[None])[:, 0] for batch in self.originals]
        return torch.stack(said)

    @property
    def exact(self) -> Tensor:
        """Which records (t, k) came back in every cell."""
        return self.right.all(2)

    @property
    def proofs(self) -> Tensor:
        require(self.certified is not None, "the transcript", "of an attack that certifies records", "none")
        assert self.certified is not None
        return self.certified

    def exact_share(self, level: float = 0.95) -> Estimate:
        return _share("exact", self.exact.double().mean(1), level)

    def certified_share(self, level: float = 0.95) -> Estimate:
        return _share("exact and certified", (self.proofs & self.exact).double().mean(1), level)

    def false_certificates(self, level: float = 0.95) -> Estimate:
        wrong = self.proofs & ~self.exact
        count, t, tail = int(wrong.sum()), len(wrong), (1 - level) / 2
        low = float(stats.chi2.ppf(tail, 2 * count)) / 2 if count else 0.0
        high = float(stats.chi2.isf(tail, 2 * count + 2)) / 2
        return Estimate("false certificates a batch", count / t, low / t, high / t, level, t, "Poisson")

    def confident(self, above: float = SURE, level: float = 0.95) -> tuple[Estimate, Estimate] | None:
        """Of records that are not certified: the share of all cells that are called with more confidence than
        ``above``, and the share of these that are right; None: the attack rates no cells."""
        if self.confidence is None or not self.confidence.shape[2]:
            return None
        called = (self.confidence > above) & ~self.proofs[..., None]
        own = called.flatten(1).any(1)
        hits, base = int((called & self.right).sum()), int(called.sum())
        share = hits / base if base else 0.0
        right = _share("right of those called", torch.full((int(own.sum()) or 1,), share).double(), level)
        return _share("called cells", called.double().mean((1, 2)), level), replace(
            right, low=right.low if base else 0.0, high=right.high if base else 1.0, n=int(own.sum())
        )

    def cells(self, level: float = 0.95) -> dict[str, tuple[Estimate, Estimate]]:
        """Of all columns under "all", then of each: the share of cells that are right, and by the mode."""
        pair = [self.right.double(), self.mode.double()]
        parts = {"all": [part.mean((1, 2)) for part in pair]}
        parts |= {name: [part[:, :, i].mean(1) for part in pair] for i, name in enumerate(self.columns)}
        return {
            name: (_share("right cells", one, level), _share("right by the mode", other, level))
            for name, (one, other) in parts.items()
        }


def counted(estimate: Estimate) -> Estimate:
    """The same of releases that are looked at for themselves: what came back of them is known, and they are
    no sample of others."""
    return replace(estimate, low=estimate.value, high=estimate.value, method=COUNTED)


def transcribe(
    secrets: Tensor, records: Tensor, status: Tensor, confidence: Tensor | None = None
) -> Transcript:
    """Records (t, k, d), what was said of them, and what the attack says of each that it gives."""
    return Transcript(secrets, records, torch.empty(0), status=status, confidence=confidence)


def match(transcript: Transcript, public: Dataset, *, within: float = WITHIN) -> Matched:
    """Guesses and originals held against each other, once for all that is asked of them."""
    ruler = _ruler(public, within)
    right, order = _right(transcript, ruler)
    certified = None if transcript.status is None else (transcript.status == CERTIFIED).gather(1, order)
    sure = transcript.confidence
    sure = None if sure is None else sure[torch.arange(len(order))[:, None], order]
    return Matched(transcript.secrets, public, ruler, right, order, certified, sure)


def exact_records(
    transcript: Transcript, public: Dataset, *, within: float = WITHIN, level: float = 0.95
) -> Estimate:
    """The share of records that came back exactly: every category, and every number."""
    return match(transcript, public, within=within).exact_share(level)


def certified_records(
    transcript: Transcript, public: Dataset, *, within: float = WITHIN, level: float = 0.95
) -> Estimate:
    """The share of records that came back exactly and that the attack had certified."""
    return match(transcript, public, within=within).certified_share(level)


def false_certificates(
    transcript: Transcript, public: Dataset, *, within: float = WITHIN, level: float = 0.95
) -> Estimate:
    """How many records in a batch the attack certified that are not there, with the exact Poisson
    interval."""
    return match(transcript, public, within=within).false_certificates(level)


def right_cells(
    transcript: Transcript, public: Dataset, *, within: float = WITHIN, level: float = 0.95
) -> dict[str, tuple[Estimate, Estimate]]:
    """Column by column, and of all under "all": the share of cells that are right, and the share that are if
    the commonest public value is said of every record."""
    return match(transcript, public, within=within).cells(level)


def confident_cells(
    transcript: Transcript,
    public: Dataset,
    *,
    above: float = SURE,
    within: float = WITHIN,
    level: float = 0.95,
) -> tuple[Estimate, Estimate]:
    """Of records that are not certified: the share of all cells of which the attack is more than ``above``
    sure, and the share of these that are right."""
    found = match(transcript, public, within=within).confident(above, level)
    require(found is not None, "the transcript", "of an attack that rates cells", "none")
    assert found is not None
    return found


def _ruler(public: Dataset, within: float) -> Ruler:
    require(bool(public.columns), "public.columns", "those of a table", public.columns)
    require(within > 0, "within", "above 0", within)
    return Ruler.of(public, within)


def _right(transcript: Transcript, ruler: Ruler) -> tuple[Tensor, Tensor]:
    """Which cells (t, k, columns) of the originals came back, and the guess (t, k) matched to each."""
    rights, orders = [], []
    status = transcript.status
    proven: list[Tensor | None] = [None] * len(transcript.secrets)
    proven = proven if status is None else [*(status == CERTIFIED)]
    for guesses, originals, sure in zip(transcript.guesses, transcript.secrets, proven, strict=True):
        right, order = pair(ruler.compare(originals, guesses), sure)
        rights.append(right)
        orders.append(order)
    return torch.stack(rights), torch.stack(orders)


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
