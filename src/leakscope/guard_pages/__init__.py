"""Audits of guards (`GuardAudit`, papers 003 and 004): what a fresh attacker still tells, what that costs,
what needs no guard, and which numbers mislead; in words, numbers and charts."""

from leakscope.guard_pages.chart import Mark, information, rows, scatter, spot, trade_off
from leakscope.guard_pages.measures import measures
from leakscope.guard_pages.pages import RECOGNISED, GuardPage, guard_pages
from leakscope.guard_pages.words import lines, refuted, sentences

__all__ = [
    "RECOGNISED",
    "GuardPage",
    "Mark",
    "guard_pages",
    "information",
    "lines",
    "measures",
    "refuted",
    "rows",
    "scatter",
    "sentences",
    "spot",
    "trade_off",
]
