"""Summaries -> what the page shows together: secrets with their settings, what each defense costs
and buys, and the audits of one attribute."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from leakscope.averages import Average, Json
from leakscope.plan import WORDS
from leakscope.summary import SLIGHT, Audit, Section, source, stable

TOLD = (*WORDS, "defense", "adaptive")  # of a cell: what the page tells in other places, or not at all
VICTIM = (*TOLD, "attack", "trials", "rehearsals")  # what may differ between attacks on one victim


@dataclass(frozen=True)
class Row:
    """A section with the words that tell it from the others of its secret."""

    number: int
    section: Section
    defense: str
    differs: str

    @property
    def adversary(self) -> str:
        if not self.defense:
            return "–"
        return "aware" if self.section.informed else "unaware"

    @property
    def people(self) -> str:
        """The column by which the records were split, or none: then records were."""
        cell = self.section.cell
        return str((cell.get("game") or {}).get("user") or (cell.get("data") or {}).get("by") or "")

    @property
    def label(self) -> str:
        parts = [
            self.defense or "no defense",
            f"adversary {self.adversary}" if self.defense else "",
            self.differs,
        ]
        return ", ".join(part for part in parts if part)


@dataclass(frozen=True)
class Secret:
    """All that was measured about one private column, worst first."""

    kind: str
    column: str
    value: str
    data: str
    count: int  # of values, ranges or people
    rows: tuple[Row, ...]
    shared: bool = False  # whether the page tells of other data too

    @property
    def title(self) -> str:
        return f"{self.column}, share of {self.value}" if self.kind == "distribution" else self.column

    @property
    def label(self) -> str:
        """The title with what tells it from the others of its column."""
        parts = [part for part in (self.kind, self.data if self.shared else "") if part]
        return f"{self.title} ({', '.join(parts)})" if parts else self.title

    @property
    def odds(self) -> list[tuple[str, float]]:
        """The chance of every value, range or person; empty where they are too many to list."""
        told = self.worst.section.secret
        names = ranges(self.count) if self.kind == "distribution" else list(told.get("values") or ())
        return list(zip(names, told["chances"], strict=True)) if 0 < len(names) == self.count <= 12 else []

    @property
    def known(self) -> str:
        """The columns of the batch that the adversary is told the means of, in any setting."""
        games = [row.section.cell.get("game") or {} for row in self.rows]
        return ", ".join(dict.fromkeys(str(name) for game in games for name in game.get("known") or ()))

    @property
    def worst(self) -> Row:
        return self.rows[0]

    @property
    def measured(self) -> list[Row]:
        return [row for row in self.rows if row.section.estimates]

    @property
    def defended(self) -> list[Row]:
        """The defended rows to compare: against an adversary who knows the defense, if any was."""
        rows = [row for row in self.measured if row.defense and "advantage" in row.section.estimates]
        return [row for row in rows if row.section.informed] or rows

    @property
    def best_defended(self) -> Row | None:
        """The defense with the lowest upper limit of the advantage."""
        return min(self.defended, key=lambda r: r.section.estimates["advantage"].high, default=None)

    def undefended(self, row: Row) -> Section | None:
        """The section that differs from ``row`` in its defense, or in how it is attacked, alone."""
        for other in self.measured:
            if not other.defense and _victim(other.section.cell) == _victim(row.section.cell):
                return other.section
        return None


def ranges(count: int) -> list[str]:
    """The ranges of a share: none, and equal parts of what is above (`games.Distribution`)."""
    edges = [f"{100 * i / (count - 1):.3g}" for i in range(count)] if count > 1 else []
    return ["none", *(f"{low}–{high}%" for low, high in pairwise(edges))]


def _victim(cell: Json) -> str:
    return stable({key: value for key, value in cell.items() if key not in VICTIM})


def secrets(sections: Iterable[Section]) -> list[Secret]:
    """The sections by what they are about, the worst first."""
    groups: dict[tuple[str, str, str, str], list[Section]] = {}
    for section in sorted(sections, key=lambda s: s.worst_first):  # the failed come last and join their kin
        cell, secret = section.cell, section.secret
        game, data = cell.get("game") or {}, cell.get("data") or {}
        column = secret.get("column") or game.get("secret") or game.get("column") or game.get("user") or "?"
        found = stable([data.get("name"), data.get("path")]), str(column), str(game.get("name", ""))
        kin = next((key for key in groups if key[:3] == found), (*found, ""))
        groups.setdefault((*found, str(secret["kind"])) if secret.get("kind") else kin, []).append(section)
    found_secrets, number = [], 0
    shared = len({data for data, *_ in groups}) > 1
    for (_, column, _, kind), group in groups.items():
        differing = differences([section.cell for section in group], TOLD)
        rows = [
            Row(number + i, section, words(section.cell.get("defense") or {}), differs)
            for i, (section, differs) in enumerate(zip(group, differing, strict=True), start=1)
        ]
        number += len(rows)
        secret, game = group[0].secret, group[0].cell.get("game") or {}
        count, values = len(secret.get("chances") or ()), secret.get("values") or ()
        value = (
            secret.get("value")
            or game.get("value")
            or (values[-1] if values and len(values) != count else column)
        )
        data = source(group[0].cell)
        found_secrets.append(Secret(kind, column, str(value), data, count, tuple(rows), shared))
    return found_secrets


def differences(tables: Sequence[Json], told: Iterable[str]) -> list[str]:
    """What tells tables apart, other than the keys of which the page tells elsewhere."""
    flat = [dict(_leaves(table)) for table in tables]
    paths = sorted({path for leaves in flat for path in leaves})
    vary = [p for p in paths if p[0] not in told and len({stable(leaves.get(p)) for leaves in flat}) > 1]
    return [
        ", ".join(
            f"{' '.join(p[:-1] if p[-1] == 'name' else p)} {words(leaves[p])}" for p in vary if p in leaves
        )
        for leaves in flat
    ]


def _leaves(table: Json, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], object]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, (*path, str(key)))
        else:
            yield (*path, str(key)), value


def words(value: object) -> str:
    """A plan's table as people say it: ``Pruning (rate 0.99)``."""
    if isinstance(value, Mapping):
        rest = ", ".join(
            f"{key} {words(item)}" for key, item in value.items() if key != "name" and item is not None
        )
        name = str(value.get("name", ""))
        return f"{name} ({rest})" if name and rest else name or rest
    if isinstance(value, list | tuple):
        return " + ".join(words(item) for item in value)
    text = str(value)
    return f"{value:.6g}" if isinstance(value, float) and len(text) > 8 else text  # 0.04, not 0.04000000001


