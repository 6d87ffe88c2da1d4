"""What a page says of the sites of a federation: whose an update is, and what a site's updates tell of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from markupsafe import Markup

from leakscope.audits.sites.found import SiteAnswer, SiteQuestion, SitesFound
from leakscope.core.nouns import Estimate
from leakscope.report.pages import fill, number, percent, plural, spoken
from leakscope.results.averages import Average
from leakscope.results.cell import capitalise, words
from leakscope.results.chapter import SEVERITIES, Brief, Chapter, Verdict, explain, read_severity
from leakscope.results.kind import Runs, by_cell
from leakscope.results.result import Result
from leakscope.results.scores import Scores, average_scores, average_worth

NOT_ENOUGH = "not enough evidence"
ASSUMED = (
    '<p class="soft">Sites: the server sees every upload, knows the model, how the sites train, and the '
    "defense if there is one, and has other records of every site. It rehearses with those.</p>"
)
LIMITS = (
    "Sites: a share is told from updates on records drawn from the site, the value being more or less "
    "frequent among them. A site with few records of the value, or without it, is not asked about.",
    "Sites: how many records a site reports and when it takes part can tell it apart too, and were not used.",
)


@dataclass(frozen=True)
class SiteOverSeeds:
    """One site over seeds; no ``scores`` where it could not be asked about."""

    answers: tuple[SiteAnswer, ...]
    scores: Scores[Average]
    severity: str

    @property
    def name(self) -> str:
        return self.answers[0].name

    @property
    def records(self) -> int:
        return self.answers[0].records

    @property
    def believed(self) -> str:
        """The range of shares that the adversary names for the site's real uploads, in the first seed."""
        between = self.answers[0].range
        return " to ".join(percent(end, 0) for end in between) if between else ""

    @property
    def inside(self) -> bool | None:
        return self.answers[0].inside

    @property
    def worst_first(self) -> tuple[int, float, str]:
        gain = self.scores.advantage or self.scores.success
        return list(SEVERITIES).index(self.severity), -(gain.low if gain else 0.0), self.name


@dataclass(frozen=True)
class QuestionOverSeeds:
    """One question over seeds: what is asked of all sites at once has a word of its own, else it is that of
    the worst site."""

    asked: SiteQuestion
    scores: Scores[Average]
    sites: tuple[SiteOverSeeds, ...]
    anchor: str = ""

    @property
    def known(self) -> list[SiteOverSeeds]:
        return [site for site in self.sites if site.scores.success]

    @property
    def worst(self) -> SiteOverSeeds | None:
        return min(self.known, key=lambda site: site.worst_first, default=None)

    @property
    def deciding(self) -> Scores[Average] | None:
        """What the word follows."""
        if self.scores.advantage:
            return self.scores
        return self.worst.scores if self.worst else None

    @property
    def severity(self) -> str:
        """Of sites that were not asked about nothing is known: then no all-clear."""
        if self.scores.advantage:
            return read_severity(self.scores.advantage, self.scores.auroc)
        word = self.worst.severity if self.worst else "inconclusive"
        return "inconclusive" if word == "none" and len(self.known) < len(self.sites) else word

    @property
    def about(self) -> str:
        if self.asked.trait:
            return f"{self.asked.column}, share of {self.asked.trait} at each site (distribution)"
        return f"{self.asked.column} of an update (provenance)"

    @property
    def wanted(self) -> str:
        """What the server is after, in a sentence."""
        if self.asked.trait:
            return f"the share of {self.asked.trait} at each site"
        return f"which {self.asked.column} an update is from"


@dataclass(frozen=True)
class SitesOverSeeds(Runs[SitesFound]):
    """The sites of one federation over seeds."""

    questions: tuple[QuestionOverSeeds, ...] = ()

    @property
    def first(self) -> SitesFound:
        return self.founds[0]

    @property
    def defense(self) -> str:
        return words(self.cell.defense) if self.cell.defense else "none"

    @property
    def worth(self) -> Average | None:
        return average_worth([found.utility for found in self.founds]).main


def tell(results: Sequence[Result[SitesFound]]) -> Chapter:
    """The sites of all federations, question by question."""
    federations = [_federation(tuple(runs), i) for i, runs in enumerate(by_cell(results), 1)]
    return Chapter(
        lead=f"{plural(len(federations), 'federation')} audited for what updates tell of sites.",
        verdicts=tuple(verdict for federation in federations for verdict in _verdicts(federation)),
        body=fill("sites/page.html", federations=federations, NOT_ENOUGH=NOT_ENOUGH),
        assumed=Markup(ASSUMED),
        limits=LIMITS,
        settings=len(federations),
        brief=_open(federations),
    )


