"""Labels that are numbers and one sigmoid logit, through kernels, training, federations, guards and readers:
against closed forms, loops of autograd and scikit-learn."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from importlib import resources
from pathlib import Path

import builders
import jsonschema
import numpy as np
import pytest
import tomli_w
import torch
from rich.progress import Progress
from sklearn.linear_model import LinearRegression
from sklearn.metrics import mean_absolute_error, r2_score
from test_gradients import agree, looped, parameters
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

import leakscope as ls
from leakscope import gradients
from leakscope.attacks.losses import FedLoss, Loss, ModifiedEntropy
from leakscope.audits.membership.kind import KIND as MEMBERS
from leakscope.audits.world import judge_outputs
from leakscope.core.dataset import Dataset, joined
from leakscope.core.errors import ArgumentError, DataError, PlanError
from leakscope.core.nouns import Knowledge
from leakscope.core.rng import initialised, seeded
from leakscope.core.tables import architecture
from leakscope.core.task import Classes, Quantity, task_loss
from leakscope.games import Inference, Membership
from leakscope.games.referee import play
from leakscope.gradients.jacobian import entries
from leakscope.measures.utility import mean_error, r_squared
from leakscope.models import build
from leakscope.report import comparison, overview
from leakscope.report.page import write
from leakscope.report.pages import percent
from leakscope.report.report import read_report
from leakscope.results import gate, kind
from leakscope.results.cell import Cell
from leakscope.results.kind import World
from leakscope.run import sweep
from leakscope.run.plan import from_document
from leakscope.run.search import search_defense
from leakscope.run.tuning import DefenseFamily, Risk
from leakscope.training import Local, federate, fit, logits, shards
from leakscope.training.local import Task, alone, together
from leakscope.training.recording import RecordedChannel
from leakscope.training.step import Step


def records(n: int = 600, seed: int = 0, scale: float = 30.0, shift: float = 100.0) -> Dataset:
    """A number that three inputs explain in part, and two groups that differ in one of them."""
    draw = np.random.default_rng(seed)
    group = draw.integers(2, size=n)
    x = draw.normal(size=(n, 3)) + group[:, None] * np.array([1.0, 0.0, 0.0])
    y = shift + scale * (x @ [1.0, -0.5, 0.2] + draw.normal(size=n) * 0.5)
    return Dataset(
        torch.tensor(x, dtype=torch.float32),
        torch.tensor(y, dtype=torch.float32),
        {"group": torch.from_numpy(group)},
        name="numbers",
        label="days",
    )


class Squeezed(nn.Module):
    """One number a record, without a column for it."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)[:, 0]


NETS = {
    "linear": lambda: nn.Linear(3, 1),
    "perceptron": lambda: nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 1)),
    "squeezed": Squeezed,
    "tied": lambda: nn.Sequential(*[nn.Linear(3, 3)] * 2, nn.Linear(3, 1)),  # left to vmap
    "convolution": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 1, 3)), nn.Conv2d(1, 4, (1, 2)), nn.ReLU(), nn.Flatten(), nn.Linear(8, 1)
    ),
}


def squared(outputs: Tensor, y: Tensor) -> Tensor:
    return (outputs.reshape(-1) - y).square().mean()


