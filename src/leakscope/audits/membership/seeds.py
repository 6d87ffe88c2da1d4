"""The results of a cell over its seeds, and the cells on one dataset, as a page has them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import count

from leakscope.audits.membership.found import MemberAttack, MembershipFound, list_doubts
from leakscope.audits.membership.view import (
    ASIDE,
    SHIELDS,
    AttackOverSeeds,
    Federation,
    Site,
    Watch,
    pick_strongest,
)
from leakscope.core.nouns import Estimate
from leakscope.measures.success import over_seeds
from leakscope.results.averages import Average, average, mean, mean_roc
from leakscope.results.cell import Table, differences, group_by, stable
from leakscope.results.kind import Runs, by_cell
from leakscope.results.result import Result
from leakscope.results.scores import MEASURES, Scores, average_scores, average_worth

UNLIKE = (  # why there is no number
    "members and non-members differ in more than who was trained on, and an attack would tell that; take "
    "non-members from where the members come from, and name the column that says it (--site)"
)
FEWEST = 100  # non-members, of whom 1% is one


def watches(results: Iterable[Result[MembershipFound]]) -> list[Watch]:
    """The audits of federations by dataset, the worst first."""
    federations = [_federation(tuple(runs)) for runs in by_cell(results)]
    groups = group_by(federations, lambda one: stable([one.cell.data.get(k) for k in ("name", "path")]))
    every = [Watch(group[0].cell.source, tuple(_order(group))) for group in groups.values()]
    every.sort(key=lambda watch: watch.worst.worst_first)
    numbers = count(1)
    return [
        replace(watch, federations=tuple(replace(one, number=next(numbers)) for one in watch.federations))
        for watch in every
    ]


def _order(group: Sequence[Federation]) -> list[Federation]:
    """Kin together, the worst kin first; in each, no defense before the defenses."""
    told = zip(group, differences([_settings(one) for one in group], ()), strict=True)
    kin = group_by((replace(one, differs=differs) for one, differs in told), lambda one: one.victim)
    families = sorted(kin.values(), key=lambda family: min(one.worst_first for one in family))
    return [
        one
        for family in families
        for one in sorted(family, key=lambda one: (bool(one.defense), one.worst_first))
    ]


def _settings(one: Federation) -> Table:
    """Of a cell, what may tell federations apart beside their defense and what is seen of them."""
    said = (*SHIELDS, "seen", "centred", "digest", "records", "recording", "name", "attacks")
    game = {key: value for key, value in one.cell.game.items() if key not in said}
    cell = {key: value for key, value in one.cell.described.items() if key not in (*ASIDE, "data")}
    both = {key: value for key, value in (cell | game).items() if value is not None}
    return both | ({"recording": one.recorded} if one.recorded else {})


def _federation(results: tuple[Result[MembershipFound], ...]) -> Federation:
    founds = Runs(results).founds
    utility = average_worth([found.utility for found in founds])
    agreements = [found.agreement for found in founds if found.agreement is not None]
    batchwise = any(found.batchwise for found in founds)
    doubts = tuple(list_doubts(utility, batchwise, min(agreements, default=None))) if founds else ()
    judged, unlike = min((found.judged for found in founds), default=0), list_unlike(founds)
    tables = list(zip(*(found.attacks for found in founds), strict=True))
    shared = "recording" in results[0].cell.game  # trained once: every seed asks about the same members
    sites = sorted(
        _sites(tables, judged, not doubts, unlike, shared), key=lambda site: (site.worst_first, site.client)
    )
    few, every = judged < FEWEST, len(tables)
    attacks = tuple(_average_attack(same, few, not doubts, not unlike, every, shared) for same in tables)
    return Federation(results, attacks, tuple(sites), utility, doubts, unlike)


def list_unlike(founds: Sequence[MembershipFound]) -> tuple[str, ...]:
    """The clients whose members differ from their non-members in more than membership, in some seed; that
    there are several seeds is allowed for."""
    checks = [check for found in founds for check in found.alike]
    return tuple(dict.fromkeys(c.client for c in checks if c.p < c.level / len(founds)))


def _average_attack(
    same: Sequence[MemberAttack], few: bool, sound: bool, alike: bool, among: int, shared: bool
) -> AttackOverSeeds:
    """One attack over seeds; its word comes from intervals that hold together with those of all attacks.
    ``shared``: the seeds have their members in common."""
    kept = [attempt.scores for attempt in same]
    scores = average_scores(kept, shared=shared)
    assert scores.tpr_at_1  # `MemberAttack` lets in none without
    assert scores.auroc
    first, games = same[0], min(attempt.games for attempt in same)
    spreads = [attempt.deviation.table for attempt in same] if games > 1 else [{}]
    deviation = {
        name: mean([spread[name] for spread in spreads])
        for name in spreads[0]
        if all(name in spread for spread in spreads)
    }
    return AttackOverSeeds(
        attack=first.name,
        taught=first.taught,
        found=_widen(kept, "tpr_at_1%", among, shared) or scores.tpr_at_1,
        auroc=_widen(kept, "auroc", among, shared) or scores.auroc,
        few=few,
        sound=sound,
        alike=alike,
        first=first,
        games=games,
        scores=scores,
        deviation=Scores[float].model_validate(deviation),
        roc=mean_roc([attempt.roc for attempt in same if attempt.roc]),
    )


def count_intervals(attacks: Sequence[MemberAttack]) -> int:
    """How many intervals, of attacks and of their clients, share the chance of an error."""
    return len(attacks) * max(1, len(attacks[0].clients))


def _sites(
    tables: Sequence[Sequence[MemberAttack]], usual: int, sound: bool, unlike: Sequence[str], shared: bool
) -> Iterable[Site]:
    """Each client that every seed watched, by the strongest attack on it; ``usual``: how many non-members
    were judged where a client does not say it."""
    sites: dict[str, list[Site]] = {}
    for same in tables:
        every = [{client.name: client for client in attempt.clients} for attempt in same]
        names = [name for name in every[0] if all(name in clients for clients in every)]
        for name in names:
            clients = [table[name] for table in every]
            kept, among = [client.scores for client in clients], count_intervals([same[0] for same in tables])
            hits, area = (_over_seeds(kept, measure, among, shared) for measure in ("tpr_at_1%", "auroc"))
            members = min(client.members for client in clients)
            judged = min(usual if client.judged is None else client.judged for client in clients)
            few, alike = judged < FEWEST, name not in unlike
            site = Site(same[0].name, same[0].taught, hits, area, few, sound, alike, name, members, judged)
            sites.setdefault(name, []).append(site)
    return [pick_strongest(several) for several in sites.values()]


def _widen(scores: Sequence[Scores[Estimate]], measure: str, among: int, shared: bool) -> Average | None:
    """A measure over seeds, at a level at which the intervals of so many clients and attacks hold together.
    None where an interval rests on nothing that is known."""
    bases = [table.table[measure].basis for table in scores]
    return _over_seeds(scores, measure, among, shared) if all(bases) else None


def _over_seeds(scores: Sequence[Scores[Estimate]], measure: str, among: int, shared: bool) -> Average:
    """The same; where nothing is known of what an interval rests on, it rules nothing out."""
    estimates = []
    for estimate in (table.table[measure] for table in scores):
        error, basis = (1 - estimate.level) / among, estimate.basis
        low, high = (basis.low(error / 2), basis.high(error / 2)) if basis else (0.0, 1.0)
        estimates.append(replace(estimate, low=low, high=high, level=1 - error))
    known = MEASURES[measure]
    least, most = known.least, known.most
    whole = over_seeds(estimates, level=estimates[0].level, least=least, most=most, shared=shared)
    plain = average(estimates, least=least, most=most, shared=shared)
    return replace(plain, low=whole.low, high=whole.high, level=whole.level)
