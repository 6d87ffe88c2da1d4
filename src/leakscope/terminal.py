"""What a person sees while a command works: progress, tables, one line about a finished cell."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from leakscope.errors import LeakscopeError, printable
from leakscope.headlines import headline, notes

if TYPE_CHECKING:
    from rich.progress import Progress

    from leakscope.engines import Engine
    from leakscope.plan import Cell, Plan
    from leakscope.store import Result
    from leakscope.tuning import Point, Risk


def catalogued() -> None:
    """Everything that plans can name."""
    from leakscope.catalogue import DATA, roles

    for title, role in [
        ("Games", "game"), ("Attacks", "attack"), ("Heads", "head"), ("Reductions", "reduction"),
        ("Defenses", "defense"), ("Guards", "guard"), ("Encoders", "encoder"), ("Models", "model"),
        ("Measures", "measure"),
    ]:  # fmt: skip
        listed(title, {name: entry.line for name, entry in roles(role).items()})
    listed("Data", DATA)


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
        table.add_row(*map(printable, row))
    console = Console() if Console().is_terminal else Console(width=160)
    console.print(table, highlight=False)


def progress() -> Progress:
    """A bar with the time spent and left, on standard error; where that is no terminal, lines only."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    console = Console(stderr=True, soft_wrap=True)
    words = TextColumn("{task.description}")
    columns = words, BarColumn(), TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn()
    return Progress(*columns, console=console, disable=not console.is_terminal)


def _say(bar: Progress, words: str) -> None:
    bar.console.print(f"  {printable(words)}", highlight=False, markup=False)


def swept(
    plan: Plan,
    text: str,
    folder: Path,
    *,
    jobs: int | None,
    trust: list[str],
    engine: Engine | None = None,
) -> list[Result]:
    """Run a plan under a progress bar."""
    from leakscope import store, sweep

    keys = {cell.key(seed) for cell in plan.cell for seed in plan.seeds}
    with progress() as bar:
        task = bar.add_task("checking the plan", total=None)
        digests = sweep.check(plan, trusted=trust)
        store.claim(folder, text, plan.digest)
        kept = sum("error" not in result for key in keys if (result := store.load(folder, key)) is not None)
        if kept:
            _say(bar, f"{kept} of {len(keys)} cells kept from before")
        bar.update(task, description=f"{len(keys)} cells")

        def step(finished: sweep.Step) -> None:
            words = f"{finished.cell.id or finished.cell.game['name']}, seed {finished.seed}"
            _say(bar, f"{words}: {headline(finished.result)}")
            bar.update(task, completed=finished.done, total=finished.total)

        names = {c.key(s): f"{c.id or c.game['name']}, seed {s}" for c in plan.cell for s in plan.seeds}
        with _beating(bar, names) as beats:
            return sweep.run(
                plan,
                folder,
                text=text,
                jobs=jobs,
                trusted=trust,
                progress=step,
                digests=digests,
                engine=engine,
                beats=beats,
            )


@contextmanager
def _beating(bar: Progress, names: Mapping[str, str]) -> Iterator[Path]:
    """A folder in which workers say how far their trainings have come, and a line of the bar for each."""
    from leakscope.engines import beat

    ended = threading.Event()

    def watch(folder: Path) -> None:
        shown: dict[str, Any] = {}
        while not ended.wait(0.3):
            for file in folder.iterdir():
                if (found := beat(file)) is None:
                    continue
                if file.name not in shown:
                    shown[file.name] = bar.add_task(f"  training {printable(names.get(file.name, ''))}")
                bar.update(shown[file.name], completed=found[0], total=found[1], visible=found[0] < found[1])

    with tempfile.TemporaryDirectory() as folder:
        thread = threading.Thread(target=watch, args=(Path(folder),), daemon=True)
        if not bar.disable:
            thread.start()
        try:
            yield Path(folder)
        finally:
            ended.set()
            if thread.is_alive():
                thread.join()


