"""Every attack on every client of a recording, and what it found."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import nn

from leakscope.attacks.losses import Zari
from leakscope.core import Attack, Estimate, Knowledge, Transcript
from leakscope.dataset import Dataset, joined
from leakscope.games import Membership
from leakscope.measures.membership import conformal, plr_at_fpr
from leakscope.measures.shuffled import shuffled
from leakscope.measures.success import auroc, roc, tpr_at_fpr
from leakscope.recording import RecordedChannel, Recording
from leakscope.referee import play
from leakscope.rng import seeded

RATES = (0.01, 0.05, 0.1)  # nominal false positive rates at which the conformal test is judged
SURER = 0.999  # for who holds several limits against one audit
Seen = Literal["uploads", "sum", "broadcast"]


@dataclass(frozen=True, eq=False)
class Roster:
    """Who is who: the clients' records, and the records of nobody in their four uses."""

    members: tuple[Dataset, ...]
    known: Dataset
    held: Dataset
    others: Dataset
    validation: Dataset | None = None


@dataclass(frozen=True, eq=False)
class Watched:
    """What the adversary watches: some clients and rounds of a recording; see `RecordedChannel`."""

    recording: Recording
    model: nn.Module
    clients: tuple[str, ...]
    rounds: tuple[int, ...] = ()
    seen: Seen = "uploads"
    centred: bool = False

    def channels(self) -> list[tuple[str, RecordedChannel, slice]]:
        """One a client, or one for all where they are not told apart; and the places of its members."""

        def channel(clients: tuple[str, ...]) -> RecordedChannel:
            return RecordedChannel(self.recording, self.model, clients, self.rounds, self.seen, self.centred)

        if self.seen != "uploads":
            return [("all clients", channel(self.clients), slice(None))]
        return [(client, channel((client,)), slice(i, i + 1)) for i, client in enumerate(self.clients)]


def judged(
    attacks: Iterable[Attack], watched: Watched, who: Roster, *, trials: int, seed: int
) -> list[dict[str, Any]]:
    """Every attack on every client: its measures, their means over clients and standard deviations."""
    found = []
    for attack in attacks:
        transcripts = list(played(attack, watched, who, trials=trials, seed=seed))
        found.append({"attack": brief(attack), **_measured(transcripts, seeded(seed, "shuffle"))})
    return found


def played(attack: Attack, watched: Watched, who: Roster, *, trials: int, seed: int) -> Iterator[Transcript]:
    """The game on one client after the other."""
    for name, channel, whose in watched.channels():
        own = joined(who.members[whose])
        told = Membership(own.take(torch.arange(0)), who.known)
        if isinstance(attack, Zari):  # it is told half of the members
            half = torch.randperm(len(own), generator=seeded(seed, "told", name)).split(-(-len(own) // 2))
            told, own = Membership(own.take(half[0]), who.known), own.take(half[1])
        knowledge = Knowledge(told, channel, 2 * len(who.known))
        game = Membership(own, who.others, who.held)
        yield play(game, channel, attack, knowledge, trials=trials, rng=seeded(seed, "play", name))


def sizes(who: Roster, watched: Watched) -> dict[str, Any]:
    """How many records of each kind there were, and what was seen."""
    return {
        "clients": len(who.members),
        "members": sum(len(member) for member in who.members),
        "others": len(who.others),
        "known": len(who.known),
        "held": len(who.held),
        "watched": list(watched.clients),
        "rounds": min(len(channel.rounds) for _, channel, _ in watched.channels()),
        "seen": watched.seen,
        "centred": watched.centred,
    }


def brief(attack: Attack) -> str:
    """The attack by name, with what differs from its defaults: ``Cosine(layer='all')``."""
    plain = type(attack)()
    names = [field.name for field in fields(attack)]  # type: ignore[arg-type]
    told = [f"{n}={getattr(attack, n)!r}" for n in names if getattr(attack, n) != getattr(plain, n)]
    return type(attack).__name__ + (f"({', '.join(told)})" if told else "")


def _measured(transcripts: Sequence[Transcript], rng: torch.Generator) -> dict[str, Any]:
    measures: dict[str, Callable[[Transcript], Estimate]] = {
        "plr_at_1%": plr_at_fpr,
        "plr_at_2%": partial(plr_at_fpr, fpr=0.02),
        "plr_at_5%": partial(plr_at_fpr, fpr=0.05),
        "auroc": auroc,
        "tpr_at_1%": tpr_at_fpr,
        "tpr_at_0.1%": partial(tpr_at_fpr, fpr=0.001),
    }
    for rate in RATES:
        if transcripts[0].null is not None and len(transcripts[0].null) >= round(1 / rate) - 1:
            measures[f"conformal_fpr_at_{rate:.0%}"] = partial(_conformal, fpr=rate, part=0)
            measures[f"conformal_tpr_at_{rate:.0%}"] = partial(_conformal, fpr=rate, part=1)
    each = {name: [measure(t) for t in transcripts] for name, measure in measures.items()}
    return {
        "estimates": {name: asdict(_mean(found)) for name, found in each.items()},
        "sure": {
            name: asdict(_mean([measure(t, level=SURER) for t in transcripts]))
            for name, measure in (("auroc", auroc), ("tpr_at_1%", tpr_at_fpr))
        },
        "deviation": {name: _deviation([one.value for one in found]) for name, found in each.items()},
        "clients": len(transcripts),
        "selfcheck": shuffled(transcripts[0], auroc, null=0.5, rng=rng),  # of one client: they are alike
        "roc": _mean_roc(transcripts),
    }


def _mean_roc(transcripts: Sequence[Transcript]) -> list[list[float]]:
    """The mean over clients of the hits within each rate; they share their non-members, so their grids
    are the same."""
    curves = [roc(transcript) for transcript in transcripts]
    hits = [[tpr for _, tpr in curve] for curve in curves]
    rates = [fpr for fpr, _ in curves[0]]
    return [[fpr, statistics.fmean(at)] for fpr, at in zip(rates, zip(*hits, strict=True), strict=True)]


def _conformal(transcript: Transcript, *, fpr: float, part: int) -> Estimate:
    return conformal(transcript, fpr=fpr)[part]


def _mean(found: Sequence[Estimate]) -> Estimate:
    """The mean over clients. They share a global model and its non-members, so that their spread says
    little: the interval's ends are the means of the clients' own."""
    value, low, high = (
        sum(getattr(one, part) for one in found) / len(found) for part in ("value", "low", "high")
    )
    method = found[0].method if len(found) == 1 else f"{found[0].method}, mean of {len(found)} clients"
    return replace(found[0], value=value, low=low, high=high, method=method)


def _deviation(values: Sequence[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0
