"""Records of clients from the uploads that a recording holds, as they were sent."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from leakscope.attacks.recovery import Recovery
from leakscope.attacks.row_space import RowSpace
from leakscope.attacks.span_membership import largest_rank
from leakscope.audits.membership.judged import Roster, WatchedFederation
from leakscope.audits.membership.recorded import RecordingAudit
from leakscope.audits.records.audit import SHUFFLES, describe_search, show_records
from leakscope.audits.records.found import ColumnFound, RecordsFound, SizeFound
from leakscope.audits.world import describe, describe_model
from leakscope.core.dataset import Batch, Dataset, joined
from leakscope.core.errors import ArgumentError, require
from leakscope.core.nouns import CERTIFIED, NOT_FOUND, Attack, Estimate, Knowledge, Release, Transcript, View
from leakscope.core.rng import seeded
from leakscope.games import Reconstruction
from leakscope.games.channels import UpdateChannel
from leakscope.measures.records import COUNTED, Matched, counted, exact_records, match, transcribe
from leakscope.measures.shuffled import SelfCheck
from leakscope.results.kind import Measured, World
from leakscope.training import Local
from leakscope.training.recording import RecordedChannel
from leakscope.training.recording.index import SUM

UNSAID = 25  # local steps in a round, where a recording does not say how many they were
SUMMED = "all clients"


@dataclass(frozen=True)
class RecordedRecords(RecordingAudit):
    """How many records of each client come back, exactly and proven, from the uploads in a recording.

    It is given what a `RecordingAudit` is: candidates with a ``column`` that says whose each is. The records
    of nobody tell the adversary how the table is written; those of clients are what it looks for, and it has
    none of them. All rounds of a client are read together. Where only sums are seen, the records of all who
    took part are looked for in them; where only sums are recorded, in those of the same clients together.
    Clients are taken to train by SGD with this ``momentum`` and L2 ``decay``. Of each client, ``shown``
    records are kept, with what was said of them. The one of ``attacks`` is that by row spaces.
    """

    attacks: tuple[Attack, ...] = (RowSpace(),)
    momentum: float = 0.0
    decay: float = 0.0
    shown: int = 0

    kind = "records"

    def __post_init__(self) -> None:
        super().__post_init__()
        alone = len(self.attacks) == 1 and isinstance(self.attacks[0], RowSpace)
        require(alone, "RecordedRecords.attacks", "RowSpace alone, which proves records", self.attacks)
        require(self.shown >= 0, "RecordedRecords.shown", "at least 0", self.shown)
        require(not self.centred, "RecordedRecords.centred", "False: uploads are read as they are", True)
        self._training(1)

    @property
    def reconstruct(self) -> RowSpace:
        attack = self.attacks[0]
        assert isinstance(attack, RowSpace)
        return attack

    def check(self, world: World) -> None:
        """Refuse what the recording, the candidates or the model cannot give, and a recording of which no
        client has fewer records than its uploads can span."""
        targets, public = self._targets(world)
        for target in targets:
            self.reconstruct.check(target.knowledge(public), target.view)
        if all(target.records > target.most for target in targets):
            least = min(targets, key=lambda target: target.records - target.most)
            raise ArgumentError(
                f"records can be read where what is seen spans as many dimensions as records are behind it: "
                f"of {least.name} it spans at most {least.most:,}, and {least.records:,} are behind it; "
                f"look at more rounds, or ask about members."
            )

    def measure(self, world: World) -> Measured[RecordsFound]:
        """Every client, or all together where only sums are seen."""
        targets, public = self._targets(world)
        sizes = []
        for done, target in enumerate(targets):
            if world.watch:
                world.watch(done, len(targets))
            search = seeded(world.seed, "search", target.name)
            recovery = self.reconstruct.recover(target.knowledge(public), target.view, search)
            sizes.append(self._count(target, recovery, public, seeded(world.seed, "check", target.name)))
        found = RecordsFound(
            sizes=tuple(sizes),
            uploads=True,
            clients=max(target.clients for target in targets),
            epochs=0,
            public=len(public),
            recorded=True,
            remarks=tuple(target.remark for target in targets if target.remark),
        )
        model = targets[0].believed.model
        return Measured(found, describe(world.records), describe_model(world, model))

    def _training(self, steps: int, rate: float = 1.0) -> Local:
        """How clients are taken to train; without decay the rate says nothing of a space."""
        return Local(rate, steps=steps, momentum=self.momentum, decay=self.decay)

    def _targets(self, world: World) -> tuple[list[Target], Dataset]:
        """Whose records are looked for, and the records of nobody."""
        watched, who, checked = self._prepare(world)
        if not world.records.columns:
            raise ArgumentError(
                f"{world.records.name}: records are read by how the table is written, its columns and their "
                f"categories, and these candidates have no named columns; give a table (csv, Parquet), with "
                f"inputs encoded as the clients had them."
            )
        if self.seen == "broadcast" and not checked.averages:
            raise ArgumentError(
                f"records behind a broadcast are read where each step of the global model is the uploads' "
                f"mean, and here the server is {checked.server}; give --seen uploads or sum."
            )
        if self.seen == "uploads":
            channels = [(name or SUMMED, one, who.members[whose]) for name, one, whose in watched.channels()]
        else:
            channels = list(self._sums(watched, who))
        targets = [self._target(name, one, joined(members)) for name, one, members in channels]
        return targets, joined([who.known, who.held, who.others])

    def _sums(
        self, watched: WatchedFederation, who: Roster
    ) -> Iterator[tuple[str, RecordedChannel, tuple[Dataset, ...]]]:
        """What is seen of all who took part, and their records. Where the recording itself holds sums, every
        set of clients is read apart: how many records are behind several sets together, no sum says."""
        recording = watched.recording
        whole = RecordedChannel(recording, watched.model, watched.clients, seen=self.seen)
        sets: dict[frozenset[str], list[int]] = {}
        for r in whole.rounds:
            sets.setdefault(frozenset(recording.clients_in(r)), []).append(r)
        if len(sets) == 1 or not any(SUM in recording.parts_in(r) for r in whole.rounds):
            yield SUMMED, whole, who.members
            return
        for names, rounds in sets.items():
            pairs = zip(watched.clients, who.members, strict=True)
            members = tuple(own for client, own in pairs if client in names or not names)
            if members:
                yield f"clients of round {rounds[0]}", replace(whole, rounds=tuple(rounds)), members

    def _target(self, name: str, channel: RecordedChannel, own: Dataset) -> Target:
        recording, rounds = channel.recording, channel.rounds
        seen = {r: channel.clients if self.seen == "uploads" else recording.parts_in(r) for r in rounds}
        every = [(r, part) for r, there in seen.items() for part in there]
        behind: dict[str, int] = {}
        for r, part in every:
            behind[part] = max(behind.get(part, 0), recording.samples(r, part))
        steps = max((recording.steps(r, part) or 0 for r, part in every), default=0) or UNSAID
        rate = next((rate for r, part in every if (rate := recording.rate(r, part))), 1.0)
        shown = channel(Batch(own, torch.arange(1)[:, None]), torch.zeros(1).long(), torch.Generator())
        releases = tuple(Release.of(release.layers, dict(release.params)) for release in shown)
        histories = tuple(release.params for release in releases)
        believed = UpdateChannel(channel.model, histories, local=self._training(steps, rate))
        records = max(behind.pop(SUM, 0), sum(behind.values())) or len(own)
        clients = 1 if self.seen == "uploads" else max(len(recording.clients_in(r)) for r in rounds)
        return Target(name, believed, View(releases), records, max(1, clients), own)

    def _count(self, target: Target, recovery: Recovery, public: Dataset, rng: torch.Generator) -> SizeFound:
        """What came back of one client: a count, for this recording alone."""
        own = target.own
        guesses, status = _padded(recovery, len(own))
        transcript = transcribe(own.x[None], guesses, status)
        matched = match(transcript, public)
        (cells, mode), *columns = matched.cells().values()
        guessing, selfcheck = _control(transcript, public, rng)
        return SizeFound(
            records=target.records,
            exact=counted(matched.exact_share()),
            certified=counted(matched.certified_share()),
            false=_false(matched, status, target),
            guessing=guessing,
            cells=counted(cells),
            mode=counted(mode),
            columns=tuple(
                ColumnFound(name=name, right=counted(one), mode=counted(other))
                for name, (one, other) in zip(matched.columns, columns, strict=True)
            ),
            search=describe_search(recovery),
            selfcheck=selfcheck,
            shown=show_records(transcript, matched, replace(own, raw=True), self.shown) if self.shown else (),
            client=target.name,
            rounds=len(target.view.releases),
            known=len(own),
            clients=target.clients,
        )


@dataclass(frozen=True, eq=False)
class Target:
    """Whose records are looked for: the client's ``name``, how it is believed to train, what is seen of it,
    how many ``records`` are behind that and ``clients`` behind one round of it, and its ``own`` records,
    which the adversary does not have."""

    name: str
    believed: UpdateChannel
    view: View
    records: int
    clients: int
    own: Dataset

    @property
    def most(self) -> int:
        """How many dimensions what is seen can span at most."""
        return largest_rank(self.believed.model, len(self.view.releases), first=True)

    def knowledge(self, public: Dataset) -> Knowledge:
        """What the adversary has: the game on records of nobody."""
        enough = len(public) >= self.records
        rule = f"at least the {self.records:,} records behind what is seen of {self.name}"
        require(
            enough, "candidates of nobody", rule, len(public), way_out="add records that nobody trained on"
        )
        return Knowledge(Reconstruction(public, batch=self.records, labels=False), self.believed)

    @property
    def remark(self) -> str:
        """What the candidates lack."""
        if len(self.own) == self.records:
            return ""
        return (
            f"{self.records:,} records are behind what is seen of {self.name}, and the candidates hold "
            f"{len(self.own):,} of them (repeated ones once). Shares are of these; of the others it is not "
            f"known whether they came back."
        )


def _padded(recovery: Recovery, n: int) -> tuple[Tensor, Tensor]:
    """The records and status that were said, at least ``n`` of them."""
    records, status = recovery.records, recovery.status
    missing = n - records.shape[1]
    if missing > 0:
        records = torch.cat([records, records[:, :1].expand(-1, missing, -1)], dim=1)
        status = torch.cat([status, torch.full((1, missing), NOT_FOUND)], dim=1)
    return records, status


def _false(matched: Matched, status: Tensor, target: Target) -> Estimate:
    """How many certificates are of no record of the candidates; where some of the client's records are not
    among these, between that less as many, and that."""
    wrong = int((status == CERTIFIED).sum()) - int((matched.proofs & matched.exact).sum())
    low = max(0, wrong - max(0, target.records - len(target.own)))
    known = matched.false_certificates()
    return replace(known, value=float(low), low=float(low), high=float(wrong), method=COUNTED)


def _control(transcript: Transcript, public: Dataset, rng: torch.Generator) -> tuple[float, SelfCheck]:
    """The share of the client's records that are exact if as many public ones are said; and the self-check:
    what was read out of its uploads, held against records of nobody."""
    _, n, _ = transcript.secrets.shape
    drawn = torch.stack([torch.randint(len(public), (n,), generator=rng) for _ in range(SHUFFLES)])
    own, said = (x.expand(SHUFFLES, -1, -1) for x in (transcript.secrets, transcript.guesses))
    guessed = exact_records(Transcript(own, public.x[drawn], torch.empty(0)), public)
    strangers = match(Transcript(public.x[drawn], said, torch.empty(0)), public).exact.double().mean(1)
    alarms = int((strangers > guessed.high).sum())
    return guessed.value, SelfCheck(
        measure="exact",
        shuffles=SHUFFLES,
        alarms=alarms,
        expected=0.0,
        largest=float(strangers.quantile(0.95)),
        p=(1 + alarms) / (1 + SHUFFLES),
        passed=not alarms,
    )
