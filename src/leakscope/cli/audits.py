"""Commands that measure: gradients, defenses, layers."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import click

from leakscope.cli import terminal
from leakscope.cli.command import command, name_folder, select
from leakscope.core.errors import ArgumentError
from leakscope.run import api, options


@command("Measure what a model's gradients give away; write a report.", api.audit, api.audit_recording)
def audit(
    *,
    dp: Annotated[
        bool,
        options.option("Also audit one DP-SGD step: a lower bound on its epsilon for the secret.", "--dp"),
    ] = False,
    clip: Annotated[float, options.number("With --dp: clipping norm of the step.")] = 2.0,
    noise: Annotated[float, options.number("With --dp: standard deviation of the step's noise.")] = 0.1,
    delta: Annotated[float, options.number("With --dp or --canary: delta of the epsilon.")] = 1e-5,
    recording: Annotated[
        Path | None,
        options.option(
            "The recorded updates of a federation: which candidates were trained on?", metavar="DIR"
        ),
    ] = None,
    records: Annotated[
        Path | None,
        options.option(
            "With --recording: a CSV for the score of every candidate. It is as private as they are."
        ),
    ] = None,
    **given: Any,
) -> None:
    """Measure what the gradients of a model trained on DATA give away, and write a report.

    DATA is a known dataset (see: leakscope list; adult if left out) or the path of your own table (csv,
    tsv, Parquet, Feather or Excel) or .npz file. The report opens with one page for whoever decides: what
    was asked, found and assumed, what would help, and what was not tested.

    With --recording nothing is trained. DATA holds candidates. The audit says how well the recorded updates
    of a real federation show which of them each client trained on. It uses the candidates as they are, so
    encode and scale them as the clients did. --client names the column (or array) that says who trained on a
    record. Any word that is not the name of a client, such as nobody, marks a record of nobody. 2,500 of
    these are enough for a lower limit at 1% false alarms at each of four clients. Options about training do
    not apply, but for --rate and --batch with --ask property.

    \b
    leakscope audit adult
    leakscope audit adult --defense Pruning:rate=0.99 --defense DPSGD:noise=0.1 --dp
    leakscope audit patients.csv --label mortality --secret gender --person patient_id
    leakscope audit candidates.npz --recording run --client client --label y --model MLP
    """
    from leakscope.audits.membership.request import writable

    _consistent(click.get_current_context())
    given = name_folder(given, "audit")
    if recording is None:
        step = {"name": "DPSGD", "clip": clip, "noise": noise, "delta": delta} if dp else None
        if not isinstance(given["rounds"], int) or given["rounds"] < 1:
            raise ArgumentError(f"--rounds must be at least 1, got {given['rounds']!r}.")
        report = api.audit(**select(given, api.audit), dp=step)
    else:
        if records is not None:
            writable(records, given["seeds"])
        typed = _typed(click.get_current_context())
        for name in ("rounds", "rate", "batch", "secret"):  # the defaults are those of training
            if f"--{name}" not in typed:
                given.pop(name, None)
        if len(given.get("secret", ())) > 1:
            raise ArgumentError(f"--secret must be one column with --recording, got {given['secret']}.")
        chosen = select(given, api.audit_recording)
        chosen |= {"secret": given["secret"][0]} if "secret" in given else {}
        report = api.audit_recording(
            recording, given["data"], scores=records is not None, delta=delta, **chosen
        )
        terminal.copy_scores(report, records)
    terminal.tell(report)


@command("Find the cheapest defense that keeps a stated risk.", api.tune)
def tune(**given: Any) -> None:
    """Find the cheapest defense that keeps a stated risk, against an adversary who knows it.

    DATA is a known dataset (see: leakscope list; adult if left out) or the path of your own table (csv,
    tsv, Parquet, Feather or Excel) or .npz file. It plays one game: property inference, where the secret
    is not an input. It says what it will try and how long that takes. For every defense it looks for the
    weakest setting whose advantage stays below the limit, prints what each costs, and ends with how to
    run the cheapest.

    \b
    leakscope tune adult --max-advantage 0.10 --max-loss 0.02
    """
    report = api.tune(**name_folder(given, "tune"))
    answer = report.answer.lines if report.answer else []
    terminal.print_lines([*answer, f"Report: {report.folder / 'report.html'}" if report.folder else ""])


@command(
    "Read records out of one gradient or upload, with proofs.", api.reconstruct, api.reconstruct_recording
)
def reconstruct(
    *,
    recording: Annotated[
        Path | None,
        options.option(
            "The recorded updates of a federation: which of its records can be read?", metavar="DIR"
        ),
    ] = None,
    preflight: Annotated[
        bool,
        options.option(
            "Foresee it before anything is trained, say what would close it, and end.", "--preflight"
        ),
    ] = False,
    **given: Any,
) -> None:
    """Read records out of one gradient or upload, and prove which of them were there.

    DATA is a known dataset (see: leakscope list; adult if left out) or the path of your own table (csv,
    tsv, Parquet, Feather or Excel). The model must begin with a linear layer. What that layer releases is a
    sum of the records behind it, and records are what such sums can be taken apart into. It says how many
    come back exactly, how many the adversary can prove to be right, and which columns are right, by how many
    records are behind one release. The report holds no record unless you ask for some.

    With --recording nothing is trained. DATA holds candidates, as for audit --recording: records of the
    clients, which are looked for in their own uploads, and records of nobody, by which the adversary knows
    how the table is written.

    \b
    leakscope reconstruct adult
    leakscope reconstruct patients.csv --label mortality --batch 64 --local-epochs 5
    leakscope reconstruct adult --batch 16 --defense Noise:std=0.001 --defense Pruning:rate=0.9
    leakscope reconstruct adult --batch 16 --trained 5 --attack SpanMatching
    leakscope reconstruct adult --batch 16 --batch 64 --preflight
    leakscope reconstruct heart --clients 4 --sums --batch 2 --local-epochs 5
    leakscope reconstruct candidates.csv --recording run --client client --label y --model MLP
    """
    context = click.get_current_context()
    if recording is not None:
        _fits(context, api.reconstruct_recording, "--recording, whose federation has trained already")
        chosen = select(name_folder(given, "records"), api.reconstruct_recording)
        chosen.pop("clients", None)  # the number of those that are simulated
        terminal.tell(api.reconstruct_recording(recording, given["data"], **chosen))
        return
    _fits(context, api.reconstruct, "training that is simulated here, without --recording")
    if preflight:
        terminal.print_lines(api.preflight(**select(given, api.preflight)).lines)
    else:
        terminal.tell(api.reconstruct(**select(name_folder(given, "records"), api.reconstruct)))


@command("Find the layer that gives most away, and what protects it.", api.localise)
def localise(**given: Any) -> None:
    """Find which layer of a model gives away what, and what protecting it costs.

    DATA is a known dataset (see: leakscope list; adult if left out) or the path of your own table (csv,
    tsv, Parquet, Feather or Excel) or .npz file. Several attacks are tried on the gradient of every
    layer, and chosen on separate people. Sensitivity and distances need no attack. Some pictures are
    reconstructed. Then the layers that tell most are kept local, frozen or noised, and audited again.

    \b
    leakscope localise adult
    leakscope localise celeba --secret Male --model VGG9
    leakscope localise faces.npz --label smile --secret glasses --person person
    """
    terminal.tell(api.localise(**name_folder(given, "layers")))


def _consistent(context: click.Context) -> None:
    """Refuse options that do not go with --recording, and those that only do."""
    typed = _typed(context)
    for name in typed:
        if "--recording" in typed and name in options.TRAINED:
            raise ArgumentError(
                f"{name} is for a model that is trained here, and --recording already has one; leave it out."
            )
        if "--recording" not in typed and name in options.RECORDED:
            raise ArgumentError(f"{name} is for the audit of a recording; name its folder by --recording.")


def _fits(context: click.Context, function: Callable[..., Any], what: str) -> None:
    """Refuse options that were typed and are not those of a function."""
    known = {"data", "recording", "preflight", *inspect.signature(function).parameters}
    for parameter in context.command.params:
        if parameter.opts[0] in _typed(context) and str(parameter.name) not in known:
            raise ArgumentError(f"{parameter.opts[0]} does not go with {what}; leave it out.")


def _typed(context: click.Context) -> list[str]:
    return [
        parameter.opts[0]
        for parameter in context.command.params
        if context.get_parameter_source(str(parameter.name)) is click.core.ParameterSource.COMMANDLINE
    ]
