"""Federations as a page has them: what each attack reaches over seeds, in the mean and at every client."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import TypeVar

from scipy import stats

from leakscope.audits.membership.found import MemberAttack, MembershipFound
from leakscope.audits.membership.scoring import RATES
from leakscope.measures.exchangeability import Exchangeability
from leakscope.results.averages import Average, Curve
from leakscope.results.cell import WORDS, Cell, group_by, stable, words
from leakscope.results.chapter import LEAKS, SEVERITIES
from leakscope.results.kind import Runs
from leakscope.results.scores import Scores, Worth, tells

CHANCE = 0.01  # what guessing finds of the members while naming 1% of the others
SUBSTANTIAL, SEVERE = 0.03, 0.1  # where the words for severity change; stated on the page
SHOWN = 12  # clients that are named before it is said how many more there are
SHIELDS = ("upload", "virtual", "repartition")  # of a federation's game: defenses, told as such
ASIDE = (*WORDS, "game", "defense", "adaptive", "attack", "rehearsals", "training")  # of a cell
SETTINGS = (  # of a game
    "attacks", "scored", "known", "held", "validation", "server_rate", "digest", "records",
)  # fmt: skip


@dataclass(frozen=True)
class ClientReading:
    """One attack: the members it finds at 1% false alarms, and its ranking. ``few``: too few non-members
    were judged to say what 1% of them is. ``sound``: nothing speaks against what was looked at. ``alike``:
    members and non-members were not told apart without the updates, so that what is found is membership."""

    attack: str
    taught: bool
    found: Average
    auroc: Average
    few: bool
    sound: bool
    alike: bool

    @property
    def severity(self) -> str:
        """A word from the lower limit of the members found, or from that of the ranking. Where members differ
        from non-members in more than membership nothing can be said, of what was found or not."""
        if not self.alike:
            return "inconclusive"
        if not self.few and self.found.low >= SUBSTANTIAL:
            return "severe" if self.found.low >= SEVERE else "substantial"
        if not self.few and self.found.low > CHANCE:
            return "slight"
        if self.auroc.low > 0.5:
            return "ranking"
        told = tells(self.auroc.low, self.auroc.high)  # the other way round: no all-clear either
        clear = not self.few and self.sound and self.found.high < SUBSTANTIAL and not told
        return "none" if clear else "inconclusive"

    @property
    def ranks(self) -> bool:
        """Whether the word follows the ranking, and not what is found."""
        return self.few or self.severity == "ranking"

    @property
    def worst_first(self) -> tuple[int, float, float, str]:
        """By severity, then by the limit that it follows."""
        limit = self.auroc.low if self.ranks or self.found.low <= CHANCE else self.found.low
        return list(SEVERITIES).index(self.severity), -limit, -self.found.value, self.attack


def is_by_site(cell: Cell) -> bool:
    """Whether each client's non-members are of its own site, in a simulation or by a column of candidates."""
    return bool(cell.game.get("how") == "site" or cell.game.get("site"))


R = TypeVar("R", bound=ClientReading)


def pick_strongest(readings: Sequence[R]) -> R:
    """The attack that finds most: of those that are told no member, unless only others find any."""
    plain = [reading for reading in readings if not reading.taught]
    leaking = [reading for reading in readings if reading.severity in LEAKS]
    both = [reading for reading in plain if reading in leaking]
    return min(both or leaking or plain or readings, key=lambda reading: reading.worst_first)


@dataclass(frozen=True)
class Site(ClientReading):
    """One client: what the strongest attack on it finds of ``members``. Its intervals are so wide that those
    of all clients hold together."""

    client: str
    members: int
    judged: int


@dataclass(frozen=True)
class AttackOverSeeds(ClientReading):
    """One attack on a federation: means over ``games`` and seeds, and their standard deviation over games."""

    first: MemberAttack
    games: int
    scores: Scores[Average]
    deviation: Scores[float]
    roc: Curve

    @property
    def tests_made(self) -> list[tuple[float, str, str]]:
        """The nominal rates of the tests there are, and the names of their false and true positive rates."""
        names = {name for name, _ in self.scores.present()}
        keys = [(rate, f"conformal_fpr_at_{rate:.0%}", f"conformal_tpr_at_{rate:.0%}") for rate in RATES]
        return [key for key in keys if {*key[1:]} <= names]


