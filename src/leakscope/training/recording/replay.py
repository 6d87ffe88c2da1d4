"""A recording as a channel: what crossed the wire once, dealt to the games as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from leakscope.core.dataset import Batch
from leakscope.core.errors import ArgumentError, DataError, check, one_of, require
from leakscope.core.nouns import Layers, Params, Release
from leakscope.training.recording.reader import Recording

TWICE, ALONG = 1.5, 0.9  # how long, and how near to the global model, a mean of parameters never is


@dataclass(frozen=True, eq=False)
class RecordedRelease(Release):
    """A round of a recording. ``clients`` are those in question, ``took_part`` everyone whose update is in
    the step of the global model, empty where nobody knows. ``peers`` are other clients whose updates are seen
    too, and ``beside`` gives those of some, (n, *shape). ``final`` is what the last of the observed
    rounds led to, if that was recorded. ``summed``: what is seen is of all who took part. ``still``: clients
    trained with running statistics as they were."""

    clients: tuple[str, ...] = ()
    took_part: tuple[str, ...] = ()
    peers: tuple[str, ...] = ()
    beside: Callable[[tuple[str, ...]], Layers] = lambda _: {}
    final: Params | None = None
    summed: bool = False
    still: bool = False


@dataclass(frozen=True, eq=False)
class RecordedChannel:
    """Each observed round releases what a recording holds of it, one trial for each client.

    ``seen``: the clients' "uploads"; only the weighted "sum" of all who uploaded, as one trial, which is
    what a server sees under secure aggregation; or only the "broadcast", the step from one global model to
    the next. ``centred`` subtracts that step from the uploads, for an adversary who sees the global models
    too and a server that averages (a server rate of 1).
    ``rounds`` are the recording's own numbers; left out: all in which every one of the clients uploaded, or,
    of sums, all in which somebody did. ``peers``: the uploads of the other clients in a round are seen
    too, where uploads are seen. The model has the last batch statistics that were recorded, if any were.
    """

    recording: Recording
    model: nn.Module
    clients: tuple[str, ...] = ()
    rounds: tuple[int, ...] = ()
    seen: Literal["uploads", "sum", "broadcast"] = "uploads"
    centred: bool = False
    peers: bool = False

    def __post_init__(self) -> None:
        check(self, seen=one_of("uploads", "sum", "broadcast"))
        possible = not self.centred or self.seen == "uploads"
        require(possible, "RecordedChannel.centred", "False unless uploads are seen", self.centred)
        clients = tuple(str(client) for client in self.clients) or self.recording.clients
        object.__setattr__(self, "clients", clients)
        self.recording.check(self.model)
        if statistics := self.recording.statistics(self.recording.rounds[-1]):
            settled = deepcopy(self.model)
            settled.load_state_dict(statistics, strict=False)
            object.__setattr__(self, "model", settled)
        else:
            _refuse_new_statistics(self.model)
        if not self.rounds:
            object.__setattr__(self, "rounds", self._usable())

    def __call__(self, batch: Batch, secret: Tensor, rng: torch.Generator) -> tuple[Release, ...]:
        return tuple(self._release(r) for r in self.rounds)

    def _release(self, r: int) -> RecordedRelease:
        there, after = self.recording.clients_in(r), max(self.rounds) + 1
        shown = self.peers and self.seen == "uploads"
        return RecordedRelease(
            _Global(self.recording, r),
            partial(self._blocks, r),
            clients=self.clients,
            took_part=there,
            peers=tuple(client for client in there if shown and client not in self.clients),
            beside=partial(self._updates, r),
            final=_Global(self.recording, after) if after in self.recording.rounds else None,
            summed=self.seen != "uploads",
            still=self.recording.still,
        )

    def _usable(self) -> tuple[int, ...]:
        held = self.recording.rounds
        needs_next = self.centred or self.seen == "broadcast"
        wanted = bool if self.seen == "sum" else set(self.clients).issubset
        rounds = tuple(
            r
            for r in held
            if (self.seen == "broadcast" or wanted(set(self.recording.clients_in(r))))
            and (r + 1 in held or not needs_next)
        )
        if not rounds or (self.seen == "sum" and not self._took_part(rounds)):
            what = "that is followed by the next global model" if needs_next else "in which they uploaded"
            raise DataError(
                f"{str(self.recording.path)!r} has no round of clients {', '.join(self.clients)} {what}; "
                f"choose other clients, or restore what is missing."
            )
        return rounds

    def _took_part(self, rounds: tuple[int, ...]) -> bool:
        """Whether any of the clients did, in any of the rounds."""
        return any(not {*self.clients}.isdisjoint(self.recording.clients_in(r)) for r in rounds)

    def _blocks(self, r: int) -> Iterator[Layers]:
        yield self._released(r)

    def _released(self, r: int) -> Layers:
        """What is seen of round ``r``: (clients, *shape), or (1, *shape) where they are not told apart."""
        if self.seen == "broadcast":
            return {name: step[None] for name, step in self._step(r).items()}
        if self.seen == "sum":
            total = self.recording.aggregate(r)
            _refuse_undivided(
                self.recording.global_model(r), total, f"{str(self.recording.path)!r}, round {r}"
            )
            return {name: part[None] for name, part in total.items()}
        return self._updates(r, self.clients)

    def _updates(self, r: int, clients: tuple[str, ...]) -> Layers:
        updates = [self.recording.update(r, client) for client in clients]
        layers = {name: torch.stack([update[name] for update in updates]) for name in updates[0]}
        if self.centred:
            step = self._step(r)
            layers = {name: tensor - step[name] for name, tensor in layers.items()}
        return layers

    def _step(self, r: int) -> Params:
        before, after = self.recording.global_model(r), self.recording.global_model(r + 1)
        return {name: tensor - after[name] for name, tensor in before.items()}


@dataclass(frozen=True, eq=False)
class _Global(Mapping[str, Tensor]):
    """A round's global model, each layer read when it is asked for: however many rounds a recording
    has, one is in memory at a time."""

    recording: Recording
    r: int

    def __getitem__(self, name: str) -> Tensor:
        return self.recording.global_model(self.r, only=(name,))[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.recording.layers)

    def __len__(self) -> int:
        return len(self.recording.layers)


def count_times(start: Tensor, after: Tensor) -> float:
    """How many times the global model these parameters are; 0 where a mean of parameters can be so."""
    times = float(after @ start / (start @ start).clamp(min=torch.finfo(start.dtype).tiny))
    along = float(torch.cosine_similarity(after, start, dim=0)) >= ALONG
    return times if times >= TWICE and along else 0.0


def _refuse_undivided(before: Params, total: Params, where: str) -> None:
    """Refuse a sum of parameters that nobody divided: the model several times over, beside which an update
    is nothing."""
    start = torch.cat([before[name].flatten().double() for name in total])
    after = start - torch.cat([part.flatten().double() for part in total.values()])
    if times := count_times(start, after):
        raise DataError(
            f"{where}: the sum is {times:.3g} times the global model, so it is not the mean of the clients' "
            f"parameters; divide it by their number, or by their samples where it is weighted."
        )


def _refuse_new_statistics(model: nn.Module) -> None:
    """Refuse running statistics of no record at all: candidates would be normalised by them, and by others
    than the clients' records were."""
    for name, module in model.named_modules():
        if isinstance(module, _NormBase) and module.running_mean is not None:
            assert module.running_var is not None
            if not bool(module.running_mean.any()) and bool((module.running_var == 1).all()):
                raise ArgumentError(
                    f"model.{name} must have the running statistics of the trained model, got those of a new "
                    f"{type(module).__name__}; load them with model.load_state_dict."
                )
