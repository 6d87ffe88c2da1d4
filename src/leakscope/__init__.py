"""Leakscope: what sharing gradients, model updates or representations gives away.

A Game deals challenges through a Channel; an Attack sees only the View; measures see only the
Transcript. Names are loaded when first used, so importing leakscope is quick.
"""

from __future__ import annotations

from importlib import import_module, metadata
from typing import TYPE_CHECKING

from leakscope.catalogue import CATALOGUE

if TYPE_CHECKING:
    from leakscope.attacks.heads import LDA, QDA, Logistic, NaiveBayes, Perceptron, RandomForest
    from leakscope.attacks.posterior import NoiseAware, Posterior
    from leakscope.attacks.reductions import PCA, Flat, MaxPool
    from leakscope.attacks.users import Prototype
    from leakscope.audits import audit
    from leakscope.canary import L2, AttributeAudit, Canary, LikelihoodRatio
    from leakscope.channels import GradientChannel, Plain, Silent, Through
    from leakscope.core import Defense, Estimate, Knowledge, Release, Transcript, View
    from leakscope.data import from_csv, from_npz, load
    from leakscope.dataset import Batch, Column, Dataset
    from leakscope.defenses.bottleneck import VIB
    from leakscope.defenses.dpsgd import DPSGD
    from leakscope.defenses.gradient import Chain, Noise, Pruning, Sign, Within
    from leakscope.defenses.perturbation import AdversarialPerturbation
    from leakscope.epsilon import epsilon_lower_bound
    from leakscope.games import Distribution, Inference, UserInference
    from leakscope.measures.information import mutual_information
    from leakscope.measures.success import (
        advantage,
        auroc,
        guessing,
        over_seeds,
        roc,
        success_rate,
        tpr_at_fpr,
    )
    from leakscope.measures.utility import accuracy, task_auroc
    from leakscope.models import CNN, MLP, Linear
    from leakscope.recording import Recorder, Recording
    from leakscope.referee import play
    from leakscope.rng import seeded

__version__ = metadata.version("leakscope")

__all__ = [
    "CNN",
    "DPSGD",
    "L2",
    "LDA",
    "MLP",
    "PCA",
    "QDA",
    "VIB",
    "AdversarialPerturbation",
    "AttributeAudit",
    "Batch",
    "Canary",
    "Chain",
    "Column",
    "Dataset",
    "Defense",
    "Distribution",
    "Estimate",
    "Flat",
    "GradientChannel",
    "Inference",
    "Knowledge",
    "LikelihoodRatio",
    "Linear",
    "Logistic",
    "MaxPool",
    "NaiveBayes",
    "Noise",
    "NoiseAware",
    "Perceptron",
    "Plain",
    "Posterior",
    "Prototype",
    "Pruning",
    "RandomForest",
    "Recorder",
    "Recording",
    "Release",
    "Sign",
    "Silent",
    "Through",
    "Transcript",
    "UserInference",
    "View",
    "Within",
    "accuracy",
    "advantage",
    "audit",
    "auroc",
    "epsilon_lower_bound",
    "from_csv",
    "from_npz",
    "guessing",
    "load",
    "mutual_information",
    "over_seeds",
    "play",
    "roc",
    "seeded",
    "success_rate",
    "task_auroc",
    "tpr_at_fpr",
]


def __getattr__(name: str) -> object:
    if name in CATALOGUE:
        return getattr(import_module(CATALOGUE[name].module), name)
    if name in ("bounds", "data", "epsilon", "gradients", "models", "training"):
        return import_module(f"leakscope.{name}")
    raise AttributeError(f"module 'leakscope' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
