"""Every attack on every client of a recording, and what it found."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import count

import torch
from torch import Tensor, nn

from leakscope.attacks.span_membership import Reach
from leakscope.audits.membership.found import Client, MemberAttack, MembershipFound, Seen
from leakscope.audits.world import judge_outputs
from leakscope.core.basis import Mean
from leakscope.core.dataset import Batch, Dataset, joined
from leakscope.core.errors import DataError
from leakscope.core.nouns import Attack, Estimate, Knowledge, Params, Transcript, View
from leakscope.core.rng import seeded
from leakscope.core.task import task_loss
from leakscope.games import Membership
from leakscope.games.referee import play
from leakscope.gradients.joint import is_batchwise
from leakscope.measures.exchangeability import Exchangeability, exchangeability
from leakscope.measures.membership import conformal, plr_at_fpr
from leakscope.measures.shuffled import shuffled
from leakscope.measures.success import auroc, roc, tpr_at_fpr
from leakscope.results.kind import Watch
from leakscope.results.scores import Scores, Worth
from leakscope.training import logits
from leakscope.training.recording import RecordedChannel, Recording

DOUBT = 0.05  # the chance that records which differ in membership alone are said to differ, of all clients
RATES = (0.01, 0.05, 0.1)  # nominal false positive rates at which the conformal test is judged


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
        held, others = zip(*self.apart[whose], strict=True)
        return joined(held), joined(others)


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

    def channels(self) -> list[tuple[str | None, RecordedChannel, slice]]:
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
    watch: Watch | None = None,
) -> tuple[MemberAttack, ...]:
    """Every attack on every client: its measures, their means and standard deviations over clients; of the
    first, where all clients are in every sum, how that grows with the rounds. ``watch`` is told of every game
    that is finished."""
    shorter = list(_shorten(attacks[0], watched))
    total, done = len(attacks) * len(watched.channels()) + len(shorter), count(1)
    tell = watch or (lambda done, of: None)
    tell(0, total)

    def games(attack: Attack, watched: WatchedFederation) -> Iterator[tuple[str | None, Transcript]]:
        for game in play_clients(attack, watched, who, trials=trials, seed=seed):
            tell(next(done), total)
            yield game

    first, *others = [_measure(attack, list(games(attack, watched)), seed) for attack in attacks]
    growth = tuple(
        (len(part.rounds), tpr_at_fpr(transcript))
        for part in shorter
        for _, transcript in games(attacks[0], part)
    )
    attempts = (first.model_copy(update={"growth": growth}), *others)
    spaces = [tuple(_look_at_spaces(attack, watched, who)) for attack in attacks]
    return tuple(
        attempt.model_copy(update={"reach": reach}) for attempt, reach in zip(attempts, spaces, strict=True)
    )


def _look_at_spaces(attack: Attack, watched: WatchedFederation, who: Roster) -> Iterator[Reach]:
    """Of an attack by row spaces: the one that it goes by in every game."""
    if callable(reach := getattr(attack, "reach", None)):
        for _, channel, _ in watched.channels():
            yield reach(channel.model, show(channel, who.known), who.known.x)


def show(channel: RecordedChannel, data: Dataset) -> View:
    """What is seen, with these records for candidates."""
    batch = Batch(data, torch.arange(len(data))[:, None])
    nothing = torch.zeros(len(data), dtype=torch.long)
    return View(channel(batch, nothing, torch.Generator()), {"candidates": batch})


def _shorten(attack: Attack, watched: WatchedFederation) -> Iterator[WatchedFederation]:
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
    for name, channel, whose in watched.channels():
        key, own = name or "all clients", joined(who.members[whose])
        told = Membership(own.take(torch.arange(0)), who.known)
        if _taught(attack):
            half = torch.randperm(len(own), generator=seeded(seed, "told", key)).split(-(-len(own) // 2))
            told, own = Membership(own.take(half[0]), who.known), own.take(half[1])
        knowledge = Knowledge(told, channel, 2 * len(who.known))
        held, others = who.outsiders(whose)
        game = Membership(own, others, held)
        yield name, play(game, channel, attack, knowledge, trials=trials, rng=seeded(seed, "play", key))


def compare_sides(
    watched: WatchedFederation, who: Roster, first: Params | None, *, seed: int
) -> tuple[Exchangeability, ...]:
    """Of every game, whether its members and non-members can be told apart before any update is looked at;
    ``first`` is a global model that has seen none of them, if there is one."""
    games = watched.channels()

    def losses(side: Dataset) -> Tensor | None:
        if first is None:
            return None
        return task_loss(logits(watched.model, first, side), side.y, reduction="none")

    def compare(name: str, whose: slice) -> Exchangeability:
        sides = joined(who.members[whose]), joined(who.outsiders(whose))
        return exchangeability(
            *sides,
            *map(losses, sides),
            rng=seeded(seed, "alike", name),
            client=name,
            people=who.people,
            level=DOUBT / len(games),
        )

    return tuple(compare(name or "", whose) for name, _, whose in games)


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


def _measure(attack: Attack, games: Sequence[tuple[str | None, Transcript]], seed: int) -> MemberAttack:
    transcripts = [transcript for _, transcript in games]
    scores, deviation, clients = measure_games(games)
    return MemberAttack(
        name=brief(attack),
        uses=getattr(attack, "sees", None),
        label=getattr(attack, "label", None),
        taught=_taught(attack),
        games=len(games),
        scores=scores,
        deviation=deviation,
        clients=clients,
        roc=_mean_roc(transcripts),
        selfcheck=shuffled(transcripts[0], auroc, null=0.5, rng=seeded(seed, "shuffle")),
    )


def measure_games(
    games: Sequence[tuple[str | None, Transcript]],
) -> tuple[Scores[Estimate], Scores[float], tuple[Client, ...]]:
    """What was found in games about clients: the means over them, their standard deviations, and each."""
    transcripts = [transcript for _, transcript in games]
    measures = _measures(min(len(t.null) if t.null is not None else 0 for t in transcripts))
    tables = [{name: measure(t) for name, measure in measures.items()} for t in transcripts]
    each = {name: [table[name] for table in tables] for name in measures}
    spreads = {
        name: statistics.stdev(estimate.value for estimate in found) if len(found) > 1 else 0.0
        for name, found in each.items()
    }
    clients = tuple(
        Client(
            name=name,
            members=int((transcript.secrets == 1).sum()),
            judged=int((transcript.secrets == 0).sum()),
            scores=Scores[Estimate].model_validate(table),
        )
        for (name, transcript), table in zip(games, tables, strict=True)
        if name is not None
    )
    means = {name: _mean(found) for name, found in each.items()}
    return Scores[Estimate].model_validate(means), Scores[float].model_validate(spreads), clients


def _measures(held: int) -> dict[str, Callable[[Transcript], Estimate]]:
    """What is measured, by name; the tests at rates that so many held-out records can keep."""
    measures: dict[str, Callable[[Transcript], Estimate]] = {
        "plr_at_1%": plr_at_fpr,
        "plr_at_2%": partial(plr_at_fpr, fpr=0.02),
        "plr_at_5%": partial(plr_at_fpr, fpr=0.05),
        "auroc": auroc,
        "tpr_at_1%": tpr_at_fpr,
        "tpr_at_0.1%": partial(tpr_at_fpr, fpr=0.001),
    }
    for rate in RATES:
        if held >= round(1 / rate) - 1:
            measures[f"conformal_fpr_at_{rate:.0%}"] = partial(_conformal, fpr=rate, part=0)
            measures[f"conformal_tpr_at_{rate:.0%}"] = partial(_conformal, fpr=rate, part=1)
    return measures


def _mean_roc(transcripts: Sequence[Transcript]) -> tuple[tuple[float, float], ...]:
    """The mean over clients of the hits within each rate; where they share their non-members their grids are
    the same, and nothing is said of others."""
    curves = [roc(transcript) for transcript in transcripts]
    hits = [[tpr for _, tpr in curve] for curve in curves]
    rates = [fpr for fpr, _ in curves[0]]
    if any([fpr for fpr, _ in curve] != rates for curve in curves):
        return ()
    return tuple((fpr, statistics.fmean(at)) for fpr, at in zip(rates, zip(*hits, strict=True), strict=True))


def _conformal(transcript: Transcript, *, fpr: float, part: int) -> Estimate:
    return conformal(transcript, fpr=fpr)[part]


def _mean(found: Sequence[Estimate]) -> Estimate:
    """The mean over clients. They share a global model and its non-members, so that their spread says
    little: the interval's ends are the means of the clients' own."""
    if len(found) == 1:
        return found[0]
    value, low, high = (
        sum(getattr(estimate, part) for estimate in found) / len(found) for part in ("value", "low", "high")
    )
    parts = tuple(estimate.basis for estimate in found if estimate.basis and estimate.basis.kind != "mean")
    basis = Mean(value, found[0].n, parts) if len(parts) == len(found) else None
    method = f"{found[0].method}, mean of {len(found)} clients"
    return replace(found[0], value=value, low=low, high=high, method=method, basis=basis)
