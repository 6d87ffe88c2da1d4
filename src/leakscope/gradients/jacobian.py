"""How each layer's gradient moves with its record: norms of the Jacobian J = ∂g/∂x, never J itself.

J has a column for every number of the record and a row for every parameter: 261 million entries for LeNet
and one image. Its columns are tangents of the gradient, found by forward-over-reverse differentiation, many
at a time and of all layers at once, and what is kept of them are sums. Token ids cannot be moved; there the
Jacobian is taken with respect to what the model's first embedding makes of them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import grad, jvp, vmap
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from leakscope.core.errors import ArgumentError, require
from leakscope.core.nouns import Loss, Params
from leakscope.core.task import task_loss
from leakscope.gradients.factors import widest
from leakscope.gradients.records import Records

BUDGET = 80_000_000  # bytes of tangents held at once: 74 of LeNet's columns, fewer take longer
HELD = 3  # copies of a tangent that are alive together: two terms of a product's derivative and their sum


@dataclass(frozen=True, eq=False)
class Entries:
    """Of every parameter's Jacobian, record by record (n,), in float64 where there is one: the sum of its
    squared entries, of their absolute values, and the largest of these."""

    squares: dict[str, Tensor]
    sums: dict[str, Tensor]
    largest: dict[str, Tensor]


def entries(
    model: nn.Module,
    params: Params,
    x: Tensor,
    y: Tensor,
    *,
    loss: Loss = task_loss,
    columns: int | None = None,
    rng: torch.Generator | None = None,
    budget: int = BUDGET,
) -> Entries:
    """The entries of every record's Jacobian, all layers in one pass over its columns.

    With ``columns`` so many are drawn for each record, without repetition: both sums are scaled to all
    columns and unbiased, the largest entry can only fall short. Memory is about ``budget`` bytes.
    """
    tangents = Tangents.of(model, params, x, y, loss=loss)
    require(columns is None or columns >= 1, "columns", "at least 1, or None for all", columns)
    wide = widest(x.device)
    found = {name: torch.zeros(3, len(x), dtype=wide, device=x.device) for name in params}
    width = tangents.shape.numel()
    drawn = width if columns is None else min(columns, width)
    for i in range(len(x)):
        which = torch.arange(width)
        if drawn < width:  # drawn where the generator lives, the same numbers for every device
            which = torch.randperm(width, generator=rng, device=rng.device if rng else None)[:drawn]
        for part in which.to(x.device).split(tangents.at_once(budget)):
            unit = F.one_hot(part, width).to(tangents.dtype).unflatten(1, tangents.shape)
            for name, tangent in tangents.along(i, unit).items():
                _add(found[name][:, i], tangent)
    scale = width / drawn
    return Entries(
        {name: parts[0] * scale for name, parts in found.items()},
        {name: parts[1] * scale for name, parts in found.items()},
        {name: parts[2] for name, parts in found.items()},
    )


def probed(
    model: nn.Module,
    params: Params,
    x: Tensor,
    y: Tensor,
    *,
    probes: int,
    rng: torch.Generator,
    loss: Loss = task_loss,
    budget: int = BUDGET,
) -> dict[str, Tensor]:
    """‖J u‖² for ``probes`` random signs u a record: name -> (n, probes), each with the mean ‖J‖²_F
    (Hutchinson, 1989). One u in the space of records serves all layers; one in theirs would serve one."""
    require(probes >= 1, "probes", "at least 1", probes)
    tangents = Tangents.of(model, params, x, y, loss=loss)
    wide = widest(x.device)
    found = {name: torch.empty(len(x), probes, dtype=wide, device=x.device) for name in params}
    for i in range(len(x)):
        signs = torch.randint(2, (probes, *tangents.shape), generator=rng, device=rng.device).to(x.device)
        for part in torch.arange(probes).split(tangents.at_once(budget)):
            for name, tangent in tangents.along(i, (2 * signs[part] - 1).to(tangents.dtype)).items():
                lengths = torch.linalg.vector_norm(_rows(tangent), dim=-1)
                found[name][i, part] = lengths.to(wide).square().sum(1)
    return found


@dataclass(frozen=True, eq=False)
class Tangents:
    """What records' gradients do when the records move: by ``shape``, that of a record or, where it is of
    token ids, of what the ``embedding`` of this name gives."""

    records: Records
    embedding: str | None
    shape: torch.Size

    @staticmethod
    def of(model: nn.Module, params: Params, x: Tensor, y: Tensor, *, loss: Loss) -> Tangents:
        """Those of these records, or the reason why there are none."""
        records = Records.of(model, params, x, y, loss=loss)
        if x.is_floating_point():
            return Tangents(records, None, x.shape[1:])
        name = next((n for n, module in model.named_modules() if isinstance(module, nn.Embedding)), None)
        if name is None:
            raise ArgumentError(
                f"x must be numbers that can be moved, or token ids of a model with an nn.Embedding, got "
                f"{x.dtype} and a model without one; give x as floating point numbers."
            )
        weight = f"{name}.weight" if name else "weight"
        with torch.no_grad(), _Moved(records.params[weight], None) as seen:
            records.net(records.params, x[:1])
        if len(seen.shapes) != 1:
            raise ArgumentError(
                f"model.{name} must be used once where token ids are to be moved, and is used "
                f"{len(seen.shapes)} times; use an nn.Embedding of its own for each use."
            )
        return Tangents(records, weight, seen.shapes[0][1:])

    @property
    def dtype(self) -> torch.dtype:
        """Of the gradients, and so of what moves."""
        return next(iter(self.records.params.values())).dtype

    def at_once(self, budget: int) -> int:
        """How many directions fit into so many bytes: their activations, and the gradients of these, and
        their tangents."""
        return max(1, budget // (HELD * self.records.size + 4 * self.records.bytes))

    def along(self, i: int, directions: Tensor) -> dict[str, Tensor]:
        """J u of record ``i`` for all directions u (c, *shape): name -> (c, *shape of the parameter)."""
        x = self.records.x
        start = torch.zeros(self.shape, dtype=self.dtype, device=x.device) if self.embedding else x[i]
        gradient = self._gradient(i)
        with torch.inference_mode(False), torch.enable_grad(), warnings.catch_warnings():
            # torch scripts its own rules at the first tangent, and warns of having done so
            warnings.filterwarnings("ignore", "`torch.jit.script", DeprecationWarning)
            moved: dict[str, Tensor] = vmap(lambda u: jvp(gradient, (start,), (u,))[1])(directions)
        return {name: tangent.detach() for name, tangent in moved.items()}

    def _gradient(self, i: int) -> Callable[[Tensor], dict[str, Tensor]]:
        """The record's own gradient, as a function of what moves."""
        r = self.records

        def lone(params: dict[str, Tensor], moving: Tensor) -> Tensor:
            if self.embedding is None:
                logits = r.net(params, moving[None])
            else:
                with _Moved(params[self.embedding], moving):
                    logits = r.net(params, r.x[i : i + 1])
            return r.loss(logits, r.y[i : i + 1])

        return lambda moving: grad(lone)(r.params, moving)


class _Moved(TorchFunctionMode):
    """Sees what the embedding of this weight gives, and moves it."""

    def __init__(self, weight: Tensor, by: Tensor | None) -> None:
        super().__init__()
        self.weight, self.by = weight, by
        self.shapes: list[torch.Size] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if func is F.embedding and args[1] is self.weight:
            self.shapes.append(out.shape)
            return out if self.by is None else out + self.by
        return out


def _rows(tangent: Tensor) -> Tensor:
    """(c, rows, entries of a row): sums over a row are short enough for float32, those of rows are not."""
    return tangent.flatten(2) if tangent.dim() > 2 else tangent.flatten(1)[:, :, None]


def _add(found: Tensor, tangent: Tensor) -> None:
    rows = _rows(tangent)
    wide = found.dtype
    found[0] += torch.linalg.vector_norm(rows, dim=-1).to(wide).square().sum()
    rows = rows.abs()
    found[1] += rows.sum(-1).to(wide).sum()
    found[2] = torch.maximum(found[2], rows.amax().to(wide))
