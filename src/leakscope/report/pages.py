"""What every page shares: numbers as people write them, one stylesheet, one way to fill a template."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from functools import cache
from importlib import resources

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from leakscope.core.catalogue import KINDS
from leakscope.report import plot
from leakscope.results.averages import Average
from leakscope.results.cell import capitalise, stable, words
from leakscope.results.chapter import SEVERITIES
from leakscope.results.compare.gaps import Interval, independent
from leakscope.results.scores import MEASURES, Worth


def number(value: float | None, digits: int = 3) -> str:
    """A number for people: a true minus, and a dash where there is none."""
    if value is None or math.isnan(value):
        return "–"
    return f"{value:.{digits}f}".replace("-", "−")


def percent(value: float | None, digits: int = 1) -> str:
    return number(None if value is None else 100 * value, digits) + (
        "" if value is None or math.isnan(value) else "%"
    )


def significant(value: float | None, digits: int = 3) -> str:
    """Up to three digits of a number of any size: 284, 96.9, 0.0131."""
    if value is None or not math.isfinite(value):
        return "–"
    places = digits - 1 - (math.floor(math.log10(abs(value))) if value else 0)
    text = number(value, max(0, places))
    return text.rstrip("0").rstrip(".") if "." in text else text


def short(value: float) -> str:
    """Three digits, with a power of ten where it is far from 1."""
    return f"{value:.3g}".replace("-", "−")


def certified(value: float) -> str:
    """As `significant`, but never more than was certified."""
    if value <= 0:
        return "0"
    unit = 10.0 ** (math.floor(math.log10(value)) - 2)
    return significant(math.floor(value / unit + 1e-9) * unit)


def promised(value: float) -> str:
    """As `significant`, but never less than is allowed for."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 2) if value > 0 else 1.0
    return significant(math.ceil(value / unit - 1e-9) * unit)


def small(value: float | None) -> str:
    """A small chance as people write it: 1e-5."""
    return "–" if value is None else re.sub(r"e-0*", "e-", f"{value:g}")


def either(values: Iterable[object]) -> str:
    """Each value once: ``16`` or ``16 or 64``."""
    distinct = {stable(value): value for value in values if value is not None}
    ordered = sorted(
        distinct.values(), key=lambda v: (isinstance(v, str), v if isinstance(v, int | float) else 0, str(v))
    )
    texts = [f"{value:,}" if isinstance(value, int) else str(value) for value in ordered]
    return " or ".join(texts) if len(texts) < 3 else ", ".join(texts[:-1]) + " or " + texts[-1]


def listed(names: Iterable[object]) -> str:
    """Each once, in their order: ``a, b and c``."""
    texts = list(dict.fromkeys(map(str, names)))
    return " and ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)


def marked(draw: Callable[..., str]) -> Callable[..., Markup]:
    """A chart that has escaped its words itself."""
    return lambda *args, **kwargs: Markup(draw(*args, **kwargs))


def spoken(average: Average, guessing: float) -> tuple[str, str, str]:
    """A share, its interval and guessing in whole percent, or finer where whole ones would mislead."""
    numbers = (average.value, average.low, average.high)
    blurred = average.high - average.low < 0.015 or any(0 < abs(v - round(v)) < 0.005 for v in numbers)
    digits = 1 if blurred else 0
    between = f"{number(100 * average.low, digits)} to {percent(average.high, digits)}"
    return percent(average.value, digits), between, percent(guessing, digits)


def plural(n: int, one: str, many: str = "") -> str:
    """``1 record``, ``2,000 records``."""
    return f"{n:,} {one if n == 1 else many or one + 's'}"


def name_measure(measure: str) -> str:
    """A measure as people say it."""
    return MEASURES[measure].title if measure in MEASURES else measure.replace("_", " ")


def interval(average: Average, write: Callable[[float], str]) -> str:
    """``83.1% (82.4% to 83.8%)``, each number as ``write`` has it."""
    return f"{write(average.value)} ({write(average.low)} to {write(average.high)})"


def say_change(before: Interval, after: Interval) -> str:
    """What a defense does to an accuracy, in points: lost or gained, with the interval of the difference."""
    change = independent(before, after)

    def points(value: float) -> str:
        return f"{100 * abs(value):.1f} points {'lost' if value < 0 else 'gained'}"

    if change.low is None or change.high is None:
        return points(change.value)
    if change.low < 0 < change.high:
        return f"{points(change.value)} (between {points(change.low)} and {points(change.high)})"
    ends = sorted(100 * abs(end) for end in (change.low, change.high))
    return f"{points(change.value)} ({ends[0]:.1f} to {ends[1]:.1f})"


def write_measure(name: str, value: float | None) -> str:
    """In percent, or with as many digits as the size of such numbers asks for."""
    measure = MEASURES[name]
    if measure.percent:
        return percent(value)
    return significant(value) if math.isinf(measure.most) else number(value, 3 if measure.most <= 1 else 1)


def shown(name: str, average: Average) -> str:
    """A measure in words: its value and interval, in percent where it is a share."""
    return interval(average, percent if name in MEASURES and MEASURES[name].percent else number)


def say_error(worth: Worth[Average]) -> str:
    """How far off a model's numbers are, beside the best constant; nothing of classes."""
    if worth.mae is None:
        return ""
    return (
        f"mean absolute error {interval(worth.mae, significant)} in the label's own unit; of "
        f"{worth.constant} {significant(worth.mae_of_mean)}"
    )


def _template(name: str) -> str | None:
    """The text of a template: "/name" of the shell, "kind/name" of a kind's own folder."""
    kind, _, file = name.rpartition("/")
    home = KINDS[kind].module.rpartition(".")[0] if kind else "leakscope.report"
    path = resources.files(home) / ("." if kind else "templates") / file
    return path.read_text(encoding="utf-8") if path.is_file() else None


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FunctionLoader(_template),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(number=number, percent=percent, words=words, either=either, zip=zip)
    environment.filters.update(significant=significant, certified=certified, promised=promised, small=small)
    environment.filters["capitalize_first"] = capitalise
    environment.filters["whiskers"] = lambda averages: [(a.value, a.low, a.high) for a in averages]
    environment.globals.update(plural=plural, name_measure=name_measure, write_measure=write_measure)
    environment.globals["say_error"] = say_error
    environment.globals.update(icon=marked(plot.severity), mark=marked(plot.mark), spot=marked(plot.spot))
    environment.globals.update(MEASURES=MEASURES, SEVERITIES=SEVERITIES)
    return environment


def fill(name: str, **values: object) -> Markup:
    """A template with its values: "/page.html" is that of the shell, "layers/page.html" a kind's own. All
    words from the data are escaped."""
    return Markup(_environment().get_template(name).render(**values))
