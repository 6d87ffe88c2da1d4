"""What was measured of a guard (papers 003 and 004) for one secret, each number over its seeds."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.spatial import KDTree

from leakscope.averages import Average, Curve, Json, average, averages, finite, mean, mean_roc

MEASURES = (  # of attacks: key, name, whether in percent
    ("success", "Success rate", True),
    ("balanced_accuracy", "Balanced accuracy", True),
    ("auroc", "AUROC", False),
    ("advantage", "Advantage", False),
    ("tpr_at_1%", "Hits at 1% false alarms", True),
    ("ssim", "SSIM", False),
    ("psnr", "PSNR", False),
    ("mse", "Mean squared error", False),
)
LIKENESS = ("ssim", "psnr", "mse")  # of a reconstruction: free to leave 0 to 1
DRAWN = 500  # points of a map, at most
APART = 6  # values of a secret that have a mark of their own on a map that has no room for all
MARKS = 7  # that a map can tell apart


@dataclass(frozen=True)
class Attacked:
    """One attack; ``chosen`` by as many seeds on their rehearsals."""

    name: str
    attack: str
    queries: int
    chosen: int
    guessing: float | None
    estimates: Mapping[str, Average]
    roc: Curve


@dataclass(frozen=True)
class Worth:
    """The task: by a fresh head on the representations, and by the guard's own where it has one."""

    fresh: Mapping[str, Average]
    own: Mapping[str, Average]
    majority: float | None


@dataclass(frozen=True)
class Tried:
    """A guard, or what needs none, as it is worth and as it is attacked. ``strongest`` is, for each seed,
    the attack that its rehearsals chose; of reconstructions, which are not chosen, the likest."""

    worth: Worth
    attacks: tuple[Attacked, ...]
    strongest: Attacked | None

    def attack(self, measure: str) -> Average | None:
        return self.strongest.estimates.get(measure) if self.strongest else None

    @property
    def accuracy(self) -> Average | None:
        return self.worth.fresh.get("accuracy")


@dataclass(frozen=True)
class Baseline:
    name: str
    tried: Tried


@dataclass(frozen=True)
class Guarantee:
    """The accuracy that no attacker exceeds if H(u|r) is what was estimated. Over seeds: the weakest bound,
    and how many of them refute their own by the lower limit of an attack."""

    entropy: Average  # nats
    bound: float
    measured: Average | None
    caveat: str
    refuted: int
    seeds: int


@dataclass(frozen=True)
class Scatter:
    """Representations in two or three dimensions; ``codes`` are places in ``values``. ``together``: how many
    have a nearest neighbour of their own value."""

    points: tuple[tuple[float, ...], ...]
    codes: tuple[int, ...]
    values: tuple[str, ...]

    @property
    def together(self) -> float:
        points = np.array(self.points)
        near = np.asarray(KDTree(points).query(points, k=[2])[1])[:, 0]
        return mean([float(self.codes[i] == self.codes[int(j)]) for i, j in enumerate(near)])

    @property
    def by_chance(self) -> float:
        n = len(self.codes)
        return sum(count * (count - 1) for count in Counter(self.codes).values()) / (n * (n - 1))


@dataclass(frozen=True)
class Judged:
    """One secret that an encoder is to hide."""

    secret: str
    column: str
    values: tuple[str, ...]
    tried: Tried
    stale: Attacked | None  # the network that was trained along with the encoder
    single: tuple[Attacked, ...]  # by whoever sees single records where a mean was guarded
    baselines: tuple[Baseline, ...]
    guarantee: Guarantee | None
    information: Mapping[str, Average]  # I(u; r) in nats, by estimator
    before: Scatter | None
    after: Scatter | None

    @property
    def asked_again(self) -> list[Attacked]:
        """The attacks on the mean of several draws of a record's noise."""
        return [attack for attack in self.tried.attacks if attack.queries > 1]


def measures(attacks: Sequence[Attacked]) -> list[tuple[str, str, bool]]:
    """Those that any of the attacks has."""
    return [each for each in MEASURES if any(each[0] in attack.estimates for attack in attacks)]


def judged(tables: Sequence[Json]) -> Iterator[Judged]:
    """The secrets in the "guarding" entries of a cell's runs that every seed has in numbers."""
    for first in tables[0].get("judged") or () if tables else ():
        same = [
            entry for table in tables for entry in table.get("judged") or () if _asked(entry) == _asked(first)
        ]
        tried = _tried(same)
        if len(same) == len(tables) and (tried.strongest or tried.worth.fresh):
            yield _judged(same, tried)


def _asked(entry: Json) -> tuple[str, str]:
    return str(entry.get("secret") or ""), str(entry.get("column") or "")


def _judged(same: Sequence[Json], tried: Tried) -> Judged:
    secret, column = _asked(same[0])
    values = [str(value) for value in same[0].get("values") or ()]
    tables = [entry.get("information") or {} for entry in same]
    picture = same[0].get("map") or {}  # of one seed
    names = [str(value) for value in picture.get("values") or values]
    return Judged(
        secret=secret,
        column=column,
        values=tuple(values),
        tried=tried,
        stale=attacked([entry.get("stale") for entry in same]),
        single=_attacks([entry.get("single") or () for entry in same]),
        baselines=tuple(_baselines([entry.get("baselines") or () for entry in same])),
        guarantee=_guarantee(same),
        information={name: found for name in tables[0] if (found := _free(tables, name))},
        before=_scatter(picture.get("before") or {}, names),
        after=_scatter(picture.get("after") or {}, names),
    )


