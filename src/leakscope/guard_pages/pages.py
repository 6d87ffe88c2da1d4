"""Audits of guards as the page tells of them: one page for each dataset and secret."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from leakscope.averages import Average, Json, mean
from leakscope.guard_pages.measures import Baseline, Judged, Tried, judged
from leakscope.layer_maps.measures import BASE64, Picture
from leakscope.plan import WORDS
from leakscope.sections import differences, words
from leakscope.summary import SEVERE, SEVERITIES, cells, reading, source, stable

UNGUARDED = ("plain training", "raw inputs", "plain noise")  # no guard: the first of them that is there
RECOGNISED = 0.3  # SSIM from which a rebuilt picture is called a substantial leak; stated on the page
MARKED = ("name", "lam", "loss", "secret", "column", "guards", "save")  # of guard or game, told elsewhere
ASIDE = ("guard", "mapped", "estimators", "informative", "baselines")  # of a game: no part of the guard


@dataclass(frozen=True)
class Setting:
    """One guard over its seeds, judged for one secret. Without ``found`` every seed failed."""

    cell: Json
    runs: tuple[Json, ...]
    failures: tuple[tuple[int, str], ...]
    secret: str
    column: str
    found: Judged | None
    number: int = 0
    family: int = 0  # guards that differ in lambda alone
    differs: str = ""

    @property
    def game(self) -> Json:
        return self.cell.get("game") or {}

    @property
    def guard(self) -> Json:
        return self.game.get("guard") or {}

    @property
    def lam(self) -> float | None:
        tables = [run["guarding"] for run in self.runs] + [self.guard]
        return next((float(v) for t in tables if isinstance(v := t.get("lam"), int | float)), None)

    @property
    def strength(self) -> str:
        """Lambda, or what names a guard that has none."""
        return f"λ={self.lam:g}" if self.lam is not None else self.kind

    @property
    def name(self) -> str:
        parts = self.guard.get("guards")
        whole = [str(self.guard.get("name") or "guard")]
        if whole == ["Tuned"] and isinstance(inner := self.guard.get("guard"), dict):
            aim = str(self.guard.get("to") or "utility")
            missed = any(found.get("reached") is False for found in self._found)
            whole = [str(inner.get("name") or "guard"), "nearest in" if missed else "at equal", aim]
        if isinstance(parts, list | tuple):
            hidden = (str(part.get("column") or part.get("secret")) for part in parts if part)
            whole.append(f"of {' and '.join(hidden)}")
        return " ".join(whole)

    @property
    def kind(self) -> str:
        """The guard without its lambda."""
        loss = f"loss {self.guard['loss']}" if self.guard.get("loss") else ""
        return ", ".join(part for part in (self.name, loss, self.differs) if part)

    @property
    def tuned(self) -> str:
        """The strength nearest to another guard's utility or privacy, of every run, where that was asked."""
        return "; ".join(
            f"{one['strength']} {one['value']:g}, measured {one['measured']['value']:.3f} "
            f"({one['measured']['low']:.3f} to {one['measured']['high']:.3f}) where {one['target']:.3f} was "
            f"sought{'' if one['reached'] else ', which was not reached'}"
            for one in self._found
        )

    @property
    def _found(self) -> list[Json]:
        told = (run["guarding"].get("tuned") for run in self.runs)
        return [one for one in told if isinstance(one, dict)]

    @property
    def label(self) -> str:
        return self.kind if self.lam is None else f"{self.kind}, λ={self.lam:g}"

    @property
    def full(self) -> str:
        return words(self.guard)

    @property
    def seconds(self) -> tuple[float, float] | None:
        """Of training, with the guard and without, where both were measured."""
        tables = [run["guarding"].get("seconds") or {} for run in self.runs]
        pairs = [(table.get("guard"), table.get("plain")) for table in tables]
        if not pairs or not all(guard and plain for guard, plain in pairs):
            return None
        guard, plain = (mean([float(pair[i] or 0) for pair in pairs]) for i in (0, 1))
        return guard, plain

    @property
    def passes(self) -> int | None:
        """Epochs or rounds of its training."""
        return len(self.runs[0]["guarding"].get("history") or ()) or None if self.runs else None

    @property
    def pictures(self) -> list[Picture]:
        """Of one seed, where the secret is the records themselves."""
        entries = self.runs[0]["guarding"].get("pictures") or () if self.runs else ()
        if self.secret != "reconstruction":
            return []
        pairs = [(str(e.get("original") or ""), str(e.get("reconstruction") or "")) for e in entries]
        return [
            Picture(*pair, entry.get("ssim"), "")
            for pair, entry in zip(pairs, entries, strict=True)
            if all(BASE64.fullmatch(text) for text in pair)
        ]


