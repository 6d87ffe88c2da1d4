"""What was found of the sites of a federation, question by question."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import model_validator

from leakscope.core.nouns import Count, Estimate
from leakscope.measures.shuffled import SelfCheck
from leakscope.results.scores import FrozenModel, Scores, Worth

Question = Literal["provenance", "distribution"]


class SiteAnswer(FrozenModel):
    """What was found of one site, from updates on so many of its ``records``. None: it has too few records
    with the value, or without, for the question to be asked, and nothing is known. ``range`` is between which
    shares the value's lies by what the site really uploaded, with a chance of 95% as the adversary sees it;
    ``inside``: whether it does."""

    name: str
    records: Count
    scores: Scores[Estimate] | None = None
    range: tuple[float, float] | None = None
    inside: bool | None = None


class SiteQuestion(FrozenModel):
    """One question about the ``column``, by updates on ``batch`` records each (None: as many as a site has).
    Of which site an update is ("provenance"): ``scores`` are those of all sites. What share of a site's
    records has the value ``trait`` ("distribution"): the game is played at every site on its own."""

    question: Question
    column: str
    trait: str = ""
    guessing: float
    batch: int | None = None
    scores: Scores[Estimate] | None = None
    sites: tuple[SiteAnswer, ...]
    selfcheck: SelfCheck | None = None

    @model_validator(mode="after")
    def _whole(self) -> Self:
        """What is judged by its advantage has one."""
        told = [self.scores] if self.question == "provenance" else [site.scores for site in self.sites]
        if any(one is not None and one.advantage is None for one in told) or not self.sites:
            raise ValueError("every question has sites, and every game an advantage")
        if self.question == "provenance" and (
            self.scores is None
            or any(site.scores is None or site.scores.success is None for site in self.sites)
        ):
            raise ValueError("of provenance, every site has a success rate")
        return self


class SitesFound(FrozenModel):
    """The questions about the sites of one federation, of which so many ``rounds`` were seen. ``public``: the
    records that the adversary has of all sites."""

    questions: tuple[SiteQuestion, ...]
    public: Count
    rounds: Count
    utility: Worth[Estimate]
