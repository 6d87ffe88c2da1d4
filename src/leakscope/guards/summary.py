"""What devices tell of their records before they train together: counts and sums, and no record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from leakscope.core.dataset import Dataset, scaling_from
from leakscope.core.errors import DataError
from leakscope.guards.preparation import Preparation


@dataclass(frozen=True, eq=False)
class Summary:
    """Of one device's records, or of several devices' together: how many ``records``, the ``mean`` of every
    column or channel and its ``squares``, the sum over records of squared deviations from that mean (in a
    channel, of their mean over pixels), both float64 of shape (1, columns, ...); and ``counts``, how many
    records have each value of the secret.

    All devices scale by the same numbers, as if their records lay in one place. The server learns each
    device's means, deviations and counts: exact statistics of few records tell of single ones, and no audit
    of the encoder's uploads covers them.
    """

    records: int
    mean: Tensor
    squares: Tensor
    counts: Tensor

    @staticmethod
    def of(data: Dataset, column: str) -> Summary:
        unfinished = [one.name for one in data.columns if not one.learned]
        if unfinished:
            raise DataError(
                f"{data.name}: columns {', '.join(unfinished[:8])} still miss numbers; fill them before the "
                f"devices scale together (Dataset.completed)."
            )
        x = data.x.double()
        over = (0, *range(2, x.dim()))
        mean = x.mean(over, keepdim=True)
        counts = torch.bincount(data.secret(column), minlength=len(data.value_names(column)))
        return Summary(len(data), mean, (x - mean).square().mean(over, keepdim=True) * len(data), counts)

    @staticmethod
    def merged(parts: Sequence[Summary]) -> Summary:
        """The summary of all their records: Chan, Golub and LeVeque's update (1983), which subtracts no large
        numbers from each other."""
        total = sum(part.records for part in parts)
        mean = sum(((part.records / total) * part.mean for part in parts), torch.zeros(()))
        between = [part.squares + part.records * (part.mean - mean).square() for part in parts]
        counts = torch.stack([part.counts for part in parts]).sum(0)
        return Summary(total, mean, torch.stack(between).sum(0), counts)

    def scaling(self, like: Dataset) -> tuple[Tensor, Tensor]:
        """What everyone shifts and divides its records by, as `statistics` of all of them would have it."""
        return scaling_from(like, self.mean, (self.squares / self.records).sqrt())

    def preparation(self, like: Dataset) -> Preparation:
        """How everyone's table is prepared: by the same, rounded."""
        shift, scale = self.scaling(replace(like, x=like.x.double()))
        return Preparation.known(shift.flatten(), scale.flatten(), like.columns)

    def scaled(self, shift: Tensor, scale: Tensor) -> Summary:
        """The summary of the same records after they were scaled."""
        shift, scale = shift.double(), scale.double()
        return Summary(self.records, (self.mean - shift) / scale, self.squares / scale.square(), self.counts)

    def variance(self, numbers: int) -> float:
        """The variance of all inputs of all records together, of so many ``numbers`` each."""
        n = self.records * numbers
        around = self.squares / self.records + (self.mean - self.mean.mean()).square()
        return float(around.mean()) * n / (n - 1)

    @property
    def prior(self) -> Tensor:
        """The share of each value of the secret."""
        return self.counts / self.counts.sum()
