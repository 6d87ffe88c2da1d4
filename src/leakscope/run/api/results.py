"""What is done with results: held against a risk appetite, compared, and sent out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leakscope.report.report import Report
    from leakscope.results.compare import Comparison
    from leakscope.results.gate import Appetite, GateVerdict


def gate(
    source: Report | str | Path | Sequence[Report | str | Path], appetite: str | Path | Appetite
) -> GateVerdict:
    """Check reports or results folders, one or several, against a risk appetite: ``.passed``, and why not."""
    from leakscope.report.report import Report
    from leakscope.results import gate as gates

    wanted = appetite if isinstance(appetite, gates.Appetite) else gates.read(Path(appetite))
    sources = [source] if isinstance(source, Report | str | Path) else list(source)
    runs = [
        gates.complete(one.results, one.plan) if isinstance(one, Report) else gates.read_results(Path(one))
        for one in sources
    ]
    return gates.judge(wanted, *runs)


def dossier(
    folders: Sequence[str | Path], output: str | Path, *, appetite: str | Path | None = None
) -> tuple[list[str], str]:
    """Write what may leave a trusted environment about some results folders: the names of the files, and what
    became of the PDF."""
    from leakscope.report.dossier import write_dossier

    wanted = Path(appetite) if appetite else None
    return write_dossier([Path(folder) for folder in folders], Path(output), appetite=wanted)


def compare(a: Report | str | Path, b: Report | str | Path) -> Comparison:
    """Compare two reports or results folders, cell by cell and measure by measure."""
    from leakscope.report.report import Report, results_of
    from leakscope.results import compare as comparisons

    if isinstance(a, Report) or isinstance(b, Report):
        return comparisons.compare(results_of(a), results_of(b))
    return comparisons.read(Path(a), Path(b))
