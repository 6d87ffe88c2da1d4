"""The search of `tune`: what is tried is told as it is measured; one answer is kept for page and terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from leakscope.report import answer as answers
from leakscope.report.answer import Answer
from leakscope.report.pages import number, percent
from leakscope.results import store
from leakscope.results.cell import Plan
from leakscope.results.scores import TASK_WORDS
from leakscope.run import sweep, tuning
from leakscope.run.tuning import FAMILIES, Point, Risk

if TYPE_CHECKING:
    from rich.progress import Progress

CONFIRMED = "confirmation"  # the folder of the chosen setting's second victim, apart from what chose it


def search_defense(
    plan: Plan,
    text: str,
    risk: Risk,
    folder: Path,
    *,
    halvings: int,
    jobs: int | None,
    trusted: Sequence[str],
    progress: Progress,
    tell: Callable[[str], None],
) -> Answer:
    """Try every family of defenses on the first cell of a plan, choose the cheapest that keeps the risk, try
    that one again on a victim that the choice did not see, and keep the answer in the folder."""
    sweep.check(plan, trusted=trusted)
    store.claim(folder, text, plan.digest)
    cell, points = plan.cell[0], list[Point]()
    if there := len(store.results(folder)):
        tell(f"{there} results kept from before")
    task = progress.add_task("no defense", total=1 + len(FAMILIES) * (1 + halvings))  # at most
    for point in tuning.search(cell, risk, folder, halvings=halvings, jobs=jobs, trusted=trusted):
        points.append(point)
        tell(f"{say_setting(point)}: {say_gain(point)}, {say_cost(point)}")
        progress.update(task, completed=len(points), description=f"{len(points)} settings")
    progress.update(task, total=len(points))
    best = tuning.choose(points, risk)
    again = tuning.confirm(best, cell, folder / CONFIRMED, trusted=trusted) if best else None
    answer = phrase(plan, risk, points, best, again)
    answers.keep(folder, answer)
    return answer


def say_setting(point: Point) -> str:
    settings = ", ".join(f"{key}={value:g}" for key, value in point.defense.items() if key != "name")
    return f"{point.family}({settings})" if point.defense else "no defense"


def say_gain(point: Point) -> str:
    if point.error:
        return f"not measured: {point.error}"
    ranking = ", but its ranking leaks" if point.ranks else "" if point.sound else ", which is no evidence"
    return f"advantage {number(point.advantage)} (up to {number(point.high)}){ranking}"


def say_cost(point: Point) -> str:
    if point.worth is None or point.worth.value is None:
        return "the task's worth not measured"
    worth = f"{TASK_WORDS[point.worth.measure]} {percent(point.worth.value)} ({percent(point.worth.low)} to "
    worth += f"{percent(point.worth.high)})"
    if not point.defense:
        return worth
    return f"{worth}, {100 * abs(point.loss):.1f} points {'lost' if point.loss > 0 else 'gained'}"


def phrase(
    plan: Plan, risk: Risk, points: Sequence[Point], best: Point | None, again: Point | None
) -> Answer:
    cell, free = plan.cell[0], points[0]
    word = TASK_WORDS[free.worth.measure] if free.worth else "the task's worth"
    question = (
        f"Which defense keeps the advantage at {risk.advantage:g} or less and costs at most "
        f"{100 * risk.loss:g} points of {word}? Searched for one game only: property inference of "
        f"{cell.game.get('secret')} from {cell.source}, by an adversary who knows the defense. "
        f"{len(points)} settings were tried; without a defense: {say_gain(free)}, {say_cost(free)}."
    )
    notes = []
    majority = free.worth.guessing if free.worth else None
    if free.worth and majority is not None and (free.worth.low or 0.0) <= majority:
        notes.append(
            "The model without a defense is not clearly better than always giving the same answer, so a "
            "defense costs it nothing. Raise --rounds or --rate."
        )
    failed = sum(bool(point.error) for point in points)
    if failed:
        notes.append(f"{failed} settings could not be measured and count as no protection.")
    if best is None:
        sentence = "No setting tried keeps both. Accept more of either, or release less."
        return Answer(question=question, sentence=sentence, notes=tuple(notes))
    sentence = f"The cheapest is {say_setting(best)}: {say_gain(best)}, {say_cost(best)}."
    notes.insert(0, _second(again, risk))
    return Answer(question=question, sentence=sentence, notes=tuple(notes))


def _second(again: Point | None, risk: Risk) -> str:
    if again is None or again.error:
        reason = again.error if again else "it was not run"
        return (
            f"Not confirmed: a second victim, which the choice did not see, could not be measured ({reason})"
        )
    holds = (
        "It keeps both there too."
        if again.meets(risk)
        else "There it does NOT keep both: choose a stronger one."
    )
    return f"On a second victim, which the choice did not see: {say_gain(again)}, {say_cost(again)}. {holds}"
