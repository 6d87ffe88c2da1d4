"""What gradients say of records without a search: the labels, and the input of a first linear layer.

Also what every reconstruction starts from and ends with: what was seen, and records that can be ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from leakscope.attacks.spans import inputs_at
from leakscope.core.errors import ArgumentError, require
from leakscope.core.nouns import Guess, Knowledge, Layers, Loss, Params, View, only
from leakscope.core.task import is_number, task_loss
from leakscope.games import Reconstruction
from leakscope.games.channels import GradientChannel, Summed, Through, UpdateChannel
from leakscope.gradients.joint import draws
from leakscope.models import layers_of

PUBLIC = 1_000  # records that a mean probability is taken of: more change nothing
CLOSE = 1e-3  # of a column's range: rows of a gradient that differ less say the same record


@dataclass(frozen=True, eq=False)
class Attempt:
    """What came of every trial: its records (t, k, *shape), the loss (t,) they were left with, whether it
    failed (t,), in which case its records are the public mean, how many evaluations it took (t,), and the
    labels (t, k) it went by, unless they were searched for too."""

    records: Tensor
    losses: Tensor
    failed: Tensor
    evaluations: Tensor
    labels: Tensor | None = None


@dataclass(frozen=True, eq=False)
class SeenLayer:
    """What a reconstruction has to work with: the model, its loss, per observed round the parameters and
    the released layers of all trials, and the game on public records. ``rounds`` is empty where
    nothing was released that belongs to the model."""

    model: nn.Module
    loss: Loss
    rounds: tuple[tuple[Params, Layers], ...]
    game: Reconstruction
    trials: int

    @staticmethod
    def of(
        knowledge: Knowledge,
        view: View,
        *,
        layers: tuple[str, ...] | None = None,
        dtype: torch.dtype | None = None,
        updates: bool = False,
    ) -> SeenLayer:
        """What there is to see, narrowed to some ``layers`` if they are named; ``dtype`` None: as it is.
        ``updates``: what local training moved is as welcome as gradients."""
        game, channel = knowledge.game, knowledge.channel
        if not isinstance(game, Reconstruction):
            raise ArgumentError(
                f"reconstructions need the game Reconstruction, got {type(game).__name__}; play them with it."
            )
        released = [(release.params, release.layers) for release in view.releases]
        trials = len(next(iter(released[0][1].values())))
        while isinstance(channel, Through | Summed):
            channel = channel.channel
        if not isinstance(channel, GradientChannel) or (isinstance(channel, UpdateChannel) and not updates):
            if any(params for params, _ in released):
                raise ArgumentError(
                    f"reconstructions need a channel of gradients and its model, got "
                    f"{type(channel).__name__}; believe in a GradientChannel."
                )
            return SeenLayer(nn.Identity(), task_loss, (), game, trials)
        if game.batch == 1:
            channel = channel.of_single_records(game.data)
        elif draws(channel.model, dict(channel.rounds[0]), game.data.x):
            raise ArgumentError(
                "reconstructions need a model that draws nothing at random, and this one does, as dropout "
                "does; use evaluation mode (model.eval(), --mode eval)."
            )
        model, loss = channel.model, channel.trained_with
        names = _named(model, layers)
        buffers = {name: _cast(buffer, dtype) for name, buffer in model.named_buffers()}
        rounds = tuple(
            (buffers | {n: _cast(p, dtype) for n, p in params.items()}, _part(every, names, dtype))
            for params, every in released
        )
        return SeenLayer(model, loss, rounds if all(part for _, part in rounds) else (), game, trials)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the records of one trial: (k, *shape)."""
        return (self.game.batch, *self.game.data.x.shape[1:])

    def logits(self, x: Tensor) -> Tensor:
        """What the model says of records at the first round's parameters."""
        params = self.rounds[0][0]
        dtype = next(iter(self.rounds[0][1].values())).dtype
        with torch.no_grad():
            found: Tensor = functional_call(self.model, dict(params), (x.to(dtype),))
        return found

    def attempt(self, records: Tensor, losses: Tensor, *, least: Tensor, evaluations: Tensor) -> Attempt:
        """The records as such can be, and the public mean where the loss is not ``least`` or less."""
        failed = ~(losses <= least) | ~losses.isfinite() | ~records.flatten(1).isfinite().all(1)
        said = projected(records.view(-1, *self.shape).to(self.game.mean.dtype), self.game)
        said = torch.where(failed.view(-1, *(1,) * (said.dim() - 1)), self.game.mean, said)
        return Attempt(said, losses, failed, evaluations)

    def nothing(self) -> Attempt:
        """Where nothing was released, the public mean is all there is to say."""
        said = self.game.mean.expand(self.trials, *self.shape).clone()
        lost = torch.full((self.trials,), torch.inf)
        return Attempt(said, lost, lost.isinf(), torch.zeros(self.trials, dtype=torch.long))


