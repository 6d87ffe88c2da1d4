"""Whether a recording can be what it says: each step of the global model against the uploads before it.

A recording that does not fit would be audited all the same, and little would be found in it. What each
rule of a server would have done is compared with what was done, one round at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from leakscope.core.errors import DataError
from leakscope.core.nouns import Params
from leakscope.training.recording.index import listed
from leakscope.training.recording.reader import Recording

EXACT = 1e-2  # of a step's length: how far it may lie from what a rule would do, for half precision too
LIKE = 0.99  # cosine with the direction of a rule whose rate is not known
TIE = 1e-6  # of a cosine: rules that fit as well cannot be told apart
STILL = 1e-3  # of the uploads' own lengths: a mean update that is shorter is none
BETAS = 0.9, 0.99  # of adaptive servers, as Flower and Reddi et al. 2021 have them
UNKNOWN = "unknown"


@dataclass(frozen=True)
class Checked:
    """What the recorded steps say of the server and of the uploads. ``gap`` is the largest distance between
    a step and the uploads' mean, over the step's length; ``agreement`` the best cosine of both over rounds,
    None where no step can be compared. ``faults`` forbid an audit, ``remarks`` must be read beside one."""

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
        return [f"Server: {self.server}.{far}", *self.remarks]

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


def check_recording(recording: Recording) -> Checked:
    """Every step of the global model against the uploads of its round."""
    seen = _Seen()
    servers = [_Adaptive(name, tau) for name in ("FedAdam", "FedYogi", "FedAdagrad") for tau in (1e-9, 1e-3)]
    for r in recording.rounds:
        if not recording.clients_in(r):
            continue
        before = _flat(recording.global_model(r))
        mean, lengths = _read_round(recording, r, before, seen)
        after = r + 1 in recording.rounds
        step = _flat(recording.global_model(r + 1)) - before if after else None
        for server in servers:
            server.follow(mean, step)
        if step is not None:
            seen.compare(before, mean, step, lengths)
    return seen.conclude(recording, servers)


@dataclass
class _Seen:
    """What has been seen of the rounds so far."""

    gaps: list[float] = field(default_factory=list)
    cosines: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    momenta: list[tuple[float, float]] = field(default_factory=list)  # share of the step before, and cosine
    before: Tensor | None = None  # the step before
    differences: list[bool] = field(default_factory=list)  # whether uploads fit better as differences
    late: list[bool] = field(default_factory=list)  # whether the mean update is none
    moved: Tensor | None = None  # entries that any upload changed
    idle: dict[str, int] = field(default_factory=dict)  # rounds in which a client changed nothing
    uploads: dict[str, int] = field(default_factory=dict)
    twins: set[str] = field(default_factory=set)  # clients who uploaded what another did

    def compare(self, before: Tensor, mean: Tensor, step: Tensor, lengths: list[float]) -> None:
        length = float(step.norm())
        if length == 0:
            return
        self.gaps.append(float((step - mean).norm()) / length)
        self.cosines.append(_cosine(mean, step))
        self.rates.append(float(step @ mean) / max(float(mean @ mean), 1e-300))
        if self.before is not None:
            both = torch.stack([self.before, mean], 1)
            share = torch.linalg.lstsq(both, step[:, None]).solution
            self.momenta.append((float(share[0]), _cosine((both @ share)[:, 0], step)))
        self.before = step
        uploaded = mean + before
        self.differences.append(abs(_cosine(uploaded, step)) > max(LIKE, _cosine(mean, step)))
        self.late.append(len(lengths) > 0 and float(mean.norm()) <= STILL * max(lengths))

    def conclude(self, recording: Recording, servers: list[_Adaptive]) -> Checked:
        plain = [0.0 if d else c for c, d in zip(self.cosines, self.differences, strict=True)]
        server = self._server(servers)
        return Checked(
            server,
            max(self.gaps, default=None),
            max(plain, default=None),
            tuple(self._faults()),
            tuple(self._remarks(recording, server)),
        )

    def _server(self, servers: list[_Adaptive]) -> str:
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

    def _faults(self) -> Iterator[str]:
        if self.differences and all(self.differences):
            yield (
                "The uploads are differences, not parameters. Record the parameters that each client "
                "uploads, or add the round's global model to each."
            )
        elif self.late and all(self.late):
            yield (
                "In every round the uploads have the recorded global model as their mean. It was recorded "
                "after the round. Record the model that the server sends out before the clients train."
            )
        if self.uploads and self.idle == self.uploads:
            yield "Every client uploaded the model it was sent. Record what clients upload, after training."

    def _remarks(self, recording: Recording, server: str) -> Iterator[str]:
        if self.gaps and server.startswith(UNKNOWN) and not all(self.differences):
            yield (
                "The steps of the global model are not the uploads' mean. An adaptive server, noise that it "
                "adds, or clients who were not recorded can do that. So can a wrong recording."
            )
        if self.idle and self.idle != self.uploads:
            yield f"Clients who once or more uploaded the model they were sent: {listed(self.idle)}."
        if self.twins:
            yield f"Clients who once or more uploaded the same as another: {listed(sorted(self.twins))}."
        if self.moved is not None:
            sizes = [torch.Size(shape).numel() for shape in recording.layers.values()]
            still = [
                name
                for name, part in zip(recording.layers, self.moved.split(sizes), strict=True)
                if not bool(part.any())
            ]
            if still and len(still) < len(sizes):
                yield f"These layers never change and tell nothing: {listed(still)}."


def _read_round(recording: Recording, r: int, before: Tensor, seen: _Seen) -> tuple[Tensor, list[float]]:
    """The mean update of a round, as it moves the global model, and the lengths of the clients' own."""
    samples = {client: recording.samples(r, client) for client in recording.clients_in(r)}
    mean, lengths = torch.zeros_like(before), []
    digests: dict[int, str] = {}
    for client, weight in samples.items():
        update = _flat(recording.uploaded(r, client)) - before
        mean += update * (weight / sum(samples.values()))
        lengths.append(float(update.norm()))
        seen.uploads[client] = seen.uploads.get(client, 0) + 1
        if lengths[-1] == 0:
            seen.idle[client] = seen.idle.get(client, 0) + 1
        elif (twin := digests.setdefault(hash(update.numpy().tobytes()), client)) != client:
            seen.twins |= {client, twin}
        seen.moved = (update != 0) if seen.moved is None else seen.moved | (update != 0)
    return mean, lengths


def _flat(layers: Params) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in layers.values()]).double()


def _cosine(a: Tensor, b: Tensor) -> float:
    return float(cosine_similarity(a, b, dim=0))
