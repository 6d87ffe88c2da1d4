"""Exact records of a table from the row space of its first layer's gradient or upload, each with its proof.

The layer's gradient is [dW | db] = Σ d (x, 1)' over the records behind it, and an upload after steps of SGD
is a sum of such terms: its rows are combinations of records, and records are the points of the space that
they span whose categories are one-hot (compare Vero et al., ICML 2023, and Dimitrov et al., NeurIPS 2024).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, combinations, islice

import torch
from torch import Tensor, nn

from leakscope.attacks.candidates import LISTED, Candidates
from leakscope.attacks.certificates import Fit, fit, fits, needed, proven, separated
from leakscope.attacks.closed_form import SeenLayer, labels_of
from leakscope.attacks.encoding import Encoding, Options, Pin, pinned_within
from leakscope.attacks.linear_first import PASS, LinearFirst
from leakscope.attacks.recovery import Recovery
from leakscope.attacks.silence import silent_points
from leakscope.attacks.spans import Span
from leakscope.attacks.sparse import sparse_points
from leakscope.attacks.tree import Branches, Tree
from leakscope.core.errors import POSITIVE, ArgumentError, at_least, check
from leakscope.core.nouns import CERTIFIED, PLAUSIBLE, Guess, Knowledge, View
from leakscope.core.rng import integer
from leakscope.models import layers_of

ACTIVE = 1e-4  # of the space's length along a column, below which no record has anything there
PINS = 5  # free dimensions that numbers with few values may fix


@dataclass(frozen=True, eq=False)
class Ends:
    """Points (n, r) that branches end in, and the ``rows`` (k, r), or (n, k, r), of what fixed each:
    categories, numbers with few values, and duals of other records."""

    points: Tensor
    rows: Tensor

    def blur(self, span: Span, numbers: Tensor) -> Tensor:
        """How far the least certain number of each point (n,) is moved, in standard deviations, by what
        disturbs the space: every entry of a point is moved by as much as noise adds to it, and numbers by
        what that makes of all that fixed the point."""
        if not len(numbers):
            return torch.zeros(len(self.points), dtype=self.points.dtype)
        entry = span.noise / (len(span.u) ** 0.5 + len(span.v) ** 0.5)
        moved = entry * (self.points / span.s).norm(dim=1)
        turned = (span.v[numbers] @ torch.linalg.pinv(self.rows)).norm(dim=-1).amax(-1)
        return torch.mul(moved, 1 + turned)


@dataclass(frozen=True)
class RowSpace:
    """The records of a table that the row space of a first linear layer's gradient or upload holds, proven.

    One branch a category: it ends where entries are ``tolerance`` from one-hot. Where up to five dimensions
    are left, numbers of at most ``pinned`` public values fix them, the commonest first, ``tried`` for each of
    the first ``together`` choices of numbers; where that proves nothing, units that are silent for a record
    do, ``spare`` more than there are dimensions, tried at ``silent`` points with public numbers. At more than
    ``branches`` the search stops. Of a gradient a record is certified if its own slope lies in the column
    space with an ``error`` of at most that and at most ``rounding`` times what rounding explains; a number
    that public values fixed must be the only one that fits within ``precision`` standard deviations. Each
    such record narrows the search for the others. Of an upload it is certified if the other candidates do not
    span the space, and the space ends in a ``gap``; or if the records' inputs of the second layer are ``gap``
    squared times nearer to its upload than all others'. All else is plausible, or not found: the public mean.
    Tables without categories are searched in ``samples`` of units that may be silent for a record (ReLU). The
    adversary knows the columns and their categories, how many records there are, and local training.

    What certificates rest on besides: numbers that are not ``precision`` right have ``sharp`` times the error
    that is allowed; above a gap that is ``clear``, duals of other records fix numbers as well as categories
    do, and below it records may be there that are not found; one record may be there ``times`` times; of two
    candidates that cannot both be there, one has ``apart`` of the other's error; and who is ruled out by the
    second layer is ``far`` from its space.

    Where that finds too little, the search is done again with a wider tolerance: ``widest`` of an upload, of
    a gradient what disturbs it explains, and at most that."""

    tolerance: float = 0.02
    cut: float = 1e-3
    branches: int = 200_000
    tried: int = 200_000
    together: int = 100
    samples: int = 20_000
    silent: int = 40_000
    spare: int = 8
    pinned: int = 150
    error: float = 0.05
    rounding: float = 3.0
    precision: float = 0.05
    gap: float = 3.0
    clear: float = 1e3
    sharp: float = 3.0
    times: int = 4
    apart: float = 0.1
    far: float = 0.05
    widest: float = 0.1

    def __post_init__(self) -> None:
        check(self, tolerance=POSITIVE, cut=POSITIVE, error=POSITIVE, rounding=POSITIVE, gap=POSITIVE)
        check(self, widest=POSITIVE)
        check(self, precision=POSITIVE, clear=POSITIVE, sharp=POSITIVE, apart=POSITIVE, far=POSITIVE)
        check(
            self,
            times=at_least(1),
            branches=at_least(1),
            tried=at_least(0),
            together=at_least(0),
            samples=at_least(0),
            silent=at_least(0),
            spare=at_least(1),
            pinned=at_least(0),
        )

    def __call__(self, knowledge: Knowledge, rng: torch.Generator) -> Guess:
        certify = self.certify(knowledge, rng)
        return lambda view: certify(view)[0]

    def certify(self, knowledge: Knowledge, rng: torch.Generator) -> Callable[[View], tuple[Tensor, Tensor]]:
        seed = integer(rng)

        def said(view: View) -> tuple[Tensor, Tensor]:
            found = self.recover(knowledge, view, torch.Generator().manual_seed(seed))
            return found.records, found.status

        return said

    def prepare(self, knowledge: Knowledge, rng: torch.Generator) -> Callable[[View], Recovery]:
        """How to recover records from what is seen."""
        return lambda view: self.recover(knowledge, view, rng)

    def check(self, knowledge: Knowledge, view: View) -> None:
        """Refuse what it cannot read, before any search."""
        seen = SeenLayer.of(knowledge, view, dtype=torch.float64, updates=True)
        if seen.rounds:
            first = LinearFirst.of(seen, knowledge.channel, view, "RowSpace")
            encoding = self._encoding(first)
            if encoding.groups:
                _unit(first.span(0, encoding), encoding, bias=first.bias)

    def recover(self, knowledge: Knowledge, view: View, rng: torch.Generator) -> Recovery:
        """What came of every trial."""
        seen = SeenLayer.of(knowledge, view, dtype=torch.float64, updates=True)
        k, blank = seen.game.batch, Recovery.nothing(seen)
        records, status, labels = blank.records, blank.status, blank.labels
        if seen.rounds:
            first = LinearFirst.of(seen, knowledge.channel, view, "RowSpace")
            encoding = self._encoding(first)
            for i in range(seen.trials):
                span = first.span(i, encoding)
                if encoding.groups:
                    found, tried = self._look(first, encoding, span, i)
                else:
                    found, tried = self._sample(first, encoding, span, rng)
                blank.ranks[i], blank.gaps[i], blank.weakest[i] = span.rank, span.gap, span.gap * span.noise
                drowned = span.rank == 0 or float(span.s[0]) <= self.gap * span.noise
                blank.disturbed[i] = not drowned and (span.above > span.rank or span.gap < self.clear)
                blank.free[i], blank.branches[i], blank.stopped[i] = tried.left, tried.peak, tried.stopped
                rows = found.choose(k)
                said = _written(encoding, span, found.points[rows], centred=first.bias)
                n = len(rows)
                records[i, :n] = said.view(-1, *seen.shape[1:]).to(records.dtype)
                status[i, :n] = torch.where(found.proven[rows], CERTIFIED, PLAUSIBLE)
                labels[i, :n] = self._labels(first, span, found.take(rows), said)
            if first.numeric:
                labels = torch.full_like(labels, -1)
            elif first.local is None:
                labels = _counted(seen, labels)
        return replace(blank, labels=labels)

    def _encoding(self, first: LinearFirst) -> Encoding:
        data, batch = first.seen.game.data, first.seen.game.batch
        encoding = Encoding.of(data, pinned=self.pinned)
        if not encoding.groups and not (first.bias and (first.local is None or batch == 1)):
            raise ArgumentError(
                f"RowSpace reads uploads, and layers without a bias, of tables with categories, whose "
                f"dummies Dataset.columns names, got {data.name} of {len(data.columns)} columns and batches "
                f"of {batch}; encode categories one-hot, or release gradients of a layer with a bias."
            )
        return encoding

    def _sample(
        self, first: LinearFirst, encoding: Encoding, span: Span, rng: torch.Generator
    ) -> tuple[Candidates, Branches]:
        """Candidates of a table without categories, and no branches."""
        points = sparse_points(span, span.v[-1], self.samples, rng)
        branches = Branches(points, span.v.new_zeros(span.rank, 0), stopped=len(points) < span.rank)
        if not len(points) or first.local is not None:
            return Candidates.of(points), branches
        return self._fitted(first, encoding, span, points)[0], branches

    def _look(
        self, first: LinearFirst, encoding: Encoding, span: Span, trial: int
    ) -> tuple[Candidates, Branches]:
        """What a search finds; where that is too little, what it finds with a wider tolerance, if that is
        more: what disturbs a gradient, and records that hardly moved an upload, leave directions that are
        noise in part, and entries of all that lie along them are off."""
        wide = self._tolerance(first, encoding, span)
        found, branches = self._search(first, encoding, span, trial, self.tolerance)

        def worth(candidates: Candidates) -> int:
            if first.local is None:
                return int(candidates.proven.sum())
            return len(candidates.choose(first.seen.game.batch))

        if worth(found) >= span.rank or branches.stopped or wide <= self.tolerance:
            return found, branches
        others, rest = self._search(first, encoding, span, trial, wide)
        return (others, rest) if worth(others) > worth(found) else (found, branches)

    def _search(
        self, first: LinearFirst, encoding: Encoding, span: Span, trial: int, tolerance: float
    ) -> tuple[Candidates, Branches]:
        """Candidates, what is proven among them, and what was left of the branches in the last search."""
        unit = _unit(span, encoding, bias=first.bias)
        known = rest = Candidates.of(span.v.new_zeros(0, span.rank))
        branches, duals = Branches(known.points, span.v.new_zeros(span.rank, 0)), known.points
        if span.rank == 0 or unit.norm() < ACTIVE:
            return known, branches
        loose = branches.free  # directions in which the categories alone fix nothing
        active = span.v.norm(dim=1) > ACTIVE
        pins = [pin for pin in encoding.pins if active[pin.position]]
        groups = [part for part in (group.among(active) for group in encoding.groups) if part is not None]
        tree = Tree(tolerance, self.cut, self.branches, settled=first.local is not None)
        while len(known.points) < span.rank:
            branches = tree.search(span.v, unit, groups, duals)
            loose = loose if len(duals) else branches.free
            tips = self._ends(tree, span.v, branches, groups, pins, torch.cat([unit[None], duals]))
            if first.local is not None:
                rest = self._near(first, encoding, span, tips, trial, whole=not branches.left)
                break
            felt = loose if span.gap < self.clear else branches.free
            fixed = torch.cat([unit[None], duals])
            tips = chain(
                tips, self._silenced(first, encoding, span, branches, _fixing(span.v, groups, fixed))
            )
            rest, fresh = self._prove(first, encoding, span, tips, felt)
            duals, known = torch.cat([duals, fresh]), known.joined(rest.take(rest.proven))
            rest = rest.take(~rest.proven)
            if not len(fresh):
                break
        found = known.joined(rest)
        ends = Ends(found.points, _fixing(span.v, groups, unit[None]))
        precise = ends.blur(span, encoding.numbers) * self.sharp < self.precision
        sure = found.proven if first.local is None else found.proven & precise
        if not branches.stopped and not loose.shape[1] and span.gap >= self.gap:
            sure = sure | (needed(found.points, span.rank, close=self.cut) & precise)
        return replace(found, proven=sure), branches

    def _tolerance(self, first: LinearFirst, encoding: Encoding, span: Span) -> float:
        """The widest that a true record's entries are from whole ones: of a gradient, thrice the error of an
        entry of a record with all of its categories in the weakest direction, by what disturbs it."""
        if first.local is not None or not span.rank:
            return self.widest
        entry = span.noise / (len(span.u) ** 0.5 + len(span.v) ** 0.5)
        length = float(1 + len(encoding.groups) + len(encoding.numbers)) ** 0.5
        blurred: float = 3 * entry * length / float(span.s[-1])
        return min(blurred, self.widest)

    def _ends(
        self, tree: Tree, v: Tensor, found: Branches, groups: list[Options], pins: list[Pin], fixed: Tensor
    ) -> Iterator[Ends]:
        """The points that branches end in. Dimensions that are left are fixed by numbers that have few
        values, which gives points for every choice of such numbers: few values at first, then more.
        ``fixed`` (k, r): what was known of every point before."""
        if found.stopped or not len(found.points) or found.left > PINS:
            return
        if not found.left:
            yield Ends(_polished(v, found.points, groups), _fixing(v, groups, fixed))
            return
        for budget in (self.tried // 10, self.tried):
            for chosen in islice(combinations(pins, found.left), self.together):
                values = pinned_within(chosen, budget / len(found.points))
                grown = found if values is None else tree.grow(v, found, values)
                if values is not None and not grown.left:
                    every = [*groups, *values]
                    yield Ends(_polished(v, grown.points, every), _fixing(v, every, fixed))

    def _silenced(
        self, first: LinearFirst, encoding: Encoding, span: Span, found: Branches, fixed: Tensor
    ) -> Iterator[Ends]:
        """The points of branches that units which are silent for a record fix, where numbers do not; none
        where what disturbs the space hides that they are silent."""
        bounded = not found.stopped and 0 < found.left <= PINS and 0 < len(found.points) <= self.silent
        if span.gap < self.clear or not bounded:
            return
        public, numbers = first.seen.game.data.x.double(), encoding.numbers
        every = max(1, -(-len(public) * len(found.points) // self.silent))
        starts = ((public - encoding.centre) / encoding.scale)[::every][:, numbers]

        def outputs(points: Tensor) -> Tensor:
            return first.outputs(_written(encoding, span, points, centred=first.bias))

        bounds = {"close": self.cut, "far": self.tolerance}
        points, others = silent_points(span, found, starts, numbers, outputs, more=self.spare, **bounds)
        if len(points):
            yield Ends(points, torch.cat([fixed.expand(len(points), -1, -1), others], dim=1))

    def _prove(
        self, first: LinearFirst, encoding: Encoding, span: Span, ends: Iterator[Ends], free: Tensor
    ) -> tuple[Candidates, Tensor]:
        """The first points of a gradient among which some are proven, and the duals of these; ``free`` (r,
        f): directions in which their categories alone do not fix them."""
        rest, duals = Candidates.of(span.v.new_zeros(0, span.rank)), span.v.new_zeros(0, span.rank)
        for end in ends:
            points = end.points
            if len(points):
                rest, fitted = self._fitted(first, encoding, span, points)
                rows = rest.proven.nonzero()[:, 0]
                sharp = self._sharp(first, encoding, span, points[rows], fitted.duals[rows], free)
                sharp &= end.blur(span, encoding.numbers)[rows] * self.sharp < self.precision
                rest.proven[rows] = sharp
                duals = fitted.duals[rows[sharp]]
            if len(duals):
                break
        return rest, duals

    def _sharp(
        self, first: LinearFirst, encoding: Encoding, span: Span, points: Tensor, duals: Tensor, free: Tensor
    ) -> Tensor:
        """Which points (n,) would not fit if their numbers were ``precision`` off, in the directions (r, f)
        in which nothing but public values fixed them: the one that the dual feels, and those that it does
        not."""
        sharp = torch.ones(len(points), dtype=torch.bool)
        if not len(points) or not free.shape[1]:
            return sharp
        turns = torch.linalg.svd((duals @ free)[:, None], full_matrices=True)[2]  # (n, f, f)
        for turn in turns.unbind(1):
            along = turn @ free.T
            largest = (along @ span.v[encoding.numbers].T).abs().amax(1, keepdim=True)
            step = self.precision * along / largest.clamp(min=torch.finfo(along.dtype).tiny)
            for moved in (points + step, points - step):
                found = self._fit(first, encoding, span, moved)
                sharp &= ~fits(found, most=self.error, rounding=self.sharp * self.rounding)
        return sharp

    def _fit(self, first: LinearFirst, encoding: Encoding, span: Span, points: Tensor) -> Fit:
        k, shape, parts = first.seen.game.batch, first.seen.shape[1:], []
        for part in points.split(PASS):
            x = _written(encoding, span, part, centred=first.bias).view(-1, *shape)
            parts.append(fit(span, part, first.slopes(x), k, most=self.times, scaled=not first.numeric))
        return Fit.joined(parts)

    def _fitted(
        self, first: LinearFirst, encoding: Encoding, span: Span, points: Tensor
    ) -> tuple[Candidates, Fit]:
        """Points held against a gradient, and which of them are proven."""
        found = self._fit(first, encoding, span, points)
        sure = proven(found, points, most=self.error, rounding=self.rounding, apart=self.apart)
        return Candidates(points, sure, found.labels, found.times, found.error), found

    def _labels(self, first: LinearFirst, span: Span, found: Candidates, x: Tensor) -> Tensor:
        """The labels (n,): those that proofs found, or, where all records behind an upload are known, those
        whose slopes point where the records' own shares in it do, by least squares."""
        if first.local is None or len(x) < span.rank or len(x) == 0:
            return torch.where(found.proven, found.labels, -1)
        shares = (span.u * span.s @ torch.linalg.pinv(found.points)).T
        slopes = first.slopes(x.view(-1, *first.seen.shape[1:]))
        return nn.functional.cosine_similarity(slopes, shares[None], dim=2).argmax(0)

    def _near(
        self,
        first: LinearFirst,
        encoding: Encoding,
        span: Span,
        ends: Iterator[Ends],
        trial: int,
        *,
        whole: bool,
    ) -> Candidates:
        """Candidates of an upload, and how near each is to the second layer's space; ``whole``: no record is
        missing. Where one may be, the nearest are all that is kept."""
        found, measure = Candidates.of(span.v.new_zeros(0, span.rank)), first.distances(trial)
        for part in (part for end in ends for part in end.points.split(PASS)):
            more = Candidates.of(part)
            if measure is not None:
                x = _written(encoding, span, part, centred=first.bias).view(-1, *first.seen.shape[1:])
                more = replace(more, score=measure(x))
            found = found.joined(more)
            found = found if whole else found.take(found.score.argsort()[:LISTED])
        if measure is None or not whole or span.gap < self.gap or not len(found.points):
            return found
        bounds = {"factor": self.gap**2, "far": self.far, "close": self.cut}
        return replace(found, proven=separated(found.points, found.score, span.rank, **bounds))


