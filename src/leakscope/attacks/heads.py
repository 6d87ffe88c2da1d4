"""Classifiers an attack can end in: frozen settings that make a fresh scikit-learn estimator.

Paper 000 compares these five (B.1, figure 10) and uses the forest of 50 trees.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

import numpy as np
from sklearn.base import BaseEstimator, clone
from sklearn.covariance import empirical_covariance
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis, QuadraticDiscriminantAnalysis
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from leakscope.core.errors import ArgumentError, require

FEW_TREES = 10  # tell whether more are worth while
Classifier = Any  # a scikit-learn estimator: fit, predict_proba, classes_


class Head(Protocol):
    """Settings that make a fresh classifier. ``votes``: from how many its probabilities are counted; None: it
    computes them, however small."""

    @property
    def votes(self) -> float | None: ...

    def fresh(self, seed: int) -> Classifier: ...


@dataclass(frozen=True)
class RandomForest:
    """Random forest, 50 trees: the head of paper 000.

    ``leaf`` is the fewest examples in a leaf; paper 001's attack has 100 trees and 5."""

    votes: ClassVar[float | None] = 50.0
    trees: int = 50
    depth: int | None = None
    leaf: int = 1

    def __post_init__(self) -> None:
        require(self.trees >= 1, "RandomForest.trees", "at least 1", self.trees)
        require(self.leaf >= 1, "RandomForest.leaf", "at least 1", self.leaf)

    @property
    def lighter(self) -> RandomForest:
        return replace(self, trees=min(self.trees, FEW_TREES))

    def fresh(self, seed: int) -> Classifier:
        return RandomForestClassifier(
            self.trees, max_depth=self.depth, min_samples_leaf=self.leaf, random_state=seed
        )


@dataclass(frozen=True)
class NaiveBayes:
    """Gaussian naive Bayes."""

    votes: ClassVar[float | None] = None

    def fresh(self, seed: int) -> Classifier:
        return make_pipeline(StandardScaler(), GaussianNB())


class _TowardsIdentity(BaseEstimator):  # type: ignore[misc]
    """Covariance (1 - weight) S + weight I of standardised features: of full rank even where a
    class does not vary, or has fewer examples than features."""

    def __init__(self, weight: float = 0.1) -> None:
        self.weight = weight

    def fit(self, x: Any, y: Any = None) -> _TowardsIdentity:
        empirical = empirical_covariance(x)
        self.covariance_ = (1 - self.weight) * empirical + self.weight * np.eye(len(empirical))
        return self


@dataclass(frozen=True)
class LDA:
    """Linear discriminant analysis; the covariance is pulled towards the identity."""

    votes: ClassVar[float | None] = None

    regularisation: float = 0.1

    def __post_init__(self) -> None:
        require(0 < self.regularisation <= 1, "LDA.regularisation", "in (0, 1]", self.regularisation)

    def fresh(self, seed: int) -> Classifier:
        covariance = _TowardsIdentity(self.regularisation)
        return make_pipeline(
            StandardScaler(), LinearDiscriminantAnalysis(solver="lsqr", covariance_estimator=covariance)
        )


@dataclass(frozen=True)
class QDA:
    """Quadratic discriminant analysis; each covariance is pulled towards the identity."""

    votes: ClassVar[float | None] = None

    regularisation: float = 0.1

    def __post_init__(self) -> None:
        require(0 < self.regularisation <= 1, "QDA.regularisation", "in (0, 1]", self.regularisation)

    def fresh(self, seed: int) -> Classifier:
        covariance = _TowardsIdentity(self.regularisation)
        return make_pipeline(
            StandardScaler(), QuadraticDiscriminantAnalysis(solver="eigen", covariance_estimator=covariance)
        )


@dataclass(frozen=True)
class Perceptron:
    """Neural network with one hidden layer of 100."""

    votes: ClassVar[float | None] = None

    hidden: int = 100
    epochs: int = 50

    def fresh(self, seed: int) -> Classifier:
        net = MLPClassifier((self.hidden,), max_iter=self.epochs, early_stopping=True, random_state=seed)
        return make_pipeline(StandardScaler(), net)


@dataclass(frozen=True)
class Logistic:
    """Logistic regression; ``strength`` is the inverse of the ridge penalty."""

    votes: ClassVar[float | None] = None

    strength: float = 1.0

    def fresh(self, seed: int) -> Classifier:
        return make_pipeline(StandardScaler(), LogisticRegression(C=self.strength, max_iter=1_000))


def fresh(head: Head | Classifier, seed: int) -> Classifier:
    """A new classifier from settings, or a copy of any scikit-learn classifier."""
    if hasattr(head, "fresh"):
        return head.fresh(seed)
    if not (hasattr(head, "fit") and hasattr(head, "predict_proba")):
        raise ArgumentError(
            f"Posterior.head must be a head of leakscope or a scikit-learn classifier with predict_proba, "
            f"got {head!r}."
        )
    copy = clone(head)
    if "random_state" in copy.get_params():
        copy.set_params(random_state=seed)
    return copy
