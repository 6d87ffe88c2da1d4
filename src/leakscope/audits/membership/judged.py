"""Every attack on every client of a recording, and what it found."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, fields, replace

import torch
from torch import nn

from leakscope.audits.membership.found import ClientGame, MemberAttack, MembershipFound, Seen
from leakscope.audits.membership.scoring import average_games, mean_roc, score
from leakscope.audits.world import judge_outputs
from leakscope.core.dataset import Batch, Dataset, joined
from leakscope.core.errors import DataError
from leakscope.core.nouns import Attack, Estimate, Knowledge, Params, Transcript, View
from leakscope.core.rng import seeded
from leakscope.core.task import task_loss
from leakscope.games import Membership
from leakscope.games.referee import play
from leakscope.gradients.joint import is_batchwise
from leakscope.measures.exchangeability import Exchangeability, exchangeability
from leakscope.measures.shuffled import shuffled
from leakscope.measures.success import auroc, roc, tpr_at_fpr
from leakscope.results.kind import Watch
from leakscope.results.scores import Worth
from leakscope.training import logits
from leakscope.training.recording import RecordedChannel, Recording

DOUBT = 0.05  # the chance that records which differ in membership alone are said to differ, of all clients
ClientChannel = tuple[str | None, RecordedChannel, slice]  # a game about one client, or all (None)


@dataclass(frozen=True, eq=False)
class Roster:
    """Who is who: the clients' records, and the records of nobody in their four uses. Where clients have
    populations and ``names`` of their own, ``apart`` are each client's held-out and judged records of nobody,
    and ``held`` and ``others`` are all of them. ``people`` is the column of whole people who are members or
    not."""

    members: tuple[Dataset, ...]
    known: Dataset
    held: Dataset
    others: Dataset
    validation: Dataset | None = None
    apart: tuple[tuple[Dataset, Dataset], ...] = ()
    people: str | None = None
    names: tuple[str, ...] = ()

    def only(self, places: Sequence[int]) -> Roster:
        """These clients, and everybody's records of nobody."""
        return replace(
            self,
            members=tuple(self.members[c] for c in places),
            apart=tuple(self.apart[c] for c in places) if self.apart else (),
            names=tuple(self.names[c] for c in places) if self.names else (),
        )

    def outsiders(self, whose: slice) -> tuple[Dataset, Dataset]:
        """The held-out and the judged records of nobody to hold these clients' records against."""
        if not self.apart:
            return self.held, self.others
        held, others = (joined(part) for part in zip(*self.apart[whose], strict=True))
        return held.distinct(), others.distinct()  # clients may have a population in common


@dataclass(frozen=True, eq=False)
class WatchedFederation:
    """What the adversary watches: some clients and rounds of a recording; see `RecordedChannel`. ``names``
    are what the clients are called where the recording does not say it; ``apart``: each client's records are
    asked about on their own, whatever is seen. They are so of sums too where who took part tells clients
    apart."""

    recording: Recording
    model: nn.Module
    clients: tuple[str, ...]
    rounds: tuple[int, ...] = ()
    seen: Seen = "uploads"
    centred: bool = False
    names: tuple[str, ...] = ()
    apart: bool = False

    @property
    def called(self) -> tuple[str, ...]:
        return self.names or self.clients

    def channels(self) -> list[ClientChannel]:
        """One a client with its name, or one for all (None) where they are not told apart; and the places of
        its members."""
        games = [
            (name, client, slice(i, i + 1))
            for i, (name, client) in enumerate(zip(self.called, self.clients, strict=True))
        ]

        def channel(clients: tuple[str, ...]) -> RecordedChannel:
            return RecordedChannel(
                self.recording, self.model, clients, self.rounds, self.seen, self.centred, peers=True
            )

        every = channel(self.clients) if self.seen != "uploads" else None
        if every is None or self.apart or drops_out(self.recording, every.rounds, self.clients):
            return [(name, channel((client,)), whose) for name, client, whose in games]
        return [(None, every, slice(None))]


def count_rounds(watched: WatchedFederation) -> tuple[int, ...]:
    """In how many of the rounds each client took part; empty where uploads are seen, or nobody says it."""
    there = [watched.recording.clients_in(r) for r in watched.channels()[0][1].rounds]
    if watched.seen == "uploads" or not all(there):
        return ()
    return tuple(sum(client in names for names in there) for client in watched.clients)


def drops_out(recording: Recording, rounds: Iterable[int], clients: Iterable[str]) -> bool:
    """Whether some of the clients take part in some of the rounds only, and it is known who does."""
    there = [{*recording.clients_in(r)} for r in rounds]
    return all(there) and not all(set(clients) <= names for names in there)


