"""Guards, judged fairly: trained, attacked anew, and put beside what needs no guard (papers 003 and 004)."""

from leakscope.audits.guards.audit import GuardAudit
from leakscope.audits.guards.equal import Tuned, tuned
from leakscope.audits.guards.evaluation import evaluated
from leakscope.audits.guards.trial import Trial, balanced_accuracy

__all__ = ["GuardAudit", "Trial", "Tuned", "balanced_accuracy", "evaluated", "tuned"]
