"""Audits of a mechanism, as all others see them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from leakscope.audits.mechanism import audit, page
from leakscope.audits.mechanism.found import Certified
from leakscope.results.cell import Cell
from leakscope.results.kind import Asked, TableEntry
from leakscope.results.number import Number, of_estimate, of_value


@dataclass(frozen=True)
class MechanismKind:
    found = Certified

    def ask(self, cell: Cell) -> Asked:
        secret = str(cell.game.get("attribute", "*"))
        shields = (cell.defense,) if cell.defense else ()
        return Asked((secret,), ("attribute",), shields, bool(shields), adaptive=True)

    check = staticmethod(audit.check)
    run = staticmethod(audit.run)
    tell = staticmethod(page.tell)

    def numbers(self, cell: Cell, found: Certified, about: Number) -> Iterator[Number]:
        """Certified: at least ``low``. An attack never shows how large an epsilon is at most: no ``high``."""
        about = replace(about, secret=found.attribute, attack=found.statistic, delta=found.delta)
        named = [("epsilon_any", found.certified), ("epsilon_gaussian", found.gaussian)]
        named += [("epsilon_any", found.sure)] if found.sure else []
        for name, estimate in named:
            yield replace(of_estimate(about, name, estimate, 0.0), high=None, bound="lower")
        bound = replace(about, about="bound", attack="", bound="upper", covers="one step")
        yield from of_value(bound, "epsilon_exact", found.exact)
        yield from of_value(bound, "epsilon_exact_added", found.exact_added)
        aside = replace(about, about="diagnostic")
        yield from of_value(aside, "epsilon_classical", found.classical)
        for name in ("point", "saturation", "distance"):
            yield from of_value(aside, name, getattr(found, name))

    def entries(self, found: Certified) -> dict[str, TableEntry]:
        """What is certified: the lower bound is the value. Beside it the paper's ratio of the classical
        epsilon to a point estimate, of which every seed gives one."""
        pairs = [("epsilon_any", found.certified), ("epsilon_gaussian", found.gaussian)]
        told = {name: TableEntry(replace(e, value=e.low), most=math.inf) for name, e in pairs}
        if not found.point:
            return told
        ratio = found.classical / found.point
        name, of = "classical_over_point", replace(found.certified, basis=None, method="point estimate")
        return told | {name: TableEntry(replace(of, value=ratio, low=ratio, high=ratio), most=math.inf)}

    def headline(self, cell: Cell, found: Certified) -> str:
        return (
            f"epsilon at least {found.certified.low:.2f} whatever the mechanism, {found.gaussian.low:.2f} as "
            f"it is Gaussian (its own bound: {found.exact:.2f})"
        )


KIND = MechanismKind()