def judge(
    attacks: Sequence[Attack],
    watched: WatchedFederation,
    who: Roster,
    *,
    trials: int,
    seed: int,
    rates: Sequence[float] = (),
    watch: Watch | None = None,
) -> tuple[MemberAttack, ...]:
    """Every attack on every client: its measures, their means and standard deviations over clients; of the
    first, where all clients are in every sum, how that grows with the rounds. ``watch`` is told of every game
    that is finished."""
    games, shorter = watched.channels(), list(shorten(attacks[0], watched))
    told = GameCount(watch, len(attacks) * len(games) + len(shorter))
    tables = [
        [
            judge_game(attack, game, who, trials=trials, seed=seed, rates=rates, first=i == 0, told=told)
            for attack in attacks
        ]
        for i, game in enumerate(games)
    ]
    growth = measure_growth(attacks[0], shorter, who, trials=trials, seed=seed, told=told)
    return conclude(attacks, [game[0] for game in games], tables, growth)


@dataclass
class GameCount:
    """Tells who watches how many of all games are finished."""

    watch: Watch | None
    total: int
    done: int = 0

    def __post_init__(self) -> None:
        if self.watch:
            self.watch(0, self.total)

    def tell(self) -> None:
        self.done += 1
        if self.watch:
            self.watch(self.done, self.total)


def judge_game(
    attack: Attack,
    game: ClientChannel,
    who: Roster,
    *,
    trials: int,
    seed: int,
    rates: Sequence[float] = (),
    first: bool,
    told: GameCount,
) -> ClientGame:
    """What an attack finds of one client; of the ``first`` one it is checked by shuffled secrets."""
    channel, transcript = game[1], _play(attack, game, who, trials=trials, seed=seed)
    reach = getattr(attack, "reach", None)  # of an attack by row spaces: the one that it goes by
    found = ClientGame(
        members=int((transcript.secrets == 1).sum()),
        judged=int((transcript.secrets == 0).sum()),
        scores=score(transcript, rates),
        roc=tuple(roc(transcript)),
        reach=reach(channel.model, show(channel, who.known), who.known.x) if callable(reach) else None,
        selfcheck=shuffled(transcript, auroc, null=0.5, rng=seeded(seed, "shuffle")) if first else None,
    )
    told.tell()
    return found


def measure_growth(
    attack: Attack,
    shorter: Iterable[WatchedFederation],
    who: Roster,
    *,
    trials: int,
    seed: int,
    told: GameCount,
) -> tuple[tuple[int, Estimate], ...]:
    """What is found at 1% false alarms in fewer rounds."""
    growth = []
    for part in shorter:
        for _, transcript in play_clients(attack, part, who, trials=trials, seed=seed):
            growth.append((len(part.rounds), tpr_at_fpr(transcript)))
            told.tell()
    return tuple(growth)


def conclude(
    attacks: Sequence[Attack],
    names: Sequence[str | None],
    tables: Sequence[Sequence[ClientGame]],
    growth: tuple[tuple[int, Estimate], ...] = (),
) -> tuple[MemberAttack, ...]:
    """All clients together, from what every attack found of each."""
    attempts: list[MemberAttack] = []
    for attack, games in zip(attacks, zip(*tables, strict=True), strict=True):
        scores, deviation, clients = average_games(names, games)
        attempts.append(
            MemberAttack(
                name=brief(attack),
                uses=getattr(attack, "sees", None),
                label=getattr(attack, "label", None),
                taught=_taught(attack),
                games=len(games),
                scores=scores,
                deviation=deviation,
                clients=clients,
                roc=mean_roc([game.roc for game in games]),
                growth=growth if not attempts else (),
                reach=tuple(game.reach for game in games if game.reach is not None),
                selfcheck=games[0].selfcheck,
            )
        )
    return tuple(attempts)


def show(channel: RecordedChannel, data: Dataset) -> View:
    """What is seen, with these records for candidates."""
    batch = Batch(data, torch.arange(len(data))[:, None])
    nothing = torch.zeros(len(data), dtype=torch.long)
    return View(channel(batch, nothing, torch.Generator()), {"candidates": batch})


def shorten(attack: Attack, watched: WatchedFederation) -> Iterator[WatchedFederation]:
    """The first 1, 2, 4 and so on of the rounds, fewer than all, where all clients are in every sum."""
    (name, channel, _), *others = watched.channels()
    if name is not None or others or getattr(attack, "sees", None) != "updates":
        return
    rounds = 1
    while rounds < len(channel.rounds):
        yield replace(watched, rounds=channel.rounds[:rounds])
        rounds *= 2


