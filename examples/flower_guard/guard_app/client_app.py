"""A device: its records and its privacy and utility networks stay, the encoder is sent."""

from __future__ import annotations

from guard_app import task
from leakscope.integrations.flower_guard import guard_client

app = guard_client(
    task.PLAN, lambda context: task.shard(int(context.node_config["partition-id"])), seed=task.SEED
)
