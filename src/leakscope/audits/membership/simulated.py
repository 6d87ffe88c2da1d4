"""A federation trained for its audit: dealt, trained, recorded, and attacked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import torch
from torch import nn

from leakscope.audits.membership.found import MembershipFound, Seen
from leakscope.audits.membership.judged import (
    Roster,
    WatchedFederation,
    check_attacks,
    compare_sides,
    gather,
    judge,
    measure_worth,
)
from leakscope.audits.membership.limits import describe_limits
from leakscope.audits.membership.scoring import FURTHER
from leakscope.audits.world import (
    build_model,
    count_parameters,
    defend,
    describe,
    describe_model,
    passes_whole,
)
from leakscope.core.dataset import Dataset, joined
from leakscope.core.errors import ArgumentError, DataError, require
from leakscope.core.nouns import Attack, Defense, Params
from leakscope.core.rng import seeded
from leakscope.defenses.training import MixupMMD
from leakscope.measures.accounting import Accounted, account_shown, account_training
from leakscope.results.cell import Cell
from leakscope.results.kind import Measured, World
from leakscope.training import Local, cut_parts, cut_sites, federate, shards
from leakscope.training.recording import Recorder, Recording
from leakscope.training.recording.index import listed


@dataclass(frozen=True)
class MembershipAudit:
    """How well the updates of a federation tell who was trained on, client by client (paper 002).

    ``clients`` hold ``size`` records each, dealt ``how`` `training.shards` does, and train as ``local``
    says; the ``attacks`` are tried on ``scored`` of them (None: all). Of the records nobody trains on,
    ``known`` are the adversary's own, ``held`` set the thresholds, ``validation`` are the clients' for a
    defense that needs some, and the rest are judged, or ``judged`` of them: then no more records are looked
    at. The likelihood ratio is measured at these false positive ``rates`` too. ``seen`` and ``centred`` are
    `RecordedChannel`'s; the rest is `training.federate`'s. With ``how`` "site" every value of the private
    ``column`` is a client under its own name: of its records the ``shares`` are its members, the adversary's
    own and held out, and the rest are judged, so that members are told from other records of the same site;
    ``clients``, ``size``, ``scored``, ``known``, ``held`` and ``validation`` are then not looked at. There
    ``person`` may name the column of people, who are then members or not as a whole.
    """

    attacks: tuple[Attack, ...]
    local: Local
    clients: int = 10
    size: int = 300
    scored: int | None = None
    known: int = 600
    held: int = 400
    validation: int = 0
    judged: int | None = None
    how: Literal["iid", "dirichlet", "user", "site"] = "iid"
    alpha: float = 0.5
    column: str | None = None
    person: str | None = None
    shares: tuple[float, float, float] = (0.5, 0.1, 0.1)
    seen: Seen = "uploads"
    centred: bool = False
    fraction: float = 1.0
    weighted: bool = True
    server_rate: float = 1.0
    upload: Defense | None = None
    virtual: int = 1
    repartition: bool = False
    rates: tuple[float, ...] = ()

    kind = "membership"

    def __post_init__(self) -> None:
        require(len(self.attacks) > 0, "MembershipAudit.attacks", "at least one", self.attacks)
        for name in ("clients", "size", "known", "held"):
            require(getattr(self, name) >= 1, f"MembershipAudit.{name}", "at least 1", getattr(self, name))
        known = {*self.rates} <= {*FURTHER}
        require(known, "MembershipAudit.rates", f"some of {', '.join(map(str, FURTHER))}", self.rates)
        require(self.validation >= 0, "MembershipAudit.validation", "at least 0", self.validation)
        scored = self.clients if self.scored is None else self.scored
        require(1 <= scored <= self.clients, "MembershipAudit.scored", "from 1 to all clients", scored)
        whole = self.person is None or self.how == "site"
        require(whole, "MembershipAudit.person", "None where how is not 'site'", self.person)
        some = len(self.shares) == 3 and min(self.shares) > 0 and sum(self.shares) < 1
        require(some, "MembershipAudit.shares", "three positive shares that leave some", self.shares)

    def check(self, world: World) -> None:
        """Refuse what these records or this model cannot give: clients train one step on two records."""
        cell, rng = world.cell, seeded(world.seed, "check")
        require(max(cell.observed) < cell.rounds, "observe", f"rounds from 1 to {cell.rounds}", cell.observe)
        who, model, defense = self._prepare(world)
        check_attacks(self.attacks, model, who)
        self.federate(model, who.members, rounds=0, rng=rng, defense=defense)
        few = [member.take(torch.arange(min(2, len(member)))) for member in who.members]
        short = replace(self, local=replace(self.local, steps=1), virtual=1)
        short.federate(model, few, rounds=1, rng=rng, defense=defense)

    def run(self, world: World) -> Measured[MembershipFound]:
        """What the attacks found of a federation that is trained for it, and what it learned itself."""
        cell, seed = world.cell, world.seed
        who, model, defense = self._prepare(world)
        federation = record(
            self, model, who, cell.rounds, cell.observed, defense=defense, rng=seeded(seed, "training")
        )
        with federation as (recording, history):
            places, left_out = self._watched(who, recording)
            who = who.only([*places, *range(self._asked(who), len(who.members))])
            watched = WatchedFederation(
                recording,
                settle(model, history),
                tuple(map(str, places)),
                cell.observed if self.seen == "broadcast" else (),  # no other uploads are recorded
                self.seen,
                self.centred,
                who.names,
                apart=bool(who.apart),
            )
            # Dealt at random, members differ from others by the draw alone: the test could only be wrong.
            random = self.how in ("iid", "user")
            alike = () if random else compare_sides(watched, who, history[0], seed=seed)
            attempts = judge(
                self.attacks,
                watched,
                who,
                trials=cell.trials,
                seed=seed,
                rates=self.rates,
                watch=world.watch,
            )
            utility = measure_worth(model, history[-1], who)
            found = gather(attempts, watched, who, trials=cell.trials, utility=utility, alike=alike)
            limits = tuple(describe_limits(self.attacks, watched, who, trials=cell.trials))
        remarks = (*left_out, *limits)
        found = found.model_copy(update={"guarantee": self._account(cell, model), "remarks": remarks})
        net = describe_model(world, model, who.members[0], test=who.others)
        return Measured(found, describe(world.records), net)

    def _asked(self, who: Roster) -> int:
        """How many clients are asked about: all where their uploads are not told apart."""
        every = len(who.members)
        return every if self.seen != "uploads" or who.apart else self.scored or every

    def _watched(self, who: Roster, recording: Recording) -> tuple[list[int], list[str]]:
        """Those of them who took part in a round that was observed, and in words who did not: asked about,
        their members would count as not found."""
        asked, there = range(self._asked(who)), recording.uploaders
        places = [c for c in asked if str(c) in there]
        if not places:
            raise DataError(
                "no client that is scored took part in a round that is observed; observe more rounds."
            )
        away = [who.names[c] if who.names else c for c in asked if c not in places]
        said = f"Clients in none of the rounds that are seen, and about whom nothing is said: {listed(away)}."
        return places, [said] if away else []

    def _prepare(self, world: World) -> tuple[Roster, nn.Module, Defense]:
        """Who is who, the model before it is trained, and the defense with records of the clients' own if it
        needs some that are held out."""
        defense = defend(world)
        who = roster(self, world.records, seeded(world.seed, "split"))
        model = build_model(world, who.members[0], defense)
        if isinstance(defense, MixupMMD) and defense.held is None:
            defense = replace(defense, held=who.validation)
        return who, model, defense

    @property
    def federate(self) -> Callable[..., tuple[Params, ...]]:
        """`training.federate` as it is asked for."""
        return partial(
            federate,
            local=self.local,
            fraction=self.fraction,
            weighted=self.weighted,
            server_rate=self.server_rate,
            upload=self.upload,
            virtual=self.virtual,
            repartition=self.repartition,
        )

    def _account(self, cell: Cell, model: nn.Module) -> Accounted | None:
        """What the filter on uploads is worth; nothing where something of the model passes it by. Whoever
        sees a round sees a global model that comes from the uploads of all rounds before."""
        if self.upload is None or not passes_whole(model):
            return None
        entries = count_parameters(model)
        mechanism = self.upload.mechanism(1, entries)
        if mechanism is not None and mechanism.unit == "mean":  # holds against nobody who sees uploads
            return account_training(self.upload, records=1, batch=1, rounds=cell.rounds, entries=entries)
        return account_shown(mechanism, releases=max(cell.observed) + 1, batch=1)


def roster(audit: MembershipAudit, data: Dataset, rng: torch.Generator) -> Roster:
    """The records dealt, repetitions left out, scaled by the members' statistics."""
    data = _some(data, audit, rng).distinct()
    if audit.how == "site":
        return _sites_apart(data, audit, rng)
    apart = audit.known + audit.held + audit.validation
    if audit.how == "user":
        private, rest = _people_apart(data, audit, rng)
    else:
        order = torch.randperm(len(data), generator=rng)
        wanted = audit.clients * audit.size
        private, rest = data.take(order[:wanted]), data.take(order[wanted:])
        if len(private) < wanted or len(rest) < apart + 2:
            raise DataError(
                f"{data.name}: {audit.clients} clients of {audit.size} records and {apart} records of nobody "
                f"take {wanted + apart} of {len(data)} different records, and at least 2 must be left to "
                f"judge; ask for fewer."
            )
    size = None if audit.how == "user" else audit.size
    members = shards(
        private, audit.clients, rng, how=audit.how, alpha=audit.alpha, column=audit.column, size=size
    )
    cuts = rest.take(torch.randperm(len(rest), generator=rng))
    sizes = (audit.known, audit.held, audit.validation, len(rest) - apart)
    outside = [cuts.take(part) for part in torch.arange(len(rest)).split(sizes)]
    *scaled, known, held, validation, others = _scaled([*members, *outside], private)
    people = audit.column if audit.how == "user" else None
    return Roster(tuple(scaled), known, held, others, validation if audit.validation else None, people=people)


