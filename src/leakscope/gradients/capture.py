"""One forward and one backward pass of some records, from which every layer's gradients follow.

The calls of layers with a rule are seen as they happen, so nothing is registered on the model, and the
autograd graph proves that a parameter was used in that one call and nowhere else: a module used twice,
tied weights and parameters read by hand are not taken for what they are not, but left to vmap.
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
from leakscope.core.task import task_loss
from leakscope.gradients.attention import self_attention
from leakscope.gradients.calls import BINDERS, Make
from leakscope.gradients.factors import Rule


@dataclass(frozen=True, eq=False)
class Call:
    """One use of parameters, as it was when it happened."""

    func: Callable[..., Any]
    input: Tensor
    version: int  # of the input: it must not change in place before its gradient is formed
    weight: Tensor
    bias: Tensor | None
    output: GradientEdge  # unlike the output itself, it cannot be moved by an in-place activation
    size: torch.Size
    make: Make | None  # None where there is no rule


class _Capture(TorchFunctionMode):
    """Sees every call of a layer with parameters that autograd follows, and counts the bytes of all
    results on the way. An attention over its own input is taken apart, so that its layers are seen.
    ``last``: maps lie in memory with their channels last, from the first convolution on."""

    def __init__(self, *, last: bool) -> None:
        super().__init__()
        self.last = last
        self.calls: list[Call] = []
        self.bytes = 0

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if kwargs.get("scale_grad_by_freq"):
            raise ArgumentError(
                "model must not scale an embedding's gradient by how often a row occurs in the batch (a "
                "batch's gradient is then not the mean of its records'); use scale_grad_by_freq=False."
            )
        if func is F.multi_head_attention_forward:
            with self:
                if (parts := self_attention(*args, **kwargs)) is not None:
                    return parts
        out = self._channels_last(func, args, kwargs) if self.last else func(*args, **kwargs)
        self.bytes += out.numel() * out.element_size() if isinstance(out, Tensor) else 0
        if func in BINDERS and out.requires_grad:
            x, weight, bias, make = BINDERS[func](*args, **kwargs)
            if weight is not None:
                edge = get_gradient_edge(out)
                self.calls.append(Call(func, x, x._version, weight, bias, edge, out.shape, make))
        return out

    def _channels_last(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Any:
        if func is F.conv2d and len(args) > 1:  # its output is laid out as its weight is
            args = (args[0], args[1].clone(memory_format=torch.channels_last), *args[2:])
        elif func is Tensor.view:  # which only tensors with channels first can do
            args = (args[0].contiguous(), *args[1:])
        return func(*args, **kwargs)


@dataclass(frozen=True, eq=False)
class Trace:
    """A forward pass: logits, the calls with parameters in their order (None where the rules do not
    account for every parameter), the names of these, and the bytes of all results on the way."""

    logits: Tensor
    calls: list[Call] | None
    names: dict[int, str]
    bytes: int

    def backward(self, value: Tensor) -> tuple[Tensor, ...]:
        """The gradients of one number at what every call gave."""
        return torch.autograd.grad(value, [call.output for call in self.calls or []])

    def layers(self, losses: Tensor) -> list[Rule]:
        """The layers of the gradients of these losses' sum, from one backward pass."""
        gradients = self.backward(losses.sum())
        return [
            call.make(
                self.names[id(call.weight)],
                None if call.bias is None else self.names[id(call.bias)],
                call.weight.shape,
                call.input.detach(),
                b,
            )
            for call, b in zip(self.calls or [], gradients, strict=True)
            if call.make is not None
        ]


