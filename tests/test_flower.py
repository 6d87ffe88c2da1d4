"""Flower: the recording is what crossed the wire, the strategy is untouched, the defense acts or refuses."""

from __future__ import annotations

import copy
import importlib
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from builders import refuses, same
from torch import nn

with warnings.catch_warnings():  # Flower imports typer, which asks click for a name that click retires
    warnings.simplefilter("ignore", DeprecationWarning)
    pytest.importorskip("flwr", reason='Flower is not installed; run: pip install "leakscope[flower]"')

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import strategy as strategies
from flwr.supercore.task_identity import TaskIdentity

import leakscope
from leakscope import (
    DPSGD,
    VIB,
    AdversarialPerturbation,
    Chain,
    Defense,
    Noise,
    Pruning,
    Recording,
    Sign,
    Within,
)
from leakscope.core.catalogue import roles
from leakscope.core.errors import ArgumentError, DataError, MissingExtra
from leakscope.core.rng import initialised, seeded
from leakscope.integrations.flower import defense_mod, recording_strategy
from leakscope.results import store

EXAMPLE = Path(__file__).parent.parent / "examples" / "flower"
ROUNDS, CLIENTS = 3, 3  # of real processes two of three take part in a round
REAL = 2  # rounds of the federation of real processes


@pytest.fixture(autouse=True)
def _task(monkeypatch) -> None:
    """Who this process is, as Flower's own processes are told when they start."""
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


def net() -> nn.Sequential:
    return initialised(lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), seeded(0, "net"))


def tensors(record: ArrayRecord) -> dict[str, torch.Tensor]:
    return dict(record.to_torch_state_dict())


def trained(received, node: int, r: int) -> dict[str, torch.Tensor]:
    """A client's parameters after some training or other, in float32 whatever the server sends."""
    rng = seeded(0, node, r)
    return {
        name: tensor.float() + 0.1 * torch.randn(tensor.shape, generator=rng)
        if tensor.is_floating_point()
        else tensor
        for name, tensor in received.items()
    }


def asking(arrays, *, node: int = 1, kind: str = "train") -> Message:
    """A server's message with these arrays."""
    content = {"arrays": ArrayRecord(arrays), "config": ConfigRecord({"server-round": 1})}
    return Message(RecordDict(content), dst_node_id=node, message_type=kind)


def replying(message: Message, arrays, **metrics: float) -> Message:
    content = {"arrays": ArrayRecord(arrays), "metrics": MetricRecord({"num-examples": 4} | metrics)}
    return Message(RecordDict(content), reply_to=message)


def honest(message: Message, context: Context) -> Message:
    node, r = context.node_id, message.content["config"]["server-round"]
    arrays = trained(tensors(message.content["arrays"]), node, r)
    return replying(message, arrays, **{"num-examples": 10 * node, "loss": 0.5})


@dataclass
class Wire:
    """A grid without a network: every message and every reply is copied, as it would be on the way."""

    client: Callable[[Message, Context], Message] = honest
    nodes: tuple[int, ...] = (1, 2, 3)
    node_config: Callable[[int], dict] = lambda node: {}
    run_config: dict | None = None

    def __post_init__(self) -> None:
        self.contexts = {
            node: Context(1, node, self.node_config(node), RecordDict(), self.run_config or {})
            for node in self.nodes
        }
        self.replies: list[Message] = []

    def get_node_ids(self) -> list[int]:
        return list(self.nodes)

    def send_and_receive(self, messages, *, timeout=None) -> Iterator[Message]:
        for message in sorted(messages, key=lambda message: message.metadata.dst_node_id):
            reply = self.client(copy.deepcopy(message), self.contexts[message.metadata.dst_node_id])
            self.replies.append(copy.deepcopy(reply))
            yield reply


def run(strategy, wire: Wire | None = None, *, model: nn.Module | None = None, rounds: int = ROUNDS):
    initial = ArrayRecord((model or net()).state_dict())
    return strategy.start(wire or Wire(), initial, num_rounds=rounds)


def fedavg(**options) -> strategies.FedAvg:
    return strategies.FedAvg(fraction_evaluate=0.0, **options)


