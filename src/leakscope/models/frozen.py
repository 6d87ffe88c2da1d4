"""Transfer: a net that is kept as it is, and one linear layer that is trained on what it says."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from leakscope.core.dataset import Dataset
from leakscope.core.errors import ArgumentError, require
from leakscope.models.building import Architecture
from leakscope.models.convolutional import AlexNet
from leakscope.models.layers import sequential


def keep_as_buffers(net: nn.Module) -> None:
    """Make buffers of all parameters of a net: it is used as it is, and not trained."""
    for part in net.modules():
        for name, tensor in list(part.named_parameters(recurse=False, remove_duplicate=False)):
            delattr(part, name)
            part.register_buffer(name, tensor.detach())


class Kept(nn.Module):
    """A net's output, flattened. It stays in evaluation mode, and its parameters are buffers: they move
    and are saved with the model, and are no layers that are trained, released or recorded."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.training = False
        self.net = net.requires_grad_(False).eval()
        keep_as_buffers(self.net)

    def train(self, mode: bool = True) -> Kept:
        return self

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.net(x)
        return out.flatten(1)


@dataclass(frozen=True)
class Frozen:
    """A backbone that is kept as it is and a new linear layer, ``fc``, in place of its last one.

    ``backbone`` is a module with weights of its own, which is copied and not changed (ImageNet's
    ResNet50 and InceptionV3 in paper 002, tables 7 and 10), or a description, which gives random
    features. ``layer`` names its last linear layer; with None the new layer is put behind the backbone's
    output. The new layer starts as torch has it.
    """

    backbone: Architecture = field(default_factory=AlexNet)
    layer: str | None = "fc"

    def __call__(self, data: Dataset) -> nn.Module:
        given = isinstance(self.backbone, nn.Module)
        net = copy.deepcopy(self.backbone) if given else self.backbone(data)
        if not isinstance(net, nn.Module):
            raise ArgumentError(f"Frozen.backbone must be a torch.nn.Module or build one, got {net!r}.")
        kept = Kept(net)
        width = self._width(kept, data)
        if self.layer is not None:
            owner, _, name = self.layer.rpartition(".")
            setattr(net.get_submodule(owner), name, nn.Identity().eval())
        return sequential([("backbone", kept), ("fc", nn.Linear(width, data.task.outputs))])

    def _width(self, kept: Kept, data: Dataset) -> int:
        """How many numbers reach the layer that is replaced, or leave the backbone if none is."""
        watched = kept.net if self.layer is None else _linear(kept.net, self.layer)
        seen: list[tuple[Tensor, Tensor]] = []
        hook = watched.register_forward_hook(lambda _, inputs, out: seen.append((inputs[0], out)))
        try:
            with torch.no_grad():
                out = kept(data.x[:2])
        except (RuntimeError, TypeError, ValueError, AttributeError) as error:
            reason = str(error).splitlines()[0]
            raise ArgumentError(
                f"Frozen.backbone must take records of shape {tuple(data.x.shape[1:])} and give a tensor, "
                f"and it does not ({reason}); resize the records, or choose another backbone."
            ) from error
        finally:
            hook.remove()
        last = len(seen) == 1 and torch.equal(seen[0][1].flatten(1), out)
        require(last, "Frozen.layer", "the layer that gives the backbone's output", self.layer)
        return int((out if self.layer is None else seen[0][0].flatten(1)).shape[1])


def _linear(net: nn.Module, layer: str) -> nn.Module:
    known = {name: part for name, part in net.named_modules() if name and isinstance(part, nn.Linear)}
    if layer not in known:
        raise ArgumentError(
            f"Frozen.layer must name a linear layer of the backbone ({', '.join(known) or 'it has none'}), "
            f"got {layer!r}; use None if the backbone gives features."
        )
    return known[layer]
