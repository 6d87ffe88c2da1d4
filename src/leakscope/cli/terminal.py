"""What a command prints: tables, and what was found in words."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from leakscope.core.errors import LeakscopeError, printable

if TYPE_CHECKING:
    from leakscope.report.report import Report


def list_catalogue() -> None:
    """Everything that plans can name."""
    from leakscope.core.catalogue import DATA, KINDS, roles

    for title, role in [
        ("Games", "game"), ("Attacks", "attack"), ("Heads", "head"), ("Reductions", "reduction"),
        ("Defenses", "defense"), ("Guards", "guard"), ("Encoders", "encoder"), ("Models", "model"),
        ("Measures", "measure"),
    ]:  # fmt: skip
        _list(title, {name: entry.line for name, entry in roles(role).items()})
    audits = {name: entry.line for name, entry in roles("audit").items()}
    for kind, entry in KINDS.items():
        audits |= {game: f"An audit of the kind {kind}." for game in entry.games if game not in audits}
    _list("Audits", audits)
    _list("Data", DATA)


def _list(title: str, lines: dict[str, str]) -> None:
    typer.echo(f"{title}")
    width = max(map(len, lines))
    for name, line in lines.items():
        typer.echo(f"  {name:<{width}}  {line}")
    typer.echo()


def print_table(header: list[str], rows: list[list[str]]) -> None:
    """Names as they are: what does not print is an escape, and brackets are not read as a style."""
    from rich.console import Console
    from rich.table import Column, Table
    from rich.text import Text

    table = Table(*(Column(Text(printable(name))) for name in header), box=None, pad_edge=False)
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    console = Console() if Console().is_terminal else Console(width=160)
    console.print(table, highlight=False)


def print_lines(lines: Iterable[str], *, err: bool = False) -> None:
    for line in lines:
        typer.echo(printable(line), err=err)


def print_json(document: Any) -> None:
    typer.echo(json.dumps(document, indent=1, allow_nan=False))


def tell(report: Report) -> None:
    """What was found, the worst first, where the page is, and what is easily overlooked; cells that failed
    are an error."""
    for table in report.tables:
        print_table([f"Column of {table.name}", "became", "inputs", "why"], [list(row) for row in table.rows])
    print_lines(report.lines)
    if report.folder:
        print_lines([f"Report: {report.folder / 'report.html'}"])
    print_lines(f"Note: {remark}" for remark in report.remarks)
    if report.failed:
        raise LeakscopeError(f"{report.failed} of {len(report.results)} cells failed; the report says why.")


def copy_scores(report: Report, target: Path | None) -> None:
    """Put the scores of a recording's candidates where they are wanted."""
    from leakscope.audits.membership.recorded import SCORES
    from leakscope.audits.membership.request import writable
    from leakscope.core import files
    from leakscope.results import store

    if target is not None and report.folder is not None and not report.failed:
        writable(target, 1)
        files.write(target, store.file(report.folder, report.results[0].key, SCORES), private=True)


def copy_encoders(report: Report, names: list[str]) -> None:
    """Put the first seed's encoder of each cell beside the report, under its name."""
    from leakscope.core import files
    from leakscope.guards.encoder import TABLE, TENSORS
    from leakscope.results import store

    firsts = {result.cell.id: result for result in reversed(report.results)}
    if report.folder is None:
        return
    for result, name in zip(reversed(firsts.values()), names, strict=True):
        if result.error:
            continue
        for part in (TENSORS, TABLE):
            content = store.file(report.folder, result.key, part)
            files.write(files.inside(report.folder, name, part), content)
        print_lines([f"Encoder: {report.folder / name}"])
