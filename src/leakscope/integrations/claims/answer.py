"""What a claim of privacy comes to: the epsilons that hold, of what, against whom, on which conditions."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Protocol

from leakscope.audits.mechanism.duel import Duel, DuelBound
from leakscope.core.errors import CHANCE, NONNEGATIVE, Rule, require

Whose = Literal["upload", "client", "record"]
Neighbours = Literal["add or remove", "replace"]
SERVER, OUTSIDERS = "who see every upload", "who see only the model of each round"
RECORD = (
    "what one record does to an upload depends on the training: the epsilon of the upload is no lower bound "
    "for it"
)
METRICS = "metrics and counts that a client sends beside its update are no secret: they have no noise"
WHOSE: Rule = ("upload, client or record", lambda value: value in ("upload", "client", "record"))
NEIGHBOURS: Rule = ("replace or add or remove", lambda value: value in ("replace", "add or remove"))
EPSILON: Rule = NONNEGATIVE
DELTA: Rule = CHANCE
MOST = 0.01  # of a delta, where nobody says how many rely on it


@dataclass(frozen=True)
class Standing:
    """The epsilon of one ``whose`` ``against`` somebody: of one upload, of all that a client sends, or of one
    record in all rounds; ``added`` if it is added or removed, ``replaced`` if another takes its place.
    Infinite where none holds. ``how`` is the arithmetic. It holds if every sentence of ``only_if`` does."""

    whose: Whose
    against: str
    added: float
    replaced: float
    delta: float
    how: str
    only_if: tuple[str, ...] = ()
    secure: bool = False  # uploads are summed before anyone sees them
    chance: float = 1.0  # of the client to be drawn for a round, in secret

    def epsilon(self, neighbours: Neighbours) -> float:
        return self.added if neighbours == "add or remove" else self.replaced

    def only(self, more: tuple[str, ...]) -> Standing:
        """The same on more conditions, where there is an epsilon to hold."""
        least = min(self.added, self.replaced)
        return self if math.isinf(least) else replace(self, only_if=(*self.only_if, *more))


@dataclass(frozen=True)
class Promise:
    """What was promised: an epsilon at a delta, of what, for which neighbours."""

    epsilon: float
    delta: float
    whose: Whose
    neighbours: Neighbours


@dataclass(frozen=True)
class MeasuredStanding:
    """What trials through the mechanism certify of a standing; None where it was not played, and ``why``. A
    lower bound can break a promise, and never keeps one."""

    standing: Standing
    neighbours: Neighbours
    played: DuelBound | None
    canary: str = ""
    why: str = ""

    @property
    def low(self) -> float:
        return self.played.low if self.played else 0.0

    @property
    def contradicts(self) -> bool:
        """Whether the trials certify more than was accounted for."""
        return self.low > self.standing.epsilon(self.neighbours) * (1 + 1e-9)


@dataclass(frozen=True)
class Claimed:
    """A configuration's answer: what was promised, what stands, what gives nothing, what would keep it."""

    framework: str
    configuration: str
    promise: Promise | None
    standings: tuple[Standing, ...]
    assumed: tuple[str, ...] = ()
    idle: tuple[str, ...] = ()
    instead: str = ""
    measured: tuple[MeasuredStanding, ...] = ()

    @property
    def verdict(self) -> Literal["broken", "holds only if", "nothing promised"]:
        """Against nobody the promise stands; it stands against some, on conditions; nothing was promised.
        Nobody can know from a configuration that all conditions hold, so that no claim is simply kept."""
        if self.promise is None:
            return "nothing promised"
        return "holds only if" if self.kept else "broken"

    @property
    def asked(self) -> tuple[Standing, ...]:
        """What stands of what was promised, without secure aggregation, which no configuration here has."""
        promise = self.promise
        return tuple(
            row for row in self.standings if promise and row.whose == promise.whose and not row.secure
        )

    @property
    def kept(self) -> tuple[Standing, ...]:
        promise = self.promise
        return tuple(
            row
            for row in self.asked
            if promise
            and row.epsilon(promise.neighbours) <= promise.epsilon * (1 + 1e-9)
            and row.delta <= promise.delta
            and not any(
                one.low > promise.epsilon or one.contradicts for one in self.measured if one.standing == row
            )
        )


class Configuration(Protocol):
    """A deployed configuration in its framework's words. It says what holds, what would keep a promise."""

    usual: ClassVar[tuple[Whose, Neighbours]]  # what its own epsilon is of

    @property
    def people(self) -> int | None:
        """How many records, or clients, its delta is for; None where nobody says."""

    @property
    def promise(self) -> Promise | None: ...
    def standings(self, delta: float | None) -> tuple[Standing, ...]: ...
    def assumed(self) -> tuple[str, ...]: ...
    def idle(self) -> tuple[str, ...]: ...
    def nearest(self, promise: Promise) -> str: ...
    def duel(self, row: Standing, neighbours: Neighbours) -> Duel | str:
        """How its epsilon is measured; or why it is not."""


def allow_delta(delta: float, people: int | None) -> tuple[str, ...]:
    """What a delta needs: who shows one of n whole, drawn at random, keeps epsilon 0 at delta 1 / n."""
    few = people is None or people < 1 / MOST
    rule = f"below {MOST:g}" if few else f"below 1 / {people:,}"
    way_out = "at this one somebody may be shown whole"
    require(delta < MOST and delta * (people or 1) < 1, "delta", rule, delta, way_out=way_out)
    if people is not None or not delta:
        return ()
    return (
        f"far fewer than 1 / delta = {1 / delta:,.0f} uploads, clients or records are protected by it: one "
        f"of so many may be shown whole",
    )


SIZE = "0 or between 1e-30 and 1e30 in size"  # so that no square or product of settings overflows


def is_number(value: object) -> bool:
    """A number of a usual `SIZE`."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return value == 0 or 1e-30 <= abs(value) <= 1e30


def setting(rule: Rule, *names: str, **default: Any) -> Any:
    """A field with its rule and the other names it goes by."""
    return field(metadata={"rule": rule, "names": names}, **default)


def show(value: float) -> str:
    """An epsilon in words of a page."""
    if math.isinf(value):
        return "none"
    if value < 1_000:
        return f"{value:.3g}" if value < 100 else f"{value:.1f}"
    return f"{value:,.0f}" if value < 1e7 else f"{value:.2e}"
