"""Leakscope: what sharing gradients, model updates or representations gives away.

A Game deals challenges through a Channel; an Attack sees only the View; measures see only the
Transcript. Names are loaded when first used, so importing leakscope is quick.
"""

from __future__ import annotations

import sys
from importlib import import_module, metadata
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING

from leakscope.core.catalogue import CATALOGUE

if TYPE_CHECKING:
    from leakscope.attacks.alignment import Cosine, GradientDiff
    from leakscope.attacks.closed_form import FirstLayer
    from leakscope.attacks.decoders import Decoder, Inversion
    from leakscope.attacks.family import Family
    from leakscope.attacks.heads import LDA, QDA, Logistic, NaiveBayes, Perceptron, RandomForest
    from leakscope.attacks.joint import Joint
    from leakscope.attacks.joint_regression import JointRegression
    from leakscope.attacks.layer_by_layer import LayerByLayer
    from leakscope.attacks.losses import FedLoss, Loss, Merlin, ModifiedEntropy, Zari
    from leakscope.attacks.mean_input import MeanInput
    from leakscope.attacks.members import HeadConfidence, LabelAware, LiRA, LossThreshold
    from leakscope.attacks.mixture import Mixture, Trees
    from leakscope.attacks.posterior import NoiseAware, Posterior
    from leakscope.attacks.reconstruction import DeepLeakage, InvertingGradients
    from leakscope.attacks.reductions import PCA, FirstInput, Flat, MaxPool, Sketch, UnitMax
    from leakscope.attacks.representations import Decensored, Fisher, Network
    from leakscope.attacks.row_space import RowSpace
    from leakscope.attacks.span_matching import SpanMatching
    from leakscope.attacks.span_membership import SpanDistance, WhitenedSpan
    from leakscope.attacks.strongest import Strongest
    from leakscope.attacks.texts import TextSpace
    from leakscope.attacks.users import PLDA, Prototype
    from leakscope.attacks.whitened import FedMIA, InOut, Whitened
    from leakscope.audits.guards import GuardAudit, Tuned, tuned
    from leakscope.audits.guards.encoding import encode
    from leakscope.audits.layers import LayerAudit
    from leakscope.audits.mechanism.canary import L2, AttributeAudit, Canary, LikelihoodRatio
    from leakscope.audits.membership import MembershipAudit, RecordingAudit
    from leakscope.audits.questions import QuestionAudit
    from leakscope.audits.records import RecordedRecords, RecordsAudit
    from leakscope.audits.sites import SiteAudit
    from leakscope.core.dataset import Batch, Column, Dataset
    from leakscope.core.nouns import Defense, Estimate, Knowledge, Release, Transcript, View
    from leakscope.core.rng import seeded
    from leakscope.data import from_csv, from_npz, load
    from leakscope.defenses.bottleneck import VIB
    from leakscope.defenses.deployed import (
        FlowerAdaptiveClipping,
        FlowerFixedClipping,
        FlowerLocalDp,
        PercentilePrivacy,
        SVTPrivacy,
    )
    from leakscope.defenses.dpsgd import DPSGD
    from leakscope.defenses.gradient import (
        Chain,
        FirstLayerLocal,
        HalfPrecision,
        LaplaceNoise,
        Noise,
        Pruning,
        Sign,
        Withhold,
        Within,
    )
    from leakscope.defenses.perturbation import AdversarialPerturbation
    from leakscope.defenses.training import MixupMMD
    from leakscope.games import (
        Clients,
        Distribution,
        Inference,
        Membership,
        Ratio,
        Reconstruction,
        UserInference,
    )
    from leakscope.games.channels import GradientChannel, Plain, Silent, Summed, Through, UpdateChannel
    from leakscope.games.referee import play
    from leakscope.games.representations import RepresentationChannel
    from leakscope.guards.baselines import (
        DPFE,
        LAFTR,
        AdversarialTraining,
        Compressed,
        DPEncoder,
        DPParameters,
    )
    from leakscope.guards.distilled import Distilled
    from leakscope.guards.dpsgd_guard import DPSGDGuard
    from leakscope.guards.encoder import Encoder, Guarded
    from leakscope.guards.erasure import INLP, LEACE
    from leakscope.guards.estimators import CLUB, MINE, InfoNCE
    from leakscope.guards.exporting import export
    from leakscope.guards.inf2guard import Guards, Inf2Guard
    from leakscope.guards.keys import Key
    from leakscope.guards.ledger import ReleaseLedger
    from leakscope.guards.membership_baselines import AdvReg, NeuGuard
    from leakscope.guards.neighbours import NearestNeighbours
    from leakscope.guards.noise import Perturbation
    from leakscope.guards.plain import Unguarded
    from leakscope.guards.repaired import Repaired
    from leakscope.guards.saved import load_encoder
    from leakscope.guards.tappfl import TAPPFL
    from leakscope.guards.transformer import GuardedEncoder
    from leakscope.integrations.claims import claim
    from leakscope.measures.epsilon import epsilon_lower_bound
    from leakscope.measures.fidelity import failures, fidelity, recovered
    from leakscope.measures.information import mutual_information
    from leakscope.measures.membership import conformal, discoveries, p_values, plr_at_fpr
    from leakscope.measures.mutual import layer_information
    from leakscope.measures.one_run import one_run_epsilon
    from leakscope.measures.orthogonality import orthogonality, update_cosines
    from leakscope.measures.records import (
        certified_records,
        confident_cells,
        exact_records,
        false_certificates,
        right_cells,
    )
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
    from leakscope.measures.texts import found_words
    from leakscope.measures.utility import accuracy, task_auroc
    from leakscope.measures.vinformation import v_information
    from leakscope.models import (
        CNN,
        MLP,
        VGG9,
        AlexNet,
        Bert,
        DenseNet,
        Frozen,
        LeNet,
        Linear,
        ResNet18,
        SigmoidNet,
        SmallAlexNet,
        TextClf,
        TextTransformer,
    )
    from leakscope.models.encoders import ImageEncoder, SharedEncoder, TableEncoder
    from leakscope.run.api import (
        audit,
        audit_recording,
        compare,
        dossier,
        gate,
        guard,
        localise,
        preflight,
        reconstruct,
        tune,
    )
    from leakscope.training import Local
    from leakscope.training.recording import Canaries, RecordedChannel, Recorder, Recording

