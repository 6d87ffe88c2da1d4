"""Commands about plans, results and recordings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from leakscope.cli import terminal
from leakscope.cli.app import app
from leakscope.core.errors import ArgumentError, printable
from leakscope.run import options


@app.command(short_help="Run a plan, or what is missing of it; write a report.")
def run(
    plan: options.Place,
    output: Annotated[Path | None, options.OUTPUT] = None,
    jobs: options.Jobs = None,
    trust: Annotated[list[str] | None, options.TRUST] = None,
    engine: options.Engine = "loky",
    address: options.Address = None,
) -> None:
    """Run the cells of a PLAN, or those that are still missing, and write a report.

    PLAN is a TOML file, or a folder that an audit or a run wrote, which holds its own plan. Finished cells
    are kept: after an interruption, run the same command again.

    \b
    leakscope run plan.toml
    leakscope run audit-adult
    leakscope run plan.toml --engine ray --address 10.0.0.1:6379
    """
    from leakscope.core import files
    from leakscope.results import store
    from leakscope.run import engines
    from leakscope.run import plan as plans
    from leakscope.run.running import run_text

    source = plan / "plan.toml" if plan.is_dir() else plan
    checked = plans.read(source, trusted=trust or [])
    text = files.read(source).decode()
    own = text.startswith(store.MARK)  # the plan of a results folder goes on there
    folder = output or (source.parent if own else Path(plan.stem))
    chosen = engines.chosen(engine, address=address)
    terminal.tell(run_text(checked, text, folder, jobs=jobs, trust=trust or [], engine=chosen))


@app.command(short_help="Write the report of a results folder again.")
def report(folder: options.Place) -> None:
    """Write the report of a results FOLDER again, from its files alone.

    FOLDER is one that an audit, a search or a run wrote, such as audit-adult.
    """
    from leakscope.report import page as reports

    typer.echo(printable(f"Report: {reports.write(folder)}"))


@app.command(short_help="Check results against a risk appetite: pass, fail, not enough evidence.")
def gate(
    folder: Annotated[list[Path], typer.Argument(hidden=True)],
    appetite: options.Place,
    as_json: Annotated[bool, options.option("Print the verdict as JSON.", "--json")] = False,
    junit: Annotated[Path | None, options.option("Write it as JUnit XML.", metavar="PATH")] = None,
    sarif: Annotated[Path | None, options.option("Write it as SARIF.", metavar="PATH")] = None,
    badge: Annotated[Path | None, options.option("Write it as a small SVG picture.", metavar="PATH")] = None,
    report: Annotated[
        bool,
        options.option("Keep APPETITE beside the results and show the verdict in the report.", "--report"),
    ] = False,
) -> None:
    """Check the results in FOLDER against a risk APPETITE: exit code 0 pass, 1 fail, 3 not enough evidence.

    FOLDER is one that an audit, a search or a run wrote; several can be given, and all must keep the limits.
    APPETITE is a TOML file of [[limit]] tables. Each has a secret, a measure (advantage, auroc, tpr_at_1%,
    information, epsilon) and at_most. It can have game, confidence, adversary (adaptive, static, any), attack
    (strongest, any), data, where, defense, delta, releases (shown, training), neighbours (replace, add or
    remove). [declared] has epsilon, delta and neighbours of your accountant. To pass, upper limits must
    lie below at_most. To fail, a lower limit must lie above it. Information and a measured epsilon can fail a
    limit, but never pass it. An epsilon passes only if it covers the releases of the limit. What failed, or
    was not run, never passes. Nor does what another version of Leakscope measured, unless code = "any".

    \b
    leakscope gate audit-adult appetite.toml
    leakscope gate audit-adult audit-heart appetite.toml --junit gate.xml --badge gate.svg
    """
    from leakscope.core import files
    from leakscope.report import page
    from leakscope.results import gate as gates
    from leakscope.run import api

    if report and len(folder) > 1:
        raise ArgumentError(f"--report must be used with one folder, got {len(folder)}; leave it out.")
    verdict, places = api.gate(folder, appetite), [one.as_posix() for one in folder]
    if as_json:
        terminal.print_json(gates.as_json(verdict))
    else:
        terminal.print_lines(gates.as_text(verdict))
    written = ((junit, gates.as_junit), (sarif, lambda v: gates.as_sarif(v, places)), (badge, gates.as_badge))
    for path, write in written:
        if path:
            files.write(path, write(verdict))
    for one in folder if report else ():
        files.write(one / gates.APPETITE, files.read(appetite))
        terminal.print_lines([f"Report: {page.write(one)}"], err=as_json)
    raise typer.Exit(verdict.exit_code)


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

    Cells are matched by their names in the plans, or else by their settings. Each difference has an interval
    and a p. They are paired over the seeds that both have, or, with one run each, come from two independent
    intervals. p is corrected by Holm's method. The list also names what only one folder has.

    \b
    leakscope compare audit-adult audit-adult-pruned
    leakscope compare audit-adult audit-adult-pruned -o comparison.html
    """
    from leakscope.core import files
    from leakscope.report import comparison
    from leakscope.run import api

    found = api.compare(a, b)
    if as_json:
        terminal.print_json(comparison.as_json(found))
    else:
        terminal.print_lines(comparison.text(found))
        terminal.print_table(comparison.HEADER, comparison.rows(found))
    if output:
        page = output if output.suffix == ".html" else output / "comparison.html"
        files.write(page, comparison.render(found))
        terminal.print_lines([f"Comparison: {page}"], err=as_json)


