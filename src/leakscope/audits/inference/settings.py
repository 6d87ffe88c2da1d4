"""Games over their seeds, by secret: what was measured in each setting, what each defense costs and buys."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from leakscope.audits.inference.found import Bounds, Guarantee, Played, Secret
from leakscope.measures.accounting import Accounted
from leakscope.results.averages import Average, Curve, mean, mean_roc
from leakscope.results.cell import WORDS, Cell, Table, differences, stable, words
from leakscope.results.chapter import SEVERITIES, SLIGHT, is_level, read_severity
from leakscope.results.kind import by_cell
from leakscope.results.result import Result
from leakscope.results.scores import MEASURES, TASK_WORDS, Scores, Worth, average_scores, average_worth

TOLD = (*WORDS, "defense", "adaptive")  # of a cell: what the page tells in other places, or not at all
VICTIM = (*TOLD, "attack", "trials", "rehearsals")  # what may differ between attacks on one victim
MARKS = 40  # defenses that one chart has room for
UNCLEAR = ("ranking", "inconclusive")  # words that let no defense be said to hold
NO_SCORES, NO_WORTH = Scores[Average](), Worth[Average]()


@dataclass(frozen=True)
class Setting:
    """One cell of a plan over its seeds, with the words that tell it from the others of its secret. Without
    ``runs`` every seed failed."""

    cell: Cell
    runs: tuple[Result[Played], ...]  # those that were averaged, by seed
    failures: tuple[tuple[int, str], ...]  # (seed, reason)
    scores: Scores[Average] = NO_SCORES
    guessing: float = 0.0
    rounds: tuple[tuple[Average, Average], ...] = ()  # AUROC of each round alone, and of all so far
    utility: Worth[Average] = NO_WORTH
    bounds: Bounds | None = None  # the weakest over seeds
    number: int = 0
    defense: str = ""
    differs: str = ""

    @property
    def found(self) -> Played | None:
        return self.runs[0].found if self.runs else None

    @property
    def attack(self) -> str:
        """The attack that was played, over seeds."""
        played = dict.fromkeys(run.found.attack for run in self.runs if run.found and run.found.attack)
        return " or ".join(played) or name_attack(self.cell)

    @property
    def secret(self) -> Secret | None:
        return self.found.secret if self.found else None

    @property
    def roc(self) -> Curve:
        return mean_roc([run.found.roc for run in self.runs if run.found and run.found.roc])

    @property
    def unchosen(self) -> bool:
        """Whether several attacks were to be tried and none was."""
        return bool(_listed(self.cell.attack.get("attacks")) and self.found and not self.found.tried)

    @cached_property
    def described(self) -> str:
        """The cell as one text, by which equal settings are told and ordered."""
        return stable(self.cell.described)

    @cached_property
    def victim(self) -> str:
        """Equal for settings that differ in their defense, or in how they are attacked, alone."""
        return stable({key: value for key, value in self.cell.described.items() if key not in VICTIM})

    @property
    def informed(self) -> bool:
        """Whether the adversary knows of the defense."""
        return self.cell.adaptive

    @property
    def guarantee(self) -> Guarantee:
        """The largest epsilon over seeds; none where a seed has none."""
        each = [run.found.guarantee for run in self.runs if run.found]
        return Guarantee(
            shown=_largest([one.shown for one in each]), training=_largest([one.training for one in each])
        )

    @property
    def severity(self) -> str:
        """A word from the lower limit of the advantage; a reading aid, not a standard."""
        if self.scores.advantage is None:
            return "failed"
        told, auroc = self.cell.game.get("known"), self.scores.auroc  # side knowledge alone may rank
        word = read_severity(self.scores.advantage, None if told else auroc)
        success = self.scores.success  # worse than guessing, an attack is no evidence that nothing leaks
        worse = success is not None and success.high < self.guessing
        ranked = bool(told) and (auroc is None or not is_level(auroc))  # by it, or by the release
        return "inconclusive" if word == "none" and (worse or ranked or self.unlearned) else word

    @property
    def unlearned(self) -> bool:
        """Whether a model without a defense has not learned its task: that little leaks of it says nothing of
        one that has."""
        return not self.defense and self.utility.idle

    @property
    def worst_first(self) -> tuple[int, float, str]:
        low = self.scores.advantage.low if self.scores.advantage else 0.0
        return list(SEVERITIES).index(self.severity), -low, self.described

    @property
    def observed(self) -> int:
        """How many rounds the adversary saw."""
        return len(self.cell.observed)

    @property
    def adversary(self) -> str:
        if not self.defense:
            return "–"
        return "aware" if self.informed else "unaware"

    @property
    def people(self) -> str:
        """The column by which the records were split, or none: then records were."""
        return str(self.cell.game.get("user") or self.cell.data.get("by") or "")

    @property
    def shield(self) -> str:
        """The defense, with what else tells the setting apart."""
        return ", ".join(part for part in (self.defense, self.differs) if part)

    @property
    def label(self) -> str:
        adversary = f"adversary {self.adversary}" if self.defense else ""
        parts = (self.defense or "no defense", adversary, self.differs)
        return ", ".join(part for part in parts if part)


@dataclass(frozen=True)
class Group:
    """All that was measured about one private column, worst first."""

    kind: str
    column: str
    value: str
    data: str
    count: int  # of values, ranges or people
    rows: tuple[Setting, ...]
    shared: bool = False  # whether the page tells of other data too
    place: int = 0

    @property
    def anchor(self) -> str:
        return f"secret-{self.place}"

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
        secret = self.worst.secret
        if secret is None:
            return []
        names = ranges(self.count) if self.kind == "distribution" else list(secret.values)
        return list(zip(names, secret.chances, strict=True)) if 0 < len(names) == self.count <= 12 else []

    @property
    def known(self) -> str:
        """The columns of the batch that the adversary is told the means of, in any setting."""
        names = (str(name) for row in self.rows for name in _listed(row.cell.game.get("known")))
        return ", ".join(dict.fromkeys(names))

    @property
    def worst(self) -> Setting:
        return self.rows[0]

    @property
    def headline(self) -> Setting:
        """What the verdict is about: the worst setting, or one without a defense whose word is the same."""
        word = self.worst.severity
        return next((row for row in self.rows if not row.defense and row.severity == word), self.worst)

    @property
    def measured(self) -> list[Setting]:
        return [row for row in self.rows if row.runs]

    @property
    def defended(self) -> list[Setting]:
        """The defended rows to compare: against an adversary who knows the defense, if any was."""
        rows = [row for row in self.measured if row.defense]
        return [row for row in rows if row.informed] or rows

    @property
    def best_defended(self) -> Setting | None:
        """The defense with the lowest upper limit of the advantage."""
        return min(self.defended, key=lambda row: highest(row), default=None)

    @cached_property
    def _free(self) -> dict[str, Setting]:
        """Of every victim the worst setting without a defense."""
        return {row.victim: row for row in reversed(self.measured) if not row.defense}

    def undefended(self, row: Setting) -> Setting | None:
        """The setting that differs from ``row`` in its defense, or in how it is attacked, alone."""
        return self._free.get(row.victim)


def _largest(epsilons: Sequence[Accounted | None]) -> Accounted | None:
    known = [one for one in epsilons if one]
    return max(known, key=lambda one: one.replaced) if known and len(known) == len(epsilons) else None


def highest(row: Setting) -> float:
    """The upper limit of the advantage; of a setting without any, 1."""
    return row.scores.advantage.high if row.scores.advantage else 1.0


def ranges(count: int) -> list[str]:
    """The ranges of a share: none, and equal parts of what is above (`games.Distribution`)."""
    edges = [f"{100 * i / (count - 1):.3g}" for i in range(count)] if count > 1 else []
    return ["none", *(f"{low}–{high}%" for low, high in pairwise(edges))]


def average_setting(results: Sequence[Result[Played]]) -> Setting:
    """The results of one cell as one."""
    runs = tuple(run for run in results if run.found)
    found = [run.found for run in runs if run.found]
    bases = [one.guessing for one in found]
    observed = min((len(one.rounds) for one in found), default=0)
    rounds = []
    for i in range(observed):
        pair = [
            average_scores([getattr(one.rounds[i], seen) for one in found]).auroc
            for seen in ("single", "accumulated")
        ]
        if pair[0] and pair[1]:
            rounds.append((pair[0], pair[1]))
    return Setting(
        cell=results[0].cell,
        runs=runs,
        failures=tuple((r.seed, r.error or "nothing was measured") for r in results if not r.found),
        scores=average_scores([one.scores for one in found], bases),
        guessing=mean(bases) if bases else 0.0,
        rounds=tuple(rounds) if len(rounds) == observed else (),
        utility=average_worth([one.utility for one in found]),
        bounds=weakest([one.bounds for one in found]) if found else None,
        defense=words(results[0].cell.defense or {}),
    )


def weakest(bounds: Sequence[Bounds]) -> Bounds:
    """Of every bound the largest, None where a seed has none."""

    def most(values: Sequence[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return max(known) if len(known) == len(values) else None

    return Bounds(
        advantage=most([one.advantage for one in bounds]),
        accuracy=most([one.accuracy for one in bounds]),
        information=most([one.information for one in bounds]),
        method="; ".join(dict.fromkeys(one.method for one in bounds if one.method)),
        noise=any(one.noise for one in bounds),
    )


def group_settings(results: Iterable[Result[Played]]) -> list[Group]:
    """The settings by what they are about, the worst first; failed ones join their kin."""
    settings = sorted((average_setting(runs) for runs in by_cell(results)), key=lambda s: s.worst_first)
    groups: dict[tuple[str, str, str, str], list[Setting]] = {}
    for setting in settings:
        cell = setting.cell
        asked = stable([cell.data.get("name"), cell.data.get("path")]), column_of(cell), cell.game_name
        kin = next((key for key in groups if key[:3] == asked), (*asked, ""))
        groups.setdefault((*asked, setting.secret.kind) if setting.secret else kin, []).append(setting)
    shared = len({data for data, *_ in groups}) > 1
    made: list[Group] = []
    number = 0
    for (_, column, _, kind), group in groups.items():
        differing = differences([_describe(row.cell) for row in group], TOLD)
        rows = tuple(
            replace(row, number=number + i, differs=differs)
            for i, (row, differs) in enumerate(zip(group, differing, strict=True), start=1)
        )
        number += len(rows)
        secret = rows[0].secret
        count = len(secret.chances) if secret else 0
        value = secret.values[-1] if secret and secret.values and len(secret.values) != count else column
        made.append(Group(kind, column, str(value), rows[0].cell.source, count, rows, shared, len(made) + 1))
    return made


def _describe(cell: Cell) -> Table:
    """The cell as data; where the strongest of several attacks was played, that is its attack, whichever were
    tried."""
    chosen = {"attack": {"name": cell.attack.get("name")}} if _listed(cell.attack.get("attacks")) else {}
    return cell.described | chosen


def name_attack(cell: Cell) -> str:
    """What is to be played, before it is known which of several is the strongest."""
    parts = _listed(cell.attack.get("attacks"))
    return f"the strongest of {', '.join(words(part) for part in parts)}" if parts else words(cell.attack)


def _listed(value: object) -> Sequence[object]:
    """What a stored cell lists; a forged one may hold anything."""
    return value if isinstance(value, list | tuple) else ()


def column_of(cell: Cell) -> str:
    """The private column that a game's table names."""
    return str(next((cell.game[key] for key in ("secret", "column", "user") if cell.game.get(key)), "?"))


