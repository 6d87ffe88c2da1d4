"""From a function of `leakscope.run.api` to its command: the options are declared there, once."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from leakscope.cli.app import app
from leakscope.run import options

Body = Callable[..., None]
LAST = ("output", "jobs", "trust")  # in every help


def command(short_help: str, *functions: Callable[..., Any]) -> Callable[[Body], Body]:
    """A command with the options of these functions and of its own body, which is given those that were typed
    or have a default; what is left out has the functions' own."""

    def register(body: Body) -> Body:
        def run(**typed: Any) -> None:
            body(**{name: value for name, value in typed.items() if value is not None})

        found: dict[str, inspect.Parameter] = {}
        for function in (*functions, body):
            found |= {name: own for name, own in _options(function).items() if name not in found}
        order = sorted(found.values(), key=lambda parameter: parameter.name in LAST)
        run.__signature__ = inspect.Signature(order)  # type: ignore[attr-defined]
        run.__doc__, run.__name__ = body.__doc__, body.__name__
        app.command(short_help=short_help)(run)
        return body

    return register


def select(given: dict[str, Any], function: Callable[..., Any]) -> dict[str, Any]:
    """Of what was typed, the options of a function."""
    return {name: value for name, value in given.items() if name in inspect.signature(function).parameters}


def name_folder(given: dict[str, Any], word: str) -> dict[str, Any]:
    """The options with a results folder, if none was typed."""
    from leakscope.audits.asked import stem

    return {"output": Path(f"{word}-{stem(given['data'])}"), **given}


def _options(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The parameters that say how they are typed."""
    found = {}
    hints = get_type_hints(
        function, localns={"Data": str, "Report": Any, "Preflight": Any}, include_extras=True
    )
    for name, parameter in inspect.signature(function).parameters.items():
        if name == "data":
            found[name] = parameter.replace(annotation=options.Data, kind=parameter.KEYWORD_ONLY)
        elif get_origin(hints[name]) is Annotated:
            kind, words = get_args(hints[name])
            default = None if isinstance(parameter.default, tuple) else parameter.default
            typed = Annotated[options.TYPED.get(kind, kind), words]  # type: ignore[valid-type]
            found[name] = parameter.replace(annotation=typed, default=default, kind=parameter.KEYWORD_ONLY)
    return found
