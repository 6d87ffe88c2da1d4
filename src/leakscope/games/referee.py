"""The loop, short enough to be the specification."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from leakscope.core.errors import require
from leakscope.core.nouns import (
    Attack,
    Certifying,
    Channel,
    Choosing,
    Crossfitted,
    Game,
    Guess,
    Heard,
    Knowledge,
    Rating,
    Rehearsed,
    Release,
    Transcript,
    View,
)
from leakscope.core.rng import fork, integer, seeded
from leakscope.games import Membership
from leakscope.games.agreement import agree
from leakscope.games.channels import Silent
from leakscope.games.heldout import hold_out


def play(
    game: Game,
    channel: Channel,
    attack: Attack,
    knowledge: Knowledge,
    *,
    trials: int,
    rng: torch.Generator,
) -> Transcript:
    """The adversary learns from its knowledge, the game deals, the adversary guesses."""
    agree(game, channel, knowledge)
    seed, (deal,) = integer(rng), fork(rng, 1)
    if isinstance(attack, Choosing):
        attack = attack.choose(knowledge, seeded(seed, "choice"))
    if isinstance(attack, Crossfitted) and knowledge.calibration:
        hear, rehearsed = attack.crossfit(knowledge, torch.Generator().manual_seed(seed))
        view, secrets = game.deal(channel, trials, deal)
        belief = knowledge.belief
        return Transcript.of_rounds(secrets, hear(view), game.chances, belief=belief, rehearsed=rehearsed)
    if isinstance(attack, Rating):
        rate = attack.rate_cells(knowledge, torch.Generator().manual_seed(seed))
        view, secrets = game.deal(channel, trials, deal)
        said, status, confidence = rate(view)
        return replace(_records(secrets, said, game.chances), status=status, confidence=confidence)
    if isinstance(attack, Certifying):
        certify = attack.certify(knowledge, torch.Generator().manual_seed(seed))
        view, secrets = game.deal(channel, trials, deal)
        said, status = certify(view)
        return replace(_records(secrets, said, game.chances), status=status)
    learned, held = hold_out(knowledge, seeded(seed, "held out"))
    guess = attack(learned, torch.Generator().manual_seed(seed))
    view, secrets = game.deal(channel, trials, deal)
    said = guess(view)
    if secrets.dim() > 1:
        return _records(secrets, said, game.chances)
    if said.dim() != 3:
        return Transcript.of_scores(secrets, said, _prior(game, secrets))
    alone = without_release(attack, learned, seed) if "known" in view.public else None
    return Transcript.of_rounds(
        secrets,
        Heard(said, alone(view) if alone else None),
        game.chances,
        belief=knowledge.belief,
        rehearsed=_rehearse(guess, alone, held, seed),
    )


def _rehearse(guess: Guess, alone: Guess | None, held: Knowledge, seed: int) -> Rehearsed | None:
    """What the adversary says of challenges it has not learned from, dealt from a stream of their own."""
    if held.trials < 1:
        return None
    view, secrets = held.simulate(seeded(seed, "calibration"))
    return Rehearsed(Heard(guess(view), alone(view) if alone else None), secrets)


def _records(secrets: Tensor, said: Tensor, prior: Tensor) -> Transcript:
    """Records for records: the guesses are of the secrets' own shape, and are numbers."""
    whole = said.shape == secrets.shape
    require(whole, "the attack's records", f"of shape {tuple(secrets.shape)}", tuple(said.shape))
    require(not bool(said.isnan().any()), "the attack's records", "numbers", "nan")
    return Transcript(secrets, said, prior)


def _prior(game: Game, secrets: Tensor) -> Tensor:
    """The chances the game drew with; those of membership are as many as there were records of each."""
    if not isinstance(game, Membership):
        return game.chances
    counts = torch.bincount(secrets[secrets >= 0], minlength=2).double()
    return counts / counts.sum()


def without_release(attack: Attack, knowledge: Knowledge, seed: int) -> Guess:
    """The evidence of the same adversary's side knowledge alone, had nothing been released: it rehearses the
    same challenges, so that what it says here and there differs by the release alone."""
    guess = attack(replace(knowledge, channel=Silent()), torch.Generator().manual_seed(seed))

    def side(view: View) -> Tensor:
        known = view.public["known"]
        nothing = Release.of({"nothing": torch.zeros(len(known), 1)})
        return guess(replace(view, releases=(nothing,)))[0].double()

    return side
