"""A federation against loops of torch.optim, averages by hand, and its own one-by-one way."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import pytest
import torch
from builders import refuses
from torch import nn
from torch.nn import functional as F

from leakscope import (
    CNN,
    DPSGD,
    MLP,
    AdversarialPerturbation,
    Chain,
    Dataset,
    FlowerAdaptiveClipping,
    FlowerFixedClipping,
    Noise,
    Pruning,
    Recorder,
    Recording,
    Sign,
    seeded,
    training,
)
from leakscope.core.errors import ArgumentError, DataError
from leakscope.models import build, parameters
from leakscope.training import Local, federate, fit, logits, shards
from leakscope.training.local import Task, alone, stackable, together
from leakscope.training.step import Step, state


def records(n: int, shape=(12,), classes: int = 3, seed: int = 0) -> Dataset:
    rng = seeded(seed, "records", n)
    return Dataset(torch.randn(n, *shape, generator=rng), torch.randint(classes, (n,), generator=rng), {})


def small(data: Dataset) -> nn.Module:
    return build(MLP((8,)), data, seeded(0, "model"))


def normalised(data: Dataset) -> nn.Module:
    def make(_: Dataset) -> nn.Module:
        return nn.Sequential(nn.Linear(12, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))

    return build(make, data, seeded(0, "model"))


PLAIN = Local(0.1, batch=1_000, momentum=0.0, decay=0.0)
LOCALS = [
    Local(0.1, batch=7, epochs=2, milestones=(1, 3)),
    Local(0.3, batch=7, steps=9, momentum=0.0, decay=0.01),
    Local(0.01, batch=7, epochs=2, optimiser="adam", decay=0.02, milestones=(2,)),
]


def by_torch(model: nn.Module, clients, local: Local, order, *, rounds: int, server_rate: float = 1.0):
    """Federated averaging as one writes it with modules, optimisers and a scheduler."""
    server = copy.deepcopy(model)
    weights = [len(data) / sum(map(len, clients)) for data in clients]
    rates = torch.optim.SGD(server.parameters(), lr=local.rate)
    schedule = torch.optim.lr_scheduler.MultiStepLR(rates, local.milestones, gamma=0.1)
    history = [{name: value.clone() for name, value in server.state_dict().items()}]
    for r in range(rounds):
        states = []
        for c, data in enumerate(clients):
            net, rate = copy.deepcopy(server), schedule.get_last_lr()[0]
            if local.optimiser == "adam":
                optimiser = torch.optim.Adam(net.parameters(), lr=rate, weight_decay=local.decay)
            else:
                optimiser = torch.optim.SGD(
                    net.parameters(), lr=rate, momentum=local.momentum, weight_decay=local.decay
                )
            for rows in order(c, r):
                optimiser.zero_grad()
                F.cross_entropy(net(data.x[rows]), data.y[rows]).backward()
                optimiser.step()
            states.append(net.state_dict())
        for name, value in server.state_dict().items():  # views, so what is set here is set there
            mean = sum(w * s[name].double() for w, s in zip(weights, states, strict=True))
            if name not in dict(server.named_parameters()):
                value.copy_(mean if value.is_floating_point() else mean.round())
            else:
                value += server_rate * (mean - value)
        rates.step()
        schedule.step()
        history.append({name: value.clone() for name, value in server.state_dict().items()})
    return history


def agree(found, expected, *, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    assert set(found) == set(expected)
    for name in found:
        torch.testing.assert_close(found[name], expected[name], rtol=rtol, atol=atol)


def given(clients, local: Local):
    return lambda c, r: local.order(len(clients[c]), seeded(c, "order", r))


@pytest.mark.parametrize("local", LOCALS, ids=repr)
@pytest.mark.parametrize("make", [small, normalised], ids=["together", "one by one, with batch statistics"])
@pytest.mark.parametrize("sizes", [(20, 20, 20), (20, 9, 31)], ids=str)
def test_a_federation_is_a_loop_of_torch_modules_and_optimisers(local, make, sizes):
    clients = [replace(data, x=data.x.double()) for data in (records(n, seed=n) for n in sizes)]
    model, order = make(clients[0]).double(), given(clients, local)
    before = copy.deepcopy(model.state_dict())
    found = federate(model, clients, rounds=4, rng=seeded(1), local=local, order=order, server_rate=0.7)
    expected = by_torch(model, clients, local, order, rounds=4, server_rate=0.7)
    assert len(found) == 5
    for one, other in zip(found, expected, strict=True):
        agree(one, other, rtol=1e-9, atol=1e-9)
    assert all(value.equal(before[name]) for name, value in model.state_dict().items())


def test_running_statistics_stand_among_the_parameters_and_are_used():
    clients = [records(20, seed=i) for i in range(2)]
    model = normalised(clients[0])
    history = federate(model, clients, rounds=3, rng=seeded(2), local=Local(0.1, batch=5))
    assert set(history[0]) == set(model.state_dict())
    assert history[-1]["1.num_batches_tracked"] == 3 * 4
    assert history[0]["1.running_mean"].equal(torch.zeros(8))
    own = copy.deepcopy(model)
    own.load_state_dict(history[-1])
    assert logits(model, history[-1], clients[0]).equal(own.eval()(clients[0].x))
    assert set(federate(model.eval(), clients, rounds=1, rng=seeded(2), local=PLAIN)[-1]) == {
        name for name, _ in model.named_parameters()
    }


def tasks(data: Dataset, local: Local, n: int) -> list[Task]:
    return [
        Task(data.x, data.y, tuple(rows + 20 * i for rows in local.order(20, seeded(i))), seed=i)
        for i in range(n)
    ]


@pytest.mark.parametrize(
    "local", [*LOCALS, Local(0.1, batch=8, augment=("crop", "flip", "vertical flip"))], ids=repr
)
@pytest.mark.parametrize("defense", [Noise(0.0), Noise(0.1), Pruning(0.5)], ids=repr)
def test_clients_trained_together_are_clients_trained_one_by_one(local, defense):
    data = records(100, (1, 8, 8))
    model = small(data)
    step = Step.of(model, loss=F.cross_entropy, defense=defense).on(copy.deepcopy(model))
    assert stackable(step)
    every = tasks(data, local, 5)
    stacked = together(step, state(model), every, local=local, rate=local.rate)
    for i, task in enumerate(every):
        single = alone(step, state(model), task, local=local, rate=local.rate)
        agree({name: tensor[i] for name, tensor in stacked.items()}, single)


def test_a_federation_says_the_same_whichever_way_its_clients_are_trained(monkeypatch):
    clients = [records(20, seed=i) for i in range(4)]
    model, settings = small(clients[0]), {"defense": Noise(0.1), "upload": Noise(0.01), "virtual": 2}

    def run():
        return federate(
            model, clients, rounds=3, rng=seeded(22), local=Local(0.1, batch=4), fraction=0.7, **settings
        )

    stacked = run()
    monkeypatch.setattr(training.local, "SMALL", 0)
    agree(run()[-1], stacked[-1])


def test_what_cannot_or_need_not_be_stacked_is_trained_one_by_one():
    data, images = records(4), records(4, (3, 9, 9))

    def pays(model, loss=F.cross_entropy, defense=None):
        return stackable(Step.of(model, loss=loss, defense=defense or Noise()))

    assert pays(small(data))
    assert not pays(normalised(data))
    assert not pays(nn.Sequential(nn.Linear(12, 4), nn.Dropout(), nn.Linear(4, 3)))
    assert not pays(build(CNN(width=2), images, seeded(0)))
    assert not pays(build(MLP((1024, 512, 256)), data, seeded(0)))
    assert not pays(small(data), loss=lambda out, y: F.cross_entropy(out, y) / 2)
    assert not pays(small(data), defense=DPSGD())


def test_random_layers_draw_from_the_argument_and_leave_the_global_state_alone():
    clients = [records(20, seed=i) for i in range(2)]
    model = nn.Sequential(nn.Linear(12, 16), nn.Dropout(0.5), nn.Linear(16, 3))
    before, local = torch.random.get_rng_state(), Local(0.1, batch=5)
    one = federate(model, clients, rounds=2, rng=seeded(3), local=local)
    assert torch.random.get_rng_state().equal(before)
    torch.rand(5)
    agree(one[-1], federate(model, clients, rounds=2, rng=seeded(3), local=local)[-1], rtol=0, atol=0)
    dry = federate(model.eval(), clients, rounds=2, rng=seeded(3), local=local)
    assert any(not dry[-1][name].equal(one[-1][name]) for name in dry[-1])


@pytest.mark.parametrize("weighted", [True, False])
def test_the_server_steps_along_the_mean_update_by_hand(weighted):
    clients = [records(n, seed=n) for n in (4, 12, 8)]
    model = small(clients[0])
    found = federate(model, clients, rounds=1, rng=seeded(4), local=PLAIN, weighted=weighted, server_rate=0.5)
    start = parameters(model)
    expected = {name: value.double() for name, value in start.items()}
    for data, share in zip(clients, (4 / 24, 12 / 24, 8 / 24) if weighted else (1 / 3,) * 3, strict=True):
        slopes = torch.autograd.grad(F.cross_entropy(model(data.x), data.y), [*model.parameters()])
        for name, slope in zip(start, slopes, strict=True):
            expected[name] = expected[name] - 0.5 * share * 0.1 * slope
    agree({name: value.double() for name, value in found[1].items()}, expected)


@pytest.mark.parametrize(
    "model", [small(records(9)), normalised(records(9))], ids=["plain", "batch statistics"]
)
def test_one_client_and_one_step_are_one_step_of_fit(model):
    data = records(30)
    expected = fit(model, data, rounds=1, rng=seeded(5), rate=0.1, batch=1_000)
    agree(federate(model, [data], rounds=1, rng=seeded(6), local=PLAIN)[1], expected[1])


@pytest.mark.parametrize(("fraction", "count"), [(1.0, 20), (0.51, 11), (0.01, 1), (0.15, 3), (0.35, 7)])
def test_a_fraction_of_the_clients_is_its_ceiling(fraction, count, tmp_path):
    clients = [records(3, seed=i) for i in range(20)]
    model = small(clients[0])
    recorder = Recorder(tmp_path, model, model_name="mlp")
    federate(model, clients, rounds=2, rng=seeded(7), local=PLAIN, fraction=fraction, recorder=recorder)
    found = Recording(tmp_path)
    assert [len(set(found.clients_in(r))) for r in (0, 1)] == [count, count]
    assert fraction == 1 or found.clients_in(0) != found.clients_in(1)


@pytest.mark.parametrize("upload", [None, Noise(0.01), Sign(), Pruning(0.9)], ids=repr)
@pytest.mark.parametrize("make", [small, normalised], ids=["plain", "batch statistics"])
def test_a_recording_holds_what_was_uploaded(upload, make, tmp_path):
    clients = [records(n, seed=n) for n in (10, 10, 15)]
    model, local = make(clients[0]), Local(0.1, batch=5, milestones=(1,))
    recorder = Recorder(tmp_path, model, model_name="mlp")
    settings = {"local": local, "upload": upload, "server_rate": 0.5, "recorder": recorder}
    history = federate(model, clients, rounds=2, rng=seeded(8), **settings)
    found = Recording(tmp_path)
    found.complete()
    assert found.rounds == (0, 1, 2)
    names = [name for name, _ in model.named_parameters()]
    for r in (0, 1, 2):
        agree(found.global_model(r), {name: history[r][name] for name in names}, rtol=0, atol=0)
    for r in (0, 1):
        assert [found.samples(r, c) for c in range(3)] == [10, 10, 15]
        assert [found.steps(r, c) for c in range(3)] == [2, 2, 3]
        assert found.rate(r, 0) == local.rate_in(r) == pytest.approx((0.1, 0.01)[r])
        after = {name: history[r][name] - 0.5 * found.aggregate(r)[name] for name in names}
        agree({name: history[r + 1][name] for name in names}, after, rtol=1e-6, atol=1e-7)
    if isinstance(upload, Sign):
        assert {*torch.cat([g.flatten() for g in found.update(0, 1).values()]).tolist()} <= {-1.0, 0.0, 1.0}
    if upload is None:  # the update is what local training did, to the last bit
        step = Step.of(model, loss=F.cross_entropy, defense=Noise(0.0)).on(copy.deepcopy(model))
        order = lambda c, r: local.order(len(clients[c]), seeded(c, r))  # noqa: E731
        again = Recorder(tmp_path / "again", model, model_name="mlp")
        federate(model, clients[2:], rounds=1, rng=seeded(9), local=local, order=order, recorder=again)
        task = Task(clients[2].x, clients[2].y, order(0, 0), seed=0)
        own = alone(step, state(model), task, local=local, rate=0.1)
        gamma = {name: value - own[name] for name, value in parameters(model).items()}
        agree(Recording(tmp_path / "again").update(0, 0), gamma, rtol=0, atol=0)


def test_an_upload_of_signs_moves_every_parameter_by_the_mean_sign():
    clients = [records(20, seed=i) for i in range(4)]
    model, local = small(clients[0]), Local(0.1, batch=5)
    start, order = parameters(model), given(clients, local)
    found = federate(
        model, clients, rounds=1, rng=seeded(10), local=local, order=order, upload=Sign(), server_rate=0.01
    )[1]
    alone_ = [
        by_torch(model, [data], local, lambda _, r, c=c: order(c, r), rounds=1)[1]
        for c, data in enumerate(clients)
    ]
    for name, value in start.items():
        mean = torch.stack([(value - one[name]).sign() for one in alone_]).mean(0)
        torch.testing.assert_close(found[name], value - 0.01 * mean, rtol=1e-5, atol=1e-6)


def test_virtual_clients_average_their_parts():
    data = records(24)
    model = small(data)
    whole, cut, anew = (
        federate(model, [data], rounds=2, rng=seeded(11), local=PLAIN, virtual=k, repartition=again)
        for k, again in ((1, False), (4, False), (4, True))
    )
    agree(whole[1], cut[1])  # the mean of equal parts' gradients is the gradient of the whole
    agree(whole[1], anew[1])
    local = Local(0.1, batch=3)
    apart = federate(model, [data], rounds=1, rng=seeded(11), local=local, virtual=4)[1]
    assert any(
        not apart[n].equal(v)
        for n, v in federate(model, [data], rounds=1, rng=seeded(11), local=local)[1].items()
    )


@pytest.mark.parametrize("repartition", [False, True])
def test_virtual_clients_are_cut_once_or_in_every_round(repartition):
    data = Dataset(torch.randn(12, 4, generator=seeded(12)), torch.arange(12), {})
    model, seen = nn.Linear(4, 12), []

    def watched(out, y):
        seen.append(frozenset(y.tolist()))
        return F.cross_entropy(out, y)

    settings = {"local": Local(0.1), "virtual": 3, "repartition": repartition, "loss": watched}
    federate(model, [data], rounds=3, rng=seeded(13), **settings)
    rounds = [frozenset(seen[i : i + 3]) for i in (0, 3, 6)]
    assert all(frozenset().union(*parts) == frozenset(range(12)) and len(parts) == 3 for parts in rounds)
    assert (len({*rounds}) == 1) != repartition


def test_a_defense_acts_inside_the_local_steps():
    clients = [records(20, seed=i) for i in range(2)]
    model, local = small(clients[0]), Local(0.1, batch=5)
    plain, null = (
        federate(model, clients, rounds=1, rng=seeded(14), local=local, defense=defense)[1]
        for defense in (None, DPSGD(math.inf, 0.0))
    )
    agree(plain, null)
    plain_sgd = Local(0.1, batch=5, momentum=0.0, decay=0.0)
    tight = federate(model, clients, rounds=1, rng=seeded(14), local=plain_sgd, defense=DPSGD(1e-3, 0.0))[1]
    moved = torch.cat([(value - tight[name]).flatten() for name, value in parameters(model).items()])
    assert 0 < moved.norm() <= 4 * 0.1 * 1e-3 * (1 + 1e-3)  # four steps of at most rate times clip


def test_crops_are_windows_of_the_padded_image_and_flips_are_mirrors():
    images = records(40, (2, 6, 6)).x
    cropped = Local(0.1, augment=("crop",)).augmented(images, seeded(15))
    padded, places = F.pad(images, (4, 4, 4, 4)), set()
    for image, window in zip(padded, cropped, strict=True):
        found = [(i, j) for i in range(9) for j in range(9) if image[:, i : i + 6, j : j + 6].equal(window)]
        assert len(found) == 1
        places.add(found[0])
    assert len(places) > 20
    for name, axis in (("flip", 2), ("vertical flip", 1)):
        flipped = Local(0.1, augment=(name,)).augmented(images, seeded(16))
        mirrored = [bool(b.equal(a.flip(axis))) for a, b in zip(images, flipped, strict=True)]
        pairs = zip(images, flipped, mirrored, strict=True)
        assert all(b.equal(a.flip(axis) if m else a) for a, b, m in pairs)
        assert 10 < sum(mirrored) < 30
    both = Local(0.1, augment=("flip", "vertical flip")).augmented(images, seeded(16))
    ways = [
        {axes for axes in ((), (1,), (2,), (1, 2)) if b.equal(a.flip(axes))}
        for a, b in zip(images, both, strict=True)
    ]
    assert all(len(way) == 1 for way in ways)
    assert len(set().union(*ways)) == 4  # one does not decide the other
    assert Local(0.1).augmented(images, seeded(15)) is images


@pytest.mark.parametrize("n", [5, 12])
def test_every_record_is_seen_once_in_an_epoch(n):
    for epochs in (1, 3):
        rows = Local(0.1, batch=5, epochs=epochs).order(n, seeded(17))
        per_epoch = math.ceil(n / 5)
        assert len(rows) == epochs * per_epoch
        for e in range(epochs):
            assert sorted(torch.cat(rows[e * per_epoch : (e + 1) * per_epoch]).tolist()) == [*range(n)]
    assert [len(r) for r in Local(0.1, batch=5, epochs=9, steps=4).order(n, seeded(17))] == {
        5: [5, 5, 5, 5],
        12: [5, 5, 2, 5],
    }[n]


def users(n: int = 600) -> Dataset:
    rng = seeded(18)
    x = torch.arange(n, dtype=torch.float32)[:, None]
    return Dataset(x, torch.randint(5, (n,), generator=rng), {"who": torch.randint(30, (n,), generator=rng)})


@pytest.mark.parametrize(
    ("how", "column", "size"),
    [
        ("iid", None, None),
        ("iid", None, 40),
        ("dirichlet", None, None),
        ("dirichlet", None, 40),
        ("user", "who", None),
    ],
)
def test_shards_are_disjoint_and_all_that_was_asked_for(how, column, size):
    data = users()
    parts = shards(data, 7, seeded(19), how=how, alpha=1.0, column=column, size=size)
    dealt = [int(value) for part in parts for value in part.x[:, 0]]
    assert len(parts) == 7
    assert len(dealt) == len({*dealt}) == (600 if size is None else 280)
    assert all(part.y.equal(data.y[part.x[:, 0].long()]) for part in parts)
    if how == "iid":
        assert {len(part) for part in parts} <= ({85, 86} if size is None else {40})
    if how == "user":
        people = [{*part.private["who"].tolist()} for part in parts]
        assert sum(map(len, people)) == len(set().union(*people)) == 30
    again = shards(data, 7, seeded(19), how=how, alpha=1.0, column=column, size=size)
    assert all(a.x.equal(b.x) for a, b in zip(parts, again, strict=True))


def test_dirichlet_shards_are_uneven_for_small_alpha_and_alike_for_large():
    data = users(6_000)
    share = data.y.bincount(minlength=5) / len(data)

    def spread(alpha: float) -> float:
        parts = shards(data, 4, seeded(20), how="dirichlet", alpha=alpha)
        return max(float((part.y.bincount(minlength=5) / len(part) - share).abs().max()) for part in parts)

    assert spread(1e9) < 0.002
    assert spread(0.3) > 0.2


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda d: shards(d, 601, seeded(0)), "you asked for 601 clients of at least 1 records each"),
        (
            lambda d: shards(d, 7, seeded(0), size=100),
            "you asked for 7 clients of 100 records each, and there",
        ),
        (lambda d: shards(d, 31, seeded(0), how="user", column="who"), "'who' has 30 values"),
        (lambda d: shards(d, 3, seeded(0), how="user"), "shards.column must name"),
        (lambda d: shards(d, 3, seeded(0), column="who"), "shards.column must name"),
        (lambda d: shards(d, 3, seeded(0), how="user", column="who", size=5), "people are dealt whole"),
        (lambda d: shards(d, 100, seeded(0), how="dirichlet", alpha=0.01), "was dealt no record"),
        (lambda d: shards(d, 3, seeded(0), how="dirichlet", alpha=0.0), "shards.alpha"),
        (lambda d: shards(d, 0, seeded(0)), "shards.clients"),
        (lambda d: shards(d, 3, seeded(0), how="random"), "shards.how"),
        (lambda d: Local(0.0), "Local.rate"),
        (lambda d: Local(0.1, batch=0), "Local.batch"),
        (lambda d: Local(0.1, steps=0), "Local.steps"),
        (lambda d: Local(0.1, momentum=1.0), "Local.momentum"),
        (lambda d: Local(0.1, optimiser="lion"), "Local.optimiser must be sgd or adam"),
        (lambda d: Local(0.1, augment=("crop", "crop")), "Local.augment"),
        (lambda d: Local(0.1, augment=("flip",)).augmented(d.x, seeded(0)), "no images"),
    ],
)
def test_what_cannot_be_dealt_or_trained_is_refused(call, words):
    refuses((ArgumentError, DataError), words, call, users())


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"local": Local(1e30)}, r"diverged in round 1 \(0 being the first\) at rate 1e\+30"),
        ({"fraction": 0.0}, "federate.fraction"),
        ({"virtual": 9}, "the 8 records of the smallest client, got 9"),
        ({"virtual": 2, "order": lambda c, r: []}, "federate.order must be None"),
        ({"order": lambda c, r: []}, r"federate.order\(0, 0\) must be the rows of at least one batch"),
        ({"server_rate": 0.0}, "federate.server_rate"),
        ({"rounds": -1}, "federate.rounds"),
        ({"clients": []}, "federate.clients"),
        ({"upload": DPSGD()}, r"federate.upload must act on a finished update, got DPSGD.*local steps"),
        ({"upload": AdversarialPerturbation()}, "federate.upload must need no secret and no fitting"),
        ({"upload": Chain(Sign(), DPSGD())}, "federate.upload must act on a finished update, got DPSGD"),
        ({"model": "frozen"}, r"'0.weight' with requires_grad=False; .*models.Frozen"),
    ],
)
def test_a_federation_that_cannot_work_is_refused(settings, words):
    clients = [records(8), records(9)]
    model = small(clients[0])
    if settings.get("model"):
        model[0].weight.requires_grad_(False)
    chosen = {"clients": clients, "rounds": 2, "local": Local(0.1, batch=4), **settings, "model": model}
    refuses(ArgumentError, words, federate, rng=seeded(21), **chosen)


@pytest.mark.parametrize("rule", ["flower", "andrew"])
def test_adaptive_clipping_moves_on_with_the_norms_of_every_rounds_updates(tmp_path, rule):
    clients = [records(20, seed=i) for i in range(3)]
    model = small(clients[0])
    upload = FlowerAdaptiveClipping(0.06, 0.0, 3, rule=rule)
    recorder = Recorder(tmp_path, model, model_name="mlp")
    history = federate(model, clients, rounds=4, rng=seeded(1), local=PLAIN, upload=upload, recorder=recorder)
    recording, clips = Recording(tmp_path), []
    for r in range(4):
        norms = []
        for c, data in enumerate(clients):
            params = {name: tensor.clone().requires_grad_() for name, tensor in history[r].items()}
            loss = F.cross_entropy(torch.func.functional_call(model, params, (data.x,)), data.y)
            slope = torch.cat([g.flatten() for g in torch.autograd.grad(loss, [*params.values()])])
            norms.append(0.1 * slope.double().norm())
            sent = torch.cat([tensor.flatten() for tensor in recording.update(r, str(c)).values()])
            assert float(sent.norm()) == pytest.approx(min(float(norms[-1]), upload.clip), rel=1e-4)
        clips.append(upload.clip)
        above = float((torch.stack(norms) > upload.clip).double().mean())
        moved = above if rule == "flower" else 1 - above
        upload = replace(
            upload, clip=upload.clip * math.exp(-0.2 * (moved - 0.5))
        )  # Andrew et al., section 2
    assert len(set(clips)) == 4


def test_noise_that_is_shared_among_other_clients_than_take_part_is_refused():
    clients = [records(20, seed=i) for i in range(3)]
    upload = FlowerFixedClipping(0.1, 1.0, 20)
    with pytest.raises(ArgumentError, match="shares its noise among 20 clients, and 3 take part"):
        federate(small(clients[0]), clients, rounds=1, rng=seeded(0), local=PLAIN, upload=upload)


@pytest.mark.parametrize("local", [Local(0.1), Local(0.1, momentum=0, decay=0), Local(0.1, optimiser="adam")])
def test_steps_are_those_of_torchs_optimisers_bit_by_bit_without_their_classes(local, monkeypatch):
    """The classes import torch's compiler, which takes seconds in every process."""
    rng = seeded(0, "steps")
    slopes = torch.randn(5, 3, 4, generator=rng)
    mine, theirs = (torch.ones(3, 4).requires_grad_() for _ in range(2))
    settings = {"lr": 0.1, "weight_decay": local.decay, "fused": True}
    judge = (
        torch.optim.Adam([theirs], **settings)
        if local.optimiser == "adam"
        else torch.optim.SGD([theirs], momentum=local.momentum, **settings)
    )
    for slope in slopes:
        theirs.grad = slope
        judge.step()
    monkeypatch.setattr(torch.optim.Optimizer, "__init__", lambda *_: pytest.fail("a class was used"))
    optimiser = local.optimiser_of([mine], 0.1)
    for slope in slopes:
        mine.grad = slope
        optimiser.step()
    assert torch.equal(mine, theirs)