@dataclass(frozen=True)
class GuardPage:
    """The guards of one secret in one dataset, each family by lambda."""

    data: str
    secret: str
    column: str
    settings: tuple[Setting, ...]
    number: int = 0

    @property
    def title(self) -> str:
        names = {"membership": "who was trained on", "reconstruction": "the records themselves"}
        share = f"the share of {self.column} in a group"
        return {**names, "property": share}.get(self.secret, self.column or "a secret")

    @property
    def measured(self) -> list[Setting]:
        return [one for one in self.settings if one.found]

    @property
    def judged(self) -> list[tuple[Setting, Judged]]:
        return [(one, one.found) for one in self.settings if one.found]

    @property
    def families(self) -> list[list[Setting]]:
        """Guards that differ in lambda alone, by lambda."""
        found: dict[int, list[Setting]] = {}
        for one in self.measured:
            found.setdefault(one.family, []).append(one)
        return list(found.values())

    @property
    def measure(self) -> str:
        """What attacks are compared by: the first that all guards have."""
        wanted = ("ssim", "mse") if self.secret == "reconstruction" else ("auroc", "success")
        every = [found.tried for _, found in self.judged]
        return next((name for name in wanted if all(tried.attack(name) for tried in every)), wanted[-1])

    @property
    def guessing(self) -> float | None:
        """What the measure is without any release."""
        known = [s.guessing for _, f in self.judged if (s := f.tried.strongest) and s.guessing is not None]
        return {"auroc": 0.5, "success": mean(known) if known else None}.get(self.measure)

    @property
    def majority(self) -> float | None:
        known = [found.tried.worth.majority for _, found in self.judged]
        shares = [share for share in known if share is not None]
        return mean(shares) if shares else None

    @property
    def baselines(self) -> list[Baseline]:
        """What needs no guard, of each family once, and once where families agree."""
        kept: dict[tuple[object, ...], Baseline] = {}
        for family in self.families:
            found = next((one.found.baselines for one in family if one.found and one.found.baselines), ())
            for baseline in found:
                numbers = (baseline.tried.accuracy, baseline.tried.attack(self.measure))
                key = (baseline.name, *(round(n.value, 4) if n else None for n in numbers))
                names = [one.name for one in kept.values()]
                name = baseline.name if baseline.name not in names else f"{baseline.name}, {family[0].kind}"
                kept.setdefault(key, replace(baseline, name=name))
        return list(kept.values())

    @property
    def free(self) -> Baseline | None:
        """No guard: plain training, the records as they are, or a guard of lambda 0."""
        every = self.baselines
        plain = next((one for name in UNGUARDED for one in every if one.name == name), None)
        zero = next(((one, found) for one, found in self.judged if one.lam == 0), None)
        return plain or (Baseline(zero[0].label, zero[1].tried) if zero else None)

    @property
    def told(self) -> tuple[Setting, Judged] | None:
        """The guard of which the verdict tells: of what the task gains without a guard it keeps, and of
        what attacks gain it leaves, the shares that are furthest apart."""
        tried = [pair for pair in self.judged if pair[0].lam != 0] or self.judged
        return max(tried, key=lambda pair: self._balance(pair[1].tried), default=None)

    def _balance(self, tried: Tried) -> float:
        free = self.free.tried if self.free else None
        attack, accuracy = tried.attack(self.measure), tried.accuracy
        if attack is None:
            return -1e9
        whole = free.attack(self.measure) if free else None
        if self.measure == "mse":
            left = (whole.value if whole else 1.0) / max(attack.value, 1e-12)
        else:
            base = self.guessing or 0.0
            left = (attack.value - base) / (max(whole.value - base, 1e-3) if whole else 1.0)
        best, base = free.accuracy if free else None, self.majority or 0.0
        if accuracy is None or best is None:
            return -left
        return (accuracy.value - base) / max(best.value - base, 1e-3) - left

    @property
    def drawable(self) -> bool:
        """Whether any guard has a place in the trade-off."""
        return any(found.tried.attack(self.measure) and found.tried.accuracy for _, found in self.judged)

    @property
    def informed(self) -> list[tuple[Setting, Mapping[str, Average]]]:
        """The guards for which the information was estimated."""
        return [(one, found.information) for one, found in self.judged if found.information]

    @property
    def informed_families(self) -> list[list[tuple[Setting, Mapping[str, Average]]]]:
        """Those of several lambdas, by lambda."""
        families = [[pair for pair in self.informed if pair[0] in family] for family in self.families]
        lams = [{one.lam for one, _ in family if one.lam is not None} for family in families]
        return [family for family, known in zip(families, lams, strict=True) if len(known) > 1]

    @property
    def mapped(self) -> tuple[Setting, Judged] | None:
        """The guard whose representations are drawn: that of the verdict, or the first that can be."""
        every = ([self.told] if self.told else []) + self.judged
        return next((pair for pair in every if pair[1].before or pair[1].after), None)

    @property
    def severity(self) -> str:
        """A word from what the strongest fresh attack gains in spite of the guard of the verdict."""
        if self.told is None:
            return "failed"
        strongest = self.told[1].tried.strongest
        return _reading(strongest.estimates if strongest else {})

    @property
    def worst_first(self) -> tuple[int, str]:
        return SEVERITIES.index(self.severity), stable([self.data, self.secret, self.column])


