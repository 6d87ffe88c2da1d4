"""How much each layer of a released gradient moves with one record (paper 001, section 5.1)."""

from __future__ import annotations

import math
from typing import Literal

import torch
from scipy import stats
from torch import Tensor

from leakscope import gradients
from leakscope.core.dataset import Batch
from leakscope.core.errors import ArgumentError, require
from leakscope.core.nouns import Estimate
from leakscope.defenses.gradient import Noise
from leakscope.games.channels import GradientChannel, UpdateChannel
from leakscope.gradients.jacobian import Entries, entries, probed
from leakscope.models import layers_of
from leakscope.training.step import changes, parts

Norm = Literal["F", "1", "inf"]
Layered = dict[str, Tensor]  # layer -> (t,), one number a trial


def sensitivity(
    channel: GradientChannel,
    batch: Batch,
    norm: Norm = "F",
    *,
    probes: int | None = None,
    columns: int | None = None,
    relative: bool = False,
    rng: torch.Generator | None = None,
    level: float = 0.95,
) -> dict[str, Estimate]:
    """Layer by layer, the mean norm of the Jacobian of the released gradient with respect to the first
    record of its batch. `norms` says how; it gives all norms at the price of one."""
    require(norm in ("F", "1", "inf"), "sensitivity.norm", "'F', '1' or 'inf'", norm)
    rule = f"None for the norm {norm!r}, as probing gives F only"
    way_out = "draw columns of the Jacobian with columns="
    require(norm == "F" or probes is None, "sensitivity.probes", rule, probes, way_out=way_out)
    found = norms(channel, batch, probes=probes, columns=columns, relative=relative, rng=rng, level=level)
    return found[norm]


def norms(
    channel: GradientChannel,
    batch: Batch,
    *,
    probes: int | None = None,
    columns: int | None = None,
    relative: bool = False,
    rng: torch.Generator | None = None,
    level: float = 0.95,
) -> dict[str, dict[str, Estimate]]:
    """All three norms of each layer's Jacobian: norm -> layer -> the mean over trials.

    The Jacobian is that of a trial's batch mean, at the first observed round, with respect to the trial's
    first record: 1/k of the record's own, as no other record's gradient depends on it. Norms are over all
    entries, of a layer's weight and bias together: the root of the sum of squares, the sum and the largest.
    The 1-norm grows with a layer's size; compare layers by ``relative``, which divides by ‖g_l‖, the
    released mean's own norm before noise. A layer that is zero and does not move counts as 0; where it is
    zero and does move the ratio has no value, and the trial is left out.

    ``probes``: F only, by Hutchinson's estimate. F² is unbiased; its root falls short by an eighth of the
    squared relative error of F². ``columns``: so many input columns of each record; F and 1 as before,
    "inf" is a lower bound. Both need ``rng`` and are drawn anew for every trial, so that their error is
    part of the spread over trials, of which the interval is Student's.

    Additive noise moves no derivative (paper 001, section 6), and is ignored. What clips, prunes or
    perturbs does, and is refused. A loss that the defense changes is the one differentiated.
    """
    if not isinstance(channel, GradientChannel) or isinstance(channel, UpdateChannel):
        raise ArgumentError(
            f"sensitivity.channel must release gradients, got {type(channel).__name__}; use GradientChannel "
            f"with the round's parameters."
        )
    for part in parts(channel.defense):
        if changes(part, "weigh") or (changes(part, "release") and not isinstance(part, Noise)):
            raise ArgumentError(
                f"sensitivity.channel's defense must leave the gradient as it is or add noise, got {part!r}, "
                f"whose derivative is not taken; use channel.undefended()."
            )
    require(0 < level < 1, "sensitivity.level", "between 0 and 1", level)
    require(len(batch) >= 2, "sensitivity's trials", "at least 2, as one has no interval", len(batch))
    require(probes is None or columns is None, "sensitivity.columns", "None where probes are given", columns)
    require(probes is None or probes >= 1, "sensitivity.probes", "at least 1, or None", probes)
    drawn = probes is not None or columns is not None
    require(not drawn or rng is not None, "sensitivity.rng", "given where probes or columns are drawn", rng)
    data, k = batch.data, batch.rows.shape[1]
    first, which = batch.rows[:, 0], torch.arange(len(batch))
    if probes is None and columns is None:  # a record has one Jacobian however often it is drawn
        first, which = first.unique(return_inverse=True)
    model, params, x, y = channel.model, channel.rounds[0], data.x[first], data.y[first]
    loss, layers = channel.defense.loss(channel.loss), layers_of(model)
    found: dict[str, Layered]
    if probes is not None and rng is not None:
        squares = probed(model, params, x, y, probes=probes, rng=rng, loss=loss)
        found = {"F": {layer: _sum(squares, names).mean(1).sqrt() for layer, names in layers.items()}}
    else:
        every = entries(model, params, x, y, loss=loss, columns=columns, rng=rng)
        found = _by_layer(every, layers)
    lengths = _lengths(channel, batch) if relative else None
    method = _method(data.x, probes, columns)
    return {
        norm: {
            layer: _mean(norm, values[which] / k, lengths[layer] if lengths else None, method[norm], level)
            for layer, values in layered.items()
        }
        for norm, layered in found.items()
    }


