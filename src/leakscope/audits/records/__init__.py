"""The audit of records: how many come back, exactly and proven, from one gradient or upload."""

from leakscope.audits.records.audit import RecordsAudit

__all__ = ["RecordsAudit"]
