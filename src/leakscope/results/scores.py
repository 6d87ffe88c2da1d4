"""The measures of an attack: their names, how they are read, and what guessing reaches, said once."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Generic, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from leakscope.core.nouns import Estimate
from leakscope.measures.success import untruncated
from leakscope.results.averages import Average, average

Bound = Literal["estimate", "lower", "upper"]
T = TypeVar("T")
BASE64 = r"^[A-Za-z0-9+/]+={0,2}$"
ROUNDED = 1e-9  # beyond the end of a range, where sums are


class FrozenModel(BaseModel):
    """What is kept on disk: fixed fields, checked when they are read, never changed."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        serialize_by_alias=True,
        validate_by_name=True,
        protected_namespaces=(),
    )


class RebuiltPicture(FrozenModel):
    """A record and what was rebuilt of it, as PNG in base64: private."""

    original: Annotated[str, Field(pattern=BASE64)]
    reconstruction: Annotated[str, Field(pattern=BASE64)]
    ssim: float | None


@dataclass(frozen=True)
class Measure:
    """How a measure is told. ``chance``: what it is without any release; None: what guessing reaches.
    ``bound``: whether it estimates what the attack achieves, or is a lower limit of what leaks. ``tabled``:
    whether a table of a paper has it; the rates of our own test are in none."""

    title: str
    reading: str
    percent: bool = False
    chance: float | None = 0.0
    least: float = 0.0
    most: float = 1.0
    bound: Bound = "estimate"
    falls: bool = False  # as more leaks
    tabled: bool = True


MEASURES = {
    "success": Measure("Success rate", "How often the adversary's best guess is right.", True, None),
    "balanced_accuracy": Measure(
        "Balanced accuracy", "How often it is right, each value counted the same.", True, None
    ),
    "advantage": Measure(
        "Advantage", "How far the release takes the adversary from guessing (0) to always being right (1)."
    ),
    "auroc": Measure(
        "AUROC",
        "How often it ranks a case of the secret above a case without it, whatever the threshold; with more "
        "than two values, averaged over each value against the rest.",
        chance=0.5,
    ),
    "tpr_at_1%": Measure(
        "Hits at 1% false alarms",
        "Of the cases with the secret, the share it names while at most 1 in 100 others is named wrongly.",
        True,
        0.01,
    ),
    "tpr_at_0.1%": Measure(
        "Hits at 0.1% false alarms",
        "The same when at most 1 in 1,000 may be named wrongly: the few it is nearly certain about.",
        True,
        0.001,
    ),
    **{
        f"plr_at_{rate}%": Measure(
            f"Likelihood ratio at {rate}% false alarms",
            "How many times likelier a named record is a member than not.",
            chance=1.0,
            most=100.0 / rate,
        )
        for rate in (1, 2, 2.5, 4, 5, 10)
    },
    **{
        f"conformal_{part}_at_{rate}%": Measure(
            f"Test at {rate}%: {name}", reading, True, rate / 100, tabled=False
        )
        for part, name, reading in (
            ("fpr", "false alarms", "The share of non-members that the test names."),
            ("tpr", "hits", "The share of members that the test names."),
        )
        for rate in (1, 5, 10)
    },
    "information": Measure(
        "Information found",
        "What the answers show to have passed, at least, in nats.",
        least=-math.inf,
        most=math.inf,
        bound="lower",
    ),
    "ssim": Measure("SSIM", "How like the originals the rebuilt pictures are.", chance=None, least=-1.0),
    "psnr": Measure("PSNR", "The same in decibels.", chance=None, least=-math.inf, most=math.inf),
    "mse": Measure(
        "Mean squared error", "How far rebuilt records are from the originals.",
        chance=None, most=math.inf, falls=True,
    ),
    "recovered": Measure("Recovered", "The share of records that are rebuilt.", True, None),
    "certified": Measure(
        "Certified", "The share of records that are rebuilt exactly, and proven by who rebuilt them.", True
    ),
    "right_cells": Measure("Right cells", "The share of a table's cells that are rebuilt.", True, None),
    "accuracy": Measure("Accuracy", "How often the model's label is right.", True, None),
    "r2": Measure("R²", "How much of the label's variance the model explains.", True, least=-math.inf),
    "mae": Measure(
        "Mean absolute error", "How far the model's number is off, in the label's own unit.",
        chance=None, most=math.inf, falls=True,
    ),
}  # fmt: skip


def tells(low: float | None, high: float | None) -> bool:
    """Whether an area under the ROC curve between these limits gives the secret away: one below a half does
    too, read the other way round."""
    return (low is not None and low > 0.5) or (high is not None and high < 0.5)


def _called(name: str) -> Any:
    """A field that tables call otherwise than Python can."""
    return Field(default=None, validation_alias=name, serialization_alias=name)


