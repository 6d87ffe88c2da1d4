"""What it takes to protect a secret layer by layer: measured again after each step, not assumed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

import torch

from leakscope.attacks.family import Family
from leakscope.channels import GradientChannel
from leakscope.core import Defense, Estimate, Knowledge
from leakscope.defenses.gradient import Noise, Withhold, Within
from leakscope.games import Inference
from leakscope.localisation.latent import Found, Groups, attacked
from leakscope.rng import fork, seeded

Victim = Callable[[Defense], tuple[GradientChannel, Estimate]]  # trained under a defense; its accuracy
LITTLE = 0.02  # of certainty, in the adversary's rehearsal
RATIO = 4.0  # of the noise's norm to the layer's own gradient


def kept_local(
    game: Inference,
    knowledge: Knowledge,
    channel: GradientChannel,
    layers: Groups,
    family: Family,
    alone: Mapping[str, Found],
    *,
    trials: int,
    rng: torch.Generator,
) -> Iterator[tuple[tuple[str, ...], Found]]:
    """What is left when the most telling layer is kept local, then the two most telling, and so on, until
    the adversary's rehearsal finds next to nothing or one layer remains. Both the order and the end are those
    of the rehearsal, so that the trials that are reported choose neither."""
    order = sorted(layers, key=lambda layer: -alone[layer].gain)
    for n in range(1, len(order)):
        rest = {
            "": tuple(name for layer, names in layers.items() if layer not in order[:n] for name in names)
        }
        left = attacked(game, knowledge, channel, rest, family, trials=trials, rng=fork(rng, 1)[0])[""]
        yield tuple(layer for layer in layers if layer in order[:n]), left
        if left.gain <= LITTLE * math.log(len(game.chances)):
            return


def protected(
    game: Inference,
    rehearsal: Inference,
    victim: Victim,
    layers: Groups,
    family: Family,
    alone: Mapping[str, Found],
    *,
    rehearsals: int,
    trials: int,
    seed: int,
) -> list[dict[str, Any]]:
    """Rows of the protection plan, every one audited anew: nothing done, layers kept local (their gradients
    reach only an enclave or an encrypted sum, so training goes on as before), and the layers that this takes
    frozen, or noised, in training and release."""
    channel, accuracy = victim(Defense())
    knowledge = Knowledge(rehearsal, channel, rehearsals)

    def audited(channel: GradientChannel, role: str) -> Found:
        known = Knowledge(rehearsal, channel, rehearsals)
        rng = seeded(seed, "protection", game.secret, role)
        return attacked(game, known, channel, None, family, trials=trials, rng=rng)[""]

    rows = [_row("none", (), game, audited(channel, "none"), accuracy)]
    if len(layers) < 2:  # nothing would be left to release
        return rows
    local: tuple[str, ...] = ()
    steps = kept_local(
        game,
        knowledge,
        channel,
        layers,
        family,
        alone,
        trials=trials,
        rng=seeded(seed, "protection", game.secret, "local"),
    )
    for local, left in steps:
        rows.append(_row("keep local", local, game, left, accuracy))
    names = tuple(name for layer in local for name in layers[layer])
    frozen, worth = victim(Within(Withhold(), names))
    rows.append(_row("freeze", local, game, audited(frozen, "freeze"), worth))
    std = noise(channel, rehearsal, names, rng=seeded(seed, "protection", game.secret, "noise"))
    noised, worth = victim(Within(Noise(std), names))
    rows.append(_row("noise", local, game, audited(noised, "noise"), worth) | {"std": std})
    return rows


def noise(
    channel: GradientChannel,
    rehearsal: Inference,
    names: tuple[str, ...],
    *,
    rng: torch.Generator,
    ratio: float = RATIO,
) -> float:
    """The standard deviation whose noise has ``ratio`` times the norm of these layers' gradient, as public
    records show it; to two digits."""
    view, _ = rehearsal.deal(channel, 50, rng)
    layers = view.releases[0].layers
    squares = torch.stack([layers[name].double().flatten(1).square().sum(1) for name in names]).sum(0)
    entries = sum(layers[name][0].numel() for name in names)
    return float(f"{ratio * float(squares.mean().sqrt()) / entries**0.5:.2g}")


def _row(
    measure: str, layers: tuple[str, ...], game: Inference, found: Found, accuracy: Estimate
) -> dict[str, Any]:
    told = {"information": asdict(found.information), "advantage": asdict(found.advantage)}
    about = {"measure": measure, "layers": list(layers), "std": None, "secret": game.secret}
    return about | told | {"accuracy": asdict(accuracy)}
