"""One trainer for all guards: encoder, utility network and privacy networks take their steps in turn.

A step has the order of Algorithm 1 of paper 003: representations are computed, the privacy networks take
``steps`` steps on them, and then the encoder and the utility network descend their losses together, against
privacy networks that know these very representations. (The published code steps the encoder first and has to
compute representations again.) With lambda = 0 the encoder's part is plain training, number for number.

Privacy terms are of representations without noise, unless a protection is ``noisy``: an encoder that is
judged under its noise hides the secret there, and whoever averages draws finds it again.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from leakscope.core.errors import ArgumentError
from leakscope.guards.batches import Seen, Source
from leakscope.guards.encoder import Perturbation, represented
from leakscope.guards.protections import Protection
from leakscope.guards.utilities import Utility

CAP = 5.0  # on the norm of the encoder's gradient
SAMPLES = 5  # Monte Carlo samples of Algorithm 3 (paper 003)
Progress = Callable[[int, int, dict[str, float]], None]  # (epoch, epochs, what was seen in it)


class Phi(nn.Module):
    """The parameters of a learned perturbation: mean and the softplus of ``raw``, the deviation."""

    def __init__(self, shape: Sequence[int]) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(*shape))
        self.raw = nn.Parameter(torch.zeros(*shape))

    def at(self, scale: float) -> Perturbation:
        """The perturbation at these parameters, in autograd's sight."""
        return Perturbation("learned", scale, self.mean, F.softplus(self.raw))

    def entropy(self, draws: Tensor) -> Tensor:
        """The differential entropy in nats of tanh(mean + deviation z), its mean over the coordinates: the
        Gaussian's own plus E[log |d tanh|], and log(scale) away from that of delta."""
        deviation = F.softplus(self.raw)
        inner = self.mean + deviation * draws
        slope = 2 * (math.log(2) - inner - F.softplus(-2 * inner))
        return (0.5 * math.log(2 * math.pi * math.e) + deviation.log() + slope).mean()


@dataclass(frozen=True, eq=False)
class Rngs:
    """A generator for each use, so that privacy networks leave the encoder's numbers alone."""

    order: torch.Generator
    noise: torch.Generator
    utility: torch.Generator
    privacy: torch.Generator
    watch: torch.Generator


