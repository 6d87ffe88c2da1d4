"""The best of several attacks, chosen where the reported number does not look."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from sklearn.metrics import balanced_accuracy_score, roc_auc_score
from torch import Tensor

from leakscope.attacks.reductions import held
from leakscope.attacks.rehearsal import parted, unkeyed
from leakscope.attacks.representations import Fisher, Network
from leakscope.core.calibration import Array, calibrate, learn_calibration, log_losses
from leakscope.core.errors import DataError, require
from leakscope.core.nouns import Attack, Crossfitted, Guess, Heard, Knowledge, Rehearsed, View
from leakscope.core.rng import fork, integer
from leakscope.games.referee import without_release

EACH = 20  # rehearsals of a value in the choice, at least
RIDGE = 1e-2  # on the calibration's parameters, which keeps them finite where all is told without error


@dataclass(frozen=True, eq=False)
class Choice:
    """The ``attack`` to play, its place, and of every attack that was heard how well it does, more being
    better, and whether it was heard as it is played or ``brief``ly."""

    attack: Attack
    place: int
    scores: tuple[float, ...] = ()
    brief: tuple[bool, ...] = ()


@dataclass(frozen=True, eq=False)
class Taught:
    """An attack that has learned already what it knows."""

    hear: Callable[[View], Heard]
    rehearsed: Rehearsed

    def __call__(self, knowledge: Knowledge, rng: torch.Generator) -> Guess:
        return lambda view: self.hear(view).evidence[None]

    def crossfit(
        self, knowledge: Knowledge, rng: torch.Generator
    ) -> tuple[Callable[[View], Heard], Rehearsed]:
        return self.hear, self.rehearsed


@dataclass(frozen=True)
class Strongest:
    """The best of several attacks, chosen on records that none of them learned from.

    Each attack learns on part of the adversary's records and is judged on the others, ``by`` AUROC, one
    value against the rest, by balanced accuracy at equal odds, or by the log loss of calibrated evidence;
    the best one then learns on all of them. The choice sees nothing of the real game.

    By loss, an attack that is fitted across folds is judged by what it said of folds that it had not learned
    from, and what it learned is kept. Any other is first heard briefly: in its lighter form, where it has
    one, after at most so many ``rehearsals``, and 20 of each value. It goes on to learn from all only if its
    loss is then clearly less than what the best one so far has after as few, on the same challenges: by two
    standard errors, so that luck alone seldom does it. Once a loss is
    ``enough`` or less no other attack can gain more than that, and no other is heard. ``rehearsals`` None: no
    attack is heard briefly.
    """

    attacks: tuple[Attack, ...] = (Network(), Fisher())
    by: Literal["auroc", "balanced", "loss"] = "auroc"
    rehearsals: int | None = None
    enough: float = 0.1

    def __post_init__(self) -> None:
        require(len(self.attacks) > 0, "Strongest.attacks", "at least one", self.attacks)
        require(self.by in _JUDGES, "Strongest.by", " or ".join(map(repr, _JUDGES)), self.by)
        few = self.rehearsals is None or self.rehearsals >= 2
        require(few, "Strongest.rehearsals", "at least 2", self.rehearsals)
        require(self.enough >= 0, "Strongest.enough", "at least 0", self.enough)

    def __call__(self, knowledge: Knowledge, rng: torch.Generator) -> Guess:
        choose, learn = fork(rng, 2)
        return self.choose(knowledge, choose)(knowledge, learn)

    def choose(self, knowledge: Knowledge, rng: torch.Generator) -> Attack:
        """The attack that does best on the adversary's held-out records; the first where there are too few
        records to hold some out."""
        return self.judged(knowledge, rng).attack

    def chosen(self, knowledge: Knowledge, rng: torch.Generator) -> int:
        """The place of that attack."""
        return self.judged(knowledge, rng).place

    def judged(self, knowledge: Knowledge, rng: torch.Generator) -> Choice:
        """That attack, and how well each does there; none is heard where records are too few."""
        cut, deal, *learn, haste = fork(rng, 3 + len(self.attacks))
        try:
            first, second = parted(knowledge, cut)
        except DataError:
            return Choice(self.attacks[0], 0)
        few = first.trials
        if self.rehearsals is not None:
            few = min(max(self.rehearsals, EACH * len(knowledge.belief)), knowledge.trials)
            second = replace(second, trials=few)
        others = _Others(first, second, deal, _JUDGES[self.by], few)
        best, choice = -math.inf, Choice(self.attacks[0], 0)
        pace: dict[int, Array] = {}  # the losses of the best one so far, after few rehearsals
        for i, (attack, own) in enumerate(zip(self.attacks, learn, strict=True)):
            hurried = self.by == "loss" and few < others.first.trials and best > -math.inf
            if hurried and not isinstance(attack, Crossfitted):
                if choice.place not in pace:
                    pace[choice.place] = others.losses(_lighter(self.attacks[choice.place]), few, haste)
                losses = others.losses(_lighter(attack), few, haste)
                if not _clearly(pace[choice.place] - losses):
                    scores = (*choice.scores, -float(losses.mean()))
                    choice = replace(choice, scores=scores, brief=(*choice.brief, True))
                    continue
            score, played = self._hear(attack, knowledge, others, own)
            scores, briefs = (*choice.scores, score), (*choice.brief, False)
            best, choice = (
                (score, Choice(played, i, scores, briefs))
                if score > best
                else (best, replace(choice, scores=scores, brief=briefs))
            )
            if self.by == "loss" and -best <= self.enough:
                break
        return choice

    def _hear(
        self, attack: Attack, knowledge: Knowledge, others: _Others, rng: torch.Generator
    ) -> tuple[float, Attack]:
        """How well an attack does that has learned from all it may, and the attack to play."""
        if self.by == "loss" and isinstance(attack, Crossfitted):
            taught = Taught(*attack.crossfit(knowledge, rng))
            return _loss(taught.rehearsed.heard.evidence[None], taught.rehearsed.secrets), taught
        return others.score(attack, others.first.trials if self.by == "loss" else others.few, rng), attack


def _lighter(attack: Attack) -> Attack:
    """The attack in a form that takes less time, where it has one."""
    lighter: Attack = getattr(attack, "lighter", attack)
    return lighter


@dataclass(frozen=True, eq=False)
class _Others:
    """Knowledge to learn from, and knowledge of other records to be judged on. Their challenges are dealt
    once some attack is to be heard there: an attack that is fitted across folds needs none."""

    first: Knowledge
    second: Knowledge
    deal: torch.Generator
    judge: Callable[[Tensor, Tensor], float]
    few: int

    def score(self, attack: Attack, trials: int, rng: torch.Generator) -> float:
        return self.judge(self._hear(attack, trials, rng), self._challenges[1])

    def losses(self, attack: Attack, trials: int, rng: torch.Generator) -> Array:
        return _losses(self._hear(attack, trials, rng), self._challenges[1])

    @cached_property
    def _challenges(self) -> tuple[View, Tensor]:
        view, secrets = unkeyed(self.second, self.deal).simulate(self.deal)
        return replace(view, releases=tuple(held(view.releases))), secrets

    def _hear(self, attack: Attack, trials: int, rng: torch.Generator) -> Tensor:
        return _evidence(attack, replace(self.first, trials=trials), self._challenges[0], rng)


def _evidence(attack: Attack, knowledge: Knowledge, view: View, rng: torch.Generator) -> Tensor:
    """What an attack says of a view, side knowledge counting once, as it is played."""
    seed = integer(rng)
    said = attack(knowledge, torch.Generator().manual_seed(seed))(view)
    if said.dim() != 3 or len(said) == 1 or "known" not in view.public:
        return said
    return Heard(said, without_release(attack, knowledge, seed)(view)).evidence[None]


def _area(said: Tensor, secrets: Tensor) -> float:
    """AUROC of scores (t,), or of log evidence (rounds, t, m) at equal odds, macro over the values."""
    if said.dim() == 1:
        return float(roc_auc_score(secrets.numpy(), said.numpy()))
    evidence = said.double().sum(0)
    kinds = [c for c in range(evidence.shape[1]) if bool((secrets == c).any())]
    scores = evidence.log_softmax(1)
    areas = []
    for c in kinds:
        rest = scores[:, [j for j in range(scores.shape[1]) if j != c]].logsumexp(1)
        areas.append(roc_auc_score((secrets == c).numpy(), (scores[:, c] - rest).numpy()))
    return float(np.mean(areas))


def _balanced(said: Tensor, secrets: Tensor) -> float:
    """The mean over values of how often each is told, at equal odds."""
    told = (said > 0).long() if said.dim() == 1 else said.double().sum(0).argmax(1)
    return float(balanced_accuracy_score(secrets.numpy(), told.numpy()))


def _clearly(gains: Array) -> bool:
    """Whether gains (t,) are above 0 by more than two standard errors."""
    return float(gains.mean()) > 2 * float(gains.std()) / math.sqrt(len(gains))


def _loss(said: Tensor, secrets: Tensor) -> float:
    return -float(_losses(said, secrets).mean())


def _losses(said: Tensor, secrets: Tensor) -> Array:
    """The log losses (t,), in nats, of evidence (rounds, t, m) trusted as far as half of the challenges bear
    out, on the other half, and the other way round."""
    evidence, told = said.double().sum(0).numpy(), secrets.long().numpy()
    losses = np.empty(len(told))
    for half in (0, 1):
        way = learn_calibration(evidence[half::2], told[half::2], ridge=RIDGE)
        losses[1 - half :: 2] = log_losses(calibrate(evidence[1 - half :: 2], way), told[1 - half :: 2])
    return losses


_JUDGES = {"auroc": _area, "balanced": _balanced, "loss": _loss}
