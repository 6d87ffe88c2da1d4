"""Each question as a function of the evidence: scores of records against clients in, an answer out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from scipy import stats
from torch import Tensor

from leakscope.audits.membership.judged import DOUBT
from leakscope.audits.membership.scoring import measure_games
from leakscope.audits.questions.found import ClientAnswer, OneRun, Question, RecordingAnswer, Unit
from leakscope.core.dataset import Dataset, joined
from leakscope.core.nouns import Estimate, Transcript
from leakscope.core.rng import seeded
from leakscope.measures.exchangeability import Exchangeability, exchangeability
from leakscope.measures.one_run import one_run_epsilon
from leakscope.measures.shuffled import shuffled
from leakscope.measures.success import advantage, auroc, guessing, proportion, success_rate
from leakscope.results.scores import Scores

EVEN = torch.full((2,), 0.5, dtype=torch.float64)


@dataclass(frozen=True, eq=False)
class AskedRecords:
    """The records that are asked about, in their order: the ``members`` of the ``clients``, then those of
    nobody, ``held`` to set thresholds and ``others`` to be judged, then ``canaries``. ``person`` is the
    column that says whose a record is."""

    clients: tuple[str, ...]
    members: tuple[Dataset, ...]
    held: Dataset
    others: Dataset
    canaries: Dataset | None = None
    person: str | None = None

    @property
    def records(self) -> Dataset:
        more = [self.canaries] if self.canaries is not None else []
        return joined([*self.members, self.held, self.others, *more])

    @property
    def places(self) -> list[Tensor]:
        """The rows of every client's members, of held-out, judged and canary records."""
        parts = [*self.members, self.held, self.others]
        sizes = [len(part) for part in parts] + [len(self.canaries) if self.canaries is not None else 0]
        return list(torch.arange(sum(sizes)).split(sizes))

    @property
    def whose(self) -> Tensor:
        """The place of the client of every member."""
        sizes = torch.tensor([len(part) for part in self.members], dtype=torch.long)
        return torch.arange(len(self.members)).repeat_interleave(sizes)


def answer_source(scores: Tensor, asked: AskedRecords, *, column: str, seed: int) -> RecordingAnswer:
    """Which client holds a record that is known to be a member: the one that it scores highest against."""
    whose = asked.whose
    alike = tuple(
        exchangeability(
            own,
            joined([part for j, part in enumerate(asked.members) if j != i]),
            rng=seeded(seed, "alike", "source", name),
            client=name,
            level=DOUBT / len(asked.clients),
        )
        for i, (name, own) in enumerate(zip(asked.clients, asked.members, strict=True))
    )
    chances = scores[:, : len(whose)].T.softmax(1)
    return _name_clients("source", chances, whose, asked.clients, column, seed, alike)


def answer_provenance(
    resemblance: Tensor, senders: Tensor, names: tuple[str, ...], *, column: str, seed: int
) -> RecordingAnswer:
    """Whose an unnamed upload is: the client whose other records it resembles most. One upload of each client
    is asked about, of a round drawn at random, and held against how all uploads resemble these records."""
    centred = resemblance - resemblance.mean(0)
    order = torch.randperm(len(senders), generator=seeded(seed, "uploads"))
    drawn = torch.stack([order[(senders[order] == c).nonzero()[0, 0]] for c in range(len(names))])
    chances = centred[drawn].double().softmax(1)
    return _name_clients("provenance", chances, senders[drawn], names, column, seed)


def _name_clients(
    question: Question,
    chances: Tensor,
    whose: Tensor,
    names: tuple[str, ...],
    column: str,
    seed: int,
    alike: tuple[Exchangeability, ...] = (),
) -> RecordingAnswer:
    """An answer that names a client; who sees nothing names the one with most cases."""
    counts = torch.bincount(whose, minlength=len(names))
    transcript = Transcript(whose, chances, counts.double() / counts.sum())
    right = chances.argmax(1) == whose
    level = 1 - 0.05 / len(names)
    clients = [
        ClientAnswer(
            name=name,
            cases=int(counts[c]),
            scores=Scores[Estimate](
                success=proportion("success rate", int(right[whose == c].sum()), int(counts[c]), level=level)
            ),
        )
        for c, name in enumerate(names)
    ]
    return RecordingAnswer(
        question=question,
        column=column,
        guessing=guessing(transcript),
        scores=Scores[Estimate](
            success=success_rate(transcript), advantage=advantage(transcript), auroc=auroc(transcript)
        ),
        clients=tuple(clients),
        selfcheck=shuffled(transcript, drawn=True, rng=seeded(seed, "shuffle", question)),
        alike=alike,
    )