__version__ = metadata.version("leakscope")

__all__ = [
    "CLUB",
    "CNN",
    "DPFE",
    "DPSGD",
    "INLP",
    "L2",
    "LAFTR",
    "LDA",
    "LEACE",
    "MINE",
    "MLP",
    "PCA",
    "PLDA",
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
    "Bert",
    "Canaries",
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
    "FedMIA",
    "FirstInput",
    "FirstLayer",
    "FirstLayerLocal",
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
    "GuardedEncoder",
    "Guards",
    "HalfPrecision",
    "HeadConfidence",
    "ImageEncoder",
    "InOut",
    "Inf2Guard",
    "Inference",
    "InfoNCE",
    "Inversion",
    "InvertingGradients",
    "Joint",
    "JointRegression",
    "Key",
    "Knowledge",
    "LabelAware",
    "LaplaceNoise",
    "LayerAudit",
    "LayerByLayer",
    "LeNet",
    "LiRA",
    "LikelihoodRatio",
    "Linear",
    "Local",
    "Logistic",
    "Loss",
    "LossThreshold",
    "MaxPool",
    "MeanInput",
    "Membership",
    "MembershipAudit",
    "Merlin",
    "Mixture",
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
    "QuestionAudit",
    "RandomForest",
    "Ratio",
    "Reconstruction",
    "RecordedChannel",
    "RecordedRecords",
    "Recorder",
    "Recording",
    "RecordingAudit",
    "RecordsAudit",
    "Release",
    "ReleaseLedger",
    "Repaired",
    "RepresentationChannel",
    "ResNet18",
    "RowSpace",
    "SVTPrivacy",
    "SharedEncoder",
    "SigmoidNet",
    "Sign",
    "Silent",
    "SiteAudit",
    "Sketch",
    "SmallAlexNet",
    "SpanDistance",
    "SpanMatching",
    "Strongest",
    "Summed",
    "TableEncoder",
    "TextClf",
    "TextSpace",
    "TextTransformer",
    "Through",
    "Transcript",
    "Trees",
    "Tuned",
    "TwoSample",
    "Unguarded",
    "UnitMax",
    "UpdateChannel",
    "UserInference",
    "View",
    "Whitened",
    "WhitenedSpan",
    "Withhold",
    "Within",
    "Zari",
    "accuracy",
    "advantage",
    "audit",
    "audit_recording",
    "auroc",
    "certified_records",
    "claim",
    "compare",
    "confident_cells",
    "conformal",
    "discoveries",
    "dossier",
    "encode",
    "epsilon_lower_bound",
    "exact_records",
    "export",
    "failures",
    "false_certificates",
    "fidelity",
    "found_words",
    "from_csv",
    "from_npz",
    "gate",
    "guard",
    "guessing",
    "layer_information",
    "load",
    "load_encoder",
    "localise",
    "mutual_information",
    "one_run_epsilon",
    "orthogonality",
    "over_seeds",
    "p_values",
    "play",
    "plr_at_fpr",
    "preflight",
    "reconstruct",
    "recovered",
    "right_cells",
    "roc",
    "seeded",
    "sensitivity",
    "subspace_distance",
    "success_rate",
    "task_auroc",
    "tpr_at_fpr",
    "tune",
    "tuned",
    "two_sample",
    "update_cosines",
    "v_information",
]


_MOVED = {  # modules under the names that they had at first
    "leakscope.bounds": "leakscope.measures.bounds",
    "leakscope.dataset": "leakscope.core.dataset",
    "leakscope.epsilon": "leakscope.measures.epsilon",
    "leakscope.errors": "leakscope.core.errors",
    "leakscope.flower": "leakscope.integrations.flower",
    "leakscope.flower_guard": "leakscope.integrations.flower_guard",
    "leakscope.guarding": "leakscope.audits.guards",
    "leakscope.published": "leakscope.run.published",
    "leakscope.recording": "leakscope.training.recording",
    "leakscope.rng": "leakscope.core.rng",
}


class _Moved(MetaPathFinder, Loader):
    """Finds a module by its first name: it is the same module."""

    def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name in _MOVED else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        self.home = import_module(_MOVED[spec.name]).__spec__
        return import_module(_MOVED[spec.name])

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self.home


sys.meta_path.append(_Moved())


def __getattr__(name: str) -> object:
    if name in CATALOGUE:
        return getattr(import_module(CATALOGUE[name].module), name)
    if name in ("data", "gradients", "models", "training") or f"{__name__}.{name}" in _MOVED:
        return import_module(f"leakscope.{name}")
    raise AttributeError(f"module 'leakscope' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
