"""Audits layer by layer, each over its seeds, as the page and the terminal tell of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from leakscope.audits.layers.audit import LayerAudit
from leakscope.audits.layers.found import LayersFound
from leakscope.audits.layers.page.advice import Advice, advise
from leakscope.audits.layers.page.claims import Claim, judge_claims
from leakscope.audits.layers.page.measures import LayersAverage, summarise
from leakscope.audits.layers.page.order import informed, most_rebuilt, most_telling, scaled
from leakscope.results.averages import Average
from leakscope.results.cell import WORDS, capitalise, differences, group_by, stable, words
from leakscope.results.chapter import SEVERITIES, Verdict, read_severity
from leakscope.results.kind import Runs, by_cell
from leakscope.results.result import Result
from leakscope.results.scores import Worth, average_worth

SAID = 5  # sentences about secrets in a verdict; the rest is in the details


@dataclass(frozen=True)
class LayerMap(Runs[LayersFound]):
    """One audit layer by layer over its seeds."""

    found: LayersAverage
    utility: Worth[Average]
    number: int = 0
    differs: str = ""

    @property
    def defense(self) -> str:
        return words(self.cell.defense or {})

    @property
    def title(self) -> str:
        """In few words."""
        defense = f" under {self.defense}" if self.defense else ""
        return f"{words(self.cell.model)} on {self.cell.source}{defense}"

    @property
    def label(self) -> str:
        return f"{self.title}, {self.differs}" if self.differs else self.title

    def setting(self, name: str) -> object:
        """Of the audit, as the cell has it or by default."""
        return self.cell.game.get(name, getattr(LayerAudit, name))

    @property
    def sentences(self) -> list[str]:
        """The most telling layer for each secret, then for the inputs themselves."""
        found, titles = self.found, self.found.titles
        inputs = [most_rebuilt(found.original, titles)] if found.original else []
        return [most_telling(latent, titles) for latent in found.latent] + inputs

    @property
    def lacking(self) -> list[str]:
        """The secrets of which all layers at once gave less than one alone: the adversary misses some."""
        return [
            latent.secret
            for latent in self.found.latent
            if (place := informed(latent.layers)) and latent.together.information.value < place.highest.value
        ]

    @property
    def advice(self) -> Advice | None:
        return advise(self.found, len(self.keys))

    @property
    def claims(self) -> list[Claim]:
        return judge_claims(self.found)

    @property
    def severity(self) -> str:
        """A word from the advantage of the view that tells most, by the bands for games; inputs have a
        share of their information in its place, the share of them that is recovered, and a likeness above
        that of a trivial guess. Where information is shown, it is never less than slight;
        where the adversary could but guess, it is not none."""
        if not self.keys:
            return "failed"
        risks = [risk for latent in self.found.latent for risk in latent.views]
        readings = [read_severity(risk.advantage, risk.auroc) for risk in risks]
        readings += ["slight" for risk in risks if risk.shown]
        if original := self.found.original:
            for view in original.views:
                readings.append(read_severity(scaled(view.information, original.most), None))
                readings.append(read_severity(view.recovered, None))  # a few pictures leave it open
                readings += ["slight"] if view.ssim.low > original.trivial_ssim else []
        if any(all(risk.guesses for risk in latent.views) for latent in self.found.latent):
            readings.append("inconclusive")  # who only guessed has not shown that nothing is there
        return min(readings, key=list(SEVERITIES).index, default="inconclusive")

    @property
    def share(self) -> float:
        """The largest share of what is to be known that is given away for sure."""
        shares = [
            risk.information.low / latent.most
            for latent in self.found.latent
            for risk in latent.layers.values()
        ]
        return max(shares, default=0.0)

    @property
    def verdict(self) -> Verdict:
        views = [
            (risk.advantage, f"{latent.secret}, {self.found.titles[risk.name]}")
            for latent in self.found.latent
            for risk in latent.views
        ]
        gain, view = max(views, key=lambda pair: pair[0].low) if views else (None, "")
        return Verdict(
            severity=self.severity,
            about=", ".join(latent.secret for latent in self.found.latent) or "the inputs",
            data=self.cell.source,
            sentence=self._sentence,
            notes=tuple(self._notes),
            anchor=f"layers-{self.number}",
            order=self.share,
            attack=view,
            measure="advantage",
            average=gain,
            guessing=0.0,
            defense=self.defense,
            utility=self.utility.main,
            task=self.utility.word,
        )

    @property
    def _sentence(self) -> str:
        if not self.keys:
            return (
                f"It is not known which layers of the model on {self.cell.source} give a secret away: the "
                f"measurement failed."
            )
        first = next(
            iter(self.sentences), "No secret was asked about. Only the sensitivity of layers was measured."
        )
        return f"{self.label}: {first}"

    @property
    def _notes(self) -> list[str]:
        more = self.sentences[1:SAID]
        if len(self.sentences) > SAID:
            more.append(f"{len(self.sentences) - SAID} more in the details.")
        if advice := self.advice:
            more += [f"Protection: {' '.join(advice.sentences)}"]
        return more + [capitalise(text) for text in self.failures]


def layer_maps(results: Iterable[Result[LayersFound]]) -> list[LayerMap]:
    """One per cell, the worst first."""
    maps = []
    for runs in by_cell(results):
        founds = Runs(tuple(runs)).founds
        worth = average_worth([found.utility for found in founds])
        maps.append(LayerMap(tuple(runs), summarise(founds), worth))
    told = (*WORDS, "data", "model", "defense")
    for alike in group_by(range(len(maps)), lambda i: maps[i].title).values():
        differing = differences([maps[i].cell.described for i in alike], told)
        for i, differs in zip(alike, differing, strict=True):
            maps[i] = replace(maps[i], differs=differs)
    severities = list(SEVERITIES)
    maps.sort(key=lambda one: (severities.index(one.severity), -one.share, stable(one.cell.described)))
    return [replace(one, number=number) for number, one in enumerate(maps, start=1)]
