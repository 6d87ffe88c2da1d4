"""The attacks that an audit of members plays unless it is told which: those that find most."""

from __future__ import annotations

from torch import nn

from leakscope.attacks.alignment import Cosine
from leakscope.attacks.joint_regression import JointRegression
from leakscope.attacks.losses import FedLoss, Loss
from leakscope.attacks.span_membership import SpanDistance, WhitenedSpan, largest_rank
from leakscope.attacks.whitened import FedMIA, InOut, Whitened
from leakscope.core.dataset import Dataset
from leakscope.core.errors import ArgumentError
from leakscope.results.cell import Table

SHARP = frozenset(attack.__name__ for attack in (Whitened, FedMIA, InOut, JointRegression))


def list_attacks(
    seen: str, *, whitens: bool, spans: Table | None, several: bool, drop_out: bool, steady: bool, quick: bool
) -> list[Table]:
    """As tables of a plan. ``whitens``: the model has layers whose gradients can be whitened. ``spans``: what
    `find_spans` gave. ``several`` clients upload; some of them ``drop_out`` of some rounds, some are
    ``steady``, in all of them. ``quick``: the weaker ones are left out where there are stronger ones."""
    sharp: list[Table] = []
    if whitens:
        sharp.append({"name": Whitened.__name__, "by_class": True})
        if seen == "uploads" and several:
            sharp.insert(0, {"name": FedMIA.__name__})
        if seen != "uploads":
            wanted = ((InOut, drop_out), (JointRegression, steady))
            sharp[:0] = [{"name": attack.__name__} for attack, fits in wanted if fits]
    if not (sharp and quick):
        sharp.append({"name": Cosine.__name__})
    if spans is not None:
        sharp.append(spans)
    return [*sharp, {"name": Loss.__name__}, *([] if quick else [{"name": FedLoss.__name__}])]


def list_loss_free(model: nn.Module, some: Dataset, spans: Table | None) -> list[Table]:
    """The attacks that need to know nothing of the loss that clients descend; none where the model begins
    with no linear layer."""
    try:
        WhitenedSpan().check(model, some.x, some.y)
    except ArgumentError:
        return []
    return [{"name": WhitenedSpan.__name__}, *([spans] if spans is not None else [])]


def find_spans(
    model: nn.Module, some: Dataset, *, records: int, rounds: int, steps: int | None = None, kept: float = 1.0
) -> tuple[Table | None, str]:
    """The attack by row spaces, as a table of a plan, where the model begins with a linear layer and what is
    seen is of fewer ``records`` than its updates can span; else None, and why not in words where they are too
    many. ``steps`` that a client takes in a round, and the share of the start that decay has ``kept``."""
    most = largest_rank(model, rounds)
    try:
        SpanDistance().check(model, some.x, some.y)
    except ArgumentError:
        return None, ""
    if most == 0:
        return None, ""
    if records >= most:
        return None, (
            f"Row spaces are left out ({SpanDistance.__name__}): the updates of linear layers span at most "
            f"{most:,} dimensions here, and what is seen is of {records:,} records or more."
        )
    known = {"steps": steps, "kept": None if kept == 1 else kept}
    return {"name": SpanDistance.__name__} | {k: v for k, v in known.items() if v is not None}, ""
