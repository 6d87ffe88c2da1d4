"""The audit of a federation that somebody else ran, from its recording and candidate records."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from leakscope import store
from leakscope.attacks.losses import Zari
from leakscope.core import Attack, Knowledge, Transcript, View
from leakscope.data.files import sha256
from leakscope.dataset import Batch, Dataset, joined
from leakscope.errors import ArgumentError, DataError, require
from leakscope.games import Membership
from leakscope.measures.membership import discoveries, p_values
from leakscope.measures.utility import accuracy, majority
from leakscope.membership.judged import Roster, Seen, Watched, brief, judged, sizes
from leakscope.recording import Recording
from leakscope.recording.index import INDEX
from leakscope.rng import seeded
from leakscope.training import logits

LOSS = "cross-entropy"  # what attacks on recordings differentiate
HEADER = ("row", "hash", "client", "attack", "score", "p_value", "discovered")


@dataclass(frozen=True)
class RecordingAudit:
    """How well the updates in a recording tell who was trained on, client by client.

    The private ``column`` of the candidates holds the name of the client that trained on a record;
    values that are no client's mark records of nobody. Of those, ``known`` (a share) are the adversary's
    own, ``held`` set the thresholds, and the rest are judged. Records are taken as they are: give them
    encoded and scaled as the clients had them. ``records`` names a CSV that every judged record's score
    and p-value are written to; a report holds none of them. ``digest`` is that of the recording's index
    when the audit was planned: a recording that has gone on since is another one. Where the recording
    declares its loss, that must be cross-entropy, which the attacks take; where it declares its
    ``preprocessing``, the same must be given here.
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
    preprocessing: str = ""

    kind = "membership"

    def __post_init__(self) -> None:
        require(len(self.attacks) > 0, "RecordingAudit.attacks", "at least one", self.attacks)
        if self.records and any(isinstance(attack, Zari) for attack in self.attacks):
            raise ArgumentError(
                "RecordingAudit.records must be empty with Zari, which is told half of the members; leave "
                "one of them out."
            )
        shares = (self.known, self.held)
        rule = "positive shares that leave some"
        require(min(shares) > 0 and sum(shares) < 1, "RecordingAudit.known and held", rule, shares)

    def run(self, model: nn.Module, data: Dataset, *, trials: int, seed: int) -> dict[str, Any]:
        """What the attacks found, and what the last recorded model is worth on records of nobody."""
        recording = Recording(Path(self.recording))
        if self.digest and sha256(Path(self.recording) / INDEX) != self.digest:
            raise DataError(f"{self.recording!r} has changed since the plan was written; audit it anew.")
        self.check(recording)
        who, clients = self.roster(recording, data, seeded(seed, "split"))
        model = _still(model)
        watched = Watched(recording, model, clients, (), self.seen, self.centred)
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

    def check(self, recording: Recording) -> None:
        """Refuse a recording whose clients trained otherwise than the candidates will be looked at."""
        loss, prepared = recording.declared("loss"), recording.declared("preprocessing")
        if loss not in (None, LOSS):
            raise DataError(
                f"{self.recording!r} declares the loss {loss!r}, and attacks on recordings take gradients of "
                f"{LOSS}; record with that loss, or audit the training as a game with its own."
            )
        if (prepared or "") != self.preprocessing:
            raise DataError(
                f"{self.recording!r} declares the preprocessing {prepared!r}, and the candidates are said to "
                f"have {self.preprocessing!r}; prepare them alike and say so (--preprocessing)."
            )

    def roster(
        self, recording: Recording, data: Dataset, rng: torch.Generator
    ) -> tuple[Roster, tuple[str, ...]]:
        """Who is who, repetitions left out, and the clients whose records are among the candidates."""
        uploading = {client for r in recording.rounds for client in recording.clients_in(r)}
        names = data.value_names(self.column)
        nobody = torch.tensor([name not in uploading for name in names])
        _one_sided(data, nobody[data.secret(self.column)])
        data = data.distinct()
        codes = data.secret(self.column)
        clients = tuple(n for i, n in enumerate(names) if n in uploading and bool((codes == i).any()))
        if not clients:
            raise DataError(
                f"column {self.column!r} names no client of the recording: it has "
                f"{', '.join(map(repr, names[:8]))}, the recording has "
                f"{', '.join(map(repr, sorted(uploading)[:8]))}; name them alike."
            )
        members = tuple(data.take((codes == names.index(name)).nonzero()[:, 0]) for name in clients)
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


def _still(model: nn.Module) -> nn.Module:
    """A copy in evaluation mode; refused where a recording lacks what that needs."""
    for name, module in model.named_modules():
        if isinstance(module, _NormBase) and module.running_mean is not None:
            raise ArgumentError(
                f"model.{name} must not need running statistics, which a recording does not hold, got "
                f"{type(module).__name__}; use GroupNorm."
            )
    return deepcopy(model).eval()


def _one_sided(data: Dataset, nobody: Tensor) -> None:
    """Refuse a record that is said to be a client's and to be nobody's."""
    first: dict[str, int] = {}
    for i, key in enumerate(data.hashes):
        j = first.setdefault(key, i)
        if bool(nobody[i]) != bool(nobody[j]):
            raise DataError(
                f"candidates {j} and {i} are the same record, once a client's and once nobody's; what is a "
                f"member cannot be a non-member: leave one out."
            )


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
