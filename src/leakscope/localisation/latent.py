"""What each layer tells about a private attribute: an attack family on it, and two measures without one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from leakscope import gradients
from leakscope.attacks.family import Family, Learned
from leakscope.attacks.heads import Logistic
from leakscope.attacks.posterior import Posterior
from leakscope.attacks.reductions import Flat, UnitMax
from leakscope.bounds import entropy
from leakscope.channels import GradientChannel
from leakscope.core import Channel, Estimate, Knowledge, Release, Transcript
from leakscope.dataset import Batch
from leakscope.games import Inference
from leakscope.measures.shuffled import shuffled
from leakscope.measures.subspace import subspace_distance, two_sample
from leakscope.measures.success import advantage, auroc
from leakscope.measures.vinformation import v_information
from leakscope.rng import fork, seeded

Groups = Mapping[str, tuple[str, ...]]  # what is looked at together -> the names of its parameters
MEMORY = 200_000_000  # bytes of single records' gradients on either side of a subspace distance
SIDE = 400  # records on either side, at most


@dataclass(frozen=True, eq=False)
class Found:
    """What an attack family found through one set of layers, and what it gained in its own rehearsal, by
    which layers are put in order."""

    information: Estimate
    auroc: Estimate
    advantage: Estimate
    family: str
    gain: float
    selfcheck: Mapping[str, Any]

    @property
    def table(self) -> dict[str, Any]:
        """For the results on disk."""
        numbers = {name: asdict(getattr(self, name)) for name in ("information", "auroc", "advantage")}
        return numbers | {"family": self.family, "selfcheck": dict(self.selfcheck)}


def attacked(
    game: Inference,
    knowledge: Knowledge,
    channel: Channel,
    groups: Groups | None,
    family: Family,
    *,
    trials: int,
    rng: torch.Generator,
) -> dict[str, Found]:
    """The family on each set of layers of the same challenges; None: all that is released, under ""."""
    cut, learn, deal, *rehearse = fork(rng, 3 + family.folds)
    shown = [part.simulate(r) for part, r in zip(family.folded(knowledge, cut), rehearse, strict=True)]
    rehearsed = [family.features(view, groups) for view, _ in shown]
    told = [secrets for _, secrets in shown]
    view, secrets = game.deal(channel, trials, deal)
    seen = family.features(view, groups)
    found = {}
    for group, features in seen.items():
        learned = family.learned([each[group] for each in rehearsed], told, len(game.chances), learn)
        posterior = torch.from_numpy(learned.posterior(features)) * game.chances
        said = posterior / posterior.sum(1, keepdim=True)
        found[group] = _measured(Transcript(secrets, said, game.chances), learned)
    return found


def _measured(transcript: Transcript, learned: Learned) -> Found:
    return Found(
        v_information(transcript, calibrate=False),
        auroc(transcript),
        advantage(transcript),
        "guessing" if learned.member is None else f"{learned.member.head} on {learned.member.reduce}",
        learned.gain,
        shuffled(transcript, auroc, null=0.5, rng=seeded(0, "shuffle")),
    )


@dataclass(frozen=True)
class _Counts:
    """Releases how often each label is in the batch: what the task alone tells about a secret."""

    def __call__(self, batch: Batch, secret: Tensor, rng: torch.Generator) -> tuple[Release, ...]:
        labels = torch.nn.functional.one_hot(batch.data.y[batch.rows], batch.data.classes)
        return (Release.of({"labels": labels.double().mean(1).float()}),)


def by_labels(
    game: Inference,
    rehearsal: Inference,
    family: Family,
    *,
    rehearsals: int,
    trials: int,
    rng: torch.Generator,
) -> Found:
    """What the counts of the batch's labels alone tell."""
    counting = replace(family, members=(Posterior(Logistic(), Flat()),))
    knowledge = Knowledge(rehearsal, _Counts(), rehearsals)
    return attacked(game, knowledge, _Counts(), None, counting, trials=trials, rng=rng)[""]


def most(game: Inference) -> float:
    """The nats of knowing the secret for certain."""
    return entropy(game.chances)


def without_attack(
    channel: GradientChannel,
    game: Inference,
    groups: Groups,
    *,
    by: str | None,
    splits: int,
    rng: torch.Generator,
) -> dict[str, dict[str, Any]]:
    """The subspace distance between the mean gradients of the secret's two most frequent values, layer by
    layer, and the two-sample statistic of the attack's features of single records."""
    draw, permute = fork(rng, 2)
    sides = _sides(game, channel, by, draw)
    params = channel.rounds[0]
    people, layers = [], []
    for rows in sides:
        data = game.data.take(rows)
        loss = channel.defense.loss(channel.loss)
        layers.append(gradients.per_record(channel.model, params, data.x, data.y, loss=loss))
        people.append(data.secret(by) if by else None)
    distances = subspace_distance(
        layers[0], layers[1], people0=people[0], people1=people[1], splits=splits, rng=permute
    )
    subspace = {
        name: _row(d, ("normalised", "rank", "null_mean", "null_sd", "p")) for name, d in distances.items()
    }
    samples = {}
    for group, names in groups.items():
        features = [UnitMax().of({name: side[name] for name in names}) for side in layers]
        if all(torch.equal(side, features[0][:1].expand_as(side)) for side in features):
            continue  # a dead layer has nothing to compare
        t = two_sample(*features, people0=people[0], people1=people[1], splits=splits, rng=permute)
        samples[group] = {"log_ratio": asdict(t.log_ratio), "p": t.p}
    return {"subspace": subspace, "two_sample": samples}


def _row(distance: Any, names: tuple[str, ...]) -> dict[str, Any]:
    return {"distance": asdict(distance.estimate)} | {name: getattr(distance, name) for name in names}


def _sides(game: Inference, channel: GradientChannel, by: str | None, rng: torch.Generator) -> list[Tensor]:
    """As many records of either value, each label as often on both sides where the game balances them, and
    no more than their gradients may take of memory. A person is on the side of most of their records."""
    data, codes = game.data, game.data.secret(game.secret)
    values = torch.bincount(codes).argsort(descending=True, stable=True)[:2].sort().values
    size = 4 * sum(value.numel() for value in channel.rounds[0].values())
    room = max(4, min(SIDE, MEMORY // size))
    sides = [codes == value for value in values]
    if by:
        people = data.secret(by)
        counts = [torch.bincount(people[side], minlength=int(people.max()) + 1) for side in sides]
        second = (counts[1] > counts[0])[people]
        sides = [sides[0] & ~second, sides[1] & second]
    labels = (
        [data.y == label for label in data.y.unique()] if game.balanced else [torch.ones_like(data.y) > 0]
    )
    pools = [[(side & label).nonzero()[:, 0] for label in labels] for side in sides]
    each = [min(len(a), len(b), max(1, room // len(labels))) for a, b in zip(*pools, strict=True)]
    return [
        torch.cat([p[torch.randperm(len(p), generator=rng)[:n]] for p, n in zip(side, each, strict=True)])
        for side in pools
    ]
