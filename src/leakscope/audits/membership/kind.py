"""The kind of audit that asks who was trained on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from leakscope.audits.membership import page
from leakscope.audits.membership.found import MemberAttack, MembershipFound
from leakscope.audits.membership.recorded import RecordingAudit
from leakscope.audits.membership.seeds import FEWEST, UNLIKE, list_unlike
from leakscope.audits.membership.simulated import MembershipAudit
from leakscope.audits.membership.strongest import SHARP
from leakscope.audits.membership.view import is_by_site
from leakscope.core.tables import construct
from leakscope.results.cell import Cell, list_shields, words
from leakscope.results.kind import Asked, Division, Measured, TableEntry, World, enter_scores, enter_worth
from leakscope.results.number import Number, of_scores, of_value, of_worth


class MembershipKind:
    """Who was trained on, told from what crossed the wire (paper 002)."""

    found = MembershipFound
    tell = staticmethod(page.tell)

    def ask(self, cell: Cell) -> Asked:
        """The attacks are told of no defense; what the clients of a recording had in place nobody says."""
        game = cell.game
        shields = tuple(list_shields([cell.defense, game.get("upload")]))
        if (virtual := game.get("virtual", 1)) != 1:
            shields += ({"name": "virtual clients", "in each": virtual},)
        protected = None if "recording" in game else bool(shields)
        return Asked(
            secrets=("membership",),
            questions=("membership",),
            shields=shields,
            protected=protected,
            adaptive=None if protected is False else False,
            attack=words(game.get("attacks", ())),
            single=SHARP.isdisjoint(str(attack.get("name")) for attack in game.get("attacks", ())),
        )

    def check(self, world: World) -> None:
        _audit(world).check(world)

    def run(self, world: World) -> Measured[MembershipFound]:
        return _audit(world).run(world)

    def divide(self, world: World) -> Division | None:
        """The clients of a recording; a federation that is trained for its audit is run as one."""
        divide = getattr(_audit(world), "divide", None)
        return divide(world) if divide else None

    def run_parts(self, world: World, names: Sequence[str]) -> Iterator[tuple[str, str]]:
        audit = _audit(world)
        assert isinstance(audit, RecordingAudit)
        return audit.run_parts(world, names)

    def numbers(self, cell: Cell, found: MembershipFound, about: Number) -> Iterator[Number]:
        """Of each attack the means over clients, then what it found of each client; of a client whose members
        differ from the others in more than membership an error, and of a mean that it is part of."""
        unlike = list_unlike([found])
        for attempt in found.attacks:
            every = replace(about, attack=attempt.name, part=attempt.name)
            yield from [replace(every, error=UNLIKE)] if unlike else of_scores(every, attempt.scores)
            for client in attempt.clients:
                one = replace(every, part=f"{attempt.name}, client {client.name}")
                apart = client.name in unlike
                yield from [replace(one, error=UNLIKE)] if apart else of_scores(one, client.scores)
        if (promise := found.guarantee) is not None:
            filtered = replace(about, about="bound", attack="", bound="upper", delta=promise.delta)
            covers = "mean of clients" if promise.unit == "mean" else promise.covers
            for part, value in (("replace", promise.replaced), ("add or remove", promise.added)):
                yield from of_value(filtered, "epsilon", value, part=part, covers=covers)
        yield from of_worth(about, found.utility)

    def entries(self, found: MembershipFound) -> dict[str, TableEntry]:
        entries = enter_worth(found.utility)
        if found.utility.trained is not None:
            entries["trained accuracy"] = TableEntry(found.utility.trained)
        for attempt in found.attacks:
            entries |= enter_scores(attempt.scores, None, f"{attempt.name} ")
        return entries

    def headline(self, cell: Cell, found: MembershipFound) -> str:
        """Of every attack, unless too few non-members were judged to say what it finds."""
        if unlike := list_unlike([found]):
            return f"no number{_of(unlike)}: {UNLIKE}"
        if is_by_site(cell):
            return "; ".join(f"{a.name}: {', '.join(_sites(a))}" for a in found.attacks)
        hits = [(a.name, a.scores.tpr_at_1, a.scores.auroc) for a in found.attacks]
        if found.judged < FEWEST:
            return "; ".join(
                f"{name} ranks members with AUROC {area.value:.2f}" for name, _, area in hits if area
            )
        return "; ".join(
            f"{name} finds {rate.value:.0%} of members at 1% false alarms" for name, rate, _ in hits if rate
        )


def _sites(attempt: MemberAttack) -> Iterator[str]:
    """Each site with its interval."""
    for client in attempt.clients:
        if area := client.scores.auroc:
            yield f"{client.name} AUROC {area.value:.2f} ({area.low:.2f} to {area.high:.2f})"


def _of(clients: Sequence[str]) -> str:
    """Whose numbers there are none of."""
    return f" of {', '.join(clients)}" if all(clients) else ""


def _audit(world: World) -> MembershipAudit | RecordingAudit:
    audit: MembershipAudit | RecordingAudit = construct(world.cell.game, "audit", trusted=world.trusted)
    return audit


KIND = MembershipKind()
