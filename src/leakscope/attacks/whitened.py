"""Membership inference by whitened gradients: against one client's updates, those of all, and their sums.

All of these score a record by how its gradient lies to an update once both are whitened by the gradients of
non-members that the adversary knows. What they do about the rest of an update, which a record shares with
others of its class or of other clients, is what tells them apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn

from leakscope.attacks.alignment import (
    Label,
    Sees,
    candidates,
    check_label,
    labels_for,
    labels_to_try,
    loss_for,
    refuse_unlabelled,
    sign_of,
    victim,
)
from leakscope.core.errors import ArgumentError, require
from leakscope.core.nouns import Guess, Knowledge, Layers, Params, Release, View
from leakscope.core.task import is_number
from leakscope.gradients import moments
from leakscope.gradients.aligned import whitened_cosines
from leakscope.gradients.joint import normalise_by
from leakscope.gradients.whitened import Whitening
from leakscope.models import parameters
from leakscope.training.recording.replay import RecordedRelease

FIRM = 1e9  # a damping beyond which nothing changes but the precision
Records = tuple[Tensor, Tensor]  # inputs and labels


@dataclass(frozen=True, eq=False)
class RoundScores:
    """One round: whitened scores of the candidates (labels, updates, layers, n) and of known non-members
    (updates, layers, k), whose mean is about 0 and whose spread is 1 in every layer. There is one label
    unless every label is tried. ``clients`` say whose the updates are, those in question first, or () where
    they are a sum. ``took_part`` is everyone whose update is in the global model's step, empty where nobody
    knows."""

    scores: Tensor
    known: Tensor
    clients: tuple[str, ...]
    took_part: tuple[str, ...]

    @property
    def z(self) -> Tensor:
        """(labels, updates, n): the mean over layers, which is what a score is by itself."""
        return self.scores.mean(2)

    def less_others(self) -> Tensor:
        """(labels, updates, n): each less the mean of the others, of unit spread again in every layer; of a
        round with one update as it is."""
        if len(self.known) == 1:
            return self.z
        left, null = (_less_others(part) for part in (self.scores, self.known))
        return _standardise(left, null).mean(2)


@dataclass(frozen=True)
class Whitened:
    """The cosine's matched filter: update and gradient whitened by the non-members' gradients.

    Per round and layer u = <B⁻¹ΓA⁻¹, g> / √<B⁻¹gA⁻¹, g>, where A and B are the second moments of the
    layer's inputs and output gradients, each with ``damping`` times its mean diagonal added; then u is
    standardised on other non-members and averaged over layers and rounds. ``share`` of the known
    non-members give the moments, the rest the standardisation. ``by_class``: of u is taken what the known
    non-members of the record's class have in the mean, n of them weighing n / (n + 1). ``noise`` is the
    standard deviation of noise the adversary knows to be in every entry of the update: the damping grows
    with its share, until at much noise nothing is whitened. Only linear layers and convolutions are looked
    at. Where clients normalise records by their batches, a record's gradient is taken with the statistics of
    the known non-members under the round's global model, in batches of ``normalised``; 0: with the last
    recorded ones, which lag behind. Null setting: a damping of 1e9, a standardised cosine.
    """

    sees: ClassVar[Sees] = "updates"
    taught: ClassVar[bool] = False  # by members it is told
    label: Label = "known"
    damping: float = 0.1
    noise: float = 0.0
    share: float = 0.8
    only: tuple[str, ...] = field(default=())
    by_class: bool = False
    normalised: int = 256

    def __post_init__(self) -> None:
        check_label("Whitened", self.label)
        require(0 < self.damping <= FIRM, "Whitened.damping", f"positive and at most {FIRM:g}", self.damping)
        require(self.noise >= 0, "Whitened.noise", "at least 0", self.noise)
        require(0 < self.share < 1, "Whitened.share", "between 0 and 1", self.share)
        some = self.normalised == 0 or self.normalised >= 8
        require(some, "Whitened.normalised", "0 or at least 8", self.normalised)

    def check(self, model: nn.Module, x: Tensor, y: Tensor) -> None:
        """Refuse a model that it cannot be played on."""
        refuse_unlabelled(y, self.label)
        found = moments(model, parameters(model), x, y, loss=loss_for(model, "known"))
        self._layers(list(found.inputs))

    def __call__(self, knowledge: Knowledge, rng: torch.Generator) -> Guess:
        model, known = victim(knowledge), self.known(knowledge, rng)

        def guess(view: View) -> Tensor:
            rounds = [found.z[:, 0] for found in self.score_rounds(model, view, known)]
            return torch.stack(rounds).mean(0).amax(0)

        return guess

    def known(self, knowledge: Knowledge, rng: torch.Generator) -> Records:
        """The adversary's own non-members."""
        x, y = candidates(knowledge.simulate(rng)[0])
        if not 2 <= int(len(x) * self.share) <= len(x) - 2:
            raise ArgumentError(f"Whitened needs at least 4 known non-members, got {len(x)}; give more.")
        return x, y

    def score_rounds(
        self, model: nn.Module, view: View, known: Records, *, peers: int = 0
    ) -> Iterator[RoundScores]:
        """The scores of the view's candidates against the updates in question, and those of so many peers,
        of one round after the other."""
        asked = candidates(view)
        return (self._score_round(model, release, asked, known, peers) for release in view.releases)

    def _score_round(
        self, model: nn.Module, release: Release, asked: Records, known: Records, peers: int
    ) -> RoundScores:
        params, own, cut = dict(release.params), release.layers, int(len(known[0]) * self.share)
        updates, clients, there = _all_updates(release, own, peers)
        model = self.settle(model, release, known)
        labels = labels_for(model, params, *known, self.label)
        whitening, along = self.whitening(model, params, own, known), dict[str, list[Tensor]]()

        def cosines(x: Tensor, y: Tensor) -> Tensor:
            loss = loss_for(model, self.label)
            found = whitened_cosines(model, params, x, y, updates, whitening, loss=loss, along=along)
            return sign_of(self.label) * torch.stack([found[name] for name in self._layers([*found])], 1)

        null, tried = cosines(known[0], labels), []
        for guessed in labels_to_try(model, params, *asked, self.label):
            guessed = labels_for(model, params, asked[0], guessed, self.label)
            tried.append(cosines(asked[0], guessed) - self._class_means(null, labels, guessed))
        rest = (null - self._class_means(null, labels, labels))[:, :, cut:]
        scores, known_scores = (_standardise(part, rest) for part in (torch.stack(tried), rest))
        return RoundScores(scores, known_scores, clients, there)

    def settle(self, model: nn.Module, release: Release, known: Records) -> nn.Module:
        """The model as records pass through it in a round."""
        if not self.normalised or (isinstance(release, RecordedRelease) and release.still):
            return model
        return normalise_by(model, dict(release.params), known[0], batch=self.normalised)

    def _class_means(self, null: Tensor, labels: Tensor, wanted: Tensor) -> Tensor:
        """(updates, layers, n): what to take off the score of a record with a ``wanted`` label: of a sum over
        labels, and of labels that are numbers, nothing."""
        if not self.by_class or self.label == "sum" or is_number(labels):
            return torch.zeros((), dtype=null.dtype)
        classes = int(max(labels.max(), wanted.max())) + 1
        counts = torch.bincount(labels, minlength=classes)
        centre = null.mean(2, keepdim=True)
        sums = torch.zeros(*null.shape[:2], classes, dtype=null.dtype).index_add_(2, labels, null - centre)
        return (centre + sums / (counts + 1))[:, :, wanted]

    def _layers(self, names: list[str]) -> list[str]:
        """Those of the layers, by their weights' names, that are looked at."""
        short = [name.rpartition(".")[0] or name for name in names]
        unknown = [name for name in self.only if name not in short]
        require(not unknown, "only", f"layers of the model ({', '.join(short)})", unknown)
        return [name for name, layer in zip(names, short, strict=True) if not self.only or layer in self.only]

    def whitening(self, model: nn.Module, params: Params, own: Layers, known: Records) -> Whitening:
        """The coordinates in which a round's gradients of known non-members look alike in every direction."""
        cut = int(len(known[0]) * self.share)
        x, y = known[0][:cut], known[1][:cut]
        y = labels_for(model, params, x, y, self.label)
        found = moments(model, params, x, y, loss=loss_for(model, self.label))
        damping = {}
        for name in found.inputs:
            size = float(own[name].double().square().mean())
            signal = max(size - self.noise**2, 1e-12 * size)
            damping[name] = min(FIRM, self.damping + (self.noise / signal**0.5 if self.noise else 0.0))
        return found.whitening(damping=damping)