@dataclass(frozen=True, eq=False)
class Alternation:
    """The networks and their optimisers; ``lam`` weighs privacy against utility, ``weights`` the secrets
    against each other."""

    name: str
    network: nn.Module
    utility: Utility
    perturbation: Perturbation
    normed: bool
    rngs: Rngs
    rate: float
    protections: tuple[Protection, ...] = ()
    weights: tuple[float, ...] = ()
    lam: float = 0.0
    steps: int = 0
    optimiser: Literal["adam", "sgd"] = "adam"
    cap: float = CAP
    phi: Phi | None = None
    entropy_weight: float = 0.01
    leaves: dict[str, list[nn.Parameter]] = field(init=False)
    optimisers: dict[str, torch.optim.Optimizer] = field(init=False)

    def __post_init__(self) -> None:
        leaves = {"encoder": [*self.network.parameters()], "utility": [*self.utility.net.parameters()]}
        if self.steps and self.protections:
            leaves["privacy"] = [p for one in self.protections for p in one.net.parameters()]
        made = {part: self._made(own) for part, own in leaves.items()}
        if self.phi is not None:
            made["phi"] = torch.optim.Adam(self.phi.parameters(), lr=0.05)
        object.__setattr__(self, "leaves", leaves)
        object.__setattr__(self, "optimisers", made)

    def _made(self, leaves: list[nn.Parameter]) -> torch.optim.Optimizer:
        if self.optimiser == "sgd":
            return torch.optim.SGD(leaves, lr=self.rate, fused=True)
        return torch.optim.Adam(leaves, lr=self.rate, fused=True)

    @property
    def nets(self) -> list[nn.Module]:
        return [self.network, self.utility.net, *(one.net for one in self.protections)]

    @property
    def head(self) -> nn.Module | None:
        """The task head, where there is one."""
        return self.utility.net if self.utility.task else None

    @property
    def noise(self) -> Perturbation:
        if self.phi is None:
            return self.perturbation
        with torch.no_grad():
            now = self.phi.at(self.perturbation.scale)
        assert now.mean is not None
        return Perturbation(now.kind, now.scale, now.mean.detach().clone(), now.deviation)

    def perturbed(self, clean: Tensor, rng: torch.Generator) -> Tensor:
        noise = self.noise
        return clean if noise.silent else clean + noise.delta(noise.draws(clean, rng))

    def step(self, seen: Seen, *, guarded: bool = True) -> tuple[float, float]:
        """All networks once (the privacy networks ``steps`` times): the utility loss and the privacy term.
        Before it is ``guarded`` the encoder is trained for utility alone."""
        lam = self.lam if guarded else 0.0
        if self.phi is not None:
            self._algorithm_3(seen, lam)
        clean = represented(self.network, seen.x, normed=self.normed)
        if "privacy" in self.optimisers:
            self._privacy_steps(seen, clean.detach())
        leaf = clean.detach().requires_grad_()
        r = self.perturbed(leaf, self.rngs.noise)
        kept = self.utility.loss(seen, leaf, r, self.rngs.utility)
        leaves = self.leaves["utility"]
        slopes = torch.autograd.grad(kept, [leaf, *leaves], retain_graph=lam > 0)
        lost = 0.0
        if lam > 0:
            penalty = self._penalty(seen, leaf, r, self.rngs.privacy)
            against = torch.autograd.grad(penalty, [leaf, *leaves], allow_unused=True)
            slopes = tuple(_mixed(*pair, lam) for pair in zip(slopes, against, strict=True))
            lost = penalty.item()
        self._descend(clean, *slopes)
        return kept.item(), lost

    def _penalty(self, seen: Seen, clean: Tensor, r: Tensor, rng: torch.Generator) -> Tensor:
        terms = [
            weight * one.penalty(seen, r if one.noisy else clean, self.head, rng)
            for weight, one in zip(self.weights, self.protections, strict=True)
        ]
        return torch.stack(terms).sum()

    def _descend(self, clean: Tensor, slope: Tensor, *slopes: Tensor) -> None:
        """One step of the encoder, its gradient's norm capped, and one of the utility network."""
        self.optimisers["encoder"].zero_grad()
        torch.autograd.backward(clean, slope)
        nn.utils.clip_grad_norm_(self.leaves["encoder"], self.cap)
        self.optimisers["encoder"].step()
        for parameter, own in zip(self.leaves["utility"], slopes, strict=True):
            parameter.grad = own
        self.optimisers["utility"].step()

    def _privacy_steps(self, seen: Seen, clean: Tensor) -> None:
        noisy = any(one.noisy for one in self.protections)
        for _ in range(self.steps):
            r = self.perturbed(clean, self.rngs.privacy) if noisy else clean
            lost = [
                one.own(seen, r if one.noisy else clean, self.head, self.rngs.privacy)
                for one in self.protections
            ]
            slopes = torch.autograd.grad(lost, self.leaves["privacy"])
            for parameter, own in zip(self.leaves["privacy"], slopes, strict=True):
                parameter.grad = own
            self.optimisers["privacy"].step()

    def _algorithm_3(self, seen: Seen, lam: float) -> None:
        """One step of the perturbation's parameters: (1 - lambda) times the utility loss under noise minus
        lambda alpha times the entropy: equation 25 times 1 - lambda, and like it without the critic."""
        assert self.phi is not None
        with torch.no_grad():
            clean = represented(self.network, seen.x, normed=self.normed)
        noise = self.phi.at(self.perturbation.scale)
        total = clean.new_zeros(())
        for _ in range(SAMPLES):
            draws = noise.draws(clean, self.rngs.noise)
            kept = self.utility.loss(seen, clean, clean + noise.delta(draws), self.rngs.utility)
            total = total + (1 - lam) * kept - lam * self.entropy_weight * self.phi.entropy(draws)
        leaves = [*self.phi.parameters()]
        for parameter, own in zip(leaves, torch.autograd.grad(total / SAMPLES, leaves), strict=True):
            parameter.grad = own
        self.optimisers["phi"].step()

    @torch.no_grad()
    def watched(self, seen: Seen) -> dict[str, float]:
        """Losses on records held back, and how well the privacy networks do there."""
        for module in self.nets:
            module.eval()
        rng = self.rngs.watch
        clean = represented(self.network, seen.x, normed=self.normed)
        r = self.perturbed(clean, rng)
        kept = float(self.utility.loss(seen, clean, r, rng))
        found = [one.watched(seen, r if one.noisy else clean, self.head, rng) for one in self.protections]
        for module in self.nets:
            module.train()
        terms = sum(weight * one["found"] for weight, one in zip(self.weights, found, strict=True))
        table = {"held_utility": kept, "held_total": (1 - self.lam) * kept + self.lam * terms}
        for i, one in enumerate(found):
            table |= {f"{key}{i or ''}": value for key, value in one.items()}
        return table