def _scaled(parts: Sequence[Dataset], private: Dataset) -> list[Dataset]:
    """The parts in the units of what is trained on. Which values are rare, and what stands for missing ones,
    is said by all records: by those that are trained on, and a value of theirs would be rare less often than
    one of the others. Records that are equal once rare values are one value are left out of every part: of
    one side alone, and that side would be of other records than the other."""
    if all(column.learned for column in private.columns):  # they are as different as they were
        return [part.standardised(private) for part in parts]
    whole = joined(parts)
    scaled = [part.completed(whole).standardised(private.completed(whole)) for part in parts]
    hashes = [part.hashes for part in scaled]
    counts = Counter(chain(*hashes))
    once = [[i for i, key in enumerate(keys) if counts[key] == 1] for keys in hashes]
    if not all(rows for rows, part in zip(once, parts, strict=True) if len(part)):
        raise DataError(
            f"{private.name}: rare values are merged, and then too few records are different to tell members "
            f"from others; give columns that tell records apart."
        )
    return [part.take(torch.tensor(rows, dtype=torch.long)) for part, rows in zip(scaled, once, strict=True)]


def _some(data: Dataset, audit: MembershipAudit, rng: torch.Generator) -> Dataset:
    """As many records, or records of as many people, as are looked at, and a tenth more for repetitions."""
    if audit.judged is None or audit.how == "site":
        return data
    wanted = audit.clients * audit.size + audit.known + audit.held + audit.validation + audit.judged
    wanted += wanted // 10
    if audit.how != "user" or audit.column is None:
        return data.take(torch.randperm(len(data), generator=rng)[:wanted])
    codes = data.secret(audit.column)
    people = torch.randperm(int(codes.max()) + 1, generator=rng)
    counts = torch.bincount(codes, minlength=len(people))[people].cumsum(0)
    chosen = people[: int((counts < wanted).sum()) + 1]
    return data.take(torch.isin(codes, chosen).nonzero()[:, 0])


