"""What a defense did, said so that an accountant can judge it: a defense states no epsilon of its own."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from dp_accounting import DpEvent  # type: ignore[import-untyped]

Unit = Literal["record", "upload", "mean"]


@dataclass(frozen=True)
class Mechanism:
    """One release under differential privacy.

    ``event`` is the release for neighbours of which one has one more ``unit`` behind it, ``replaced`` for
    neighbours of which one has another in its place. A "record" is one of a batch. An "upload" is the whole
    release, whatever is changed behind it, so that both events are the same. "mean" is a client of equal
    weight against those who see nothing but the mean of all clients: it holds against nobody who sees
    uploads.

    ``clip`` and ``std`` are of what the adversary sees: something of at most that norm, with Gaussian noise
    of that standard deviation in every entry; infinity and 0 where that is not so.
    """

    event: DpEvent
    replaced: DpEvent
    unit: Unit
    clip: float = math.inf
    std: float = 0.0


def gaussian(
    added: float, replaced: float, unit: Unit, *, clip: float = math.inf, std: float = 0.0
) -> Mechanism:
    """Gaussian noise of ``added`` times the distance between neighbours, and ``replaced`` times."""
    from dp_accounting import GaussianDpEvent  # takes a second, and few defenses need it

    return Mechanism(GaussianDpEvent(added), GaussianDpEvent(replaced), unit, clip, std)
