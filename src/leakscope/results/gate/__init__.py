"""A gate: a declared risk appetite, held against what audits measured and accountants promise."""

from leakscope.results.gate.appetite import Appetite, parse, read
from leakscope.results.gate.formats import as_badge, as_junit, as_sarif
from leakscope.results.gate.readings import complete, read_results
from leakscope.results.gate.verdict import APPETITE, GateVerdict, judge, judge_kept
from leakscope.results.gate.words import as_json, as_text

__all__ = [
    "APPETITE",
    "Appetite",
    "GateVerdict",
    "as_badge",
    "as_json",
    "as_junit",
    "as_sarif",
    "as_text",
    "complete",
    "judge",
    "judge_kept",
    "parse",
    "read",
    "read_results",
]
