"""What was measured of a guard (papers 003 and 004) for one secret, each number over its seeds."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.spatial import KDTree

from leakscope.audits.guards import found
from leakscope.results.averages import Average, Curve, average, average_free, mean, mean_roc
from leakscope.results.chapter import SLIGHT
from leakscope.results.scores import MEASURES, Scores, Worth, average_scores, average_worth

DRAWN = 500  # points of a map, at most
APART = 6  # values of a secret that have a mark of their own on a map that has no room for all
MARKS = 7  # that a map can tell apart


@dataclass(frozen=True)
class AttackAverage:
    """One attack; ``chosen`` by as many of the ``seeds`` on their rehearsals."""

    name: str
    attack: str
    queries: int
    chosen: int
    seeds: int
    guessing: float | None
    scores: Scores[Average]
    roc: Curve

    @property
    def estimates(self) -> Mapping[str, Average]:
        """By the name of the measure."""
        return self.scores.table


@dataclass(frozen=True)
class TriedAverage:
    """A guard, or what needs none, as it is worth and as it is attacked: the ``task`` by a head of its
    ``head``, and by the guard's ``own``. ``strongest`` is, for each seed, the attack that its rehearsals
    chose; of reconstructions, which are not chosen, the likest."""

    head: str
    task: Worth[Average]
    own: Worth[Average]
    attacks: tuple[AttackAverage, ...]
    strongest: AttackAverage

    def attack(self, measure: str) -> Average | None:
        return self.strongest.estimates.get(measure)

    @property
    def worth(self) -> Average | None:
        """What the task is worth, by the measure that it is judged by."""
        return self.task.main


@dataclass(frozen=True)
class BaselineAverage:
    name: str
    needless: found.Needless
    tried: TriedAverage


@dataclass(frozen=True)
class TheoremAverage:
    """The accuracy that no attacker would exceed if H(u|r) were what was estimated. Over seeds: the weakest
    bound, and how many of them refute their own by the lower limit of an attack. ``exceeded``: an attack's
    mean lies above the bound."""

    entropy: Average  # nats
    bound: float | None
    measured: Average
    refuted: int
    seeds: int
    exceeded: bool

    @property
    def reading(self) -> str:
        if self.bound is None:
            return "None: the attacker is badly calibrated"
        if self.refuted:
            return f"Refuted with {self.refuted} of {self.seeds} seeds" if self.seeds > 1 else "Refuted"
        return "Exceeded within the interval" if self.exceeded else "Not exceeded by these attacks"


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
class RowAverage:
    """What is told by whoever holds something else than one release. ``usual``: it takes no more than
    ordinary use; ``labelled``: the task's label is held too."""

    title: str
    holding: str
    labelled: bool
    usual: bool
    attack: AttackAverage


@dataclass(frozen=True)
class JudgedAverage:
    """One secret that an encoder is to hide."""

    secret: str
    column: str
    values: tuple[str, ...]
    tried: TriedAverage
    stale: AttackAverage | None  # the network that was trained along with the encoder
    single: tuple[AttackAverage, ...]  # by whoever sees single records where a mean was guarded
    rows: tuple[RowAverage, ...]
    baselines: tuple[BaselineAverage, ...]
    theorem: TheoremAverage | None
    least_error: found.LeastError | None  # of one seed
    risk: found.RebuildingRisk | None  # of one seed
    local: found.LocalPrivacy | None
    information: Mapping[str, Average]  # I(u; r) in nats, by estimator
    methods: Mapping[str, str]  # of those estimators
    before: Scatter | None
    after: Scatter | None

    @property
    def narrow(self) -> bool:
        """Whether an attribute was sought in single releases only: not beside labels, nor in several."""
        return self.secret == "attribute" and not self.rows

    @property
    def once(self) -> list[AttackAverage]:
        """The attacks on one release."""
        return [attack for attack in self.tried.attacks if attack.queries == 1]

    @property
    def asked_again(self) -> list[AttackAverage]:
        """The attacks on the mean of several draws of a record's noise."""
        means = [row.attack for row in self.rows if row.holding == "again" and not row.labelled]
        return [attack for attack in self.tried.attacks if attack.queries > 1] + means

    @property
    def every(self) -> list[AttackAverage]:
        """Every adversary that was measured, whatever it sees in ordinary use. What a label tells alone it
        tells without a guard too; what it brings out of a release counts."""
        stale = [self.stale] if self.stale else []
        return [self.tried.strongest, *self.tried.attacks, *self.single, *stale, *self.held, *self.beyond]

    @property
    def held(self) -> list[AttackAverage]:
        """The attacks on what ordinary use gives out beside one release, labels left aside."""
        return [row.attack for row in self.rows if row.usual and not row.labelled]

    @property
    def beyond(self) -> list[AttackAverage]:
        """The attacks on releases with their labels that clearly find more than the labels tell alone."""
        alone = self.row("nothing", labelled=True)
        return [
            row.attack
            for row in self.rows
            if alone and row is not alone and row.usual and row.labelled
            if any(
                name in row.attack.estimates
                and name in alone.attack.estimates
                and row.attack.estimates[name].low > alone.attack.estimates[name].high
                for name in ("auroc", "success")
            )
        ]

    @property
    def unsure(self) -> bool:
        """Whether, for all that the trials show, releases with their labels may rank clearly better than the
        labels alone: by as much AUROC as makes an advantage more than slight."""
        alone = self.row("nothing", labelled=True)
        base = alone.attack.scores.auroc if alone else None
        return any(
            base is None
            or own is None
            or own.value - base.value + math.hypot(own.high - own.value, base.value - base.low) >= SLIGHT / 2
            for own in (r.attack.scores.auroc for r in self.rows if r.usual and r.labelled and r is not alone)
        )

    def row(self, holding: str, *, labelled: bool = False) -> RowAverage | None:
        """One of the rows, where it was measured."""
        alike = (row for row in self.rows if (row.holding, row.labelled) == (holding, labelled))
        return next(alike, None)


