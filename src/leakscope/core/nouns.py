"""The nouns: what moves between a game, a channel and an attack, and who may see it.

A Game deals challenges through a Channel; an Attack sees only the View; measures see only
the Transcript. Everything else in the package is one of these, or a function of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, Protocol, runtime_checkable

import torch
from pydantic import Field
from torch import Tensor, nn

from leakscope.core.basis import Basis
from leakscope.core.calibration import calibrate, learn_calibration
from leakscope.core.dataset import Batch, Dataset
from leakscope.core.errors import require
from leakscope.core.mechanism import Mechanism

Count = Annotated[int, Field(ge=0, le=10**12)]  # what is read from disk is held to it
Layers = Mapping[str, Tensor]  # parameter name -> (trials, *shape), in model order
Params = Mapping[str, Tensor]  # parameter name -> shape
Loss = Callable[[Tensor, Tensor], Tensor]  # (outputs, labels) -> mean loss, as task_loss
# ((records -> logits), records, labels, rng) -> what one training step descends
Objective = Callable[[Callable[[Tensor], Tensor], Tensor, Tensor, torch.Generator], Tensor]
Guess = Callable[["View"], Tensor]  # log evidence (rounds, t, m), scores (t,), or reconstructions
SCALES = (1e-3, 1.0)  # of calibrated evidence: its order is kept, and it is never trusted more than it says
RIDGE = 1e-2  # towards trusting it as it is
NOT_FOUND, PLAUSIBLE, CERTIFIED = 0, 1, 2  # what an attack says of a record that it gives
DEEPEST = -1e4  # nats of evidence against a value beside the likeliest; what is ruled out must have a number


def flatten(layers: Layers) -> Tensor:
    """Every layer of every trial in one row: (trials, parameters), in model order."""
    return torch.cat([tensor.flatten(1) for tensor in layers.values()], dim=1)


@dataclass(frozen=True, eq=False)
class Release:
    """What crosses the wire in one round: the layers of every trial, and the public model.

    Trials come in blocks that are computed when they are asked for, so that memory is bounded
    by a block whatever the number of trials; ``blocks()`` can be called again and says the same.
    """

    params: Params
    blocks: Callable[[], Iterator[Layers]]

    def __repr__(self) -> str:
        return f"Release: {len(self.params)} parameters of the public model; its layers are not shown."

    @property
    def layers(self) -> Layers:
        """All blocks at once, for when they are known to be small."""
        blocks = list(self.blocks())
        return {name: torch.cat([block[name] for block in blocks]) for name in blocks[0]}

    @staticmethod
    def of(layers: Layers, params: Params | None = None) -> Release:
        """A release whose layers are already there."""
        return Release(params or {}, lambda: iter([layers]))


@dataclass(frozen=True, eq=False)
class View:
    """All an adversary ever sees: one release per observed round, and public side information."""

    releases: tuple[Release, ...]
    public: Mapping[str, Tensor | Batch] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"View: {len(self.releases)} releases, side information: {', '.join(self.public) or 'none'}."


@dataclass(frozen=True, eq=False)
class Heard:
    """What an adversary said of challenges: each round's log evidence (r, t, m), and where there is side
    knowledge, the log evidence (t, m) of that alone. ``together`` (r, t, m): that of the first round, of
    the first two and so on to all, from an adversary who reads them together."""

    rounds: Tensor
    side: Tensor | None = None
    together: Tensor | None = None

    @property
    def evidence(self) -> Tensor:
        """Of all rounds (t, m). Unless they were read together, as if each were a witness of its own: Bayes'
        rule, equation 5 of paper 000. Side knowledge is in every round's evidence, and counts once."""
        if self.together is not None:
            total = self.together[-1].double()
        else:
            total = self.rounds.double().sum(0)
            if self.side is not None:
                total = total - (len(self.rounds) - 1) * self.side
        return (total - total.amax(1, keepdim=True)).clamp(min=DEEPEST)

    def single(self, i: int) -> Heard:
        """Of round ``i`` only."""
        return Heard(self.rounds[i : i + 1], self.side)

    def after(self, n: int) -> Heard:
        """Of the first ``n`` rounds."""
        together = None if self.together is None else self.together[:n]
        return Heard(self.rounds[:n], self.side, together)

    @property
    def blind(self) -> Heard | None:
        """The same adversary without any release, where it has side knowledge."""
        return None if self.side is None else Heard(self.side[None])


