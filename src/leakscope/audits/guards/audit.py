"""One guard on one dataset: trained, saved if asked, and judged by attackers that it has not met."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from sklearn.manifold import TSNE
from torch import Tensor

from leakscope.attacks.members import plainly
from leakscope.audits.guards.evaluation import evaluated
from leakscope.audits.guards.found import (
    Cloud,
    GuardsFound,
    Information,
    Judged,
    Seconds,
    SecretMap,
)
from leakscope.audits.guards.promises import (
    bound_accuracy,
    bound_reconstruction,
    least_task_error,
    state_local_privacy,
)
from leakscope.audits.guards.task import with_any_head
from leakscope.audits.guards.trial import Trial, balanced_accuracy
from leakscope.core.columns import FEW
from leakscope.core.dataset import Dataset
from leakscope.core.errors import ArgumentError, DataError, LeakscopeError, require
from leakscope.core.files import Keep
from leakscope.core.nouns import Attack, Estimate, Transcript
from leakscope.core.rng import integer, seeded
from leakscope.core.tables import construct
from leakscope.guards.batches import Aggregate
from leakscope.guards.encoder import Encoder, Guarded
from leakscope.guards.estimators import bounds_below
from leakscope.guards.hidden import Guard, Hidden, Secret, check_task, hidden_by, repeat, told_to
from leakscope.guards.inf2guard import check_column
from leakscope.guards.preparation import GRID, Preparation
from leakscope.guards.repaired import tell_secret
from leakscope.guards.trainer import Progress
from leakscope.measures.pictures import pair
from leakscope.results.cell import Table
from leakscope.results.scores import RebuiltPicture

Estimator = Callable[[Tensor, Tensor, torch.Generator], Estimate]


@dataclass(frozen=True)
class GuardAudit:
    """What a guard's representations are worth, and what attackers trained anew find in them.

    ``guard`` is trained on the training records, and tried for its own secret or for ``secret`` and
    ``column``, with ``baselines`` beside it: records as they are, without the column, plain noise, early
    stopping (after so many epochs, ``early``) in place of ``epochs`` of plain training. Against membership
    half of the public records are the guard's reference and half the adversary's. ``estimators`` measure
    I(secret; representation) on at most ``informative`` test records; ``mapped`` of them are drawn as maps.
    The encoder is kept beside the results if ``save`` says so. An adversary who does not know a property's
    aggregate rehearses a ``substitute``, and one against membership has ``shadows`` of the guard too (LiRA).
    Whoever may ask again averages ``queries`` draws of a record's noise, or asks ``near`` times about records
    next to it; a fresh task head learns from ``draws`` of it. Numbers are rounded to a ``grid`` (of their
    deviation), and of a value that fewer than ``fewest`` training records have nothing is saved
    (`Preparation`). ``shown`` puts so many records and what was rebuilt of them, which are private, into the
    results. ``rows``: what is told of an attribute by whoever holds the label, more releases, those of a
    second encoder that is trained alike, or the key. ``also`` are further columns that are tried like
    ``column``. Several attributes are tried as one too, if they have at most ``jointly`` values together.
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
    save: bool | str = False  # a path is refused with a way out
    substitute: Aggregate | None = None
    queries: int = 16
    draws: int = 4
    early: tuple[int, ...] = (6, 8)
    near: int = 64
    rows: bool = True
    grid: float = GRID
    fewest: int = FEW
    also: tuple[str, ...] = ()
    jointly: int = 20

    kind = "guard"

    def __post_init__(self) -> None:
        least = {"epochs": 1, "informative": 100, "shown": 0, "queries": 2, "draws": 1, "near": 2}
        least |= {"fewest": 1}
        for name, value in least.items():
            given = getattr(self, name)
            require(given >= value, f"GuardAudit.{name}", f"at least {value}", given)
        for name, value in {"mapped": 50, "shadows": 2}.items():
            given = getattr(self, name)
            require(given == 0 or given >= value, f"GuardAudit.{name}", f"0 or at least {value}", given)
        require(0 < self.grid <= 1, "GuardAudit.grid", "above 0 and at most 1", self.grid)
        require(self.dimensions in (2, 3), "GuardAudit.dimensions", "2 or 3", self.dimensions)
        way_out = "the encoder is kept in the results folder, under files"
        require(isinstance(self.save, bool), "GuardAudit.save", "true or false", self.save, way_out=way_out)
        require(all(n >= 1 for n in self.early), "GuardAudit.early", "numbers of at least 1", self.early)
        if self.shadows and any(own.column for own in hidden_by(self.guard)):
            raise ArgumentError(
                f"GuardAudit.shadows must be 0 for a guard of a column, which the adversary does not know of "
                f"its candidates, got {self.shadows}."
            )
        if not self.asked:
            raise ArgumentError(
                f"GuardAudit.secret must say what is tried where the guard has no secret of its own, got "
                f"None for {self.guard!r}."
            )

    @property
    def asked(self) -> tuple[Hidden, ...]:
        """Each secret that the encoder is tried for: the guard's own, or the one that was given."""
        own = hidden_by(self.guard)
        if self.secret is None:
            return own
        alone = own[0] if len(own) == 1 else Hidden(self.secret)
        return tuple(replace(alone, secret=self.secret, column=one) for one in (self.column, *self.also))

    @property
    def together(self) -> tuple[str, ...]:
        """The attributes that are tried as one, where they are several."""
        columns = tuple(str(one.column) for one in self.asked if one.secret == "attribute")
        return columns if len(columns) > 1 and self.jointly else ()

    def trials(
        self, train: Dataset, test: Dataset, public: Dataset, *, trials: int, rehearsals: int, seed: int
    ) -> list[Trial]:
        """Who has which records in the game about each secret."""
        given: dict[str, Any] = {"trials": trials, "rehearsals": rehearsals, "seed": seed}
        given |= {"substitute": self.substitute, "draws": self.draws}
        return [Trial.about(one, train, test, public, **given) for one in self.asked]

    def check(self, train: Dataset, test: Dataset, public: Dataset, *, seed: int) -> None:
        """Refuse records that the guard cannot be trained on, or with which a game cannot be played."""
        if not train.x.is_floating_point():
            raise DataError(
                f"{train.name}: a guard needs records of numbers, got {train.x.dtype}; embed words first."
            )
        check_task(self.guard, train)
        train, test, public = (self._tell(part) for part in (train, test, public))
        for own in hidden_by(self.guard):
            check_column(train, own.column)
        _, public = self._references(public, seed)
        for trial in self.trials(train, test, public, trials=2, rehearsals=2, seed=seed):
            for part in (train, test, public):
                check_column(part, trial.column)
            trial.games()

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
        keep: Keep | None = None,
        person: str | None = None,
    ) -> GuardsFound:
        """Everything that is asked. Records come as they are, and the records that the guard is trained on
        say how they are prepared: that is kept with the encoder, so that what is judged is what is saved.
        ``progress`` is told of every epoch of the guard's training, ``keep`` is given the encoder's files;
        ``person`` is the private column that says whose a record is."""
        train, test, public = (self._tell(part) for part in (train, test, public))
        preparation = Preparation.learned(train, grid=self.grid, fewest=self.fewest, person=person)
        parts = [preparation.apply(part) for part in (train, test, public)]
        train, test, public = (part.in_units(train) if part.x.dim() == 2 else part for part in parts)
        others, public = self._references(public, seed)
        guarded = self.guard(train, seeded(seed, "guard"), others=others, progress=progress)
        encoder = guarded.encoder
        if self.save and keep:
            for name, content in replace(encoder, preparation=preparation).files().items():
                keep(name, content)
        second = self._second(encoder, train, others, seed)
        tried = self.trials(train, test, public, trials=trials, rehearsals=rehearsals, seed=seed)
        drawn: list[RebuiltPicture] = []
        judged = tuple(
            self._judge(
                guarded if i == 0 and self._own else replace(guarded, privacy=None), trial, one, drawn, second
            )
            for i, (trial, one) in enumerate(zip(tried, self.asked, strict=True))
        )
        judged += tuple(self._judge_together(replace(guarded, privacy=None), tried))
        own = hidden_by(self.guard)
        return GuardsFound(
            judged=judged,
            lam=own[0].lam if own else None,
            history=tuple(dict(epoch) for epoch in guarded.history),
            seconds=Seconds(guard=round(guarded.seconds, 2), plain=self._plain(guarded, train, seed)),
            pictures=tuple(drawn),
            tuned=encoder.about.get("tuned"),
            told=told_to(self.guard),
        )

    def _tell(self, data: Dataset) -> Dataset:
        """The records as the guard takes them: with the secret among the inputs, if it must be told it."""
        column = told_to(self.guard)
        return data if column is None else tell_secret(data, column)

    @property
    def _own(self) -> bool:
        """Whether the network the guard was trained with is about what is tried first."""
        own = hidden_by(self.guard)
        return self.secret is None or [(one.secret, one.column) for one in own] == [
            (self.secret, self.column)
        ]

    def _references(self, public: Dataset, seed: int) -> tuple[Dataset | None, Dataset]:
        if all(one.secret != "membership" for one in self.asked):
            return None, public
        rows = torch.randperm(len(public), generator=seeded(seed, "references")).chunk(2)
        if len(rows) < 2:
            raise DataError(f"{public.name}: a guard of members needs at least 2 public records.")
        return public.take(rows[0]), public.take(rows[1])

    def _second(self, encoder: Encoder, train: Dataset, others: Dataset | None, seed: int) -> Encoder | None:
        """Another encoder of the same guard, as a second release of the same records would have it; only an
        attribute is told from two."""
        if not self.rows or all(one.secret != "attribute" for one in self.asked):
            return None
        again = repeat(self.guard, encoder)
        return again(train, seeded(seed, "second"), others=others).encoder

    def _judge(
        self,
        guarded: Guarded,
        trial: Trial,
        one: Hidden,
        drawn: list[RebuiltPicture],
        second: Encoder | None,
    ) -> Judged:
        strongest: list[
            Transcript
        ] = []  # in one draw, by balanced accuracy: which attack is not to be chosen

        def watch(attack: Attack, transcript: Transcript) -> None:
            if trial.secret == "attribute":
                strongest.append(transcript)
                strongest.sort(key=lambda one: -balanced_accuracy(one).value)
            if transcript.secrets.dim() == 5 and not drawn:  # images, of the first attack only
                some = range(min(self.shown, len(transcript.secrets)))
                drawn.extend(RebuiltPicture(**pair(transcript, i)) for i in some)

        found = evaluated(
            guarded,
            trial,
            label_aware=one.label_aware,
            baselines=self.baselines,
            epochs=self.epochs,
            early=self.early,
            queries=self.queries,
            shadows=self.shadows,
            guard=self.guard,
            watch=watch,
            near=self.near if self.rows else 0,
            second=second,
        )
        encoder, like = guarded.encoder, trial.test.x[:1]
        accuracy = found.utility.task.main
        errors = (least_task_error(one, trial, accuracy) for one in strongest)
        more = {
            "theorem": bound_accuracy(encoder, trial),
            "least_error": next(errors, None),
            "risk": bound_reconstruction(encoder, trial),
            "local": state_local_privacy(encoder, like),
            "information": self._estimate_information(guarded.encoder, trial),
            "map": self._map(guarded.encoder, trial),
        }
        return found.model_copy(update=more)

    def _judge_together(self, guarded: Guarded, trials: Sequence[Trial]) -> Iterator[Judged]:
        """Several attributes as one secret, by attacks on one release."""
        alone = next((one for one in trials if one.secret == "attribute"), None)
        names = self.together
        if alone is None or not names:
            return
        values = math.prod(len(alone.train.value_names(name)) for name in names)
        if values <= self.jointly:
            train, test, public = (
                join_secrets(part, names) for part in (alone.train, alone.test, alone.public)
            )
            trial = replace(alone, train=train, test=test, public=public, column=" and ".join(names))
            yield evaluated(guarded, trial, baselines=False, near=0, queries=self.queries)

    def _estimate_information(self, encoder: Encoder, trial: Trial) -> dict[str, Information]:
        if trial.secret != "attribute":
            return {}
        rng = seeded(trial.seed, "information")
        rows = torch.randperm(len(trial.test), generator=rng)[: self.informative]
        r = encoder(trial.test.x[rows], key=trial.seed + 1).flatten(1)
        codes = trial.test.secret(str(trial.column))[rows]
        return {
            type(e).__name__: Information(estimate=e(r, codes, rng), lower=bounds_below(e))
            for e in self.estimators
        }

    def _map(self, encoder: Encoder, trial: Trial) -> SecretMap | None:
        """Two or three dimensions of the representations, by t-SNE, of the guard and of plain training for
        the task, whatever the guard keeps; none where there is no secret to mark."""
        if not self.mapped or trial.column is None:
            return None
        rng = seeded(trial.seed, "map")
        rows = torch.randperm(len(trial.test), generator=rng)[: self.mapped]
        x, codes = trial.test.x[rows], tuple(trial.test.secret(trial.column)[rows].tolist())
        tasked = with_any_head(encoder, trial.train)
        plain = replace(plainly(tasked, trial.train, rng, epochs=self.epochs), about={})

        def flatten(one: Encoder) -> Cloud:
            r = one(x, key=trial.seed + 1).flatten(1).numpy()
            near = min(30, len(r) / 4)
            points = TSNE(self.dimensions, random_state=integer(rng), perplexity=near).fit_transform(r)
            return Cloud(points=tuple(tuple(round(float(v), 1) for v in p) for p in points), codes=codes)

        return SecretMap(before=flatten(plain), after=flatten(encoder))

    def _plain(self, guarded: Guarded, train: Dataset, seed: int) -> float | None:
        """Seconds of plain training of the same encoder, with a head, for as many epochs."""
        if not guarded.history:
            return None
        tasked, begun = with_any_head(guarded.encoder, train), time.perf_counter()
        plainly(tasked, train, seeded(seed, "plain"), epochs=len(guarded.history))
        return round(time.perf_counter() - begun, 2)


def join_secrets(data: Dataset, names: Sequence[str]) -> Dataset:
    """The records with several private columns as one more: each combination of their values is a value."""
    codes, words = torch.zeros(len(data), dtype=torch.long), [""]
    for name in names:
        own = data.value_names(name)
        codes = codes * len(own) + data.secret(name)
        words = [f"{before}, {value}".removeprefix(", ") for before in words for value in own]
    title = " and ".join(names)
    return replace(data, private={**data.private, title: codes}, values={**data.values, title: tuple(words)})


def list_secrets(game: Table) -> list[tuple[str, str | None]]:
    """Each secret and its column; none where the guard is not there to say it, such as one of a module that
    is not trusted here."""
    if game.get("secret"):
        columns = (game.get("column"), *game.get("also", ()))
        return [(str(game["secret"]), column) for column in columns]
    try:
        hidden: tuple[Hidden, ...] = hidden_by(construct(game.get("guard") or {}, "guard"))
    except LeakscopeError:
        return []
    return [(one.secret, one.column) for one in hidden]
