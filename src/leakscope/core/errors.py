"""What can go wrong, and nothing else.

    LeakscopeError            everything below; the command line prints it as one sentence, exit code 2
    ├── ArgumentError         a setting breaks its rule
    ├── DataError             a file or a table cannot be used as it is
    ├── PlanError             a plan names something unknown or asks for something impossible
    ├── StoreError            results cannot be written or read
    └── MissingExtra          an optional dependency is not installed

A message gives the argument, the rule, the value and the way out, on one line of characters that print,
whatever stands in the names and values that it quotes. It is for the screen of whoever holds the records;
what is stored, or shown to others, is its ``public`` sentence.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

LONGEST = 3_000  # characters of a message: what it quotes may be as long as a file


def printable(text: str) -> str:
    """The text on one line, as a terminal may show it: what does not print is written as an escape."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class LeakscopeError(Exception):
    """Something the user can put right; the message says how. ``public`` says the same without a value of a
    column, a count of few records or a path; where none is given, the class has one."""

    unquoted = "it cannot be run as it is; run it again: the terminal says why."

    def __init__(self, words: str = "", *, public: str | None = None) -> None:
        super().__init__(words)
        self._public = public

    def __str__(self) -> str:
        return _line(super().__str__())

    @property
    def public(self) -> str:
        """What may be stored and shown to people who do not hold the records."""
        return _line(self._public or self.unquoted or super().__str__())


def _line(words: str) -> str:
    half = LONGEST // 2
    return printable(words if len(words) <= LONGEST else f"{words[:half]} ... {words[-half:]}")


class ArgumentError(LeakscopeError):
    """A setting breaks its rule."""

    unquoted = ""  # it quotes settings, which whoever reads results knows from the plan


class DataError(LeakscopeError):
    """A file or a table cannot be used as it is."""

    unquoted = "its records are not such as it needs; run it again where they are: the terminal says why."


class PlanError(LeakscopeError):
    """A plan names something unknown or asks for something impossible."""

    unquoted = ""


class StoreError(LeakscopeError):
    """Results cannot be written or read."""


class MissingExtra(LeakscopeError):
    """An optional dependency is not installed."""

    unquoted = ""


def refuse_all(reasons: Sequence[str], subject: str) -> None:
    """Raise `DataError` if there are reasons: one as it is, several numbered, so that all can be put right at
    once."""
    if reasons:
        listed = " ".join(f"({i}) {reason}" for i, reason in enumerate(reasons, start=1))
        several = f"{subject} cannot be used as it is, for {len(reasons)} reasons: {listed}"
        raise DataError(reasons[0] if len(reasons) == 1 else several)


def require(holds: bool, argument: str, rule: str, value: object, *, way_out: str = "") -> None:
    """Raise ``ArgumentError`` unless ``holds``, in the house form of a message."""
    if not holds:
        ending = f"; {way_out}" if way_out else ""
        raise ArgumentError(f"{argument} must be {rule}, got {value!r}{ending}.")


Rule = tuple[str, Callable[[Any], bool]]  # what a setting must be, in words and as a test
POSITIVE: Rule = ("finite and above 0", lambda value: 0 < value < math.inf)
NONNEGATIVE: Rule = ("finite and at least 0", lambda value: 0 <= value < math.inf)
CHANCE: Rule = ("between 0 and 1", lambda value: 0 < value < 1)


def at_least(least: int) -> Rule:
    return f"at least {least}", lambda value: value >= least


def one_of(*names: str) -> Rule:
    return f"one of {', '.join(names)}", lambda value: value in names


def or_none(rule: Rule) -> Rule:
    return f"None or {rule[0]}", lambda value: value is None or rule[1](value)


def check(part: object, **rules: Rule) -> None:
    """Each named setting of ``part`` keeps its rule, or `require` says which does not."""
    for name, (words, holds) in rules.items():
        value = getattr(part, name)
        require(holds(value), f"{type(part).__name__}.{name}", words, value)
