"""Records from one release: dealt, recovered by the row space of the first layer, and counted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from leakscope.attacks.recovery import Recovering, Recovery
from leakscope.attacks.row_space import RowSpace
from leakscope.audits.records.found import (
    ColumnFound,
    ConfidentCells,
    RebuiltRecord,
    RecordsFound,
    Search,
    SizeFound,
)
from leakscope.audits.world import (
    Victim,
    build_model,
    defend,
    describe_model,
    measure_worth,
    split,
    train_victim,
)
from leakscope.core.columns import Column
from leakscope.core.dataset import Dataset, statistics
from leakscope.core.errors import ArgumentError, LeakscopeError, require
from leakscope.core.nouns import CERTIFIED, PLAUSIBLE, Knowledge, Params, Transcript, View
from leakscope.core.rng import seeded
from leakscope.games import Reconstruction
from leakscope.games.agreement import agree
from leakscope.games.channels import GradientChannel, Summed, UpdateChannel
from leakscope.measures.records import SURE, Matched, exact_records, match, transcribe
from leakscope.measures.shuffled import shuffled
from leakscope.models import parameters
from leakscope.results.kind import Measured, World
from leakscope.training import Local
from leakscope.training.step import changes, parts

HELD = 2**25  # numbers of releases that are held at once
SHUFFLES = 20  # of the self-check, in which records of one batch are looked for in another
STATUS = {CERTIFIED: "certified", PLAUSIBLE: "plausible"}


@dataclass(frozen=True)
class RecordsAudit:
    """How many records come back, exactly and proven, from one gradient or upload, by the records behind it.

    For every one of ``batches``, so many records are drawn from those that the model is trained on, and
    released as one gradient, or as the upload after training as ``local`` says. Behind ``clients`` more than
    one, the server sees the mean of what each releases, of so many records each. Of a number of records of
    which the first ``patience`` releases give nothing back, and end at a bound of the search, no more are
    tried. Of each, ``shown`` records are kept, with what was said of them. ``reconstruct`` is the attack:
    `RowSpace`, or `SpanMatching`, which goes on where that ends. ``optional``: where it cannot read these
    records or this model, that is what is found, and why.
    """

    batches: tuple[int, ...] = (8, 16, 32)
    local: Local | None = None
    clients: int = 1
    patience: int = 10
    shown: int = 0
    optional: bool = False
    reconstruct: Recovering = field(default_factory=RowSpace)

    kind = "records"

    def __post_init__(self) -> None:
        require(len(self.batches) > 0, "RecordsAudit.batches", "at least one", self.batches)
        least = min(self.batches, default=1)
        require(least >= 1, "RecordsAudit.batches", "of at least 1 record", least)
        require(self.clients >= 1, "RecordsAudit.clients", "at least 1", self.clients)
        require(self.patience >= 2, "RecordsAudit.patience", "at least 2", self.patience)
        require(self.shown >= 0, "RecordsAudit.shown", "at least 0", self.shown)
        fitting = isinstance(self.reconstruct, Recovering)
        rule = "RowSpace, which proves records, or SpanMatching"
        require(fitting, "RecordsAudit.reconstruct", rule, self.reconstruct)

    def check(self, world: World) -> None:
        """Refuse what these records or this model cannot give, unless that is ``optional``."""
        if not self.optional:
            self._check(world)

    def _find_reason(self, world: World) -> str:
        """Why nothing can be read, where that may be so."""
        try:
            self._check(world)
        except LeakscopeError as error:
            return str(error)
        return ""

    def _check(self, world: World) -> None:
        """By two releases of public records."""
        cell, defense = world.cell, defend(world)
        require(max(cell.observed) < cell.rounds, "observe", f"rounds from 1 to {cell.rounds}", cell.observe)
        own = split(world)
        if not own.records.columns or own.train.x.dim() != 2:
            raise ArgumentError(
                f"{own.records.name}: records are asked for cell by cell, and these have no named columns; "
                f"use leakscope localise for pictures."
            )
        model = build_model(world, own.train, defense)
        for batch in self.batches:
            Reconstruction(own.train, batch=batch * self.clients, labels=False)
        victim = Victim(model, defense, (parameters(model),))
        few = min(self.batches)
        game = Reconstruction(own.public, batch=few * self.clients, labels=False)
        channel = self._channel(victim, victim.history)
        knowledge = Knowledge(game, channel)
        agree(game, channel, knowledge)
        view, _ = game.deal(channel, 2, seeded(world.seed, "deal", game.batch, "first"))
        self.reconstruct.check(knowledge, View(view.releases))

    def measure(self, world: World) -> Measured[RecordsFound]:
        """Every number of records."""
        if self.optional and (why := self._find_reason(world)):
            return self._tell_why(world, why)
        cell, raw, own = world.cell, split(world, standardise=False), split(world)
        victim = train_victim(world, own.train, defend(world))
        channel = self._channel(victim, tuple(victim.history[i] for i in cell.observed))
        sizes = []
        for done, batch in enumerate(sorted(set(self.batches))):
            if world.watch:
                world.watch(done, len(set(self.batches)))
            sizes.append(self._ask(world, own.train, own.public, raw.train, channel, batch * self.clients))
        found = RecordsFound(
            sizes=tuple(sizes),
            uploads=self.local is not None,
            clients=self.clients,
            epochs=max(cell.observed),
            public=len(own.public),
            utility=measure_worth(victim, own.test, own.train) if cell.rounds > 1 else None,
        )
        return Measured(found, own.described, describe_model(world, victim.model, own.train, test=own.test))

    def _tell_why(self, world: World, why: str) -> Measured[RecordsFound]:
        own = split(world)
        found = RecordsFound(
            sizes=(),
            uploads=self.local is not None,
            clients=self.clients,
            epochs=max(world.cell.observed),
            public=len(own.public),
            unread=why,
        )
        model = build_model(world, own.train, defend(world))
        return Measured(found, own.described, describe_model(world, model))

    def _channel(self, victim: Victim, rounds: tuple[Params, ...]) -> GradientChannel | Summed:
        """Gradients through the defense; or uploads, on which the defense acts, unless it is one of training
        or of single records."""
        if self.local is None:
            channel = GradientChannel(victim.model, rounds, victim.defense)
        elif any(changes(part, "model", "loss", "objective", "weigh") for part in parts(victim.defense)):
            channel = UpdateChannel(victim.model, rounds, local=self.local, inside=victim.defense)
        else:
            channel = UpdateChannel(victim.model, rounds, victim.defense, local=self.local)
        return Summed(channel, self.clients) if self.clients > 1 else channel

    def _ask(
        self,
        world: World,
        train: Dataset,
        public: Dataset,
        raw: Dataset,
        channel: GradientChannel | Summed,
        batch: int,
    ) -> SizeFound:
        game = Reconstruction(train, batch=batch, labels=False)
        few = min(self.patience, world.cell.trials)
        knowledge = Knowledge(game.on(public), channel)
        agree(game, channel, knowledge)
        attack = self.reconstruct.prepare(knowledge, seeded(world.seed, "search", batch, "first"))
        secrets, found = _recover(game, channel, attack, few, seeded(world.seed, "deal", batch, "first"))
        lost = match(transcribe(secrets, found.records, found.status), public)
        if bool(found.ended.any()) or bool(lost.exact.any()) or few < self.patience:
            more = world.cell.trials - few
            if more:
                rng = seeded(world.seed, "deal", batch, "more")
                rest, others = _recover(game, channel, attack, more, rng)
                secrets, found = torch.cat([secrets, rest]), Recovery.joined([found, others])
        transcript = transcribe(secrets, found.records, found.status, found.confidence)
        matched = match(transcript, public)
        return self._measure(world, transcript, matched, found, public, raw)

    def _measure(
        self,
        world: World,
        transcript: Transcript,
        matched: Matched,
        found: Recovery,
        public: Dataset,
        raw: Dataset,
    ) -> SizeFound:
        rng, (t, k) = seeded(world.seed, "check", transcript.secrets.shape[1]), transcript.secrets.shape[:2]
        drawn = torch.stack([torch.randperm(len(public), generator=rng)[:k] for _ in range(t)])
        guessed = exact_records(Transcript(transcript.secrets, public.x[drawn], torch.empty(0)), public)
        (cells, mode), *columns = matched.cells().values()
        return SizeFound(
            records=k,
            exact=matched.exact_share(),
            certified=matched.certified_share(),
            false=matched.false_certificates(),
            guessing=guessed.value,
            cells=cells,
            mode=mode,
            columns=tuple(
                ColumnFound(name=name, right=one, mode=other)
                for name, (one, other) in zip(matched.columns, columns, strict=True)
            ),
            search=describe_search(found),
            confident=describe_confidence(matched),
            selfcheck=shuffled(
                transcript,
                lambda other: exact_records(other, public),
                rng=rng,
                null=guessed.high,
                shuffles=SHUFFLES,
            ),
            shown=show_records(transcript, matched, raw, self.shown) if self.shown else (),
        )


def _recover(
    game: Reconstruction,
    channel: GradientChannel | Summed,
    attack: Callable[[View], Recovery],
    trials: int,
    rng: torch.Generator,
) -> tuple[Tensor, Recovery]:
    """The records (t, k, d) behind so many releases, and what came of each: a few at a time."""
    inner = channel.channel if isinstance(channel, Summed) else channel
    size = sum(tensor.numel() for tensor in inner.rounds[0].values()) * len(inner.rounds)
    secrets, found = [], []
    for some in torch.arange(trials).split(max(1, HELD // size)):
        view, records = game.deal(channel, len(some), rng)
        secrets.append(records)
        found.append(attack(View(view.releases)))
    return torch.cat(secrets), Recovery.joined(found)


def describe_confidence(matched: Matched) -> ConfidentCells | None:
    """How many cells are called, and how many of these are right, where the attack rates cells."""
    called = matched.confident()
    return None if called is None else ConfidentCells(above=SURE, called=called[0], right=called[1])


def describe_search(found: Recovery) -> Search:
    """How far the search came."""
    k = found.records.shape[1]
    measured = ~found.fitted | (found.ranks > 0)  # uploads of Adam have no space that records span
    return Search(
        batches=len(found.ranks),
        ended=int(found.ended.sum()),
        stopped=int(found.stopped.sum()),
        short=int((measured & (found.ranks < k)).sum()),
        left=int((found.free > 0).sum()),
        disturbed=int(found.disturbed.sum()),
        fitted=int(found.fitted.sum()),
        rank=float(found.ranks.double().median()),
        gap=float(found.gaps.median()),
    )


def show_records(
    transcript: Transcript, matched: Matched, raw: Dataset, most: int
) -> tuple[RebuiltRecord, ...]:
    """The first records of the first batch, in the units of the table."""
    assert transcript.status is not None
    shift, scale = statistics(raw) if not raw.raw else (torch.zeros(1, 1), torch.ones(1, 1))
    kept = []
    for i in range(min(most, transcript.secrets.shape[1])):
        place = int(matched.order[0, i])
        originals, said = (
            (x * scale + shift)[0] for x in (transcript.secrets[0, i], transcript.guesses[0, place])
        )
        cells = tuple((column.name, _cell(column, originals), _cell(column, said)) for column in raw.columns)
        status = STATUS.get(int(transcript.status[0, place]), "not found")
        kept.append(RebuiltRecord(status=status, exact=bool(matched.exact[0, i]), cells=cells))
    return tuple(kept)


def _cell(column: Column, record: Tensor) -> str:
    """A cell as people write it."""
    part = record[column.start : column.stop]
    if column.values and len(part) > 1:
        return column.values[int(part.argmax())] if float(part.max()) > 0.5 else "none of those known"
    if column.values:
        return column.values[min(max(round(float(part[0])), 0), len(column.values) - 1)]
    return "missing" if len(part) > 1 and float(part[1]) > 0.5 else f"{float(part[0]):.4g}"
