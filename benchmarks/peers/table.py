"""One table for all parts: what was measured on both sides, and which packages a part needs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass, fields
from importlib.util import find_spec
from pathlib import Path

REQUIREMENTS = Path(__file__).with_name("requirements.txt")


@dataclass(frozen=True)
class Row:
    """One line of the table; ``compared`` is peer over ours for times, ours less peer for scores."""

    task: str
    ours: str
    peer: str
    compared: str
    equal: str


@dataclass(frozen=True)
class Peer:
    """A package to compare with: the name it is imported by, and the names pip knows what it needs by."""

    module: str
    packages: tuple[str, ...]

    @property
    def installed(self) -> bool:
        return find_spec(self.module) is not None

    @property
    def missing(self) -> str:
        """One line: what is missing, and the command that brings it in the versions tried together."""
        wanted = pins(REQUIREMENTS.read_text(encoding="utf-8").splitlines())
        line = " ".join(f"{name}=={wanted[name]}" for name in self.packages)
        return f"skipped: {self.module} is not installed; pip install -c constraints.txt {line}"


def pins(lines: Iterable[str]) -> dict[str, str]:
    """Package -> version, of the lines of a requirements file."""
    stripped = (line.partition("#")[0].strip() for line in lines)
    return {name: version for name, _, version in (line.partition("==") for line in stripped if line)}


def header() -> str:
    names = [field.name for field in fields(Row)]
    return "\n".join([_line(names), _line(["---"] * len(names))])


def printed(row: Row) -> str:
    return _line([cell.replace("|", "\\|") for cell in astuple(row)])


def turns(sides: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds of process time, every side once a round so that all meet the same load; a first time,
    in which caches fill, is not counted."""
    for run in sides.values():
        run()
    taken: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, run in sides.items():
            taken[name].append(seconds(run))
    return taken


def seconds(run: Callable[[], object]) -> float:
    """Process time, which other work on the machine disturbs least."""
    start = time.process_time()
    run()
    return time.process_time() - start


def timed_rows(
    task: str, taken: Mapping[str, list[float]], equal: str, asked: float | None = None
) -> Iterator[Row]:
    """Every peer against "ours": median times, and the median over rounds of the ratio of the two, with the
    ratio that is asked of us."""
    own, aim = taken["ours"], "" if asked is None else f" (asked {asked:g})"
    for name, theirs in taken.items():
        if name != "ours":
            ratio = statistics.median(b / a for a, b in zip(own, theirs, strict=True))
            yield Row(task, duration(own), f"{name}: {duration(theirs)}", f"{ratio:.2f}x{aim}", equal)


def duration(taken: Iterable[float]) -> str:
    """The median, in the unit it is read in."""
    middle = statistics.median(taken)
    return f"{middle:.2f} s" if middle >= 1 else f"{1000 * middle:.3g} ms"


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