@dataclass(frozen=True, eq=False)
class Stateless:
    """A module and its buffers as they were at first, called with parameters of others."""

    module: nn.Module
    buffers: dict[str, Tensor]
    tied: bool  # whether a parameter or a buffer has more than one name

    @staticmethod
    def of(module: nn.Module) -> Stateless:
        parts = (module.named_parameters, module.named_buffers)
        names, every = ([len(list(part(remove_duplicate=same))) for part in parts] for same in (True, False))
        buffers = {name: buffer.detach().clone() for name, buffer in module.named_buffers()}
        return Stateless(module, buffers, names != every)

    def __call__(self, params: Params, x: Tensor) -> Tensor:
        """The logits. Buffers are copied: a model that updates its own finds them as they were next time."""
        state = {**params, **{name: buffer.clone() for name, buffer in self.buffers.items()}}
        logits = functional_call(self.module, state, (x,), tie_weights=self.tied)
        if not isinstance(logits, Tensor) or logits.shape[:1] != x.shape[:1]:
            raise ArgumentError("model must return one tensor with a row for each record of its input.")
        return logits


def leaves_of(params: Params) -> dict[str, Tensor]:
    """The same numbers, each the start of a graph of its own."""
    return {name: tensor.detach().requires_grad_() for name, tensor in params.items()}


def trace(net: Stateless, leaves: Params, x: Tensor, *, last: bool = False, prove: bool = True) -> Trace:
    """The forward pass of these records. ``x`` is given away: a model that begins in place changes it."""
    with torch.enable_grad(), _Capture(last=last) as seen:
        logits = net(leaves, x)
    calls = seen.calls if not prove or _accounted(seen.calls, leaves, logits) else None
    return Trace(logits, calls, {id(tensor): name for name, tensor in leaves.items()}, seen.bytes)


def record_losses(loss: Loss, logits: Tensor, y: Tensor) -> Tensor:
    """Each record's loss as a batch of one, checked to average to the loss of all of them."""
    losses: Tensor
    if loss in (task_loss, F.cross_entropy):
        losses = loss(logits, y, reduction="none")
    else:
        losses = vmap(lambda z, label: loss(z[None], label[None]))(logits, y)
    if losses.dim() != 1 or not _averages(loss, logits.detach(), y, losses.detach()):
        raise ArgumentError(
            "loss must be the mean over records of each record's own loss, as F.cross_entropy without "
            "class weights is, and this one is not (a sum, a weighted mean or a term that joins records); "
            "a batch's gradient is then not the mean of its records' gradients."
        )
    return losses


def _averages(loss: Loss, logits: Tensor, y: Tensor, losses: Tensor) -> bool:
    if loss in (task_loss, F.cross_entropy):  # a mean over the labels that it does not ignore
        return y.is_meta or y.is_floating_point() or not bool((y == -100).any())
    with torch.no_grad():
        return close(loss(logits, y)[None], losses.mean()[None])


def close(a: Tensor, b: Tensor) -> bool:
    """Whether two results of the same computation agree row by row, to the root of the machine's
    precision. On ``meta``, where there are no values, shapes are all that can."""
    if a.shape != b.shape:
        return False
    if a.is_meta or not a.numel():
        return True
    if not a.is_floating_point():
        return torch.equal(a, b)
    a, b = a.detach().reshape(len(a), -1), b.detach().reshape(len(b), -1)
    precision, scale = torch.finfo(a.dtype).eps ** 0.5, a.abs().amax(1, keepdim=True)
    near = (a - b).abs() <= 2 * precision * scale
    return bool(near.all()) or bool((near | (a == b) | (a.isnan() & b.isnan())).all())


def _accounted(calls: list[Call], leaves: Mapping[str, Tensor], logits: Tensor) -> bool:
    """Whether the calls are all that the parameters do: each is used in one call, the logits depend
    on that call, and no other path of the autograd graph leads to the parameter."""
    used = [id(t) for call in calls for t in (call.weight, call.bias) if t is not None]
    if sorted(used) != sorted(id(leaf) for leaf in leaves.values()) or logits.grad_fn is None:
        return False
    arrivals = _arrivals(logits.grad_fn)
    return all(arrivals[get_gradient_edge(leaf).node] == 1 for leaf in leaves.values()) and all(
        (call.output.node is logits.grad_fn or call.output.node in arrivals) and _fits(call, len(logits))
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


def _fits(call: Call, n: int) -> bool:
    """Whether there is a rule, the first dimension may count records, and the input is still what it was."""
    rows = call.size[:1] == (n,) and call.input.shape[:1] == (n,)
    return call.make is not None and rows and call.input._version == call.version
