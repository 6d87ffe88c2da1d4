"""Results -> one self-contained HTML page: what leaks, how sure that is, and what was assumed.

`render` is a function of its arguments alone: no clock, no file but the template, so the same
results always give the same page. `write` does it for a results folder.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from leakscope import store, svg
from leakscope.summary import SEVERE, SEVERITIES, SLIGHT, Average, Json, Section, stable, summarise

POINTS = 80  # drawn of one ROC curve, at most
FIGURES = 12  # settings that get figures, the worst first, so that a large grid stays one readable page


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

    @property
    def title(self) -> str:
        return f"{self.column}, share of {self.value}" if self.kind == "distribution" else self.column

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


def _victim(cell: Json) -> str:
    free = {"defense", "adaptive", "attack", "trials", "rehearsals", "published"}
    return stable({key: value for key, value in cell.items() if key not in free})


def _secrets(sections: Iterable[Section]) -> list[Secret]:
    groups: dict[tuple[str, str, str, str], list[Section]] = {}
    for section in sorted(sections, key=lambda s: s.worst_first):  # the failed come last and join their kin
        cell, secret = section.cell, section.secret
        game = cell.get("game") or {}
        column = secret.get("column") or game.get("secret") or game.get("column") or game.get("user") or "?"
        found = str((cell.get("data") or {}).get("name", "data")), str(column), str(game.get("name", ""))
        kin = next((key for key in groups if key[:3] == found), (*found, ""))
        groups.setdefault((*found, str(secret["kind"])) if secret.get("kind") else kin, []).append(section)
    secrets, number = [], 0
    for (data, column, _, kind), group in groups.items():
        rows = [
            Row(number + i, section, words(section.cell.get("defense") or {}), differs)
            for i, (section, differs) in enumerate(zip(group, _differences(group), strict=True), start=1)
        ]
        number += len(rows)
        secret, game = group[0].secret, group[0].cell.get("game") or {}
        count, values = len(secret.get("chances") or ()), secret.get("values") or ()
        value = (
            secret.get("value")
            or game.get("value")
            or (values[-1] if values and len(values) != count else column)
        )
        secrets.append(Secret(kind, column, str(value), data, count, tuple(rows)))
    return secrets


def _differences(group: Sequence[Section]) -> list[str]:
    """What tells cells of one secret apart, other than the defense and who knows of it."""
    tables = [dict(_leaves(section.cell)) for section in group]
    paths = sorted({path for table in tables for path in table})
    told = ("defense", "adaptive", "published")
    vary = [p for p in paths if p[0] not in told and len({stable(table.get(p)) for table in tables}) > 1]
    return [
        ", ".join(
            f"{' '.join(p[:-1] if p[-1] == 'name' else p)} {words(table[p])}" for p in vary if p in table
        )
        for table in tables
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
    return str(value)


def number(value: float | None, digits: int = 3) -> str:
    """A number for people: a true minus, and a dash where there is none."""
    if value is None or math.isnan(value):
        return "–"
    return f"{value:.{digits}f}".replace("-", "−")


def percent(value: float | None, digits: int = 1) -> str:
    return number(None if value is None else 100 * value, digits) + (
        "" if value is None or math.isnan(value) else "%"
    )


def spoken(average: Average, guessing: float) -> tuple[str, str, str]:
    """Success, its interval and guessing in whole percent, or finer where whole ones would mislead."""
    numbers = (average.value, average.low, average.high)
    blurred = average.high - average.low < 0.015 or any(0 < abs(v - round(v)) < 0.005 for v in numbers)
    digits = 1 if blurred else 0
    between = f"{number(100 * average.low, digits)}–{percent(average.high, digits)}"
    return percent(average.value, digits), between, percent(guessing, digits)


def either(values: Iterable[object]) -> str:
    """Each value once: ``16`` or ``16 or 64``."""
    distinct = {stable(value): value for value in values if value is not None}
    ordered = sorted(
        distinct.values(), key=lambda v: (isinstance(v, str), v if isinstance(v, int | float) else 0, str(v))
    )
    texts = [f"{value:,}" if isinstance(value, int) else str(value) for value in ordered]
    return " or ".join(texts) if len(texts) < 3 else ", ".join(texts[:-1]) + " or " + texts[-1]


@dataclass(frozen=True)
class Task:
    """What a model is worth under one defense; several secrets may have been measured with it."""

    name: str
    row: Row
    change: float | None  # of accuracy, against the same model without the defense
    secrets: tuple[str, ...]


def _tasks(secrets: Iterable[Secret]) -> list[Task]:
    tasks: dict[str, Task] = {}
    for secret in secrets:
        for row in sorted(secret.measured, key=lambda r: (bool(r.defense), r.number)):
            utility, free = row.section.utility, secret.undefended(row)
            if not utility:
                continue
            name = str((row.section.runs[0].get("data") or {}).get("label", secret.data))
            key = stable([secret.data, name, row.defense, row.differs, [a.value for a in utility.values()]])
            task = tasks.get(key) or Task(name, row, _change(row.section, free if row.defense else None), ())
            tasks[key] = replace(task, secrets=tuple(dict.fromkeys((*task.secrets, secret.column))))
    return list(tasks.values())


def _change(section: Section, free: Section | None) -> float | None:
    if free is None or "accuracy" not in free.utility or "accuracy" not in section.utility:
        return None
    return section.utility["accuracy"].value - free.utility["accuracy"].value


def _drawn(secrets: Sequence[Secret]) -> set[int]:
    """The rows that get figures: of every secret the worst, then its best defense, then the rest."""
    first = [secret.worst for secret in secrets]
    best = [row for secret in secrets if (row := secret.best_defended)]
    rest = sorted((row for secret in secrets for row in secret.rows), key=lambda row: row.section.worst_first)
    ordered = dict.fromkeys(row.number for row in (*first, *best, *rest) if row.section.estimates)
    return set(list(ordered)[:FIGURES])


def _known(secrets: Iterable[Secret]) -> list[tuple[str, str]]:
    """(secret, the columns the adversary knows the batch's means of)."""
    games = [(secret.column, row.section.cell.get("game") or {}) for secret in secrets for row in secret.rows]
    return list(
        dict.fromkeys((column, ", ".join(game["known"])) for column, game in games if game.get("known"))
    )


def _distinct(tables: Iterable[Json | None]) -> list[Json]:
    return list({stable(table): table for table in tables if table}.values())


def render(results: Sequence[Json], *, plan: str, title: str) -> str:
    """The page. All words from the data are escaped."""
    secrets = _secrets(summarise(results))
    rows = [row for secret in secrets for row in secret.rows]
    measured = [row for row in rows if row.section.estimates]
    runs = [run for row in measured for run in row.section.runs]
    lows = [a.low for row in measured if (a := row.section.estimates.get("advantage"))]
    environment = Environment(
        loader=PackageLoader("leakscope"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(number=number, percent=percent, words=words, either=either, zip=zip)
    environment.filters["whiskers"] = lambda averages: [(a.value, a.low, a.high) for a in averages]
    return environment.get_template("report.html").render(
        title=title,
        plan=plan,
        secrets=secrets,
        rows=rows,
        measured=measured,
        seeds=sorted({int(result["seed"]) for result in results}),
        severities=SEVERITIES,
        bands=(SLIGHT, SEVERE),
        span=(min(0.0, math.floor(min(lows, default=0.0) * 4) / 4), 1.0),
        drawn=_drawn(secrets),
        points=POINTS if len(rows) <= FIGURES else POINTS // 2,
        facts={
            "observed": either(row.section.observed for row in rows),
            "batch": either(row.section.secret.get("batch") for row in rows),
            "public": either((run.get("data") or {}).get("public") for run in runs),
            "prior": either(words(prior) for row in rows if (prior := row.section.cell.get("prior"))),
            "rehearsals": either(row.section.cell.get("rehearsals") for row in rows),
        },
        known=_known(secrets),
        tasks=_tasks(secrets),
        data=_distinct(run.get("data") for run in runs),
        models=_distinct(run.get("model") for run in runs),
        versions=[words(table) for table in _distinct(run.get("versions") for run in runs)],
        seconds=round(sum(float(run.get("seconds") or 0) for run in runs)),
        spoken=spoken,
        icon=lambda name: Markup(svg.severity(name)),
        strip=lambda *args, **kwargs: Markup(svg.strip(*args, **kwargs)),
        scale=lambda span: Markup(svg.scale(span)),
        roc=lambda *args, **kwargs: Markup(svg.roc(*args, **kwargs)),
        rounds=lambda *args, **kwargs: Markup(svg.rounds(*args, **kwargs)),
    )


def write(folder: Path) -> Path:
    """The page of a results folder, from its files alone."""
    plan = store.plan(folder)
    page = folder / "report.html"
    title = str(tomllib.loads(plan).get("name", folder.name))
    store.write(page, render(store.results(folder), plan=plan, title=title))
    return page
