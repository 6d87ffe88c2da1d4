"""What a guard is tried for, and by which game."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from leakscope.core.dataset import Dataset
from leakscope.core.errors import ArgumentError, require
from leakscope.core.nouns import Attack, Estimate, Game, Knowledge, Transcript
from leakscope.core.rng import seeded
from leakscope.games import Inference, Membership, Ratio, Reconstruction, referee
from leakscope.games.releases import Holding, HoldingChannel
from leakscope.games.representations import RepresentationChannel
from leakscope.guards.batches import Aggregate
from leakscope.guards.encoder import Encoder
from leakscope.guards.hidden import SECRETS, Hidden, Secret
from leakscope.measures.fidelity import fidelity
from leakscope.measures.success import advantage, auroc, proportion, success_rate, tpr_at_fpr
from leakscope.results.scores import Scores


@dataclass(frozen=True, eq=False)
class Trial:
    """What a guard is tried for: its secret, and who has which records.

    ``train`` the guard's, ``test`` those the numbers come from, ``public`` the adversary's own, none of
    which the guard has seen. For membership ``train`` are the members, half of whom the adversary is told,
    and the others are non-members. An adversary who does not know the aggregate of a subset rehearses a
    ``substitute``. A fresh task head learns from ``draws`` of the training records' noise in turn.
    """

    train: Dataset
    test: Dataset
    public: Dataset
    secret: Secret
    column: str | None = None
    value: int = 0
    ratios: tuple[float, ...] = Hidden.shares
    sizes: tuple[int, int] = Hidden.sizes
    aggregate: Aggregate = "mean"
    substitute: Aggregate | None = None
    trials: int = 2_000
    rehearsals: int = 4_000
    seed: int = 0
    draws: int = 4

    def __post_init__(self) -> None:
        require(self.secret in SECRETS, "secret", f"one of {', '.join(SECRETS)}", self.secret)
        if (self.column is None) == (self.secret in ("attribute", "property")):
            raise ArgumentError(
                f"column must name a private column for attributes and properties, and be None otherwise, "
                f"got {self.column!r} for secret {self.secret!r}."
            )

    @classmethod
    def about(cls, hidden: Hidden, train: Dataset, test: Dataset, public: Dataset, **settings: Any) -> Trial:
        """A trial for a secret as its guard describes it."""
        return cls(
            train,
            test,
            public,
            hidden.secret,
            hidden.column,
            value=hidden.value,
            ratios=hidden.shares,
            sizes=hidden.sizes,
            aggregate=hidden.aggregate,
            **settings,
        )

    @property
    def told_names(self) -> tuple[str, ...]:
        """The values of the column as results name them."""
        return self.test.told_names(str(self.column), self.train, self.public)

    def games(self) -> tuple[Game, Game]:
        """The real game, and the adversary's rehearsal of it."""
        if self.secret == "membership":
            order = torch.randperm(len(self.train), generator=seeded(self.seed, "told")).chunk(2)
            told, asked = (self.train.take(rows) for rows in order)
            return Membership(asked, self.test), Membership(told, self.public)
        game: Game
        if self.secret == "reconstruction":
            game = Reconstruction(self.test)
        elif self.secret == "property":
            value = self.test.value_names(str(self.column))[self.value]
            game = Ratio(self.test, str(self.column), self.ratios, self.sizes, value)
        else:
            game = Inference(self.test, str(self.column), batch=1)
        return game, game.on(self.public)

    def channel(self, encoder: Encoder, *, draws: int = 1) -> RepresentationChannel:
        """What crosses the wire; the frozen draws' key is not the adversary's."""
        if self.secret == "attribute":
            return self.held(encoder, "once" if draws == 1 else "again", draws=draws)
        aggregate = self.aggregate if self.secret == "property" else None
        return RepresentationChannel(encoder, aggregate, draws, key=self.seed + 1)

    def held(self, encoder: Encoder, holding: Holding, *, draws: int = 1, **more: Any) -> HoldingChannel:
        """What the adversary holds of each record."""
        return HoldingChannel(encoder, None, draws, key=self.seed + 1, holding=holding, **more)

    def play(self, encoder: Encoder, attack: Attack, *, draws: int = 1) -> Transcript:
        """One attack in the real game."""
        return self.play_through(self.channel(encoder, draws=draws), attack)

    def play_through(self, channel: RepresentationChannel, attack: Attack) -> Transcript:
        """One attack on what crosses a wire."""
        game, _ = self.games()
        rng = seeded(self.seed, "play", channel.draws)  # the same challenges for every attack
        knowledge = self.knowledge_of(channel)
        return referee.play(game, channel, attack, knowledge, trials=self.trials, rng=rng)

    def knowledge(self, encoder: Encoder) -> Knowledge:
        """The adversary has the encoder, records of its own and the base rate."""
        return self.knowledge_of(self.channel(encoder))

    def knowledge_of(self, channel: RepresentationChannel) -> Knowledge:
        """The same of whoever listens to another wire."""
        game, rehearsal = self.games()
        channel = channel.rehearsed(seeded(self.seed, "key"))
        if self.secret == "property" and self.substitute is not None:
            channel = replace(channel, aggregate=self.substitute)
        prior = game.chances if len(game.chances) else None
        # Single records that the attack learned from tell nothing of how far to trust it.
        return Knowledge(rehearsal, channel, self.rehearsals, prior, calibration=0)

    def score(self, transcript: Transcript) -> Scores[Estimate]:
        """The measures of one attack, each with its interval."""
        if self.secret == "reconstruction":
            likeness: tuple[Literal["ssim", "psnr", "mse"], ...]
            likeness = ("ssim", "psnr", "mse") if transcript.secrets.dim() == 5 else ("mse",)
            rng = seeded(self.seed, "bootstrap")
            return Scores[Estimate].model_validate({of: fidelity(transcript, of, rng=rng) for of in likeness})
        measures: dict[str, Callable[[Transcript], Estimate]] = {
            "success": success_rate,
            "balanced_accuracy": balanced_accuracy,
            "auroc": auroc,
            "advantage": advantage,
        }
        if self.secret == "membership":
            measures["tpr_at_1%"] = tpr_at_fpr
        return Scores[Estimate].model_validate({name: of(transcript) for name, of in measures.items()})


def balanced_accuracy(transcript: Transcript, *, level: float = 0.95) -> Estimate:
    """The mean over values of how often each is told, by the evidence at equal odds.

    Interval: the mean of exact ones that hold together (Bonferroni)."""
    secrets, guesses = transcript.secrets, transcript.guesses.double()
    if guesses.dim() == 1:
        told = (guesses > 0).long()
    else:
        belief = transcript.prior if transcript.belief is None else transcript.belief
        told = (guesses.log() - belief.double().log()).nan_to_num(nan=-torch.inf).argmax(1)
    kinds = secrets.unique()
    each = 1 - (1 - level) / len(kinds)
    shares = [
        proportion("recall", int((told[secrets == c] == c).sum()), int((secrets == c).sum()), level=each)
        for c in kinds
    ]
    value, low, high = (
        sum(getattr(share, part) for share in shares) / len(shares) for part in ("value", "low", "high")
    )
    return Estimate(
        "balanced accuracy", value, low, high, level, len(secrets), "Clopper-Pearson with Bonferroni"
    )