@dataclass(frozen=True, eq=False)
class Rehearsed:
    """What the adversary said of fresh challenges of its own, and their secrets (t,)."""

    heard: Heard
    secrets: Tensor

    @property
    def blind(self) -> Rehearsed | None:
        alone = self.heard.blind
        return None if alone is None else replace(self, heard=alone)


@dataclass(frozen=True, eq=False)
class Transcript:
    """What happened; the only place where secrets and guesses meet.

    ``secrets`` (t,), ``guesses`` (t, m) posteriors or (t,) scores, ``prior`` (m,) the chances the
    secret was drawn with; or records (t, k, *shape) and what is taken for them, with no prior.
    ``heard`` is the log evidence that the guesses rest on, ``belief`` (m,) the prior the adversary used,
    ``rehearsed`` what it said where it knew the secrets; ``blind`` (t, m) what it says from its side
    knowledge alone, where it has any. ``null`` (c,) are the scores of held-out trials in which nothing was
    to be found, from which a threshold can be set. ``status`` (t, k) is what the attack says of each record
    that it gives: not found, plausible, or certified; ``confidence`` (t, k, columns) how often, it says,
    cells like each are right.
    """

    secrets: Tensor
    guesses: Tensor
    prior: Tensor
    heard: Heard | None = None
    belief: Tensor | None = None
    rehearsed: Rehearsed | None = None
    blind: Tensor | None = None
    null: Tensor | None = None
    status: Tensor | None = None
    confidence: Tensor | None = None

    def __repr__(self) -> str:
        rounds = "no rounds kept" if self.rounds is None else f"{len(self.rounds)} rounds"
        said = "posteriors" if self.guesses.dim() == 2 else "scores or records"
        return f"Transcript: {len(self.secrets):,} trials, {rounds}, {said}; secrets are not shown."

    @property
    def rounds(self) -> Tensor | None:
        """Each round's log evidence (r, t, m)."""
        return None if self.heard is None else self.heard.rounds

    @staticmethod
    def of_scores(secrets: Tensor, scores: Tensor, prior: Tensor) -> Transcript:
        """One score a trial; the trials dealt with a secret of -1 are the null's."""
        require(not bool(scores.isnan().any()), "the attack's scores", "numbers", "nan")
        null = scores[secrets < 0] if bool((secrets < 0).any()) else None
        return Transcript(secrets[secrets >= 0], scores[secrets >= 0], prior, null=null)

    @staticmethod
    def of_rounds(
        secrets: Tensor, heard: Heard, prior: Tensor, *, belief: Tensor, rehearsed: Rehearsed | None = None
    ) -> Transcript:
        """The posteriors that evidence learned at equal odds gives, trusted as far as rehearsals bear it
        out; without rehearsals as it is."""
        guesses, alone = _posterior(heard, belief, rehearsed), heard.blind
        blind = None if alone is None else _posterior(alone, belief, rehearsed and rehearsed.blind)
        return Transcript(secrets, guesses, prior, heard, belief, rehearsed, blind)

    def single(self, i: int) -> Transcript:
        """What an adversary would have said who saw round ``i`` only."""
        return self._seen(lambda heard: heard.single(i))

    def after(self, n: int) -> Transcript:
        """What the adversary said after the first ``n`` rounds."""
        return self._seen(lambda heard: heard.after(n))

    def _seen(self, part: Callable[[Heard], Heard]) -> Transcript:
        if self.heard is None or self.belief is None:
            return self
        heard, rehearsed = part(self.heard), self.rehearsed
        if rehearsed is not None:
            rehearsed = replace(rehearsed, heard=part(rehearsed.heard))
        guesses = _posterior(heard, self.belief, rehearsed)
        return replace(self, guesses=guesses, heard=heard, rehearsed=rehearsed)