def binary(outputs: Tensor, y: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(outputs.reshape(-1), y.to(outputs.dtype))


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("number", [True, False], ids=["squared error", "sigmoid"])
def test_gradients_alignments_and_jacobians_equal_a_loop_of_autograd(name: str, number: bool) -> None:
    torch.manual_seed(0)
    model = NETS[name]().double()
    params, x = parameters(model), torch.randn(7, 3, dtype=torch.float64)
    y = torch.randn(7, dtype=torch.float64) if number else torch.arange(7) % 2
    loss, rows = squared if number else binary, torch.randint(7, (4, 3))
    each = looped(model, params, x, y, torch.arange(7)[:, None], loss)
    agree(gradients.per_record(model, params, x, y), each)
    agree(gradients.batch_means(model, params, x, y, rows), looped(model, params, x, y, rows, loss))
    direction = {key: torch.randn_like(p) for key, p in params.items()}
    for key, (dots, squares) in gradients.alignment(model, params, x, y, direction).items():
        flat = each[key].flatten(1)
        torch.testing.assert_close(dots, flat @ direction[key].flatten())
        torch.testing.assert_close(squares, flat.square().sum(1))

    def moved(record: Tensor, label: Tensor) -> tuple[Tensor, ...]:
        leaves = {key: p.clone().requires_grad_() for key, p in params.items()}
        value = loss(functional_call(model, leaves, (record[None],)), label[None])
        return torch.autograd.grad(value, list(leaves.values()), create_graph=True, materialize_grads=True)

    found = entries(model, params, x[:2], y[:2])
    for i in range(2):
        every = torch.autograd.functional.jacobian(lambda r, i=i: moved(r, y[i]), x[i])
        for key, exact in zip(params, every, strict=True):
            torch.testing.assert_close(found.squares[key][i], exact.square().sum())


def test_the_gradient_of_a_linear_regression_is_twice_the_residual_times_the_record() -> None:
    model = nn.Linear(3, 1).double()
    params = {"weight": torch.tensor([[1.0, -2.0, 0.5]]).double(), "bias": torch.tensor([0.25]).double()}
    x = torch.tensor([[1.0, 0.0, 2.0], [0.5, 1.0, -1.0]]).double()
    y = torch.tensor([3.0, -1.0]).double()
    residuals = torch.tensor([1.0 + 1.0 + 0.25 - 3.0, 0.5 - 2.0 - 0.5 + 0.25 + 1.0]).double()
    found = gradients.per_record(model, params, x, y)
    torch.testing.assert_close(found["weight"][:, 0], 2 * residuals[:, None] * x)
    torch.testing.assert_close(found["bias"][:, 0], 2 * residuals)


def test_sums_over_labels_are_refused_for_numbers_and_are_those_of_two_logits_for_a_sigmoid() -> None:
    model, x = NETS["perceptron"]().double(), torch.randn(4, 3).double()
    params = parameters(model)
    builders.refuses(
        ArgumentError,
        "known",
        gradients.alignment,
        model,
        params,
        x,
        torch.zeros(4).double(),
        params,
        label="sum",
    )
    y = torch.arange(4) % 2
    both = [gradients.per_record(model, params, x, torch.full((4,), a)) for a in (0, 1)]
    for key, (dots, _) in gradients.alignment(model, params, x, y, params, label="sum").items():
        flat = (both[0][key] + both[1][key]).flatten(1)
        torch.testing.assert_close(dots, flat @ params[key].flatten())


def test_r_squared_and_the_error_are_those_of_scikit_learn() -> None:
    torch.manual_seed(0)
    y = torch.randn(400).double()
    said = (0.7 * y + 0.5 * torch.randn(400))[:, None]
    assert r_squared(said, y).value == pytest.approx(r2_score(y, said[:, 0]), abs=1e-9)
    wide = mean_error(said, y, unit=30.0)
    assert wide.value == pytest.approx(30 * mean_absolute_error(y, said[:, 0]), rel=1e-6)
    assert r_squared(y.mean().expand(400, 1), y).value == pytest.approx(0.0, abs=1e-9)
    assert r_squared(y[:, None], y).value == 1.0


@pytest.mark.parametrize("n", [60, 500])
def test_the_interval_of_r_squared_covers_the_truth_about_as_often_as_it_says(n: int) -> None:
    # y = f + noise, f known: the R² of f is 1 - 0.5 / 1.5
    draw = np.random.default_rng(n)
    hits, times = 0, 400
    for _ in range(times):
        f = draw.normal(size=n)
        y = f + np.sqrt(0.5) * draw.normal(size=n)
        found = r_squared(torch.from_numpy(f)[:, None], torch.from_numpy(y))
        hits += found.low <= 2 / 3 <= found.high
    assert 0.91 <= hits / times <= 0.98


def test_a_label_is_scaled_by_training_records_alone_and_its_error_told_in_its_own_unit() -> None:
    data = records()
    train, test, public = data.split(seeded(0), train=300, public=100)
    assert train.task == test.task == public.task == Quantity(*train.unit)
    assert float(train.y.double().mean()) == pytest.approx(0.0, abs=1e-6)
    assert float(train.y.double().std(correction=0)) == pytest.approx(1.0, abs=1e-6)
    assert abs(float(test.y.double().mean())) > 1e-4
    mean, deviation = test.unit
    original = {key: float(y) for key, y in zip(_keys(data), data.y, strict=True)}
    for key, y in zip(_keys(test, scaled=(train, data)), test.y, strict=True):
        assert mean + deviation * float(y) == pytest.approx(original[key], abs=1e-3)
    net = build(ls.Linear(), train, seeded(0))
    history = fit(net, train, rounds=30, rng=seeded(0), rate=0.05)
    worth = judge_outputs(logits(net, history[-1], test), test)
    exact = LinearRegression().fit(train.x, train.y)
    assert worth.r2.value == pytest.approx(exact.score(test.x, test.y), abs=0.01)
    assert worth.mae.value == pytest.approx(
        deviation * mean_absolute_error(test.y, exact.predict(test.x)), rel=0.05
    )
    small = replace(data, y=data.y / 10)
    train, test, _ = small.split(seeded(0), train=300, public=100)
    again = judge_outputs(logits(net, history[-1], test), test)
    assert again.r2.value == pytest.approx(worth.r2.value, abs=1e-5)
    assert again.mae.value == pytest.approx(worth.mae.value / 10, rel=1e-4)


def _keys(data: Dataset, scaled: tuple[Dataset, Dataset] | None = None) -> list[tuple[float, ...]]:
    """Each record by its inputs as they were before they were scaled, to a few digits."""
    x = data.x.double()
    if scaled is not None:
        whole = scaled[1].split(seeded(0), train=300, public=100, standardise=False)[0].x.double()
        x = x * whole.std(0, correction=0) + whole.mean(0)
    return [tuple(round(float(v), 2) for v in row) for row in x]


def test_the_strata_of_a_number_are_its_quarters() -> None:
    data = records()
    counts = torch.bincount(data.strata)
    assert len(counts) == 4
    assert int(counts.max() - counts.min()) <= 1
    order = data.y.argsort()
    assert bool((data.strata[order].diff() >= 0).all())
    classes = replace(data, y=torch.arange(600) % 3)
    assert classes.strata is classes.y
    game = Inference(data, "group", batch=8, balanced=True)
    rows = game._rows(torch.tensor([0, 1, 1]), seeded(0))
    assert all(torch.bincount(data.strata[row], minlength=4).tolist() == [2, 2, 2, 2] for row in rows)
    parts = shards(data, 3, seeded(0), how="dirichlet", alpha=0.3)
    assert sum(map(len, parts)) == len(data)


def test_what_needs_classes_refuses_a_number_in_one_sentence() -> None:
    data = records()
    builders.refuses(
        DataError,
        "Distilled needs a label of classes, and 'days' is a number",
        ls.Distilled(),
        data,
        seeded(0),
    )
    builders.refuses(DataError, "AdvReg needs", ls.AdvReg(), data, seeded(0), others=data)
    builders.refuses(DataError, "NeuGuard needs", ls.NeuGuard(), data, seeded(0))
    builders.refuses(DataError, "has no classes|needs a label of classes", lambda: data.classes)
    mixed = ls.MixupMMD(held=data)
    net = build(ls.Linear(), data, seeded(0))
    builders.refuses(DataError, "MixupMMD", fit, net, data, rounds=1, rng=seeded(0), defense=mixed)


# own modules


class OneLogit(nn.Module):
    def __init__(self, inputs: int, wide: int = 1) -> None:
        super().__init__()
        self.body = nn.Linear(inputs, wide)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


def test_a_module_may_give_one_sigmoid_logit_for_two_classes_or_one_number() -> None:
    numbers, two = records(), replace(records(), y=(records().y > 100).long())
    three = replace(two, y=torch.arange(600) % 3)
    for data in (numbers, two):
        assert data.task.takes(OneLogit(3)(data.x[:2]))
        assert data.task.takes(Squeezed()(data.x[:2]))
    assert not three.task.takes(OneLogit(3)(three.x[:2]))
    assert not numbers.task.takes(OneLogit(3, 2)(numbers.x[:2]))
    made = {"name": f"{__name__}.OneLogit"}
    for data in (numbers, two):
        architecture(made, trusted=[__name__])(data)
    builders.refuses(PlanError, "one for each of 3 classes", architecture(made, trusted=[__name__]), three)
    wide = architecture(made | {"wide": 2}, trusted=[__name__])
    builders.refuses(PlanError, "one for each record, since the label is a number", wide, numbers)


def test_a_sigmoid_learns_what_two_logits_do() -> None:
    data = replace(records(), y=(records().y > 100).long())
    train, test, _ = data.split(seeded(0), train=300, public=100)
    single = OneLogit(3)
    history = fit(single, train, rounds=20, rng=seeded(0), rate=0.5)
    said = logits(single, history[-1], test)
    assert said.shape == (200, 2)
    assert not said[:, 0].any()
    chance = torch.sigmoid(functional_call(single, dict(history[-1]), (test.x,))[:, 0])
    torch.testing.assert_close(said.softmax(1)[:, 1], chance)
    assert judge_outputs(said, test).accuracy.value > 0.85
    bottleneck = ls.VIB(beta=0.01).model(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)))
    params = {name: tensor.detach() for name, tensor in bottleneck.named_parameters()}
    said = logits(bottleneck, params, test)
    torch.testing.assert_close(said[:, 1], bottleneck.eval()(test.x)[:, 0].detach())  # not its divergence


