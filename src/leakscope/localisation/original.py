"""What layers tell about the records themselves: images reconstructed from pairs of layers and from all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from leakscope.channels import GradientChannel, Through
from leakscope.core import Attack, Knowledge, Transcript
from leakscope.dataset import Dataset
from leakscope.errors import ArgumentError
from leakscope.games import Reconstruction
from leakscope.measures.fidelity import WINDOW, failures, fidelity, recovered, ssim
from leakscope.measures.pictures import pair
from leakscope.measures.vinformation import MOST, v_information
from leakscope.referee import play
from leakscope.rng import fork

WHOLE = "all layers"


def reconstructed(
    attack: Attack,
    train: Dataset,
    public: Dataset,
    channel: GradientChannel,
    layers: Mapping[str, tuple[str, ...]],
    *,
    images: int,
    batch: int,
    shown: bool,
    rng: torch.Generator,
) -> dict[str, Any]:
    """Information above what the public mean image gives, SSIM and failures of every pair of consecutive
    layers and of all; the same images are drawn for each. Pictures only if they are to be ``shown``."""
    pictures(train)
    game = Reconstruction(train, batch=batch)
    rehearsal = game.on(public)
    sets: dict[str, tuple[str, ...]] = {
        f"{a}+{b}": (a, b) for a, b in zip(list(layers)[:-1], list(layers)[1:], strict=True)
    }
    sets[WHOLE] = tuple(layers)
    (seed,) = fork(rng, 1)
    state = seed.get_state()
    rows, drawn = {}, []
    for name, inside in sets.items():
        through = Through(channel, tuple(parameter for layer in inside for parameter in layers[layer]))
        seed.set_state(state)
        transcript = play(game, through, attack, Knowledge(rehearsal, through), trials=images, rng=seed)
        rows[name] = _row(transcript, rehearsal.mean, rng) | {"layers": list(inside)}
        if shown:
            drawn += [pair(transcript, i) | {"set": name} for i in range(len(transcript.secrets))]
    originals = transcript.secrets
    trivial = float(ssim(rehearsal.mean.expand_as(originals), originals).mean())
    found = {"sets": rows, "trivial_ssim": trivial, "most": MOST, "images": images, "attack": repr(attack)}
    return {"original": found, "pictures": drawn or None}


def pictures(data: Dataset) -> None:
    """Refuse records that SSIM cannot compare."""
    if data.x.dim() != 4 or min(data.x.shape[2:]) < WINDOW:
        raise ArgumentError(
            f"LayerAudit.images needs images of at least {WINDOW} x {WINDOW} pixels, got records of shape "
            f"{tuple(data.x.shape[1:])}; set it to 0."
        )


def _row(transcript: Transcript, mean: Tensor, rng: torch.Generator) -> dict[str, Any]:
    failed = failures(transcript, mean)
    return {
        "information": asdict(v_information(transcript, baseline=mean, rng=rng)),
        "ssim": asdict(fidelity(transcript, rng=rng)),
        "recovered": asdict(recovered(transcript)),
        "failures": round(failed.value * failed.n),
    }
