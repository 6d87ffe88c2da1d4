"""What a page says of records that come back from one release."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from markupsafe import Markup

from leakscope.audits.records.brief import brief
from leakscope.audits.records.found import RecordsFound, SizeFound
from leakscope.audits.records.view import MISSED, RecordsOverSeeds, SizeOverSeeds
from leakscope.report.pages import fill, number, percent, plural, spoken
from leakscope.results.averages import average, average_free
from leakscope.results.cell import capitalise
from leakscope.results.chapter import SEVERE, SLIGHT, Chapter, Verdict
from leakscope.results.kind import Runs, by_cell
from leakscope.results.result import Result

NOT_SHOWN = "not found here, which does not show that it cannot be found"
NOT_READ = "That this attack does not read it does not show that nobody can."
RULES = {
    "severe": f"the lower limit of the share of records that come back exactly is {SEVERE} or more",
    "substantial": f"the lower limit is between {SLIGHT} and {SEVERE}",
    "slight": "some records come back, or more cells are right than by the commonest value of each column",
    "inconclusive": f"nothing came back, but the interval reaches {SLIGHT}, or records may be missed: "
    "the search stopped, or the space of the records is disturbed",
    "none": f"the search ended by itself, nothing came back, and the interval stays below {SLIGHT}",
    "failed": "there is no measurement, so nothing can be said",
}
ASSUMED = (
    '<p class="soft">Records: the server follows the protocol, sees one release, and knows the model, how '
    "many records are behind it, how clients train, the defense if there is one, and the table's "
    "columns and categories. It has other records of the same kind, and none of those that it looks for.</p>"
)
ALGEBRA = (
    "Records: one attack was played, on the first layer (RowSpace). What later layers tell beside it, and "
    "what an optimisation finds where the algebra ends, was not asked: --attack SpanMatching asks it."
)
FITTED = (
    "Records: where proofs end, records were fitted (SpanMatching). More searches, or another attack, may "
    "find more. A confident cell is no certificate: its confidence is how often such cells of public "
    "records were right."
)
LIMITS = (
    "Records: exact is every category, and every number within 0.05 standard deviations. A record that comes "
    "back nearly counts as lost; the cells that are right are told beside it.",
)


def tell(results: Sequence[Result[RecordsFound]]) -> Chapter:
    """What comes back, cell by cell."""
    cells = [_cell(tuple(runs), i) for i, runs in enumerate(by_cell(results), 1)]
    return Chapter(
        lead=f"{plural(len(cells), 'setting')} audited for records that come back from one release.",
        verdicts=tuple(verdict for cell in cells for verdict in _verdicts(cell)),
        body=fill("records/page.html", cells=cells, NOT_SHOWN=NOT_SHOWN, NOT_READ=NOT_READ, call=call),
        rules=("By the share of records that come back exactly", RULES),
        assumed=Markup(ASSUMED),
        limits=(FITTED if any(cell.rated for cell in cells) else ALGEBRA, *LIMITS),
        remarks=tuple(_remarks(cells)),
        settings=len(cells),
        brief=brief(cells),
    )


def _cell(results: tuple[Result[RecordsFound], ...], place: int) -> RecordsOverSeeds:
    sizes = (_size(same) for same in zip(*(found.sizes for found in Runs(results).founds), strict=True))
    return RecordsOverSeeds(results, tuple(sizes), f"records-{place}")


def _size(same: tuple[SizeFound, ...]) -> SizeOverSeeds:
    return SizeOverSeeds(
        same,
        exact=average([one.exact for one in same]),
        certified=average([one.certified for one in same]),
        false=average_free([one.false for one in same]),
        cells=average([one.cells for one in same]),
        mode=average([one.mode for one in same]),
    )


def _remarks(cells: Sequence[RecordsOverSeeds]) -> Iterator[str]:
    for cell in cells:
        for size in cell.sizes:
            if size.false.value > 0:
                yield (
                    f"Records: with {size.records} behind one {cell.release} (defense {cell.defense}), "
                    f"{number(size.false.value, 2)} certificates a release were false "
                    f"({number(size.false.low, 2)} to {number(size.false.high, 2)})."
                )


def _verdicts(cell: RecordsOverSeeds) -> Iterator[Verdict]:
    """One of every cell, or that nothing was measured."""
    data, notes = cell.cell.source, tuple(map(capitalise, cell.failures))
    if not cell.founds:
        sentence = "Nothing is known of records that come back: the measurement failed."
        yield Verdict("failed", "records themselves", data, sentence, notes)
        return
    if cell.unread:
        sentence = f"Which records can be read out of {cell.seen} was not measured: {cell.unread}"
        yield Verdict("inconclusive", f"records themselves from {cell.seen}", data, sentence, notes)
        return
    worst, worth = cell.worst, cell.worth
    by = "by client, with its records" if cell.first.recorded else "by records behind it"
    shares = f"Exact {by}: {'; '.join(map(_brief, cell.sizes))}."
    yield Verdict(
        severity=cell.severity,
        about=f"records themselves from {cell.seen}",
        data=data,
        sentence=" ".join(filter(None, (say(cell, worst), shares, call(worst)))),
        notes=(*notes, *cell.first.remarks),
        anchor=cell.anchor,
        order=worst.exact.low,
        attack=cell.attack,
        measure="recovered",
        average=worst.exact,
        guessing=worst.guessing,
        defense=cell.defense,
        utility=worth.main if worth else None,
        task=worth.word if worth else "accuracy",
    )


def say(cell: RecordsOverSeeds, size: SizeOverSeeds) -> str:
    """What came back of so many records, in one sentence or two."""
    if size.client:
        return _say_recorded(cell, size)
    shield = f"With {cell.defense}, from" if cell.cell.defense else "From"
    start = f"{shield} one {cell.release} of {plural(size.records, 'record')}"
    share, between, _ = spoken(size.exact, size.guessing)
    if size.exact.value == 0:
        return f"{start}, none came back exactly (95% interval {between}){_open(size)}"
    every = f"{share} of them" if size.exact.value < 1 else f"all {size.records}"
    proofs = spoken(size.certified, 0.0)[0]
    return (
        f"{start}, {every} were recovered exactly, every column (95% interval {between} of records); "
        f"{proofs} were certified without knowing them. Guessing with public records: "
        f"{percent(size.guessing, 1)}."
    )


def _say_recorded(cell: RecordsOverSeeds, size: SizeOverSeeds) -> str:
    """What came back of one client's records, which is a count and no estimate."""
    one = size.found[0]
    clients = one.clients or cell.first.clients
    what = "update" if clients == 1 else f"sum of {clients} clients' updates"
    start = f"From {plural(one.rounds, what, what.replace('sum', 'sums') if 'sum' in what else '')}"
    behind = f"{start} of {plural(size.records, 'record')} ({size.client})"
    exact, proven = (round(share.value * one.known) for share in (size.exact, size.certified))
    if not exact:
        return f"{behind}, none came back exactly{_open(size)}"
    rest = "" if exact == one.known else f" Of the others: {NOT_SHOWN}."
    return (
        f"{behind}, {exact:,} of {one.known:,} were recovered exactly, every column; {proven:,} were "
        f"certified without knowing them. Guessing with public records: {percent(size.guessing, 1)}.{rest}"
    )


