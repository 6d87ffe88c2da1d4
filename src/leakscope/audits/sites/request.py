"""The cells about a federation that the audit of a table asks beside its games: who was trained on, and,
where a column names the sites, what is learned of each site."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from leakscope.core.dataset import Dataset
from leakscope.core.errors import LeakscopeError
from leakscope.core.nouns import Defense
from leakscope.core.rng import seeded
from leakscope.core.tables import architecture, construct
from leakscope.gradients import moments
from leakscope.models import build, parameters
from leakscope.training import cut_sites

Table = dict[str, Any]
CLIENTS, SIZE, KNOWN, HELD, JUDGED = 4, 150, 200, 120, 500  # of a federation that is simulated by the way
FEWEST = 80  # records of a table of which a federation is simulated
SITE_TRIALS, SITE_REHEARSALS, SITE_ROUNDS = 400, 600, 5  # each is a client's whole training
LOCAL = {"name": "Local", "batch": 32, "epochs": 5}  # so that clients of few records learn
SAMPLE = 500  # records that show whether a model's gradients can be whitened


def ask_federation(
    records: Dataset,
    *,
    secrets: Sequence[str],
    user: str | None,
    site: str | None,
    seen: str,
    rate: float,
    rounds: int,
) -> list[Table]:
    """The cells about a federation of this table; none where it has too few records for one."""
    if site is not None:
        return _ask_sites(records, site, secrets=secrets, seen=seen, rate=rate, rounds=rounds)
    n = len(records)
    if n < FEWEST:
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
    people = {"how": "user", "column": user} if user else {}
    return [{"id": "membership", "game": game | people}]


def _ask_sites(
    records: Dataset, site: str, *, secrets: Sequence[str], seen: str, rate: float, rounds: int
) -> list[Table]:
    """Every site a client: who was trained on, by uploads and by their sum, what a site's uploads tell of it,
    and whose an unnamed update is; where uploads are not seen, who was trained on alone."""
    cut_sites(records.distinct(), site)  # refuses what is no set of sites
    local = LOCAL | {"rate": rate}
    game: Table = {"name": "MembershipAudit", "local": local, "how": "site", "column": site}
    shown = ["uploads", "sum"] if seen == "uploads" else [seen]
    cells: list[Table] = [{"id": f"membership, {view}", "game": game | {"seen": view}} for view in shown]
    if seen == "uploads":
        asked = {"name": "SiteAudit", "site": site, "local": local, "secrets": list(secrets)}
        sizes = {"trials": SITE_TRIALS, "rehearsals": SITE_REHEARSALS, "rounds": min(rounds, SITE_ROUNDS)}
        cells.append({"id": "sites", "game": asked} | sizes)
    return cells


def name_attacks(cell: Table, records: Dataset, model: Table, trust: Sequence[str]) -> Table:
    """A cell about members with the attacks that its model allows; what is asked of sites has its own."""
    if cell["id"].startswith("sites"):
        return cell
    sharp = "Whitened" if _whitens(cell, records, model, trust) else "Cosine"
    return cell | {"game": cell["game"] | {"attacks": [{"name": sharp}, {"name": "Loss"}]}}


def _whitens(cell: Table, records: Dataset, model: Table, trust: Sequence[str]) -> bool:
    """Whether the gradients of the model's layers can be whitened; a model that cannot be built is refused
    where it is asked for."""
    few = records.take(torch.arange(min(SAMPLE, len(records))))
    few = few.completed(few)
    some = few.take(torch.arange(2))
    try:
        defense = construct(cell["defense"], "defense", trusted=trust) if "defense" in cell else Defense()
        built = build(architecture(model, trusted=trust), few, seeded(0, "model"), defense=defense).eval()
        moments(built, parameters(built), some.x, some.y)
    except LeakscopeError:
        return False
    return True