def _posterior(heard: Heard, belief: Tensor, rehearsed: Rehearsed | None) -> Tensor:
    """Rehearsals come from few public records, and where these are too few from those that the attack
    learned from, which flatters it: they may take confidence away and never add any."""
    evidence = heard.evidence
    if rehearsed is not None:
        said, told = rehearsed.heard.evidence.numpy(), rehearsed.secrets.long().numpy()
        prior = belief.double().numpy()
        way = learn_calibration(said, told, prior=prior, scales=SCALES, ridge=RIDGE)
        evidence = torch.from_numpy(calibrate(evidence.numpy(), way))
    return torch.softmax(evidence + belief.double().log(), dim=-1)


@dataclass(frozen=True)
class Estimate:
    """A number that is never without its interval: ``low`` to ``high`` at ``level``, from ``n``
    trials, by ``method``. ``basis`` is what the interval rests on, where it can be computed again."""

    name: str
    value: float
    low: float
    high: float
    level: Annotated[float, Field(gt=0, lt=1)]
    n: Count
    method: str
    basis: Basis | None = None

    def __str__(self) -> str:
        """As people read it: ``AUROC 0.982 (0.975 to 0.988 at 95%, n = 2,000, bootstrap)``."""
        interval = f"{self.low:.3f} to {self.high:.3f} at {100 * self.level:g}%"
        return f"{self.name} {self.value:.3f} ({interval}, n = {self.n:,}, {self.method})"


@runtime_checkable
class Channel(Protocol):
    """From private batches to what crosses the wire. ``secret`` (t,) is what the batches share:
    honest channels ignore it, `Plain` gives it away, and some defenses are allowed to use it."""

    def __call__(self, batch: Batch, secret: Tensor, rng: torch.Generator) -> tuple[Release, ...]: ...


@runtime_checkable
class Game(Protocol):
    """Who draws what. The secrets leave by ``deal`` only, and only `play` and simulations call it."""

    @property
    def batch(self) -> int:
        """How many records behind one release share the secret."""
        ...

    @property
    def chances(self) -> Tensor:
        """The prior (m,) of the secret."""
        ...

    def deal(self, channel: Channel, trials: int, rng: torch.Generator) -> tuple[View, Tensor]: ...

    def on(self, data: Dataset) -> Game:
        """The adversary's rehearsal: the same game on its public records, secrets at equal odds."""
        ...


def behind(game: Game) -> int:
    """How many records are behind one release, those mixed in from elsewhere included."""
    return game.batch + int(getattr(game, "others", 0))


@runtime_checkable
class Attack(Protocol):
    """From what an adversary knows to how it guesses. It never sees the secrets of the real game."""

    def __call__(self, knowledge: Knowledge, rng: torch.Generator) -> Guess: ...


@runtime_checkable
class Crossfitted(Attack, Protocol):
    """An attack that learns from all public records and says itself how far to trust it: what it said of
    folds that it had not learned from."""

    def crossfit(
        self, knowledge: Knowledge, rng: torch.Generator
    ) -> tuple[Callable[[View], Heard], Rehearsed]: ...


@runtime_checkable
class Certifying(Attack, Protocol):
    """An attack that says of every record that it gives whether it found it, and whether it has proven it."""

    def certify(self, knowledge: Knowledge, rng: torch.Generator) -> Callable[[View], tuple[Tensor, Tensor]]:
        """Records (t, k, *shape) and the status (t, k) of each."""
        ...


@runtime_checkable
class Rating(Certifying, Protocol):
    """An attack that says of every cell, too, how often cells like it are right."""

    def rate_cells(
        self, knowledge: Knowledge, rng: torch.Generator
    ) -> Callable[[View], tuple[Tensor, Tensor, Tensor]]:
        """Records (t, k, *shape), the status (t, k) of each, and the confidence (t, k, columns)."""
        ...


@runtime_checkable
class Choosing(Attack, Protocol):
    """Several attacks, of which one is chosen by what the adversary knows."""

    def choose(self, knowledge: Knowledge, rng: torch.Generator) -> Attack: ...