def _open(federations: Sequence[SitesOverSeeds]) -> Brief:
    """The first page's part."""
    questions = [question for federation in federations for question in federation.questions]
    return Brief(
        asked=tuple(
            dict.fromkeys(
                f"Can the server tell {question.wanted}, by what the sites upload?" for question in questions
            )
        ),
        meaning=tuple(
            explain(
                question.severity,
                question.about,
                f"Whoever sees a site's uploads learns {question.wanted}. It is not about one person.",
            )
            for question in questions
        ),
        assumed=("The server has other records of every site, and rehearses with them.",),
        untested=("What a sum of all uploads tells about a site was not asked.",),
    )


def _federation(results: tuple[Result[SitesFound], ...], place: int) -> SitesOverSeeds:
    founds = Runs(results).founds
    tables = zip(*(found.questions for found in founds), strict=True)
    questions = (replace(_question(same), anchor=f"sites-{place}-{i}") for i, same in enumerate(tables, 1))
    return SitesOverSeeds(results, tuple(questions))


def _question(same: Sequence[SiteQuestion]) -> QuestionOverSeeds:
    bases = [question.guessing for question in same]
    sites = []
    for answers in zip(*(question.sites for question in same), strict=True):
        scores = _over([answer.scores for answer in answers], bases)
        gain = scores.advantage
        severity = read_severity(gain, scores.auroc) if gain else "inconclusive"
        sites.append(SiteOverSeeds(answers, scores, severity))
    return QuestionOverSeeds(same[0], _over([question.scores for question in same], bases), tuple(sites))


def _over(scores: Sequence[Scores[Estimate] | None], bases: Sequence[float]) -> Scores[Average]:
    """Over seeds; nothing where some seed has nothing."""
    kept = [one for one in scores if one is not None]
    return average_scores(kept, bases) if len(kept) == len(scores) else Scores[Average]()


def _verdicts(federation: SitesOverSeeds) -> Iterator[Verdict]:
    """One for every question, or that nothing was measured."""
    data, notes = federation.cell.source, tuple(map(capitalise, federation.failures))
    if not federation.founds:
        sentence = "Nothing is known of what updates tell of sites: the measurement failed."
        yield Verdict("failed", "sites", data, sentence, notes)
    for question in federation.questions:
        scores = question.deciding
        yield Verdict(
            severity=question.severity,
            about=question.about,
            data=data,
            sentence=f"{_sentence(federation, question)} By site: {'; '.join(map(_brief, question.sites))}.",
            notes=notes,
            anchor=question.anchor,
            order=scores.advantage.low if scores and scores.advantage else 0.0,
            measure="advantage" if scores else "",
            average=scores.advantage if scores else None,
            guessing=0.0 if scores else None,
            defense=federation.defense,
            utility=federation.worth,
        )


def _sentence(federation: SitesOverSeeds, question: QuestionOverSeeds) -> str:
    shield = f"With {federation.defense}, a" if federation.cell.defense else "A"
    server = f"{shield} server that sees {plural(federation.first.rounds, 'upload')} of one site"
    if question.scores.success:
        right, between, chance = spoken(question.scores.success, question.asked.guessing)
        return (
            f"{server}, without its name, tells which of {len(question.sites)} sites it is, and is right in "
            f"{right} of cases (95% interval {between}). Guessing without the uploads: {chance}."
        )
    if question.worst is None or question.worst.scores.success is None:
        return f"Of no site enough records are there to say what a server learns of it: {NOT_ENOUGH}."
    success = question.worst.scores.success
    right, between, chance = spoken(success, question.asked.guessing)
    return (
        f"{server} tells in which range the share of {question.asked.trait} lies there; most at "
        f"{question.worst.name}, where it is right in {right} of cases ({100 * success.level:.4g}% interval "
        f"{between}). Guessing without the uploads: {chance}."
    )


def _brief(site: SiteOverSeeds) -> str:
    """One site in a line."""
    success = site.scores.success
    if success is None:
        return f"{site.name} {NOT_ENOUGH}"
    between = f"{number(100 * success.low, 0)} to {percent(success.high, 0)}"
    return f"{site.name} {percent(success.value, 0)} ({between})"
