"""Games on gradients, as all others see them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from leakscope.audits.inference import audit, page
from leakscope.audits.inference.found import Played
from leakscope.audits.inference.settings import column_of, name_attack
from leakscope.report.pages import promised, small
from leakscope.results.cell import Cell, list_shields, stable
from leakscope.results.chapter import Chapter
from leakscope.results.kind import Asked, Measured, TableEntry, World, enter_scores
from leakscope.results.number import Number, of_scores, of_value, of_worth
from leakscope.results.result import Result

QUESTIONS = {"Distribution": ("distribution",), "UserInference": ("user",)}  # before the game says it


@dataclass(frozen=True)
class InferenceKind:
    found = Played

    def ask(self, cell: Cell) -> Asked:
        shields = tuple(list_shields(cell.defense))
        column = column_of(cell)
        return Asked(
            secrets=("*",) if column == "?" else (column,),
            questions=QUESTIONS.get(cell.game_name, ("attribute", "property")),
            shields=shields,
            protected=bool(shields),
            adaptive=cell.adaptive if shields else None,
            attack=name_attack(cell),
            single=len({stable(attack) for attack in cell.attack.get("attacks", ())}) < 2,
        )

    def check(self, world: World) -> None:
        audit.check(world)

    def run(self, world: World) -> Measured[Played]:
        return audit.run(world)

    def numbers(self, cell: Cell, found: Played, about: Number) -> Iterator[Number]:
        about = replace(about, secret=found.secret.column or about.secret, question=found.secret.kind)
        about = replace(about, attack=found.attack or about.attack)
        yield from of_scores(about, found.scores, guessing=found.guessing)
        bound = replace(about, about="bound", attack="", bound="upper", covers="shown")
        yield from of_value(bound, "advantage", found.bounds.advantage)
        yield from of_value(bound, "success", found.bounds.accuracy)
        yield from of_value(bound, "information", found.bounds.information)
        for accounted in (found.guarantee.shown, found.guarantee.training):
            if accounted:
                held = accounted.covers if accounted.unit != "mean" else "mean of clients"
                # a chance of being drawn was counted for batches that were shuffled: no proof
                proof = "upper" if accounted.sampling == 1 else "estimate"
                more = {"covers": held, "delta": accounted.delta, "bound": proof, "behind": accounted.records}
                yield from of_value(bound, "epsilon", accounted.replaced, part="replace", **more)
                yield from of_value(bound, "epsilon", accounted.added, part="add or remove", **more)
        yield from of_worth(about, found.utility)

    def entries(self, found: Played) -> dict[str, TableEntry]:
        return enter_scores(found.scores, found.guessing)

    def headline(self, cell: Cell, found: Played) -> str:
        success = found.scores.success
        line = (
            f"right in {success.value:.1%} of trials, guessing {found.guessing:.1%}" if success else "played"
        )
        shown = found.guarantee.shown
        if shown and shown.unit == "mean":
            line += "; no epsilon holds against the server"
        elif shown:
            line += f"; epsilon of what was shown {promised(shown.replaced)} at delta {small(shown.delta)}"
        return line

    def tell(self, results: Sequence[Result[Played]]) -> Chapter:
        return page.tell(results)


KIND = InferenceKind()
