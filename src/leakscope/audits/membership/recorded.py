"""The audit of a federation that somebody else ran, from its recording and candidate records."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from leakscope.audits.membership.fitting import (
    check_members,
    fit_model,
    refuse_misnamed,
    refuse_strangers,
    refuse_two_sided,
    settle_model,
)
from leakscope.audits.membership.found import ClientPart, MembershipFound, Seen
from leakscope.audits.membership.judged import (
    DOUBT,
    ClientChannel,
    GameCount,
    Roster,
    WatchedFederation,
    brief,
    check_attacks,
    compare_side,
    conclude,
    gather,
    judge_game,
    measure_growth,
    measure_worth,
    shorten,
    show,
)
from leakscope.audits.membership.limits import describe_limits
from leakscope.audits.membership.names import refuse_exchanged
from leakscope.audits.membership.populations import deal_nobody
from leakscope.audits.world import build_model, describe, describe_model
from leakscope.core.dataset import Dataset, joined
from leakscope.core.errors import ArgumentError, DataError, require
from leakscope.core.fingerprints import keyed
from leakscope.core.nouns import Attack, Knowledge, Transcript
from leakscope.core.rng import seeded
from leakscope.core.task import Task
from leakscope.games import Membership
from leakscope.measures.membership import discoveries, p_values
from leakscope.results.cell import stable
from leakscope.results.kind import Division, Measured, World
from leakscope.results.number import harmless
from leakscope.results.result import revision
from leakscope.training.recording import Recording
from leakscope.training.recording.checks import Checked, check_recording
from leakscope.training.recording.index import SUM, digest_index, listed

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
    the recording declares its loss, that must be the task's, which most attacks take (cross-entropy, of a
    number squared error), unless all of them are ``loss_free``; where it declares its ``preprocessing``, the
    same must be given here.

    ``rounds`` and ``clients`` choose which are looked at; all, if none are named. Records of clients who are
    not looked at are left out: they are nobody's no more than members. ``rename`` ("old=new") and
    ``differences`` are for recordings whose layers have other names, and whose uploads are differences to the
    global model. ``array`` asks about what clients uploaded beside their parameters, by its name. ``site`` is
    the private column that says of every candidate, those of nobody too, from where it is: each client's
    members are then told from nobody's records of the same sites.
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
    rounds: tuple[int, ...] = ()
    clients: tuple[str, ...] = ()
    rename: tuple[str, ...] = ()
    differences: bool = False
    array: str = ""
    site: str | None = None

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
        rule = "old=new, where names that end in a dot stand for what begins so"
        require(all("=" in each for each in self.rename), "RecordingAudit.rename", rule, self.rename)
        alone = not (self.array and (self.centred or self.seen == "broadcast"))
        require(alone, "RecordingAudit.array", "seen in uploads or their sum, not centred", self.array)

    def check(self, world: World) -> None:
        """Refuse what the recording, the candidates or the model cannot give."""
        watched, who, _ = self._prepare(world)
        watched.channels()
        check_attacks(self.attacks, watched.model, who)

    def run(self, world: World) -> Measured[MembershipFound]:
        """What the attacks found, and what the last recorded model is worth on records of nobody."""
        data, trials, seed = world.records, world.cell.trials, world.seed
        watched, who, checked = self._prepare(world)
        recording, model, games = watched.recording, watched.model, watched.channels()
        shorter = list(shorten(self.attacks[0], watched))
        left = [game for game in games if str(game[0]) not in world.parts]
        told = GameCount(world.watch, len(self.attacks) * len(left) + len(shorter))
        look = self._looker(world, watched, who, told)
        done = {name: ClientPart.model_validate_json(text) for name, text in world.parts.items()}
        parts = [done.get(str(game[0])) or look(game) for game in games]
        growth = measure_growth(self.attacks[0], shorter, who, trials=trials, seed=seed, told=told)
        attempts = conclude(self.attacks, [name for name, *_ in games], [p.games for p in parts], growth)
        listed_too = []
        if self.records and world.keep:
            listed_too = list(_say_listed(watched, who, trials))
            lines = [part.games[i].rows for i in range(len(self.attacks)) for part in parts]
            world.keep(SCORES, "".join([_lines([HEADER]), *lines]).encode())
        utility = measure_worth(model, recording.global_model(recording.rounds[-1]), who)
        alike = tuple(part.alike for part in parts)
        found = gather(attempts, watched, who, trials=trials, utility=utility, alike=alike)
        left_out = self._left_out(recording, watched.clients)
        limits = describe_limits(self.attacks, watched, who, trials=trials)
        remarks = (*checked.remarks, *left_out, *limits, *listed_too)
        said = {"agreement": checked.agreement, "server": checked.server, "remarks": remarks}
        found = found.model_copy(update=said)
        return Measured(found, describe(data), describe_model(world, model))

    def divide(self, world: World) -> Division | None:
        """The clients, each of which is a part; None where there is one, or they are not told apart."""
        watched, _, checked = self._prepare(world)
        names = [name for name, *_ in watched.channels() if name is not None]
        if len(names) < 2:
            return None
        about = [digest_index(Path(self.recording)), world.records.digest, revision(), *names]
        return Division(tuple(names), checked, keyed(stable(about)))

    def run_parts(self, world: World, names: Sequence[str]) -> Iterator[tuple[str, str]]:
        """What is found of these clients, each by itself."""
        watched, who, _ = self._prepare(world)
        few = who.only([watched.clients.index(name) for name in names])
        told = GameCount(world.watch, len(self.attacks) * len(names))
        look = self._looker(world, watched, few, told)
        for game in replace(watched, clients=tuple(names), apart=True).channels():
            yield str(game[0]), look(game).model_dump_json()

    def _looker(
        self, world: World, watched: WatchedFederation, who: Roster, told: GameCount
    ) -> Callable[[ClientChannel], ClientPart]:
        """What looks at one of the clients that are ``watched``, of whom the roster may have some only."""
        first = watched.recording.initial()  # later ones saw members
        names = [name for name, *_ in watched.channels()]
        rows: dict[str, int] = {}
        if self.records:
            rows = {key: i for i, key in reversed(list(enumerate(world.records.hashes)))}
        sizes: Any = {"trials": world.cell.trials, "seed": world.seed}

        def look(game: ClientChannel) -> ClientPart:
            level = DOUBT / len(names)
            alike = compare_side(watched.model, game, who, first, seed=world.seed, level=level)
            games = []
            for attack in self.attacks:
                found = judge_game(attack, game, who, first=game[0] == names[0], told=told, **sizes)
                lines = _lines(_listed(attack, game, who, rows, world.seed)) if self.records else ""
                games.append(found.model_copy(update={"rows": lines}))
            return ClientPart(alike=alike, games=tuple(games))

        return look

    def believe(self, recording: Recording) -> Checked:
        """What is found of the recording itself; refused is one in which nothing could be found of anybody,
        and ``centred`` where a step is not what that takes it for."""
        if self.seen == "uploads" and any(SUM in recording.parts_in(r) for r in recording.rounds):
            raise ArgumentError(
                f"seen must be sum or broadcast, since {self.recording!r} holds sums of uploads, got "
                f"{self.seen!r}; give --seen sum."
            )
        needed = self.clients if self.clients and self.seen == "uploads" else None
        checked = check_recording(recording, uploads=self.seen != "broadcast", needed=needed)
        checked.raise_faults(self.recording)
        if self.centred and not checked.averages:
            raise ArgumentError(
                f"centred must be false unless each step of the global model is the uploads' mean, and here "
                f"the server is {checked.server}; leave --centred out."
            )
        return checked

    def _prepare(self, world: World) -> tuple[WatchedFederation, Roster, Checked]:
        """What is watched, and who is who; everything agrees with the recording. What a look at all of it has
        shown is not looked for again, where it is given."""
        model = deepcopy(build_model(world, world.records)).eval()
        checked = world.facts if isinstance(world.facts, Checked) else self._look_through(world, model)
        recording = checked.recording.choose(array=self.array)
        settle_model(model, recording)
        who, clients = self.roster(recording, world.records, seeded(world.seed, "split"))
        watched = WatchedFederation(recording, model, clients, (), self.seen, self.centred)
        if world.facts is None:
            check_members(model, recording, who)
            self._check_names(world, watched, who)
        return watched, who, checked

    def _check_names(self, world: World, watched: WatchedFederation, who: Roster) -> None:
        """Refuse names that are exchanged; asked once for all cells of a seed, of the parameters."""
        asked = ("names", *self._asks, world.seed)
        known = {} if world.splits is None else world.splits
        if self.array or asked in known or self._loss_is_other(watched.recording, world.records.task):
            return
        refuse_exchanged(watched, who)
        known[asked] = True

    @property
    def _asks(self) -> tuple[object, ...]:
        """What decides what is looked at of the recording as it is."""
        choice = (self.seen, self.centred, self.clients, self.rounds, self.rename, self.differences)
        return (self.recording, digest_index(Path(self.recording)), *choice)

    def _look_through(self, world: World, model: nn.Module) -> Checked:
        """What the whole recording shows of itself: read once for all cells and seeds that ask the same."""
        whole = Recording(Path(self.recording))
        if self.digest and digest_index(Path(self.recording)) != self.digest:
            raise DataError(f"{self.recording!r} has changed since the plan was written; audit it anew.")
        rules = dict(rule.split("=", 1) for rule in self.rename)
        chosen = whole.choose(self.rounds, rename=rules, delta=self.differences)
        self._agree(chosen, world.records.task)
        if not chosen.rounds:
            raise DataError(f"{self.recording!r} has no round yet; wait for the federation.")
        fit_model(chosen, model, world.records)
        known = {} if world.splits is None else world.splits
        key = ("recording", *self._asks)
        if key not in known:
            known[key] = self.believe(chosen)
        checked: Checked = known[key]
        return checked

    def _left_out(self, recording: Recording, clients: Collection[str]) -> Iterator[str]:
        """Clients about whom nothing is said."""
        if others := sorted(recording.uploaders - {*clients}):
            yield f"Clients who trained, and about whom nothing is said: {listed(others)}."

    def _agree(self, recording: Recording, task: Task) -> None:
        """Refuse a recording whose clients trained otherwise than the candidates will be looked at."""
        loss, prepared = recording.declared("loss"), recording.declared("preprocessing")
        needing = [type(one).__name__ for one in self.attacks if not getattr(one, "loss_free", False)]
        if needing and self._loss_is_other(recording, task):
            raise DataError(
                f"{self.recording!r} declares the loss {loss!r}, and attacks on recordings take gradients of "
                f"{task.losses[0]} ({', '.join(needing)}); record with that loss, play one that needs none "
                f"(WhitenedSpan), or audit the training as a game with its own."
            )
        if (prepared or "") != self.preprocessing:
            raise DataError(
                f"{self.recording!r} declares the preprocessing {prepared!r}, and the candidates are said to "
                f"have {self.preprocessing!r}; prepare them alike and say so (--preprocessing)."
            )

    def _loss_is_other(self, recording: Recording, task: Task) -> bool:
        return recording.declared("loss") not in (None, *task.losses)

    def roster(
        self, recording: Recording, data: Dataset, rng: torch.Generator
    ) -> tuple[Roster, tuple[str, ...]]:
        """Who is who, repetitions left out, and the clients whose records are among the candidates."""
        trained, names = self._trained(recording), data.value_names(self.column)
        refuse_misnamed(names, trained, self.column)
        nobody = torch.tensor([name not in trained for name in names])
        refuse_two_sided(data, nobody[data.secret(self.column)])
        data = data.distinct()
        codes = data.secret(self.column)
        asked = self._asked(recording)
        clients = tuple(n for i, n in enumerate(names) if n in asked and bool((codes == i).any()))
        if not clients:
            raise DataError(
                f"column {self.column!r} names no client of the recording: it has "
                f"{', '.join(map(repr, names[:8]))}, the recording has "
                f"{', '.join(map(repr, sorted(asked)[:8]))}; name them alike."
            )
        refuse_strangers(names, codes, trained, self.column)
        members = tuple(data.take((codes == names.index(name)).nonzero()[:, 0]) for name in clients)
        rest = nobody[codes].nonzero()[:, 0]
        shares = {"known": self.known, "held": self.held}
        return deal_nobody(data, members, rest, **shares, rng=rng, site=self.site, names=clients), clients

    def _trained(self, recording: Recording) -> set[str]:
        """Who trained: who uploaded, or is announced, or is said here, of whom nothing is recorded."""
        known = recording.uploaders or {*recording.clients} or {*self.clients}
        if not known:
            raise DataError(
                f"{self.recording!r} says of no client that it trained; name those of column {self.column!r} "
                f"who did (--clients)."
            )
        if absent := sorted({*self.clients} - known):
            raise DataError(
                f"{self.recording!r} has no client {listed(map(repr, absent))}; its clients are "
                f"{listed(map(repr, sorted(known)))}."
            )
        return known

    def _asked(self, recording: Recording) -> set[str]:
        """The clients whose members are asked about: who took part in what is seen, of those that are chosen;
        of steps of which nobody says who is in them, everyone who trained."""
        rounds, trained = recording.rounds, self._trained(recording)
        there = [{*recording.clients_in(r)} for r in rounds if self.seen != "broadcast" or r + 1 in rounds]
        seen = trained if self.seen == "broadcast" and not (there and all(there)) else set().union(*there)
        if self.clients and not seen & {*self.clients}:
            raise DataError(
                f"{self.recording!r}: {listed(self.clients)} took part in none of the rounds that are looked "
                f"at; choose other rounds or clients."
            )
        return seen & {*self.clients} if self.clients else seen


def _listed(
    attack: Attack, game: ClientChannel, who: Roster, rows: dict[str, int], seed: int
) -> Iterator[tuple[Any, ...]]:
    """Each judged record: its row, hash, whose updates it was held against, score and p-value."""
    client, channel, whose = game
    name, own = client or "all clients", joined(who.members[whose])
    knowledge = Knowledge(Membership(own.take(torch.arange(0)), who.known), channel, len(who.known))
    guess = attack(knowledge, seeded(seed, "listed", name))
    held, others = who.outsiders(whose)
    candidates = joined((own, others))
    # All at once: what is said of a record may depend on which others are asked about.
    every = guess(show(channel, joined((candidates, held))))
    scores, null = every.split((len(candidates), len(held)))
    chances = torch.full((2,), 0.5, dtype=torch.float64)
    secrets = torch.arange(len(candidates)) < len(own)
    p = p_values(Transcript(secrets.long(), scores, chances, null=null))
    called = discoveries(p)
    for i, key in enumerate(candidates.hashes):
        score, chance = (float(f"{value:.6g}") for value in (scores[i], p[i]))
        yield rows[key], keyed(key), name, brief(attack), score, chance, int(called[i])


def _say_listed(watched: WatchedFederation, who: Roster, trials: int) -> Iterator[str]:
    """That the list is of more records than the figures."""
    for _, _, whose in watched.channels():
        members = sum(len(part) for part in who.members[whose])
        if members > trials // 2 or len(who.outsiders(whose)[1]) > trials - trials // 2:
            yield (
                f"The list of records ({SCORES}) has every candidate. The figures are of {trials:,} that "
                f"were drawn (--trials), half of them members at most."
            )
            return


def _lines(rows: Iterable[tuple[Any, ...]]) -> str:
    text = io.StringIO()
    csv.writer(text).writerows([harmless(value) for value in row] for row in rows)  # a client may be =...
    return text.getvalue()
