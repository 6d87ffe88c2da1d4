"""Leakscope: what sharing gradients, model updates or representations gives away.

A Game deals challenges through a Channel; an Attack sees only the View; measures see only the
Transcript. Names are loaded when first used, so importing leakscope is quick.
"""

from __future__ import annotations

from importlib import import_module, metadata
from typing import TYPE_CHECKING

from leakscope.catalogue import CATALOGUE

if TYPE_CHECKING:
    from leakscope.attacks.alignment import Cosine, GradientDiff, Whitened
    from leakscope.attacks.heads import LDA, QDA, Logistic, NaiveBayes, Perceptron, RandomForest
    from leakscope.attacks.losses import FedLoss, Loss, Merlin, ModifiedEntropy, Zari
    from leakscope.attacks.posterior import NoiseAware, Posterior
    from leakscope.attacks.reductions import PCA, Flat, MaxPool
    from leakscope.attacks.users import Prototype
    from leakscope.audits import audit
    from leakscope.canary import L2, AttributeAudit, Canary, LikelihoodRatio
    from leakscope.channels import GradientChannel, Plain, Silent, Through, UpdateChannel
    from leakscope.core import Defense, Estimate, Knowledge, Release, Transcript, View
    from leakscope.data import from_csv, from_npz, load
    from leakscope.dataset import Batch, Column, Dataset
    from leakscope.defenses.bottleneck import VIB
    from leakscope.defenses.dpsgd import DPSGD
    from leakscope.defenses.gradient import Chain, Noise, Pruning, Sign, Within
    from leakscope.defenses.perturbation import AdversarialPerturbation
    from leakscope.defenses.training import MixupMMD
    from leakscope.epsilon import epsilon_lower_bound
    from leakscope.games import Clients, Distribution, Inference, Membership, UserInference
    from leakscope.measures.information import mutual_information
    from leakscope.measures.membership import conformal, discoveries, p_values, plr_at_fpr
    from leakscope.measures.orthogonality import orthogonality, update_cosines
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
    from leakscope.membership import MembershipAudit, RecordingAudit
    from leakscope.models import CNN, MLP, AlexNet, DenseNet, Frozen, LeNet, Linear, ResNet18
    from leakscope.recording import RecordedChannel, Recorder, Recording
    from leakscope.referee import play
    from leakscope.rng import seeded
    from leakscope.training import Local

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
    "AlexNet",
    "AttributeAudit",
    "Batch",
    "Canary",
    "Chain",
    "Clients",
    "Column",
    "Cosine",
    "Dataset",
    "Defense",
    "DenseNet",
    "Distribution",
    "Estimate",
    "FedLoss",
    "Flat",
    "Frozen",
    "GradientChannel",
    "GradientDiff",
    "Inference",
    "Knowledge",
    "LeNet",
    "LikelihoodRatio",
    "Linear",
    "Local",
    "Logistic",
    "Loss",
    "MaxPool",
    "Membership",
    "MembershipAudit",
    "Merlin",
    "MixupMMD",
    "ModifiedEntropy",
    "NaiveBayes",
    "Noise",
    "NoiseAware",
    "Perceptron",
    "Plain",
    "Posterior",
    "Prototype",
    "Pruning",
    "RandomForest",
    "RecordedChannel",
    "Recorder",
    "Recording",
    "RecordingAudit",
    "Release",
    "ResNet18",
    "Sign",
    "Silent",
    "Through",
    "Transcript",
    "UpdateChannel",
    "UserInference",
    "View",
    "Whitened",
    "Within",
    "Zari",
    "accuracy",
    "advantage",
    "audit",
    "auroc",
    "conformal",
    "discoveries",
    "epsilon_lower_bound",
    "from_csv",
    "from_npz",
    "guessing",
    "load",
    "mutual_information",
    "orthogonality",
    "over_seeds",
    "p_values",
    "play",
    "plr_at_fpr",
    "roc",
    "seeded",
    "success_rate",
    "task_auroc",
    "tpr_at_fpr",
    "update_cosines",
]


def __getattr__(name: str) -> object:
    if name in CATALOGUE:
        return getattr(import_module(CATALOGUE[name].module), name)
    if name in ("bounds", "data", "epsilon", "gradients", "models", "training"):
        return import_module(f"leakscope.{name}")
    raise AttributeError(f"module 'leakscope' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
