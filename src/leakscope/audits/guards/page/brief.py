"""What audits of guards say on the first page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from leakscope.audits.guards.page.measures import TriedAverage
from leakscope.audits.guards.page.pages import GuardPage, is_quiet
from leakscope.report.pages import interval, listed, number, percent, say_change
from leakscope.results.averages import Average
from leakscope.results.chapter import LEAKS, Brief, Scene, explain
from leakscope.results.scores import MEASURES


def brief(pages: Sequence[GuardPage]) -> Brief:
    """The first page's part."""
    return Brief(
        asked=tuple(
            f"Representations of {page.data} are shared in place of records. What do they still tell about "
            f"{page.title}?"
            for page in pages
        ),
        meaning=tuple(explain(page.severity, page.title, _harm(page)) for page in pages),
        helps=tuple(sentence for page in pages for sentence in _help(page)),
        assumed=(
            "The attacker has the finished encoder and records of its own, and is trained after the guard is "
            "finished. Each record is released once.",
        ),
        untested=tuple(_omit(pages)),
        scene=_scene([page for page in pages if page.best]),
    )


def _harm(page: GuardPage) -> str:
    if page.secret == "membership":
        return "Whoever has a person's representation learns whether the guard was trained on that person."
    if page.secret == "reconstruction":
        return "Whoever has a person's representation can rebuild part of the record behind it."
    if page.secret == "property":
        return f"Whoever has a group's representations learns {page.title}. It is about the group."
    return (
        f"Whoever has a person's representation still learns something about the {page.title} of that person."
    )


def _help(page: GuardPage) -> Iterator[str]:
    """The cheapest guard under which nothing is found; else what the best leaves."""
    holding = [(one, found) for one, found in page.judged if one.lam != 0 and is_quiet(found)]
    free = page.free.tried.worth if page.free else None
    if holding:
        one, found = max(holding, key=lambda pair: pair[1].tried.worth.value if pair[1].tried.worth else 0.0)
        known = " without its key" if found.row("keyed") else ""
        known += ", and with the label no more than the label tells" if found.rows else ""
        yield (
            f"Every attacker tried on {one.label} learned no more than guessing{known}. "
            f"{_cost(found.tried, free)}"
        )
    elif page.best:
        one, found = page.best
        attack = found.tried.attack(page.measure)
        left = f", {MEASURES[page.measure].title} {interval(attack, number)}" if attack else ""
        yield (
            f"No guard that was tried is shown to hide {page.title} from every attacker. The best trade-off: "
            f"{one.label}{left}."
        )


def _cost(tried: TriedAverage, free: Average | None) -> str:
    worth = tried.worth
    if worth is None or free is None:
        return "What it costs was not measured."
    return f"Task {tried.task.word} {interval(worth, percent)}; {say_change(free, worth)} against no guard."


def _omit(pages: Sequence[GuardPage]) -> Iterator[str]:
    if any(page.severity not in LEAKS for page in pages):
        yield "Another network, or one trained longer, may find what these attackers miss."
    secrets = listed(page.title for page in pages)
    yield f"The guard was judged for {secrets} only. What it leaves of other columns is not known."


def _scene(pages: Sequence[GuardPage]) -> Scene | None:
    if not pages:
        return None
    grouped = all(page.secret == "property" for page in pages)
    return Scene(
        holder="A client holds the records",
        records=(f"Data: {listed(dict.fromkeys(page.data for page in pages))}. They never leave.",),
        crosses=(
            "Sent: one of each group" if grouped else "Sent: a representation of each record",
            "made by the guard's encoder",
        ),
        listener="Whoever gets the representations",
        knows=("the encoder and the law of its noise", "records of its own"),
        wants=listed(dict.fromkeys(page.title for page in pages)),
    )
