"""What is released of a network that begins with a linear layer, and what a record would have added to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from leakscope.attacks.closed_form import SeenLayer, first_linear
from leakscope.attacks.encoding import Encoding
from leakscope.attacks.spans import Span, gradient_floor, inputs_at, kept_by_decay, upload_floor, with_one
from leakscope.core.errors import ArgumentError, require
from leakscope.core.nouns import Channel, Layers, Params, View
from leakscope.core.task import is_number
from leakscope.games.channels import Summed, Through, UpdateChannel
from leakscope.gradients.capture import record_losses
from leakscope.models import layers_of
from leakscope.training.local import Local

PASS = 4_096  # records in one forward pass


@dataclass(frozen=True, eq=False)
class LinearFirst:
    """The first layer's ``name``, the next linear one's, if it is released, whether there is a bias, how
    clients train (None: gradients were released), in how many steps, the precision of what was released, and
    of how many clients it is the sum."""

    seen: SeenLayer
    name: str
    second: str | None
    bias: bool
    local: Local | None
    steps: int
    eps: float
    clients: int = 1

    @property
    def spanned(self) -> bool:
        """Whether records span what was released: steps of SGD are sums of gradients, those of Adam are
        not."""
        return self.local is None or self.local.optimiser == "sgd"

    @property
    def numeric(self) -> bool:
        """Whether the label is a number, which nobody can go through."""
        return is_number(self.seen.game.data.y)

    @staticmethod
    def of(seen: SeenLayer, channel: Channel, view: View, who: str, *, spanned: bool = True) -> LinearFirst:
        """Refused where records do not span what was released, if they must (``spanned``)."""
        name, clients = first_linear(seen, who, ("weight",)), 1
        while isinstance(channel, Through | Summed):
            clients *= channel.clients if isinstance(channel, Summed) else 1
            channel = channel.channel
        local = channel.local if isinstance(channel, UpdateChannel) else None
        if spanned and local is not None and local.optimiser != "sgd":
            raise ArgumentError(
                f"{who} reads uploads of SGD, whose steps are sums of gradients, got Local.optimiser = "
                f"{local.optimiser!r}; use SpanMatching, which fits them, and Whitened for members."
            )
        _check(seen, who)
        layers, released = layers_of(seen.model), seen.rounds[0][1]
        later = [
            layer
            for layer in [*layers][1:]
            if isinstance(seen.model.get_submodule(layer), nn.Linear) and {*layers[layer]} <= {*released}
        ]
        steps = 0 if local is None else local.steps_of(seen.game.batch // clients)
        eps = torch.finfo(view.releases[0].params[f"{name}.weight"].dtype).eps
        bias = f"{name}.bias" in released
        return LinearFirst(seen, name, later[0] if later else None, bias, local, steps, eps, clients)

    def span(self, trial: int, encoding: Encoding | None = None) -> Span:
        """The row space of the first layer, rounds stacked, of at most as many dimensions as there are
        records; with an ``encoding`` as if records had been centred and scaled."""
        return self._span(self.name, range(len(self.seen.rounds)), trial, encoding, self.seen.game.batch)

    def _span(
        self, name: str, rounds: Sequence[int], trial: int, encoding: Encoding | None, most: int | None
    ) -> Span:
        parts, floors = [], []
        for params, layers in (self.seen.rounds[i] for i in rounds):
            weight, bias = (_layer(layers, name, part, trial) for part in ("weight", "bias"))
            start = params[f"{name}.weight"]
            if self.local is not None and weight is not None:
                lost = 1 - kept_by_decay(self.local, self.steps)
                weight = weight - lost * start
                bias = None if bias is None else bias - lost * params[f"{name}.bias"]
                start = start if encoding is None else start / encoding.scale
                floors.append(upload_floor(start, self.eps, self.steps))
            assert weight is not None
            weight = weight if encoding is None else encoding.scaled(weight, bias)
            parts.append(weight if bias is None else torch.cat([weight, bias[:, None]], dim=1))
        matrix = torch.cat(parts)
        floor = gradient_floor(matrix, self.eps) if self.local is None else sum(f**2 for f in floors) ** 0.5
        return Span.of(matrix, floor, most)

    def distances(self, trial: int) -> Callable[[Tensor], Tensor] | None:
        """How far records' inputs (n,) of the second layer are from its row space, the mean of all rounds,
        since these inputs move with the model; None: there is none, or it is always the whole space."""
        if self.second is None:
            return None
        name, model = self.second, self.seen.model
        spans = [self._span(name, [i], trial, None, None) for i in range(len(self.seen.rounds))]
        open_rounds = [i for i, span in enumerate(spans) if span.rank < len(span.v)]

        def measure(x: Tensor) -> Tensor:
            found = []
            for i in open_rounds:
                taken = inputs_at(model, self.seen.rounds[i][0], name, x)
                wide = len(spans[i].v) > taken.shape[1]
                found.append(spans[i].distance(with_one(taken) if wide else taken))
            return torch.stack(found).mean(0)

        return measure if open_rounds else None

    def outputs(self, x: Tensor) -> Tensor:
        """What the first layer makes of records (n, rows), in all rounds."""
        parts = []
        for params, _ in self.seen.rounds:
            weight, bias = params[f"{self.name}.weight"], params.get(f"{self.name}.bias")
            parts.append(nn.functional.linear(x.flatten(1).to(weight.dtype), weight, bias))
        return torch.cat(parts, dim=1)

    def slopes(self, x: Tensor) -> Tensor:
        """The loss's slopes (classes, n, rows) at the first layer's output, for every label and all
        rounds; of a label that is a number (1, n, rows), up to a factor that is not known."""
        parts = [[self._slopes(params, part) for params, _ in self.seen.rounds] for part in x.split(PASS)]
        return torch.cat([torch.cat(rounds, dim=2) for rounds in parts], dim=1)

    def _slopes(self, params: Params, x: Tensor) -> Tensor:
        outputs: list[Tensor] = []

        def cut(_: nn.Module, __: object, output: Tensor) -> Tensor:
            outputs.append(output.detach().requires_grad_())
            return outputs[0]

        hook = self.seen.model.get_submodule(self.name).register_forward_hook(cut)
        try:
            with torch.enable_grad():
                logits = functional_call(self.seen.model, dict(params), (x,))
        finally:
            hook.remove()
        if self.numeric:
            return torch.autograd.grad(logits.sum(), outputs[0])[0][None]
        found = []
        for label in range(self.seen.game.data.classes_for("this reconstruction")):
            losses = record_losses(self.seen.loss, logits, torch.full((len(x),), label))
            found.append(torch.autograd.grad(losses.sum(), outputs[0], retain_graph=True)[0])
        return torch.stack(found)


def _layer(layers: Layers, name: str, part: str, trial: int) -> Tensor | None:
    tensor = layers.get(f"{name}.{part}")
    return None if tensor is None else tensor[trial]


def _check(seen: SeenLayer, who: str) -> None:
    """Refuse a release that is of another model, or that holds no numbers."""
    for params, layers in seen.rounds:
        for name, tensor in layers.items():
            shape = tuple(params[name].shape) if name in params else ()
            fits = tuple(tensor.shape[1:]) == shape
            rule = f"of the model's shape, {shape}"
            require(fits, f"{who}: the released layer {name!r}", rule, tuple(tensor.shape[1:]))
            require(
                bool(tensor.isfinite().all()), f"{who}: the released layer {name!r}", "finite", "nan or inf"
            )
