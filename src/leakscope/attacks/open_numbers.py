"""Numbers that neither a space nor whole categories decide, by what the whole gradient says of them.

Two records with the same categories differ in numbers alone, and then every record of the batch can be moved
along that difference without leaving the space of the first layer. How far each is moved the gradient tells,
since nothing else is unknown; along one record alone it has many valleys, so it is tried everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from leakscope.attacks.matching import adam, evaluated

Losses = Callable[[Tensor], Tensor]  # moves (n, k, q) -> how far (n,) the gradient of each then is


@dataclass(frozen=True)
class Shifting:
    """How far records are moved along what categories leave open: directions of the space in which these
    move less than ``free``. In each of at most ``rounds`` every record alone is tried at so many places
    (``tried``) up to ``reach`` standard deviations from where it was, and the best stands; then all are moved
    by so many ``moves`` of Adam of this ``pace``. A search ends when the squared distance of its gradient is
    ``solved`` of the released one's square."""

    free: float
    rounds: int
    tried: int
    reach: float
    moves: int
    pace: float
    solved: float

    def move(self, losses: Losses, start: Tensor, movable: Tensor) -> tuple[Tensor, Tensor]:
        """Where searches that ``start`` (s, k, q) somewhere come, the ``movable`` (k,) records being moved,
        and how far (s,) their gradients then are."""
        found, least = start.clone(), losses(start)
        for _ in range(self.rounds):
            if bool((least < self.solved).any()):
                break
            for i in range(len(found)):
                found[i], least[i] = self._alone(losses, found[i], least[i], movable)

            def objective(variables: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
                return evaluated(variables, lambda x: losses(movable[:, None] * x.view(start.shape)))

            wave = adam(objective, found.flatten(1), iterations=self.moves, rate=self.pace, signed=False)
            found, least = wave.variables.view(start.shape), wave.losses
        return found * movable[:, None], least

    def _alone(self, losses: Losses, shifts: Tensor, least: Tensor, movable: Tensor) -> tuple[Tensor, Tensor]:
        """One record after the other at the best of the places that are tried."""
        grid = torch.linspace(-self.reach, self.reach, self.tried, dtype=shifts.dtype)
        for record in movable.nonzero()[:, 0].tolist():
            for axis in range(shifts.shape[1]):
                tried = shifts.repeat(self.tried, 1, 1)
                tried[:, record, axis] += grid
                worth = losses(tried)
                if bool(worth.min() < least):
                    shifts, least = tried[worth.argmin()], worth.min()
        return shifts, least


def free_directions(v: Tensor, numbers: Tensor, free: float) -> Tensor:
    """The directions (q, w) of the space ``v`` (w, r), numbers alone, in which categories and the 1 of a
    bias move less than ``free``."""
    fixed = torch.ones(len(v), dtype=torch.bool)
    fixed[numbers] = False
    _, size, turned = torch.linalg.svd(v[fixed], full_matrices=True)
    still = torch.cat([size, size.new_zeros(max(0, len(turned) - len(size)))]) < free
    return torch.where(fixed, 0.0, (v @ turned[still].T).T)
