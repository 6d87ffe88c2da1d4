"""What a function or a command gives back: results, in words, as a page, as numbers, as a folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leakscope.core import files
from leakscope.core.errors import printable
from leakscope.report import answer as answers
from leakscope.report.answer import Answer
from leakscope.report.figures import Figure, cut_out, frame_page, titles_of
from leakscope.report.nets import describe_nets
from leakscope.report.opening import advise, list_too_small
from leakscope.report.page import (
    ColumnTable,
    list_remarks,
    list_tables,
    list_verdicts,
    quote_plan,
    render,
    write,
)
from leakscope.results import store
from leakscope.results.cell import plan_of
from leakscope.results.chapter import Verdict
from leakscope.results.kind import chapters, numbers
from leakscope.results.number import Number, as_table
from leakscope.results.result import Result

if TYPE_CHECKING:
    import pandas as pd

LINES = 10  # of a report that is printed


@dataclass(frozen=True, eq=False)
class Report:
    """The results of an audit and the plan that gave them. ``print`` it for ten lines; in a notebook it is
    the page itself."""

    results: tuple[Result[Any], ...]
    plan: str
    folder: Path | None = None  # where the results are kept, if they are
    answer: Answer | None = None  # of a search

    @property
    def title(self) -> str:
        return plan_of(self.plan).name

    @property
    def verdicts(self) -> list[Verdict]:
        """What was found, the worst first."""
        return list_verdicts(chapters(self.results))

    @property
    def remarks(self) -> list[str]:
        """What is easily overlooked."""
        told = chapters(self.results)
        return [*list_too_small(self.results), *describe_nets(self.results), *list_remarks(told)]

    @property
    def tables(self) -> list[ColumnTable]:
        """What became of every column of tables of one's own."""
        return list_tables(self.results)

    @property
    def failed(self) -> int:
        return sum(bool(result.error) for result in self.results)

    @property
    def numbers(self) -> list[Number]:
        return [number for result in self.results for number in numbers(result)]

    @property
    def lines(self) -> list[str]:
        """The verdicts in words, the worst first, and what would help; the answer of a search comes before
        them."""
        told = chapters(self.results)
        verdicts = [f"{v.word}: {v.about}, {v.data}. {v.sentence}" for v in list_verdicts(told)]
        if self.answer:
            lines = [*self.answer.lines, *verdicts]
        else:
            lines = [*verdicts, *(f"What would help: {line}" for line in advise(one.brief for one in told))]
        return [printable(line) for line in lines]

    def __str__(self) -> str:
        lines, room = self.lines, LINES - 2
        more = [f"... and {len(lines) - room} more verdicts"] if len(lines) > room else []
        failed = f"; {self.failed} failed" if self.failed else ""
        return "\n".join([f"{self.title}: {len(self.results)} results{failed}", *lines[:room], *more])

    __repr__ = __str__

    def html(self) -> str:
        """One self-contained page."""
        plan = plan_of(self.plan)
        wanted = len(store.asked(plan))
        return render(
            self.results, plan=quote_plan(self.plan), title=plan.name, wanted=wanted, answer=self.answer
        )

    def _repr_html_(self) -> str:
        return frame_page(self.html(), self.title)

    @property
    def figures(self) -> dict[str, str]:
        """The pictures of the page: name -> what is drawn."""
        return titles_of(self.html())

    def figure(self, name: str) -> Figure:
        """One picture of the page as an SVG of its own, by its name in ``figures``."""
        return cut_out(self.html(), name)

    def frame(self) -> pd.DataFrame:
        """Every number as a row of a table."""
        import pandas as pd

        return pd.DataFrame([dict(as_table(number)) for number in self.numbers])

    def save(self, path: str | Path) -> Path:
        """Write the page, where the path ends in .html; else a results folder: plan, results, page and
        numbers."""
        target = Path(path)
        if target.suffix == ".html":
            files.write(target, self.html())
            return target
        store.claim(target, self.plan, plan_of(self.plan).digest)
        for result in self.results:
            store.save(target, result)
        if self.answer:
            answers.keep(target, self.answer)
        return write(target)


def read_report(folder: str | Path) -> Report:
    """The report of a results folder."""
    place = Path(folder)
    return Report(tuple(store.results(place)), store.plan(place), place, answers.load(place))


def results_of(source: Report | str | Path) -> Sequence[Result[Any]]:
    """The results of a report, or of a folder."""
    return source.results if isinstance(source, Report) else store.results(Path(source))
