"""The command about claims of privacy."""

from __future__ import annotations

from typing import Annotated

import typer

from leakscope.cli import terminal
from leakscope.cli.app import app
from leakscope.run import options


@app.command(short_help="Say which epsilon a deployed configuration really has.")
def claim(
    source: Annotated[str, typer.Argument(hidden=True)],
    settings: Annotated[
        list[str] | None,
        options.option("A setting in the framework's words. Can be repeated.", "--set", metavar="NAME=VALUE"),
    ] = None,
    promise: Annotated[
        float | None, options.option("The epsilon that was promised, if not in the file.", metavar="X")
    ] = None,
    per: Annotated[str | None, options.option("Of what: upload, client or record.", metavar="WHAT")] = None,
    delta: Annotated[float | None, options.option("The delta to ask at.", metavar="X")] = None,
    neighbours: Annotated[
        str | None, options.option("Neighbours: 'replace' or 'add or remove'.", metavar="WORDS")
    ] = None,
    measure: Annotated[
        bool,
        options.option("Play a canary through the mechanism too: a lower bound.", "--measure"),
    ] = False,
    trials: Annotated[int, options.count("The most trials of --measure. It may stop early.")] = 20_000,
    seed: Annotated[int, options.count("Of the trials of --measure.", min=0)] = 0,
    as_json: Annotated[bool, options.option("Print the answer as JSON.", "--json")] = False,
) -> None:
    """Say which epsilon a deployed configuration really has: per upload, client and record.

    SOURCE is a pyproject.toml of a Flower app, the job config of an NVFlare client (.json, .conf, .yml), or:
    flower-local, flower-fixed, flower-adaptive, nvflare, opacus, tff, jax-privacy, with its settings. The
    answer is arithmetic: nothing is trained. It says what holds, against whom, on which
    conditions, what gives nothing, and the nearest setting that would keep the promise. With --measure trials
    with a canary say how large the epsilon is at least: they can break a promise, and never keep one.

    \b
    leakscope claim pyproject.toml
    leakscope claim config_fed_client.json --set entries=7033290 --set rounds=10
    leakscope claim opacus --set noise_multiplier=1.1 --set batch_size=64 --set records=60000 --set epochs=15
    """
    from leakscope.integrations.claims import claim as answer
    from leakscope.integrations.claims import words
    from leakscope.run import progress

    with progress.bar(quiet=not measure) as shown:
        task = shown.add_task("trials", total=None, visible=measure)
        found = answer(
            source,
            settings or (),
            promise=promise,
            per=per,
            delta=delta,
            neighbours=neighbours,
            measure=measure,
            trials=trials,
            seed=seed,
            watch=lambda done, total: shown.update(task, completed=done, total=total),
        )
    if as_json:
        terminal.print_json(words.as_json(found))
        return
    terminal.print_lines([words.say_verdict(found), *words.say_measured(found), ""])
    terminal.print_table(words.HEADER, words.rows(found))
    terminal.print_lines(["", *words.notes(found)])
