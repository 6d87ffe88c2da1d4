"""What a game on gradients found."""

from __future__ import annotations

from leakscope.core.nouns import Estimate
from leakscope.measures.accounting import Accounted
from leakscope.measures.shuffled import SelfCheck
from leakscope.results.scores import FrozenModel, Scores, Worth


class Secret(FrozenModel):
    """What was to be told: by a game of this ``kind``, among so many values, ranges or people."""

    kind: str
    column: str
    values: tuple[str, ...]
    chances: tuple[float, ...]
    batch: int


class Round(FrozenModel):
    """What an adversary reached who saw this round alone, and one who saw all so far."""

    single: Scores[Estimate]
    accumulated: Scores[Estimate]


class Bounds(FrozenModel):
    """What no adversary can exceed who sees exactly these releases; None: no bound is known."""

    advantage: float | None = None
    accuracy: float | None = None
    information: float | None = None  # nats
    method: str = ""
    noise: bool = False  # whether the defense adds noise to what is released


class Guarantee(FrozenModel):
    """The epsilon that an accountant has for exactly the releases that were shown, and, apart, for the
    training of the model. None: none holds."""

    shown: Accounted | None = None
    training: Accounted | None = None


class Candidate(FrozenModel):
    """An attack among which the one that was played was chosen, and minus its log loss, in nats, on public
    records that it had not learned from. ``brief``: after few rehearsals, in its lighter form if it has one,
    which was so far behind that it did not go on."""

    attack: str
    score: float
    brief: bool = False


class Played(FrozenModel):
    """One game, played by ``attack``; "": by the cell's own, as results of before there was a choice."""

    attack: str = ""
    tried: tuple[Candidate, ...] = ()
    apart: bool = True  # public records sufficed to hear an attack on others than it had learned from
    secret: Secret
    scores: Scores[Estimate]
    guessing: float
    rounds: tuple[Round, ...]
    roc: tuple[tuple[float, float], ...]
    selfcheck: SelfCheck | None  # a result from before there was one has none
    bounds: Bounds
    guarantee: Guarantee
    utility: Worth[Estimate]