def _named(model: nn.Module, layers: tuple[str, ...] | None) -> set[str]:
    known = layers_of(model)
    unknown = [layer for layer in layers or () if layer not in known]
    require(not unknown, "layers", f"layers of the model ({', '.join(known)})", unknown)
    return {name for layer in (known if layers is None else layers) for name in known[layer]}


def _cast(tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    floating = dtype is not None and tensor.is_floating_point()
    return tensor.detach().to(dtype) if floating else tensor.detach()


def _part(layers: Layers, names: set[str], dtype: torch.dtype | None) -> Layers:
    return {name: _cast(tensor, dtype) for name, tensor in only(layers, names).items()}


def projected(records: Tensor, game: Reconstruction) -> Tensor:
    """Rows of a table (t, k, width) made ones that can be: numbers within the public range, of each
    category's dummies the largest alone. Images stay as they are."""
    if records.dim() != 3:
        return records
    lowest, highest = game.limits
    rows = records.clamp(lowest, highest)
    for column in game.data.columns:
        span = slice(column.start, column.stop)
        if column.values and column.stop - column.start > 1:
            low, high = lowest[span], highest[span]
            share = (records[..., span] - low) / (high - low).clamp(min=torch.finfo(low.dtype).tiny)
            share = torch.where(high > low, share, -torch.inf)  # what no public record has is not guessed
            one = nn.functional.one_hot(share.argmax(-1), len(low)).bool()
            rows[..., span] = torch.where(one, high, low)
    return rows


def labels_of(seen: SeenLayer, who: str) -> Tensor:
    """The labels (t, k) that the last layer's gradient gives away under cross-entropy.

    Its bias gradient is the batch's mean of p - e_y: negative only for labels that are there, so that of one
    record it names the label (Zhao et al. 2020, iDLG, equation 5, has the weight's rows: they serve
    where there is no bias, and hold where the layer's inputs are positive). Of k records every label below
    0 is there; how often follows from k (p - gradient), with the mean p of public records.
    """
    if is_number(seen.game.data.y):
        raise ArgumentError(
            f"{who}.label = 'analytic' needs labels that are classes, and these are numbers; use "
            f"label='known'."
        )
    layer, names = list(layers_of(seen.model).items())[-1]
    released = [seen.rounds[0][1][name] for name in names if name in seen.rounds[0][1]]
    if not released:
        raise ArgumentError(
            f"{who}.label = 'analytic' needs the gradient of the last layer, {layer!r}, and it is not among "
            f"those that are matched; use label='known'."
        )
    entries = min(released, key=Tensor.dim)  # the bias, if there is one
    if entries.dim() > 2:
        entries = entries.flatten(2).sum(2)
        entries = entries / -entries.clamp(max=0).sum(1, keepdim=True)
    likely = seen.logits(seen.game.data.x[:PUBLIC]).softmax(1).mean(0)
    return torch.stack([_counted(row, likely, seen.game.batch) for row in entries])


def _counted(row: Tensor, likely: Tensor, k: int) -> Tensor:
    """k labels: those below 0 once, then whichever is furthest below its expected number."""
    order = row.argsort()
    found = order[row[order] < 0][:k].tolist()
    missing = k * (likely - row)
    missing[found] -= 1
    while len(found) < k:
        found.append(int(missing.argmax()))
        missing[found[-1]] -= 1
    return torch.tensor(found)


@dataclass(frozen=True)
class FirstLayer:
    """The records that a first linear layer with a bias gives away in closed form (paper 001, section 3).

    Row i of its weight gradient is the batch's mean of d_i x and entry i of its bias gradient that of d_i:
    of one record x is their quotient, all rows counting by the size of their entry; of several it is where
    only one of them moves the row, so that rows which agree come first, and no record twice.
    """

    def __call__(self, knowledge: Knowledge, rng: torch.Generator) -> Guess:
        return lambda view: self.attempt(knowledge, view).records

    def attempt(self, knowledge: Knowledge, view: View) -> Attempt:
        """What came of every trial; a record that no row is left for is the public mean."""
        seen = SeenLayer.of(knowledge, view)
        if not seen.rounds:
            return seen.nothing()
        weight, bias = _first(seen)
        records = torch.stack([_quotients(w, b, seen.game) for w, b in zip(weight, bias, strict=True)])
        silent = bias.abs().sum(1) == 0
        losses = torch.where(silent, torch.inf, 0.0)
        once = torch.ones(seen.trials, dtype=torch.long)
        return seen.attempt(records, losses, least=torch.zeros(seen.trials), evaluations=once)


def _first(seen: SeenLayer) -> tuple[Tensor, Tensor]:
    """The gradients of the first layer's weight (t, out, in) and bias (t, out)."""
    layer, released = first_linear(seen, "FirstLayer", ("weight", "bias")), seen.rounds[0][1]
    return released[f"{layer}.weight"], released[f"{layer}.bias"]


def first_linear(seen: SeenLayer, who: str, needed: tuple[str, ...]) -> str:
    """The first layer's name, if it takes records as they are, which one forward pass shows, and its
    ``needed`` parameters are released."""
    layer = next(iter(layers_of(seen.model)))
    part = seen.model.get_submodule(layer)
    linear = isinstance(part, nn.Linear) and all(f"{layer}.{name}" in seen.rounds[0][1] for name in needed)
    taken = inputs_at(seen.model, seen.rounds[0][0], layer, seen.game.mean[None]).flatten()
    if not linear or not torch.equal(taken, seen.game.mean.flatten().to(taken.dtype)):
        has = "is linear, has a bias," if "bias" in needed else "is linear,"
        raise ArgumentError(
            f"{who} needs a model whose first layer {has} takes the record as it is and is released, got "
            f"{layer!r}, {part}; use DeepLeakage or InvertingGradients."
        )
    return layer


def _quotients(weight: Tensor, bias: Tensor, game: Reconstruction) -> Tensor:
    """k records (k * size,) from the rows (out, size) of one trial."""
    if game.batch == 1:
        return (weight * bias.sign()[:, None]).sum(0) / bias.abs().sum()
    lowest, highest = (limit.flatten() for limit in game.limits)
    moved = bias.abs() > torch.finfo(bias.dtype).eps * bias.abs().max()
    rows, size = weight[moved] / bias[moved, None], bias[moved].abs()
    spread = (highest - lowest).clamp(min=torch.finfo(lowest.dtype).tiny)
    share = (rows - lowest) / spread
    within = ((share > -CLOSE) & (share < 1 + CLOSE)).all(1)
    rows, size, share = rows[within], size[within], share[within]
    alike = torch.cdist(share, share, p=torch.inf) < CLOSE
    order = sorted(range(len(rows)), key=lambda i: (-int(alike[i].sum()), -float(size[i])))
    chosen: list[int] = []
    for i in order:
        if len(chosen) < game.batch and not any(bool(alike[i, j]) for j in chosen):
            chosen.append(i)
    missing = [game.mean.flatten()] * (game.batch - len(chosen))
    return torch.cat([*(rows[i] for i in chosen), *missing])
