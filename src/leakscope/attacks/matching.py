"""The kernel of reconstruction: which records have the gradients that were released?

Problems do not touch each other, so those of many trials and restarts are evaluated as one batch: the
gradients of the dummy records by vmap over problems, their distance to the targets, and its slope at the
dummies by a second backward pass. Each problem has its own L-BFGS, and one that is over leaves the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from leakscope.core.nouns import Layers, Loss, Params, only

Distance = Callable[[Layers, Layers], Tensor]  # (found, target), each name -> (p, *shape), to (p,)
# (variables (p, n), which problems these are (p,)) -> losses (p,) and slopes (p, n)
Objective = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]

PASS = 32  # problems that share one pass at most: more gain nothing and take memory
FLAT, STILL, CURVED = 1e-7, 1e-9, 1e-10  # torch.optim.LBFGS: tolerance_grad, tolerance_change, least y·s
CALM = 20  # evaluations in a row without a change: torch takes as many in one call of step, and goes on


def squared(found: Layers, target: Layers) -> Tensor:
    """The squared distance of gradients, all layers together (DLG: Zhu et al., NeurIPS 2019, equation 4)."""
    return torch.stack([(found[n] - target[n]).square().flatten(1).sum(1) for n in target]).sum(0)


def cosine(found: Layers, target: Layers) -> Tensor:
    """One minus the cosine of gradients, all layers as one vector (Geiping et al., NeurIPS 2020,
    equation 4)."""

    def dot(a: Layers, b: Layers) -> Tensor:
        return torch.stack([(a[n] * b[n]).flatten(1).sum(1) for n in target]).sum(0)

    length = (dot(found, found) * dot(target, target)).sqrt()
    return 1 - dot(found, target) / length.clamp(min=torch.finfo(length.dtype).tiny)


@dataclass(frozen=True, eq=False)
class Matching:
    """What the dummies' gradients are to be: per observed round the parameters, and the released layers
    of every problem. Only what was released is matched."""

    model: nn.Module
    loss: Loss
    rounds: tuple[tuple[Params, Layers], ...]
    distance: Distance

    def __len__(self) -> int:
        return len(next(iter(self.rounds[0][1].values())))

    def gradients(self, params: Params, x: Tensor, y: Tensor, names: Layers) -> Layers:
        """The mean gradient of each problem's records x (p, k, *shape) with labels y (p, k), or label
        probabilities (p, k, classes), in the layers asked for."""
        asked = only(params, names)
        rest = {name: tensor for name, tensor in params.items() if name not in asked}

        def lone(moved: Params, records: Tensor, labels: Tensor) -> Tensor:
            return self.loss(functional_call(self.model, {**rest, **moved}, (records,)), labels)

        if len(x) == 1:  # alone: plain autograd takes near half the time
            leaves = {name: tensor.detach().requires_grad_() for name, tensor in asked.items()}
            slopes = torch.autograd.grad(lone(leaves, x[0], y[0]), [*leaves.values()], create_graph=True)
            return {name: slope[None] for name, slope in zip(leaves, slopes, strict=True)}
        found: Layers = vmap(grad(lone), (None, 0, 0))(asked, x, y)
        return found

    def losses(self, x: Tensor, y: Tensor, which: Tensor) -> Tensor:
        """How far the dummies' gradients are from the targets of these problems (p,), over all rounds."""
        parts = []
        for params, target in self.rounds:
            wanted = {name: tensor[which] for name, tensor in target.items()}
            parts.append(self.distance(self.gradients(params, x, y, target), wanted))
        return torch.stack(parts).sum(0)


