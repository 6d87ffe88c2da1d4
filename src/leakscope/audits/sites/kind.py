"""The kind of audit that asks about the sites of a federation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from leakscope.audits.sites import page
from leakscope.audits.sites.audit import SiteAudit
from leakscope.audits.sites.found import SiteQuestion, SitesFound
from leakscope.core.tables import construct
from leakscope.results.cell import Cell, list_shields, words
from leakscope.results.kind import Asked, Measured, TableEntry, World, enter_scores
from leakscope.results.number import Number, of_scores, of_worth


@dataclass(frozen=True)
class SitesKind:
    """What a site's updates tell of the site, and from which site an unnamed update is."""

    found = SitesFound
    tell = staticmethod(page.tell)

    def ask(self, cell: Cell) -> Asked:
        """The adversary rehearses with the defense that is in place."""
        shields = tuple(list_shields(cell.defense))
        return Asked(
            secrets=(str(cell.game.get("site", "*")), *map(str, cell.game.get("secrets", ()))),
            questions=("provenance", "distribution"),
            shields=shields,
            protected=bool(shields),
            adaptive=True if shields else None,
            attack=words([cell.game[name] for name in ("origin", "content") if name in cell.game]),
        )

    def check(self, world: World) -> None:
        _audit(world).check(world)

    def run(self, world: World) -> Measured[SitesFound]:
        return _audit(world).run(world)

    def numbers(self, cell: Cell, found: SitesFound, about: Number) -> Iterator[Number]:
        """Of every question the numbers of all sites, then of each; a site that could not be asked about has
        an error, so that nothing passes for it."""
        for question in found.questions:
            asked = replace(about, secret=question.column, question=question.question)
            if question.scores:
                yield from of_scores(asked, question.scores, guessing=question.guessing)
            for site in question.sites:
                one = replace(asked, part=f"site {site.name}")
                if site.scores is None:
                    yield replace(one, error="the site has too few records for this question")
                else:
                    yield from of_scores(one, site.scores, guessing=question.guessing)
        yield from of_worth(about, found.utility)

    def entries(self, found: SitesFound) -> dict[str, TableEntry]:
        entries: dict[str, TableEntry] = {}
        for question in found.questions:
            parts = [(f"{question.column} ", question.scores)]
            parts += [(f"{question.column} {site.name} ", site.scores) for site in question.sites]
            for prefix, scores in parts:
                if scores:
                    entries |= enter_scores(scores, question.guessing, prefix)
        return entries

    def headline(self, cell: Cell, found: SitesFound) -> str:
        return "; ".join(map(_line, found.questions))


def _line(question: SiteQuestion) -> str:
    """One question in a line: every site by name."""
    what = "the site of an update" if question.question == "provenance" else f"the share of {question.trait}"
    told = [
        f"{site.name} {site.scores.success.value:.0%}"
        if site.scores and site.scores.success
        else f"{site.name} {page.NOT_ENOUGH}"
        for site in question.sites
    ]
    return f"{what} told right: {', '.join(told)} (guessing {question.guessing:.0%})"


def _audit(world: World) -> SiteAudit:
    audit: SiteAudit = construct(world.cell.game, "audit", trusted=world.trusted)
    return audit


KIND = SitesKind()