@dataclass(frozen=True)
class FrontierMark:
    """One setting of a frontier. ``number`` and ``label`` are of its defense, attacked in any way."""

    number: int
    label: str
    shape: int  # of the kind of defense; 0: none
    row: Setting
    advantage: Average
    utility: Average
    loss: float | None  # of utility, against the same model without the defense
    cost: float = 0.0  # of accuracy, by which the cheapest is chosen, whatever is drawn


@dataclass(frozen=True)
class Frontier:
    """What each defense buys and costs (paper 000, figure 7)."""

    measure: str  # of utility: "auroc", "accuracy" or "r2"
    marks: tuple[FrontierMark, ...]
    missing: int  # settings without that measure
    lost: frozenset[int] = frozenset()  # defenses of which an attack failed

    @property
    def word(self) -> str:
        """That measure, as a sentence has it."""
        return TASK_WORDS.get(self.measure, MEASURES[self.measure].title)

    @property
    def drawn(self) -> list[FrontierMark]:
        """What a chart has room for: no defense, then those that leak least, each with every attack on it."""
        worst: dict[int, float] = {}
        for mark in self.marks:
            high = mark.advantage.high if mark.shape else -1.0
            worst[mark.number] = max(high, worst.get(mark.number, high))
        kept = sorted(worst, key=lambda number: (worst[number], number))[:MARKS]
        return [mark for mark in self.marks if mark.number in set(kept)]

    @property
    def tried(self) -> list[FrontierMark]:
        """Of every defense that an adversary who knows it was set on, the strongest attack, the cheapest
        first; who knows a defense can also do what one who does not would."""
        aware = {mark.number for mark in self.marks if mark.shape and mark.row.informed}
        marks = [mark for mark in self.marks if mark.number in aware]
        marks.sort(key=lambda mark: (mark.row.severity in UNCLEAR, mark.advantage.high))
        return sorted({mark.number: mark for mark in marks}.values(), key=_cost)  # the last, strongest stays

    @property
    def untried(self) -> int:
        """Defenses that no adversary who knows them was set on."""
        return len({mark.number for mark in self.marks if mark.shape} - {mark.number for mark in self.tried})

    @property
    def holding(self) -> list[FrontierMark]:
        """Those whose advantage stays low whoever attacks, where a model without them learned its task."""
        if self.unlearned:
            return []
        return [m for m in self.tried if _stays_low(m) and m.number not in self.lost]

    @property
    def unlearned(self) -> bool:
        """Whether no model without a defense learned its task."""
        free = [mark.row.unlearned for mark in self.marks if not mark.shape]
        return bool(free) and all(free)

    @property
    def needless(self) -> bool:
        """Whether the advantage stays as low without any defense."""
        free = [mark for mark in self.marks if not mark.shape]
        return bool(free) and all(_stays_low(m) and m.number not in self.lost for m in free)


