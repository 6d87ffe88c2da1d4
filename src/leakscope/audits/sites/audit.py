"""The sites of a federation, asked about by what they upload: trained for it, and attacked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from leakscope.attacks.joint import Joint
from leakscope.attacks.posterior import Posterior
from leakscope.attacks.reductions import FirstInput
from leakscope.attacks.strongest import Strongest
from leakscope.audits.sites.found import SiteAnswer, SiteQuestion, SitesFound
from leakscope.audits.world import Victim, build_model, defend, describe, describe_model, measure_worth
from leakscope.core.dataset import Dataset, joined
from leakscope.core.errors import ArgumentError, require
from leakscope.core.nouns import (
    Attack,
    Channel,
    Estimate,
    Knowledge,
    Layers,
    Params,
    Release,
    Transcript,
    View,
)
from leakscope.core.rng import seeded
from leakscope.games import Distribution, Inference
from leakscope.games.channels import UpdateChannel
from leakscope.games.federated import Around
from leakscope.games.referee import play
from leakscope.measures.shuffled import shuffled
from leakscope.measures.success import advantage, auroc, guessing, proportion, success_rate
from leakscope.results.kind import Measured, World
from leakscope.results.scores import Scores
from leakscope.training import Local, cut_parts, cut_sites, federate

ORIGIN = Joint()
CONTENT = Strongest((Joint(ordinal=True), Posterior(reduce=FirstInput(), ordinal=True)), "loss", 300)
LEAST = 20  # records of a site with a value, and without, for its share to be asked about
SURE = 0.95  # of the range that the adversary names for a share


@dataclass(frozen=True, eq=False)
class SiteRecords:
    """One site: the records it trains on, and those that the adversary has of it."""

    name: str
    private: Dataset
    public: Dataset


@dataclass(frozen=True)
class SiteAudit:
    """What a site's updates tell of the site, and from which site an unnamed update is.

    Every value of the private column ``site`` is a client of a federation that trains as ``local`` says. The
    server has other records of every site: a ``share`` of each site's records is what it trains on, and the
    rest are the server's. *Provenance*: whose is an update on records of one site? *Distribution*: in which
    of ``bins`` ranges is the share of each of the ``secrets`` at a site? ``origin`` is the attack on the
    first question, ``content`` that on the second. Where the private column ``person`` says whose a record
    is, whole people are trained on or not.
    """

    site: str
    local: Local
    secrets: tuple[str, ...] = ()
    share: float = 0.5
    bins: int = 6
    origin: Attack = ORIGIN
    content: Attack = CONTENT
    person: str | None = None

    kind = "sites"

    def __post_init__(self) -> None:
        require(0 < self.share < 1, "SiteAudit.share", "between 0 and 1", self.share)
        if self.site in self.secrets:
            raise ArgumentError(
                f"SiteAudit.secrets must not contain the column of sites, got {self.site!r}; leave it out."
            )

    def check(self, world: World) -> None:
        """Refuse what these records or this model cannot give."""
        cell = world.cell
        require(max(cell.observed) < cell.rounds, "observe", f"rounds from 1 to {cell.rounds}", cell.observe)
        sites = self.cut(world)
        self._provenance(sites)
        for secret in self.secrets:
            Distribution(world.records, secret, bins=self.bins)
        build_model(world, sites[0].private, defend(world))

    def run(self, world: World) -> Measured[SitesFound]:
        """Every question, from a federation that is trained for it."""
        cell, seed, defense = world.cell, world.seed, defend(world)
        sites = self.cut(world)
        model = build_model(world, sites[0].private, defense)
        uploads = _Uploads(frozenset(cell.observed), {})
        history = federate(
            model,
            [site.private for site in sites],
            rounds=cell.rounds,
            rng=seeded(seed, "training"),
            local=self.local,
            defense=defense,
            recorder=uploads,
        )
        shown = tuple(history[i] for i in cell.observed)
        channel = UpdateChannel(model, shown, local=self.local, inside=defense)
        questions = [self._ask_origin(world, sites, channel)]
        for secret in self.secrets:
            questions.append(self._ask_content(world, sites, channel, uploads, secret))
        others = joined([site.public for site in sites])
        found = SitesFound(
            questions=tuple(questions),
            public=len(others),
            rounds=len(shown),
            utility=measure_worth(Victim(model, defense, history), others),
        )
        return Measured(found, describe(world.records), describe_model(world, model))

    def cut(self, world: World) -> tuple[SiteRecords, ...]:
        """The sites, each record once, scaled by what they train on."""
        rng, parts = seeded(world.seed, "split"), []
        for name, data in cut_sites(world.records.distinct(), self.site, person=self.person):
            own, rest = cut_parts(data, [round(self.share * len(data))], rng, person=self.person)
            parts.append((name, own, rest))
        private = joined([own for _, own, _ in parts])
        return tuple(
            SiteRecords(name, own.standardised(private), rest.standardised(private))
            for name, own, rest in parts
        )

    def _provenance(self, sites: tuple[SiteRecords, ...]) -> tuple[Inference, Inference]:
        """The game about the site of an update, and the adversary's on its own records. Batches are as large
        as the smallest part allows."""
        private, public = (joined([getattr(site, part) for site in sites]) for part in ("private", "public"))
        batch = min(min(len(site.private), len(site.public)) for site in sites) // 2
        game = Inference(private, self.site, batch=batch, prior="uniform")
        return game, game.on(public)

    def _ask_origin(
        self, world: World, sites: tuple[SiteRecords, ...], channel: UpdateChannel
    ) -> SiteQuestion:
        game, rehearsal = self._provenance(sites)
        knowledge = Knowledge(rehearsal, channel, world.cell.rehearsals, game.chances)
        rng = seeded(world.seed, "play", self.site)
        transcript = play(game, channel, self.origin, knowledge, trials=world.cell.trials, rng=rng)
        codes = [int(site.private.secret(self.site)[0]) for site in sites]
        right = transcript.guesses.argmax(1) == transcript.secrets
        level = 1 - 0.05 / len(sites)
        answers = []
        for site, code in zip(sites, codes, strict=True):
            its = right[transcript.secrets == code]
            rate = proportion("success rate", int(its.sum()), len(its), level=level)
            answers.append(
                SiteAnswer(name=site.name, records=len(site.private), scores=Scores[Estimate](success=rate))
            )
        return SiteQuestion(
            question="provenance",
            column=self.site,
            guessing=guessing(transcript),
            batch=game.batch,
            scores=_measure(transcript, 0.95),
            sites=tuple(answers),
            selfcheck=shuffled(transcript, drawn=True, rng=seeded(world.seed, "shuffle", self.site)),
        )

    def _ask_content(
        self,
        world: World,
        sites: tuple[SiteRecords, ...],
        channel: UpdateChannel,
        uploads: _Uploads,
        secret: str,
    ) -> SiteQuestion:
        level, answers, transcripts, trait = 1 - 0.05 / len(sites), [], [], ""
        for i, site in enumerate(sites):
            whole = Distribution(world.records, secret, bins=self.bins)
            having = site.private.secret(secret) == world.records.value_names(secret).index(whole.trait)
            trait, count = whole.names[0], int(having.sum())
            answer = SiteAnswer(name=site.name, records=len(site.private))
            if min(count, len(site.private) - count) >= LEAST:
                batch = max(len(site.private), self.bins - 1)
                game = Distribution(site.private, secret, bins=self.bins, batch=batch)
                knowledge = Knowledge(game.on(site.public), channel, world.cell.rehearsals)
                rng = seeded(world.seed, "play", secret, site.name)
                place = game.place(count, len(site.private))
                both = _Beside(game, uploads.of(i), place)
                told = play(both, channel, self.content, knowledge, trials=world.cell.trials, rng=rng)
                transcripts.append(replace(told, secrets=told.secrets[:-1], guesses=told.guesses[:-1]))
                low, high = _believe(told.guesses[-1])
                update = {
                    "scores": _measure(transcripts[-1], level),
                    "range": game.span(low, high),
                    "inside": low <= place <= high,
                }
                answer = answer.model_copy(update=update)
            answers.append(answer)
        check = seeded(world.seed, "shuffle", secret)
        return SiteQuestion(
            question="distribution",
            column=secret,
            trait=trait,
            guessing=1 / self.bins,
            sites=tuple(answers),
            selfcheck=shuffled(transcripts[0], drawn=True, rng=check) if transcripts else None,
        )


def _believe(chances: Tensor) -> tuple[int, int]:
    """The first and the last of the likeliest ranges that together have a chance of `SURE`."""
    order = chances.argsort(descending=True)
    kept = order[: int((chances[order].cumsum(0) < SURE).sum()) + 1]
    return int(kept.min()), int(kept.max())


def _measure(transcript: Transcript, level: float) -> Scores[Estimate]:
    return Scores[Estimate](
        success=success_rate(transcript, level=level),
        advantage=advantage(transcript, level=level),
        auroc=auroc(transcript, level=level),
    )


@dataclass(frozen=True, eq=False)
class _Uploads:
    """What every client uploaded in the observed rounds, kept in memory."""

    rounds: frozenset[int]
    kept: dict[int, list[tuple[Params, Params]]]
    models: list[Params] = field(default_factory=list)

    def global_model(self, r: int, params: Params) -> None:
        self.models[:] = [params]

    def update(
        self, r: int, client: int, params: Params, *, samples: int, rate: float | None, steps: int | None
    ) -> None:
        if r in self.rounds:
            self.kept.setdefault(client, []).append((self.models[0], dict(params)))

    def of(self, client: int) -> tuple[Layers, ...]:
        """What one client uploaded, round by round, as one trial each."""
        return tuple(
            {name: (before[name] - value)[None] for name, value in after.items()}
            for before, after in self.kept[client]
        )


@dataclass(frozen=True, eq=False)
class _Beside(Around):
    """A game in which the last trial is what was really uploaded, whose secret is the ``place``."""

    real: tuple[Layers, ...]
    place: int

    def deal(self, channel: Channel, trials: int, rng: torch.Generator) -> tuple[View, Tensor]:
        view, secrets = self.game.deal(channel, trials, rng)
        releases = tuple(
            replace(release, blocks=partial(self._blocks, release, layers))
            for release, layers in zip(view.releases, self.real, strict=True)
        )
        return replace(view, releases=releases), torch.cat([secrets, torch.tensor([self.place])])

    def _blocks(self, release: Release, real: Layers) -> Iterator[Layers]:
        for layers in release.blocks():
            last = layers
            yield layers
        yield {name: real[name].to(tensor.dtype) for name, tensor in last.items()}
