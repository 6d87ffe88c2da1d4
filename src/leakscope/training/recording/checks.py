"""Whether a recording can be what it says: each step of the global model against the uploads before it.

A recording that does not fit would be audited all the same, and little would be found in it. What each
rule of a server would have done is compared with what was done, one round at a time. What is not finite is
left out, and said.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from leakscope.core.errors import DataError
from leakscope.core.nouns import Params
from leakscope.training.recording.index import SUM, listed
from leakscope.training.recording.order import Trail
from leakscope.training.recording.reader import NotFinite, Recording
from leakscope.training.recording.replay import TWICE, count_times

EXACT = 1e-2  # of a step's length: how far it may lie from what a rule would do, for half precision too
LIKE = 0.99  # cosine with the direction of a rule whose rate is not known
TIE = 1e-6  # of a cosine: rules that fit as well cannot be told apart
STILL = 1e-3  # of the uploads' own lengths: a mean update that is shorter is none
AWAY, SLIGHT = 0.8, 0.9  # how far from the model, and how much towards 0, uploads of parameters never lie
BETAS = 0.9, 0.99  # of adaptive servers, as Flower and Reddi et al. 2021 have them
ENTRIES = 2**20  # of the parameters, that rules with moments are held against
UNKNOWN = "unknown"


@dataclass(frozen=True)
class Checked:
    """What the recorded steps say of the server and of the uploads. ``gap`` is the largest distance between
    a step and the uploads' mean, over the step's length; ``agreement`` the best cosine of both over rounds,
    None where no step can be compared and 0 where the model never moved. ``faults`` forbid an audit,
    ``remarks`` must be read beside one. ``recording`` is what can be audited, without what is not finite."""

    recording: Recording
    server: str
    gap: float | None
    agreement: float | None
    faults: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def averages(self) -> bool:
        """Whether every step that could be compared is the uploads' mean."""
        return self.gap is not None and self.gap <= EXACT

    @property
    def lines(self) -> list[str]:
        far = "" if self.gap is None else f" A step differs from the mean upload by at most {self.gap:.1%}."
        return [f"Server: {self.server}.{far}" if self.server else "Uploads: not looked at.", *self.remarks]

    def raise_faults(self, path: object) -> None:
        if self.faults:
            raise DataError(f"{str(path)!r} cannot be audited as it is: {' '.join(self.faults)}")


@dataclass
class _Adaptive:
    """A rule of Reddi et al. 2021, and how well its direction fits the steps so far; the rate is free."""

    name: str
    tau: float
    first: Tensor | float = 0.0  # moments
    second: Tensor | float = 0.0
    cosines: list[float] = field(default_factory=list)

    def follow(self, update: Tensor, step: Tensor | None) -> None:
        """See a round's mean update; ``step``, if it is recorded, is what the server made of it."""
        (one, two), square = BETAS, update**2
        if self.name == "FedAdagrad":
            self.first, self.second = update, self.second + square
        else:
            self.first = one * self.first + (1 - one) * update
            away = (self.second - square).sign() if self.name == "FedYogi" else None
            kept = self.second if away is not None else two * self.second
            self.second = kept - (1 - two) * square * (away if away is not None else -1)
        if step is not None:
            self.cosines.append(_cosine(self.first / (self.second**0.5 + self.tau), step))

    @property
    def fit(self) -> float:
        return min(self.cosines, default=0.0)