def _counted(seen: SeenLayer, labels: Tensor) -> Tensor:
    """Labels (t, k), those that are not known being what the last layer's counts leave for them."""
    if not {*[*layers_of(seen.model).values()][-1]} & {*seen.rounds[0][1]}:
        return labels
    for known, counted in zip(labels, labels_of(seen, "RowSpace").tolist(), strict=True):
        for label in known[known >= 0].tolist():
            counted.remove(label if label in counted else counted[-1])
        known[known < 0] = torch.tensor(counted, dtype=known.dtype)
    return labels


def _unit(span: Span, encoding: Encoding, *, bias: bool) -> Tensor:
    """What is 1 at every record (r,): the bias' entry, or the sum of a category's dummies."""
    if bias:
        return span.v[-1]
    whole = [group for group in encoding.groups if bool((group.options.sum(1) == 1).all())]
    if not whole:
        raise ArgumentError(
            "RowSpace needs a first layer whose bias is released, or a category of which every public record "
            "has exactly one dummy; give the model a bias."
        )
    return span.v[whole[0].positions].sum(0)


def _polished(v: Tensor, points: Tensor, groups: list[Options]) -> Tensor:
    """Points moved to where all groups together are nearest to the options that they took."""
    if not groups:
        return points
    rows = v[torch.cat([group.positions for group in groups])]
    if float(torch.linalg.svdvals(rows)[-1]) < ACTIVE or len(rows) < v.shape[1]:
        return points
    taken = [_nearest(points @ v[group.positions].T, group.options) for group in groups]
    return torch.matmul(torch.cat(taken, dim=1), torch.linalg.pinv(rows).T)


def _fixing(v: Tensor, groups: list[Options], fixed: Tensor) -> Tensor:
    parts = [nn.functional.normalize(fixed, dim=1), *(v[group.positions] for group in groups)]
    return torch.cat(parts)


def _nearest(entries: Tensor, options: Tensor) -> Tensor:
    return options[torch.cdist(entries, options).argmin(1)]


def _written(encoding: Encoding, span: Span, points: Tensor, *, centred: bool) -> Tensor:
    """Points as records are written (n, d): categories exactly."""
    width = len(encoding.scale)
    x = encoding.records(points @ span.v[:width].T, centred=centred)
    for group in encoding.groups:
        x[:, group.positions] = _nearest(x[:, group.positions], group.options)
    return x
