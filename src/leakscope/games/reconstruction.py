"""Who draws what when the records themselves are the secret (paper 001, section 3)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from leakscope.core.dataset import Batch, Dataset
from leakscope.core.errors import DataError, require
from leakscope.core.nouns import Channel, View


@dataclass(frozen=True, eq=False)
class Reconstruction:
    """Recover the records behind a release as they are.

    Every trial draws ``batch`` different records, and they are the secret (t, k, *shape). With
    ``labels`` the adversary is told what each is labelled (view.public "labels", (t, k)). All else it
    knows of records, their mean and their range, it has from records of its own: the game ``on`` them.
    """

    data: Dataset
    batch: int = 1
    labels: bool = True

    kind = "reconstruction"

    def __post_init__(self) -> None:
        require(self.batch >= 1, "Reconstruction.batch", "at least 1", self.batch)
        if len(self.data) < self.batch:
            raise DataError(
                f"{self.data.name}: {len(self.data)} records are fewer than Reconstruction.batch = "
                f"{self.batch}; lower the batch size or give more records."
            )

    @property
    def chances(self) -> Tensor:
        """Empty: a record is no one of finitely many values."""
        return torch.empty(0, dtype=torch.float64)

    @property
    def mean(self) -> Tensor:
        """The mean record: the best guess, in squared error, of who sees nothing."""
        return self.data.x.mean(0)

    @property
    def limits(self) -> tuple[Tensor, Tensor]:
        """The lowest and highest value of every column of a table or channel of images, in the shape of
        a record; dummies lie between 0 and 1, whichever occur."""
        x = self.data.x
        over = (0, *range(2, x.dim()))
        lowest, highest = x.amin(over, keepdim=True)[0], x.amax(over, keepdim=True)[0]
        for column in self.data.columns:
            if column.values and not column.standardised:
                lowest[column.start : column.stop], highest[column.start : column.stop] = 0, 1
        return lowest.expand(x.shape[1:]), highest.expand(x.shape[1:])

    def on(self, data: Dataset) -> Reconstruction:
        return replace(self, data=data)

    def deal(self, channel: Channel, trials: int, rng: torch.Generator) -> tuple[View, Tensor]:
        require(trials >= 1, "Reconstruction.deal: trials", "at least 1", trials)
        drawn = [torch.randperm(len(self.data), generator=rng)[: self.batch] for _ in range(trials)]
        rows = torch.stack(drawn)
        nothing = torch.zeros(trials, dtype=torch.long)  # no value that the batch's records share
        releases = channel(Batch(self.data, rows), nothing, rng)
        public = {"labels": self.data.y[rows]} if self.labels else {}
        return View(releases, public), self.data.x[rows]
