"""Commands about guards: to train and attack one, to encode by one."""

from __future__ import annotations

import secrets
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
    leakscope guard adult --lambda 0 --lambda 0.5 --lambda 0.75 --lambda 1
    leakscope guard location30 --against membership --loss prior --beside Distilled
    """
    from leakscope.audits.guards.request import name_encoders

    given = {"lams": [0.0, 0.5], "beside": [], **given}
    report = api.guard(**name_folder(given, "guard"))
    terminal.copy_encoders(report, name_encoders(given["lams"], given["beside"]))
    terminal.tell(report)


@app.command(short_help="Write the representations of records by a saved encoder.")
def encode(
    data: options.Data,
    encoder: options.Place,
    label: options.Label = None,
    secret: options.Secret = None,
    key: Annotated[
        int | None,
        options.option(
            "The number that draws each record's noise, the same in every release; keep it to yourself.",
            metavar="N",
            show_default="a new one, which is printed",
        ),
    ] = None,
    labels: Annotated[bool, options.option("Write the task's labels too.", "--labels")] = False,
    output: Annotated[
        Path | None,
        options.option("The npz file to write.", "--output", "-o", show_default="representations.npz"),
    ] = None,
) -> None:
    """Write the representations of DATA's records by a saved ENCODER to an npz file.

    DATA is a known dataset or a file. ENCODER is the folder in which leakscope guard saved it. From a CSV it
    reads the encoder's own columns and nothing else; with --labels the --label too. The npz file holds the
    representation r of every record, in their order, and no private column. If you encode records again, use
    the same key: fresh draws can be averaged.

    \b
    leakscope encode adult guard-adult/encoder-0.5 -o shared.npz
    """
    from leakscope.audits.guards import request as guard_audits

    target = output or Path("representations.npz")
    drawn = secrets.randbits(62) if key is None else key
    count = guard_audits.encoded(data, encoder, target, label=label, secret=secret, key=drawn, labels=labels)
    typer.echo(f"{count} representations: {target}")
    if key is None:
        typer.echo(f"Key: {drawn} (keep it, and give it again by --key)")