def _tried(same: Sequence[Json]) -> Tried:
    lists = [entry.get("attacks") or () for entry in same]
    attacks = _attacks(lists)
    chosen = attacked([next((e for e in entries if e.get("chosen")), None) for entries in lists])
    once = [attack for attack in attacks if attack.queries <= 1]
    return Tried(_worth([entry.get("utility") or {} for entry in same]), attacks, chosen or _likest(once))


def _likest(attacks: Sequence[Attacked]) -> Attacked | None:
    """The attack that finds most, where none was chosen."""
    for name, sign in (("ssim", 1), ("mse", -1), ("auroc", 1), ("success", 1)):
        found = [attack for attack in attacks if name in attack.estimates]
        if found:
            return max(found, key=lambda attack: sign * attack.estimates[name].value)
    return None


def _worth(tables: Sequence[Json]) -> Worth:
    shares = [float(table["majority"]) for table in tables if table.get("majority") is not None]
    fresh, own = (averages([table.get(head) or {} for table in tables]) for head in ("fresh", "own"))
    return Worth(fresh, own, mean(shares) if shares else None)


def _attacks(lists: Sequence[Sequence[Json]]) -> tuple[Attacked, ...]:
    """Those that every seed has, matched by what they are and how often they ask."""

    def kind(entry: Json) -> tuple[object, object]:
        return entry.get("attack"), entry.get("queries")

    found = [
        attacked([next((e for e in entries if kind(e) == kind(first)), None) for entries in lists])
        for first in (lists[0] if lists else ())
    ]
    return tuple(attack for attack in found if attack)


def attacked(entries: Sequence[Json | None]) -> Attacked | None:
    """One attack over seeds; None unless all have it in numbers."""
    same = [entry for entry in entries if entry]
    if not same or len(same) < len(entries):
        return None
    bases = [float(entry["guessing"]) for entry in same if entry.get("guessing") is not None]
    tables = [entry.get("estimates") or {} for entry in same]
    estimates = averages([_renamed(table) for table in tables], bases)
    estimates |= {name: found for name in LIKENESS if (found := _free(tables, name))}
    if not estimates:
        return None
    names, calls = (dict.fromkeys(str(entry.get(key) or "") for entry in same) for key in ("name", "attack"))
    return Attacked(
        name=" or ".join(names),
        attack=" or ".join(calls),
        queries=int(same[0].get("queries") or 1),
        chosen=sum(bool(entry.get("chosen")) for entry in same),
        guessing=mean(bases) if bases else None,
        estimates=estimates,
        roc=mean_roc([entry["roc"] for entry in same if entry.get("roc")]),
    )


def _renamed(table: Json) -> Json:
    """By the names that all audits have."""
    return {
        "success" if name == "success_rate" else name: value
        for name, value in table.items()
        if name not in LIKENESS
    }


def _baselines(lists: Sequence[Sequence[Json]]) -> Iterator[Baseline]:
    for first in lists[0] if lists else ():
        name = first.get("baseline")
        same = [entry for entries in lists for entry in entries if entry.get("baseline") == name]
        tried = _tried(same)
        if len(same) == len(lists) and tried.strongest:
            yield Baseline(str(name), tried)


def _guarantee(same: Sequence[Json]) -> Guarantee | None:
    tables = [entry.get("guarantee") or {} for entry in same]
    entropy, bounds = _free(tables, "entropy"), [table.get("bound") for table in tables]
    known = [float(bound) for bound in bounds if isinstance(bound, int | float) and math.isfinite(bound)]
    if entropy is None or len(known) < len(bounds):
        return None
    measured = [table.get("measured") for table in tables]
    attacks = [
        next(
            (e["estimates"].get("success_rate") for e in entry.get("attacks") or () if e.get("chosen")), None
        )
        for entry in same
    ]
    refuted = [
        any(found and finite(found) and found["low"] > bound for found in pair)
        for *pair, bound in zip(measured, attacks, known, strict=True)
    ]
    return Guarantee(
        entropy=entropy,
        bound=max(known),
        measured=average([found for found in measured if found]) if all(map(finite, measured)) else None,
        caveat=str(tables[0].get("caveat") or ""),
        refuted=sum(refuted),
        seeds=len(tables),
    )


def _scatter(table: Json, values: Sequence[str]) -> Scatter | None:
    pairs = [
        (tuple(map(float, point)), int(code))
        for point, code in zip(table.get("points") or (), table.get("codes") or (), strict=False)
        if len(point) in (2, 3) and all(isinstance(v, int | float) and math.isfinite(v) for v in point)
    ][:DRAWN]
    if len(pairs) < 3 or len({len(point) for point, _ in pairs}) > 1:
        return None
    codes = [code for _, code in pairs]
    kept = sorted(set(codes))
    if len(kept) > MARKS:
        kept = sorted(code for code, _ in Counter(codes).most_common(APART))
    names = [values[code] if 0 <= code < len(values) else str(code) for code in kept]
    if len(set(codes)) > len(kept):
        names.append("others")
    codes = [kept.index(code) if code in kept else len(kept) for code in codes]
    return Scatter(tuple(point for point, _ in pairs), tuple(codes), tuple(names))


def _free(tables: Sequence[Json], name: str) -> Average | None:
    """Over seeds, if all have it, free to leave 0 to 1."""
    found = [table.get(name) for table in tables]
    given = [estimate for estimate in found if estimate and finite(estimate)]
    return average(given, least=-math.inf, most=math.inf) if given and len(given) == len(found) else None
