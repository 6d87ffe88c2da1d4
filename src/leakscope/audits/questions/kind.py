"""The kind of audit that puts more questions to a recording."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from leakscope.audits.membership.seeds import UNLIKE
from leakscope.audits.questions import page
from leakscope.audits.questions.audit import QuestionAudit
from leakscope.audits.questions.found import QUESTIONS, OneRun, QuestionsFound, RecordingAnswer
from leakscope.core.tables import construct
from leakscope.results.cell import Cell, words
from leakscope.results.kind import Asked, Measured, TableEntry, World, enter_scores, enter_worth
from leakscope.results.number import Number, of_estimate, of_scores, of_value, of_worth


@dataclass(frozen=True)
class QuestionsKind:
    """Whose a known record is, whether a person took part, whose an update is, what canaries certify."""

    found = QuestionsFound
    tell = staticmethod(page.tell)

    def ask(self, cell: Cell) -> Asked:
        """What the clients of a recording had in place nobody says, and the attack is not told."""
        return Asked(
            secrets=(str(cell.game.get("column", "client")),),
            questions=tuple(map(str, cell.game.get("ask", QUESTIONS))),
            protected=None,
            adaptive=False,
            attack=words(cell.game.get("attacks", ())),
        )

    def check(self, world: World) -> None:
        _audit(world).check(world)

    def run(self, world: World) -> Measured[QuestionsFound]:
        return _audit(world).question(world)

    def numbers(self, cell: Cell, found: QuestionsFound, about: Number) -> Iterator[Number]:
        """Of every question the numbers of all clients, then of each; an error where records differ in more
        than what was asked. An epsilon that was certified is a lower bound: it has no ``high``."""
        for answer in found.answers:
            asked = replace(about, secret=answer.column, question=answer.question)
            if answer.unlike:
                yield replace(asked, error=UNLIKE)
                continue
            rows = [*of_scores(asked, answer.scores, guessing=answer.guessing)]
            for client in answer.clients:
                one = replace(asked, part=f"client {client.name}")
                rows += of_scores(one, client.scores, guessing=answer.guessing)
            yield from (replace(row, bound="lower") for row in rows)  # of one attack: others may find more
        if (run := found.one_run) is not None:
            canaries = replace(about, secret=run.column, question="epsilon", delta=run.delta)
            for name, estimate in (("epsilon_any", run.certified), ("epsilon_gaussian", run.gaussian)):
                yield replace(of_estimate(canaries, name, estimate, 0.0), high=None, bound="lower")
            yield from of_value(replace(canaries, about="diagnostic"), "promised", run.promised)
        yield from of_worth(about, found.utility)

    def entries(self, found: QuestionsFound) -> dict[str, TableEntry]:
        entries = enter_worth(found.utility)
        for answer in found.answers:
            if not answer.unlike:
                entries |= enter_scores(answer.scores, answer.guessing, f"{answer.question} ")
        if (run := found.one_run) is not None:
            least = replace(run.certified, value=run.certified.low)
            entries["epsilon_any"] = TableEntry(least, most=math.inf)
        return entries

    def headline(self, cell: Cell, found: QuestionsFound) -> str:
        lines = [*map(_line, found.answers), *([_certify(found.one_run)] if found.one_run else ())]
        return "; ".join(lines) or "nothing was asked"


def _line(answer: RecordingAnswer) -> str:
    """One question in a line."""
    if answer.unlike:
        return f"{answer.question}: no number, {UNLIKE}"
    if answer.question == "person" and answer.scores.tpr_at_1:
        return f"person: {answer.scores.tpr_at_1.value:.0%} of people found at 1% false alarms"
    assert answer.scores.success is not None
    return f"{answer.question} told right: {answer.scores.success.value:.0%} (guessing {answer.guessing:.0%})"


def _certify(run: OneRun) -> str:
    return (
        f"epsilon at least {run.certified.low:.2f} in this run, {run.gaussian.low:.2f} if the training is "
        f"Gaussian ({run.canaries} canaries)"
    )


def _audit(world: World) -> QuestionAudit:
    audit: QuestionAudit = construct(world.cell.game, "audit", trusted=world.trusted)
    return audit


KIND = QuestionsKind()