class Scores(FrozenModel, Generic[T]):
    """What one attack reached, by measure; T is an Estimate, or an Average over seeds."""

    success: T | None = None
    balanced_accuracy: T | None = None
    advantage: T | None = None
    auroc: T | None = None
    tpr_at_1: T | None = _called("tpr_at_1%")
    tpr_at_01: T | None = _called("tpr_at_0.1%")
    plr_at_1: T | None = _called("plr_at_1%")
    plr_at_2: T | None = _called("plr_at_2%")
    plr_at_2_5: T | None = _called("plr_at_2.5%")
    plr_at_4: T | None = _called("plr_at_4%")
    plr_at_5: T | None = _called("plr_at_5%")
    plr_at_10: T | None = _called("plr_at_10%")
    conformal_fpr_at_1: T | None = _called("conformal_fpr_at_1%")
    conformal_tpr_at_1: T | None = _called("conformal_tpr_at_1%")
    conformal_fpr_at_5: T | None = _called("conformal_fpr_at_5%")
    conformal_tpr_at_5: T | None = _called("conformal_tpr_at_5%")
    conformal_fpr_at_10: T | None = _called("conformal_fpr_at_10%")
    conformal_tpr_at_10: T | None = _called("conformal_tpr_at_10%")
    information: T | None = None
    ssim: T | None = None
    psnr: T | None = None
    mse: T | None = None
    recovered: T | None = None

    @model_validator(mode="after")
    def _possible(self) -> Self:
        """An estimate outside its measure's range was not measured by it."""
        for name, score in self.present():
            least, most = MEASURES[name].least - ROUNDED, MEASURES[name].most + ROUNDED
            if isinstance(score, Estimate) and not least <= score.value <= most:
                raise ValueError(f"{name} cannot be {score.value:g}")
        return self

    @property
    def table(self) -> dict[str, T]:
        return dict(self.present())

    def present(self) -> Iterator[tuple[str, T]]:
        """Each measure that there is, by the name that tables have for it."""
        for field, info in type(self).model_fields.items():
            value = getattr(self, field)
            if value is not None:
                yield info.serialization_alias or field, value


TASK_WORDS = {"accuracy": "accuracy", "r2": MEASURES["r2"].title}  # what a task is judged by, in a sentence


class TaskScore(FrozenModel, Generic[T]):
    """How well a model does its task: its accuracy, or, where the label is a number, R²."""

    accuracy: T | None = None
    r2: T | None = None

    @property
    def judged_by(self) -> str:
        """The measure that the task is judged by."""
        return "accuracy" if self.r2 is None else "r2"

    @property
    def main(self) -> T | None:
        """That measure."""
        return self.accuracy if self.r2 is None else self.r2

    @property
    def word(self) -> str:
        """That measure, as a sentence has it."""
        return TASK_WORDS[self.judged_by]

    @property
    def constant(self) -> str:
        """The label that scores best of those that are the same for every record."""
        return "the most common label" if self.r2 is None else "the mean"

    @property
    def baseline(self) -> str:
        """What always answering that label is called."""
        return "Majority" if self.r2 is None else "Mean"

    @property
    def simple(self) -> str:
        """The linear model that stands beside it."""
        return "logistic regression" if self.r2 is None else "ridge regression"


class Worth(TaskScore[T], Generic[T]):
    """What a model is worth on records that nobody trained on; ``trained``: on those it was trained on.
    Beside it, by the same measure, the best constant label and a linear model (a logistic regression, or of
    a number a ridge regression); ``mae`` is the mean absolute error, ``mae_of_mean`` that of the mean."""

    auroc: T | None = None
    trained: T | None = None
    majority: float | None = None
    linear: float | None = None
    mae: T | None = None
    mae_of_mean: float | None = None

    @property
    def idle(self) -> bool:
        """Whether the model is not clearly better than the constant: it has not learned its task."""
        low = getattr(self.main, "low", None)
        return low is not None and self.majority is not None and low <= self.majority


def average_scores(
    runs: Sequence[Scores[Estimate]], bases: Sequence[float] = (), *, shared: bool = False
) -> Scores[Average]:
    """Every measure that all runs have, over seeds. The advantage is averaged before it is cut at zero, from
    the success rates and what guessing achieved (``bases``). ``shared``: the seeds have their cases in
    common."""
    tables = [run.table for run in runs]
    common = [name for name in (tables[0] if tables else ()) if all(name in table for table in tables)]
    averages = {}
    for name in common:
        raw = None
        if name == "advantage" and len(bases) == len(runs) and all(run.success for run in runs):
            pairs = zip(runs, bases, strict=True)
            raw = [untruncated(run.success.value, base) for run, base in pairs if run.success]
        measure = MEASURES[name]
        each = [table[name] for table in tables]
        averages[name] = average(each, raw, least=measure.least, most=measure.most, shared=shared)
    return Scores[Average].model_validate(averages)


def average_task(runs: Sequence[TaskScore[Estimate]]) -> TaskScore[Average]:
    """How well the task is done, over seeds."""
    worth = average_worth([Worth[Estimate](accuracy=run.accuracy, r2=run.r2) for run in runs])
    return TaskScore[Average](accuracy=worth.accuracy, r2=worth.r2)


def average_worth(runs: Sequence[Worth[Estimate]]) -> Worth[Average]:
    """What every run has, over seeds."""

    def over(name: str) -> Average | None:
        each = [getattr(run, name) for run in runs]
        known = MEASURES[runs[0].judged_by if name == "trained" else name] if runs else None
        return average(each, least=known.least, most=known.most) if known and all(each) else None

    def mean(name: str) -> float | None:
        known = [value for run in runs if (value := getattr(run, name)) is not None]
        return sum(known) / len(known) if known else None

    return Worth[Average](
        accuracy=over("accuracy"),
        r2=over("r2"),
        mae=over("mae"),
        mae_of_mean=mean("mae_of_mean"),
        auroc=over("auroc"),
        trained=over("trained"),
        majority=mean("majority"),
        linear=mean("linear"),
    )
