"""What an encoder descends so that a secret cannot be read off its representations."""

from __future__ import annotations

import math
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from leakscope.guards.estimators import jsd
from leakscope.guards.kernels import WIDTHS, kernels, squared_distances
from leakscope.guards.ridge import ridge

Loss = Literal["adversarial", "prior", "clip", "mmd", "mean", "ridge"]
LOSSES: tuple[str, ...] = get_args(Loss)
SHARE = 2.0  # what the share that a ridge adversary explains weighs beside a loss in nats
DISTANCES = ("mmd", "mean", "ridge")  # need no adversary that is trained


def adversarial(logits: Tensor, target: Tensor, prior: Tensor) -> Tensor:
    """Minus the privacy network's cross-entropy: the papers' loss, without a lower end (equation 6 of paper
    003). It fools the one network that it is trained with."""
    return -F.cross_entropy(logits, target)


def to_prior(logits: Tensor, target: Tensor, prior: Tensor) -> Tensor:
    """KL(prior || what the privacy network says): 0 where it answers with the base rate."""
    return -(logits.log_softmax(1).mean(0) @ prior.to(logits)) - entropy(prior)


def clipped(logits: Tensor, target: Tensor, prior: Tensor) -> Tensor:
    """Minus the cross-entropy, up to H(u), which is the loss of a network that knows nothing."""
    return -F.cross_entropy(logits, target).clamp(max=entropy(prior))


def against(loss: str, logits: Tensor, target: Tensor, prior: Tensor) -> Tensor:
    return {"adversarial": adversarial, "prior": to_prior, "clip": clipped}[loss](logits, target, prior)


def against_critic(loss: str, joint: Tensor, product: Tensor) -> Tensor:
    """The same against a critic of pairs: the Jensen-Shannon objective itself (Algorithm 4 of paper 003),
    that objective down to its value at chance, or every score pulled to 0, where pairs look alike."""
    if loss == "prior":
        scores = torch.cat([joint, product])
        return F.binary_cross_entropy_with_logits(scores, torch.full_like(scores, 0.5)) - math.log(2)
    value = jsd(joint, product)
    return value.clamp(min=-2 * math.log(2)) if loss == "clip" else value


def distance(loss: str, r: Tensor, codes: Tensor, number: Tensor | None = None) -> Tensor:
    """Between the groups of the codes; a ridge adversary tells the ``number`` too whose ranges they are."""
    if loss == "ridge":
        return SHARE * ridge(r, codes, number=number)
    return mmd(r, codes) if loss == "mmd" else mean_distance(r, codes)


def distance_given(
    loss: str, r: Tensor, codes: Tensor, given: Tensor, number: Tensor | None = None
) -> Tensor:
    """The same among the records of each of the codes ``given``, its mean over the records: what is there
    beyond what those codes tell."""
    if loss == "ridge":
        return SHARE * ridge(r, codes, given, number=number)
    parts = [(given == code).nonzero()[:, 0] for code in given.unique()]
    terms = [len(rows) / len(codes) * distance(loss, r[rows], codes[rows]) for rows in parts]
    return torch.stack(terms).sum()


def mean_distance(r: Tensor, codes: Tensor) -> Tensor:
    """The squared distance between a group's mean and that of all others, its mean over the groups."""
    gaps = _contrasts(codes, r.dtype) @ r.flatten(1)
    return gaps.square().sum(1).mean() if len(gaps) else r.sum() * 0


def mmd(r: Tensor, codes: Tensor, widths: tuple[float, ...] = WIDTHS) -> Tensor:
    """The squared maximum mean discrepancy between a group and all others (Gretton et al., 2012, equation 5:
    the biased estimate), its mean over the groups and over Gaussian kernels of several widths.

    Distances are in units of the batch's own root mean squared distance, which is not differentiated: a
    kernel of fixed width is blind once representations have moved apart. The result is in units of its
    square, as `mean_distance` is: with one kernel of large width w it is that distance over w^2."""
    contrasts = _contrasts(codes, r.dtype)
    if len(contrasts) == 0:
        return r.sum() * 0
    value: Tensor = _MMD.apply(r.flatten(1), contrasts, widths)  # type: ignore[no-untyped-call]
    return value


class _MMD(torch.autograd.Function):
    """The discrepancy, and its gradient in closed form, which takes a third of the time of autograd's."""

    @staticmethod
    def forward(ctx: Any, r: Tensor, contrasts: Tensor, widths: tuple[float, ...]) -> Tensor:
        value, slope = _mmd_and_slope(r, contrasts, widths)
        ctx.save_for_backward(slope)
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, above: Tensor) -> tuple[Tensor, None, None]:
        (slope,) = ctx.saved_tensors
        return above * slope, None, None


def _mmd_and_slope(r: Tensor, contrasts: Tensor, widths: tuple[float, ...]) -> tuple[Tensor, Tensor]:
    """With w_ij = c_i c_j k'(|r_i - r_j|^2) the gradient is 4 sum_j w_ij (r_i - r_j)."""
    squares = squared_distances(r)
    unit = max(float(squares.mean()), 1e-12)
    seen, derivative = torch.zeros_like(contrasts), torch.zeros_like(squares)
    for kernel, rate in kernels(squares, sorted(widths, reverse=True), unit):
        seen.addmm_(contrasts, kernel)
        derivative.add_(kernel, alpha=rate)
    slope = torch.zeros_like(r)
    for c in contrasts[:, :, None]:
        slope += ((derivative @ c) * r).sub_(derivative @ (c * r)).mul_(c)
    share = unit / (len(widths) * len(contrasts))
    return share * (seen * contrasts).sum(), slope.mul_(4 * share)


def entropy(prior: Tensor) -> float:
    return -math.fsum(p * math.log(p) for p in prior.tolist() if p > 0)


def _contrasts(codes: Tensor, dtype: torch.dtype) -> Tensor:
    """For every group that is there and is not all: 1 / its size inside, minus 1 / the others' size
    outside (groups, n). Of two groups one is enough."""
    inside = F.one_hot(codes).T.to(dtype)
    inside = inside[(inside.sum(1) > 0) & (inside.sum(1) < len(codes))]
    if len(inside) == 2:
        inside = inside[:1]
    size = inside.sum(1, keepdim=True)
    return inside / size - (1 - inside) / (len(codes) - size)