def _stays_low(mark: FrontierMark) -> bool:
    """Whether its advantage stays low, the page calls it no leak, and no seed failed."""
    row = mark.row
    clear = row.severity not in UNCLEAR
    return mark.advantage.high <= SLIGHT and clear and not row.failures


def _cost(mark: FrontierMark) -> tuple[float, float, int]:
    return mark.cost, -mark.utility.value, mark.number


def draw_frontier(group: Group) -> Frontier | None:
    """The frontier of a secret, where at least two defenses or strengths, none among them, were tried."""
    rows = [row for row in group.measured if row.utility.main or row.utility.auroc]
    ranked = all(row.utility.auroc for row in rows)
    measure = "auroc" if ranked else rows[0].utility.judged_by
    drawn = [row for row in rows if getattr(row.utility, measure)]
    drawn.sort(key=lambda row: (row.defense != "", row.defense, row.number))
    if len({row.defense for row in drawn}) < 2:
        return None
    kinds = sorted({str(row.cell.defense["name"]) for row in drawn if row.cell.defense})
    numbers: dict[tuple[str, str], int] = {}
    marks = []
    for row, label in zip(drawn, _labels([row.cell for row in drawn]), strict=True):
        free = group.undefended(row)
        worth, bare = getattr(row.utility, measure), getattr(free.utility, measure) if free else None
        number = numbers.setdefault((row.defense, row.victim), len(numbers) + 1)
        shape = 1 + kinds.index(str(row.cell.defense["name"])) if row.cell.defense else 0
        loss = bare.value - worth.value if bare else None
        before, after = free.utility.accuracy if free else None, row.utility.accuracy
        cost = before.value - after.value if before and after else loss or 0.0
        if row.scores.advantage:
            marks.append(FrontierMark(number, label, shape, row, row.scores.advantage, worth, loss, cost))
    failed = {(row.defense, row.victim) for row in group.rows if not row.runs}
    lost = frozenset(number for name, number in numbers.items() if name in failed)
    return Frontier(measure, tuple(marks), len(group.measured) - len(drawn), lost)


