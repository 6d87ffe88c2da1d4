"""What a model learns, one of several classes or a number: the one place that knows its loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F


def is_number(y: Tensor) -> bool:
    """Whether labels (n,) are numbers to come near to, and not the codes of classes."""
    return y.is_floating_point() and y.dim() == 1


def task_loss(outputs: Tensor, y: Tensor, reduction: str = "mean") -> Tensor:
    """The loss of a model's outputs: squared error where labels are numbers, else cross-entropy; where there
    is one output for two classes, that of the sigmoid whose logit it is."""
    if is_number(y):
        lost = (columns(outputs)[:, 0] - y.to(outputs.dtype)).square()  # F.mse_loss has no second derivative
        if reduction == "none":
            return lost
        return lost.mean() if reduction == "mean" else lost.sum()
    return F.cross_entropy(as_logits(outputs), y, reduction=reduction)


def columns(outputs: Tensor) -> Tensor:
    """Outputs (n, ...), those of a model that gives one number a record (n,) as one column."""
    return outputs[:, None] if outputs.dim() == 1 else outputs


def as_logits(outputs: Tensor) -> Tensor:
    """The logits of all classes: one sigmoid logit z is the same as two of a softmax, 0 and z."""
    outputs = columns(outputs)
    return torch.cat([torch.zeros_like(outputs), outputs], 1) if outputs.shape[1] == 1 else outputs


@dataclass(frozen=True)
class Classes:
    """Tell which of ``outputs`` classes a record belongs to."""

    outputs: int

    losses: ClassVar[tuple[str, ...]] = ("cross-entropy", "binary cross-entropy")

    def __str__(self) -> str:
        return f"{self.outputs} classes"

    def read(self, outputs: Tensor) -> Tensor:
        """The logits (n, classes)."""
        return as_logits(outputs)[:, : self.outputs]

    def takes(self, outputs: Tensor) -> bool:
        """Whether a model's outputs can be read: one for each class, or one for two of them."""
        width = outputs[0].numel()
        return width >= max(2, self.outputs) or (width == 1 and self.outputs == 2)

    @property
    def wanted(self) -> str:
        least = max(2, self.outputs)
        one = ", or one sigmoid logit" if least == 2 else ""
        return f"one for each of {least} classes or more{one}"


@dataclass(frozen=True)
class Quantity:
    """Come near to a number, which is standardised: in its own unit it is ``mean`` + ``deviation`` y."""

    mean: float = 0.0
    deviation: float = 1.0

    outputs: ClassVar[int] = 1
    losses: ClassVar[tuple[str, ...]] = ("squared error",)
    wanted: ClassVar[str] = "one for each record, since the label is a number"

    def __str__(self) -> str:
        return "a number"

    def read(self, outputs: Tensor) -> Tensor:
        """What is predicted (n, 1), standardised."""
        return columns(outputs)[:, :1]

    def takes(self, outputs: Tensor) -> bool:
        return outputs[0].numel() == 1


Task = Classes | Quantity
