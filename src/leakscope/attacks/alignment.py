"""Passive membership inference by gradients (paper 002): how a record's own gradient lies to an update.

The adversary sees one client's updates and knows some records that are no members; everything it
chooses (layer, first round, whitening, scale) it chooses on those. All scores come from one kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from leakscope.core.dataset import Batch
from leakscope.core.errors import ArgumentError, require
from leakscope.core.nouns import Guess, Knowledge, Loss, Params, Release, View
from leakscope.core.task import as_logits, is_number, task_loss
from leakscope.gradients import alignment
from leakscope.gradients.aligned import by_layer, every_label
from leakscope.models import parameters

Label = Literal["known", "predicted", "sum", "max"]
LABELS = ("known", "predicted", "sum", "max")
# what of a round an attack on members looks at, beside the candidates
Sees = Literal["updates", "models", "all updates", "participation"]
Score = Callable[["Aligned"], Tensor]  # -> (layers, n)


@dataclass(frozen=True, eq=False)
class Aligned:
    """One round: dots and squared norms (layers, n) of the candidates' gradients against the update,
    and the update's own squared norms (layers,); a layer's weight and bias are together."""

    names: tuple[str, ...]
    dots: Tensor
    squares: Tensor
    own: Tensor

    @property
    def joined(self) -> Aligned:
        """All layers as one vector."""
        dots, squares, own = (part.sum(0, keepdim=True) for part in (self.dots, self.squares, self.own))
        return Aligned(("all",), dots, squares, own)


def cosines(aligned: Aligned) -> Tensor:
    """(layers, n), and 0 where a gradient or the update is 0."""
    length = (aligned.squares * aligned.own[:, None]).sqrt()
    return torch.where(length > 0, aligned.dots / length.clamp(min=torch.finfo(length.dtype).tiny), 0.0)


@dataclass(frozen=True)
class Cosine:
    """The cosine between a record's gradient and the update, its mean over rounds (paper 002, eq. 4).

    ``label``: the record's own ("known"), the one the model predicts, the "sum" over all labels as the
    paper prints it, or the label with the largest score ("max"). The update is global minus uploaded for
    one label and, as printed, uploaded minus global for the sum, whose gradient points the other way.
    ``layer``: "steadiest", the one where the non-members' cosines spread least; "all" as one vector; or a
    name. ``start``: the first of the observed rounds that counts, 1 being the first; None: where the
    non-members' mean first reaches zero. ``over`` rounds: their "mean", or "t", Student's statistic of a
    record's rounds against 0, as the paper's test is printed; see `measures.membership.t_test_as_printed`.
    """

    sees: ClassVar[Sees] = "updates"
    taught: ClassVar[bool] = False  # by members it is told
    label: Label = "known"
    layer: str = "steadiest"
    start: int | None = 1
    over: Literal["mean", "t"] = "mean"

    def __post_init__(self) -> None:
        check_label("Cosine", self.label)
        require(self.over in ("mean", "t"), "Cosine.over", "mean or t", self.over)
        require(self.start is None or self.start >= 1, "Cosine.start", "at least 1, or None", self.start)

    def check(self, model: nn.Module, x: Tensor, y: Tensor) -> None:
        """Refuse a model that it cannot be played on; a few records show it."""
        refuse_unlabelled(y, self.label)
        _check_layer(self.layer, model, x, y)

    def __call__(self, knowledge: Knowledge, rng: torch.Generator) -> Guess:
        model, joined = victim(knowledge), self.layer == "all"
        first, layer = (self.start or 1) - 1, 0
        if self.start is None or not joined:
            view = knowledge.simulate(rng)[0]
            names, null = _per_round(model, view, self.label, cosines, joined=joined)
            first = _first(null) if self.start is None else first
            layer = 0 if joined else _chosen(self.layer, names, null[min(first, len(null) - 1) :])

        def guess(view: View) -> Tensor:
            found = _per_round(model, view, self.label, cosines, joined=joined)[1]
            if first >= len(found):
                raise ArgumentError(
                    f"Cosine.start must be one of the {len(found)} observed rounds, got {self.start}; "
                    f"observe more rounds or start earlier."
                )
            rounds = found[first:, layer]
            return rounds.mean(0) if self.over == "mean" else _student(rounds)

        return guess


@dataclass(frozen=True)
class GradientDiff:
    """How much nearer the update is to a record's gradient than to nothing: ‖Γ‖² - ‖Γ - s∇‖² (paper 002).

    The paper has s = 1, although an update carries the learning rate and a gradient does not: where the
    update is small this is minus the gradient's norm and little else. A ``scale`` near the rate times the
    optimiser's gain over the batch size makes it about as good as the cosine over all layers.
    """

    sees: ClassVar[Sees] = "updates"
    taught: ClassVar[bool] = False
    label: Label = "known"
    layer: str = "all"
    scale: float = 1.0

    def __post_init__(self) -> None:
        check_label("GradientDiff", self.label)
        require(self.scale > 0, "GradientDiff.scale", "positive", self.scale)

    def check(self, model: nn.Module, x: Tensor, y: Tensor) -> None:
        """Refuse a model that it cannot be played on."""
        refuse_unlabelled(y, self.label)
        _check_layer(self.layer, model, x, y)

    def __call__(self, knowledge: Knowledge, rng: torch.Generator) -> Guess:
        model, joined, layer = victim(knowledge), self.layer == "all", 0
        if not joined:
            view = knowledge.simulate(rng)[0]
            layer = _chosen(self.layer, *_per_round(model, view, self.label, cosines, joined=False))

        def score(aligned: Aligned) -> Tensor:
            return 2 * self.scale * aligned.dots - self.scale**2 * aligned.squares

        def guess(view: View) -> Tensor:
            return _per_round(model, view, self.label, score, joined=joined)[1][:, layer].mean(0)

        return guess


def victim(knowledge: Knowledge) -> nn.Module:
    """The model whose updates are seen, in evaluation mode: a record's score depends on no other."""
    model = getattr(knowledge.channel, "model", None)
    if not isinstance(model, nn.Module):
        raise ArgumentError(
            f"membership attacks need a channel with a model, such as RecordedChannel, got "
            f"{type(knowledge.channel).__name__}."
        )
    return deepcopy(model).eval() if model.training else model


