"""Updates as a channel, and training that joins records: mix-up and maximum mean discrepancy."""

from __future__ import annotations

import copy
import itertools
import math
from dataclasses import replace

import pytest
import torch
from builders import refuses
from torch import nn
from torch.nn import functional as F

import leakscope as ls
from leakscope.core.dataset import Batch
from leakscope.core.errors import ArgumentError
from leakscope.core.nouns import flatten
from leakscope.defenses.training import MixupMMD, counterparts, discrepancy
from leakscope.games.channels import UpdateChannel
from leakscope.models import build, parameters
from leakscope.training import Local, federate, fit, local, logits

ONE = Local(0.2, steps=1, momentum=0.0, decay=0.0)


def world(kind: str = "mlp") -> tuple[nn.Module, ls.Dataset]:
    rng = ls.seeded(0, kind)
    shape = (3, 9, 9) if kind == "cnn" else (10,)
    data = ls.Dataset(torch.randn(40, *shape, generator=rng), torch.randint(3, (40,), generator=rng), {})
    return build(ls.CNN(width=2) if kind == "cnn" else ls.MLP((8,)), data, rng), data


def drawn(data: ls.Dataset, trials: int = 12, k: int = 6) -> Batch:
    return Batch(data, torch.randint(len(data), (trials, k), generator=ls.seeded(1)))


def released(channel, batch: Batch, seed: int = 2):
    return [
        release.layers
        for release in channel(batch, torch.zeros(len(batch), dtype=torch.long), ls.seeded(seed))
    ]