def audited(document: dict[str, Any], folder: Path, *, jobs: int | None, trust: list[str]) -> None:
    """Run the plan of an audit, then say what was found."""
    import tomli_w

    from leakscope.plan import from_document

    plan = from_document(document, trusted=trust, where="the audit")
    reported(plan, tomli_w.dumps(document), folder, jobs=jobs, trust=trust)


def localised(document: dict[str, Any], folder: Path, *, jobs: int | None, trust: list[str]) -> None:
    """Run the audit of a model's layers, then say which tells most and what protects it."""
    from leakscope import layer_maps, store

    audited(document, folder, jobs=jobs, trust=trust)
    for line in layer_maps.lines(store.results(folder)):
        typer.echo(printable(line))


def guarded(document: dict[str, Any], folder: Path, *, jobs: int | None, trust: list[str]) -> None:
    """Train, attack and save a guard, then say what it holds off and what it costs."""
    from leakscope import guard_pages, store

    audited(document, folder, jobs=jobs, trust=trust)
    for line in guard_pages.lines(store.results(folder)):
        typer.echo(printable(line))
    for cell in document["cell"]:
        typer.echo(printable(f"Encoder: {cell['game']['save']}"))


def reported(
    plan: Plan,
    text: str,
    folder: Path,
    *,
    jobs: int | None,
    trust: list[str],
    engine: Engine | None = None,
) -> None:
    """Run a plan and write its report."""
    from leakscope import report as reports

    results = swept(plan, text, folder, jobs=jobs, trust=trust, engine=engine)
    typer.echo(printable(f"Report: {reports.write(folder)}"))
    for note in notes(plan, results):
        typer.echo(printable(f"Note: {note}"))
    failed = sum("error" in result for result in results)
    if failed:
        raise LeakscopeError(f"{failed} of {len(results)} cells failed; the report says why.")


def compared(
    number: str, *, only: list[str], quick: bool, record: bool, output: Path | None, jobs: int | None
) -> None:
    """Run a paper's cells and print our numbers beside its own."""
    from leakscope import published

    plan, text, missing = published.plan(number, only=only, quick=quick)
    if missing:
        typer.echo(f"Left out, their files need LEAKSCOPE_DATA: {', '.join(missing)}.", err=True)
    folder = output or Path("papers-results") / f"{number}-{plan.digest}"
    results = swept(plan, text, folder, jobs=jobs, trust=[])
    tabled(published.HEADER, published.rows(published.entries(results, quick=quick)))
    if record:
        typer.echo(f"Recorded: {published.record(number, results, quick=quick)}")


def recorded(folder: Path, *, check: bool) -> None:
    """What a federation recorded, and whether all of it can be read."""
    from leakscope.recording import Recording

    found = Recording(folder)
    typer.echo(found.describe())
    if check:
        found.complete()
        typer.echo("Complete: every file is whole and finite.")


def gated(folder: Path, appetite: Path, *, as_json: bool, report: bool) -> int:
    """Hold results against a risk appetite, say how it went, and give the exit code."""
    import json

    from leakscope import gating, store
    from leakscope import report as reports

    verdict = gating.verdict(gating.read(appetite), gating.results(folder))
    if as_json:
        typer.echo(json.dumps(gating.as_json(verdict), indent=1, allow_nan=False))
    else:
        for line in gating.text(verdict):
            typer.echo(printable(line))
    if report:
        store.write(folder / gating.APPETITE, appetite.read_text(encoding="utf-8"))
        typer.echo(f"Report: {reports.write(folder)}", err=as_json)
    return verdict.exit_code


def held_together(a: Path, b: Path, *, as_json: bool, output: Path | None) -> None:
    """Say how two results folders differ, in plain words first."""
    import json

    from leakscope import comparison, store

    found = comparison.read(a, b)
    if as_json:
        typer.echo(json.dumps(comparison.as_json(found), indent=1, allow_nan=False))
    else:
        for line in comparison.text(found):
            typer.echo(printable(line))
        tabled(comparison.HEADER, comparison.rows(found))
    if output:
        page = output if output.suffix == ".html" else output / "comparison.html"
        store.write(page, comparison.render(found))
        typer.echo(f"Comparison: {page}", err=as_json)


