"""A search for records of a table whose gradients, or whose local training, give what was released."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from leakscope.attacks.closed_form import labels_of, projected
from leakscope.attacks.encoding import Encoding
from leakscope.attacks.linear_first import LinearFirst
from leakscope.attacks.matching import PASS, Matching, adam, cosine, evaluated, squared
from leakscope.attacks.open_numbers import Shifting, free_directions
from leakscope.attacks.recovery import Recovery
from leakscope.attacks.row_space import ACTIVE
from leakscope.attacks.soft_records import Pooled, SoftTable, fix_least, settle
from leakscope.attacks.spans import Span
from leakscope.attacks.unrolled import Unrolled
from leakscope.core.nouns import CERTIFIED
from leakscope.models import layers_of

DTYPE = torch.float32


@dataclass(frozen=True, eq=False)
class Costs:
    """Settings of a search: what leaving the space costs (``penalty``), how far numbers count beside
    categories when records settle in it (``trust``), when two numbers are the same (``precision``), and how
    records are moved where the space leaves their numbers open (None: they stand)."""

    penalty: float
    trust: float
    precision: float
    shifting: Shifting | None = None


@dataclass(frozen=True, eq=False)
class TableSearch:
    """The ``trials`` (t,) that are searched: scaled records that stand as they are (t, k, d) where ``known``
    (t, k), the options (t, o) that are possible, the labels (t, k), if they are known, and the spaces, if
    there are any."""

    first: LinearFirst
    trials: Tensor
    table: SoftTable
    matching: Matching
    costs: Costs
    spans: list[Span | None]
    standing: Tensor
    known: Tensor
    possible: Tensor
    labels: Tensor | None

    @staticmethod
    def of(first: LinearFirst, found: Recovery, trials: Tensor, costs: Costs) -> TableSearch:
        """The trials (n,) of what was seen, of which some records are found."""
        seen, local = first.seen, first.local
        encoding = Encoding.of(seen.game.data, pinned=0)
        table = SoftTable(encoding)
        rounds = tuple(
            (
                {
                    name: tensor.to(DTYPE) if tensor.is_floating_point() else tensor
                    for name, tensor in params.items()
                },
                {name: tensor[trials].to(DTYPE) for name, tensor in layers.items()},
            )
            for params, layers in seen.rounds
        )
        parts = seen.model, seen.loss, rounds, cosine
        spans = [first.span(int(i), encoding) if first.spanned else None for i in trials]
        spans = [span if span is not None and span.rank else None for span in spans]
        width = len(encoding.scale)
        active = torch.stack(
            [_active(first, span, i)[:width] for span, i in zip(spans, trials.tolist(), strict=True)]
        )
        return TableSearch(
            first,
            trials,
            table,
            Matching(*parts) if local is None else Unrolled(*parts, local),
            costs,
            spans,
            ((found.records[trials] - (encoding.centre if first.bias else 0.0)) / encoding.scale).to(DTYPE),
            found.status[trials] == CERTIFIED,
            torch.stack([table.possible(one) for one in active]),
            _labels(first, found, trials),
        )

    def run(self, *, restarts: int, iterations: int, rate: float, rng: torch.Generator) -> Iterator[Pooled]:
        """What 1 + ``restarts`` searches of every trial say together."""
        n, k = self.standing.shape[:2]
        every = torch.arange(n).repeat_interleave(1 + restarts)
        start = torch.randn(len(every), k, self.table.width, generator=rng, dtype=DTYPE).flatten(1)
        if self.labels is None:
            start = torch.cat([start, self._first_labels(every)], dim=1)

        def objective(variables: Tensor, which: Tensor) -> tuple[Tensor, Tensor]:
            pairs = zip(variables.split(PASS), every[which].split(PASS), strict=True)
            parts = [evaluated(part, partial(self._losses, of=of)) for part, of in pairs]
            losses, slopes = zip(*parts, strict=True)
            return torch.cat(losses), torch.cat(slopes)

        wave = adam(objective, start, iterations=iterations, rate=rate, signed=False)
        soft = self._records(wave.variables, every).detach()
        for i in range(n):
            own = every == i
            yield self._pool(i, soft[own], wave.losses[own])

    def _records(self, variables: Tensor, of: Tensor) -> Tensor:
        """Scaled records (p, k, d) of problems that are these trials'."""
        k = self.standing.shape[1]
        moved = variables[:, : k * self.table.width].view(-1, k, self.table.width)
        soft = self.table.soften(moved, self.possible[of][:, None])
        return torch.where(self.known[of][..., None], self.standing[of], soft)

    def _losses(self, variables: Tensor, of: Tensor) -> Tensor:
        x, encoding = self._records(variables, of), self.table.encoding
        if self.labels is None:
            k = x.shape[1]
            y = variables[:, k * self.table.width :].view(len(x), k, -1).softmax(-1)
        else:
            y = self.labels[of]
        written = encoding.records(x, centred=self.first.bias).to(DTYPE)
        return self.matching.losses(written, y, of) + self.costs.penalty * self._outside(x, of)

    def _outside(self, x: Tensor, of: Tensor) -> Tensor:
        """The mean squared distance (p,) of records from the trial's space."""
        distances = x.new_zeros(len(x))
        for i in of.unique().tolist():
            span, rows = self.spans[i], (of == i).nonzero()[:, 0]
            if span is not None:
                inputs, v = self._inputs(x[rows], span), span.v.to(x.dtype)
                outside = inputs - inputs @ v @ v.T
                distances = distances.index_put((rows,), outside.square().sum(2).mean(1))
        return distances

    def _inputs(self, x: Tensor, span: Span) -> Tensor:
        """Records with the 1 that a bias multiplies, if the space has it."""
        return torch.cat([x, torch.ones_like(x[..., :1])], dim=-1) if len(span.v) > x.shape[-1] else x

    def _pool(self, trial: int, soft: Tensor, losses: Tensor) -> Pooled:
        game, encoding, span = self.first.seen.game, self.table.encoding, self.spans[trial]
        hard = self.table.harden(soft)
        off, least = (hard - soft).norm(dim=2), 0.0
        if span is not None:
            s, k, d = hard.shape
            settled, far = settle(
                self._inputs(hard, span).flatten(0, 1), span.v, encoding.numbers, self.costs.trust
            )
            hard = torch.where(self.known[trial, :, None], hard, settled[:, :d].view(s, k, d))
            off, least = far.view(s, k), fix_least(span.v, encoding.numbers)
            hard, losses = self._shift(trial, hard, losses, span)
            if self.costs.shifting is not None and bool((losses < self.costs.shifting.solved).any()):
                solved = losses < self.costs.shifting.solved  # what the rest says is known to be wrong
                hard, off, losses = hard[solved], off[solved], losses[solved]
        written = encoding.records(hard.double(), centred=self.first.bias).to(game.mean.dtype)
        return Pooled.of(projected(written, game), off, losses, least, game.data, self.costs.precision)

    def _shift(self, trial: int, hard: Tensor, losses: Tensor, span: Span) -> tuple[Tensor, Tensor]:
        """Scaled records (s, k, d) moved along what their categories leave open in the space, and how far
        their gradients then are from the released one; as they were where nothing is left open."""
        shifting, numbers = self.costs.shifting, self.table.encoding.numbers
        if shifting is None or self.labels is None:
            return hard, losses
        directions = free_directions(span.v, numbers, shifting.free)[:, : hard.shape[2]].to(torch.float64)
        if not len(directions):
            return hard, losses
        rounds = tuple(
            (params, {name: layer[self.trials[trial], None] for name, layer in layers.items()})
            for params, layers in self.first.seen.rounds
        )
        matching = replace(self.matching, rounds=rounds, distance=squared)
        size = torch.stack([layer.square().sum() for _, layers in rounds for layer in layers.values()]).sum()
        encoding, labels = self.table.encoding, self.labels[trial]

        def distances(moves: Tensor, start: Tensor) -> Tensor:
            parts = []
            for few in moves.split(PASS):
                x = encoding.records(start + few @ directions, centred=self.first.bias)
                which = torch.zeros(len(x), dtype=torch.long)
                parts.append(matching.losses(x, labels.expand(len(x), -1), which))
            return torch.cat(parts) / size

        still = torch.zeros(1, hard.shape[1], len(directions), dtype=torch.float64)
        moved, far = hard.double(), []
        for i, start in enumerate(hard.double()):
            moves, distance = shifting.move(partial(distances, start=start), still, ~self.known[trial])
            moved[i] += moves[0] @ directions
            far.append(distance)
        return moved.to(hard.dtype), torch.cat(far).to(losses.dtype)

    def _first_labels(self, every: Tensor) -> Tensor:
        classes = self.first.seen.game.data.classes_for("fitted records")
        return torch.zeros(len(every), self.standing.shape[1] * classes, dtype=DTYPE)


def _active(first: LinearFirst, span: Span | None, trial: int) -> Tensor:
    """Which inputs (d,) moved the first layer: the others are 0 in every record."""
    if span is not None:
        return torch.gt(span.v.norm(dim=1), ACTIVE)
    moved = [layers[f"{first.name}.weight"][trial].abs().amax(0) for _, layers in first.seen.rounds]
    return torch.gt(torch.stack(moved).amax(0), 0)


def _labels(first: LinearFirst, found: Recovery, trials: Tensor) -> Tensor | None:
    """The labels (n, k): those found, or counted in the last layer; None where neither is known."""
    if bool((found.labels[trials] >= 0).all()):
        return found.labels[trials]
    seen, local = first.seen, first.local
    last = [*layers_of(seen.model).values()][-1]
    if not {*last} & {*seen.rounds[0][1]} or not first.spanned:
        return None
    steps = 1.0 if local is None else local.rate * first.steps / (1 - local.momentum)
    rounds = tuple(
        (params, {n: part / steps for n, part in layers.items()}) for params, layers in seen.rounds
    )
    return labels_of(replace(seen, rounds=rounds), "this search")[trials]
