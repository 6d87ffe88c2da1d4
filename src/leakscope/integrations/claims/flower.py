"""Flower's differential privacy in its own words (flwr 1.41): LocalDpMod, fixed and adaptive clipping."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import dp_accounting as dp  # type: ignore[import-untyped]
import torch
from torch import Tensor

from leakscope.audits.mechanism.duel import Duel, duel_of_releases, send_through
from leakscope.core.errors import CHANCE, NONNEGATIVE, POSITIVE, Rule, at_least, one_of, or_none, require
from leakscope.defenses.deployed import FlowerAdaptiveClipping, FlowerLocalDp
from leakscope.integrations.claims.answer import (
    METRICS,
    RECORD,
    SERVER,
    Neighbours,
    Promise,
    Standing,
    Whose,
    setting,
    show,
)
from leakscope.integrations.claims.central import Central
from leakscope.measures.accounting import epsilon_of
from leakscope.measures.epsilon import gaussian_mu

ROUNDS = ("num_server_rounds", "num_rounds")
SHARE: Rule = ("None, or above 0 and at most 1", lambda value: value is None or 0 < value <= 1)
FAR = 6  # standard deviations
SLOW = 5_000  # numbers that could be drawn while one norm is moved
SHAPES = "no parameter is a single number without a shape: Flower sends those without clipping and noise"


@dataclass(frozen=True)
class LocalDpMod:
    """LocalDpMod(clipping_norm, sensitivity, epsilon, delta), in ``rounds`` rounds of ``clients``."""

    usual: ClassVar[tuple[Whose, Neighbours]] = ("upload", "replace")

    clipping_norm: float = setting(POSITIVE)
    sensitivity: float = setting(NONNEGATIVE)
    epsilon: float = setting(POSITIVE)
    delta: float = setting(CHANCE)
    rounds: int | None = setting(or_none(at_least(1)), *ROUNDS, default=None)
    clients: int | None = setting(or_none(at_least(1)), "num_sampled_clients", default=None)

    @property
    def people(self) -> int | None:
        return None  # of a round only

    @property
    def promise(self) -> Promise:
        return Promise(self.epsilon, self.delta, *self.usual)

    @property
    def defense(self) -> FlowerLocalDp:
        return FlowerLocalDp(self.clipping_norm, self.sensitivity, self.epsilon, self.delta)

    def event(self) -> dp.DpEvent:
        """Of one upload, whatever is changed behind it."""
        mechanism = self.defense.mechanism(1, 1)
        return mechanism.event if mechanism else dp.NonPrivateDpEvent()

    def standings(self, delta: float | None) -> tuple[Standing, ...]:
        at, std = delta or self.delta, self.defense.deviation(1)
        root = "sqrt(2 ln(1.25 / delta))"
        how = (
            f"noise of std sensitivity {root} / epsilon = {std:.6g}; two clipped updates are up to "
            f"2 x {self.clipping_norm:g} apart; mu = {self.defense.mu:.6g}"
        )
        rows = []
        for secure in (False, True) if self.clients else (False,):
            event, said = self.event(), how
            conditions = [SHAPES, METRICS]
            if secure and std:
                event = dp.GaussianDpEvent(math.sqrt(float(self.clients or 1)) / self.defense.mu)
                said += f", / sqrt({self.clients}) with the noise of all clients in the sum"
                conditions += [
                    "all clients weigh the same, all add their noise, and none tells its own to the server"
                ]
            one = epsilon_of(event, at)
            rows.append(Standing("upload", SERVER, one, one, at, said, tuple(conditions), secure))
            if self.rounds is None:
                continue
            whole = epsilon_of(dp.SelfComposedDpEvent(event, self.rounds), at)
            said += f"; {self.rounds} rounds: mu x sqrt({self.rounds})"
            rows += [
                Standing(whose, SERVER, whole, whole, at, said, tuple(conditions), secure)
                for whose in ("client", "record")
            ]
        return tuple(rows)

    def assumed(self) -> tuple[str, ...]:
        words = ["The noise is numpy's, drawn anew for each upload, and nobody knows its seed."]
        if self.rounds is None:
            words.append("The rounds are not given: nothing is said of all rounds. Give rounds.")
        return tuple(words)

    def idle(self) -> tuple[str, ...]:
        found = []
        if self.sensitivity < 2 * self.clipping_norm:
            found.append(
                f"sensitivity {self.sensitivity:g} says that two updates are at most that far apart. "
                f"Clipping to {self.clipping_norm:g} lets them be {2 * self.clipping_norm:g} apart. The "
                f"noise is made for the smaller distance."
            )
        if self.epsilon > 1:
            found.append(
                f"epsilon {self.epsilon:g}: the formula of LocalDpMod is proven for epsilon up to 1 only "
                f"(Dwork and Roth 2014, theorem A.1)."
            )
        if self.rounds and self.rounds > 1:
            found.append("epsilon and delta are of one upload: LocalDpMod adds up nothing over rounds.")
        return tuple(found)

    def duel(self, row: Standing, neighbours: Neighbours) -> Duel | str:
        if row.whose == "record":
            return RECORD
        return duel_of_releases(
            send_through(self.defense),
            one=self.clipping_norm,
            zero=-self.clipping_norm,
            std=self.defense.deviation(1),
            uses=1 if row.whose == "upload" else self.rounds or 1,
            canary="an update beyond the clipping norm, or the opposite one",
        )

    def nearest(self, promise: Promise) -> str:
        times = 1 if promise.whose == "upload" else self.rounds or 1
        mu = gaussian_mu(promise.epsilon, promise.delta) / math.sqrt(times)
        formula = math.sqrt(2 * math.log(1.25 / self.delta))
        return (
            f"LocalDpMod(clipping_norm={self.clipping_norm:g}, sensitivity={2 * self.clipping_norm:g}, "
            f"epsilon={mu * formula:.4g}, delta={self.delta:g}) has noise of std "
            f"{2 * self.clipping_norm / mu:.4g}, and with it epsilon {show(promise.epsilon)} of the "
            f"{promise.whose} is true."
        )


class _FlowerCentral(Central):
    """Flower divides by the weights of those who answered, and asks as many each round: a client that is
    removed leaves no zero but the mean of others, two clips of its share away, as one that is replaced."""

    leaves_zero: ClassVar[bool] = False

    num_sampled_clients: int
    clients: int | None
    largest_share: float | None
    side: str
    mod: ClassVar[str]  # what a client clips with, if it does

    def __post_init__(self) -> None:
        equal = 1 / self.num_sampled_clients  # the largest of so many shares is no smaller
        rule = f"at least 1 / num_sampled_clients = {equal:.6g}"
        enough = self.largest_share is None or self.largest_share >= equal
        require(
            enough, "largest_share", rule, self.largest_share, way_out="leave it out if all weigh the same"
        )
        asked = self.num_sampled_clients
        enough = self.clients is None or self.clients >= asked
        require(enough, "clients", f"at least num_sampled_clients = {asked}", self.clients)

    def conditions(self) -> tuple[str, ...]:
        clipped = f"every client has {self.mod} in its mods: without it nothing is clipped"
        return (
            SHAPES,
            "just num_sampled_clients answer each round: fewer would share the mean with the same noise",
            "metrics that clients send are not shown: they have no noise",
            *([clipped] if self.side == "client" else []),
        )

    @property
    def people(self) -> int | None:
        return self.clients

    @property
    def sharing(self) -> float:
        return self.num_sampled_clients

    @property
    def drawn(self) -> tuple[int, int] | None:
        return (self.clients, self.num_sampled_clients) if self.clients else None

    @property
    def weight(self) -> float | None:
        return self.largest_share and self.largest_share * self.num_sampled_clients


@dataclass(frozen=True)
class FixedClipping(_FlowerCentral):
    """DifferentialPrivacyServerSideFixedClipping and its ClientSide twin: noise on the mean of a round.

    ``largest_share`` is the largest client's share of the records of a round, by which FedAvg weighs."""

    mod: ClassVar[str] = "fixedclipping_mod"

    noise_multiplier: float = setting(NONNEGATIVE)
    clipping_norm: float = setting(POSITIVE)
    num_sampled_clients: int = setting(at_least(1))
    rounds: int | None = setting(or_none(at_least(1)), *ROUNDS, default=None)
    clients: int | None = setting(or_none(at_least(1)), "num_supernodes", "population", default=None)
    largest_share: float | None = setting(SHARE, default=None)
    side: str = setting(one_of("server", "client"), default="server")
    delta: float = setting(CHANCE, default=1e-5)

    @property
    def multiplier(self) -> float:
        return self.noise_multiplier

    @property
    def norm(self) -> float:
        return self.clipping_norm

    @property
    def std(self) -> str:
        noise = self.noise_multiplier * self.clipping_norm / self.num_sampled_clients
        return f"noise of std noise_multiplier clipping_norm / num_sampled_clients = {noise:.6g} on the mean"

    def idle(self) -> tuple[str, ...]:
        where = "on the server" if self.side == "server" else "by the client"
        return (
            f"Clipping {where} gives nothing against the server: it sees each update before any noise.",
        ) + (() if self.noise_multiplier else ("noise_multiplier 0: clipping alone gives no epsilon.",))

    def name(self, noise: float) -> str:
        return (
            f"noise_multiplier={noise:.4g}, clipping_norm={self.clipping_norm:g}, "
            f"num_sampled_clients={self.num_sampled_clients}"
        )


