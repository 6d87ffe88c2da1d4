"""One guard on one dataset: trained, saved if asked, and judged by attackers that it has not met."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from sklearn.manifold import TSNE
from torch import Tensor

from leakscope.attacks.decoders import Decoder
from leakscope.attacks.members import plainly
from leakscope.attacks.representations import Network
from leakscope.core import Attack, Estimate, Transcript
from leakscope.dataset import Dataset, statistics
from leakscope.errors import ArgumentError, DataError, require
from leakscope.guarding.evaluation import Secret, Trial, evaluated
from leakscope.guards.batches import Aggregate
from leakscope.guards.encoder import Encoder, Guarded
from leakscope.guards.theorems import conditional_entropy, inference_accuracy
from leakscope.guards.trainer import Progress
from leakscope.measures.pictures import pair
from leakscope.measures.success import success_rate
from leakscope.rng import integer, seeded

CAVEAT = (
    "The entropy is a variational estimate from this attacker's own log loss. A better attacker has less, so "
    "the bound is no certificate: it holds for attackers that are no better calibrated than this one."
)
Estimator = Callable[[Tensor, Tensor, torch.Generator], Estimate]


class Guard(Protocol):
    """What trains an encoder; ``others`` are reference non-members."""

    def __call__(
        self,
        data: Dataset,
        rng: torch.Generator,
        *,
        others: Dataset | None = None,
        progress: Progress | None = None,
    ) -> Guarded: ...


@dataclass(frozen=True)
class GuardAudit:
    """What a guard's representations are worth, and what attackers trained anew find in them.

    ``guard`` is trained on the training records, and tried for its own secret or for ``secret`` and
    ``column``, with ``baselines`` beside it: records as they are, without the column, plain noise, early
    stopping after some of ``epochs`` of plain training. Against membership half of the public records are
    the guard's reference and half the adversary's. ``estimators`` measure I(secret; representation) on at
    most ``informative`` test records; ``mapped`` of them are drawn as maps. The encoder is written to the
    folder ``save``. An adversary who does not know a property's aggregate rehearses a ``substitute``, and one
    against membership has ``shadows`` of the guard too (LiRA). ``shown`` puts so many records and what a
    decoder rebuilt of them, which are private, into the results.
    """

    guard: Guard
    secret: Secret | None = None
    column: str | None = None
    baselines: bool = True
    epochs: int = 35
    estimators: tuple[Estimator, ...] = ()
    informative: int = 2_000
    mapped: int = 0
    dimensions: int = 2
    shadows: int = 0
    shown: int = 0
    save: str | None = None
    substitute: Aggregate | None = None

    kind = "guard"

    def __post_init__(self) -> None:
        require(self.epochs >= 1, "GuardAudit.epochs", "at least 1", self.epochs)
        require(self.informative >= 100, "GuardAudit.informative", "at least 100", self.informative)
        require(self.mapped == 0 or self.mapped >= 50, "GuardAudit.mapped", "0 or at least 50", self.mapped)
        require(self.dimensions in (2, 3), "GuardAudit.dimensions", "2 or 3", self.dimensions)
        rule = "0 or at least 2"
        require(self.shadows == 0 or self.shadows >= 2, "GuardAudit.shadows", rule, self.shadows)
        require(self.shown >= 0, "GuardAudit.shown", "at least 0", self.shown)
        parts = getattr(self.guard, "guards", (self.guard,))
        if self.shadows and any(getattr(one, "column", None) for one in parts):
            raise ArgumentError(
                f"GuardAudit.shadows must be 0 for a guard of a column, which the adversary does not know of "
                f"its candidates, got {self.shadows}."
            )
        if not list(self.asked()):
            raise ArgumentError(
                f"GuardAudit.secret must say what is tried where the guard has no secret of its own, got "
                f"None for {self.guard!r}."
            )

    def asked(self) -> Iterator[tuple[Secret, str | None, Any]]:
        """Each secret the encoder is tried for, its column, and the guard whose own it is."""
        if self.secret is not None:
            yield self.secret, self.column, self.guard
            return
        for one in getattr(self.guard, "guards", (self.guard,)):
            column = getattr(one, "column", None)
            secret: Secret | None = getattr(one, "secret", "attribute" if column else None)
            if secret is not None:
                yield secret, column, one

    def trials(
        self, train: Dataset, test: Dataset, public: Dataset, *, trials: int, rehearsals: int, seed: int
    ) -> list[Trial]:
        """Who has which records in the game about each secret."""
        return [
            Trial(
                train,
                test,
                public,
                secret,
                column,
                value=getattr(one, "value", 0),
                ratios=getattr(one, "shares", Trial.ratios),
                sizes=getattr(one, "sizes", Trial.sizes),
                aggregate=getattr(one, "aggregate", "mean"),
                substitute=self.substitute,
                trials=trials,
                rehearsals=rehearsals,
                seed=seed,
            )
            for secret, column, one in self.asked()
        ]

    def run(
        self,
        train: Dataset,
        test: Dataset,
        public: Dataset,
        *,
        trials: int,
        rehearsals: int,
        seed: int,
        progress: Progress | None = None,
    ) -> dict[str, Any]:
        """Everything that is asked. Records come as they are and are scaled by those the guard is trained on;
        pictures, and records of nothing but 0 and 1, are left alone. The scaling is kept with the encoder.
        ``progress`` is told of every epoch of the guard's training."""
        marks = bool(((train.x == 0) | (train.x == 1)).all())
        scaling = statistics(train) if train.x.dim() == 2 and not marks else None
        if scaling:
            train, test, public = (part.standardised(train) for part in (train, test, public))
        others, public = self._references(public, seed)
        guarded = self.guard(train, seeded(seed, "guard"), others=others, progress=progress)
        encoder = replace(guarded.encoder, about={**guarded.encoder.about, **_prepared(train, scaling)})
        guarded = replace(guarded, encoder=encoder)
        if self.save is not None:
            encoder.save(Path(self.save))
        tried = self.trials(train, test, public, trials=trials, rehearsals=rehearsals, seed=seed)
        drawn: list[dict[str, Any]] = []
        found = [
            self._judged(
                guarded if i == 0 and self._own else replace(guarded, privacy=None), trial, one, drawn
            )
            for i, (trial, (_, _, one)) in enumerate(zip(tried, self.asked(), strict=True))
        ]
        return {
            "judged": found,
            "lam": getattr(self.guard, "lam", None),
            "history": [dict(epoch) for epoch in guarded.history],
            "seconds": {
                "guard": round(guarded.seconds, 2),
                "plain": self._plain(guarded, train, seed),
            },
            "pictures": drawn or None,
            "tuned": encoder.about.get("tuned"),
        }

    @property
    def _own(self) -> bool:
        """Whether the network the guard was trained with is about what is tried first."""
        if self.secret is None:
            return True
        own = getattr(self.guard, "secret", "attribute"), getattr(self.guard, "column", None)
        return own == (self.secret, self.column)

    def _references(self, public: Dataset, seed: int) -> tuple[Dataset | None, Dataset]:
        if all(secret != "membership" for secret, _, _ in self.asked()):
            return None, public
        rows = torch.randperm(len(public), generator=seeded(seed, "references")).chunk(2)
        if len(rows) < 2:
            raise DataError(f"{public.name}: a guard of members needs at least 2 public records.")
        return public.take(rows[0]), public.take(rows[1])

    def _judged(
        self, guarded: Guarded, trial: Trial, one: Any, drawn: list[dict[str, Any]]
    ) -> dict[str, Any]:
        def watch(attack: Attack, transcript: Transcript) -> None:
            if isinstance(attack, Decoder) and transcript.secrets.dim() == 5:
                drawn.extend(pair(transcript, i) for i in range(min(self.shown, len(transcript.secrets))))

        found = evaluated(
            guarded,
            trial,
            label_aware=bool(getattr(one, "label_aware", False)),
            baselines=self.baselines,
            epochs=self.epochs,
            shadows=self.shadows,
            guard=self.guard,
            watch=watch,
        )
        values = list(trial.test.value_names(trial.column)) if trial.column else []
        told = {"secret": trial.secret, "column": trial.column, "values": values}
        return (
            told
            | found
            | {
                "guarantee": _guarantee(guarded.encoder, trial),
                "information": self._information(guarded.encoder, trial),
                "map": self._map(guarded.encoder, trial) if self._drawn(guarded.encoder, trial) else None,
            }
        )

    def _information(self, encoder: Encoder, trial: Trial) -> dict[str, Any]:
        if trial.secret != "attribute":
            return {}
        rng = seeded(trial.seed, "information")
        rows = torch.randperm(len(trial.test), generator=rng)[: self.informative]
        r = encoder(trial.test.x[rows], key=trial.seed + 1).flatten(1)
        codes = trial.test.secret(str(trial.column))[rows]
        return {type(e).__name__: asdict(e(r, codes, rng)) for e in self.estimators}

    def _drawn(self, encoder: Encoder, trial: Trial) -> bool:
        """Whether there is something to draw: a secret, and a head by which plain training is possible."""
        return bool(self.mapped and trial.column and encoder.head is not None)

    def _map(self, encoder: Encoder, trial: Trial) -> dict[str, Any]:
        """Two or three dimensions of the representations, by t-SNE, of the guard and of plain training."""
        rng = seeded(trial.seed, "map")
        rows = torch.randperm(len(trial.test), generator=rng)[: self.mapped]
        x, codes = trial.test.x[rows], trial.test.secret(str(trial.column))[rows].tolist()
        plain = replace(plainly(encoder, trial.train, rng, epochs=self.epochs), about={})

        def flat(one: Encoder) -> dict[str, Any]:
            r = one(x, key=trial.seed + 1).flatten(1).numpy()
            near = min(30, len(r) / 4)
            points = TSNE(self.dimensions, random_state=integer(rng), perplexity=near).fit_transform(r)
            return {"points": [[round(float(v), 1) for v in point] for point in points], "codes": codes}

        values = list(trial.test.value_names(str(trial.column)))
        return {"before": flat(plain), "after": flat(encoder), "values": values}

    def _plain(self, guarded: Guarded, train: Dataset, seed: int) -> float | None:
        """Plain training of the same networks for as many epochs as the guard took, where it has a head."""
        if guarded.encoder.head is None or not guarded.history:
            return None
        begun = time.perf_counter()
        plainly(guarded.encoder, train, seeded(seed, "plain"), epochs=len(guarded.history))
        return round(time.perf_counter() - begun, 2)