@dataclass(frozen=True)
class OnWhitened:
    """What attacks on the scores of ``whitened`` share: its labels, and the models that it allows."""

    taught: ClassVar[bool] = False
    whitened: Whitened = Whitened(by_class=True)

    @property
    def label(self) -> Label:
        return self.whitened.label

    def check(self, model: nn.Module, x: Tensor, y: Tensor) -> None:
        """Refuse a model that it cannot be played on."""
        self.whitened.check(model, x, y)


@dataclass(frozen=True)
class FedMIA(OnWhitened):
    """Whitened scores against a client's updates less those against the other clients' updates.

    Zhu et al. (CVPR 2025) take the other clients' uploads for the null of a record: what it shares with
    them tells of no client. Here the mean over those peers is taken off the score of ``whitened``, in every
    round and layer, and the rest standardised on known non-members. It never looks at the server's step,
    so that any server will do. No more than ``peers`` are looked at in a round. Of a round in which a client
    uploads alone nothing is taken off. Null setting: peers whose updates say nothing, `Whitened`.
    """

    sees: ClassVar[Sees] = "all updates"
    peers: int = 16

    def __post_init__(self) -> None:
        require(self.peers >= 1, "FedMIA.peers", "at least 1", self.peers)

    def __call__(self, knowledge: Knowledge, rng: torch.Generator) -> Guess:
        model, known = victim(knowledge), self.whitened.known(knowledge, rng)

        def guess(view: View) -> Tensor:
            shown = any(getattr(release, "peers", ()) for release in view.releases)
            if not shown and not all(map(_is_alone, view.releases)):
                raise ArgumentError(
                    "FedMIA needs the updates of other clients, and no round has any; use Whitened, or give "
                    "RecordedChannel.peers."
                )
            rounds = self.whitened.score_rounds(model, view, known, peers=self.peers)
            scores = [found.less_others()[:, 0] for found in rounds]
            return torch.stack(scores).mean(0).amax(0)

        return guess