@pytest.mark.parametrize("kind", ["mlp", "cnn"])
def test_one_step_of_plain_sgd_over_its_rate_is_the_gradient(kind):
    model, data = world(kind)
    rounds = fit(model, data, rounds=2, rng=ls.seeded(3), rate=0.1)
    batch = drawn(data)
    updates = released(UpdateChannel(model, rounds, local=ONE), batch)
    for update, gradient in zip(updates, released(ls.GradientChannel(model, rounds), batch), strict=True):
        for name, layer in gradient.items():
            torch.testing.assert_close(update[name] / ONE.rate, layer, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", ["mlp", "cnn"])
@pytest.mark.parametrize(
    "how", [Local(0.1, steps=4, decay=0.01), Local(0.01, epochs=3, optimiser="adam")], ids=repr
)
def test_an_update_is_what_a_loop_of_torch_optim_did(kind, how):
    model, data = world(kind)
    model, data = model.double(), replace(data, x=data.x.double())
    batch = drawn(data, trials=3)
    found = released(UpdateChannel(model, (parameters(model),), local=how), batch)[0]
    for t, rows in enumerate(batch.rows):
        net = copy.deepcopy(model)
        optimiser = (
            torch.optim.Adam(net.parameters(), lr=how.rate, weight_decay=how.decay)
            if how.optimiser == "adam"
            else torch.optim.SGD(net.parameters(), lr=how.rate, momentum=0.9, weight_decay=how.decay)
        )
        for _ in range(how.steps or how.epochs):  # the whole batch in each, so the order is of no account
            optimiser.zero_grad()
            F.cross_entropy(net(data.x[rows]), data.y[rows]).backward()
            optimiser.step()
        for (name, before), after in zip(model.named_parameters(), net.parameters(), strict=True):
            torch.testing.assert_close(found[name][t], before - after, rtol=1e-6, atol=1e-9)


def test_the_order_of_a_batch_is_drawn_for_every_trial_and_said_again():
    model, data = world()
    batch = Batch(data, torch.arange(6).repeat(5, 1))
    channel = UpdateChannel(model, (parameters(model),) * 2, local=Local(0.5, batch=1))
    first, second = released(channel, batch)
    assert len(flatten(first).unique(dim=0)) == 5
    assert not flatten(first).equal(flatten(second))
    release = channel(batch, torch.zeros(5, dtype=torch.long), ls.seeded(4))[0]
    assert flatten(release.layers).equal(flatten(release.layers))
    assert flatten(released(channel, batch)[0]).equal(flatten(first))
    assert not flatten(released(channel, batch, seed=5)[0]).equal(flatten(first))


def test_blocks_are_small_where_memory_is_and_say_the_same(monkeypatch):
    model, data = world()
    channel = UpdateChannel(model, (parameters(model),), ls.Noise(0.1), local=Local(0.1, batch=2))
    secret = torch.zeros(12, dtype=torch.long)
    whole = [*channel(drawn(data), secret, ls.seeded(6))[0].blocks()]
    size = sum(p.numel() for p in model.parameters()) * 4
    monkeypatch.setattr(local, "BLOCK", 5 * size)
    parts = [*replace(channel, defense=ls.Defense())(drawn(data), secret, ls.seeded(6))[0].blocks()]
    assert [len(flatten(part)) for part in parts] == [5, 5, 2]
    assert len(whole) == 1
    clean = flatten(replace(channel, defense=ls.Defense())(drawn(data), secret, ls.seeded(6))[0].layers)
    noise = flatten(whole[0]) - clean
    assert noise.std().item() == pytest.approx(0.1, rel=0.05)
    torch.testing.assert_close(torch.cat([flatten(part) for part in parts]), clean)


def test_the_defense_acts_on_the_whole_update():
    model, data = world()
    channel = UpdateChannel(model, (parameters(model),), local=Local(0.1, batch=2))
    clean = flatten(released(channel, drawn(data))[0])
    signs = flatten(released(replace(channel, defense=ls.Sign()), drawn(data))[0])
    pruned = flatten(released(replace(channel, defense=ls.Pruning(0.9)), drawn(data))[0])
    assert signs.equal(clean.sign())
    assert ((pruned == 0) | (pruned == clean)).all()
    assert ((pruned != 0).sum(1) == clean.shape[1] - round(0.9 * clean.shape[1])).all()


def test_inside_the_local_steps_a_defense_bounds_the_update():
    model, data = world()
    channel = UpdateChannel(
        model,
        (parameters(model),),
        local=Local(0.1, batch=2, momentum=0.0, decay=0.0),
        inside=ls.DPSGD(0.01, 0.0),
    )
    norms = flatten(released(channel, drawn(data))[0]).norm(dim=1)
    assert (norms <= 3 * 0.1 * 0.01 * (1 + 1e-4)).all()  # three steps of at most rate times clip
    free = flatten(released(channel.undefended(), drawn(data))[0]).norm(dim=1)
    assert (free > 5 * norms).all()


def test_the_channels_an_adversary_believes_in():
    model, data = world()
    channel = UpdateChannel(model, (parameters(model),), ls.Noise(0.3), local=ONE, inside=ls.Sign())
    bare, clean = channel.undefended(), channel.noiseless()
    assert (bare.defense, bare.inside, bare.local) == (ls.Defense(), ls.Defense(), ONE)
    assert (clean.defense, clean.inside) == (ls.Noise(0.0), ls.Sign())
    assert channel.deviation(16) == 0.3
    priced = UpdateChannel(model, (parameters(model),), local=ONE, inside=ls.VIB(0.5)).undefended().loss
    out = torch.randn(4, 4, generator=ls.seeded(7))
    expected = F.cross_entropy(out[:, :3], data.y[:4]) + 0.5 * out[:, 3].mean()
    assert priced(out, data.y[:4]).item() == pytest.approx(expected.item())


def test_games_are_played_through_updates(parts):
    model = build(ls.MLP((8,)), parts[0], ls.seeded(8))
    history = fit(model, parts[0], rounds=1, rng=ls.seeded(9))
    channel = UpdateChannel(model, history[:1], local=Local(0.1, batch=4, epochs=2))
    game = ls.Inference(parts[0], "group", batch=8)

    def found(through):
        knowledge = ls.Knowledge(game.on(parts[2]), through, 2_000, game.chances)
        return ls.auroc(
            ls.play(game, through, ls.Posterior(ls.LDA()), knowledge, trials=1_500, rng=ls.seeded(10))
        )

    assert found(channel).low > 0.5
    assert found(ls.Through(channel, ("0.weight",))).low > 0.5
    fitted = replace(channel, defense=ls.AdversarialPerturbation(0.01, 0.004)).prepared(
        game.on(parts[2]), ls.seeded(11), trials=100
    )
    assert isinstance(fitted, UpdateChannel)
    moved = released(fitted, drawn(parts[0]))[0]
    clean = released(channel, drawn(parts[0]))[0]
    assert 0 < (flatten(moved) - flatten(clean)).abs().max().item() <= 0.01 + 1e-6


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"defense": ls.DPSGD(), "local": ONE},
            "UpdateChannel.defense must act on a finished update, got DPSGD",
        ),
        ({"defense": ls.Chain(ls.Sign(), ls.VIB()), "local": ONE}, "UpdateChannel.defense .* got VIB"),
        ({"local": Local(0.1, milestones=(3,))}, "give the rate of the observed rounds"),
    ],
)
def test_a_channel_that_cannot_do_what_it_says_is_refused(settings, words):
    model = world()[0]
    refuses(ArgumentError, words, UpdateChannel, model, (parameters(model),), **settings)
    other = UpdateChannel(model, ({"0.weight": torch.zeros(8, 10)},), local=ONE)
    refuses(ArgumentError, "params must be the model's own", released, other, drawn(world()[1]))
    with pytest.raises(ArgumentError, match=r"GradientChannel.defense .* MixupMMD.*UpdateChannel"):
        ls.GradientChannel(model, (), ls.Chain(ls.Sign(), MixupMMD(weight=0.0)))


