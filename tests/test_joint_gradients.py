"""Batch statistics and dropout: a batch's own gradient, held against plain autograd, and never another one."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from leakscope import DPSGD, GradientChannel, Noise, Pruning, gradients, seeded
from leakscope.core.dataset import Batch
from leakscope.core.errors import ArgumentError
from leakscope.gradients import joint
from leakscope.gradients.joint import draws, joint_blocks, mixes, with_statistics
from leakscope.gradients.records import Records
from leakscope.models import parameters
from leakscope.training import Local, federate, fit
from leakscope.training.step import state


class Functional(nn.Module):
    """Dropout that no layer of its own tells."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.one, self.head = nn.Linear(inputs, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.dropout(self.one(x), 0.02, self.training))


def normed(inputs: int, *more: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(inputs, 6), nn.BatchNorm1d(6), nn.ReLU(), *more, nn.Linear(6, 2))


def by_autograd(model: nn.Module, params: dict, x: Tensor, y: Tensor, *, train: bool, seed: int = 0) -> dict:
    """The gradient of a batch by a loss, a backward pass, and nothing of ours."""
    own = copy.deepcopy(model).train(train)
    own.load_state_dict({**own.state_dict(), **params})
    torch.manual_seed(seed)
    F.cross_entropy(own(x), y).backward()
    return {name: p.grad for name, p in own.named_parameters()}


def released(channel: GradientChannel, batch: Batch) -> dict[str, Tensor]:
    (release,) = channel(batch, torch.zeros(len(batch)), seeded(3))
    return dict(release.layers)


@pytest.fixture(scope="module")
def batch(parts) -> Batch:
    return Batch(parts[0], torch.randint(len(parts[0]), (7, 5), generator=seeded(1)))


def test_the_release_of_a_model_with_batch_statistics_is_the_batches_own_gradient(parts, batch):
    train = parts[0]
    model = normed(train.x.shape[1])
    params = fit(model, train, rounds=1, rng=seeded(0), rate=0.1)[1]
    found = released(GradientChannel(model, (params,)), batch)
    for i, rows in enumerate(batch.rows):
        own = by_autograd(model, params, train.x[rows], train.y[rows], train=True)
        for name, gradient in own.items():
            torch.testing.assert_close(found[name][i], gradient)
    still = copy.deepcopy(model).eval()
    means = gradients.batch_means(still, parameters(model), train.x, train.y, batch.rows)
    assert not torch.allclose(
        means["0.weight"], found["0.weight"], atol=1e-3
    )  # the shortcut is another number


def test_whether_records_are_joined_is_asked_once_for_a_release(parts, batch, monkeypatch):
    asked, ask = [], Records.of
    monkeypatch.setattr(Records, "of", staticmethod(lambda *args, **kw: asked.append(1) or ask(*args, **kw)))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(parts[0].x.shape[1], 6), nn.ReLU(), nn.Linear(6, 2))
    found = released(GradientChannel(model, (parameters(model),)), batch)
    assert len(asked) == 1
    x, y = parts[0].x[batch.rows[2]], parts[0].y[batch.rows[2]]
    for name, slope in by_autograd(model, parameters(model), x, y, train=True).items():
        torch.testing.assert_close(found[name][2], slope)


def test_the_gradient_of_a_single_record_is_that_of_evaluation_mode_with_the_rounds_statistics(parts, batch):
    train = parts[0]
    model = normed(train.x.shape[1], nn.Dropout(0.5))
    params = fit(model, train, rounds=1, rng=seeded(0), rate=0.1)[1]
    assert not torch.equal(params["1.running_mean"], state(model)["1.running_mean"])
    single = Batch(train, batch.rows[:, :1])
    channel = GradientChannel(model, (params,))
    own = [by_autograd(model, params, train.x[r], train.y[r], train=False) for r in single.rows]
    of_channel = released(channel, single)
    model_of, alone = (lambda c: (c.model, c.rounds[0]))(channel.of_single_records(train))
    by_record = gradients.per_record(model_of, alone, train.x[single.rows[:, 0]], train.y[single.rows[:, 0]])
    for name in alone:
        expected = torch.stack([one[name] for one in own])
        torch.testing.assert_close(of_channel[name], expected)
        torch.testing.assert_close(by_record[name], expected)


def test_masks_are_drawn_from_the_seed_and_the_trial_alone(parts, batch):
    train = parts[0]
    model = normed(train.x.shape[1], nn.Dropout(0.5))
    params, before = parameters(model), torch.get_rng_state()
    (found,) = joint_blocks(model, params, train.x, train.y, batch.rows, seed=9)
    assert torch.equal(before, torch.get_rng_state())
    for i, rows in enumerate(batch.rows):
        seed = seeded(9, "layers", i).initial_seed()
        own = by_autograd(model, params, train.x[rows], train.y[rows], train=True, seed=seed)
        for name, gradient in own.items():
            torch.testing.assert_close(found[name][i], gradient)
    (release,) = GradientChannel(model, (params,))(batch, torch.zeros(7), seeded(3))
    assert all(torch.equal(release.layers[name], release.layers[name]) for name in params)
    twice = Batch(train, batch.rows[:1].expand(2, -1))
    first = released(GradientChannel(model, (params,)), twice)["0.weight"]
    assert not torch.equal(first[0], first[1])  # every trial has masks of its own


