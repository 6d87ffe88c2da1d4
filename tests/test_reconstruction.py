"""Reconstruction from gradients: the kernel against autograd and torch.optim, the attacks on tiny nets."""

from __future__ import annotations

import math
from functools import partial
from itertools import pairwise

import pytest
import torch
from builders import refuses
from torch import Tensor, nn
from torch.nn import functional as F

import leakscope as ls
from leakscope.attacks.closed_form import FirstLayer, SeenLayer, labels_of, projected
from leakscope.attacks.matching import Descent, Matching, adam, cosine, evaluated, in_turn, lbfgs, squared
from leakscope.attacks.reconstruction import DeepLeakage, InvertingGradients
from leakscope.core.errors import ArgumentError, DataError
from leakscope.core.nouns import Transcript, View
from leakscope.core.rng import initialised
from leakscope.games import Reconstruction
from leakscope.measures.fidelity import failures, matched, mse, recovered, ssim, trivial
from leakscope.models import MLP, parameters
from leakscope.training import Local

CLASSES = 4


def images(n: int = 12, *, side: int = 12, seed: int = 0) -> ls.Dataset:
    """Smooth grey images, values from 0 to 1, labels in turn."""
    rough = torch.rand(n, 1, side, side, generator=ls.seeded(seed))
    x = F.avg_pool2d(F.pad(rough, (2, 2, 2, 2), mode="reflect"), 5, 1)
    x = (x - x.min()) / (x.max() - x.min())
    return ls.Dataset(x, torch.arange(n) % CLASSES, {}, name="images")


