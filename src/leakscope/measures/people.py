"""Two groups of people, each person with one or several records: what is permuted and resampled.

Whatever is told of a group is told from sums over its people's records, so that a permutation or a
bootstrap draw costs a product with a matrix of weights and no gradient is computed again.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from leakscope.core.errors import ArgumentError, require

ROWS = 64  # records in float64 at a time
Weights = tuple[Tensor, Tensor]  # how often each person counts on either side: (draws, people) twice


@dataclass(frozen=True, eq=False)
class People:
    """``person`` (n,) is the place of each record's person, the records and people of the first side
    before those of the second; ``sides`` says how many people each has."""

    person: Tensor
    sides: tuple[int, int]

    @staticmethod
    def of(n0: int, n1: int, people0: Tensor | None, people1: Tensor | None, *, where: str) -> People:
        """The people behind ``n0`` and ``n1`` records; a record without one is a person of its own."""
        if (people0 is None) != (people1 is None):
            raise ArgumentError(f"{where} must be given people0 and people1, or neither; give both.")
        if people0 is None or people1 is None:
            people0, people1 = torch.arange(n0), torch.arange(n0, n0 + n1)
        for i, (n, people) in enumerate(((n0, people0), (n1, people1))):
            fits = tuple(people.shape) == (n,)
            require(fits, f"{where}.people{i}", f"one number for each of {n} records", tuple(people.shape))
        both = people0[torch.isin(people0, people1)]
        if len(both):
            raise ArgumentError(
                f"{where}.people0 and people1 must be different people, got person {int(both[0])} on both "
                f"sides; keep each person's records of one side."
            )
        places = [people.unique(return_inverse=True) for people in (people0, people1)]
        (ours, first), (theirs, second) = places
        for i, some in enumerate((ours, theirs)):
            require(len(some) >= 2, f"{where}.people{i}", "at least 2 people", len(some))
        return People(torch.cat([first, second + len(ours)]), (len(ours), len(theirs)))

    def sums(self, rows: Tensor) -> Tensor:
        """The sum of each person's rows, in float64: (n, f) -> (people, f)."""
        total = torch.zeros(sum(self.sides), rows.shape[1], dtype=torch.float64)
        for who, some in zip(self.person.split(ROWS), rows.split(ROWS), strict=True):
            total.index_add_(0, who, some.double())
        return total

    @property
    def counts(self) -> Tensor:
        return torch.bincount(self.person, minlength=sum(self.sides)).double()

    def observed(self) -> Weights:
        """Everyone once, on their own side."""
        first = (torch.arange(sum(self.sides)) < self.sides[0]).double()[None]
        return first, 1 - first

    def permuted(self, draws: int, rng: torch.Generator) -> Weights:
        """Everyone once, on a side drawn at random; the sides keep their numbers of people."""
        order = torch.rand(draws, sum(self.sides), generator=rng).argsort(1)
        first = (order < self.sides[0]).double()
        return first, 1 - first

    def resampled(self, draws: int, rng: torch.Generator) -> Weights:
        """The people of each side drawn from its own with repetition: the bootstrap."""
        counts = [
            torch.zeros(draws, n, dtype=torch.float64).scatter_add_(
                1, torch.randint(n, (draws, n), generator=rng), torch.ones(draws, n, dtype=torch.float64)
            )
            for n in self.sides
        ]
        zeros = [torch.zeros_like(part) for part in counts]
        return torch.cat([counts[0], zeros[1]], 1), torch.cat([zeros[0], counts[1]], 1)


def p_value(observed: float, null: Tensor) -> float:
    """The chance under the null to be as large: (1 + how many draws are) / (1 + how many there are). Draws
    that are equal but for rounding count."""
    as_large = int((null >= observed - 1e-12 * abs(observed)).sum())
    return (1 + as_large) / (1 + len(null))
