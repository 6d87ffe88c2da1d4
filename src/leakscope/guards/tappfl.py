"""TAPPFL (paper 004): devices learn one encoder together, and keep their privacy and utility networks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor, nn

from leakscope.core.dataset import Dataset
from leakscope.core.errors import POSITIVE, at_least, check, one_of, require
from leakscope.core.nouns import Defense
from leakscope.core.rng import fork, integer, seeded
from leakscope.defenses.deployed import FlowerAdaptiveClipping
from leakscope.guards.batches import Seen, Source
from leakscope.guards.encoder import Guarded, Kind
from leakscope.guards.hidden import Hidden, Lesson, TimedGuard
from leakscope.guards.inf2guard import Inf2Guard, about, assembled, check_column, finished
from leakscope.guards.losses import Loss
from leakscope.guards.networks import Committee
from leakscope.guards.trainer import Alternation, check_finite, train
from leakscope.guards.utilities import Kind as Keeps
from leakscope.guards.utilities import Negatives
from leakscope.models.encoders import Architecture, TableEncoder
from leakscope.training import shards
from leakscope.training.step import on_updates

CAP = 1.0  # on the norm of a device's gradient, without which SGD runs away from -CE
PRETRAINING = 5  # epochs, of batches of 128, as in the published code
WATCHED = 1_024  # held records that a round is watched by
SAME = (  # settings that each device's `Inf2Guard` has from here
    "column", "loss", "steps", "utility", "negatives", "perturbation", "scale", "normed", "encoder", "head",
    "hidden",
)  # fmt: skip


@dataclass(frozen=True)
class TAPPFL(TimedGuard):
    """Devices learn one encoder by federated averaging, each with its own privacy and utility network.

    Paper 004: 100 ``devices`` of equal size, a ``fraction`` of which trains in every round, ``local_epochs``
    of SGD over batches of ``batch``; the server averages encoders by their records. ``lam`` is one number,
    or one for each device. The networks, losses and noise are those of `Inf2Guard`; "adversarial" is the
    paper's. ``pretrain`` on all records first: "jsd" for utility, as the paper says; "private" to tell the
    secret, as the published code does, and then the stale attacker is that code's: the pretrained network.
    ``defense`` changes every device's update on its way, as the paper's baselines do: noise, pruning; what
    ``pretrain`` learns from all records is not defended.
    """

    column: str
    lam: float | tuple[float, ...] = 0.5
    devices: int = 100
    fraction: float = 0.1
    rounds: int = 20
    batch: int = 10
    local_epochs: int = 10
    rate: float = 0.01
    loss: Loss = "prior"
    pretrain: Literal["jsd", "private", "none"] = "jsd"
    steps: int = 1
    utility: Keeps = "agnostic"
    negatives: Negatives = "random"
    perturbation: Kind = "none"
    scale: float = 1.0
    normed: bool = False
    encoder: Architecture = field(default_factory=TableEncoder)
    head: tuple[int, ...] = (64,)
    hidden: tuple[int, ...] = (128, 64)
    defense: Defense | None = None

    def __post_init__(self) -> None:
        check(self, devices=at_least(1), rounds=at_least(1), local_epochs=at_least(1), rate=POSITIVE)
        check(self, pretrain=one_of("jsd", "private", "none"))
        require(0 < self.fraction <= 1, "TAPPFL.fraction", "in (0, 1]", self.fraction)
        if self.defense is not None:
            on_updates(self.defense, "TAPPFL.defense")
            moving = isinstance(self.defense, FlowerAdaptiveClipping)
            require(not moving, "TAPPFL.defense", "the same in every round", self.defense)
        require(self.perturbation != "learned", "TAPPFL.perturbation", "none, gaussian or uniform", "learned")
        lams = self.lams
        one_each = len(lams) == self.devices and all(0 <= lam <= 1 for lam in lams)
        require(one_each, "TAPPFL.lam", f"in [0, 1], one number or {self.devices}", self.lam)
        self.guard(lams[0])

    @property
    def lams(self) -> tuple[float, ...]:
        return self.lam if isinstance(self.lam, tuple) else (self.lam,) * self.devices

    def hides(self) -> tuple[Hidden, ...]:
        return (Hidden("attribute", self.column, None if isinstance(self.lam, tuple) else self.lam),)

    def guard(self, lam: float) -> Inf2Guard:
        same = {name: getattr(self, name) for name in SAME}
        return Inf2Guard("attribute", lam=lam, batch=max(2, self.batch), **same)

    def train(self, lesson: Lesson) -> Guarded:
        """The encoder the devices end with; others are for membership, which is not its secret."""
        data = lesson.data
        require(lesson.others is None, "TAPPFL's others", "None", lesson.others)
        check_column(data, self.column)
        dealt, split, nets, first, chance = fork(lesson.rng, 5)
        source = Source.of(data, 128, split)
        parts = shards(source.data, self.devices, dealt)
        federation = _Federation(self, source.data, parts, integer(nets))
        start, literal = federation.pretrained(source, first)
        state, seen = start, Seen.of(source.held.take(torch.arange(min(WATCHED, len(source.held)))))
        history = []
        for r in range(self.rounds):
            state, table = federation.round(r, state, seen, chance)
            history.append(table)
            if lesson.progress is not None:
                lesson.progress(r, self.rounds, table)
        some = federation.members[min(federation.members)]
        some.network.load_state_dict(state)
        nets_kept = [one.protections[0].net for _, one in sorted(federation.members.items())]
        privacy = literal or (Committee(nets_kept) if self.steps else None)
        made = finished(some, self.encoder, self.head, (self,), data, history, **about(self, (1.0,)))
        return replace(made, privacy=privacy and privacy.eval())


State = Mapping[str, Tensor]


@dataclass(frozen=True, eq=False)
class _Federation:
    """Who holds what. Devices get their networks when they are first chosen."""

    plan: TAPPFL
    data: Dataset
    parts: Sequence[Dataset]
    seed: int
    members: dict[int, Alternation] = field(default_factory=dict)
    start: dict[str, nn.Module] = field(default_factory=dict)

    def _new(self, lam: float, device: int) -> Alternation:
        # Networks are built for all records, so that a device with one value of the secret has the same.
        nets, steps = seeded(self.seed, "networks", device), seeded(self.seed, "steps", device)
        made = assembled((self.plan.guard(lam),), (1.0,), self.data, nets, steps)
        return replace(made, name="TAPPFL")

    def pretrained(self, source: Source, rng: torch.Generator) -> tuple[State, nn.Module | None]:
        """The encoder that the server sends out first, and the privacy network that the published code
        judges by."""
        made = self._new(0.0, -1)
        if self.plan.pretrain == "none":
            return _state(made.network), None
        if self.plan.pretrain == "jsd":
            train(replace(made, steps=0), source, epochs=PRETRAINING, warm_up=0)
            return _state(made.network), None
        private = replace(self.plan.guard(0.0), utility="labels", head=self.plan.hidden, steps=0)
        told = [replace(part, y=part.secret(self.plan.column)) for part in (source.data, source.held)]
        values = {part.label: part.value_names(self.plan.column) for part in told[:1]}
        told = [replace(part, values={**part.values, **values}) for part in told]
        nets, steps = fork(rng, 2)
        teller = assembled((private,), (1.0,), told[0], nets, steps)
        train(teller, replace(source, data=told[0], held=told[1]), epochs=PRETRAINING, warm_up=0)
        self.start["privacy"] = teller.utility.net
        return _state(teller.network), teller.utility.net

    def round(self, r: int, state: State, held: Seen, rng: torch.Generator) -> tuple[State, dict[str, float]]:
        """The encoder after round ``r``, and what the chosen devices' networks find in held records."""
        count = math.ceil(round(self.plan.fraction * len(self.parts), 9))
        chosen = sorted(torch.randperm(len(self.parts), generator=rng)[:count].tolist())
        trained = [self._local(r, device, state) for device in chosen]
        state = weighted_mean(trained, [len(self.parts[device]) for device in chosen])
        tables = []
        for device in chosen:
            self.members[device].network.load_state_dict(state)
            tables.append(self.members[device].watched(held))
            check_finite(self.members[device], tables[-1], f"round {r} on device {device}")
        mean = {name: sum(table[name] for table in tables) / count for name in tables[0]}
        return state, {"epoch": float(r), **mean}

    def _local(self, r: int, device: int, state: State) -> State:
        if device not in self.members:
            made = self._new(self.plan.lams[device], device)
            if "privacy" in self.start:
                made.protections[0].net.load_state_dict(self.start["privacy"].state_dict())
            self.members[device] = replace(made, optimiser="sgd", rate=self.plan.rate, cap=CAP)
        own, data = self.members[device], self.parts[device]
        own.network.load_state_dict(state)
        for _ in range(self.plan.local_epochs):
            for rows in torch.randperm(len(data), generator=own.rngs.order).split(self.plan.batch):
                own.step(Seen.of(data.take(rows)))
        return self._sent(state, own)

    def _sent(self, state: State, own: Alternation) -> State:
        """What reaches the server: the round's start plus the update as the defense lets it pass. Buffers,
        such as the counts of a batch norm, are sent as they are."""
        trained = _state(own.network)
        if self.plan.defense is None:
            return trained
        names = dict(own.network.named_parameters())
        update = {name: (trained[name] - state[name])[None] for name in names}
        passed = self.plan.defense.release(update, None, own.rngs.order, batch=self.plan.batch)
        return {**trained, **{name: state[name] + passed[name][0] for name in names}}


def _state(network: nn.Module) -> State:
    return {name: tensor.detach().clone() for name, tensor in network.state_dict().items()}


def weighted_mean(states: Sequence[State], weights: Sequence[float]) -> State:
    """Federated averaging: each state in proportion to its weight; counts are rounded."""
    mean: dict[str, Tensor] = {}
    for name, like in states[0].items():
        parts = [state[name].double() * (w / sum(weights)) for state, w in zip(states, weights, strict=True)]
        total = torch.stack(parts).sum(0)
        mean[name] = (total if like.is_floating_point() else total.round()).to(like.dtype)
    return mean