def test_what_is_drawn_in_training_comes_from_the_seed(parts):
    model = normed(parts[0].x.shape[1], nn.Dropout(0.5))
    one, other, third = (fit(model, parts[0], rounds=1, rng=seeded(s), rate=0.1)[1] for s in (0, 0, 1))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert not torch.equal(one["0.weight"], third["0.weight"])


def test_a_model_that_draws_is_known_by_what_it_does_and_not_by_its_layers(parts):
    train = parts[0]
    model = Functional(train.x.shape[1])
    params = parameters(model)
    assert draws(model, params, train.x)
    assert all(mixes(model, params, train.x, train.y) for _ in range(20))  # seldom does a mask drop anything
    assert not mixes(model.eval(), params, train.x, train.y)


@pytest.mark.parametrize("more", [(), (nn.Dropout(0.5),)])
def test_clipping_single_records_is_refused_where_they_have_no_gradient_of_their_own(parts, batch, more):
    train = parts[0]
    model = normed(train.x.shape[1], *more)
    channel = GradientChannel(model, (parameters(model),), DPSGD(clip=1.0, noise=1.0))
    for what in (
        lambda: released(channel, batch),
        lambda: fit(model, train, rounds=1, rng=seeded(0), defense=DPSGD(clip=1.0, noise=1.0)),
    ):
        with pytest.raises(ArgumentError, match=r"DPSGD.* clips .*GroupNorm.*--mode eval"):
            what()
    still = GradientChannel(copy.deepcopy(model).eval(), (parameters(model),), DPSGD(clip=1.0, noise=1.0))
    assert released(still, batch)["0.weight"].isfinite().all()


@pytest.mark.parametrize("defense", [Pruning(0.9), Noise(0.1)])
def test_a_defense_on_the_batches_gradient_acts_on_the_batches_own(parts, batch, defense):
    train = parts[0]
    model = normed(train.x.shape[1])
    bare = released(GradientChannel(model, (parameters(model),)), batch)
    found = released(GradientChannel(model, (parameters(model),), defense), batch)
    assert not torch.equal(found["0.weight"], bare["0.weight"])
    if isinstance(defense, Pruning):
        kept = found["0.weight"] != 0
        assert torch.equal(found["0.weight"][kept], bare["0.weight"][kept])


def test_the_models_own_statistics_and_mode_stay_as_they_were(parts, batch):
    train = parts[0]
    model = normed(train.x.shape[1])
    before = {name: value.clone() for name, value in model.state_dict().items()}
    released(GradientChannel(model, (parameters(model),)), batch)
    with_statistics(model, state(model), still=True)
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_one_record_that_is_left_over_is_no_step_and_batches_of_one_are_refused(parts):
    train = parts[0].take(torch.arange(65))
    model = normed(train.x.shape[1])
    whole = fit(model, train.take(torch.arange(64)), rounds=1, rng=seeded(0), batch=64)
    assert not torch.equal(
        fit(model, train, rounds=1, rng=seeded(0), batch=64)[1]["0.weight"], whole[0]["0.weight"]
    )
    with pytest.raises(ArgumentError, match=r"fit\.batch must be at least 2"):
        fit(model, train, rounds=1, rng=seeded(0), batch=1)
    with pytest.raises(ArgumentError, match=r"Local\.batch must be at least 2"):
        federate(model, [train], rounds=1, rng=seeded(0), local=Local(rate=0.1, batch=1))


def test_batches_that_share_a_pass_have_the_gradients_of_a_loop_and_what_vmap_refuses_is_looped(parts, batch):
    train = parts[0]

    class Branching(nn.Module):
        """It looks at its records, which vmap does not let it."""

        def __init__(self) -> None:
            super().__init__()
            self.net = normed(train.x.shape[1])

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x) if float(x.sum()) > -1e9 else x

    model, odd = normed(train.x.shape[1]), Branching()
    rngs = [seeded(0)] * len(batch)
    together = joint._stack(model, train.x, train.y, batch.rows, F.cross_entropy)
    looped = joint._loop(model, train.x, train.y, batch.rows, F.cross_entropy, rngs)
    for name, gradient in looped.items():
        torch.testing.assert_close(together[name], gradient, atol=1e-6, rtol=1e-4)
    assert joint._stack(odd, train.x, train.y, batch.rows, F.cross_entropy) is None
    (found,) = joint_blocks(odd, parameters(odd), train.x, train.y, batch.rows)
    for name, gradient in looped.items():
        torch.testing.assert_close(found[f"net.{name}"], gradient)
