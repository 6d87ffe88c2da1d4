"""In which range the share of a value lies at each client, read off its uploads by who rehearses clients."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from leakscope.audits.membership.judged import WatchedFederation
from leakscope.audits.questions.found import ClientAnswer, RecordingAnswer
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

LEAST = 20  # records of nobody with the value, and without, to rehearse clients with
COMPARED = 20  # rehearsed uploads whose length is held against the recorded ones
OTHERWISE = 2.0  # how many times as long or short they are where clients trained otherwise than was assumed


@dataclass(frozen=True, eq=False)
class Rehearsal:
    """Who is asked about, and how the adversary rehearses: the ``game`` on its own records. ``having`` of
    ``sizes`` candidates of each client have the value. A client trains by SGD as ``local`` says, at the rate
    of the recording where ``recorded``, and with the recorded number of steps. Of every client the first
    ``replayed`` rounds are read by the ``attack``."""

    watched: WatchedFederation
    game: Distribution
    having: tuple[int, ...]
    sizes: tuple[int, ...]
    local: Local
    recorded: bool
    replayed: int
    attack: Attack

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

    def _training(self, r: int, client: str) -> tuple[int, Local]:
        recording = self.watched.recording
        rate = (recording.rate(r, client) if self.recorded else None) or self.local.rate
        return recording.samples(r, client), replace(self.local, rate=rate, steps=recording.steps(r, client))

    def alike(self) -> Iterator[tuple[tuple[int, ...], int, Local, list[int]]]:
        """Clients, by place, who train alike: they are rehearsed together."""
        groups: dict[tuple[tuple[int, ...], int, Local], list[int]] = {}
        for c, client in enumerate(self.watched.clients):
            groups.setdefault(self.settings(client), []).append(c)
        for (rounds, samples, local), places in groups.items():
            yield rounds, samples, local, places


def find_rate(recording: Recording, given: float | None) -> float:
    """The learning rate of clients: as given, or as recorded; refused where nobody says it."""
    rates = [recording.rate(r, client) for r in recording.rounds for client in recording.clients_in(r)]
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
    remarks = [_say_training(rehearsal)]
    for rounds, samples, local, group in rehearsal.alike():
        told, ratio = _read(rehearsal, rounds, samples, local, group, rehearsals, seed)
        chances[group] = told.guesses.double()
        if not 1 / OTHERWISE < ratio < OTHERWISE:
            remarks.append(
                f"Rehearsed uploads are {ratio:.2g} times as long as those of {names[group[0]]}: clients "
                f"trained otherwise than was assumed, and a stronger adversary may know how."
            )
    short = [name for c, name in enumerate(names) if rehearsal.sizes[c] < rehearsal.settings(name)[1]]
    if short:
        remarks.append(
            f"The candidates are fewer than the records trained on at {', '.join(short)}: whether a range is "
            f"right is told from the candidates alone."
        )
    counts = torch.bincount(places, minlength=game.bins).double()
    transcript = Transcript(places, chances, counts / counts.sum())
    said = chances.argmax(1)
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
    )


def _read(
    rehearsal: Rehearsal,
    rounds: tuple[int, ...],
    samples: int,
    local: Local,
    group: list[int],
    rehearsals: int,
    seed: int,
) -> tuple[Transcript, float]:
    """What is said of clients who train alike, and how long a rehearsed upload is, in lengths of theirs."""
    recording, model = rehearsal.watched.recording, rehearsal.watched.model
    models = tuple({**recording.global_model(r), **recording.statistics(r)} for r in rounds)
    belief = UpdateChannel(deepcopy(model).train(), models, local=local)
    names = tuple(rehearsal.watched.clients[c] for c in group)
    real = RecordedChannel(recording, model, names, rounds)
    game = replace(rehearsal.game, batch=max(samples, rehearsal.game.bins - 1))
    clients = Clients(game, tuple(rehearsal.places[c] for c in group))
    rng = seeded(seed, "property", names[0])
    knowledge = Knowledge(game, belief, rehearsals)
    told = play(clients, real, rehearsal.attack, knowledge, trials=len(group), rng=rng)
    lengths = _measure_length(game, belief, COMPARED, rng), _measure_length(clients, real, len(group), rng)
    return told, lengths[0] / max(lengths[1], torch.finfo().tiny)


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


def _say_training(rehearsal: Rehearsal) -> str:
    """What a recording does not tell, and was assumed."""
    local = rehearsal.local
    steps = {rehearsal.settings(client)[2].steps for client in rehearsal.watched.clients}
    rate = "the recorded rate" if rehearsal.recorded else f"the rate {local.rate:g}"
    how = f"momentum {local.momentum:g}" if local.momentum else "no momentum"
    long = f"{local.epochs} epoch{'s' if local.epochs > 1 else ''}" if None in steps else "the recorded steps"
    return (
        f"Clients were taken to train by SGD with {how} at {rate}, for {long} on batches of {local.batch} "
        f"records: a recording does not name the optimiser or the batch."
    )
