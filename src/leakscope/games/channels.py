"""What crosses the wire: gradients, updates, and the two channels every attack is tested against."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Self

import torch
from torch import Tensor, nn

from leakscope import gradients
from leakscope.core.dataset import Batch, Dataset
from leakscope.core.errors import ArgumentError, require
from leakscope.core.nouns import Channel, Defense, Game, Layers, Loss, Params, Release, only
from leakscope.core.rng import integer, seeded
from leakscope.core.stopwatch import timed
from leakscope.core.task import task_loss
from leakscope.gradients.joint import draws, joint_blocks, mixes, with_statistics
from leakscope.gradients.records import JointRecords
from leakscope.training.local import Local, Task, trained
from leakscope.training.step import changes, on_updates, parts, refuse_clipping

BLOCK = 1_500_000_000  # bytes of gradients held at once: 5,000 records of the papers' CNN fit


@dataclass(frozen=True, eq=False)
class GradientChannel:
    """Each observed round releases the batch's mean gradient at that round's parameters, through
    the defense. The batch is the same in every round (definition 3.1 of paper 000).

    Where the model, in the mode it is in, joins the records of a batch or draws at random, it is the batch's
    own gradient, a pass for each; that of a batch of one record is taken in evaluation mode."""

    model: nn.Module
    rounds: tuple[Params, ...]
    defense: Defense = field(default_factory=Defense)
    loss: Loss = task_loss
    fitted: tuple[Defense, ...] = ()  # one per round, once `prepared`

    def __post_init__(self) -> None:
        for part in parts(self.defense):
            if changes(part, "objective"):
                raise ArgumentError(
                    f"GradientChannel.defense must leave a batch's gradient the mean of its records', got "
                    f"{part!r}, which joins them; use UpdateChannel(..., inside=...) with one local step."
                )

    @property
    def trained_with(self) -> Loss:
        """The loss whose gradients are released, what a defense adds to it included."""
        return self.defense.loss(self.loss)

    def undefended(self) -> Self:
        """The channel a static adversary believes in: it knows the model and the loss, and no more."""
        return replace(self, defense=Defense(), fitted=(), loss=self.trained_with)

    def noiseless(self) -> Self:
        """The channel without the noise its defense adds."""
        fitted = tuple(defense.noiseless() for defense in self.fitted)
        return replace(self, defense=self.defense.noiseless(), fitted=fitted)

    @property
    def adds_noise(self) -> bool:
        return self.defense.adds_noise

    @property
    def defended(self) -> bool:
        return self.defense != Defense()

    def deviation(self, batch: int) -> float:
        """The standard deviation of that noise on the mean of ``batch`` records."""
        return self.defense.deviation(batch)

    def prepared(self, game: Game, rng: torch.Generator, *, trials: int = 1_000) -> Self:
        """The channel whose defense has been fitted, round by round, to ``trials`` challenges of the
        game on public records; most defenses need no fitting."""
        bare = self.undefended()
        fitted = []
        for params in self.rounds:
            view, secrets = game.deal(replace(bare, rounds=(params,)), trials, rng)
            people = view.public.get("people")
            told = isinstance(people, Tensor)
            if isinstance(people, Tensor):  # whoever the batch belongs to, not the place among candidates
                secrets = people.gather(1, secrets[:, None])[:, 0]
            fitted.append(timed(self.defense.prepared)(view.releases[0], secrets, rng, people=told))
        return replace(self, fitted=tuple(fitted))

    def of_single_records(self, data: Dataset) -> Self:
        """The channel that gradients of single records are taken from: this one, or, where its model joins
        records or draws at random, its first round with the model in evaluation mode."""
        params, loss = self.rounds[0], self.trained_with
        if not mixes(*with_statistics(self.model, params), data.x, data.y, loss=loss):
            return self
        model, own = with_statistics(self.model, params, still=True)
        return replace(self, model=model, rounds=(own,), fitted=self.fitted[:1])

    def __call__(self, batch: Batch, secret: Tensor, rng: torch.Generator) -> tuple[Release, ...]:
        defenses = self.fitted or (self.defense,) * len(self.rounds)
        return tuple(
            self._release(params, defense, batch, secret, integer(rng))
            for params, defense in zip(self.rounds, defenses, strict=True)
        )

    def _release(self, params: Params, defense: Defense, batch: Batch, secret: Tensor, seed: int) -> Release:
        def blocks() -> Iterator[Layers]:
            rng, start = torch.Generator().manual_seed(seed), 0
            for layers in self._layers(params, defense, batch, seed):
                stop = start + len(next(iter(layers.values())))
                yield timed(defense.release)(layers, secret[start:stop], rng, batch=batch.rows.shape[1])
                start = stop

        return Release(params, blocks)

    def _layers(self, params: Params, defense: Defense, batch: Batch, seed: int) -> Iterator[Layers]:
        """What the defense is given, block by block."""
        data, loss = batch.data, defense.loss(self.loss)
        weigh = timed(defense.weigh)
        model, own = with_statistics(self.model, params)

        def means(model: nn.Module, own: Params) -> Iterator[Layers]:
            return gradients.blocks(
                model, own, data.x, data.y, batch.rows, loss=loss, weigh=weigh, budget=BLOCK
            )

        try:  # which looks whether records are joined, before the first block
            found = means(model, own)
        except JointRecords:
            found = None
        if found is not None and not draws(model, own, data.x):
            return found
        if batch.rows.shape[1] == 1:
            return means(*with_statistics(self.model, params, still=True))
        refuse_clipping(defense)
        return joint_blocks(model, own, data.x, data.y, batch.rows, loss=loss, seed=seed)


@dataclass(frozen=True, eq=False)
class UpdateChannel(GradientChannel):
    """Each observed round releases Γ = parameters - parameters after local training on the batch,
    through the defense.

    The order of the batch's records is drawn anew for every trial and round. ``defense`` acts on Γ,
    ``inside`` in every local step, as in `training.federate`. One step of plain SGD on the whole batch
    makes Γ the learning rate times the gradient.
    """

    _: KW_ONLY
    local: Local
    inside: Defense = field(default_factory=Defense)

    def __post_init__(self) -> None:
        on_updates(self.defense, "UpdateChannel.defense", secret=True)
        require(
            not self.local.milestones,
            "UpdateChannel.local.milestones",
            "()",
            self.local.milestones,
            way_out="give the rate of the observed rounds",
        )

    def undefended(self) -> Self:
        """The channel a static adversary believes in: it knows the model and the loss, and no more."""
        return replace(self, defense=Defense(), fitted=(), inside=Defense(), loss=self.trained_with)

    def noiseless(self) -> Self:
        """The channel without the noise that is added to the update, and in local training."""
        return replace(super().noiseless(), inside=self.inside.noiseless())

    @property
    def adds_noise(self) -> bool:
        return self.defense.adds_noise or self.inside.adds_noise

    @property
    def defended(self) -> bool:
        return self.defense != Defense() or self.inside != Defense()

    @property
    def trained_with(self) -> Loss:
        """The loss of local training, what a defense adds to it included."""
        return self.inside.loss(self.loss)

    def _layers(self, params: Params, defense: Defense, batch: Batch, seed: int) -> Iterator[Layers]:
        data, rng = batch.data, seeded(seed, "local")
        tasks = (
            Task(data.x, data.y, tuple(rows[i] for i in self.local.order(len(rows), rng)), integer(rng))
            for rows in batch.rows
        )
        for after in trained(
            self.model,
            params,
            tasks,
            local=self.local,
            rate=self.local.rate,
            defense=self.inside,
            loss=self.loss,
        ):
            yield {name: params[name] - after[name] for name, _ in self.model.named_parameters()}


@dataclass(frozen=True, eq=False)
class Through:
    """The same channel seen through some of its layers only."""

    channel: Channel
    names: tuple[str, ...]

    def __call__(self, batch: Batch, secret: Tensor, rng: torch.Generator) -> tuple[Release, ...]:
        return tuple(self._narrow(release) for release in self.channel(batch, secret, rng))

    def _narrow(self, release: Release) -> Release:
        def blocks() -> Iterator[Layers]:
            for layers in release.blocks():
                unknown = [name for name in self.names if name not in layers]
                if unknown:
                    raise ArgumentError(
                        f"Through.names must name layers of the channel, got {unknown[0]!r}; it has: "
                        f"{', '.join(layers)}."
                    )
                yield only(layers, self.names)

        return replace(release, blocks=blocks)


@dataclass(frozen=True, eq=False)
class Summed:
    """The mean of what ``clients`` release, all that a server sees of them under secure aggregation: the
    records of a batch are dealt to them in equal parts."""

    channel: GradientChannel
    clients: int

    def __post_init__(self) -> None:
        require(self.clients >= 1, "Summed.clients", "at least 1", self.clients)

    def __call__(self, batch: Batch, secret: Tensor, rng: torch.Generator) -> tuple[Release, ...]:
        size, rest = divmod(batch.rows.shape[1], self.clients)
        if rest or not size:
            raise ArgumentError(
                f"Summed.clients must divide the records behind a release, got {self.clients} clients for "
                f"{batch.rows.shape[1]} records; change either."
            )
        apart = Batch(batch.data, batch.rows.reshape(-1, size))
        releases = self.channel(apart, secret.repeat_interleave(self.clients), rng)
        return tuple(self._sum(release) for release in releases)

    def _sum(self, release: Release) -> Release:
        def blocks() -> Iterator[Layers]:
            held: dict[str, Tensor] = {}
            for layers in release.blocks():
                held = {
                    name: torch.cat([held[name], part]) if held else part for name, part in layers.items()
                }
                whole = len(next(iter(held.values()))) // self.clients * self.clients
                if whole:
                    yield {
                        name: part[:whole].unflatten(0, (-1, self.clients)).mean(1)
                        for name, part in held.items()
                    }
                held = {name: part[whole:] for name, part in held.items()}

        return replace(release, blocks=blocks)


def without_noise(channel: Channel, batch: int) -> tuple[Channel, float | None]:
    """The channel without the noise that its defense adds, and the deviation of that on the mean of ``batch``
    records: 0 where there is none, None where it is not the same in every entry or does not come last."""
    if isinstance(channel, Through):
        inner, std = without_noise(channel.channel, batch)
        return replace(channel, channel=inner), std
    if not isinstance(channel, GradientChannel) or not channel.adds_noise:
        return channel, 0.0
    inside = isinstance(channel, UpdateChannel) and channel.inside.adds_noise
    return channel.noiseless(), None if inside else channel.defense.spread(batch) or None


@dataclass(frozen=True)
class Silent:
    """Releases nothing: through it no attack may find anything."""

    rounds: int = 1

    def __call__(self, batch: Batch, secret: Tensor, rng: torch.Generator) -> tuple[Release, ...]:
        return tuple(Release.of({"nothing": torch.zeros(len(batch), 1)}) for _ in range(self.rounds))


@dataclass(frozen=True)
class Plain:
    """Releases the secret's code, bit by bit: through it every attack must find everything.

    A bit is repeated so that pooling over neighbours keeps it."""

    rounds: int = 1
    bits: int = 16
    repeats: int = 32

    def __call__(self, batch: Batch, secret: Tensor, rng: torch.Generator) -> tuple[Release, ...]:
        code = (secret[:, None] >> torch.arange(self.bits)) & 1
        code = code.float().repeat_interleave(self.repeats, dim=1)
        return tuple(Release.of({"secret": code}) for _ in range(self.rounds))
