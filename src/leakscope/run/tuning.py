"""The weakest defense that meets a stated risk: bisection on every defense's strength."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from joblib import Parallel, delayed

from leakscope.core.errors import LeakscopeError, require
from leakscope.results import store
from leakscope.results.cell import Cell, Table
from leakscope.results.gate.readings import read
from leakscope.results.kind import numbers
from leakscope.results.number import Number
from leakscope.results.result import Result
from leakscope.results.scores import TASK_WORDS
from leakscope.run import sweep


@dataclass(frozen=True)
class DefenseFamily:
    """One kind of defense, from its weakest to its strongest sensible setting; ``table`` is the plan's
    for a strength between, on a logarithmic scale."""

    name: str
    weakest: float
    strongest: float
    table: Callable[[float], Table]

    def at(self, share: float) -> Table:
        """The defense at a share of the way from weakest (0) to strongest (1)."""
        strength = self.weakest * (self.strongest / self.weakest) ** share
        return self.table(float(f"{strength:.3g}"))


FAMILIES = (
    DefenseFamily("Pruning", 0.2, 0.0002, lambda kept: {"name": "Pruning", "rate": round(1 - kept, 6)}),
    DefenseFamily("Sign", 1.0, 1.0, lambda _: {"name": "Sign"}),
    DefenseFamily(
        "AdversarialPerturbation",
        1e-4,
        0.1,
        lambda radius: {
            "name": "AdversarialPerturbation",
            "radius": radius,
            "step": float(f"{0.4 * radius:.3g}"),
        },
    ),
    DefenseFamily("VIB", 1e-4, 10.0, lambda beta: {"name": "VIB", "beta": beta}),
    DefenseFamily("Noise", 1e-3, 30.0, lambda std: {"name": "Noise", "std": std}),
    DefenseFamily("DPSGD", 1e-2, 100.0, lambda noise: {"name": "DPSGD", "clip": 2.0, "noise": noise}),
)


def count_settings(families: Sequence[DefenseFamily], halvings: int) -> int:
    """How many settings a search tries at most, no defense among them."""
    return 1 + sum(1 if one.weakest == one.strongest else 1 + halvings for one in families)


@dataclass(frozen=True)
class Risk:
    """What the user accepts: the upper limit of the adaptive adversary's advantage, and the loss of
    task accuracy, or R², in shares (0.02: two points)."""

    advantage: float
    loss: float

    def __post_init__(self) -> None:
        require(0 <= self.advantage < 1, "--max-advantage", "in [0, 1)", self.advantage)
        require(0 <= self.loss <= 1, "--max-loss", "between 0 and 1", self.loss)


@dataclass(frozen=True)
class Point:
    """One setting that was tried: what its attack gains, and what it costs. ``ranks``: the attack's ranking
    gives the secret away though its guesses do not, so that the advantage says nothing."""

    family: str
    defense: Table
    advantage: float  # the adversary's
    high: float  # and its upper limit
    ranks: bool
    worth: Number | None  # accuracy of the task, or R²
    loss: float  # of that against no defense
    error: str  # why it could not be measured, if so
    result: Result[Any]
    sound: bool = True  # that it found little says something: not worse than guessing, self-check passed
    free: Number | None = None  # the accuracy without a defense

    def protects(self, risk: Risk) -> bool:
        """Whether it keeps the wanted advantage; what the page calls a leak is never enough."""
        return not self.error and not self.ranks and self.sound and self.high <= risk.advantage

    def meets(self, risk: Risk) -> bool:
        return self.protects(risk) and self.loss <= risk.loss

    def beats(self, other: Point) -> bool:
        """Whether it leaves less and costs no more, or leaves as little and costs less."""
        own, theirs = (self.high, self.loss), (other.high, other.loss)
        return own != theirs and own[0] <= theirs[0] and own[1] <= theirs[1]


def search(
    cell: Cell,
    risk: Risk,
    folder: Path,
    *,
    seed: int = 0,
    halvings: int = 5,
    families: Sequence[DefenseFamily] = FAMILIES,
    jobs: int | None = None,
    trusted: Sequence[str] = (),
) -> Iterator[Point]:
    """The undefended point, then every setting as soon as it is measured.

    A family's strongest setting is tried first: if even that does not meet the wanted advantage, none
    does. Otherwise the weakest that does is found by bisection; privacy grows with strength. All
    families are searched at once, a setting of each at a time.
    """
    require(halvings >= 1, "tune.halvings", "at least 1", halvings)
    measure = partial(_point, cell=cell, seed=seed, folder=folder, trusted=tuple(trusted))
    free = measure("none", None, None)
    if free.error:
        raise LeakscopeError(f"the undefended model cannot be measured: {free.error}")
    yield free
    kept: dict[str, list[bool]] = {family.name: [] for family in families}
    while True:
        shares = [(family, _next(family, kept[family.name], halvings)) for family in families]
        calls = [
            delayed(measure)(family.name, family.at(share), free.worth)
            for family, share in shares
            if share is not None
        ]
        if not calls:
            return
        workers = min(jobs or sweep.cores(), len(calls))
        for point in Parallel(n_jobs=workers, return_as="generator_unordered", batch_size=1)(calls):
            kept[point.family].append(point.protects(risk))
            yield point


def _next(family: DefenseFamily, kept: Sequence[bool], halvings: int) -> float | None:
    """Which share of the way to the strongest to try, after settings that ``kept`` the wish or did not."""
    if not kept:
        return 1.0
    if not kept[0] or family.weakest == family.strongest or len(kept) > halvings:
        return None
    weak, strong = 0.0, 1.0
    for enough in kept[1:]:
        middle = (weak + strong) / 2
        weak, strong = (weak, middle) if enough else (middle, strong)
    return (weak + strong) / 2


def confirm(point: Point, cell: Cell, folder: Path, *, seed: int = 1, trusted: Sequence[str] = ()) -> Point:
    """The chosen setting again on a victim, records and trials that the choice did not see; where they cannot
    be measured its ``error`` says why."""
    measure = partial(_point, cell=cell, seed=seed, folder=folder, trusted=tuple(trusted))
    free = measure("none", None, None)
    again = measure(point.family, point.defense, free.worth)
    return again if again.error or not free.error else free


def list_frontier(points: Sequence[Point]) -> list[Point]:
    """The settings that no other beats, the cheapest first; one whose number is no evidence is not among
    them."""
    fair = [point for point in points if not point.error and not point.ranks and point.sound]
    kept = [point for point in fair if not any(other.beats(point) for other in fair)]
    return sorted(kept, key=lambda point: point.loss)


def choose(points: Sequence[Point], risk: Risk) -> Point | None:
    meeting = [point for point in points if point.family != "none" and point.meets(risk)]
    return min(meeting, key=lambda point: (point.loss, -point.high), default=None)  # of equals the weakest


def _point(
    family: str,
    defense: Table | None,
    free: Number | None,
    *,
    cell: Cell,
    seed: int,
    folder: Path,
    trusted: tuple[str, ...],
) -> Point:
    """Play one setting, or read what was played."""
    variant = cell.model_copy(update={"defense": defense, "adaptive": True, "id": _name(defense)})
    result = store.load(folder, variant.key(seed))
    if result is None or result.error:
        result = sweep.run_cell(variant, seed, folder, trusted, 1)
    if result.error:  # a setting that cannot be trained protects nothing that is of use
        return Point(family, defense or {}, 1.0, 1.0, False, None, 1.0, result.error, result)
    table = {(n.about, n.measure): n for n in numbers(result)}
    gain = table["leakage", "advantage"]
    worth = next(table["utility", name] for name in TASK_WORDS if ("utility", name) in table)
    loss = (free.value or 0.0) - (worth.value or 0.0) if free else 0.0
    high = gain.high if gain.high is not None else 1.0
    (reading,) = read(result)
    sound = not (reading.worse or reading.reversed or reading.doubted or not reading.apart)
    gained, ranks = gain.value or 0.0, reading.ranks
    return Point(family, defense or {}, gained, high, ranks, worth, loss, "", result, sound, free)


def _name(defense: Table | None) -> str:
    settings = [f"{key} {value:g}" for key, value in (defense or {}).items() if key != "name"]
    return " ".join([(defense or {"name": "no defense"})["name"], *settings])