# federations


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_clients_that_learn_a_number_train_together_as_alone(optimiser: str) -> None:
    data = records(40).in_units(records(40))
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    params = {name: tensor.detach().clone() for name, tensor in net.named_parameters()}
    local = Local(rate=0.05, batch=10, optimiser=optimiser)
    tasks = [Task(data.x, data.y, local.order(40, seeded(i)), i) for i in range(3)]
    step = Step.of(net, loss=task_loss, defense=ls.Defense())
    whole = together(step, params, tasks, local=local, rate=0.05)
    for i, task in enumerate(tasks):
        single = alone(step, params, task, local=local, rate=0.05)
        for name, tensor in single.items():
            torch.testing.assert_close(whole[name][i], tensor, rtol=1e-4, atol=1e-6)


def test_one_full_step_of_one_client_is_the_squared_error_s_gradient() -> None:
    data = records(50).in_units(records(50))
    net = nn.Linear(3, 1)
    local = Local(rate=0.1, batch=50, momentum=0.0, decay=0.0)
    before, after = federate(net, [data], rounds=1, rng=seeded(0), local=local)
    residuals = data.x @ before["weight"][0] + before["bias"] - data.y
    slope = 2 * (residuals[:, None] * data.x).mean(0)
    torch.testing.assert_close(after["weight"][0], before["weight"][0] - 0.1 * slope)


