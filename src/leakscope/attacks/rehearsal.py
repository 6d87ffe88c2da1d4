"""What adversaries on representations share: records of their own to stop by, and nets trained until those
no longer gain."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from leakscope.core.dataset import Batch, Dataset
from leakscope.core.errors import ArgumentError, DataError
from leakscope.core.nouns import Channel, Knowledge, Release, View, flatten
from leakscope.core.rng import fork
from leakscope.core.task import is_number, task_loss
from leakscope.games import Inference, Membership, UserInference
from leakscope.games.representations import RepresentationChannel
from leakscope.guards.encoder import Encoder

SHARE = 0.8  # of the adversary's records it learns from; the others say when to stop
STEPS = 8  # of an epoch at least

Features = Callable[[View], list[Tensor]]  # one (t, f) for each observed round
Pair = tuple[Tensor, Tensor]
Read = Callable[[View], tuple[Tensor, Tensor, Tensor]]  # representations, task logits and labels


def column_of(game: object) -> str | None:
    """The private column a game asks about, if it is about one."""
    name = getattr(game, "secret", None) or getattr(game, "column", None)
    return name if isinstance(name, str) else None


def parted(
    knowledge: Knowledge, rng: torch.Generator, *, share: float = SHARE
) -> tuple[Knowledge, Knowledge]:
    """The rehearsal on ``share`` of the adversary's records, and on the others: records, not challenges,
    or people where these are to be told apart, are kept apart, and every value of the secret is cut alike."""
    game = knowledge.game
    trials = max(2, round(knowledge.trials * share)), max(2, round(knowledge.trials * (1 - share)))
    data = getattr(game, "data", None)
    if isinstance(game, Membership):
        members, others = (_cut(part, None, share, rng) for part in (game.members, game.others))
        return (
            replace(knowledge, game=Membership(members[0], others[0]), trials=trials[0]),
            replace(knowledge, game=Membership(members[1], others[1]), trials=trials[1]),
        )
    if not isinstance(data, Dataset):
        raise ArgumentError(
            f"the adversary must rehearse on records that can be kept apart, got {type(game).__name__}; use "
            f"Posterior."
        )
    if isinstance(game, UserInference):
        first, second = _cut_people(data, game, share, rng)
        return (
            replace(knowledge, game=game.on(first), trials=trials[0]),
            replace(knowledge, game=game.on(second), trials=trials[1]),
        )
    least = 2 * game.batch if isinstance(game, Inference) else 2
    column = column_of(game)
    first, second = _cut(data, column, share, rng, least=least)
    if len(second) == 0 or (column is not None and len(second.secret(column).unique()) < 2):
        raise DataError(
            f"{data.name}: of {len(data)} public records too few have the same value for the adversary to "
            f"keep some of every kind apart; give more public records, or merge rare values.",
            public="too few public records have the same value for the adversary to keep some of every kind "
            "apart; give more public records, or merge rare values.",
        )
    return (
        replace(knowledge, game=game.on(first), trials=trials[0]),
        replace(knowledge, game=game.on(second), trials=trials[1]),
    )


def _cut_people(
    data: Dataset, game: UserInference, share: float, rng: torch.Generator
) -> tuple[Dataset, Dataset]:
    """The records of some people, and of others, of whom there are as many as candidates at least."""
    data = data.frequent(game.user, 2 * game.batch)  # who can be played
    codes = data.secret(game.user)
    people = codes.unique()
    people = people[torch.randperm(len(people), generator=rng)]
    held = torch.isin(codes, people[: max(game.candidates, round((1 - share) * len(people)))])
    return data.take((~held).nonzero()[:, 0]), data.take(held.nonzero()[:, 0])


def _cut(
    data: Dataset, column: str | None, share: float, rng: torch.Generator, *, least: int = 0
) -> tuple[Dataset, Dataset]:
    """The records cut by their shares of every value; of a rare one the second part has ``least`` or, where
    the first would then have fewer, none."""
    order = torch.randperm(len(data), generator=rng)
    if column is not None:
        order = order[data.secret(column)[order].argsort(stable=True)]
    turns = (torch.arange(len(data) + 1, dtype=torch.float64) * (1 - share) + 0.5).floor()
    held = turns.diff() > 0
    if column is not None:
        codes = data.secret(column)[order]
        for code in codes.unique():
            rows = (codes == code).nonzero()[:, 0]
            wanted = int(held[rows].sum())
            if wanted < least or len(rows) - wanted < least:
                held[rows] = torch.arange(len(rows)) < (least if len(rows) >= 2 * least else 0)
    return data.take(order[~held]), data.take(order[held])


def unkeyed(knowledge: Knowledge, rng: torch.Generator) -> Knowledge:
    """The same, with frozen draws of its own: who has the encoder need not have the key."""
    channel: Channel = knowledge.channel
    if isinstance(channel, RepresentationChannel):
        channel = channel.rehearsed(rng)
    return replace(knowledge, channel=channel)


def released(release: Release) -> Tensor:
    """What one round released, (t, f)."""
    return torch.cat([flatten(layers) for layers in release.blocks()]).float()


def of_view(view: View) -> list[Tensor]:
    """What each round released, with the side knowledge, if any, in front."""
    known = view.public.get("known")
    side = [known.float()] if isinstance(known, Tensor) else []
    return [torch.cat([*side, released(release)], dim=1) for release in view.releases]


def rehearsed(
    knowledge: Knowledge, features: Features, rng: torch.Generator, *, draws: int = 1
) -> list[tuple[list[Tensor], Tensor]]:
    """``draws`` rehearsals, each with challenges and noise of its own: features and secrets."""
    shown = (unkeyed(knowledge, one).simulate(one) for one in fork(rng, draws))
    return [(features(view), told) for view, told in shown]


def scale_of(features: Tensor) -> Pair:
    """The mean and standard deviation (f,) to scale by; 1 for what does not vary."""
    std = features.std(0, correction=0)
    return features.mean(0), torch.where(std > 1e-12, std, 1.0)


def converged(
    net: nn.Module,
    fit: Sequence[Pair],
    held: Pair,
    loss: Callable[[Tensor, Tensor], Tensor],
    rng: torch.Generator,
    *,
    rate: float,
    batch: int,
    patience: int,
    epochs: int,
) -> nn.Module:
    """The net after the epoch, the start included, whose mean ``loss`` on ``held`` is least: Adam on
    one rehearsal of ``fit`` after the other, an epoch each, until ``patience`` epochs in a row bring nothing,
    or ``epochs`` in all. Batches are smaller than ``batch`` where an epoch would have fewer than `STEPS`,
    since patience counts epochs."""
    batch = max(1, min(batch, len(fit[0][0]) // STEPS))
    best, kept, waited = math.inf, copy.deepcopy(net.state_dict()), 0
    adam = torch.optim.Adam(net.parameters(), rate)
    for epoch in range(epochs + 1):
        net.train()
        x, y = fit[(epoch - 1) % len(fit)]
        for rows in torch.randperm(len(x), generator=rng).split(batch) if epoch else ():
            adam.zero_grad()
            loss(net(x[rows]), y[rows]).backward()
            adam.step()
        net.eval()
        now = _mean_loss(net, held, loss)
        if now < best:
            best, kept, waited = now, copy.deepcopy(net.state_dict()), 0
        else:
            waited += 1
        if waited >= patience:
            break
    net.load_state_dict(kept)
    return net.requires_grad_(False)


def _mean_loss(net: nn.Module, held: Pair, loss: Callable[[Tensor, Tensor], Tensor]) -> float:
    with torch.no_grad():
        parts = [
            float(loss(net(x), y)) * len(x)
            for x, y in zip(held[0].split(1_024), held[1].split(1_024), strict=True)
        ]
    return sum(parts) / len(held[0])


def single(knowledge: Knowledge) -> RepresentationChannel:
    """The channel of an adversary who uses the encoder's own head on single representations."""
    channel = knowledge.channel
    if not isinstance(channel, RepresentationChannel) or channel.aggregate is not None:
        raise ArgumentError(
            f"this attack needs a RepresentationChannel of single records, got {channel!r}; use Network."
        )
    if channel.encoder.head is None:
        raise ArgumentError("this attack needs an encoder with a head, and this one has none; use Network.")
    return channel


