"""The audit of a federation that somebody else ran, from its recording and candidate records."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Collection, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from leakscope.audits.membership.found import MembershipFound, Seen
from leakscope.audits.membership.judged import (
    Roster,
    WatchedFederation,
    brief,
    check_attacks,
    compare_sides,
    gather,
    judge,
    measure_worth,
)
from leakscope.audits.world import build_model, describe, describe_model
from leakscope.core.dataset import Batch, Dataset, joined
from leakscope.core.errors import ArgumentError, DataError, require
from leakscope.core.fingerprints import keyed
from leakscope.core.nouns import Attack, Knowledge, Transcript, View
from leakscope.core.rng import seeded
from leakscope.core.task import Task, is_number
from leakscope.data.files import sha256
from leakscope.games import Membership
from leakscope.measures.membership import discoveries, p_values
from leakscope.results.kind import Measured, World
from leakscope.results.number import harmless
from leakscope.training.recording import Recording
from leakscope.training.recording.checks import check_recording
from leakscope.training.recording.index import INDEX

SCORES = "scores.csv"
HEADER = ("row", "hash", "client", "attack", "score", "p_value", "discovered")


@dataclass(frozen=True)
class RecordingAudit:
    """How well the updates in a recording tell who was trained on, client by client.

    The private ``column`` of the candidates holds the name of the client that trained on a record;
    values that are no client's mark records of nobody. Of those, ``known`` (a share) are the adversary's
    own, ``held`` set the thresholds, and the rest are judged. Records are taken as they are: give them
    encoded and scaled as the clients had them. ``records`` says whether every judged record's score and
    p-value are kept in a CSV beside the results; a report holds none of them. ``digest`` is that of the
    recording's index when the audit was planned: a recording that has gone on since is another one. Where
    the recording declares its loss, that must be the task's, which the attacks take (cross-entropy, of a
    number squared error); where it declares its ``preprocessing``, the same must be given here.
    """

    recording: str
    attacks: tuple[Attack, ...]
    column: str = "client"
    known: float = 0.4
    held: float = 0.3
    seen: Seen = "uploads"
    centred: bool = False
    records: bool | str = False  # a path is refused with a way out
    digest: str = ""
    preprocessing: str = ""

    kind = "membership"

    def __post_init__(self) -> None:
        require(len(self.attacks) > 0, "RecordingAudit.attacks", "at least one", self.attacks)
        way_out = "the scores are kept in the results folder, under files"
        rule, given = "true or false", self.records
        require(isinstance(given, bool), "RecordingAudit.records", rule, given, way_out=way_out)
        if self.records and any(getattr(a, "taught", False) for a in self.attacks):
            raise ArgumentError(
                "RecordingAudit.records must be false with an attack that is told half of the members; leave "
                "one of them out."
            )
        shares = (self.known, self.held)
        rule = "positive shares that leave some"
        require(min(shares) > 0 and sum(shares) < 1, "RecordingAudit.known and held", rule, shares)

    def check(self, world: World) -> None:
        """Refuse what the recording, the candidates or the model cannot give."""
        watched, who = self._prepare(world)
        watched.channels()
        check_attacks(self.attacks, watched.model, who)

    def run(self, world: World) -> Measured[MembershipFound]:
        """What the attacks found, and what the last recorded model is worth on records of nobody."""
        data, trials, seed = world.records, world.cell.trials, world.seed
        watched, who = self._prepare(world)
        checks = self.believe(watched.recording)
        recording, model = watched.recording, watched.model
        first = recording.global_model(0) if recording.rounds[0] == 0 else None  # later ones saw members
        alike = compare_sides(watched, who, first, seed=seed)
        attempts = judge(self.attacks, watched, who, trials=trials, seed=seed)
        if self.records and world.keep:
            rows = {key: i for i, key in reversed(list(enumerate(data.hashes)))}
            text = _table(row for attack in self.attacks for row in _listed(attack, watched, who, rows, seed))
            world.keep(SCORES, text.encode())
        utility = measure_worth(model, recording.global_model(recording.rounds[-1]), who)
        found = gather(attempts, watched, who, trials=trials, utility=utility, alike=alike)
        found = found.model_copy(update=checks)
        return Measured(found, describe(data), describe_model(world, model))

    def believe(self, recording: Recording) -> dict[str, Any]:
        """What is found of the recording itself; refused is one in which nothing could be found of anybody,
        and ``centred`` where a step is not what that takes it for."""
        if self.seen == "broadcast":
            return {}
        checked = check_recording(recording)
        checked.raise_faults(self.recording)
        if self.centred and not checked.averages:
            raise ArgumentError(
                f"centred must be false unless each step of the global model is the uploads' mean, and here "
                f"the server is {checked.server}; leave --centred out."
            )
        return {"agreement": checked.agreement, "server": checked.server, "remarks": checked.remarks}

    def _prepare(self, world: World) -> tuple[WatchedFederation, Roster]:
        """What is watched, and who is who; everything agrees with the recording."""
        recording = Recording(Path(self.recording))
        if self.digest and sha256(Path(self.recording) / INDEX) != self.digest:
            raise DataError(f"{self.recording!r} has changed since the plan was written; audit it anew.")
        self._agree(recording, world.records.task)
        model = _still(build_model(world, world.records))
        _fit(recording, model, world.records)
        who, clients = self.roster(recording, world.records, seeded(world.seed, "split"))
        return WatchedFederation(recording, model, clients, (), self.seen, self.centred), who

    def _agree(self, recording: Recording, task: Task) -> None:
        """Refuse a recording whose clients trained otherwise than the candidates will be looked at."""
        loss, prepared = recording.declared("loss"), recording.declared("preprocessing")
        if loss not in (None, *task.losses):
            raise DataError(
                f"{self.recording!r} declares the loss {loss!r}, and attacks on recordings take gradients of "
                f"{task.losses[0]}; record with that loss, or audit the training as a game with its own."
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
        _refuse_misnamed(names, uploading, self.column)
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


def _fit(recording: Recording, model: nn.Module, candidates: Dataset) -> None:
    """Refuse candidates and models that are not those of the recording."""
    try:
        recording.check(model)
    except DataError:
        name, shape = next(iter(recording.layers.items()))
        width = candidates.x[0].numel()
        if len(shape) == 2 and shape[1] != width:
            raise DataError(
                f"{candidates.name} has records of {width:,} inputs, and layer {name!r} of the recording "
                f"takes {shape[1]:,}; encode the candidates as the clients did, or give the model that was "
                f"trained."
            ) from None
        raise
    outputs, task = model(candidates.x[:1])[0].numel(), candidates.task
    if is_number(candidates.y) and outputs != task.outputs:
        raise DataError(
            f"{candidates.name} has a number for a label, {candidates.label!r}, and the model {outputs} "
            f"outputs for a record; give the label that it was trained on."
        )
    if outputs != task.outputs and (outputs, task.outputs) != (1, 2):  # one sigmoid logit
        raise DataError(
            f"{candidates.name} has {candidates.classes} values of label {candidates.label!r}, and the model "
            f"tells {outputs} classes apart; give candidates of every class, so that their codes are the "
            f"model's."
        )


def _still(model: nn.Module) -> nn.Module:
    """A copy in evaluation mode; refused where a recording lacks what that needs."""
    for name, module in model.named_modules():
        if isinstance(module, _NormBase) and module.running_mean is not None:
            raise ArgumentError(
                f"model.{name} must not need running statistics, which a recording does not hold, got "
                f"{type(module).__name__}; use GroupNorm."
            )
    return deepcopy(model).eval()


def _refuse_misnamed(names: Sequence[str], clients: Collection[str], column: str) -> None:
    """Refuse a name that is a client's but for case, signs or zeros: its members would pass for nobody's."""

    def plain(name: str) -> str:
        if name.startswith("-"):  # a number below 0 is a usual mark of nobody
            return name
        return re.sub(r"[^a-z0-9]|(?<![0-9])0+(?=[0-9])", "", name.lower().removesuffix(".0"))

    known = {plain(client): client for client in clients if plain(client)}
    meant = [(n, known[plain(n)]) for n in names if n not in clients and plain(n) in known]
    if meant:
        pairs = ", ".join(f"{name!r} for {client!r}" for name, client in meant[:8])
        raise DataError(
            f"column {column!r} names no client of the recording, but nearly does: {pairs}; "
            f"name them alike, or call records of nobody otherwise."
        )


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
    attack: Attack, watched: WatchedFederation, who: Roster, rows: dict[str, int], seed: int
) -> Iterator[tuple[Any, ...]]:
    """Each judged record: its row, hash, whose updates it was held against, score and p-value."""
    for client, channel, whose in watched.channels():
        name, own = client or "all clients", joined(who.members[whose])
        knowledge = Knowledge(Membership(own.take(torch.arange(0)), who.known), channel, len(who.known))
        guess = attack(knowledge, seeded(seed, "listed", name))
        candidates = joined((own, who.others))
        scores, null = (guess(_view(channel, part)) for part in (candidates, who.held))
        chances = torch.full((2,), 0.5, dtype=torch.float64)
        secrets = torch.arange(len(candidates)) < len(own)
        p = p_values(Transcript(secrets.long(), scores, chances, null=null))
        called = discoveries(p)
        for i, key in enumerate(candidates.hashes):
            score, chance = (float(f"{value:.6g}") for value in (scores[i], p[i]))
            yield rows[key], keyed(key), name, brief(attack), score, chance, int(called[i])


def _view(channel: Any, data: Dataset) -> View:
    batch = Batch(data, torch.arange(len(data))[:, None])
    nothing = torch.zeros(len(data), dtype=torch.long)
    return View(channel(batch, nothing, torch.Generator()), {"candidates": batch})


def _table(rows: Iterator[tuple[Any, ...]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(HEADER)
    writer.writerows([harmless(value) for value in row] for row in rows)  # a client may be called =...
    return text.getvalue()
