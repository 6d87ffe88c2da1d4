"""A model's layers, one after the other: what each gives away, and what protecting it costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import nn

from leakscope.attacks.family import Family
from leakscope.attacks.reconstruction import InvertingGradients
from leakscope.channels import GradientChannel, Silent
from leakscope.core import Attack, Defense, Knowledge
from leakscope.dataset import Batch, Dataset
from leakscope.errors import ArgumentError, require
from leakscope.games import Inference
from leakscope.localisation.latent import Groups, attacked, by_labels, most, without_attack
from leakscope.localisation.original import pictures, reconstructed
from leakscope.localisation.protection import Victim, protected
from leakscope.localisation.studies import claims, correlations, trend
from leakscope.measures.mutual import Estimator, Target, layer_information
from leakscope.measures.sensitivity import norms
from leakscope.models import layers_of
from leakscope.rng import seeded

KINDS = ((nn.modules.conv._ConvNd, "convolution"), (nn.Linear, "linear"), (nn.Embedding, "embedding"))

RECONSTRUCT = InvertingGradients(label="known", iterations=300)  # of two layers the last is seldom one


@dataclass(frozen=True)
class LayerAudit:
    """Which layer of a model gives away what, and what protecting it costs (paper 001).

    Of every one of the ``secrets`` the attack ``family`` is tried on the gradient of each layer, or of
    ``together`` consecutive ones, and on all at once, with batches of ``batch`` records of which the task's
    labels are ``balanced`` against the secret and into which ``others`` are mixed. ``people`` names the
    private column of whose record it is, which folds and permutations keep together. ``sensitive`` records
    are differentiated, at ``columns`` of their inputs; ``images`` are reconstructed by ``reconstruct`` from
    every pair of consecutive layers and from all; 0 of either: none. ``protect`` audits the protection of
    the first secret, and ``shown`` puts reconstructions, which are private, into the results. ``estimator``
    measures the mutual information of each layer's gradient of ``informative`` single records with their
    inputs and labels.
    """

    secrets: tuple[str, ...] = ()
    batch: int = 8
    balanced: bool = True
    others: int = 0
    together: int = 1
    people: str | None = None
    family: Family = field(default_factory=Family)
    sensitive: int = 20
    columns: int = 256
    splits: int = 100
    images: int = 0
    reconstruct: Attack | None = None
    protect: bool = True
    shown: bool = False
    estimator: Estimator | None = None
    informative: int = 1_000

    kind = "layers"

    def __post_init__(self) -> None:
        for name, least in (("batch", 1), ("others", 0), ("together", 1), ("sensitive", 0), ("images", 0)):
            value = getattr(self, name)
            require(value >= least, f"LayerAudit.{name}", f"at least {least}", value)
        require(self.sensitive != 1, "LayerAudit.sensitive", "0 or at least 2", self.sensitive)
        require(
            bool(self.secrets or self.sensitive or self.images or self.estimator),
            "LayerAudit.secrets",
            "at least one, or sensitive or images above 0",
            self.secrets,
        )

    def game(self, secret: str, data: Dataset) -> Inference:
        """The game about one secret."""
        return Inference(data, secret, self.batch, "uniform", balanced=self.balanced, others=self.others)

    def groups(self, model: nn.Module) -> dict[str, tuple[str, ...]]:
        """The sets of consecutive layers that are looked at, by name."""
        return consecutive(layers_of(model), self.together)

    def check(self, train: Dataset, public: Dataset, model: nn.Module) -> None:
        """Refuse what these records or this model cannot give, before anything is trained."""
        self.groups(model)
        for secret in self.secrets:
            rehearsal = self.game(secret, train).on(public)
            self._family.folded(Knowledge(rehearsal, Silent()), seeded(0, "check"))
        if self.images:
            pictures(train)

    def run(
        self,
        train: Dataset,
        public: Dataset,
        victim: Victim,
        defense: Defense,
        *,
        rehearsals: int,
        trials: int,
        seed: int,
    ) -> dict[str, Any]:
        """Everything that is asked, of the model that ``victim`` trains."""
        channel, _ = victim(defense)
        layers, groups = layers_of(channel.model), self.groups(channel.model)
        latent: list[dict[str, Any]] = []
        protection: list[dict[str, Any]] = []
        for secret in self.secrets:
            game = self.game(secret, train)
            rehearsal = game.on(public)
            found, row = self._latent(game, rehearsal, channel, groups, rehearsals, trials, seed)
            latent.append(row)
            if self.protect and not protection and self.together == 1 and defense == Defense():
                protection = protected(
                    game,
                    rehearsal,
                    victim,
                    layers,
                    self._family,
                    found,
                    rehearsals=rehearsals,
                    trials=trials,
                    seed=seed,
                )
        result: dict[str, Any] = {
            "layers": described(channel, layers),
            "latent": latent,
            "original": None,
            "sensitivity": self._sensitivity(channel, train, seed) if self.sensitive else None,
            "protection": protection,
            "pictures": None,
        }
        if self.images:
            result |= reconstructed(
                self.reconstruct or RECONSTRUCT,
                train,
                public,
                channel,
                layers,
                images=self.images,
                batch=1 + self.others // self.batch,
                shown=self.shown,
                rng=seeded(seed, "reconstruction"),
            )
        if self.estimator:
            result["mutual"] = self._mutual(self.estimator, channel, train, seed)
        told = {name: asdict(share) for name, share in claims(result).items()}
        return result | {"correlations": correlations(result), "claims": told, "trend": trend(result)}

    @property
    def _family(self) -> Family:
        return replace(self.family, by=self.people) if self.people else self.family

    def _latent(
        self,
        game: Inference,
        rehearsal: Inference,
        channel: GradientChannel,
        groups: Groups,
        rehearsals: int,
        trials: int,
        seed: int,
    ) -> tuple[Mapping[str, Any], dict[str, Any]]:
        family, knowledge = self._family, Knowledge(rehearsal, channel, rehearsals)
        every = tuple(channel.rounds[0])
        found = attacked(
            game,
            knowledge,
            channel,
            {**groups, "": every},
            family,
            trials=trials,
            rng=seeded(seed, "latent", game.secret),
        )
        labels = by_labels(
            game,
            rehearsal,
            family,
            rehearsals=rehearsals,
            trials=trials,
            rng=seeded(seed, "labels", game.secret),
        )
        row = {
            "secret": game.secret,
            "values": list(game.data.value_names(game.secret)),
            "most": most(game),
            "layers": {layer: found[layer].table for layer in groups},
            "together": found[""].table,
            "labels": labels.table,
        }
        measured = without_attack(
            channel,
            game,
            groups,
            by=self.people,
            splits=self.splits,
            rng=seeded(seed, "without attack", game.secret),
        )
        return found, row | measured

    def _mutual(
        self, estimator: Estimator, channel: GradientChannel, train: Dataset, seed: int
    ) -> dict[str, Any]:
        """Figure 3: I(X; G) and I(Y; G) of every layer."""
        rng = seeded(seed, "mutual information")
        rows = torch.randperm(len(train), generator=rng)[: self.informative, None]
        targets: tuple[Target, ...] = ("input", "label")
        return {
            target: {
                layer: asdict(estimate)
                for layer, estimate in layer_information(
                    channel, Batch(train, rows), estimator, target=target, rng=rng
                ).items()
            }
            for target in targets
        }

    def _sensitivity(self, channel: GradientChannel, train: Dataset, seed: int) -> dict[str, Any]:
        """Of single records mixed with ``others`` per record of the batch, before any defense."""
        rng = seeded(seed, "sensitivity")
        mixed = self.others // self.batch
        count = min(self.sensitive, len(train) // (1 + mixed))
        rows = torch.randperm(len(train), generator=rng)[: count * (1 + mixed)].view(count, 1 + mixed)
        columns = None if train.x[0].numel() <= self.columns else self.columns
        batch, bare = Batch(train, rows), channel.undefended()
        state = rng.get_state()
        found = norms(bare, batch, columns=columns, rng=rng)
        rng.set_state(state)
        relative = norms(bare, batch, columns=columns, relative=True, rng=rng)["F"]
        named = {**found, "relative": relative}
        return {norm: {layer: asdict(e) for layer, e in layers.items()} for norm, layers in named.items()}


def consecutive(layers: Groups, together: int) -> dict[str, tuple[str, ...]]:
    """Every run of so many neighbours, under their names joined by +."""
    names = list(layers)
    if together > len(names):
        raise ArgumentError(
            f"LayerAudit.together must be at most the model's {len(names)} layers, got {together}."
        )
    runs = [names[i : i + together] for i in range(len(names) - together + 1)]
    return {"+".join(run): tuple(name for layer in run for name in layers[layer]) for run in runs}


def described(channel: GradientChannel, layers: Groups) -> list[dict[str, Any]]:
    """Each layer's name, size and kind, in model order."""
    modules, params = dict(channel.model.named_modules()), channel.rounds[0]
    return [
        {
            "name": layer,
            "parameters": sum(params[name].numel() for name in names),
            "kind": next((kind for type_, kind in KINDS if isinstance(modules.get(layer), type_)), "other"),
            "shape": list(params[names[0]].shape),
        }
        for layer, names in layers.items()
    ]
