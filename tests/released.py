"""Patients as a hospital keeps them, and an encoder of their table: what tests of releases share."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import torch

from leakscope import Dataset, Perturbation, from_csv
from leakscope.core.rng import initialised, seeded
from leakscope.guards.encoder import Encoder
from leakscope.guards.preparation import Preparation
from leakscope.models.encoders import TableEncoder, described

COLUMNS = {"label": "died", "secrets": ["sex"], "drop": ["patient"], "keep": ["ward"]}


def patients(n: int = 400, seed: int = 0) -> pd.DataFrame:
    """Ages, pulses with gaps, wards; one patient has a diagnosis that nobody else has."""
    rng = np.random.default_rng(seed)
    sex = rng.integers(2, size=n)
    frame = pd.DataFrame(
        {
            "patient": [f"P{i:05d}" for i in range(n)],
            "age": rng.integers(18, 95, n),
            "pulse": np.round(rng.normal(75, 12, n), 1),
            "height": np.round(rng.normal(165, 7, n) + 12 * sex, 1),
            "ward": rng.choice(["surgery", "medicine", "eyes"], n),
            "diagnosis": rng.choice(["sepsis", "fracture", "asthma"], n),
            "sex": np.where(sex, "m", "f"),
            "died": rng.integers(2, size=n),
        }
    )
    frame.loc[3, "diagnosis"] = "kuru"
    frame.loc[::9, "pulse"] = np.nan
    return frame


def dataset(frame: pd.DataFrame) -> Dataset:
    table: Any = COLUMNS
    records = from_csv(frame, **table).without("sex")
    return records.completed(records)


def deployed(frame: pd.DataFrame, *, seed: int = 0, scale: float = 1.0, **settings: Any) -> Encoder:
    """An encoder of the table, with random weights."""
    records = dataset(frame)
    preparation = Preparation.learned(records)
    shape = [preparation.columns[-1].stop]
    architecture = TableEncoder((8, 4))
    like = preparation.apply(records)
    network = initialised(lambda: architecture(like), seeded(seed, "network"))
    return Encoder(
        network,
        described(architecture),
        Perturbation("gaussian", scale),
        normed=True,
        about={"shape": shape, "classes": 2, "data": "patients"},
        preparation=preparation,
        **settings,
    )


def separates(r: torch.Tensor, codes: torch.Tensor) -> float:
    """The AUROC of Fisher's direction, learned on one half of the records and judged on the other."""
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
    from sklearn.metrics import roc_auc_score

    half = len(r) // 2
    learned = LinearDiscriminantAnalysis().fit(r[:half].numpy(), codes[:half].numpy())
    return float(roc_auc_score(codes[half:].numpy(), learned.decision_function(r[half:].numpy())))
