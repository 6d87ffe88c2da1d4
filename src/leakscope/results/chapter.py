"""What one kind of audit puts on a page, whatever kind it is: the shell of a page and the terminal know
nothing else of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from markupsafe import Markup

from leakscope.results.averages import Average
from leakscope.results.scores import tells

SLIGHT, SEVERE = 0.1, 0.5  # of an advantage, where the words for severity change; stated on the page
SEVERITIES = {  # worst first
    "severe": "Severe",
    "substantial": "Substantial",
    "ranking": "Leaks in the ranking",
    "certified": "Certified",
    "slight": "Slight",
    "inconclusive": "Inconclusive",
    "none": "No evidence of leakage",
    "failed": "Failed",
}
LEAKS = ("severe", "substantial", "ranking", "certified", "slight")  # what the page calls a leak
RULES = {  # by the advantage
    "severe": f"the lower limit of the advantage is {SEVERE} or more",
    "substantial": f"the lower limit is between {SLIGHT} and {SEVERE}",
    "ranking": "the interval of the advantage includes 0, but that of AUROC does not include 0.5",
    "slight": f"the lower limit is above 0 and below {SLIGHT}",
    "inconclusive": f"the interval includes 0 and reaches {SLIGHT} or more, or that of AUROC is too wide",
    "none": f"the interval includes 0 and stays below {SLIGHT}, and that of AUROC stays within {SLIGHT / 2} "
    f"of 0.5",
    "failed": "there is no measurement, so nothing can be said",
}


@dataclass(frozen=True)
class Verdict:
    """One answer about one thing: the same words on the page, in the terminal, in the gate and in a summary.

    ``sentence`` is plain text. ``notes`` come after it. ``anchor`` is where the details stand. ``order``:
    among verdicts of one severity the largest comes first. The rest is what a summary shows of it."""

    severity: str
    about: str
    data: str
    sentence: str
    notes: tuple[str, ...] = ()
    anchor: str = ""
    order: float = 0.0
    attack: str = ""
    measure: str = ""  # a name of `results.scores.MEASURES`, or "epsilon"
    average: Average | None = None
    guessing: float | None = None
    defense: str = ""
    utility: Average | None = None
    task: str = "accuracy"  # what the utility is, as a sentence has it

    @property
    def word(self) -> str:
        return SEVERITIES[self.severity]

    @property
    def leaks(self) -> bool:
        return self.severity in LEAKS

    @property
    def worst_first(self) -> tuple[int, float, str]:
        return list(SEVERITIES).index(self.severity), -self.order, self.about


@dataclass(frozen=True)
class Scene:
    """The threat model, to be drawn: who holds the records, what crosses the wire, who listens, what the
    listener knows and wants. Few words each."""

    holder: str
    records: tuple[str, ...]
    crosses: tuple[str, ...]
    listener: str
    knows: tuple[str, ...]
    wants: str


@dataclass(frozen=True)
class Brief:
    """What one kind says on the first page, to a reader who decides and does not audit: whole sentences.

    ``asked`` are the questions; ``meaning`` is what the findings mean for a person in the data; ``helps``
    what would help, as far as this run measured it; ``untested`` what this run does not know."""

    asked: tuple[str, ...] = ()
    meaning: tuple[str, ...] = ()
    helps: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    untested: tuple[str, ...] = ()
    scene: Scene | None = None


@dataclass(frozen=True)
class Chapter:
    """What one kind puts on a page. ``lead`` is one line under the title; ``rules`` say how its words are
    chosen; ``body`` are its sections; ``assumed`` is who was assumed to see and know what; ``limits`` are
    what it does not say; ``remarks`` are easily overlooked, and the terminal says them too; ``brief`` is its
    part of the first page."""

    lead: str
    verdicts: tuple[Verdict, ...]
    body: Markup
    rules: tuple[str, Mapping[str, str]] = field(default=("By the advantage", RULES))
    assumed: Markup = field(default_factory=Markup)
    limits: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    settings: int = 0  # cells that it tells of
    brief: Brief = Brief()


def read_severity(advantage: Average, auroc: Average | None) -> str:
    """The word for an advantage by its lower limit, or by that of the ranking where it shows none."""
    if advantage.low >= SLIGHT:
        return "severe" if advantage.low >= SEVERE else "substantial"
    if advantage.low > 0:
        return "slight"
    if auroc is not None and auroc.low > 0.5:
        return "ranking"
    return "none" if advantage.high < SLIGHT and (auroc is None or is_level(auroc)) else "inconclusive"


def is_level(auroc: Average) -> bool:
    """Whether a ranking is known to tell next to nothing, either way round. Of a rare value no guess beats
    the usual one, so that an advantage of 0 alone says little."""
    apart = max(auroc.high - 0.5, 0.5 - auroc.low)
    return not tells(auroc.low, auroc.high) and apart < SLIGHT / 2


def explain(severity: str, topic: str, harm: str) -> str:
    """What a verdict means for a person: the ``harm`` of a leak, or how little the ``topic`` is known."""
    more = {
        "slight": " The gain over guessing is small.",
        "ranking": " A single guess was not shown to beat chance. A ranking of many cases tells them apart.",
    }
    if severity in LEAKS:
        return harm + more.get(severity, "")
    if severity == "failed":
        return f"Nothing is known about {topic}: the measurement failed."
    if severity == "none":
        return (
            f"About {topic}, the attacks of this run learned no more than guessing. This does not prove that "
            f"nothing leaks."
        )
    return f"About {topic}, there is not enough evidence: this run shows neither a leak nor safety."
