"""Membership inference on representations: from a record's representation and label, was it trained on?

Paper 003 defines the adversary as A(f(x), y) and teaches it known members and non-members, which is more
than the attacks of paper 002 know. All of these see the representation as it was released.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor, nn

from leakscope.attacks.alignment import refuse_numbers
from leakscope.attacks.rehearsal import candidates, reader, released, single, task, unkeyed, with_label
from leakscope.attacks.representations import Network
from leakscope.attacks.traits import Traits
from leakscope.core.dataset import Batch, Dataset, joined
from leakscope.core.errors import ArgumentError, require
from leakscope.core.nouns import Game, Guess, Knowledge, View
from leakscope.core.rng import dealt, initialised, integer
from leakscope.core.task import is_number, task_loss
from leakscope.games import Membership
from leakscope.games.representations import Clean, RepresentationChannel
from leakscope.guards.encoder import Encoder, Guarded

Scores = Callable[[Tensor, Tensor], Tensor]  # (logits (n, classes), labels (n,)) -> (n,)


@dataclass(frozen=True)
class LossThreshold:
    """Members have less loss than a threshold, which known members and non-members set (Yeom et al. 2018).

    The loss is that of the encoder's own head on the released representation."""

    traits = Traits(needs_head=True)

    def __call__(self, knowledge: Knowledge, rng: torch.Generator) -> Guess:
        return _above(knowledge, rng, lambda logits, y: -task_loss(logits, y, reduction="none"))


@dataclass(frozen=True)
class HeadConfidence:
    """Members are classified with more confidence than a threshold, whatever their label (Salem et al. 2019).

    The confidence is that of the encoder's own head on the released representation; no label is used."""

    traits = Traits(needs_head=True, needs_classes=True)

    def __call__(self, knowledge: Knowledge, rng: torch.Generator) -> Guess:
        def confidence(logits: Tensor, y: Tensor) -> Tensor:
            refuse_numbers(y, "HeadConfidence")
            return _margin(logits, logits.argmax(1))

        return _above(knowledge, rng, confidence)


@dataclass(frozen=True)
class LabelAware:
    """A network on the representation, the label, the head's output and the loss, taught by KNOWN MEMBERS.

    The adversary A(f(x), y) of paper 003, whose code leaves the label out. The loss is given as it is and
    as the logit of the label's probability, in which small losses differ."""

    network: Network = field(default_factory=Network)

    traits = Traits(needs_head=True)

    def __call__(self, knowledge: Knowledge, rng: torch.Generator) -> Guess:
        read = reader(knowledge)

        def features(view: View) -> list[Tensor]:
            margin = _margin(*read(view)[1:])[:, None]
            return [torch.cat([with_label(read, view), margin.float()], dim=1)]

        return self.network.taught(knowledge, features, rng)


