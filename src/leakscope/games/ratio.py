"""Who draws what when a subset's share of a property is the secret (paper 003)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from leakscope.core.dataset import Batch, Dataset
from leakscope.core.errors import DataError, require
from leakscope.core.nouns import Channel, View


@dataclass(frozen=True, eq=False)
class Ratio:
    """Tell which of ``ratios`` a subset's share of records with a property is (paper 003, section 3.2).

    A subset has from ``sizes[0]`` to ``sizes[1]`` records, drawn at equal odds whatever the ratio, so that
    its size, which the adversary is told, says nothing; the share holds by construction, rounded at random.
    ``value`` is the property: a value of ``column``; every other value lacks it.
    """

    data: Dataset
    column: str
    ratios: tuple[float, ...] = (0.2, 0.3, 0.4, 0.5)
    sizes: tuple[int, int] = (2, 100)
    value: str | None = None

    kind = "ratio"

    def __post_init__(self) -> None:
        apart = len(set(self.ratios)) == len(self.ratios) >= 2
        require(apart, "Ratio.ratios", "at least 2 different shares", self.ratios)
        require(all(0 <= r <= 1 for r in self.ratios), "Ratio.ratios", "from 0 to 1", self.ratios)
        require(1 <= self.sizes[0] <= self.sizes[1], "Ratio.sizes", "a range from at least 1", self.sizes)
        lacking, having = self.pools()
        if not len(lacking) or not len(having):
            raise DataError(
                f"{self.data.name}: Ratio needs records with and without {self.column} = {self.trait!r}, and "
                f"has {len(having)} with and {len(lacking)} without; choose another value.",
                public=f"Ratio needs records with and without its value of {self.column!r}; choose another.",
            )

    @property
    def trait(self) -> str:
        """The value whose share is at stake."""
        names = self.data.value_names(self.column)
        value = self.value if self.value is not None else names[-1]
        if value not in names:
            raise DataError(
                f"Ratio.value must be a value of {self.column!r}, got {value!r}; it has: {', '.join(names)}."
            )
        return value

    @property
    def batch(self) -> int:
        return self.sizes[1]

    @property
    def chances(self) -> Tensor:
        m = len(self.ratios)
        return torch.full((m,), 1 / m, dtype=torch.float64)

    def on(self, data: Dataset) -> Ratio:
        return replace(self, data=data)

    def pools(self) -> tuple[Tensor, Tensor]:
        """The rows without the property, and those with it."""
        code = self.data.value_names(self.column).index(self.trait)
        having = self.data.secret(self.column) == code
        return (~having).nonzero()[:, 0], having.nonzero()[:, 0]

    def deal(self, channel: Channel, trials: int, rng: torch.Generator) -> tuple[View, Tensor]:
        require(trials >= 1, "Ratio.deal: trials", "at least 1", trials)
        secrets = torch.randint(len(self.ratios), (trials,), generator=rng)
        least, most = self.sizes
        size = torch.randint(least, most + 1, (trials,), generator=rng)
        share = torch.tensor(self.ratios, dtype=torch.float64)[secrets]
        count = (share * size + torch.rand(trials, generator=rng, dtype=torch.float64)).floor().long()
        places = torch.arange(most)
        lacking, having = (
            pool[torch.randint(len(pool), (trials, most), generator=rng)] for pool in self.pools()
        )
        rows = torch.where(places < count[:, None], having, lacking)
        rows = torch.where(places < size[:, None], rows, -1)
        public: dict[str, Any] = {"known": size[:, None].float()}
        return View(channel(Batch(self.data, rows), secrets, rng), public), secrets
