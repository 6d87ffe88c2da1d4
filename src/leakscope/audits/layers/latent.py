"""What each layer tells about a private attribute: an attack family on it, and two measures without one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from leakscope import gradients
from leakscope.attacks.family import Family, Learned
from leakscope.attacks.heads import Logistic
from leakscope.attacks.posterior import Posterior
from leakscope.attacks.reductions import Flat, UnitMax
from leakscope.audits.layers.found import COUNTS, WHOLE, Leak, SampleRatio, SubspaceGap
from leakscope.core.dataset import Batch
from leakscope.core.nouns import Channel, Estimate, Knowledge, Release, Transcript
from leakscope.core.rng import fork, seeded
from leakscope.core.task import is_number
from leakscope.games import Inference
from leakscope.games.channels import GradientChannel
from leakscope.measures.shuffled import shuffled
from leakscope.measures.subspace import subspace_distance, two_sample
from leakscope.measures.success import advantage, auroc
from leakscope.measures.vinformation import v_information

Groups = Mapping[str, tuple[str, ...]]  # what is looked at together -> the names of its parameters
MEMORY = 200_000_000  # bytes of single records' gradients on either side of a subspace distance
SIDE = 400  # records on either side, at most


@dataclass(frozen=True)
class LayerAttempt:
    """What an attack family found, and what it gained in its own rehearsal, by which layers are put in
    order."""

    leak: Leak[Estimate]
    gain: float


@dataclass(frozen=True, eq=False)
class Attacker:
    """An attack family on one game, with what it rehearses on and how often."""

    game: Inference
    rehearsal: Inference
    family: Family
    rehearsals: int
    trials: int

    def attack(
        self, channel: Channel, sets: Groups, groups: Groups | None = None, *, rng: torch.Generator
    ) -> dict[str, LayerAttempt]:
        """What each set of layers gives away of the same challenges; ``groups`` are their parameters (None:
        all that is released, under "")."""
        game, family = self.game, self.family
        knowledge = Knowledge(self.rehearsal, channel, self.rehearsals)
        cut, learn, deal, *rehearse = fork(rng, 3 + family.folds)
        shown = [part.simulate(r) for part, r in zip(family.folded(knowledge, cut), rehearse, strict=True)]
        rehearsed = [family.features(view, groups) for view, _ in shown]
        told = [secrets for _, secrets in shown]
        view, secrets = game.deal(channel, self.trials, deal)
        attempts = {}
        for group, features in family.features(view, groups).items():
            learned = family.learned([each[group] for each in rehearsed], told, len(game.chances), learn)
            posterior = torch.from_numpy(learned.posterior(features)) * game.chances
            said = posterior / posterior.sum(1, keepdim=True)
            leak = _measure(Transcript(secrets, said, game.chances), learned, group or WHOLE, sets[group])
            attempts[group] = LayerAttempt(leak, learned.gain)
        return attempts

    def count_labels(self, rng: torch.Generator) -> Leak[Estimate]:
        """What the counts of the batch's labels alone tell."""
        counting = replace(self.family, members=(Posterior(Logistic(), Flat()),))
        attempts = replace(self, family=counting).attack(_Counts(), {"": ()}, rng=rng)
        return attempts[""].leak.model_copy(update={"name": COUNTS})


def _measure(transcript: Transcript, learned: Learned, name: str, layers: tuple[str, ...]) -> Leak[Estimate]:
    return Leak[Estimate](
        name=name,
        layers=layers,
        information=v_information(transcript, calibrate=False),
        auroc=auroc(transcript),
        advantage=advantage(transcript),
        family="guessing" if learned.member is None else f"{learned.member.head} on {learned.member.reduce}",
        selfcheck=shuffled(transcript, auroc, null=0.5, rng=seeded(0, "shuffle")),
    )


@dataclass(frozen=True)
class _Counts:
    """Releases how often each label is in the batch, or which numbers are: what the task alone tells about a
    secret."""

    def __call__(self, batch: Batch, secret: Tensor, rng: torch.Generator) -> tuple[Release, ...]:
        y = batch.data.y[batch.rows]
        if is_number(batch.data.y):
            return (Release.of({"labels": y.sort(1).values.float()}),)
        labels = torch.nn.functional.one_hot(y, batch.data.classes)
        return (Release.of({"labels": labels.double().mean(1).float()}),)


def compare_values(
    channel: GradientChannel,
    game: Inference,
    groups: Groups,
    *,
    by: str | None,
    splits: int,
    rng: torch.Generator,
) -> tuple[dict[str, SubspaceGap[Estimate]], dict[str, SampleRatio[Estimate]]]:
    """The subspace distance between the mean gradients of the secret's two most frequent values, layer by
    layer, and the two-sample statistic of the attack's features of single records."""
    channel, (draw, permute) = channel.of_single_records(game.data), fork(rng, 2)
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
    ratios = {}
    for group, names in groups.items():
        features = [UnitMax().of({name: side[name] for name in names}) for side in layers]
        if all(torch.equal(side, features[0][:1].expand_as(side)) for side in features):
            continue  # a dead layer has nothing to compare
        t = two_sample(*features, people0=people[0], people1=people[1], splits=splits, rng=permute)
        ratios[group] = SampleRatio[Estimate](log_ratio=t.log_ratio, p=t.p)
    return {
        name: SubspaceGap[Estimate](
            distance=d.estimate,
            normalised=d.normalised,
            rank=d.rank,
            null_mean=d.null_mean,
            null_sd=d.null_sd,
            p=d.p,
        )
        for name, d in distances.items()
    }, ratios


def _sides(game: Inference, channel: GradientChannel, by: str | None, rng: torch.Generator) -> list[Tensor]:
    """As many records of either value, each label as often on both sides where the game balances them, and
    no more than their gradients may take of memory. A person is on the side of most of their records."""
    data, codes, strata = game.data, game.data.secret(game.secret), game.data.strata
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
        [strata == label for label in strata.unique()] if game.balanced else [torch.ones_like(data.y) > 0]
    )
    pools = [[(side & label).nonzero()[:, 0] for label in labels] for side in sides]
    each = [min(len(a), len(b), max(1, room // len(labels))) for a, b in zip(*pools, strict=True)]
    return [
        torch.cat([p[torch.randperm(len(p), generator=rng)[:n]] for p, n in zip(side, each, strict=True)])
        for side in pools
    ]
