"""Audits of guards as the page tells of them: one page for each dataset and secret."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from leakscope.audits.guards.audit import list_secrets
from leakscope.audits.guards.found import GuardsFound, Tuning
from leakscope.audits.guards.page.measures import (
    AttackAverage,
    BaselineAverage,
    JudgedAverage,
    found_by,
    judge,
)
from leakscope.results.averages import Average, mean
from leakscope.results.cell import WORDS, Table, differences, group_by, stable
from leakscope.results.chapter import LEAKS, SEVERE, SEVERITIES, read_severity
from leakscope.results.kind import Runs, by_cell
from leakscope.results.result import Result
from leakscope.results.scores import MEASURES, Measure, RebuiltPicture, Worth

RECOGNISED = 0.3  # SSIM from which a rebuilt picture is called a substantial leak; stated on the page
MARKED = ("name", "lam", "loss", "secret", "column", "guards", "save")  # of guard or game, told elsewhere
ASIDE = ("guard", "mapped", "estimators", "informative", "baselines")  # of a game: no part of the guard


@dataclass(frozen=True)
class GuardSetting(Runs[GuardsFound]):
    """One guard over its seeds, judged for one secret. Without ``found`` every seed failed."""

    secret: str
    column: str
    found: JudgedAverage | None
    number: int = 0
    family: int = 0  # guards that differ in lambda alone
    differs: str = ""

    @property
    def guard(self) -> Table:
        """As the plan has it."""
        table: Table = self.cell.game.get("guard") or {}
        return table

    @property
    def lam(self) -> float | None:
        parts = self.guard.get("guards") or [self.guard]
        planned = parts[0].get("lam")
        if self.founds:
            return self.founds[0].lam
        return planned if isinstance(planned, int | float) else None

    @property
    def strength(self) -> str:
        """Lambda, or what names a guard that has none."""
        return f"λ={self.lam:g}" if self.lam is not None else self.kind

    @property
    def name(self) -> str:
        guard, aim = self.guard, ""
        if "like" in guard:  # another guard, at the strength at which it is as good as this one
            missed = any(not tuning.reached for tuning in self._tunings)
            aim = f" {'nearest in' if missed else 'at equal'} {guard.get('to', 'utility')}"
            guard = guard["guard"]
        parts = [str(part.get("column") or part.get("secret")) for part in guard.get("guards") or ()]
        hidden = f" of {' and '.join(parts)}" if parts else ""
        return f"{guard.get('name', 'guard')}{aim}{hidden}"

    @property
    def kind(self) -> str:
        """The guard without its lambda."""
        loss = f"loss {self.guard['loss']}" if self.guard.get("loss") else ""
        return ", ".join(part for part in (self.name, loss, self.differs) if part)

    @property
    def label(self) -> str:
        return self.kind if self.lam is None else f"{self.kind}, λ={self.lam:g}"

    @property
    def _tunings(self) -> list[Tuning]:
        return [found.tuned for found in self.founds if found.tuned]

    @property
    def tuned(self) -> str:
        """The strength nearest to another guard's utility or privacy, of every run, where that was asked."""
        return "; ".join(
            f"{one.strength} {one.value:g}, measured {one.measured.value:.3f} ({one.measured.low:.3f} to "
            f"{one.measured.high:.3f}) where {one.target:.3f} was sought"
            f"{'' if one.reached else ', which was not reached'}{_undecided(one)}"
            for one in self._tunings
        )

    @property
    def told(self) -> str:
        """What whoever encodes must know, where the encoder takes more than others do."""
        column = self.founds[0].told if self.founds else None
        return f"Whoever encodes by it must know {column} of each record" if column else ""

    @property
    def seconds(self) -> tuple[float, float] | None:
        """Of training, with the guard and without, where both were measured."""
        guarded, plain = ([getattr(one.seconds, name) for one in self.founds] for name in ("guard", "plain"))
        return (mean(guarded), mean(plain)) if plain and all(plain) else None

    @property
    def longer(self) -> float:
        """How many times as long the training takes."""
        return self.seconds[0] / self.seconds[1] if self.seconds else math.nan

    @property
    def pass_seconds(self) -> float | None:
        """Of one epoch or round of its training."""
        passes = len(self.founds[0].history) if self.founds else 0
        return self.seconds[0] / passes if self.seconds and passes else None

    @property
    def pictures(self) -> list[tuple[str, RebuiltPicture]]:
        """Of one seed, where the secret is the records themselves; they have no name."""
        known = self.founds[0].pictures if self.founds and self.secret == "reconstruction" else ()
        return [("", picture) for picture in known]


