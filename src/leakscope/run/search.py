"""The search of `tune`: what is tried is told as it is measured; one answer is kept for page and terminal."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from leakscope.core.nouns import Defense
from leakscope.core.tables import construct
from leakscope.report import answer as answers
from leakscope.report.answer import Answer
from leakscope.report.pages import number, percent, plural, say_change
from leakscope.results import store
from leakscope.results.cell import Cell, Plan, Table
from leakscope.results.scores import TASK_WORDS
from leakscope.run import sweep, tuning
from leakscope.run.tuning import FAMILIES, DefenseFamily, Point, Risk
from leakscope.training.step import changes

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
    families: Sequence[DefenseFamily] = FAMILIES,
) -> Answer:
    """Say what will be tried, try every family of defenses on the first cell of a plan, choose the cheapest
    that keeps the risk, try that one again on a victim that the choice did not see, and keep the answer in
    the folder."""
    sweep.check(plan, trusted=trusted)
    store.claim(folder, text, plan.digest)
    cell, points, frontier = plan.cell[0], list[Point](), list[Point]()
    most, workers = tuning.count_settings(families, halvings), min(jobs or sweep.cores(), len(families))
    for line in announce(cell, risk, families, most, workers):
        tell(line)
    if there := len(store.results(folder)):
        tell(f"{there} results kept from before")
    task = progress.add_task("no defense", total=most)
    tries = tuning.search(
        cell, risk, folder, halvings=halvings, families=families, jobs=jobs, trusted=trusted
    )
    for point in tries:
        points.append(point)
        tell(f"{say_setting(point)}: {say_gain(point)}, {say_cost(point)}")
        if len(points) == 1:
            tell(estimate(point.result.made.seconds, most, workers))
        if (now := tuning.list_frontier(points)) != frontier and len(points) > 1:
            tell(f"frontier so far, the cheapest first: {'; '.join(map(say_place, now))}")
        frontier = now
        progress.update(task, completed=len(points), description=f"{len(points)} settings")
    progress.update(task, total=len(points))
    best = tuning.choose(points, risk)
    again = tuning.confirm(best, cell, folder / CONFIRMED, trusted=trusted) if best else None
    answer = phrase(plan, risk, points, best, again)
    answers.keep(folder, answer)
    return answer


def announce(
    cell: Cell, risk: Risk, families: Sequence[DefenseFamily], most: int, workers: int
) -> Iterator[str]:
    """What is to be tried, and which game is played, before anything is computed."""
    names = ", ".join(family.name for family in families)
    yield f"Game: {name_game(cell)}. The adversary knows the defense."
    yield f"Wanted: advantage at most {risk.advantage:g}, accuracy loss at most {100 * risk.loss:g} points."
    yield f"To try: no defense; then {names}, each at its strongest, and weaker where that holds."
    yield f"That is {plural(most, 'setting')} at most, {workers} at a time."


def name_game(cell: Cell) -> str:
    """The one game of a search in words."""
    seen = f"{plural(len(cell.observed), 'gradient')} of {plural(int(cell.game.get('batch', 1)), 'record')}"
    return f"property inference of {cell.game.get('secret')} from {cell.source} (not an input; {seen})"


def estimate(seconds: float, most: int, workers: int) -> str:
    """How long the rest may take, from the first setting."""
    minutes = plural(math.ceil(seconds * (most - 1) / workers / 60), "minute")
    return f"One setting took {seconds:.0f} s, so all of them take about {minutes} at most."


def say_place(point: Point) -> str:
    """A setting on the frontier, in few words."""
    change = f"{100 * abs(point.loss):.1f} points {'lost' if point.loss > 0 else 'gained'}"
    return f"{say_setting(point)}, up to {number(point.high)}{f', {change}' if point.defense else ''}"


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
    return f"{worth}, {say_change(point.free, point.worth)}" if point.free else worth


def phrase(
    plan: Plan, risk: Risk, points: Sequence[Point], best: Point | None, again: Point | None
) -> Answer:
    cell, free = plan.cell[0], points[0]
    word = TASK_WORDS[free.worth.measure] if free.worth else "the task's worth"
    question = (
        f"Which defense keeps the advantage at {risk.advantage:g} or less and costs at most "
        f"{100 * risk.loss:g} points of {word}? The search plays one game only: {name_game(cell)}, by an "
        f"adversary who knows the defense. It tried {len(points)} settings. Without a defense: "
        f"{say_gain(free)}, {say_cost(free)}."
    )
    notes = []
    majority = free.worth.guessing if free.worth else None
    if free.worth and majority is not None and (free.worth.low or 0.0) <= majority:
        notes.append(
            "The model without a defense is not clearly better than always giving the same answer, "
            "so the search cannot say what a defense costs. Raise --rounds or --rate."
        )
    failed = sum(bool(point.error) for point in points)
    if failed:
        notes.append(f"{failed} settings could not be measured. They count as no protection.")
    if best is None:
        sentence = "No setting that was tried keeps both. Accept more of either, or release less."
        return Answer(question=question, sentence=sentence, notes=tuple(notes))
    sentence = f"The cheapest is {say_setting(best)}: {say_gain(best)}, {say_cost(best)}."
    notes.insert(0, _second(again, risk))
    steps = tuple(list_steps(best.defense, cell))
    return Answer(question=question, sentence=sentence, notes=tuple(notes), steps=steps)


def list_steps(table: Table, cell: Cell) -> Iterator[str]:
    """How to run a defense, by what it acts on, and how to audit it."""
    defense: Defense = construct(table, "defense")
    settings = {key: value for key, value in table.items() if key != "name"}
    made = f"leakscope.{table['name']}({', '.join(f'{key}={value!r}' for key, value in settings.items())})"
    batch, rate = int(cell.game.get("batch", 1)), cell.training.rate
    noise = defense.mechanism(batch, 1)
    if changes(defense, "prepared"):
        yield f"{made} must be fitted to public records and to the secret; there is no ready mod for it."
    elif changes(defense, "model", "loss", "objective", "weigh"):
        yield f"In training: leakscope.training.fit(model, records, ..., defense={made})"
    else:
        mod = f"leakscope.flower.defense_mod({made}, scale={rate:g})"
        yield f"Flower: ClientApp(mods=[{mod}]) # scale: learning rate times local steps of a round"
    if noise and noise.unit == "record":
        multiplier = f"{noise.std * batch / noise.clip:.4g}"
        limits = f"noise_multiplier={multiplier}, max_grad_norm={noise.clip:g}"
        yield f"Opacus: PrivacyEngine().make_private(..., {limits}) # for batches of {batch} records"
    typed = ",".join(f"{key}={value!r}" for key, value in settings.items())
    name = f"{table['name']}:{typed}" if typed else str(table["name"])
    yield f"Audit: leakscope audit {cell.source} --defense {shlex.quote(name)}"


def _second(again: Point | None, risk: Risk) -> str:
    if again is None or again.error:
        reason = again.error if again else "it was not run"
        return f"Not confirmed: a second victim, unknown to the choice, could not be measured: {reason}"
    keeps = "It keeps both there too."
    holds = keeps if again.meets(risk) else "There it does NOT keep both: choose a stronger one."
    return f"On a second victim, unknown to the choice: {say_gain(again)}, {say_cost(again)}. {holds}"
