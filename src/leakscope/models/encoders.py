"""Encoders: from a record to the representation that is shared in its place (papers 003 and 004)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from leakscope.core.dataset import Dataset
from leakscope.core.errors import DataError, require
from leakscope.models.layers import MOST_LAYERS, image_shape, perceptron
from leakscope.models.repair import RepairedEncoder


@dataclass(frozen=True)
class TableEncoder:
    """Fully connected encoder with ReLU between its layers; 64-128 for tables (paper 004).

    The last layer is linear, so that a representation has no zeros of its own. Purchase and Texas have
    1024-512-256-128, the activity records 128-32 (paper 003).
    """

    widths: tuple[int, ...] = (64, 128)

    def __post_init__(self) -> None:
        fine = 1 <= len(self.widths) <= MOST_LAYERS and all(width >= 1 for width in self.widths)
        rule = f"one to {MOST_LAYERS} widths of at least 1"
        require(fine, "TableEncoder.widths", rule, self.widths)

    def __call__(self, data: Dataset) -> nn.Module:
        front = [nn.Flatten()] if data.x.dim() > 2 else []
        return nn.Sequential(*front, *perceptron((data.x[0].numel(), *self.widths)))


@dataclass(frozen=True)
class ImageEncoder:
    """Two convolutions of 3 x 3 with batch normalisation, ReLU between them; representations are images.

    Paper 003's encoder for reconstruction has 32 ``channels`` and ``stride`` 1; 8 are for two cores.
    """

    channels: int = 8
    stride: int = 1

    def __post_init__(self) -> None:
        require(self.channels >= 1, "ImageEncoder.channels", "at least 1", self.channels)
        require(self.stride in (1, 2), "ImageEncoder.stride", "1 or 2", self.stride)

    def __call__(self, data: Dataset) -> nn.Module:
        inputs, wide = image_shape(data, "ImageEncoder", 8)[0], self.channels
        first = nn.Conv2d(inputs, wide, 3, self.stride, padding=1)
        second = nn.Conv2d(wide, wide, 3, padding=1)
        return nn.Sequential(first, nn.BatchNorm2d(wide), nn.ReLU(), second, nn.BatchNorm2d(wide))


Architecture = TableEncoder | ImageEncoder
ENCODERS: Mapping[str, type[Architecture] | type[RepairedEncoder]] = MappingProxyType(
    {"TableEncoder": TableEncoder, "ImageEncoder": ImageEncoder, "RepairedEncoder": RepairedEncoder}
)


@dataclass(frozen=True)
class SharedEncoder(TableEncoder):
    """A `TableEncoder` whose head stays with the clients, as the model of a recording of its uploads.

    It tells no label: all logits are 0. Attacks by the loss of a label find nothing in it, whatever there is.
    """

    def __call__(self, data: Dataset) -> nn.Module:
        return _Headless(data.task.outputs, *super().__call__(data).children())


class _Headless(nn.Sequential):
    def __init__(self, outputs: int, *layers: nn.Module) -> None:
        super().__init__(*layers)
        self.outputs = outputs

    def forward(self, x: Tensor) -> Tensor:
        for layer in self:
            x = layer(x)
        return x.new_zeros(len(x), self.outputs)


def described(encoder: Architecture | RepairedEncoder) -> dict[str, Any]:
    """The encoder as a table with a name, as plans have them."""
    fields = {key: list(v) if isinstance(v, tuple) else v for key, v in asdict(encoder).items()}
    return {"name": type(encoder).__name__, **fields}


def from_description(table: Mapping[str, Any]) -> Architecture | RepairedEncoder:
    name = str(table.get("name"))
    if name not in ENCODERS:
        raise DataError(f"an encoder must be one of {', '.join(ENCODERS)}, got {name!r}.")
    fields: dict[str, Any] = {
        key: tuple(v) if isinstance(v, list) else v for key, v in table.items() if key != "name"
    }
    try:
        return ENCODERS[name](**fields)
    except TypeError as error:
        raise DataError(f"{name} cannot be built from {fields}: {error}.") from None


def specimen(shape: tuple[int, ...], classes: int) -> Dataset:
    """One record of zeros that networks can be built for, as large as the records themselves are."""
    one = Dataset(torch.zeros(1, *shape), torch.zeros(1, dtype=torch.long), {})
    return replace(one, values={one.label: tuple(str(i) for i in range(classes))})
