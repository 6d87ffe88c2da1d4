"""Audits of a mechanism, as all others see them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from leakscope.audits.mechanism import audit, page
from leakscope.audits.mechanism.found import Certified
from leakscope.results.cell import Cell
from leakscope.results.chapter import Chapter
from leakscope.results.kind import Asked, Measured, TableEntry, World
from leakscope.results.number import Number, of_estimate, of_value
from leakscope.results.result import Result


@dataclass(frozen=True)
class MechanismKind:
    found = Certified

    def ask(self, cell: Cell) -> Asked:
        secret = str(cell.game.get("attribute", "*"))
        shields = (cell.defense,) if cell.defense else ()
        return Asked((secret,), ("attribute",), shields, bool(shields), adaptive=True)

    def check(self, world: World) -> None:
        audit.check(world)

    def run(self, world: World) -> Measured[Certified]:
        return audit.run(world)

    def numbers(self, cell: Cell, found: Certified, about: Number) -> Iterator[Number]:
        """Certified: at least ``low``. An attack never shows how large an epsilon is at most: no ``high``."""
        about = replace(about, secret=found.attribute, attack=found.statistic, delta=found.delta)
        for name, estimate in (("epsilon_any", found.certified), ("epsilon_gaussian", found.gaussian)):
            number = of_estimate(about, name, estimate, 0.0)
            yield replace(number, high=None, bound="lower")
        if found.sure:
            surer = of_estimate(about, "epsilon_any", found.sure, 0.0)
            yield replace(surer, high=None, bound="lower", part="")
        bound = replace(about, about="bound", attack="", bound="upper", covers="one step")
        yield from of_value(bound, "epsilon_exact", found.exact)
        yield from of_value(bound, "epsilon_exact_added", found.exact_added)
        aside = replace(about, about="diagnostic")
        yield from of_value(aside, "epsilon_classical", found.classical)
        for name in ("point", "saturation", "distance"):
            yield from of_value(aside, name, getattr(found, name))

    def entries(self, found: Certified) -> dict[str, TableEntry]:
        """What is certified: the lower bound is the value."""
        pairs = (("epsilon_any", found.certified), ("epsilon_gaussian", found.gaussian))
        return {name: TableEntry(replace(e, value=e.low), most=math.inf) for name, e in pairs}

    def headline(self, cell: Cell, found: Certified) -> str:
        return (
            f"epsilon at least {found.certified.low:.2f} whatever the mechanism, {found.gaussian.low:.2f} as "
            f"it is Gaussian (its own bound: {found.exact:.2f})"
        )

    def tell(self, results: Sequence[Result[Certified]]) -> Chapter:
        return page.tell(results)


KIND = MechanismKind()