def evaluated(variables: Tensor, losses: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """The losses (p,) of variables (p, n), and each one's slope at its own."""
    with torch.enable_grad():
        leaf = variables.detach().requires_grad_()
        found = losses(leaf)
        (slope,) = torch.autograd.grad(found.sum(), leaf)
    return found.detach(), slope


@dataclass(frozen=True, eq=False)
class Descent:
    """Where every problem came: its best variables (t, n), their loss (t,), infinite if none was a number,
    and how many evaluations it took (t,)."""

    variables: Tensor
    losses: Tensor
    evaluations: Tensor

    @staticmethod
    def of(start: Tensor) -> Descent:
        """Before the first evaluation."""
        infinite = torch.full((len(start),), torch.inf, dtype=start.dtype)
        return Descent(start.clone(), infinite, torch.zeros(len(start), dtype=torch.long))

    def see(self, which: Tensor, variables: Tensor, losses: Tensor) -> None:
        """Take in one evaluation of these problems."""
        self.evaluations[which] += 1
        better = losses < self.losses[which]  # never where the loss is no number
        self.losses[which[better]], self.variables[which[better]] = losses[better], variables[better]

    def join(self, which: Tensor, other: Descent) -> None:
        """Take in another descent of these problems: the better stands, and the evaluations add up."""
        self.see(which, other.variables, other.losses)
        self.evaluations[which] += other.evaluations - 1

    def take(self, which: Tensor) -> Descent:
        """These problems alone."""
        return Descent(self.variables[which], self.losses[which], self.evaluations[which])


@dataclass(frozen=True, eq=False)
class _Curvature:
    """What L-BFGS remembers of p problems: steps s and changes of slope y (p, n), the newest last, both
    divided by the root of y·s, and the scale (p,) of the first guess of the inverse curvature.

    A pair that tells nothing (y·s not above 1e-10) stands in its place as zeros."""

    steps: tuple[Tensor, ...]
    changes: tuple[Tensor, ...]
    scale: Tensor

    def with_pair(self, s: Tensor, y: Tensor, history: int) -> _Curvature:
        curved = torch.linalg.vecdot(y, s)
        tells = curved > CURVED
        root = torch.where(tells, curved, 1.0).sqrt()[:, None]
        s, y = (torch.where(tells[:, None], part / root, 0.0) for part in (s, y))
        scale = torch.where(tells, 1 / torch.linalg.vecdot(y, y), self.scale)
        kept = slice(-history + 1, None) if history > 1 else slice(0, 0)
        return _Curvature((*self.steps[kept], s), (*self.changes[kept], y), scale)

    def direction(self, slope: Tensor) -> Tensor:
        """The two loops of Nocedal (1980)."""
        q, pulls = -slope, []
        pairs = list(zip(self.steps, self.changes, strict=True))
        for s, y in reversed(pairs):
            pull = torch.linalg.vecdot(s, q).unsqueeze_(1)
            q.addcmul_(y, pull, value=-1)
            pulls.append(pull)
        q *= self.scale[:, None]
        for (s, y), pull in zip(pairs, reversed(pulls), strict=True):
            q.addcmul_(s, pull.sub_(torch.linalg.vecdot(y, q).unsqueeze_(1)))
        return q

    def take(self, alive: Tensor) -> _Curvature:
        steps, changes = (tuple(part[alive] for part in parts) for parts in (self.steps, self.changes))
        return _Curvature(steps, changes, self.scale[alive])


def lbfgs(
    objective: Objective,
    start: Tensor,
    *,
    evaluations: int,
    history: int = 100,
    patience: int | None = None,
    hopeless: Tensor | None = None,
) -> Descent:
    """Each problem's own L-BFGS from ``start`` (t, n), as torch.optim.LBFGS does it by default: rate 1, no
    line search, the first step 1 / ‖slope‖₁ at most.

    A problem is over when its loss is no number, when its slope is flat or its direction no way down, when
    it stood still for 20 evaluations (tolerances are torch's), and when its best loss is above its
    ``hopeless`` (t,) after ``patience`` evaluations.
    """
    found, which, x = Descent.of(start), torch.arange(len(start)), start.clone()
    curvature = _Curvature((), (), start.new_ones(len(start)))
    before: tuple[Tensor, Tensor, Tensor] | None = None  # loss, slope and step of the evaluation before
    calm = torch.zeros(len(start), dtype=torch.long)
    for done in range(1, evaluations + 1):
        losses, slope = objective(x, which)
        found.see(which, x, losses)
        alive = losses.isfinite() & slope.isfinite().all(1) & (slope.abs().amax(1) > FLAT)
        if before is not None:
            curvature = curvature.with_pair(before[2], slope - before[1], history)
            still = ((losses - before[0]).abs() < STILL) | (before[2].abs().amax(1) <= STILL)
            calm = torch.where(still, calm + 1, 0)
            alive &= calm < CALM
        direction = curvature.direction(slope)
        rate = 1.0 if before is not None else (1 / slope.abs().sum(1)).clamp(max=1)[:, None]
        alive &= torch.linalg.vecdot(slope, direction) <= -STILL
        if patience is not None and hopeless is not None and done >= patience:
            alive &= found.losses[which] <= hopeless[which]
        step = direction * rate
        if not bool(alive.all()):
            if not bool(alive.any()):
                break
            which, x, curvature = which[alive], x[alive], curvature.take(alive)
            losses, slope, step, calm = losses[alive], slope[alive], step[alive], calm[alive]
        x, before = x + step, (losses, slope, step)
    return found


@dataclass(frozen=True, eq=False)
class _Within:
    """An objective of one ``block`` of the variables ``x`` (p, n) of these problems, the others standing."""

    objective: Objective
    x: Tensor
    problems: Tensor
    block: Tensor

    def __call__(self, part: Tensor, which: Tensor) -> tuple[Tensor, Tensor]:
        whole = self.x[which]
        whole[:, self.block] = part
        losses, slope = self.objective(whole, self.problems[which])
        return losses, slope[:, self.block]


def in_turn(
    objective: Objective,
    start: Tensor,
    *,
    blocks: Sequence[Tensor],
    turn: int,
    evaluations: int,
    patience: int | None = None,
    hopeless: Tensor | None = None,
) -> Descent:
    """L-BFGS on one of the ``blocks`` of variables at a time, ``turn`` evaluations long, the others standing
    still, again and again. A batch's order is free: where a single record is moved in each step, the others
    hold their places (Zhu et al., NeurIPS 2019, section 3.3). Over is who no longer comes down, or is
    ``hopeless`` (t,) after ``patience`` evaluations."""
    found, x, spent, which = Descent.of(start), start.clone(), 0, torch.arange(len(start))
    while spent < evaluations and len(which):
        before = found.losses[which].clone()
        for block in blocks:
            wave = lbfgs(
                _Within(objective, x[which], which, block),
                x[which][:, block],
                evaluations=min(turn, evaluations - spent),
            )
            x[which[:, None], block] = wave.variables
            found.join(which, Descent(x[which], wave.losses, wave.evaluations))
            spent += turn
            if spent >= evaluations:
                break
        alive = found.losses[which].isfinite() & (before - found.losses[which] > STILL)
        if patience is not None and hopeless is not None and spent >= patience:
            alive &= found.losses[which] <= hopeless[which]
        which = which[alive]
    return found


def adam(
    objective: Objective,
    start: Tensor,
    *,
    iterations: int,
    rate: float,
    signed: bool,
    limits: tuple[Tensor, Tensor] | None = None,
) -> Descent:
    """Adam on every problem, its rate divided by 10 after 3/8, 5/8 and 7/8 of the iterations; ``signed``
    uses the slopes' signs only, ``limits`` (n,) keep the variables between them (Geiping et al. 2020)."""
    found, which, x = Descent.of(start), torch.arange(len(start)), start.clone()
    optimiser = torch.optim.Adam([x], lr=rate)
    cuts = [iterations * part // 8 for part in (3, 5, 7)]
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimiser, cuts, gamma=0.1)
    for _ in range(iterations):
        losses, slope = objective(x, which)
        found.see(which, x, losses)
        x.grad = slope.sign() if signed else slope
        optimiser.step()
        schedule.step()
        if limits is not None:
            x.clamp_(*limits)
    return found
