"""Which layer gives away most, how far that is certain, and the sentences that say so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from leakscope.averages import Average
from leakscope.layer_maps.measures import Latent, Original, Risk

MANY = 10  # times: more is said to be more than that


def nats(value: float) -> str:
    """Two digits, or three of what is small; a true minus."""
    return f"{value:.{2 if abs(value) >= 0.0995 else 3}f}".replace("-", "−")


@dataclass(frozen=True)
class Order:
    """Which of several is the highest; ``rivals`` have intervals that overlap with its own."""

    first: str
    highest: Average
    second: str
    next: Average | None
    rivals: tuple[str, ...]


def order(values: Mapping[str, Average]) -> Order | None:
    """Of names by value; None where there is nothing to order."""
    ranked = sorted(values, key=lambda name: -values[name].value)
    if not ranked:
        return None
    first, *rest = ranked
    rivals = tuple(name for name in rest if values[name].high >= values[first].low)
    second = rest[0] if rest else ""
    return Order(first, values[first], second, values.get(second), rivals)


def scaled(average: Average, most: float) -> Average:
    """As a share of the most that is possible."""
    value, low, high = (part / most for part in (average.value, average.low, average.high))
    return replace(average, value=value, low=low, high=high)


def informed(risks: Mapping[str, Risk]) -> Order | None:
    return order({name: risk.information for name, risk in risks.items()})


def rebuilt(original: Original) -> dict[str, Risk]:
    """By the name of the set, without that of all layers."""
    return {one.name: one.risk for one in original.sets}


def found(risk: Average, most: float) -> str:
    """``0.21 of 0.69 nats (95% interval 0.17 to 0.25)``."""
    between = f"{risk.level:.0%} interval {nats(risk.low)} to {nats(risk.high)}"
    return f"{nats(risk.value)} of {nats(most)} nats ({between})"


def most_telling(latent: Latent) -> str:
    """The layer that gives away most about a secret, in one or two sentences."""
    place = informed(latent.layers)
    return _said(place, f"about {latent.secret}", latent.most, "layer") if place else ""


def most_rebuilt(original: Original) -> str:
    """The set of layers from which the inputs are rebuilt best."""
    place = informed(rebuilt(original))
    if place is None:
        return ""
    return _said(place, "of the inputs themselves, above a trivial guess", original.most, "set of layers")


def _said(place: Order, of: str, most: float, one: str) -> str:
    if place.highest.low <= 0:
        return (
            f"No {one} is shown to give away anything {of}: the highest, {place.first}, has "
            f"{found(place.highest, most)}{_guessed(place.highest)}."
        )
    text = f"{place.first} gives away most {of}: {found(place.highest, most)}"
    if place.next:
        text += f", {_times(place.highest.value, place.next.value)} the next {one}, {place.second}"
    if place.rivals:
        names = listed((place.first, *place.rivals))
        text += f". The intervals of {names} overlap: their order is not certain"
    return text + "."


def _guessed(average: Average) -> str:
    """An interval without width is an adversary who ignored what it saw."""
    return ": there the adversary found nothing to go by and guessed" if average.low == average.high else ""


def _times(value: float, other: float) -> str:
    if other <= 0 or value / other >= MANY:
        return f"more than {MANY} times"
    return f"{value / other:.1f} times"


def listed(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
