"""Code of the user's own: which module's it may be, where it is found, and what becomes of its errors."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

from torch import nn

from leakscope.core.errors import LeakscopeError, PlanError


@dataclass(frozen=True)
class Beside(MetaPathFinder):
    """Finds the modules of these names, and no others, in a folder; asked after all other finders, so that
    no file there stands before an installed module. There is one: trust given before, perhaps in another
    folder, is not trust given now."""

    folder: str
    names: frozenset[str]

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return PathFinder.find_spec(name, [self.folder]) if path is None and name in self.names else None


def imported(name: str, trusted: Iterable[str]) -> Any:
    """The class or function of a dotted name, if its own module is among the trusted."""
    module, _, attribute = name.rpartition(".")
    modules = tuple(trusted)
    if module not in modules:
        raise PlanError(
            f"{name!r} would import the module {module!r}; if you trust its code say so with "
            f"--trust {module}."
        )
    finder = Beside(str(Path.cwd()), frozenset(one.partition(".")[0] for one in modules))
    sys.meta_path[:] = [*(one for one in sys.meta_path if not isinstance(one, Beside)), finder]
    with Foreign(f"{name!r} cannot be imported"):
        target = getattr(import_module(module), attribute)
    home = str(getattr(target, "__module__", ""))
    layer = isinstance(target, type) and issubclass(target, nn.Module) and home.startswith(f"{module}.")
    if not callable(target) or not (home == module or layer):
        raise PlanError(
            f"{name!r} must be a class or function that {module!r} defines; it comes from {home!r}."
        )
    return target


class Foreign:
    """What the user's own code raises inside becomes a `PlanError`; the words of its error, which may quote a
    record, are for the screen alone. Where ``trusted`` modules are given, only what passed through their code
    counts. It may raise anything, so that no list of errors would do."""

    def __init__(self, words: str, trusted: Iterable[str] | None = None) -> None:
        self.words, self.trusted = words, None if trusted is None else tuple(trusted)

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not isinstance(error, Exception) or isinstance(error, LeakscopeError):
            return
        if self.trusted is not None and not _through(trace, self.trusted):
            return
        said = (str(error).splitlines() or [""])[0]
        raised = type(error).__name__
        raise PlanError(
            f"{self.words}: {raised}{': ' + said.rstrip('.') if said else ''}.",
            public=f"{self.words}: its own code raises {raised}; run it where its records are to see why.",
        ) from None


def _through(trace: TracebackType | None, modules: tuple[str, ...]) -> bool:
    names = (str(frame.f_globals.get("__name__", "")) for frame, _ in traceback.walk_tb(trace))
    return any(name == one or name.startswith(f"{one}.") for name in names for one in modules)
