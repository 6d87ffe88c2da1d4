"""What layers tell about the records themselves: images reconstructed from pairs of layers and from all."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from leakscope.audits.layers.found import WHOLE, Original, Picture, Rebuilt
from leakscope.core.dataset import Dataset
from leakscope.core.errors import ArgumentError
from leakscope.core.nouns import Attack, Estimate, Knowledge, Transcript
from leakscope.core.rng import fork
from leakscope.games import Reconstruction
from leakscope.games.channels import GradientChannel, Through
from leakscope.games.referee import play
from leakscope.measures.fidelity import WINDOW, failures, fidelity, recovered, ssim
from leakscope.measures.pictures import pair
from leakscope.measures.vinformation import MOST, v_information


def rebuild(
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
) -> tuple[Original[Estimate], tuple[Picture, ...]]:
    """Information above what the public mean image gives, SSIM and failures of every pair of consecutive
    layers and of all; the same images are drawn for each. Pictures only if they are to be ``shown``."""
    check_pictures(train)
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
        rows[name] = _row(transcript, name, inside, rehearsal.mean, rng)
        if shown:
            drawn += [Picture(set=name, **pair(transcript, i)) for i in range(len(transcript.secrets))]
    originals = transcript.secrets
    found = Original[Estimate](
        whole=rows.pop(WHOLE),
        sets=tuple(rows.values()),
        trivial_ssim=float(ssim(rehearsal.mean.expand_as(originals), originals).mean()),
        most=MOST,
        images=images,
        attack=repr(attack),
    )
    return found, tuple(drawn)


def check_pictures(data: Dataset) -> None:
    """Refuse records that SSIM cannot compare."""
    if data.x.dim() != 4 or min(data.x.shape[2:]) < WINDOW:
        raise ArgumentError(
            f"LayerAudit.images needs images of at least {WINDOW} x {WINDOW} pixels, got records of shape "
            f"{tuple(data.x.shape[1:])}; set it to 0."
        )


def _row(
    transcript: Transcript, name: str, layers: tuple[str, ...], mean: Tensor, rng: torch.Generator
) -> Rebuilt[Estimate]:
    failed = failures(transcript, mean)
    return Rebuilt[Estimate](
        name=name,
        layers=layers,
        information=v_information(transcript, baseline=mean, rng=rng),
        ssim=fidelity(transcript, rng=rng),
        recovered=recovered(transcript),
        failures=round(failed.value * failed.n),
    )