def answer_person(scores: Tensor, asked: AskedRecords, *, seed: int) -> RecordingAnswer:
    """Whether a person's records were trained on, told from all of them together."""
    column, games = asked.person or "", play_people(scores, asked)
    outside = joined([asked.held, asked.others])
    alike = tuple(
        exchangeability(
            own,
            outside,
            rng=seeded(seed, "alike", "person", name),
            client=name,
            people=column,
            level=DOUBT / len(asked.clients),
        )
        for name, own in zip(asked.clients, asked.members, strict=True)
    )
    means, _, clients = measure_games(games)
    return RecordingAnswer(
        question="person",
        column=column,
        guessing=None,
        scores=means,
        judged=min(client.judged or 0 for client in clients),
        clients=tuple(
            ClientAnswer(name=client.name, cases=client.members, scores=client.scores) for client in clients
        ),
        selfcheck=shuffled(games[0][1], auroc, null=0.5, rng=seeded(seed, "shuffle", "person")),
        alike=alike,
    )


def play_people(scores: Tensor, asked: AskedRecords) -> list[tuple[str, Transcript]]:
    """The game about people at every client. A person's score is the sum of the records' over the root of
    their number. Thresholds are set by people of nobody, and people are judged."""
    codes = asked.records.secret(asked.person or "")
    *members, held, others, _ = asked.places
    games = []
    for c, (name, own) in enumerate(zip(asked.clients, members, strict=True)):
        parts = [_by_person(scores[c], codes, rows) for rows in (own, others, held)]
        secrets = torch.tensor([1, 0, -1]).repeat_interleave(torch.tensor([len(part) for part in parts]))
        games.append((name, Transcript.of_scores(secrets, torch.cat(parts), EVEN)))
    return games


def compare_sizes(asked: AskedRecords) -> float:
    """The p-value of a rank test that people of nobody have as many records each as members have."""
    codes = asked.records.secret(asked.person or "")
    *members, held, others, _ = asked.places
    outside = torch.cat([held, others])
    inside = torch.cat([codes[rows].unique(return_counts=True)[1] for rows in members])
    away = codes[outside].unique(return_counts=True)[1]
    if bool((inside == inside[0]).all() and (away == inside[0]).all()):
        return 1.0
    return float(stats.mannwhitneyu(inside.numpy(), away.numpy()).pvalue)


def _by_person(scores: Tensor, codes: Tensor, rows: Tensor) -> Tensor:
    people, place = codes[rows].unique(return_inverse=True)
    sums = torch.zeros(len(people), dtype=scores.dtype).index_add_(0, place, scores[rows])
    return sums / torch.bincount(place).double().sqrt()


def answer_canaries(
    scores: Tensor,
    coins: Sequence[bool],
    which: Tensor,
    *,
    column: str,
    client: bool,
    delta: float,
    promised: float | None,
    seed: int,
) -> OneRun:
    """What one run certifies: ``scores`` (clients, n) of the canaries' records, ``which`` (n,) canary each is
    of. A canary's score is the highest over clients of its records' mean, which no coin decides."""
    counts = torch.bincount(which, minlength=len(coins))
    sums = torch.zeros(len(scores), len(coins), dtype=scores.dtype).index_add_(1, which, scores)
    best = (sums / counts).amax(0)
    transcript = Transcript(torch.tensor(coins).long(), best, EVEN)
    several: Unit = "person" if int(counts.max()) > 1 else "record"
    return OneRun(
        column=column,
        unit="client" if client else several,
        canaries=len(coins),
        included=sum(coins),
        delta=delta,
        certified=one_run_epsilon(transcript, delta=delta),
        gaussian=one_run_epsilon(transcript, delta=delta, trade_off="gaussian"),
        promised=promised,
        selfcheck=shuffled(transcript, auroc, null=0.5, rng=seeded(seed, "shuffle", "canaries")),
    )
