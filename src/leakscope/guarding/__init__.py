"""Guards, judged fairly: trained, attacked anew, and put beside what needs no guard (papers 003 and 004)."""

from leakscope.guarding.audit import GuardAudit
from leakscope.guarding.equal import Tuned, tuned
from leakscope.guarding.evaluation import Trial, balanced_accuracy, evaluated, judged, unguarded, utility

__all__ = [
    "GuardAudit",
    "Trial",
    "Tuned",
    "balanced_accuracy",
    "evaluated",
    "judged",
    "tuned",
    "unguarded",
    "utility",
]