def _labels(cells: Sequence[Cell]) -> list[str]:
    """The shortest words that tell defenses, and victims if there are several, apart."""
    defenses: list[Table] = [cell.defense or {} for cell in cells]
    names = [str(defense.get("name", "")) for defense in defenses]
    short = dict.fromkeys(range(len(cells)), "no defense")
    for name in set(names) - {""}:
        places = [i for i, other in enumerate(names) if other == name]
        differing = differences([defenses[i] for i in places], ("name",))
        short |= {i: f"{name} {told}".strip() for i, told in zip(places, differing, strict=True)}
    victims = differences([cell.described for cell in cells], VICTIM)
    return [", ".join(part for part in (short[i], victims[i]) if part) for i in range(len(cells))]


@dataclass(frozen=True)
class TaskRow:
    """What a model is worth under one defense; several secrets may have been measured with it."""

    name: str
    row: Setting
    change: float | None  # of accuracy or R², against the same model without the defense
    secrets: tuple[str, ...]


def list_tasks(groups: Iterable[Group]) -> list[TaskRow]:
    """Every model once."""
    tasks: dict[str, TaskRow] = {}
    for group in groups:
        for row in sorted(group.measured, key=lambda r: (bool(r.defense), r.number)):
            worth, free = row.utility, group.undefended(row) if row.defense else None
            records = row.runs[0].made.records
            name = records.label if records else group.data
            values = [a.value for a in (worth.main, worth.auroc) if a]
            key = stable([group.data, name, row.defense, row.differs, values])
            bare = free.utility.main if free else None
            change = worth.main.value - bare.value if worth.main and bare else None
            before = tasks[key].secrets if key in tasks else ()
            secrets = tuple(dict.fromkeys((*before, group.label)))
            tasks[key] = TaskRow(name, tasks[key].row if key in tasks else row, change, secrets)
    return list(tasks.values())
