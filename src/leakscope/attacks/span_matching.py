"""Records of a table where the algebra of row spaces ends: fitted to a gradient or an upload, kept near the
space that the first layer gives, and rated cell by cell."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache

import torch
from torch import Tensor

from leakscope.attacks.closed_form import SeenLayer
from leakscope.attacks.linear_first import LinearFirst
from leakscope.attacks.open_numbers import Shifting
from leakscope.attacks.recovery import Recovery
from leakscope.attacks.reliability import Reliability
from leakscope.attacks.row_space import RowSpace
from leakscope.attacks.soft_records import Pooled
from leakscope.attacks.table_search import Costs, TableSearch
from leakscope.core.errors import NONNEGATIVE, POSITIVE, ArgumentError, at_least, check
from leakscope.core.nouns import CERTIFIED, PLAUSIBLE, Guess, Knowledge, View
from leakscope.core.pairing import compare_cells, pair
from leakscope.core.rng import integer, seeded
from leakscope.core.task import is_number

QUICK = RowSpace(branches=20_000, tried=20_000, together=10, silent=4_000)


@dataclass(frozen=True)
class SpanMatching:
    """Records of a table fitted to a gradient or upload, near the row space of its first layer, each cell
    with a confidence.

    The dummies' gradient, or what their local training moves, is to point where the release does (after
    TabLeak: Vero et al., ICML 2023). What ``algebra`` certifies stands; None: it is not asked. The other
    records are fitted from 1 + ``restarts`` starts by ``iterations`` of Adam: categories are probabilities,
    those whose column of the release is 0 left out, numbers are free, and leaving the space costs
    ``penalty`` times the squared distance. Then each record's numbers are those of the point of the space
    that is nearest to its categories, its own numbers counting ``trust`` of these. Where
    categories move less than ``free`` along a direction of the space, the whole gradient decides how far: in
    at most ``rounds`` (0: numbers stay) each record is tried at ``tried`` places up to ``reach`` deviations
    away, and all are moved by ``moves`` of Adam of this ``pace``, until a search is ``solved``. A cell stands
    as most searches say it. How often such cells are right is learned on ``rehearsals`` of public batches, in
    steps of at least ``least`` cells (the confidence; a cell is right within ``precision`` deviations).
    Uploads are unrolled, of at most ``steps`` local steps. Those of Adam lie in no space: they are fitted
    without one. Labels are counted in the last layer; where that is not known they are searched for.
    """

    algebra: RowSpace | None = field(default=QUICK)
    iterations: int = 2_000
    restarts: int = 3
    rate: float = 0.2
    penalty: float = 0.1
    trust: float = 0.01
    precision: float = 0.05
    rehearsals: int = 8
    least: int = 100
    steps: int = 20
    free: float = 0.03
    rounds: int = 4
    tried: int = 41
    reach: float = 2.0
    moves: int = 200
    pace: float = 0.05
    solved: float = 1e-6

    def __post_init__(self) -> None:
        check(self, iterations=at_least(1), restarts=at_least(0), rehearsals=at_least(0), least=at_least(2))
        check(self, rate=POSITIVE, penalty=NONNEGATIVE, trust=POSITIVE, precision=POSITIVE)
        check(self, steps=at_least(1), free=POSITIVE, rounds=at_least(0), tried=at_least(2), reach=POSITIVE)
        check(self, moves=at_least(1), pace=POSITIVE, solved=POSITIVE)

    def __call__(self, knowledge: Knowledge, rng: torch.Generator) -> Guess:
        return lambda view: self.prepare(knowledge, rng)(view).records

    def certify(self, knowledge: Knowledge, rng: torch.Generator) -> Callable[[View], tuple[Tensor, Tensor]]:
        rate = self.rate_cells(knowledge, rng)
        return lambda view: rate(view)[:2]

    def rate_cells(
        self, knowledge: Knowledge, rng: torch.Generator
    ) -> Callable[[View], tuple[Tensor, Tensor, Tensor]]:
        recover = self.prepare(knowledge, rng)

        def said(view: View) -> tuple[Tensor, Tensor, Tensor]:
            found = recover(view)
            return found.records, found.status, found.confidence

        return said

    def check(self, knowledge: Knowledge, view: View) -> None:
        """Refuse what it cannot read, before any search."""
        seen = SeenLayer.of(knowledge, view, dtype=torch.float64, updates=True)
        if seen.rounds:
            self._first(seen, knowledge, view)

    def prepare(self, knowledge: Knowledge, rng: torch.Generator) -> Callable[[View], Recovery]:
        """How to recover records from what is seen. What confidence rests on is learned when the first cell
        is rated."""
        seed = integer(rng)

        @cache
        def reliability() -> Reliability | None:
            return self._rehearse(knowledge, seed)

        def recover(view: View) -> Recovery:
            found, features = self._fit(knowledge, view, seeded(seed, "search"))
            confidence = features.new_zeros(features.shape[:3])
            fitted = found.fitted[:, None].expand_as(found.status)
            if bool(fitted.any()) and (known := reliability()) is not None:
                confidence[fitted] = known.rate(features[fitted])
            confidence[found.status == CERTIFIED] = 1.0
            return replace(found, confidence=confidence)

        return recover

    def _rehearse(self, knowledge: Knowledge, seed: int) -> Reliability | None:
        """How often cells are right, from public batches whose records are known."""
        if not self.rehearsals:
            return None
        game = knowledge.game
        view, secrets = game.deal(knowledge.channel, self.rehearsals, seeded(seed, "rehearsal"))
        found, features = self._fit(knowledge, View(view.releases), seeded(seed, "rehearsed search"))
        public = SeenLayer.of(knowledge, view, updates=True).game.data
        rights = []
        for originals, said in zip(secrets, found.records, strict=True):
            right, order = pair(compare_cells(originals, said, public, self.precision))
            rights.append(right[order.argsort()])
        open_ones = found.fitted[:, None] & (found.status != CERTIFIED)
        batches = torch.arange(len(secrets))[:, None, None].expand(features.shape[:3])
        right = torch.stack(rights)
        return Reliability.learn(
            features[open_ones].flatten(0, 1),
            right[open_ones].flatten(),
            batches[open_ones].flatten(),
            self.least,
        )

    def _fit(self, knowledge: Knowledge, view: View, rng: torch.Generator) -> tuple[Recovery, Tensor]:
        """What came of every trial, and the features (t, k, columns, f) of its cells."""
        seen = SeenLayer.of(knowledge, view, dtype=torch.float64, updates=True)
        columns = len(seen.game.data.columns)
        if not seen.rounds:
            return Recovery.nothing(seen), torch.zeros(seen.trials, seen.game.batch, columns, Pooled.FEATURES)
        first = self._first(seen, knowledge, view)
        if self.algebra is None or not first.spanned:
            found = Recovery.nothing(seen)
        else:
            found = self.algebra.recover(knowledge, view, rng)
        todo = (found.status != CERTIFIED).any(1)
        features = torch.zeros(seen.trials, seen.game.batch, columns, Pooled.FEATURES, dtype=torch.float64)
        records, status = found.records.clone(), found.status.clone()
        if bool(todo.any()):
            places, costs = todo.nonzero()[:, 0], self._costs()
            search = TableSearch.of(first, found, places, costs)
            found_here = search.run(
                restarts=self.restarts, iterations=self.iterations, rate=self.rate, rng=rng
            )
            for trial, pooled in zip(places.tolist(), found_here, strict=True):
                fresh = status[trial] != CERTIFIED
                records[trial, fresh] = pooled.records[fresh]
                status[trial, fresh] = PLAUSIBLE
                features[trial] = pooled.features
        return replace(found, records=records, status=status, fitted=todo), features

    def _costs(self) -> Costs:
        how = self.free, self.rounds, self.tried, self.reach, self.moves, self.pace, self.solved
        return Costs(self.penalty, self.trust, self.precision, Shifting(*how) if self.rounds else None)

    def _first(self, seen: SeenLayer, knowledge: Knowledge, view: View) -> LinearFirst:
        first = LinearFirst.of(seen, knowledge.channel, view, "SpanMatching", spanned=False)
        if is_number(seen.game.data.y):
            raise ArgumentError(
                "SpanMatching fits records with their labels, which must be classes, and these are numbers; "
                "use RowSpace."
            )
        if first.local is not None and (first.steps > self.steps or first.clients > 1):
            raise ArgumentError(
                f"SpanMatching unrolls one client's upload of at most {self.steps} local steps, got "
                f"{first.steps} of {first.clients}; use RowSpace, or raise SpanMatching.steps."
            )
        return first
