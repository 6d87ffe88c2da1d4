"""Points of a row space that can be records, and which of them to give."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from leakscope.attacks.certificates import independent

LISTED = 5_000  # candidates that are looked at when those not proven are chosen among
SPANNED = 1e-3  # of a point's length outside those chosen before it, below which it is a combination of them


@dataclass(frozen=True, eq=False)
class Candidates:
    """Points (n, r) of a row space that can be records: which are proven (n,), their labels (n,), -1 where
    not known, how many times each is there (n,), and a score (n,), the less the likelier."""

    points: Tensor
    proven: Tensor
    labels: Tensor
    times: Tensor
    score: Tensor

    @staticmethod
    def of(points: Tensor) -> Candidates:
        n = len(points)
        once = torch.ones(n, dtype=torch.long)
        return Candidates(points, torch.zeros(n, dtype=torch.bool), -once, once, torch.zeros(n).double())

    def take(self, rows: Tensor) -> Candidates:
        parts = (self.points, self.proven, self.labels, self.times, self.score)
        return Candidates(*(part[rows] for part in parts))

    def joined(self, others: Candidates) -> Candidates:
        pairs = zip(vars(self).values(), vars(others).values(), strict=True)
        return Candidates(*(torch.cat(pair) for pair in pairs))

    def choose(self, most: int) -> Tensor:
        """Which to give: those proven, as often as they are there, then the likeliest that are independent of
        them."""
        sure = self.proven.nonzero()[:, 0]
        sure = sure[self.score[sure].argsort()]
        likely = self.score.argsort()[:LISTED]
        order = torch.cat([sure, likely[~self.proven[likely]]])
        rows = independent(self.points, order, most, close=SPANNED)
        again = [i for i in rows if self.proven[i] for _ in range(int(self.times[i]) - 1)]
        return torch.tensor([*rows, *again][:most], dtype=torch.long)
