"""The filters that federations run today, Flower's and NVFlare's, as defenses of an upload.

Each does what the package does to one update, as flwr 1.41 and nvflare 2.9 do it. In all of them a
parameter that is a single number without a shape counts among the entries and goes out as it is, and no
epsilon below covers it. An epsilon here is of two whole updates, whatever records are behind them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from leakscope.core.errors import ArgumentError, require
from leakscope.core.mechanism import Mechanism, gaussian
from leakscope.core.nouns import Defense, Layers, flatten, shaped
from leakscope.core.rng import laplace
from leakscope.defenses.gradient import noisy

Rule = Literal["flower", "andrew"]
Version = Literal["2.8", "2.7"]


@dataclass(frozen=True)
class FlowerLocalDp(Defense):
    """Flower's LocalDpMod: clip the update to norm ``clip``, add Gaussian noise to every entry.

    Its standard deviation is ``sensitivity`` sqrt(2 ln(1.25 / ``delta``)) / ``epsilon``. That is
    (epsilon, delta)-DP for one upload only if epsilon is at most 1 (Dwork and Roth 2014, theorem A.1) and
    sensitivity is the distance of any two updates a client could send, 2 ``clip``; Flower asks for neither,
    and adds up nothing over rounds. What an upload really has is ``epsilon.gaussian_epsilon`` of `mu`, and
    r uploads that of sqrt(r) `mu`. The null setting is clip = inf, sensitivity = 0.
    """

    clip: float = 1.0
    sensitivity: float = 1.0
    epsilon: float = 1.0
    delta: float = 1e-5

    def __post_init__(self) -> None:
        _clip(self.clip, "FlowerLocalDp.clip")
        _amount(self.sensitivity, "FlowerLocalDp.sensitivity")
        require(0 < self.epsilon < math.inf, "FlowerLocalDp.epsilon", "positive and finite", self.epsilon)
        require(0 < self.delta < 1, "FlowerLocalDp.delta", "in (0, 1)", self.delta)

    def release(self, layers: Layers, secret: Tensor | None, rng: torch.Generator, *, batch: int) -> Layers:
        return _clipped(layers, self.clip, self.deviation(batch), rng)

    def noiseless(self) -> FlowerLocalDp:
        return replace(self, sensitivity=0.0)

    def deviation(self, batch: int) -> float:
        """The standard deviation of the noise, whatever the number of records."""
        return self.sensitivity * math.sqrt(2 * math.log(1.25 / self.delta)) / self.epsilon

    @property
    def mu(self) -> float:
        """How far apart two updates of one client can be, in standard deviations of the noise."""
        return _mu(self.clip, self.deviation(1))

    def mechanism(self, batch: int, entries: int) -> Mechanism | None:
        if math.isinf(self.mu):
            return None
        return gaussian(1 / self.mu, 1 / self.mu, "upload", clip=self.clip, std=self.deviation(batch))


@dataclass(frozen=True)
class FlowerFixedClipping(Defense):
    """Flower's central differential privacy with fixed clipping, as it falls to one upload.

    Flower clips each update to norm ``clip``, on the client or on the server, and the server adds noise of
    standard deviation ``noise`` ``clip`` / ``clients`` to their mean. Here each upload carries
    noise clip / sqrt(clients), so that the mean of that many equally weighted ones has Flower's noise: play
    it against whoever sees the sum or the broadcast. With clients = 1 the upload is what is left of it for
    someone who sees the mean and knows all the others. The server itself sees noise = 0, or, if it clips,
    the bare update: no epsilon holds against it.

    Against the others the mean of a round has the epsilon of mu = 2 / noise for a client added, removed or
    changed, if all weigh the same: Flower divides by the weights of those who answered, so that who leaves
    does not leave a zero. FedAvg weighs by records, and a client of weight w has 2 w clients / noise. The
    null setting is clip = inf, noise = 0.
    """

    clip: float = 0.1
    noise: float = 1.0
    clients: int = 1

    def __post_init__(self) -> None:
        _clip(self.clip, "FlowerFixedClipping.clip", self.noise)
        _amount(self.noise, "FlowerFixedClipping.noise")
        require(self.clients >= 1, "FlowerFixedClipping.clients", "at least 1", self.clients)

    def release(self, layers: Layers, secret: Tensor | None, rng: torch.Generator, *, batch: int) -> Layers:
        return _clipped(layers, self.clip, self.deviation(batch), rng)

    def noiseless(self) -> FlowerFixedClipping:
        return replace(self, noise=0.0)

    def deviation(self, batch: int) -> float:
        """The standard deviation of one upload's share of the noise."""
        return self.noise * self.clip / math.sqrt(self.clients) if self.noise else 0.0

    def mechanism(self, batch: int, entries: int) -> Mechanism | None:
        return gaussian(self.noise / 2, self.noise / 2, "mean") if self.noise else None


