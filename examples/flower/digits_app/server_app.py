"""The server: FedAvg, and a recording of what a curious server could keep."""

from __future__ import annotations

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from digits_app import task
from leakscope.integrations.flower import recording_strategy

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    settings = context.run_config
    model = task.normed_net() if settings["normed"] else task.net()
    strategy = recording_strategy(
        FedAvg(fraction_train=settings["fraction"], fraction_evaluate=0),
        settings["recording"],
        model=model,
        model_name="normed net" if settings["normed"] else "MLP((32,))",
        rate=settings["rate"],
        local_steps=settings["local-steps"],
        client="name",
    )
    strategy.start(grid, ArrayRecord(model.state_dict()), num_rounds=settings["rounds"])
