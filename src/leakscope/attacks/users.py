"""User inference: an encoder learned on other people, then the nearest candidate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from leakscope.attacks.reductions import MaxPool, Reduction
from leakscope.core.dataset import Batch
from leakscope.core.errors import ArgumentError, require
from leakscope.core.nouns import Guess, Knowledge, View
from leakscope.core.rng import fork, initialised, integer

Encoder = Callable[[Tensor], Tensor]  # features (t, f) -> embeddings (t, e)


@dataclass(frozen=True)
class Prototype:
    """The nearest candidate in an embedding learned by telling other people apart.

    Softmax over minus the distance between the release's embedding and each candidate's (paper
    000, section 4.1); the classifier that taught the embedding is thrown away. Embedding 50 for
    CREMA-D, 100 for CelebA."""

    embedding: int = 50
    hidden: int = 256
    epochs: int = 50
    rate: float = 1e-3
    reduce: Reduction = field(default_factory=lambda: MaxPool(10))

    def __post_init__(self) -> None:
        for name in ("embedding", "hidden", "epochs"):
            require(getattr(self, name) >= 1, f"Prototype.{name}", "at least 1", getattr(self, name))
        require(self.rate > 0, "Prototype.rate", "positive", self.rate)

    def __call__(self, knowledge: Knowledge, rng: torch.Generator) -> Guess:
        deal, learn = fork(rng, 2)
        view, secrets = knowledge.simulate(deal)
        _, people = _candidates(view)
        _, classes = people.gather(1, secrets[:, None])[:, 0].unique(return_inverse=True)
        steps = []
        for release in view.releases:
            features = self.reduce.fit(release, learn)
            steps.append((features, self._encoder(features(release), classes, learn)))
        noise = integer(learn)  # a defense the adversary rehearses may be random

        def guess(view: View) -> Tensor:
            candidates, people = _candidates(view)
            t, m, k = candidates.rows.shape
            flat = Batch(candidates.data, candidates.rows.reshape(t * m, k))
            theirs = knowledge.channel(flat, people.flatten(), torch.Generator().manual_seed(noise))
            rounds = []
            for own, other, (features, encode) in zip(view.releases, theirs, steps, strict=True):
                mine = encode(features(own))[:, None]
                shown = encode(features(other)).unflatten(0, (t, m))
                rounds.append(torch.log_softmax(-(shown - mine).double().norm(dim=2), dim=1))
            return torch.stack(rounds)

        return guess

    def _encoder(self, features: Tensor, classes: Tensor, rng: torch.Generator) -> Encoder:
        mean, std = features.mean(0), features.std(0).clamp(min=1e-12)
        scaled = (features - mean) / std
        people = int(classes.max()) + 1
        net = initialised(lambda: self._net(scaled.shape[1], people), rng)
        optimiser = torch.optim.Adam(net.parameters(), lr=self.rate)
        for _ in range(self.epochs):
            for rows in torch.randperm(len(scaled), generator=rng).split(64):
                optimiser.zero_grad()
                nn.functional.cross_entropy(net(scaled[rows]), classes[rows]).backward()
                optimiser.step()
        body = nn.Sequential(*list(net.children())[:-1]).requires_grad_(False)
        return lambda unseen: body((unseen - mean) / std)

    def _net(self, inputs: int, people: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Linear(inputs, self.hidden),
            nn.ReLU(),
            nn.Linear(self.hidden, self.embedding),
            nn.Linear(self.embedding, people),  # the classifier
        )


def _candidates(view: View) -> tuple[Batch, Tensor]:
    candidates, people = view.public.get("candidates"), view.public.get("people")
    if not isinstance(candidates, Batch) or not isinstance(people, Tensor):
        raise ArgumentError(
            "Prototype needs a game that shows candidates; play UserInference, or use Posterior."
        )
    return candidates, people
