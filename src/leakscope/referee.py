"""The loop, short enough to be the specification."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from leakscope.agreement import agree
from leakscope.channels import Silent
from leakscope.core import Attack, Channel, Game, Knowledge, Release, Transcript, View
from leakscope.errors import require
from leakscope.games import Membership
from leakscope.rng import fork, integer


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
    guess = attack(knowledge, torch.Generator().manual_seed(seed))
    view, secrets = game.deal(channel, trials, deal)
    said = guess(view)
    if secrets.dim() > 1:
        return _records(secrets, said, game.chances)
    if said.dim() != 3:
        return Transcript.of_scores(secrets, said, _prior(game, secrets))
    blind = _blind(attack, knowledge, view, len(secrets), seed) if "known" in view.public else None
    return Transcript.of_rounds(secrets, said, game.chances, belief=knowledge.belief, blind=blind)


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


def _blind(attack: Attack, knowledge: Knowledge, view: View, trials: int, seed: int) -> Tensor:
    """What the same adversary says from its side knowledge alone, had nothing been released: it rehearses
    the same challenges, so that what it says here and there differs by the release alone."""
    guess = attack(replace(knowledge, channel=Silent()), torch.Generator().manual_seed(seed))
    nothing = Release.of({"nothing": torch.zeros(trials, 1)})
    evidence = guess(replace(view, releases=(nothing,)))
    return torch.softmax(evidence[0] + knowledge.belief.log(), dim=1)
