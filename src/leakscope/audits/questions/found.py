"""What was found of the questions to a recording, each with its interval and what guessing reaches."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import model_validator

from leakscope.audits.membership.found import Seen
from leakscope.core.nouns import Count, Estimate
from leakscope.measures.exchangeability import Exchangeability
from leakscope.measures.shuffled import SelfCheck
from leakscope.results.scores import FrozenModel, Scores, Worth

Question = Literal["source", "person", "provenance", "property"]
Unit = Literal["record", "person", "client"]
QUESTIONS: tuple[Question, ...] = ("source", "person", "provenance", "property")


class ClientAnswer(FrozenModel):
    """What was found of one client, from so many ``cases``: records, people, or one upload. Of
    a share, ``range`` is between what it is said to be, and the cases are the client's records."""

    name: str
    cases: Count
    range: tuple[float, float] | None = None
    scores: Scores[Estimate]


class RecordingAnswer(FrozenModel):
    """One question about the ``column``; ``guessing`` is the success rate of who sees nothing, None where it
    is about members: then so many people of nobody were ``judged``. ``alike`` says of every client whether
    its records differ from those that they are held against in more than the question: then there is no
    number, as an attack would tell that difference. ``trait`` is the value whose share is asked about, and
    ``remarks`` what was assumed. ``order``: of shares, the rank correlation over clients of what is said with
    what is true, and the chance of as much where they have nothing to do with each other."""

    question: Question
    column: str
    trait: str = ""
    guessing: float | None
    judged: Count | None = None
    scores: Scores[Estimate]
    clients: tuple[ClientAnswer, ...] = ()
    selfcheck: SelfCheck
    alike: tuple[Exchangeability, ...] = ()
    remarks: tuple[str, ...] = ()
    order: tuple[float, float] | None = None

    @model_validator(mode="after")
    def _whole(self) -> Self:
        """What is judged by its advantage has one; what is about members has what members are judged by."""
        needed = (
            (self.scores.tpr_at_1, self.scores.auroc)
            if self.question == "person"
            else (self.scores.success, self.scores.advantage, self.guessing)
        )
        if any(part is None for part in needed):
            raise ValueError(f"the answer about {self.question} lacks the measures that it is read by")
        return self

    @property
    def unlike(self) -> tuple[str, ...]:
        """The clients whose records differ in more than what is asked."""
        return tuple(check.client for check in self.alike if not check.passed)


class OneRun(FrozenModel):
    """The epsilon that canaries certify in this one run, at least: ``certified`` assumes nothing of the
    training, ``gaussian`` a Gaussian trade-off. ``promised`` is what the training is said to promise."""

    column: str
    unit: Unit
    canaries: Count
    included: Count
    delta: float
    certified: Estimate
    gaussian: Estimate
    promised: float | None = None
    selfcheck: SelfCheck


class QuestionsFound(FrozenModel):
    """The questions to one recording, of which so many ``rounds`` were seen; ``unasked`` says in words why
    something was not asked. ``known`` are the adversary's records of nobody."""

    answers: tuple[RecordingAnswer, ...]
    one_run: OneRun | None = None
    unasked: tuple[str, ...] = ()
    clients: Count
    members: Count
    known: Count
    rounds: Count
    seen: Seen
    utility: Worth[Estimate]
