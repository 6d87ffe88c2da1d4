"""TAPPFL between real devices, by Flower: the encoder travels, records and all other networks stay.

    app = guard_client(TAPPFL("sex", devices=2), records)                     # the ClientApp
    encoder = train_guard(grid, TAPPFL("sex", devices=2), seed=0)             # in the ServerApp

First every device is asked for a `Summary` of its records, by which all scale alike and know the base rate
of the secret. Then rounds are Flower's: the server sends the encoder, a device trains it beside its own
privacy and utility network and sends it back. Those two networks are kept in the state of the device's
SuperNode, in memory, and are in no message. Nothing is trained on records of more than one device.
"""

from __future__ import annotations

import json
import math
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from leakscope.core.columns import Column
from leakscope.core.dataset import Dataset
from leakscope.core.errors import DataError, require
from leakscope.core.task import is_number
from leakscope.guards.encoder import Encoder
from leakscope.guards.summary import Summary
from leakscope.guards.tappfl import TAPPFL, GuardFederation, weighted_mean
from leakscope.guards.trainer import check_finite
from leakscope.integrations.flower import SAMPLES, recording_strategy

from flwr.app import (  # isort: skip  after the integration, which says what is missing
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp  # isort: skip
from flwr.clientapp.typing import Mod  # isort: skip
from flwr.serverapp import Grid  # isort: skip
from flwr.serverapp.strategy import FedAvg, Strategy  # isort: skip

__all__ = ["guard_client", "train_guard"]

KEPT = "leakscope.guard"  # where a device's state keeps what never leaves it
LOSS = (
    TAPPFL.__name__
)  # what uploads of an encoder descend: no loss of a label, and audits must not take it for one
LEAST = 32  # records of a device, below which its exact means would say much of single ones
Records = Callable[[Context], Dataset]


def guard_client(
    plan: TAPPFL,
    records: Records,
    *,
    seed: int | None = None,
    least: int = LEAST,
    mods: Sequence[Mod] = (),
) -> ClientApp:
    """The app of a device. ``records`` are its own, encoded as all devices have agreed and not scaled;
    ``partition-id`` in the node's configuration says which device it is.

    Its networks begin, and its batches are drawn, by numbers from the system; with ``seed`` by that, which is
    for experiments: whoever knows it, as the server does that ships the app, knows them too. A device with
    fewer than ``least`` records tells nothing and does not take part. A SuperNode that starts anew has
    forgotten its networks, and begins with new ones.
    """
    _refuse_pooled(plan)
    require(least >= 2, "guard_client.least", "at least 2", least)
    app = ClientApp(mods=list(mods))

    def own(context: Context) -> tuple[int, Dataset]:
        i, data = _device(context, plan), records(context)
        if len(data) < least:
            raise DataError(
                f"{data.name}: device {i} has {len(data)} records, and their exact mean would go to the "
                f"server; at least {least} are needed (least)."
            )
        return i, data

    @app.query()
    def tell(message: Message, context: Context) -> Message:
        i, data = own(context)
        summary = Summary.of(data, plan.column)
        arrays = {"mean": summary.mean, "squares": summary.squares, "counts": summary.counts}
        schema = _schema(data, plan.column)
        told = ConfigRecord({"device": i, "records": summary.records, "schema": schema})
        return Message(RecordDict({"summary": ArrayRecord(arrays), "told": told}), reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        i, data = own(context)
        config = message.content.config_records["config"]
        data, summary = _scaled(data, config)
        federation = GuardFederation(plan, data, summary, seed or 0)
        device = federation.device(i, data, seed=secrets.randbits(63) if seed is None else seed)
        if KEPT in context.state.array_records:
            device.restore(context.state.array_records[KEPT].to_torch_state_dict())
        received = _fitting(message, device.own.network.state_dict())
        r = int(str(config["server-round"])) - int(str(config["unguarded"]))
        sent = device.train(received, guarded=r > 0)
        check_finite(device.own, {}, f"round {r} on device {i}")
        context.state[KEPT] = ArrayRecord(device.kept)
        reply: dict[str, ArrayRecord | MetricRecord | ConfigRecord] = {
            "arrays": ArrayRecord(dict(sent)),
            "metrics": MetricRecord({SAMPLES: len(data)}),
            "client": ConfigRecord({"name": f"device-{i}"}),
        }
        return Message(RecordDict(reply), reply_to=message)

    return app


def train_guard(
    grid: Grid,
    plan: TAPPFL,
    *,
    seed: int = 0,
    standardise: bool = True,
    recording: str | Path | None = None,
    strategy: Strategy | None = None,
    patience: float = 600.0,
) -> Encoder:
    """The encoder that ``plan.devices`` connected devices train together; call it in the ServerApp.

    ``seed`` draws the encoder that is sent out first. Records of a table are scaled, and the encoder that
    is returned prepares them itself; with ``standardise`` False, and of pictures, it takes what the devices
    gave, scaled as they had it. ``recording`` is a folder for what a curious server could keep: every global
    encoder and every upload. ``strategy`` is any of Flower's that averages; left out: FedAvg in double
    precision with the plan's ``fraction``. Devices are awaited for ``patience`` seconds.
    """
    _refuse_pooled(plan)
    like, summary = _asked(grid, plan, patience)
    standardise = standardise and like.x.dim() == 2
    config = ConfigRecord(
        {"summary": _packed(summary), "standardise": standardise, "unguarded": plan.unguarded}
    )
    preparation = summary.preparation(like) if standardise else None
    if preparation is not None:
        summary = summary.scaled(*preparation.scaling(like))
    federation = GuardFederation(plan, like, summary, seed)
    start = federation.start()
    strategy = strategy or Averaged(plan)
    if recording is not None:
        model = federation.encoder(start).network
        named = type(plan.encoder).__name__
        options: dict[str, Any] = {"model_name": named, "rate": plan.rate, "loss": LOSS, "client": "name"}
        strategy = recording_strategy(strategy, recording, model=model, **options)
    rounds = plan.unguarded + plan.rounds
    result = strategy.start(grid, ArrayRecord(dict(start)), rounds, train_config=config)
    if not result.arrays:
        raise DataError("no device has sent an encoder; see what their SuperNodes log.")
    return replace(federation.encoder(result.arrays.to_torch_state_dict()), preparation=preparation)


class Averaged(FedAvg):
    """FedAvg of encoders, in double precision and in the devices' order, so that the sum does not depend on
    who answers first: what `TAPPFL` does in one process."""

    def __init__(self, plan: TAPPFL) -> None:
        count = math.ceil(round(plan.fraction * plan.devices, 9))
        super().__init__(
            fraction_train=plan.fraction,
            fraction_evaluate=0.0,
            min_train_nodes=count,
            min_available_nodes=plan.devices,
        )

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        replies = list(replies)
        _, metrics = super().aggregate_train(server_round, replies)
        answers = sorted(
            (reply.content for reply in replies if not reply.has_error()),
            key=lambda content: str(content.config_records["client"]["name"]),
        )
        if not answers:
            return None, metrics
        states = [content.array_records["arrays"].to_torch_state_dict() for content in answers]
        weights = [float(str(content.metric_records["metrics"][SAMPLES])) for content in answers]
        return ArrayRecord(dict(weighted_mean(states, weights))), metrics


def _refuse_pooled(plan: TAPPFL) -> None:
    rule = '"jsd" or "none" where records stay with their devices'
    require(plan.pretrain != "private", "TAPPFL.pretrain", rule, plan.pretrain)


def _device(context: Context, plan: TAPPFL) -> int:
    said = context.node_config.get("partition-id")
    fine = isinstance(said, int) and 0 <= said < plan.devices
    require(fine, "the node's partition-id", f"a device from 0 to {plan.devices - 1}", said)
    return int(str(said))


def _asked(grid: Grid, plan: TAPPFL, patience: float) -> tuple[Dataset, Summary]:
    """What all devices tell of their records, together, and a record like theirs with nothing in it."""
    nodes, begun = sorted(grid.get_node_ids()), time.monotonic()
    while len(nodes) < plan.devices and time.monotonic() - begun < patience:
        time.sleep(0.5)
        nodes = sorted(grid.get_node_ids())
    if len(nodes) != plan.devices:
        raise DataError(
            f"{len(nodes)} devices are connected and the plan has {plan.devices}; start so many SuperNodes."
        )
    asked = [Message(RecordDict(), dst_node_id=node, message_type=MessageType.QUERY) for node in nodes]
    replies = list(grid.send_and_receive(asked, timeout=patience))
    for reply in replies:
        if reply.has_error():
            raise DataError(f"node {reply.metadata.src_node_id} tells no summary: {reply.error.reason}")
    told = {int(str(one.content.config_records["told"]["device"])): one.content for one in replies}
    rule = f"devices 0 to {plan.devices - 1}, one node each"
    require(len(replies) == len(told) == plan.devices, "the answers", rule, sorted(told))
    schemas = [json.loads(str(told[i].config_records["told"]["schema"])) for i in sorted(told)]
    _agree(schemas)
    return _like(schemas[0]), Summary.merged([_summary(told[i]) for i in sorted(told)])


def _summary(content: RecordDict) -> Summary:
    arrays = content.array_records["summary"].to_torch_state_dict()
    records = int(str(content.config_records["told"]["records"]))
    return Summary(records, arrays["mean"], arrays["squares"], arrays["counts"])


def _agree(schemas: Sequence[dict[str, Any]]) -> None:
    """Refuse devices whose records do not mean the same."""
    for other in schemas[1:]:
        for part, said in schemas[0].items():
            if other[part] != said:
                raise DataError(
                    f"devices must have records of the same {part}, got {said!r} and {other[part]!r}; encode "
                    f"them alike, with the same names in the same order."
                )


def _schema(data: Dataset, column: str) -> str:
    """What records are, without any of them, as JSON."""
    told = {
        "shape": list(data.x.shape[1:]),
        "type": str(data.x.dtype),
        "secret": [column, list(data.value_names(column))],
        "label": [data.label, [] if is_number(data.y) else list(data.values.get(data.label, ()))],
        "classes": 0 if is_number(data.y) else data.classes,
        "columns": [asdict(one) for one in data.columns],
    }
    return json.dumps(told)


def _like(schema: dict[str, Any]) -> Dataset:
    """One record of zeros of this schema."""
    column, names = schema["secret"]
    label, classes = schema["label"]
    columns = [Column(**{**one, "values": tuple(one["values"])}) for one in schema["columns"]]
    number = schema["classes"] == 0
    named = {} if number else {label: tuple(classes or map(str, range(schema["classes"])))}
    x = torch.zeros(1, *schema["shape"], dtype=getattr(torch, schema["type"].removeprefix("torch.")))
    return Dataset(
        x,
        torch.zeros(1) if number else torch.zeros(1, dtype=torch.long),
        {column: torch.zeros(1, dtype=torch.long)},
        name="federation",
        columns=tuple(columns),
        values=named | {column: tuple(names)},
        label=label,
    )


def _packed(summary: Summary) -> bytes:
    """A summary as bytes of JSON, which Flower keeps out of its logs."""
    mean, squares = summary.mean.flatten().tolist(), summary.squares.flatten().tolist()
    return json.dumps([summary.records, mean, squares, summary.counts.tolist()]).encode()


def _scaled(data: Dataset, config: ConfigRecord) -> tuple[Dataset, Summary]:
    """A device's records, and the summary of all devices', scaled as the server asks."""
    packed = config["summary"]
    assert isinstance(packed, bytes)
    records, *columns, counts = json.loads(packed)
    shape = (1, data.x.shape[1], *(1 for _ in data.x.shape[2:]))
    mean, squares = (torch.tensor(part, dtype=torch.float64).view(shape) for part in columns)
    summary = Summary(records, mean, squares, torch.tensor(counts))
    if not config["standardise"]:
        return data, summary
    scaling = summary.preparation(data).scaling(data)
    return data.scaled(*scaling), summary.scaled(*scaling)


def _fitting(message: Message, own: dict[str, Tensor]) -> dict[str, Tensor]:
    """The encoder that was sent, if it is one as this device would build it."""
    received = dict(message.content.array_records["arrays"].to_torch_state_dict())
    shapes = {name: tuple(tensor.shape) for name, tensor in received.items()}
    if shapes != {name: tuple(tensor.shape) for name, tensor in own.items()}:
        raise DataError(
            f"the server's encoder has layers {shapes}, and this device's has others; give both one plan."
        )
    return received