class Checkpoints(strategies.FedAvg):
    """As people write them: its own loop around Flower's."""

    def start(self, *arguments, **options):
        self.begun = True
        result = super().start(*arguments, **options)
        result.rounds = options["num_rounds"]
        return result


STRATEGIES = {
    "FedAvg": fedavg,
    "FedAvgM": lambda: strategies.FedAvgM(fraction_evaluate=0.0, server_momentum=0.9),
    "FedAdam": lambda: strategies.FedAdam(fraction_evaluate=0.0),
    "FedMedian": lambda: strategies.FedMedian(fraction_evaluate=0.0),
    "clipped": lambda: strategies.DifferentialPrivacyServerSideFixedClipping(fedavg(), 0.0, 0.01, 3),
    "own loop": lambda: Checkpoints(fraction_evaluate=0.0),
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_any_strategy_decides_the_same_and_every_upload_is_recorded_bit_by_bit(name, tmp_path):
    plain, wire = run(STRATEGIES[name]()), Wire()
    strategy = STRATEGIES[name]()
    recorded = run(recording_strategy(strategy, tmp_path / "run", model=net(), rate=0.1), wire)
    assert same(tensors(plain.arrays), tensors(recorded.arrays))
    assert plain.train_metrics_clientapp == recorded.train_metrics_clientapp
    assert vars(plain).keys() == vars(recorded).keys()
    assert not {"configure_train", "aggregate_train"} & vars(strategy).keys()

    recording = Recording(tmp_path / "run")
    recording.complete()
    recording.check(net())
    assert recording.rounds == (1, 2, 3, 4)
    assert recording.clients == ("1", "2", "3")
    for i, reply in enumerate(wire.replies):
        r, node = i // 3 + 1, str(reply.metadata.src_node_id)
        assert same(recording.uploaded(r, node), tensors(reply.content["arrays"]))
        assert recording.samples(r, node) == 10 * int(node)
        assert recording.rate(r, node) == 0.1
    assert same(recording.global_model(1), dict(net().named_parameters()))


def test_the_global_model_is_the_mean_of_the_uploads_before_and_the_last_is_the_result(tmp_path):
    result = run(recording_strategy(fedavg(), tmp_path, model=net()))
    recording = Recording(tmp_path)
    assert same(recording.global_model(4), tensors(result.arrays))
    for r in (1, 2, 3):
        step, after = recording.aggregate(r), recording.global_model(r + 1)
        for name, tensor in recording.global_model(r).items():
            torch.testing.assert_close(tensor - step[name], after[name])


def test_replies_that_failed_or_saw_no_record_are_left_out(tmp_path):
    def client(message, context):
        if context.node_id == 2:
            return Message(Error(0, "out of memory"), reply_to=message)
        reply = honest(message, context)
        if context.node_id == 3:
            reply.content["metrics"]["num-examples"] = 0
        return reply

    run(recording_strategy(fedavg(), tmp_path, model=net()), Wire(client))
    assert {Recording(tmp_path).clients_in(r) for r in (1, 2, 3)} == {("1",)}


def test_a_client_is_called_what_its_reply_says(tmp_path):
    def client(message, context):
        reply = honest(message, context)
        reply.content["metrics"]["site"] = float(context.node_id)
        if context.node_id > 1:
            reply.content["who"] = ConfigRecord({"name": f"hospital {context.node_id}"})
        return reply

    run(recording_strategy(fedavg(), tmp_path / "words", client="name"), Wire(client))
    run(recording_strategy(fedavg(), tmp_path / "numbers", client="site"), Wire(client))
    assert Recording(tmp_path / "words").clients == ("1", "hospital 2", "hospital 3")
    assert Recording(tmp_path / "numbers").clients == ("1", "2", "3")


def test_the_model_tells_parameters_from_buffers(tmp_path):
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    run(recording_strategy(fedavg(), tmp_path / "with", model=model), model=model)
    assert list(Recording(tmp_path / "with").layers) == [name for name, _ in model.named_parameters()]
    assert Recording(tmp_path / "with").buffers == ("1.running_mean", "1.running_var")
    run(recording_strategy(fedavg(), tmp_path / "without"), model=model)  # torch's own names say it too
    whole, bare = (Recording(tmp_path / name) for name in ("with", "without"))
    assert (whole.layers, whole.buffers) == (bare.layers, bare.buffers)
    assert same(whole.statistics(2), bare.statistics(2))


def test_arrays_sent_as_a_list_get_the_names_of_the_model(tmp_path):
    arrays = ArrayRecord([value.numpy() for value in net().state_dict().values()])
    for folder, model, names in (("with", net(), list(net().state_dict())), ("without", None, list("0123"))):
        recording_strategy(fedavg(), tmp_path / folder, model=model).start(Wire(), arrays, num_rounds=1)
        recording = Recording(tmp_path / folder)
        assert list(recording.layers) == names
        assert same(recording.global_model(1), dict(zip(names, net().state_dict().values(), strict=True)))


def test_a_folder_holds_one_run(tmp_path):
    run(recording_strategy(fedavg(), tmp_path, model=net()))
    refuses(DataError, "already holds a recording", recording_strategy, fedavg(), tmp_path, model=net())
    assert len(Recording(tmp_path).clients) == 3


def test_a_round_without_training_leaves_no_trace(tmp_path):
    run(recording_strategy(strategies.FedAvg(fraction_train=0.0, fraction_evaluate=0.0), tmp_path / "run"))
    assert not (tmp_path / "run").exists()


class Deaf(strategies.FedAvg):
    """Takes whatever comes, and sends out the same model."""

    def aggregate_train(self, server_round, replies):
        return ArrayRecord(net().state_dict()), MetricRecord({"replies": len(list(replies))})


def test_different_models_in_one_round_are_not_recorded_and_training_goes_on(tmp_path, caplog):
    class Personal(strategies.FedAvg):
        def configure_train(self, server_round, arrays, config, grid):
            for message in super().configure_train(server_round, arrays, config, grid):
                own = ArrayRecord(trained(tensors(arrays), message.metadata.dst_node_id, 0))
                message.content = RecordDict({"arrays": own, "config": config})
                yield message

    plain, recorded = run(Personal()), run(recording_strategy(Personal(), tmp_path / "run"))
    assert same(tensors(plain.arrays), tensors(recorded.arrays))
    assert "has not recorded round 1: round 1 sends clients different models" in caplog.text
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda content: content["metrics"].pop("num-examples"),
            "under 'num-examples'.* got None; add MetricRecord",
        ),
        (lambda content: content["metrics"].update({"num-examples": 1.5}), "got 1.5"),
        (
            lambda content: content["arrays"].update(more=Array(np.zeros(2))),
            "'more' is .2. in what was given",
        ),
        (lambda content: content.pop("arrays"), "must hold one array record.* it holds none"),
        (
            lambda content: content["arrays"].update(more=Array(np.array(["words"]))),
            "can't convert np.ndarray of type numpy.str_",
        ),
    ],
)
def test_a_reply_that_cannot_be_recorded_is_logged_and_training_goes_on(change, words, tmp_path, caplog):
    def client(message, context):
        reply = honest(message, context)
        if context.node_id == 2:
            change(reply.content)
        return reply

    result = run(recording_strategy(Deaf(fraction_evaluate=0.0), tmp_path, model=net()), Wire(client))
    assert result.train_metrics_clientapp[3] == {"replies": 3}
    lines = [record.getMessage() for record in caplog.records if record.name == "leakscope"]
    assert len(lines) == ROUNDS
    assert all(re.search("has not recorded the reply of node 2 in round .*" + words, line) for line in lines)
    assert all(Recording(tmp_path).clients_in(r) == ("1", "3") for r in (1, 2, 3))


