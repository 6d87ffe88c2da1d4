"""What a layer's gradient is made of: what went in and the loss's gradient at what came out.

One short rule for each kind of layer. A layer here is one call with its parameters, of a chunk of records:
``gradients`` forms each record's own, into ``out`` where there is room for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

Pair = tuple[int, int]

BLOCK = 2**21  # bytes of a convolution's factors, or patches, that stay in the nearer cache
FORMED = 2**22  # entries of a linear layer's gradients held at a time


class Rule(Protocol):
    """A call and its parameters: the name of its weight and of its bias, and the weight's shape."""

    @property
    def weight(self) -> str: ...
    @property
    def bias(self) -> str | None: ...
    @property
    def shape(self) -> torch.Size: ...
    @property
    def a(self) -> Tensor: ...
    @property
    def b(self) -> Tensor: ...

    def gradients(self, *, weight: bool = True, out: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
        """Each record's own gradient: name -> (n, *shape), the weight's only if asked for."""


@dataclass(frozen=True)
class Convolution:
    """How a convolution slides."""

    stride: Pair
    padding: Pair
    dilation: Pair
    groups: int


@dataclass(frozen=True, eq=False)
class Factors:
    """Input ``a`` (n, ..., in) and output gradient ``b`` (n, ..., out) of a linear layer, or
    (n, channels, height, width) of a convolution, and the names and shape of its parameters."""

    weight: str
    bias: str | None
    shape: torch.Size
    a: Tensor
    b: Tensor
    convolution: Convolution | None = None

    def gradients(self, *, weight: bool = True, out: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
        named = {self.weight: self._weight((out or {}).get(self.weight))} if weight else {}
        if self.bias is not None:
            named[self.bias] = _put(self._bias(), self.bias, out)
        return named

    def blocks(self) -> Iterator[Tensor]:
        """The weight's gradients, those of some consecutive records at a time, in any layout."""
        a, b, c = self.a, self.b, self.convolution
        if c is not None:
            yield from convolution_weights(a, b, self.shape, c)
            return
        size = max(1, FORMED // self.shape.numel())
        for some, other in zip(a.split(size), b.split(size), strict=True):
            yield self._products(some, other)

    def _weight(self, room: Tensor | None) -> Tensor:
        if self.convolution is None:
            return self._products(self.a, self.b, room)
        room = self.a.new_empty(len(self.a), *self.shape) if room is None else room
        start = 0
        for block in self.blocks():
            room[start : start + len(block)] = block
            start += len(block)
        return room

    @staticmethod
    def _products(a: Tensor, b: Tensor, room: Tensor | None = None) -> Tensor:
        if a.dim() == 2:
            return torch.mul(b[:, :, None], a[:, None, :], out=room)
        return torch.bmm(b.flatten(1, -2).transpose(1, 2), a.flatten(1, -2), out=room)

    def _bias(self) -> Tensor:
        if self.convolution is not None:
            return self.b.sum((2, 3))
        return self.b if self.b.dim() == 2 else self.b.flatten(1, -2).sum(1)


@dataclass(frozen=True, eq=False)
class Scaling:
    """The scale and shift of a normalisation: the normalised input ``a`` and the output gradient ``b``.
    An entry of the parameters serves all of a record's places along the dimensions ``shared``."""

    weight: str
    bias: str | None
    shape: torch.Size
    a: Tensor
    b: Tensor
    shared: tuple[int, ...]

    def gradients(self, *, weight: bool = True, out: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
        named = {self.weight: _put(self._summed(self.a * self.b), self.weight, out)} if weight else {}
        if self.bias is not None:
            named[self.bias] = _put(self._summed(self.b), self.bias, out)
        return named

    def _summed(self, every: Tensor) -> Tensor:
        return every.sum(self.shared) if self.shared else every


@dataclass(frozen=True, eq=False)
class Lookup:
    """The rows ``a`` (n, ...) that were looked up in an embedding, and the gradient ``b`` (n, ..., width)
    of what was found there; that of the row ``padding`` is zero by definition."""

    weight: str
    shape: torch.Size
    a: Tensor
    b: Tensor
    padding: int | None
    bias: None = None

    def gradients(self, *, weight: bool = True, out: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
        if not weight:
            return {}
        room = (out or {}).get(self.weight)
        every = self.b.new_zeros(len(self.a), *self.shape) if room is None else room.zero_()
        first = torch.arange(len(self.a), device=self.a.device) * self.shape[0]
        places = self.a.reshape(len(self.a), -1) + first[:, None]
        every.view(-1, self.shape[1]).index_add_(0, places.flatten(), self.b.reshape(-1, self.shape[1]))
        if self.padding is not None:
            every[:, self.padding] = 0
        return {self.weight: every}


def _put(every: Tensor, name: str, out: Mapping[str, Tensor] | None) -> Tensor:
    return every if out is None or name not in out else out[name].copy_(every)


def widest(device: torch.device) -> torch.dtype:
    """What long sums are added up in: float64, where the device has it."""
    return torch.float32 if device.type == "mps" else torch.float64


def convolution_weights(a: Tensor, b: Tensor, shape: torch.Size, c: Convolution) -> Iterator[Tensor]:
    """Each record's weight gradient, some records at a time.

    One thread, float32: as a product with patches where these are cheap to copy or the maps small (the first
    layer of LeNet .65 of the time, 64 to 192 channels on 8 x 8 maps .9), as a grouped convolution elsewhere.
    """
    positions, inside = b[0, 0].numel(), shape[1:].numel()
    by_patches = shape[1] == 1 or positions <= 64
    each = positions * inside * c.groups if by_patches else a[0].numel() + b[0].numel()
    size = max(1, BLOCK // (each * a.element_size()))
    for some, other in zip(a.split(size), b.split(size), strict=True):
        yield (_by_patches if by_patches else _by_groups)(some, other, shape, c)


def _by_patches(a: Tensor, b: Tensor, shape: torch.Size, c: Convolution) -> Tensor:
    rows = b.flatten(2).unflatten(1, (c.groups, -1))  # (n, groups, out, positions)
    every = (rows @ patches(a, shape, c)).flatten(1, 2)
    kernels: Tensor = every.unflatten(2, (*shape[2:], shape[1])).movedim(-1, 2)
    return kernels


def _by_groups(a: Tensor, b: Tensor, shape: torch.Size, c: Convolution) -> Tensor:
    """The records become groups of one convolution, whose weight gradient keeps them apart."""
    n, last = len(a), not b.is_contiguous()
    # Only the shape and the layout of the weight are read.
    weight = a.new_empty(n * shape[0], *shape[2:], shape[1]).movedim(-1, 1) if last else a.new_empty(1)
    every: Tensor = torch.ops.aten.convolution_backward(
        _joined(b, last=last),
        _joined(a, last=last),
        weight if last else weight.expand(n * shape[0], *shape[1:]),
        None,
        c.stride,
        c.padding,
        c.dilation,
        False,
        (0, 0),
        n * c.groups,
        (False, True, False),
    )[1]
    apart: Tensor = every.unflatten(0, (n, -1))
    return apart


def _joined(part: Tensor, *, last: bool) -> Tensor:
    """The channels of all records (1, n * channels, height, width), last in memory too if they were."""
    if last:
        return part.permute(2, 3, 0, 1).flatten(2)[None].movedim(-1, 1)
    # By way of one dimension, since the strides of maps of 1 x 1 would say channels last.
    return part.reshape(-1).view(1, -1, *part.shape[2:])


def patches(a: Tensor, shape: torch.Size, c: Convolution) -> Tensor:
    """What every position of the kernel sees: (n, groups, positions, height * width * channels).

    Copied out of a padded image with its channels last, in runs of a kernel's row, or of a map's where those
    are longer: F.unfold takes five times as long on maps of 4 x 4."""
    (n, channels, height, width), (high, wide) = a.shape, shape[2:]
    down, right = c.padding
    image = a.permute(0, 2, 3, 1)
    if down or right:
        image = a.new_zeros(n, height + 2 * down, width + 2 * right, channels)
        image[:, down : down + height, right : right + width] = a.permute(0, 2, 3, 1)
    by_record, by_row, by_column, by_channel = image.stride()
    out = [(image.shape[i + 1] - c.dilation[i] * (shape[i + 2] - 1) - 1) // c.stride[i] + 1 for i in (0, 1)]
    seen = image.as_strided(
        (n, c.groups, *out, high, wide, channels // c.groups),
        (
            by_record,
            by_channel * (channels // c.groups),
            by_row * c.stride[0],
            by_column * c.stride[1],
            by_row * c.dilation[0],
            by_column * c.dilation[1],
            by_channel,
        ),
    )
    if out[1] > wide * shape[1]:
        return seen.permute(0, 1, 4, 5, 6, 2, 3).reshape(n, c.groups, -1, out[0] * out[1]).mT
    return seen.reshape(n, c.groups, out[0] * out[1], -1)