@dataclass(frozen=True, eq=False)
class Knowledge:
    """What the adversary may use: the game on public records, the channel it believes in (the
    undefended one if it is static, the real one if it is adaptive), how many challenges it
    rehearses, and the prior it holds (equal odds if None). ``calibration`` is how many more it rehearses, on
    records that it holds out of its learning, to find out how far to trust what it says, at most ``trials``;
    0: it learns from all records and trusts itself."""

    game: Game
    channel: Channel
    trials: int = 1_000
    prior: Tensor | None = None
    calibration: int = 1_000

    def simulate(self, rng: torch.Generator) -> tuple[View, Tensor]:
        """The same ``deal`` on public records, through the channel the adversary believes in."""
        return self.game.deal(self.channel, self.trials, rng)

    @property
    def belief(self) -> Tensor:
        """The prior (m,) the adversary holds."""
        if self.prior is not None:
            return self.prior
        m = len(self.game.chances)
        return torch.full((m,), 1 / m, dtype=torch.float64)


@dataclass(frozen=True)
class Defense:
    """No defense: the null object. A defense overrides what it changes and never calls super().

    In the order in which they act: ``model``, ``loss`` and ``objective`` change what is trained, ``weigh``
    each record's share in its batch's mean, ``release`` the mean itself. ``processes``: its one hook is
    ``release``, and that uses nothing of the batch but the layers it is given, never the secret.
    """

    processes: ClassVar[bool] = False

    def model(self, model: nn.Module) -> nn.Module:
        """The model that is trained and shared."""
        return model

    def loss(self, loss: Loss) -> Loss:
        """The loss it is trained with."""
        return loss

    def objective(self, loss: Loss) -> Objective | None:
        """What a training step descends in place of the mean ``loss`` of its records, where that joins
        them or draws at random; None: that mean."""
        return None

    def weigh(self, squares: Mapping[str, Tensor]) -> Mapping[str, Tensor] | None:
        """Each record's weight (n,) in its batch's mean, layer by layer, from the squared norms (n,)
        of its own gradient's layers; None, or a layer left out: 1."""
        return None

    def release(self, layers: Layers, secret: Tensor | None, rng: torch.Generator, *, batch: int) -> Layers:
        """What is shared in place of the mean gradients of batches of ``batch`` records, both in the
        release and, with no secret to know of, inside training."""
        return layers

    def prepared(
        self, release: Release, labels: Tensor, rng: torch.Generator, *, people: bool = False
    ) -> Defense:
        """The defense for one round, fitted to what that round's gradients of public records look
        like; ``labels`` (t,) are their secrets, or ``people``, who are others than the private ones."""
        return self

    def noiseless(self) -> Defense:
        """The same defense without the noise it adds, as an adversary who knows it may rehearse it."""
        return self

    def deviation(self, batch: int) -> float:
        """The standard deviation of that noise on the mean of ``batch`` records, if it is Gaussian, comes
        last, and is equal and independent in every entry."""
        return 0.0

    def spread(self, batch: int) -> float:
        """The same, whatever the law of the noise."""
        return self.deviation(batch)

    @property
    def adds_noise(self) -> bool:
        """Whether it adds noise, of any kind, to what is released."""
        return self.deviation(1) > 0

    def mechanism(self, batch: int, entries: int) -> Mechanism | None:
        """What one release of ``batch`` records and so many ``entries`` is under differential privacy; None
        where it is nothing that has been proven."""
        return None


def shaped(flat: Tensor, like: Layers) -> Layers:
    """The layers whose `flatten` is ``flat``, with the names and shapes of ``like``."""
    sizes = [tensor[0].numel() for tensor in like.values()]
    parts = flat.split(sizes, dim=1)
    return {name: part.view(tensor.shape) for (name, tensor), part in zip(like.items(), parts, strict=True)}


def only(layers: Layers, names: Iterable[str]) -> Layers:
    """The named layers, in the order of ``layers``."""
    wanted = set(names)
    return {name: tensor for name, tensor in layers.items() if name in wanted}
