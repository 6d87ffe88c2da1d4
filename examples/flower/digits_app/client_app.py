"""The client: trains on its own shard, uploads its parameters, and writes nothing down."""

from __future__ import annotations

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from digits_app import task

app = ClientApp()  # a defended client: ClientApp(mods=[defense_mod(Pruning(0.99))]), see README.md


@app.train()
def train(message: Message, context: Context) -> Message:
    settings, node = context.run_config, context.node_config
    partition, r = int(node["partition-id"]), int(message.content["config"]["server-round"])
    data = task.shard(partition, int(node["num-partitions"]))
    rows = task.batches(len(data), partition, r, batch=settings["batch"], steps=settings["local-steps"])
    model = task.normed_net() if settings["normed"] else task.net()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    task.train(model, data, rows, rate=settings["rate"])
    reply = {
        "arrays": ArrayRecord(model.state_dict()),
        "metrics": MetricRecord({"num-examples": rows.numel()}),
        "client": ConfigRecord({"name": f"site-{partition}"}),
    }
    return Message(RecordDict(reply), reply_to=message)
