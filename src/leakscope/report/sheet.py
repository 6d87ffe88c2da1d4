"""What several runs say, told once: each sentence with the runs it holds for. What has no room for its
sentence is named, and what is not named is counted by its reading."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeVar

from leakscope.report.pages import listed, plural
from leakscope.results.chapter import SEVERITIES, Verdict

SENTENCES = 10  # of verdicts, shared by the runs; each run has one at least
EACH = 3  # of one run at most
NAMED = 40  # verdicts without their sentence
OWN = 20  # sentences that hold for one run of several, shared by these
T = TypeVar("T", bound=Hashable)


@dataclass(frozen=True)
class Found:
    """The verdicts of some runs, the worst first."""

    told: list[tuple[Verdict, str]]  # with their sentence, and their runs
    named: dict[str, list[str]]  # by severity
    left: str  # how many more there are, and where


def name_runs(numbers: Iterable[int], every: int) -> str:
    """``all runs``, ``run 3`` or ``runs 1 to 3 and 7``, counted from 1."""
    known = sorted(numbers)
    if len(known) == every:
        return "all runs"
    stretches = groupby(enumerate(known), lambda pair: pair[1] - pair[0])
    rows = [[number for _, number in stretch] for _, stretch in stretches]
    parts = [[f"{row[0]} to {row[-1]}"] if len(row) > 2 else row for row in rows]
    return f"run{'s' if len(known) > 1 else ''} {listed(part for row in parts for part in row)}"


def share(lists: Sequence[Iterable[T]]) -> dict[T, tuple[int, ...]]:
    """All that some runs say, once, with the numbers of the runs that say it."""
    runs: dict[T, tuple[int, ...]] = {}
    for number, entries in enumerate(lists, start=1):
        for entry in dict.fromkeys(entries):
            runs[entry] = (*runs.get(entry, ()), number)
    return runs


def gather(lists: Sequence[Sequence[str]]) -> dict[tuple[int, ...], list[str]]:
    """The sentences of some runs by the runs they hold for."""
    gathered: dict[tuple[int, ...], list[str]] = {}
    for sentence, runs in share(lists).items():
        gathered.setdefault(runs, []).append(sentence)
    return gathered


def name_all(gathered: Mapping[tuple[int, ...], list[str]], every: int) -> list[tuple[str, list[str]]]:
    """The sentences with the names of their runs, what holds for most of these first. Of what holds for one
    run alone the first are told, and the others counted."""
    ordered = sorted(gathered.items(), key=lambda pair: (-len(pair[0]), pair[0]))
    room = max(1, OWN // every)
    return [
        (name_runs(runs, every), _cut(sentences, room) if len(runs) == 1 < every else sentences)
        for runs, sentences in ordered
    ]


def _cut(sentences: list[str], room: int) -> list[str]:
    left = len(sentences) - room
    return [*sentences[:room], f"{left} more in its report."] if left > 1 else sentences


def sort_out(lists: Sequence[Sequence[Verdict]]) -> Found:
    """Which verdicts of some runs are told and which named. Each run has its worst first: these are told."""
    room = max(1, min(EACH, SENTENCES // max(1, len(lists))))
    runs = share([[_words(verdict) for verdict in verdicts] for verdicts in lists])
    first = {_words(verdict) for verdicts in lists for verdict in verdicts[:room]}
    distinct = {
        _words(verdict): verdict for verdicts in lists for verdict in verdicts if _words(verdict) in first
    }
    told = sorted(distinct.items(), key=lambda pair: pair[1].worst_first)
    rest = share([[_words(one)[:3] for one in verdicts if _words(one) not in first] for verdicts in lists])
    ordered = sorted(rest, key=lambda name: list(SEVERITIES).index(name[0]))
    named: dict[str, list[str]] = {}
    for name in ordered[:NAMED]:
        named.setdefault(name[0], []).append(f"{name[1]}, {name[2]}{_where(rest[name], lists)}")
    left = [(SEVERITIES[name[0]].lower(), rest[name]) for name in ordered[NAMED:]]
    return Found(
        told=[(verdict, _where(runs[words], lists)) for words, verdict in told],
        named=named,
        left=_count(left, len(lists)),
    )


def _words(verdict: Verdict) -> tuple[str, str, str, str]:
    return verdict.severity, verdict.about, verdict.data, verdict.sentence


def _where(runs: Iterable[int], lists: Sequence[object]) -> str:
    return f" ({name_runs(runs, len(lists))})" if len(lists) > 1 else ""


def _count(left: Sequence[tuple[str, tuple[int, ...]]], every: int) -> str:
    """``12 more verdicts: 2 slight and 10 inconclusive. See the reports of runs 1 and 2.``"""
    if not left:
        return ""
    words = Counter(word for word, runs in left for _ in runs)
    counted = listed(f"{count} {word}" for word, count in words.items())
    runs = {run for _, runs in left for run in runs}
    where = f"the reports of {name_runs(runs, every)}" if every > 1 else "the report"
    return f"{plural(words.total(), 'more verdict')}: {counted}. See {where}."
