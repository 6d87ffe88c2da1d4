"""Whether clients are called alike in candidates and recording, by what their uploads say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from scipy.stats import ttest_1samp
from torch import Tensor

from leakscope.attacks.whitened import Whitened
from leakscope.audits.membership.judged import Roster, WatchedFederation, show
from leakscope.core.dataset import Dataset, joined
from leakscope.core.errors import ArgumentError, DataError
from leakscope.training.recording import RecordedChannel
from leakscope.training.recording.index import listed

CLIENTS, ROUNDS, MEMBERS, KNOWN = 16, 3, 50, 600  # that are looked at, at most
DOUBT = 1e-3  # the chance that names which are right are said to be wrong
LITTLE = 0.25  # of a score against another's uploads: members' score against their own is never so low


def refuse_exchanged(watched: WatchedFederation, who: Roster) -> None:
    """Refuse clients whose members score clearly higher against another client's uploads, and next to nothing
    against their own, where the same is true of that other client: each would be looked for where it is not.
    One whose uploads hide its members, beside another with records like them, is none: noise that an upload
    has by chance along a client's records it has along nobody's records like them too."""
    if watched.seen != "uploads" or not (chosen := _choose(watched)):
        return
    rounds, names = chosen
    places = [watched.clients.index(name) for name in names]
    members = [who.members[c].take(torch.arange(min(MEMBERS, len(who.members[c])))) for c in places]
    members += [_find_nearest(part, who.held) for part in members]
    few = replace(who, members=tuple(members), known=who.known.take(torch.arange(min(KNOWN, len(who.known)))))
    try:
        scores = _score(watched, few, rounds, names)
    except ArgumentError:  # a net that cannot be whitened
        return
    sizes, looks = [len(part) for part in members], [(rounds, torch.stack(scores).mean(0))]
    looks += [((r,), z) for r, z in zip(rounds, scores, strict=True) if len(rounds) > 1]
    level = DOUBT / (len(looks) * len(names) * (len(names) - 1))
    for when, z in looks:
        parts = z.split(sizes, 1)
        fits = _fit_others(parts[: len(names)], parts[len(names) :], level)
        pairs = [f"those of {names[c]!r} those of {names[d]!r}" for c, d in fits.items() if d in fits]
        if pairs:
            raise DataError(
                f"candidates fit the uploads of another client than they are said to be of, in round "
                f"{listed(when)}: {', '.join(pairs)}. Clients are called otherwise in the candidates than in "
                f"the recording, or otherwise in every round; name them alike."
            )


def _fit_others(scores: Sequence[Tensor], like: Sequence[Tensor], level: float) -> dict[int, int]:
    """Of clients whose members' scores, (clients, members) each, are clearly higher against another client's
    uploads than against their own, where they are next to nothing, and than those of nobody's records that
    are ``like`` them, that other client."""
    fits: dict[int, int] = {}
    for c, (own, others) in enumerate(zip(scores, like, strict=True)):
        mean = own.mean(1)
        d = int(mean.argmax())
        if mean[c] < LITTLE * mean[d] and own.shape[1] > 2:
            gaps = (own[d] - own[c], own[d] - others[d])
            p = max(float(ttest_1samp(gap.numpy(), 0.0, alternative="greater").pvalue) for gap in gaps)
            fits |= {c: d} if p < level else {}
    return fits


def _find_nearest(part: Dataset, others: Dataset) -> Dataset:
    """For every record the nearest of the others, of the same label if there is one."""
    apart = torch.cdist(part.x.flatten(1).double(), others.x.flatten(1).double())
    return others.take((apart + apart.max() * (part.y[:, None] != others.y)).argmin(1))


def _choose(watched: WatchedFederation) -> tuple[tuple[int, ...], tuple[str, ...]] | None:
    """Rounds, and clients who are in all of them; None where there are not two."""
    recording = watched.recording
    every = {r: {*recording.clients_in(r)} for r in recording.rounds}
    there = {r: [name for name in watched.clients if name in uploaded] for r, uploaded in every.items()}
    first = max(there, key=lambda r: len(there[r]))
    names = there[first][:CLIENTS]
    rounds = [r for r in there if set(names) <= set(there[r])][:ROUNDS]
    return (tuple(rounds), tuple(names)) if len(names) > 1 else None


def _score(
    watched: WatchedFederation, who: Roster, rounds: tuple[int, ...], names: tuple[str, ...]
) -> list[Tensor]:
    """(clients, n) a round: all members against each client's uploads, less those of the others."""
    attack, known, members = Whitened(by_class=True), (who.known.x, who.known.y), joined(who.members)
    attack.check(watched.model, known[0][:4], known[1][:4])
    channel = RecordedChannel(watched.recording, watched.model, names, rounds)
    found = attack.score_rounds(watched.model, show(channel, members), known)
    return [scores.less_others()[0] for scores in found]
