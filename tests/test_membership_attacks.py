"""Membership attacks: against loops of autograd, through updates that say nothing and everything."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from builders import refuses
from torch import nn
from torch.nn import functional as F

from leakscope.attacks.alignment import Cosine, GradientDiff
from leakscope.attacks.losses import FedLoss, Loss, Merlin, ModifiedEntropy, Zari
from leakscope.attacks.span_membership import SpanDistance, WhitenedSpan
from leakscope.attacks.whitened import Whitened
from leakscope.core.dataset import Dataset
from leakscope.core.errors import ArgumentError, DataError
from leakscope.core.nouns import Knowledge, Transcript
from leakscope.games import Membership
from leakscope.games.channels import Silent
from leakscope.games.referee import play
from leakscope.measures.success import advantage, auroc, guessing
from leakscope.training.recording import RecordedChannel, Recorder, Recording

CLASSES, WIDTH = 4, 30
ATTACKS = [
    Cosine(), Cosine(layer="all"), Cosine(start=None), Cosine(label="max"), Cosine(label="predicted"), Cosine(label="sum"),
    GradientDiff(scale=0.01), Whitened(), Whitened(label="predicted"), Whitened(label="sum"),
    SpanDistance(steps=1), SpanDistance(layer="2", steps=1),
    WhitenedSpan(), WhitenedSpan(layer="2"),
]  # fmt: skip


LOSSES = [FedLoss(), Loss(), ModifiedEntropy(), Merlin(perturbations=20), Zari()]


def net() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(WIDTH, 16), nn.Tanh(), nn.Linear(16, CLASSES))


def records(n: int, seed: int, *, scale: float = 1.0) -> Dataset:
    rng = torch.Generator().manual_seed(seed)
    x = scale * torch.randn(n, WIDTH, generator=rng)
    return Dataset(x, torch.randint(CLASSES, (n,), generator=rng), {})


def gradient(model: nn.Module, params, x, y) -> dict[str, torch.Tensor]:
    """By autograd alone, one record or a batch."""
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in params.items()}
    loss = F.cross_entropy(torch.func.functional_call(model, leaves, (x,)), y)
    return dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))


def recorded(
    folder, members: Dataset, *, rounds: int = 2, rate: float = 0.1, silent: bool = False
) -> Recording:
    """One client, full-batch steps of plain SGD, and a global model that goes its own way."""
    model = net()
    recorder = Recorder(folder, model, model_name="net")
    params = {name: tensor.detach().clone() for name, tensor in model.named_parameters()}
    noise = torch.Generator().manual_seed(9)
    for r in range(rounds):
        recorder.global_model(r, params)
        step = gradient(model, params, members.x, members.y)
        moved = {name: tensor - (0 if silent else rate) * step[name] for name, tensor in params.items()}
        recorder.update(r, "a", moved, samples=len(members))
        params = {
            name: tensor + 0.01 * torch.randn(tensor.shape, generator=noise)
            for name, tensor in params.items()
        }
    return Recording(folder)


def played(recording: Recording, members: Dataset, attack, *, rehearsal=None):
    channel = RecordedChannel(recording, net(), ("a",))
    game = Membership(members, records(300, 1), records(100, 2))
    knowledge = Knowledge(rehearsal or game.on(records(150, 4)), channel, 150)
    return play(game, channel, attack, knowledge, trials=600, rng=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("attack", [*ATTACKS, *LOSSES], ids=repr)
def test_an_update_that_says_nothing_gives_nothing_away(attack, tmp_path):
    members = records(200, 0)
    recording = recorded(tmp_path / "run", members, silent=True)
    rehearsal = Membership(records(80, 5), records(80, 6)) if isinstance(attack, Zari) else None
    found = auroc(played(recording, members, attack, rehearsal=rehearsal), level=0.999)
    assert found.low <= 0.5 <= found.high


@pytest.mark.parametrize("attack", ATTACKS[:5] + ATTACKS[6:9] + ATTACKS[10:11], ids=repr)
def test_an_update_of_two_records_gives_both_away(attack, tmp_path):
    members = records(2, 0)
    if getattr(attack, "label", "") == "predicted":  # which finds whom the model gets right
        members = replace(members, y=net()(members.x).argmax(1))
    transcript = played(recorded(tmp_path / "run", members, rate=1.0), members, attack)
    assert (
        transcript.guesses[transcript.secrets == 1].min() > transcript.guesses[transcript.secrets == 0].max()
    )


@pytest.mark.filterwarnings("ignore:Stochastic Optimizer")  # what is wholly separable has no end
@pytest.mark.parametrize("attack", [FedLoss(), Loss(), ModifiedEntropy(), Zari()], ids=repr)
def test_a_model_that_knows_its_members_by_heart_gives_them_away_to_losses(attack, tmp_path):
    """Sure of every label: members have the one it says, others another."""
    model = net()
    sure = {name: 50 * tensor.detach() for name, tensor in model.named_parameters()}
    recorder = Recorder(tmp_path, model, model_name="net")
    for r in range(2):
        recorder.global_model(r, sure)
        recorder.update(r, "a", sure, samples=40)

    def labelled(n: int, seed: int, shift: int) -> Dataset:
        data = records(n, seed)
        said = torch.func.functional_call(model, sure, (data.x,)).argmax(1)
        return replace(data, y=(said + shift) % CLASSES)

    members, others, known = labelled(40, 0, 0), labelled(100, 1, 1), labelled(100, 2, 1)
    channel, game = RecordedChannel(Recording(tmp_path), model, ("a",)), Membership(members, others)
    rehearsal = Membership(labelled(40, 3, 0), known) if isinstance(attack, Zari) else game.on(known)
    knowledge = Knowledge(rehearsal, channel, 140)
    found = play(game, channel, attack, knowledge, trials=200, rng=torch.Generator().manual_seed(0))
    assert auroc(found).value == 1


def test_the_sign_of_the_score_follows_the_label_mode(tmp_path):
    """After one step on confident members, K p - 1 lies against p - e_y; both are scored upwards."""
    members = records(2, 0)
    recording = recorded(tmp_path / "run", members, rate=1.0)
    for attack in (Cosine(label="sum"), Cosine(label="known")):
        scores = played(recording, members, attack)
        ours, theirs = (scores.guesses[scores.secrets == secret].mean() for secret in (1, 0))
        assert ours > theirs


@pytest.mark.parametrize("layer", ["all", "0", "2"])
@pytest.mark.parametrize("label", ["known", "predicted", "sum", "max"])
def test_the_cosine_is_that_of_a_loop_of_autograd(label, layer, tmp_path):
    members = records(20, 0)
    recording = recorded(tmp_path / "run", members)
    transcript = played(recording, members, Cosine(label=label, layer=layer))
    channel = RecordedChannel(recording, net(), ("a",))
    game = Membership(members, records(300, 1), records(100, 2))
    deal = torch.Generator().manual_seed(0)
    from leakscope.core.rng import fork, integer

    integer(deal)
    view, secrets = game.deal(channel, 600, fork(deal, 1)[0])
    data = view.public["candidates"].data
    for i in range(0, len(data), 40):
        expected = 0.0
        for release in view.releases:
            params, update = dict(release.params), {k: v[0] for k, v in release.layers.items()}
            expected += _cosine(params, update, data.x[i : i + 1], data.y[i : i + 1], label, layer) / 2
        kept = int((secrets[:i] >= 0).sum())
        scores = transcript.guesses if secrets[i] >= 0 else transcript.null
        place = kept if secrets[i] >= 0 else i - kept
        assert scores[place].item() == pytest.approx(expected, abs=1e-5)


def _cosine(params, update, x, y, label, layer) -> float:
    def one(label_of):
        g = gradient(net(), params, x, torch.tensor([label_of]))
        return {k: v for k, v in g.items() if layer == "all" or k.startswith(layer)}

    def cos(g):
        dot = sum((g[k] * update[k]).sum() for k in g)
        sizes = [sum(t[k].square().sum() for k in g).sqrt() for t in (g, update)]
        return float(dot / sizes[0] / sizes[1])

    every = [one(a) for a in range(CLASSES)]
    if label == "known":
        return cos(every[int(y)])
    if label == "predicted":
        return cos(every[int(torch.func.functional_call(net(), params, (x,)).argmax())])
    if label == "sum":
        return -cos({k: sum(g[k] for g in every) for k in every[0]})
    return max(cos(g) for g in every)


@pytest.mark.parametrize("label", ["known", "sum"])
def test_gradient_diff_is_the_difference_of_the_distances(label, tmp_path):
    members = records(5, 0)
    recording = recorded(tmp_path / "run", members, rounds=1)
    transcript = played(recording, members, GradientDiff(scale=0.5, label=label))
    update, params = recording.update(0, "a"), recording.global_model(0)
    if label == "sum":  # as printed
        update = {k: -u for k, u in update.items()}
    distances = []
    for x, y in zip(members.x, members.y, strict=True):
        labels = [y] if label == "known" else [torch.tensor(a) for a in range(CLASSES)]
        each = [gradient(net(), params, x[None], a[None]) for a in labels]
        g = {k: sum(one[k] for one in each) for k in each[0]}
        here = sum(update[k].double().square().sum() for k in g)
        there = sum((update[k].double() - 0.5 * g[k].double()).square().sum() for k in g)
        distances.append(float(here - there))
    found = sorted(transcript.guesses[transcript.secrets == 1].tolist())
    assert found == pytest.approx(sorted(distances), rel=1e-4)


def test_what_is_private_of_candidates_and_their_order_are_not_shown(tmp_path):
    members = replace(records(40, 0), private={"client": torch.ones(40, dtype=torch.long)})
    others = replace(records(60, 1), private={"client": torch.zeros(60, dtype=torch.long)})
    channel = RecordedChannel(recorded(tmp_path / "run", members), net(), ("a",))
    view, secrets = Membership(members, others).deal(channel, 100, torch.Generator().manual_seed(0))
    assert view.public["candidates"].data.private == {}
    assert 0 < int(secrets[:40].sum()) < 40


def test_an_attack_that_says_no_to_all_has_no_advantage(tmp_path):
    members = records(20, 0)
    recording = recorded(tmp_path / "run", members, silent=True)
    transcript = played(recording, members, FedLoss())  # scores below 0: nobody is called a member
    assert guessing(transcript) == pytest.approx(300 / 320)
    assert advantage(transcript).value == 0


def test_what_cannot_be_played_is_refused(tmp_path):
    members, half = records(10, 0), torch.tensor([0.5, 0.5])
    recording = recorded(tmp_path / "run", members)
    narrow = Dataset(torch.zeros(3, 7), torch.zeros(3, dtype=torch.long), {})
    game, rng = Membership(records(5, 0), records(5, 1)), torch.Generator()
    for words, call in {
        "one of the 2 observed rounds, got 3": lambda: played(recording, members, Cosine(start=3)),
        "known members": lambda: played(recording, members, Zari()),
        r"record 3 of Membership\.members is also record 0 of Membership\.others": lambda: Membership(
            members, members.take(torch.tensor([3]))
        ),
        "as wide as the others": lambda: Membership(narrow, records(5, 0)),
        "RecordedChannel": lambda: play(
            game, Silent(), Cosine(), Knowledge(game, Silent(), 4), trials=4, rng=rng
        ),
        "scores must be numbers": lambda: Transcript.of_scores(
            torch.tensor([0, 1]), torch.tensor([0.0, torch.nan]), half
        ),
    }.items():
        refuses((ArgumentError, DataError), words, call)


def test_a_model_in_training_mode_is_scored_as_if_it_were_not(tmp_path):
    members = records(10, 0)
    recording = recorded(tmp_path / "run", members)
    noisy = nn.Sequential(*net(), nn.Dropout(0.5))
    channel = RecordedChannel(recording, noisy, ("a",))
    game = Membership(members, records(30, 1))
    knowledge = Knowledge(game.on(records(20, 2)), channel, 20)
    first, again = (
        play(game, channel, FedLoss(), knowledge, trials=20, rng=torch.Generator().manual_seed(0)).guesses
        for _ in range(2)
    )
    assert torch.equal(first, again)
    assert noisy.training


def test_modified_entropy_and_loss_are_the_formulas_printed(tmp_path):
    members = records(6, 0)
    recording = recorded(tmp_path / "run", members, rounds=1)
    p = torch.func.functional_call(net(), dict(recording.global_model(0)), (members.x,)).double().softmax(1)
    own = p.gather(1, members.y[:, None])[:, 0]
    rest = torch.stack([row[torch.arange(CLASSES) != y] for row, y in zip(p, members.y, strict=True)])
    entropy = -(1 - own) * own.log() - (rest * (1 - rest).log()).sum(1)
    for attack, expected in ((ModifiedEntropy(), -entropy), (Loss(), own.log()), (FedLoss(), own.log())):
        transcript = played(recording, members, attack)
        found = transcript.guesses[transcript.secrets == 1].sort().values
        torch.testing.assert_close(found, expected.sort().values, rtol=1e-5, atol=1e-6)


def test_a_saturated_record_has_a_cosine_of_zero_and_no_nan(tmp_path):
    members = records(2, 0)
    recording = recorded(tmp_path / "run", members)
    far = Dataset(torch.zeros(2, WIDTH), torch.zeros(2, dtype=torch.long), {})
    model = nn.Sequential(nn.Linear(WIDTH, CLASSES, bias=False))
    recorder = Recorder(tmp_path / "zero", model, model_name="linear")
    params = {"0.weight": torch.randn(CLASSES, WIDTH)}
    recorder.global_model(0, params)
    recorder.update(0, "a", {"0.weight": params["0.weight"] * 0.9}, samples=1)
    channel = RecordedChannel(Recording(tmp_path / "zero"), model, ("a",))
    game = Membership(members, far.take(torch.tensor([0])))
    knowledge = Knowledge(game.on(records(20, 3)), channel, 20)
    transcript = play(game, channel, Cosine(), knowledge, trials=4, rng=torch.Generator().manual_seed(0))
    assert transcript.guesses.isfinite().all()
    assert transcript.guesses[transcript.secrets == 0].item() == 0
    assert recording.rounds == (0, 1)


def test_known_noise_pulls_the_whitening_towards_the_plain_coordinates(tmp_path):
    members = records(50, 0)
    recording = recorded(tmp_path / "run", members, rounds=1)
    tame = played(recording, members, Whitened(noise=1e6)).guesses
    far = played(recording, members, Whitened(damping=1e9)).guesses
    torch.testing.assert_close(tame, far, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(tame, played(recording, members, Whitened()).guesses, rtol=1e-2)
