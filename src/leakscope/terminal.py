"""What a person sees while a command works: progress, tables, one line about a finished cell."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from leakscope.errors import LeakscopeError

if TYPE_CHECKING:
    from rich.progress import Progress

    from leakscope.plan import Cell, Plan
    from leakscope.store import Result
    from leakscope.tuning import Risk


def listed(title: str, lines: dict[str, str]) -> None:
    typer.echo(f"{title}")
    width = max(map(len, lines))
    for name, line in lines.items():
        typer.echo(f"  {name:<{width}}  {line}")
    typer.echo()


def tabled(header: list[str], rows: list[list[str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(*header, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*row)
    console = Console() if Console().is_terminal else Console(width=160)
    console.print(table, highlight=False)


def progress() -> Progress:
    """A bar with the time spent and left, on standard error."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    console = Console(stderr=True)
    words = TextColumn("{task.description}")
    columns = words, BarColumn(), TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn()
    return Progress(*columns, console=console, transient=not console.is_terminal)


def swept(plan: Plan, text: str, folder: Path, *, jobs: int | None, trust: list[str]) -> list[Result]:
    """Run a plan under a progress bar."""
    from leakscope import sweep

    with progress() as bar:
        task = bar.add_task("checking the plan", total=None)
        digests = sweep.check(plan, trusted=trust)
        bar.update(task, description=f"{len(plan.cell) * len(plan.seeds)} cells")

        def step(finished: sweep.Step) -> None:
            words = f"{finished.cell.id or finished.cell.game['name']}, seed {finished.seed}"
            bar.console.print(f"  {words}: {headline(finished.result)}", highlight=False, markup=False)
            bar.update(task, completed=finished.done, total=finished.total)

        return sweep.run(plan, folder, text=text, jobs=jobs, trusted=trust, progress=step, digests=digests)


def reported(plan: Plan, text: str, folder: Path, *, jobs: int | None, trust: list[str]) -> None:
    from leakscope import report as reports

    results = swept(plan, text, folder, jobs=jobs, trust=trust)
    typer.echo(f"Report: {reports.write(folder)}")
    measured = [result["utility"] for result in results if "utility" in result]
    idle = sum(utility["accuracy"]["low"] <= utility["majority"] for utility in measured)
    if idle:
        typer.echo(
            f"Note: in {idle} of {len(measured)} cells the model is not clearly better than always saying "
            f"the most frequent label; with more --rounds or a higher --rate it would have learned more."
        )
    failed = sum("error" in result for result in results)
    if failed:
        raise LeakscopeError(f"{failed} of {len(results)} cells failed; the report says why.")


def tuned(cell: Cell, risk: Risk, folder: Path, *, halvings: int, jobs: int | None, trust: list[str]) -> None:
    """Search under a progress bar, then say what was found."""
    from leakscope import report as reports
    from leakscope import tuning

    points = []
    with progress() as bar:
        task = bar.add_task("no defense", total=len(tuning.FAMILIES) + 1)
        done: set[str] = set()
        for point in tuning.search(cell, risk, folder, halvings=halvings, jobs=jobs, trusted=trust):
            points.append(point)
            done.add(point.family)
            bar.update(task, completed=len(done), description=f"{len(points)} settings")
    utility = points[0].results[0]["utility"]
    if utility["accuracy"]["low"] <= utility["majority"]:
        typer.echo(
            "Note: the undefended model is not clearly better than always saying the most frequent label, so "
            "a defense costs it nothing; raise --rounds or --rate."
        )
    rows = []
    for point in points:
        words = ", ".join(f"{key} {value:g}" for key, value in point.defense.items() if key != "name")
        measured = f"{point.advantage:.3f} (up to {point.high:.3f})" if not point.error else point.error
        meets = "yes" if point.meets(risk) else ""
        rows.append([point.family, words, measured, f"{100 * point.loss:+.1f} points", meets])
    tabled(["defense", "strength", "advantage", "accuracy lost", "meets both"], rows)
    best = tuning.cheapest(points, risk)
    wish = f"an advantage of at most {risk.advantage:g} and a loss of at most {100 * risk.loss:g} points"
    if best is None:
        typer.echo(f"No setting tried meets {wish}; accept more of either, or release less.")
    else:
        words = ", ".join(f"{key}={value:g}" for key, value in best.defense.items() if key != "name")
        again = tuning.confirmed(best, cell, folder, trusted=trust)
        typer.echo(
            f"Cheapest for {wish}: {best.family}({words}). On a victim the choice did not see: advantage "
            f"{again.advantage:.3f} (up to {again.high:.3f}), {100 * again.loss:+.1f} points of accuracy."
        )
    typer.echo(f"Report: {reports.write(folder)}")


def headline(result: Result) -> str:
    """One line about a finished cell."""
    if "error" in result:
        return f"failed: {result['error']}"
    if "audit" in result:
        audit = result["audit"]
        return (
            f"epsilon at least {audit['any']['low']:.2f} whatever the mechanism, "
            f"{audit['gaussian']['low']:.2f} as it is Gaussian (promised: at most {audit['exact']:.2f})"
        )
    success, base = result["estimates"]["success"], result["guessing"]
    return f"right in {success['value']:.1%} of trials, guessing {base:.1%}"