@dataclass(frozen=True)
class FlowerAdaptiveClipping(Defense):
    """Flower's central differential privacy with adaptive clipping, as it falls to one upload in one round.

    ``clip`` is the round's norm; `after` gives the next round's defense, and `in_rounds` one for every
    round, as GradientChannel.fitted takes them; `training.federate` moves it on by itself. The server learns
    the fraction of clients that were clipped with noise of standard deviation ``count_noise`` / ``clients``
    (count_noise None: clients / 20), and the noise on the updates is raised so that both together have the
    multiplier ``noise`` (Andrew et al. 2021).

    ``rule="andrew"`` is the paper's: the norm moves by exp(-``rate`` (unclipped - ``quantile``)) towards
    that quantile of the norms, and the noise has the norm that clipped. ``"flower"`` is what flwr 1.41
    does: exp(-rate (clipped - quantile)), by which the norm flees from where it should be, down to nothing
    or up to no clipping at all; and the noise has the next round's norm, which is too small where it falls,
    by exp(-rate (1 - quantile)) where all are clipped. The epsilon of a round is FlowerFixedClipping's, under
    "flower" for a multiplier smaller by up to that factor. The null setting is clip = inf, noise = 0.
    """

    clip: float = 0.1
    noise: float = 1.0
    clients: int = 20
    quantile: float = 0.5
    rate: float = 0.2
    count_noise: float | None = None
    rule: Rule = "flower"

    def __post_init__(self) -> None:
        name = "FlowerAdaptiveClipping"
        _clip(self.clip, f"{name}.clip", self.noise)
        _amount(self.noise, f"{name}.noise")
        require(self.clients >= 1, f"{name}.clients", "at least 1", self.clients)
        require(0 <= self.quantile <= 1, f"{name}.quantile", "in [0, 1]", self.quantile)
        require(0 < self.rate < math.inf, f"{name}.rate", "positive and finite", self.rate)
        require(self.rule in ("flower", "andrew"), f"{name}.rule", "flower or andrew", self.rule)
        _amount(self._count_noise, f"{name}.count_noise")
        if self.noise and self.noise >= 2 * self._count_noise:
            raise ArgumentError(
                f"{name}.noise must be below twice the count's noise, {2 * self._count_noise:g}, got "
                f"{self.noise!r}; raise clients or count_noise."
            )

    def release(self, layers: Layers, secret: Tensor | None, rng: torch.Generator, *, batch: int) -> Layers:
        return self._fixed(self.clip).release(layers, secret, rng, batch=batch)

    def noiseless(self) -> FlowerAdaptiveClipping:
        return replace(self, noise=0.0)

    def deviation(self, batch: int) -> float:
        """The standard deviation of one upload's share of the noise, while the norm stays as it is."""
        return self._fixed(self.clip).deviation(batch)

    def mechanism(self, batch: int, entries: int) -> Mechanism | None:
        """Of the mean and the count together. Under "flower" nothing bounds how small the noise can get."""
        proven = self.noise and self.rule == "andrew"
        return gaussian(self.noise / 2, self.noise / 2, "mean") if proven else None

    def after(self, clipped: float, rng: torch.Generator) -> FlowerAdaptiveClipping:
        """The next round's defense, when this fraction of the clients was clipped in this one."""
        require(0 <= clipped <= 1, "FlowerAdaptiveClipping.after(clipped)", "in [0, 1]", clipped)
        drawn = float(torch.randn((), generator=rng, dtype=torch.float64))
        counted = clipped + drawn * self._count_noise / self.clients
        above = (counted if self.rule == "flower" else 1 - counted) - self.quantile
        return replace(self, clip=self.clip * math.exp(-self.rate * above))

    def in_rounds(self, norms: Tensor, rng: torch.Generator) -> tuple[FlowerFixedClipping, ...]:
        """What is done to uploads round by round, where the updates before clipping have these ``norms``
        (rounds, clients)."""
        now, found = self, []
        for row in norms:
            fixed, now = now.in_round(row, rng)
            found.append(fixed)
        return tuple(found)

    def in_round(
        self, norms: Tensor, rng: torch.Generator
    ) -> tuple[FlowerFixedClipping, FlowerAdaptiveClipping]:
        """What is done to the uploads of one round, and the next round's defense."""
        later = self.after(float((norms > self.clip).double().mean()), rng)
        return self._fixed(later.clip if self.rule == "flower" else self.clip), later

    @property
    def _count_noise(self) -> float:
        if self.count_noise is not None:
            return self.count_noise
        return self.clients / 20 if self.noise else 0.0

    def _fixed(self, norm: float) -> FlowerFixedClipping:
        """Clipping at this round's norm, with noise in units of ``norm``."""
        if not self.noise:
            return FlowerFixedClipping(self.clip, 0.0, self.clients)
        raised = (self.noise**-2 - (2 * self._count_noise) ** -2) ** -0.5
        return FlowerFixedClipping(self.clip, raised * norm / self.clip, self.clients)


