"""Limits held against readings: pass, fail, or not enough evidence.

How errors are shared. A verdict of a limit needs every reading's upper limit to pass, and one reading's
lower limit to fail. With L limits, and S seeds and R readings (settings, seeds, attacks) of one of them,
its error 1 - confidence is divided by L S for upper limits and by L R for lower ones (Bonferroni). That
passes need no division by settings and attacks is the intersection-union test (Berger 1982): a setting
that is above the limit must itself be missed before all can pass.

Of an epsilon an attack shows how large it is at least, never how large it is at most: it can fail a
limit, and only an accountant can pass it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from leakscope.gating.appetite import Appetite, Declared, Limit, read
from leakscope.gating.evidence import Enough, Evidence, Stored
from leakscope.gating.readings import Json, Reading, readings, results

Word = Literal["fail", "not enough evidence", "pass"]
WORDS: tuple[Word, ...] = ("fail", "not enough evidence", "pass")  # the worst first
APPETITE = "gate.toml"  # kept beside results whose report shows the gate
OPEN: Word = "not enough evidence"
CODES = {"pass": 0, "fail": 1, OPEN: 3}
NEVER = "an attack shows how large an epsilon is at least, so it alone can never pass a limit"


@dataclass(frozen=True)
class Judgement:
    """One reading against one limit. ``low`` and ``high`` are None where they cannot be had."""

    reading: Reading
    value: float | None
    low: float | None
    high: float | None
    n: int
    method: str
    promised: float | None
    measured: Word
    declared: Word
    combined: Word
    reason: str
    enough: Enough | None


@dataclass(frozen=True)
class Judged:
    """One limit, and every reading that speaks to it."""

    limit: Limit
    judgements: tuple[Judgement, ...]
    silent: int  # readings about the same that do not measure it
    errors: tuple[float, float]  # of each lower and each upper limit
    reason: str

    @property
    def measured(self) -> Word:
        return worst(one.measured for one in self.judgements)

    @property
    def declared(self) -> Word:
        return worst(one.declared for one in self.judgements)

    @property
    def combined(self) -> Word:
        return worst(one.combined for one in self.judgements)

    @property
    def decisive(self) -> Judgement | None:
        """The judgement that decides: of the worst word, the one that is furthest up."""

        def place(one: Judgement) -> tuple[int, float]:
            height = one.low if one.combined == "fail" else one.high if one.high is not None else one.value
            return WORDS.index(one.combined), -(height if height is not None else 0.0)

        return min(self.judgements, key=place, default=None)

    @property
    def enough(self) -> Enough | None:
        """The trials of each result that would be enough for all that is open, where trials would be."""
        wanted = [one.enough for one in self.judgements if one.combined == OPEN]
        known = [one for one in wanted if one is not None]
        return max(known) if known and len(known) == len(wanted) else None


@dataclass(frozen=True)
class Verdict:
    """All limits of a risk appetite, judged."""

    limits: tuple[Judged, ...]
    declared_by: Declared | None

    @property
    def measured(self) -> Word:
        return worst(one.measured for one in self.limits)

    @property
    def declared(self) -> Word:
        return worst(one.declared for one in self.limits)

    @property
    def combined(self) -> Word:
        return worst(one.combined for one in self.limits)

    @property
    def exit_code(self) -> int:
        """0 pass, 1 fail, 3 not enough evidence."""
        return CODES[self.combined]


def worst(words: Iterable[Word]) -> Word:
    """Of several words; of none, that there is not enough evidence."""
    return min(words, key=WORDS.index, default=OPEN)


def verdict(appetite: Appetite, found: Sequence[Json]) -> Verdict:
    """A risk appetite held against results; those that failed, or were not run, never pass."""
    every = [reading for result in found for reading in readings(result)]
    shares = len(appetite.limit)
    judged = tuple(_judged(limit, every, appetite.declared, shares) for limit in appetite.limit)
    return Verdict(judged, appetite.declared)


def kept(folder: Path) -> Verdict | None:
    """The verdict on a results folder by the risk appetite that is kept in it, if there is one."""
    path = folder / APPETITE
    return verdict(read(path), results(folder)) if path.exists() else None


def _judged(limit: Limit, every: Sequence[Reading], declared: Declared | None, shares: int) -> Judged:
    about = [reading for reading in every if limit.about(reading)]
    faced = [reading for reading in about if limit.faces(reading)]
    speaking = [r for r in faced if r.failure or limit.measure in r.evidence or limit.measure == "epsilon"]
    error = (1 - limit.confidence) / shares
    seeds, count = max(1, len({r.seed for r in speaking})), max(1, sum(not r.failure for r in speaking))
    errors = (error / count, error / seeds)
    judgements = tuple(_judgement(limit, reading, declared, errors) for reading in speaking)
    silent = len(faced) - len(speaking)
    return Judged(limit, judgements, silent, errors, "" if speaking else _silence(limit, about, faced))


def _silence(limit: Limit, about: Sequence[Reading], faced: Sequence[Reading]) -> str:
    """Why no result speaks to a limit."""
    if faced:
        return f"no result speaks to it: the {len(faced)} about this secret do not measure {limit.measure}"
    if about:
        return (
            f"no result speaks to it: the {len(about)} about this secret are not of an adversary who is "
            f'{limit.adversary}; audit one, or ask for adversary = "any"'
        )
    return "no result speaks to it: none is about this secret, game and defense"


def _judgement(
    limit: Limit, reading: Reading, declared: Declared | None, errors: tuple[float, float]
) -> Judgement:
    if reading.failure:
        reason = f"failed, and what failed never passes: {reading.failure}"
        return Judgement(reading, None, None, None, 0, "", None, OPEN, OPEN, OPEN, reason, None)
    found = reading.evidence.get(limit.measure)
    if isinstance(found, Stored) and found.delta and found.delta < limit.delta:
        found = None  # of a smaller delta: its epsilon may be larger than that at the limit's
    low, high = (found.low(errors[0]), found.high(errors[1])) if found else (None, None)
    measured = _measured(limit, low, high)
    if limit.measure == "epsilon":
        promised, holds, reason = _accounted(limit, reading, declared)
    else:
        promised = reading.bounds.get(limit.measure)
        holds, reason = promised is not None and promised <= limit.at_most, ""
    said: Word = "pass" if holds else OPEN
    combined: Word = "fail" if measured == "fail" else "pass" if "pass" in (measured, said) else OPEN
    still = combined == OPEN and limit.measure != "epsilon" and found is not None
    return Judgement(
        reading,
        found.value if found else None,
        low,
        high,
        found.n if found else 0,
        found.method if found else "",
        promised,
        measured,
        said,
        combined,
        _reason(limit, found, (low, high), combined, reason),
        found.enough(limit.at_most, errors) if still and found else None,
    )


def _measured(limit: Limit, low: float | None, high: float | None) -> Word:
    if low is not None and low > limit.at_most:
        return "fail"
    return "pass" if high is not None and high <= limit.at_most else OPEN


def _accounted(limit: Limit, reading: Reading, declared: Declared | None) -> tuple[float | None, bool, str]:
    """The largest epsilon promised, whether it keeps the limit, and why not. What is promised of the whole
    training must keep it, and what one step of it allows must too."""
    if reading.unprotected or "guard" in reading.kinds:
        return None, False, "no mechanism with an epsilon was in place, so none is promised"
    whole = [(declared.epsilon, declared.delta)] if declared else []
    whole += [reading.promised] if reading.promised else []
    every = whole + ([reading.step] if reading.step else [])
    if not whole:
        return None, False, f"no accountant's epsilon of the whole training is known, and {NEVER}"
    most, delta = max(epsilon for epsilon, _ in every), max(delta for _, delta in every)
    if most > limit.at_most:
        return most, False, f"an epsilon of {most:.3g} is all that is promised, and {NEVER}"
    if delta > limit.delta:
        return most, False, f"what is promised holds at delta {delta:g} only, and {limit.delta:g} is asked"
    found = reading.evidence.get("epsilon")
    low = found.widest[1] if isinstance(found, Stored) else 0.0  # too unsure to fail may be too much to pass
    if low > most:
        return (
            most,
            False,
            f"trials certify an epsilon of at least {low:.3g}, more than the {most:.3g} that is promised: "
            f"see that both speak of the same mechanism and neighbours",
        )
    return most, True, ""


def _reason(
    limit: Limit,
    found: Evidence | None,
    ends: tuple[float | None, float | None],
    combined: Word,
    reason: str,
) -> str:
    """Why it is not decided, or by what."""
    if combined == "fail":
        return "the lower limit is above it"
    if combined == "pass":
        return "promised, whoever attacks" if ends[1] is None or ends[1] > limit.at_most else ""
    if reason:
        return reason
    if isinstance(found, Stored) and ends[found.value <= limit.at_most] is None:
        error, low, high = found.widest
        shown = f"{low:.3f} to {high:.3f}" if high is not None else f"from {low:.3f} on"
        return (
            f"its interval, {shown}, was stored at {100 * (1 - error):.4g}% on either side and cannot be "
            f"computed again for so many limits, seeds and attacks; ask for fewer, or for less confidence"
        )
    return "the limit lies inside the interval"
