"""What trials certify about one attribute in one step of DP-SGD, beside what the mechanism promises."""

from __future__ import annotations

import math
from typing import Self

from pydantic import model_validator

from leakscope.core.nouns import Estimate
from leakscope.measures.shuffled import SelfCheck
from leakscope.results.scores import FrozenModel


class Histogram(FrozenModel):
    """How often the statistic fell between two ``edges`` under either hypothesis."""

    edges: tuple[float, ...]
    h0: tuple[float, ...]
    h1: tuple[float, ...]

    @model_validator(mode="after")
    def _drawable(self) -> Self:
        if sorted(self.edges) != list(self.edges) or not self.edges[:1] < self.edges[-1:]:
            raise ValueError("edges must rise")
        for counts in (self.h0, self.h1):
            if len(counts) != len(self.edges) - 1 or min(counts) < 0 or not 0 < sum(counts) < math.inf:
                raise ValueError("there must be counts between all edges")
        return self


class Certified(FrozenModel):
    """``certified`` assumes nothing of the mechanism, ``gaussian`` a Gaussian trade-off, ``sure`` is
    ``certified`` at a higher level: lower bounds, each. ``exact`` is the mechanism's own epsilon where one
    record is replaced, ``exact_added`` where it is added or removed, ``classical`` the textbook formula's."""

    attribute: str
    values: tuple[str, ...]
    statistic: str
    delta: float
    crafted: bool
    distance: float
    clip: float
    std: float
    dimensions: int
    trials: int
    point: float
    certified: Estimate
    gaussian: Estimate
    sure: Estimate | None  # a result from before there was one has none
    saturation: float
    classical: float
    exact: float
    exact_added: float | None
    histogram: Histogram
    selfcheck: SelfCheck | None