def test_a_full_disk_does_not_stop_a_training(tmp_path, monkeypatch, caplog):
    def full(_):
        raise OSError("No space left on device")

    plain = run(fedavg())
    monkeypatch.setattr("os.fsync", full)
    recorded = run(recording_strategy(fedavg(), tmp_path / "run", model=net()))
    assert same(tensors(plain.arrays), tensors(recorded.arrays))
    assert "No space left on device" in caplog.text


def test_records_are_counted_by_the_key_of_the_strategy(tmp_path):
    def client(message, context):
        reply = honest(message, context)
        reply.content["metrics"] = MetricRecord({"n": 7 * context.node_id})
        return reply

    for name, strategy in (
        ("plain", fedavg(weighted_by_key="n")),
        (
            "wrapped",
            strategies.DifferentialPrivacyServerSideFixedClipping(fedavg(weighted_by_key="n"), 0.0, 0.01, 3),
        ),
    ):
        run(recording_strategy(strategy, tmp_path / name, model=net()), Wire(client))
        assert [Recording(tmp_path / name).samples(2, c) for c in "123"] == [7, 14, 21]


def test_array_records_beside_the_parameters_are_recorded(tmp_path):
    def client(message, context):
        reply = honest(message, context)
        reply.content["control"] = ArrayRecord(
            {k: 0.5 * v for k, v in tensors(reply.content["arrays"]).items()}
        )
        return reply

    run(recording_strategy(Deaf(fraction_evaluate=0.0), tmp_path, model=net()), Wire(client))
    found = Recording(tmp_path)
    assert found.gradients == ["control"]
    assert same(found.further(1, "2", "control"), {k: 0.5 * v for k, v in found.uploaded(1, "2").items()})


