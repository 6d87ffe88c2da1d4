"""Records whose gradients can be asked for: what they rest on is checked once, before any of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from leakscope.core.errors import ArgumentError, require
from leakscope.core.nouns import Loss, Params
from leakscope.gradients.factors import Factors, Pass, capture, close, record_losses

# What is kept of records: ("gradient", name) -> (n, parameters of the layer), or ("a", name) and
# ("b", name) -> (n, in) and (n, out), the factors of a layer whose gradients are never formed.
Kept = dict[tuple[str, str], Tensor]
# Each record's weight per layer from the squared norms of its gradient's layers; see core.Defense.weigh.
Weigh = Callable[[Mapping[str, Tensor]], Mapping[str, Tensor] | None]

PASS = 256  # records that share one pass at most: more gain nothing and take memory,
SMALL = 2**24  # unless they are so small that more fit into these bytes


@dataclass(frozen=True, eq=False)
class Records:
    """Labelled records, the parameters their gradients are taken at, and how to take them.

    ``fast``: from the factors of linear layers and convolutions; otherwise by vmap.
    ``factored``: weights cheaper to form per batch than per record. ``bytes``: of one record's pass.
    """

    model: nn.Module
    params: dict[str, Tensor]
    x: Tensor
    y: Tensor
    loss: Loss
    fast: bool
    factored: frozenset[str]
    bytes: int
    weigh: Weigh | None = None

    @staticmethod
    def of(
        model: nn.Module, params: Params, x: Tensor, y: Tensor, *, loss: Loss, weigh: Weigh | None = None
    ) -> Records:
        """These records, or the reason why their gradients would not be what they seem."""
        names = [name for name, _ in model.named_parameters()]
        require(set(names) == set(params), "params", f"the model's own, {names}", list(params))
        require(len(x) == len(y) > 0, "x and y", "as long as each other and not empty", (len(x), len(y)))
        _refuse_joint_layers(model)
        with torch.inference_mode(False):
            # Copies, since blocks are computed when they are asked for and training may go on by then.
            ordered = {name: params[name].detach().clone() for name in names}
            few = [slice(0, min(3, len(x))), *(slice(i, i + 1) for i in range(min(3, len(x))))]
            among, *alone = (
                capture(model, ordered, x[part].clone(), y[part].clone(), loss=loss) for part in few
            )
        _refuse_dependence(among, alone)
        # Sizes that differ prove that a layer's first dimension counts records and nothing else.
        layers = among.layers if all(one.layers is not None for one in alone) else None
        factored = frozenset(layer.weight for layer in layers or [] if _pays_to_factor(layer))
        size = among.bytes // len(among.logits)
        return Records(model, ordered, x.detach(), y, loss, layers is not None, factored, size, weigh)

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

    def passes(self, rows: Tensor, *, budget: int, share: float = 1.0) -> Iterator[tuple[slice, Kept]]:
        """``share`` times the gradients of these records, or their factors, as many at a time as
        ``budget`` bytes allow: their activations, the gradients of these, and what is kept."""
        each = 2 * self.bytes + self.size
        n = max(1, min(max(PASS, SMALL // each), budget // each))
        for start in range(0, len(rows), n):
            yield slice(start, start + n), self._pass(rows[start : start + n], share)

    def keep(self, rows: Tensor, *, budget: int, share: float = 1.0) -> Kept:
        """What ``passes`` give, one below the other."""
        every: Kept = {}
        for where, kept in self.passes(rows, budget=budget, share=share):
            place(every, kept, where=where, n=len(rows))
        return every

    def _pass(self, rows: Tensor, share: float) -> Kept:
        with torch.inference_mode(False):
            x, y = self.x.index_select(0, rows), self.y.index_select(0, rows)
            if not self.fast:
                every = {("gradient", name): g.flatten(1) * share for name, g in self._by_vmap(x, y).items()}
                return self._weighed(every, share)
            layers = capture(self.model, self.params, x, y, loss=self.loss, share=share).layers
        if layers is None:
            raise ArgumentError(
                "model must compute all records in the same way, and this one looks at them first."
            )
        kept: Kept = {}
        for layer in layers:
            if layer.weight in self.factored:
                kept["a", layer.weight], kept["b", layer.weight] = layer.a, layer.b
            for name, g in layer.gradients(weight=layer.weight not in self.factored).items():
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
        buffers = {name: buffer.clone() for name, buffer in self.model.named_buffers()}

        def lone(params: Params, record: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
            logits = functional_call(self.model, {**params, **buffers}, (record[None],))
            return self.loss(logits, label[None]), logits[0].detach()

        with torch.enable_grad():
            every, logits = vmap(grad(lone, has_aux=True), (None, 0, 0))(self.params, x, y)
        record_losses(self.loss, logits, y)
        return {name: every[name].detach() for name in self.params}


def place(every: Kept, part: Kept, *, where: slice, n: int) -> None:
    """Put what is kept of some of ``n`` records at ``where`` they belong, without a second copy of all."""
    for key, tensor in part.items():
        if len(tensor) == n:
            every[key] = tensor
        else:
            if key not in every:
                every[key] = tensor.new_empty(n, *tensor.shape[1:])
            every[key][where] = tensor


def drawn_from(rows: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """The records that were drawn, and for each of the ``n`` its place among them: ``unique`` without
    sorting, in memory that does not grow with the number of draws."""
    marked = torch.zeros(n, dtype=torch.long)
    marked[rows.flatten()] = 1
    return marked.nonzero()[:, 0], marked.cumsum(0) - 1


def _pays_to_factor(layer: Factors) -> bool:
    # For a batch of k records, one thread, float32: adding up k formed gradients out of the cache takes
    # 0.044 k in*out ns; gathering k rows of both factors and multiplying them 0.43 k (in + out) + 0.025 k
    # in*out ns. They meet where in*out is 23 (in + out), whatever k: 106 x 32 is just above.
    if layer.a.dim() != 2:
        return False
    return layer.shape.numel() > 23 * sum(layer.shape)


def _refuse_joint_layers(model: nn.Module) -> None:
    for name, module in model.named_modules():
        where, kind = f"model.{name}" if name else "model", type(module).__name__
        if isinstance(module, _BatchNorm) and (module.training or module.running_mean is None):
            raise ArgumentError(
                f"{where} must not normalise over the batch, got {kind} with batch statistics (a batch's "
                "gradient is then not the mean of its records'); use GroupNorm, or model.eval()."
            )
        if isinstance(module, _DropoutNd) and module.training and module.p > 0:
            raise ArgumentError(
                f"{where} must not draw at random, got {kind}(p={module.p}) in training mode (a record then "
                "has no one gradient); use model.eval()."
            )


def _refuse_dependence(among: Pass, alone: list[Pass]) -> None:
    """Compare the logits, and the inputs of all layers, of records among others and of each alone."""
    for i, one in enumerate(alone):
        inputs = zip(among.layers or [], one.layers or [], strict=False)
        pairs = [(among.logits, one.logits), *((layer.a, other.a) for layer, other in inputs)]
        if not all(close(whole[i : i + 1], part) for whole, part in pairs):
            raise ArgumentError(
                "model must give a record the same output alone and among others, and this one does not (it "
                "joins the records of a batch, or draws at random); use GroupNorm, or model.eval()."
            )