def overviewed(folders: list[Path], output: Path) -> None:
    """Write one page over many results folders, and say which could not be read."""
    from leakscope import overview

    page = output if output.suffix == ".html" else output / "summary.html"
    found, bad = overview.write(folders, page)
    for sentence in bad:
        typer.echo(printable(f"leakscope: {sentence}"), err=True)
    tabled(overview.HEADER, overview.rows(found))
    typer.echo(f"Summary: {page}")


def tuned(
    document: dict[str, Any],
    risk: Risk,
    folder: Path,
    *,
    halvings: int,
    jobs: int | None,
    trust: list[str],
) -> None:
    """Search a defense for the property of an audit's plan, then say what was found."""
    import tomli_w

    from leakscope import report as reports
    from leakscope import store, sweep, tuning
    from leakscope.plan import from_document

    document = document | {"cell": [cell for cell in document["cell"] if cell["id"] == "property"]}
    plan = from_document(document, trusted=trust, where="the search")
    sweep.check(plan, trusted=trust)
    store.claim(folder, tomli_w.dumps(document), plan.digest)
    points = _searched(plan.cell[0], risk, folder, halvings=halvings, jobs=jobs, trust=trust)
    utility = points[0].results[0]["utility"]
    if utility["accuracy"]["low"] <= utility["majority"]:
        typer.echo(
            "Note: the undefended model is not clearly better than always saying the most frequent label, so "
            "a defense costs it nothing; raise --rounds or --rate."
        )
    families = ["none", *(family.name for family in tuning.FAMILIES)]
    points.sort(key=lambda point: families.index(point.family))
    rows = [
        [point.family, _strength(point), _gained(point), _lost(point), "yes" if point.meets(risk) else ""]
        for point in points
    ]
    tabled(["defense", "strength", "advantage", "accuracy lost", "meets both"], rows)
    best = tuning.cheapest(points, risk)
    wish = f"an advantage of at most {risk.advantage:g} and a loss of at most {100 * risk.loss:g} points"
    if best is None:
        typer.echo(f"No setting tried meets {wish}; accept more of either, or release less.")
    else:
        again = tuning.confirmed(best, plan.cell[0], folder, trusted=trust)
        typer.echo(
            f"Cheapest for {wish}: {best.family}({_strength(best, '=')}). On a victim the choice did not "
            f"see: advantage {_gained(again)}, accuracy lost {_lost(again)}."
        )
    typer.echo(printable(f"Report: {reports.write(folder)}"))


def _searched(
    cell: Cell, risk: Risk, folder: Path, *, halvings: int, jobs: int | None, trust: list[str]
) -> list[Point]:
    """Every setting that was tried, told as soon as it is measured."""
    from leakscope import store, tuning

    points: list[Point] = []
    with progress() as bar:
        if kept := len(store.results(folder)):
            _say(bar, f"{kept} results kept from before")
        task = bar.add_task("no defense", total=1 + len(tuning.FAMILIES) * (1 + halvings))  # at most
        for point in tuning.search(cell, risk, folder, halvings=halvings, jobs=jobs, trusted=trust):
            points.append(point)
            setting = f"{point.family} {_strength(point)}".strip() if point.defense else "no defense"
            _say(bar, f"{setting}: advantage {_gained(point)}, accuracy lost {_lost(point)}")
            bar.update(task, completed=len(points), description=f"{len(points)} settings")
        bar.update(task, total=len(points))
    return points


def _strength(point: Point, sign: str = " ") -> str:
    return ", ".join(f"{key}{sign}{value:g}" for key, value in point.defense.items() if key != "name")


def _gained(point: Point) -> str:
    return point.error or f"{point.advantage:.3f} (up to {point.high:.3f})"


def _lost(point: Point) -> str:
    return f"{100 * point.loss:+.1f} points"
