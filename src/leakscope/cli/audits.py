"""Commands that measure: gradients, defenses, layers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import click
import typer

from leakscope.cli import options, terminal
from leakscope.cli.app import app
from leakscope.core.errors import ArgumentError


@app.command(short_help="Measure what a model's gradients give away; write a report.")
def audit(
    context: typer.Context,
    data: options.Data = "adult",
    label: options.Label = None,
    secret: options.Secret = None,
    user: options.User = None,
    drop: options.Drop = None,
    known: options.Known = None,
    model: options.Model = None,
    batch: Annotated[
        int,
        options.count("Records behind one gradient; 8 times as many for the distribution, half for a user."),
    ] = 16,
    rounds: options.Rounds = 5,
    trials: options.Trials = 2_000,
    rehearsals: options.Rehearsals = 2_000,
    seeds: Annotated[
        int, options.count("Repetitions with new splits and training. Several show how results vary.")
    ] = 1,
    rate: options.Rate = 0.01,
    defense: options.Defenses = None,
    dp: Annotated[
        bool,
        options.option("Also audit one DP-SGD step: a lower bound on its epsilon for the secret.", "--dp"),
    ] = False,
    clip: Annotated[float, options.number("With --dp: clipping norm of the step.")] = 2.0,
    noise: Annotated[float, options.number("With --dp: standard deviation of the step's noise.")] = 0.1,
    delta: Annotated[float, options.number("With --dp: delta of the epsilon.")] = 1e-5,
    recording: options.Recorded = None,
    client: options.Client = None,
    seen: options.Seen = "uploads",
    centred: options.Centred = False,
    records: options.Records = None,
    preprocessing: options.Preprocessing = None,
    output: options.Output = None,
    jobs: options.Jobs = None,
    trust: options.Trust = None,
) -> None:
    """Measure what the gradients of a model trained on DATA give away, and write a report.

    DATA is a known dataset (see: leakscope list; adult if left out) or the path of your own .csv,
    .csv.gz or .npz file.

    With --recording nothing is trained. DATA holds candidates, and the audit tells how well the recorded
    updates of a real federation show which of them each client trained on. The candidates are used as they
    are, so encode and scale them as the clients did. --client names the column (or array) that says
    who trained on a record; any word that is no client's, such as nobody, marks a record of nobody, and
    1,500 of these are enough for a lower limit at 1% false alarms. Options about training do not apply.

    \b
    leakscope audit adult
    leakscope audit adult --defense Pruning:rate=0.99 --defense DPSGD:noise=0.1 --dp
    leakscope audit patients.csv --label mortality --secret gender
    leakscope audit candidates.npz --recording run --client client --label y --model MLP
    """
    from leakscope.audits.inference.request import stem
    from leakscope.run import api

    _consistent(context)
    folder = output or Path(f"audit-{stem(data)}")
    shared: Any = {"label": label, "drop": drop or [], "trials": trials, "seeds": seeds}
    shared |= {"output": folder, "jobs": jobs, "trust": trust or []}
    if recording is not None:
        from leakscope.audits.membership.request import writable

        if records is not None:
            writable(records, seeds)
        report = api.audit_recording(
            recording,
            data,
            client=client,
            model=model,
            seen=seen,
            centred=centred,
            scores=records is not None,
            preprocessing=preprocessing,
            **shared,
        )
        terminal.copy_scores(report, records)
    else:
        report = api.audit(
            data,
            secret=secret,
            user=user,
            known=known or [],
            model=model,
            batch=batch,
            rounds=rounds,
            rehearsals=rehearsals,
            rate=rate,
            defenses=defense or [],
            dp={"name": "DPSGD", "clip": clip, "noise": noise, "delta": delta} if dp else None,
            **shared,
        )
    terminal.tell(report)


@app.command(short_help="Find the cheapest defense that keeps a stated risk.")
def tune(
    data: options.Data = "adult",
    label: options.Label = None,
    secret: options.Secret = None,
    drop: options.Drop = None,
    max_advantage: Annotated[
        float,
        options.number("The most an adversary who knows the defense may gain: 0 is guessing, 1 certainty."),
    ] = 0.1,
    max_loss: Annotated[
        float, options.number("The most accuracy it may cost the model: 0.02 is two points.")
    ] = 0.02,
    batch: Annotated[int, options.count("Records behind one gradient.")] = 16,
    rounds: options.Rounds = 5,
    trials: options.Trials = 2_000,
    rehearsals: options.Rehearsals = 2_000,
    rate: options.Rate = 0.1,
    halvings: Annotated[int, options.count("Strengths tried of a defense below its strongest.")] = 5,
    output: options.Output = None,
    jobs: options.Jobs = None,
    trust: options.Trust = None,
) -> None:
    """Find the cheapest defense that keeps a stated risk, against an adversary who knows it.

    DATA is a known dataset (see: leakscope list; adult if left out) or the path of your own .csv,
    .csv.gz or .npz file. Searches the strength of every defense for the weakest that keeps the upper
    limit of the advantage at the wanted one, prints what each costs, and writes a report.

    \b
    leakscope tune adult --max-advantage 0.10 --max-loss 0.02
    """
    from leakscope.audits.inference.request import stem
    from leakscope.run import api

    report = api.tune(
        data,
        label=label,
        secret=secret,
        drop=drop or [],
        max_advantage=max_advantage,
        max_loss=max_loss,
        batch=batch,
        rounds=rounds,
        trials=trials,
        rehearsals=rehearsals,
        rate=rate,
        halvings=halvings,
        output=output or Path(f"tune-{stem(data)}"),
        jobs=jobs,
        trust=trust or [],
    )
    answer = report.answer.lines if report.answer else []
    terminal.print_lines([*answer, f"Report: {report.folder / 'report.html'}" if report.folder else ""])


@app.command(short_help="Find the layer that gives most away, and what protects it.")
def localise(
    data: options.Data = "adult",
    label: options.Label = None,
    secret: Annotated[
        list[str] | None, options.column("A private column the adversary is after; can be repeated.")
    ] = None,
    user: Annotated[
        str | None, options.column("The column that says whose record it is: people are kept together.")
    ] = None,
    drop: options.Drop = None,
    model: options.Model = None,
    defense: Annotated[
        str | None, options.option("A defense the model is trained and seen under.", metavar="DEFENSE")
    ] = None,
    batch: Annotated[int, options.count("Records behind one gradient.")] = 8,
    rounds: Annotated[int, options.count("Rounds of training, an epoch each.")] = 15,
    observed: Annotated[
        int, options.count("The round whose gradients the adversary sees; 1: before any training.")
    ] = 1,
    trials: options.Trials = 1_000,
    rehearsals: options.Rehearsals = 1_500,
    seeds: Annotated[int, options.count("Repetitions with new splits and training.")] = 1,
    rate: options.Rate = 0.1,
    images: Annotated[
        int | None, options.count("Pictures to reconstruct from pairs of layers; 0: none.", min=0)
    ] = None,
    show_reconstructions: options.Shown = False,
    output: options.Output = None,
    jobs: options.Jobs = None,
    trust: options.Trust = None,
) -> None:
    """Find which layer of a model gives away what, and what protecting it costs.

    DATA is a known dataset (see: leakscope list; adult if left out) or the path of your own .csv,
    .csv.gz or .npz file. Attacks are tried on every layer's gradient and chosen on separate
    people. Sensitivity and distances need no attack. Some pictures are reconstructed. Then the layers
    that tell most are kept local, frozen and noised, and audited again.

    \b
    leakscope localise adult
    leakscope localise celeba --secret Male --model VGG9
    leakscope localise faces.npz --label smile --secret glasses --user person
    """
    from leakscope.audits.inference.request import stem
    from leakscope.run import api

    report = api.localise(
        data,
        label=label,
        secrets=secret or [],
        user=user,
        drop=drop or [],
        model=model,
        defense=defense,
        batch=batch,
        rounds=rounds,
        observed=observed,
        trials=trials,
        rehearsals=rehearsals,
        seeds=seeds,
        rate=rate,
        images=images,
        show_reconstructions=show_reconstructions,
        output=output or Path(f"layers-{stem(data)}"),
        jobs=jobs,
        trust=trust or [],
    )
    terminal.tell(report)


def _consistent(context: click.Context) -> None:
    """Refuse options that do not go with --recording, and those that only do."""
    typed = [
        parameter.opts[0]
        for parameter in context.command.params
        if context.get_parameter_source(str(parameter.name)) is click.core.ParameterSource.COMMANDLINE
    ]
    for name in typed:
        if "--recording" in typed and name in options.TRAINED:
            raise ArgumentError(f"{name} is for a model trained here, and --recording has one; leave it out.")
        if "--recording" not in typed and name in options.RECORDED:
            raise ArgumentError(f"{name} is for the audit of a recording; name its folder by --recording.")
