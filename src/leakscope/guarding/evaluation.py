"""A guard, judged fairly: what its representations are worth, and what every attacker finds in them.

Attackers are trained anew on the finished encoder, on records the guard has not seen; the network that was
trained along with it stands beside them, never alone. The strongest is chosen on rehearsals. What needs no
guard is measured in the same way: the records themselves, without the secret's column, plain noise, and
training that stops early.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import torch
from torch import nn
from torch.nn import functional as F

from leakscope.attacks.decoders import Decoder, Inversion
from leakscope.attacks.members import HeadConfidence, LabelAware, LiRA, LossThreshold, plainly
from leakscope.attacks.rehearsal import candidates, converged
from leakscope.attacks.representations import Decensored, Fisher, Network, Stale, Strongest
from leakscope.core import Attack, Estimate, Game, Guess, Knowledge, Transcript, View
from leakscope.dataset import Dataset
from leakscope.errors import ArgumentError, require
from leakscope.games import Inference, Membership, Ratio, Reconstruction
from leakscope.guards.batches import Aggregate
from leakscope.guards.encoder import Encoder, Guarded
from leakscope.guards.networks import reader
from leakscope.measures.fidelity import fidelity
from leakscope.measures.shuffled import shuffled
from leakscope.measures.success import advantage, auroc, guessing, proportion, roc, success_rate, tpr_at_fpr
from leakscope.measures.utility import accuracy, majority, task_auroc
from leakscope.referee import play
from leakscope.representations import RepresentationChannel
from leakscope.rng import initialised, seeded

Secret = Literal["attribute", "property", "membership", "reconstruction"]
SECRETS = ("attribute", "property", "membership", "reconstruction")
Json = dict[str, Any]
Watch = Callable[[Attack, Transcript], None]
QUERIES = 16  # fresh draws of a record that an adversary averages who may ask again
DRAWS = 4  # of the training records' noise that a fresh head learns from in turn
EARLY = (6, 8)  # epochs after which plain training stops

ATTACKS: dict[str, tuple[Attack, ...]] = {
    "attribute": (Network(), Fisher(), Decensored()),
    "property": (Network(), Fisher()),
    "membership": (LossThreshold(), HeadConfidence(), LabelAware(), Network()),
    "reconstruction": (Decoder(), Inversion()),
}


@dataclass(frozen=True, eq=False)
class Trial:
    """What a guard is tried for: its secret, and who has which records.

    ``train`` the guard's, ``test`` those the numbers come from, ``public`` the adversary's own, none of
    which the guard has seen. For membership ``train`` are the members, half of whom the adversary is told,
    and the others are non-members. An adversary who does not know the aggregate of a subset rehearses a
    ``substitute``.
    """

    train: Dataset
    test: Dataset
    public: Dataset
    secret: Secret
    column: str | None = None
    value: int = 0
    ratios: tuple[float, ...] = (0.2, 0.3, 0.4, 0.5)
    sizes: tuple[int, int] = (2, 100)
    aggregate: Aggregate = "mean"
    substitute: Aggregate | None = None
    trials: int = 2_000
    rehearsals: int = 4_000
    seed: int = 0

    def __post_init__(self) -> None:
        require(self.secret in SECRETS, "secret", f"one of {', '.join(SECRETS)}", self.secret)
        if (self.column is None) == (self.secret in ("attribute", "property")):
            raise ArgumentError(
                f"column must name a private column for attributes and properties, and be None otherwise, "
                f"got {self.column!r} for secret {self.secret!r}."
            )

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
        aggregate = self.aggregate if self.secret == "property" else None
        return RepresentationChannel(encoder, aggregate, draws, key=self.seed + 1)

    def played(self, encoder: Encoder, attack: Attack, *, draws: int = 1) -> Transcript:
        """One attack in the real game."""
        game, _ = self.games()
        channel, knowledge = self.channel(encoder, draws=draws), self.knowledge(encoder, draws=draws)
        rng = seeded(self.seed, "play", draws)  # the same challenges for every attack
        return play(game, channel, attack, knowledge, trials=self.trials, rng=rng)

    def knowledge(self, encoder: Encoder, *, draws: int = 1) -> Knowledge:
        """The adversary has the encoder, records of its own and the base rate."""
        game, rehearsal = self.games()
        channel = self.channel(encoder, draws=draws).rehearsed(seeded(self.seed, "key"))
        if self.secret == "property" and self.substitute is not None:
            channel = replace(channel, aggregate=self.substitute)
        prior = game.chances if len(game.chances) else None
        return Knowledge(rehearsal, channel, self.rehearsals, prior)

    def estimates(self, transcript: Transcript) -> Json:
        """The measures of one attack, each with its interval."""
        if self.secret == "reconstruction":
            likeness: tuple[Literal["ssim", "psnr", "mse"], ...]
            likeness = ("ssim", "psnr", "mse") if transcript.secrets.dim() == 5 else ("mse",)
            rng = seeded(self.seed, "bootstrap")
            return {of: asdict(fidelity(transcript, of, rng=rng)) for of in likeness}
        measures: dict[str, Callable[[Transcript], Estimate]] = {
            "success_rate": success_rate,
            "balanced_accuracy": balanced_accuracy,
            "auroc": auroc,
            "advantage": advantage,
        }
        if self.secret == "membership":
            measures["tpr_at_1%"] = tpr_at_fpr
        return {name: asdict(measure(transcript)) for name, measure in measures.items()}


def evaluated(
    guarded: Guarded,
    trial: Trial,
    *,
    attacks: Sequence[Attack] | None = None,
    label_aware: bool = False,
    baselines: bool = True,
    epochs: int = 35,
    shadows: int = 0,
    guard: Callable[..., Guarded] | None = None,
    watch: Watch | None = None,
) -> Json:
    """The utility of a guard's representations, what every attacker finds in them, and what no guard gives.

    ``attacks`` in place of the usual ones; ``label_aware`` says that the guard's own network takes the
    label; ``epochs`` are those of plain training, beside which the guard stands. Against membership
    ``shadows`` trained by ``guard`` add LiRA. ``watch`` is shown every attack's transcript on the guard.
    """
    encoder = released(guarded.encoder, trial)
    guarded = replace(guarded, encoder=encoder)
    wanted = tuple(attacks) if attacks is not None else suited(trial.secret, encoder)
    if shadows and trial.secret == "membership":
        wanted += (LiRA(shadows, guard),)
    found = {
        "utility": utility(encoder, trial, _own(encoder, trial)),
        **judged(encoder, trial, wanted, watch=watch),
    }
    found["stale"] = _stale(guarded, trial, label_aware=label_aware)
    if not encoder.perturbation.silent:
        found["attacks"] += [
            _attacked(encoder, trial, attack, draws=QUERIES) for attack in wanted if not _slow(attack)
        ]
    if trial.secret == "property":  # whoever sees single records is not held off by guarding their mean
        alone = replace(trial, secret="attribute")
        found["single"] = [_attacked(encoder, alone, attack) for attack in (Network(), Fisher())]
    found["baselines"] = list(unguarded(encoder, trial, wanted, epochs=epochs)) if baselines else []
    return found


def judged(encoder: Encoder, trial: Trial, attacks: Sequence[Attack], *, watch: Watch | None = None) -> Json:
    """Every attack on one encoder, the strongest marked as rehearsals chose it."""
    found = [_attacked(encoder, trial, attack, watch=watch) for attack in attacks]
    if trial.secret == "reconstruction":  # likeness is measured, and no adversary can: all are shown
        return {"attacks": found, "majority": None, "chosen_by": None}
    by: Literal["auroc", "balanced"] = "balanced" if trial.secret == "membership" else "auroc"
    rehearsed = tuple(
        replace(attack, beside=_asked_about(encoder, trial)) if isinstance(attack, LiRA) else attack
        for attack in attacks
    )
    choice = Strongest(rehearsed, by).chosen(trial.knowledge(encoder), seeded(trial.seed, "choice"))
    for i, entry in enumerate(found):
        entry["chosen"] = i == choice
    return {"attacks": found, "majority": found[0]["guessing"], "chosen_by": by}


def _asked_about(encoder: Encoder, trial: Trial) -> Dataset:
    """The candidates of the real game, whoever of them is a member: the adversary has them before it chooses,
    and shadows of fewer records than the real ones would look weaker than they are."""
    found: list[Dataset] = []

    def look(knowledge: Knowledge, rng: torch.Generator) -> Guess:
        def guess(view: View) -> torch.Tensor:
            found.append(candidates(view))
            return torch.zeros(len(found[0]))

        return guess

    trial.played(encoder, look)
    return found[0]


def unguarded(encoder: Encoder, trial: Trial, attacks: Sequence[Attack], *, epochs: int) -> Iterator[Json]:
    """What needs no guard, measured alike."""
    if trial.secret in ("attribute", "property"):
        yield _baseline("raw inputs", _raw(), trial, attacks)
        if trial.train.has(str(trial.column)):
            parts = (trial.train, trial.test, trial.public)
            train, test, public = (part.without(str(trial.column)) for part in parts)
            without = replace(trial, train=train, test=test, public=public)
            yield _baseline(f"without {trial.column}", _raw(), without, attacks)
    if encoder.head is None:
        return
    rng = seeded(trial.seed, "plain")
    name = "plain training" if encoder.perturbation.silent else "plain noise"
    yield _baseline(name, plainly(encoder, trial.train, rng, epochs=epochs), trial, _alike(attacks, epochs))
    for early in EARLY if trial.secret == "membership" else ():
        stopped = plainly(encoder, trial.train, seeded(trial.seed, "early", early), epochs=early)
        yield _baseline(f"plain training, {early} epochs", stopped, trial, _alike(attacks, early))


def _alike(attacks: Sequence[Attack], epochs: int) -> list[Attack]:
    """The attacks on a model trained plainly: shadow models are trained as it was."""
    return [replace(a, guard=None, epochs=epochs) if isinstance(a, LiRA) else a for a in attacks]


def suited(secret: Secret, encoder: Encoder) -> tuple[Attack, ...]:
    """The usual attacks; without a task head there is no loss to look at."""
    needs_head = (LossThreshold, HeadConfidence, LabelAware)
    return tuple(a for a in ATTACKS[secret] if encoder.head is not None or not isinstance(a, needs_head))


def fresh_head(encoder: Encoder, trial: Trial, *, patience: int = 8, epochs: int = 200) -> nn.Module:
    """A head trained on the representations of the training records until a fifth of them, held back, no
    longer gains."""
    train, rng = trial.train, seeded(trial.seed, "utility")
    drawn = [encoder(train.x, rng=rng) for _ in range(1 if encoder.perturbation.silent else DRAWS)]
    r = drawn[0]
    mean, std = r.mean(0), r.std(0, correction=0).clamp(min=1e-6)
    order = torch.randperm(len(train), generator=rng)
    held, fit = order[: len(train) // 5], order[len(train) // 5 :]
    head: nn.Module = initialised(lambda: reader(tuple(r.shape[1:]), train.classes, (64,)), rng)
    own = [((each[fit] - mean) / std, train.y[fit]) for each in drawn]
    other = ((r[held] - mean) / std, train.y[held])
    head = converged(
        head, own, other, F.cross_entropy, rng, rate=1e-3, batch=128, patience=patience, epochs=epochs
    )
    return nn.Sequential(_Scaled(mean, std), head)


class _Scaled(nn.Module):
    """Representations as a fresh head takes them."""

    mean: torch.Tensor
    std: torch.Tensor

    def __init__(self, mean: torch.Tensor, std: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)

    def forward(self, r: torch.Tensor) -> torch.Tensor:
        return (r - self.mean) / self.std


def utility(encoder: Encoder, trial: Trial, head: nn.Module | None = None) -> Json:
    """The task on test records by a ``head``, a fresh one if it is not given, and by the guard's own."""
    head = fresh_head(encoder, trial) if head is None else head
    train, test = trial.train, trial.test
    shown = encoder(test.x, key=trial.seed + 1)
    found: Json = {"majority": majority(test.y), "fresh": _worth(head(shown), test), "own": None}
    if encoder.head is not None:
        found["own"] = _worth(encoder.head(shown), test)
        found["trained"] = asdict(accuracy(encoder.logits(train.x, key=trial.seed + 1), train.y))
    return found


