"""The audit of records: how many come back, exactly and proven, from one gradient or upload."""

from leakscope.audits.records.audit import RecordsAudit
from leakscope.audits.records.recorded import RecordedRecords

__all__ = ["RecordedRecords", "RecordsAudit"]
