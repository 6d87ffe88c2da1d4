"""A dossier: all that may leave a trusted environment about some runs, in one folder. It holds pages,
numbers, the gate, a statement for machines, one for a model card, and a manifest; no record, and no score of
a person."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import quote

from leakscope.core import files
from leakscope.core.errors import StoreError
from leakscope.report import overview, paper, sheet
from leakscope.report.opening import Opening, open_page, say_unasked
from leakscope.report.page import list_verdicts, quote_plan, render
from leakscope.report.pages import fill
from leakscope.report.report import Report, read_report
from leakscope.results import gate, number, store
from leakscope.results.cell import plan_of
from leakscope.results.chapter import Chapter, Verdict
from leakscope.results.kind import chapters
from leakscope.results.number import Number
from leakscope.results.result import revision

FORMAT = 1  # of the statement
MANIFEST, STATEMENT, PDF = "manifest.json", "statement.json", "dossier.pdf"
SHOWN = "shown"  # the setting of a cell by which private records are in its results
READINGS = (
    {
        "of": "SATRE, output management, statements 3.3.07 to 3.3.09",
        "by": "our reading; the text of the specification decides",
        "asks": {
            "a statistical basis for who checks outputs": ["measured", "accounted", "gate"],
            "checks that are run by a program, and decided by a person": ["gate", "appetite"],
            "no more leaves than is needed": ["manifest", "records", "scores"],
        },
    },
    {
        "of": "ISO/IEC 27559, framework for de-identification",
        "by": "our reading; the text of the standard decides",
        "asks": {
            "context": ["threat model"],
            "data": ["data", "plan"],
            "identifiability": ["measured", "accounted", "found"],
            "mitigation": ["defense", "gate"],
            "governance": ["appetite", "declared", "manifest", "made"],
        },
    },
)


@dataclass(frozen=True, eq=False)
class Exhibit:
    """One results folder, as a dossier has it."""

    name: str
    report: Report
    verdict: gate.GateVerdict | None

    @cached_property
    def chapters(self) -> list[Chapter]:
        """Told once: figures take time."""
        return chapters(self.report.results)

    @property
    def verdicts(self) -> list[Verdict]:
        return list_verdicts(self.chapters)

    @property
    def opening(self) -> Opening:
        """With every sentence: a dossier has no details below."""
        results = self.report.results
        wanted = len(store.asked(plan_of(self.report.plan)))
        missing = max(0, wanted - len(results))
        verdicts, answer = self.verdicts, self.report.answer
        return open_page(self.chapters, verdicts, results, answer, missing, most=sys.maxsize)


def write_dossier(
    folders: Sequence[Path], output: Path, *, appetite: Path | None = None
) -> tuple[list[str], str]:
    """Write the dossier of some results folders: the names of its files, and a sentence about the PDF.
    Nothing is written where a run shows private records, or ``output`` holds something else."""
    wanted = gate.read(appetite) if appetite else None
    runs = [_open(folder, wanted) for folder in folders]
    _refuse(folders, runs, output)
    content: dict[str, str | bytes] = {}
    for run in runs:
        content |= {f"{run.name}/{name}": text for name, text in _pages(run)}
    verdict = gate.judge(wanted, *(_complete(run.report) for run in runs)) if wanted else None
    if verdict and appetite:
        content |= {
            "appetite.toml": files.read(appetite),
            "gate.json": _dump(gate.as_json(verdict)),
            "gate.svg": gate.as_badge(verdict),
        }
    statement = state(runs, wanted, verdict)
    content["index.html"] = render_front(runs, statement, verdict)
    content[STATEMENT] = _dump(statement)
    content["model-card.md"] = write_card(runs, verdict)
    printed, told = paper.print_page(str(content["index.html"]))
    content |= {PDF: printed} if printed else {}
    hashes = {name: hashlib.sha256(_bytes(text)).hexdigest() for name, text in sorted(content.items())}
    content[MANIFEST] = _dump({"format": FORMAT, "sha256": hashes})
    for name in _listed(output) - content.keys():  # an earlier dossier is replaced as a whole
        (output / name).unlink()
    for name, text in content.items():
        files.write(output / name, text)
    return sorted(content), f"PDF: {PDF}, {told}" if printed else f"No PDF: {told}"


def _open(folder: Path, wanted: gate.Appetite | None) -> Exhibit:
    report = read_report(folder)
    verdict = gate.judge(wanted, _complete(report), part=True) if wanted else None
    return Exhibit(folder.resolve().name, report, verdict if verdict and verdict.limits else None)


def _complete(report: Report) -> list[Any]:
    return gate.complete(report.results, report.plan)


def _refuse(folders: Sequence[Path], runs: Sequence[Exhibit], output: Path) -> None:
    """All that speaks against it, at once."""
    reasons = []
    names = [run.name for run in runs]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        reasons.append(f"two folders are called {', '.join(twice)}; rename one")
    for folder, run in zip(folders, runs, strict=True):
        if any(result.cell.game.get(SHOWN, 0) not in (0, False, None) for result in run.report.results):
            reasons.append(
                f"{str(folder)!r} shows reconstructions, which are private; audit without "
                f"--show-reconstructions"
            )
    there = {p.relative_to(output).as_posix() for p in output.rglob("*") if not p.is_dir()}
    if output.is_file() or there - _listed(output):
        reasons.append(f"--output must be new, or a dossier alone, got {str(output)!r}; choose another")
    if reasons:
        raise StoreError(f"a dossier cannot be written: {'; '.join(reasons)}.")


def _listed(output: Path) -> set[str]:
    """The files of the dossier that is there already, if one is."""
    try:
        table = json.loads(files.read(output / MANIFEST))
        names = {MANIFEST, *table["sha256"]}
        return {name for name in names if files.inside(output, *name.split("/")).exists()}
    except (OSError, ValueError, LookupError, TypeError):
        return set()


def _pages(run: Exhibit) -> Iterator[tuple[str, str]]:
    report, plan = run.report, plan_of(run.report.plan)
    wanted = len(store.asked(plan))
    yield "report.html", render(
        report.results, plan=quote_plan(report.plan), title=plan.name, verdict=run.verdict, wanted=wanted,
        answer=report.answer, told=run.chapters,
    )  # fmt: skip
    yield "results.csv", number.as_csv(report.numbers)
    yield "results.json", number.as_json(report.numbers, title=plan.name)


def render_front(runs: Sequence[Exhibit], statement: dict[str, Any], verdict: gate.GateVerdict | None) -> str:
    """The front sheet: two printed pages for ten runs. What several runs say stands there once."""
    numbered = len(runs) > 1
    lines = [_line(run, i if numbered else 0) for i, run in enumerate(runs, start=1)]
    first = fill("/verdict.html", statement=statement, verdict=verdict, gates=gate.words)
    openings = [run.opening for run in runs]
    more = fill(
        "/dossier.html",
        statement=statement,
        numbered=numbered,
        found=sheet.sort_out([run.verdicts for run in runs]),
        assumed=sheet.name_all(sheet.gather([opening.assumed for opening in openings]), len(runs)),
        untested=_gather_untested(openings),
    )
    return overview.render(lines, [], title="Privacy dossier", first=first, more=more)


def _gather_untested(openings: Sequence[Opening]) -> list[tuple[str, list[str]]]:
    """Questions one by one: runs of two kinds did not ask most of the same."""
    others = [[s for s in opening.untested if s not in say_unasked(opening.unasked)] for opening in openings]
    gathered = sheet.gather(others)
    for runs, questions in sheet.gather([opening.unasked for opening in openings]).items():
        gathered[runs] = [*gathered.get(runs, ()), *say_unasked(questions)]
    return sheet.name_all(gathered, len(openings))


def _line(run: Exhibit, number: int) -> overview.Run:
    link, report = f"{quote(run.name)}/report.html", run.report
    line = overview.line_up(run.name, link, report.plan, report.results, run.chapters)
    return replace(line, gate=run.verdict.combined if run.verdict else "", number=number)


def state(
    runs: Sequence[Exhibit], wanted: gate.Appetite | None, verdict: gate.GateVerdict | None
) -> dict[str, Any]:
    """What is said, and on what it rests: measured by an attack, accounted for by a bound that holds for
    every adversary, or declared by the operator."""
    declared = wanted.declared if wanted else None
    return {
        "format": FORMAT,
        "made": {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "leakscope": version("leakscope"),
            "code": revision(),
        },
        "verdict": verdict.combined if verdict else None,
        "declared": declared.model_dump() if declared else None,
        "runs": [_state_run(run) for run in runs],
        "readings": READINGS,
    }


def _state_run(run: Exhibit) -> dict[str, Any]:
    opening, results = run.opening, run.report.results
    known = {one.made.records.digest: one.made.records for one in results if one.made.records}.values()
    made = {tuple(sorted(one.made.versions.items())) for one in results}
    numbers = run.report.numbers
    return {
        "name": run.name,
        "title": run.report.title,
        "plan": {"sha256": hashlib.sha256(run.report.plan.encode()).hexdigest()},
        "code": sorted({one.made.code for one in results}),
        "versions": [dict(pairs) for pairs in sorted(made)],
        "data": [{"name": data.name, "records": data.records, "digest": data.digest} for data in known],
        "threat model": {"asked": opening.asked, "assumed": opening.assumed, "not tested": opening.untested},
        "found": [
            {"about": v.about, "data": v.data, "defense": v.defense, "reading": v.word, "told": v.sentence}
            for v in run.verdicts
        ],
        "measured": [_said(one) for one in numbers if one.about == "leakage"],
        "accounted": [_said(one) for one in numbers if one.about == "bound"],
        "verdict": run.verdict.combined if run.verdict else None,
    }  # fmt: skip


def _said(one: Number) -> dict[str, Any]:
    return {key: value for key, value in number.as_table(one).items() if value not in (None, "")}


def write_card(runs: Sequence[Exhibit], verdict: gate.GateVerdict | None) -> str:
    """A section of a model card."""
    lines = ["## Privacy: what was measured", ""]
    if verdict:
        lines += [f"Risk appetite: **{verdict.combined}**. {gate.words.summarise(verdict)}", ""]
    for run in runs:
        lines += [f"### {_plain(run.report.title)}", ""]
        lines += [
            f"- {_plain(f'{one.word}: {one.about}, {one.data}. {one.sentence}')}" for one in run.verdicts
        ]
        opening = run.opening
        for head, sentences in (("Assumed", opening.assumed), ("Not tested", opening.untested)):
            lines += ["", f"{head}:", "", *(f"- {_plain(sentence)}" for sentence in sentences)]
        lines.append("")
    return "\n".join([*lines, f"Measured with Leakscope {version('leakscope')}, code {revision()}.", ""])


def _plain(text: str) -> str:
    """Words of the data as Markdown shows them, and does not read them."""
    return "".join(f"\\{letter}" if letter in "\\`*_[]<>#|" else letter for letter in " ".join(text.split()))


def _dump(table: dict[str, Any]) -> str:
    return json.dumps(table, indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def _bytes(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text
