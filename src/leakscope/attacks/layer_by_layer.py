"""One record back from its gradient, from the last layer to the first, by linear equations alone.

The bias gradient of the last layer is the slope at its output, so its weight's gradient gives its input.
Where the activation before can be inverted, that gives the output of the layer before and the slope there.
What such a layer takes solves linear equations of two kinds: its output is linear in it, and so is the
gradient of its weight. Nothing is guessed, and no slope is taken of a slope.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from leakscope.attacks.closed_form import Attempt, SeenLayer, labels_of
from leakscope.attacks.matching import PASS, Matching, squared
from leakscope.core.errors import POSITIVE, ArgumentError, at_least, check, require
from leakscope.core.nouns import Guess, Knowledge, Layers, Params, View

DTYPE = torch.float64
WHO = "LayerByLayer"


@dataclass(frozen=True)
class Inverse:
    """How an activation is taken back: the least and the most it gives, and from what it gave its input and
    its slope."""

    least: float
    most: float
    input: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]


INVERSES: dict[type[nn.Module], Inverse] = {
    nn.Sigmoid: Inverse(0.0, 1.0, torch.logit, lambda y: y * (1 - y)),
    nn.Tanh: Inverse(-1.0, 1.0, torch.atanh, lambda y: 1 - y.square()),
    nn.Identity: Inverse(-torch.inf, torch.inf, torch.clone, torch.ones_like),
}


@dataclass(frozen=True)
class LayerByLayer:
    """One record behind a gradient of linear layers and convolutions with sigmoids or tanh between, in closed
    form (R-GAP: Zhu and Blaschko, ICLR 2021).

    Both kinds of equations of a layer are scaled to the same size, those of an output counting as much as
    the activation lets through there, and are solved by conjugate gradients: at most ``iterations`` of them,
    until what is left is ``close`` of what there was. Outputs nearer than ``margin`` to the most that an
    activation gives count as that far from it. A record whose own gradient is further from the released one
    than ``fit`` times its square is none: it failed (math.inf keeps what is found). No labels are needed but
    for this. ReLU and pools do not give back what they took, and a mean of several records is no single
    slope: these are refused, which says nothing of what they give away.
    """

    iterations: int = 3_000
    close: float = 1e-8
    margin: float = 1e-7
    fit: float = 0.002

    def __post_init__(self) -> None:
        check(self, iterations=at_least(1), close=POSITIVE, margin=POSITIVE)
        require(self.fit > 0, f"{WHO}.fit", "above 0", self.fit)

    def __call__(self, knowledge: Knowledge, rng: torch.Generator) -> Guess:
        return lambda view: self.attempt(knowledge, view).records

    def attempt(self, knowledge: Knowledge, view: View) -> Attempt:
        """What came of every trial, its loss the squared distance of gradients; evaluations are steps of
        conjugate gradients."""
        seen = SeenLayer.of(knowledge, view, dtype=DTYPE)
        if not seen.rounds:
            return seen.nothing()
        require(seen.game.batch == 1, f"{WHO}: records behind one gradient", "1", seen.game.batch)
        params, released = seen.rounds[0]
        found, spent = self._unwind(_chain(seen), params, released)
        parts = [part.square().flatten(1).sum(1) for part in released.values()]
        least = self.fit * torch.stack(parts).sum(0)
        return seen.attempt(found, _distances(seen, found), least=least, evaluations=spent)

    def _unwind(self, chain: list[_Link], params: Params, released: Layers) -> tuple[Tensor, Tensor]:
        """What the first layer took (t, n), and the steps (t,) of conjugate gradients of all layers."""
        slope = released[f"{chain[-1].name}.bias"][..., None]
        output, heed = torch.zeros_like(slope), torch.zeros_like(slope)  # of the last only the slope is known
        spent = torch.zeros(len(slope), dtype=torch.long)
        for link, ahead in zip(reversed(chain), [*reversed(chain[:-1]), None], strict=True):
            equations = _Equations.of(link, params, released, slope, heed)
            taken, steps = equations.solve(output, self.iterations, self.close)
            spent += steps
            if ahead is not None:
                form, before = (len(taken), ahead.outputs, -1), link.before
                given = taken.view(form).clamp(before.least + self.margin, before.most - self.margin)
                heed = before.slope(given)
                slope = equations.slope_before().view(form) * heed
                bias = params.get(f"{ahead.name}.bias", torch.zeros(ahead.outputs, dtype=DTYPE))
                output = before.input(given) - bias[:, None]
        return taken, spent


@dataclass(frozen=True, eq=False)
class _Link:
    """A linear layer or convolution: its ``name``, its module, how many outputs or channels it gives, the
    ``shape`` of what it takes of one record, and how the activation ``before`` it is taken back."""

    name: str
    part: nn.Module
    outputs: int
    shape: tuple[int, ...]
    before: Inverse

    def spread(self, x: Tensor) -> Tensor:
        """What its weight is multiplied with (t, w, places), of what it takes (t, n)."""
        if not isinstance(self.part, nn.Conv2d):
            return x[..., None]
        return F.unfold(x.view(-1, *self.shape), self.part.kernel_size, **self._window())

    def gather(self, spread: Tensor) -> Tensor:
        """The transpose of `spread`."""
        if not isinstance(self.part, nn.Conv2d):
            return spread[..., 0]
        return F.fold(spread, self.shape[1:], self.part.kernel_size, **self._window()).flatten(1)

    def _window(self) -> dict[str, tuple[int, ...]]:
        assert isinstance(self.part, nn.Conv2d)
        assert isinstance(self.part.padding, tuple)
        return {"dilation": self.part.dilation, "padding": self.part.padding, "stride": self.part.stride}


@dataclass(frozen=True, eq=False)
class _Equations:
    """What one layer took solves these: ``weight`` (o, w) makes its output of it, each place of which counts
    as much as its ``heed`` (t, o, places), and the ``slope`` there makes the weight's ``gradient`` (t, o, w)
    of it, all of them counting ``scale`` (t,)."""

    link: _Link
    weight: Tensor
    heed: Tensor
    slope: Tensor
    gradient: Tensor
    scale: Tensor

    @staticmethod
    def of(link: _Link, params: Params, released: Layers, slope: Tensor, heed: Tensor) -> _Equations:
        name = f"{link.name}.weight"
        weight = params[name].flatten(1)
        own = (heed.square().sum(2) * weight.square().sum(1)).sum(1)
        other = weight.shape[1] * slope.square().sum((1, 2)).clamp(min=torch.finfo(DTYPE).tiny)
        scale = torch.where(own > 0, own / other, 1 / other).sqrt()
        if name not in released:
            return _Equations(link, weight, heed, slope, weight.expand(len(slope), -1, -1), 0 * scale)
        return _Equations(link, weight, heed, slope, released[name].flatten(2), scale)

    def apply(self, x: Tensor) -> tuple[Tensor, Tensor]:
        spread = self.link.spread(x)
        made = torch.bmm(self.slope, spread.transpose(1, 2))
        return self.heed * (self.weight @ spread), self.scale[:, None, None] * made

    def transpose(self, outputs: Tensor, gradients: Tensor) -> Tensor:
        made = (self.scale[:, None, None] * gradients).transpose(1, 2)
        return self.link.gather(self.weight.T @ (self.heed * outputs) + torch.bmm(made, self.slope))

    def slope_before(self) -> Tensor:
        """The slope at what the layer took (t, n)."""
        return self.link.gather(self.weight.T @ self.slope)

    def solve(self, output: Tensor, iterations: int, close: float) -> tuple[Tensor, Tensor]:
        """What it took (t, n), by conjugate gradients of the normal equations (Hestenes and Stiefel, 1952)
        until what is left is ``close`` of what there was; and how many steps (t,) that took."""
        rest = self.heed * output, self.scale[:, None, None] * self.gradient
        pull = self.transpose(*rest)
        x, way, size = torch.zeros_like(pull), pull, pull.square().sum(1)
        enough, spent = close**2 * size, torch.zeros(len(pull), dtype=torch.long)
        for _ in range(iterations):
            busy = size > enough
            if not bool(busy.any()):
                break
            made = self.apply(way)
            length = torch.stack([part.square().sum((1, 2)) for part in made]).sum(0)
            step = torch.where(busy, size / length.clamp(min=torch.finfo(DTYPE).tiny), 0.0)
            x = x + step[:, None] * way
            rest = rest[0] - step[:, None, None] * made[0], rest[1] - step[:, None, None] * made[1]
            pull = self.transpose(*rest)
            left = pull.square().sum(1)
            way = pull + (left / size.clamp(min=torch.finfo(DTYPE).tiny))[:, None] * way
            size = torch.where(busy, left, size)
            spent += busy
        return x, spent


def _chain(seen: SeenLayer) -> list[_Link]:
    """The layers in order, each with the activation before it; refused where anything else is between."""
    (params, released), links = seen.rounds[0], list[_Link]()
    x = seen.game.mean[None].to(DTYPE)
    before = INVERSES[nn.Identity]
    for name, part in _leaves(seen.model):
        linear = isinstance(part, nn.Linear) or (
            isinstance(part, nn.Conv2d)
            and part.groups == 1
            and part.padding_mode == "zeros"
            and isinstance(part.padding, tuple)
        )
        if linear:
            outputs = len(params[f"{name}.weight"])
            links.append(_Link(name, part, outputs, tuple(x.shape[1:]), before))
            before = INVERSES[nn.Identity]
        elif type(part) in INVERSES and links and before is INVERSES[nn.Identity]:
            before = INVERSES[type(part)]
        elif not (isinstance(part, nn.Flatten) and part.start_dim == 1 and part.end_dim == -1):
            raise ArgumentError(_refused(type(part).__name__))
        own = {kind: params[f"{name}.{kind}"] for kind, _ in part.named_parameters()}
        taken = x.numel()
        with torch.no_grad():
            x = functional_call(part, own, (x,))
        if linear and f"{name}.weight" not in released and x.numel() < taken:
            raise ArgumentError(
                f"{WHO} needs the gradient of {name!r}, which gives fewer numbers than it takes, and its "
                f"weight has none that is released: many records would fit; use DeepLeakage."
            )
    if not links or before is not INVERSES[nn.Identity]:
        raise ArgumentError(_refused(f"{type(seen.model).__name__} without a linear end"))
    for kind in ("weight", "bias"):
        if f"{links[-1].name}.{kind}" not in released:
            raise ArgumentError(
                f"{WHO} starts from the gradients of the last layer, {links[-1].name!r}, and its {kind} has "
                f"none that is released; use DeepLeakage."
            )
    return links


def _leaves(model: nn.Module, name: str = "") -> list[tuple[str, nn.Module]]:
    if not isinstance(model, nn.Sequential):
        return [(name, model)]
    parts = model.named_children()
    return [leaf for own, part in parts for leaf in _leaves(part, f"{name}.{own}" if name else own)]


def _refused(what: str) -> str:
    return (
        f"{WHO} reads chains of linear layers and convolutions, ungrouped and padded by zeros, with sigmoids "
        f"or tanh between them, got {what}; use DeepLeakage or InvertingGradients."
    )


def _distances(seen: SeenLayer, found: Tensor) -> Tensor:
    """The squared distance (t,) of the gradients of what was found from those released."""
    labels, matching = labels_of(seen, WHO), Matching(seen.model, seen.loss, seen.rounds, squared)
    x = found.view(-1, *seen.shape)
    parts = [matching.losses(x[of], labels[of], of) for of in torch.arange(len(x)).split(PASS)]
    return torch.cat(parts).detach()
