"""Audits of guards, as all others see them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from leakscope.audits.guards import page
from leakscope.audits.guards.audit import GuardAudit, list_secrets
from leakscope.audits.guards.found import Attacked, GuardsFound, Judged, Row, TaskWorth
from leakscope.audits.world import Parts, split
from leakscope.core.tables import construct
from leakscope.results.cell import Cell, list_shields
from leakscope.results.kind import Asked, Measured, TableEntry, World, enter_scores, enter_worth
from leakscope.results.number import Number, of_estimate, of_scores, of_value, of_worth


@dataclass(frozen=True)
class GuardKind:
    found = GuardsFound
    tell = staticmethod(page.tell)

    def ask(self, cell: Cell) -> Asked:
        """Whoever attacks a guard knows it."""
        return Asked(
            secrets=tuple(column or secret for secret, column in list_secrets(cell.game)) or ("*",),
            questions=("guard",),
            shields=tuple(list_shields(cell.game.get("guard"))),
            protected=True,
            adaptive=True,
        )

    def check(self, world: World) -> None:
        audit, parts = _prepare(world)
        audit.check(parts.train, parts.test, parts.public, seed=world.seed)

    def run(self, world: World) -> Measured[GuardsFound]:
        audit, parts = _prepare(world)
        watch = world.watch
        found = audit.run(
            parts.train,
            parts.test,
            parts.public,
            trials=world.cell.trials,
            rehearsals=world.cell.rehearsals,
            seed=world.seed,
            progress=(lambda epoch, epochs, _: watch(epoch + 1, epochs)) if watch else None,
            keep=world.keep,
            person=world.cell.data.get("by"),
        )
        return Measured(found, parts.described)

    def numbers(self, cell: Cell, found: GuardsFound, about: Number) -> Iterator[Number]:
        for judged in found.judged:
            yield from _numbers(judged, replace(about, secret=judged.title))

    def entries(self, found: GuardsFound) -> dict[str, TableEntry]:
        """The task, and every attack; the one that rehearsals chose is also called the strongest. Advantages
        are left out: success and guessing give them."""
        entries: dict[str, TableEntry] = {}
        for judged in found.judged:
            prefix = f"{judged.title} " if len(found.judged) > 1 else ""
            for entry in enter_worth(judged.utility.task).values():
                entries[f"{prefix}utility"] = entry
            several = max((one.queries for one in judged.attacks), default=1)
            named = [("strongest", one) for one in judged.attacks if one.chosen]
            named += [
                (f"{one.name}{f', {several} draws' if one.queries > 1 else ''}", one)
                for one in judged.attacks
            ]
            named += [("stale", judged.stale)] if judged.stale else []
            named += [(row.title, row.attack) for row in judged.rows]
            for name, one in named:
                table = enter_scores(one.scores, one.guessing, f"{prefix}{name} ")
                entries |= {
                    key.replace(" success", " success_rate"): value
                    for key, value in table.items()
                    if not key.endswith(" advantage")
                }
        return entries

    def headline(self, cell: Cell, found: GuardsFound) -> str:
        """What the strongest attacker still finds about each secret, and what the task is worth."""
        lines = []
        for judged in found.judged:
            attack, task = judged.strongest, judged.utility.task
            scores = attack.scores.table
            measure = next((name for name in scores if name in ("auroc", "ssim", "mse")), None)
            left = f"{measure} {scores[measure].value:.3f}" if measure else ""
            worth = f", task {task.word} {task.main.value:.3f}" if task.main else ""
            lines.append(f"{judged.title}: {attack.name} {left}{_most_held(judged)}{worth}")
        return "; ".join(lines)


def _most_held(judged: Judged) -> str:
    """The row of ordinary use, labels left aside, that tells more than one release, if any does."""
    own, rows = judged.strongest.scores.auroc, [r for r in judged.rows if r.usual and not r.labelled]
    areas = {row.title: row.attack.scores.auroc.value for row in rows if row.attack.scores.auroc}
    worst = max(areas, key=lambda title: areas[title], default="")
    return f" (auroc {areas[worst]:.3f}: {worst})" if worst and own and areas[worst] > own.value else ""


def _prepare(world: World) -> tuple[GuardAudit, Parts]:
    """The audit and its records, as they come: the guard learns from the population that it is used on, and
    is judged on it. Where members are hidden, no record is member and non-member at once."""
    audit: GuardAudit = construct(world.cell.game, "audit", trusted=world.trusted)
    members = any(one.secret == "membership" for one in audit.asked)
    used = world.records.distinct() if members else world.records
    parts = split(world, used, standardise=False, balanced=False)
    return audit, replace(parts, records=world.records)


def _numbers(judged: Judged, about: Number) -> Iterator[Number]:
    """One secret. The network that the guard was trained with does not know the finished encoder. A bound
    that rests on an estimated entropy bounds nothing: it is a diagnostic."""
    yield from _of_attacks(about, judged.attacks)
    yield from _of_attacks(about, judged.single, "single records, ")
    yield from _of_rows(about, judged.rows)
    yield from _of_attacks(replace(about, adaptive=False), [judged.stale] if judged.stale else [])
    yield from _of_utility(about, judged.utility)
    for plain in judged.baselines:
        beside = replace(about, about="baseline", defense="", adaptive=None)
        yield from _of_attacks(beside, plain.attacks, f"{plain.name}, ")
        for number in _of_utility(beside, plain.utility, f"{plain.name}, "):
            yield replace(number, about="baseline")
    aside = replace(about, about="diagnostic")
    if judged.theorem:
        yield from of_value(aside, "accuracy_bound_estimate", judged.theorem.bound)
        yield of_estimate(aside, "conditional_entropy", judged.theorem.entropy)
        yield from of_value(aside, "miscalibration", judged.theorem.miscalibrated)
    if judged.least_error:
        yield from of_value(aside, "least_task_error_estimate", judged.least_error.least)
    if judged.risk:
        yield from of_value(aside, "reconstruction_risk_estimate", judged.risk.least)
    if judged.local:
        local = replace(aside, part="one release of one record", delta=judged.local.delta)
        yield from of_value(local, "local_epsilon", judged.local.epsilon)  # a second release adds to it
    for name, information in judged.information.items():
        number = of_estimate(replace(aside, part=name), "information", information.estimate)
        yield number if information.lower else replace(number, bound="estimate")


def _of_attacks(about: Number, attacks: Iterable[Attacked], before: str = "") -> Iterator[Number]:
    for one in attacks:
        draws = f", {one.queries} draws averaged" if one.queries > 1 else ""
        named = replace(about, attack=one.attack, part=f"{before}{one.name}{draws}")
        yield from of_scores(named, one.scores, guessing=one.guessing)


def _of_rows(about: Number, rows: Iterable[Row]) -> Iterator[Number]:
    """What is told by whoever holds something else than one release. What the label alone tells leaks with
    or without a guard: it is a baseline."""
    for row in rows:
        one = row.attack
        beside = replace(about, about="baseline", defense="", adaptive=None)
        named = beside if row.holding == "nothing" else about
        named = replace(named, attack=one.attack, part=f"{row.title}, {one.name}")
        yield from of_scores(named, one.scores, guessing=one.guessing)


def _of_utility(about: Number, utility: TaskWorth, before: str = "") -> Iterator[Number]:
    """The task by the head that counts: a fresh one, or the one that is released."""
    part = f"{before}fresh head" if utility.head == "fresh" else before.removesuffix(", ")
    yield from of_worth(replace(about, part=part), utility.task)
    yield from of_worth(replace(about, part=f"{before}own head"), utility.own)


KIND = GuardKind()