def test_what_is_no_strategy_is_refused_with_the_way_out(tmp_path):
    words = "must be one of flwr.serverapp.strategy or flwr.server.strategy, got .*object; call"
    refuses(ArgumentError, words, recording_strategy, object(), tmp_path)


def test_a_pickled_array_is_never_opened(tmp_path, caplog):
    class Trap:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "sprung",))

    def client(message, context):
        from io import BytesIO

        buffer, reply = BytesIO(), honest(message, context)
        np.save(buffer, np.array([Trap()], dtype=object), allow_pickle=True)
        reply.content["arrays"]["0.bias"] = Array("object", (1,), "numpy.ndarray", buffer.getvalue())
        return reply

    run(recording_strategy(Deaf(fraction_evaluate=0.0), tmp_path / "run", model=net()), Wire(client))
    assert "allow_pickle=False" in caplog.text
    assert not (tmp_path / "sprung").exists()


# The defense mod


def answer(mod, *, train=honest, kind="train", node=7, context=None) -> tuple[dict, dict, Message]:
    """What a client with the mod received, what it trained, and what it sends."""
    app = ClientApp(mods=[mod])
    app.train()(train)
    app.evaluate()(train)
    message = asking(net().state_dict(), node=node, kind=kind)
    context = context or Context(1, node, {}, RecordDict(), {})
    received = tensors(message.content["arrays"])
    reply = app(copy.deepcopy(message), context)
    return received, trained(received, node, 1), reply


def flat(params) -> torch.Tensor:
    return torch.cat([tensor.double().flatten() for tensor in params.values()])


def test_no_defense_sends_what_was_trained_bit_by_bit():
    tiny = nn.Sequential(nn.Linear(50, 40), nn.Linear(40, 2))

    def client(message, context):
        rng = seeded(1)
        arrays = {
            name: torch.randn(tensor.shape, generator=rng)
            * 10.0 ** torch.randint(-30, 5, tensor.shape, generator=rng)
            for name, tensor in tiny.state_dict().items()
        }
        return replying(message, arrays)

    message, context = asking(tiny.state_dict()), Context(1, 1, {}, RecordDict(), {})
    bare = client(message, context)
    for mod in (defense_mod(Defense()), defense_mod(Chain(), scale=0.37), defense_mod(Noise(0.0), seed=0)):
        assert same(tensors(mod(message, context, client).content["arrays"]), tensors(bare.content["arrays"]))


@pytest.mark.parametrize("scale", [1.0, 0.01])
def test_pruning_sends_the_largest_changes_as_trained_and_the_rest_as_received(scale):
    received, after, reply = answer(defense_mod(Pruning(0.75), scale=scale))
    before, own, sent = flat(received), flat(after), flat(tensors(reply.content["arrays"]))
    kept = (before - own).abs().argsort(descending=True)[: len(own) - round(0.75 * len(own))]
    expected = before.clone()
    expected[kept] = own[kept]
    assert torch.equal(sent, expected)
    assert list(tensors(reply.content["arrays"])) == list(received)


