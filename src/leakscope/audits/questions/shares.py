"""In which range the share of a value lies at each client, read off its uploads, or off sums in which it took
part, by who rehearses clients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from scipy import stats
from torch import Tensor

from leakscope.audits.membership.judged import WatchedFederation
from leakscope.audits.questions.found import ClientAnswer, RecordingAnswer
from leakscope.audits.questions.sums import LinearReader, Participation, RehearsedSums, SolvedSums
from leakscope.core.dataset import Dataset
from leakscope.core.errors import ArgumentError, DataError
from leakscope.core.nouns import Attack, Channel, Estimate, Knowledge, Transcript
from leakscope.core.rng import seeded
from leakscope.games import Clients, Distribution
from leakscope.games.channels import UpdateChannel
from leakscope.games.referee import play
from leakscope.measures.shuffled import shuffled
from leakscope.measures.success import advantage, guessing, proportion, success_rate
from leakscope.results.scores import Scores
from leakscope.training import Local
from leakscope.training.recording import RecordedChannel, Recording
from leakscope.training.recording.index import SUM

LEAST = 20  # records of nobody with the value, and without, to rehearse clients with
COMPARED = 20  # rehearsed uploads whose length is held against the recorded ones
FEWEST, BYTES = 60, 2**29  # rehearsed clients that a reader of sums is fitted to, and what they may take
PERMUTED = 999  # orders of clients that the true one is held against
Reading = tuple[list[int], Transcript, float]  # clients by place, what is said of them, lengths
OTHERWISE = 2.0  # how many times as long or short they are where clients trained otherwise than was assumed


@dataclass(frozen=True, eq=False)
class Rehearsal:
    """Who is asked about, and how the adversary rehearses: the ``game`` on its own records. ``having`` of
    ``sizes`` candidates of each client have the value. A client trains by SGD as ``local`` says, at the rate
    of the recording where ``recorded``, and with the recorded number of steps. Of every client the first
    ``replayed`` rounds are read by the ``attack``. Where sums are seen, it reads the share that is solved for
    of each client, from the first ``solved`` of them."""

    watched: WatchedFederation
    game: Distribution
    having: tuple[int, ...]
    sizes: tuple[int, ...]
    local: Local
    recorded: bool
    replayed: int
    attack: Attack
    solved: int = 40

    @cached_property
    def participation(self) -> Participation:
        """Who took part in which of the sums that are seen; empty where of some nobody says it."""
        recording, watched = self.watched.recording, self.watched
        rounds = watched.rounds or RecordedChannel(recording, watched.model, (), (), watched.seen).rounds
        known = all(recording.clients_in(r) for r in rounds)
        return Participation.of(recording, rounds[: self.solved] if known else ())

    @property
    def tells_apart(self) -> bool:
        """Whether clients can be told apart by the sums they are in, each of whom is asked about being in
        one."""
        part = self.participation
        return {*self.watched.clients} <= {*part.clients} and part.tells_apart

    @property
    def places(self) -> tuple[int, ...]:
        """The range that each client's share lies in."""
        return tuple(self.game.place(*pair) for pair in zip(self.having, self.sizes, strict=True))

    def settings(self, client: str) -> tuple[tuple[int, ...], int, Local]:
        """The rounds of a client that are read, its records, and how it trains in all of them."""
        recording = self.watched.recording
        there = [r for r in recording.rounds if client in recording.clients_in(r)]
        first = self._training(there[0], client)
        same = [r for r in there if self._training(r, client) == first]
        return tuple(same[: self.replayed]), *first

    def usual(self, rounds: Sequence[int]) -> tuple[int, int, int, Local]:
        """Of those who are behind sums: the fewest, the most and the mean records of one, and how the first
        trains."""
        recording, sizes = self.watched.recording, []
        for r in rounds:
            for part in recording.parts_in(r):
                among = len(recording.clients_in(r)) if part == SUM else 1
                sizes.append(max(1, round(recording.samples(r, part) / among)))
        _, local = self._training(rounds[0], recording.parts_in(rounds[0])[0])
        return min(sizes), max(sizes), round(sum(sizes) / len(sizes)), local

    def _training(self, r: int, client: str) -> tuple[int, Local]:
        recording = self.watched.recording
        rate = (recording.rate(r, client) if self.recorded else None) or self.local.rate
        return recording.samples(r, client), replace(self.local, rate=rate, steps=recording.steps(r, client))

    def believe(self, rounds: Sequence[int], local: Local) -> UpdateChannel:
        """What rehearsed clients upload in these rounds."""
        recording = self.watched.recording
        models = tuple({**recording.global_model(r), **recording.statistics(r)} for r in rounds)
        return UpdateChannel(deepcopy(self.watched.model).train(), models, local=local)

    def trained(self, client: str) -> int:
        """How many records a client trained on, or those behind a sum in the mean."""
        if self.watched.seen == "uploads":
            return self.settings(client)[1]
        return self.usual(self.participation.rounds)[2]

    def alike(self) -> Iterator[tuple[tuple[int, ...], int, Local, list[int]]]:
        """Clients, by place, who train alike: they are rehearsed together."""
        groups: dict[tuple[tuple[int, ...], int, Local], list[int]] = {}
        for c, client in enumerate(self.watched.clients):
            groups.setdefault(self.settings(client), []).append(c)
        for (rounds, samples, local), places in groups.items():
            yield rounds, samples, local, places


