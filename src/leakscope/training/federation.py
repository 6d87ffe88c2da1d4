"""Federated averaging: clients train from the global model, the server averages their updates."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from leakscope.core.dataset import Dataset
from leakscope.core.errors import ArgumentError, require
from leakscope.core.nouns import Defense, Loss, Params
from leakscope.core.rng import fork, integer
from leakscope.core.stopwatch import timed
from leakscope.core.task import task_loss
from leakscope.defenses.deployed import FlowerAdaptiveClipping, norm
from leakscope.training.local import Local, Task, trained
from leakscope.training.step import Step, on_updates, state

Order = Callable[[int, int], Sequence[Tensor]]  # (client, round) -> the rows of every local step


class Observer(Protocol):
    """Who is told what crosses the wire, such as a `recording.Recorder`."""

    def global_model(self, r: int, params: Params) -> None: ...

    def update(
        self, r: int, client: int, params: Params, *, samples: int, rate: float | None, steps: int | None
    ) -> None: ...


def federate(
    model: nn.Module,
    clients: Sequence[Dataset],
    *,
    rounds: int,
    rng: torch.Generator,
    local: Local,
    fraction: float = 1.0,
    weighted: bool = True,
    server_rate: float = 1.0,
    defense: Defense | None = None,
    upload: Defense | None = None,
    virtual: int = 1,
    repartition: bool = False,
    recorder: Observer | None = None,
    order: Order | None = None,
    loss: Loss = task_loss,
) -> tuple[Params, ...]:
    """θ0..θr of federated averaging: θ ← θ − ``server_rate`` · mean of Γ, with Γ = θ − the client's own
    parameters after its `Local` training, weighted by its records unless told otherwise.

    In round r, 0 being the first, ⌈``fraction`` C⌉ clients train from θr. ``defense`` acts inside every
    local step, as in `fit`; ``upload`` on each Γ. With ``virtual`` clients a client cuts its records into
    that many parts, once or (``repartition``) in every round, trains each from θr and uploads the average
    (paper 002, tables 14 and 15). ``recorder`` is given θr and what each client uploads, under its place
    in ``clients``, and θ after the last round. ``order`` gives the rows of each client's batches in place
    of ``rng``. Running statistics of normalisation layers are averaged as they are, neither defended nor
    scaled, and stand among the parameters under their buffers' names.
    """
    federation = _Federation(
        model=model,
        clients=tuple(clients),
        local=local,
        fraction=fraction,
        weighted=weighted,
        server_rate=server_rate,
        defense=defense or Defense(),
        virtual=virtual,
        recorder=recorder,
        order=order,
        loss=loss,
    )
    require(rounds >= 0, "federate.rounds", "at least 0", rounds)
    if upload is not None:
        on_updates(upload, "federate.upload")
        shared, count = getattr(upload, "clients", 1), federation.chosen
        if shared not in (1, count):
            raise ArgumentError(
                f"federate.upload shares its noise among {shared} clients, and {count} take part in a round; "
                f"set {type(upload).__name__}.clients to {count}."
            )
    fixed = None if repartition else federation.cut(rng)
    params = state(model)
    history: list[Params] = [params]
    for r in range(rounds):
        params, upload = federation.round(r, params, fixed, rng, upload)
        if not all(value.isfinite().all() for value in params.values()):
            raise ArgumentError(
                f"federate diverged in round {r} (0 being the first) at rate {local.rate_in(r)} and server "
                f"rate {server_rate}; lower a rate or scale the inputs."
            )
        history.append(params)
    if recorder is not None:
        recorder.global_model(rounds, params)
    return tuple(history)


@dataclass(frozen=True, eq=False)
class _Federation:
    """What stays the same in every round."""

    model: nn.Module
    clients: tuple[Dataset, ...]
    local: Local
    fraction: float
    weighted: bool
    server_rate: float
    defense: Defense
    virtual: int
    recorder: Observer | None
    order: Order | None
    loss: Loss

    def __post_init__(self) -> None:
        fewest = min((len(data) for data in self.clients), default=0)
        require(fewest >= 1, "federate.clients", "at least one, each with records", [*map(len, self.clients)])
        require(0 < self.fraction <= 1, "federate.fraction", "in (0, 1]", self.fraction)
        require(self.server_rate > 0, "federate.server_rate", "positive", self.server_rate)
        rule = f"from 1 to the {fewest} records of the smallest client"
        require(1 <= self.virtual <= fewest, "federate.virtual", rule, self.virtual)
        if self.order is not None and self.virtual > 1:
            raise ArgumentError(
                "federate.order must be None with virtual clients, as it does not say whose rows are whose."
            )
        Step.of(self.model, loss=self.loss, defense=self.defense)  # refuses before anything is recorded

    @property
    def chosen(self) -> int:
        return math.ceil(round(self.fraction * len(self.clients), 9))  # 0.07 x 100 is 7.000000000000001

    def cut(self, rng: torch.Generator) -> list[tuple[Tensor, ...]]:
        return [self._parts(len(data), rng) for data in self.clients]

    def _parts(self, n: int, rng: torch.Generator) -> tuple[Tensor, ...]:
        rows = torch.arange(n) if self.virtual == 1 else torch.randperm(n, generator=rng)
        return tuple(rows.tensor_split(self.virtual))

    def round(
        self,
        r: int,
        params: Params,
        fixed: list[tuple[Tensor, ...]] | None,
        rng: torch.Generator,
        upload: Defense | None,
    ) -> tuple[dict[str, Tensor], Defense | None]:
        """The global model after round ``r``, and the next round's ``upload``."""
        count = self.chosen
        chosen = sorted(torch.randperm(len(self.clients), generator=rng)[:count].tolist())
        rngs = fork(rng, count)
        tasks = [self._tasks(r, c, fixed, own) for c, own in zip(chosen, rngs, strict=True)]
        weights = [len(self.clients[c]) if self.weighted else 1 for c in chosen]
        if self.recorder is not None:
            self.recorder.global_model(r, params)
        mean = {name: torch.zeros_like(value, dtype=_sums(value)) for name, value in params.items()}
        after: Iterable[Params] = self._local(r, params, tasks)
        later = upload
        if isinstance(upload, FlowerAdaptiveClipping):  # how all clients do decides what is done to each
            after = list(after)
            norms = torch.cat([norm(self._difference(params, client)) for client in after])
            upload, later = upload.in_round(norms, rng)
        for c, own, weight, parts, client in zip(chosen, rngs, weights, tasks, after, strict=True):
            samples, uploaded, released = len(self.clients[c]), client, self._difference(params, client)
            if upload is not None:
                released = dict(timed(upload.release)(released, None, own, batch=samples))
                # In float64, so that what is read back, θ - uploaded, is Γ itself.
                uploaded = {name: params[name].double() - g[0].double() for name, g in released.items()}
            if self.recorder is not None:
                rate, steps = self.local.rate_in(r), len(parts[0].order)
                self.recorder.update(r, c, uploaded, samples=samples, rate=rate, steps=steps)
            update = dict(client) | {name: g[0] for name, g in released.items()}
            for name, value in update.items():
                mean[name].add_(value, alpha=weight / sum(weights))
        for name, _ in self.model.named_parameters():
            mean[name] = params[name] - self.server_rate * mean[name]
        return {name: _as(value, params[name].dtype) for name, value in mean.items()}, later

    def _difference(self, params: Params, client: Params) -> dict[str, Tensor]:
        return {name: (params[name] - client[name])[None] for name, _ in self.model.named_parameters()}

    def _tasks(
        self, r: int, c: int, fixed: list[tuple[Tensor, ...]] | None, rng: torch.Generator
    ) -> list[Task]:
        data = self.clients[c]
        tasks = []
        for part in self._parts(len(data), rng) if fixed is None else fixed[c]:
            if self.order is None:
                order = tuple(part[rows] for rows in self.local.order(len(part), rng))
            else:
                order = tuple(self.order(c, r))
                require(len(order) > 0, f"federate.order({c}, {r})", "the rows of at least one batch", order)
            tasks.append(Task(data.x, data.y, order, integer(rng)))
        return tasks

    def _local(self, r: int, params: Params, tasks: list[list[Task]]) -> Iterator[Params]:
        """What each client has after its local training: the average of its parts."""
        blocks = trained(
            self.model,
            params,
            (task for parts in tasks for task in parts),
            local=self.local,
            rate=self.local.rate_in(r),
            defense=self.defense,
            loss=self.loss,
        )
        singles = (
            {name: tensor[i] for name, tensor in block.items()}
            for block in blocks
            for i in range(len(next(iter(block.values()))))
        )
        for parts in tasks:
            own = [next(singles) for _ in parts]
            yield own[0] if len(own) == 1 else _average(own)


def _average(every: Sequence[Params]) -> dict[str, Tensor]:
    first = every[0]
    mean = {name: torch.zeros_like(value, dtype=_sums(value)) for name, value in first.items()}
    for one in every:
        for name, value in one.items():
            mean[name].add_(value, alpha=1 / len(every))
    return {name: _as(value, first[name].dtype) for name, value in mean.items()}


def _sums(value: Tensor) -> torch.dtype:
    """The precision to add up in: counts, such as those of batches seen, have means that are none."""
    return value.dtype if value.is_floating_point() else torch.float64


def _as(value: Tensor, dtype: torch.dtype) -> Tensor:
    """A mean in the precision of what it is the mean of; counts are rounded."""
    return value if value.dtype == dtype else value.round().to(dtype)
