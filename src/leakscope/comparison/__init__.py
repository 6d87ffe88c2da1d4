"""Two results folders held against each other."""

from leakscope.comparison.gaps import Gap, holm, independent, paired, unpaired
from leakscope.comparison.matching import Comparison, Difference, Pair, compare, read
from leakscope.comparison.words import HEADER, as_json, render, rows, sentences, text

__all__ = [
    "HEADER",
    "Comparison",
    "Difference",
    "Gap",
    "Pair",
    "as_json",
    "compare",
    "holm",
    "independent",
    "paired",
    "read",
    "render",
    "rows",
    "sentences",
    "text",
    "unpaired",
]
