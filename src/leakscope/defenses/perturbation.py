"""Adversarial perturbation: nudge the gradient until a classifier of the secret errs."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from leakscope.core.errors import ArgumentError, require
from leakscope.core.nouns import Defense, Layers, Release, flatten, shaped
from leakscope.core.rng import initialised


@dataclass(frozen=True)
class AdversarialPerturbation(Defense):
    """Projected gradient steps on the released gradient against a classifier of the secret.

    Paper 000, 6.1: each round a network g -> secret is trained on public gradients; ``steps`` steps of
    ``step`` times the sign of its loss's gradient, kept within ``radius`` of the true gradient in every
    entry (5, 0.002, 0.005). Untargeted ascent with the true secret, hence it leaks it by
    construction; ``targeted`` descends towards a random value instead, as it always does for people.
    A training batch shares no secret, so training sees the true gradient. The null setting is radius 0.
    """

    radius: float = 0.005
    step: float = 0.002
    steps: int = 5
    targeted: bool = False
    classifier: nn.Module | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("radius", "step"):
            value = getattr(self, name)
            require(
                0 <= value < float("inf"), f"AdversarialPerturbation.{name}", "finite and at least 0", value
            )
        require(self.steps >= 0, "AdversarialPerturbation.steps", "at least 0", self.steps)

    def prepared(
        self, release: Release, labels: Tensor, rng: torch.Generator, *, people: bool = False
    ) -> AdversarialPerturbation:
        flat = torch.cat([flatten(layers) for layers in release.blocks()])
        return AdversarialPerturbation(
            self.radius,
            self.step,
            self.steps,
            self.targeted or people,
            _classifier(flat, labels, rng, people=people),
        )

    def release(self, layers: Layers, secret: Tensor | None, rng: torch.Generator, *, batch: int) -> Layers:
        if secret is None or self.radius == 0:
            return layers
        if self.classifier is None:
            raise ArgumentError(
                "AdversarialPerturbation must be fitted to public gradients before it can release; use "
                "GradientChannel.prepared(game on public records, rng)."
            )
        flat = flatten(layers)
        classes = self.classifier(flat[:1]).shape[1]
        target = torch.randint(classes, secret.shape, generator=rng) if self.targeted else secret
        sign = -1.0 if self.targeted else 1.0
        moved = flat.clone()
        for _ in range(self.steps):
            moved.requires_grad_()
            (slope,) = torch.autograd.grad(_error(self.classifier(moved), target).sum(), moved)
            moved = moved.detach() + sign * self.step * slope.sign()
            moved = flat + (moved - flat).clamp(-self.radius, self.radius)
        return shaped(moved, layers)


def _error(logits: Tensor, target: Tensor) -> Tensor:
    """How far the target is from being said: log sum of the others minus its own logit. The cross-entropy
    is log(1 + e^this), so both have gradients of the same sign, and this one's never rounds to zero where
    the classifier is sure."""
    own = nn.functional.one_hot(target, logits.shape[1]).bool()
    return logits.masked_fill(own, -torch.inf).logsumexp(1) - logits[own]


class _Standardise(nn.Module):
    """Subtract and divide by what was seen in fitting."""

    mean: Tensor
    std: Tensor

    def __init__(self, seen: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", seen.mean(0))
        self.register_buffer("std", seen.std(0).clamp(min=1e-8))

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.std


def _classifier(
    flat: Tensor, labels: Tensor, rng: torch.Generator, *, people: bool, epochs: int = 30
) -> nn.Module:
    """One hidden layer of 100, Adam at 0.001. Secrets keep their codes, also where some do not occur;
    identities of people become places in their list."""
    classes = labels.unique(return_inverse=True)[1] if people else labels
    net = initialised(
        lambda: nn.Sequential(
            _Standardise(flat),
            nn.Linear(flat.shape[1], 100),
            nn.ReLU(),
            nn.Linear(100, int(classes.max()) + 1),
        ),
        rng,
    )
    optimiser = torch.optim.Adam(net.parameters(), lr=1e-3)
    for _ in range(epochs):
        for rows in torch.randperm(len(flat), generator=rng).split(64):
            optimiser.zero_grad()
            nn.functional.cross_entropy(net(flat[rows]), classes[rows]).backward()
            optimiser.step()
    return net.requires_grad_(False)
