"""The command line: thin. Nothing heavy is imported before it is needed."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
import typer

from leakscope import terminal
from leakscope.errors import LeakscopeError

if TYPE_CHECKING:
    pass

typer.core.HAS_RICH = False  # plain help: its markup would show as backslashes
app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)

Output = Annotated[
    Path | None, typer.Option("--output", "-o", help="Folder for the results.", show_default=False)
]
Jobs = Annotated[
    int | None,
    typer.Option(help="Cells run at the same time.  [default: the number of cores]", show_default=False),
]
Trust = Annotated[
    list[str] | None, typer.Option(help="A Python module whose code plans may call.", show_default=False)
]


@app.callback()
def about(
    debug: Annotated[bool, typer.Option(help="Show the traceback of an error.")] = False,
) -> None:
    """What does sharing gradients give away, and to whom?

    Leakscope trains a model the way a federation would, shows an honest-but-curious adversary the
    gradients that cross the wire, and measures what it learns about the private records: an
    attribute, a property outside the data, a distribution, or who a batch belongs to. Every number
    comes with an interval and the success of guessing without the gradients.

    Start with:  leakscope audit adult
    """


@app.command()
def audit(
    data: Annotated[
        str,
        typer.Argument(
            help="A known dataset (see: leakscope list), or the path of a .csv, .csv.gz or .npz file."
        ),
    ] = "adult",
    label: Annotated[
        str | None,
        typer.Option(help="The column the model learns to predict (files only).", show_default=False),
    ] = None,
    secret: Annotated[
        str | None, typer.Option(help="The private column the adversary is after.", show_default=False)
    ] = None,
    user: Annotated[
        str | None,
        typer.Option(
            help="The column that says whose record it is; adds user inference.", show_default=False
        ),
    ] = None,
    drop: Annotated[
        list[str] | None,
        typer.Option(help="A column to leave out of the inputs; can be repeated.", show_default=False),
    ] = None,
    known: Annotated[
        list[str] | None,
        typer.Option(
            help="A column the adversary knows of the private records ('*': all others); can be repeated.",
            show_default=False,
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="Your own torch.nn.Module by import path, such as my_nets.Net; needs --trust.",
            show_default=False,
        ),
    ] = None,
    batch: Annotated[int, typer.Option(help="Records behind one gradient.", min=1)] = 16,
    rounds: Annotated[int, typer.Option(help="Rounds trained and observed.", min=1)] = 5,
    trials: Annotated[int, typer.Option(help="Challenges the adversary has to answer.", min=2)] = 2_000,
    rehearsals: Annotated[
        int, typer.Option(help="Challenges the adversary rehearses on public records.", min=2)
    ] = 2_000,
    seeds: Annotated[
        int, typer.Option(help="Victims trained independently; their spread is reported.", min=1)
    ] = 1,
    rate: Annotated[float, typer.Option(help="Learning rate of the victim's SGD.", min=1e-9)] = 0.01,
    defense: Annotated[
        list[str] | None,
        typer.Option(
            help="A defense to audit beside none, such as Sign or Pruning:rate=0.99; can be repeated.",
            show_default=False,
        ),
    ] = None,
    dp: Annotated[bool, typer.Option("--dp", help="Add the epsilon audit of one DP-SGD step.")] = False,
    clip: Annotated[float, typer.Option(help="Clipping norm of that step.")] = 2.0,
    noise: Annotated[float, typer.Option(help="Standard deviation of its noise on a record.")] = 0.1,
    delta: Annotated[float, typer.Option(help="Delta of its epsilon.")] = 1e-5,
    output: Output = None,
    jobs: Jobs = None,
    trust: Trust = None,
) -> None:
    """Measure what the gradients of a model trained on DATA give away, and write a report.

    \b
    leakscope audit adult
    leakscope audit adult --defense Pruning:rate=0.99 --defense DPSGD:noise=0.1 --dp
    leakscope audit patients.csv --label mortality --secret gender
    """
    import tomli_w

    from leakscope import audits, experiment, plan

    _trusting(trust or [])
    table = _table(data, label=label, secret=secret, user=user, drop=drop or [])
    records = experiment.dataset(table)
    wanted = secret or audits.SECRETS.get(data)
    if wanted is None:
        raise click.UsageError(f"--secret is missing; {data} has: {', '.join(records.private)}.")
    name = Path(data).name.split(".")[0]
    document = audits.document(
        records,
        table,
        secret=wanted,
        user=user,
        known=known or [],
        model={"name": model} if model else None,
        batch=batch,
        rounds=rounds,
        trials=trials,
        rehearsals=rehearsals,
        seeds=seeds,
        training={"rate": rate},
        defenses=[_defense(text) for text in defense or []],
        dp={"name": "DPSGD", "clip": clip, "noise": noise, "delta": delta} if dp else None,
        name=f"Audit of {name}",
    )
    checked = plan.from_document(document, trusted=trust or [], where="the audit")
    terminal.reported(
        checked, tomli_w.dumps(document), output or Path(f"audit-{name}"), jobs=jobs, trust=trust or []
    )


@app.command()
def tune(
    data: Annotated[str, typer.Argument(help="As for audit.")] = "adult",
    label: Annotated[str | None, typer.Option(help="As for audit.", show_default=False)] = None,
    secret: Annotated[str | None, typer.Option(help="The private column.", show_default=False)] = None,
    drop: Annotated[list[str] | None, typer.Option(help="A column to leave out.", show_default=False)] = None,
    max_advantage: Annotated[
        float, typer.Option(help="The most an adversary who knows the defense may gain over guessing.")
    ] = 0.1,
    max_loss: Annotated[
        float, typer.Option(help="The most task accuracy it may cost: 0.02 is two points.")
    ] = 0.02,
    batch: Annotated[int, typer.Option(help="Records behind one gradient.", min=1)] = 16,
    rounds: Annotated[int, typer.Option(help="Rounds trained and observed.", min=1)] = 5,
    trials: Annotated[int, typer.Option(help="Challenges per setting.", min=2)] = 2_000,
    rehearsals: Annotated[int, typer.Option(help="Challenges the adversary rehearses.", min=2)] = 2_000,
    rate: Annotated[float, typer.Option(help="Learning rate of the victim's SGD.", min=1e-9)] = 0.1,
    halvings: Annotated[int, typer.Option(help="Steps of the search per defense.", min=1)] = 5,
    output: Output = None,
    jobs: Jobs = None,
    trust: Trust = None,
) -> None:
    """Find the cheapest defense that keeps a stated risk, against an adversary who knows it.

    Searches the strength of every defense for the weakest that keeps the upper limit of the
    advantage below the wanted one, prints what each costs, and writes the frontier as a report.

    \b
    leakscope tune adult --max-advantage 0.10 --max-loss 0.02
    """
    import tomli_w

    from leakscope import audits, experiment, plan, store, sweep, tuning

    _trusting(trust or [])
    risk = tuning.Risk(max_advantage, max_loss)
    table = _table(data, label=label, secret=secret, user=None, drop=drop or [])
    records = experiment.dataset(table)
    wanted = secret or audits.SECRETS.get(data)
    if wanted is None:
        raise click.UsageError(f"--secret is missing; {data} has: {', '.join(records.private)}.")
    name = Path(data).name.split(".")[0]
    document = audits.document(
        records,
        table,
        secret=wanted,
        batch=batch,
        rounds=rounds,
        trials=trials,
        rehearsals=rehearsals,
        training={"rate": rate},
        name=f"Defenses of {name}",
    )
    document["cell"] = [cell for cell in document["cell"] if cell["id"] == "property"]
    checked = plan.from_document(document, trusted=trust or [], where="the search")
    sweep.check(checked, trusted=trust or [])
    folder = output or Path(f"tune-{name}")
    store.claim(folder, tomli_w.dumps(document), checked.digest)
    terminal.tuned(checked.cell[0], risk, folder, halvings=halvings, jobs=jobs, trust=trust or [])


@app.command()
def run(
    plan: Annotated[Path, typer.Argument(help="A TOML plan.")],
    output: Output = None,
    jobs: Jobs = None,
    trust: Trust = None,
) -> None:
    """Run the cells of a PLAN, or those that are still missing, and write a report.

    Interrupted work is taken up by the same command: finished cells are kept. A folder that an audit
    or a run wrote can be given in place of its plan.
    """
    from leakscope import plan as plans
    from leakscope import store

    _trusting(trust or [])
    source = plan / "plan.toml" if plan.is_dir() else plan
    checked = plans.read(source, trusted=trust or [])
    text = source.read_text(encoding="utf-8")
    own = text.startswith(store.MARK)  # the plan of a results folder goes on there
    folder = output or (source.parent if own else Path(plan.stem))
    terminal.reported(checked, text, folder, jobs=jobs, trust=trust or [])


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="A folder that an audit or a run wrote.")],
) -> None:
    """Write the report of a results FOLDER again, from its files alone."""
    from leakscope import report as reports

    typer.echo(f"Report: {reports.write(folder)}")


@app.command()
def recording(
    folder: Annotated[Path, typer.Argument(help="A folder that a Recorder wrote.")],
    check: Annotated[
        bool, typer.Option("--check", help="Read every file and refuse what is damaged.")
    ] = False,
) -> None:
    """Describe the recorded updates of a federation."""
    from leakscope.recording import Recording

    found = Recording(folder)
    typer.echo(found.describe())
    if check:
        found.complete()
        typer.echo("Complete: every file is whole and finite.")


@app.command("list")
def list_() -> None:
    """List games, attacks, heads, reductions, defenses, models, measures and data."""
    from leakscope.catalogue import DATA, roles

    for title, role in [
        ("Games", "game"), ("Attacks", "attack"), ("Heads", "head"), ("Reductions", "reduction"),
        ("Defenses", "defense"), ("Models", "model"), ("Measures", "measure"),
    ]:  # fmt: skip
        terminal.listed(title, {name: entry.line for name, entry in roles(role).items()})
    terminal.listed("Data", DATA)


@app.command()
def papers(
    paper: Annotated[
        list[str] | None,
        typer.Argument(help="Numbers of papers, such as 000; all if left out.", show_default=False),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(help="A figure or table, such as fig2; can be repeated.", show_default=False),
    ] = None,
    quick: Annotated[
        bool, typer.Option(help="Fewer seeds, rounds and trials: minutes instead of hours.")
    ] = False,
    record: Annotated[
        bool, typer.Option(help="Keep the measured values as data beside the paper's (in a source checkout).")
    ] = False,
    output: Output = None,
    jobs: Jobs = None,
) -> None:
    """Run a paper's experiments and print our numbers beside its own."""
    from leakscope import published

    for number in paper or published.documents():
        plan, text, missing = published.plan(number, only=only or [], quick=quick)
        if missing:
            typer.echo(f"Left out, their files need LEAKSCOPE_DATA: {', '.join(missing)}.", err=True)
        folder = output or Path("papers-results") / f"{number}-{plan.digest}"
        results = terminal.swept(plan, text, folder, jobs=jobs, trust=[])
        terminal.tabled(published.HEADER, published.rows(published.entries(results, quick=quick)))
        if record:
            typer.echo(f"Recorded: {published.record(number, results, quick=quick)}")