@dataclass(frozen=True)
class LiRA:
    """The likelihood ratio of a record's confidence under shadow models that had it and that had not.

    Carlini et al. (S&P 2022), online: each of ``shadows`` is trained on a random half of the candidates and
    the adversary's own records as the encoder was, by ``guard`` or, without one, plainly for ``epochs`` at
    ``rate``. The logit-scaled confidence is taken for Gaussian around each record's own two medians, with
    one variance for all records, since so few shadows give none of each. Known members and non-members set
    the threshold. A guard's reference is half of the known non-members, which is left out of the halves.
    ``beside`` are more records of which some may be members, so that a rehearsal's shadows have as many to
    learn from as those of the real game.
    """

    shadows: int = 16
    guard: Callable[..., Guarded] | None = None
    epochs: int = 35
    rate: float = 1e-3
    batch: int = 64
    beside: Dataset | None = field(default=None, repr=False, compare=False)

    traits = Traits(slow=True)

    def __post_init__(self) -> None:
        require(self.shadows >= 2, "LiRA.shadows", "at least 2", self.shadows)
        require(self.epochs >= 1, "LiRA.epochs", "at least 1", self.epochs)
        require(self.rate > 0, "LiRA.rate", "positive", self.rate)
        require(self.batch >= 1, "LiRA.batch", "at least 1", self.batch)

    def __call__(self, knowledge: Knowledge, rng: torch.Generator) -> Guess:
        channel, seed = single(knowledge), integer(rng)
        read, game, target = reader(knowledge), knowledge.game, channel.rehearsed(rng)

        def guess(view: View) -> Tensor:
            _, logits, y = read(view)
            asked, own = candidates(view), torch.Generator().manual_seed(seed)
            members, others, reference = _known(game, own, reference=self.guard is not None)
            parts = [asked, *members, *others]
            judged = joined(parts)
            pool = joined([*parts, self.beside]) if self.beside is not None else judged
            inside = dealt(self.shadows, len(pool), self.shadows // 2, own)
            said = []
            for chosen in inside:
                encoder = self._shadow(channel.encoder, pool.take(chosen.nonzero()[:, 0]), reference, own)
                said.append(_confidence(replace(channel, encoder=encoder, key=integer(own)), judged, own))
            margin = torch.cat([_margin(logits, y), *(_confidence(target, p, own) for p in parts[1:])])
            ratio = _ratio(margin, torch.stack(said), inside[:, : len(judged)])
            found, known = ratio[: len(asked)], ratio[len(asked) :]
            told = sum(map(len, members))
            if not 0 < told < len(known):
                return found
            return found - _threshold(known, torch.arange(len(known)) < told)

        return guess

    def among(self, asked: Dataset) -> LiRA:
        """See `Shadowing`: shadows of fewer records than the real ones would look weaker than they are."""
        return replace(self, beside=asked)

    def on_plain(self, epochs: int) -> LiRA:
        """See `Shadowing`."""
        return replace(self, guard=None, epochs=epochs)

    def _shadow(self, like: Encoder, data: Dataset, others: Dataset | None, rng: torch.Generator) -> Encoder:
        if self.guard is not None:
            return self.guard(data, rng, others=others).encoder
        return plainly(like, data, rng, epochs=self.epochs, rate=self.rate, batch=self.batch)


def plainly(
    like: Encoder, data: Dataset, rng: torch.Generator, *, epochs: int, rate: float = 1e-3, batch: int = 64
) -> Encoder:
    """An encoder of the same architecture and noise, with a head, trained from new weights for the task
    alone: Adam for ``epochs``, with fresh noise in every step."""
    if like.head is None:
        raise ArgumentError("plain training needs an encoder with a head, and this one has none; give one.")
    network, head = (initialised(partial(_anew, part), rng) for part in (like.network, like.head))
    made = replace(like, network=network, head=head)
    model = nn.ModuleList([Clean(network, normed=like.normed), head]).requires_grad_(True).train()
    adam, noise = torch.optim.Adam(model.parameters(), rate), like.perturbation
    for _ in range(epochs):
        for rows in torch.randperm(len(data), generator=rng).split(batch):
            if len(rows) < 2:  # batch norm has no variance of one record
                continue
            r = model[0](data.x[rows])
            if not noise.silent:
                r = r + noise.delta(noise.draws(r, rng))
            adam.zero_grad()
            task_loss(head(r), data.y[rows]).backward()
            adam.step()
    model.eval().requires_grad_(False)
    return made


def _anew(module: nn.Module) -> nn.Module:
    """A copy with the weights each layer starts from."""
    fresh = copy.deepcopy(module)
    for layer in fresh.modules():
        reset = getattr(layer, "reset_parameters", None)
        if reset is not None:
            reset()
    return fresh


def _known(
    game: Game, rng: torch.Generator, *, reference: bool
) -> tuple[list[Dataset], list[Dataset], Dataset | None]:
    """The members and the non-members that the adversary knows, and those a guard takes for its reference."""
    if not isinstance(game, Membership):
        return [], [], None
    members, others = (replace(part, private={}) for part in (game.members, game.others))
    if not reference:
        return [members], [others], None
    if len(others) < 2:
        return [members], [], others
    rows = torch.randperm(len(others), generator=rng).tensor_split(2)
    return [members], [others.take(rows[0])], others.take(rows[1])


def _confidence(channel: RepresentationChannel, data: Dataset, rng: torch.Generator) -> Tensor:
    """The margin of every record's own label, from what the channel shows of it."""
    batch = Batch(data, torch.arange(len(data))[:, None])
    r = released(channel(batch, torch.zeros(len(data), dtype=torch.long), rng)[0])
    return _margin(task(channel.encoder, r, data.x[:1]), data.y)


def _ratio(own: Tensor, said: Tensor, inside: Tensor) -> Tensor:
    """Log likelihood ratio (n,) of ``own`` (n,), from the shadows' confidences (s, n)."""
    sides = []
    for chosen in (inside, ~inside):
        shown = said.masked_fill(~chosen, torch.nan)
        middle = shown.nanquantile(0.5, 0)  # nanmedian is the lower of the middle two
        variance = (shown - middle).square().nanmean().clamp(min=1e-12)
        sides.append(-(own - middle).square() / (2 * variance) - variance.log() / 2)
    return sides[0] - sides[1]


def _margin(logits: Tensor, y: Tensor) -> Tensor:
    """log p / (1 - p) of a label's probability, without rounding p to 1; of a number, how far off it is."""
    if is_number(y):
        return logits.double()[:, 0] - y.double()
    rest = logits.double().scatter(1, y[:, None], -math.inf).logsumexp(1)
    return logits.double().gather(1, y[:, None])[:, 0] - rest


def _above(knowledge: Knowledge, rng: torch.Generator, score: Scores) -> Guess:
    """The score less the threshold that tells the known members best from the known non-members."""
    read = reader(knowledge)
    view, secrets = unkeyed(knowledge, rng).simulate(rng)
    if not (secrets == 1).any() or not (secrets == 0).any():
        raise ArgumentError(
            "a threshold needs known members and known non-members, and the adversary's rehearsal lacks one; "
            "give it Membership(members, others) of its own."
        )
    _, logits, y = read(view)
    threshold = _threshold(score(logits.double(), y), secrets == 1)

    def guess(view: View) -> Tensor:
        _, logits, y = read(view)
        return score(logits.double(), y) - threshold

    return guess


def _threshold(scores: Tensor, member: Tensor) -> float:
    """Half-way between the two scores where balanced accuracy is best; ties are kept together."""
    levels, place = scores.unique(return_inverse=True)
    true = torch.bincount(place[member], minlength=len(levels)).double().cumsum(0) / member.sum()
    false = torch.bincount(place[~member], minlength=len(levels)).double().cumsum(0) / (~member).sum()
    if len(levels) == 1:
        return float(levels[0])
    best = int((false - true)[:-1].argmax())
    return float(levels[best] + levels[best + 1]) / 2
