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
    from leakscope.attacks.decoders import Decoder, Inversion
    from leakscope.attacks.family import Family
    from leakscope.attacks.heads import LDA, QDA, Logistic, NaiveBayes, Perceptron, RandomForest
    from leakscope.attacks.losses import FedLoss, Loss, Merlin, ModifiedEntropy, Zari
    from leakscope.attacks.members import HeadConfidence, LabelAware, LiRA, LossThreshold
    from leakscope.attacks.posterior import NoiseAware, Posterior
    from leakscope.attacks.reconstruction import DeepLeakage, InvertingGradients
    from leakscope.attacks.reductions import PCA, Flat, MaxPool, Sketch, UnitMax
    from leakscope.attacks.representations import Decensored, Fisher, Network, Strongest
    from leakscope.attacks.users import Prototype
    from leakscope.audits import audit
    from leakscope.canary import L2, AttributeAudit, Canary, LikelihoodRatio
    from leakscope.channels import GradientChannel, Plain, Silent, Through, UpdateChannel
    from leakscope.core import Defense, Estimate, Knowledge, Release, Transcript, View
    from leakscope.data import from_csv, from_npz, load
    from leakscope.dataset import Batch, Column, Dataset
    from leakscope.defenses.bottleneck import VIB
    from leakscope.defenses.deployed import (
        FlowerAdaptiveClipping,
        FlowerFixedClipping,
        FlowerLocalDp,
        PercentilePrivacy,
        SVTPrivacy,
    )
    from leakscope.defenses.dpsgd import DPSGD
    from leakscope.defenses.gradient import Chain, LaplaceNoise, Noise, Pruning, Sign, Withhold, Within
    from leakscope.defenses.perturbation import AdversarialPerturbation
    from leakscope.defenses.training import MixupMMD
    from leakscope.epsilon import epsilon_lower_bound
    from leakscope.games import (
        Clients,
        Distribution,
        Inference,
        Membership,
        Ratio,
        Reconstruction,
        UserInference,
    )
    from leakscope.guarding import GuardAudit, Tuned, tuned
    from leakscope.guards.baselines import DPFE, AdversarialTraining, Compressed, DPEncoder, DPParameters
    from leakscope.guards.distilled import Distilled
    from leakscope.guards.dpsgd_guard import DPSGDGuard
    from leakscope.guards.encoder import Encoder, Guarded, Perturbation, load_encoder
    from leakscope.guards.estimators import CLUB, MINE, InfoNCE
    from leakscope.guards.inf2guard import Guards, Inf2Guard
    from leakscope.guards.membership_baselines import AdvReg, NeuGuard
    from leakscope.guards.neighbours import NearestNeighbours
    from leakscope.guards.plain import Unguarded
    from leakscope.guards.tappfl import TAPPFL
    from leakscope.localisation import LayerAudit
    from leakscope.measures.fidelity import failures, fidelity, recovered
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
    from leakscope.models.encoders import ImageEncoder, TableEncoder
    from leakscope.recording import RecordedChannel, Recorder, Recording
    from leakscope.referee import play
    from leakscope.representations import RepresentationChannel
    from leakscope.rng import seeded
    from leakscope.training import Local

__version__ = metadata.version("leakscope")

__all__ = [
    "CLUB",
    "CNN",
    "DPFE",
    "DPSGD",
    "L2",
    "LDA",
    "MINE",
    "MLP",
    "PCA",
    "QDA",
    "TAPPFL",
    "VGG9",
    "VIB",
    "AdvReg",
    "AdversarialPerturbation",
    "AdversarialTraining",
    "AlexNet",
    "AttributeAudit",
    "Batch",
    "Canary",
    "Chain",
    "Clients",
    "Column",
    "Compressed",
    "Cosine",
    "DPEncoder",
    "DPParameters",
    "DPSGDGuard",
    "Dataset",
    "Decensored",
    "Decoder",
    "DeepLeakage",
    "Defense",
    "DenseNet",
    "Distance",
    "Distilled",
    "Distribution",
    "Encoder",
    "Estimate",
    "Family",
    "FedLoss",
    "FirstLayer",
    "Fisher",
    "Flat",
    "FlowerAdaptiveClipping",
    "FlowerFixedClipping",
    "FlowerLocalDp",
    "Frozen",
    "GradientChannel",
    "GradientDiff",
    "GuardAudit",
    "Guarded",
    "Guards",
    "HeadConfidence",
    "ImageEncoder",
    "Inf2Guard",
    "Inference",
    "InfoNCE",
    "Inversion",
    "InvertingGradients",
    "Knowledge",
    "LabelAware",
    "LaplaceNoise",
    "LayerAudit",
    "LeNet",
    "LiRA",
    "LikelihoodRatio",
    "Linear",
    "Local",
    "Logistic",
    "Loss",
    "LossThreshold",
    "MaxPool",
    "Membership",
    "MembershipAudit",
    "Merlin",
    "MixupMMD",
    "ModifiedEntropy",
    "NaiveBayes",
    "NearestNeighbours",
    "Network",
    "NeuGuard",
    "Noise",
    "NoiseAware",
    "PercentilePrivacy",
    "Perceptron",
    "Perturbation",
    "Plain",
    "Posterior",
    "Prototype",
    "Pruning",
    "RandomForest",
    "Ratio",
    "Reconstruction",
    "RecordedChannel",
    "Recorder",
    "Recording",
    "RecordingAudit",
    "Release",
    "RepresentationChannel",
    "ResNet18",
    "SVTPrivacy",
    "SigmoidNet",
    "Sign",
    "Silent",
    "Sketch",
    "SmallAlexNet",
    "Strongest",
    "TableEncoder",
    "TextClf",
    "Through",
    "Transcript",
    "Tuned",
    "TwoSample",
    "Unguarded",
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
    "failures",
    "fidelity",
    "from_csv",
    "from_npz",
    "guessing",
    "layer_information",
    "load",
    "load_encoder",
    "mutual_information",
    "orthogonality",
    "over_seeds",
    "p_values",
    "play",
    "plr_at_fpr",
    "recovered",
    "roc",
    "seeded",
    "sensitivity",
    "subspace_distance",
    "success_rate",
    "task_auroc",
    "tpr_at_fpr",
    "tuned",
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
