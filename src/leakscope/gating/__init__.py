"""A gate: a declared risk appetite, held against what audits measured and accountants promise."""

from leakscope.gating.appetite import Appetite, Declared, Limit, parse, read
from leakscope.gating.readings import results
from leakscope.gating.verdict import APPETITE, Judged, Judgement, Verdict, kept, verdict
from leakscope.gating.words import as_json, section, text

__all__ = [
    "APPETITE",
    "Appetite",
    "Declared",
    "Judged",
    "Judgement",
    "Limit",
    "Verdict",
    "as_json",
    "kept",
    "parse",
    "read",
    "results",
    "section",
    "text",
    "verdict",
]
