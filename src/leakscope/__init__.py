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
    from leakscope.attacks.closed_form import FirstLayer
    from leakscope.attacks.family import Family
    from leakscope.attacks.heads import LDA, QDA, Logistic, NaiveBayes, Perceptron, RandomForest
    from leakscope.attacks.losses import FedLoss, Loss, Merlin, ModifiedEntropy, Zari
    from leakscope.attacks.posterior import NoiseAware, Posterior
    from leakscope.attacks.reconstruction import DeepLeakage, InvertingGradients
    from leakscope.attacks.reductions import PCA, Flat, MaxPool, Sketch, UnitMax
    from leakscope.attacks.users import Prototype
    from leakscope.audits import audit
    from leakscope.canary import L2, AttributeAudit, Canary, LikelihoodRatio
    from leakscope.channels import GradientChannel, Plain, Silent, Through, UpdateChannel
    from leakscope.core import Defense, Estimate, Knowledge, Release, Transcript, View
    from leakscope.data import from_csv, from_npz, load
    from leakscope.dataset import Batch, Column, Dataset
    from leakscope.defenses.bottleneck import VIB
    from leakscope.defenses.dpsgd import DPSGD
    from leakscope.defenses.gradient import Chain, Noise, Pruning, Sign, Withhold, Within
    from leakscope.defenses.perturbation import AdversarialPerturbation
    from leakscope.defenses.training import MixupMMD
    from leakscope.epsilon import epsilon_lower_bound
    from leakscope.games import Clients, Distribution, Inference, Membership, Reconstruction, UserInference
    from leakscope.guards.estimators import CLUB, MINE, InfoNCE
    from leakscope.guards.neighbours import NearestNeighbours
    from leakscope.localisation import LayerAudit
    from leakscope.measures.information import mutual_information
    from leakscope.measures.membership import conformal, discoveries, p_values, plr_at_fpr
    from leakscope.measures.mutual import layer_information
    from leakscope.measures.orthogonality import orthogonality, update_cosines
    from leakscope.measures.sensitivity import sensitivity
    from leakscope.measures.subspace import Distance, TwoSample, subspace_distance, two_sample
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
    from leakscope.measures.vinformation import v_information
    from leakscope.membership import MembershipAudit, RecordingAudit
    from leakscope.models import (
        CNN,
        MLP,
        VGG9,
        AlexNet,
        DenseNet,
        Frozen,
        LeNet,
        Linear,
        ResNet18,
        SigmoidNet,
        SmallAlexNet,
        TextClf,
    )
    from leakscope.recording import RecordedChannel, Recorder, Recording
    from leakscope.referee import play
    from leakscope.rng import seeded
    from leakscope.training import Local

__version__ = metadata.version("leakscope")

__all__ = [
    "CLUB",
    "CNN",
    "DPSGD",
    "L2",
    "LDA",
    "MINE",
    "MLP",
    "PCA",
    "QDA",
    "VGG9",
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
    "DeepLeakage",
    "Defense",
    "DenseNet",
    "Distance",
    "Distribution",
    "Estimate",
    "Family",
    "FedLoss",
    "FirstLayer",
    "Flat",
    "Frozen",
    "GradientChannel",
    "GradientDiff",
    "Inference",
    "InfoNCE",
    "InvertingGradients",
    "Knowledge",
    "LayerAudit",
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
    "NearestNeighbours",
    "Noise",
    "NoiseAware",
    "Perceptron",
    "Plain",
    "Posterior",
    "Prototype",
    "Pruning",
    "RandomForest",
    "Reconstruction",
    "RecordedChannel",
    "Recorder",
    "Recording",
    "RecordingAudit",
    "Release",
    "ResNet18",
    "SigmoidNet",
    "Sign",
    "Silent",
    "Sketch",
    "SmallAlexNet",
    "TextClf",
    "Through",
    "Transcript",
    "TwoSample",
    "UnitMax",
    "UpdateChannel",
    "UserInference",
    "View",
    "Whitened",
    "Withhold",
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
    "layer_information",
    "load",
    "mutual_information",
    "orthogonality",
    "over_seeds",
    "p_values",
    "play",
    "plr_at_fpr",
    "roc",
    "seeded",
    "sensitivity",
    "subspace_distance",
    "success_rate",
    "task_auroc",
    "tpr_at_fpr",
    "two_sample",
    "update_cosines",
    "v_information",
]


def __getattr__(name: str) -> object:
    if name in CATALOGUE:
        return getattr(import_module(CATALOGUE[name].module), name)
    if name in ("bounds", "data", "epsilon", "gradients", "models", "training"):
        return import_module(f"leakscope.{name}")
    raise AttributeError(f"module 'leakscope' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
