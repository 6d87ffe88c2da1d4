"""Recordings: the updates of a federation on disk, so that they can be audited later and elsewhere.

    recording.json                          the model's layers, the clients, the rounds, who wrote it
    round-000003-global.safetensors         the parameters the server sent out in round 3
    round-000003-client-alice.safetensors   the parameters alice uploaded in round 3

A tensor file is whole before the index names it, so whoever reads finds a consistent recording at any
moment, and what a killed writer leaves behind is never read. The index holds a digest of each file's
digests of its layers, so that damage is found in whatever is read. Nothing is pickled.

**The sign.** An update is Γ = global − uploaded: it points along the gradient, and after one step of
plain SGD Γ / rate is the gradient (paper 002 prints the opposite sign).
"""

from __future__ import annotations

from leakscope.training.recording.canaries import Canaries
from leakscope.training.recording.reader import Recording
from leakscope.training.recording.replay import RecordedChannel
from leakscope.training.recording.writer import Recorder

__all__ = ["Canaries", "RecordedChannel", "Recorder", "Recording"]
