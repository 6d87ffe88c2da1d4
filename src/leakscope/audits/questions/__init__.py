"""More questions to a recording: whose a known record is, whether a person was trained on, whose an unnamed
update is, and what canaries certify of epsilon."""

from leakscope.audits.questions.audit import QuestionAudit

__all__ = ["QuestionAudit"]
