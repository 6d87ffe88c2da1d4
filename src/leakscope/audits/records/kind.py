"""The kind of audit that asks which records come back from one release."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from leakscope.attacks.row_space import RowSpace
from leakscope.audits.records import page
from leakscope.audits.records.audit import RecordsAudit
from leakscope.audits.records.found import RecordsFound, SizeFound
from leakscope.audits.records.recorded import RecordedRecords
from leakscope.audits.records.view import MISSED, RELEASES
from leakscope.core.tables import construct
from leakscope.results.cell import Cell, list_shields, words
from leakscope.results.kind import Asked, Measured, TableEntry, World, enter_worth
from leakscope.results.number import Number, of_estimate, of_value, of_worth

SECRET = "reconstruction"  # what limits of a gate call the records themselves
ATTACK = {"name": RowSpace.__name__}


@dataclass(frozen=True)
class RecordsKind:
    """Which records come back from one gradient or upload."""

    found = RecordsFound
    tell = staticmethod(page.tell)

    def ask(self, cell: Cell) -> Asked:
        """The adversary knows the defense that is in place."""
        shields = tuple(list_shields(cell.defense))
        return Asked(
            secrets=(SECRET,),
            questions=(SECRET,),
            shields=shields,
            protected=bool(shields),
            adaptive=True if shields else None,
            attack=words(cell.game.get("reconstruct", ATTACK)),
        )

    def check(self, world: World) -> None:
        _audit(world).check(world)

    def run(self, world: World) -> Measured[RecordsFound]:
        return _audit(world).measure(world)

    def numbers(self, cell: Cell, found: RecordsFound, about: Number) -> Iterator[Number]:
        """Of every number of records what came back. Where the search did not end by itself, that is a lower
        bound: it can fail a limit and passes none. So is the share of right cells always: what was not found
        is filled in without an attack. And so is what came back of one recording: another may give more.
        Where nothing was read, why not, so that no limit passes."""
        if found.unread:
            yield replace(about, error=found.unread)
        for size in found.sizes:
            one = replace(about, part=_part(size), secret=SECRET, question=SECRET)
            for measure, estimate, guessing in (
                ("recovered", size.exact, size.guessing),
                ("certified", size.certified, 0.0),
                ("right_cells", size.cells, size.mode.value),
            ):
                told = of_estimate(one, measure, estimate, guessing)
                whole = size.search.whole and measure != "right_cells" and not found.recorded
                yield told if whole else replace(told, bound="lower")
            yield from _cells(one, size)
            beside = replace(one, about="diagnostic")
            yield of_estimate(beside, "false_certificates", size.false, 0.0)
            if size.confident:
                yield of_estimate(beside, "called_cells", size.confident.called, 0.0)
                yield of_estimate(beside, "right_of_called", size.confident.right, 0.0)
            yield from of_value(beside, "rank", size.search.rank)
        yield from of_worth(about, found.utility)

    def entries(self, found: RecordsFound) -> dict[str, TableEntry]:
        entries: dict[str, TableEntry] = {}
        for size in found.sizes:
            entries[f"{_part(size)} recovered"] = TableEntry(size.exact, size.guessing)
            entries[f"{_part(size)} certified"] = TableEntry(size.certified)
            entries[f"{_part(size)} right cells"] = TableEntry(size.cells, size.mode.value)
        return entries | (enter_worth(found.utility) if found.utility else {})

    def headline(self, cell: Cell, found: RecordsFound) -> str:
        told = [
            f"{_name(size)}: {size.exact.value:.0%} exact, {size.certified.value:.0%} certified"
            + ("" if size.search.whole or size.exact.value == 1 else f" ({MISSED})")
            for size in found.sizes
        ]
        if found.unread:
            return f"records were not read: {found.unread}"
        if found.recorded:
            return f"records back from recorded uploads: {'; '.join(told)}"
        return (
            f"records back from one {RELEASES[found.uploads]}, by how many are behind it: {'; '.join(told)}"
        )


def _cells(one: Number, size: SizeFound) -> Iterator[Number]:
    """Of every column the share of right cells, and of all and each what its commonest value gives."""
    told = replace(one, about="baseline", attack="")
    yield of_estimate(told, "right_cells", size.mode)
    for column in size.columns:
        part = f"{one.part}, {column.name}"
        row = of_estimate(replace(one, part=part), "right_cells", column.right, column.mode.value)
        yield replace(row, bound="lower")
        yield of_estimate(replace(told, part=part), "right_cells", column.mode)


def _name(size: SizeFound) -> str:
    return f"{size.client} ({size.records})" if size.client else str(size.records)


def _part(size: SizeFound) -> str:
    return f"{size.client}, {size.records} records" if size.client else f"{size.records} records"


def _audit(world: World) -> RecordsAudit | RecordedRecords:
    audit: RecordsAudit | RecordedRecords = construct(world.cell.game, "audit", trusted=world.trusted)
    return audit


KIND = RecordsKind()
