"""What paper 001 (Mo et al.) says of layers, and whether it holds for what was measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from leakscope.audits.layers.found import Correlation, Layer
from leakscope.audits.layers.page.measures import Latent, LayersAverage
from leakscope.audits.layers.page.order import amount, nats, order
from leakscope.report.pages import interval, short
from leakscope.results.averages import Average

HOLDS, FAILS, OPEN = "holds", "does not hold", "not known"
PUBLISHED = (0.686, 0.707)  # Pearson's r of the paper's measures with information (section 6.3)
COMPARED = ("subspace distance", "F sensitivity")  # the measures that the paper correlates
CONTROLS = ("its random split", "square root of rank")  # of the subspace distance: no secret in them
FROBENIUS = "F"  # the norm by which layers are ordered
RARE = 0.05  # a p from here on is taken for chance; stated on the page


@dataclass(frozen=True)
class Claim:
    """What the paper says, whether it holds here, and the numbers that say so."""

    text: str
    verdict: str
    numbers: str


def judge_claims(found: LayersAverage) -> list[Claim]:
    """The claims of paper 001 that the measures at hand speak to."""
    dense = next((layer for layer in found.layers if layer.kind == "linear"), None)
    return [
        _of_original(found),
        _of_latent(found.latent, dense),
        _of_subspace(found.latent, dense),
        _of_first(
            "The first layer is the most sensitive to the input, by the F-norm.",
            found.sensitivity.get(FROBENIUS) or {},
            found.names[0],
            lambda value: interval(value, short),
        ),
        _of_correlation(found.correlations),
    ]


def _highest(values: Mapping[str, Average], wanted: str) -> str:
    """Whether ``wanted`` is above all others, as far as the intervals tell."""
    place = order(values)
    if place is None or wanted not in values:
        return OPEN
    if place.first == wanted:
        return OPEN if place.rivals else HOLDS
    return OPEN if wanted in place.rivals else FAILS


def _together(verdicts: Sequence[str]) -> str:
    """Of several cases: holds if it does in all, does not hold if it fails in one."""
    if FAILS in verdicts:
        return FAILS
    return HOLDS if verdicts and set(verdicts) == {HOLDS} else OPEN


def _of_first(text: str, values: Mapping[str, Average], first: str, write: Callable[[Average], str]) -> Claim:
    """Whether the first is the highest."""
    place = order(values)
    if place is None:
        return Claim(text, OPEN, "Not measured.")
    numbers = f"Highest: {place.first}, {write(place.highest)}."
    if first != place.first and first in values:
        numbers += f" {first}: {write(values[first])}."
    return Claim(text, _highest(values, first), numbers)


def _of_original(found: LayersAverage) -> Claim:
    text, original = "The first layers give away most of the inputs themselves.", found.original
    if original is None or not original.sets:
        return Claim(text, OPEN, "Not measured.")
    values = {name: rebuilt.information for name, rebuilt in original.layers.items()}
    most = original.most
    claim = _of_first(text, values, original.sets[0].name, lambda value: amount(value, most))
    above = max(values.values(), key=lambda value: value.value).low > 0
    return claim if above else replace(claim, verdict=OPEN)


def _of_latent(latents: Sequence[Latent], dense: Layer | None) -> Claim:
    text = "The first fully connected layer gives away most about a latent secret."
    if not dense or not latents:
        return Claim(text, OPEN, "No fully connected layer." if latents else "Not measured.")
    verdicts, numbers = [], []
    for latent in latents:
        values = {name: risk.information for name, risk in latent.layers.items()}
        place = order(values)
        if place and dense.name in values:
            verdicts.append(_highest(values, dense.name) if place.highest.low > 0 else OPEN)
            other = "" if place.first == dense.name else f", {place.first} {nats(place.highest.value)}"
            own = f"{dense.name} {nats(values[dense.name].value)}"
            numbers.append(f"{latent.secret}: {own}{other} ({verdicts[-1]})")
    return Claim(
        text, _together(verdicts), "; ".join(numbers) + "." if numbers else "Not measured by itself."
    )


def _of_subspace(latents: Sequence[Latent], dense: Layer | None) -> Claim:
    text = "The subspace distance there is more than a random split of the same records gives."
    cases = [
        (one.secret, one.subspace[dense.name]) for one in latents if dense and dense.name in one.subspace
    ]
    if not dense or not cases:
        return Claim(text, OPEN, "Not measured.")
    numbers = [
        f"{secret} {one.distance.value:.2f}, by chance {one.null_mean:.2f} ± {one.null_sd:.2f}"
        f" (p = {one.p:.3g})"
        for secret, one in cases
    ]
    verdicts = [HOLDS if one.p < RARE else FAILS for _, one in cases]
    return Claim(text, _together(verdicts), f"{dense.title}. " + "; ".join(numbers) + ".")


def _of_correlation(correlations: Sequence[Correlation]) -> Claim:
    low, high = PUBLISHED
    text = f"The measures without an attack follow the information: r = {low} to {high}."
    own = [one for one in correlations if one.measure in COMPARED]
    numbers = [
        f"{one.measure} with {one.target}: {one.r:.2f} ({one.low:.2f} to {one.high:.2f}, n = {one.n})"
        for one in own
    ]
    rest = [f"{one.measure} {one.r:.2f}" for one in correlations if one.measure in CONTROLS]
    if own and rest:
        numbers.append(f"what width or chance give: {', '.join(rest)}")
    verdicts = [FAILS if one.high < low else HOLDS if one.low > 0 else OPEN for one in own]
    return Claim(
        text, _together(verdicts), "; ".join(numbers).replace("-", "−") + "." if own else "Not measured."
    )
