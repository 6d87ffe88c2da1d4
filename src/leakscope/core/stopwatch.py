"""How long a defense takes inside a run: not what it costs the attack, but what it costs who runs it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from leakscope.core.nouns import Defense

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(eq=False)
class Stopwatch:
    """Seconds that defenses took so far."""

    seconds: float = 0.0


_running: ContextVar[Stopwatch | None] = ContextVar("running", default=None)


@contextmanager
def time_defenses() -> Iterator[Stopwatch]:
    """Adds up the seconds of what is `timed` inside the block."""
    watch = Stopwatch()
    token = _running.set(watch)
    try:
        yield watch
    finally:
        _running.reset(token)


def timed(act: Callable[P, T]) -> Callable[P, T]:
    """An act of a defense, timed by the watch that runs, if any does; what the null object does is none."""
    watch, name = _running.get(), getattr(act, "__name__", "")
    if watch is None or getattr(act, "__func__", act) is getattr(Defense, name, None):
        return act

    def acting(*args: P.args, **kwargs: P.kwargs) -> T:
        begun = time.perf_counter()
        try:
            return act(*args, **kwargs)
        finally:
            watch.seconds += time.perf_counter() - begun

    return acting