def list_measures(attacks: Sequence[AttackAverage]) -> list[str]:
    """Those that any of the attacks has."""
    return [name for name in MEASURES if any(name in attack.estimates for attack in attacks)]


def judge(runs: Sequence[found.GuardsFound]) -> Iterator[JudgedAverage]:
    """The secrets of a cell's runs, each over its seeds."""
    for same in zip(*(run.judged for run in runs), strict=True):
        first, shown = same[0], same[0].map  # maps are of one seed
        information = {
            name: average_free([one.information[name].estimate for one in same]) for name in first.information
        }
        tried = _try(same)
        yield JudgedAverage(
            secret=first.secret,
            column=first.column or "",
            values=first.values,
            tried=tried,
            stale=next(iter(_attacks([[one.stale] if one.stale else [] for one in same])), None),
            single=_attacks([one.single for one in same]),
            rows=tuple(
                RowAverage(
                    each[0].title,
                    each[0].holding,
                    each[0].labelled,
                    each[0].usual,
                    _average_attack([row.attack for row in each]),
                )
                for each in _match_rows([one.rows for one in same])
            ),
            baselines=tuple(
                BaselineAverage(each[0].name, each[0].needless, _try(each))
                for each in zip(*(one.baselines for one in same), strict=True)
            ),
            theorem=_theorem(same, tried),
            least_error=first.least_error,
            risk=first.risk,
            local=first.local,
            information=information,
            methods={name: one.estimate.method for name, one in first.information.items()},
            before=_scatter(shown.before, first.values) if shown else None,
            after=_scatter(shown.after, first.values) if shown else None,
        )


def _try(same: Sequence[found.Tried]) -> TriedAverage:
    owns = [one.utility.own for one in same]
    return TriedAverage(
        head=same[0].utility.head,
        task=average_worth([one.utility.task for one in same]),
        own=average_worth([own for own in owns if own]) if all(owns) else Worth[Average](),
        attacks=_attacks([one.attacks for one in same]),
        strongest=_average_attack([one.strongest for one in same]),
    )


def found_by(attack: AttackAverage, measure: str) -> float:
    """How much an attack finds by a measure: more is worse, whichever way the measure goes."""
    estimate = attack.estimates.get(measure)
    if estimate is None:
        return -math.inf
    return -estimate.value if MEASURES[measure].falls else estimate.value


def _attacks(lists: Sequence[Sequence[found.Attacked]]) -> tuple[AttackAverage, ...]:
    """Those that every seed has, matched by what they are and how often they ask."""
    every = [{(entry.attack, entry.queries): entry for entry in entries} for entries in lists]
    shared = [key for key in every[0] if all(key in table for table in every)]
    return tuple(_average_attack([table[key] for table in every]) for key in shared)


def _match_rows(lists: Sequence[Sequence[found.Row]]) -> Iterator[list[found.Row]]:
    """Those that every seed has: one that was measured by an earlier version may have fewer."""
    every = [{row.title: row for row in rows} for rows in lists]
    for title in every[0]:
        if all(title in table for table in every):
            yield [table[title] for table in every]


def _average_attack(same: Sequence[found.Attacked]) -> AttackAverage:
    """One attack over seeds."""
    bases = [entry.guessing for entry in same if entry.guessing is not None]
    return AttackAverage(
        name=" or ".join(dict.fromkeys(entry.name for entry in same)),
        attack=" or ".join(dict.fromkeys(entry.attack for entry in same)),
        queries=same[0].queries,
        chosen=sum(entry.chosen for entry in same),
        seeds=len(same),
        guessing=mean(bases) if bases else None,
        scores=average_scores([entry.scores for entry in same], bases),
        roc=mean_roc([entry.roc for entry in same if entry.roc]),
    )


def _theorem(same: Sequence[found.Judged], tried: TriedAverage) -> TheoremAverage | None:
    theorems = [one.theorem for one in same if one.theorem]
    if not theorems:
        return None
    measured, bounds = average([one.measured for one in theorems]), [one.bound for one in theorems]
    bound = None if None in bounds else max(one for one in bounds if one is not None)
    rates = [(one.theorem, one.strongest.scores.success) for one in same]
    success = tried.strongest.scores.success
    return TheoremAverage(
        entropy=average_free([one.entropy for one in theorems]),
        bound=bound,
        measured=measured,
        refuted=sum(
            any(rate and rate.low > theorem.bound for rate in (theorem.measured, chosen))
            for theorem, chosen in rates
            if theorem and theorem.bound is not None
        ),
        seeds=len(theorems),
        exceeded=bound is not None and (measured.value > bound or bool(success and success.value > bound)),
    )


def _scatter(cloud: found.Cloud, values: Sequence[str]) -> Scatter:
    codes = cloud.codes[:DRAWN]
    kept = sorted(set(codes))
    if len(kept) > MARKS:
        kept = sorted(code for code, _ in Counter(codes).most_common(APART))
    names = [values[code] for code in kept] + (["others"] if len(set(codes)) > len(kept) else [])
    places = tuple(kept.index(code) if code in kept else len(kept) for code in codes)
    return Scatter(cloud.points[:DRAWN], places, tuple(names))
