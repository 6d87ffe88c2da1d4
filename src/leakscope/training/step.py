"""One step's gradient: of a batch, as the defense lets it be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from leakscope.core.errors import ArgumentError
from leakscope.core.nouns import Defense, Loss, Objective, Params
from leakscope.core.stopwatch import timed
from leakscope.defenses.gradient import Chain, Within
from leakscope.gradients import batch_means
from leakscope.gradients.records import JointRecords, refuse_joint_layers
from leakscope.models import parameters

Predict = Callable[[Tensor], Tensor]


def state(model: nn.Module) -> dict[str, Tensor]:
    """A copy of all that training moves: the parameters, then the running statistics of normalisation
    layers in training mode, under the names of their buffers."""
    moved = parameters(model)
    for prefix, module in model.named_modules():
        if isinstance(module, _NormBase) and module.training:
            for name, buffer in module.named_buffers(prefix, recurse=False):
                moved[name] = buffer.detach().clone()
    return moved


@dataclass(frozen=True, eq=False)
class Step:
    """How the gradient of one step is found: by autograd, of the mean loss or of what the defense puts in
    its place, or record by record where the defense clips records."""

    model: nn.Module
    loss: Loss
    defense: Defense
    objective: Objective | None
    names: tuple[str, ...]
    joint: bool = False  # the model's layers join records, or draw at random

    @staticmethod
    def of(model: nn.Module, *, loss: Loss, defense: Defense) -> Step:
        """The step, or the reason why model and defense cannot be trained together."""
        named = dict(model.named_parameters())
        frozen = [name for name, tensor in named.items() if not tensor.requires_grad]
        if 0 < len(frozen) < len(named):
            raise ArgumentError(
                f"model must be trained in every layer, got {frozen[0]!r} with requires_grad=False; put the "
                f"part that is kept into models.Frozen."
            )
        joint = refuse_clipping(defense, model)
        loss = defense.loss(loss)
        return Step(model, loss, defense, _objective(defense, loss), tuple(named), joint)

    def on(self, model: nn.Module) -> Step:
        return replace(self, model=model)

    @property
    def weighs(self) -> bool:
        """Whether gradients are taken record by record; what joins records has been found to clip none."""
        return self.objective is None and changes(self.defense, "weigh") and not self.joint

    def takes(self, rows: Tensor) -> bool:
        """Whether a step can be taken on these rows: of one record alone there are no batch statistics, and
        the last batch of an epoch may be that small."""
        return len(rows) > 1 or not any(
            isinstance(part, nn.BatchNorm1d) and part.training for part in self.model.modules()
        )

    def gradient(
        self, predict: Predict, leaves: Params, x: Tensor, y: Tensor, rng: torch.Generator
    ) -> dict[str, Tensor]:
        """What one step descends: a batch of one trial through the defense, at the parameters ``leaves``
        that ``predict`` uses and autograd follows."""
        if self.weighs:
            rows = torch.arange(len(x))[None]
            layers = batch_means(
                self.model, leaves, x, y, rows, loss=self.loss, weigh=timed(self.defense.weigh)
            )
        else:
            with torch.enable_grad():
                joint = self.objective
                found = self.loss(predict(x), y) if joint is None else joint(predict, x, y, rng)
            every = torch.autograd.grad(found, [*leaves.values()], allow_unused=True, materialize_grads=True)
            slopes = dict(zip(leaves, every, strict=True))
            if not changes(self.defense, "release"):
                return slopes
            layers = {name: slope[None] for name, slope in slopes.items()}
        released = timed(self.defense.release)(layers, None, rng, batch=len(x))
        return {name: tensor[0] for name, tensor in released.items()}


def parts(defense: Defense) -> Iterator[Defense]:
    if isinstance(defense, Chain):
        for part in defense.defenses:
            yield from parts(part)
    elif isinstance(defense, Within):
        yield from parts(defense.defense)
    else:
        yield defense


def changes(defense: Defense, *hooks: str) -> bool:
    """Whether a defense does anything of its own in one of these hooks."""
    return any(getattr(type(defense), hook) is not getattr(Defense, hook) for hook in hooks)


def refuse_clipping(defense: Defense, model: nn.Module | None = None) -> bool:
    """Refuse a defense that acts on single records where a record has no gradient of its own; whether that is
    so. A ``model`` is asked for its layers; without one it is known to be so."""
    reason = "the model joins the records of a batch, or draws at random"
    try:
        if model is not None:
            refuse_joint_layers(model)
            return False
    except JointRecords as error:
        reason = str(error).partition(";")[0]
    for part in parts(defense):
        if changes(part, "weigh"):
            raise ArgumentError(
                f"{part!r} clips the gradient of each record, and here a record has none of its own: "
                f"{reason}; use GroupNorm in place of batch normalisation, or evaluation mode (model.eval(), "
                f"--mode eval)."
            )
    return True


def on_updates(defense: Defense, argument: str, *, secret: bool = False) -> None:
    """Refuse what cannot do on a finished update what its name says; some need to know its ``secret``."""
    for part in parts(defense):
        if changes(part, "model", "loss", "objective", "weigh"):
            raise ArgumentError(
                f"{argument} must act on a finished update, got {part!r}, which acts on the model, the loss "
                f"or single records' gradients; use it inside the local steps (leakscope.training)."
            )
        if changes(part, "prepared") and not secret:
            raise ArgumentError(
                f"{argument} must need no secret and no fitting, got {part!r}, which would leave every "
                f"upload as it is; play it against attacks in UpdateChannel, and defend uploads with "
                f"Pruning, Sign or Noise."
            )


def _objective(defense: Defense, loss: Loss) -> Objective | None:
    """The one objective among the defenses, if it can be had beside the others."""
    every = list(parts(defense))
    found = {i: joint for i, part in enumerate(every) if (joint := part.objective(loss)) is not None}
    for i in found:
        for j, other in enumerate(every):
            if j != i and (j in found or changes(other, "model", "weigh")):
                raise ArgumentError(
                    f"{every[i]!r} joins the records of a batch, and cannot be combined with {other!r}, "
                    f"which acts on single records, on the model or on the whole batch too; leave one out."
                )
    return next(iter(found.values()), None)