@dataclass(frozen=True)
class PercentilePrivacy(Defense):
    """NVFlare's PercentilePrivacy: zero the entries below a percentile of their sizes, clip the rest.

    Sizes below the ``percentile`` of all become 0, the others are cut at ``gamma`` (after Shokri and
    Shmatikov 2015); both in units of one of the ``steps`` of local training that NVFlare was told of.
    There is no noise: no epsilon holds at any setting. NVFlare lets an update pass as it is where a
    setting is out of its range; here it is refused. The null setting is percentile = 0, gamma = inf.
    """

    processes: ClassVar[bool] = True
    percentile: float = 10.0
    gamma: float = 0.01
    steps: int = 1

    def __post_init__(self) -> None:
        rule = "in [0, 100]"
        require(0 <= self.percentile <= 100, "PercentilePrivacy.percentile", rule, self.percentile)
        require(self.gamma > 0, "PercentilePrivacy.gamma", "positive", self.gamma)
        require(self.steps >= 1, "PercentilePrivacy.steps", "at least 1", self.steps)

    def release(self, layers: Layers, secret: Tensor | None, rng: torch.Generator, *, batch: int) -> Layers:
        flat = _flat(layers) / self.steps
        size = flat.abs()
        # numpy's percentile, as NVFlare's: torch.quantile refuses more than 2^24 entries.
        cutoff = torch.from_numpy(np.percentile(size.numpy(), self.percentile, axis=1, keepdims=True))
        cut = flat.masked_fill(size < cutoff, 0.0).clamp(-self.gamma, self.gamma)
        return _kept(layers, shaped(cut * self.steps, layers))