def main() -> None:
    """The entry point: every mistake a user can put right is one sentence and exit code 2."""
    debug = "--debug" in sys.argv[1:]
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # to be ended is to be interrupted
    try:
        code = app(prog_name="leakscope", standalone_mode=False)
    except (click.ClickException, LeakscopeError) as error:
        if debug:
            raise
        message = error.format_message() if isinstance(error, click.ClickException) else str(error)
        typer.echo(f"leakscope: {message}", err=True)
        code = 2
    except BrokenPipeError:
        code = 141
    if code == 130:  # typer's word for Ctrl-C
        typer.echo("leakscope: interrupted; finished cells are kept, the same command goes on.", err=True)
    sys.exit(code if isinstance(code, int) else 0)


def _table(
    data: str, *, label: str | None, secret: str | None, user: str | None, drop: list[str]
) -> dict[str, Any]:
    """The plan's data table for what the user typed."""
    from leakscope.data import files

    path = Path(data)
    if path.suffix not in (".csv", ".gz", ".npz"):
        if drop:
            return {"name": data, "without": drop}
        return {"name": data}
    if label is None or secret is None:
        raise click.UsageError(f"{data!r} is a file: say which column is the --label and which the --secret.")
    kind = "npz" if path.suffix == ".npz" else "csv"
    table: dict[str, Any] = {"name": kind, "path": str(path.resolve()), "sha256": files.sha256(path)}
    if kind == "npz":
        return table | {"y": label, "secrets": [secret, *([user] if user else [])]}
    table |= {"label": label, "secrets": [secret]}
    if drop:
        table["drop"] = drop
    if user:
        table["user"] = user
    return table


def _trusting(trust: list[str]) -> None:
    """Let trusted modules be found in the folder the command is run in, by the workers too."""
    if trust:
        here = str(Path.cwd())
        sys.path.insert(0, here)
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))


def _defense(text: str) -> dict[str, Any]:
    """The plan's table of ``Name:key=value,key=value``."""
    import tomllib

    name, _, settings = text.partition(":")
    try:
        return {"name": name, **tomllib.loads(settings.replace(",", "\n"))}
    except tomllib.TOMLDecodeError:
        raise click.UsageError(
            f"--defense must be a name, or a name with settings such as Pruning:rate=0.99, got {text!r}."
        ) from None


if __name__ == "__main__":
    main()
