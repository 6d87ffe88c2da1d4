"""What a plan asks of a guard, before it is run."""

from __future__ import annotations

from leakscope.core.errors import LeakscopeError
from leakscope.core.tables import construct
from leakscope.guards.hidden import Hidden, hidden_by
from leakscope.results.cell import Table


def list_secrets(game: Table) -> list[tuple[str, str | None]]:
    """Each secret and its column; none where the guard is not there to say it, such as one of a module that
    is not trusted here."""
    if game.get("secret"):
        return [(str(game["secret"]), game.get("column"))]
    try:
        hidden: tuple[Hidden, ...] = hidden_by(construct(game.get("guard") or {}, "guard"))
    except LeakscopeError:
        return []
    return [(one.secret, one.column) for one in hidden]
