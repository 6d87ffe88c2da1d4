"""A guard, judged fairly: what its representations are worth, and what every attacker finds in them.

Attackers are trained anew on the finished encoder, on records the guard has not seen; the network that was
trained along with it stands beside them, never alone. The strongest is chosen on rehearsals. What needs no
guard is measured in the same way: the records themselves, without the secret's column, plain noise, and
training that stops early.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import nn

from leakscope.attacks.decoders import Decoder, Inversion
from leakscope.attacks.members import HeadConfidence, LabelAware, LiRA, LossThreshold, plainly
from leakscope.attacks.mixture import Mixture, Trees
from leakscope.attacks.rehearsal import candidates
from leakscope.attacks.representations import Decensored, Fisher, Network, Stale
from leakscope.attacks.strongest import Strongest
from leakscope.attacks.traits import Shadowing, traits
from leakscope.audits.guards.found import Attacked, Baseline, Judged, Needless, Row
from leakscope.audits.guards.task import measure_utility, with_head
from leakscope.audits.guards.trial import Trial
from leakscope.core.dataset import Dataset
from leakscope.core.nouns import Attack, Guess, Knowledge, Transcript, View
from leakscope.core.rng import seeded
from leakscope.core.task import is_number
from leakscope.games.releases import Holding
from leakscope.guards.encoder import Encoder, Guarded
from leakscope.guards.hidden import Guard, Secret
from leakscope.measures.shuffled import shuffled
from leakscope.measures.success import auroc, guessing, roc

Watch = Callable[[Attack, Transcript], None]
ATTACKS: dict[Secret, tuple[Attack, ...]] = {
    "attribute": (Network(), Fisher(), Mixture(), Decensored()),
    "property": (Network(), Fisher()),
    "membership": (LossThreshold(), HeadConfidence(), LabelAware(), Network()),
    "reconstruction": (Decoder(), Inversion()),
}
HELD: tuple[Attack, ...] = (Network(), Fisher(), Mixture(), Trees())  # on all that is held of a record


def evaluated(
    guarded: Guarded,
    trial: Trial,
    *,
    attacks: Sequence[Attack] | None = None,
    label_aware: bool = False,
    baselines: bool = True,
    epochs: int = 35,
    early: Sequence[int] = (6, 8),
    queries: int = 16,
    shadows: int = 0,
    guard: Guard | None = None,
    watch: Watch | None = None,
    near: int = 64,
    second: Encoder | None = None,
) -> Judged:
    """The utility of a guard's representations, what every attacker finds in them, and what no guard gives.

    ``attacks`` in place of the usual ones; ``label_aware`` says that the guard's own network takes the
    label; ``epochs`` are those of plain training, beside which the guard stands, and ``early`` those after
    which it stops against membership. Whoever may ask again averages ``queries`` draws of the noise, or asks
    ``near`` times about records next to it (0: nothing but single releases is tried), or has the release of a
    ``second`` encoder too. Against
    membership ``shadows`` trained by ``guard`` add LiRA. ``watch`` is shown every attack's transcript.
    """
    encoder = with_head(guarded.encoder, trial)
    wanted = tuple(attacks) if attacks is not None else choose_attacks(trial.secret, encoder, trial.train)
    if shadows and trial.secret == "membership":
        wanted += (LiRA(shadows, guard),)
    utility = measure_utility(encoder, trial)
    found = try_attacks(encoder, trial, wanted, watch=watch)
    stale = _try_stale(replace(guarded, encoder=encoder), trial, label_aware=label_aware)
    rows: tuple[Row, ...] = ()
    if trial.secret == "attribute" and near:
        rows = tuple(try_holdings(encoder, trial, queries=queries, near=near, second=second))
    if not encoder.perturbation.silent:
        again = [attack for attack in wanted if not traits(attack).slow]
        found += tuple(_try(encoder, trial, attack, draws=queries) for attack in again)
    single: tuple[Attacked, ...] = ()
    if trial.secret == "property":  # whoever sees single records is not held off by guarding their mean
        alone = replace(trial, secret="attribute")
        single = tuple(_try(encoder, alone, attack) for attack in (Network(), Fisher()))
    return Judged(
        secret=trial.secret,
        column=trial.column,
        values=trial.told_names if trial.column else (),
        utility=utility,
        attacks=found,
        stale=stale,
        single=single,
        rows=rows,
        baselines=tuple(try_unguarded(encoder, trial, wanted, epochs=epochs, early=early))
        if baselines
        else (),
    )


def try_holdings(
    encoder: Encoder,
    trial: Trial,
    *,
    queries: int,
    near: int,
    second: Encoder | None = None,
    attacks: Sequence[Attack] = HELD,
) -> Iterator[Row]:
    """What is told by whoever holds more releases or the key, with the label and without: for each the attack
    that rehearsals choose among ``attacks``, on challenges that they have not seen. Without noise there is
    nothing to average, and no key."""
    silent = encoder.perturbation.silent
    held: list[tuple[Holding, int]] = []
    if not silent:
        held += [("again", queries), ("near", near), ("stepped", near)]
    held += [("beside", 1)] if second is not None else []
    held += [("changed", 1)] if silent else [("changed", 1), ("named", 1), ("keyed", 1)]
    wanted: list[tuple[Holding, bool, int]] = [("nothing", True, 1), ("once", True, 1)]
    wanted += [(holding, labelled, count) for holding, count in held for labelled in (False, True)]
    for holding, labelled, count in wanted:
        other = second if holding == "beside" else None
        channel = trial.held(encoder, holding, draws=count, labelled=labelled, second=other)
        rng = seeded(trial.seed, "choice", holding, str(labelled))
        attack = Strongest(tuple(attacks)).choose(trial.knowledge_of(channel), rng)
        tried = _tell(trial, attack, trial.play_through(channel, attack), queries=count)
        yield Row(
            holding=holding,
            labelled=labelled,
            count=count,
            attack=tried.model_copy(update={"chosen": True}),
        )


def try_attacks(
    encoder: Encoder, trial: Trial, attacks: Sequence[Attack], *, watch: Watch | None = None
) -> tuple[Attacked, ...]:
    """Every attack on one encoder, the strongest marked as rehearsals chose it. No adversary can tell which
    reconstruction is likest, so that none is chosen there."""
    found = tuple(_try(encoder, trial, attack, watch=watch) for attack in attacks)
    if trial.secret == "reconstruction":
        return found
    by: Literal["auroc", "balanced"] = "balanced" if trial.secret == "membership" else "auroc"
    rehearsed = tuple(
        attack.among(_asked_about(encoder, trial)) if isinstance(attack, Shadowing) else attack
        for attack in attacks
    )
    choice = Strongest(rehearsed, by).chosen(trial.knowledge(encoder), seeded(trial.seed, "choice"))
    return tuple(one.model_copy(update={"chosen": i == choice}) for i, one in enumerate(found))


def _asked_about(encoder: Encoder, trial: Trial) -> Dataset:
    """The candidates of the real game, whoever of them is a member: the adversary has them before it chooses,
    and shadows of fewer records than the real ones would look weaker than they are."""
    found: list[Dataset] = []

    def look(knowledge: Knowledge, rng: torch.Generator) -> Guess:
        def guess(view: View) -> torch.Tensor:
            found.append(candidates(view))
            return torch.zeros(len(found[0]))

        return guess

    trial.play(encoder, look)
    return found[0]


def try_unguarded(
    encoder: Encoder, trial: Trial, attacks: Sequence[Attack], *, epochs: int, early: Sequence[int]
) -> Iterator[Baseline]:
    """What needs no guard, measured alike."""
    column, raw = trial.column, Encoder(nn.Identity(), {})
    if column is not None:
        yield _try_baseline("raw inputs", "raw", raw, trial, attacks)
        if trial.train.has(column):
            train, test, public = (part.without(column) for part in (trial.train, trial.test, trial.public))
            without = replace(trial, train=train, test=test, public=public)
            yield _try_baseline(f"without {column}", "without", raw, without, attacks)
    if encoder.head is None:
        return

    def train_plainly(passes: int, rng: torch.Generator, name: str, needless: Needless) -> Baseline:
        plain = plainly(encoder, trial.train, rng, epochs=passes)
        alike = [a.on_plain(passes) if isinstance(a, Shadowing) else a for a in attacks]
        return _try_baseline(name, needless, plain, trial, alike)

    plain = seeded(trial.seed, "plain")
    if encoder.perturbation.silent:
        yield train_plainly(epochs, plain, "plain training", "plain")
    else:
        yield train_plainly(epochs, plain, "plain noise", "noise")
    for passes in early if trial.secret == "membership" else ():
        rng = seeded(trial.seed, "early", passes)
        yield train_plainly(passes, rng, f"plain training, {passes} epochs", "early")


def choose_attacks(secret: Secret, encoder: Encoder, data: Dataset) -> tuple[Attack, ...]:
    """The usual attacks; without a task head there is no loss to look at, and a number has no classes."""
    headless, number = encoder.head is None, is_number(data.y)
    every = ((attack, traits(attack)) for attack in ATTACKS[secret])
    return tuple(a for a, t in every if not ((headless and t.needs_head) or (number and t.needs_classes)))


def _try(
    encoder: Encoder, trial: Trial, attack: Attack, *, draws: int = 1, watch: Watch | None = None
) -> Attacked:
    transcript = trial.play(encoder, attack, draws=draws)
    if watch is not None:
        watch(attack, transcript)
    return _tell(trial, attack, transcript, queries=draws)


def _tell(trial: Trial, attack: Attack, transcript: Transcript, *, queries: int) -> Attacked:
    """The numbers of one attack."""
    told = trial.secret != "reconstruction"
    rng = seeded(trial.seed, "shuffle")
    return Attacked(
        name=type(attack).__name__,
        attack=repr(attack),
        queries=queries,
        scores=trial.score(transcript),
        guessing=guessing(transcript) if told else None,
        selfcheck=shuffled(transcript, auroc, null=0.5, rng=rng) if told else None,
        roc=tuple(roc(transcript)) if trial.secret == "membership" else (),
    )


def _try_stale(guarded: Guarded, trial: Trial, *, label_aware: bool) -> Attacked | None:
    if guarded.privacy is None or trial.secret == "reconstruction":
        return None
    entry = _try(guarded.encoder, trial, Stale(guarded.privacy, label_aware))
    return entry.model_copy(update={"attack": entry.name})  # not all its layers


def _try_baseline(
    name: str, needless: Needless, encoder: Encoder, trial: Trial, attacks: Sequence[Attack]
) -> Baseline:
    wanted = [attack for attack in attacks if not traits(attack).censored_only]
    return Baseline(
        name=name,
        needless=needless,
        utility=measure_utility(encoder, trial),
        attacks=try_attacks(encoder, trial, wanted),
    )