def play_clients(
    attack: Attack, watched: WatchedFederation, who: Roster, *, trials: int, seed: int
) -> Iterator[tuple[str | None, Transcript]]:
    """The game on one client after the other, with its name; None: on all at once."""
    for game in watched.channels():
        yield game[0], _play(attack, game, who, trials=trials, seed=seed)


def _play(attack: Attack, game: ClientChannel, who: Roster, *, trials: int, seed: int) -> Transcript:
    """What is drawn hangs on the seed and the client's name, and on no other client."""
    name, channel, whose = game
    key, own = name or "all clients", joined(who.members[whose])
    told = Membership(own.take(torch.arange(0)), who.known)
    if _taught(attack):
        half = torch.randperm(len(own), generator=seeded(seed, "told", key)).split(-(-len(own) // 2))
        told, own = Membership(own.take(half[0]), who.known), own.take(half[1])
    knowledge = Knowledge(told, channel, 2 * len(who.known))
    held, others = who.outsiders(whose)
    asked = Membership(own, others, held)
    return play(asked, channel, attack, knowledge, trials=trials, rng=seeded(seed, "play", key))


def compare_sides(
    watched: WatchedFederation, who: Roster, first: Params | None, *, seed: int
) -> tuple[Exchangeability, ...]:
    """Of every game, whether its members and non-members can be told apart before any update is looked at;
    ``first`` is a global model that has seen none of them, if there is one."""
    games = watched.channels()
    level = DOUBT / len(games)
    return tuple(compare_side(watched.model, game, who, first, seed=seed, level=level) for game in games)


def compare_side(
    model: nn.Module, game: ClientChannel, who: Roster, first: Params | None, *, seed: int, level: float
) -> Exchangeability:
    """The same of one game, at a ``level`` that allows for the others."""
    (name, _, whose), losses = game, None
    sides = joined(who.members[whose]), joined(who.outsiders(whose))
    if first is not None:
        losses = [task_loss(logits(model, first, side), side.y, reduction="none") for side in sides]
    return exchangeability(
        *sides,
        *(losses or (None, None)),
        rng=seeded(seed, "alike", name or ""),
        client=name or "",
        people=who.people,
        level=level,
    )


def check_attacks(attacks: Iterable[Attack], model: nn.Module, who: Roster) -> None:
    """Refuse an attack that the model does not allow, or that is told members where a client has one."""
    still, some = deepcopy(model).eval(), who.known.take(torch.arange(min(4, len(who.known))))
    for attack in attacks:
        if callable(check := getattr(attack, "check", None)):
            check(still, some.x, some.y)
        if _taught(attack) and min(map(len, who.members)) < 2:
            raise DataError(
                f"{brief(attack)} is told half of each client's records, and one client has a single record; "
                f"leave out the client or the attack."
            )


def gather(
    attempts: tuple[MemberAttack, ...],
    watched: WatchedFederation,
    who: Roster,
    *,
    trials: int,
    utility: Worth[Estimate],
    alike: tuple[Exchangeability, ...] = (),
) -> MembershipFound:
    """All that was found, with how many records of each kind there were, and what was seen. Where clients
    have non-members of their own, so many are held out and judged as of the client with the fewest."""
    apart = [who.outsiders(whose) for _, _, whose in watched.channels()]
    return MembershipFound(
        attacks=attempts,
        clients=len(who.members),
        members=sum(len(member) for member in who.members),
        known=len(who.known),
        held=min(len(held) for held, _ in apart),
        others=len(who.others),
        judged=min(trials - trials // 2, *(len(others) for _, others in apart)),  # as `Membership.deal` draws
        watched=watched.called,
        rounds=min(len(channel.rounds) for _, channel, _ in watched.channels()),
        seen=watched.seen,
        centred=watched.centred,
        took_part=count_rounds(watched),
        utility=utility,
        alike=alike,
        batchwise=is_batchwise(watched.model) and not watched.recording.still,
    )


def measure_worth(model: nn.Module, params: Params, who: Roster) -> Worth[Estimate]:
    """What the model is worth on records of nobody, and on the members'."""
    own = joined(who.members)
    parts = (who.others, own)
    unseen, trained = (judge_outputs(logits(model, params, part), part, ranked=False) for part in parts)
    return unseen.model_copy(update={"trained": trained.main})


def brief(attack: Attack) -> str:
    """The attack by name, with what differs from its defaults: ``Cosine(layer='all')``."""
    plain = type(attack)()
    names = [field.name for field in fields(attack)]  # type: ignore[arg-type]
    told = [f"{n}={getattr(attack, n)!r}" for n in names if getattr(attack, n) != getattr(plain, n)]
    return type(attack).__name__ + (f"({', '.join(told)})" if told else "")


def _taught(attack: Attack) -> bool:
    return bool(getattr(attack, "taught", False))
