"""What several nets are made of: normalisation, the start of their weights, and what they can take."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import Literal

import torch
from torch import nn

from leakscope.core.dataset import Dataset
from leakscope.core.errors import ArgumentError, require

Norm = Literal["batch", "group"]
Named = Iterable[tuple[str, nn.Module]]
ACTIVATIONS: Mapping[str, type[nn.Module]] = MappingProxyType(
    {"relu": nn.ReLU, "tanh": nn.Tanh, "sigmoid": nn.Sigmoid}
)
POOLS: Mapping[str, Callable[[int], nn.Module]] = MappingProxyType(
    {"max": nn.MaxPool2d, "average": nn.AvgPool2d}
)
MOST_LAYERS = 1_000  # of a net whose widths a plan or a file gives: more is no net but a trap
GROUPS = 32  # at most (Wu and He, ECCV 2018)


def image_shape(data: Dataset, model: str, least: int) -> tuple[int, int, int]:
    """Channels, height and width of the images that ``model`` is for, or the refusal of other records."""
    if data.x.dim() != 4 or min(data.x.shape[2:]) < least:
        raise ArgumentError(
            f"{model} needs images (n, channels, height, width) of at least {least} x {least} pixels, got x "
            f"of shape {tuple(data.x.shape)}; use MLP for tables and features."
        )
    channels, height, width = data.x.shape[1:]
    return channels, height, width


def check_numbers(data: Dataset, model: str) -> None:
    """Refuse texts, whose numbers stand for words."""
    if not data.x.is_floating_point():
        raise ArgumentError(
            f"{model} needs records of floating-point numbers, got x of {data.x.dtype} from {data.name}; use "
            f"TextClf for texts, and x.float() for other numbers."
        )


def sequential(layers: Named) -> nn.Sequential:
    return nn.Sequential(OrderedDict(layers))


def perceptron(widths: Sequence[int], activation: str = "relu") -> nn.Sequential:
    """Linear layers of these widths with an activation between them."""
    layers: list[nn.Module] = []
    for wide, narrow in pairwise(widths):
        layers += [nn.Linear(wide, narrow), ACTIVATIONS[activation]()]
    return nn.Sequential(*layers[:-1])


def pooled(channels: int, classes: int) -> Named:
    """Every channel's mean, and one linear layer on them."""
    pool, fc = nn.AdaptiveAvgPool2d(1), nn.Linear(channels, classes)
    return [("pool", pool), ("flatten", nn.Flatten()), ("fc", fc)]


def check_norm(norm: str, argument: str) -> None:
    require(norm in ("batch", "group"), argument, "'batch' or 'group'", norm)


def normalised(channels: int, norm: Norm) -> nn.Module:
    """Normalisation over the batch, or over groups of the record's own channels: as many groups as divide
    the channels, 32 at most and of two channels at least, since one number alone is normalised away."""
    if norm == "batch":
        return nn.BatchNorm2d(channels)
    fit = [n for n in range(1, GROUPS + 1) if channels % n == 0 and channels >= 2 * n]
    return nn.GroupNorm(max(fit, default=1), channels)


def he(model: nn.Sequential) -> nn.Sequential:
    """Every convolution's weight drawn from N(0, 2 / fan-in) and its bias zero (He et al., ICCV 2015);
    linear layers keep torch's U(-a, a) with a = 1 / sqrt(fan-in)."""
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    return model


def vocabulary(data: Dataset, model: str, least: int) -> tuple[int, int]:
    """How many words the data knows and how long its texts are, or the refusal of other records."""
    text = data.x.dim() == 2 and data.x.dtype == torch.int64 and len(data.columns) == 1
    if not text or not data.columns[0].values or data.x.shape[1] < least:
        raise ArgumentError(
            f"{model} needs texts of at least {least} numbered words with their vocabulary, as imdb and "
            f"text-csv give, got x of {data.x.dtype} and shape {tuple(data.x.shape)} from {data.name}; use "
            f"MLP for tables and features."
        )
    return len(data.columns[0].values), data.x.shape[1]
