"""The loop, short enough to be the specification."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from leakscope.channels import Silent
from leakscope.core import Attack, Channel, Game, Knowledge, Release, Transcript, View
from leakscope.rng import fork


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
    learn, deal, blindly = fork(rng, 3)
    guess = attack(knowledge, learn)
    view, secrets = game.deal(channel, trials, deal)
    said = guess(view)
    if said.dim() != 3:
        return Transcript(secrets, said, game.chances)
    blind = _blind(attack, knowledge, view, len(secrets), blindly) if "known" in view.public else None
    return Transcript.of_rounds(secrets, said, game.chances, belief=knowledge.belief, blind=blind)


def _blind(attack: Attack, knowledge: Knowledge, view: View, trials: int, rng: torch.Generator) -> Tensor:
    """What the same adversary says from its side knowledge alone, had nothing been released."""
    guess = attack(replace(knowledge, channel=Silent()), rng)
    nothing = Release.of({"nothing": torch.zeros(trials, 1)})
    evidence = guess(replace(view, releases=(nothing,)))
    return torch.softmax(evidence[0] + knowledge.belief.log(), dim=1)
