"""What it takes to protect a secret layer by layer: measured again after each step, not assumed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

import torch

from leakscope.audits.layers.found import Leak, Measure, ProtectionTried
from leakscope.audits.layers.latent import Attacker, Groups, LayerAttempt
from leakscope.core.nouns import Defense, Estimate
from leakscope.core.rng import fork, seeded
from leakscope.defenses.gradient import Noise, Withhold, Within
from leakscope.games import Inference
from leakscope.games.channels import GradientChannel
from leakscope.results.scores import TaskScore

Victim = Callable[[Defense], tuple[GradientChannel, TaskScore[Estimate]]]  # under a defense; its worth
LITTLE = 0.02  # of certainty, in the adversary's rehearsal
RATIO = 4.0  # of the noise's norm to the layer's own gradient


def keep_local(
    attacker: Attacker,
    channel: GradientChannel,
    layers: Groups,
    alone: Mapping[str, LayerAttempt],
    rng: torch.Generator,
) -> Iterator[tuple[tuple[str, ...], Leak[Estimate]]]:
    """What is left when the most telling layer is kept local, then the two most telling, and so on, until
    the adversary's rehearsal finds next to nothing or one layer remains. Both the order and the end are those
    of the rehearsal, so that the trials that are reported choose neither."""
    order = sorted(layers, key=lambda layer: -alone[layer].gain)
    for n in range(1, len(order)):
        sent = tuple(layer for layer in layers if layer not in order[:n])
        rest = {"": tuple(name for layer in sent for name in layers[layer])}
        left = attacker.attack(channel, {"": sent}, rest, rng=fork(rng, 1)[0])[""]
        yield tuple(layer for layer in layers if layer in order[:n]), left.leak
        if left.gain <= LITTLE * math.log(len(attacker.game.chances)):
            return


def audit_protection(
    attacker: Attacker, victim: Victim, layers: Groups, alone: Mapping[str, LayerAttempt], seed: int
) -> Iterator[ProtectionTried]:
    """Every measure, audited anew: nothing done, layers kept local (their gradients reach only an enclave or
    an encrypted sum, so training goes on as before), and the layers that this takes frozen, or noised, in
    training and release."""
    secret = attacker.game.secret
    channel, plain = victim(Defense())

    def audit(channel: GradientChannel, role: str) -> Leak[Estimate]:
        rng = seeded(seed, "protection", secret, role)
        return attacker.attack(channel, {"": tuple(layers)}, rng=rng)[""].leak

    def row(
        measure: Measure,
        layers: tuple[str, ...],
        leak: Leak[Estimate],
        worth: TaskScore[Estimate],
        std: float | None = None,
    ) -> ProtectionTried:
        return ProtectionTried(
            measure=measure,
            layers=layers,
            std=std,
            secret=secret,
            information=leak.information,
            advantage=leak.advantage,
            auroc=leak.auroc,
            accuracy=worth.accuracy,
            r2=worth.r2,
        )

    local: tuple[str, ...] = ()
    yield row("none", (), audit(channel, "none"), plain)
    if len(layers) < 2:  # nothing would be left to release
        return
    rng = seeded(seed, "protection", secret, "local")
    for local, left in keep_local(attacker, channel, layers, alone, rng):
        yield row("keep local", local, left, plain)
    names = tuple(name for layer in local for name in layers[layer])
    frozen, worth = victim(Within(Withhold(), names))
    yield row("freeze", local, audit(frozen, "freeze"), worth)
    rng = seeded(seed, "protection", secret, "noise")
    std = scale_noise(channel, attacker.rehearsal, names, rng=rng)
    noised, worth = victim(Within(Noise(std), names))
    yield row("noise", local, audit(noised, "noise"), worth, std)


def scale_noise(
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
