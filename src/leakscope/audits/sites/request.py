"""The cells about a federation that the audit of a table asks beside its games: who was trained on, and,
where a column names the sites, what is learned of each site."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from leakscope.attacks.spans import kept_by_decay
from leakscope.audits.membership.simulated import MembershipAudit
from leakscope.audits.membership.strongest import find_spans, list_attacks
from leakscope.core.catalogue import FEWEST_RECORDS
from leakscope.core.dataset import Dataset
from leakscope.core.errors import LeakscopeError
from leakscope.core.nouns import Defense
from leakscope.core.rng import seeded
from leakscope.core.tables import architecture, construct
from leakscope.gradients import moments
from leakscope.models import build, parameters
from leakscope.training import cut_sites

Table = dict[str, Any]
CLIENTS, SIZE, KNOWN, HELD, JUDGED = 4, 150, 200, 120, 700  # of a federation that is simulated by the way
SITE_TRIALS, SITE_REHEARSALS, SITE_ROUNDS = 400, 600, 5  # each is a client's whole training
LOCAL = {"name": "Local", "batch": 32, "epochs": 5}  # so that clients of few records learn
SAMPLE = 500  # records that show whether a model's gradients can be whitened


def ask_federation(
    records: Dataset,
    *,
    secrets: Sequence[str],
    person: str | None,
    site: str | None,
    seen: str,
    rate: float,
    rounds: int,
) -> list[Table]:
    """The cells about a federation of this table; none where it has too few records for one."""
    if site is not None:
        return _ask_sites(records, site, person=person, secrets=secrets, seen=seen, rate=rate, rounds=rounds)
    n = len(records)
    if n < FEWEST_RECORDS:
        return []
    game: Table = {
        "name": "MembershipAudit",
        "local": LOCAL | {"rate": rate},
        "clients": CLIENTS,
        "size": min(SIZE, n // 10),
        "known": min(KNOWN, n // 8),
        "held": min(HELD, n // 10),
        "judged": JUDGED,
        "seen": seen,
    }
    people = {"how": "user", "column": person} if person else {}
    return [{"id": "membership", "game": game | people}]


def _ask_sites(
    records: Dataset,
    site: str,
    *,
    person: str | None,
    secrets: Sequence[str],
    seen: str,
    rate: float,
    rounds: int,
) -> list[Table]:
    """Every site a client: who was trained on, by uploads and by their sum, what a site's uploads tell of it,
    and whose an unnamed update is; where uploads are not seen, who was trained on alone."""
    cut_sites(records.distinct(), site, person=person)  # refuses what is no set of sites
    local, people = LOCAL | {"rate": rate}, {"person": person} if person else {}
    game: Table = {"name": "MembershipAudit", "local": local, "how": "site", "column": site} | people
    shown = ["uploads", "sum"] if seen == "uploads" else [seen]
    cells: list[Table] = [{"id": f"membership, {view}", "game": game | {"seen": view}} for view in shown]
    if seen == "uploads":
        asked = {"name": "SiteAudit", "site": site, "local": local, "secrets": list(secrets)} | people
        sizes = {"trials": SITE_TRIALS, "rehearsals": SITE_REHEARSALS, "rounds": min(rounds, SITE_ROUNDS)}
        cells.append({"id": "sites", "game": asked} | sizes)
    return cells


def name_attacks(cell: Table, records: Dataset, model: Table, trust: Sequence[str], rounds: int) -> Table:
    """A cell about members with the attacks that its model allows; what is asked of sites has its own."""
    if cell["id"].startswith("sites"):
        return cell
    game = cell["game"]
    few = records.take(torch.arange(min(SAMPLE, len(records))))
    few = few.completed(few)
    whitens, spans, beyond = False, None, ""
    if built := _built(cell, few, model, trust):
        some = few.take(torch.arange(2))
        whitens = _whitens(built, some)
        spans, beyond = find_spans(built, some, rounds=rounds, **_behind(game, records))
    attacks = list_attacks(
        game["seen"], whitens=whitens, spans=spans, several=True, drop_out=False, steady=True, quick=True
    )
    note = {"note": beyond} if beyond else {}
    return cell | {"game": game | {"attacks": attacks}} | note


def _behind(game: Table, records: Dataset) -> dict[str, Any]:
    """The fewest records behind what is seen, the most steps of a client, and what decay keeps of a start
    where all take as many."""
    local, sizes = construct(game["local"], "training"), [game.get("size", 0)] * game.get("clients", 0)
    if game.get("how") == "site":
        sites = cut_sites(records.distinct(), game["column"], person=game.get("person"))
        sizes = [int(MembershipAudit.shares[0] * len(part)) for _, part in sites]
    steps = max(local.epochs * -(-size // local.batch) for size in sizes)
    kept = 1.0 if "how" in game else round(kept_by_decay(local, steps), 9)
    return {"records": (min if game["seen"] == "uploads" else sum)(sizes), "steps": steps, "kept": kept}


def _built(cell: Table, few: Dataset, model: Table, trust: Sequence[str]) -> nn.Module | None:
    """The model of a cell; one that cannot be built is refused where it is asked for."""
    try:
        defense = construct(cell["defense"], "defense", trusted=trust) if "defense" in cell else Defense()
        return build(architecture(model, trusted=trust), few, seeded(0, "model"), defense=defense).eval()
    except LeakscopeError:
        return None


def _whitens(model: nn.Module, some: Dataset) -> bool:
    """Whether the gradients of the model's layers can be whitened."""
    try:
        moments(model, parameters(model), some.x, some.y)
    except LeakscopeError:
        return False
    return True