def test_the_discrepancy_is_a_double_loop_over_kernels():
    rng = ls.seeded(12)
    a, b = torch.rand(5, 4, generator=rng).double(), torch.rand(7, 4, generator=rng).double()

    def kernel(u, v, bandwidth):
        return math.exp(-sum((p - q) ** 2 for p, q in zip(u, v, strict=True)) / (2 * bandwidth * bandwidth))

    for bandwidth in (0.2, 1.0):
        total = 0.0
        for left, right, sign in ((a, a, 1), (b, b, 1), (a, b, -2)):
            terms = [kernel(u, v, bandwidth) for u in left.tolist() for v in right.tolist()]
            total += sign * sum(terms) / len(terms)
        assert discrepancy(a, b, bandwidth).item() == pytest.approx(total, abs=1e-14)
    assert discrepancy(a, a, 0.5).item() == pytest.approx(0, abs=1e-15)


def test_counterparts_have_the_label_of_their_member_and_are_drawn_at_random():
    held = torch.tensor([4, 1, 1, 0, 4, 4])
    y = torch.tensor([1, 2, 4, 0, 4, 5] * 200)
    own, others = counterparts(y, held, ls.seeded(13))
    assert y[own].equal(held[others])
    assert own.tolist() == [i for i, label in enumerate(y.tolist()) if label in (0, 1, 4)]
    counts = others[y[own] == 4].bincount(minlength=6)
    assert counts[[0, 4, 5]].sum() == 400
    assert (counts[[0, 4, 5]] > 100).all()


def test_mixed_records_have_the_mixed_loss():
    model, data = world()
    x, y, seen = data.x[:4], torch.tensor([0, 1, 2, 1]), []

    def predict(records):
        seen.append(records)
        return model(records)

    shares, objective = [], MixupMMD(weight=0.0).objective(F.cross_entropy)
    rng = ls.seeded(14)
    for _ in range(40):
        value = objective(predict, x, y, rng)
        if seen[-1].allclose(x):  # every record is its own partner
            assert value.item() == pytest.approx(F.cross_entropy(model(x), y).item(), rel=1e-5)
            continue
        fits = []
        for order in itertools.permutations(range(4)):  # solve mixed - x' = s (x - x') for every x'
            other = x[list(order)]
            across, along = (seen[-1] - other).flatten(), (x - other).flatten()
            s = float(across @ along / along.square().sum()) if along.any() else math.nan
            if (across - s * along).abs().max() < 1e-5:
                fits.append((s, list(order)))
        assert len(fits) == 1
        ((s, order),) = fits
        out = model(seen[-1])
        expected = s * F.cross_entropy(out, y) + (1 - s) * F.cross_entropy(out, y[order])
        assert value.item() == pytest.approx(expected.item(), rel=1e-5)
        shares.append(s)
    assert len(seen) == 40
    assert 0 <= min(shares) < 0.2 < 0.8 < max(shares) <= 1