@pytest.mark.parametrize("scale", [1.0, 0.01])
def test_sign_moves_every_parameter_by_the_scale(scale):
    received, after, reply = answer(defense_mod(Sign(), scale=scale))
    before, own = flat(received), flat(after)
    expected = before - scale * (before - own).sign()
    torch.testing.assert_close(flat(tensors(reply.content["arrays"])).float(), expected.float())


def upload(mod, context) -> torch.Tensor:
    arrays = {"layer": torch.zeros(100, 400)}
    reply = mod(asking(arrays), context, lambda message, _: replying(message, arrays))
    return tensors(reply.content["arrays"])["layer"]


@pytest.mark.parametrize("scale", [1.0, 0.1])
def test_noise_has_its_standard_deviation_in_units_of_the_scale(scale):
    from scipy import stats

    noise = upload(defense_mod(Noise(0.5), seed=0, scale=scale), Context(1, 1, {}, RecordDict(), {}))
    assert stats.kstest(noise.flatten().numpy(), "norm", args=(0, 0.5 * scale)).pvalue > 0.01


def test_no_two_uploads_share_their_noise_and_a_seed_repeats_a_run():
    def uploads(seed, config) -> list[torch.Tensor]:
        context = Context(1, 1, config, RecordDict(), {})
        return [upload(defense_mod(Noise(1.0), seed=seed), context) for _ in range(2)]

    runs = [
        *uploads(0, {"partition-id": 0}),
        *uploads(0, {"partition-id": 1}),
        *uploads(1, {"partition-id": 0}),
    ]
    fresh = [*uploads(None, {}), *uploads(None, {})]
    everything = torch.stack([noise.flatten() for noise in [*runs, *fresh]])
    assert torch.corrcoef(everything).fill_diagonal_(0).abs().max() < 0.03  # 6 standard errors of 40,000
    again = uploads(0, {"partition-id": 0})
    assert torch.equal(again[0], runs[0])
    assert torch.equal(again[1], runs[1])


def test_only_training_replies_that_succeeded_are_defended():
    _, after, reply = answer(defense_mod(Sign()), kind="evaluate")
    assert same(tensors(reply.content["arrays"]), after)
    *_, reply = answer(
        defense_mod(Sign()), train=lambda message, _: Message(Error(0, "broken"), reply_to=message)
    )
    assert reply.error.reason == "broken"


def test_an_app_that_empties_its_message_is_defended_all_the_same():
    def hungry(message, context):
        arrays = message.content["arrays"].to_torch_state_dict(keep_input=False)
        return replying(message, trained(arrays, 7, 1))

    *_, expected = answer(defense_mod(Pruning(0.75)))
    *_, reply = answer(defense_mod(Pruning(0.75)), train=hungry)
    assert same(tensors(reply.content["arrays"]), tensors(expected.content["arrays"]))


def test_a_layer_can_be_named_and_counters_pass():
    received, after, reply = answer(defense_mod(Within(Sign(), ("0.weight",))))
    sent = tensors(reply.content["arrays"])
    assert same({**sent, "0.weight": after["0.weight"]}, after)
    assert (received["0.weight"] - sent["0.weight"]).abs().allclose(torch.ones(4, 3))

    def counted(message, context):
        reply = honest(message, context)
        reply.content["arrays"]["count"] = Array(np.array(5))
        return reply

    message = asking({**net().state_dict(), "count": torch.tensor(4)}, node=7, kind="train.again")
    reply = defense_mod(Sign())(message, Context(1, 7, {}, RecordDict(), {}), counted)
    assert tensors(reply.content["arrays"])["count"] == 5


