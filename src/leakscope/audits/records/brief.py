"""What audits of records say on the first page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from leakscope.audits.records.view import RecordsOverSeeds
from leakscope.report.pages import interval, listed, percent, plural, say_change
from leakscope.results.chapter import LEAKS, Brief, Scene, explain


def brief(cells: Sequence[RecordsOverSeeds]) -> Brief:
    """The first page's part."""
    there = [cell for cell in cells if cell.founds]
    return Brief(
        asked=tuple(dict.fromkeys(f"Which records can be read out of {cell.seen}?" for cell in there)),
        meaning=tuple(
            dict.fromkeys(
                explain(
                    cell.severity,
                    "the records themselves",
                    "Whoever sees the release has the records behind it, with every column, and can prove "
                    "it. To share releases is then to share the table.",
                )
                for cell in there
            )
        ),
        helps=tuple(_help(there)),
        assumed=(
            "The server knows the model, how many records are behind a release, and how the table is "
            "written: its columns and categories. It has none of the records.",
        ),
        untested=tuple(_omit(there)),
        scene=_scene(there[0]) if there else None,
    )


def _help(cells: Sequence[RecordsOverSeeds]) -> Iterator[str]:
    """The cheapest defense that was measured to hold, by what the model is worth with it."""
    tried = [cell for cell in cells if cell.cell.defense]
    if not tried:
        return
    holding = [cell for cell in tried if cell.holds]
    names = listed(cell.defense for cell in tried if not cell.holds)
    if not holding:
        yield f"No defense that was tried is shown to keep records from coming back: {names}."
        return
    best = max(holding, key=lambda cell: cell.worth.main.value if cell.worth and cell.worth.main else 0.0)
    free = next((cell for cell in cells if not cell.cell.defense and cell.seen == best.seen), None)
    before = free.worth.main if free and free.worth else None
    after = best.worth.main if best.worth else None
    cost = " What it costs was not measured."
    if best.worth and before and after:
        cost = f" Its {best.worth.word}: {interval(after, percent)}; {say_change(before, after)}."
    yield (
        f"With {best.defense}, this attack, which allows for it, gets at most "
        f"{percent(best.most.exact.high)} of records back (upper limit, for every number of "
        f"records that was tried).{cost}"
    )
    others = listed(cell.defense for cell in holding if cell is not best)
    if others and best.worth:
        least = f"Of {len(holding)} that held it costs least, by the mean of its {best.worth.word}."
        yield f"{least} The others: {others}."
    if names:
        yield f"Not enough, or not known: {names}."


def _omit(cells: Sequence[RecordsOverSeeds]) -> Iterator[str]:
    if not any(cell.cell.defense for cell in cells):
        yield "No defense was tried against records that come back."
    if any(not size.whole and size.severity not in LEAKS for cell in cells for size in cell.sizes):
        yield (
            "Where the search stopped, or something disturbs the space of the records, nothing is known of "
            "records that were not found."
        )
    for cell in cells:
        if cell.unread:
            yield f"Which records can be read out of {cell.seen}: {cell.unread}"
    if any(not cell.first.recorded and not cell.unread for cell in cells):
        yield "What several releases of the same records tell together was not asked."


def _scene(cell: RecordsOverSeeds) -> Scene:
    clients = cell.first.clients
    return Scene(
        holder="A client holds the records" if clients == 1 else f"{clients} clients hold the records",
        records=("They are not sent.",),
        crosses=(f"Sent: {cell.seen}", f"Defense: {cell.defense}"),
        listener="A curious server, or whoever listens",
        knows=(
            "the model",
            "the columns and their categories",
            f"{plural(cell.first.public, 'other record')}",
        ),
        wants="the records themselves",
    )
