"""One record from a smooth net's gradient by linear equations: exact, silent, refused, and never said in vain."""

from __future__ import annotations

import math

import pytest
import torch
from builders import refuses
from test_reconstruction import channel_of, images, setting, smooth_net, table
from torch import nn
from torch.func import functional_call, grad
from torch.nn import functional as F

import leakscope as ls
from leakscope.attacks.layer_by_layer import LayerByLayer
from leakscope.core.errors import ArgumentError
from leakscope.core.rng import initialised
from leakscope.games import Reconstruction
from leakscope.measures.fidelity import failures, mse, ssim


def deep_net(activation: type[nn.Module] = nn.Sigmoid) -> nn.Module:
    """Two convolutions with strides, then two linear layers."""

    def made() -> nn.Module:
        net = nn.Sequential(
            nn.Sequential(nn.Conv2d(1, 8, 5, padding=2, stride=2), activation()),
            nn.Conv2d(8, 12, 5, padding=2, stride=2),
            activation(),
            nn.Flatten(),
            nn.Linear(12 * 9, 30),
            activation(),
            nn.Linear(30, 4),
        )
        for tensor in net.parameters():
            nn.init.uniform_(tensor, -0.4, 0.4)
        return net

    return initialised(made, ls.seeded(1, "net"))


def played(net: nn.Module, attack: LayerByLayer, *, data: ls.Dataset | None = None, trials: int = 4):
    game, channel = Reconstruction(images() if data is None else data), channel_of(net)
    knowledge = setting(game, channel)
    return ls.play(game, channel, attack, knowledge, trials=trials, rng=ls.seeded(3)), knowledge


@pytest.mark.parametrize("net", [smooth_net(), deep_net(), deep_net(nn.Tanh)], ids=["one", "deep", "tanh"])
def test_an_image_comes_back_from_its_gradient(net):
    transcript, _ = played(net, LayerByLayer())
    assert mse(transcript.guesses, transcript.secrets).max() < 1e-6
    assert ssim(transcript.guesses, transcript.secrets).min() > 0.999


def test_what_comes_back_has_the_released_gradient_by_autograd():
    net = deep_net()
    game, channel = Reconstruction(images()), channel_of(net)
    view, _ = game.deal(channel, 2, ls.seeded(4))
    attempt = LayerByLayer().attempt(setting(game, channel), view)
    assert not attempt.failed.any()
    params, told = dict(net.named_parameters()), view.public["labels"]
    for i in range(2):

        def loss(moved, i=i):
            return F.cross_entropy(functional_call(net, moved, (attempt.records[i],)), told[i])

        for name, slope in grad(loss)(params).items():
            released = view.releases[0].layers[name][i]
            torch.testing.assert_close(slope, released, rtol=0, atol=1e-3 * float(released.abs().max()))


def test_a_row_of_numbers_comes_back_too():
    rows = table()
    bare = ls.Dataset(rows.x, rows.y, {}, name="bare")
    net = initialised(
        lambda: nn.Sequential(nn.Linear(5, 12), nn.Tanh(), nn.Linear(12, 8), nn.Sigmoid(), nn.Linear(8, 2)),
        ls.seeded(2),
    )
    game, channel = Reconstruction(bare), channel_of(net)
    transcript = ls.play(
        game, channel, LayerByLayer(), ls.Knowledge(game, channel), trials=5, rng=ls.seeded(0)
    )
    assert mse(transcript.guesses, transcript.secrets).max() < 1e-6