@dataclass(frozen=True)
class SVTPrivacy(Defense):
    """NVFlare's SVTPrivacy: release a fraction of the entries, chosen by the sparse vector technique.

    Of n entries c = ceil(``fraction`` n) are wanted. Passes over all of them accept those whose size, cut
    at ``gamma``, is with Laplace noise above ``tau`` with Laplace noise, until there are c; c of those are
    drawn, with replacement or without (``replace``), and go out cut at gamma with Laplace noise of scale
    2 gamma / ``noise_var``, the others as 0. All is in units of one of the ``steps`` of local training.
    NVFlare's epsilon_release is noise_var = epsilon_release / c.

    ``epsilon`` is the choice's alone. An upload costs `claimed` by NVFlare's own accountant, of which the
    values' c noise_var is nearly all; `proven` is what the proof gives, since a pass does not stop at c.
    Both are per upload and add up over rounds. ``version`` "2.8" is nvflare 2.8 and 2.9, "2.7" is 2.6 and
    2.7: there the values are cut after the noise only, so that no epsilon holds, and the choice costs
    (1 + (2 c)^(2/3)) / 2 times epsilon for c accepted entries.
    The null setting is fraction = 1, noise_var = inf, replace = False and gamma above every entry.
    """

    fraction: float = 0.1
    epsilon: float = 0.1
    noise_var: float = 0.1
    gamma: float = 1e-5
    tau: float = 1e-6
    replace: bool = True
    steps: int = 1
    version: Version = "2.8"

    def __post_init__(self) -> None:
        way_out = "to release nothing use Silent()"
        require(0 < self.fraction <= 1, "SVTPrivacy.fraction", "in (0, 1]", self.fraction, way_out=way_out)
        for name in ("epsilon", "gamma"):
            value = getattr(self, name)
            require(0 < value < math.inf, f"SVTPrivacy.{name}", "positive and finite", value)
        require(self.noise_var > 0, "SVTPrivacy.noise_var", "positive", self.noise_var)
        require(math.isfinite(self.tau), "SVTPrivacy.tau", "finite", self.tau)
        require(self.steps >= 1, "SVTPrivacy.steps", "at least 1", self.steps)
        require(self.version in ("2.8", "2.7"), "SVTPrivacy.version", "2.8 or 2.7", self.version)

    @property
    def adds_noise(self) -> bool:
        return math.isfinite(self.noise_var)

    def release(self, layers: Layers, secret: Tensor | None, rng: torch.Generator, *, batch: int) -> Layers:
        flat = _flat(layers).double() / self.steps
        sent = shaped(torch.stack([self._sent(row, rng) for row in flat]) * self.steps, layers)
        return _kept(layers, sent)

    def claimed(self, entries: int) -> float:
        """The epsilon that NVFlare's accountant adds for one upload of so many entries; before 2.8, which
        had none, the setting itself."""
        return self.epsilon + (self._wanted(entries) * self.noise_var if self.version == "2.8" else 0.0)

    def proven(self, entries: int) -> float:
        """The epsilon between any two updates of so many entries. Each accepted entry costs the choice its
        share of epsilon by the proof of Lyu, Su and Li 2017, and all may be accepted, not c; where all are
        wanted, the choice says nothing."""
        if self.version == "2.7":
            return math.inf
        return self._choice(entries) + self._wanted(entries) * self.noise_var

    def mechanism(self, batch: int, entries: int) -> Mechanism | None:
        """The values' Laplace noise, and the choice as randomized response of its epsilon, from which
        everything of that epsilon follows (Kairouz, Oh and Viswanath 2015)."""
        if math.isinf(self.proven(entries)):
            return None
        from dp_accounting import (  # type: ignore[import-untyped]
            ComposedDpEvent,
            LaplaceDpEvent,
            RandomizedResponseDpEvent,
            SelfComposedDpEvent,
        )

        odds = math.exp(-self._choice(entries))
        choice = RandomizedResponseDpEvent(2 * odds / (1 + odds), 2)
        values = SelfComposedDpEvent(LaplaceDpEvent(1 / self.noise_var), self._wanted(entries))
        event = ComposedDpEvent([choice, values])
        return Mechanism(event, event, "upload")

    def _choice(self, entries: int) -> float:
        wanted = self._wanted(entries)
        threshold, query = self._split(wanted)
        return threshold + query * entries / wanted if wanted < entries else 0.0

    def _wanted(self, entries: int) -> int:
        return min(math.ceil(entries * self.fraction), entries)

    def _split(self, wanted: int) -> tuple[float, float]:
        """What the threshold and the queries spend of the choice, in either version's arithmetic."""
        ratio = (2 * wanted) ** (2 / 3)
        if self.version == "2.7":  # Laplace scales of 2 gamma / epsilon and 4 gamma c / (ratio epsilon)
            return self.epsilon / 2, self.epsilon * ratio / 2
        return self.epsilon / (1 + ratio), self.epsilon * ratio / (1 + ratio)

    def _sent(self, row: Tensor, rng: torch.Generator) -> Tensor:
        wanted = self._wanted(len(row))
        accepted = self._accepted(row.abs().clamp(max=self.gamma), wanted, rng)
        if self.replace:
            drawn = torch.randint(len(accepted), (wanted,), generator=rng).unique()
        else:
            drawn = torch.randperm(len(accepted), generator=rng)[:wanted]
        places = accepted[drawn]
        noise = laplace(torch.empty(len(places), dtype=torch.float64), 2 * self.gamma / self.noise_var, rng)
        values = row[places]
        if self.version == "2.7":
            values = (values + noise).clamp(-self.gamma, self.gamma)
        else:
            values = values.clamp(-self.gamma, self.gamma) + noise
        return torch.zeros_like(row).index_copy(0, places, values)

    def _accepted(self, sizes: Tensor, wanted: int, rng: torch.Generator) -> Tensor:
        """The places accepted once a pass has brought them to ``wanted``.

        Every pass draws anew, so an entry that passes with chance p is accepted in a pass that is
        geometrically distributed: drawn as such, and in logarithms, where a threshold far above gamma would
        take more passes than can be run."""
        if wanted == len(sizes):
            return torch.arange(wanted)
        threshold, query = self._split(wanted)
        bar = self.tau + laplace(torch.empty(1, dtype=torch.float64), self.gamma / threshold, rng)
        gap = (bar - sizes) * query / (2 * self.gamma * wanted)
        # The log of -log(1 - p), the rate at which an entry of chance p is accepted; of p, where it is small.
        rate = torch.where(gap > 30, math.log(0.5) - gap, (-_log_below(gap)).log())
        waiting = torch.empty_like(sizes).exponential_(generator=rng).log() - rate
        passes = torch.where(waiting < 30, waiting.exp().ceil().clamp(min=1).log(), waiting)
        return (passes <= passes.kthvalue(wanted).values).nonzero()[:, 0]


