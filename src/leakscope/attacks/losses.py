"""Membership inference by losses, which see no gradient: the baselines of paper 002."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from sklearn.neural_network import MLPClassifier
from torch import Tensor, nn
from torch.nn import functional as F

from leakscope.attacks.alignment import (
    Label,
    Sees,
    candidates,
    labels_for,
    outputs_of,
    refuse_numbers,
    refuse_unlabelled,
    seen_in,
    victim,
)
from leakscope.core.errors import ArgumentError, check, one_of, require
from leakscope.core.nouns import Guess, Knowledge, Params, View
from leakscope.core.rng import integer
from leakscope.core.task import as_logits, is_number, task_loss


@dataclass(frozen=True)
class FedLoss:
    """Minus the loss under the global models, its mean over the observed rounds (paper 002).

    ``label``: the record's own ("known"), or the one the model predicts, which has the least loss ("max")."""

    sees: ClassVar[Sees] = "models"
    taught: ClassVar[bool] = False  # by members it is told
    label: Label = "known"

    def __post_init__(self) -> None:
        _check_label("FedLoss", self.label)

    def check(self, model: nn.Module, x: Tensor, y: Tensor) -> None:
        """Refuse labels that it cannot guess."""
        refuse_unlabelled(y, self.label)

    def __call__(self, knowledge: Knowledge, rng: torch.Generator) -> Guess:
        model = victim(knowledge)

        def guess(view: View) -> Tensor:
            every = [dict(release.params) for release in view.releases]
            losses = [_losses(model, p, *_labelled(model, p, view, self.label)) for p in every]
            return -torch.stack(losses).mean(0)

        return guess


@dataclass(frozen=True)
class Loss:
    """Minus the loss under the last global model (Yeom et al. 2018): the one that the observed rounds led to,
    where it is seen. ``label`` as in `FedLoss`."""

    sees: ClassVar[Sees] = "models"
    taught: ClassVar[bool] = False
    label: Label = "known"

    def __post_init__(self) -> None:
        _check_label("Loss", self.label)

    def check(self, model: nn.Module, x: Tensor, y: Tensor) -> None:
        """Refuse labels that it cannot guess."""
        refuse_unlabelled(y, self.label)

    def __call__(self, knowledge: Knowledge, rng: torch.Generator) -> Guess:
        model = victim(knowledge)

        def guess(view: View) -> Tensor:
            params = _last_model(view)
            return -_losses(model, params, *_labelled(model, params, view, self.label))

        return guess


@dataclass(frozen=True)
class ModifiedEntropy:
    """Minus the entropy that also counts against a confident mistake (Song and Mittal 2021).

    Model and ``label`` as in `Loss`."""

    sees: ClassVar[Sees] = "models"
    taught: ClassVar[bool] = False
    label: Label = "known"

    def __post_init__(self) -> None:
        _check_label("ModifiedEntropy", self.label)

    def check(self, model: nn.Module, x: Tensor, y: Tensor) -> None:
        """Refuse labels that are no classes."""
        refuse_numbers(y, "ModifiedEntropy")

    def __call__(self, knowledge: Knowledge, rng: torch.Generator) -> Guess:
        model = victim(knowledge)

        def guess(view: View) -> Tensor:
            params = _last_model(view)
            x, y = _labelled(model, params, view, self.label)
            refuse_numbers(y, "ModifiedEntropy")
            log_p = _log_probabilities(model, params, x)
            p = log_p.exp()
            log_rest = torch.log1p(-p.clamp(max=1 - torch.finfo(p.dtype).eps))
            own = F.one_hot(y, p.shape[1]).bool()
            terms = torch.where(own, -(1 - p) * log_p, -p * log_rest)
            return -terms.sum(1)

        return guess


@dataclass(frozen=True)
class Merlin:
    """How often noise on a record raises its loss under the last global model (Jayaraman et al. 2021).

    Model and ``label`` as in `Loss`."""

    sees: ClassVar[Sees] = "models"
    taught: ClassVar[bool] = False
    label: Label = "known"
    perturbations: int = 100
    std: float = 0.01

    def __post_init__(self) -> None:
        _check_label("Merlin", self.label)
        require(self.perturbations >= 1, "Merlin.perturbations", "at least 1", self.perturbations)
        require(self.std > 0, "Merlin.std", "positive", self.std)

    def check(self, model: nn.Module, x: Tensor, y: Tensor) -> None:
        """Refuse labels that it cannot guess."""
        refuse_unlabelled(y, self.label)

    def __call__(self, knowledge: Knowledge, rng: torch.Generator) -> Guess:
        model, seed = victim(knowledge), integer(rng)

        def guess(view: View) -> Tensor:
            params = _last_model(view)
            x, y = _labelled(model, params, view, self.label)
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
    (Zari et al. 2021): more knowledge than the other attacks have. Of a number: on exp(-loss).

    ``models``: those that the client uploads ("local", paper 002, A.9), or the "global" ones."""

    taught: ClassVar[bool] = True
    label: ClassVar[Label] = "known"
    hidden: int = 64
    models: Literal["local", "global"] = "local"

    @property
    def sees(self) -> Sees:
        return "updates" if self.models == "local" else "models"

    def __post_init__(self) -> None:
        check(self, models=one_of("local", "global"))
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
        network.fit(self._trajectories(model, view), secrets.numpy())

        def guess(view: View) -> Tensor:
            odds = torch.from_numpy(network.predict_proba(self._trajectories(model, view)))
            return (odds[:, 1].clamp(min=1e-300).log() - odds[:, 0].clamp(min=1e-300).log()).double()

        return guess

    def _trajectories(self, model: nn.Module, view: View) -> np.ndarray[Any, Any]:
        """The probability of each candidate's label in every observed round: (n, rounds)."""
        losses = []
        for release in view.releases:
            if self.models == "local":
                params, update = seen_in(release)
                params = {name: tensor - update[name] for name, tensor in params.items()}
            else:
                params = dict(release.params)
            losses.append(_losses(model, params, *candidates(view)))
        return np.asarray(torch.stack(losses, dim=1).neg().exp())


def _check_label(who: str, label: str) -> None:
    require(label in ("known", "predicted", "max"), f"{who}.label", "known, predicted or max", label)


def _last_model(view: View) -> dict[str, Tensor]:
    """What the observed rounds led to, or the last of the global models that they began with."""
    last = view.releases[-1]
    return dict(getattr(last, "final", None) or last.params)


def _labelled(model: nn.Module, params: Params, view: View, label: Label) -> tuple[Tensor, Tensor]:
    """The candidates with their labels: under the predicted one the loss is least."""
    x, y = candidates(view)
    return x, labels_for(model, params, x, y, "known" if label == "known" else "predicted")


def _losses(model: nn.Module, params: Params, x: Tensor, y: Tensor) -> Tensor:
    """Each record's own: minus the log probability of its label, or its squared error."""
    if is_number(y):
        return task_loss(_wide(model, params, x), y, reduction="none")
    return F.nll_loss(_log_probabilities(model, params, x), y, reduction="none")


def _log_probabilities(model: nn.Module, params: Params, x: Tensor) -> Tensor:
    return as_logits(_wide(model, params, x)).log_softmax(1)


def _wide(model: nn.Module, params: Params, x: Tensor) -> Tensor:
    """In float64, so that confident records do not tie where their logits differ."""
    return outputs_of(model, params, x).double()