def test_batch_statistics_are_sent_as_they_are():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    message = asking(model.state_dict(), node=7)
    context, noise = Context(1, 7, {}, RecordDict(), {}), defense_mod(Noise(10.0))
    after = trained(model.state_dict(), 7, 1)
    sent = tensors(noise(message, context, honest).content["arrays"])
    for name in sent:
        assert torch.equal(sent[name], after[name]) == ("running" in name or "tracked" in name)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda content: content.update(more=content["arrays"]),
            "as others would go out undefended, and it holds 2",
        ),
        (
            lambda content: content["arrays"].update(more=Array(np.zeros(2))),
            r"'more' has shape \(2,\) .* and None in",
        ),
        (
            lambda content: content["arrays"].update({"0.bias": Array(np.zeros(2))}),
            r"\(2,\) in the reply and \(4,\)",
        ),
        (lambda content: content["metrics"].pop("num-examples"), "under 'num-examples'"),
    ],
)
def test_what_cannot_be_defended_is_not_sent(change, words):
    def client(message, context):
        reply = honest(message, context)
        change(reply.content)
        return reply

    refuses(DataError, words, answer, defense_mod(Sign()), train=client)


@pytest.mark.parametrize("name", sorted({*roles("defense")} - {"Within", "Chain", "Defense"}))
def test_every_defense_changes_the_upload_or_is_refused(name):
    defense = getattr(leakscope, name)()
    try:
        mod = defense_mod(defense, seed=0)
    except ArgumentError as refusal:
        assert name not in ("Pruning", "Sign", "Noise")
        assert name in str(refusal)
        return
    _, after, reply = answer(mod)
    assert not same(tensors(reply.content["arrays"]), after)


@pytest.mark.parametrize(
    "defense", [DPSGD(), VIB(), Chain(Pruning(), DPSGD()), Within(DPSGD(), ("0.weight",))]
)
def test_what_acts_inside_training_is_sent_there(defense):
    refuses(ArgumentError, r"must act on a finished update.* inside the local steps", defense_mod, defense)


def test_a_defense_that_would_do_nothing_is_refused():
    with pytest.raises(ArgumentError, match=r"AdversarialPerturbation.*would leave every upload as it is"):
        defense_mod(AdversarialPerturbation())
    with pytest.raises(ArgumentError, match=r"defense_mod\.scale must be positive and finite, got 0"):
        defense_mod(Sign(), scale=0)


def test_without_flower_the_pip_line_is_given(monkeypatch):
    monkeypatch.setitem(sys.modules, "flwr.app", None)
    monkeypatch.delitem(sys.modules, "leakscope.integrations.flower")
    with pytest.raises(MissingExtra, match=r'pip install "leakscope\[flower\]"'):
        importlib.import_module("leakscope.integrations.flower")


# The example, first without a network and then as real processes


def example(name: str):
    """A module of the example, which Flower would import from its own folder."""
    sys.path.insert(0, str(EXAMPLE))
    try:
        return importlib.import_module(f"digits_app.{name}")
    finally:
        sys.path.remove(str(EXAMPLE))


def check_by_hand(
    folder: Path, *, rounds: int, clients: int, rate: float, batch: int, steps: int, net="net", a_round=None
) -> None:
    """The recording is whole, and is what FedAvg by plain autograd gives on the same batches."""
    task, recording = example("task"), Recording(folder)
    recording.complete()
    assert recording.rounds == tuple(range(1, rounds + 2))
    model = getattr(task, net)()
    recording.check(model)

    def state(r):
        return {**recording.global_model(r), **recording.statistics(r)}

    for r in range(1, rounds + 1):
        expected = {name: tensor for name, tensor in model.state_dict().items() if tensor.is_floating_point()}
        torch.testing.assert_close(state(r), {name: expected[name] for name in state(r)})
        assert set(state(r)) == set(expected)
        assert len(recording.clients_in(r)) == (a_round or clients)
        assert set(recording.clients_in(r)) <= {f"site-{i}" for i in range(clients)}
        uploads = []
        for i in sorted(int(name.removeprefix("site-")) for name in recording.clients_in(r)):
            data, local = task.shard(i, clients), copy.deepcopy(model)
            for rows in task.batches(len(data), i, r, batch=batch, steps=steps):
                loss = nn.functional.cross_entropy(local(data.x[rows]), data.y[rows])
                gradient = torch.autograd.grad(loss, list(local.parameters()))
                with torch.no_grad():
                    for parameter, slope in zip(local.parameters(), gradient, strict=True):
                        parameter -= rate * slope
            if steps == 1:
                slope = torch.cat([layer.double().flatten() for layer in gradient])
                update = flat(recording.update(r, f"site-{i}"))
                assert torch.cosine_similarity(update, slope, dim=0) > 0.999999
                torch.testing.assert_close(update / rate, slope, rtol=1e-4, atol=1e-6)
            torch.testing.assert_close(recording.uploaded(r, f"site-{i}"), dict(local.named_parameters()))
            assert recording.samples(r, f"site-{i}") == batch * steps
            assert (recording.rate(r, f"site-{i}"), recording.steps(r, f"site-{i}")) == (rate, steps)
            uploads.append(local.state_dict())
        model.load_state_dict(
            {name: sum(upload[name] for upload in uploads) / len(uploads) for name in uploads[0]}
        )
    torch.testing.assert_close(recording.global_model(rounds + 1), dict(model.named_parameters()))


