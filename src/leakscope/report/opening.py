"""The first part of a page, for whoever decides and does not audit: what was asked, what was found, what it
means, what would help, what was assumed, what was not tested. The kinds give the sentences."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from leakscope.core.catalogue import KINDS
from leakscope.report.answer import Answer
from leakscope.report.pages import plural
from leakscope.results.chapter import Brief, Chapter, Scene, Verdict
from leakscope.results.result import Result

FOUND = 3  # verdicts on the first page
LISTED = 5  # sentences of one list, at most
NO_DEFENSE = "No defense was tried, so this run cannot say what would help."


@dataclass(frozen=True)
class Opening:
    """The lists of the first page, each in whole sentences, and the pictures of who sees what."""

    asked: list[str]
    found: list[Verdict]
    more: int  # verdicts that stand below only
    meaning: list[str]
    helps: list[str]
    steps: tuple[str, ...]  # commands and settings
    assumed: list[str]
    untested: list[str]
    unasked: list[str]  # the questions among it
    scenes: list[Scene]


def open_page(
    told: Sequence[Chapter],
    verdicts: Sequence[Verdict],
    results: Sequence[Result[Any]],
    answer: Answer | None,
    missing: int,
    *,
    most: int = LISTED,
) -> Opening:
    """What the chapters say in short, at ``most`` so many sentences of a list; the answer of a search takes
    the place of their advice."""
    briefs = [chapter.brief for chapter in told]
    asked = [answer.question] if answer else _short((brief.asked for brief in briefs), most)
    there = {result.kind for result in results}
    unasked = [entry.asks for name, entry in KINDS.items() if name not in there and entry.asks]
    return Opening(
        asked=asked,
        found=list(verdicts[:FOUND]),
        more=max(0, len(verdicts) - FOUND),
        meaning=_short((brief.meaning for brief in briefs), most),
        helps=advise(briefs, answer),
        steps=answer.steps if answer else (),
        assumed=_short((brief.assumed for brief in briefs), most),
        untested=[
            *_lost(results, missing),
            *list_too_small(results),
            *_each(brief.untested for brief in briefs),
            *say_unasked(unasked),
            *_once(results),
        ],
        unasked=unasked,
        scenes=list(dict.fromkeys(brief.scene for brief in briefs if brief.scene)),
    )


def advise(briefs: Iterable[Brief], answer: Answer | None = None) -> list[str]:
    """What would help: one answer, the same on the page and in the terminal."""
    if answer:
        return [answer.sentence, *answer.notes]
    return _each(brief.helps for brief in briefs) or [NO_DEFENSE]


def _each(lists: Iterable[Sequence[str]]) -> list[str]:
    return list(dict.fromkeys(sentence for sentences in lists for sentence in sentences))


def _short(lists: Iterable[Sequence[str]], most: int) -> list[str]:
    """Of each chapter so many sentences that all have room; the details have the rest."""
    every = [list(sentences) for sentences in lists if sentences]
    room = max(1, most // max(1, len(every)))
    kept = _each(sentences if len(sentences) <= room else sentences[:room] for sentences in every)
    left = len(_each(every)) - len(kept)
    return [*kept, f"{left} more {'is' if left == 1 else 'are'} in the details below."] if left else kept


def _lost(results: Sequence[Result[Any]], missing: int) -> list[str]:
    """Results that failed or are not there."""
    failed, lost = sum(bool(result.error) for result in results), []
    if failed:
        lost.append(
            f"{failed} of {plural(len(results), 'measurement')} failed. What they would show is open."
        )
    if missing:
        lost.append(f"The plan asks for {plural(missing, 'more measurement')}. Nobody has run them.")
    return lost


def list_too_small(results: Sequence[Result[Any]]) -> list[str]:
    """What was not asked because a table is too small for it."""
    there = {result.kind for result in results}
    used = {one.name: one.records for result in results if (one := result.made.records)}
    return [
        f"Nobody asked {entry.asks}: that needs a table of {entry.fewest} records or more, and {name} has "
        f"{count}. So nothing is known about it."
        for kind, entry in KINDS.items()
        for name, count in used.items()
        if kind not in there and count < entry.fewest
    ]


def say_unasked(questions: Sequence[str]) -> list[str]:
    """The kinds of audit that were not run."""
    return [f"Not asked: {'; '.join(questions)}."] if questions else []


def _once(results: Sequence[Result[Any]]) -> list[str]:
    """What one seed leaves open."""
    once = len({result.seed for result in results}) == 1
    return ["The model was trained once. Another training can leak more or less."] if once else []