@dataclass(frozen=True)
class AdaptiveClipping(_FlowerCentral):
    """DifferentialPrivacyServerSideAdaptiveClipping and its ClientSide twin, as flwr 1.41 does it."""

    mod: ClassVar[str] = "adaptiveclipping_mod"

    noise_multiplier: float = setting(NONNEGATIVE)
    num_sampled_clients: int = setting(at_least(1))
    initial_clipping_norm: float = setting(POSITIVE, default=0.1)
    target_clipped_quantile: float = setting(("in [0, 1]", lambda value: 0 <= value <= 1), default=0.5)
    clip_norm_lr: float = setting(POSITIVE, default=0.2)
    clipped_count_stddev: float | None = setting(or_none(NONNEGATIVE), default=None)
    rounds: int | None = setting(or_none(at_least(1)), *ROUNDS, default=None)
    clients: int | None = setting(or_none(at_least(1)), "num_supernodes", "population", default=None)
    largest_share: float | None = setting(SHARE, default=None)
    side: str = setting(one_of("server", "client"), default="server")
    delta: float = setting(CHANCE, default=1e-5)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.defense  # noqa: B018  its own rule: the count's noise must leave some for the updates

    @property
    def defense(self) -> FlowerAdaptiveClipping:
        return FlowerAdaptiveClipping(
            self.initial_clipping_norm,
            self.noise_multiplier,
            self.num_sampled_clients,
            self.target_clipped_quantile,
            self.clip_norm_lr,
            self.clipped_count_stddev,
        )

    @property
    def norm(self) -> float:
        return self.initial_clipping_norm

    @property
    def multiplier(self) -> float:
        """Noise is in units of the next round's norm, the smaller the more clients are counted as clipped."""
        return self.noise_multiplier * self.fall

    @property
    def fall(self) -> float:
        """The next norm in units of this one, if all are clipped and the noisy count is `FAR` above."""
        spread = self.clipped_count_stddev
        if spread is None:
            spread = self.num_sampled_clients / 20
        most = 1 + FAR * spread / self.num_sampled_clients
        return math.exp(-self.clip_norm_lr * (most - self.target_clipped_quantile))

    @property
    def std(self) -> str:
        return (
            f"updates are clipped at this round's norm and get noise in units of the next, which can be "
            f"{self.fall:.4g} times as large"
        )

    def conditions(self) -> tuple[str, ...]:
        return (
            *super().conditions(),
            f"the noise on the count of clipped clients stays within {FAR} standard deviations, which fails "
            f"once in a billion rounds",
        )

    def idle(self) -> tuple[str, ...]:
        return (
            "Clipping gives nothing against the server: it sees each update before any noise.",
            f"target_clipped_quantile {self.target_clipped_quantile:g} is not what comes out. Flower lowers "
            f"the norm where more clients are clipped, so that still more are: the norm runs away, to "
            f"nothing or to no clipping at all.",
        )

    def duel(self, row: Standing, neighbours: Neighbours) -> Duel | str:
        """Round by round at the norm of each, while all clients are clipped, as the auditor makes them."""
        plain = super().duel(row, neighbours)
        if isinstance(plain, str) or row.against == SERVER or not self.noise_multiplier:
            return plain
        if row.chance < 1:
            return "norms move with who is drawn, which is not played"
        rounds = 1 if row.whose == "upload" else self.rounds or 1
        norms = torch.full((rounds, 1), math.inf)
        share = (self.weight or 1.0) / self.sharing

        def play(bit: int, rng: torch.Generator) -> float:
            score = 0.0
            for one in self.defense.in_rounds(norms, rng):
                far, std = share * one.clip, one.deviation(1) / math.sqrt(self.sharing)
                seen = (2 * bit - 1) * far + std * float(torch.randn((), generator=rng, dtype=torch.float64))
                score += 2 * far * seen / std**2
            return score

        def scores(bits: Tensor, rng: torch.Generator) -> Tensor:
            return torch.tensor([play(int(bit), rng) for bit in bits], dtype=torch.float64)

        return Duel(scores, rounds * SLOW, False, plain.canary)

    def name(self, noise: float) -> str:
        return (
            f"fixed clipping with noise_multiplier={noise:.4g}, "
            f"clipping_norm={self.initial_clipping_norm:g}, num_sampled_clients={self.num_sampled_clients}"
        )