def _reading(estimates: Mapping[str, Average]) -> str:
    advantage, auroc, likeness = (estimates.get(name) for name in ("advantage", "auroc", "ssim"))
    if likeness is not None:
        return (
            "severe" if likeness.low >= SEVERE else "substantial" if likeness.low >= RECOGNISED else "slight"
        )
    if advantage is None:
        return "inconclusive"
    return reading(advantage, auroc)


def guard_pages(results: Iterable[Json]) -> list[GuardPage]:
    """One for each dataset and secret, the worst first."""
    groups: dict[str, list[Setting]] = {}
    for runs in cells(results, "guarding"):
        data = runs[0]["cell"].get("data") or {}
        for setting in _settings(runs):
            key = stable([data.get("name"), data.get("path"), setting.secret, setting.column])
            groups.setdefault(key, []).append(setting)
    pages = [
        GuardPage(source(group[0].cell), group[0].secret, group[0].column, tuple(_ordered(group)))
        for group in groups.values()
    ]
    pages.sort(key=lambda page: page.worst_first)
    return [replace(page, number=number) for number, page in enumerate(pages, start=1)]


def _settings(results: Sequence[Json]) -> Iterator[Setting]:
    """One for each secret that the guard of a cell was judged for."""
    failures = tuple((int(r["seed"]), str(r["error"])) for r in results if r.get("error"))
    runs = tuple(r for r in results if not r.get("error") and r.get("guarding"))
    cell = results[0]["cell"]
    found = list(judged([run["guarding"] for run in runs]))
    for one in found:
        yield Setting(cell, runs, failures, one.secret, one.column, one)
    if not found:
        failures += tuple((int(run["seed"]), "nothing was found in finite numbers") for run in runs)
        for secret, column in _sought(cell.get("game") or {}):
            yield Setting(cell, (), failures, secret, column, None)


def _sought(game: Json) -> list[tuple[str, str]]:
    """The secrets of a guard that failed, as its plan names them."""
    guard = game.get("guard") or {}
    parts = guard.get("guards") if isinstance(guard.get("guards"), list | tuple) else [guard]
    tables = [game] if game.get("secret") else [part for part in parts or () if isinstance(part, Mapping)]
    found = []
    for table in tables:
        column = str(table.get("column") or "")
        found.append((str(table.get("secret") or ("attribute" if column else "")), column))
    return found or [("", "")]


def _ordered(group: Sequence[Setting]) -> list[Setting]:
    """Families of guards that differ in lambda alone together, by lambda. Those of one name and loss say what
    else tells them apart."""
    tables = [_settled(one) for one in group]
    called = [stable([one.name, one.guard.get("loss")]) for one in group]
    kinds = [stable([name, table]) for name, table in zip(called, tables, strict=True)]
    places = {kind: i for i, kind in enumerate(sorted(set(kinds)))}
    told = list(group)
    for name in set(called):
        alike = [i for i, other in enumerate(called) if other == name]
        for i, differs in zip(alike, differences([tables[i] for i in alike], ()), strict=True):
            told[i] = replace(group[i], family=places[kinds[i]], differs=differs)
    told.sort(key=lambda one: (one.family, one.lam is None, one.lam or 0.0, stable(one.cell)))
    return [replace(one, number=number) for number, one in enumerate(told, start=1)]


def _settled(one: Setting) -> Json:
    """What may tell guards apart beside their lambda, without how it is called elsewhere."""
    game = {key: value for key, value in one.game.items() if key not in (*MARKED, *ASIDE)}
    guard = {key: value for key, value in one.guard.items() if key not in MARKED}
    if isinstance(one.guard.get("lam"), list | tuple):  # one for each device
        guard["lam"] = one.guard["lam"]
    parts = one.guard.get("guards")
    if isinstance(parts, list | tuple):
        guard["parts"] = [{key: value for key, value in part.items() if key != "lam"} for part in parts]
    unsaid = (*WORDS, "game", "data", "attack", "defense", "adaptive", "rounds", "observed", "prior")
    return {key: value for key, value in one.cell.items() if key not in unsaid} | game | guard
