"""The audit of a federation: who was trained on, told from what crossed the wire (paper 002).

A federation is trained for it, or the recording of a real one is given; every attack then plays the
membership game on every client. Members, the adversary's own records, those that set the threshold and
those that are judged are four disjoint sets.
"""

from leakscope.audits.membership.recorded import RecordingAudit
from leakscope.audits.membership.simulated import MembershipAudit

__all__ = ["MembershipAudit", "RecordingAudit"]
