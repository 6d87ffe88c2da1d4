"""The audit of a federation that somebody else ran, from its recording and candidate records."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from leakscope import store
from leakscope.core import Attack, Knowledge, Transcript, View
from leakscope.data.files import sha256
from leakscope.dataset import Batch, Dataset
from leakscope.errors import DataError, require
from leakscope.games import Membership
from leakscope.measures.membership import discoveries, p_values
from leakscope.measures.utility import accuracy, majority
from leakscope.membership.judged import Roster, Seen, Watched, brief, joined, judged, sizes
from leakscope.recording import Recording
from leakscope.recording.index import INDEX
from leakscope.rng import seeded
from leakscope.training import logits

HEADER = ("row", "hash", "client", "attack", "score", "p_value", "discovered")


@dataclass(frozen=True)
class RecordingAudit:
    """How well the updates in a recording tell who was trained on, client by client.

    The private ``column`` of the candidates holds the name of the client that trained on a record;
    values that are no client's mark records of nobody. Of those, ``known`` (a share) are the adversary's
    own, ``held`` set the thresholds, and the rest are judged. Records are taken as they are: give them
    encoded and scaled as the clients had them. ``records`` names a CSV that every judged record's score
    and p-value are written to; a report holds none of them. ``digest`` is that of the recording's index
    when the audit was planned: a recording that has gone on since is another one.
    """

    recording: str
    attacks: tuple[Attack, ...]
    column: str = "client"
    known: float = 0.4
    held: float = 0.3
    seen: Seen = "uploads"
    centred: bool = False
    records: str = ""
    digest: str = ""

    kind = "membership"

    def __post_init__(self) -> None:
        require(len(self.attacks) > 0, "RecordingAudit.attacks", "at least one", self.attacks)
        shares = (self.known, self.held)
        rule = "positive shares that leave some"
        require(min(shares) > 0 and sum(shares) < 1, "RecordingAudit.known and held", rule, shares)

    def run(self, model: nn.Module, data: Dataset, *, trials: int, seed: int) -> dict[str, Any]:
        """What the attacks found, and what the last recorded model is worth on records of nobody."""
        recording = Recording(Path(self.recording))
        if self.digest and sha256(Path(self.recording) / INDEX) != self.digest:
            raise DataError(f"{self.recording!r} has changed since the plan was written; audit it anew.")
        who, clients = self.roster(recording, data.distinct(), seeded(seed, "split"))
        watched = Watched(recording, model.eval(), clients, (), self.seen, self.centred)
        found = judged(self.attacks, watched, who, trials=trials, seed=seed)
        if self.records:
            rows = {key: i for i, key in reversed(list(enumerate(data.hashes)))}
            text = _table(row for attack in self.attacks for row in _listed(attack, watched, who, rows, seed))
            store.write(Path(self.records), text)
        last, own = recording.global_model(recording.rounds[-1]), joined(who.members)
        utility = {
            "accuracy": asdict(accuracy(logits(model, last, who.others), who.others.y)),
            "trained": asdict(accuracy(logits(model, last, own), own.y)),
            "majority": majority(who.others.y),
        }
        return {"membership": {"attacks": found} | sizes(who, watched), "utility": utility}

    def roster(
        self, recording: Recording, data: Dataset, rng: torch.Generator
    ) -> tuple[Roster, tuple[str, ...]]:
        """Who is who, and the clients whose records are among the candidates."""
        codes, names = data.secret(self.column), data.value_names(self.column)
        uploading = {client for r in recording.rounds for client in recording.clients_in(r)}
        clients = tuple(name for name in names if name in uploading)
        if not clients:
            raise DataError(
                f"column {self.column!r} names no client of the recording: it has "
                f"{', '.join(map(repr, names[:8]))}, the recording has "
                f"{', '.join(map(repr, sorted(uploading)[:8]))}; name them alike."
            )
        members = tuple(data.take((codes == names.index(name)).nonzero()[:, 0]) for name in clients)
        nobody = torch.tensor([name not in uploading for name in names])
        rest = nobody[codes].nonzero()[:, 0]
        rest = rest[torch.randperm(len(rest), generator=rng)]
        cuts = (int(self.known * len(rest)), int(self.held * len(rest)))
        if min(cuts) < 4 or len(rest) - sum(cuts) < 2:
            raise DataError(
                f"{len(rest)} candidates belong to no client of the recording, and an audit needs at least "
                f"20 of them; add records that nobody trained on."
            )
        known, held, others = (data.take(part) for part in rest.split((*cuts, len(rest) - sum(cuts))))
        return Roster(members, known, held, others), clients


def _listed(
    attack: Attack, watched: Watched, who: Roster, rows: dict[str, int], seed: int
) -> Iterator[tuple[Any, ...]]:
    """Each judged record: its row, hash, whose updates it was held against, score and p-value."""
    for name, channel, whose in watched.channels():
        own = joined(who.members[whose])
        knowledge = Knowledge(Membership(own.take(torch.arange(0)), who.known), channel, len(who.known))
        guess = attack(knowledge, seeded(seed, "listed", name))
        judged_ = joined((own, who.others))
        scores, null = (guess(_view(channel, part)) for part in (judged_, who.held))
        chances = torch.full((2,), 0.5, dtype=torch.float64)
        secrets = torch.arange(len(judged_)) < len(own)
        p = p_values(Transcript(secrets.long(), scores, chances, null=null))
        called = discoveries(p)
        for i, key in enumerate(judged_.hashes):
            yield rows[key], key, name, brief(attack), f"{scores[i]:.6g}", f"{p[i]:.6g}", int(called[i])


def _view(channel: Any, data: Dataset) -> View:
    batch = Batch(data, torch.arange(len(data))[:, None])
    nothing = torch.zeros(len(data), dtype=torch.long)
    return View(channel(batch, nothing, torch.Generator()), {"candidates": batch})


def _table(rows: Iterator[tuple[Any, ...]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(HEADER)
    writer.writerows(rows)
    return text.getvalue()