def candidates(view: View) -> tuple[Tensor, Tensor]:
    """The records in question and their labels."""
    batch = view.public.get("candidates")
    if not isinstance(batch, Batch) or batch.rows.shape[1:] != (1,):
        raise ArgumentError("membership attacks need candidate records; play them with Membership.")
    rows = batch.rows[:, 0]
    return batch.data.x[rows], batch.data.y[rows]


def seen_in(release: Release) -> tuple[Params, Params]:
    """One round's global model, whole in memory, and the one update."""
    layers = release.layers
    for name, tensor in layers.items():
        require(len(tensor) == 1, f"the release's layer {name!r}", "of one client", len(tensor))
    return dict(release.params), {name: tensor[0] for name, tensor in layers.items()}


def _per_round(
    model: nn.Module, view: View, label: Label, score: Score, *, joined: bool
) -> tuple[tuple[str, ...], Tensor]:
    """The layers' names and the scores (rounds, layers, n), the update's sign the label mode's."""
    x, y = candidates(view)
    rounds: list[Tensor] = []
    names: tuple[str, ...] = ()
    for release in view.releases:
        params, update = seen_in(release)
        found = []
        for labels in labels_to_try(model, params, x, y, label):
            aligned = _aligned(model, params, update, x, labels, label)
            aligned = aligned.joined if joined else aligned
            aligned = replace(aligned, dots=sign_of(label) * aligned.dots)
            names = aligned.names
            found.append(score(aligned))
        rounds.append(torch.stack(found).amax(0))
    return names, torch.stack(rounds)


def labels_to_try(model: nn.Module, params: Params, x: Tensor, y: Tensor, label: Label) -> Iterator[Tensor]:
    """The labels to score under: one for each record, or one after the other for "max"."""
    if label == "max":
        classes = as_logits(outputs_of(model, params, x[:1])).shape[1]
        yield from (torch.full_like(y, a) for a in range(classes))
    else:
        yield y


