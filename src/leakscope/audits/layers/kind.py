"""The audit of a model's layers, as all other rooms see it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from leakscope.attacks.family import Family
from leakscope.audits.layers import page
from leakscope.audits.layers.audit import LayerAudit
from leakscope.audits.layers.found import COUNTS, WHOLE, LayersFound
from leakscope.audits.world import (
    Parts,
    build_model,
    defend,
    describe_model,
    judge_outputs,
    measure_worth,
    split,
    train_victim,
)
from leakscope.core.nouns import Defense, Estimate
from leakscope.core.tables import construct
from leakscope.games.channels import GradientChannel
from leakscope.results.cell import Cell, list_shields, words
from leakscope.results.kind import Asked, Kind, Measured, TableEntry, World, enter_worth
from leakscope.results.number import Number, of_estimate, of_scores, of_value, of_worth
from leakscope.results.scores import TaskScore
from leakscope.training import logits

QUESTION, INPUTS = "layers", "the inputs"


class LayersKind:
    """Which layers give a secret away."""

    found = LayersFound
    tell = staticmethod(page.tell)

    def ask(self, cell: Cell) -> Asked:
        """An adversary who sees a layer knows what is done to it."""
        secrets = tuple(map(str, cell.game.get("secrets", ())))
        shields = tuple(list_shields(cell.defense))
        return Asked(
            secrets=secrets + ((INPUTS,) if cell.game.get("images") else ()),
            questions=(QUESTION,),
            shields=shields,
            protected=bool(shields),
            adaptive=True if shields else None,
            attack=words(cell.game.get("family") or {"name": Family.__name__}),
        )

    def check(self, world: World) -> None:
        audit, parts = _prepare(world)
        model = build_model(world, parts.train, defend(world))
        audit.check(parts.train, parts.public, model, observed=len(world.cell.observed))

    def run(self, world: World) -> Measured[LayersFound]:
        """The victim is trained again under every protection that is tried."""
        cell, (audit, parts) = world.cell, _prepare(world)
        victim = train_victim(world, parts.train, defend(world))

        def train(defense: Defense) -> tuple[GradientChannel, TaskScore[Estimate]]:
            same = defense == victim.defense
            trained = victim if same else train_victim(world, parts.train, defense)
            rounds = tuple(trained.history[i] for i in cell.observed)
            outputs = logits(trained.model, trained.history[-1], parts.test)
            worth = judge_outputs(outputs, parts.test, ranked=False)
            return GradientChannel(trained.model, rounds, defense), worth

        found = audit.run(
            parts.train,
            parts.public,
            train,
            victim.defense,
            measure_worth(victim, parts.test),
            rehearsals=cell.rehearsals,
            trials=cell.trials,
            seed=world.seed,
        )
        net = describe_model(world, victim.model, parts.train, test=parts.test)
        return Measured(found, parts.described, net)

    def numbers(self, cell: Cell, found: LayersFound, about: Number) -> Iterator[Number]:
        """All layers at once and each alone, for every secret; then the inputs, what was tried, and what
        needs no attack."""
        for latent in found.latent:
            one = replace(about, secret=latent.secret)
            yield from of_scores(replace(one, part=WHOLE), latent.together.scores)
            for key, leak in latent.layers.items():
                yield from of_scores(replace(one, part=_part(found, key, leak.layers)), leak.scores)
            yield from of_scores(replace(one, about="baseline", part=COUNTS), latent.labels.scores)
            aside = replace(one, about="diagnostic", attack="")
            for key, distance in latent.subspace.items():
                part = replace(aside, part=_part(found, key, (key,)))
                yield of_estimate(part, "subspace_distance", distance.distance)
            for key, ratio in latent.two_sample.items():
                part = replace(aside, part=_part(found, key, latent.layers[key].layers))
                yield of_estimate(part, "two_sample_log_ratio", ratio.log_ratio)
        if original := found.original:
            one = replace(about, secret=INPUTS, attack=original.attack)
            yield from of_scores(replace(one, part=WHOLE), original.whole.scores)
            for pair in original.sets:
                yield from of_scores(replace(one, part=_part(found, pair.name, pair.layers)), pair.scores)
        yield from _protections(found, replace(about, about="protection"))
        yield from _studies(found, replace(about, about="diagnostic", attack=""))
        yield from of_worth(about, found.utility)

    def entries(self, found: LayersFound) -> dict[str, TableEntry]:
        """Every estimate by layer, and what became of the paper's claims."""
        free = {"least": -math.inf, "most": math.inf}
        entries = enter_worth(found.utility)
        for one in found.latent:
            rows = {**one.layers, WHOLE: one.together, "labels alone": one.labels}
            told = {f"{one.secret} {key} information": leak.information for key, leak in rows.items()}
            told |= {f"{one.secret} {key} distance": d.distance for key, d in one.subspace.items()}
            entries |= {name: TableEntry(estimate, **free) for name, estimate in told.items()}
        for rebuilt in found.original.views if found.original else ():
            entries[f"{rebuilt.name} original"] = TableEntry(rebuilt.information, **free)
            entries[f"{rebuilt.name} SSIM"] = TableEntry(rebuilt.ssim, least=-1.0)
        for norm, layers in found.sensitivity.items():
            entries |= {f"{key} {norm} sensitivity": TableEntry(e, **free) for key, e in layers.items()}
        for row in found.correlations:
            r = Estimate("r", row.r, row.low, row.high, 0.95, row.n, "Fisher's z")
            entries[f"{row.measure} correlation"] = TableEntry(r, least=-1.0)
        for target, layers in found.mutual.items():
            entries |= {f"{key} I({target}; gradient)": TableEntry(e, **free) for key, e in layers.items()}
        return entries | {name: TableEntry(estimate) for name, estimate in found.claims.items()}

    def headline(self, cell: Cell, found: LayersFound) -> str:
        most = [(one.secret, one.together.information, one.most) for one in found.latent]
        if original := found.original:
            most.append((INPUTS, original.whole.information, original.most))
        told = [f"{name}: {max(nats.value, 0.0):.2f} of {limit:.2f} nats" for name, nats, limit in most]
        return "; ".join(told) or "measured"


