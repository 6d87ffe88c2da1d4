"""A game on gradients: split, train the victim, play, measure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from leakscope.attacks.rehearsal import parted
from leakscope.attacks.strongest import Strongest
from leakscope.audits.inference.bounds import bound_releases
from leakscope.audits.inference.found import Candidate, Guarantee, Played, Round, Secret
from leakscope.audits.world import (
    Parts,
    Victim,
    build_model,
    count_parameters,
    defend,
    describe_model,
    measure_worth,
    passes_whole,
    split,
    train_victim,
)
from leakscope.core.dataset import FEW
from leakscope.core.errors import DataError, PlanError
from leakscope.core.nouns import Attack, Estimate, Game, Knowledge, Transcript, behind
from leakscope.core.rng import seeded
from leakscope.core.tables import construct
from leakscope.games.channels import GradientChannel
from leakscope.games.referee import play
from leakscope.measures.accounting import account_shown, account_training
from leakscope.measures.information import mutual_information
from leakscope.measures.shuffled import shuffled
from leakscope.measures.success import advantage, auroc, guessing, roc, success_rate, tpr_at_fpr
from leakscope.results.cell import words
from leakscope.results.kind import Measured, World
from leakscope.results.scores import Scores


@dataclass(frozen=True, eq=False)
class Stage:
    """The split records, the game on the private ones and the adversary's game on the public ones."""

    parts: Parts
    game: Game
    rehearsal: Game


def set_stage(world: World) -> Stage:
    """Split the records and build the game on each part; nothing is trained yet."""
    parts = split(world)
    game = construct(world.cell.game, "game", trusted=world.trusted, data=parts.train)
    return Stage(parts, game, game.on(parts.public))


def check(world: World) -> None:
    """Refuse a game that its records or its model cannot give."""
    stage = set_stage(world)
    _attacks(world, stage)
    build_model(world, stage.parts.train, defend(world))


def run(world: World) -> Measured[Played]:
    """What the adversary learned from the observed rounds, beside what the model is worth."""
    stage = set_stage(world)
    victim = train_victim(world, stage.parts.train, defend(world))
    played = play_stage(world, stage, victim)
    net = describe_model(world, victim.model, stage.parts.train, test=stage.parts.test)
    return Measured(played, stage.parts.described, net)


def play_stage(world: World, stage: Stage, victim: Victim) -> Played:
    """The cell's attack on a victim, measured."""
    cell, seed = world.cell, world.seed
    channel = GradientChannel(victim.model, tuple(victim.history[i] for i in cell.observed), victim.defense)
    channel = channel.prepared(stage.rehearsal, seeded(seed, "defense"))
    belief = channel if cell.adaptive else channel.undefended()
    knowledge = Knowledge(stage.rehearsal, belief, cell.rehearsals, stage.game.chances)
    attack, used, tried = choose_attack(world, stage, knowledge)
    transcript = play(stage.game, channel, attack, knowledge, trials=cell.trials, rng=seeded(seed, "play"))
    return Played(
        attack=used,
        tried=tried,
        apart=hold_apart(knowledge, seeded(seed, "choice")),
        secret=describe_secret(stage),
        scores=measure(transcript),
        guessing=guessing(transcript),
        rounds=measure_rounds(transcript),
        roc=tuple(roc(transcript)),
        selfcheck=shuffled(transcript, drawn=True, rng=seeded(seed, "shuffle")),
        bounds=bound_releases(transcript, channel, behind(stage.game)),
        guarantee=account(world, stage, victim),
        utility=measure_worth(victim, stage.parts.test, stage.parts.train),
    )


def choose_attack(
    world: World, stage: Stage, knowledge: Knowledge
) -> tuple[Attack, str, tuple[Candidate, ...]]:
    """The cell's attack and its name; of several, the one that does best on public records."""
    attack, table = _attacks(world, stage), world.cell.attack
    if not isinstance(attack, Strongest):
        return attack, words(table), ()
    choice = attack.judged(knowledge, seeded(world.seed, "choice"))
    names = [words(part) for part in table["attacks"]]
    heard = zip(names, choice.scores, choice.brief, strict=False)
    tried = tuple(Candidate(attack=name, score=score, brief=brief) for name, score, brief in heard)
    return choice.attack, names[choice.place], tried


def hold_apart(knowledge: Knowledge, rng: torch.Generator) -> bool:
    """Whether some public records, of every value or of enough people, can be kept from an attack that
    learns, so that how far to trust it is known."""
    try:
        parted(knowledge, rng)
    except DataError:
        return False
    return True


def _attacks(world: World, stage: Stage) -> Attack:
    """The cell's attack, if it plays the cell's game."""
    attack: Attack = construct(world.cell.attack, "attack", trusted=world.trusted)
    asked: Any = stage.game
    for part in attack.attacks if isinstance(attack, Strongest) else (attack,):
        plays = getattr(part, "plays", (asked.kind,))
        if asked.kind not in plays:
            raise PlanError(
                f"attack {type(part).__name__} must play the game that is asked, {asked.kind} inference, got "
                f"one for {' and '.join(plays)} inference; leave it out to have the strongest chosen."
            )
    return attack


def account(world: World, stage: Stage, victim: Victim) -> Guarantee:
    """The epsilon of what was shown, and, apart, of the training; none where some of the model passes by the
    defense."""
    if not passes_whole(victim.model):
        return Guarantee()
    cell, defense, entries = world.cell, victim.defense, count_parameters(victim.model)
    batch = behind(stage.game)
    return Guarantee(
        shown=account_shown(defense.mechanism(batch, entries), releases=len(cell.observed), batch=batch),
        training=account_training(
            defense,
            records=len(stage.parts.train),
            batch=cell.training.batch,
            rounds=cell.rounds,
            entries=entries,
        ),
    )


def measure(transcript: Transcript) -> Scores[Estimate]:
    """Everything a report says about one transcript."""
    return Scores[Estimate](
        success=success_rate(transcript),
        advantage=advantage(transcript),
        auroc=auroc(transcript),
        tpr_at_1=tpr_at_fpr(transcript),
        tpr_at_01=tpr_at_fpr(transcript, fpr=0.001),
        information=mutual_information(transcript) if transcript.guesses.dim() == 2 else None,
    )


def measure_rounds(transcript: Transcript) -> tuple[Round, ...]:
    """What each round gives alone, and all so far."""
    rounds = 0 if transcript.rounds is None else len(transcript.rounds)
    return tuple(
        Round(single=_brief(transcript.single(i)), accumulated=_brief(transcript.after(i + 1)))
        for i in range(rounds)
    )


def _brief(transcript: Transcript) -> Scores[Estimate]:
    return Scores[Estimate](
        success=success_rate(transcript), advantage=advantage(transcript), auroc=auroc(transcript)
    )


def describe_secret(stage: Stage) -> Secret:
    """What is to be told, as the game says it."""
    game: Any = stage.game
    column = getattr(game, "secret", "") or getattr(game, "column", "") or getattr(game, "user", "")
    names = getattr(game, "names", None)
    if names is None:
        names = stage.parts.records.told_names(column)
    return Secret(
        kind=game.kind,
        column=column,
        values=names,
        chances=_blur(game.chances, len(stage.parts.train)),
        batch=game.batch,
    )


def _blur(chances: Tensor, records: int) -> tuple[float, ...]:
    """The chances as results tell them: those of a value of few records would count persons, and are raised
    to what that many have."""
    least = FEW / records
    return tuple(least if 0 < chance < least else float(chance) for chance in chances.tolist())
