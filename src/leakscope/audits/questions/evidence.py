"""How records score against each client of a recording: the numbers that every question is put to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from leakscope.attacks.whitened import RoundScores, Whitened
from leakscope.audits.membership.judged import WatchedFederation
from leakscope.core.dataset import Batch, Dataset
from leakscope.core.nouns import View
from leakscope.training.recording import RecordedChannel


@dataclass(frozen=True, eq=False)
class Evidence:
    """``scores`` (clients, n) of every record against every client, of about the same spread among known
    non-members. ``resemblance`` (uploads, groups) says how the records of each of some groups score against
    one upload, whose client is in ``senders``, by place, and whose round in ``rounds``: empty where only sums
    are seen. ``stayed``: whether every client was away from some round in which sums were seen. ``overall``
    (n,) are the scores of who does not know who took part: the mean over all rounds of sums, else none."""

    scores: Tensor
    resemblance: Tensor
    senders: tuple[int, ...]
    rounds: tuple[int, ...]
    stayed: bool = False
    overall: Tensor | None = None


def weigh(
    attack: Whitened, watched: WatchedFederation, known: Dataset, records: Dataset, groups: Tensor
) -> Evidence:
    """The records' scores, one round of the recording after the other. Against a client's uploads: less the
    mean over the other uploads of the round. Against sums: the mean over the client's rounds less that over
    the others. ``groups`` (n, g) weigh the records of which the resemblance to an upload is a mean."""
    names = watched.clients
    if watched.seen != "uploads":
        return _weigh_sums(attack, watched, known, records)
    sums, counts = torch.zeros(len(names), len(records)).double(), torch.zeros(len(names), 1).double()
    alike: list[Tensor] = []
    senders: list[int] = []
    rounds: list[int] = []
    for r, found in _score_rounds(attack, watched, known, records):
        z = found.less_others().amax(0)
        for u, name in enumerate(found.clients):
            if name in names:
                c = names.index(name)
                sums[c] += z[u]
                counts[c] += 1
                senders.append(c)
                rounds.append(r)
                alike.append(z[u] @ groups)
    return Evidence(sums / counts, torch.stack(alike), tuple(senders), tuple(rounds))


def _weigh_sums(attack: Whitened, watched: WatchedFederation, known: Dataset, records: Dataset) -> Evidence:
    """Of a client of whom nobody knows when it took part, the mean over all rounds."""
    every, nulls, there = [], [], []
    for _, found in _score_rounds(attack, watched, known, records):
        every.append(found.z.amax(0)[0])
        nulls.append(found.known.mean(1)[0])
        there.append(torch.tensor([name in found.took_part for name in watched.clients], dtype=torch.bool))
    present = torch.stack(there, 1).double()  # (clients, rounds)
    present[present.sum(1) == 0] = 1.0
    away = 1 - present
    inside = present / present.sum(1, keepdim=True)
    weights = inside - away / away.sum(1, keepdim=True).clamp(min=1)
    scores = _in_units(weights @ torch.stack(every), weights @ torch.stack(nulls))
    overall = torch.stack(every).mean(0)
    return Evidence(scores, torch.zeros(0, 0), (), (), bool((away.sum(1) > 0).all()), overall)


def _score_rounds(
    attack: Whitened, watched: WatchedFederation, known: Dataset, records: Dataset
) -> Iterator[tuple[int, RoundScores]]:
    """Every round in which somebody uploaded, with all who did."""
    batch = Batch(records, torch.arange(len(records))[:, None])
    nothing = torch.zeros(len(records), dtype=torch.long)
    recording = watched.recording
    models = watched.seen == "broadcast"
    every = RecordedChannel(
        recording, watched.model, watched.clients[:1], (), "broadcast" if models else "sum"
    ).rounds
    for r in watched.rounds or every:
        clients = recording.clients_in(r) if watched.seen == "uploads" else watched.clients
        channel = RecordedChannel(recording, watched.model, clients, (r,), watched.seen, watched.centred)
        view = View(channel(batch, nothing, torch.Generator()), {"candidates": batch})
        for found in attack.score_rounds(watched.model, view, (known.x, known.y)):
            yield r, found


def _in_units(scores: Tensor, null: Tensor) -> Tensor:
    """(clients, n) in units of the null's spread, 0 where it has none."""
    if len(null) == 0:  # all clients are canaries
        return scores
    spread = null.std(1, keepdim=True)
    return torch.where(spread > 0, (scores - null.mean(1, keepdim=True)) / spread, 0.0)
