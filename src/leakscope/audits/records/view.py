"""Records that come back from one release, over seeds: how it is read."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup

from leakscope.attacks.row_space import RowSpace
from leakscope.audits.records.found import RecordsFound, SizeFound
from leakscope.report.pages import interval, percent, plural
from leakscope.report.plot.frame import Axis, frame, linear
from leakscope.report.plot.panel import Curve, Mark, Panel, draw
from leakscope.results.averages import Average, average
from leakscope.results.cell import words
from leakscope.results.chapter import SEVERE, SEVERITIES, SLIGHT
from leakscope.results.kind import Runs
from leakscope.results.scores import Worth, average_worth

RELEASES = {False: "gradient", True: "upload"}
MISSED = "some may be missed"


@dataclass(frozen=True)
class SizeOverSeeds:
    """What came back of so many records, over seeds."""

    found: tuple[SizeFound, ...]
    exact: Average
    certified: Average
    false: Average
    cells: Average
    mode: Average

    @property
    def records(self) -> int:
        return self.found[0].records

    @property
    def client(self) -> str:
        """Whose records these are, where they are those of a recording."""
        return self.found[0].client

    @property
    def name(self) -> str:
        return f"{self.client}, {plural(self.records, 'record')}" if self.client else f"{self.records:,}"

    @property
    def guessing(self) -> float:
        return max(one.guessing for one in self.found)

    @property
    def ended(self) -> bool:
        """Whether the search ended by itself, or all that was there came back."""
        return self.exact.value == 1 or all(one.search.whole for one in self.found)

    @property
    def whole(self) -> bool:
        """Whether what did not come back is shown not to: never by one recording."""
        return not self.client and all(one.search.whole for one in self.found)

    @property
    def severity(self) -> str:
        if self.exact.low >= SLIGHT and self.exact.low > self.guessing:
            return "severe" if self.exact.low >= SEVERE else "substantial"
        if self.exact.low > self.guessing or self.cells.low > self.mode.high:
            return "slight"
        checked = all(one.selfcheck.passed for one in self.found)
        return "none" if self.whole and checked and self.exact.high < SLIGHT else "inconclusive"

    @property
    def confident(self) -> tuple[float, Average, Average] | None:
        """Above which confidence cells are called, how many of all are, and how many of these are right."""
        rated = [one.confident for one in self.found if one.confident is not None]
        if len(rated) < len(self.found):
            return None
        return rated[0].above, average([one.called for one in rated]), average([one.right for one in rated])

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the search may have missed records, with the number of releases."""
        searches = [one.search for one in self.found]
        batches = sum(search.batches for search in searches)
        counts = (
            ("there were too many branches", sum(search.stopped for search in searches)),
            ("the layer's rank is below the number of records", sum(search.short for search in searches)),
            ("the records' space is disturbed, not drowned", sum(search.disturbed for search in searches)),
            ("the rest was fitted, which ends in no proof", sum(search.fitted for search in searches)),
            ("categories left dimensions free", sum(search.left for search in searches)),
        )
        return tuple(f"{why} in {count:,} of {batches:,} releases" for why, count in counts if count)

    @property
    def columns(self) -> list[tuple[str, Average, Average]]:
        """The columns, the one that comes back most beyond its mode first."""
        rows = []
        for same in zip(*(one.columns for one in self.found), strict=True):
            right, mode = average([c.right for c in same]), average([c.mode for c in same])
            rows.append((same[0].name, right, mode))
        return sorted(rows, key=lambda row: row[2].value - row[1].value)


@dataclass(frozen=True)
class RecordsOverSeeds(Runs[RecordsFound]):
    """One cell over seeds."""

    sizes: tuple[SizeOverSeeds, ...] = ()
    anchor: str = ""

    @property
    def first(self) -> RecordsFound:
        return self.founds[0]

    @property
    def defense(self) -> str:
        return words(self.cell.defense) if self.cell.defense else "none"

    @property
    def release(self) -> str:
        return RELEASES[self.first.uploads]

    @property
    def seen(self) -> str:
        """What the server sees, in words."""
        clients = self.first.clients
        if self.first.recorded:
            most = "up to " if len({size.clients for size in self.first.sizes}) > 1 else ""
            return f"recorded sums of {most}{clients} clients' uploads" if clients > 1 else "recorded uploads"
        sums = f" of {clients} clients' sum" if clients > 1 else ""
        state = "as it was given" if self.cell.weights else "untrained"
        state = f"after {plural(self.first.epochs, 'epoch')} of training" if self.first.epochs else state
        return f"one {self.release}{sums}, model {state}"

    @property
    def attack(self) -> str:
        """Its name."""
        return str(dict(self.cell.game.get("reconstruct", ())).get("name", RowSpace.__name__))

    @property
    def fitted(self) -> bool:
        """Whether records that are not proven were fitted."""
        return any(one.search.fitted for size in self.sizes for one in size.found)

    @property
    def rated(self) -> bool:
        """Whether the attack goes on where proofs end, and rates cells."""
        return any(size.confident is not None for size in self.sizes)

    @property
    def unread(self) -> str:
        """Why nothing was read, if nothing was."""
        return next((found.unread for found in self.founds if found.unread), "")

    @property
    def worst(self) -> SizeOverSeeds:
        """That of the gravest word; of several, the one with most records."""
        order = list(SEVERITIES)
        return min(self.sizes, key=lambda size: (order.index(size.severity), -size.records))

    @property
    def severity(self) -> str:
        return "inconclusive" if self.unread else self.worst.severity

    @property
    def worth(self) -> Worth[Average] | None:
        known = [found.utility for found in self.founds if found.utility is not None]
        return average_worth(known) if known and len(known) == len(self.founds) else None

    @property
    def holds(self) -> bool:
        """Whether a defense was measured to hold for every number of records."""
        return bool(self.cell.defense) and bool(self.sizes) and self.severity == "none"

    @property
    def most(self) -> SizeOverSeeds:
        """The number of records of which the largest share may come back."""
        return max(self.sizes, key=lambda size: size.exact.high)

    @property
    def picture(self) -> Markup:
        """The share of records that come back, by how many are behind a release."""
        sizes, marks, curves = [size.records for size in self.sizes], [], []
        across = Axis(
            0.8 * sizes[0], 1.25 * sizes[-1], tuple((n, str(n)) for n in sizes), "records behind it", log=True
        )
        for style, name in (("second", "certified"), ("first", "exact")):
            shares = [getattr(size, name) for size in self.sizes]
            curves.append(
                Curve([(n, share.value) for n, share in zip(sizes, shares, strict=True)], f"series {style}")
            )
            marks += [
                Mark(
                    n,
                    share.value,
                    f"{n} records, {name}: {interval(share, percent)}",
                    filled=style == "first",
                    up=(share.low, share.high),
                    shift=3 if style == "first" else -3,
                )
                for n, share in zip(sizes, shares, strict=True)
            ]
        key = ("first", "exact"), ("hollow", "exact and certified")
        inside = frame(across, linear((0, 1), "records that come back", percent=True, grid=True), key=key)
        desc = "Records that come back exactly, and those that are certified too. Data below."
        return Markup(draw([Panel(inside, marks, curves)], f"Records from {self.seen}", desc, "records"))
