"""Audits layer by layer as the page and the terminal tell of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from leakscope.averages import Average, Json, averages, mean
from leakscope.layer_maps.claims import Claim, claims
from leakscope.layer_maps.measures import Measured, measured
from leakscope.layer_maps.order import informed, most_rebuilt, most_telling, scaled
from leakscope.layer_maps.plan import Plan
from leakscope.plan import WORDS
from leakscope.sections import differences, words
from leakscope.summary import SEVERITIES, cells, reading, source, stable


@dataclass(frozen=True)
class LayerMap:
    """One audit layer by layer over its seeds. Without ``runs`` every seed failed."""

    cell: Json
    runs: tuple[Json, ...]
    failures: tuple[tuple[int, str], ...]
    found: Measured
    utility: Mapping[str, Average]
    majority: float | None
    number: int = 0
    differs: str = ""

    @property
    def game(self) -> Json:
        return self.cell.get("game") or {}

    @property
    def data(self) -> str:
        return source(self.cell)

    @property
    def defense(self) -> str:
        return words(self.cell.get("defense") or {})

    @property
    def label(self) -> str:
        model = words(self.cell.get("model") or {})
        return ", ".join(part for part in (self.data, model, self.defense, self.differs) if part)

    @property
    def sentences(self) -> list[str]:
        """The most telling layer for each secret, then for the inputs themselves."""
        told = [most_telling(latent) for latent in self.found.latent]
        return told + ([most_rebuilt(self.found.original)] if self.found.original else [])

    @property
    def lacking(self) -> list[str]:
        """The secrets of which all layers at once gave less than one alone: the adversary misses some."""
        return [
            latent.secret
            for latent in self.found.latent
            if (place := informed(latent.layers))
            and latent.together
            and latent.together.information.value < place.highest.value
        ]

    @property
    def plan(self) -> Plan:
        latents = self.found.latent
        leaks = {
            one.secret
            for one in latents
            if any(risk and risk.told for risk in (*one.layers.values(), one.together))
        }
        most = {one.secret: one.most for one in latents}
        return Plan(self.found.protection, len(self.runs), most, frozenset(leaks))

    @property
    def claims(self) -> list[Claim]:
        return claims(self.found)

    @property
    def severity(self) -> str:
        """A word from the advantage of the view that tells most, by the bands for games; inputs have a
        share of their information in its place."""
        views = [
            (risk.advantage, risk.auroc)
            for latent in self.found.latent
            for risk in (*latent.layers.values(), latent.together)
            if risk and risk.advantage
        ]
        if not self.runs:
            return "failed"
        readings = [reading(advantage, auroc) for advantage, auroc in views]
        if original := self.found.original:
            sets = (*original.sets, *([original.whole] if original.whole else []))
            readings += [reading(scaled(each.risk.information, original.most), None) for each in sets]
        return min(readings, key=SEVERITIES.index, default="inconclusive")

    @property
    def worst_first(self) -> tuple[int, float, str]:
        shares = [
            risk.information.low / latent.most
            for latent in self.found.latent
            for risk in latent.layers.values()
        ]
        return SEVERITIES.index(self.severity), -max(shares, default=0.0), stable(self.cell)


def layer_maps(results: Iterable[Json]) -> list[LayerMap]:
    """One per cell, the worst first."""
    maps = [_layer_map(runs) for runs in cells(results, "localisation")]
    told = (*WORDS, "data", "model", "defense")
    differing = differences([one.cell for one in maps], told)
    maps = [replace(one, differs=differs) for one, differs in zip(maps, differing, strict=True)]
    maps.sort(key=lambda one: one.worst_first)
    return [replace(one, number=number) for number, one in enumerate(maps, start=1)]


def _layer_map(results: Sequence[Json]) -> LayerMap:
    failures = tuple((int(r["seed"]), str(r["error"])) for r in results if r.get("error"))
    runs = tuple(r for r in results if not r.get("error") and r.get("localisation"))
    whole = measured([run["localisation"] for run in runs])
    if runs and not (whole.latent or whole.original or whole.sensitivity):
        failures += tuple((int(run["seed"]), "no layer with a finite measure") for run in runs)
        runs, whole = (), Measured()
    worth = [run.get("utility") or {} for run in runs]
    shares = [float(table["majority"]) for table in worth if table.get("majority") is not None]
    return LayerMap(
        cell=results[0]["cell"],
        runs=runs,
        failures=failures,
        found=whole,
        utility=averages([{k: v for k, v in table.items() if k != "majority"} for table in worth]),
        majority=mean(shares) if shares else None,
    )


def lines(results: Iterable[Json]) -> list[str]:
    """What the terminal says: the most telling layers and what is recommended, cell by cell."""
    maps = layer_maps(results)
    return [line for one in maps for line in _lines(one, named=len(maps) > 1)]


def _lines(one: LayerMap, *, named: bool) -> Iterator[str]:
    if named:
        yield f"{one.label}:"
    yield from (f"seed {seed} failed: {reason}" for seed, reason in one.failures)
    yield from one.sentences
    yield from (f"Protection: {text}" for text in one.plan.advice)