@dataclass(frozen=True)
class Mark:
    """One setting of a frontier. ``number`` and ``label`` are of its defense, attacked in any way."""

    number: int
    label: str
    shape: int  # of the kind of defense; 0: none
    row: Row
    utility: Average
    loss: float | None  # of utility, against the same model without the defense

    @property
    def advantage(self) -> Average:
        return self.row.section.estimates["advantage"]


@dataclass(frozen=True)
class Frontier:
    """What each defense buys and costs (paper 000, figure 7)."""

    measure: str  # of utility: "auroc" or "accuracy"
    marks: tuple[Mark, ...]
    missing: int  # settings without that measure

    @property
    def tried(self) -> list[Mark]:
        """Of every defense the strongest attack by an adversary who knows it, the cheapest first."""
        aware = [mark for mark in self.marks if mark.shape and mark.row.section.informed]
        aware.sort(key=lambda mark: mark.advantage.high)
        return sorted({mark.number: mark for mark in aware}.values(), key=_cost)  # the last, strongest stays

    @property
    def untried(self) -> int:
        """Defenses that no adversary who knows them was set on."""
        return len({mark.number for mark in self.marks if mark.shape} - {mark.number for mark in self.tried})

    @property
    def holding(self) -> list[Mark]:
        return [mark for mark in self.tried if mark.advantage.high <= SLIGHT]

    @property
    def needless(self) -> bool:
        """Whether the advantage stays as low without any defense."""
        free = [mark.advantage.high for mark in self.marks if not mark.shape]
        return bool(free) and max(free) <= SLIGHT


def _cost(mark: Mark) -> tuple[float, float, int]:
    return mark.loss if mark.loss is not None else 0.0, -mark.utility.value, mark.number


