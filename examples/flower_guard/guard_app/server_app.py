"""The server: averages encoders, keeps the last one, and records what a curious server could keep."""

from __future__ import annotations

from dataclasses import replace

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from guard_app import task
from leakscope.integrations.flower_guard import train_guard

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    settings = context.run_config
    plan = replace(task.PLAN, rounds=settings["rounds"])
    encoder = train_guard(grid, plan, seed=task.SEED, recording=settings["recording"])
    encoder.save(settings["encoder"])
