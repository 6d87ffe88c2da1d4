"""What an attack could not use of what it was given, said beside its numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from leakscope.audits.membership.judged import Roster, WatchedFederation
from leakscope.core.nouns import Attack
from leakscope.training.recording.index import listed


def describe_limits(
    attacks: Sequence[Attack], watched: WatchedFederation, who: Roster, *, trials: int
) -> Iterator[str]:
    """Where an attack was a weaker one than its name says."""
    wide = [type(attack).__name__ for attack in attacks if getattr(attack, "sees", None) == "all updates"]
    if wide and (alone := list(_count_alone(watched))):
        yield (
            f"These clients were the only ones whose upload is recorded: {listed(alone)}. There "
            f"{' and '.join(wide)} had no other client's update to take off, and the whitened score stands "
            f"as it is."
        )
    some, most = who.known.take(torch.arange(2)), max(_count_candidates(watched, who, trials))
    for attack in attacks:
        list_left_out = getattr(attack, "list_left_out", None)
        if names := list_left_out(watched.model, some.x, some.y, most) if list_left_out else ():
            yield (
                f"{type(attack).__name__} does not look at these layers, whose gradients are too large to be "
                f"regressed together for {most:,} candidates: {listed(names)}. Members may show in them."
            )

    joint = [type(attack).__name__ for attack in attacks if getattr(attack, "together", False)]
    listed_members, behind = _count_listed(watched, who, trials), _count_behind(watched)
    if joint and listed_members < behind:
        yield (
            f"{' and '.join(joint)} explains a sum by all candidates at once, and was given "
            f"{listed_members:,} of the {behind:,} records behind a sum. Whoever lists more of them finds "
            f"more: give more candidates, and raise --trials."
        )


def _count_listed(watched: WatchedFederation, who: Roster, trials: int) -> int:
    """The members that the game with the most lists at once, as `Membership.deal` draws them."""
    sizes = [sum(len(part) for part in who.members[whose]) for _, _, whose in watched.channels()]
    return min(trials // 2, max(sizes))


def _count_behind(watched: WatchedFederation) -> int:
    """The records behind the largest sum that is recorded; 0 where none is seen."""
    recording = watched.recording
    if watched.seen == "uploads":
        return 0
    return max(sum(recording.samples(r, part) for part in recording.parts_in(r)) for r in recording.rounds)


def _count_alone(watched: WatchedFederation) -> Iterator[str]:
    """The clients who uploaded alone, and in how many of their rounds."""
    for name, channel, _ in watched.channels():
        alone = [len(watched.recording.clients_in(r)) == 1 for r in channel.rounds]
        if any(alone):
            yield f"{name} in {sum(alone)} of {len(alone)} rounds"


def _count_candidates(watched: WatchedFederation, who: Roster, trials: int) -> Iterator[int]:
    """How many records each game asks about at once, as `Membership.deal` draws them."""
    for _, _, whose in watched.channels():
        held, others = who.outsiders(whose)
        members = sum(len(member) for member in who.members[whose])
        yield min(trials // 2, members) + min(trials - trials // 2, len(others)) + len(held)