def frontier(secret: Secret) -> Frontier | None:
    """The frontier of a secret, where at least two defenses or strengths, none among them, were tried."""
    rows = [row for row in secret.measured if row.section.utility and "advantage" in row.section.estimates]
    measure = "auroc" if all("auroc" in row.section.utility for row in rows) else "accuracy"
    drawn = [row for row in rows if measure in row.section.utility]
    drawn.sort(key=lambda row: (row.defense != "", row.defense, row.number))
    if len({row.defense for row in drawn}) < 2:
        return None
    cells = [row.section.cell for row in drawn]
    kinds = sorted(
        {str((cell.get("defense") or {}).get("name", "")) for cell in cells if cell.get("defense")}
    )
    numbers: dict[tuple[str, str], int] = {}
    marks = []
    for row, label in zip(drawn, _labels(cells), strict=True):
        cell, utility, free = row.section.cell, row.section.utility[measure], secret.undefended(row)
        loss = free.utility[measure].value - utility.value if free and measure in free.utility else None
        number = numbers.setdefault((row.defense, _victim(cell)), len(numbers) + 1)
        shape = 1 + kinds.index(str((cell.get("defense") or {}).get("name", ""))) if row.defense else 0
        marks.append(Mark(number, label, shape, row, utility, loss))
    return Frontier(measure, tuple(marks), len(secret.measured) - len(drawn))


def _labels(cells: Sequence[Json]) -> list[str]:
    """The shortest words that tell defenses, and victims if there are several, apart."""
    defenses = [cell.get("defense") or {} for cell in cells]
    names = [str(defense.get("name", "")) for defense in defenses]
    short = dict.fromkeys(range(len(cells)), "no defense")
    for name in set(names) - {""}:
        places = [i for i, other in enumerate(names) if other == name]
        differing = differences([defenses[i] for i in places], ("name",))
        short |= {i: f"{name} {words}".strip() for i, words in zip(places, differing, strict=True)}
    victims = differences(cells, VICTIM)
    return [", ".join(part for part in (short[i], victims[i]) if part) for i in range(len(cells))]


@dataclass(frozen=True)
class Attribute:
    """The audits of one attribute, from the least noise to the most; those that failed come last."""

    name: str
    data: str
    audits: tuple[Audit, ...]

    @property
    def measured(self) -> list[Audit]:
        return [audit for audit in self.audits if audit.tables]

    @property
    def charts(self) -> list[list[Audit]]:
        """What one chart of epsilon can hold: one statistic, one delta, at least two audits."""
        return [group for group in _alike(self.measured, ("statistic", "delta")) if len(group) > 1]

    @property
    def settings(self) -> list[list[Audit]]:
        """Records put to the same test side by side: most of them, then most certified, first."""
        same = ("statistic", "delta", "clip", "std", "trials")
        shown = [audit for audit in self.measured if audit.histogram]
        groups = _alike(shown, same)
        return sorted(groups, key=lambda group: (-len(group), -max(_epsilon(audit) for audit in group)))


def _alike(audits: Iterable[Audit], names: Sequence[str]) -> list[list[Audit]]:
    groups: dict[str, list[Audit]] = {}
    for audit in audits:
        groups.setdefault(stable([audit.fact(name) for name in names]), []).append(audit)
    return list(groups.values())


def _epsilon(audit: Audit) -> float:
    found = audit.certified("any")
    return found.low if found else -1.0


def attributes(audits: Iterable[Audit]) -> list[Attribute]:
    """Audits by attribute, the one with the largest certified epsilon first."""
    groups: dict[tuple[str, str], list[Audit]] = {}
    for audit in sorted(audits, key=_order):
        groups.setdefault((audit.attribute, audit.data), []).append(audit)
    found = [Attribute(name, data, tuple(group)) for (name, data), group in groups.items()]
    return sorted(found, key=lambda a: (-max(_epsilon(audit) for audit in a.audits), a.name, a.data))


def _order(audit: Audit) -> tuple[object, ...]:
    clip, std, trials = audit.setting
    kind = str(audit.fact("statistic", "")), str(audit.fact("delta", ""))
    ratio = clip / std if 0 < std < math.inf else math.inf
    return not audit.tables, kind, -ratio, clip, trials, audit.record != "crafted", stable(audit.cell)