def check_recording(
    recording: Recording, *, uploads: bool = True, needed: Collection[str] | None = None
) -> Checked:
    """Every file, and every step of the global model against the uploads of its round. Without ``uploads``
    the global models alone. A damaged file is refused, but for an upload of a client that is not ``needed``
    (None: all are), which is left out."""
    seen = _Seen(needed=needed)
    servers = [_Adaptive(name, tau) for name in ("FedAdam", "FedYogi", "FedAdagrad") for tau in (1e-9, 1e-3)]
    before, rounds = None, recording.rounds
    for i, r in enumerate(rounds):
        before = seen.read_model(recording, r) if before is None else before
        next_up = i + 1 < len(rounds) and rounds[i + 1] == r + 1
        after = seen.read_model(recording, r + 1) if next_up and (r, None) not in seen.without else None
        if before is not None and uploads and recording.clients_in(r):
            mean, lengths = _read_round(recording, r, before, seen)
            step = None if after is None else after - before
            few = slice(None, None, max(1, len(before) // ENTRIES))
            for server in servers:
                server.follow(mean[few], None if step is None else step[few])
            if lengths:
                seen.trail.see_mean(r, before + mean)
            if step is not None and lengths:
                seen.compare(r, before, mean, step, lengths)
        before = after
    seen.raise_damage()
    return seen.conclude(recording, servers, uploads)


@dataclass
class _Seen:
    """What has been seen of the rounds so far."""

    needed: Collection[str] | None = None
    without: dict[tuple[int, str | None], str] = field(default_factory=dict)  # what is left out, and why
    damage: list[str] = field(default_factory=list)
    filled: Tensor | None = None  # entries that were not zero in every global model
    trail: Trail = field(default_factory=Trail)
    compared: list[int] = field(default_factory=list)  # rounds whose step was held against the uploads
    stood: list[int] = field(default_factory=list)  # rounds after which the global model was the same
    gaps: list[float] = field(default_factory=list)
    cosines: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    momenta: list[tuple[float, float]] = field(default_factory=list)  # share of the step before, and cosine
    before: Tensor | None = None  # the step before
    differences: list[bool] = field(default_factory=list)  # whether uploads fit better as differences
    parameters: list[bool] = field(default_factory=list)  # or, read as those, as parameters
    late: list[bool] = field(default_factory=list)  # whether the mean update is none
    divisors: list[float] = field(default_factory=list)  # by which uploads must be divided to give the step
    large: list[bool] = field(default_factory=list)  # whether the uploads' mean is the model several times
    times: dict[str, float] = field(default_factory=dict)  # how many times, of each client, at most
    moved: Tensor | None = None  # entries that any upload changed
    idle: dict[str, int] = field(default_factory=dict)  # rounds in which a client changed nothing
    slight: dict[str, int] = field(default_factory=dict)  # or uploaded next to nothing beside the model
    uploads: dict[str, int] = field(default_factory=dict)
    twins: set[str] = field(default_factory=set)  # clients who uploaded what another did

    def read_model(self, recording: Recording, r: int) -> Tensor | None:
        """The global model of a round; None if it is left out or damaged."""
        try:
            model = _flat(recording.global_model(r))
        except NotFinite:
            self.without[r, None] = "values are not finite"
            return None
        except DataError as error:
            self.damage.append(str(error))
            return None
        self.filled = (model != 0) if self.filled is None else self.filled | (model != 0)
        self.trail.see_model(r, model)
        return model

    def read_upload(self, recording: Recording, r: int, client: str) -> Tensor | None:
        """What a client uploaded; None if it is left out or damaged."""
        try:
            for array in recording.arrays:
                recording.further(r, client, array)
            return _flat(recording.uploaded(r, client))
        except NotFinite:
            self.without[r, client] = "values are not finite"
        except DataError as error:
            if self.needed is None or client in (SUM, *self.needed):
                self.damage.append(str(error))
            else:
                self.without[r, client] = "the file is damaged or missing"
        return None

    def raise_damage(self) -> None:
        if reasons := list(dict.fromkeys(self.damage)):
            more = f" And {len(reasons) - 4} more." if len(reasons) > 4 else ""
            raise DataError(" ".join(reasons[:4]) + more)

    def compare(self, r: int, before: Tensor, mean: Tensor, step: Tensor, lengths: list[float]) -> None:
        length = float(step.norm())
        if length == 0:
            self.stood.append(r)
            return
        self.compared.append(r)
        self.gaps.append(float((step - mean).norm()) / length)
        self.cosines.append(_cosine(mean, step))
        self.rates.append(float(step @ mean) / max(float(mean @ mean), 1e-300))
        if self.before is not None:
            both = torch.stack([self.before, mean], 1)
            share = torch.linalg.lstsq(both, step[:, None]).solution
            self.momenta.append((float(share[0]), _cosine((both @ share)[:, 0], step)))
        self.before = step
        best = max(LIKE, _cosine(mean, step))
        self.differences.append(abs(_cosine(mean + before, step)) > best)
        self.parameters.append(_cosine(mean - before, step) > best)
        self._divide(before, mean + before, step, best)
        self.late.append(len(lengths) > 0 and float(mean.norm()) <= STILL * max(lengths))

    def _divide(self, before: Tensor, uploaded: Tensor, step: Tensor, best: float) -> None:
        """Whether the step is the uploads' mean, at any rate, only once that is divided."""
        self.large.append(count_times(before, uploaded) > 0)
        both = torch.stack([before, step], 1)
        count = float(torch.linalg.lstsq(both, uploaded[:, None]).solution[0])
        if count >= TWICE and _cosine(uploaded - count * before, step) > best:
            self.divisors.append(count)

    def conclude(self, recording: Recording, servers: list[_Adaptive], uploads: bool) -> Checked:
        server = self._server(servers) if uploads else ""
        strange = self.large if server.startswith(UNKNOWN) else [False] * len(self.large)
        rounds = zip(self.cosines, self.differences, strange, strict=True)
        plain = [0.0 if other or large else cosine for cosine, other, large in rounds]
        return Checked(
            recording.choose(without=self.without) if self.without else recording,
            server,
            max(self.gaps, default=None),
            max(plain, default=0.0 if self.stood else None),
            tuple(self._faults(recording)),
            tuple(self._remarks(recording, server)),
        )

    def _server(self, servers: list[_Adaptive]) -> str:
        if not self.gaps and self.stood:
            return f"{UNKNOWN}: the global model is the same after every round"
        if not self.gaps:
            return f"{UNKNOWN}: no round has both uploads and the global model after it"
        if max(self.gaps) <= EXACT:
            return "FedAvg (each step is the mean of the uploads)"
        if min(self.cosines) > LIKE:
            low, high = min(self.rates), max(self.rates)
            rate = f"{low:.3g}" if high - low <= EXACT * high else f"{low:.3g} to {high:.3g}"
            return f"the mean of the uploads at a rate of {rate}"
        shares = [share for share, _ in self.momenta]
        if shares and min(cosine for _, cosine in self.momenta) > LIKE and min(shares) > 0:
            return f"the mean of the uploads with momentum {min(shares):.2g}"
        best = max(server.fit for server in servers)
        names = [server.name for server in servers if server.fit > max(LIKE, best - (1 - best) - TIE)]
        fitting = list(dict.fromkeys(names))
        return " or ".join(fitting) if fitting else f"{UNKNOWN}: no rule that was tried gives its steps"

    def _faults(self, recording: Recording) -> Iterator[str]:
        if self.differences and all(self.differences):
            yield (
                "The uploads are differences, not parameters. Say so (--differences, or delta of Recorder), "
                "or record the parameters that each client uploads."
            )
        elif any(self.differences):
            rounds = [r for r, other in zip(self.compared, self.differences, strict=True) if other]
            yield (
                f"The uploads of these rounds are differences, and those of others parameters: "
                f"{listed(rounds)}. Record them alike, or leave those rounds out (--rounds)."
            )
        elif names := [c for c, n in self.slight.items() if n == self.uploads[c]]:
            yield (
                f"These uploads are next to nothing beside the global model: {listed(map(_whose, names))}. "
                f"They are differences, not parameters. Say so (--differences, or delta of Recorder), or "
                f"record the parameters that each client uploads."
            )
        elif recording.differences and self.parameters and all(self.parameters):
            yield "The uploads are parameters, and are said to be differences. Leave --differences out."
        elif self.cosines and max(self.cosines) < -LIKE:
            yield (
                "Every step of the global model goes the other way than the uploads. They are differences "
                "with the other sign, or the global model was recorded after the round. Record trained minus "
                "received."
            )
        elif self.divisors:
            count = sum(self.divisors) / len(self.divisors)
            yield (
                f"Steps of the global model are the mean of the uploads only once they are divided by "
                f"{count:.3g}. The uploads are sums of parameters that nobody divided. Record each client's "
                f"own, or the divided sums as sums (Recorder.sum)."
            )
        elif self.late and all(self.late):
            yield (
                "In every round the uploads have the recorded global model as their mean. It was recorded "
                "after the round. Record the model that the server sends out before the clients train."
            )
        else:
            yield from self.trail.faults(EXACT)
        if self.uploads and self.idle == self.uploads:
            yield "Every client uploaded the model it was sent. Record what clients upload, after training."

    def _remarks(self, recording: Recording, server: str) -> Iterator[str]:
        yield from recording.describe_gaps()
        for why in sorted(set(self.without.values())):
            places = [
                f"round {r}, {_whose(client)}"
                for (r, client), reason in self.without.items()
                if reason == why
            ]
            yield f"Left out, since {why}: {listed(places)}."
        if self.gaps and server.startswith(UNKNOWN) and not all(self.differences):
            yield (
                "The steps of the global model are not the uploads' mean. An adaptive server, noise that it "
                "adds, or clients who were not recorded can do that. So can a wrong recording."
            )
        if self.stood and self.uploads and self.idle != self.uploads:
            yield (
                f"Clients uploaded, and the global model stayed as it was, after these rounds: "
                f"{listed(self.stood)}. If it is recorded once and not in every round, uploads are held "
                f"against another model than the clients were sent, and less is found."
            )
        if self.times and server.startswith(UNKNOWN):
            most = round(max(self.times.values()))
            yield (
                f"Clients whose upload is once or more about {most} times the global model: "
                f"{listed(map(_whose, self.times))}. A sum of parameters that nobody divided is so, and "
                f"little is found in it."
            )
        if self.idle and self.idle != self.uploads:
            names = map(_whose, self.idle) if SUM in self.idle else self.idle
            yield f"Clients who once or more uploaded the model they were sent: {listed(names)}."
        if self.twins:
            yield f"Clients who once or more uploaded the same as another: {listed(sorted(self.twins))}."
        still, empty = _blank(recording, self.moved), _blank(recording, self.filled)
        if still and len(still) < len(recording.layers):
            yield f"These layers never change, or are not uploaded, and tell nothing: {listed(still)}."
        if empty := [name for name in empty if len(recording.layers[name]) > 1]:
            yield f"These layers are zero in every global model: {listed(empty)}."
        yield from _describe_beside(recording)


def _read_round(recording: Recording, r: int, before: Tensor, seen: _Seen) -> tuple[Tensor, list[float]]:
    """The mean update of a round, as it moves the global model, and the lengths of the clients' own."""
    mean, lengths, total = torch.zeros_like(before), [], 0
    digests: dict[int, str] = {}
    for client in recording.parts_in(r):
        weight = recording.samples(r, client)
        if (uploaded := seen.read_upload(recording, r, client)) is None:
            continue
        update = uploaded - before
        mean += update * weight
        total += weight
        lengths.append(float(update.norm()))
        if times := count_times(before, uploaded):
            seen.times[client] = max(times, seen.times.get(client, 0.0))
        seen.uploads[client] = seen.uploads.get(client, 0) + 1
        if lengths[-1] > AWAY * float(before.norm()) and _cosine(update, -before) > SLIGHT:
            seen.slight[client] = seen.slight.get(client, 0) + 1
        if lengths[-1] == 0:
            seen.idle[client] = seen.idle.get(client, 0) + 1
        elif (twin := digests.setdefault(hash(update.numpy().tobytes()), client)) != client:
            seen.twins |= {client, twin}
        seen.moved = (update != 0) if seen.moved is None else seen.moved | (update != 0)
    return mean / max(1, total), lengths


def _whose(client: str | None) -> str:
    return {None: "the global model", SUM: "the sum"}.get(client, f"client {client}")


def _blank(recording: Recording, touched: Tensor | None) -> list[str]:
    """The layers of which no entry is touched."""
    if touched is None:
        return []
    sizes = [torch.Size(shape).numel() for shape in recording.layers.values()]
    parts = zip(recording.layers, touched.split(sizes), strict=True)
    return [name for name, part in parts if part.numel() and not bool(part.any())]


def _describe_beside(recording: Recording) -> Iterator[str]:
    """What stands beside the layers: buffers that never change, and further arrays."""
    rounds = recording.rounds
    if recording.buffers and len(rounds) > 1:
        first, last = recording.statistics(rounds[0]), recording.statistics(rounds[-1])
        if all(torch.equal(first[name], last[name]) for name in first):
            yield (
                "The batch statistics of the global model never change. It seems that clients keep their "
                "own. Candidates then pass through others than the clients' records did."
            )
    for array in recording.arrays:
        fits = array in recording.gradients
        how = "attacked too" if fits else "NOT audited, since their shapes are not those of the layers"
        yield f"Clients uploaded arrays beside their parameters. Those called {array} are {how}."


def _flat(layers: Params) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in layers.values()]).double()


def _cosine(a: Tensor, b: Tensor) -> float:
    return float(cosine_similarity(a, b, dim=0))