def find_rate(recording: Recording, given: float | None) -> float:
    """The learning rate of clients: as given, or as recorded; refused where nobody says it."""
    rates = [recording.rate(r, part) for r in recording.rounds for part in recording.parts_in(r)]
    known = [rate for rate in rates if rate is not None]
    if given is None and len(known) < len(rates):
        raise ArgumentError(
            f"--ask property needs --rate, the learning rate of the clients, since {str(recording.path)!r} "
            f"does not say it; it is needed to rehearse them."
        )
    return given or known[0]


def deal_shares(
    candidates: Dataset, known: Dataset, column: str, names: tuple[str, ...], secret: str, bins: int
) -> tuple[Distribution, tuple[int, ...], tuple[int, ...]]:
    """The game on the adversary's records, and how many of how many candidates of each client have the
    value; refused where too few records of nobody have it or lack it."""
    if secret == column:
        raise ArgumentError(f"--secret must not be the column of clients, got {secret!r}; name another one.")
    codes, values = candidates.secret(secret), candidates.value_names(secret)
    code = int(codes.max())  # the last value that occurs
    count = int((known.secret(secret) == code).sum())
    if min(count, len(known) - count) < LEAST:
        raise DataError(
            f"of the adversary's {len(known)} records of nobody, {count} have the value of {secret!r} that "
            f"is asked about, and {LEAST} at least must have it and {LEAST} lack it; add records that nobody "
            f"trained on."
        )
    whose, clients = candidates.secret(column), candidates.value_names(column)
    own = [codes[whose == clients.index(name)] for name in names]
    game = Distribution(known, secret, bins=bins, value=values[code])
    return game, tuple(int((part == code).sum()) for part in own), tuple(map(len, own))


def answer_property(rehearsal: Rehearsal, *, rehearsals: int, seed: int) -> RecordingAnswer:
    """What is said of every client's share. Who sees nothing names the range that most clients are in."""
    names, game, places = rehearsal.watched.clients, rehearsal.game, torch.tensor(rehearsal.places)
    chances = torch.zeros(len(names), game.bins, dtype=torch.float64)
    remarks: list[str] = []
    read = _read_uploads if rehearsal.watched.seen == "uploads" else _read_sums
    for group, told, ratio in read(rehearsal, rehearsals, seed, remarks):
        chances[group] = told.guesses.double()
        if not 1 / OTHERWISE < ratio < OTHERWISE:
            remarks.append(
                f"Rehearsed uploads are {ratio:.2g} times as long as those of {names[group[0]]}: clients "
                f"trained otherwise than was assumed, and a stronger adversary may know how."
            )
    short = [name for c, name in enumerate(names) if rehearsal.sizes[c] < rehearsal.trained(name)]
    if short:
        remarks.append(
            f"The candidates are fewer than the records trained on at {', '.join(short)}: whether a range is "
            f"right is told from the candidates alone."
        )
    counts = torch.bincount(places, minlength=game.bins).double()
    transcript = Transcript(places, chances, counts / counts.sum())
    said, middles = chances.argmax(1), [sum(game.span(i, i)) / 2 for i in range(game.bins)]
    shares = torch.tensor([a / b for a, b in zip(rehearsal.having, rehearsal.sizes, strict=True)])
    expected = chances @ torch.tensor(middles, dtype=torch.float64)
    level = 1 - 0.05 / len(names)
    return RecordingAnswer(
        question="property",
        column=game.column,
        trait=game.names[0],
        guessing=guessing(transcript),
        scores=Scores[Estimate](success=success_rate(transcript), advantage=advantage(transcript)),
        clients=tuple(
            ClientAnswer(
                name=name,
                cases=rehearsal.sizes[c],
                range=game.span(int(said[c]), int(said[c])),
                scores=Scores[Estimate](
                    success=proportion("success rate", int(said[c] == places[c]), 1, level=level)
                ),
            )
            for c, name in enumerate(names)
        ),
        selfcheck=shuffled(transcript, rng=seeded(seed, "shuffle", "property")),
        remarks=tuple(remarks),
        order=compare_order(expected, shares, seeded(seed, "order", "property")),
    )


