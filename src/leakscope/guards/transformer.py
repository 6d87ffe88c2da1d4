"""A guard as a transformer of scikit-learn: fitted on a table, it gives what may be shared of records."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
import torch
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import type_of_target
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from leakscope.core.dataset import Dataset
from leakscope.core.errors import ArgumentError, require
from leakscope.core.rng import seeded
from leakscope.data.tabular import from_csv
from leakscope.guards.encoder import name_people
from leakscope.guards.inf2guard import Inf2Guard, pace
from leakscope.guards.keys import Key
from leakscope.guards.ledger import ReleaseLedger
from leakscope.guards.preparation import Preparation
from leakscope.models.encoders import TableEncoder

LABEL = "the task's label"  # as a column of a table that is fitted


class GuardedEncoder(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """A guard as a transformer of scikit-learn: fit on records and labels, transform to representations.

    ``secret`` is the column of a DataFrame that must be lost, and is no input; None: the records themselves,
    so that nobody rebuilds them. ``lam`` weighs privacy against the task, ``noise`` is the deviation of what
    is added to the normed representation of ``width`` numbers; ``epochs`` None are those of ``leakscope
    guard``. ``transform`` draws it by the ``key`` (a file;
    see `Key.new`) and the ``person`` (a column of ids), and counts in the ``ledger`` (a file) up to ``most``
    different releases of a person. The key is in no pickle of this object, but its ``encoder_`` is.
    """

    def __init__(
        self,
        secret: str | None = None,
        *,
        lam: float = 0.5,
        noise: float = 0.5,
        width: int = 8,
        epochs: int | None = None,
        key: str | Path | None = None,
        person: str | None = None,
        ledger: str | Path | None = None,
        most: int = 1,
        random_state: int | np.random.RandomState | None = 0,
    ) -> None:
        self.secret = secret
        self.lam = lam
        self.noise = noise
        self.width = width
        self.epochs = epochs
        self.key = key
        self.person = person
        self.ledger = ledger
        self.most = most
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> Self:
        """Train the guard on records (n, inputs), or a DataFrame of any columns, and their labels."""
        data = self._records(X, y)
        against = "attribute" if self.secret is not None else "reconstruction"
        epochs = {} if self.epochs is None else {"epochs": self.epochs}
        guard = Inf2Guard(
            against,  # type: ignore[arg-type]
            self.secret,
            lam=self.lam,
            loss="ridge" if self.secret is not None else "clip",
            perturbation="gaussian" if self.noise else "none",
            scale=self.noise,
            normed=self.width > 1,
            encoder=TableEncoder((64, self.width)),
            **(pace(len(data)) if self.secret is not None else {"epochs": 20}) | epochs,
        )
        if self.secret is not None and data.has(self.secret):
            data = data.without(self.secret)
        data = data.completed(data)
        preparation = Preparation.learned(data, person=self.person)
        seed = check_random_state(self.random_state).randint(2**31 - 1)
        trained = guard(preparation.apply(data).in_units(data), seeded(seed, "guard")).encoder
        self.encoder_ = replace(trained, preparation=preparation)
        self._n_features_out = self.width
        return self

    def transform(self, X: Any) -> np.ndarray:
        """The representations (n, width) of records, as they are released."""
        check_is_fitted(self)
        people = None
        if self.person is not None:
            require(isinstance(X, pd.DataFrame), "X", "a DataFrame where people have ids", type(X).__name__)
            people = list(X[self.person])
        encoder = self.encoder_
        if self._tabular(X):
            x = encoder.read(X)
        else:
            x = torch.tensor(validate_data(self, X, reset=False, dtype=np.float32))
        if self.key is None and not encoder.perturbation.silent:
            raise ArgumentError(
                "GuardedEncoder.key must be the file of a key where noise is added, got None; make one by: "
                "leakscope key new FILE."
            )
        key = None if self.key is None else Key.read(self.key)
        r = encoder(x, key=key, people=people)
        if self.ledger is not None and key is not None:
            who = encoder.name_records(x) if people is None else name_people(people)
            with ReleaseLedger(Path(self.ledger), self.most).open(key, named=people is not None) as entry:
                entry.add(encoder.fingerprint, who, r)
        out: np.ndarray = r.numpy()
        return out

    def _tabular(self, X: Any) -> bool:
        """Whether records are rows of a table: a DataFrame, where a column has a role or holds words."""
        if not isinstance(X, pd.DataFrame):
            return False
        words = any(not pd.api.types.is_numeric_dtype(kind) for kind in X.dtypes)
        return words or self.secret is not None or self.person is not None

    def _records(self, X: Any, y: Any) -> Dataset:
        if self._tabular(X):
            self.n_features_in_, self.feature_names_in_ = X.shape[1], np.asarray(X.columns, dtype=object)
            if self.secret is not None and self.secret not in X:
                raise ArgumentError(f"GuardedEncoder.secret must be a column of X, got {self.secret!r}.")
            secrets = [] if self.secret is None else [self.secret]
            frame = X.assign(**{LABEL: column_or_1d(y)})
            return from_csv(frame, label=LABEL, secrets=secrets, keep=secrets, person=self.person)
        if self.secret is not None or self.person is not None:
            raise ArgumentError(
                f"GuardedEncoder.secret and person must be columns of a DataFrame, got X as "
                f"{type(X).__name__}."
            )
        x, y = validate_data(self, X, y, dtype=np.float32, ensure_min_samples=2)
        y = column_or_1d(y, warn=True)
        if type_of_target(y, raise_unknown=True).startswith("continuous"):
            marks = torch.tensor(y, dtype=torch.float32)
        else:
            marks = torch.tensor(np.unique(y, return_inverse=True)[1])
        return Dataset(torch.tensor(x), marks, {}, name="X")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.transformer_tags.preserves_dtype = []
        return tags
