"""Which layer gives away most, how far that is certain, and the sentences that say so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from leakscope.audits.layers.page.measures import Latent, Original, Risk
from leakscope.report.pages import listed
from leakscope.results.averages import Average
from leakscope.results.cell import capitalise

MANY = 10  # times: more is said to be more than that


def nats(value: float) -> str:
    """Two digits, or three of what is small; a true minus."""
    return f"{value:.{2 if abs(value) >= 0.0995 else 3}f}".replace("-", "−")


@dataclass(frozen=True)
class Order:
    """Which of several is the highest; ``rivals`` have intervals that overlap with its own."""

    first: str
    highest: Average
    rivals: tuple[str, ...]


def order(values: Mapping[str, Average]) -> Order | None:
    """Of names by value; None where there is nothing to order."""
    ranked = sorted(values, key=lambda name: -values[name].value)
    if not ranked:
        return None
    first, *rest = ranked
    rivals = tuple(name for name in rest if values[name].high >= values[first].low)
    return Order(first, values[first], rivals)


def scaled(average: Average, most: float) -> Average:
    """As a share of the most that is possible."""
    value, low, high = (part / most for part in (average.value, average.low, average.high))
    return replace(average, value=value, low=low, high=high)


def informed(risks: Mapping[str, Risk]) -> Order | None:
    return order({name: risk.information for name, risk in risks.items()})


def amount(risk: Average, most: float) -> str:
    """``0.21 of 0.69 nats (95% interval 0.17 to 0.25)``."""
    between = f"{risk.level:.0%} interval {nats(risk.low)} to {nats(risk.high)}"
    return f"{nats(risk.value)} of {nats(most)} nats ({between})"


def most_telling(latent: Latent, titles: Mapping[str, str]) -> str:
    """The layer that gives away most about a secret; where none is shown to, what all of them do."""
    text = _name_highest(latent, latent.together, f"about {latent.secret}", "layer", titles)
    better = [leak.name for leak in latent.views if leak.leaks]
    if better and not any(leak.shown for leak in latent.views):
        text += f" But with {listed(better)}, guesses or their ranking beat chance."
    return text


def most_rebuilt(original: Original, titles: Mapping[str, str]) -> str:
    """The set of layers from which the inputs are rebuilt best."""
    of = "of the inputs themselves, above a trivial guess"
    return _name_highest(original, original.whole, of, "set of layers", titles)


def _name_highest(found: Latent | Original, whole: Risk, of: str, one: str, titles: Mapping[str, str]) -> str:
    """Of those that are shown to give away anything; where none is, so it is said, and what all do."""
    risks: Mapping[str, Risk] = found.layers
    most, shown = found.most, {name: risk for name, risk in risks.items() if risk.shown}
    together = f" All layers at once do: {amount(whole.information, most)}." * (whole.shown and not shown)
    place = informed(shown or risks)
    if place is None:
        return f"No {one} was looked at by itself.{together}"
    title = titles[place.first]
    if not shown:
        guess = ": there the adversary found nothing to use and guessed"
        return (
            f"No {one} is shown to give away anything {of}: the highest ({title}) has "
            f"{amount(place.highest, most)}{guess if risks[place.first].guesses else ''}.{together}"
        )
    text = f"{capitalise(title)}, gave away most {of}: {amount(place.highest, most)}"
    rest = {name: risk.information for name, risk in risks.items() if name != place.first}
    behind = order(rest)
    if behind and behind.highest.value <= place.highest.value:
        times = _times(place.highest.value, behind.highest.value)
        text += f", {times} the next {one} ({titles[behind.first]})"
    if rivals := [name for name in rest if rest[name].high >= place.highest.low]:
        text += f". The intervals of {listed((place.first, *rivals))} overlap: their order is not certain"
    return text + "."


def _times(value: float, other: float) -> str:
    if other <= 0 or value / other >= MANY:
        return f"more than {MANY} times"
    return f"{value / other:.1f} times"
