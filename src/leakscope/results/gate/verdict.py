"""Limits held against readings: pass, fail, or not enough evidence.

How errors are shared. A verdict of a limit needs every reading's upper limit to pass, and one reading's
lower limit to fail. With L limits, and S seeds and R readings (settings, seeds, attacks) of one of them,
its error 1 - confidence is divided by L S for upper limits and by L R for lower ones (Bonferroni). That
passes need no division by settings and attacks is the intersection-union test (Berger 1982): a setting
that is above the limit must itself be missed before all can pass.

Who counts. Who knows of a defense can also do what one who does not would: where an adaptive adversary is
asked about, a static one can fail a limit, and passes nothing that no adaptive one was set on.

What may pass. An estimate of what an attack reaches passes by its upper limit, unless the same attack's
ranking gives the secret away. A lower bound, of information or of an epsilon, can fail a limit and never pass
it. An upper bound passes only if it covers exactly the releases that the limit is about.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from leakscope.core.basis import Enough, scaled
from leakscope.core.errors import PlanError
from leakscope.results.cell import stable
from leakscope.results.gate.appetite import EPSILON, Appetite, Declared, Limit, read
from leakscope.results.gate.readings import EVERY, Reading, read_results
from leakscope.results.gate.readings import read as read_result
from leakscope.results.number import Number
from leakscope.results.result import Result
from leakscope.results.scores import MEASURES

Word = Literal["fail", "not enough evidence", "pass"]
WORDS: tuple[Word, ...] = ("fail", "not enough evidence", "pass")  # the worst first
APPETITE = "gate.toml"  # kept beside results whose report shows the gate
OPEN: Word = "not enough evidence"
UNPLAYED = "this game was not played behind this defense; audit it, or name the game of this limit"
CODES = {"pass": 0, "fail": 1, OPEN: 3}
GUESSED = ("success", "balanced_accuracy", "advantage")  # measures of guesses, not of their ranking
CERTIFIED = "epsilon_any"  # the measured epsilon: a lower bound that assumes nothing
STALE = 'another version of this program made it; run its plan again, or set code = "any" to take its word'
NEVER = "an attack gives a lower bound on epsilon, so it alone can never pass a limit"


@dataclass(frozen=True)
class Judgement:
    """One reading against one limit. ``low`` and ``high`` are None where they cannot be had."""

    reading: Reading
    number: Number | None
    low: float | None
    high: float | None
    promised: float | None
    measured: Word
    declared: Word
    combined: Word
    reason: str
    enough: Enough | None


@dataclass(frozen=True)
class LimitVerdict:
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
            height = one.low if one.combined == "fail" else one.high
            if height is None:
                height = one.number.value if one.number else 0.0
            return WORDS.index(one.combined), -(height or 0.0)

        return min(self.judgements, key=place, default=None)

    @property
    def enough(self) -> Enough | None:
        """The trials of each result that would be enough for all that is open, where trials would be."""
        wanted = [one.enough for one in self.judgements if one.combined == OPEN]
        known = [one for one in wanted if one is not None]
        return max(known) if known and len(known) == len(wanted) else None


@dataclass(frozen=True)
class GateVerdict:
    """All limits of a risk appetite, judged."""

    limits: tuple[LimitVerdict, ...]
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
    def passed(self) -> bool:
        return self.combined == "pass"

    @property
    def exit_code(self) -> int:
        """0: pass, 1: fail, 3: not enough evidence."""
        return CODES[self.combined]


def worst(words: Iterable[Word]) -> Word:
    """Of none, not enough evidence."""
    return min(words, key=WORDS.index, default=OPEN)


def judge(appetite: Appetite, *runs: Sequence[Result[Any]], part: bool = False) -> GateVerdict:
    """A risk appetite held against the results of one run or several; those that failed, or were not run,
    never pass. A result that two runs share counts once. Of what is a ``part`` of the runs, limits about
    others are left out, and the error is shared as if they were not."""
    every = [
        reading
        for run, results in enumerate(_apart(runs))
        for one in results
        for reading in read_result(one, run=run)
    ]
    if appetite.code == "any":
        every = [replace(reading, stale=False) for reading in every]
    wanted = [one for one in appetite.limit if not part or any(one.about(reading) for reading in every)]
    for limit in wanted:
        _exists(limit, every)
    shares = len(appetite.limit)
    limits = tuple(_judge_limit(limit, every, appetite.declared, shares) for limit in wanted)
    return GateVerdict(limits, appetite.declared)


def _apart(runs: Sequence[Sequence[Result[Any]]]) -> list[list[Result[Any]]]:
    """The runs, each without what an earlier one has: the same result twice is no more evidence."""
    seen: set[str] = set()
    apart = []
    for results in runs:
        tables = [(stable(one.table), one) for one in results]
        apart.append([one for table, one in tables if table not in seen])
        seen |= {table for table, _ in tables}
    return apart


def judge_kept(folder: Path) -> GateVerdict | None:
    """The verdict on a results folder by the risk appetite that is kept in it, if there is one."""
    path = folder / APPETITE
    return judge(read(path), read_results(folder)) if path.exists() else None


def _exists(limit: Limit, every: Sequence[Reading]) -> None:
    """Refuse a secret, a game or a defense that no result knows, with those that there are."""
    secrets = list(dict.fromkeys(reading.secret for reading in every))
    games = list(dict.fromkeys(kind for reading in every for kind in reading.kinds))
    shields = list(dict.fromkeys(str(s.get("name")) for reading in every for s in reading.asked.shields))
    data = list(dict.fromkeys(reading.data for reading in every))
    settings = {name for reading in every for name in reading.settings}
    named = limit.defense if isinstance(limit.defense, str) else (limit.defense or {}).get("name")
    for what, name, there in (
        ("secret", limit.secret, [*secrets, EVERY]),
        ("game", limit.game, [*games, EVERY]),
        ("defense", named, [*shields, "none"]),
        ("data", limit.data, data),
        ("measure", limit.measure, [*MEASURES, EPSILON, *(name for r in every for name in r.measured)]),
        *(("setting", name, settings) for name in limit.where),
    ):
        if every and name is not None and name not in there and EVERY not in secrets:
            raise PlanError(
                f"the limit's {what} is {name!r}, and the results have none of that name; they have: "
                f"{', '.join(sorted(set(there)))}."
            )


def _judge_limit(
    limit: Limit, every: Sequence[Reading], declared: Declared | None, shares: int
) -> LimitVerdict:
    about = [reading for reading in every if limit.about(reading)]
    heard = [r for r in about if r.failure or limit.measure == EPSILON or limit.measure in r.measured]
    met = {reading.setting for reading in heard if limit.faces(reading)}
    stronger = limit.adversary == "adaptive"
    speaking = [r for r in heard if stronger or limit.faces(r) or r.setting not in met]
    error = (1 - limit.confidence) / shares
    count = max(1, sum(not r.failure for r in speaking))
    seeds = max(1, len({(r.run, r.seed) for r in speaking}))
    errors = (error / count, error / seeds)
    judged = [_judge_reading(limit, reading, declared, errors) for reading in speaking]
    judged = [one if one.reading.setting in met else _unmet(limit, one) for one in judged]
    spoken = {reading.place for reading in speaking}
    unheard = {reading.place: reading for reading in about if reading.place not in spoken}
    if speaking:
        judged += [_open(reading, _silence(limit, [reading])) for reading in unheard.values()]
        judged += [_open(reading, UNPLAYED) for reading in _unplayed(limit, every, about)]
    silent = len(about) - len(heard)
    return LimitVerdict(limit, tuple(judged), silent, errors, "" if speaking else _silence(limit, about))


def _unplayed(limit: Limit, every: Sequence[Reading], about: Sequence[Reading]) -> list[Reading]:
    """One reading of each game that was played for the secret, and not behind the defense of a limit that
    names no game."""
    played = {(one.secret, one.data, kind) for one in about for kind in one.kinds}
    anywhere = limit.model_copy(update={"defense": None})
    told = [one for one in every if limit.measure == EPSILON or limit.measure in one.measured]
    missed = [one for one in told if limit.defense and anywhere.about(one)]
    games = {(one.secret, one.data, kind): one for one in missed for kind in one.kinds}
    return [one for game, one in games.items() if game not in played]


def _silence(limit: Limit, about: Sequence[Reading]) -> str:
    """Why no result speaks to a limit."""
    if about:
        there = dict.fromkeys(name for reading in about for name in reading.measured)
        return f"this folder has no {limit.measure} for this limit; it has: {', '.join(there)}"
    return "this folder has no result for this secret, game and defense together"


def _unmet(limit: Limit, one: Judgement) -> Judgement:
    """What may be said of a setting that no adversary of the kind asked for attacked: a bound holds whoever
    attacks, and what a static one finds an adaptive one can."""
    if one.reading.failure or one.declared == "pass":
        return one
    if one.combined == "fail" and limit.adversary == "adaptive":
        return one
    reason = (
        f"this folder has no result of an adversary who is {limit.adversary} for this limit; audit one, or "
        f'ask for adversary = "any"'
    )
    return replace(one, measured=OPEN, combined=OPEN, reason=reason, enough=None)


def _open(reading: Reading, reason: str) -> Judgement:
    return Judgement(reading, None, None, None, None, OPEN, OPEN, OPEN, reason, None)


def _judge_reading(
    limit: Limit, reading: Reading, declared: Declared | None, errors: tuple[float, float]
) -> Judgement:
    if reading.failure:
        return _open(reading, f"failed, and what failed never passes: {reading.failure}")
    name = CERTIFIED if limit.measure == EPSILON else limit.measure
    number = reading.measured.get(name)
    if number is not None and number.delta is not None and number.delta < limit.delta:
        number = None  # of a smaller delta: its epsilon may be larger than that at the limit's
    low, high = _ends(number, reading.surer.get(name), errors)
    measured, doubt = _measure(limit, reading, number, low, high)
    promised, holds, reason = _promise(limit, reading, declared)
    own = not (declared and limit.measure == EPSILON and limit.releases == "training")
    if holds and own and reading.stale:
        holds, reason = False, STALE
    lacking = [name for name in limit.where if name not in reading.settings]
    said: Word = "pass" if holds else OPEN
    combined: Word = "fail" if measured == "fail" else "pass" if "pass" in (measured, said) else OPEN
    if combined == "pass" and lacking:
        combined, reason = OPEN, f"it leaves {', '.join(lacking)} to a default, so nobody says what it is"
    enough = None
    if combined == "fail":
        reason = "the lower limit is above it"
    elif combined == "pass":
        reason = "an upper bound keeps it, whoever attacks" if measured == OPEN else ""
    elif number is not None and number.bound == "estimate" and not doubt:
        enough = _enough(number, limit, errors, (low, high))
    why = reason or doubt or ("" if combined != OPEN else "the limit lies inside the interval")
    return Judgement(reading, number, low, high, promised, measured, said, combined, why, enough)


def _ends(
    number: Number | None, surer: Number | None, errors: tuple[float, float]
) -> tuple[float | None, float | None]:
    """One-sided limits at these errors: computed from what the number rests on, or as they were stored, where
    they are sure enough."""
    if number is None:
        return None, None
    rows = [one for one in (number, surer) if one]
    tails = [(1 - (one.level or 0.0)) / (2 if one.high is not None else 1) for one in rows]
    sure = [
        [row for row, tail in zip(rows, tails, strict=True) if tail <= error * (1 + 1e-9)] for error in errors
    ]
    low, high = (sure[0][0].low if sure[0] else None), (sure[1][0].high if sure[1] else None)
    if number.basis is None:
        return low, high
    again = number.basis.low(errors[0])
    if number.bound == "lower" and low is not None:  # more may be known than what it rests on says
        again = max(again, low)
    return again, number.basis.high(errors[1])


def _measure(
    limit: Limit, reading: Reading, number: Number | None, low: float | None, high: float | None
) -> tuple[Word, str]:
    """What a measurement says of a limit, and why it does not pass where its interval would."""
    if number is None:
        return OPEN, ""
    if low is not None and low > limit.at_most:
        return "fail", ""
    if number.bound != "estimate":
        return OPEN, NEVER if limit.measure == EPSILON else (
            f"{limit.measure} is a lower bound: a better attack may find more, so it can never pass a limit"
        )
    if low is None or high is None:
        level = 100 * (number.level or 0.0)
        return OPEN, (
            f"its interval was stored at {level:.4g}%, which is too low for so many limits, seeds and "
            f"attacks; ask for fewer, or for less confidence"
        )
    if not high <= limit.at_most:  # nor where it is no number
        return OPEN, ""
    if limit.measure not in MEASURES and number.guessing is None:
        return OPEN, f"nobody says what {limit.measure} is without a release, so a low number proves nothing"
    if reading.stale:
        return OPEN, STALE
    if reading.asked.single and limit.attack == "strongest":
        return OPEN, (
            'only an attack that was named was tried; audit without --attack, or ask for attack = "any"'
        )
    if reading.narrow:
        return OPEN, (
            "only single releases without their labels were attacked, so nobody knows what labels and more "
            "releases tell; audit with rows = true"
        )
    if reading.doubted:
        return OPEN, "its self-check failed, so a low number of this result proves nothing"
    if reading.doubt:
        return OPEN, reading.doubt
    if reading.unlearned:
        return OPEN, (
            "its model has not learned its task, so a low number says nothing of one that has; train "
            "it longer"
        )
    if not reading.apart:
        return OPEN, (
            "its attack was tried only on public records that it had learned from, so nobody knows how far "
            "to trust it; give more public records, or lower the batch"
        )
    if reading.ranks and limit.measure in GUESSED:
        return OPEN, (
            "its guesses stay below the limit, but its ranking gives the secret away (AUROC above or below "
            "0.5), so a better use of it would find more"
        )
    if reading.worse and limit.measure in GUESSED:
        return (
            OPEN,
            "its guesses are worse than guessing, so they show nothing; audit it with another attack",
        )
    if reading.reversed and not (limit.measure == "auroc" and 1 - low <= limit.at_most):
        return OPEN, "its ranking is worse than chance, and turned around it gives as much away"
    return "pass", ""


def _enough(
    number: Number, limit: Limit, errors: tuple[float, float], ends: tuple[float | None, float | None]
) -> Enough | None:
    if number.basis is not None:
        return number.basis.enough(limit.at_most, errors)
    if number.value is None or number.n is None:
        return None
    return scaled(number.value, number.n, ends, limit.at_most, errors)


def _promise(limit: Limit, reading: Reading, declared: Declared | None) -> tuple[float | None, bool, str]:
    """The largest upper bound that covers the releases asked about, if it keeps the limit, or why not."""
    if limit.measure != EPSILON:
        covering = [
            row.value for row in reading.bounds if row.measure == limit.measure and row.covers == "shown"
        ]
        known = [value for value in covering if value is not None]
        most = max(known, default=None)
        return most, most is not None and most <= limit.at_most, ""
    if reading.unprotected:
        return None, False, "no mechanism with an epsilon was in place, so none is promised"
    if reading.asked.protected and not any(row.measure.startswith(EPSILON) for row in reading.bounds):
        return (
            None,
            False,
            "no epsilon is known for the defense in place, so the declared one cannot be its own",
        )
    found = [
        (row.value, row.delta or 0.0)
        for row in reading.bounds
        if row.measure == EPSILON
        and row.covers == limit.releases
        and row.part == limit.neighbours
        and row.value is not None
    ]
    rows = [row for row in (*reading.bounds, *reading.expected) if row.covers == limit.releases]
    people = max((row.behind or 1 for row in rows), default=1)
    if limit.delta * people >= 1:
        return (
            None,
            False,
            (f"at delta {limit.delta:g} one of {people:,} records may be shown whole; ask at a smaller one"),
        )
    if declared and limit.releases == "training":
        if declared.neighbours != limit.neighbours:
            return (
                declared.epsilon,
                False,
                (
                    f"the declared epsilon is for one record: {declared.neighbours}, and the limit asks for: "
                    f"{limit.neighbours}"
                ),
            )
        if (least := _expected(limit, reading, declared)) > declared.epsilon:
            return (
                declared.epsilon,
                False,
                (f"even if batches were drawn at random the training has {least:.3g}, more than is declared"),
            )
        found.append((declared.epsilon, declared.delta))
    if not found:
        return None, False, _uncovered(limit, reading, declared)
    most, delta = max(value for value, _ in found), max(delta for _, delta in found)
    if not most <= limit.at_most:
        return most, False, f"the promised epsilon is {most:.3g}, and {NEVER}"
    if delta > limit.delta:
        return (
            most,
            False,
            f"the promise holds at delta {delta:g} only, and the limit asks for {limit.delta:g}",
        )
    return most, *_contradicted(most, reading)


def _expected(limit: Limit, reading: Reading, declared: Declared) -> float:
    """The epsilon that our own accountant has of the training at the declared delta, or a larger one."""
    rows = [row for row in reading.expected if row.covers == "training" and row.part == limit.neighbours]
    return max((row.value or 0.0 for row in rows if (row.delta or 0.0) >= declared.delta), default=0.0)


def _contradicted(most: float, reading: Reading) -> tuple[bool, str]:
    """Whether a promise stands beside what trials certify and what one step has."""
    certified = [row.low for row in (*reading.measured.values(), *reading.surer.values())
                 if row.measure == CERTIFIED and row.low is not None]  # fmt: skip
    low = max(certified, default=0.0)
    if low > most:
        return False, (
            f"trials certify an epsilon of at least {low:.3g}, more than the {most:.3g} that is promised; "
            f"check that both are about the same mechanism and neighbours"
        )
    steps = [row.value for row in reading.bounds if row.covers == "one step" and row.value is not None]
    if max(steps, default=0.0) > most:
        return False, f"one step alone has an epsilon of {max(steps):.3g}, more than the {most:.3g} promised"
    return True, ""


def _uncovered(limit: Limit, reading: Reading, declared: Declared | None) -> str:
    """Why no epsilon covers what is asked."""
    other = sorted({row.covers for row in reading.bounds if row.measure == EPSILON} - {limit.releases})
    if declared and limit.releases == "shown":
        other.append("training (declared)")
    if other:
        return (
            f"no epsilon covers the releases asked about ({limit.releases}); the one that is known is for: "
            f"{', '.join(other)}"
        )
    return f"no accountant's epsilon is known for the releases asked about, and {NEVER}"
