"""What a page says of the questions to a recording."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from markupsafe import Markup

from leakscope.audits.membership.view import CHANCE, ClientReading
from leakscope.audits.questions.found import OneRun, QuestionsFound, RecordingAnswer
from leakscope.report.pages import certified, fill, percent, plural, promised, small, spoken
from leakscope.results.averages import Average
from leakscope.results.cell import capitalise
from leakscope.results.chapter import LEAKS, RULES, Brief, Chapter, Verdict, explain, read_severity
from leakscope.results.kind import Runs, by_cell
from leakscope.results.result import Result
from leakscope.results.scores import Scores, average_scores, average_worth

FEWEST = 100  # people of nobody, of whom 1% is one
ABOUT = {
    "source": "which client holds a known member (source)",
    "person": "whether a person took part, by all of the person's records (person)",
    "provenance": "which client is behind an update without a name (provenance)",
    "property": "in which range the share of {trait} ({column}) lies at each client (property)",
}
HARM = {
    "source": "Whoever knows that a person took part learns at which site. That can tell where a patient was "
    "treated.",
    "person": "Whoever has a person's records and sees this learns that the person took part. In a study of "
    "a disease, that alone can be a diagnosis.",
    "provenance": "Leaving names off uploads does not hide whose they are from somebody who has records of "
    "each site.",
    "property": "Whoever sees the uploads learns what the people at a site are like, such as how many are "
    "ill.",
}
LUCK = (
    0.025  # the chance, with shares dealt anew to clients, below which it is a finding that shares are told
)
NO_NUMBER = "no number: the records differ in more than what is asked"
RULE = (
    "Questions to a recording: by the advantage, of a person by the people found at 1% false alarms as for "
    "members. That nothing is found is no all-clear here",
    {word: rule for word, rule in RULES.items() if word != "none"},
)
LIMITS = (
    "Questions to a recording: where clients' records differ before any update is looked at, a record could "
    "be put to its client by what it is, and source has no number.",
    "Provenance: one upload of each client is asked about, so that with few clients the interval is wide.",
    "Property: one share of each client is asked about, so that with few clients the interval is wide.",
    "A certified epsilon is a lower bound for these canaries and this attack. The true epsilon can be "
    "larger, and that nothing is certified does not show that the training is private.",
)
ASSUMED = (
    '<p class="soft">Questions to a recording: the server follows the protocol, knows the model and who took '
    "part in each round, and has records that nobody trained on and those it asks about. For provenance it "
    "has half of each client’s records. For property it has none of them, and "
    "rehearses clients. Where a person is asked about, it knows which records are of one person.</p>"
)


@dataclass(frozen=True)
class AnswerOverSeeds:
    """One question over seeds."""

    answers: tuple[RecordingAnswer, ...]
    scores: Scores[Average]
    clients: tuple[tuple[str, int, Scores[Average]], ...]
    anchor: str

    @property
    def first(self) -> RecordingAnswer:
        return self.answers[0]

    @property
    def about(self) -> str:
        return ABOUT[self.first.question].format(trait=self.first.trait, column=self.first.column)

    @property
    def alike(self) -> bool:
        """Whether in no seed records differ in more than what is asked; several seeds are allowed for."""
        seeds = len(self.answers)
        return not any(check.p < check.level / seeds for one in self.answers for check in one.alike)

    @property
    def measure(self) -> str:
        return "tpr_at_1%" if self.first.question == "person" else "advantage"

    @property
    def judged_by(self) -> Average | None:
        return self.scores.tpr_at_1 if self.first.question == "person" else self.scores.advantage

    @property
    def severity(self) -> str:
        """A word as for other audits, but never that there is no evidence of leakage: a stronger attack, or
        more rounds, may find what this one did not."""
        found, area = self.judged_by, self.scores.auroc
        if not self.alike or found is None:
            return "inconclusive"
        word = read_severity(found, area)
        if self.first.question == "property" and any(one.selfcheck.p > LUCK for one in self.answers):
            return "inconclusive"  # few clients in few ranges: a permutation is right as often
        if self.first.question == "person" and area is not None:
            few = min(answer.judged or 0 for answer in self.answers) < FEWEST
            word = ClientReading("", False, found, area, few, True, True).severity
        return word if word in LEAKS else "inconclusive"


@dataclass(frozen=True)
class RecordingOverSeeds(Runs[QuestionsFound]):
    """The questions to one recording over seeds."""

    answers: tuple[AnswerOverSeeds, ...]
    anchor: str

    @property
    def first(self) -> QuestionsFound:
        return self.founds[0]

    @property
    def one_run(self) -> OneRun | None:
        """That of the seed that certifies least: seeds differ in what the adversary knows, not in the run."""
        every = [found.one_run for found in self.founds if found.one_run is not None]
        return min(every, key=lambda run: run.certified.low, default=None)

    @property
    def worth(self) -> Average | None:
        return average_worth([found.utility for found in self.founds]).main

    @property
    def unasked(self) -> list[str]:
        return list(dict.fromkeys(reason for found in self.founds for reason in found.unasked))


def tell(results: Sequence[Result[QuestionsFound]]) -> Chapter:
    """The questions to all recordings."""
    recordings = [_recording(tuple(runs), i) for i, runs in enumerate(by_cell(results), 1)]
    return Chapter(
        lead=f"{plural(len(recordings), 'recording')} asked for more than who was trained on.",
        verdicts=tuple(verdict for one in recordings for verdict in _verdicts(one)),
        body=fill(
            "questions/page.html", recordings=recordings, say=say_run, describe=_sentence, NO_NUMBER=NO_NUMBER
        ),
        rules=RULE,
        assumed=Markup(ASSUMED),
        limits=LIMITS,
        remarks=tuple(dict.fromkeys(reason for one in recordings for reason in one.unasked)),
        settings=len(recordings),
        brief=_open(recordings),
    )


def _open(recordings: Sequence[RecordingOverSeeds]) -> Brief:
    """The first page's part."""
    answers = [answer for one in recordings for answer in one.answers]
    return Brief(
        asked=tuple(dict.fromkeys(f"Can the server tell {answer.about}?" for answer in answers)),
        meaning=tuple(
            explain(answer.severity, answer.about, HARM[answer.first.question]) for answer in answers
        ),
        assumed=("The server knows who took part in each round, and has the records it asks about.",),
        untested=tuple(dict.fromkeys(reason for one in recordings for reason in one.unasked)),
    )


