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
from leakscope.guards.encoder import Encoder, Guarded, Kind
from leakscope.guards.hidden import Hidden, Lesson, TimedGuard
from leakscope.guards.inf2guard import Inf2Guard, about, assembled, check_column, finished
from leakscope.guards.losses import Loss
from leakscope.guards.networks import Committee
from leakscope.guards.protections import Told
from leakscope.guards.summary import Summary
from leakscope.guards.trainer import Alternation, check_finite, train
from leakscope.guards.utilities import Autoencoder, Negatives
from leakscope.guards.utilities import Kind as Keeps
from leakscope.models.encoders import Architecture, TableEncoder
from leakscope.training import shards
from leakscope.training.step import on_updates

CAP = 1.0  # on the norm of a device's gradient, without which SGD runs away from -CE
EPOCHS = 5  # in which the published code learns the secret, of batches of 128
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
    paper's. ``pretrain`` "jsd" is the paper's encoder that was trained for utility first: in ``pretraining``
    rounds before the first the devices leave the secret alone. "private" is what the published code does
    in its place, and no federation can: one network learns to tell the secret from ALL records, and then the
    stale attacker is that network. ``defense`` changes every device's update on its way, as the paper's
    baselines do: noise, pruning; what "private" learns from all records is not defended.

    `leakscope.integrations.flower_guard` trains the same encoder between real devices, which keep their
    records and all networks but the encoder.
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
    pretraining: int = 5
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
        check(self, pretrain=one_of("jsd", "private", "none"), pretraining=at_least(0))
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

    @property
    def unguarded(self) -> int:
        """Rounds before the first in which the devices train for utility alone."""
        return self.pretraining if self.pretrain == "jsd" else 0

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
        federation = GuardFederation.of(self, parts, integer(nets), like=source.data)
        state, literal = federation.pretrained(source, first)
        seen = Seen.of(source.held.take(torch.arange(min(WATCHED, len(source.held)))))
        history = []
        for r in range(self.rounds):
            state, table = federation.round(r, state, chance, seen)
            history.append(table)
            if lesson.progress is not None:
                lesson.progress(r, self.rounds, table)
        nets_kept = [one.own.protections[0].net for _, one in sorted(federation.members.items())]
        privacy = literal or (Committee(nets_kept) if self.steps else None)
        some = federation.members[min(federation.members)].own
        some.network.load_state_dict(state)
        made = finished(some, self.encoder, self.head, (self,), data, history, **about(self, (1.0,)))
        return replace(made, privacy=privacy and privacy.eval())


State = Mapping[str, Tensor]


@dataclass(frozen=True, eq=False)
class Device:
    """One device: its records, and networks that stay with it. Of all this only what `train` returns, the
    encoder, goes to the server."""

    plan: TAPPFL
    data: Dataset
    own: Alternation

    def train(self, state: State, *, guarded: bool = True) -> State:
        """The encoder after local training from ``state``, as it is sent."""
        own, data = self.own, self.data
        own.network.load_state_dict(state)
        for _ in range(self.plan.local_epochs):
            for rows in torch.randperm(len(data), generator=own.rngs.order).split(self.plan.batch):
                own.step(Seen.of(data.take(rows)), guarded=guarded)
        return self._sent(state)

    def _sent(self, state: State) -> State:
        """What reaches the server: the round's start plus the update as the defense lets it pass. Buffers,
        such as the counts of a batch norm, are sent as they are."""
        own, trained = self.own, _state(self.own.network)
        if self.plan.defense is None:
            return trained
        names = dict(own.network.named_parameters())
        update = {name: (trained[name] - state[name])[None] for name in names}
        passed = self.plan.defense.release(update, None, own.rngs.order, batch=self.plan.batch)
        return {**trained, **{name: state[name] + passed[name][0] for name in names}}

    @property
    def kept(self) -> dict[str, Tensor]:
        """All that the device must have again to go on later, and nobody else: its networks but the encoder,
        and where its generators stand."""
        parts = {"utility": self.own.utility.net, "privacy": self.own.protections[0].net}
        nets = {f"{part}.{name}": t for part, net in parts.items() for name, t in _state(net).items()}
        return nets | {f"rng.{use}": rng.get_state() for use, rng in vars(self.own.rngs).items()}

    def restore(self, kept: State) -> None:
        """Go on from what was `kept`."""
        for part, net in (("utility", self.own.utility.net), ("privacy", self.own.protections[0].net)):
            own = {name: kept[f"{part}.{name}"] for name in net.state_dict()}
            net.load_state_dict(own)
        for use, rng in vars(self.own.rngs).items():
            rng.set_state(kept[f"rng.{use}"])