def _people_apart(data: Dataset, audit: MembershipAudit, rng: torch.Generator) -> tuple[Dataset, Dataset]:
    """Whole people are members or not. As many are not as it takes for the non-members and to judge; where
    it is said how many are ``judged``, all that the clients' sizes leave."""
    if audit.column is None:
        raise ArgumentError("MembershipAudit.column must name the column of people where how is 'user'.")
    codes = data.secret(audit.column)
    people = codes.unique()
    people = people[torch.randperm(len(people), generator=rng)]
    counts = torch.bincount(codes)[people].cumsum(0)
    apart = audit.known + audit.held + audit.validation + audit.size
    if audit.judged is not None:
        apart = max(apart, len(data) - audit.clients * audit.size)
    cut = int((counts < apart).sum()) + 1
    if len(people) - cut < audit.clients:
        raise DataError(
            f"{data.name}: {apart} records of nobody take {cut} of the {len(people)} values of "
            f"{audit.column!r} and leave fewer than {audit.clients} for the clients; ask for fewer."
        )
    outside = torch.isin(codes, people[:cut])
    return data.take((~outside).nonzero()[:, 0]), data.take(outside.nonzero()[:, 0])


def _sites_apart(data: Dataset, audit: MembershipAudit, rng: torch.Generator) -> Roster:
    """Every site a client, and its non-members records of its own."""
    if audit.column is None:
        raise ArgumentError("MembershipAudit.column must name the column of sites where how is 'site'.")
    dealt = []
    for name, part in cut_sites(data, audit.column, person=audit.person):
        sizes = [int(share * len(part)) for share in audit.shares]
        dealt.append((name, *cut_parts(part, sizes, rng, person=audit.person)))
    names, members, known, held, others = zip(*dealt, strict=True)
    every, n = _scaled([*members, *held, *others, joined(known)], joined(members)), len(names)
    mine, theirs = every[n : 2 * n], every[2 * n : 3 * n]
    apart = tuple(zip(mine, theirs, strict=True))
    return Roster(
        tuple(every[:n]),
        every[-1],
        joined(mine),
        joined(theirs),
        apart=apart,
        people=audit.person,
        names=names,
    )