def _log_below(gap: Tensor) -> Tensor:
    """log P(a standard Laplace number is below ``gap``)."""
    return torch.where(gap > 0, torch.log1p(-0.5 * (-gap.clamp(min=0)).exp()), math.log(0.5) + gap)


def _clipped(layers: Layers, clip: float, std: float, rng: torch.Generator) -> Layers:
    """Every trial's whole update scaled to a norm of at most ``clip``, with Gaussian noise."""
    long = norm(layers)
    scale = (clip / long.clamp(min=torch.finfo(long.dtype).tiny)).clamp(max=1)
    small = {
        name: tensor * scale.to(tensor.dtype).view(-1, *[1] * (tensor.dim() - 1))
        for name, tensor in layers.items()
    }
    return _kept(layers, noisy(small, std, rng))


def norm(update: Layers) -> Tensor:
    """The norm of every trial's whole update (t,)."""
    found: Tensor = _flat(update).double().norm(dim=1)
    return found


def _flat(layers: Layers) -> Tensor:
    """All entries of every trial, those of parameters without a shape included."""
    return flatten({name: tensor[:, None] for name, tensor in layers.items()})


def _kept(layers: Layers, changed: Layers) -> Layers:
    """What was changed, but for parameters without a shape, which both packages let pass: Flower because
    numpy's arithmetic in place does not reach them, NVFlare by rule."""
    return {
        name: tensor if tensor.dim() == 1 else changed[name].to(tensor.dtype)
        for name, tensor in layers.items()
    }


def _mu(clip: float, std: float) -> float:
    return 2 * clip / std if std > 0 else math.inf


def _clip(clip: float, argument: str, noise: float = 0.0) -> None:
    require(clip > 0, argument, "positive", clip, way_out="to release nothing use Silent()")
    require(not (noise and math.isinf(clip)), argument, "finite where its noise is in units of it", clip)


def _amount(value: float, argument: str) -> None:
    require(0 <= value < math.inf, argument, "finite and at least 0", value)
