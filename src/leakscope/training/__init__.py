"""Who trains what: one victim on its records, or the clients of a federation on theirs."""

from __future__ import annotations

from leakscope.training.federation import federate
from leakscope.training.local import Local
from leakscope.training.partition import cut_parts, cut_sites, shards
from leakscope.training.victim import fit, logits

__all__ = ["Local", "cut_parts", "cut_sites", "federate", "fit", "logits", "shards"]