@dataclass(frozen=True)
class Federation(Runs[MembershipFound]):
    """One federation over its seeds: every attack in the mean over clients, every client by the strongest
    attack on it, and why that nothing was found would say nothing."""

    attacks: tuple[AttackOverSeeds, ...]
    sites: tuple[Site, ...]
    utility: Worth[Average]
    doubts: tuple[str, ...] = ()
    unlike_clients: tuple[str, ...] = ()  # "": all at once
    number: int = 0
    differs: str = ""

    @property
    def first(self) -> MembershipFound:
        return self.founds[0]

    @property
    def recorded(self) -> str:
        """The name of the recording's folder; empty where the federation was trained for its audit."""
        return PurePath(str(self.cell.game.get("recording", ""))).name

    @property
    def defense(self) -> str:
        """What is in place, and where it acts."""
        game = self.cell.game
        virtual = game.get("virtual", 1)
        again = ", dealt anew in every round" if game.get("repartition") else ""
        parts = [
            f"{words(self.cell.defense)} in every local step" if self.cell.defense else "",
            f"{words(game['upload'])} on every upload" if game.get("upload") else "",
            f"{virtual} virtual clients in each{again}" if virtual != 1 else "",
        ]
        return ", ".join(part for part in parts if part)

    @property
    def shield(self) -> str:
        """The defense, or that there is none, or that nobody says."""
        return self.defense or ("not said" if self.recorded else "none")

    @property
    def seen(self) -> str:
        return str(self.cell.game.get("seen", "uploads"))

    @property
    def sees_all(self) -> bool:
        """Whether an attack looks at the other clients' updates too."""
        return any(attack.first.uses == "all updates" for attack in self.attacks)

    @property
    def view(self) -> str:
        """What the adversary sees, in few words."""
        parts = {"sum": "the sum of updates", "broadcast": "global models only"}
        return parts.get(self.seen, "each upload") + (", centred" if self.cell.game.get("centred") else "")

    @property
    def label(self) -> str:
        parts = [f"recording {self.recorded}" if self.recorded else self.defense or "no defense"]
        return ", ".join(part for part in (*parts, f"adversary sees {self.view}", self.differs) if part)

    @property
    def victim(self) -> str:
        """Equal for federations that differ in their defense, or in how they are attacked, alone."""
        said = (*SHIELDS, *SETTINGS)
        game = {key: value for key, value in self.cell.game.items() if key not in said}
        cell = {k: value for k, value in self.cell.described.items() if k not in (*ASIDE, "trials")}
        return stable([game, cell])

    @property
    def checks(self) -> list[Exchangeability]:
        """Of every client the comparison that tells members from non-members best, over seeds."""
        groups = group_by((check for found in self.founds for check in found.alike), lambda c: c.client)
        return [min(checks, key=lambda check: check.p) for checks in groups.values()]

    @property
    def dealt(self) -> str:
        """What the audit itself dealt at random to clients and to nobody, so that no test is needed."""
        how = "" if self.recorded else self.cell.game.get("how", "iid")
        return {"iid": "records", "user": "whole people"}.get(how, "")

    @property
    def by_site(self) -> bool:
        """Whether clients are sites, and non-members records of the same site."""
        return is_by_site(self.cell)

    @property
    def watched(self) -> str:
        """The clients by name, the first of them if they are many."""
        names = self.first.watched
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        return ", ".join(names[:SHOWN]) + more

    @property
    def unlike(self) -> str:
        """In what clients' records differ from the others beside who was trained on."""
        return {"user": "people", "dirichlet": "labels"}.get(self.cell.game.get("how", ""), "")

    @property
    def tests(self) -> list[tuple[float, str, str]]:
        """The tests that every attack was put to."""
        return min((attack.tests_made for attack in self.attacks), key=len)

    @property
    def untested(self) -> list[tuple[float, int]]:
        """The rates that too few records were held out for, and how many it takes."""
        return [(rate, round(1 / rate) - 1) for rate in RATES[: len(RATES) - len(self.tests)]]

    @property
    def methods(self) -> list[str]:
        return list(dict.fromkeys(average.method for _, average in self.strongest.scores.present()))

    @property
    def strongest(self) -> AttackOverSeeds:
        return pick_strongest(self.attacks)

    @property
    def exposed(self) -> Site | None:
        """The worst client, if its word is worse than that of the mean."""
        place = list(SEVERITIES).index
        worse = self.sites and place(self.sites[0].severity) < place(self.strongest.severity)
        return self.sites[0] if worse else None

    @property
    def deciding(self) -> ClientReading | None:
        """What the verdict follows."""
        return self.exposed or (self.strongest if self.attacks else None)

    @property
    def severity(self) -> str:
        return self.deciding.severity if self.deciding else "failed"

    @property
    def worst_first(self) -> tuple[int, float, float, str]:
        place = self.deciding.worst_first[:3] if self.deciding else (len(SEVERITIES), 0.0, 0.0)
        return *place, stable(self.cell.described)

    def unlikely(self, rate: float, realised: Average) -> bool:
        """Whether so many false alarms have a chance below 0.5% if held-out and judged records were drawn
        alike: their number is then beta-binomial. Clients and seeds are taken for one."""
        held, n = self.first.held, self.first.judged
        k = math.floor(rate * (held + 1) * (1 + 1e-12))
        alarms = math.ceil(realised.value * n)
        return bool(n and k) and float(stats.betabinom.sf(alarms - 1, n, k, held + 1 - k)) < 0.005


@dataclass(frozen=True)
class Watch:
    """The federations on one dataset: those that differ in their defense alone side by side."""

    data: str
    federations: tuple[Federation, ...]

    @property
    def measured(self) -> list[Federation]:
        return [federation for federation in self.federations if federation.attacks]

    @property
    def worst(self) -> Federation:
        return min(self.federations, key=lambda federation: federation.worst_first)

    @property
    def defended(self) -> list[Federation]:
        """The defended federations that are seen as the worst one is."""
        return [one for one in self.measured if one.defense and one.seen == self.worst.seen]

    @property
    def best_defended(self) -> Federation | None:
        """The one with the lowest upper limit of the members found."""
        return min(self.defended, key=lambda one: one.strongest.found.high, default=None)

    def undefended(self, defended: Federation) -> Federation | None:
        """The federation that differs in its defense, or in how it is attacked, alone."""
        kin = [one for one in self.measured if not one.defense and one.victim == defended.victim]
        return next((one for one in kin if one.seen == defended.seen), None)