def call(size: SizeOverSeeds) -> str:
    """How many cells the attack is confident of, which is less than a proof; nothing where it rates none."""
    if size.confident is None:
        return ""
    above, called, right = size.confident
    if called.value == 0:
        return f"Confident: no cell beyond those certified is called with more than {percent(above, 0)}."
    return (
        f"Confident, which is no proof: beyond the records that are certified, {percent(called.value, 0)} of "
        f"all cells are called with more than {percent(above, 0)} confidence, and "
        f"{percent(right.value, 1)} of these are right (95% interval {number(100 * right.low, 0)} to "
        f"{percent(right.high, 0)}, a release as one trial)."
    )


def _open(size: SizeOverSeeds) -> str:
    if size.whole:
        cells, mode = (percent(share.value, 0) for share in (size.cells, size.mode))
        return f"; {cells} of cells are right, by the commonest value {mode}."
    return f": {NOT_SHOWN}, since {', and '.join(size.reasons) or MISSED}."


def _brief(size: SizeOverSeeds) -> str:
    between = f"{number(100 * size.exact.low, 0)} to {percent(size.exact.high, 0)}"
    missed = "" if size.whole or size.exact.value == 1 else f", {MISSED}"
    if size.client:
        return f"{size.client} ({size.records:,}): {percent(size.exact.value, 0)}{missed}"
    return f"{size.records}: {percent(size.exact.value, 0)} ({between}{missed})"
