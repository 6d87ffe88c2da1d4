"""The command line: thin. Nothing heavy is imported before it is needed."""

from __future__ import annotations

import os
import secrets
import signal
import sys
from pathlib import Path
from typing import Annotated, Any

import click
import typer

from leakscope import options, terminal
from leakscope.errors import ArgumentError, LeakscopeError

typer.core.HAS_RICH = False  # plain help: its markup would show as backslashes
app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"leakscope {version('leakscope')}")
        raise typer.Exit


@app.callback()
def about(
    debug: Annotated[bool, options.option("Show the traceback of an error.", "--debug")] = False,
    version: Annotated[
        bool, options.option("Show the version and exit.", "--version", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """What does sharing gradients, updates or representations give away, where, and to whom?

    Leakscope trains a model the way a federation would, shows an honest-but-curious adversary what
    crosses the wire, and measures what it learns about the private records: an attribute, a property
    outside the data, a distribution, who a batch belongs to, who was trained on, or the records
    themselves. Every number comes with an interval and the success of guessing without the release.

    Start with:  leakscope audit adult
    """


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
        int, options.count("Victims, split and trained anew; several show how results vary.")
    ] = 1,
    rate: options.Rate = 0.01,
    defense: options.Defenses = None,
    dp: Annotated[
        bool,
        options.option(
            "Also audit one DP-SGD step: how large its epsilon for the secret is at least.", "--dp"
        ),
    ] = False,
    clip: Annotated[float, options.number("With --dp: clipping norm of the step.")] = 2.0,
    noise: Annotated[float, options.number("With --dp: standard deviation of the step's noise.")] = 0.1,
    delta: Annotated[float, options.number("With --dp: delta of the epsilon.")] = 1e-5,
    recording: options.Recorded = None,
    client: options.Client = None,
    seen: options.Seen = "uploads",
    centred: options.Centred = False,
    records: options.Records = None,
    output: options.Output = None,
    jobs: options.Jobs = None,
    trust: options.Trust = None,
) -> None:
    """Measure what the gradients of a model trained on DATA give away, and write a report.

    DATA is a known dataset (see: leakscope list; adult if left out) or the path of your own .csv,
    .csv.gz or .npz file.

    With --recording nothing is trained: DATA holds candidates, and the audit tells how well the recorded
    updates of a real federation show which of them each client trained on. They are taken as they are, so
    give them encoded and scaled as the clients had them. --client names the column (or array) that says
    who trained on a record; any word that is no client's, such as nobody, marks a record of nobody, and
    1,500 of these are enough for a lower limit at 1% false alarms. Options about training do not apply.

    \b
    leakscope audit adult
    leakscope audit adult --defense Pruning:rate=0.99 --defense DPSGD:noise=0.1 --dp
    leakscope audit patients.csv --label mortality --secret gender
    leakscope audit candidates.npz --recording run --client client --label y --model MLP
    """
    from leakscope import audits

    _trusting(trust or [])
    _consistent(context)
    if recording is not None:
        from leakscope import recorded_audits

        document = recorded_audits.requested(
            data,
            recording=recording,
            client=client,
            label=label,
            model=model,
            seen=seen,
            centred=centred,
            records=records,
            drop=drop or [],
            trials=trials,
            seeds=seeds,
            trust=trust or [],
        )
        folder = output or Path(f"audit-{audits.stem(data)}")
        terminal.audited(document, folder, jobs=jobs, trust=trust or [])
        return
    size: Any = {"batch": batch, "rounds": rounds, "trials": trials, "rehearsals": rehearsals, "seeds": seeds}
    document = audits.requested(
        data,
        label=label,
        secret=secret,
        user=user,
        drop=drop or [],
        known=known or [],
        model=audits.named(model, "--model", 'MLP:activation="tanh"') if model else None,
        training={"rate": rate},
        defenses=[audits.named(text, "--defense", "Pruning:rate=0.99") for text in defense or []],
        dp={"name": "DPSGD", "clip": clip, "noise": noise, "delta": delta} if dp else None,
        **size,
    )
    folder = output or Path(f"audit-{audits.stem(data)}")
    terminal.audited(document, folder, jobs=jobs, trust=trust or [])


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
    from leakscope import audits, tuning

    _trusting(trust or [])
    risk = tuning.Risk(max_advantage, max_loss)
    size: Any = {"batch": batch, "rounds": rounds, "trials": trials, "rehearsals": rehearsals}
    training, title = {"rate": rate}, "Defenses"
    document = audits.requested(
        data, label=label, secret=secret, drop=drop or [], training=training, title=title, **size
    )
    folder = output or Path(f"tune-{audits.stem(data)}")
    terminal.tuned(document, risk, folder, halvings=halvings, jobs=jobs, trust=trust or [])


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
    seeds: Annotated[int, options.count("Victims, split and trained anew.")] = 1,
    rate: options.Rate = 0.1,
    images: Annotated[
        int | None, options.count("Pictures to reconstruct from pairs of layers; 0: none.", min=0)
    ] = None,
    show_reconstructions: Annotated[
        bool,
        options.option(
            "Put originals and reconstructions into the report, which is then as private as they are.",
            "--show-reconstructions",
        ),
    ] = False,
    output: options.Output = None,
    jobs: options.Jobs = None,
    trust: options.Trust = None,
) -> None:
    """Find which layer of a model gives away what, and what protecting it costs.

    DATA is a known dataset (see: leakscope list; adult if left out) or the path of your own .csv,
    .csv.gz or .npz file. An attack family is tried on every layer's gradient, chosen and calibrated on
    people it was not fitted to; sensitivity and distances need no attack; of pictures some are
    reconstructed. Then the most telling layers are kept local, frozen and noised, and audited again.

    \b
    leakscope localise adult
    leakscope localise celeba --secret Male --model VGG9
    leakscope localise faces.npz --label smile --secret glasses --user person
    """
    from leakscope import audits, layer_audits

    _trusting(trust or [])
    document = layer_audits.requested(
        data,
        label=label,
        secrets=secret or [],
        user=user,
        drop=drop or [],
        model=audits.named(model, "--model", 'MLP:activation="tanh"') if model else None,
        defense=audits.named(defense, "--defense", "Noise:std=0.01") if defense else None,
        batch=batch,
        rounds=rounds,
        observed=observed,
        trials=trials,
        rehearsals=rehearsals,
        seeds=seeds,
        rate=rate,
        images=images,
        shown=show_reconstructions,
    )
    folder = output or Path(f"layers-{audits.stem(data)}")
    terminal.localised(document, folder, jobs=jobs, trust=trust or [])


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
    epochs: Annotated[int, options.count("Epochs of the guard's training.")] = 20,
    train: Annotated[
        int | None, options.count("Records the guard learns from.", show_default="a third, at most 12,000")
    ] = None,
    public: Annotated[
        int | None, options.count("Records the adversary has.", show_default="a third, at most 15,000")
    ] = None,
    trials: options.Trials = 2_000,
    rehearsals: options.Rehearsals = 4_000,
    seeds: Annotated[int, options.count("Guards, split and trained anew.")] = 1,
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
    leakscope guard location30 --against membership --loss prior
    """
    from leakscope import audits, guard_audits

    _trusting(trust or [])
    folder = output or Path(f"guard-{audits.stem(data)}")
    settings: dict[str, Any] = {"loss": loss, "utility": utility, "epochs": epochs}
    if noise:
        settings |= {"perturbation": "gaussian", "scale": noise, "normed": True}
    if against == "membership" and utility == "labels":
        settings["label_aware"] = True
    document = guard_audits.requested(
        data,
        label=label,
        secret=secret,
        against=against,
        drop=drop or [],
        lams=lam if lam is not None else [0.0, 0.5],
        width=width,
        settings=settings,
        train=train,
        public=public,
        trials=trials,
        rehearsals=rehearsals,
        seeds=seeds,
        folder=folder,
    )
    terminal.guarded(document, folder, jobs=jobs, trust=trust or [])


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

    DATA is a known dataset or a file, prepared as the encoder's own were; ENCODER is the folder that
    leakscope guard saved it in. The file holds the representation r of every record, in their order, and
    no private column. Records that are encoded again must have the same key: fresh draws can be averaged.

    \b
    leakscope encode adult guard-adult/encoder-0.5 -o shared.npz
    """
    from leakscope import guard_audits

    target = output or Path("representations.npz")
    drawn = secrets.randbits(62) if key is None else key
    count = guard_audits.encoded(data, encoder, target, label=label, secret=secret, key=drawn, labels=labels)
    typer.echo(f"{count} representations: {target}")
    if key is None:
        typer.echo(f"Key: {drawn} (keep it, and give it again by --key)")


@app.command(short_help="Run a plan, or what is missing of it; write a report.")
def run(
    plan: options.Place, output: options.Output = None, jobs: options.Jobs = None, trust: options.Trust = None
) -> None:
    """Run the cells of a PLAN, or those that are still missing, and write a report.

    PLAN is a TOML file, or a folder that an audit or a run wrote, which holds its own. Interrupted
    work is taken up by the same command: finished cells are kept.

    \b
    leakscope run plan.toml
    leakscope run audit-adult
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


@app.command(short_help="Write the report of a results folder again.")
def report(folder: options.Place) -> None:
    """Write the report of a results FOLDER again, from its files alone.

    FOLDER is one that an audit, a search or a run wrote, such as audit-adult.
    """
    from leakscope import report as reports

    typer.echo(f"Report: {reports.write(folder)}")


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


def _trusting(trust: list[str]) -> None:
    """Let trusted modules be found in the folder the command is run in, by the workers too."""
    if trust:
        here = str(Path.cwd())
        sys.path.insert(0, here)
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))


if __name__ == "__main__":
    main()