def compare_order(said: Tensor, true: Tensor, rng: torch.Generator) -> tuple[float, float] | None:
    """The rank correlation of both, and the chance of as much by a permutation test; None where one of them
    is the same of every client."""
    ranks = [torch.from_numpy(stats.rankdata(part.numpy())) for part in (said, true)]
    a, b = (part - part.mean() for part in ranks)
    length = float(a.norm() * b.norm())
    if not length:
        return None
    dealt = torch.stack([b[torch.randperm(len(b), generator=rng)] for _ in range(PERMUTED)])
    found, others = float(a @ b) / length, dealt @ a / length
    return found, (1 + int((others >= found - 1e-12).sum())) / (1 + PERMUTED)


def _read_uploads(rehearsal: Rehearsal, rehearsals: int, seed: int, remarks: list[str]) -> Iterator[Reading]:
    """What is said of clients, those who train alike together."""
    steps = {rehearsal.settings(client)[2].steps for client in rehearsal.watched.clients}
    remarks.append(_say_training(rehearsal, steps))
    for rounds, samples, local, group in rehearsal.alike():
        names = tuple(rehearsal.watched.clients[c] for c in group)
        real = RecordedChannel(rehearsal.watched.recording, rehearsal.watched.model, names, rounds)
        game = replace(rehearsal.game, batch=max(samples, rehearsal.game.bins - 1))
        yield _play(rehearsal, game, real, rehearsal.believe(rounds, local), group, rehearsals, seed)


def _read_sums(rehearsal: Rehearsal, rehearsals: int, seed: int, remarks: list[str]) -> Iterator[Reading]:
    """What is said of all clients, from the share that is solved for of each."""
    watched, part = rehearsal.watched, rehearsal.participation
    fewest, most, samples, local = rehearsal.usual(part.rounds)
    remarks.append(_say_training(rehearsal, {local.steps}))
    remarks.append(
        f"No upload of a client was seen: shares were solved for from {len(part.rounds)} sums of "
        f"{len(part.clients)} clients and who took part in them."
    )
    if most >= OTHERWISE * fewest:
        remarks.append(f"Rehearsed clients have {samples} records each, recorded ones {fewest} to {most}.")
    game = replace(rehearsal.game, batch=max(samples, rehearsal.game.bins - 1))
    uploads, rng = rehearsal.believe(part.rounds, local), seeded(seed, "readers")
    entries = sum(p.numel() for p in watched.model.parameters())
    view, codes = game.deal(uploads, min(rehearsals, max(FEWEST, BYTES // (8 * entries))), rng)
    readers = [LinearReader.fit(release, codes) for release in view.releases]
    noise = torch.tensor([reader.noise for reader in readers], dtype=torch.float64)
    solution = part.solve(noise, float(codes.double().var()))
    belief = RehearsedSums(uploads, readers, part.weights, solution)
    sums = RecordedChannel(watched.recording, watched.model, watched.clients, part.rounds, watched.seen)
    places = tuple(part.clients.index(name) for name in watched.clients)
    real = SolvedSums(sums, readers, solution, places)
    yield _play(rehearsal, game, real, belief, list(range(len(places))), rehearsals, seed)


def _play(
    rehearsal: Rehearsal,
    game: Distribution,
    real: Channel,
    belief: Channel,
    group: list[int],
    rehearsals: int,
    seed: int,
) -> Reading:
    """What is said of some clients, and how long a rehearsed upload is, in lengths of theirs."""
    clients = Clients(game, tuple(rehearsal.places[c] for c in group))
    rng = seeded(seed, "property", rehearsal.watched.clients[group[0]])
    knowledge = Knowledge(game, belief, rehearsals)
    told = play(clients, real, rehearsal.attack, knowledge, trials=len(group), rng=rng)
    lengths = _measure_length(game, belief, COMPARED, rng), _measure_length(clients, real, len(group), rng)
    return group, told, lengths[0] / max(lengths[1], torch.finfo().tiny)


def _measure_length(
    game: Distribution | Clients, channel: Channel, trials: int, rng: torch.Generator
) -> float:
    """The mean length of uploads of the first round."""
    view, _ = game.deal(channel, trials, rng)
    lengths: list[Tensor] = []
    for layers in view.releases[0].blocks():
        lengths.append(
            torch.stack([part.flatten(1).double().norm(dim=1) for part in layers.values()]).norm(dim=0)
        )
    return float(torch.cat(lengths).mean())


def _say_training(rehearsal: Rehearsal, steps: set[int | None]) -> str:
    """What a recording does not tell, and was assumed."""
    local = rehearsal.local
    rate = "the recorded rate" if rehearsal.recorded else f"the rate {local.rate:g}"
    how = f"momentum {local.momentum:g}" if local.momentum else "no momentum"
    long = f"{local.epochs} epoch{'s' if local.epochs > 1 else ''}" if None in steps else "the recorded steps"
    return (
        f"Clients were taken to train by SGD with {how} at {rate}, for {long} on batches of {local.batch} "
        f"records: a recording does not name the optimiser or the batch."
    )
