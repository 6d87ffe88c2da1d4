"""Trainings that clip every record, of Opacus and jax_privacy, in their own words; and the noise that
TensorFlow Federated adds to the sum of clients."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import dp_accounting as dp  # type: ignore[import-untyped]
import torch
from dp_accounting.rdp import RdpAccountant  # type: ignore[import-untyped]
from scipy import optimize
from torch import Tensor

from leakscope.audits.mechanism.duel import Duel, duel_of_releases
from leakscope.core.errors import CHANCE, NONNEGATIVE, POSITIVE, Rule, at_least, one_of, or_none, require
from leakscope.defenses.dpsgd import DPSGD
from leakscope.integrations.claims.answer import SERVER, Neighbours, Promise, Standing, Whose, setting, show
from leakscope.integrations.claims.central import Central
from leakscope.measures.accounting import epsilon_of
from leakscope.measures.epsilon import gaussian_mu

SHARE: Rule = ("above 0 and at most 1", lambda value: 0 < value <= 1)
SWITCH: Rule = ("true or false", lambda value: isinstance(value, bool))
COUNT = "the number of records is no secret: steps are divided by the expected size of a batch"
SECRET = "nobody who sees the updates learns which records were in which batch"
LEAST = 0.2  # the noise from which one that suffices is sought
PARTS = (
    "a record that is removed leaves an empty place (zero-out), or each draws its part of the cycle alone "
    "(PartitionType.INDEPENDENT): in an equal split one record more or less moves all others"
)
LAST = "the loader keeps its last, smaller batch: drop_last is not set, which would raise the chance"
ONE = "no more than one record behind an upload is another"
STATISTICS = "no layer keeps statistics of batches, and nothing else of the records is sent"


@dataclass(frozen=True)
class _Steps:
    """Noisy steps on clipped records, in one upload, and how often that is repeated."""

    noise: float
    chance: float | None  # of each record, drawn anew for each step; None: shuffled
    steps: int
    epochs: float  # how often each record is used, if shuffled
    uploads: int
    delta: float

    def event(self) -> dp.DpEvent:
        """Of one record in one upload. A shuffled epoch uses it once, in a batch that may be known: that it
        is shuffled hides nothing that is proven."""
        if not self.noise:
            return dp.NonPrivateDpEvent()
        once = dp.GaussianDpEvent(self.noise)
        if self.chance is None:
            return dp.SelfComposedDpEvent(once, math.ceil(self.epochs))
        return dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(self.chance, once), self.steps)

    def standings(self, delta: float | None) -> tuple[Standing, ...]:
        at = delta or self.delta
        conditions: tuple[str, ...] = (COUNT, STATISTICS)
        if self.chance is None:
            conditions += ("no batch holds a record twice",)
            how = f"{math.ceil(self.epochs)} x one unsampled step of mu = 1 / {self.noise:g} an upload"
        else:
            conditions += (SECRET, "each batch is a Poisson sample, drawn anew")
            how = f"{self.steps} steps of noise {self.noise:g} x clip on samples of chance {self.chance:.4g}"
        rows = []
        for whose, event, said in (
            ("upload", self.event(), f"one record in one upload: {how}"),
            (
                "record",
                dp.SelfComposedDpEvent(self.event(), self.uploads),
                f"{self.uploads} uploads, each {how}",
            ),
        ):
            added, replaced = (epsilon_of(event, at, replaced=far) for far in (False, True))
            for secure in (False, True):
                more = "; a sum hides more, but nothing more is proven" if secure else ""
                only_if = (*conditions, ONE) if whose == "upload" else conditions
                rows.append(Standing(whose, SERVER, added, replaced, at, said + more, only_if, secure))  # type: ignore[arg-type]
        why = "records are clipped one by one: nothing bounds what all of a client's records do together"
        rows += [
            Standing("client", SERVER, math.inf, math.inf, at, why, (), secure) for secure in (False, True)
        ]
        return tuple(rows)

    def duel(self, row: Standing, neighbours: Neighbours) -> Duel | str:
        """A record whose gradient is beyond the clip, among others of which it is known what they add."""
        if row.whose == "client":
            return row.how
        defense = DPSGD(1.0, self.noise, "opacus")
        weights = defense.weigh({"gradient": torch.tensor([4.0], dtype=torch.float64)})
        one = 2 * float(weights["gradient"]) if weights else 2.0
        times = 1 if row.whose == "upload" else self.uploads
        uses = math.ceil(self.epochs) if self.chance is None else self.steps

        def release(sums: Tensor, rng: torch.Generator) -> Tensor:
            return defense.release({"gradient": sums}, None, rng, batch=1)["gradient"]

        gone = neighbours == "add or remove"
        return duel_of_releases(
            release,
            one=one,
            zero=0.0 if gone else -one,
            std=defense.deviation(1),
            uses=times * uses,
            chance=1.0 if self.chance is None else self.chance,
            canary=f"a record's gradient beyond the clip, or {'none' if gone else 'the opposite one'}",
        )

    def needed(self, promise: Promise) -> float:
        """The noise multiplier that keeps a promise, by the Renyi accountant, which rounds up."""
        times = 1 if promise.whose == "upload" else self.uploads
        far = 2 if promise.neighbours == "replace" else 1
        mu = gaussian_mu(promise.epsilon, promise.delta)
        if self.chance is None or far == 2:
            uses = math.ceil(self.epochs) if self.chance is None else self.steps
            return far * math.sqrt(times * uses) / mu

        def excess(noise: float) -> float:
            judge = RdpAccountant()
            judge.compose(
                dp.PoissonSampledDpEvent(self.chance, dp.GaussianDpEvent(noise)), self.steps * times
            )
            return float(judge.get_epsilon(promise.delta)) - promise.epsilon

        enough = math.sqrt(times * self.steps) / mu  # without the chance of being drawn, exactly
        if enough <= LEAST or promise.epsilon < 0.01 or excess(enough) > 0:  # there accountants round
            return enough
        found = optimize.brentq(excess, LEAST, enough, xtol=1e-4) if excess(LEAST) > 0 else LEAST
        return min(float(found) + 1e-4, enough)

    def nearest(self, promise: Promise) -> str:
        if promise.whose == "client":
            return "No noise on records has an epsilon for a whole client: clip and noise the upload instead."
        return (
            f"noise_multiplier={self.needed(promise):.4g}: with it epsilon {show(promise.epsilon)} of the "
            f"{promise.whose} is true ({promise.neighbours})."
        )


def _shuffled(shuffled: bool) -> tuple[str, ...]:
    words = (
        "Shuffled batches: the smaller epsilon that accountants print is for batches drawn at random "
        "(Poisson). For shuffled ones it is not proven, so that the chance of being drawn counts for "
        "nothing here."
    )
    return (words,) if shuffled else ()


@dataclass(frozen=True)
class OpacusTraining:
    """PrivacyEngine.make_private of Opacus, in ``rounds`` uploads of a training of ``epochs`` each."""

    usual: ClassVar[tuple[Whose, Neighbours]] = ("record", "add or remove")

    noise_multiplier: float = setting(NONNEGATIVE)
    batch_size: int = setting(at_least(1))
    records: int = setting(at_least(1), "num_samples", "dataset_size")
    epochs: float = setting(POSITIVE, "local_epochs")
    delta: float = setting(CHANCE, "target_delta", default=1e-5)
    max_grad_norm: float = setting(POSITIVE, default=1.0)
    poisson_sampling: bool = setting(SWITCH, "poisson", default=True)
    drop_last: bool = setting(SWITCH, default=False)
    target_epsilon: float | None = setting(or_none(POSITIVE), "epsilon", default=None)
    rounds: int = setting(at_least(1), "num_server_rounds", "num_rounds", default=1)

    def __post_init__(self) -> None:
        rule = f"false where records are fewer than batch_size = {self.batch_size}"
        require(self.batches > 0, "drop_last", rule, self.drop_last)

    @property
    def people(self) -> int:
        return self.records

    @property
    def batches(self) -> int:
        """Of the loader: Opacus draws with chance 1 / batches."""
        whole = math.floor if self.drop_last else math.ceil
        return whole(self.records / self.batch_size)

    @property
    def promise(self) -> Promise | None:
        if self.target_epsilon is None:
            return None
        return Promise(self.target_epsilon, self.delta, *self.usual)

    @property
    def steps(self) -> _Steps:
        chance = 1 / self.batches if self.poisson_sampling else None
        steps = max(1, math.ceil(round(self.epochs * self.batches, 9)))  # up, but 1.1 x 10 is 11
        return _Steps(self.noise_multiplier, chance, steps, self.epochs, self.rounds, self.delta)

    def event(self) -> dp.DpEvent:
        return self.steps.event()

    def standings(self, delta: float | None) -> tuple[Standing, ...]:
        rows = self.steps.standings(delta)
        if self.drop_last or self.records % self.batch_size == 0:
            return rows
        return tuple(row.only((LAST,)) for row in rows)

    def assumed(self) -> tuple[str, ...]:
        return (
            "Noise is drawn anew for each step, and nobody knows its seed.",
            "Each record belongs to one client and is trained on in every round.",
        )

    def idle(self) -> tuple[str, ...]:
        more = (f"max_grad_norm {self.max_grad_norm:g}: noise is in units of it, so it changes no epsilon.",)
        return (*_shuffled(not self.poisson_sampling), *more)

    def duel(self, row: Standing, neighbours: Neighbours) -> Duel | str:
        return self.steps.duel(row, neighbours)

    def nearest(self, promise: Promise) -> str:
        return self.steps.nearest(promise)


@dataclass(frozen=True)
class JaxTraining:
    """DP-SGD of jax_privacy: ``iterations`` of ``batch_size`` of ``num_examples`` by ``batch_selection``;
    cyclic Poisson sampling draws from one of ``cycle_length`` parts of the records in turn."""

    usual: ClassVar[tuple[Whose, Neighbours]] = ("record", "add or remove")

    noise_multiplier: float = setting(NONNEGATIVE)
    batch_size: int = setting(at_least(1))
    num_examples: int = setting(at_least(1), "num_samples", "records")
    iterations: int = setting(at_least(1), "num_updates", "steps")
    delta: float = setting(CHANCE, "target_delta", default=1e-5)
    clip_norm: float = setting(POSITIVE, "l2_clip_norm", "clipping_norm", default=1.0)
    batch_selection: str = setting(one_of("poisson", "cyclic_poisson", "shuffled"), default="poisson")
    cycle_length: int = setting(at_least(1), default=1)
    epsilon: float | None = setting(or_none(POSITIVE), "target_epsilon", default=None)

    @property
    def promise(self) -> Promise | None:
        return Promise(self.epsilon, self.delta, *self.usual) if self.epsilon else None

    def __post_init__(self) -> None:
        rule = f"at most num_examples / batch_size = {self.num_examples / self.batch_size:.6g}"
        fits = self.cycle == 1 or self.cycle * self.batch_size <= self.num_examples
        require(fits, "cycle_length", rule, self.cycle_length)
        rule = "1 unless batch_selection is cyclic_poisson"
        require(self.cycle == self.cycle_length, "cycle_length", rule, self.cycle_length)

    @property
    def people(self) -> int:
        return self.num_examples

    @property
    def cycle(self) -> int:
        return self.cycle_length if self.batch_selection == "cyclic_poisson" else 1

    @property
    def steps(self) -> _Steps:
        chance = min(1.0, self.batch_size / (self.num_examples // self.cycle))  # the rest is dropped
        uses = math.ceil(self.iterations / self.cycle)
        whole = max(1, self.num_examples // self.batch_size)  # batches of an epoch, if the last is dropped
        share = max(self.batch_size / self.num_examples, 1 / whole)  # of an epoch in one iteration
        epochs = max(1, math.ceil(round(self.iterations * share, 9)))
        drawn = None if self.batch_selection == "shuffled" else chance
        return _Steps(self.noise_multiplier, drawn, uses, epochs, 1, self.delta)

    def event(self) -> dp.DpEvent:
        return self.steps.event()

    def standings(self, delta: float | None) -> tuple[Standing, ...]:
        rows = self.steps.standings(delta)
        if self.cycle == 1:
            return rows
        return tuple(row.only((PARTS,)) for row in rows)

    def assumed(self) -> tuple[str, ...]:
        return ("Noise is drawn anew for each step, and nobody knows its seed.",)

    def idle(self) -> tuple[str, ...]:
        more = (f"clip_norm {self.clip_norm:g}: noise is in units of it, so it changes no epsilon.",)
        return (*_shuffled(self.batch_selection == "shuffled"), *more)

    def duel(self, row: Standing, neighbours: Neighbours) -> Duel | str:
        return self.steps.duel(row, neighbours)

    def nearest(self, promise: Promise) -> str:
        return self.steps.nearest(promise)


@dataclass(frozen=True)
class TffAggregator(Central):
    """tff.learning.dp_aggregator, and DifferentiallyPrivateFactory with a fixed ``clip`` or an adaptive one
    (Andrew et al. 2021), which costs nothing more: the noise on the updates is raised for it."""

    noise_multiplier: float = setting(NONNEGATIVE)
    clients_per_round: float = setting(POSITIVE)
    total_clients: int | None = setting(or_none(at_least(1)), "population", "num_clients", default=None)
    rounds: int | None = setting(or_none(at_least(1)), "num_rounds", "total_rounds", default=None)
    delta: float = setting(CHANCE, "target_delta", default=1e-5)
    clip: float | None = setting(or_none(POSITIVE), default=None)
    zeroing: bool = setting(SWITCH, default=True)
    sampling: str = setting(one_of("poisson", "fixed"), default="fixed")
    epsilon: float | None = setting(or_none(POSITIVE), "target_epsilon", default=None)

    @property
    def promise(self) -> Promise | None:
        return Promise(self.epsilon, self.delta, *self.usual) if self.epsilon else None

    @property
    def people(self) -> int | None:
        return self.total_clients

    @property
    def multiplier(self) -> float:
        return self.noise_multiplier

    @property
    def norm(self) -> float:
        return self.clip or 1.0

    @property
    def sharing(self) -> float:
        return self.clients_per_round

    @property
    def drawn(self) -> tuple[int, int] | float | None:
        if self.total_clients is None:
            return None
        if self.sampling == "poisson":
            return min(1.0, self.clients_per_round / self.total_clients)
        return self.total_clients, math.ceil(self.clients_per_round)

    @property
    def weight(self) -> float:
        return 1.0  # TFF refuses weights in a private mean

    @property
    def std(self) -> str:
        return "noise of noise_multiplier times the norm on the sum, which is divided by clients_per_round"

    def conditions(self) -> tuple[str, ...]:
        more = (
            ("the norms by which zeroing decides are not shown: they have no noise",) if self.zeroing else ()
        )
        return ("metrics that clients send are not shown: they have no noise", *more)

    def idle(self) -> tuple[str, ...]:
        return ("Clipping gives nothing against the server: it adds the noise itself.",)

    def name(self, noise: float) -> str:
        return f"noise_multiplier={noise:.4g}, clients_per_round={self.clients_per_round:g}"