@pytest.mark.parametrize(("net", "fraction"), [("net", 1.0), ("normed_net", 0.7)])
def test_the_example_is_fedavg_by_hand(tmp_path, net, fraction):
    settings = {"recording": str(tmp_path / "run"), "rounds": 2, "rate": 0.2, "batch": 8, "local-steps": 4}
    settings |= {"normed": net == "normed_net", "fraction": fraction}
    wire = Wire(
        example("client_app").app,
        (11, 22, 33),
        lambda node: {"partition-id": node // 11 - 1, "num-partitions": 3},
        settings,
    )
    example("server_app").app(wire, Context(1, 0, {}, RecordDict(), settings))
    a_round = int(3 * fraction)
    check_by_hand(tmp_path / "run", rounds=2, clients=3, rate=0.2, batch=8, steps=4, net=net, a_round=a_round)


def environment(home: Path) -> dict[str, str]:
    """Flower quiet, offline and at home in a folder of its own."""
    return {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",  # it starts its own by name
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "OMP_NUM_THREADS": "1",
    }


@contextmanager
def process(log: Path, *command: object) -> Iterator[subprocess.Popen]:
    """A program of Flower's and whatever it starts; in the end all of it, and nothing else, is ended."""
    with log.open("w") as out:
        started = subprocess.Popen(
            [str(word) for word in (Path(sys.executable).parent / str(command[0]), *command[1:])],
            cwd=log.parent,
            env=environment(log.parent / "home"),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield started
    finally:
        for end in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.killpg(started.pid, end)
                started.wait(20)


def free_ports(n: int) -> list[int]:
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(n)]
        for listener in sockets:
            listener.bind(("127.0.0.1", 0))
        return [listener.getsockname()[1] for listener in sockets]


def await_port(port: int, program: subprocess.Popen) -> None:
    for _ in range(600):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0 or program.poll() is not None:
                return
        time.sleep(0.1)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> Path:
    """The recording of two rounds between a SuperLink and three SuperNodes on the loopback device: a net with
    batch normalisation, and two of three clients in each round."""
    folder = tmp_path_factory.mktemp("federation")
    (folder / "home").mkdir()
    link, *ports = free_ports(1 + CLIENTS)
    address, local = f"127.0.0.1:{link}", ("--insecure", "--host", "127.0.0.1", "--port")
    (folder / "home" / "config.toml").write_text(
        f'[superlink.deploy]\naddress = "{address}"\ninsecure = true\n'
    )
    settings = f'recording="{folder / "recording"}" rounds={REAL} normed=true fraction=0.7'
    with ExitStack() as running:
        server = running.enter_context(process(folder / "superlink.log", "flower-superlink", *local, link))
        await_port(link, server)
        for i, port in enumerate(ports):
            shard = f"partition-id={i} num-partitions={CLIENTS}"
            node = ("flower-supernode", "--superlink", address, *local, port, "--node-config", shard)
            running.enter_context(process(folder / f"supernode-{i}.log", *node))
        order = ("flwr", "run", EXAMPLE, "deploy", "--stream", "--run-config", settings)
        client = running.enter_context(process(folder / "run.log", *order))
        with suppress(subprocess.TimeoutExpired):
            client.wait(300)
    said = "\n".join(
        f"{log.name}:\n{log.read_text(errors='replace')}" for log in sorted(folder.glob("*.log"))
    )
    assert client.returncode == 0, said
    assert (folder / "recording").exists(), said
    return folder / "recording"


@pytest.mark.slow
def test_a_federation_of_real_processes_is_recorded_as_it_was(recorded):
    normed = {"net": "normed_net", "a_round": 2}
    check_by_hand(recorded, rounds=REAL, clients=CLIENTS, rate=0.1, batch=16, steps=1, **normed)


def trained_rows(recorded: Path, i: int) -> set[int]:
    """The rows of its shard that a site of the example has trained on."""
    task, recording = example("task"), Recording(recorded)
    records, rounds = len(task.shard(i, CLIENTS)), range(1, REAL + 1)
    own = [r for r in rounds if f"site-{i}" in recording.clients_in(r)]
    return {row for r in own for row in task.batches(records, i, r, batch=16, steps=1).flatten().tolist()}


@pytest.mark.slow
def test_what_flower_recorded_is_audited_as_the_readme_says(recorded, leakscope, tmp_path):
    page = (EXAMPLE / "README.md").read_text(encoding="utf-8")
    python, shell = re.findall(r"```(?:python|bash)\n([^`]*candidates\.npz[^`]*)```", page)
    code = python.replace("/tmp/leakscope-flower/recording", str(recorded))
    code = code.replace("/tmp/leakscope-flower", str(tmp_path)).replace("(i, 2)", f"(i, {CLIENTS})")
    example("task")
    exec(code.replace("range(2)", f"range({CLIENTS})"), {})
    arrays = np.load(tmp_path / "candidates.npz")
    sites = {f"site-{i}": len(trained_rows(recorded, i)) for i in range(CLIENTS)}
    assert {name: int((arrays["client"] == name).sum()) for name in sites} == sites
    command = shell.replace("/tmp/leakscope-flower/recording", str(recorded))
    command = command.replace("/tmp/leakscope-flower", str(tmp_path)).replace("\\\n", " ")
    name, *arguments = shlex.split(
        command.replace("MLP", "digits_app.task.normed_net --trust digits_app.task")
    )
    assert name == "leakscope"
    np.savez(tmp_path / "candidates.npz", **arrays, odd=arrays["y"] % 2)
    every = ("--ask", "source", "--ask", "sums", "--ask", "property", "--secret", "odd")  # one command, all
    for seen, asks in (("uploads", every), ("sum", ("--ask", "source")), ("broadcast", ())):
        folder = tmp_path / seen
        words = [str(folder) if word == str(tmp_path / "audit") else word for word in arguments]
        shown = leakscope(*words, "--jobs", "1", "--seen", seen, *asks)
        assert shown.code == 0, shown.err
        assert "Who was trained on" in (folder / "report.html").read_text(encoding="utf-8")
        audits = {(one.cell.id, one.found.seen): one.found for one in store.results(folder) if one.found}
        sums = {"membership in sums"} if seen == "uploads" else set()
        assert {audit for audit, how in audits if how == "sum" != seen} == sums
        found = {audit: one for (audit, how), one in audits.items() if how == seen}
        members = found["membership"]
        assert set(members.watched) == {name for name, rows in sites.items() if rows}
        assert ("FedAvg" in members.server) == (seen != "broadcast")
        if seen == "sum":  # two of three in two rounds: somebody is in both
            (why,) = found["questions"].unasked
            assert "somebody took part in every round" in why
            assert not found["questions"].answers
        if seen == "uploads":
            answers = [answer.question for answer in found["questions"].answers]
            assert (answers, len(found["questions"].unasked)) == (["source", "property"], 0)
            strong = next(one for one in members.attacks if one.name.startswith("Whitened"))
            assert strong.scores.auroc.low > 0.5  # sixteen records a round: each one shows
