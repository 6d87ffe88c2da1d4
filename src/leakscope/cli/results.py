"""Commands about plans, results and recordings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from leakscope import terminal
from leakscope.cli import options
from leakscope.cli.app import app, trusting
from leakscope.errors import printable


@app.command(short_help="Run a plan, or what is missing of it; write a report.")
def run(
    plan: options.Place,
    output: options.Output = None,
    jobs: options.Jobs = None,
    trust: options.Trust = None,
    engine: options.Engine = "loky",
    address: options.Address = None,
) -> None:
    """Run the cells of a PLAN, or those that are still missing, and write a report.

    PLAN is a TOML file, or a folder that an audit or a run wrote, which holds its own. Interrupted
    work is taken up by the same command: finished cells are kept.

    \b
    leakscope run plan.toml
    leakscope run audit-adult
    leakscope run plan.toml --engine ray --address 10.0.0.1:6379
    """
    from leakscope import engines, store
    from leakscope import plan as plans

    trusting(trust or [])
    source = plan / "plan.toml" if plan.is_dir() else plan
    checked = plans.read(source, trusted=trust or [])
    text = source.read_text(encoding="utf-8")
    own = text.startswith(store.MARK)  # the plan of a results folder goes on there
    folder = output or (source.parent if own else Path(plan.stem))
    chosen = engines.chosen(engine, address=address)
    terminal.reported(checked, text, folder, jobs=jobs, trust=trust or [], engine=chosen)


@app.command(short_help="Write the report of a results folder again.")
def report(folder: options.Place) -> None:
    """Write the report of a results FOLDER again, from its files alone.

    FOLDER is one that an audit, a search or a run wrote, such as audit-adult.
    """
    from leakscope import report as reports

    typer.echo(printable(f"Report: {reports.write(folder)}"))


@app.command(short_help="Hold results against a risk appetite: pass, fail, not enough evidence.")
def gate(
    folder: options.Place,
    appetite: options.Place,
    as_json: Annotated[bool, options.option("Print the verdict as JSON.", "--json")] = False,
    report: Annotated[
        bool,
        options.option("Keep APPETITE beside the results and show the verdict in the report.", "--report"),
    ] = False,
) -> None:
    """Hold the results in FOLDER against a risk APPETITE: exit code 0 pass, 1 fail, 3 not enough evidence.

    FOLDER is one that an audit, a search or a run wrote. APPETITE is a TOML file of [[limit]] tables: a
    secret, a measure (advantage, auroc, tpr_at_1%, information, epsilon), at_most, and if you like game,
    confidence, adversary (adaptive, static, any), defense, delta; and [declared] epsilon and delta of your
    accountant. A pass needs upper confidence limits below it, a fail a lower one above it; an epsilon passes
    by an accountant only. What failed, or was not run, never passes.

    \b
    leakscope gate audit-adult appetite.toml
    leakscope gate audit-adult appetite.toml --json
    """
    raise typer.Exit(terminal.gated(folder, appetite, as_json=as_json, report=report))


@app.command(short_help="Compare two results folders: what differs, and how surely.")
def compare(
    a: options.Place,
    b: options.Place,
    as_json: Annotated[bool, options.option("Print the comparison as JSON.", "--json")] = False,
    output: Annotated[
        Path | None, options.option("Write comparison.html here too.", "--output", "-o", metavar="PATH")
    ] = None,
) -> None:
    """Compare the results in folder B with those in folder A, cell by cell and measure by measure.

    Cells are matched by what their plans call them, else by what they are. Each difference has an
    interval and a p: paired over the seeds that both have, or, with one run each, from two independent
    intervals; p is corrected by Holm's method. What only one of them has is listed.

    \b
    leakscope compare audit-adult audit-adult-pruned
    leakscope compare audit-adult audit-adult-pruned -o comparison.html
    """
    terminal.held_together(a, b, as_json=as_json, output=output)


@app.command(short_help="Put many results folders on one page.")
def summary(
    folder: Annotated[list[Path], typer.Argument(hidden=True)],
    output: Annotated[
        Path,
        options.option("The page to write.", "--output", "-o", metavar="PATH", show_default=True),
    ] = Path("summary.html"),
) -> None:
    """Put every results FOLDER on one page: its strongest attack beside guessing, defense, utility, gate.

    The gate is shown where a risk appetite lies in the folder (gate.toml, appetite.toml) or beside it
    (appetite.toml). A folder that cannot be read is told of, and the others are shown.

    \b
    leakscope summary audit-adult audit-health
    leakscope summary audit-* -o audits.html
    """
    terminal.overviewed(folder, output)


@app.command(short_help="Describe the recorded updates of a federation.")
def recording(
    folder: options.Place,
    check: Annotated[bool, options.option("Read every file and refuse what is damaged.", "--check")] = False,
) -> None:
    """Describe the recorded updates of a federation.

    FOLDER is one that a Recorder wrote while the federation trained.
    """
    terminal.recorded(folder, check=check)


@app.command("list", short_help="List games, attacks, defenses, data and more.")
def list_() -> None:
    """List games, attacks, heads, reductions, defenses, models, measures and data, a line about each."""
    terminal.catalogued()


@app.command(short_help="Run a paper's experiments; print our numbers beside its own.")
def papers(
    paper: Annotated[list[str] | None, typer.Argument(hidden=True)] = None,
    only: Annotated[
        list[str] | None,
        options.option("A figure, table or cell, such as fig2; can be repeated.", metavar="FIGURE"),
    ] = None,
    quick: Annotated[
        bool, options.option("Fewer seeds, rounds and trials: minutes instead of hours.", "--quick")
    ] = False,
    record: Annotated[
        bool,
        options.option("Keep what is measured beside the paper's own (in a source checkout).", "--record"),
    ] = False,
    output: options.Output = None,
    jobs: options.Jobs = None,
) -> None:
    """Run a paper's experiments and print our numbers beside its own.

    PAPER is the number of a paper, such as 000; all are run if none is given.
    """
    from leakscope import published

    for number in paper or published.documents():
        terminal.compared(number, only=only or [], quick=quick, record=record, output=output, jobs=jobs)
