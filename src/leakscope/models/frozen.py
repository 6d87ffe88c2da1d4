"""Transfer: a net that is kept as it is, and one linear layer that is trained on what it says."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache

import torch
from torch import Tensor, nn

from leakscope.core.dataset import Dataset
from leakscope.core.errors import ArgumentError, require
from leakscope.core.rng import initialised, seeded
from leakscope.core.task import task_loss
from leakscope.data import load
from leakscope.models.building import Architecture
from leakscope.models.convolutional import AlexNet
from leakscope.models.layers import sequential

RATE, BATCH = 0.02, 64  # of what a backbone learns first


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
    features, or, with ``learned``, those of a net that is trained for ``epochs`` on the public images of that
    name, in grey where the records are: one net for every seed, as weights that are fetched would be.
    ``layer`` names its last linear layer; with None the new layer is put behind the backbone's output. The
    new layer starts as torch has it.
    """

    backbone: Architecture = field(default_factory=AlexNet)
    layer: str | None = "fc"
    learned: str | None = None
    epochs: int = 15

    def __post_init__(self) -> None:
        require(self.epochs >= 1, "Frozen.epochs", "at least 1", self.epochs)
        whole = self.learned is None or not isinstance(self.backbone, nn.Module)
        require(whole, "Frozen.learned", "None where the backbone has weights of its own", self.learned)

    def __call__(self, data: Dataset) -> nn.Module:
        net = copy.deepcopy(self._weighted(data))
        if not isinstance(net, nn.Module):
            raise ArgumentError(f"Frozen.backbone must be a torch.nn.Module or build one, got {net!r}.")
        kept = Kept(net)
        width = self._width(kept, data)
        if self.layer is not None:
            owner, _, name = self.layer.rpartition(".")
            setattr(net.get_submodule(owner), name, nn.Identity().eval())
        return sequential([("backbone", kept), ("fc", nn.Linear(width, data.task.outputs))])

    def _weighted(self, data: Dataset) -> nn.Module:
        """The backbone with its weights."""
        if isinstance(self.backbone, nn.Module):
            return self.backbone
        if self.learned is None:
            return self.backbone(data)
        return teach(self.backbone, self.learned, self.epochs, int(data.x.shape[1]))

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


@lru_cache(maxsize=2)
def teach(backbone: Callable[[Dataset], nn.Module], name: str, epochs: int, channels: int) -> nn.Module:
    """The net of a description, trained on the images of that name."""
    public = load(name)
    if channels == 1:
        public = replace(public, x=public.x.mean(1, keepdim=True))
    public, rng = public.standardised(public), seeded(0, "public")
    net = initialised(lambda: backbone(public), rng)
    optimiser = torch.optim.SGD(net.parameters(), RATE, momentum=0.9, weight_decay=1e-4)
    for _ in range(epochs):
        for rows in torch.randperm(len(public), generator=rng).split(BATCH):
            optimiser.zero_grad()
            task_loss(net(public.x[rows]), public.y[rows]).backward()
            optimiser.step()
    return net


def _linear(net: nn.Module, layer: str) -> nn.Module:
    known = {name: part for name, part in net.named_modules() if name and isinstance(part, nn.Linear)}
    if layer not in known:
        raise ArgumentError(
            f"Frozen.layer must name a linear layer of the backbone ({', '.join(known) or 'it has none'}), "
            f"got {layer!r}; use None if the backbone gives features."
        )
    return known[layer]