@dataclass(frozen=True)
class GuardPage:
    """The guards of one secret in one dataset, each family by lambda."""

    data: str
    secret: str
    column: str
    settings: tuple[GuardSetting, ...]
    number: int = 0

    @property
    def title(self) -> str:
        names = {"membership": "who was trained on", "reconstruction": "the records themselves"}
        share = f"the share of {self.column} in a group"
        return {**names, "property": share}.get(self.secret, self.column or "a secret")

    @property
    def judged(self) -> list[tuple[GuardSetting, JudgedAverage]]:
        return [(one, one.found) for one in self.settings if one.found]

    @property
    def families(self) -> list[list[GuardSetting]]:
        """Guards that differ in lambda alone, by lambda."""
        return list(group_by((one for one, _ in self.judged), lambda one: one.family).values())

    @property
    def measure(self) -> str:
        """What attacks are compared by; of reconstructions SSIM, if all are of pictures."""
        if self.secret != "reconstruction":
            return "auroc"
        return "ssim" if all(found.tried.attack("ssim") for _, found in self.judged) else "mse"

    @property
    def known(self) -> Measure:
        """How that measure is read."""
        return MEASURES[self.measure]

    @property
    def task(self) -> Worth[Average]:
        """What the task is worth in the first setting, by which all are told."""
        return self.judged[0][1].tried.task if self.judged else Worth[Average]()

    @property
    def majority(self) -> float | None:
        known = [found.tried.task.majority for _, found in self.judged]
        shares = [share for share in known if share is not None]
        return mean(shares) if shares else None

    @property
    def baselines(self) -> list[BaselineAverage]:
        """What needs no guard, of each family once, and once where families agree."""
        kept: dict[tuple[object, ...], BaselineAverage] = {}
        for family in self.families:
            found = next((one.found.baselines for one in family if one.found and one.found.baselines), ())
            for baseline in found:
                numbers = (baseline.tried.worth, baseline.tried.attack(self.measure))
                key = (baseline.name, *(round(n.value, 4) if n else None for n in numbers))
                names = [one.name for one in kept.values()]
                name = baseline.name if baseline.name not in names else f"{baseline.name}, {family[0].kind}"
                kept.setdefault(key, replace(baseline, name=name))
        return list(kept.values())

    @property
    def free(self) -> BaselineAverage | None:
        """No guard: plain training, the records as they are, or a guard of lambda 0."""
        every = self.baselines
        plain = [one for kind in ("plain", "raw", "noise") for one in every if one.needless == kind]
        zero = [
            BaselineAverage(one.label, "plain", found.tried) for one, found in self.judged if one.lam == 0
        ]
        return next(iter(plain + zero), None)

    @property
    def best(self) -> tuple[GuardSetting, JudgedAverage] | None:
        """The guard of which the verdict tells: of what the task gains without a guard it keeps, and of what
        attacks gain it leaves, the shares that are furthest apart. Never one that another beats in both. A
        guard of lambda 0 is none, and is told of only where it beats all others."""
        fair = [pair for pair in self.judged if not self._beaten(pair[1])]
        fair = [pair for pair in fair if pair[0].lam != 0] or fair
        return max(fair, key=lambda pair: self._balance(pair[1]), default=None)

    def _leak(self, judged: JudgedAverage) -> float:
        """The most that is found in one release, or in what ordinary use gives out beside it."""
        return max(found_by(one, self.measure) for one in (judged.tried.strongest, *judged.held))

    def _beaten(self, judged: JudgedAverage) -> bool:
        """Whether another guard leaves less of the secret and keeps at least as much of the task."""

        def place(one: JudgedAverage) -> tuple[float, float]:
            return self._leak(one), one.tried.worth.value if one.tried.worth else -math.inf

        leak, worth = place(judged)
        return any(less < leak and more >= worth for less, more in (place(found) for _, found in self.judged))

    def _balance(self, judged: JudgedAverage) -> float:
        free, leak, worth = self.free.tried if self.free else None, self._leak(judged), judged.tried.worth
        if leak == -math.inf:
            return leak
        whole = free.attack(self.measure) if free else None
        if self.known.falls:
            left = (whole.value if whole else 1.0) / max(-leak, 1e-12)
        else:
            base = self.known.chance or 0.0
            gain = max(leak - base, 0.0)  # below guessing is luck
            left = gain / (max(whole.value - base, 1e-3) if whole else 1.0)
        best, base = free.worth if free else None, self.majority or 0.0
        if worth is None or best is None:
            return -left
        return (worth.value - base) / max(best.value - base, 1e-3) - left

    @property
    def informed(self) -> list[tuple[GuardSetting, Mapping[str, Average]]]:
        """The guards of which it was estimated."""
        return [(one, found.information) for one, found in self.judged if found.information]

    @property
    def methods(self) -> dict[str, str]:
        """How each estimator of the information works."""
        return {name: method for _, found in self.judged for name, method in found.methods.items()}

    @property
    def informed_families(self) -> list[list[tuple[GuardSetting, Mapping[str, Average]]]]:
        """Those of several lambdas, by lambda."""
        families = [[pair for pair in self.informed if pair[0] in family] for family in self.families]
        lams = [{one.lam for one, _ in family if one.lam is not None} for family in families]
        return [family for family, known in zip(families, lams, strict=True) if len(known) > 1]

    @property
    def mapped(self) -> tuple[GuardSetting, JudgedAverage] | None:
        """The guard whose representations are drawn: that of the verdict, or the first that can be."""
        every = ([self.best] if self.best else []) + self.judged
        return next((pair for pair in every if pair[1].after), None)

    @property
    def severity(self) -> str:
        """A word from what the strongest fresh attack gains in spite of the guard of the verdict. Where any
        other adversary that was measured shows a worse leak, the word is the worst of theirs. It is an
        all-clear only if `is_quiet` says so."""
        if self.best is None:
            return "failed"
        every = [read(attack) for attack in self.best[1].every]
        leaks = [word for word in SEVERITIES if word in every and word in LEAKS]
        return leaks[0] if leaks else "none" if is_quiet(self.best[1]) else "inconclusive"

    @property
    def worst_first(self) -> tuple[int, str]:
        return list(SEVERITIES).index(self.severity), stable([self.data, self.secret, self.column])


