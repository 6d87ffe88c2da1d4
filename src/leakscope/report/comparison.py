"""A comparison in plain words, as JSON, and as a page."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

from leakscope.report import plot
from leakscope.report.pages import fill, marked, name_measure, number, plural, small
from leakscope.results.cell import group_by
from leakscope.results.compare.gaps import EXACT, LEVEL, PAIRED, SINGLE, WELCH, least
from leakscope.results.compare.matching import ALPHA, Comparison, Difference
from leakscope.results.scores import TASK_WORDS

FORMAT = 1  # of the JSON
T = TypeVar("T")
HEADER = ["cell", "secret", "measure", "A", "B", "B - A", "interval", "p (Holm)", "seeds", "reading"]
SHARES = ("advantage", "tpr_at_1%", "ssim", "auroc", "success")  # that one axis from -1 to 1 can hold


def sentences(found: Comparison) -> list[str]:
    """The result first, then what it rests on."""
    alone = [f"{plural(len(cells), 'cell')} of {side}" for side, cells in _sides(found.only)]
    told = [*_leakage(found)]
    if alone and found.pairs:
        told.append(
            f"Not compared, because the other has no such cell: {' and '.join(alone)} (listed below)."
        )
    told += [*_worth(found), *_basis(found), *_correction(found)]
    if any(one.reading == "open" for one in found.headlines):
        told.append("Where no difference is shown, there may still be one.")
    return told


def missing(found: Comparison) -> list[str]:
    """What only one of the two has, and what failed."""
    only = _sides(found.only)
    told = [f"Only {side} has {plural(len(cells), 'cell')}: {'; '.join(cells)}." for side, cells in only]
    for pair in found.pairs:
        told += [f"{pair.label}: {plural(n, 'seed')} of {side} failed." for side, n in _sides(pair.failed)]
        told += [f"{pair.label}: only {side} measures {_some(names)}." for side, names in _sides(pair.alone)]
    return told


def _sides(both: tuple[T, T]) -> list[tuple[str, T]]:
    """A and B, as far as there is something."""
    return [(side, own) for side, own in zip("AB", both, strict=True) if own]


def text(found: Comparison) -> list[str]:
    """What the terminal says."""
    return [f"A is {found.names[0]}, B is {found.names[1]}.", *sentences(found), *missing(found)]


def rows(found: Comparison) -> list[list[str]]:
    """The headlines and the task accuracies as the terminal shows them."""
    shown = [(pair, one) for pair in found.pairs for one in pair.differences]
    told = [(pair, one) for pair, one in shown if one.headline or one in found.utilities]
    return [
        [
            pair.label,
            one.secret if one.about == "leakage" else "",
            "task " * (one.about == "utility")
            + name_measure(one.measure)
            + (f", {one.part}" if one.part else ""),
            number(one.gap.a),
            number(one.gap.b),
            signed(one.gap.value),
            between(one),
            chance(one.corrected),
            str(one.gap.seeds),
            one.reading,
        ]
        for pair, one in told
    ]


def as_json(found: Comparison) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "a": found.names[0],
        "b": found.names[1],
        "level": LEVEL,
        "correction": "Holm; headlines are one family, all other numbers another",
        "sentences": sentences(found),
        "cells": [
            {
                "cell": pair.label,
                "differs": dict(zip("ab", pair.differs, strict=True)),
                "failed_seeds": dict(zip("ab", pair.failed, strict=True)),
                "only": dict(zip("ab", map(list, pair.alone), strict=True)),
                "differences": [_table(one) for one in pair.differences],
            }
            for pair in found.pairs
        ],
        "only": dict(zip("ab", map(list, found.only), strict=True)),
    }


def render(found: Comparison) -> str:
    """The page. All words from the data are escaped."""
    drawn = [(pair, one) for pair in found.pairs for one in pair.differences if _drawable(one)]
    ends = [abs(v) for _, one in drawn for v in (one.gap.low, one.gap.high, one.gap.value) if v is not None]
    reach = min(1.0, math.ceil(max(ends, default=0.0) * 4) / 4) or 0.25
    told = sentences(found)
    return fill(
        "/comparison.html",
        title=f"{found.names[0]} and {found.names[1]}",
        found=found,
        verdict=told[0],
        sentences=told[1:],
        missing=missing(found),
        drawn=drawn,
        span=(-reach, reach),
        strip=marked(plot.strip),
        signed=signed,
        chance=chance,
        between=between,
        level=LEVEL,
    )


def signed(value: float | None, digits: int = 3) -> str:
    """A difference with its sign."""
    return ("+" if value is not None and value > 0 else "") + number(value, digits)


def between(one: Difference) -> str:
    """The interval of a difference."""
    return "–" if one.gap.low is None else f"{signed(one.gap.low)} to {signed(one.gap.high)}"


def chance(p: float | None) -> str:
    """A p to two digits; below what can be told apart, that it is."""
    if p is None:
        return "–"
    return "< 0.0001" if p < 1e-4 else small(float(f"{p:.2g}"))


def _table(one: Difference) -> dict[str, Any]:
    numbers = {"value": one.gap.value, **asdict(one.gap)}
    named = {key: getattr(one, key) for key in ("about", "secret", "part", "measure", "headline")}
    return named | numbers | {"p_corrected": one.corrected, "reading": one.reading}


def _drawable(one: Difference) -> bool:
    return one.headline and one.measure in SHARES and one.gap.low is not None and one.gap.high is not None


def _leakage(found: Comparison) -> Iterator[str]:
    ones = found.headlines
    if not found.pairs:
        yield "The two have no cell in common, so nothing can be compared."
        return
    if not ones:
        yield "No cell measures the same leakage in both, so leakage cannot be compared."
        return
    unit = "cell" if len(ones) <= len(found.pairs) else "case"  # of a cell and a secret
    yield _told(ones, "B gives away {} than A", ("less", "more"), unit)
    alone = Counter(one.direction for one in ones if one.alone)
    if sum(alone.values()) > sum(one.reading != "open" for one in ones):
        words = " and ".join(f"{word} in {alone[word]}" for word in ("less", "more") if alone[word])
        yield f"Each by its own interval, uncorrected: {words} of {len(ones)}."


def _worth(found: Comparison) -> Iterator[str]:
    for word, ones in group_by(found.utilities, lambda one: TASK_WORDS[one.measure]).items():
        yield _told(ones, f"B's task {word} is {{}} than A's", ("lower", "higher"), "cell")


def _told(ones: Sequence[Difference], start: str, readings: tuple[str, str], unit: str) -> str:
    counts = Counter(one.reading for one in ones)
    first, second = readings if counts[readings[0]] or not counts[readings[1]] else readings[::-1]
    if not counts[first]:
        words = start.format(f"neither {first} nor {second}")
        return f"{words}, as far as this shows, in any of {plural(len(ones), unit)}."
    more = f", {second} in {counts[second]}" if counts[second] else ""
    rest = f"; in {counts['open']} no difference is shown" if counts["open"] else ""
    return f"{start.format(first)} in {counts[first]} of {plural(len(ones), unit)}{more}{rest}."


def _basis(found: Comparison) -> Iterator[str]:
    by: dict[str, list[int]] = {}
    for one in found.differences:
        by.setdefault(one.gap.method, []).append(one.gap.seeds)
    if seeds := by.get(PAIRED):
        few = "all sign flips" if min(seeds) <= EXACT else ""
        many = f"Student's test{f' beyond {EXACT} seeds' if few else ''}" if max(seeds) > EXACT else ""
        yield (
            f"Paired over {_range(seeds)} that both have: the mean difference with Student's {LEVEL:.0%} "
            f"interval, its p by {' and '.join(part for part in (few, many) if part)}."
        )
    if seeds := by.get(WELCH):
        yield f"Where seeds are not the same: Welch's test over {_range(seeds)} each."
    if SINGLE in by:
        which = "Where there is one run each" if len(by) > 1 else "There is one run each"
        yield (
            f"{which}{',' if len(by) > 1 else ':'} the difference comes from two intervals, as if they were "
            f"independent. It covers the chance of the trials alone, not that of another seed."
        )


def _correction(found: Comparison) -> Iterator[str]:
    ones = [one for one in found.headlines if one.gap.p is not None]
    others = sum(one.gap.p is not None and not one.headline for one in found.differences)
    if not ones:
        return
    yield (
        f"p is corrected by Holm's method, over {plural(len(ones), 'headline')} as one family and "
        f"{plural(others, 'other number')} as another. A difference is shown where p is below {ALPHA:g}."
    )
    floors = [
        least(one.gap.seeds) if one.gap.method == PAIRED and one.gap.seeds <= EXACT else 0.0 for one in ones
    ]
    if min(floors) * len(ones) >= ALPHA:
        wanted = math.floor(math.log2(len(ones) / ALPHA)) + 2
        yield (
            f"So few seeds cannot show any difference: their smallest possible p is {chance(min(floors))}, "
            f"and {plural(len(ones), 'headline')} would need {wanted} shared seeds."
        )


def _range(seeds: Sequence[int]) -> str:
    low, high = min(seeds), max(seeds)
    return f"{low} seeds" if low == high else f"{low} to {high} seeds"


def _some(names: Sequence[str], shown: int = 4) -> str:
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return "; ".join(names[:shown]) + more