@contextmanager
def record(
    audit: MembershipAudit,
    model: nn.Module,
    who: Roster,
    rounds: int,
    observed: Sequence[int],
    *,
    defense: Defense,
    rng: torch.Generator,
) -> Iterator[tuple[Recording, tuple[Params, ...]]]:
    """The federation, trained: what was observed of it as a recording that goes with the block."""
    with TemporaryDirectory() as folder:
        recorder = Recorder(Path(folder) / "run", model, model_name=type(model).__name__)
        every = len(who.members)
        wide = any(getattr(attack, "sees", "") == "all updates" for attack in audit.attacks)
        scored = every if audit.seen != "uploads" or who.apart or wide else audit.scored or every
        observer = _Observer(recorder, frozenset(observed), scored)
        history = audit.federate(
            model, who.members, rounds=rounds, rng=rng, defense=defense, recorder=observer
        )
        yield Recording(Path(folder) / "run"), history


@dataclass(frozen=True, eq=False)
class _Observer:
    """Records what is observed, and nothing else: the chosen rounds and what they lead to."""

    recorder: Recorder
    rounds: frozenset[int]
    clients: int

    def global_model(self, r: int, params: Params) -> None:
        if r in self.rounds or r - 1 in self.rounds:
            self.recorder.global_model(r, params)

    def update(
        self, r: int, client: int, params: Params, *, samples: int, rate: float | None, steps: int | None
    ) -> None:
        if r in self.rounds and client < self.clients:
            self.recorder.update(r, client, params, samples=samples, rate=rate, steps=steps)


def settle(model: nn.Module, history: Sequence[Params]) -> nn.Module:
    """The model as candidates are passed through it: in evaluation mode, with the last statistics."""
    still = deepcopy(model).eval()
    still.load_state_dict({**still.state_dict(), **history[-1]})
    return still
