"""Records whose gradients can be asked for: what they rest on is checked once, before any of them."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from leakscope.core.errors import ArgumentError, require
from leakscope.core.nouns import Loss, Params
from leakscope.gradients.calls import PRODUCTS
from leakscope.gradients.capture import Call, Stateless, Trace, close, leaves_of, record_losses, trace
from leakscope.gradients.factors import Rule

# What is kept of records: ("gradient", name) -> (n, parameters of the layer), or ("a", name) and
# ("b", name) -> (n, in) and (n, out), the factors of a layer whose gradients are never formed.
Kept = dict[tuple[str, str], Tensor]
# Each record's weight per layer from the squared norms of its gradient's layers; see core.Defense.weigh.
Weigh = Callable[[Mapping[str, Tensor]], Mapping[str, Tensor] | None]

PASS = 1024  # records that share one pass at most
ACTIVATIONS = 2**26  # bytes of what all layers give in one pass: more are new pages each time
NEW = 2**25  # bytes of an allocation that glibc's allocator never keeps
BLOCK = 31 * 2**20  # bytes; glibc's allocator learns from blocks below 32 MiB only


class JointRecords(ArgumentError):
    """A batch's gradient is not the mean of its records'."""


@dataclass(frozen=True, eq=False)
class Records:
    """Labelled records, the parameters their gradients are taken at, and how to take them.

    ``fast``: by the rules of layers; otherwise by vmap. ``whitens``: and some are linear or convolutions.
    ``factored``: weights cheaper to form per batch than per record. ``bytes``: of one record's pass.
    ``last``: maps have their channels last in memory, which takes .8 to .9 of the time on a CPU.
    """

    net: Stateless
    params: dict[str, Tensor]
    x: Tensor
    y: Tensor
    loss: Loss
    fast: bool
    whitens: bool
    factored: frozenset[str]
    bytes: int
    last: bool
    weigh: Weigh | None = None

    @staticmethod
    def of(
        model: nn.Module, params: Params, x: Tensor, y: Tensor, *, loss: Loss, weigh: Weigh | None = None
    ) -> Records:
        """These records, or the reason why their gradients would not be what they seem.

        Whether records depend on each other is asked of the model as it is now, each time. No answer is kept:
        parameters, buffers, modes, hooks and whatever a forward reads elsewhere can all change it, and
        a key that leaves one out would be a false all-clear. The question is made cheap instead: three
        records together and each alone, forward only, and one small backward pass.
        """
        names = [name for name, _ in model.named_parameters()]
        require(set(names) == set(params), "params", f"the model's own, {names}", list(params))
        require(len(x) == len(y) > 0, "x and y", "as long as each other and not empty", (len(x), len(y)))
        refuse_joint_layers(model)
        # A block that comes and goes, untouched: glibc then keeps the pages of smaller ones, which each pass
        # would otherwise get from the system anew (LeNet's Jacobian: 1.6 times as long).
        torch.empty(BLOCK, dtype=torch.uint8)
        with torch.inference_mode(False), torch.enable_grad():
            # Copies, since blocks are computed when they are asked for and training may go on by then, and
            # since a forward may change its parameters (an embedding with max_norm does).
            ordered = {name: params[name].detach().clone() for name in names}
            net, leaves, some = Stateless.of(model), leaves_of(ordered), x[:3].clone()
            alone = [trace(net, leaves, one.clone(), prove=i == 0) for i, one in enumerate(some.split(1))]
            among = _traced_last(net, leaves, some, alone)
            last = among is not None
            among = among or trace(net, leaves, some.clone())
            # Sizes that differ prove that a layer's first dimension counts records and nothing else.
            fast = among.calls is not None and alone[0].calls is not None
            if not last:
                _refuse_dependence(among, alone, inputs=fast)
            losses = record_losses(loss, among.logits, y[:3].clone())
            if fast and len(some) > 1:
                _refuse_joint_gradients(among, losses)
            calls = (among.calls or []) if fast else []
        return Records(
            net=net,
            params=ordered,
            x=x.detach(),
            y=y,
            loss=loss,
            fast=fast,
            whitens=fast and any(call.func in PRODUCTS for call in calls),
            factored=frozenset(among.names[id(call.weight)] for call in calls if _pays_to_factor(call)),
            bytes=among.bytes // len(some),
            last=last,
            weigh=weigh,
        )

    @property
    def size(self) -> int:
        """Bytes of one gradient."""
        return sum(p.numel() * p.element_size() for p in self.params.values())

    @property
    def factors_size(self) -> int:
        """Bytes of one record's factors."""
        return sum(sum(self.params[name].shape) * self.params[name].element_size() for name in self.factored)

    @property
    def kept_size(self) -> int:
        """Bytes of what is kept of one record."""
        unformed = sum(self.params[name].numel() * self.params[name].element_size() for name in self.factored)
        return self.size - unformed + self.factors_size

    def formed(self) -> Records:
        """The same records, all their gradients formed."""
        return replace(self, factored=frozenset())

    def at_once(self, budget: int, *, formed: bool = True) -> int:
        """How many records share a pass: their activations, the gradients of these, and what is formed
        fit into so many bytes."""
        each = 2 * self.bytes + (self.size if formed else 0)
        return max(1, min(PASS, ACTIVATIONS // max(1, self.bytes), budget // max(1, each)))

    def passes(self, rows: Tensor, *, budget: int, share: float = 1.0) -> Iterator[tuple[slice, Kept]]:
        """``share`` times the gradients of these records, or their factors, as many at a time as
        ``budget`` bytes allow: their activations, the gradients of these, and what is kept."""
        n = self.at_once(budget)
        for start in range(0, len(rows), n):
            yield slice(start, start + n), self._pass(rows[start : start + n], share)

    def keep(self, rows: Tensor, *, budget: int, share: float = 1.0) -> Kept:
        """What ``passes`` give, one below the other: formed where it stays, so that ``budget`` is for what
        is on the way there."""
        every: Kept = {}
        n = self.at_once(budget, formed=not self.fast)
        if self.fast:
            for name, p in self.params.items():
                if name not in self.factored:
                    every["gradient", name] = room_for(len(rows), p)
        for start in range(0, len(rows), n):
            where = slice(start, start + n)
            room = {
                name: g[where].unflatten(1, self.params[name].shape)
                for (kind, name), g in every.items()
                if kind == "gradient"
            }
            place(every, self._pass(rows[where], share, room), where=where, n=len(rows))
        return every

    def capture(self, rows: Tensor, share: float = 1.0) -> list[Rule]:
        """One pass of these records, by the rules of layers."""
        with torch.inference_mode(False):
            x, y = self.x.index_select(0, rows), self.y.index_select(0, rows)
            with torch.enable_grad():
                seen = trace(self.net, leaves_of(self.params), x, last=self.last)
                if seen.calls is None:
                    raise ArgumentError(
                        "model must compute all records in the same way, and this one looks at them first."
                    )
                losses = record_losses(self.loss, seen.logits, y)
                return seen.layers(losses if share == 1.0 else losses * share)

    def _pass(self, rows: Tensor, share: float, room: Mapping[str, Tensor] | None = None) -> Kept:
        if not self.fast:
            with torch.inference_mode(False):
                x, y = self.x.index_select(0, rows), self.y.index_select(0, rows)
                found = self._by_vmap(x, y)
            every = {("gradient", name): g.flatten(1) for name, g in found.items()}
            every = every if share == 1.0 else {key: g * share for key, g in every.items()}
            return self._weighed(every, share)
        kept: Kept = {}
        for layer in self.capture(rows, share):
            if layer.weight in self.factored:
                kept["a", layer.weight], kept["b", layer.weight] = layer.a, layer.b
            for name, g in layer.gradients(weight=layer.weight not in self.factored, out=room).items():
                kept["gradient", name] = g.flatten(1)
        return self._weighed(kept, share)

    def _weighed(self, kept: Kept, share: float) -> Kept:
        """What is kept, each record with its weight. The norm of a product of factors is that of theirs."""
        if self.weigh is None:
            return kept
        squares = {}
        for name in self.params:
            parts = [("a", name), ("b", name)] if name in self.factored else [("gradient", name)]
            each = [kept[part].square().sum(1) for part in parts]
            squares[name] = (each[0] * each[1] if len(each) == 2 else each[0]) / share**2
        for name, weight in (self.weigh(squares) or {}).items():
            part = ("b" if name in self.factored else "gradient", name)
            kept[part] = kept[part] * weight[:, None]
        return kept

    def _by_vmap(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        def lone(params: Params, record: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
            logits = self.net(params, record[None])
            return self.loss(logits, label[None]), logits[0].detach()

        with torch.enable_grad():
            every, logits = vmap(grad(lone, has_aux=True), (None, 0, 0))(self.params, x, y)
        record_losses(self.loss, logits, y)
        return {name: every[name].detach() for name in self.params}


def room_for(n: int, p: Tensor) -> Tensor:
    """Room for ``n`` gradients of a parameter, (n, entries). Large room is new pages, which the system hands
    out at once, where it can, in less time than one by one as they are written to."""
    size = n * p.numel() * p.element_size()
    if p.device.type != "cpu" or size < NEW or not hasattr(mmap, "MAP_POPULATE"):
        return p.new_empty(n, p.numel())
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE)
    return torch.frombuffer(pages, dtype=p.dtype).view(n, p.numel())


def place(every: Kept, part: Kept, *, where: slice, n: int) -> None:
    """Put what is kept of some of ``n`` records at ``where`` they belong, without a second copy of all;
    what was formed there stays."""
    for key, tensor in part.items():
        if len(tensor) == n:
            every[key] = tensor
            continue
        if key not in every:
            every[key] = tensor.new_empty(n, *tensor.shape[1:])
        if every[key][where].data_ptr() != tensor.data_ptr():
            every[key][where] = tensor


def drawn_from(rows: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """The records that were drawn, and for each of the ``n`` its place among them: ``unique`` without
    sorting, in memory that does not grow with the number of draws."""
    marked = torch.zeros(n, dtype=torch.long, device=rows.device)
    marked[rows.flatten()] = 1
    return marked.nonzero()[:, 0], marked.cumsum(0) - 1


def _pays_to_factor(call: Call) -> bool:
    # For a batch of k records, one thread, float32: adding up k formed gradients out of the cache takes
    # 0.044 k in*out ns; gathering k rows of both factors and multiplying them 0.43 k (in + out) + 0.025 k
    # in*out ns. They meet where in*out is 23 (in + out), whatever k: 106 x 32 is just above.
    shape = call.weight.shape
    return call.func is F.linear and call.input.dim() == 2 and shape.numel() > 23 * sum(shape)


def refuse_joint_layers(model: nn.Module) -> None:
    """Refuse layers that are known to join records, or to draw at random, in the mode they are in."""
    for name, module in model.named_modules():
        where, kind = f"model.{name}" if name else "model", type(module).__name__
        if isinstance(module, _BatchNorm) and (module.training or module.running_mean is None):
            raise JointRecords(
                f"{where} must not normalise over the batch, got {kind} with batch statistics (a batch's "
                "gradient is then not the mean of its records'); use GroupNorm, or model.eval()."
            )
        if isinstance(module, _DropoutNd) and module.training and module.p > 0:
            raise JointRecords(
                f"{where} must not draw at random, got {kind}(p={module.p}) in training mode (a record then "
                "has no one gradient); use model.eval()."
            )


def _traced_last(net: Stateless, leaves: Params, some: Tensor, alone: list[Trace]) -> Trace | None:
    """The records among others with their channels last, or None where the model does not work so: what each
    is alone, with its channels first, shows it."""
    weights = [call.weight for call in alone[0].calls or [] if call.func is F.conv2d]
    single = any(weight.dtype == torch.float32 for weight in weights)
    if not single or some.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return None
    try:
        among = trace(net, leaves, some.clone(), last=True)
    except RuntimeError:  # what torch says of strides that an operation cannot do with
        return None
    return among if among.calls is not None and _same(among, alone, inputs=True) else None


def _same(among: Trace, alone: list[Trace], *, inputs: bool) -> bool:
    """Whether the logits, and the inputs of all layers, of records among others are those of each alone."""
    pairs = [(among.logits, [one.logits for one in alone])]
    if inputs:
        every = zip(among.calls or [], *(one.calls or [] for one in alone), strict=False)
        pairs += [(call.input, [other.input for other in others]) for call, *others in every]
    return all(close(whole, torch.cat(parts)) for whole, parts in pairs)


def _refuse_dependence(among: Trace, alone: list[Trace], *, inputs: bool) -> None:
    if not _same(among, alone, inputs=inputs):
        raise JointRecords(
            "model must give a record the same output alone and among others, and this one does not (it "
            "joins the records of a batch, or draws at random); use GroupNorm, or model.eval()."
        )


def _refuse_joint_gradients(among: Trace, losses: Tensor) -> None:
    """The second record's loss must have no gradient at what layers give for the others: a model can join
    records going back that it does not join going forth (a batch statistic detached)."""
    reached = torch.cat([b.reshape(len(b), -1) for b in among.backward(losses[1])], 1)
    if not reached.is_meta and bool((torch.cat([reached[:1], reached[2:]]).abs() > 0).any()):
        raise JointRecords(
            "model must not join the records of a batch in their gradients, and this one does though a "
            "record's output is the same alone; use GroupNorm, or model.eval()."
        )
