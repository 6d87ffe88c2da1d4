"""What a client does in one round: local training from the global model, alone or beside others."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

from leakscope.core.errors import NONNEGATIVE, ArgumentError, at_least, check, or_none, require
from leakscope.core.nouns import Defense, Layers, Loss, Params
from leakscope.core.rng import seeded
from leakscope.core.stopwatch import timed
from leakscope.core.task import task_loss
from leakscope.training.descent import Adam, Sgd
from leakscope.training.step import Step, state

Augmentation = Literal["crop", "flip", "vertical flip"]
AUGMENTATIONS = frozenset(get_args(Augmentation))
PAD = 4  # pixels around an image that a crop may reach into (paper 002, A.7)


@dataclass(frozen=True)
class Local:
    """A client's training in one round: ``epochs`` over its records, or ``steps`` batches if given.

    SGD with momentum, or Adam, with torch's own steps and L2 ``decay``; the optimiser starts anew in
    every round (``momentum`` is SGD's). From every round in ``milestones`` on, 0 being the first, the rate
    is a tenth of what it was. ``augment`` is for images: "crop" (4 pixels of padding, a random place for
    each record), "flip" (left to right, every other time), "vertical flip" (top to bottom, every other time).
    The defaults are those of paper 002, table 6.
    """

    rate: float
    batch: int = 100
    epochs: int = 1
    steps: int | None = None
    optimiser: Literal["sgd", "adam"] = "sgd"
    momentum: float = 0.9
    decay: float = 1e-5
    milestones: tuple[int, ...] = ()
    augment: tuple[Augmentation, ...] = ()

    def __post_init__(self) -> None:
        require(0 < self.rate < float("inf"), "Local.rate", "positive and finite", self.rate)
        check(self, batch=at_least(1), epochs=at_least(1), steps=or_none(at_least(1)), decay=NONNEGATIVE)
        require(self.optimiser in ("sgd", "adam"), "Local.optimiser", "sgd or adam", self.optimiser)
        require(0 <= self.momentum < 1, "Local.momentum", "in [0, 1)", self.momentum)
        require(all(r >= 0 for r in self.milestones), "Local.milestones", "rounds", self.milestones)
        known = {*self.augment} <= AUGMENTATIONS and len({*self.augment}) == len(self.augment)
        require(known, "Local.augment", "some of crop, flip and vertical flip", self.augment)

    def rate_in(self, r: int) -> float:
        """The rate of round ``r``, 0 being the first: a tenth for every milestone that has come."""
        return self.rate * 0.1 ** sum(r >= milestone for milestone in self.milestones)

    def order(self, n: int, rng: torch.Generator) -> tuple[Tensor, ...]:
        """The rows of every step: all ``n`` records in a new order in each epoch."""

        def batches() -> Iterator[Tensor]:
            while True:
                yield from torch.randperm(n, generator=rng).split(self.batch)

        return tuple(islice(batches(), self.steps_of(n)))

    def steps_of(self, n: int) -> int:
        """How many steps a client of ``n`` records takes."""
        return self.steps or self.epochs * -(-n // self.batch)

    def augmented(self, x: Tensor, rng: torch.Generator) -> Tensor:
        if self.augment and x.dim() != 4:
            raise ArgumentError(
                f"Local.augment must be () for records that are no images, got {self.augment} for x of shape "
                f"{tuple(x.shape)}."
            )
        x = _cropped(x, rng) if "crop" in self.augment else x
        for name, axis in (("flip", 3), ("vertical flip", 2)):
            x = _flipped(x, axis, rng) if name in self.augment else x
        return x

    def optimiser_of(self, leaves: Iterable[Tensor], rate: float) -> Sgd | Adam:
        """Torch's own, with nothing remembered."""
        if self.optimiser == "adam":
            return Adam((*leaves,), rate, self.decay)
        return Sgd((*leaves,), rate, self.momentum, self.decay)


def _flipped(x: Tensor, axis: int, rng: torch.Generator) -> Tensor:
    """Every other image mirrored along an axis."""
    coin = torch.rand(len(x), generator=rng) < 0.5
    return torch.where(coin[:, None, None, None], x.flip(axis), x)


def _cropped(x: Tensor, rng: torch.Generator) -> Tensor:
    n, _, height, width = x.shape
    top, left = torch.randint(2 * PAD + 1, (2, n, 1), generator=rng)
    rows, columns = top + torch.arange(height), left + torch.arange(width)
    padded = F.pad(x, (PAD, PAD, PAD, PAD))
    chosen = padded[torch.arange(n)[:, None, None], :, rows[:, :, None], columns[:, None, :]]
    return chosen.permute(0, 3, 1, 2).contiguous()


@dataclass(frozen=True, eq=False)
class Task:
    """One local training: the records, the rows of every step, and the seed of all else that is drawn."""

    x: Tensor
    y: Tensor
    order: tuple[Tensor, ...]
    seed: int


# Parts that vmap is known to take, and that leave its records apart.
STACKED = frozenset(
    {nn.Sequential, nn.Linear, nn.LayerNorm, nn.Flatten, nn.Identity}
    | {nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Softplus}
)
# Up to how many parameters it pays to train clients together. One thread, ten clients with 300 records
# (AlexNet: 100), in units of a plain torch loop (benchmarks/federation.py has most of the rows):
#                                          together    one by one
#   106-32-16-2, batch 64, SGD             0.48        1.03
#   446-128-64-30, batch 100, Adam         0.65-0.80   0.92-0.96
#   446-256-128-30, batch 100, Adam        0.84        0.81
#   446-1024-512-256-30, batch 100, Adam   0.94-0.97   0.87
#   446-1024-512-256-30, batch 100, SGD    1.02-1.10   0.97
#   LeNet, batch 100, SGD                  1.6         1.0
#   AlexNet / 4, batch 25, SGD             0.86-1.1    0.95
# What is saved is the overhead of small operations. Large stacks leave the cache, and a convolution with
# its own weights for every client is a grouped one, faster or slower from net to net.
SMALL = 2**17
BLOCK = 2**24  # bytes of parameters that are stacked at most


def trained(
    model: nn.Module,
    params: Params,
    tasks: Iterable[Task],
    *,
    local: Local,
    rate: float,
    defense: Defense,
    loss: Loss,
) -> Iterator[Layers]:
    """What training moves (`step.state`), after each task that starts at ``params``: name ->
    (tasks, *shape), in blocks of consecutive tasks.

    Tasks are trained together where that is faster, and one by one otherwise. What is drawn is drawn
    from each task's own seed, so both ways give the same numbers up to rounding.
    """
    own = copy.deepcopy(model).requires_grad_()
    step = Step.of(model, loss=loss, defense=defense).on(own)
    known = {*step.names, *(name for name, _ in model.named_buffers())}
    fitting = {*step.names} <= {*params} <= known
    require(fitting, "params", f"the model's own, {[*step.names]}", [*params])
    params = {**state(model), **params}
    size = sum(params[name].numel() * params[name].element_size() for name in step.names)
    most = max(1, BLOCK // size) if stackable(step) else 1
    for block in _runs(tasks, most):
        if len(block) > 1:
            yield together(step, params, block, local=local, rate=rate)
        else:
            single = alone(step, params, block[0], local=local, rate=rate)
            yield {name: tensor[None] for name, tensor in single.items()}


def stackable(step: Step) -> bool:
    """Whether clients can be trained together, and whether that pays."""
    model, plain = step.model, step.objective is None and not step.weighs
    small = sum(p.numel() for p in model.parameters()) <= SMALL
    return (
        plain
        and small
        and step.loss in (task_loss, F.cross_entropy)
        and {type(m) for m in model.modules()} <= STACKED
    )


def alone(step: Step, params: Params, task: Task, *, local: Local, rate: float) -> dict[str, Tensor]:
    """What training moves, after one task, for which the step's own module is used up. Layers that draw
    at random draw from the task's seed."""
    leaves, rng = dict(step.model.named_parameters()), seeded(task.seed, "steps")
    held = {**leaves, **dict(step.model.named_buffers())}
    with torch.no_grad():
        for name, tensor in params.items():
            held[name].copy_(tensor)
    optimiser = local.optimiser_of(leaves.values(), rate)
    order = [rows for rows in task.order if step.takes(rows)]
    require(bool(order), "Local.batch", "at least 2 records for a model with batch statistics", local.batch)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seeded(task.seed, "layers").initial_seed())
        for rows in order:
            x = local.augmented(task.x[rows], rng)
            for name, slope in step.gradient(step.model, leaves, x, task.y[rows], rng).items():
                leaves[name].grad = slope
            optimiser.step()
    return state(step.model)


def together(
    step: Step, params: Params, tasks: list[Task], *, local: Local, rate: float
) -> dict[str, Tensor]:
    """The same for tasks whose steps are of equal sizes, stacked: torch's optimisers go entry by entry,
    so one of them can serve all."""
    n = len(tasks)
    moved = {name: params[name].detach().expand(n, *params[name].shape).clone() for name in step.names}
    rngs = [seeded(task.seed, "steps") for task in tasks]
    optimiser = local.optimiser_of(moved.values(), rate)

    def mean_loss(own: Params, x: Tensor, y: Tensor) -> Tensor:
        return step.loss(functional_call(step.model, dict(own), (x,)), y)

    for rows in zip(*(task.order for task in tasks), strict=True):
        drawn = zip(tasks, rows, rngs, strict=True)
        x = torch.stack([local.augmented(task.x[some], rng) for task, some, rng in drawn])
        y = torch.stack([task.y[some] for task, some in zip(tasks, rows, strict=True)])
        for name, slope in _released(step.defense, vmap(grad(mean_loss))(moved, x, y), rngs, x.shape[1]):
            moved[name].grad = slope
        optimiser.step()
    return {name: tensor.detach() for name, tensor in moved.items()}


def _released(
    defense: Defense, layers: Layers, rngs: list[torch.Generator], batch: int
) -> Iterable[tuple[str, Tensor]]:
    """Every task's gradient through the defense, with the task's own draws."""
    if type(defense).release is Defense.release:
        return layers.items()
    each = [
        timed(defense.release)({name: g[i : i + 1] for name, g in layers.items()}, None, rng, batch=batch)
        for i, rng in enumerate(rngs)
    ]
    return [(name, torch.cat([one[name] for one in each])) for name in layers]


def _runs(tasks: Iterable[Task], most: int) -> Iterator[list[Task]]:
    """Consecutive tasks whose steps are of equal sizes, at most so many."""
    run: list[Task] = []
    for task in tasks:
        if run and (len(run) == most or [*map(len, task.order)] != [*map(len, run[0].order)]):
            yield run
            run = []
        run.append(task)
    if run:
        yield run
