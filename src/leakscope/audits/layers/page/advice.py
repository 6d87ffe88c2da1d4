"""Which layers to protect and how: the cheapest measure that an audit of it found to be enough."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from leakscope.audits.layers.page.measures import Latent, LayersAverage, ProtectionAverage
from leakscope.audits.layers.page.order import nats
from leakscope.report.pages import listed, plural

LITTLE = 0.1  # of certainty, that an interval may leave open; stated on the page
ENOUGH = "an interval that includes 0 and ends below a tenth of certainty"
VERBS = {"keep local": "Keep local", "freeze": "Freeze", "noise": "Add noise"}


@dataclass(frozen=True)
class Advice:
    """Which measure to take against one secret, from what audits of each found. ``others`` are secrets that
    no measure was audited for."""

    protection: tuple[ProtectionAverage, ...]
    seeds: int
    latent: Latent
    others: tuple[str, ...]

    @property
    def tried(self) -> list[ProtectionAverage]:
        """The measures that every seed took."""
        return [one for one in self.protection if one.layers and one.seeds == self.seeds]

    @property
    def partial(self) -> list[ProtectionAverage]:
        """Those that some seeds did not take, since other layers told most in them."""
        return [one for one in self.protection if one.layers and one.seeds < self.seeds]

    def holding(self, tried: Sequence[ProtectionAverage]) -> list[ProtectionAverage]:
        """The measures under which nothing is found, and the interval of the information includes 0 and ends
        below a tenth of certainty: a wide one includes 0 easily, and one below 0 is of an adversary who is
        worse than a guess. The cheapest for the task first, then that of the fewest parameters."""
        limit = LITTLE * self.latent.most
        kept = [one for one in tried if one.clear and 0 <= one.risk.information.high <= limit]
        return sorted(kept, key=_cost)

    @property
    def needed(self) -> bool:
        """Unless nothing is found with no measure taken, by any view, and none leaves it open."""
        most = LITTLE * self.latent.most
        leaks = any(risk.leaks or risk.information.high >= most for risk in self.latent.views)
        return leaks or not self.holding([one for one in self.protection if not one.layers])

    @property
    def recommended(self) -> ProtectionAverage | None:
        """The cheapest measure that holds; None where none does, or none is needed."""
        return next(iter(self.holding(self.tried)), None) if self.needed else None

    @property
    def sentences(self) -> list[str]:
        """What is recommended and why."""
        if not self.tried and not self.partial:
            return []
        secret, best, holding = self.latent.secret, self.recommended, self.holding(self.tried)
        free = next((one for one in self.protection if not one.layers), None)
        if free and not self.needed:
            told = [
                f"This audit found no need of a measure: without one, the information about {secret} has "
                f"{ENOUGH} ({_left(free)})."
            ]
        elif best:
            before = f" instead of {free.worth.value:.1%}" if free else ""
            price = f"with a task {best.task.word} of {best.worth.value:.1%}{before}"
            tried, do = plural(len(self.tried), "measure"), "does" if len(holding) == 1 else "do"
            told = [
                f"{_deed(best)} The information about {secret} then has {ENOUGH} ({_left(best)}), {price}.",
                f"Of {tried} tried, {len(holding)} {do} this. It is the cheapest of them.",
            ]
        else:
            told = [self._none_holds(secret)]
        if self.others:
            others = listed(self.others)
            told.append(f"Measures were audited for {secret} only. Their effect on {others} is not known.")
        return told

    def _none_holds(self, secret: str) -> str:
        text = (
            f"None of {plural(len(self.tried), 'measure')} is enough for {secret}: the adversary still finds "
            f"something, or the interval does not include 0, or it ends above a tenth of certainty."
            if self.tried
            else f"No protection of {secret} was tried with every seed, so none is shown to help."
        )
        if unranked := [one for one in self.tried if one.auroc is None]:
            text += f" Of {len(unranked)} the ranking was not measured, so they cannot be called enough."
        highs = {one.label: one.risk.information.high for one in self.tried}
        nearest = min(self.tried, key=lambda one: (highs[one.label] < 0, highs[one.label]), default=None)
        if nearest:
            text += f" The nearest: {nearest.label}, {_left(nearest)}."
        if some := self.holding(self.partial):
            taken = f"With {some[0].seeds} of {self.seeds} seeds this was enough"
            text += f" {taken}; the others did not try it: {some[0].label}."
        return text

    @property
    def alternatives(self) -> list[str]:
        """The best of each kind of measure, for who cannot take the one recommended."""
        texts = []
        for kind, verb in VERBS.items():
            tried = [one for one in self.tried if one.measure == kind]
            if best := next(iter(self.holding(tried)), None):
                strength = f" (std {best.std})" if best.stds else ""
                texts.append(f"{verb}: {best.layers}{strength}; {_left(best)}.")
            elif tried:
                texts.append(f"{verb}: none of {len(tried)} tried is enough.")
        return texts


def advise(found: LayersAverage, seeds: int) -> Advice | None:
    """None where no measure was audited."""
    if not found.protection:
        return None
    audited = next(one for one in found.latent if one.secret == found.protection[0].secret)
    others = tuple(one.secret for one in found.latent if one is not audited)
    return Advice(found.protection, seeds, audited, others)


def _left(one: ProtectionAverage) -> str:
    if one.risk.guesses:
        return "the adversary found nothing to use and guessed; a better one may do more"
    if one.risk.information.high < 0:
        return "the adversary did worse than a guess; a better one may do more"
    return f"at most {nats(one.risk.information.high)} nats, the upper limit"


def _cost(one: ProtectionAverage) -> tuple[float, int, float]:
    """To a tenth of a percent, beyond which accuracies are not told apart."""
    return -round(one.worth.value, 3), one.parameters, max(one.stds, default=0.0)


def _deed(one: ProtectionAverage) -> str:
    if one.measure == "noise":
        return f"Add Gaussian noise of std {one.std} to the gradient of {one.title}, before it is sent."
    if one.measure == "freeze":
        return f"Freeze {one.title}, and share no update of it."
    return f"Keep local (in a trusted execution environment, or sent encrypted only): {one.title}."