def _aligned(model: nn.Module, params: Params, update: Params, x: Tensor, y: Tensor, label: Label) -> Aligned:
    y = labels_for(model, params, x, y, label)
    found = by_layer(alignment(model, params, x, y, update, loss=loss_for(model, label)))
    names = tuple(found)
    dots, squares = (torch.stack([found[name][i] for name in names]) for i in (0, 1))
    own = by_layer({name: (v.flatten()[:0].sum(), v.double().square().sum()) for name, v in update.items()})
    return Aligned(names, dots, squares, torch.stack([own[name][1] for name in names]))


def labels_for(model: nn.Module, params: Params, x: Tensor, y: Tensor, label: Label) -> Tensor:
    """The labels to take gradients with: the predicted ones, or those that are known."""
    refuse_unlabelled(y, label)
    return as_logits(outputs_of(model, params, x)).argmax(1) if label == "predicted" else y


def refuse_unlabelled(y: Tensor, label: Label) -> None:
    """Refuse to guess a label that is a number: what a model predicts has no gradient, and there is no list
    of numbers to try."""
    if label != "known":
        refuse_numbers(y, f"label={label!r}")


def refuse_numbers(y: Tensor, who: str) -> None:
    if is_number(y):
        raise ArgumentError(
            f"{who} needs labels that are classes, and these are numbers; use label='known', or attacks on "
            f"losses."
        )


def outputs_of(model: nn.Module, params: Params, x: Tensor) -> Tensor:
    """What the model says of the task, without columns ``beside`` that, such as a bottleneck's divergence."""
    with torch.no_grad():
        parts = [torch.func.functional_call(model, dict(params), (part,)) for part in x.split(4_096)]
    outputs, beside = torch.cat(parts), getattr(model, "beside", 0)
    return outputs[:, :-beside] if beside else outputs


def loss_for(model: nn.Module, label: Label) -> Loss:
    """What the model was trained for: a bottleneck's divergence, beside the outputs, has its price there."""
    loss = every_label if label == "sum" else task_loss
    if not (beside := getattr(model, "beside", 0)):
        return loss
    price: float = getattr(model, "price", 0.0)
    return lambda out, y: loss(out[:, :-beside], y) + price * out[:, -beside:].sum(1).mean()


def sign_of(label: Label) -> float:
    """K p - 1, the logits' gradient summed over labels, points against p - e_y, that of the true one."""
    return -1.0 if label == "sum" else 1.0


def _student(rounds: Tensor) -> Tensor:
    """Student's t (n,) of scores (rounds, n) against 0; 0 where they do not vary."""
    if len(rounds) < 2:
        raise ArgumentError(
            'Cosine.over must be "mean" where one round counts, got "t"; observe more rounds.'
        )
    error = rounds.std(0) / len(rounds) ** 0.5
    return torch.where(error > 0, rounds.mean(0) / error.clamp(min=torch.finfo(error.dtype).tiny), 0.0)


def _first(null: Tensor) -> int:
    """The first round where the non-member mean of some layer that moves is at most zero, or within two
    standard errors."""
    mean, error = null.mean(2), null.std(2) / null.shape[2] ** 0.5
    reached = ((mean <= 2 * error) & (error > 0)).any(1).nonzero()[:, 0]
    return int(reached[0]) if len(reached) else 0


def _chosen(layer: str, names: tuple[str, ...], null: Tensor) -> int:
    if layer == "steadiest":  # of those that move in most rounds: what is frozen has no spread at all
        moving = (null != 0).any(2).sum(0)
        spread = null.mean(0).std(1)
        return int(torch.where(moving == moving.max(), spread, torch.inf).argmin())
    if layer not in names:
        raise ArgumentError(
            f"layer must be 'steadiest', 'all' or a layer of the model, got {layer!r}; it has: "
            f"{', '.join(names)}."
        )
    return names.index(layer)


def check_label(who: str, label: str) -> None:
    require(label in LABELS, f"{who}.label", f"one of {', '.join(LABELS)}", label)


def _check_layer(layer: str, model: nn.Module, x: Tensor, y: Tensor) -> None:
    params = parameters(model)
    names = tuple(by_layer(alignment(model, params, x, y, params)))
    if layer != "all":
        _chosen(layer, names, torch.zeros(1, len(names), 2))