@pytest.fixture(scope="module")
def overfitted(tmp_path_factory) -> tuple[RecordedChannel, Dataset, Dataset]:
    """A recorded client with more parameters than records, and records of nobody."""
    data = records(240, scale=1.0)
    wide = torch.cat([data.x, torch.randn(240, 60, generator=seeded(7))], 1)
    data = replace(data, x=wide).in_units(data)
    own, others = data.take(torch.arange(40)), data.take(torch.arange(40, 240))
    net = initialised(lambda: nn.Sequential(nn.Linear(63, 64), nn.Tanh(), nn.Linear(64, 1)), seeded(0))
    folder = tmp_path_factory.mktemp("numbers") / "run"
    recorder = ls.Recorder(folder, net, model_name="net")
    federate(
        net, [own], rounds=6, rng=seeded(0), local=Local(rate=0.02, batch=10, epochs=10), recorder=recorder
    )
    return RecordedChannel(ls.Recording(folder), net, ("0",)), own, others


@pytest.mark.parametrize("attack", [ls.Cosine(), ls.Whitened(), Loss(), FedLoss()])
def test_members_of_a_regression_are_found_by_their_gradients_and_losses(overfitted, attack) -> None:
    channel, own, others = overfitted
    known, judged = others.take(torch.arange(100)), others.take(torch.arange(100, 200))
    knowledge = Knowledge(Membership(own.take(torch.arange(0)), known), channel, 200)
    seen = play(Membership(own, judged), channel, attack, knowledge, trials=80, rng=seeded(0))
    assert ls.auroc(seen).low > 0.55


