"""Two results folders, side by side."""

from leakscope.results.compare.gaps import Gap, holm, independent, paired, unpaired
from leakscope.results.compare.matching import Comparison, Difference, Pair, compare, read

__all__ = [
    "Comparison",
    "Difference",
    "Gap",
    "Pair",
    "compare",
    "holm",
    "independent",
    "paired",
    "read",
    "unpaired",
]
