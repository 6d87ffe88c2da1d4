"""How much each layer's gradient says about a record, in nats (figure 3 of paper 001)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from leakscope.attacks.reductions import PCA
from leakscope.core.dataset import Batch
from leakscope.core.errors import require
from leakscope.core.nouns import Estimate, Layers, Release, only
from leakscope.games.channels import GradientChannel
from leakscope.models import layers_of

ROUNDING = 1e-5  # of the largest standard deviation, in float32

Estimator = Callable[[Tensor, Tensor, torch.Generator], Estimate]
Target = Literal["input", "label"]


def layer_information(
    channel: GradientChannel,
    batch: Batch,
    estimator: Estimator,
    *,
    target: Target = "input",
    components: int = 16,
    rng: torch.Generator,
) -> dict[str, Estimate]:
    """I(X; G_l) or I(Y; G_l) for each layer l, G_l being what the channel releases of one record's gradient;
    Y is the label, of a number the quarter that it lies in.

    Figure 3 of paper 001, which has `MINE`. Gradients and inputs are reduced to their first ``components``
    principal components, fitted on these records: what bounds the components' information from below bounds
    the gradients' too (data processing), an upper bound is one for the components only. Without noise G_l is
    a function of the record, and I(X; G_l) is as large as the number of records lets any estimator see."""
    require(target in ("input", "label"), "layer_information.target", "'input' or 'label'", target)
    rows = _records(channel, batch)
    data = batch.data
    seen = data.strata[rows]
    (release,) = channel(batch, seen, rng)
    if target == "input":
        seen = _reduced(Release.of({"x": data.x[rows].flatten(1)}), components, rng)
    found = {}
    for layer, names in layers_of(channel.model).items():
        gradients = _reduced(_narrow(release, names), components, rng)
        estimate = estimator(gradients, seen, rng)
        method = f"{estimate.method}; of {gradients.shape[1]} principal components"
        found[layer] = replace(estimate, name=f"I({target}; gradient)", method=method)
    return found


def _records(channel: GradientChannel, batch: Batch) -> Tensor:
    """The records, one a trial and none twice: a pair on both sides of a split would be known by heart."""
    rounds, way_out = len(channel.rounds), "use dataclasses.replace(channel, rounds=(params,))"
    require(rounds == 1, "layer_information.channel", "of one round", rounds, way_out=way_out)
    require(batch.rows.shape[1] == 1, "layer_information.batch", "of one record a trial", batch.rows.shape[1])
    rows = batch.rows[:, 0]
    twice = len(rows) - len(rows.unique())
    require(twice == 0, "layer_information.batch", "of distinct records", f"{twice} repetitions")
    return rows


def _narrow(release: Release, names: tuple[str, ...]) -> Release:
    def blocks() -> Iterator[Layers]:
        return (only(layers, names) for layers in release.blocks())

    return replace(release, blocks=blocks)


def _reduced(release: Release, components: int, rng: torch.Generator) -> Tensor:
    """Every trial's principal components, without those that are rounding: estimators bring all to one
    scale."""
    found = PCA(components).fit(release, rng)(release).double()
    spread = found.std(0)
    kept = spread > ROUNDING * spread.max()
    return found[:, kept] if bool(kept.any()) else found[:, :1]