def smooth_net(side: int = 12, *, seed: int = 0) -> nn.Module:
    """A sigmoid net with weights from U(-1/2, 1/2), as the reference attack has it, only smaller."""
    net = nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2, stride=2),
        nn.Sigmoid(),
        nn.Flatten(),
        nn.Linear(6 * (side // 2) ** 2, CLASSES),
    )
    for tensor in net.parameters():
        nn.init.uniform_(tensor, -0.5, 0.5, generator=ls.seeded(seed, str(tuple(tensor.shape))))
    return net


def table(n: int = 30) -> ls.Dataset:
    """A number, a category of three dummies and another number."""
    rng = ls.seeded(3)
    kind = torch.randint(3, (n,), generator=rng)
    numbers = torch.randn(n, 2, generator=rng)
    x = torch.cat([numbers[:, :1], F.one_hot(kind, 3).float(), numbers[:, 1:]], dim=1)
    columns = (
        ls.Column("age", 0, 1),
        ls.Column("kind", 1, 4, values=("a", "b", "c"), standardised=False),
        ls.Column("pay", 4, 5),
    )
    return ls.Dataset(x, torch.arange(n) % 2, {}, name="table", columns=columns)


def channel_of(model: nn.Module) -> ls.GradientChannel:
    return ls.GradientChannel(model, (parameters(model),))


def setting(game: Reconstruction, channel) -> ls.Knowledge:
    """The adversary's side: other records of the same kind and about the same range."""
    data = game.data
    public = (
        table(40).take(torch.arange(30, 40)) if data.columns else images(40, side=data.x.shape[-1], seed=1)
    )
    return ls.Knowledge(game.on(public), channel)


def attacked(game: Reconstruction, channel, attack, *, trials: int = 2, seed: int = 0) -> Transcript:
    return ls.play(game, channel, attack, setting(game, channel), trials=trials, rng=ls.seeded(seed))


class Kept:
    """A channel that keeps the batch it was given."""

    def __call__(self, batch, secret, rng):
        self.batch, self.secret = batch, secret
        return ls.Silent()(batch, secret, rng)


# --- the game


def test_a_trial_deals_different_records_which_are_the_secret():
    game, channel = Reconstruction(images(), batch=5), Kept()
    view, secrets = game.deal(channel, 40, ls.seeded(0))
    rows = channel.batch.rows
    assert secrets.shape == (40, 5, 1, 12, 12)
    assert secrets.equal(game.data.x[rows])
    assert all(len(set(row.tolist())) == 5 for row in rows)
    assert len({tuple(row.tolist()) for row in rows}) > 30
    assert view.public["labels"].equal(game.data.y[rows])
    assert not channel.secret.any()


def test_labels_are_told_only_if_the_game_says_so_and_nothing_else_is():
    view, _ = Reconstruction(images(), labels=False).deal(ls.Silent(), 3, ls.seeded(0))
    assert view.public == {}


def test_the_range_of_dummies_is_0_to_1_even_if_a_category_never_occurs():
    data = table()
    never = data.take((data.x[:, 3] == 0).nonzero()[:, 0])
    lowest, highest = Reconstruction(never).limits
    assert lowest[1:4].tolist() == [0, 0, 0]
    assert highest[1:4].tolist() == [1, 1, 1]
    assert (lowest[0], highest[0]) == (never.x[:, 0].min(), never.x[:, 0].max())


def test_the_range_of_images_is_that_of_their_channels():
    x = torch.rand(5, 3, 4, 4, generator=ls.seeded(0)) * torch.tensor([1.0, 2.0, 3.0]).view(3, 1, 1)
    lowest, highest = Reconstruction(ls.Dataset(x, torch.zeros(5).long(), {})).limits
    assert highest.shape == (3, 4, 4)
    for c in range(3):
        assert (lowest[c] == x[:, c].min()).all()
        assert (highest[c] == x[:, c].max()).all()


def test_guesses_of_another_shape_or_without_a_value_are_no_transcript():
    game = Reconstruction(images())
    for said, words in (
        (torch.zeros(2, 1, 1, 3, 3), "of shape"),
        (torch.full((2, 1, 1, 12, 12), torch.nan), "nan"),
    ):
        with pytest.raises(ArgumentError, match=words):
            attacked(game, ls.Silent(), lambda knowledge, rng, said=said: lambda view: said)


# --- the kernel


def matching(distance, *, trials: int = 3, k: int = 2, names: tuple[str, ...] | None = None):
    """A problem in float64, its parameters, records and labels."""
    net = smooth_net().double()
    params, rng = parameters(net), ls.seeded(7)
    x = torch.rand(trials, k, 1, 12, 12, generator=rng, dtype=torch.float64)
    y = torch.randint(CLASSES, (trials, k), generator=rng)
    names = names or tuple(params)
    target = {
        name: torch.randn(trials, *params[name].shape, generator=rng, dtype=torch.float64) for name in names
    }
    return Matching(net, F.cross_entropy, ((params, target),), distance), params, x, y


def looped(net: nn.Module, x: torch.Tensor, y: torch.Tensor, target, names, distance):
    """One problem by plain autograd: its loss and the slope at its records."""
    leaf = x.clone().requires_grad_()
    named = dict(net.named_parameters())
    slopes = torch.autograd.grad(F.cross_entropy(net(leaf), y), [named[n] for n in names], create_graph=True)
    ours, theirs = (torch.cat([s.flatten() for s in part]) for part in (slopes, [target[n] for n in names]))
    if distance is squared:
        loss = (ours - theirs).square().sum()
    else:
        loss = 1 - F.cosine_similarity(ours, theirs, dim=0)
    return loss.detach(), torch.autograd.grad(loss, leaf)[0]


@pytest.mark.parametrize("distance", [squared, cosine])
@pytest.mark.parametrize("names", [None, ("0.weight", "0.bias"), ("3.bias",)])
@pytest.mark.parametrize("chosen", [(2, 0), (1,)])
def test_the_kernel_is_a_loop_of_autograd_over_problems(distance, names, chosen):
    problem, params, x, y = matching(distance, names=names)
    which = torch.tensor(chosen)
    losses, slopes = evaluated(x[which], lambda v: problem.losses(v, y[which], which))
    target = problem.rounds[0][1]
    for i, trial in enumerate(which.tolist()):
        own = {name: tensor[trial] for name, tensor in target.items()}
        loss, slope = looped(problem.model, x[trial], y[trial], own, list(names or params), distance)
        assert losses[i].item() == pytest.approx(loss.item(), rel=1e-12)
        torch.testing.assert_close(slopes[i], slope, rtol=1e-10, atol=1e-14)


def test_rounds_add_up():
    problem, _, x, y = matching(squared)
    twice = Matching(problem.model, problem.loss, problem.rounds * 2, squared)
    every = torch.arange(3)
    assert twice.losses(x, y, every).equal(2 * problem.losses(x, y, every))


def bowl(which: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """A quartic bowl, of another steepness for every problem."""
    steep = torch.linspace(1, 100, v.shape[1], dtype=v.dtype) * (1 + which[:, None])
    return (steep * v.square()).sum(1) + (v.sum(1) - 1) ** 4


def objective(v: torch.Tensor, which: torch.Tensor):
    return evaluated(v, partial(bowl, which))


@pytest.mark.parametrize("history", [3, 100])
def test_each_problem_takes_the_steps_of_torchs_lbfgs(history):
    start = 0.3 * torch.randn(4, 16, generator=ls.seeded(8), dtype=torch.float64)
    seen: dict[int, list[torch.Tensor]] = {i: [] for i in range(4)}

    def watched(v, which):
        for i, row in zip(which.tolist(), v, strict=True):
            seen[i].append(row.clone())
        return objective(v, which)

    lbfgs(watched, start, evaluations=20, history=history)
    for i in range(4):
        x = start[i].clone().requires_grad_()
        theirs = []
        optimiser = torch.optim.LBFGS([x], lr=1, max_iter=20, history_size=history)

        def closure(x=x, theirs=theirs, optimiser=optimiser, i=i):
            theirs.append(x.detach().clone())
            optimiser.zero_grad()
            loss = bowl(torch.tensor([i]), x[None])[0]
            loss.backward()
            return loss

        optimiser.step(closure)
        assert len(theirs) == 20
        torch.testing.assert_close(torch.stack(seen[i]), torch.stack(theirs), rtol=1e-9, atol=1e-10)


def test_a_problem_that_diverges_leaves_the_others_as_they_are():
    start = 0.3 * torch.randn(3, 6, generator=ls.seeded(8), dtype=torch.float64)
    sizes = []

    def broken(v, which):
        sizes.append(len(which))
        losses, slopes = objective(v, which)
        losses[which == 1] = torch.nan
        return losses, slopes

    found, alone = lbfgs(broken, start, evaluations=60), lbfgs(objective, start, evaluations=60)
    assert found.losses[1].isinf()
    assert found.evaluations[1] == 1
    assert sizes[:2] == [3, 2]
    assert found.losses[[0, 2]].equal(alone.losses[[0, 2]])
    assert found.variables[[0, 2]].equal(alone.variables[[0, 2]])


def test_a_hopeless_problem_is_given_up_after_its_patience():
    start = 0.3 * torch.randn(2, 6, generator=ls.seeded(8), dtype=torch.float64)
    hopeless = torch.tensor([-1.0, torch.inf], dtype=torch.float64)
    found = lbfgs(objective, start, evaluations=30, patience=7, hopeless=hopeless)
    assert found.evaluations[0] == 7
    assert found.evaluations[1] > 7


def test_what_stands_still_is_over():
    found = lbfgs(lambda v, w: (v.sum(1) * 0, v * 0), torch.ones(2, 3), evaluations=50)
    assert found.evaluations.tolist() == [1, 1]


def test_adam_is_torchs_problem_by_problem_and_stays_within_the_limits():
    start = torch.randn(3, 6, generator=ls.seeded(9), dtype=torch.float64)
    limits = torch.full((6,), -0.5, dtype=torch.float64), torch.full((6,), 0.5, dtype=torch.float64)
    found = adam(objective, start, iterations=16, rate=0.1, signed=True, limits=limits)
    for i in range(3):
        x = start[i].clone().requires_grad_()
        optimiser = torch.optim.Adam([x], lr=0.1)
        least, best = torch.inf, x.detach().clone()
        for step in range(16):
            for group in optimiser.param_groups:
                group["lr"] = 0.1 * 0.1 ** sum(step >= cut for cut in (6, 10, 14))
            loss = bowl(torch.tensor([i]), x[None])[0]
            if loss < least:
                least, best = loss.item(), x.detach().clone()
            x.grad = torch.autograd.grad(loss, x)[0].sign()
            optimiser.step()
            x.data.clamp_(-0.5, 0.5)
        torch.testing.assert_close(found.variables[i], best, rtol=1e-12, atol=1e-12)
        assert found.losses[i].item() == pytest.approx(least)


def test_of_two_descents_the_better_stands_and_evaluations_add_up():
    one = Descent(torch.zeros(2, 1), torch.tensor([1.0, 5.0]), torch.tensor([3, 4]))
    one.join(torch.tensor([1]), Descent(torch.ones(1, 1), torch.tensor([2.0]), torch.tensor([10])))
    assert (one.losses.tolist(), one.evaluations.tolist()) == ([1.0, 2.0], [3, 14])
    assert one.variables.flatten().tolist() == [0.0, 1.0]


# --- the labels


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_the_last_layer_names_the_label_of_one_record(bias, seed):
    data = images(20)
    net = nn.Sequential(nn.Flatten(), nn.Linear(144, 9), nn.Sigmoid(), nn.Linear(9, CLASSES, bias=bias))
    net = initialised(
        lambda: net.apply(lambda m: m.reset_parameters() if hasattr(m, "reset_parameters") else None),
        ls.seeded(seed),
    )
    game, channel = Reconstruction(data), channel_of(net)
    view, _ = game.deal(channel, 20, ls.seeded(seed))
    seen = SeenLayer.of(setting(game, channel), view)
    assert labels_of(seen, "DeepLeakage").equal(view.public["labels"])


def test_the_labels_of_a_batch_come_with_their_counts():
    net = smooth_net()
    with torch.no_grad():
        net[3].weight.mul_(0.1)  # probabilities that hardly depend on the record, as at the start of training
    game, channel = Reconstruction(images(40), batch=6), channel_of(net)
    view, _ = game.deal(channel, 30, ls.seeded(4))
    found = labels_of(SeenLayer.of(setting(game, channel), view), "DeepLeakage")
    assert found.sort(1).values.equal(view.public["labels"].sort(1).values)


# --- the attacks


@pytest.mark.parametrize("label", ["analytic", "known", "optimised"])
def test_an_image_is_recovered_from_the_gradient_of_a_smooth_net(label):
    game, channel = Reconstruction(images()), channel_of(smooth_net())
    attack = DeepLeakage(label=label, evaluations=400, patience=200, restarts=2)
    transcript = attacked(game, channel, attack, trials=4, seed=1)
    assert recovered(transcript).value == 1.0
    assert mse(transcript.guesses, transcript.secrets).max() < 1e-4


def test_the_same_generator_gives_the_same_records():
    game, channel = Reconstruction(images()), channel_of(smooth_net())
    attack = DeepLeakage(evaluations=30, restarts=0)
    said = [attacked(game, channel, attack, seed=1).guesses for _ in range(2)]
    assert said[0].equal(said[1])


def test_two_records_are_recovered_from_their_mean_gradient_in_some_order():
    game = Reconstruction(images(side=11), batch=2)
    channel = channel_of(nn.Sequential(nn.Flatten(), *smooth_mlp(121)))
    attack = DeepLeakage(label="known", evaluations=800, patience=300, restarts=5, restart_loss=1e-5)
    transcript = attacked(game, channel, attack, seed=2)
    assert recovered(transcript).value == 1.0


def smooth_mlp(wide: int) -> tuple[nn.Module, ...]:
    parts = nn.Linear(wide, 24), nn.Sigmoid(), nn.Linear(24, CLASSES)
    for tensor in (p for part in parts for p in part.parameters()):
        nn.init.uniform_(tensor, -0.5, 0.5, generator=ls.seeded(1, str(tuple(tensor.shape))))
    return parts


def test_one_record_of_a_batch_moves_at_a_time():
    """Beside a loop over blocks, each with torch's own L-BFGS; of quadratics, whose least is known."""
    rng = ls.seeded(4)
    a, b = torch.randn(2, 7, 6, generator=rng).double(), torch.randn(2, 7, generator=rng).double()
    calls: list[Tensor] = []

    def objective(x, which):
        calls.append(x.clone())
        rest = torch.einsum("pij,pj->pi", a[which], x) - b[which]
        return rest.square().sum(1), 2 * torch.einsum("pij,pi->pj", a[which], rest)

    blocks = [torch.tensor([0, 2, 4]), torch.tensor([1, 3, 5])]
    start = torch.zeros(2, 6).double()
    found = in_turn(objective, start, blocks=blocks, turn=20, evaluations=4_000)
    whole = torch.stack([torch.linalg.lstsq(m, v).solution for m, v in zip(a, b, strict=True)])
    assert torch.allclose(found.variables, whole, atol=1e-3)
    assert calls[1][:, blocks[1]].eq(0).all()  # the second block stands still in the first turn
    moved = [(one != other).any(0) for one, other in pairwise(calls) if len(one) == len(other)]
    both = [bool(m[blocks[0]].any()) and bool(m[blocks[1]].any()) for m in moved]
    assert sum(both) < len(moved) / 10  # only where turns change
    own = start[0, blocks[0]].clone().requires_grad_()
    optimiser = torch.optim.LBFGS([own], max_iter=20, max_eval=1_000)

    def closure():
        optimiser.zero_grad()
        loss = (a[0][:, blocks[0]] @ own - b[0]).square().sum()
        loss.backward()
        return loss

    optimiser.step(closure)
    once = in_turn(objective, start[:1], blocks=blocks[:1], turn=20, evaluations=20)
    least = torch.linalg.lstsq(a[0][:, blocks[0]], b[0]).solution
    assert torch.allclose(once.variables[0, blocks[0]], own.detach(), atol=1e-4)
    assert torch.allclose(own.detach(), least, atol=1e-4)


def test_two_records_are_recovered_one_at_a_time():
    game = Reconstruction(images(side=11), batch=2)
    channel = channel_of(nn.Sequential(nn.Flatten(), *smooth_mlp(121)))
    attack = DeepLeakage(label="known", evaluations=1_600, restarts=1, restart_loss=1e-5, turn=20)
    assert recovered(attacked(game, channel, attack, seed=2)).value == 1.0
    refuses(ArgumentError, "DeepLeakage.turn must be None, or at least 1, got 0", DeepLeakage, turn=0)


def test_the_cosine_attack_recovers_an_image():
    game, channel = Reconstruction(images()), channel_of(smooth_net())
    attack = InvertingGradients(iterations=200, tv=1e-4, restarts=1)
    transcript = attacked(game, channel, attack, trials=3, seed=1)
    found = ssim(transcript.guesses, transcript.secrets)
    public = setting(game, channel).game.mean
    assert (found > trivial(transcript.secrets, public)["public mean"] + 0.3).all()
    lowest, highest = setting(game, channel).game.limits
    assert ((transcript.guesses >= lowest) & (transcript.guesses <= highest)).all()


@pytest.mark.parametrize("attack", [DeepLeakage(), InvertingGradients(), FirstLayer()])
@pytest.mark.parametrize("believes", [True, False])
def test_through_silence_every_attack_says_the_public_mean_and_scores_as_it(attack, believes):
    game = Reconstruction(images())
    knowledge = setting(game, channel_of(smooth_net()) if believes else ls.Silent())
    transcript = ls.play(game, ls.Silent(), attack, knowledge, trials=5, rng=ls.seeded(3))
    mean = knowledge.game.mean
    assert transcript.guesses.equal(mean.expand_as(transcript.secrets))
    assert ssim(transcript.guesses, transcript.secrets).equal(
        trivial(transcript.secrets, mean)["public mean"]
    )
    assert failures(transcript, mean).value == 1.0
    assert transcript.prior.numel() == 0


def test_a_search_that_fails_says_the_public_mean_and_is_counted():
    game, channel = Reconstruction(images()), channel_of(smooth_net())
    knowledge = setting(game, channel)
    attack = DeepLeakage(evaluations=3, patience=2, restarts=2, restart_loss=1e-9)
    view, secrets = game.deal(channel, 4, ls.seeded(4))
    attempt = attack.attempt(knowledge, view, ls.seeded(5))
    assert attempt.failed.all()
    assert attempt.evaluations.tolist() == [6] * 4  # three searches, each given up after two
    assert attempt.records.equal(knowledge.game.mean.expand_as(secrets))
    assert attempt.losses.isfinite().all()


def test_whoever_keeps_whatever_is_found_has_searched_for_it():
    game, channel = Reconstruction(images()), channel_of(smooth_net())
    view, _ = game.deal(channel, 3, ls.seeded(4))
    attack = DeepLeakage(evaluations=100, restarts=2, restart_loss=math.inf)
    attempt = attack.attempt(setting(game, channel), view, ls.seeded(5))
    assert bool((attempt.evaluations > 0).all())
    assert attempt.losses[~attempt.failed].isfinite().all()
    assert not attempt.failed.all()


def test_nothing_but_the_release_reaches_the_attack():
    """Other private records with the same release give the same guess."""
    game, channel = Reconstruction(images()), channel_of(smooth_net())
    knowledge = setting(game, channel)
    view, _ = game.deal(channel, 2, ls.seeded(4))
    copied = View(tuple(type(r).of(dict(r.layers), r.params) for r in view.releases), view.public)
    guess = DeepLeakage(evaluations=20, restarts=0, restart_loss=1e9)(knowledge, ls.seeded(5))
    said = guess(view)
    game.data.x.zero_()
    assert guess(copied).equal(said)


def test_only_released_layers_are_matched():
    game, full = Reconstruction(images()), channel_of(smooth_net())
    attack = DeepLeakage(label="known", evaluations=50, restarts=0, restart_loss=1e9)
    names = ("3.weight", "3.bias")
    view, _ = game.deal(full, 2, ls.seeded(4))
    narrow, _ = game.deal(ls.Through(full, names), 2, ls.seeded(4))
    chosen = DeepLeakage(label="known", layers=("3",), evaluations=50, restarts=0, restart_loss=1e9)
    knowledge = setting(game, full)
    through = attack.attempt(knowledge, narrow, ls.seeded(5))
    assert through.records.equal(chosen.attempt(knowledge, view, ls.seeded(5)).records)
    assert not through.records.equal(attack.attempt(knowledge, view, ls.seeded(5)).records)
    with pytest.raises(ArgumentError, match=r"layers must be layers of the model \(0, 3\)"):
        DeepLeakage(layers=("conv9",)).attempt(knowledge, view, ls.seeded(5))


# --- closed form and tables


def test_a_first_linear_layer_gives_one_record_away_exactly():
    data = table()
    net = initialised(lambda: MLP(hidden=(16,))(data), ls.seeded(6))
    channel = channel_of(net.double())
    game = Reconstruction(
        ls.Dataset(data.x.double(), data.y, {}, name="bare")
    )  # no columns: nothing is projected
    transcript = ls.play(
        game, channel, FirstLayer(), ls.Knowledge(game, channel), trials=10, rng=ls.seeded(0)
    )
    assert mse(transcript.guesses, transcript.secrets).max() < 1e-24


def test_a_relu_layer_gives_away_the_records_of_a_batch_that_move_a_unit_alone():
    x = torch.eye(6) * 0.9 + 0.05
    game = Reconstruction(ls.Dataset(x, torch.arange(6) % 2, {}), batch=3)
    first, last = nn.Linear(6, 6), nn.Linear(6, 2)
    with torch.no_grad():
        first.weight.copy_(torch.eye(6))
        first.bias.fill_(-0.5)  # unit i is moved by record i alone
    channel = channel_of(nn.Sequential(first, nn.ReLU(), initialised(lambda: last, ls.seeded(0))))
    transcript = ls.play(game, channel, FirstLayer(), ls.Knowledge(game, channel), trials=5, rng=ls.seeded(1))
    torch.testing.assert_close(matched(transcript), transcript.secrets, rtol=0, atol=1e-6)


def test_rows_of_a_table_become_ones_that_can_be():
    data = table()
    game = Reconstruction(data)
    wild = 5 * torch.randn(6, 2, 5, generator=ls.seeded(1))
    rows = projected(wild, game)
    assert rows[..., 1:4].sum(-1).eq(1).all()
    assert rows[..., 1:4].argmax(-1).equal(wild[..., 1:4].argmax(-1))
    for i in (0, 4):
        assert rows[..., i].equal(wild[..., i].clamp(data.x[:, i].min(), data.x[:, i].max()))
    assert projected(data.x[:, None], game).equal(data.x[:, None])


def test_a_row_of_a_table_is_recovered_and_valid():
    game = Reconstruction(table())
    channel = channel_of(nn.Sequential(*smooth_mlp(5)[:2], nn.Linear(24, 2)))
    attack = DeepLeakage(evaluations=600, patience=300, restarts=2, precision="float64")
    transcript = ls.play(game, channel, attack, ls.Knowledge(game, channel), trials=5, rng=ls.seeded(2))
    assert transcript.guesses[..., 1:4].equal(transcript.secrets[..., 1:4])
    assert mse(transcript.guesses, transcript.secrets).max() < 1e-4


def test_what_cannot_be_matched_is_refused():
    net = smooth_net()
    game, untold = Reconstruction(images()), Reconstruction(images(), labels=False)
    first = ls.Through(channel_of(net), ("0.weight", "0.bias"))
    updates = ls.UpdateChannel(net, (parameters(net),), local=Local(rate=0.1, steps=1, batch=1))
    last = "needs the gradient of the last layer, '3', and it is not among"
    known = DeepLeakage(label="known")
    refuses(
        DataError, r"12 records are fewer than Reconstruction.batch = 13", Reconstruction, images(), batch=13
    )
    refuses(ArgumentError, last, attacked, game, first, DeepLeakage())
    refuses(ArgumentError, r"Reconstruction\(labels=True\)", attacked, untold, first, known)
    refuses(ArgumentError, "believe in a GradientChannel", attacked, game, updates, DeepLeakage())
    refuses(ArgumentError, "first layer is linear", attacked, game, channel_of(net), FirstLayer())
