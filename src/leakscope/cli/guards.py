"""Commands about guards: to train and attack one, to encode by one."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Annotated

import click
import typer

from leakscope.cli import options, terminal
from leakscope.cli.app import app


@app.command(short_help="Train representations that lose a secret; attack them; save the encoder.")
def guard(
    data: options.Data = "adult",
    label: options.Label = None,
    secret: options.Secret = None,
    against: Annotated[
        str,
        options.option(
            "What is hidden: an attribute of each record, a property of subsets, membership, the records.",
            click_type=click.Choice(("attribute", "property", "membership", "reconstruction")),
            show_default=True,
        ),
    ] = "attribute",
    drop: options.Drop = None,
    lam: Annotated[
        list[float] | None,
        options.option(
            "Weight of privacy, 0 (plain training) to 1; can be repeated for a curve.",
            "--lambda",
            metavar="X",
            show_default="0 and 0.5",
        ),
    ] = None,
    loss: Annotated[
        str,
        options.option(
            "How the secret is driven out; adversarial is the papers', which holds off no new attacker.",
            click_type=click.Choice(("prior", "mmd", "mean", "clip", "adversarial")),
            show_default=True,
        ),
    ] = "mmd",
    noise: Annotated[
        float, options.number("Standard deviation of noise on the normed representation; 0: none.")
    ] = 0.5,
    width: Annotated[
        int, options.count("Numbers in the representation of a table's record: the fewer, the less is left.")
    ] = 8,
    utility: Annotated[
        str,
        options.option(
            "What is kept: the task, or, without one, the records' information.",
            click_type=click.Choice(("labels", "agnostic", "autoencoder")),
            show_default=True,
        ),
    ] = "labels",
    beside: Annotated[
        list[str] | None,
        options.option(
            "Another guard to try beside it, such as Distilled or DPEncoder:scale=1 (see: leakscope list); "
            "can be repeated.",
            metavar="GUARD",
        ),
    ] = None,
    equal: Annotated[
        str | None,
        options.option(
            "Give those beside it the strength at which they are as useful, or as private, as it is at the "
            "last lambda.",
            click_type=click.Choice(("utility", "privacy")),
        ),
    ] = None,
    epochs: Annotated[int, options.count("Epochs of the guard's training.")] = 20,
    train: Annotated[
        int | None, options.count("Records the guard learns from.", show_default="a third, at most 12,000")
    ] = None,
    public: Annotated[
        int | None, options.count("Records the adversary has.", show_default="a third, at most 15,000")
    ] = None,
    trials: options.Trials = 2_000,
    rehearsals: options.Rehearsals = 4_000,
    seeds: Annotated[int, options.count("Repetitions with new splits and training.")] = 1,
    shadows: Annotated[
        int, options.count("Against membership: guards of the adversary's own (LiRA); 0: none.", min=0)
    ] = 0,
    dimensions: Annotated[int, options.count("Of the map of representations: 2 or 3.")] = 2,
    show_reconstructions: options.Shown = False,
    output: options.Output = None,
    jobs: options.Jobs = None,
    trust: options.Trust = None,
) -> None:
    """Train an encoder whose representations keep a task and lose a secret, attack it, and save it.

    DATA is a known dataset (see: leakscope list; adult if left out) or the path of your own .csv,
    .csv.gz or .npz file. Attackers are trained anew on the finished encoder, the strongest of them chosen
    on records of its own; what needs no guard stands beside it. The encoder is saved beside the report:
    load it with leakscope.load_encoder, or use it by leakscope encode. Each record's noise is drawn once:
    whoever may ask for fresh draws averages it away, and the report says how far.

    \b
    leakscope guard adult --secret sex
    leakscope guard adult --lambda 0 --lambda 0.5 --lambda 0.75 --lambda 1
    leakscope guard location30 --against membership --loss prior --beside Distilled
    """
    from leakscope.audits.guards.request import name_encoders
    from leakscope.audits.inference.request import stem
    from leakscope.run import api

    lams = lam if lam is not None else [0.0, 0.5]
    report = api.guard(
        data,
        label=label,
        secret=secret,
        against=against,
        lams=lams,
        loss=loss,
        noise=noise,
        width=width,
        utility=utility,
        beside=beside or [],
        equal=equal,
        drop=drop or [],
        epochs=epochs,
        train=train,
        public=public,
        trials=trials,
        rehearsals=rehearsals,
        seeds=seeds,
        shadows=shadows,
        dimensions=dimensions,
        show_reconstructions=show_reconstructions,
        output=output or Path(f"guard-{stem(data)}"),
        jobs=jobs,
        trust=trust or [],
    )
    terminal.copy_encoders(report, name_encoders(lams, beside or []))
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

    DATA is a known dataset or a file; ENCODER is the folder that leakscope guard saved it in. Of a CSV the
    encoder's own columns are read, by its own categories, and nothing else; with --labels the --label too.
    The npz file holds the representation r of every record, in their order, and no private column. Records
    that are encoded again must have the same key: fresh draws can be averaged.

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
