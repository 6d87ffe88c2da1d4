"""A model as somebody trained it: audited at its weights, trained on from there, refused in one sentence."""

from __future__ import annotations

import copy
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import nn

import leakscope as ls
from leakscope.audits.asked import parse_model
from leakscope.audits.inference.request import request_audit
from leakscope.audits.world import train_victim
from leakscope.core.errors import ArgumentError, LeakscopeError, PlanError
from leakscope.core.nouns import Defense
from leakscope.data import synthetic
from leakscope.models import weights
from leakscope.report.report import read_report
from leakscope.results.cell import Cell, plan_of
from leakscope.run import experiment

CODE = """
from torch import nn

class Net(nn.Module):
    def __init__(self, inputs: int, classes: int, width: int = 6) -> None:
        super().__init__()
        self.deep = nn.Sequential(nn.Linear(inputs, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.1))
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        return self.head(self.deep(x))

class Plain(nn.Module):
    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        self.one, self.head = nn.Linear(inputs, 6), nn.Linear(6, classes)

    def forward(self, x):
        return self.head(self.one(x).relu())
"""
SMALL = {"rounds": 2, "trials": 60, "rehearsals": 80, "batch": 4, "quiet": True}
GAME = {"name": "Inference", "secret": "group", "batch": 4}


@pytest.fixture
def nets(tmp_path, monkeypatch):
    """The user's own module, in the folder the tests are in."""
    monkeypatch.chdir(tmp_path)
    Path("own_nets.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_nets", raising=False)
    import own_nets

    yield own_nets
    sys.modules.pop("own_nets", None)


@pytest.fixture
def data() -> ls.Dataset:
    return synthetic(records=1_200, shift=1.0)


def trained(kind: type[nn.Module], data: ls.Dataset, seed: int = 0) -> nn.Module:
    """A module whose weights are not those it was made with."""
    torch.manual_seed(seed)
    net = kind(data.x.shape[1], data.classes)
    optimiser = torch.optim.Adam(net.parameters(), lr=0.01)
    for _ in range(150):
        optimiser.zero_grad()
        nn.functional.cross_entropy(net(data.x), data.y).backward()
        optimiser.step()
    return net.eval()


def same(one: dict, other: dict) -> bool:
    return all(torch.equal(value, other[name]) for name, value in one.items())


def test_a_module_in_memory_is_observed_at_its_weights_and_trained_on_a_copy(nets, data):
    net = trained(nets.Net, data)
    before = copy.deepcopy(net.state_dict())
    cell = Cell(
        data={"name": "synthetic"},
        game=GAME,
        model={"name": "own_nets.Net"},
        weights={"sha256": "0"},
        rounds=2,
    )
    world = experiment.enter(cell, 0, records=data, net=net)
    victim = train_victim(world, data, Defense())
    assert same(victim.history[0], before)
    assert not same(victim.history[1], before)
    assert same(net.state_dict(), before)
    assert not net.training


@pytest.mark.parametrize("form", ["safetensors", "pt"])
def test_weights_in_a_file_are_those_that_are_observed_first(nets, data, form):
    net = trained(nets.Net, data)
    path = f"net.{form}"
    safetensors.torch.save_file(net.state_dict(), path) if form != "pt" else torch.save(
        net.state_dict(), path
    )
    cell = Cell(data={"name": "synthetic"}, game=GAME, model={"name": "own_nets.Net"}, weights={"path": path})
    world = experiment.enter(cell, 0, records=data, trusted=("own_nets",))
    assert same(train_victim(world, data, Defense()).history[0], net.state_dict())


def test_a_module_in_memory_becomes_a_report_and_a_plan_that_can_be_run_again(
    nets, data, leakscope, tmp_path
):
    net = trained(nets.Net, data)
    report = ls.audit("synthetic", model=net, output="first", **SMALL)
    assert not report.failed
    (cell, *_) = plan_of(report.plan).cell
    assert cell.weights["path"] == str(tmp_path / "first" / weights.FILE)
    assert same(weights.read("first/model.safetensors", known=cell.weights["sha256"]), net.state_dict())
    said = leakscope("run", "first/plan.toml", "-o", "second", "--trust", "own_nets", "--jobs", 1)
    assert said.code == 0, said.err
    again = read_report("second")
    first, second = ({repr(number) for number in one.numbers} for one in (report, again))
    assert first == second
    words = " ".join(report.remarks)
    for fact in ("weights of its own", "mix records", "batch by batch", "dropout", "They were not attacked"):
        assert fact in words
        assert fact in report.html()


def test_the_key_of_a_result_depends_on_the_weights_and_not_on_where_they_are(nets, data):
    def key(net: nn.Module, output: str | None) -> str:
        start = parse_model(net, None, output)
        return Cell(data={"name": "synthetic"}, game=GAME, model=start.model, weights=start.weights).key(0)

    one, other = trained(nets.Plain, data), trained(nets.Plain, data, seed=1)
    assert key(one, None) == key(one, "here") == key(copy.deepcopy(one), "there")
    assert key(one, None) != key(other, None)
    bare = Cell(data={"name": "synthetic"}, game=GAME)
    assert "weights" not in bare.meaning
    assert "mode" not in bare.meaning["training"]