def _by_layer(every: Entries, layers: dict[str, tuple[str, ...]]) -> dict[str, Layered]:
    largest = {
        layer: torch.stack([every.largest[name] for name in names]).amax(0) for layer, names in layers.items()
    }
    return {
        "F": {layer: _sum(every.squares, names).sqrt() for layer, names in layers.items()},
        "1": {layer: _sum(every.sums, names) for layer, names in layers.items()},
        "inf": largest,
    }


def _sum(of: dict[str, Tensor], names: tuple[str, ...]) -> Tensor:
    return torch.stack([of[name] for name in names]).sum(0)


def _lengths(channel: GradientChannel, batch: Batch) -> Layered:
    data, loss = batch.data, channel.defense.loss(channel.loss)
    blocks = gradients.blocks(channel.model, channel.rounds[0], data.x, data.y, batch.rows, loss=loss)
    squares = [{name: g.flatten(1).double().square().sum(1) for name, g in block.items()} for block in blocks]
    whole = {name: torch.cat([block[name] for block in squares]) for name in squares[0]}
    return {layer: _sum(whole, names).sqrt() for layer, names in layers_of(channel.model).items()}


def _method(x: Tensor, probes: int | None, columns: int | None) -> dict[str, str]:
    of = "" if x.is_floating_point() else ", with respect to embeddings"
    if probes is not None:
        return {"F": f"Student's t over trials of {probes} Hutchinson probes each{of}"}
    if columns is None:
        return dict.fromkeys(("F", "1", "inf"), f"Student's t over trials, all columns{of}")
    some = f"Student's t over trials of {columns} drawn columns each{of}"
    return {"F": some, "1": some, "inf": f"{some}, a lower bound"}


def _mean(norm: str, values: Tensor, lengths: Tensor | None, method: str, level: float) -> Estimate:
    name = f"sensitivity ({norm}{' / ‖g‖' if lengths is not None else ''})"
    if lengths is not None:
        kept = (lengths > 0) | (values == 0)
        if not bool(kept.all()):
            method += f", {int((~kept).sum())} trials of a zero gradient left out"
        values = torch.where(lengths > 0, values / lengths.clamp(min=torch.finfo(torch.float64).tiny), 0.0)
        values = values[kept]
    n = len(values)
    if n < 2:  # nothing is known but that the layer moves where it is zero
        return Estimate(name, math.inf, 0.0, math.inf, level, n, method)
    value, spread = float(values.mean()), float(values.std())
    half = float(stats.t.ppf((1 + level) / 2, n - 1)) * spread / math.sqrt(n)
    return Estimate(name, value, max(value - half, 0.0), value + half, level, n, method)
