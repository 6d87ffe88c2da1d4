"""What a layer's gradient is made of: its input and the loss's gradient at its output.

One forward and one backward pass of a chunk give the factors of all its records and layers. The
calls of ``F.linear`` and ``F.conv2d`` are seen as they happen, so nothing is registered on the model,
and the autograd graph proves that a parameter was used in that one call and nowhere else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge
from torch.func import functional_call, vmap
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from leakscope.core.errors import ArgumentError
from leakscope.core.nouns import Loss, Params

Pair = tuple[int, int]


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

    def gradients(self, *, weight: bool = True) -> dict[str, Tensor]:
        """Each record's own gradient: name -> (n, *shape), the weight's only if asked for."""
        named = {self.weight: self._weight()} if weight else {}
        if self.bias is not None:
            named[self.bias] = self._bias()
        return named

    def _weight(self) -> Tensor:
        a, b, c = self.a, self.b, self.convolution
        if c is not None:
            return _convolution_weight(a, b, self.shape, c)
        if a.dim() == 2:
            return b[:, :, None] * a[:, None, :]
        return b.flatten(1, -2).transpose(1, 2) @ a.flatten(1, -2)

    def _bias(self) -> Tensor:
        if self.convolution is not None:
            return self.b.sum((2, 3))
        return self.b if self.b.dim() == 2 else self.b.flatten(1, -2).sum(1)


def _convolution_weight(a: Tensor, b: Tensor, shape: torch.Size, c: Convolution) -> Tensor:
    # The records become groups of one convolution, whose weight gradient keeps them apart. On the
    # papers' CNN (1 thread, 64 records) this costs 1.15 of the batch's own weight gradient; vmap of
    # the same operator 1.2, a loop 1.7, nine shifted products 2.3, unfold and a product 4 to 6.
    n = len(a)
    every: Tensor = torch.ops.aten.convolution_backward(
        b.reshape(1, n * b.shape[1], *b.shape[2:]),
        a.reshape(1, n * a.shape[1], *a.shape[2:]),
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
    return every.view(n, *shape)


@dataclass(frozen=True, eq=False)
class _Call:
    """One use of parameters, as it was when it happened."""

    input: Tensor
    version: int  # of the input: it must not change in place before its gradient is formed
    weight: Tensor
    bias: Tensor | None
    output: GradientEdge  # unlike the output itself, it cannot be moved by an in-place activation
    size: torch.Size
    convolution: Convolution | None


class _Capture(TorchFunctionMode):
    """Sees every call of a linear layer or a convolution that autograd follows, and counts the bytes
    of all results on the way."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[_Call] = []
        self.bytes = 0

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        self.bytes += out.numel() * out.element_size() if isinstance(out, Tensor) else 0
        if func in (F.linear, F.conv2d) and out.requires_grad:
            bind = _linear if func is F.linear else _conv2d
            x, weight, bias, convolution = bind(*args, **(kwargs or {}))
            edge = get_gradient_edge(out)
            self.calls.append(_Call(x, x._version, weight, bias, edge, out.shape, convolution))
        return out


_Bound = tuple[Tensor, Tensor, Tensor | None, Convolution | None]


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> _Bound:  # noqa: A002
    return input, weight, bias, None


