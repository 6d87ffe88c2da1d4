"""Audits of federations (paper 002), ready for the page: who was trained on, told by which attack,
how surely, and what the adversary was assumed to see and know."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import PurePath

from scipy import stats

from leakscope.averages import Average, Curve, Json, average, averages, finite, mean, mean_roc, needed
from leakscope.plan import WORDS
from leakscope.sections import differences, words
from leakscope.summary import SEVERITIES, cells, source, stable

CHANCE = 0.01  # what guessing finds of the members while naming 1% of the others
SUBSTANTIAL, SEVERE = 0.03, 0.1  # where the words for severity change; stated on the page
NOMINAL = (0.01, 0.05, 0.1)  # rates that the conformal test is asked to keep
RATIOS = {"plr_at_1%": 100.0, "plr_at_2%": 50.0, "plr_at_5%": 20.0}  # the most that a likelihood ratio can be
LABELS = {
    "known": "",
    "predicted": "does not know the record's label: takes the one the model predicts",
    "sum": "does not know the record's label: sums over all",
    "max": "does not know the record's label: tries each",
}
ALIGNED = ("Cosine", "GradientDiff", "Whitened")  # held against the updates
LOSSES = ("FedLoss", "Loss", "ModifiedEntropy", "Merlin", "Zari")  # of the global models alone
TAUGHT = ("Zari",)  # by known members
SHIELDS = ("upload", "virtual", "repartition")  # of a federation's game: defenses, told as such
VICTIM = (*SHIELDS, "attacks", "scored", "known", "held", "validation", "server_rate", "digest", "records")
SHOWN = 12  # clients that are named before it is said how many more there are


@dataclass(frozen=True)
class Attacked:
    """One attack on a federation: its measures, means over ``clients`` and seeds, the standard
    ``deviation`` over clients, and the mean of their ROC curves."""

    name: str
    estimates: Mapping[str, Average]
    deviation: Mapping[str, float]
    clients: int
    roc: Curve

    @property
    def kind(self) -> str:
        return self.name.partition("(")[0]

    @property
    def taught(self) -> bool:
        """Whether it is told some of the members, which is more than the others know."""
        return self.kind in TAUGHT

    @property
    def told(self) -> str:
        """What it uses and knows, in words; empty for an attack that is not ours."""
        if self.kind not in (*ALIGNED, *LOSSES):
            return ""
        label = re.search(r"label='(\w+)'", self.name)
        uses = "updates" if self.kind in ALIGNED else "global models only, no update"
        knows = LABELS.get(label[1] if label else "known", "") or "knows the record's label"
        return f"{uses}; {knows}"

    @property
    def severity(self) -> str:
        """A word from the lower limit of the members found at 1% false alarms."""
        found, auroc = self.estimates["tpr_at_1%"], self.estimates.get("auroc")
        if found.low >= SUBSTANTIAL:
            return "severe" if found.low >= SEVERE else "substantial"
        if found.low > CHANCE:
            return "slight"
        if auroc is not None and auroc.low > 0.5:
            return "ranking"
        return "none" if found.high < SUBSTANTIAL else "inconclusive"

    @property
    def worst_first(self) -> tuple[int, float, float, str]:
        """By severity, then by the limit that it follows: of what is found, or else of the ranking."""
        found, auroc = self.estimates["tpr_at_1%"], self.estimates.get("auroc")
        limit = found.low if found.low > CHANCE or auroc is None else auroc.low
        return SEVERITIES.index(self.severity), -limit, -found.value, self.name

    @property
    def tests_made(self) -> list[tuple[float, Average, Average]]:
        """(nominal rate, realised false positive rate, true positive rate) of the conformal test."""
        found = [(rate, [f"conformal_{part}_at_{rate:.0%}" for part in ("fpr", "tpr")]) for rate in NOMINAL]
        return [
            (rate, self.estimates[false], self.estimates[true])
            for rate, (false, true) in found
            if false in self.estimates and true in self.estimates
        ]


@dataclass(frozen=True)
class Federation:
    """One federation over its seeds. Without ``attacks`` every seed failed."""

    cell: Json
    runs: tuple[Json, ...]
    failures: tuple[tuple[int, str], ...]
    attacks: tuple[Attacked, ...]
    utility: Mapping[str, Average]
    majority: float | None
    number: int = 0
    differs: str = ""

    @property
    def game(self) -> Json:
        return self.cell.get("game") or {}

    def fact(self, name: str, otherwise: object = None) -> object:
        """What the audit says of its sizes and views; a failed one has what its plan says."""
        sources = (*(run["membership"] for run in self.runs[:1]), self.game)
        return next((table[name] for table in sources if table.get(name) is not None), otherwise)

    def size(self, name: str) -> int:
        """A fact that is a number of records, clients or rounds."""
        value = self.fact(name, 0)
        return value if isinstance(value, int) else 0

    @property
    def guarantee(self) -> Json | None:
        """What the filter on uploads promises by its own noise, which is the same for every seed."""
        return next((run["guarantee"] for run in self.runs if run.get("guarantee")), None)

    @property
    def recorded(self) -> str:
        """The name of the recording's folder; empty where the federation was trained for its audit."""
        return PurePath(str(self.game.get("recording") or "")).name

    @property
    def defense(self) -> str:
        """What is in place, and where it acts."""
        virtual = self.game.get("virtual") or 1
        again = ", dealt anew in every round" if self.game.get("repartition") else ""
        parts = [
            f"{words(self.cell['defense'])} in every local step" if self.cell.get("defense") else "",
            f"{words(self.game['upload'])} on every upload" if self.game.get("upload") else "",
            f"{virtual} virtual clients in each{again}" if virtual != 1 else "",
        ]
        return ", ".join(part for part in parts if part)

    @property
    def shield(self) -> str:
        """The defense, or that there is none, or that nobody says."""
        return self.defense or ("not said" if self.recorded else "none")

    @property
    def seen(self) -> str:
        return str(self.fact("seen", "uploads"))

    @property
    def view(self) -> str:
        """What the adversary sees, in few words."""
        parts = {"sum": "the sum of updates", "broadcast": "global models only"}
        return parts.get(self.seen, "each upload") + (", centred" if self.fact("centred") else "")

    @property
    def label(self) -> str:
        parts = [f"recording {self.recorded}" if self.recorded else self.defense or "no defense"]
        return ", ".join(part for part in (*parts, f"adversary sees {self.view}", self.differs) if part)

    @property
    def watched(self) -> str:
        """The clients by name, the first of them if they are many."""
        names = [str(name) for name in self._watched]
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        return ", ".join(names[:SHOWN]) + more

    @property
    def _watched(self) -> Sequence[object]:
        found = self.fact("watched", ())
        return found if isinstance(found, list | tuple) else ()

    @property
    def own(self) -> str:
        """How many records a member is sought among: one client's, or all of them."""
        members, clients = self.size("members"), max(1, self.size("clients"))
        if self.seen != "uploads":
            return f"{members:,}"
        exact = clients == 1 or (not self.recorded and self.game.get("how", "iid") == "iid")
        return ("" if exact else "roughly ") + f"{round(members / clients):,}"

    @property
    def judged(self) -> int:
        """Non-members that candidates are drawn from in one client's game (`games.Membership.deal`)."""
        trials = self.cell.get("trials")
        trials = trials if isinstance(trials, int) else 2_000
        return min(trials - trials // 2, self.size("others"))

    def unlikely(self, rate: float, realised: Average) -> bool:
        """Whether so many false alarms have a chance below 0.5% if held-out and judged records were drawn
        alike: their number is then beta-binomial. Clients and seeds are taken for one."""
        held, n = self.size("held"), self.judged
        k = math.floor(rate * (held + 1) * (1 + 1e-12))
        alarms = math.ceil(realised.value * n)
        return bool(n and k) and float(stats.betabinom.sf(alarms - 1, n, k, held + 1 - k)) < 0.005

    @property
    def strongest(self) -> Attacked | None:
        """The attack that finds most, of those that are told no member if there are any."""
        plain = [attack for attack in self.attacks if not attack.taught] or self.attacks
        return min(plain, key=lambda attack: attack.worst_first, default=None)

    @property
    def severity(self) -> str:
        return self.strongest.severity if self.strongest else "failed"

    @property
    def worst_first(self) -> tuple[int, float, float, str]:
        place = self.strongest.worst_first[:3] if self.strongest else (len(SEVERITIES), 0.0, 0.0)
        return *place, stable(self.cell)

    def too_few(self, average: Average, fpr: float) -> int | None:
        """How many non-members a lower limit above 0 takes, where there were fewer; over several seeds,
        how many it takes to allow one false alarm."""
        wanted = needed(average.level, fpr) if average.seeds == 1 else round(1 / fpr)
        return wanted if self.judged < wanted and (average.seeds > 1 or average.low == 0) else None


@dataclass(frozen=True)
class Watch:
    """The federations on one dataset: those that differ in their defense alone side by side."""

    data: str
    federations: tuple[Federation, ...]

    @property
    def measured(self) -> list[Federation]:
        return [one for one in self.federations if one.attacks]

    @property
    def worst(self) -> Federation:
        return min(self.federations, key=lambda one: one.worst_first)

    @property
    def defended(self) -> list[Federation]:
        """The defended federations that are seen as the worst one is."""
        return [one for one in self.measured if one.defense and one.seen == self.worst.seen]

    @property
    def best_defended(self) -> Federation | None:
        """The one with the lowest upper limit of the members found."""

        def most(one: Federation) -> float:
            return one.strongest.estimates["tpr_at_1%"].high if one.strongest else 1.0

        return min(self.defended, key=most, default=None)

    def undefended(self, defended: Federation) -> Federation | None:
        """The federation that differs in its defense, or in how it is attacked, alone."""
        kin = [one for one in self.measured if not one.defense and _victim(one) == _victim(defended)]
        return next((one for one in kin if one.seen == defended.seen), None)


def watches(results: Iterable[Json]) -> list[Watch]:
    """The audits of federations by dataset, the worst first."""
    groups: dict[str, list[Federation]] = {}
    for runs in cells(results, "membership"):
        data = runs[0]["cell"].get("data") or {}
        groups.setdefault(stable([data.get("name"), data.get("path")]), []).append(_federation(runs))
    found = [Watch(source(group[0].cell), tuple(_ordered(group))) for group in groups.values()]
    found.sort(key=lambda watch: watch.worst.worst_first)
    numbers = count(1)
    return [
        replace(watch, federations=tuple(replace(one, number=next(numbers)) for one in watch.federations))
        for watch in found
    ]


def _ordered(group: Sequence[Federation]) -> list[Federation]:
    """Kin together, the worst kin first; in each, no defense before the defenses."""
    kin: dict[str, list[Federation]] = {}
    for one, differs in zip(group, differences([_settings(one) for one in group], ()), strict=True):
        kin.setdefault(_victim(one), []).append(replace(one, differs=differs))
    families = sorted(kin.values(), key=lambda family: min(one.worst_first for one in family))
    return [
        one
        for family in families
        for one in sorted(family, key=lambda one: (bool(one.defense), one.worst_first))
    ]


def _settings(one: Federation) -> Json:
    """Of a cell, what may tell federations apart beside their defense and what is seen of them."""
    told = (*SHIELDS, "seen", "centred", "digest", "records", "recording", "name", "attacks")
    game = {key: value for key, value in one.game.items() if key not in told}
    unsaid = (*WORDS, "game", "defense", "adaptive", "attack", "rehearsals", "training", "data")
    cell = {key: value for key, value in one.cell.items() if key not in unsaid}
    return cell | game | ({"recording": one.recorded} if one.recorded else {})


def _victim(one: Federation) -> str:
    """Equal for federations that differ in their defense, or in how they are attacked, alone."""
    game = {key: value for key, value in one.game.items() if key not in VICTIM}
    unsaid = (*WORDS, "game", "defense", "adaptive", "attack", "trials", "rehearsals", "training")
    return stable([game, {key: value for key, value in one.cell.items() if key not in unsaid}])


def _federation(results: Sequence[Json]) -> Federation:
    failures = tuple((int(r["seed"]), str(r["error"])) for r in results if r.get("error"))
    runs = tuple(r for r in results if not r.get("error") and r.get("membership"))
    tables = [list(run["membership"].get("attacks") or ()) for run in runs]
    attacks = tuple(
        attack for same in zip(*tables, strict=False) if "tpr_at_1%" in (attack := _attacked(same)).estimates
    )
    if runs and not attacks:  # no number is better than half of one
        failures += tuple((int(run["seed"]), "no attack with a finite true positive rate") for run in runs)
        runs = ()
    worth = [run.get("utility") or {} for run in runs]
    shares = [float(table["majority"]) for table in worth if table.get("majority") is not None]
    return Federation(
        cell=results[0]["cell"],
        runs=runs,
        failures=failures,
        attacks=attacks,
        utility={
            name: average([table[name] for table in worth])
            for name in ("accuracy", "trained")
            if worth and all(finite(table.get(name)) for table in worth)
        },
        majority=mean(shares) if shares else None,
    )


def _attacked(same: Sequence[Json]) -> Attacked:
    """One attack over seeds."""
    clients = min(int(table.get("clients") or 1) for table in same)
    spreads = [table.get("deviation") or {} for table in same] if clients > 1 else []
    return Attacked(
        name=str(same[0].get("attack", "?")),
        estimates=averages([table.get("estimates") or {} for table in same], most=RATIOS),
        deviation={
            name: mean([float(spread[name]) for spread in spreads])
            for name in (spreads[0] if spreads else ())
            if all(name in spread for spread in spreads)
        },
        clients=clients,
        roc=mean_roc([table["roc"] for table in same if table.get("roc")]),
    )
