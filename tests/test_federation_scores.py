"""Membership scores that see more than one client: against a second implementation, nothing and everything."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from builders import refuses
from scipy import stats
from test_membership_attacks import CLASSES, WIDTH, gradient, net, records
from torch import Tensor, nn

from leakscope.attacks.alignment import Cosine
from leakscope.attacks.joint_regression import JointRegression
from leakscope.attacks.losses import FedLoss, Loss, ModifiedEntropy, Zari
from leakscope.attacks.whitened import FedMIA, InOut, Whitened
from leakscope.core.dataset import Batch, Dataset
from leakscope.core.errors import ArgumentError, DataError
from leakscope.core.nouns import Knowledge, View
from leakscope.core.rng import seeded
from leakscope.defenses.bottleneck import VIB
from leakscope.games import Membership
from leakscope.games.referee import play
from leakscope.gradients import moments
from leakscope.gradients.joint import is_batchwise, normalise_by
from leakscope.measures.success import auroc
from leakscope.training.recording import RecordedChannel, Recorder, Recording

NAMES = ("a", "b", "c")
SUMS = {"seen": "sum"}


def federation(
    folder, members: dict[str, Dataset], *, rounds=4, rate=0.5, absent=lambda r: None, scale=1.0, model=None
) -> Recording:
    """One full-batch step of plain SGD a client, and a global model that goes its own way."""
    model = model or net()
    recorder = Recorder(folder, model, model_name="net")
    params = {name: tensor.detach().clone() for name, tensor in model.named_parameters()}
    noise = torch.Generator().manual_seed(9)
    for r in range(rounds):
        recorder.global_model(r, params)
        for client, data in members.items():
            if client == absent(r):
                continue
            step = gradient(model, params, data.x, data.y)
            moved = {name: tensor - scale * rate * step[name] for name, tensor in params.items()}
            recorder.update(r, client, moved, samples=len(data))
        params = {k: v + 0.01 * torch.randn(v.shape, generator=noise) for k, v in params.items()}
    recorder.global_model(rounds, params)
    return Recording(folder)


def clients(n: int) -> dict[str, Dataset]:
    return {name: records(n, 10 + i) for i, name in enumerate(NAMES)}


def ask(recording: Recording, members: Dataset, attack, *, model=None, seed=0, **channel):
    settings = {"peers": True} | channel
    asked = RecordedChannel(recording, model or net(), ("a",), **settings)
    game = Membership(members, records(300, 1), records(100, 2))
    knowledge = Knowledge(game.on(records(150, 4)), asked, 150)
    return play(game, asked, attack, knowledge, trials=600, rng=torch.Generator().manual_seed(seed))


def away(r: int) -> str | None:
    """Each client is away in one of three rounds."""
    return NAMES[r % 3]


JOINT = JointRegression(most=500)  # in two groups


@pytest.mark.parametrize(("attack", "channel"), [(FedMIA(), {}), (InOut(), SUMS), (JOINT, SUMS)], ids=repr)
def test_updates_that_say_nothing_give_nothing_away(attack, channel, tmp_path):
    members = clients(200)
    recording = federation(tmp_path / "run", members, rate=0.0, absent=away)
    found = auroc(ask(recording, members["a"], attack, **channel), level=0.999)
    assert found.low <= 0.5 <= found.high


@pytest.mark.parametrize(
    ("attack", "channel"),
    [
        (FedMIA(), {}),
        (InOut(), SUMS),
        (FedMIA(Whitened(label="max")), {}),
        (Whitened(label="max"), {}),
        (JOINT, SUMS),
    ],
    ids=repr,
)
def test_updates_of_two_records_give_both_away(attack, channel, tmp_path):
    members = clients(2)
    recording = federation(tmp_path / "run", members, absent=away, rounds=6)
    found = ask(recording, members["a"], attack, **channel)
    assert found.guesses[found.secrets == 1].min() > found.guesses[found.secrets == 0].max()


def dense(recording: Recording, r: int, clients, known: Dataset, asked: Dataset, cut: int):
    """Whitened cosines (clients, layers, n) of both sets, every gradient formed and every moment inverted."""
    model, params = net(), recording.global_model(r)

    def formed(data: Dataset) -> dict[str, Tensor]:
        each = [gradient(model, params, x[None], y[None]) for x, y in zip(data.x, data.y, strict=True)]
        return {k: torch.stack([g[k] for g in each]).double() for k in ("0.weight", "2.weight")}

    with torch.no_grad():
        hidden = torch.tanh(known.x @ params["0.weight"].T + params["0.bias"])
        logits = hidden @ params["2.weight"].T + params["2.bias"]
        error = logits.softmax(1) - nn.functional.one_hot(known.y, CLASSES)
        below = (error @ params["2.weight"]) * (1 - hidden**2)
    factors = {"0.weight": (known.x, below), "2.weight": (hidden, error)}
    found = []
    for data in (known, asked):
        layers = []
        for name, g in formed(data).items():
            inverses = []
            for part in factors[name]:
                moment = part[:cut].double().T @ part[:cut].double() / cut
                inverses.append((moment + 0.1 * moment.diagonal().mean() * torch.eye(len(moment))).inverse())
            update = torch.stack([recording.update(r, c)[name].double() for c in clients])
            matched = inverses[1] @ update @ inverses[0]
            own = (inverses[1] @ g @ inverses[0] * g).sum((1, 2)).sqrt()
            layers.append(torch.einsum("coi,noi->cn", matched, g) / own)
        found.append(torch.stack(layers, 1))
    return found


@pytest.mark.parametrize("by_class", [False, True])
def test_less_peers_is_what_a_second_implementation_says(by_class, tmp_path):
    members = clients(15)
    recording = federation(tmp_path / "run", members, rounds=2)
    known, asked = records(60, 4), records(12, 1)
    channel = RecordedChannel(recording, net(), ("a",), rounds=(0, 1), peers=True)
    knowledge = Knowledge(Membership(asked, known).on(known), channel, 60)
    guess = FedMIA(Whitened(by_class=by_class))(knowledge, torch.Generator().manual_seed(0))
    dealt = knowledge.simulate(torch.Generator().manual_seed(0))[0].public["candidates"]
    known = dealt.data.take(dealt.rows[:, 0])
    batch = Batch(asked, torch.arange(12)[:, None])
    ours = guess(View(channel(batch, torch.zeros(12), torch.Generator()), {"candidates": batch}))
    total = torch.zeros(12, dtype=torch.float64)
    for r in (0, 1):
        null, score = dense(recording, r, NAMES, known, asked, 48)
        if by_class:
            middle = null.mean(2)
            centres = torch.zeros(3, 2, CLASSES, dtype=torch.float64)
            for k in range(CLASSES):
                mine = null[:, :, known.y == k]
                centres[:, :, k] = middle + (mine - middle[:, :, None]).sum(2) / (mine.shape[2] + 1)
            null, score = null - centres[:, :, known.y], score - centres[:, :, asked.y]
        rest = null[:, :, 48:]
        score = (score - rest.mean(2, keepdim=True)) / rest.std(2, keepdim=True)
        rest = (rest - rest.mean(2, keepdim=True)) / rest.std(2, keepdim=True)
        left, null = score[0] - score[1:].mean(0), rest[0] - rest[1:].mean(0)
        total += ((left - null.mean(1, keepdim=True)) / null.std(1, keepdim=True)).mean(0) / 2
    torch.testing.assert_close(ours, total, rtol=1e-3, atol=1e-3)


def test_joint_regression_is_the_ridge_of_all_gradients_formed(tmp_path):
    """In the whitened coordinates themselves: by least squares of the stacked system, its errors from the
    rows of its pseudo-inverse."""
    members = clients(15)
    recording = federation(tmp_path / "run", members, rounds=1)
    known, asked = records(60, 4), records(25, 1)
    channel = RecordedChannel(recording, net(), ("a",), rounds=(0,), seen="sum")
    knowledge = Knowledge(Membership(asked, known).on(known), channel, 60)
    rng = torch.Generator().manual_seed(0)
    guess = JointRegression(ridge=0.7)(knowledge, rng)
    dealt = knowledge.simulate(torch.Generator().manual_seed(0))[0].public["candidates"]
    known, params = dealt.data.take(dealt.rows[:, 0]), recording.global_model(0)
    batch = Batch(asked, torch.arange(25)[:, None])
    ours = guess(View(channel(batch, torch.zeros(25), torch.Generator()), {"candidates": batch}))
    update, parts = recording.aggregate(0), []
    each = [gradient(net(), params, x[None], y[None]) for x, y in zip(asked.x, asked.y, strict=True)]
    found = moments(net(), params, known.x[:48], known.y[:48])
    for name in ("0.weight", "2.weight"):
        roots = []
        for moment in (found.inputs[name], found.outputs[name]):
            damped = moment + 0.1 * moment.diagonal().mean() * torch.eye(len(moment), dtype=torch.float64)
            values, vectors = torch.linalg.eigh(damped)
            roots.append(vectors @ torch.diag(values**-0.5) @ vectors.T)
        white = [
            (roots[1] @ g.double() @ roots[0]).flatten() for g in (update[name], *(e[name] for e in each))
        ]
        parts.append(torch.stack(white) / torch.stack(white[1:]).square().sum(1).mean().sqrt())
    u, *rows = torch.cat(parts, 1)
    g = torch.stack(rows).T  # (entries, candidates)
    c = 0.7 * g.square().sum(0).mean()
    taller = torch.cat([g, c.sqrt() * torch.eye(25, dtype=torch.float64)])
    solve = torch.linalg.pinv(taller)[:, : len(g)]
    t = (solve @ u) / solve.square().sum(1).sqrt()
    torch.testing.assert_close(ours, t / t.square().mean().sqrt(), rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize(("attack", "channel"), [(FedMIA(), {}), (InOut(), SUMS), (JOINT, SUMS)], ids=repr)
def test_how_long_updates_are_does_not_matter(attack, channel, tmp_path):
    """A sum that is not divided by how many are in it, a server with a rate."""
    members = clients(20)
    parts = [
        ask(
            federation(tmp_path / str(scale), members, absent=away, scale=scale),
            members["a"],
            attack,
            **channel,
        )
        for scale in (1.0, 3.0)
    ]
    torch.testing.assert_close(parts[0].guesses, parts[1].guesses, rtol=1e-3, atol=1e-3)


def test_a_sum_of_parameters_that_nobody_divided_is_refused(tmp_path):
    members, model = clients(20), net()
    recorder = Recorder(tmp_path / "run", model, model_name="net")
    params = {name: tensor.detach() for name, tensor in model.named_parameters()}
    recorder.global_model(0, params)
    steps = [gradient(model, params, data.x, data.y) for data in members.values()]
    total = {name: sum(tensor - 0.5 * step[name] for step in steps) for name, tensor in params.items()}
    recorder.sum(0, NAMES, total, samples=60)
    recording = Recording(tmp_path / "run")
    refuses(DataError, "times the global model", ask, recording, members["a"], InOut(), **SUMS)


def test_a_client_that_was_always_there_is_scored_as_it_is(tmp_path):
    members = clients(20)
    recording = federation(tmp_path / "run", members)
    both = [ask(recording, members["a"], one, **SUMS).guesses for one in (InOut(), Whitened(by_class=True))]
    torch.testing.assert_close(*both)


def test_the_other_clients_are_needed_and_said_to_be(tmp_path):
    members = clients(5)
    recording = federation(tmp_path / "run", members, rounds=1)
    refuses(
        ArgumentError,
        "needs the updates of other clients",
        ask,
        recording,
        members["a"],
        FedMIA(),
        peers=False,
    )
    refuses(ArgumentError, "who took part", ask_unknown, recording, members["a"])


def ask_unknown(recording: Recording, members: Dataset):
    """Of a channel that says nothing of who took part."""
    from leakscope.core.nouns import Release

    channel = RecordedChannel(recording, net(), ("a",))
    guess = InOut()(
        Knowledge(Membership(members, records(9, 1)).on(records(50, 4)), channel, 50), torch.Generator()
    )
    release = channel(None, None, None)[0]
    batch = Batch(members, torch.arange(len(members))[:, None])
    return guess(View((Release(release.params, release.blocks),), {"candidates": batch}))


def test_the_steadiest_layer_is_one_that_moves(tmp_path):
    """The first layer frozen: zeros have no spread, and tell nothing."""
    members, model = records(2, 0), net()
    recorder = Recorder(tmp_path / "run", model, model_name="net")
    params = {name: tensor.detach() for name, tensor in model.named_parameters()}
    recorder.global_model(0, params)
    step = gradient(model, params, members.x, members.y)
    moved = {k: v - (step[k] if k.startswith("2") else 0) for k, v in params.items()}
    recorder.update(0, "a", moved, samples=2)
    recording = Recording(tmp_path / "run")
    for attack in (Cosine(), Cosine(start=None)):
        assert auroc(ask(recording, members, attack)).value > 0.9
    same = [ask(recording, members, attack).guesses for attack in (Cosine(), Cosine(layer="2"))]
    torch.testing.assert_close(*same)


def test_a_bottlenecks_divergence_is_no_class(tmp_path):
    """Losses are those of the logits; a net that says the same without the column gives the same scores."""
    torch.manual_seed(0)
    guarded = VIB(beta=0.5).model(net()).eval()
    members = {"a": records(20, 0)}
    loud = {n: t.detach().clone() for n, t in guarded.named_parameters()}
    loud["spread.bias"] -= 8  # a divergence far above every logit
    recorder = Recorder(tmp_path / "run", guarded, model_name="net")
    recorder.global_model(0, loud)
    recorder.update(0, "a", loud, samples=20)
    recording, batch = Recording(tmp_path / "run"), Batch(members["a"], torch.arange(20)[:, None])
    channel = RecordedChannel(recording, guarded, ("a",))
    knowledge = Knowledge(Membership(members["a"], records(9, 1)).on(records(50, 4)), channel, 50)
    view = View(channel(batch, torch.zeros(20), torch.Generator()), {"candidates": batch})
    with torch.no_grad():
        logits = torch.func.functional_call(guarded, loud, (members["a"].x,))[:, :-1].double()
    losses = nn.functional.cross_entropy(logits, members["a"].y, reduction="none")
    for attack in (Loss(), FedLoss()):
        torch.testing.assert_close(attack(knowledge, torch.Generator())(view), -losses)
    assert ModifiedEntropy()(knowledge, torch.Generator())(view).isfinite().all()
    best = logits.log_softmax(1).amax(1)
    for label in ("predicted", "max"):
        torch.testing.assert_close(Loss(label)(knowledge, torch.Generator())(view), best)


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, CLASSES))


def test_statistics_of_no_record_are_refused(tmp_path):
    model = normed()
    recorder = Recorder(tmp_path / "run", model, model_name="net")
    recorder.global_model(0, dict(model.named_parameters()))
    recorder.update(0, "a", dict(model.named_parameters()), samples=2)
    recording = Recording(tmp_path / "run")
    refuses(ArgumentError, "running statistics of the trained model", RecordedChannel, recording, model)
    model(records(50, 0).x)
    assert RecordedChannel(recording, model.eval()).model is model


def test_recorded_statistics_are_those_that_candidates_pass_through(tmp_path):
    model = normed()
    recorder = Recorder(tmp_path / "run", model, model_name="net")
    for r in range(2):
        recorder.global_model(r, model)
        recorder.update(r, "a", model, samples=2)
        model(records(50, r).x)
    recorder.global_model(2, model)
    found = RecordedChannel(Recording(tmp_path / "run"), normed(), ("a",), (0, 1)).model
    torch.testing.assert_close(found[1].running_mean, model[1].running_mean)
    torch.testing.assert_close(found[1].running_var, model[1].running_var)


def test_statistics_of_known_records_are_those_of_a_batch_in_training():
    """By the mean and variance of what the first layer gives, and by a pass in training mode."""
    model, x = normed(), records(40, 0).x
    params = {name: 2 * p.detach() for name, p in model.named_parameters()}
    settled = normalise_by(model, params, x, batch=40)
    before = x @ params["0.weight"].T + params["0.bias"]
    torch.testing.assert_close(settled[1].running_mean, before.mean(0))
    torch.testing.assert_close(settled[1].running_var, before.var(0))
    twice = normalise_by(model, params, x, batch=20)
    halves = torch.stack([part.var(0) for part in before.split(20)])
    torch.testing.assert_close(twice[1].running_var, halves.mean(0))
    settled[1].running_var *= 39 / 40  # a pass in training divides by n
    trained = torch.func.functional_call(copy.deepcopy(model).train(), params, (x,))
    torch.testing.assert_close(torch.func.functional_call(settled, params, (x,)), trained)
    assert not model[1].running_mean.any()
    other = net()
    assert normalise_by(other, dict(other.named_parameters()), x, batch=8) is other
    assert not is_batchwise(other)


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_members_behind_batch_normalisation_are_found_with_statistics_that_fit(tmp_path, mode):
    """Running statistics after two rounds are still far from those of any batch. Where clients trained in
    evaluation mode, the recorded ones are right, and stay."""
    torch.manual_seed(1)
    members = {name: records(30, i) for i, name in enumerate("abc")}
    layers: list[nn.Module] = []
    for width in (WIDTH, 32, 32):
        layers += [nn.Linear(width, 32), nn.BatchNorm1d(32), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(32, CLASSES))
    with torch.no_grad():
        for layer in layers[::3]:
            layer.weight *= 8
    recorder = Recorder(tmp_path / "run", model, model_name="net")
    for r in range(2):
        recorder.global_model(r, model)
        states = []
        for name, part in members.items():
            local = copy.deepcopy(model).train(mode == "train")
            optimiser = torch.optim.SGD(local.parameters(), 0.1)
            optimiser.zero_grad()
            nn.functional.cross_entropy(local(part.x), part.y).backward()
            optimiser.step()
            recorder.update(r, name, local, samples=30)
            states.append(local.state_dict())
        model.load_state_dict({k: sum(s[k] for s in states) / 3 for k in states[0]})
    recorder.global_model(2, model)
    recording = Recording(tmp_path / "run")
    assert recording.still == (mode == "eval")
    found = {}
    for normalised in (0, 256):
        areas = []
        for i, name in enumerate(members):
            channel = RecordedChannel(recording, copy.deepcopy(model).eval(), (name,), (0, 1))
            game = Membership(members[name], records(150, 20 + i))
            knowledge = Knowledge(game.on(records(120, 50)), channel, 120)
            attack = Whitened(normalised=normalised)
            areas.append(auroc(play(game, channel, attack, knowledge, trials=180, rng=seeded(0, i))).value)
        found[normalised] = sum(areas) / len(areas)
    if mode == "eval":
        assert found[0] == found[256]
    assert found[256] > 0.9
    assert mode == "eval" or 1 - found[256] < (1 - found[0]) / 2


def test_the_final_model_is_the_one_that_losses_are_of(tmp_path):
    members = clients(10)
    recording = federation(tmp_path / "run", members, rounds=2)
    batch = Batch(members["a"], torch.arange(10)[:, None])
    for rounds, final in (((0,), 1), ((0, 1), 2)):
        channel = RecordedChannel(recording, net(), ("a",), rounds=rounds)
        view = View(channel(batch, torch.zeros(10), torch.Generator()), {"candidates": batch})
        knowledge = Knowledge(Membership(members["a"], records(9, 1)).on(records(50, 4)), channel, 50)
        logits = torch.func.functional_call(net(), recording.global_model(final), (members["a"].x,)).double()
        losses = nn.functional.cross_entropy(logits, members["a"].y, reduction="none")
        torch.testing.assert_close(Loss()(knowledge, torch.Generator())(view), -losses)


@pytest.mark.filterwarnings("ignore:Stochastic Optimizer")
def test_zari_reads_the_models_that_the_client_uploads(tmp_path):
    """Uploads that know their members by heart, under global models that know nothing."""
    members, model = records(60, 0), net()
    recorder = Recorder(tmp_path / "run", model, model_name="net")
    recorder.global_model(0, model)
    fitted = net()
    optimiser = torch.optim.Adam(fitted.parameters(), 0.05)
    for _ in range(200):
        optimiser.zero_grad()
        nn.functional.cross_entropy(fitted(members.x), members.y).backward()
        optimiser.step()
    recorder.update(0, "a", fitted, samples=60)
    half = torch.arange(30)
    told = Membership(members.take(half), records(60, 6))
    channel = RecordedChannel(Recording(tmp_path / "run"), model, ("a",))
    game = Membership(members.take(half + 30), records(100, 1))
    found = [
        auroc(
            play(
                game,
                channel,
                Zari(models=models),
                Knowledge(told, channel, 120),
                trials=200,
                rng=torch.Generator().manual_seed(0),
            )
        )
        for models in ("local", "global")
    ]
    assert found[0].value > 0.9
    assert found[1].low < 0.6


def test_the_printed_statistic_is_students_of_the_rounds(tmp_path):
    members = clients(20)
    recording = federation(tmp_path / "run", members)
    rounds = [
        ask(recording, members["a"], Cosine(layer="all"), rounds=(r,)).guesses.numpy() for r in range(4)
    ]
    found = ask(recording, members["a"], Cosine(layer="all", over="t")).guesses
    expected = stats.ttest_1samp(np.stack(rounds), 0.0).statistic
    torch.testing.assert_close(found, torch.from_numpy(expected), rtol=1e-6, atol=1e-9)
    refuses(ArgumentError, "observe more rounds", ask, recording, members["a"], Cosine(over="t"), rounds=(0,))