def _mixed(kept: Tensor, against: Tensor | None, lam: float) -> Tensor:
    """(1 - lambda) of one and lambda of the other. What the privacy term does not depend on, such as a head
    that its network does not look at, descends its own loss at full weight, with lambda = 1 too."""
    return kept if against is None else (1 - lam) * kept + lam * against


def train(
    alternation: Alternation,
    source: Source,
    *,
    epochs: int,
    warm_up: int = 2,
    patience: int | None = None,
    last_rate: float = 1.0,
    progress: Progress | None = None,
) -> tuple[dict[str, float], ...]:
    """Epochs of steps, ``warm_up`` of them without the privacy term. After so many epochs without
    improvement of lambda times what is found plus 1 - lambda times the utility loss, both on records held
    back, training ends and the best epoch after the warm-up is kept; ``patience`` None: all epochs and the
    last. All rates fall to the share ``last_rate`` of themselves, along half a cosine: what single steps
    leave of the secret in the last epochs is then small."""
    rngs, optimisers = alternation.rngs, alternation.optimisers.values()
    rates = [group["lr"] for optimiser in optimisers for group in optimiser.param_groups]
    history: list[dict[str, float]] = []
    best, kept, waited = math.inf, _state(alternation), 0
    for epoch in range(epochs):
        sums = [0.0, 0.0, 0]
        share = last_rate + (1 - last_rate) * (1 + math.cos(math.pi * epoch / epochs)) / 2
        groups = (group for optimiser in optimisers for group in optimiser.param_groups)
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate * share
        for seen in source.epoch(rngs.order):
            losses = alternation.step(seen, guarded=epoch >= warm_up)
            sums = [sums[0] + losses[0], sums[1] + losses[1], sums[2] + 1]
        steps = max(sums[2], 1)
        table = {"epoch": float(epoch), "utility": sums[0] / steps, "privacy": sums[1] / steps}
        table |= alternation.watched(source.watched(rngs.watch))
        check_finite(alternation, table, f"epoch {epoch}")
        history.append(table)
        if progress is not None:
            progress(epoch, epochs, table)
        if patience is None or epoch < min(warm_up, epochs - 1):
            continue
        waited += 1
        if table["held_total"] < best:
            best, kept, waited = table["held_total"], _state(alternation), 0
        if waited >= patience:
            break
    if patience is not None:
        for net, state in zip(_parts(alternation), kept, strict=True):
            net.load_state_dict(state)
    return tuple(history)


def check_finite(alternation: Alternation, table: dict[str, float], when: str) -> None:
    weights = [p for net in (alternation.network, alternation.utility.net) for p in net.parameters()]
    wrong = [f"{name} {value}" for name, value in table.items() if not math.isfinite(value)]
    if wrong or not all(bool(p.isfinite().all()) for p in weights):
        raise ArgumentError(
            f"{alternation.name} diverged in {when} ({wrong[0] if wrong else 'a weight is not finite'}); "
            f"lower rate {alternation.rate:g} or lam {alternation.lam:g}, or take a loss with a lower end, "
            f"such as 'prior'."
        )


def _parts(alternation: Alternation) -> list[nn.Module]:
    return alternation.nets if alternation.phi is None else [*alternation.nets, alternation.phi]


def _state(alternation: Alternation) -> list[dict[str, Any]]:
    return [copy.deepcopy(net.state_dict()) for net in _parts(alternation)]
