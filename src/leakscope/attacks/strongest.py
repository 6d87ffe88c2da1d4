"""The best of several attacks, chosen where the reported number does not look."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from sklearn.metrics import balanced_accuracy_score, roc_auc_score
from torch import Tensor

from leakscope.attacks.rehearsal import parted, unkeyed
from leakscope.attacks.representations import Fisher, Network
from leakscope.core.calibration import calibrate, learn_calibration, log_losses
from leakscope.core.errors import DataError, require
from leakscope.core.nouns import Attack, Guess, Heard, Knowledge, View
from leakscope.core.rng import fork, integer
from leakscope.games.referee import without_release

EACH = 20  # rehearsals of a value in the choice, at least
RIDGE = 1e-2  # on the calibration's parameters, which keeps them finite where all is told without error


@dataclass(frozen=True)
class Strongest:
    """The best of several attacks, chosen on records that none of them learned from.

    Each attack learns on part of the adversary's records and is judged on the others, ``by`` AUROC, one
    value against the rest, by balanced accuracy at equal odds, or by the log loss of calibrated evidence;
    the best one then learns on all of them. The choice sees nothing of the real game. ``rehearsals`` are at
    most so many in the choice, and 20 of each value; None: as many as there are.
    """

    attacks: tuple[Attack, ...] = (Network(), Fisher())
    by: Literal["auroc", "balanced", "loss"] = "auroc"
    rehearsals: int | None = None

    def __post_init__(self) -> None:
        require(len(self.attacks) > 0, "Strongest.attacks", "at least one", self.attacks)
        require(self.by in _JUDGES, "Strongest.by", " or ".join(map(repr, _JUDGES)), self.by)
        few = self.rehearsals is None or self.rehearsals >= 2
        require(few, "Strongest.rehearsals", "at least 2", self.rehearsals)

    def __call__(self, knowledge: Knowledge, rng: torch.Generator) -> Guess:
        choose, learn = fork(rng, 2)
        return self.attacks[self.chosen(knowledge, choose)](knowledge, learn)

    def chosen(self, knowledge: Knowledge, rng: torch.Generator) -> int:
        """The place of the attack that does best on the adversary's held-out records; the first where there
        are too few records to hold some out."""
        return self.judged(knowledge, rng)[0]

    def judged(self, knowledge: Knowledge, rng: torch.Generator) -> tuple[int, tuple[float, ...]]:
        """That place, and how well each attack does there, more being better; none where records are too
        few."""
        cut, deal, *learn = fork(rng, 2 + len(self.attacks))
        try:
            first, second = parted(knowledge, cut)
        except DataError:
            return 0, ()
        if self.rehearsals is not None:
            few = min(max(self.rehearsals, EACH * len(knowledge.belief)), knowledge.trials)
            first, second = (replace(part, trials=few) for part in (first, second))
        view, secrets = unkeyed(second, deal).simulate(deal)
        judge = _JUDGES[self.by]
        scores = [
            judge(_evidence(a, first, view, own), secrets) for a, own in zip(self.attacks, learn, strict=True)
        ]
        return max(range(len(scores)), key=scores.__getitem__), tuple(scores)


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


def _loss(said: Tensor, secrets: Tensor) -> float:
    """Minus the log loss, in nats, of evidence (rounds, t, m) trusted as far as half of the challenges bear
    out, on the other half, and the other way round."""
    evidence, told = said.double().sum(0).numpy(), secrets.long().numpy()
    losses = np.empty(len(told))
    for half in (0, 1):
        way = learn_calibration(evidence[half::2], told[half::2], ridge=RIDGE)
        losses[1 - half :: 2] = log_losses(calibrate(evidence[1 - half :: 2], way), told[1 - half :: 2])
    return -float(losses.mean())


_JUDGES = {"auroc": _area, "balanced": _balanced, "loss": _loss}