@dataclass(frozen=True, eq=False)
class GuardFederation:
    """What all devices agree on, and in a simulation the devices, which are made when they are first chosen.

    Networks are built for records ``like`` theirs, so that a device with one value of the secret has the
    same; what they need to know of all records, its base rate and the variance, is in the ``summary``.
    """

    plan: TAPPFL
    like: Dataset
    summary: Summary
    seed: int
    parts: Sequence[Dataset] = ()
    members: dict[int, Device] = field(default_factory=dict)
    first: dict[str, nn.Module] = field(default_factory=dict)

    @staticmethod
    def of(
        plan: TAPPFL, parts: Sequence[Dataset], seed: int, *, like: Dataset | None = None
    ) -> GuardFederation:
        """The simulated federation of devices with these records, in which no two records meet."""
        like = parts[0] if like is None else like
        like = replace(like, values={**like.values, plan.column: like.value_names(plan.column)})
        parts = [replace(part, values=like.values) for part in parts]
        return GuardFederation(
            plan, like, Summary.merged([Summary.of(part, plan.column) for part in parts]), seed, parts
        )

    def start(self) -> State:
        """The encoder that the server sends out first."""
        return _state(self._networks(0.0, -1, self.seed).network)

    def device(self, i: int, data: Dataset, *, seed: int | None = None) -> Device:
        """The device ``i`` with its records; without a ``seed`` of its own its networks and steps follow from
        that of the federation, which is for experiments: who knows it knows the order of its batches."""
        made = self._networks(self.plan.lams[i], i, self.seed if seed is None else seed)
        if "privacy" in self.first:
            made.protections[0].net.load_state_dict(self.first["privacy"].state_dict())
        return Device(self.plan, data, replace(made, optimiser="sgd", rate=self.plan.rate, cap=CAP))

    def _networks(self, lam: float, device: int, seed: int) -> Alternation:
        nets, steps = seeded(seed, "networks", device), seeded(seed, "steps", device)
        made = assembled((self.plan.guard(lam),), (1.0,), self.like, nets, steps)
        told = made.protections[0]
        assert isinstance(told, Told)
        made = replace(made, name="TAPPFL", protections=(replace(told, prior=self.summary.prior),))
        if not isinstance(made.utility, Autoencoder):
            return made
        variance = self.summary.variance(self.like.x[0].numel())
        return replace(made, utility=replace(made.utility, variance=variance))

    def pretrained(self, source: Source, rng: torch.Generator) -> tuple[State, nn.Module | None]:
        """The encoder before the first round, and the privacy network that the published code judges by."""
        state = self.start()
        for r in range(self.plan.unguarded):
            state, _ = self.round(r - self.plan.unguarded, state, rng)
        if self.plan.pretrain != "private":
            return state, None
        private = replace(self.plan.guard(0.0), utility="labels", head=self.plan.hidden, steps=0)
        told = [replace(part, y=part.secret(self.plan.column)) for part in (source.data, source.held)]
        values = {part.label: part.value_names(self.plan.column) for part in told[:1]}
        told = [replace(part, values={**part.values, **values}) for part in told]
        nets, steps = fork(rng, 2)
        teller = assembled((private,), (1.0,), told[0], nets, steps)
        train(teller, replace(source, data=told[0], held=told[1]), epochs=EPOCHS, warm_up=0)
        self.first["privacy"] = teller.utility.net
        return _state(teller.network), teller.utility.net

    def round(
        self, r: int, state: State, rng: torch.Generator, held: Seen | None = None
    ) -> tuple[State, dict[str, float]]:
        """The encoder after round ``r``, below 0 without the privacy term, and what the chosen devices'
        networks find in ``held`` records."""
        count = math.ceil(round(self.plan.fraction * len(self.parts), 9))
        chosen = sorted(torch.randperm(len(self.parts), generator=rng)[:count].tolist())
        for i in chosen:
            if i not in self.members:
                self.members[i] = self.device(i, self.parts[i])
        trained = [self.members[i].train(state, guarded=r >= 0) for i in chosen]
        state = weighted_mean(trained, [len(self.parts[i]) for i in chosen])
        tables = []
        for i in chosen:
            own = self.members[i].own
            own.network.load_state_dict(state)
            tables.append({} if held is None else own.watched(held))
            check_finite(own, tables[-1], f"round {r} on device {i}")
        mean = {name: sum(table[name] for table in tables) / count for name in tables[0]}
        return state, {"epoch": float(r), **mean}

    def encoder(self, state: State) -> Encoder:
        """What the server has in the end: no task head, which stays with the devices."""
        plan = replace(self.plan, utility="agnostic")
        made = replace(self, plan=plan)._networks(0.0, -1, self.seed)
        made.network.load_state_dict(state)
        said = about(self.plan, (1.0,))
        return finished(made, plan.encoder, plan.head, (self.plan,), self.like, (), **said).encoder


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
