"""The commands as functions: the same options, the same results, a `Report` that prints and draws itself.

The command line reads its options off these signatures, so that nothing heavy may be imported with them.
"""

from leakscope.run.api.audits import audit, localise, tune
from leakscope.run.api.guards import guard
from leakscope.run.api.recordings import audit_recording
from leakscope.run.api.records import preflight, reconstruct, reconstruct_recording
from leakscope.run.api.results import compare, dossier, gate

__all__ = [
    "audit",
    "audit_recording",
    "compare",
    "dossier",
    "gate",
    "guard",
    "localise",
    "preflight",
    "reconstruct",
    "reconstruct_recording",
    "tune",
]
