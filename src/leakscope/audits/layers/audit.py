"""A model's layers, one after the other: what each gives away, and what protecting it costs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import nn

from leakscope.attacks.family import Family
from leakscope.attacks.reconstruction import InvertingGradients
from leakscope.audits.layers.found import Latent, Layer, LayersFound, Original, Picture, ProtectionTried
from leakscope.audits.layers.latent import Attacker, Groups, LayerAttempt, compare_values
from leakscope.audits.layers.original import check_pictures, rebuild
from leakscope.audits.layers.protection import Victim, audit_protection
from leakscope.audits.layers.studies import check_claims, correlate, smooth_trend
from leakscope.core.dataset import Batch, Dataset
from leakscope.core.errors import ArgumentError, require
from leakscope.core.nouns import Attack, Defense, Estimate, Knowledge
from leakscope.core.rng import seeded
from leakscope.games import Inference
from leakscope.games.channels import GradientChannel, Silent
from leakscope.measures.bounds import entropy
from leakscope.measures.mutual import Estimator, Target, layer_information
from leakscope.measures.sensitivity import norms
from leakscope.models import layers_of
from leakscope.results.scores import Worth

KINDS = (
    (nn.modules.conv._ConvNd, "convolution"),
    (nn.Linear, "linear"),
    (nn.Embedding, "embedding"),
    ((nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm), "normalisation"),
)

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
        """The sets of consecutive layers that are looked at: the layers of each, by their names joined."""
        return join_neighbours(list(layers_of(model)), self.together)

    def check(self, train: Dataset, public: Dataset, model: nn.Module, *, observed: int = 1) -> None:
        """Refuse what these records, this model or so many ``observed`` rounds cannot give, before anything
        is trained."""
        self.groups(model)
        for secret in self.secrets:
            rehearsal = self.game(secret, train).on(public)
            self._family.folded(Knowledge(rehearsal, Silent()), seeded(0, "check"))
        if self.images:
            check_pictures(train)
        if self.estimator:
            require(observed == 1, "LayerAudit.estimator", "None, or one round observed", observed)
        least = 2 * (1 + self.others // self.batch)
        if self.sensitive and len(train) < least:
            raise ArgumentError(
                f"LayerAudit.sensitive needs {least} training records to mix, got {len(train)}; set it to 0, "
                f"or lower others."
            )

    def run(
        self,
        train: Dataset,
        public: Dataset,
        victim: Victim,
        defense: Defense,
        worth: Worth[Estimate],
        *,
        rehearsals: int,
        trials: int,
        seed: int,
    ) -> LayersFound:
        """Everything that is asked, of the model that ``victim`` trains; its ``worth`` is told beside."""
        channel, _ = victim(defense)
        layers = layers_of(channel.model)
        latent: list[Latent[Estimate]] = []
        protection: tuple[ProtectionTried, ...] = ()
        for secret in self.secrets:
            game = self.game(secret, train)
            attacker = Attacker(game, game.on(public), self._family, rehearsals, trials)
            attempts, row = self._latent(attacker, channel, seed)
            latent.append(row)
            if self.protect and not protection and self.together == 1 and defense == Defense():
                protection = tuple(audit_protection(attacker, victim, layers, attempts, seed))
        sensitivity = self._sensitivity(channel, train, seed) if self.sensitive else {}
        original: Original[Estimate] | None = None
        pictures: tuple[Picture, ...] = ()
        if self.images:
            original, pictures = rebuild(
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
        described = describe_layers(channel, layers)
        return LayersFound(
            layers=described,
            latent=tuple(latent),
            original=original,
            sensitivity=sensitivity,
            protection=protection,
            mutual=self._mutual(self.estimator, channel, train, seed) if self.estimator else {},
            correlations=tuple(correlate(latent, original, sensitivity)),
            claims=check_claims(described, latent, original, sensitivity),
            trend=smooth_trend(latent),
            pictures=pictures,
            utility=worth,
        )

    @property
    def _family(self) -> Family:
        return replace(self.family, by=self.people) if self.people else self.family

    def _latent(
        self, attacker: Attacker, channel: GradientChannel, seed: int
    ) -> tuple[Mapping[str, LayerAttempt], Latent[Estimate]]:
        """What every set of layers gives away about one secret, with attacks and without."""
        game, layers, sets = attacker.game, layers_of(channel.model), self.groups(channel.model)
        groups = {key: tuple(n for name in names for n in layers[name]) for key, names in sets.items()}
        attempts = attacker.attack(
            channel,
            {**sets, "": tuple(layers)},
            {**groups, "": tuple(name for name, _ in channel.model.named_parameters())},
            rng=seeded(seed, "latent", game.secret),
        )
        labels = attacker.count_labels(seeded(seed, "labels", game.secret))
        rng = seeded(seed, "without attack", game.secret)
        distances, ratios = compare_values(channel, game, groups, by=self.people, splits=self.splits, rng=rng)
        return attempts, Latent[Estimate](
            secret=game.secret,
            values=game.data.told_names(game.secret),
            most=entropy(game.chances),
            layers={key: attempts[key].leak for key in groups},
            together=attempts[""].leak,
            labels=labels,
            subspace=distances,
            two_sample=ratios,
        )

    def _mutual(
        self, estimator: Estimator, channel: GradientChannel, train: Dataset, seed: int
    ) -> dict[str, dict[str, Estimate]]:
        """Figure 3: I(X; G) and I(Y; G) of every layer."""
        rng = seeded(seed, "mutual information")
        rows = torch.randperm(len(train), generator=rng)[: self.informative, None]
        targets: tuple[Target, ...] = ("input", "label")
        batch = Batch(train, rows)
        return {
            target: layer_information(channel, batch, estimator, target=target, rng=rng) for target in targets
        }

    def _sensitivity(
        self, channel: GradientChannel, train: Dataset, seed: int
    ) -> dict[str, dict[str, Estimate]]:
        """Of single records mixed with ``others`` per record of the batch, before any defense. A layer of
        which a norm has no value is left out of it."""
        rng = seeded(seed, "sensitivity")
        mixed = self.others // self.batch
        count = min(self.sensitive, len(train) // (1 + mixed))
        rows = torch.randperm(len(train), generator=rng)[: count * (1 + mixed)].view(count, 1 + mixed)
        columns = None if train.x[0].numel() <= self.columns else self.columns
        batch, bare = Batch(train, rows), channel.undefended().of_single_records(train)
        state = rng.get_state()
        found = norms(bare, batch, columns=columns, rng=rng)
        rng.set_state(state)
        relative = norms(bare, batch, columns=columns, relative=True, rng=rng)["F"]
        return {
            norm: {layer: estimate for layer, estimate in values.items() if math.isfinite(estimate.value)}
            for norm, values in {**found, "relative": relative}.items()
        }


def join_neighbours(names: list[str], together: int) -> dict[str, tuple[str, ...]]:
    """Every run of so many neighbours, under their names joined by +."""
    if together > len(names):
        raise ArgumentError(
            f"LayerAudit.together must be at most the model's {len(names)} layers, got {together}."
        )
    runs = [tuple(names[i : i + together]) for i in range(len(names) - together + 1)]
    return {"+".join(run): run for run in runs}


def describe_layers(channel: GradientChannel, layers: Groups) -> tuple[Layer, ...]:
    """Each layer's name, place, size and kind, in model order."""
    modules, params = dict(channel.model.named_modules()), channel.rounds[0]
    return tuple(
        Layer(
            name=layer,
            place=place,
            parameters=sum(params[name].numel() for name in names),
            kind=next((kind for types, kind in KINDS if isinstance(modules.get(layer), types)), "other"),
            shape=tuple(params[names[0]].shape),
        )
        for place, (layer, names) in enumerate(layers.items(), start=1)
    )