def _conv2d(
    input: Tensor,  # noqa: A002
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> _Bound:
    dilation = _pair(dilation)
    if padding == "same":
        around = [d * (size - 1) for d, size in zip(dilation, weight.shape[2:], strict=True)]
        padding = [total // 2 if total % 2 == 0 else -1 for total in around]  # -1: not symmetric
    elif padding == "valid":
        padding = 0
    return input, weight, bias, Convolution(_pair(stride), _pair(padding), dilation, groups)


def _pair(value: Any) -> Pair:
    first, second = (value, value) if isinstance(value, int) else (tuple(value) * 2)[:2]
    return int(first), int(second)


@dataclass(frozen=True, eq=False)
class Pass:
    """One pass of some records: their logits, the factors of every layer in the order of the calls
    (None where the rules for linear layers and convolutions do not account for every parameter),
    and the bytes of all results on the way."""

    logits: Tensor
    layers: list[Factors] | None
    bytes: int


def capture(
    model: nn.Module, params: Params, x: Tensor, y: Tensor, *, loss: Loss, share: float = 1.0
) -> Pass:
    """The factors of ``share`` times these records' gradients, from one forward and one backward pass.

    ``x`` is given away: a model that begins in place changes it.
    """
    leaves = {name: tensor.detach().requires_grad_() for name, tensor in params.items()}
    with torch.enable_grad():
        with _Capture() as seen:
            logits = functional_call(model, _and_buffers(model, leaves), (x,))
        if not isinstance(logits, Tensor) or logits.shape[:1] != x.shape[:1]:
            raise ArgumentError("model must return one tensor with a row for each record of its input.")
        if not _accounted(seen.calls, leaves, logits):
            return Pass(logits.detach(), None, seen.bytes)
        losses = record_losses(loss, logits, y)
        edges = [call.output for call in seen.calls]
        gradients = torch.autograd.grad(losses.sum() * share, edges)
    names = {id(tensor): name for name, tensor in leaves.items()}
    layers = [
        Factors(
            weight=names[id(call.weight)],
            bias=None if call.bias is None else names[id(call.bias)],
            shape=call.weight.shape,
            a=call.input.detach(),
            b=b,
            convolution=call.convolution,
        )
        for call, b in zip(seen.calls, gradients, strict=True)
    ]
    return Pass(logits.detach(), layers, seen.bytes)


def record_losses(loss: Loss, logits: Tensor, y: Tensor) -> Tensor:
    """Each record's loss as a batch of one, checked to average to the loss of all of them."""
    losses: Tensor = vmap(lambda z, label: loss(z[None], label[None]))(logits, y)
    if losses.dim() != 1 or not close(loss(logits, y), losses.mean()):
        raise ArgumentError(
            "loss must be the mean over records of each record's own loss, as F.cross_entropy without "
            "class weights is, and this one is not (a sum, a weighted mean or a term that joins records); "
            "a batch's gradient is then not the mean of its records' gradients."
        )
    return losses


def close(a: Tensor, b: Tensor) -> bool:
    """Whether two results of the same computation agree, to the root of the machine's precision."""
    if a.shape != b.shape:
        return False
    if not a.is_floating_point():
        return torch.equal(a, b)
    scale = float(a.detach().abs().max()) if a.numel() else 0.0
    precision = torch.finfo(a.dtype).eps ** 0.5
    return torch.allclose(a, b, rtol=precision, atol=precision * scale, equal_nan=True)


def _and_buffers(model: nn.Module, params: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies of the buffers too, so that a model that updates its own leaves them as they were."""
    return {**params, **{name: buffer.clone() for name, buffer in model.named_buffers()}}


def _accounted(calls: list[_Call], leaves: Mapping[str, Tensor], logits: Tensor) -> bool:
    """Whether the calls are all that the parameters do: each is used in one call, the logits depend
    on that call, and no other path of the autograd graph leads to the parameter."""
    used = [id(t) for call in calls for t in (call.weight, call.bias) if t is not None]
    if sorted(used) != sorted(id(leaf) for leaf in leaves.values()) or logits.grad_fn is None:
        return False
    arrivals = _arrivals(logits.grad_fn)
    return all(arrivals[get_gradient_edge(leaf).node] == 1 for leaf in leaves.values()) and all(
        (call.output.node is logits.grad_fn or call.output.node in arrivals)
        and _has_a_rule(call, len(logits))
        for call in calls
    )


def _arrivals(root: Node) -> Counter[Node]:
    """How many edges of the autograd graph lead to each of its nodes."""
    arrivals: Counter[Node] = Counter()
    pending, seen = [root], {root}
    while pending:
        for node, _ in pending.pop().next_functions:
            if node is not None:
                arrivals[node] += 1
                if node not in seen:
                    seen.add(node)
                    pending.append(node)
    return arrivals


def _has_a_rule(call: _Call, n: int) -> bool:
    c, dims = call.convolution, call.input.dim()
    rows = len(call.size) == dims and call.size[0] == n and call.input.shape[0] == n
    rule = dims >= 2 if c is None else dims == 4 and min(c.padding) >= 0
    return rows and rule and call.input._version == call.version
