"""Self-distillation against membership inference: a model that never saw what it is asked about teaches."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from leakscope.core.dataset import Dataset
from leakscope.core.errors import DataError, at_least, check, require
from leakscope.core.rng import dealt, fork
from leakscope.guards.encoder import Guarded
from leakscope.guards.hidden import Hidden, Lesson, Strength, TimedGuard
from leakscope.guards.plain import Unguarded, begun, renamed, taught
from leakscope.guards.trainer import Progress


@dataclass(frozen=True)
class Distilled(TimedGuard):
    """Self-distillation of a split ensemble (SELENA; Tang et al., USENIX Security 2022).

    ``models`` are trained as ``plain`` is, for ``epochs``, and every record is left out by ``without`` of
    them; the encoder is then trained on what these, none of which was shown the record, say of it on average,
    and never on its label. Needs no non-members. The null setting is without = 0.
    """

    without: int = 10
    models: int = 25
    epochs: int = 12
    plain: Unguarded = field(default_factory=Unguarded)

    needs_classes = True

    @property
    def strength(self) -> Strength:
        """A record is left to one model at least."""
        return Strength("without", tuple(n for n in (0, 1, 2, 5, 10, 15, 20) if n < self.models))

    def hides(self) -> tuple[Hidden, ...]:
        return (Hidden("membership"),)

    def __post_init__(self) -> None:
        check(self, models=at_least(2), epochs=at_least(1))
        rule = f"from 0 to models - 1 = {self.models - 1}"
        require(0 <= self.without < self.models, "Distilled.without", rule, self.without)

    def train(self, lesson: Lesson) -> Guarded:
        if self.without == 0:
            return renamed(self.plain.train(lesson), self)
        source, made, private = begun(self.plain, lesson)
        before = self.models * self.epochs
        epochs = before + self.plain.epochs
        beat = _after(lesson.progress, 0, epochs)
        believed = self.beliefs(source.data, source.held, private, progress=beat)
        source = replace(source, data=replace(source.data, y=believed))
        lesson = replace(lesson, progress=_after(lesson.progress, before, epochs))
        return taught(self, self.plain, lesson, source, made)

    def beliefs(
        self, data: Dataset, held: Dataset, rng: torch.Generator, *, progress: Progress | None = None
    ) -> Tensor:
        """(n, classes): the mean over the models that were not shown a record of what they say of it;
        ``held`` are records to watch by."""
        deal, *own = fork(rng, 1 + self.models)
        absent = dealt(self.models, len(data), self.without, deal)
        if int((~absent).sum(1).min()) < 2:
            raise DataError(
                f"{data.name}: {len(data)} records leave one of {self.models} models fewer than 2 to learn "
                f"from; give more records, or lower without {self.without}."
            )
        teacher = replace(self.plain, epochs=self.epochs)
        total = torch.zeros(len(data), data.classes)
        for i, (left_out, one) in enumerate(zip(absent, own, strict=True)):
            shown, asked = (~left_out).nonzero()[:, 0], left_out.nonzero()[:, 0]
            beat = _after(progress, i * self.epochs, None)
            encoder = teacher(data.take(shown), one, others=held, progress=beat).encoder
            if len(asked):
                total[asked] += encoder.logits(data.x[asked]).softmax(1)
        return total / self.without


def _after(progress: Progress | None, before: int, epochs: int | None) -> Progress | None:
    """Progress within a longer training, whose first ``before`` epochs are over; ``epochs`` None: those that
    are said."""
    if progress is None:
        return None
    return lambda epoch, said, table: progress(before + epoch, epochs or said, table)
