"""What a layer's gradient is made of: what went in and the loss's gradient at what came out.

One short rule for each kind of layer. A layer here is one call with its parameters, of a chunk of records:
``gradients`` forms each record's own, into ``out`` where there is room for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

Pair = tuple[int, int]


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

    def _weight(self, room: Tensor | None) -> Tensor:
        a, b, c = self.a, self.b, self.convolution
        if c is not None:
            every = convolution_weight(a, b, self.shape, c)
            return every if room is None else room.copy_(every)
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


def convolution_weight(a: Tensor, b: Tensor, shape: torch.Size, c: Convolution) -> Tensor:
    """The records become groups of one convolution, whose weight gradient keeps them apart.

    On the papers' CNN (1 thread, 64 records) this costs 1.15 of the batch's own weight gradient; vmap of
    the same operator 1.2, a loop 1.7, nine shifted products 2.3, unfold and a product 4 to 6.
    """
    n = len(a)
    every: Tensor = torch.ops.aten.convolution_backward(
        b.reshape(-1).view(1, n * b.shape[1], *b.shape[2:]),  # by way of one dimension, since the strides of
        a.reshape(-1).view(1, n * a.shape[1], *a.shape[2:]),  # maps of 1 x 1 would say channels last
        a.new_empty(1).expand(n * shape[0], *shape[1:]),  # only its shape is read
        None,
        c.stride,
        c.padding,
        c.dilation,
        False,
        (0, 0),
        n * c.groups,
        (False, True, False),
    )[1]
    return every.reshape(n, *shape)