def test_weights_that_have_changed_are_refused(nets, data, leakscope):
    net = trained(nets.Plain, data)
    torch.save(net.state_dict(), "net.pt")
    words = ["audit", "synthetic", "--model", "own_nets.Plain", "--weights", "net.pt", "--trust", "own_nets"]
    sizes = ["--rounds", 1, "--trials", 60, "--rehearsals", 80, "--jobs", 1]
    said = leakscope(*words, *sizes, "-o", "out")
    assert said.code == 0, said.err
    assert "weights of its own" in said.out + Path("out/report.html").read_text()
    torch.save(trained(nets.Plain, data, seed=1).state_dict(), "net.pt")
    said = leakscope("run", "out/plan.toml", "-o", "again", "--trust", "own_nets", "--jobs", 1)
    assert said.code == 2
    assert "have changed since the plan was written" in said.err


def test_all_reasons_why_weights_do_not_fit_are_told_at_once(nets, data):
    net = trained(nets.Plain, data)
    state = {**net.state_dict(), "more": torch.zeros(2), "one.weight": torch.zeros(6, 3)}
    del state["head.bias"]
    state["one.bias"] = torch.full((6,), float("nan"))
    torch.save(state, "net.pt")
    with pytest.raises(PlanError) as told:
        ls.audit("synthetic", model="own_nets.Plain", weights="net.pt", trust=["own_nets"], **SMALL)
    words = str(told.value)
    for reason in (
        "lacks head.bias",
        "has no more",
        "one.weight is 6 x 3 in the file",
        "not finite in it: one.bias",
    ):
        assert reason in words
    assert f"{data.x.shape[1]} inputs" in words


def test_a_module_of_another_width_is_told_the_columns(nets):
    net = nets.Plain(90, 2)
    with pytest.raises(
        PlanError, match=r"adult has 108 inputs, in this order: age, .*\(nor does it fit without 'sex'\)"
    ):
        ls.audit("adult", model=net, **SMALL)


@pytest.mark.parametrize(
    ("width", "games"), [(108, {"attribute", "distribution"}), (106, {"property", "distribution"})]
)
def test_games_are_those_whose_inputs_the_model_has(nets, width, games):
    start = parse_model(nets.Plain(width, 2), None)
    document, _ = request_audit("adult", label=None, secret="sex", start=start)
    assert {cell["id"] for cell in document["cell"]} == games | {"records"}
    assert all(cell["weights"] == start.weights for cell in document["cell"])


def test_weights_that_are_worth_nothing_here_are_told_of(nets, data):
    data = replace(data, y=(data.x[:, 1] > 0).long())
    net = trained(nets.Plain, data)
    good = ls.audit(data, secret="group", model=net, **SMALL)
    assert not any("say nothing about" in remark for remark in good.remarks)
    with torch.no_grad():
        net.one.weight.copy_(net.one.weight.flip(1))  # the columns in another order
    report = ls.audit(data, secret="group", model=net, **SMALL)
    assert any("these numbers say nothing about Plain" in remark for remark in report.remarks)


@pytest.mark.filterwarnings("ignore:left out, as they have no matrix")
def test_layers_of_a_module_with_batch_statistics_are_localised(nets, data):
    small = {"rounds": 1, "trials": 40, "rehearsals": 40, "batch": 4, "quiet": True}
    report = ls.localise(data, secrets=["group"], model=trained(nets.Net, data), **small)
    assert not report.failed
    assert any("batch by batch" in remark for remark in report.remarks)


def test_dp_sgd_is_refused_for_batch_statistics_and_taken_in_evaluation_mode(nets, data):
    net = trained(nets.Net, data)
    asked = {"secret": "group", "model": net, "defenses": ["DPSGD:noise=1.0"], **SMALL}
    with pytest.raises(ArgumentError, match=r"DPSGD.*a record has none of its own.*--mode eval"):
        ls.audit(data, **asked)
    report = ls.audit(data, mode="eval", **asked)
    assert not report.failed
    assert any("evaluation mode" in remark for remark in report.remarks)
    assert not any("batch by batch" in remark for remark in report.remarks)


def test_a_defense_that_adds_layers_is_refused_on_a_trained_model(nets, data):
    with pytest.raises(PlanError, match=r"VIB.* adds layers"):
        ls.audit(data, secret="group", model=trained(nets.Plain, data), defenses=["VIB"], **SMALL)


def test_raw_records_reach_the_model_as_they_are(data):
    scaled, raw = (ls.Dataset(**{**vars(data), "raw": raw}).split(ls.seeded(0))[0] for raw in (False, True))
    rows = {row.tobytes() for row in data.x.numpy()}
    assert all(row.tobytes() in rows for row in raw.x.numpy())
    assert not any(row.tobytes() in rows for row in scaled.x.numpy())


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (
            lambda net: ls.audit("synthetic", model=net, weights="net.pt"),
            "must be left out for a module in memory",
        ),
        (lambda net: ls.audit("synthetic", weights="net.pt"), "--weights needs --model"),
        (lambda net: ls.tune("synthetic", model=net), "tune takes a model by name"),
        (
            lambda net: ls.audit("synthetic", model="MLP", weights="nowhere.pt"),
            "cannot be read: No such file",
        ),
    ],
)
def test_what_does_not_go_together_is_refused_in_a_sentence(nets, data, ask, words):
    with pytest.raises(LeakscopeError, match=words):
        ask(nets.Plain(data.x.shape[1], 2))


def test_a_plan_of_a_module_whose_weights_were_not_kept_says_so(nets, data, leakscope, tmp_path):
    report = ls.audit(data, secret="group", model=trained(nets.Plain, data), **SMALL)
    Path("plan.toml").write_text(report.plan.replace('name = "gaussian"', 'name = "synthetic"'))
    said = leakscope("run", "plan.toml", "-o", "out", "--trust", "own_nets", "--jobs", 1)
    assert said.code == 2
    assert "its weights were not kept" in said.err
