"""TAPPFL by Flower: the same encoder as in one process, and nothing else leaves a device."""

from __future__ import annotations

import functools
import importlib
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from builders import refuses
from guard_cells import people
from released import dataset, patients

from leakscope import TAPPFL, Dataset, Recording, TableEncoder, seeded
from leakscope.core.dataset import joined, statistics
from leakscope.core.errors import ArgumentError, DataError
from leakscope.guards.preparation import Preparation
from leakscope.guards.saved import load_encoder
from leakscope.guards.summary import Summary
from leakscope.guards.tappfl import GuardFederation

pytest.importorskip("flwr", reason='Flower is not installed; run: pip install "leakscope[flower]"')

from flwr.serverapp.strategy import FedAvg
from test_flower import Wire, _task, await_port, free_ports, process  # noqa: F401  a fixture

from leakscope import audit_recording
from leakscope.integrations.flower_guard import KEPT, guard_client, train_guard
from leakscope.results import store

ROUNDS = 1  # beside the one without the privacy term, of the federation of real processes
EXAMPLE = Path(__file__).parent.parent / "examples" / "flower_guard"
PLAN = TAPPFL(
    "u",
    devices=2,
    fraction=1.0,
    rounds=2,
    local_epochs=1,
    rate=0.1,
    pretraining=1,
    encoder=TableEncoder((6, 4)),
    hidden=(4,),
)


def parts(plan: TAPPFL = PLAN) -> list[Dataset]:
    """Devices of different sizes, whose columns have different means and spreads, not scaled."""
    sizes = [40 + 20 * i for i in range(plan.devices)]
    data = people(sum(sizes))
    data = replace(data, x=data.x * (torch.arange(10) + 1) + 7 * torch.arange(10))
    return [data.take(rows) for rows in torch.arange(sum(sizes)).split(sizes)]


def in_process(plan: TAPPFL, records: list[Dataset], *, seed: int = 3):
    """The encoder of the federation in one process, on records that are scaled alike, and its devices."""
    together = joined(records)
    scaling = Preparation.known(*(p[0] for p in statistics(together)), together.columns).scaling(together)
    federation = GuardFederation.of(plan, [part.scaled(*scaling) for part in records], seed)
    state = federation.start()
    for r in range(-plan.unguarded, plan.rounds):
        state, _ = federation.round(r, state, seeded(0))
    return state, federation


def wire(
    plan: TAPPFL = PLAN, records: Callable[[int], Dataset] | None = None, *, seed: int | None = 3
) -> Wire:
    """Devices without a network between them and the server; the first node is not the first device."""
    own = records or (lambda i: parts(plan)[i])
    app = guard_client(plan, lambda context: own(int(context.node_config["partition-id"])), seed=seed)
    nodes = tuple(range(1, plan.devices + 1))
    return Wire(app, nodes, lambda node: {"partition-id": plan.devices - node})


def same(one, other) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]), name


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"pretrain": "none", "loss": "adversarial", "lam": (0.2, 0.8)},
        {"perturbation": "gaussian", "normed": True, "utility": "labels", "steps": 2},
        {"devices": 3, "lam": 1.0, "steps": 0, "loss": "mmd"},
    ],
)
def test_devices_apart_make_the_encoder_of_one_process_bit_for_bit(changes):
    plan = replace(PLAN, **changes)
    state, federation = in_process(plan, parts(plan))
    apart = wire(plan)
    encoder = train_guard(apart, plan, seed=3)
    same(encoder.network.state_dict(), state)
    assert encoder.head is None
    for node, context in apart.contexts.items():  # and each device's own networks are those of one process
        kept = context.state.array_records[KEPT].to_torch_state_dict()
        same(dict(kept), federation.members[plan.devices - node].kept)


def test_with_an_autoencoder_the_two_agree_to_rounding():
    plan = replace(PLAN, utility="autoencoder")
    state, _ = in_process(plan, parts(plan))
    torch.testing.assert_close(train_guard(wire(plan), plan, seed=3).network.state_dict(), dict(state))


