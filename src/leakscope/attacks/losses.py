"""Membership inference by losses, which see no gradient: the baselines of paper 002."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from sklearn.neural_network import MLPClassifier
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from leakscope.attacks.alignment import Label, Sees, candidates, refuse_numbers, victim
from leakscope.core.errors import ArgumentError, require
from leakscope.core.nouns import Guess, Knowledge, Params, View
from leakscope.core.rng import integer
from leakscope.core.task import as_logits, is_number, task_loss


@dataclass(frozen=True)
class FedLoss:
    """Minus the loss under the global models, its mean over the observed rounds (paper 002)."""

    sees: ClassVar[Sees] = "models"
    taught: ClassVar[bool] = False  # by members it is told
    label: ClassVar[Label] = "known"

    def __call__(self, knowledge: Knowledge, rng: torch.Generator) -> Guess:
        model = victim(knowledge)

        def guess(view: View) -> Tensor:
            losses = [_losses(model, dict(release.params), *candidates(view)) for release in view.releases]
            return -torch.stack(losses).mean(0)

        return guess


@dataclass(frozen=True)
class Loss:
    """Minus the loss under the last global model (Yeom et al. 2018)."""

    sees: ClassVar[Sees] = "models"
    taught: ClassVar[bool] = False
    label: ClassVar[Label] = "known"

    def __call__(self, knowledge: Knowledge, rng: torch.Generator) -> Guess:
        model = victim(knowledge)
        return lambda view: -_losses(model, dict(view.releases[-1].params), *candidates(view))


@dataclass(frozen=True)
class ModifiedEntropy:
    """Minus the entropy that also counts against a confident mistake (Song and Mittal 2021)."""

    sees: ClassVar[Sees] = "models"
    taught: ClassVar[bool] = False
    label: ClassVar[Label] = "known"

    def check(self, model: nn.Module, x: Tensor, y: Tensor) -> None:
        """Refuse labels that are no classes."""
        refuse_numbers(y, "ModifiedEntropy")

    def __call__(self, knowledge: Knowledge, rng: torch.Generator) -> Guess:
        model = victim(knowledge)

        def guess(view: View) -> Tensor:
            x, y = candidates(view)
            refuse_numbers(y, "ModifiedEntropy")
            log_p = _log_probabilities(model, dict(view.releases[-1].params), x)
            p = log_p.exp()
            log_rest = torch.log1p(-p.clamp(max=1 - torch.finfo(p.dtype).eps))
            own = F.one_hot(y, p.shape[1]).bool()
            terms = torch.where(own, -(1 - p) * log_p, -p * log_rest)
            return -terms.sum(1)

        return guess


@dataclass(frozen=True)
class Merlin:
    """How often noise on a record raises its loss under the last global model (Jayaraman et al. 2021)."""

    sees: ClassVar[Sees] = "models"
    taught: ClassVar[bool] = False
    label: ClassVar[Label] = "known"
    perturbations: int = 100
    std: float = 0.01

    def __post_init__(self) -> None:
        require(self.perturbations >= 1, "Merlin.perturbations", "at least 1", self.perturbations)
        require(self.std > 0, "Merlin.std", "positive", self.std)

    def __call__(self, knowledge: Knowledge, rng: torch.Generator) -> Guess:
        model, seed = victim(knowledge), integer(rng)

        def guess(view: View) -> Tensor:
            (x, y), params = candidates(view), dict(view.releases[-1].params)
            noise, here = torch.Generator().manual_seed(seed), _losses(model, params, x, y)
            higher = torch.zeros(len(x), dtype=torch.float64)
            for _ in range(self.perturbations):
                moved = x + self.std * torch.randn(x.shape, generator=noise)
                higher += _losses(model, params, moved, y) > here
            return higher / self.perturbations

        return guess


@dataclass(frozen=True)
class Zari:
    """A network on the probabilities of the true label over rounds, taught by KNOWN MEMBERS
    (Zari et al. 2021): more knowledge than the other attacks have. Of a number: on exp(-loss)."""

    sees: ClassVar[Sees] = "models"
    taught: ClassVar[bool] = True
    label: ClassVar[Label] = "known"
    hidden: int = 64

    def __post_init__(self) -> None:
        require(self.hidden >= 1, "Zari.hidden", "at least 1", self.hidden)

    def __call__(self, knowledge: Knowledge, rng: torch.Generator) -> Guess:
        model = victim(knowledge)
        view, secrets = knowledge.simulate(rng)
        if not (secrets == 1).any() or not (secrets == 0).any():
            raise ArgumentError(
                "Zari needs known members and known non-members to learn from, and its rehearsal lacks one; "
                "give it Membership(members, others) of its own."
            )
        network = MLPClassifier((self.hidden,), random_state=integer(rng), early_stopping=False, max_iter=500)
        network.fit(_trajectories(model, view).numpy(), secrets.numpy())

        def guess(view: View) -> Tensor:
            odds = torch.from_numpy(network.predict_proba(_trajectories(model, view).numpy()))
            return (odds[:, 1].clamp(min=1e-300).log() - odds[:, 0].clamp(min=1e-300).log()).double()

        return guess


def _trajectories(model: nn.Module, view: View) -> Tensor:
    """The probability of each candidate's label in every observed round: (n, rounds)."""
    losses = [_losses(model, dict(release.params), *candidates(view)) for release in view.releases]
    return torch.stack(losses, dim=1).neg().exp()


def _losses(model: nn.Module, params: Params, x: Tensor, y: Tensor) -> Tensor:
    """Each record's own: minus the log probability of its label, or its squared error."""
    if is_number(y):
        return task_loss(_outputs(model, params, x), y, reduction="none")
    return F.nll_loss(_log_probabilities(model, params, x), y, reduction="none")


def _log_probabilities(model: nn.Module, params: Params, x: Tensor) -> Tensor:
    return as_logits(_outputs(model, params, x)).log_softmax(1)


def _outputs(model: nn.Module, params: Params, x: Tensor) -> Tensor:
    """In float64, so that confident records do not tie where their logits differ."""
    with torch.no_grad():
        parts = [functional_call(model, dict(params), (part,)).double() for part in x.split(4_096)]
    return torch.cat(parts)
