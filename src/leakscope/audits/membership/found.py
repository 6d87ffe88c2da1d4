"""What was found of who was trained on: by every attack, in the mean over clients and of each client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, Self

from pydantic import model_validator

from leakscope.attacks.alignment import Label, Sees
from leakscope.attacks.span_membership import Reach
from leakscope.core.nouns import Count, Estimate
from leakscope.measures.accounting import Accounted
from leakscope.measures.exchangeability import Exchangeability
from leakscope.measures.shuffled import SelfCheck
from leakscope.results.averages import Average
from leakscope.results.scores import FrozenModel, Scores, Worth

Seen = Literal["uploads", "sum", "broadcast"]
AGREES = 0.1  # cosine of updates and steps; noise that the server adds can lower it too


class Client(FrozenModel):
    """What one attack found of one client, with so many ``members`` judged, and so many records of nobody;
    None: as many as of every client."""

    name: str
    members: int
    judged: int | None = None
    scores: Scores[Estimate]


class ClientGame(FrozenModel):
    """One attack on one client, or on all at once. ``rows`` are the lines of the list of records, if there
    is to be one."""

    members: int
    judged: int
    scores: Scores[Estimate]
    roc: tuple[tuple[float, float], ...] = ()
    reach: Reach | None = None
    selfcheck: SelfCheck | None = None
    rows: str = ""


class ClientPart(FrozenModel):
    """All that is found of one client by itself, by every attack: clients can be looked at by anybody, in any
    order."""

    alike: Exchangeability
    games: tuple[ClientGame, ...]


class MemberAttack(FrozenModel):
    """One attack: means over so many ``games`` and their standard ``deviation``. A game is about one client,
    or about all where they are not told apart; then, and in results of the first format, ``clients`` is
    empty. ``uses`` and ``label`` (what it does about a record's label) are None if the attack does not say;
    ``taught``: it is told half of the members, and judged on the others. ``growth``: what it finds at 1%
    false alarms in the sums of the first so many rounds, where everyone took part in all. ``reach``: of every
    game the row space that it went by, if it is an attack by row spaces."""

    name: str
    uses: Sees | None
    label: Label | None
    taught: bool
    games: int
    scores: Scores[Estimate]
    deviation: Scores[float]
    clients: tuple[Client, ...] = ()
    roc: tuple[tuple[float, float], ...]
    growth: tuple[tuple[Count, Estimate], ...] = ()
    reach: tuple[Reach, ...] = ()
    selfcheck: SelfCheck | None  # of the first game; results from before there was one have none

    @model_validator(mode="after")
    def _whole(self) -> Self:
        for scores in (self.scores, *(client.scores for client in self.clients)):
            if scores.tpr_at_1 is None or scores.auroc is None:
                raise ValueError(f"{self.name} must have tpr_at_1% and auroc of every game")
        return self


class MembershipFound(FrozenModel):
    """A federation of so many ``clients`` with ``members``, attacked. Of the records of nobody, ``known`` are
    the adversary's own, ``held`` set thresholds, and of the ``others`` so many were ``judged`` in each game.

    ``agreement`` is the best cosine, over rounds, between the recorded updates' mean and the step that the
    global model took: low, or 0, where what was recorded is not what the server averaged. None: not known.
    ``server`` is the rule that the recorded steps follow, and ``remarks`` what is odd about the recording.
    ``alike`` says of every game whether members and non-members differ in membership alone; empty where
    they were dealt at random, and in results from before it was asked.
    ``took_part`` says in how many of the rounds each watched client did, where sums are seen and it is known.
    ``batchwise``: clients normalised records by their batches, so that what one adds to an update hangs on
    the others of its batch, and attacks only come near it.
    ``guarantee`` is what the filter on uploads is worth: of one upload in every round up to the last that was
    observed, as the global models that are seen come from all of them."""

    attacks: tuple[MemberAttack, ...]
    clients: Count
    members: Count
    known: Count
    held: Count
    others: Count
    judged: Count
    watched: tuple[str, ...]
    rounds: Count
    seen: Seen
    centred: bool
    utility: Worth[Estimate]
    agreement: float | None = None
    server: str = ""
    remarks: tuple[str, ...] = ()
    alike: tuple[Exchangeability, ...] = ()
    took_part: tuple[Count, ...] = ()
    batchwise: bool = False
    guarantee: Accounted | None = None

    @property
    def doubts(self) -> tuple[str, ...]:
        return tuple(list_doubts(self.utility, self.batchwise, self.agreement))


def list_doubts(
    utility: Worth[Estimate] | Worth[Average], batchwise: bool, agreement: float | None
) -> Iterator[str]:
    """Why that nothing was found would say nothing."""
    if utility.trained is None or utility.majority is None:
        yield "Whether the model has learned anything is not known: its accuracy was not measured."
    elif utility.trained.low <= utility.majority:
        yield (
            "The model is not clearly better on the clients' own records than always saying the most "
            "frequent label. It has learned nothing yet, or the candidates are not coded as the clients' "
            "records were."
        )
    if batchwise:
        yield (
            "The net normalises records by their batches (batch normalisation): what a record adds to an "
            "update hangs on the others of its batch, and these attacks only come near it. That they find "
            "little does not show that little leaks."
        )
    if agreement is not None and agreement < AGREES:
        yield (
            "The recorded updates have little to do with the steps of the global model. Record each client's "
            "parameters as it uploads them, in the round in which it does."
        )