def released(encoder: Encoder, trial: Trial) -> Encoder:
    """The encoder with the head it is released with: where members are to be hidden what a head gives away
    counts, so the utility must be that same head's."""
    if trial.secret != "membership" or encoder.head is not None:
        return encoder
    return replace(encoder, head=fresh_head(encoder, trial))


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


def _attacked(
    encoder: Encoder, trial: Trial, attack: Attack, *, draws: int = 1, watch: Watch | None = None
) -> Json:
    transcript = trial.played(encoder, attack, draws=draws)
    if watch is not None:
        watch(attack, transcript)
    entry: Json = {
        "attack": repr(attack),
        "name": type(attack).__name__,
        "queries": draws,
        "chosen": False,
        "estimates": trial.estimates(transcript),
    }
    if trial.secret != "reconstruction":
        entry["guessing"] = guessing(transcript)
        entry["selfcheck"] = shuffled(transcript, auroc, null=0.5, rng=seeded(trial.seed, "shuffle"))
    if trial.secret == "membership":
        entry["roc"] = [list(point) for point in roc(transcript)]
    return entry


def _stale(guarded: Guarded, trial: Trial, *, label_aware: bool) -> Json | None:
    if guarded.privacy is None or trial.secret == "reconstruction":
        return None
    entry = _attacked(guarded.encoder, trial, Stale(guarded.privacy, label_aware))
    return entry | {"attack": "Stale"}


def _baseline(name: str, encoder: Encoder, trial: Trial, attacks: Sequence[Attack]) -> Json:
    wanted = [a for a in attacks if not isinstance(a, Decensored)]  # these are not censored
    worth = utility(encoder, trial, _own(encoder, trial))
    return {"baseline": name, "utility": worth, **judged(encoder, trial, wanted)}


def _own(encoder: Encoder, trial: Trial) -> nn.Module | None:
    return encoder.head if trial.secret == "membership" else None


def _raw() -> Encoder:
    """Records as they are."""
    return Encoder(nn.Identity(), {})


def _slow(attack: Attack) -> bool:
    """Whether an attack is left out where draws are averaged: it optimises, or trains models of its own."""
    return isinstance(attack, Decensored | Inversion | LiRA)


def _worth(logits: torch.Tensor, data: Dataset) -> Json:
    return {"accuracy": asdict(accuracy(logits, data.y)), "auroc": asdict(task_auroc(logits, data.y))}
