"""The program itself: what it says of itself, how it ends, whose code it may run."""

from __future__ import annotations

import io
import signal
import sys
from typing import Annotated

import click
import typer

from leakscope.core.errors import ArgumentError, LeakscopeError, printable
from leakscope.run import options

typer.core.HAS_RICH = False  # plain help: its markup would show as backslashes
app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # they print what variables hold, which may be private records
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

    Leakscope trains a model as a federation would. It shows an honest-but-curious adversary what
    crosses the wire, and measures what the adversary learns about the private records: an attribute, a
    property outside the data, a distribution, whose records they are, who was trained on, or the records
    themselves. Every number comes with an interval and the success of guessing without the release.

    Start with:  leakscope audit adult
    """


def main() -> None:
    """The entry point: every mistake a user can put right is one sentence and exit code 2."""
    debug = "--debug" in sys.argv[1:]
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # to be ended is to be interrupted
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal may know fewer letters than names have
    try:
        _once(sys.argv[1:])
        code = app(prog_name="leakscope", standalone_mode=False)
    except (click.ClickException, LeakscopeError) as error:
        if debug:
            raise
        message = error.format_message() if isinstance(error, click.ClickException) else str(error)
        typer.echo(printable(f"leakscope: {message}"), err=True)
        code = 2
    except BrokenPipeError:
        code = 141
    if code == 130:  # typer's word for Ctrl-C
        typer.echo(
            "leakscope: interrupted; finished cells are kept. To go on, run the same command.", err=True
        )
    sys.exit(code if isinstance(code, int) else 0)


def _once(arguments: list[str]) -> None:
    """Refuse an option that is given twice and takes one value: click would keep the last without a word."""
    command = typer.main.get_command(app)
    known = getattr(command, "commands", {}).get(next((a for a in arguments if not a.startswith("-")), ""))
    for option in known.params if known else ():
        single = isinstance(option, click.Option) and not option.multiple and not option.is_flag
        given = [a for a in arguments if a.partition("=")[0] in option.opts]
        if single and len(given) > 1:
            raise ArgumentError(f"{option.opts[0]} takes one value, and you gave it {len(given)} times.")