def read(attack: AttackAverage) -> str:
    """The word for what one attack gains: by its advantage, or by how like rebuilt pictures are."""
    scores = attack.scores
    if scores.ssim is not None:
        low = scores.ssim.low
        return "severe" if low >= SEVERE else "substantial" if low >= RECOGNISED else "slight"
    if scores.advantage is None:
        return "inconclusive"
    return read_severity(scores.advantage, scores.auroc)


def is_quiet(judged: JudgedAverage) -> bool:
    """Whether every adversary was measured well enough to see that it tells nothing, or with the label no
    more than the label: one release alone, or a few trials of a row, are no all-clear. Nor is an encoder that
    keeps none of the task."""
    doubted = judged.narrow or judged.unsure or judged.tried.task.idle
    return not doubted and all(read(one) == "none" for one in judged.every)


def _undecided(one: Tuning) -> str:
    """Where a comparison cannot tell strengths apart, that it cannot."""
    gap = one.difference
    told = f"; difference {gap.value:+.3f} ({gap.low:+.3f} to {gap.high:+.3f})" if gap else ""
    return told + (f"; as near, as far as can be told: {', '.join(one.alike)}" if one.alike else "")


def group_pages(results: Iterable[Result[GuardsFound]]) -> list[GuardPage]:
    """One for each dataset and secret, the worst first."""
    settings = [setting for runs in by_cell(results) for setting in _settings(tuple(runs))]
    groups = group_by(
        settings,
        lambda one: stable([one.cell.data.get("name"), one.cell.data.get("path"), one.secret, one.column]),
    )
    pages = [
        GuardPage(group[0].cell.source, group[0].secret, group[0].column, tuple(_order(group)))
        for group in groups.values()
    ]
    pages.sort(key=lambda page: page.worst_first)
    return [replace(page, number=number) for number, page in enumerate(pages, start=1)]


def _settings(results: tuple[Result[GuardsFound], ...]) -> Iterator[GuardSetting]:
    """One for each secret that the guard of a cell was judged for, or was to be."""
    founds = Runs(results).founds
    for one in judge(founds):
        yield GuardSetting(results, one.secret, one.column, one)
    if not founds:
        for secret, column in list_secrets(results[0].cell.game) or [("", None)]:
            yield GuardSetting(results, secret, column or "", None)


def _order(group: Sequence[GuardSetting]) -> list[GuardSetting]:
    """Families of guards that differ in lambda alone together, by lambda. Those of one name and loss say what
    else tells them apart."""
    tables = [_settle(one) for one in group]
    called = [stable([one.name, one.guard.get("loss")]) for one in group]
    kinds = [stable([name, table]) for name, table in zip(called, tables, strict=True)]
    places = {kind: i for i, kind in enumerate(sorted(set(kinds)))}
    told = list(group)
    for name in set(called):
        alike = [i for i, other in enumerate(called) if other == name]
        for i, differs in zip(alike, differences([tables[i] for i in alike], ()), strict=True):
            told[i] = replace(group[i], family=places[kinds[i]], differs=differs)
    told.sort(key=lambda one: (one.family, one.lam is None, one.lam or 0.0, stable(one.cell.described)))
    return [replace(one, number=number) for number, one in enumerate(told, start=1)]


def _settle(one: GuardSetting) -> Table:
    """What may tell guards apart beside their lambda, without how it is called elsewhere."""
    game = {key: value for key, value in one.cell.game.items() if key not in (*MARKED, *ASIDE)}
    guard = {key: value for key, value in one.guard.items() if key not in MARKED}
    if one.lam is None and one.guard.get("lam") is not None:  # one for each device
        guard["lam"] = one.guard["lam"]
    if one.guard.get("guards"):
        guard["parts"] = [
            {key: value for key, value in part.items() if key != "lam"} for part in one.guard["guards"]
        ]
    unsaid = (*WORDS, "game", "data", "attack", "defense", "adaptive", "rounds", "observe")
    return {key: value for key, value in one.cell.described.items() if key not in unsaid} | game | guard
