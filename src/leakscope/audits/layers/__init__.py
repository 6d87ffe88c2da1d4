"""Which layer of a model gives away what: with attacks, without, and after protecting it (paper 001)."""

from __future__ import annotations

from leakscope.audits.layers.audit import LayerAudit

__all__ = ["LayerAudit"]