def test_two_ways_of_applying_the_equations_agree():
    """The transpose against autograd, for a convolution with strides and for a linear layer."""
    from leakscope.attacks.layer_by_layer import INVERSES, _Equations, _Link

    rng = ls.seeded(7)
    for part, shape, places in (
        (nn.Conv2d(2, 3, 3, stride=2, padding=1), (2, 5, 5), 9),
        (nn.Linear(6, 3), (6,), 1),
    ):
        link = _Link("part", part, 3, shape, INVERSES[nn.Identity])
        weight = {"part.weight": part.weight.detach().double()}
        slope, heed = (torch.randn(2, 3, places, generator=rng, dtype=torch.float64) for _ in range(2))
        gradient = torch.randn(2, *part.weight.shape, generator=rng, dtype=torch.float64)
        equations = _Equations.of(link, weight, {"part.weight": gradient}, slope, heed)
        x = torch.randn(2, math.prod(shape), generator=rng, dtype=torch.float64, requires_grad=True)
        made = equations.apply(x)
        other = [torch.randn(m.shape, generator=rng, dtype=torch.float64) for m in made]
        (pulled,) = torch.autograd.grad(sum((m * o).sum() for m, o in zip(made, other, strict=True)), x)
        torch.testing.assert_close(equations.transpose(*other), pulled)


@pytest.mark.parametrize("believes", [True, False])
def test_through_silence_it_says_the_public_mean(believes):
    game = Reconstruction(images())
    knowledge = setting(game, channel_of(smooth_net()) if believes else ls.Silent())
    transcript = ls.play(game, ls.Silent(), LayerByLayer(), knowledge, trials=5, rng=ls.seeded(3))
    assert failures(transcript, knowledge.game.mean).value == 1.0


def test_a_record_that_does_not_have_the_gradient_is_counted_as_failed():
    """Behind noise, and where nothing was solved: the public mean, and no claim."""
    net = deep_net()
    game = Reconstruction(images())
    noisy = ls.GradientChannel(net, channel_of(net).rounds, ls.Noise(0.1))
    knowledge = setting(game, noisy)
    transcript = ls.play(game, noisy, LayerByLayer(), knowledge, trials=4, rng=ls.seeded(3))
    assert failures(transcript, knowledge.game.mean).value == 1.0
    transcript, knowledge = played(net, LayerByLayer(iterations=1))
    assert failures(transcript, knowledge.game.mean).value == 1.0
    kept, knowledge = played(net, LayerByLayer(iterations=1, fit=math.inf))
    assert failures(kept, knowledge.game.mean).value == 0.0


def test_what_it_cannot_read_is_refused_and_not_called_safe():
    attack, net = LayerByLayer(), smooth_net()
    pooled = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Sigmoid(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(50, 4))
    kinked = nn.Sequential(nn.Flatten(), nn.Linear(144, 8), nn.ReLU(), nn.Linear(8, 4))
    endless = nn.Sequential(nn.Flatten(), nn.Linear(144, 4), nn.Sigmoid())
    first = nn.Sequential(nn.Sigmoid(), nn.Flatten(), nn.Linear(144, 4))
    for wrong, said in ((pooled, "MaxPool2d"), (kinked, "ReLU"), (endless, "linear end"), (first, "Sigmoid")):
        refuses(ArgumentError, f"sigmoids or tanh between them, got .*{said}", played, wrong, attack)
    game = Reconstruction(images(), batch=2)
    channel = channel_of(net)
    view, _ = game.deal(channel, 1, ls.seeded(3))
    refuses(ArgumentError, "must be 1, got 2", attack.attempt, setting(game, channel), view)
    game = Reconstruction(images())
    hidden = ls.Through(channel, ("0.weight", "0.bias", "3.weight"))
    view, _ = game.deal(hidden, 1, ls.seeded(3))
    refuses(ArgumentError, "its bias has none that is released", attack.attempt, setting(game, channel), view)
    narrow = nn.Sequential(nn.Flatten(), nn.Linear(144, 20), nn.Sigmoid(), nn.Linear(20, 4))
    hidden = ls.Through(channel_of(narrow), ("3.weight", "3.bias"))
    view, _ = game.deal(hidden, 1, ls.seeded(3))
    refuses(ArgumentError, "many records would fit", attack.attempt, setting(game, channel_of(narrow)), view)
    refuses(ArgumentError, "LayerByLayer.iterations must be at least 1", LayerByLayer, iterations=0)
    refuses(ArgumentError, "LayerByLayer.fit must be above 0", LayerByLayer, fit=0.0)