@app.command(short_help="Put many results folders on one page.")
def summary(
    folder: Annotated[list[Path], typer.Argument(hidden=True)],
    output: Annotated[
        Path, options.option("The page to write.", "--output", "-o", metavar="PATH", show_default=True)
    ] = Path("summary.html"),
) -> None:
    """Put every results FOLDER on one page: its strongest attack beside guessing, defense, utility, gate.

    The page shows the gate where a risk appetite is in the folder (gate.toml, appetite.toml) or beside it
    (appetite.toml). A folder that cannot be read is named, and the others are shown.

    \b
    leakscope summary audit-adult audit-health
    leakscope summary audit-* -o audits.html
    """
    from leakscope.report import overview

    page = output if output.suffix == ".html" else output / "summary.html"
    runs, bad = overview.write(folder, page)
    terminal.print_lines((f"leakscope: {sentence}" for sentence in bad), err=True)
    terminal.print_table(overview.HEADER, overview.rows(runs))
    terminal.print_lines([f"Summary: {page}"])


@app.command(short_help="Write what may leave about some runs: pages, numbers, statement, manifest.")
def dossier(
    folder: Annotated[list[Path], typer.Argument(hidden=True)],
    appetite: Annotated[
        Path | None, options.option("A risk appetite; the gate's verdict is part of it.", metavar="PATH")
    ] = None,
    output: Annotated[
        Path, options.option("The folder to write.", "--output", "-o", metavar="PATH", show_default=True)
    ] = Path("dossier"),
) -> None:
    """Write one folder about every results FOLDER that may leave a trusted environment.

    It holds the pages, the numbers as csv and json, the risk appetite and the verdict, a statement for
    machines (what was measured, accounted for, declared), a section for a model card, and a manifest with a
    hash of every file. A PDF is added where Chromium or Chrome is installed. It holds no record and no score
    of a person: a run that shows reconstructions is refused.

    \b
    leakscope dossier audit-adult --appetite appetite.toml
    leakscope dossier audit-* -o dossier
    """
    from leakscope.run import api

    written, told = api.dossier(folder, output, appetite=appetite)
    terminal.print_lines([f"Dossier: {output}, {len(written)} files.", told])


@app.command(short_help="Describe the recorded updates of a federation.")
def recording(
    folder: options.Place,
    check: Annotated[
        bool,
        options.option("Read every file, and hold each step of the server against the uploads.", "--check"),
    ] = False,
    convert: Annotated[
        Path | None,
        options.option("FOLDER holds state_dicts: first make a recording of them here.", metavar="DIR"),
    ] = None,
    differences: Annotated[
        bool,
        options.option("The uploads are differences, trained minus received.", "--differences"),
    ] = False,
) -> None:
    """Describe the recorded updates of a federation.

    FOLDER is one that a Recorder wrote while the federation trained. With --convert it holds state_dicts
    that anything wrote: a folder for each round, whose name ends in its number, with global.safetensors and
    a file for each client.

    \b
    leakscope recording run --check
    leakscope recording states --convert run --check
    """
    from leakscope.training.recording import Recording
    from leakscope.training.recording.checks import check_recording
    from leakscope.training.recording.folder import convert_folder

    if convert is not None:
        found = convert_folder(folder, convert, delta=differences)
    else:
        found = Recording(folder).choose(delta=differences)
    terminal.print_lines(found.describe().splitlines())
    if check:
        checked = check_recording(found, uploads=bool(found.uploaders))
        whole = "Every file is whole and finite." if checked.recording is found else "Every file is whole."
        terminal.print_lines([whole, *checked.lines])
        checked.raise_faults(found.path)


@app.command("list", short_help="List games, attacks, defenses, data and more.")
def list_() -> None:
    """List games, attacks, heads, reductions, defenses, models, measures and data, a line about each."""
    terminal.list_catalogue()


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
    stale: Annotated[
        bool, options.option("List the recorded cells that the plan has changed under.", "--stale")
    ] = False,
    run: Annotated[bool, options.option("With --stale: run these cells.", "--run")] = False,
    coverage: Annotated[
        bool, options.option("Print what became of every number that the papers print.", "--coverage")
    ] = False,
    record: Annotated[
        bool, options.option("Keep what is measured beside the paper's own.", "--record")
    ] = False,
    recordings: Annotated[
        Path | None,
        options.option("The folder papers/ of a checkout, where another one is meant.", metavar="FOLDER"),
    ] = None,
    output: Annotated[Path | None, options.OUTPUT] = None,
    jobs: options.Jobs = None,
) -> None:
    """Run a paper's experiments and print our numbers beside its own.

    PAPER is the number of a paper, such as 000; all are run if none is given. What was measured before is
    kept in the folder papers/ of a checkout.
    """
    from leakscope.run import coverage as covered
    from leakscope.run import progress, published

    if coverage:
        fates = [one for one in covered.fates(recordings) if not paper or one.printed.paper in paper]
        terminal.print_table(covered.HEADER, covered.count(fates))
        return
    for number in paper or published.documents():
        wanted = only or []
        if stale:
            reasons = published.find_stale(number, recordings)
            wanted = [name for name in reasons if not only or name in only]
            terminal.print_table(
                ["paper", "cell", "stale because"], [[number, n, reasons[n]] for n in wanted]
            )
            if not run or not wanted:
                continue
        plan, text, missing = published.plan(number, only=wanted, quick=quick)
        if missing:
            words = f"Left out, their files need LEAKSCOPE_DATA: {', '.join(missing)}."
            terminal.print_lines([words], err=True)
        folder = output or Path("papers-results") / f"{number}-{plan.digest}"
        results = progress.run_plan(plan, text, folder, jobs=jobs)
        terminal.print_table(published.HEADER, published.rows(published.compare(results, quick=quick)))
        if record:
            path = published.record(number, results, quick=quick, folder=recordings)
            terminal.print_lines([f"Recorded: {path}"])