def test_the_loss_attack_ranks_by_squared_error(overfitted) -> None:
    channel, own, others = overfitted
    game = Membership(own, others)
    view, _ = game.deal(channel, 60, seeded(1))
    batch = view.public["candidates"]
    x, y = batch.data.x[batch.rows[:, 0]], batch.data.y[batch.rows[:, 0]]
    said = Loss()(Knowledge(game, channel, 10), seeded(0))(view)
    final = channel.recording.uploaded(5, "0")  # of the only client in the last round
    out = functional_call(channel.model.double(), {k: v.double() for k, v in final.items()}, (x.double(),))
    channel.model.float()
    torch.testing.assert_close(said, -(out[:, 0] - y).square(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "attack", [ls.Cosine(label="predicted"), ls.Cosine(label="sum"), ls.GradientDiff(label="max"), ls.Whitened(label="sum"), ModifiedEntropy()]
)  # fmt: skip
def test_attacks_that_guess_a_class_refuse_numbers_before_and_in_the_game(overfitted, attack) -> None:
    channel, own, others = overfitted
    words = "needs labels that are classes, and these are numbers"
    builders.refuses(ArgumentError, words, attack.check, channel.model, others.x[:3], others.y[:3])
    knowledge = Knowledge(Membership(own.take(torch.arange(0)), others), channel, 20)
    with pytest.raises(ArgumentError, match=words):
        play(Membership(own, others), channel, attack, knowledge, trials=20, rng=seeded(0))


# every kind of audit, through every reader

SCHEMA = json.loads(resources.files("leakscope.results").joinpath("results.schema.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A cell of every kind on a table whose label is a number."""
    place = tmp_path_factory.mktemp("numbers")
    data = records(1_200, shift=3.0, scale=1.5)
    lines = [f"{a},{b},{c},{'late' if g else 'early'},{'nsw'[i % 3]},{y}" for i, ((a, b, c), g, y) in enumerate(zip(data.x.tolist(), data.private["group"].tolist(), data.y.tolist(), strict=True))]  # fmt: skip
    path = place / "table.csv"
    path.write_text("a,b,c,group,ward,days\n" + "\n".join(lines) + "\n")
    table = {"name": "csv", "path": str(path), "label": "days", "secrets": ["group", "ward"], "without": ["ward"]}  # fmt: skip
    settings = {
        "canary": {"attribute": "group"},
        "sites": {"site": "ward", "secrets": ["group"]},
        "records": {},
    }
    own = {
        name: {"data": table, "game": builders.KINDS[name]["game"] | given}
        for name, given in settings.items()
    }
    beside = {"game": builders.KINDS["game"]["game"], "defense": {"name": "Sign"}}
    document = {
        "name": "Numbers",
        "defaults": builders.DEFAULTS | {"data": table, "training": {"rate": 0.05}},
        "cell": [
            *({"id": name} | one | own.get(name, {}) for name, one in builders.KINDS.items()),
            {"id": "defended"} | beside,
        ],
    }
    sweep.run(from_document(document), place / "run", text=tomli_w.dumps(document), jobs=1)
    return place / "run"


def test_a_numeric_label_reaches_every_reader_of_every_kind(folder, tmp_path) -> None:
    report = read_report(folder)
    assert [result.error for result in report.results if result.error] == []
    page = write(folder).read_text()
    assert "Task R²" in page
    assert "mean absolute error" in page
    assert "Task accuracy" not in page
    document = json.loads((folder / "results.json").read_text())
    jsonschema.validate(document, SCHEMA)
    rows = list(csv.DictReader(io.StringIO((folder / "results.csv").read_text())))
    for result in report.results:
        worth = {
            row["measure"]: row for row in rows if row["key"] == result.key and row["about"] == "utility"
        }
        assert "accuracy" not in worth
        if result.cell.id != "canary":  # which tells no utility
            assert float(worth["r2"]["guessing"]) == 0.0
            assert float(worth["mae"]["low"]) < float(worth["mae"]["value"]) < float(worth["mae"]["guessing"])
            assert float(worth["r2"]["low"]) > 0
        assert result.made.records.classes is None
        assert kind.headline(result)
    found = ls.compare(folder, folder)
    assert {one.measure for one in found.utilities} == {"r2"}
    assert any("task R²" in line for line in comparison.text(found))
    assert gate.read_results(folder)
    runs, bad = overview.read_runs([folder], page=tmp_path / "summary.html")
    assert not bad
    assert "R² " in " ".join(overview.rows(runs)[0])
    protections = [row for row in rows if row["about"] == "protection" and row["measure"] == "r2"]
    assert protections


def test_the_search_for_a_defense_counts_its_cost_in_r_squared(folder, tmp_path) -> None:
    (played,) = (result for result in read_report(folder).results if result.cell.id == "game")
    document = {"name": "Search", "cell": [played.cell.model_dump(exclude_none=True, exclude={"id"})]}
    noise = DefenseFamily("Noise", 8.0, 8.0, lambda std: {"name": "Noise", "std": std})
    answer = search_defense(
        from_document(document),
        tomli_w.dumps(document),
        Risk(advantage=0.9, loss=0.02),
        tmp_path,
        halvings=1,
        jobs=1,
        trusted=(),
        progress=Progress(disable=True),
        tell=lambda line: None,
        families=[noise],
    )
    free, noisy = sorted(read_report(tmp_path).results, key=lambda one: one.cell.defense is not None)
    assert free.found.utility.r2.low > 0.02 + noisy.found.utility.r2.value
    assert f"R² {percent(free.found.utility.r2.value)}" in answer.question
    assert "2 points of R²" in answer.question
    assert answer.sentence.startswith("No setting that was tried keeps both")  # the noise costs more


def test_a_recording_of_clients_that_learn_a_number_is_audited(overfitted, tmp_path) -> None:
    """As a federation's owner does it, from the folder and a table that says whose a record is."""
    channel, own, others = overfitted
    candidates = joined([own, others])
    whose = torch.tensor([0] * len(own) + [1] * len(others))
    candidates = replace(candidates, private={"client": whose}, values={"client": ("0", "nobody")})
    asked = Cell.model_validate(
        {
            "data": {"name": "candidates"},
            "model": {"name": "MLP", "hidden": [64], "activation": "tanh"},
            "game": {
                "name": "RecordingAudit",
                "recording": str(channel.recording.path),
                "attacks": [{"name": "Whitened"}, {"name": "Loss"}],
            },
            "trials": 300,
        }
    )
    world = World(asked, 0, candidates)
    MEMBERS.check(world)
    found = MEMBERS.run(world).found
    assert found.members == len(own)
    assert all(attack.scores.auroc.low > 0.55 for attack in found.attacks)
    assert found.utility.r2 is not None
    assert found.utility.accuracy is None
    guessing = [{"name": "Cosine", "label": "predicted"}]
    refused = asked.model_copy(update={"game": asked.game | {"attacks": guessing}})
    with pytest.raises(ArgumentError, match="needs labels that are classes"):
        MEMBERS.check(replace(world, cell=refused))


def test_a_victim_that_did_not_learn_its_number_is_said_to_be_one(folder) -> None:
    report = read_report(folder)
    (game,) = (result for result in report.results if result.cell.id == "game")
    worth = game.found.utility
    idle = worth.model_copy(update={"r2": replace(worth.r2, low=-0.01)})
    assert idle.idle
    assert not worth.idle
    lazy = game.model_copy(update={"found": game.found.model_copy(update={"utility": idle})})
    chapter = kind.chapters([lazy])[0]
    assert any("not clearly better than always saying the mean" in remark for remark in chapter.remarks)


def test_a_task_says_what_it_is() -> None:
    data = records()
    assert str(data.task) == "a number"
    assert "days, a number" in repr(data)
    assert replace(data, y=torch.arange(600) % 3).task == Classes(3)