def test_flowers_own_average_differs_by_rounding_only():
    state, _ = in_process(PLAN, parts())
    encoder = train_guard(wire(), PLAN, seed=3, strategy=FedAvg(fraction_evaluate=0.0))
    torch.testing.assert_close(encoder.network.state_dict(), dict(state), rtol=1e-5, atol=1e-6)


def test_only_the_encoder_and_the_summary_leave_a_device():
    apart = wire()
    encoder = train_guard(apart, PLAN, seed=3)
    own = set(encoder.network.state_dict())
    asked, rounds = apart.replies[:2], apart.replies[2:]
    assert [set(reply.content["summary"]) for reply in asked] == [{"mean", "squares", "counts"}] * 2
    assert len(rounds) == 2 * (1 + PLAN.rounds)
    for reply in rounds:
        assert {name: set(record) for name, record in reply.content.array_records.items()} == {"arrays": own}
        assert dict(reply.content["metrics"]).keys() == {"num-examples"}
        assert dict(reply.content["client"]).keys() == {"name"}


def test_summaries_add_up_to_the_statistics_of_all_records():
    records = [part.take(torch.arange(n)) for part, n in zip(parts(), (40, 3), strict=True)]
    far = [replace(part, x=(part.x.double() + 1e6)) for part in records]  # sums of squares would lose this
    for some in (records, far):
        summary, together = Summary.merged([Summary.of(part, "u") for part in some]), joined(some)
        for found, expected in zip(summary.scaling(together), statistics(together), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
        assert summary.counts.tolist() == together.private["u"].bincount(minlength=2).tolist()
        assert summary.variance(10) == pytest.approx(float(together.x.double().var()), rel=1e-9)
        scaled = summary.scaled(*summary.scaling(together))
        torch.testing.assert_close(scaled.mean, torch.zeros(1, 10).double(), rtol=0, atol=1e-6)


def test_pictures_are_summed_by_channel():
    x = torch.rand(30, 3, 4, 4, generator=seeded(0))
    data = Dataset(x, torch.arange(30) % 2, {"u": torch.arange(30) % 2})
    halves = [data.take(rows) for rows in torch.arange(30).split([10, 20])]
    summary = Summary.merged([Summary.of(part, "u") for part in halves])
    for found, expected in zip(summary.scaling(data), statistics(data), strict=True):
        torch.testing.assert_close(found, expected)
    assert summary.variance(48) == pytest.approx(float(x.double().var()))


def test_the_saved_encoder_prepares_raw_records_and_devices_without_a_seed_differ(tmp_path):
    encoder = train_guard(wire(), PLAN, seed=3)
    encoder.save(tmp_path)
    saved, x = load_encoder(tmp_path), joined(parts()).x
    assert saved.preparation is not None
    assert saved.preparation.scale.tolist() == [
        float(f"{one:.1e}") for one in x.std(0, correction=0).tolist()
    ]
    near = (saved.preparation.shift - x.mean(0)).abs() / saved.preparation.step
    assert float(near.max()) < 1
    inputs = saved.preparation.inputs(x.double())
    torch.testing.assert_close(inputs, (x.double() - x.mean(0)) / x.std(0), rtol=0.06, atol=0.1)
    torch.testing.assert_close(saved(x), saved.network(inputs.float()), rtol=1e-4, atol=1e-5)
    other = train_guard(wire(seed=None), PLAN, seed=3)
    assert not torch.equal(other.network[0].weight, encoder.network[0].weight)


def test_an_encoder_of_devices_with_tables_takes_a_table():
    frame = patients()
    data = dataset(frame)
    plan = replace(PLAN, column="sex")
    halves = [data.take(rows) for rows in torch.arange(400).split(200)]
    encoder = train_guard(wire(plan, lambda i: halves[i]), plan, seed=3)
    assert torch.equal(encoder(frame), encoder(data.x))
    shift, scale = statistics(data)
    inputs = encoder.preparation.inputs(data.x)
    torch.testing.assert_close(inputs, (data.x - shift) / scale, rtol=0.06, atol=0.1)
    dummies = [i for column in data.columns if column.dummies for i in range(column.start, column.stop)]
    assert torch.equal(inputs[:, dummies], data.x[:, dummies])


def unnamed(i: int) -> Dataset:
    return replace(parts()[i], values={} if i else parts()[i].values)


def narrow(i: int) -> Dataset:
    return replace(parts()[i], x=parts()[i].x[:, : 10 - i])


@pytest.mark.parametrize(
    ("records", "words"),
    [
        (unnamed, "devices must have records of the same secret"),
        (narrow, "devices must have records of the same shape"),
        (lambda i: parts()[i].take(torch.arange(8)), "device 1 has 8 records, and their exact mean"),
    ],
)
def test_devices_that_do_not_fit_are_refused(records, words):
    refuses((DataError, ArgumentError), words, lambda: train_guard(wire(records=records), PLAN))


def test_what_no_federation_can_do_is_refused():
    pooled, three = replace(PLAN, pretrain="private"), replace(PLAN, devices=3)
    for call in (lambda: guard_client(pooled, parts), lambda: train_guard(wire(), pooled)):
        refuses(ArgumentError, "TAPPFL.pretrain must be .* where records stay with their devices", call)
    refuses(DataError, "2 devices are connected", lambda: train_guard(wire(), three, patience=0))
    twice = replace(wire(), node_config=lambda node: {"partition-id": 0})
    refuses(ArgumentError, "the answers must be devices 0 to 1", lambda: train_guard(twice, PLAN))
    nobody = replace(wire(), node_config=lambda node: {})
    refuses(ArgumentError, "partition-id must be a device from 0 to 1", lambda: train_guard(nobody, PLAN))


def write_candidates(folder: Path, records: list[Dataset], others: Dataset) -> Path:
    """Members and records of nobody as the devices had them: scaled by the devices' own numbers."""
    preparation = Summary.merged([Summary.of(part, "u") for part in records]).preparation(records[0])
    told = [*((part, f"device-{i}") for i, part in enumerate(records)), (others, "nobody")]
    x = torch.cat([part.scaled(*preparation.scaling(part)).x for part, _ in told]).numpy()
    y = torch.cat([part.y for part, _ in told]).numpy()
    np.savez(
        folder / "candidates.npz", x=x, y=y, client=np.repeat([n for _, n in told], [len(p) for p, _ in told])
    )
    return folder / "candidates.npz"


def test_uploads_of_an_encoder_are_attacked_without_its_loss(tmp_path):
    """Forty and sixty members in eleven dimensions: the row space holds everybody, and they are found."""
    data = people(1_200)
    records = [data.take(rows) for rows in torch.arange(100).split([40, 60])]
    plan = replace(PLAN, encoder=TableEncoder((16, 4)), local_epochs=3, rounds=4)
    apart = wire(plan, lambda i: records[i])
    train_guard(apart, plan, seed=3, recording=tmp_path / "run")
    candidates = write_candidates(tmp_path, records, data.take(torch.arange(100, 1_200)))
    asked = {"client": "client", "label": "y", "jobs": 1, "quiet": True}
    model = "SharedEncoder"
    run = functools.partial(audit_recording, tmp_path / "run", candidates, **asked)
    report = run(model=model, output=tmp_path / "audit")
    (result,) = store.results(tmp_path / "audit")
    assert [one.name for one in result.found.attacks] == ["WhitenedSpan"]
    assert "a loss called TAPPFL" in result.cell.note
    assert result.found.attacks[0].scores.auroc.low > 0.5
    assert report is not None
    # What needs a loss is refused: it would find nothing, and that would say nothing.
    refuses(
        DataError,
        "declares the loss 'TAPPFL', and attacks on recordings",
        lambda: run(model=model, ask=["source"]),
    )


def example(name: str):
    """A module of the example, which Flower would import from its own folder."""
    sys.path.insert(0, str(EXAMPLE))
    try:
        return importlib.import_module(f"guard_app.{name}")
    finally:
        sys.path.remove(str(EXAMPLE))


@pytest.fixture(scope="module")
def deployed(tmp_path_factory) -> Path:
    """What the example's server has kept after its rounds between a SuperLink and two SuperNodes on the
    loopback device."""
    folder = tmp_path_factory.mktemp("guard")
    (folder / "home").mkdir()
    link, *ports = free_ports(3)
    address, local = f"127.0.0.1:{link}", ("--insecure", "--host", "127.0.0.1", "--port")
    table = f'[superlink.deploy]\naddress = "{address}"\ninsecure = true\n'
    (folder / "home" / "config.toml").write_text(table)
    settings = f'recording="{folder / "recording"}" encoder="{folder / "encoder"}" rounds={ROUNDS}'
    with ExitStack() as running:
        server = running.enter_context(process(folder / "superlink.log", "flower-superlink", *local, link))
        await_port(link, server)
        for i, port in enumerate(ports):
            shard = f"partition-id={i} num-partitions=2"
            node = ("flower-supernode", "--superlink", address, *local, port, "--node-config", shard)
            running.enter_context(process(folder / f"supernode-{i}.log", *node))
        order = ("flwr", "run", EXAMPLE, "deploy", "--stream", "--run-config", settings)
        client = running.enter_context(process(folder / "run.log", *order))
        with suppress(subprocess.TimeoutExpired):
            client.wait(600)  # a quarter of it where nothing else runs
    said = "\n".join(
        f"{log.name}:\n{log.read_text(errors='replace')}" for log in sorted(folder.glob("*.log"))
    )
    assert client.returncode == 0, said
    assert (folder / "encoder").exists(), said
    return folder


@pytest.mark.slow
def test_real_processes_make_the_encoder_of_one_process_bit_for_bit(deployed):
    task = example("task")
    plan = replace(task.PLAN, rounds=ROUNDS)
    state, _ = in_process(plan, [task.shard(i) for i in range(2)], seed=task.SEED)
    same(load_encoder(deployed / "encoder").network.state_dict(), state)
    recording = Recording(deployed / "recording")
    recording.complete()
    assert recording.rounds == tuple(range(1, plan.unguarded + ROUNDS + 2))
    same(recording.global_model(recording.rounds[-1]), dict(state))
    assert set(recording.clients) == {"device-0", "device-1"}  # in the order of arrival, which is nobody's
    assert {name.split(".")[0] for name in recording.layers} == {"0", "2"}  # the encoder's, and no other's


@pytest.mark.slow
def test_what_was_recorded_is_audited_as_the_readme_says(deployed, leakscope, tmp_path):
    page = (EXAMPLE / "README.md").read_text(encoding="utf-8")
    python, shell = re.findall(r"```(?:python|bash)\n([^`]*candidates\.npz[^`]*)```", page)
    folders = {"/tmp/leakscope-guard/encoder": deployed / "encoder"}
    folders |= {"/tmp/leakscope-guard/recording": deployed / "recording", "/tmp/leakscope-guard": tmp_path}
    for written, there in folders.items():
        python, shell = (text.replace(written, str(there)) for text in (python, shell))
    example("task")
    exec(python, {})
    name, *arguments = shlex.split(shell.replace("\\\n", " "))
    assert name == "leakscope"
    shown = leakscope(*arguments, "--jobs", "1")
    assert shown.code == 0, shown.err
    (result,) = store.results(tmp_path / "audit")
    assert set(result.found.watched) == {"device-0", "device-1"}
    assert result.found.attacks[0].name == "WhitenedSpan"
    assert result.found.attacks[0].scores.auroc.low > 0.6
