"""Commands about guards: to train and attack one, to encode by one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from leakscope.cli import terminal
from leakscope.cli.app import app
from leakscope.cli.command import command, name_folder
from leakscope.run import api, options


@command("Train representations that lose a secret; attack them; save the encoder.", api.guard)
def guard(**given: Any) -> None:
    """Train an encoder whose representations keep a task and lose a secret, attack it, and save it.

    DATA is a known dataset (see: leakscope list; adult if left out) or the path of your own table (csv,
    tsv, Parquet, Feather or Excel) or .npz file. New attackers are trained on the finished encoder, and
    the strongest is chosen on separate records. The report compares the guard with what needs no guard.
    The encoder is saved beside the report: load it with leakscope.load_encoder, or use it by leakscope
    encode. The noise of each record is drawn once. Whoever can ask for fresh draws averages it away, and
    the report says how far.

    \b
    leakscope guard adult --secret sex
    leakscope guard adult --secret sex --secret race
    leakscope guard adult --secret sex --frontier
    leakscope guard adult --lambda 0 --lambda 0.5 --lambda 0.75 --lambda 1
    leakscope guard location30 --against membership --loss prior --beside Distilled
    """
    from leakscope.audits.guards.request import name_encoders

    given = {"lams": [0.0, 0.5], **given}
    report = api.guard(**name_folder(given, "guard"))
    cells = list(dict.fromkeys(str(result.cell.id) for result in report.results))
    terminal.copy_encoders(report, name_encoders(given["lams"], cells[len(given["lams"]) :]))
    terminal.tell(report)


@app.command(short_help="Write the representations of records by a saved encoder.")
def encode(
    data: options.Data,
    encoder: options.Place,
    key: Annotated[
        Path | None,
        options.option(
            "The file of the key that draws each person's noise; make one by leakscope key new.",
            metavar="FILE",
        ),
    ] = None,
    person: Annotated[
        str | None,
        options.column("The column of people's ids: a person's noise goes by it, and it is written."),
    ] = None,
    label: options.Label = None,
    secret: options.Secret = None,
    labels: Annotated[bool, options.option("Write the task's labels too.", "--labels")] = False,
    append: Annotated[bool, options.option("Add to a csv or Parquet file that exists.", "--append")] = False,
    ledger: Annotated[
        Path | None,
        options.option(
            "The ledger that counts releases.", metavar="FILE", show_default="beside the key: KEY.ledger"
        ),
    ] = None,
    most: Annotated[int, options.count("Different releases of a person that the ledger allows.")] = 1,
    beyond: Annotated[
        str, options.option("What happens beyond that: refuse or warn.", show_default=True)
    ] = "refuse",
    output: Annotated[
        Path | None,
        options.option(
            "The file to write: .csv, .parquet or .npz.", "--output", "-o", show_default="representations.npz"
        ),
    ] = None,
) -> None:
    """Write the representations of DATA's records by a saved ENCODER to a csv, Parquet or npz file.

    DATA is a known dataset or a file. ENCODER is the folder in which leakscope guard saved it. Of a table it
    reads the encoder's own columns, the --person and, with --labels, the --label; csv and Parquet are read
    and written piece by piece. Each person's noise is drawn once, by the encoder, the key and the id; without
    ids a record is a person. A ledger counts what was released of whom, and refuses a second, different
    release: two tell more than one. To make the same release again is no new one.

    \b
    leakscope key new hospital.key
    leakscope encode patients.csv guard-patients/encoder-0.5 --key hospital.key --person patient -o shared.csv
    """
    from leakscope.audits.guards.encoding import encode as release

    target = output or Path("representations.npz")
    found = release(
        data,
        encoder,
        target,
        key=key,
        person=person,
        label=label,
        secret=secret,
        labels=labels,
        append=append,
        ledger=ledger,
        most=most,
        beyond=beyond,  # type: ignore[arg-type]  # the ledger says what it must be
    )
    typer.echo(f"{found.count} representations: {target}")
    if found.unseen:
        named = ", ".join(f"{name} {count:,}" for name, count in found.unseen.items())
        typer.echo(f'Cells whose category the encoder does not know count as "other": {named}.', err=True)
    if not found.counted:
        typer.echo(
            "Warning: no ledger counts these releases, since there is no --key. A second release of a person "
            "tells more than the report measured of one.",
            err=True,
        )
    if found.beyond:
        typer.echo(
            f"Warning: {found.beyond:,} releases are more than {most} of their person; together they tell "
            f"more than the report measured of one.",
            err=True,
        )


keys = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Keys, from which noise is drawn.")
app.add_typer(keys, name="key")


@keys.command("new", short_help="Make a key.")
def new_key(file: Annotated[Path, typer.Argument(metavar="FILE", show_default=False)]) -> None:
    """Write a new key of 256 bits to FILE, which its owner alone can read.

    Whoever has the key can take the noise off what was released under it. Keep it apart from the releases,
    and keep it: without it the same releases cannot be made again, and fresh noise can be averaged.
    """
    from leakscope.guards.keys import Key

    Key.new(file)
    typer.echo(f"Key: {file}")
