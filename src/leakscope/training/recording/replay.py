"""A recording as a channel: what crossed the wire once, dealt to the games as it was."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from leakscope.core.dataset import Batch
from leakscope.core.errors import DataError, check, one_of, require
from leakscope.core.nouns import Layers, Params, Release
from leakscope.training.recording.reader import Recording


@dataclass(frozen=True, eq=False)
class RecordedChannel:
    """Each observed round releases what a recording holds of it, one trial for each client.

    ``seen``: the clients' "uploads"; only the weighted "sum" of all who uploaded, as one trial, which is
    what a server sees under secure aggregation; or only the "broadcast", the step from one global model to
    the next. ``centred`` subtracts that step from the uploads, for an adversary who sees the global models
    too and a server that averages (a server rate of 1).
    ``rounds`` are the recording's own numbers; left out: all in which every one of the clients uploaded.
    """

    recording: Recording
    model: nn.Module
    clients: tuple[str, ...] = ()
    rounds: tuple[int, ...] = ()
    seen: Literal["uploads", "sum", "broadcast"] = "uploads"
    centred: bool = False

    def __post_init__(self) -> None:
        check(self, seen=one_of("uploads", "sum", "broadcast"))
        possible = not self.centred or self.seen == "uploads"
        require(possible, "RecordedChannel.centred", "False unless uploads are seen", self.centred)
        clients = tuple(str(client) for client in self.clients) or self.recording.clients
        object.__setattr__(self, "clients", clients)
        self.recording.check(self.model)
        if not self.rounds:
            object.__setattr__(self, "rounds", self._usable())

    def __call__(self, batch: Batch, secret: Tensor, rng: torch.Generator) -> tuple[Release, ...]:
        return tuple(Release(_Global(self.recording, r), partial(self._blocks, r)) for r in self.rounds)

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
        if not rounds:
            what = (
                "that is followed by the next global model" if needs_next else "in which all of them uploaded"
            )
            raise DataError(
                f"{str(self.recording.path)!r} has no round of clients {', '.join(self.clients)} {what}; "
                f"choose other clients, or restore what is missing."
            )
        return rounds

    def _blocks(self, r: int) -> Iterator[Layers]:
        yield self._released(r)

    def _released(self, r: int) -> Layers:
        """What is seen of round ``r``: (clients, *shape), or (1, *shape) where they are not told apart."""
        if self.seen == "broadcast":
            return {name: step[None] for name, step in self._step(r).items()}
        if self.seen == "sum":
            return {name: part[None] for name, part in self.recording.aggregate(r).items()}
        updates = [self.recording.update(r, client) for client in self.clients]
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