def test_the_members_side_alone_is_pulled():
    model, data = world()
    held = data.take(torch.arange(20, 40))
    x, y = data.x[:8], data.y[:8]
    objective = MixupMMD(alpha=0.0, weight=3.0, held=held, bandwidth=0.5).objective(F.cross_entropy)
    found = torch.autograd.grad(objective(model, x, y, ls.seeded(15)), [*model.parameters()])
    own, others = counterparts(y, held.y, ls.seeded(15))
    theirs = model(held.x[others]).softmax(1)[torch.arange(len(others)), held.y[others]].detach()
    ours = model(x).softmax(1)[torch.arange(8), y][own]
    expected = F.cross_entropy(model(x), y) + 3 * discrepancy(ours[:, None], theirs[:, None], 0.5)
    for slope, by_hand in zip(found, torch.autograd.grad(expected, [*model.parameters()]), strict=True):
        torch.testing.assert_close(slope, by_hand, rtol=1e-5, atol=1e-7)
    nothing = MixupMMD(alpha=0.0, held=replace(held, y=held.y + 9)).objective(F.cross_entropy)
    assert nothing(model, x, y, ls.seeded(15)).equal(F.cross_entropy(model(x), y))


def test_without_mixing_and_weight_training_is_as_without_the_defense():
    model, data = world()
    null = MixupMMD(alpha=0.0, weight=0.0)
    plain, same = (fit(model, data, rounds=2, rng=ls.seeded(16), defense=defense) for defense in (None, null))
    assert all(plain[-1][name].equal(same[-1][name]) for name in plain[-1])
    how = Local(0.1, batch=10)
    plain, same, other = (
        federate(model, [data, data], rounds=2, rng=ls.seeded(16), local=how, defense=defense)
        for defense in (None, null, MixupMMD(weight=0.0))
    )
    for name in plain[-1]:
        torch.testing.assert_close(plain[-1][name], same[-1][name])
    assert any(not plain[-1][name].equal(other[-1][name]) for name in plain[-1])


def test_the_discrepancy_in_the_objective_closes_the_gap_it_measures():
    model, data = world()
    train, held = data.take(torch.arange(20)), data.take(torch.arange(20, 40))

    def gap(weight: float) -> float:
        defense = MixupMMD(alpha=0.0, weight=weight, held=held)
        history = fit(model, train, rounds=150, rng=ls.seeded(17), rate=0.5, batch=20, defense=defense)
        sure = [
            logits(model, history[-1], part).softmax(1)[torch.arange(20), part.y] for part in (train, held)
        ]
        return (sure[0].mean() - sure[1].mean()).item()

    assert gap(3.0) < 0.7 * gap(0.0)


@pytest.mark.parametrize(
    ("defense", "words"),
    [
        (MixupMMD(), "MixupMMD.held must be records that are not trained on, got None with weight 1.0"),
        (ls.Chain(MixupMMD(weight=0.0), ls.DPSGD()), r"MixupMMD.* cannot be combined with DPSGD"),
        (ls.Chain(ls.VIB(), ls.Chain(MixupMMD(weight=0.0))), r"MixupMMD.* cannot be combined with VIB"),
        (ls.Chain(MixupMMD(weight=0.0), MixupMMD(2.0, 0.0)), r"cannot be combined with MixupMMD\(alpha=2.0"),
    ],
    ids=repr,
)
def test_combinations_that_cannot_work_are_refused(defense, words):
    model, data = world()
    refuses(ArgumentError, words, fit, model, data, rounds=1, rng=ls.seeded(18), defense=defense)
    with pytest.raises(ArgumentError, match=words):
        federate(model, [data], rounds=1, rng=ls.seeded(18), local=ONE, defense=defense)


def test_mixing_goes_with_defenses_of_the_gradient():
    model, data = world()
    mixed = MixupMMD(weight=0.0)
    alone, signed = (
        fit(model, data, rounds=1, rng=ls.seeded(19), rate=0.1, batch=40, defense=defense)[1]
        for defense in (mixed, ls.Chain(mixed, ls.Sign()))
    )
    for name, start in parameters(model).items():
        torch.testing.assert_close(signed[name], start - 0.1 * (start - alone[name]).sign())
