"""More questions to the recording of a federation, from the same updates and candidates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from leakscope.attacks.joint import Joint
from leakscope.attacks.whitened import Whitened
from leakscope.audits.membership.judged import (
    DOUBT,
    Roster,
    WatchedFederation,
    check_attacks,
    measure_worth,
)
from leakscope.audits.membership.recorded import RecordingAudit
from leakscope.audits.questions.answers import (
    AskedRecords,
    answer_canaries,
    answer_person,
    answer_provenance,
    answer_source,
    compare_sizes,
)
from leakscope.audits.questions.evidence import Evidence, weigh
from leakscope.audits.questions.found import QUESTIONS, OneRun, QuestionsFound, RecordingAnswer
from leakscope.audits.questions.shares import Rehearsal, answer_property, deal_shares, find_rate
from leakscope.audits.world import describe, describe_model
from leakscope.core.dataset import Dataset, joined
from leakscope.core.errors import ArgumentError, DataError, require
from leakscope.core.nouns import Attack
from leakscope.core.rng import seeded
from leakscope.results.kind import Measured, World
from leakscope.training import Local
from leakscope.training.recording import Canaries

READER = Joint(ordinal=True)
FEWEST = 20  # people of nobody, for some to set a threshold and some to be judged


@dataclass(frozen=True)
class QuestionAudit(RecordingAudit):
    """What else a recording tells: whose a known record is, whether a person took part, whose an update is.

    It is given what a `RecordingAudit` is. ``ask`` names the questions. *Source*: which client holds a record
    that is known to be a member. *Person*: whether somebody with several records, told apart by the private
    column ``person``, was trained on. *Provenance*: which client is behind an upload without a name, for who
    has half of every client's records. ``canary`` is the column that names the canaries, which a coin put
    into training (`Canaries`, beside the recording): they certify an epsilon at ``delta``, from below, beside
    the one that is ``promised``.

    *Property*: in which of ``bins`` ranges is the share of the last value of ``secret`` among each client's
    records? The adversary rehearses clients with its own records, by SGD at ``rate`` (None: the recorded one)
    with ``momentum`` on batches of ``batch`` records, and ``reader`` is the attack that reads the first
    ``replayed`` rounds of each client. Of sums it reads the share of each client that is solved for from the
    first ``solved`` of them and who took part in each.
    """

    attacks: tuple[Attack, ...] = (Whitened(by_class=True),)
    ask: tuple[str, ...] = QUESTIONS
    person: str | None = None
    canary: str | None = None
    delta: float = 1e-5
    promised: float | None = None
    secret: str | None = None
    bins: int = 6
    rate: float | None = None
    batch: int = 32
    momentum: float = 0.0
    replayed: int = 3
    solved: int = 40
    reader: Attack = READER

    kind = "questions"

    def __post_init__(self) -> None:
        super().__post_init__()
        unknown = [name for name in self.ask if name not in QUESTIONS]
        require(not unknown, "QuestionAudit.ask", f"among {', '.join(QUESTIONS)}", unknown)
        require(0 < self.delta < 1, "QuestionAudit.delta", "between 0 and 1", self.delta)
        for name in ("replayed", "solved"):
            require(getattr(self, name) >= 1, f"QuestionAudit.{name}", "at least 1", getattr(self, name))
        self._training(1.0)
        if self.canary == self.column and self.seen == "uploads":
            raise ArgumentError(
                "QuestionAudit.canary must not be the column of clients where uploads are seen, since who "
                "uploads is then no secret; give --seen sum, or canaries that are records."
            )
        if not isinstance(self.attacks[0], Whitened):
            raise ArgumentError(
                f"QuestionAudit.attacks must begin with Whitened, which scores every update of a round, got "
                f"{type(self.attacks[0]).__name__}."
            )

    def check(self, world: World) -> None:
        """Refuse what the recording, the candidates or the model cannot give."""
        watched, who, *_ = self._prepare(world)
        check_attacks(self.attacks, watched.model, who)
        asked, known = self.deal(world, watched.clients, who)
        self._rehearse(world, replace(watched, clients=asked.clients), known)
        if asked.canaries is not None:
            self._toss(asked.canaries)

    def question(self, world: World) -> Measured[QuestionsFound]:
        """Every question that the candidates allow, and why others are not asked."""
        watched, who, *_ = self._prepare(world)
        asked, known = self.deal(world, watched.clients, who)
        told = _tell_halves(asked, world.seed)
        attack = self.attacks[0]
        assert isinstance(attack, Whitened)
        watched = replace(watched, clients=asked.clients)
        evidence = weigh(attack, watched, known, asked.records, told)
        answers: list[RecordingAnswer] = []
        unasked: list[str] = []
        for question in self.ask:
            if question == "property":
                reason, answer = self._answer_property(world, watched, known)
            else:
                reason, answer = self._answer(question, evidence, asked, world.seed)
            unasked += [reason] if reason else []
            answers += [answer] if answer else []
        recording = watched.recording
        found = QuestionsFound(
            answers=tuple(answers),
            one_run=self._certify(world, evidence, asked),
            unasked=tuple(unasked),
            clients=len(asked.clients),
            members=len(asked.whose),
            known=len(known),
            rounds=len(set(evidence.rounds)) or len(watched.rounds or recording.rounds),
            seen=watched.seen,
            utility=measure_worth(watched.model, recording.global_model(recording.rounds[-1]), who),
        )
        return Measured(found, describe(world.records), describe_model(world, watched.model))

    def deal(self, world: World, clients: tuple[str, ...], who: Roster) -> tuple[AskedRecords, Dataset]:
        """Who is asked about, and the adversary's own records of nobody: whole people where they are told
        apart. Canaries are neither members nor nobody's here: nothing may be learned from where they are."""
        rng, nobody = seeded(world.seed, "questions"), joined([who.known, who.held, who.others])
        members, canaries = list(who.members), None
        if self.canary is not None:
            coins = Canaries.read(self.recording).coins
            parts = [
                _set_aside(part, self.canary, coins, i < len(members))
                for i, part in enumerate([*members, nobody])
            ]
            canaries = joined([aside for _, aside in parts])
            *members, nobody = (rest for rest, _ in parts)
        column = self.person if "person" in self.ask else None
        units = nobody.secret(column) if column else torch.arange(len(nobody))
        people = units.unique()
        people = people[torch.randperm(len(people), generator=rng)]
        cuts = int(self.known * len(people)), int(self.held * len(people))
        if len(people) < FEWEST:
            raise DataError(
                f"{len(people)} {'people' if column else 'candidates'} belong to no client of the recording, "
                f"and questions need {FEWEST} at least; add records that nobody trained on."
            )
        known, held, others = (
            nobody.take(torch.isin(units, part).nonzero()[:, 0])
            for part in people.split((*cuts, len(people) - sum(cuts)))
        )
        there = [(name, part) for name, part in zip(clients, members, strict=True) if len(part)]
        names, own = tuple(name for name, _ in there), tuple(part for _, part in there)
        asked = AskedRecords(names, own, held, others, canaries, column)
        return asked, known

    def _answer(
        self, question: str, evidence: Evidence, asked: AskedRecords, seed: int
    ) -> tuple[str, RecordingAnswer | None]:
        """The answer, or why there is none."""
        several = len(asked.clients) > 1
        if question == "source":
            if not several:
                return "Source was not asked: the candidates name one client.", None
            if self.seen != "uploads" and not evidence.stayed:
                return (
                    "Source was not asked: somebody took part in every round, and sums do not tell who.",
                    None,
                )
            return "", answer_source(evidence.scores, asked, column=self.column, seed=seed)
        if question == "provenance":
            if self.seen != "uploads" or not several:
                return "Provenance was not asked: no upload of one of several clients is seen.", None
            senders = torch.tensor(evidence.senders)
            return "", answer_provenance(
                evidence.resemblance, senders, asked.clients, column=self.column, seed=seed
            )
        if asked.person is None or not asked.clients:
            return "Person was not asked: no column says whose a record is.", None
        if compare_sizes(asked) < DOUBT:
            return (
                "Person was not asked: members have other numbers of records each than people of nobody.",
                None,
            )
        return "", answer_person(evidence.scores, asked, seed=seed)

    def _training(self, rate: float) -> Local:
        """How clients are taken to train, at this rate."""
        return Local(self.rate or rate, batch=self.batch, momentum=self.momentum, decay=0.0)

    def _rehearse(self, world: World, watched: WatchedFederation, known: Dataset) -> Rehearsal | None:
        """All that the question of shares needs; None where it is not asked."""
        if "property" not in self.ask or self.secret is None or self.array:
            return None
        data = world.records
        game, having, sizes = deal_shares(data, known, self.column, watched.clients, self.secret, self.bins)
        local = self._training(find_rate(watched.recording, self.rate))
        rounds, recorded = (self.replayed, self.reader, self.solved), self.rate is None
        return Rehearsal(watched, game, having, sizes, local, recorded, *rounds)

    def _answer_property(
        self, world: World, watched: WatchedFederation, known: Dataset
    ) -> tuple[str, RecordingAnswer | None]:
        """What is said of shares, or why nothing is."""
        if self.secret is None:
            return "Property was not asked: no secret column was named.", None
        rehearsal = self._rehearse(world, watched, known)
        if rehearsal is None:
            return "Property was not asked: what was uploaded beside the parameters is looked at.", None
        if self.seen != "uploads" and not rehearsal.tells_apart:
            return (
                "Property was not asked: everybody is in every sum, or nobody says who is, and sums then "
                "tell of all clients together.",
                None,
            )
        if len(set(rehearsal.places)) < 2:
            return (
                "Property was not asked: the share lies in the same range at every client here, so that a "
                "right answer would show nothing.",
                None,
            )
        return "", answer_property(rehearsal, rehearsals=world.cell.rehearsals, seed=world.seed)

    def _certify(self, world: World, evidence: Evidence, asked: AskedRecords) -> OneRun | None:
        """What the canaries certify, if there are any."""
        if asked.canaries is None or self.canary is None:
            return None
        coins, which = self._toss(asked.canaries)
        scores = evidence.scores
        if self.canary == self.column and evidence.overall is not None:  # who took part is what is asked
            scores = evidence.overall[None]
        return answer_canaries(
            scores[:, asked.places[-1]],
            coins,
            which,
            column=self.canary,
            client=self.canary == self.column,
            delta=self.delta,
            promised=self.promised,
            seed=world.seed,
        )

    def _toss(self, canaries: Dataset) -> tuple[list[bool], torch.Tensor]:
        """The coins, and which canary every record is of; refused where some are missing."""
        coins, column = Canaries.read(self.recording).coins, str(self.canary)
        place = {name: i for i, name in enumerate(coins)}
        names = [place.get(name, -1) for name in canaries.value_names(column)]
        which = torch.tensor(names)[canaries.secret(column)]
        lost = [name for name, i in place.items() if not bool((which == i).any())]
        if lost:
            raise DataError(
                f"column {column!r} lacks {len(lost)} of {len(coins)} canaries, such as {lost[0]!r}; give "
                f"all of them, so that which are given does not hang on the coins."
            )
        return list(coins.values()), which


def _tell_halves(asked: AskedRecords, seed: int) -> torch.Tensor:
    """(n, clients): the weights of a mean over half of each client's members."""
    weights = torch.zeros(len(asked.records), len(asked.clients), dtype=torch.float64)
    for c, rows in enumerate(asked.places[: len(asked.clients)]):
        half = rows[torch.randperm(len(rows), generator=seeded(seed, "told", c))[: -(-len(rows) // 2)]]
        weights[half, c] = 1 / len(half)
    return weights


def _set_aside(
    part: Dataset, column: str, coins: Mapping[str, bool], trained: bool
) -> tuple[Dataset, Dataset]:
    """The records that are no canaries, and those that are; refused where the coins say otherwise than the
    candidates of who was trained on."""
    names = part.value_names(column)
    canary = torch.tensor([name in coins for name in names])[part.secret(column)]
    aside = part.take(canary.nonzero()[:, 0])
    for code in aside.secret(column).unique().tolist():
        if coins[names[code]] != trained:
            raise DataError(
                f"the candidates say of canary {names[code]!r} that {'a client' if trained else 'nobody'} "
                f"trained on it, and its coin says otherwise; give each canary as its coin says."
            )
    return part.take((~canary).nonzero()[:, 0]), aside