def described_columns(data: Dataset) -> list[list[Any]]:
    """Each column's name, place and categories, by which records can be told to be encoded alike."""
    return [[column.name, column.start, column.stop, list(column.values)] for column in data.columns]


def _prepared(train: Dataset, scaling: tuple[Tensor, Tensor] | None) -> dict[str, Any]:
    """What others must know to give records as the encoder takes them."""
    known: dict[str, Any] = {"columns": described_columns(train)}
    if scaling is None:
        return known
    shift, scale = (part.flatten().tolist() for part in scaling)
    return known | {"scaling": {"shift": shift, "scale": scale}}


def _guarantee(encoder: Encoder, trial: Trial) -> dict[str, Any] | None:
    """Theorem 1 of paper 003 (2 of 004) with H(u | r) as a fresh network leaves it, beside that network."""
    if trial.secret not in ("attribute", "property"):
        return None
    transcript: Transcript = trial.played(encoder, Network())
    entropy = conditional_entropy(transcript.guesses, transcript.secrets)
    m = len(transcript.prior)  # a network that finds nothing has a little more loss than guessing
    bound = inference_accuracy(min(entropy.value, math.log(m)), values=m)
    return {
        "entropy": asdict(entropy),
        "bound": float(bound),
        "measured": asdict(success_rate(transcript)),
        "caveat": CAVEAT,
    }
