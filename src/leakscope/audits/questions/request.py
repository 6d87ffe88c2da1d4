"""The questions that are put to a recording beside who was trained on, as cells of a plan."""

from __future__ import annotations

from collections.abc import Sequence

from leakscope.audits.questions.kind import KIND
from leakscope.core.errors import ArgumentError
from leakscope.data import tabled
from leakscope.results.cell import Cell, Table
from leakscope.results.kind import World

AUDIT = "QuestionAudit"
REHEARSALS = 600  # clients, in which a share is learned to be read
APART = ("name", "attacks", "records")  # of the game about members, what is not the questions'


def ask_recording(
    cell: Table,
    *,
    ask: Sequence[str],
    person: str | None,
    canary: str | None,
    promised: float | None,
    delta: float,
    secret: str | None = None,
    rate: float | None = None,
    batch: int | None = None,
    trust: Sequence[str],
) -> list[Table]:
    """The cell of questions beside the ``cell`` about members; none where nothing is asked."""
    wanted = list(dict.fromkeys((*ask, *(["person"] if person else []), *(["property"] if secret else []))))
    if person is None and "person" in wanted:
        raise ArgumentError("--ask person needs --person, the column that says whose a record is.")
    if secret is None and "property" in wanted:
        raise ArgumentError("--ask property needs --secret, the column whose shares are asked about.")
    training = [name for name, value in (("--rate", rate), ("--batch", batch)) if value is not None]
    if training and "property" not in wanted:
        raise ArgumentError(
            f"{' and '.join(training)} with --recording needs --ask property: nothing else rehearses clients."
        )
    if promised is not None and canary is None:
        raise ArgumentError("--promised needs --canary: only canaries certify an epsilon to hold it against.")
    if not wanted and canary is None:
        return []
    given = {"person": person, "canary": canary, "promised": promised}
    given |= {"secret": secret, "rate": rate, "batch": batch}
    game = {key: value for key, value in cell["game"].items() if key not in APART}
    game |= {
        "name": AUDIT,
        "ask": wanted,
        **{key: value for key, value in given.items() if value is not None},
    }
    game |= {"delta": delta} if canary else {}
    sizes = {"rehearsals": REHEARSALS} if "property" in wanted else {}
    asked = (
        {key: value for key, value in cell.items() if key != "note"}
        | {"id": "questions", "game": game}
        | sizes
    )
    KIND.check(World(Cell.model_validate(asked), 0, tabled(asked["data"]), tuple(trust)))
    return [asked]
