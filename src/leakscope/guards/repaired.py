"""Group-wise repair: an encoder that is told each record's secret, and gives every group one distribution."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from leakscope.core.columns import FEW, Column
from leakscope.core.dataset import Dataset
from leakscope.core.errors import NONNEGATIVE, ArgumentError, DataError, at_least, check, or_none, require
from leakscope.core.rng import fork, initialised
from leakscope.guards.encoder import Guarded, Perturbation
from leakscope.guards.hidden import Hidden, Lesson, Strength, TimedGuard
from leakscope.guards.inf2guard import check_column
from leakscope.guards.plain import Unguarded, renamed
from leakscope.models.encoders import TableEncoder, described
from leakscope.models.repair import RepairedEncoder, RepairedNetwork, learn_repair


@dataclass(frozen=True)
class Repaired(TimedGuard):
    """Plain representations, moved group by group to one distribution: whoever encodes must know the secret.

    Geometric repair (Feldman et al., KDD 2015; del Barrio et al., 2020), learned on training records. A plain
    encoder is trained without the ``column``; then each group's representations are moved by ``amount`` of
    the way to the distribution that is nearest to all groups (see `learn_repair`, ``levels`` and ``rounds``).
    A representation has ``width`` numbers: None is as many as the task needs, its classes less one. ``noise``
    is in units of their deviation. The column must be among the inputs. The null setting is amount = 0.
    """

    column: str
    amount: float = 1.0
    width: int | None = None
    levels: int = 128
    rounds: int = 24
    noise: float = 0.0
    plain: Unguarded = field(default_factory=Unguarded)

    strength = Strength("amount", (0.0, 0.25, 0.5, 0.75, 0.9, 1.0))

    def __post_init__(self) -> None:
        check(self, width=or_none(at_least(1)), levels=at_least(2), rounds=at_least(1), noise=NONNEGATIVE)
        require(0 <= self.amount <= 1, "Repaired.amount", "in [0, 1]", self.amount)
        plain, table = self.plain, isinstance(self.plain.encoder, TableEncoder)
        require(table, "Repaired.plain.encoder", "a TableEncoder", type(plain.encoder).__name__)
        require(not plain.normed, "Repaired.plain.normed", "False, since a norm undoes repair", plain.normed)

    @property
    def told(self) -> str:
        """The column that whoever encodes must know."""
        return self.column

    def hides(self) -> tuple[Hidden, ...]:
        return (Hidden("attribute", self.column),)

    def train(self, lesson: Lesson) -> Guarded:
        data = lesson.data
        check_column(data, self.column)
        place, codes = find_groups(data, self.column)
        least = 2 * FEW
        counts = torch.bincount(codes, minlength=place.stop - place.start).tolist()
        few = [name for name, n in zip(data.value_names(self.column), counts, strict=False) if n < least]
        if few:
            raise DataError(
                f"{data.name}: every value of {self.column!r} must have at least {least} training records to "
                f"be repaired, and {len(few)} have fewer; join rare values, or leave their records out."
            )
        width = self.width or max(data.task.outputs - 1, 1)
        assert isinstance(self.plain.encoder, TableEncoder)
        widths = (*self.plain.encoder.widths[:-1], width)
        plain = replace(self.plain, encoder=TableEncoder(widths))
        trained = plain.train(replace(lesson, data=data.without(self.column)))
        (own,) = fork(lesson.rng, 1)
        r = trained.encoder(data.without(self.column).x).double()
        rounds, levels = 1 if width == 1 else self.rounds, min(self.levels, min(counts) // FEW)
        how = RepairedEncoder(widths, place.start, place.stop, levels, rounds)
        network = initialised(lambda: how(data), own)
        assert isinstance(network, RepairedNetwork)
        network.inner.load_state_dict(trained.encoder.network.state_dict())
        found = learn_repair(r, codes, groups=len(counts), levels=levels, rounds=rounds, rng=own)
        for name, tensor in zip(("turns", "sources", "targets"), found, strict=True):
            getattr(network, name).copy_(tensor)
        network.amount.fill_(self.amount)
        head = {key: value for key, value in trained.encoder.architecture.items() if key == "head"}
        about = {**trained.encoder.about, "shape": list(data.x.shape[1:]), "secret": [self.column]}
        spread = float(r.var(0, correction=0).mean().sqrt())
        made = replace(trained.encoder, about={**about, "told": self.column})
        kind = Perturbation("gaussian", self.noise * spread) if self.noise else Perturbation()
        changes = {"network": network, "architecture": described(how) | head, "perturbation": kind}
        return renamed(replace(trained, encoder=made), self, **changes)


def find_groups(data: Dataset, column: str) -> tuple[Column, Tensor]:
    """Where the inputs mark the secret, and each record's group; a refusal where they do not."""
    place = next((one for one in data.columns if one.name == column and one.dummies), None)
    if place is None:
        raise ArgumentError(
            f"Repaired.column must be marked among the inputs, since whoever encodes must know it, and "
            f"{column!r} of {data.name} is not; put it there (leakscope.guards.repaired.tell_secret)."
        )
    marks = data.x[:, place.start : place.stop]
    if not bool((marks.sum(1) == 1).all()):
        raise DataError(
            f"{data.name}: every record must have a known value of {column!r} to be repaired by; leave the "
            f"others out."
        )
    return place, marks.argmax(1)


def tell_secret(data: Dataset, column: str) -> Dataset:
    """The records with a private column marked among their inputs, after all others, one mark a value."""
    require(data.x.dim() == 2, "records", "of a table where the secret is told", f"{data.x.dim()} dimensions")
    if column in data.ordered:
        raise ArgumentError(
            f"Repaired.column must be a column of categories, and {column!r} holds ranges of a number, which "
            f"no table holds; choose a guard that is not told the secret."
        )
    if data.has(column):
        data = data.without(column)
    names, inputs = data.value_names(column), data.x.shape[1]
    columns = data.columns or tuple(Column(f"x{i}", i, i + 1) for i in range(inputs))
    marks = torch.nn.functional.one_hot(data.secret(column), len(names)).to(data.x)
    own = Column(column, inputs, inputs + len(names), names, standardised=False)
    return replace(data, x=torch.cat([data.x, marks], dim=1), columns=(*columns, own))
