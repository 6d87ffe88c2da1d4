"""What results say about a secret: one reading for every attack of every cell and seed, made of numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from leakscope.results import store
from leakscope.results.cell import group_by, plan_of, stable
from leakscope.results.kind import Asked, kind_named, numbers
from leakscope.results.number import Number
from leakscope.results.result import Result, find_checks, revision
from leakscope.results.scores import tells

EVERY = "*"


@dataclass(frozen=True)
class Reading:
    """What one attack on one cell and seed tells. ``secret`` is "*" where a failed cell does not say it.
    ``measured`` are its own numbers, ``bounds`` those that hold for every adversary, of the same secret."""

    key: str
    seed: int
    kinds: tuple[str, ...]
    secret: str
    data: str
    asked: Asked
    adversaries: tuple[str, ...]
    attack: str = ""
    measured: Mapping[str, Number] = field(default_factory=dict)
    surer: Mapping[str, Number] = field(default_factory=dict)  # the same at a higher level
    bounds: tuple[Number, ...] = ()
    expected: tuple[Number, ...] = ()  # epsilons that are no proof, as if shuffled batches were drawn
    doubted: bool = False  # a self-check of the result failed
    doubt: str = ""  # why its page says that little found clears nobody
    narrow: bool = False  # sought in single releases without their labels only
    apart: bool = True  # the attack was heard on other records than it had learned from
    failure: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)  # of its cell, by dotted names
    run: int = 0  # of several
    unlearned: bool = False  # its model is no better than a constant
    stale: bool = False  # another version of this program made it

    @property
    def unprotected(self) -> bool:
        """Known to have no defense."""
        return self.asked.protected is False

    @property
    def defense(self) -> str:
        """In words."""
        return self.asked.defense or ("none" if self.unprotected else "not said")

    @property
    def adversary(self) -> str:
        return " or ".join(self.adversaries)

    @property
    def ranks(self) -> bool:
        """Whether its ranking gives the secret away and its guesses do not: then its guesses say nothing."""
        area, gain = self.measured.get("auroc"), self.measured.get("advantage")
        told = area is not None and tells(area.low, area.high)
        return told and gain is not None and not (gain.low or 0.0) > 0

    @property
    def worse(self) -> bool:
        """Whether its guesses are worse than guessing: then they show what this attack got wrong, not what a
        right one would find."""
        success = self.measured.get("success")
        known = success is not None and success.high is not None and success.guessing is not None
        return known and success.high < success.guessing  # type: ignore[union-attr, operator]

    @property
    def reversed(self) -> bool:
        """Whether its ranking is worse than chance, so that it gives the secret away the other way round."""
        area = self.measured.get("auroc")
        return area is not None and area.high is not None and area.high < 0.5

    @property
    def place(self) -> tuple[str, str, str]:
        """Which secret of which data, behind what."""
        return self.secret, self.data, stable(self.asked.shields)

    @property
    def setting(self) -> tuple[tuple[str, str, str], tuple[str, ...]]:
        """What was attacked, whoever did it."""
        return self.place, self.kinds


def read_results(folder: Path) -> list[Result[Any]]:
    """Every result of a folder, and one that says so for whatever its plan asks and nobody has run."""
    return complete(store.results(folder), store.plan(folder))


def complete(results: Sequence[Result[Any]], plan: str) -> list[Result[Any]]:
    """The results, and an error for whatever the plan asks and nobody has run."""
    there = {(stable(result.cell.meaning), result.seed) for result in results}
    return [*results] + [
        Result[Any](key=key, seed=seed, kind=cell.kind, cell=cell, error="not run yet")
        for key, (cell, seed) in store.asked(plan_of(plan)).items()
        if (stable(cell.meaning), seed) not in there
    ]


def read(result: Result[Any], *, run: int = 0) -> list[Reading]:
    """Everything that one result says."""
    stale = result.made.code != revision() or result.key != result.cell.key(result.seed)
    settings = dict(_settings(result.cell.meaning))
    return [replace(one, settings=settings, run=run, stale=stale) for one in _readings(result)]


def _settings(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from _settings(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _readings(result: Result[Any]) -> list[Reading]:
    asked = kind_named(result.kind).ask(result.cell)
    rows = numbers(result)
    if all(row.error for row in rows):
        reason = rows[0].error.rstrip(".")
        return [
            Reading(
                key=result.key,
                seed=result.seed,
                kinds=asked.questions,
                secret=secret,
                data=result.cell.source,
                asked=asked,
                adversaries=_adversaries(asked.adaptive),
                attack=asked.attack,
                failure=reason,
            )
            for secret in asked.secrets or (EVERY,)
        ]
    leaks = [row for row in rows if row.about == "leakage"]
    groups = group_by(leaks, lambda row: (row.secret, row.attack, row.part, row.adaptive, row.question))
    return [_reading(result, asked, group, rows) for group in groups.values()]


def _reading(result: Result[Any], asked: Asked, group: Sequence[Number], rows: Sequence[Number]) -> Reading:
    first = group[0]
    failure = next((row.error.rstrip(".") for row in group if row.error), "")
    there = [] if failure else sorted(group, key=lambda row: row.level or 0.0)
    ordered = group_by(there, lambda row: row.measure)
    bounds = [row for row in rows if row.about == "bound" and row.secret == first.secret]
    return Reading(
        key=result.key,
        seed=result.seed,
        kinds=tuple(first.question.split(" or ")),
        secret=first.secret,
        data=first.data,
        asked=asked,
        adversaries=_adversaries(first.adaptive),
        attack=", ".join(dict.fromkeys(part for part in (first.attack, first.part) if part)),
        measured={name: found[0] for name, found in ordered.items()},
        surer={name: found[-1] for name, found in ordered.items() if len(found) > 1},
        bounds=tuple(row for row in bounds if row.bound == "upper"),
        expected=tuple(row for row in bounds if row.bound == "estimate"),
        doubted=any(not check.passed for _, check in find_checks(result.found)),
        doubt=next(iter(getattr(result.found, "doubts", ())), "").rstrip("."),
        narrow=first.secret in getattr(result.found, "narrow", ()),
        apart=getattr(result.found, "apart", True),
        unlearned=getattr(getattr(result.found, "utility", None), "idle", False),
        failure=failure,
    )


def _adversaries(adaptive: bool | None) -> tuple[str, ...]:
    """Where there is no defense to know of, who attacks is both."""
    return ("adaptive", "static") if adaptive is None else ("adaptive",) if adaptive else ("static",)