@dataclass(frozen=True)
class InOut(OnWhitened):
    """Whitened scores against sums in which a client took part less those against sums without it.

    For who sees no client's update by itself but knows who took part, as a server does under secure
    aggregation: the mean score of ``whitened`` over the client's rounds, less the mean over the others. Of a
    client that was always there nothing is taken off, which is its null setting, `Whitened`.
    """

    sees: ClassVar[Sees] = "participation"

    def __call__(self, knowledge: Knowledge, rng: torch.Generator) -> Guess:
        model, known = victim(knowledge), self.whitened.known(knowledge, rng)

        def guess(view: View) -> Tensor:
            there = torch.tensor([_is_in(release) for release in view.releases])
            if not bool(there.any()):
                raise ArgumentError(
                    "InOut needs a round in which the client took part, and sees none; leave the client out."
                )
            rounds = [found.z[:, 0] for found in self.whitened.score_rounds(model, view, known)]
            z = torch.stack(rounds)
            found = z[there].mean(0) - (z[~there].mean(0) if bool((~there).any()) else 0.0)
            return found.amax(0)

        return guess


def _is_alone(release: Release) -> bool:
    """Whether nobody took part but the one client in question."""
    return (
        isinstance(release, RecordedRelease)
        and len(release.clients) == 1
        and release.took_part == release.clients
    )


def _is_in(release: Release) -> bool:
    """Whether a client in question took part."""
    if not isinstance(release, RecordedRelease) or not release.took_part:
        raise ArgumentError("InOut needs to know who took part in each round, and nobody says; use Whitened.")
    return not {*release.clients}.isdisjoint(release.took_part)


def _all_updates(
    release: Release, own: Layers, peers: int
) -> tuple[Layers, tuple[str, ...], tuple[str, ...]]:
    """The updates in question and those of peers, one below the other; whose they are, and who took part."""
    if not isinstance(release, RecordedRelease):
        return own, (), ()
    others = release.peers[:peers]
    if others:
        beside = release.beside(others)
        own = {name: torch.cat([tensor, beside[name]]) for name, tensor in own.items()}
    return own, () if release.summed else (*release.clients, *others), release.took_part


def _less_others(scores: Tensor) -> Tensor:
    """(..., updates, layers, n), from each the mean of the others."""
    others = scores.sum(-3, keepdim=True) - scores
    return scores - others / (scores.shape[-3] - 1)


def _standardise(scores: Tensor, null: Tensor) -> Tensor:
    """(..., n) in units of the null's spread, 0 where it has none."""
    spread = null.std(-1, keepdim=True)
    return torch.where(spread > 0, (scores - null.mean(-1, keepdim=True)) / spread, 0.0)