def _recording(results: tuple[Result[QuestionsFound], ...], place: int) -> RecordingOverSeeds:
    founds = Runs(results).founds
    asked = {answer.question for found in founds for answer in found.answers}
    answers = []
    for question in (name for name in ABOUT if name in asked):
        same = [answer for found in founds for answer in found.answers if answer.question == question]
        answers.append(_average(tuple(same), f"questions-{place}-{question}"))
    return RecordingOverSeeds(results, tuple(answers), f"questions-{place}")


def _average(same: tuple[RecordingAnswer, ...], anchor: str) -> AnswerOverSeeds:
    """Over seeds, in which the clients and their members are the same."""
    bases = [answer.guessing for answer in same if answer.guessing is not None]
    clients = tuple(
        (each[0].name, each[0].cases, average_scores([client.scores for client in each], shared=True))
        for each in zip(*(answer.clients for answer in same), strict=True)
    )
    scores = average_scores([answer.scores for answer in same], bases, shared=True)
    return AnswerOverSeeds(same, scores, clients, anchor)


def _verdicts(recording: RecordingOverSeeds) -> Iterator[Verdict]:
    """One for every question, and for what canaries certify; or that nothing was measured."""
    data, notes = recording.cell.source, tuple(map(capitalise, recording.failures))
    if not recording.founds:
        sentence = "Nothing is known of the questions to this recording: the measurement failed."
        yield Verdict("failed", "questions to a recording", data, sentence, notes)
        return
    for answer in recording.answers:
        found = answer.judged_by if answer.alike else None
        verdict = Verdict(
            answer.severity, answer.about, data, _sentence(recording, answer), notes, answer.anchor
        )
        yield replace(
            verdict,
            order=found.low if found else 0.0,
            measure=answer.measure if found else "",
            average=found,
            guessing=None if not found else CHANCE if answer.first.question == "person" else 0.0,
            utility=recording.worth,
        )
    if run := recording.one_run:
        yield Verdict(
            "certified" if max(run.certified.low, run.gaussian.low) > 0 else "inconclusive",
            f"epsilon of one {run.unit} in this run",
            data,
            say_run(run),
            notes,
            recording.anchor,
            order=run.certified.low,
        )


def _sentence(recording: RecordingOverSeeds, answer: AnswerOverSeeds) -> str:
    seen = "sums of uploads" if recording.first.seen == "sum" else "global models"
    seen = "uploads" if recording.first.seen == "uploads" else seen
    server = f"A server that sees {seen} of {plural(recording.first.rounds, 'round')}"
    if not answer.alike:
        return (
            f"{server} may tell {answer.about}: this audit cannot say it. The records differ in more than "
            f"what is asked, which was seen before any update was looked at."
        )
    if answer.first.question == "person":
        assert answer.scores.tpr_at_1 is not None
        right, between, chance = spoken(answer.scores.tpr_at_1, CHANCE)
        return (
            f"{server} finds {right} of the people who took part (95% interval {between}), while wrongly "
            f"naming 1 in 100 others; guessing finds {chance}."
        )
    assert answer.scores.success is not None
    right, between, chance = spoken(answer.scores.success, answer.first.guessing or 0.0)
    return (
        f"{server} tells {answer.about} and is right in {right} of cases (95% interval {between}). Guessing "
        f"without them: {chance}.{_say_order(answer)}"
    )


def _say_order(answer: AnswerOverSeeds) -> str:
    """That clients are told by which has more, where they are so in every seed: few ranges hide that."""
    orders = [one.order for one in answer.answers if one.order is not None]
    if len(orders) < len(answer.answers) or any(p > LUCK for _, p in orders):
        return ""
    least, chance = min(found for found, _ in orders), max(p for _, p in orders)
    return (
        f" It does tell which clients have a larger share than others: the rank correlation with the true "
        f"order is {least:.2f} (p = {small(chance)})."
    )


def say_run(run: OneRun) -> str:
    """What canaries certify, and what is promised; a lower bound is a lower bound."""
    level = percent(run.certified.level, 0)
    head = f"From {plural(run.canaries, 'canary', 'canaries')}, of which a coin put in {run.included},"
    if run.certified.low > 0:
        claim = (
            f"{head} an auditor certifies that this training is NOT better than (epsilon = "
            f"{certified(run.certified.low)}, delta = {small(run.delta)})-private for a {run.unit}, at "
            f"{level} confidence."
        )
    else:
        claim = (
            f"{head} nothing is certified without assumptions: no epsilon above 0 at delta = "
            f"{small(run.delta)}. That does not show that the training is private."
        )
    if run.gaussian.low > 0:
        claim += (
            f" If the training is a Gaussian mechanism, epsilon is at least {certified(run.gaussian.low)}."
        )
    if run.promised is None:
        return f"{claim} What the training promises was not said."
    broken = run.certified.low > run.promised
    return f"{claim} It is said to promise {promised(run.promised)}{', which is NOT kept' if broken else ''}."
