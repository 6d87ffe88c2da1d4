"""Which layers to protect and how: the cheapest measure that an audit of it found to be enough."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from leakscope.layer_maps.measures import Protection
from leakscope.layer_maps.order import listed, nats

LITTLE = 0.1  # of certainty, that an interval may leave open; stated on the page
KEPT = "kept local (in a trusted execution environment, or sent encrypted only)"


@dataclass(frozen=True)
class Plan:
    """Which measure to take, from what audits of each found."""

    protection: tuple[Protection, ...]
    seeds: int
    most: Mapping[str, float]
    leaks: frozenset[str] = frozenset()  # the secrets that some view was found to give away

    @property
    def nothing(self) -> Protection | None:
        return next((one for one in self.protection if one.measure == "none"), None)

    @property
    def tried(self) -> list[Protection]:
        """The measures that every seed took."""
        return [one for one in self.protection if one.measure != "none" and one.seeds == self.seeds]

    @property
    def partial(self) -> list[Protection]:
        """Those that some seeds did not take, since other layers told most in them."""
        return [one for one in self.protection if one.measure != "none" and one.seeds < self.seeds]

    @property
    def secrets(self) -> list[str]:
        """The secrets that any measure was audited for."""
        return list(dict.fromkeys(secret for one in self.protection for secret in one.risks))

    def holding(self, secrets: Iterable[str], tried: Iterable[Protection] | None = None) -> list[Protection]:
        """The measures under which the interval of the information includes 0 for each of these secrets, and
        ends below a tenth of certainty, since a wide one includes 0 easily: the cheapest in accuracy first,
        then that of the fewest parameters."""
        wanted = list(secrets)
        kept = [
            one
            for one in (self.tried if tried is None else tried)
            if all(s in one.risks and self._enough(one, s) for s in wanted)
        ]
        return sorted(kept, key=_cost)

    @property
    def recommended(self) -> Protection | None:
        """The cheapest measure that holds for all secrets; None where none does, or none is needed."""
        return next(iter(self.holding(self.secrets)), None) if self.needed else None

    @property
    def needed(self) -> bool:
        return not (self.nothing and self.holding(self.secrets, [self.nothing]))

    @property
    def advice(self) -> list[str]:
        """What is recommended and why, in plain sentences."""
        if not self.tried and not self.partial:
            return []
        if not self.needed and self.nothing:
            upper = self._left(self.nothing, self.secrets)
            text = (
                "No need of a measure was found: with none, the interval of what is given away includes 0 "
                f"and ends below a tenth of certainty for {listed(self.secrets)} ({upper})."
            )
            if self.leaks & set(self.secrets):
                text += " Yet the audit of the layers did find something; more trials would settle it."
            return [text]
        if self.recommended:
            return [self._reason(self.secrets)]
        return [self._reason([secret]) for secret in self.secrets]

    @property
    def alternatives(self) -> list[str]:
        """The best of each kind of measure, for who cannot take the one recommended."""
        texts = []
        kinds = {"keep local": "Keep local", "freeze": "Freeze", "noise": "Add noise"}
        for kind, verb in kinds.items():
            tried = [one for one in self.tried if one.measure == kind]
            best = next(iter(self.holding(self.secrets, tried)), None)
            if best:
                strength = f" (std {best.std})" if best.stds else ""
                texts.append(f"{verb}: {', '.join(best.layers)}{strength}; {self._left(best, self.secrets)}.")
            elif tried:
                texts.append(f"{verb}: none of {len(tried)} tried is enough for {listed(self.secrets)}.")
        return texts

    def _reason(self, secrets: Sequence[str]) -> str:
        holding, about = self.holding(secrets), listed(secrets)
        if holding:
            best = holding[0]
            return (
                f"{_deed(best)}: what is then given away about {about} has an interval that includes 0 and "
                f"ends below a tenth of certainty ({self._left(best, secrets)}){self._price(best)}. Of "
                f"{len(self.tried)} measures tried, {len(holding)} "
                f"{'does' if len(holding) == 1 else 'do'} so, and this is the cheapest."
            )
        audited = [one for one in self.tried if one.risks.keys() >= set(secrets)]
        nearest = min(audited, key=lambda one: self._upper(one, secrets), default=None)
        text = f"None of {len(self.tried)} measures tried is enough for {about}: no interval includes 0 "
        text += "and ends below a tenth of certainty."
        if nearest:
            text += f" The nearest: {nearest.label}, {self._left(nearest, secrets)}."
        some = next(iter(self.holding(secrets, self.partial)), None)
        if some:
            text += (
                f" With {some.seeds} of {self.seeds} seeds this was enough, and the others did not take it: "
            )
            text += f"{some.label}."
        return text

    def _enough(self, one: Protection, secret: str) -> bool:
        left = one.risks[secret]
        return not left.shown and left.information.high <= LITTLE * self.most.get(secret, 1.0)

    def _upper(self, one: Protection, secrets: Iterable[str]) -> float:
        return max(one.risks[secret].information.high / self.most.get(secret, 1.0) for secret in secrets)

    def _left(self, one: Protection, secrets: Iterable[str]) -> str:
        limits = [one.risks[secret].information for secret in secrets]
        if all(limit.low == limit.high for limit in limits):
            return "the adversary found nothing to go by and guessed, which a better one need not"
        return f"at most {nats(max(limit.high for limit in limits))} nats, the upper limit"

    def _price(self, one: Protection) -> str:
        if one.accuracy is None:
            return ", at a cost in accuracy that was not measured"
        free = self.nothing.accuracy if self.nothing else None
        before = f" instead of {free.value:.1%}" if free else ""
        return f", with a task accuracy of {one.accuracy.value:.1%}{before}"


def _cost(one: Protection) -> tuple[float, int, float]:
    """To a tenth of a percent, beyond which accuracies are not told apart."""
    accuracy = -round(one.accuracy.value, 3) if one.accuracy else 1.0
    return accuracy, one.parameters, max(one.stds, default=0.0)


def _deed(one: Protection) -> str:
    names = ", ".join(one.layers)
    if one.measure == "noise":
        return f"Add Gaussian noise of std {one.std} to the gradient of {names} before it is sent"
    if one.measure == "keep local":
        return f"{names} should be {KEPT}"
    if one.measure == "freeze":
        return f"Freeze {names} and share no update of it"
    return f"Take this measure, {one.label}"