def reader(knowledge: Knowledge) -> Read:
    """What the adversary reads off a view: representations, the encoder's own head on them, and labels."""
    channel = single(knowledge)

    def read(view: View) -> tuple[Tensor, Tensor, Tensor]:
        pool, r = candidates(view), released(view.releases[0])
        return r, task(channel.encoder, r, pool.x[:1]), pool.y

    return read


def with_label(read: Read, view: View) -> Tensor:
    """Representation, label, the head's output and the loss in one row (t, f)."""
    r, logits, y = read(view)
    loss = task_loss(logits, y, reduction="none")
    label = y[:, None] if is_number(y) else F.one_hot(y, logits.shape[1])
    return torch.cat([r, label, logits, loss[:, None]], dim=1).float()


def task(encoder: Encoder, r: Tensor, like: Tensor) -> Tensor:
    """The head's logits of flat representations in float64; one record tells their shape."""
    head = encoder.head
    assert head is not None
    head.eval()
    shape = encoder(like, key=0).shape[1:]
    with torch.no_grad():
        return torch.cat([head(part.unflatten(1, shape)) for part in r.split(4_096)]).double()


def candidates(view: View) -> Dataset:
    """The records in question."""
    batch = view.public.get("candidates")
    if not isinstance(batch, Batch) or batch.rows.shape[1:] != (1,):
        raise DataError("membership attacks need candidate records; play them with Membership.")
    return batch.data.take(batch.rows[:, 0])