def _prepare(world: World) -> tuple[LayerAudit, Parts]:
    audit: LayerAudit = construct(world.cell.game, "audit", trusted=world.trusted)
    return audit, split(world, standardise=world.records.x.dim() != 4)  # pictures stay between 0 and 1


def _part(found: LayersFound, key: str, names: Sequence[str]) -> str:
    """What these layers are, and how the model calls them; a matrix inside a layer has the model's name."""
    known = {layer.name for layer in found.layers}
    return f"{found.title(names)} [{key}]" if known.issuperset(names) else key


def _protections(found: LayersFound, about: Number) -> Iterator[Number]:
    for row in found.protection:
        key = "+".join(row.layers)
        part = f"{row.measure} {_part(found, key, row.layers)}" if row.layers else row.measure
        tried = replace(about, secret=row.secret, part=part)
        yield of_estimate(tried, "information", row.information)
        yield of_estimate(tried, "advantage", row.advantage)
        if row.auroc:
            yield of_estimate(tried, "auroc", row.auroc)
        if row.main:
            yield of_estimate(replace(tried, attack=""), row.judged_by, row.main, found.utility.majority)
        yield from of_value(tried, "noise_std", row.std)


def _studies(found: LayersFound, about: Number) -> Iterator[Number]:
    """What was measured without an attack: of gradients and inputs, and of the paper's claims."""
    for norm, layers in found.sensitivity.items():
        for key, estimate in layers.items():
            part = replace(about, part=_part(found, key, (key,)))
            yield of_estimate(part, f"sensitivity_{norm}", estimate)
    for target, layers in found.mutual.items():
        for key, estimate in layers.items():
            part = replace(about, part=_part(found, key, (key,)))
            yield replace(of_estimate(part, f"information_{target}", estimate), bound="lower")
    for one in found.correlations:
        row = replace(about, part=one.measure, measure="correlation", value=one.r, low=one.low, high=one.high)
        yield replace(row, n=one.n, level=0.95, method="Fisher's z")
    for claim, share in found.claims.items():
        yield of_estimate(about, claim, share)


KIND: Kind[LayersFound] = LayersKind()
