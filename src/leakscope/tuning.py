"""The weakest defense that meets a stated risk: bisection on every defense's strength."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joblib import Parallel, delayed

from leakscope import store, sweep
from leakscope.errors import LeakscopeError, require
from leakscope.plan import Cell

Table = dict[str, Any]
NOISE_AWARE: Table = {"name": "NoiseAware"}


@dataclass(frozen=True)
class Family:
    """One kind of defense, from its weakest to its strongest sensible setting; ``table`` is the plan's
    for a strength between, on a logarithmic scale. ``attacks`` are tried beside the cell's own."""

    name: str
    weakest: float
    strongest: float
    table: Callable[[float], Table]
    attacks: tuple[Table, ...] = ()

    def at(self, share: float) -> Table:
        """The defense at a share of the way from weakest (0) to strongest (1)."""
        strength = self.weakest * (self.strongest / self.weakest) ** share
        return self.table(float(f"{strength:.3g}"))


FAMILIES = (
    Family("Pruning", 0.2, 0.0002, lambda kept: {"name": "Pruning", "rate": round(1 - kept, 6)}),
    Family("Sign", 1.0, 1.0, lambda _: {"name": "Sign"}),
    Family(
        "AdversarialPerturbation",
        1e-4,
        0.1,
        lambda radius: {
            "name": "AdversarialPerturbation",
            "radius": radius,
            "step": float(f"{0.4 * radius:.3g}"),
        },
    ),
    Family("VIB", 1e-4, 10.0, lambda beta: {"name": "VIB", "beta": beta}),
    Family("Noise", 1e-3, 30.0, lambda std: {"name": "Noise", "std": std}, (NOISE_AWARE,)),
    Family(
        "DPSGD", 1e-2, 100.0, lambda noise: {"name": "DPSGD", "clip": 2.0, "noise": noise}, (NOISE_AWARE,)
    ),
)


@dataclass(frozen=True)
class Risk:
    """What the user accepts: the upper limit of the adaptive adversary's advantage, and the loss of
    task accuracy in shares (0.02: two points)."""

    advantage: float
    loss: float

    def __post_init__(self) -> None:
        require(0 <= self.advantage < 1, "max-advantage", "in [0, 1)", self.advantage)
        require(0 <= self.loss <= 1, "max-loss", "between 0 and 1", self.loss)


@dataclass(frozen=True)
class Point:
    """One setting that was tried: the worst of its attacks, and what it costs."""

    family: str
    defense: Table
    advantage: float  # the adversary's
    high: float  # and its upper limit
    loss: float  # of accuracy against no defense
    error: str  # why it could not be measured, if so
    results: tuple[store.Result, ...]

    def meets(self, risk: Risk) -> bool:
        """Whether both wishes are met."""
        return self.high <= risk.advantage and self.loss <= risk.loss


def search(
    cell: Cell,
    risk: Risk,
    folder: Path,
    *,
    seed: int = 0,
    halvings: int = 5,
    families: Sequence[Family] = FAMILIES,
    jobs: int | None = None,
    trusted: Sequence[str] = (),
) -> Iterator[Point]:
    """The undefended point, then every setting as soon as it is measured.

    A family's strongest setting is tried first: if even that does not meet the wanted advantage, none
    does. Otherwise the weakest that does is found by bisection; privacy grows with strength. All
    families are searched at once, a setting of each at a time.
    """
    require(halvings >= 1, "tune.halvings", "at least 1", halvings)
    free = _point("none", None, cell, seed, folder, (), 0.0, tuple(trusted))
    if free.error:
        raise LeakscopeError(f"the undefended model cannot be measured: {free.error}")
    yield free
    accuracy = _accuracy(free.results)
    highs: dict[str, list[float]] = {family.name: [] for family in families}
    while True:
        shares = [(family, _next(family, highs[family.name], risk, halvings)) for family in families]
        calls = [
            delayed(_point)(
                family.name, family.at(share), cell, seed, folder, family.attacks, accuracy, tuple(trusted)
            )
            for family, share in shares
            if share is not None
        ]
        if not calls:
            return
        workers = min(jobs or sweep.cores(), len(calls))
        for point in Parallel(n_jobs=workers, return_as="generator_unordered", batch_size=1)(calls):
            highs[point.family].append(point.high)
            yield point


def _next(family: Family, highs: Sequence[float], risk: Risk, halvings: int) -> float | None:
    """Which share of the way to the strongest to try after settings that let ``highs`` through."""
    if not highs:
        return 1.0
    if highs[0] > risk.advantage or family.weakest == family.strongest or len(highs) > halvings:
        return None
    weak, strong = 0.0, 1.0
    for high in highs[1:]:
        middle = (weak + strong) / 2
        weak, strong = (weak, middle) if high <= risk.advantage else (middle, strong)
    return (weak + strong) / 2


def confirmed(point: Point, cell: Cell, folder: Path, *, seed: int = 1, trusted: Sequence[str] = ()) -> Point:
    """The chosen setting again on a victim, records and trials that the choice did not see."""
    free = _point("none", None, cell, seed, folder, (), 0.0, tuple(trusted))
    attacks = next(family.attacks for family in FAMILIES if family.name == point.family)
    return _point(
        point.family, point.defense, cell, seed, folder, attacks, _accuracy(free.results), tuple(trusted)
    )


def cheapest(points: Sequence[Point], risk: Risk) -> Point | None:
    """Of the settings that meet the risk, the one that costs least accuracy."""
    meeting = [point for point in points if point.family != "none" and point.meets(risk)]
    return min(meeting, key=lambda point: (point.loss, -point.high), default=None)  # of equals the weakest


def _point(
    family: str,
    defense: Table | None,
    cell: Cell,
    seed: int,
    folder: Path,
    attacks: tuple[Table, ...],
    accuracy: float,
    trusted: tuple[str, ...],
) -> Point:
    """Play one setting with every attack, or read what was played; the worst advantage counts."""
    results = []
    for attack in (cell.attack, *attacks):
        settings = {"defense": defense, "attack": attack, "adaptive": True, "id": _name(defense)}
        variant = cell.model_copy(update=settings)
        result = store.load(folder, variant.key(seed))
        if result is None or "error" in result:
            result = sweep.run_cell(variant, seed, folder, trusted, 1)
        results.append(result)
    failed = next((result["error"] for result in results if "error" in result), None)
    if failed:  # a setting that cannot be trained protects nothing that is of use
        return Point(family, defense or {}, 1.0, 1.0, 1.0, str(failed), tuple(results))
    worst = max((result["estimates"]["advantage"] for result in results), key=lambda e: float(e["high"]))
    loss = accuracy - _accuracy(results) if accuracy else 0.0
    return Point(family, defense or {}, worst["value"], worst["high"], loss, "", tuple(results))


def _accuracy(results: Sequence[Mapping[str, Any]]) -> float:
    return float(results[0]["utility"]["accuracy"]["value"])


def _name(defense: Table | None) -> str:
    settings = [f"{key} {value:g}" for key, value in (defense or {}).items() if key != "name"]
    return " ".join([(defense or {"name": "no defense"})["name"], *settings])
