"""Whether a record that a row space holds was behind it: tests that need no truth.

A gradient is G = Σ d x'/b over its records, where d is the loss's slope at the layer's output. For a record
that is there, with its label, d lies in G's column space, and its dual q (G q = d / b) has q . x = 1 and
vanishes at all other records. Of an upload after many steps no slope is known: there a record is proven by
counting. Every true record is among the candidates and all of them together span the space, so a candidate
without which the others do not span it must be true."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from leakscope.attacks.spans import Span

SAME = 1e-3  # of its length: points nearer than this are one
CROSSED = 0.1  # what a dual is at most at other records that are there
MANY = 4_000  # candidates that fit: more of them show that the test tells nothing


@dataclass(frozen=True, eq=False)
class Fit:
    """How candidates (n,) with their likeliest label fit a gradient: the dual (n, r) of each, how many times
    it is there (n,), its error (n,), and the error (n,) that rounding explains.

    The error is the larger of two: how far the slope is outside the column space, as a share of it, and how
    far its dual at itself is from one over a whole number, the times that it is there."""

    labels: Tensor
    duals: Tensor
    times: Tensor
    error: Tensor
    expected: Tensor

    def take(self, rows: Tensor) -> Fit:
        return Fit(*(part[rows] for part in vars(self).values()))

    @staticmethod
    def joined(parts: list[Fit]) -> Fit:
        return Fit(*(torch.cat(each) for each in zip(*(vars(part).values() for part in parts), strict=True)))


def fit(
    span: Span, coordinates: Tensor, slopes: Tensor, batch: int, *, most: int, scaled: bool = True
) -> Fit:
    """Candidates' ``coordinates`` (n, r) and ``slopes`` (classes, n, rows) held against a gradient's span; a
    record may be there up to ``most`` times. Slopes that are not ``scaled`` are known up to a factor: then a
    record is there once, and the error is that outside the column space alone."""
    inside = slopes @ span.u
    length = slopes.norm(dim=2).clamp(min=torch.finfo(slopes.dtype).tiny)
    outside = (slopes - inside @ span.u.T).norm(dim=2) / length
    duals = inside / span.s / batch
    expected = span.noise * duals.norm(dim=2) * batch / length
    own = (duals * coordinates).sum(2)
    if not scaled:
        duals = duals / torch.where(own == 0, torch.inf, own)[..., None]
        own = (duals * coordinates).sum(2)
    times = (1 / own).nan_to_num(1, 1, 1).round().clamp(1, most)
    error = torch.maximum(outside, (own * times - 1).abs())
    labels = error.argmin(0)
    chosen = labels, torch.arange(len(labels))
    return Fit(labels, duals[chosen], times[chosen].long(), error[chosen], expected[chosen])


def fits(fit: Fit, *, most: float, rounding: float) -> Tensor:
    """Which candidates (n,) have an error of at most ``most``, and of ``rounding`` times what rounding
    explains."""
    return (fit.error < most) & (fit.error < rounding * (fit.expected + torch.finfo(torch.float32).eps))


def proven(fit: Fit, coordinates: Tensor, *, most: float, rounding: float, apart: float) -> Tensor:
    """Which candidates (n,) are behind the gradient: those that fit. Of candidates whose duals do not vanish
    at each other, which cannot both be there, only one whose error is ``apart`` of the others'; and none
    where very many fit."""
    passed = fits(fit, most=most, rounding=rounding)
    rows = passed.nonzero()[:, 0]
    if len(rows) > MANY:
        return torch.zeros_like(passed)
    rows = rows[fit.error[rows].argsort()]
    few, points = fit.take(rows), coordinates[rows]
    same = torch.cdist(points, points) < SAME * points.norm(dim=1)
    repeated = (same & torch.ones_like(same).tril(-1)).any(1)
    crossed = (few.duals @ points.T).abs() * few.times[:, None] > CROSSED
    crossed = (crossed | crossed.T) & ~same
    beaten = (crossed & (few.error[:, None] > apart * few.error[None])).any(1)
    found = torch.zeros_like(passed)
    found[rows[~beaten & ~repeated]] = True
    return found


def needed(coordinates: Tensor, rank: int, *, close: float) -> Tensor:
    """Which candidates (n,) the others do not span: those of leverage 1, if all together span ``rank``
    dimensions; if they do not, a true record is missing and none is proven."""
    if len(coordinates) < rank or not rank:
        return torch.zeros(len(coordinates), dtype=torch.bool)
    u, s, _ = torch.linalg.svd(coordinates, full_matrices=False)
    if int((s > close * s[0]).sum()) < rank:
        return torch.zeros(len(coordinates), dtype=torch.bool)
    return torch.gt(u[:, :rank].square().sum(1), 1 - close)


def independent(coordinates: Tensor, order: Tensor, most: int, *, close: float) -> list[int]:
    """The first candidates in ``order`` that those chosen before them do not span, at most so many."""
    chosen: list[int] = []
    basis = coordinates.new_zeros(0, coordinates.shape[1])
    for i in order.tolist():
        if len(chosen) == most:
            break
        rest = coordinates[i] - coordinates[i] @ basis.T @ basis
        if rest.norm() > close * coordinates[i].norm():
            chosen.append(i)
            basis = torch.cat([basis, rest[None] / rest.norm()])
    return chosen


def separated(
    coordinates: Tensor, distances: Tensor, rank: int, *, factor: float, far: float, close: float
) -> Tensor:
    """Which candidates (n,) span the space and have distances that are ``factor`` times smaller than those of
    all others, which are ``far`` at least: all ``rank`` of them or none."""
    found = torch.zeros(len(coordinates), dtype=torch.bool)
    chosen = independent(coordinates, distances.argsort(), rank, close=close)
    if len(chosen) == rank:
        found[chosen] = True
        worst = float(distances[found].max())
        found &= not bool((distances[~found] <= max(far, factor * worst)).any())
    return found
