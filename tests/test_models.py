"""The nets: their shapes, sizes and beginnings, and that their gradients are what autograd says."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import refuses
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from leakscope import gradients
from leakscope.core.dataset import Column, Dataset
from leakscope.core.errors import ArgumentError
from leakscope.core.rng import seeded
from leakscope.core.tables import architecture
from leakscope.defenses.bottleneck import VIB
from leakscope.gradients.records import Records
from leakscope.models import (
    CNN,
    MLP,
    VGG9,
    AlexNet,
    Architecture,
    Bert,
    DenseNet,
    Frozen,
    LeNet,
    Linear,
    ResNet18,
    SigmoidNet,
    SmallAlexNet,
    TextClf,
    TextTransformer,
    build,
    frozen,
    layers_of,
    parameters,
)
from leakscope.training.recording import Recorder, Recording


def some(*shape: int, classes: int = 10, n: int = 4) -> Dataset:
    """Records of a shape, of so many classes, whichever of them occur."""
    x = torch.randn(n, *shape, generator=seeded(0, "records"))
    return Dataset(x, torch.arange(n) % classes, {}, values={"label": tuple(map(str, range(classes)))})


def texts(length: int, *, words: int = 12, classes: int = 3, n: int = 4) -> Dataset:
    """Numbered words, each text padded at its end, in such a number of classes."""
    x = torch.randint(1, words, (n, length), generator=seeded(0, "words"))
    x[:, -3:] = 0
    column = Column("text", 0, length, values=tuple(f"word{i}" for i in range(words)), standardised=False)
    values = {"label": tuple(map(str, range(classes)))}
    return Dataset(x, torch.arange(n) % classes, {}, columns=(column,), values=values)


def made(description: Architecture, data: Dataset) -> nn.Module:
    return build(description, data, seeded(0, "model")).eval()


def size(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


SMALL: dict[str, tuple[Architecture, Dataset, bool]] = {  # a net, its records, has hand rules
    "MLP": (MLP((7, 5), "tanh"), some(6, classes=3), True),
    "CNN": (CNN(width=2), some(3, 12, 12, classes=3), True),
    "Linear": (Linear(), some(1, 4, 4, classes=3), True),
    "LeNet": (LeNet(), some(1, 14, 14, classes=3), True),
    "AlexNet": (AlexNet(width=0.05), some(3, 32, 32, classes=3), True),
    "AlexNet of low rank": (AlexNet(width=0.05, rank=2), some(1, 16, 16, classes=3), True),
    "DenseNet": (DenseNet(depth=10, growth=3), some(3, 8, 8, classes=3), True),
    "DenseNet by groups": (DenseNet(depth=16, growth=4, norm="group"), some(3, 8, 8, classes=3), True),
    "ResNet18": (ResNet18(width=2), some(3, 8, 8, classes=3), True),
    "ResNet18 by groups": (ResNet18(width=2, norm="group"), some(1, 8, 8, classes=3), True),
    "Frozen": (Frozen(ResNet18(width=2)), some(3, 8, 8, classes=3), True),
    "LeNet of sigmoids": (LeNet("sigmoid", "average"), some(1, 14, 14, classes=3), True),
    "SigmoidNet": (SigmoidNet(), some(1, 9, 7, classes=3), True),
    "SmallAlexNet": (SmallAlexNet(), some(1, 8, 6, classes=3), True),
    "VGG9": (VGG9(), some(3, 6, 8, classes=3), True),
    "TextClf": (TextClf(4), texts(24, n=5), False),
    "TextTransformer": (TextTransformer(8, 2, 2, 12, frozen=False), texts(6, n=5), True),
    "Bert": (Bert("", 8, 2, 2, 12), texts(6, n=5), True),
    "Bert with adapters": (Bert("", 8, 2, 2, 12, adapters=2, start=1.0), texts(6, n=5), False),
}


def looped(model: nn.Module, params: dict[str, Tensor], data: Dataset) -> dict[str, Tensor]:
    """Each record's gradient by autograd, one after the other."""
    every = []
    for i in range(len(data)):
        leaves = {name: p.clone().requires_grad_() for name, p in params.items()}
        loss = F.cross_entropy(functional_call(model, leaves, (data.x[i : i + 1],)), data.y[i : i + 1])
        every.append(torch.autograd.grad(loss, list(leaves.values())))
    return {name: torch.stack([g[i] for g in every]) for i, name in enumerate(params)}


def doubled(name: str) -> tuple[nn.Module, dict[str, Tensor], Dataset]:
    """A net in double precision, other values of its parameters than its own, and its records."""
    description, data, _ = SMALL[name]
    model = made(description, data).double()
    x = data.x.double() if data.x.is_floating_point() else data.x
    return model, {key: p + 0.01 for key, p in parameters(model).items()}, replace(data, x=x)


@pytest.mark.parametrize("name", SMALL)
def test_gradients_of_records_are_autograds(name: str) -> None:
    model, params, data = doubled(name)
    theirs = looped(model, params, data)
    ours = gradients.per_record(model, params, data.x, data.y)
    assert list(ours) == list(theirs) == [key for key, _ in model.named_parameters()]
    assert any(g.abs().max() > 1e-6 for g in theirs.values())
    for key, exact in theirs.items():
        assert (ours[key] - exact).abs().max() <= 1e-12 * max(1.0, float(exact.abs().max())), key
    assert Records.of(model, params, data.x, data.y, loss=F.cross_entropy).fast == SMALL[name][2]


@pytest.mark.parametrize("name", SMALL)
def test_alignment_is_the_dot_and_the_norm_of_autograds_gradients(name: str) -> None:
    model, params, data = doubled(name)
    direction = {key: torch.randn(p.shape, generator=seeded(1, key)).double() for key, p in params.items()}
    ours = gradients.alignment(model, params, data.x, data.y, direction)
    for key, exact in looped(model, params, data).items():
        dots, norms = (exact * direction[key]).flatten(1).sum(1), exact.flatten(1).square().sum(1)
        scale = max(1.0, float(norms.max()), float(dots.abs().max()))
        assert (ours[key][0] - dots).abs().max() <= 1e-11 * scale, key
        assert (ours[key][1] - norms).abs().max() <= 1e-11 * scale, key


class Changes(TorchDispatchMode):
    """Notes every operation that changes one of its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.is_mutable:
            self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", SMALL)
def test_nothing_is_changed_in_place(name: str) -> None:
    description, data, _ = SMALL[name]
    model = made(description, data)
    with Changes() as changes:
        model(data.x)
    assert changes.seen == []
    with Changes() as changes:
        nn.ReLU(inplace=True)(data.x.clone())
    assert changes.seen  # so that it would be seen


@pytest.mark.parametrize("name", SMALL)
def test_weights_come_from_the_generator_and_from_nowhere_else(name: str) -> None:
    description, data, _ = SMALL[name]
    before = torch.random.get_rng_state()
    one, same, other = (build(description, data, seeded(seed)).state_dict() for seed in (0, 0, 1))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(one[key], same[key]) for key in one)
    assert any(not torch.equal(one[key], other[key]) for key in one)


SQUARES = [(channels, pixels, pixels) for channels in (1, 3) for pixels in (28, 32, 64)]
PAPER_001 = [(3, 32, 32), (3, 62, 47), (1, 62, 47), (3, 64, 64), (3, 100, 100)]
TAKEN = [
    *product(
        (LeNet(), AlexNet(width=0.1), DenseNet(10, 4), ResNet18(4), AlexNet(width=0.1, rank=3)), SQUARES
    ),
    *product((LeNet(), SmallAlexNet(), VGG9(), SigmoidNet()), PAPER_001),
    (LeNet(), (1, 12, 12)),  # the least
    (AlexNet(width=0.05), (1, 13, 13)),
]


@pytest.mark.parametrize(("description", "shape"), TAKEN)
def test_image_nets_take_images_of_many_sizes(description: Architecture, shape: tuple[int, int, int]) -> None:
    data = some(*shape, classes=7, n=2)
    assert made(description, data)(data.x).shape == (2, 7)


def convolution(inside: int, outside: int, kernel: int, *, bias: bool = True) -> int:
    return outside * (inside * kernel**2 + bias)


def test_alexnet_has_the_parameters_of_its_five_convolutions_and_one_linear_layer() -> None:
    channels, kernels = (3, 64, 192, 384, 256, 256), (11, 5, 3, 3, 3)
    body = sum(convolution(i, o, k) for (i, o), k in zip(pairwise(channels), kernels, strict=True))
    assert size(made(AlexNet(), some(3, 32, 32))) == body + 256 * 10 + 10 == 2_472_266
    assert size(made(AlexNet(), some(3, 64, 64, classes=100))) == body + 256 * 100 + 100
    halves = [3, *(c // 2 for c in channels[1:])]
    half = sum(convolution(i, o, k) for (i, o), k in zip(pairwise(halves), kernels, strict=True))
    assert size(made(AlexNet(width=0.5), some(3, 32, 32))) == half + 128 * 10 + 10


def test_a_rank_makes_alexnets_last_layer_a_product_of_two() -> None:
    data = some(3, 32, 32, classes=100)
    model = made(AlexNet(rank=5), data)
    weights = dict(model.named_parameters())
    product = weights["fc.weight"] @ weights["factor.weight"]
    assert product.shape == (100, 256)
    assert torch.linalg.matrix_rank(product) == 5
    whole = size(made(AlexNet(), data))
    assert size(model) == whole - 256 * 100 + 256 * 5 + 5 * 100
    assert "factor.bias" not in weights


def test_alexnet_halves_the_side_before_each_of_three_stages() -> None:
    """32 -> 8 by the stride, 4 and 2 by the pools; the rest is pooled at once, whatever the size."""
    data = some(3, 32, 32)
    model = made(AlexNet(width=0.1), data)
    sides = {}
    for name, layer in model.named_children():
        layer.register_forward_hook(lambda _, __, out, name=name: sides.update({name: out.shape[-1]}))
    model(data.x)
    assert [sides[f"conv{i}"] for i in range(1, 6)] == [8, 4, 2, 2, 2]
    assert sides["pool5"] == 1


def test_he_keeps_vgg9s_gradients_and_torchs_own_start_loses_them() -> None:
    data = some(3, 32, 32, n=16)
    first = {}
    for initial in ("he", "default"):
        model = made(VGG9(initial=initial), data)
        F.cross_entropy(model(data.x), data.y).backward()
        first[initial] = float(model.get_parameter("conv1.weight").grad.norm())  # type: ignore[union-attr]
    assert first["he"] > 10 * first["default"]


def test_he_keeps_alexnets_signal_and_torchs_own_start_loses_it() -> None:
    data = some(3, 32, 32, n=16)
    spread = {}
    for initial in ("he", "default"):
        model = made(AlexNet(initial=initial), data)
        with torch.no_grad():
            spread[initial] = model[:-1](data.x).std(0).mean().item()
    assert spread["he"] > 0.1
    assert spread["default"] < 0.02


@pytest.mark.parametrize("description", [AlexNet(), ResNet18(16), DenseNet(22, 12), VGG9()])
def test_convolutions_start_with_variance_two_over_fan_in(description: Architecture) -> None:
    model = made(description, some(3, 32, 32))
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d):
            weight = layer.weight.detach().double()
            n, wanted = weight.numel(), 2 / weight[0].numel()
            # the mean of n squares of N(0, v) has standard deviation v sqrt(2 / n)
            assert abs(float(weight.square().mean()) - wanted) < 5 * wanted * math.sqrt(2 / n)
            assert layer.bias is None or not layer.bias.any()


def test_lenet_has_the_known_number_of_parameters() -> None:
    assert size(made(LeNet(), some(1, 28, 28))) == 61_706  # LeNet-5 on 28 x 28 digits
    assert size(made(LeNet(), some(3, 32, 32))) == 62_006  # and on CIFAR-10
    head = 16 * 13**2 * 120 + 120 + 120 * 84 + 84 + 84 * 6 + 6
    scans = convolution(1, 6, 5) + convolution(6, 16, 5) + head
    assert size(made(LeNet(), some(1, 64, 64, classes=6))) == scans


def test_lenets_activation_and_pool_can_be_smooth_and_change_no_parameter() -> None:
    data = some(3, 32, 32)
    plain, smooth = made(LeNet(), data), made(LeNet("sigmoid", "average"), data)
    kinds = {type(layer) for layer in smooth}
    assert kinds == {nn.Conv2d, nn.Sigmoid, nn.AvgPool2d, nn.Flatten, nn.Linear}
    assert {type(layer) for layer in plain} == {nn.Conv2d, nn.ReLU, nn.MaxPool2d, nn.Flatten, nn.Linear}
    assert all(torch.equal(p, dict(smooth.named_parameters())[key]) for key, p in plain.named_parameters())


def linear(*widths: int) -> int:
    return sum(i * o + o for i, o in pairwise(widths))


@pytest.mark.parametrize(("side", "flat"), [((32, 32), 400), ((62, 47), 1_536), ((64, 64), 2_704)])
def test_lenet_flattens_to_the_widths_that_no_padding_gives(side: tuple[int, int], flat: int) -> None:
    body = convolution(3, 6, 5) + convolution(6, 16, 5)
    assert size(made(LeNet(), some(3, *side))) == body + linear(flat, 120, 84, 10)


def test_the_alexnet_of_paper_001_has_the_parameters_of_its_layers() -> None:
    channels, kernels = (3, 8, 16, 32, 32, 32), (5, 3, 3, 3, 3)
    body = sum(convolution(i, o, k) for (i, o), k in zip(pairwise(channels), kernels, strict=True))
    model = made(SmallAlexNet(), some(3, 32, 32))
    assert size(model) == body + linear(32 * 8 * 8, 120, 84, 10)
    assert size(made(SmallAlexNet(), some(3, 62, 47))) == body + linear(32 * 15 * 11, 120, 84, 10)
    pools = [name for name, layer in model.named_children() if isinstance(layer, nn.MaxPool2d)]
    assert pools == ["pool2", "pool5"]


def test_vgg9_has_nine_layers_and_their_parameters() -> None:
    body = sum(convolution(i, o, 3) for i, o in pairwise((3, 8, 16, 16, 32, 32, 32)))
    model = made(VGG9(), some(3, 32, 32))
    assert size(model) == body + linear(32 * 8 * 8, 256, 128, 10)
    assert list(layers_of(model)) == [*(f"conv{i}" for i in range(1, 7)), "fc1", "fc2", "fc3"]
    pools = [name for name, layer in model.named_children() if isinstance(layer, nn.MaxPool2d)]
    assert pools == ["pool3", "pool6"]


def test_the_net_of_dlg_halves_its_image_twice_and_starts_uniformly() -> None:
    for side, left in (((32, 32), 64), ((28, 28), 49), ((62, 47), 16 * 12), ((5, 3), 2)):
        model = made(SigmoidNet(), some(3, *side))
        body = convolution(3, 12, 5) + 2 * convolution(12, 12, 5)
        assert size(model) == body + linear(12 * left, 10)
    model = made(SigmoidNet(), some(3, 32, 32, classes=100))
    assert list(layers_of(model)) == ["conv1", "conv2", "conv3", "fc1"]
    every = torch.cat([p.detach().double().flatten() for p in model.parameters()])
    n = len(every)
    assert every.abs().max() <= 0.5
    # U(-1/2, 1/2) has variance 1/12, and its square 1/180
    assert abs(float(every.mean())) < 5 * math.sqrt(1 / 12 / n)
    assert abs(float(every.square().mean()) - 1 / 12) < 5 * math.sqrt(1 / 180 / n)
    assert all(p.detach().abs().max() > 0.3 for p in model.parameters())  # biases too


def test_a_layer_is_its_weight_and_bias_and_shared_weights_are_refused() -> None:
    model = made(LeNet(), some(1, 28, 28))
    assert layers_of(model)["conv2"] == ("conv2.weight", "conv2.bias")
    assert [name for names in layers_of(model).values() for name in names] == list(parameters(model))
    tied = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    tied[1].weight = tied[0].weight
    refuses(ArgumentError, r"must not share weights, and '0\.weight' is also '1\.weight'", layers_of, tied)


def test_textclf_has_the_parameters_of_its_layers() -> None:
    data = texts(200, words=1_000, classes=2)
    model = made(TextClf(), data)
    body = 16 * (50 * 3 + 1) + 16 * (16 * 8 + 1)
    assert size(model) == 1_000 * 50 + body + linear(16 * 46, 50, 2)  # 200, 198, 99, 92, 46
    assert list(layers_of(model)) == ["embedding", "conv1", "conv2", "fc1", "fc2"]
    assert size(made(TextClf(8), data)) == 1_000 * 8 + 16 * 25 + 16 * 129 + linear(16 * 46, 50, 2)
    assert model(data.x).shape == (4, 2)
    shortest = texts(20)
    assert made(TextClf(), shortest)(shortest.x).shape == (4, 3)


def test_textclf_reads_words_in_their_order_and_nothing_of_padding() -> None:
    data = texts(30)
    model = made(TextClf(6), data)
    weights = parameters(model)
    assert not weights["embedding.weight"][0].any()
    vectors = weights["embedding.weight"][data.x].transpose(1, 2)
    first = F.max_pool1d(F.conv1d(vectors, weights["conv1.weight"], weights["conv1.bias"]).relu(), 2)
    second = F.max_pool1d(F.conv1d(first, weights["conv2.weight"], weights["conv2.bias"]).relu(), 2)
    hidden = F.linear(second.flatten(1), weights["fc1.weight"], weights["fc1.bias"]).relu()
    logits = F.linear(hidden, weights["fc2.weight"], weights["fc2.bias"])
    assert torch.allclose(model(data.x), logits, rtol=0, atol=1e-6)


def test_gradients_of_batches_of_texts_are_means_and_the_embeddings_name_the_words() -> None:
    model, params, data = doubled("TextClf")
    each = gradients.per_record(model, params, data.x, data.y)
    rows = torch.tensor([[0, 1, 2], [4, 4, 3]])
    for key, means in gradients.batch_means(model, params, data.x, data.y, rows).items():
        scale = float(each[key].abs().max())
        assert scale > 0
        assert (means - each[key][rows].mean(1)).abs().max() <= 1e-12 * scale, key
    for i, text in enumerate(data.x):  # padding is named by none
        touched = each["embedding.weight"][i].abs().sum(1).nonzero()[:, 0]
        assert set(touched.tolist()) <= set(text.tolist()) - {0}


def test_the_nets_of_paper_000_have_the_dimensions_it_states() -> None:
    data = some(3, 32, 32, classes=2)
    assert size(made(CNN(8), data)) == 45_922
    assert size(made(CNN(9), data)) == 55_170


def test_the_fully_connected_net_of_purchase_and_texas() -> None:
    for inputs in (446, 600, 6_169):
        model = made(MLP((1024, 512, 256), "tanh"), some(inputs, classes=100))
        widths = (inputs, 1024, 512, 256, 100)
        assert size(model) == sum(i * o + o for i, o in pairwise(widths))
        assert [type(layer) for layer in model] == [nn.Linear, nn.Tanh] * 3 + [nn.Linear]


def densenet_parameters(n: int, k: int, classes: int, channels: int = 3) -> int:
    """DenseNet-BC of three blocks of n units in closed form. Unit i of a block of c channels has two
    parameters for each of c + ik channels that are normalised, 4k(c + ik) of the 1 x 1 convolution,
    8k of the second normalisation and 36kk of the 3 x 3 convolution; a transition of c channels has 2c
    and c c/2."""
    total, c = channels * 9 * 2 * k, 2 * k
    for block in range(3):
        total += (2 + 4 * k) * (n * c + k * n * (n - 1) // 2) + n * (8 * k + 36 * k * k)
        c += n * k
        if block < 2:
            total += 2 * c + c * (c // 2)
            c //= 2
    return total + 2 * c + c * classes + classes


def test_densenet_bc_has_the_parameters_of_its_closed_form() -> None:
    model = made(DenseNet(100, 12), some(3, 32, 32))
    assert size(model) == densenet_parameters(16, 12, 10) == 769_162
    grouped = made(DenseNet(40, 12, norm="group"), some(1, 32, 32, classes=100))
    assert size(grouped) == densenet_parameters(6, 12, 100, channels=1)


def test_conv66_of_densenet_is_the_last_convolution_of_its_second_block() -> None:
    model = made(DenseNet(), some(3, 32, 32))
    convolutions = [name for name, layer in model.named_modules() if isinstance(layer, nn.Conv2d)]
    assert len(convolutions) == 99  # and one linear layer
    assert [name.rpartition(".")[2] for name in convolutions] == [f"conv{i}" for i in range(1, 100)]
    assert convolutions[65] == "block2.unit16.conv66"
    assert model.get_submodule(convolutions[65]).kernel_size == (3, 3)


def resnet18_parameters(w: int, classes: int, channels: int = 3) -> int:
    """Stem, then four stages of two blocks; the first block of the last three has a 1 x 1 shortcut.
    Every convolution has no bias and a normalisation of two parameters a channel."""
    total = 9 * channels * w + 2 * w + 4 * (9 * w * w + 2 * w)
    for o in (2 * w, 4 * w, 8 * w):
        i = o // 2
        total += 9 * i * o + 3 * 9 * o * o + i * o + 5 * 2 * o
    return total + 8 * w * classes + classes


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_resnet18_has_the_parameters_of_its_closed_form(norm: Any) -> None:
    assert size(made(ResNet18(64, norm), some(3, 32, 32))) == resnet18_parameters(64, 10) == 11_173_962
    assert size(made(ResNet18(8, norm), some(1, 64, 64, classes=23))) == resnet18_parameters(
        8, 23, channels=1
    )
    names = [name for name, _ in made(ResNet18(4), some(3, 32, 32)).named_parameters()]
    main = [
        name.split(".")[-2] for name in names if name.split(".")[-2].startswith("conv") and "path" in name
    ]
    assert main == [f"conv{i}" for i in range(2, 18)]


@pytest.mark.parametrize("kind", [DenseNet, ResNet18])
def test_groups_join_no_records_and_batches_are_refused_while_they_do(kind: Callable[..., Any]) -> None:
    settings = {"depth": 10, "growth": 4} if kind is DenseNet else {"width": 4}
    data = some(3, 16, 16, classes=3)
    grouped = build(kind(**settings, norm="group"), data, seeded(0)).train()
    alone = torch.cat([grouped(one) for one in data.x.split(1)])
    assert torch.allclose(grouped(data.x), alone, atol=1e-5)
    gradients.per_record(grouped, parameters(grouped), data.x, data.y)
    joined = build(kind(**settings), data, seeded(0)).train()
    with pytest.raises(ArgumentError, match=r"use GroupNorm, or model\.eval"):
        gradients.per_record(joined, parameters(joined), data.x, data.y)


@pytest.mark.parametrize("width", [1, 2, 3, 7, 24, 64])
def test_no_group_is_one_number_that_is_normalised_away(width: int) -> None:
    data = some(3, 8, 8, n=3)  # the last stage is 1 x 1
    model = made(ResNet18(width, "group"), data)
    for layer in model.modules():
        if isinstance(layer, nn.GroupNorm):
            assert layer.num_groups <= 32
            assert layer.num_channels >= 2 * layer.num_groups or layer.num_channels == 1
    assert model(data.x).std(0).max() > 0


def features(*, seed: int = 3) -> nn.Module:
    """A user's backbone with weights and statistics of its own, and a last layer of another task."""
    torch.manual_seed(seed)
    body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5), nn.Flatten())
    net = nn.Sequential()
    net.add_module("body", body)
    net.add_module("fc", nn.Linear(4 * 36, 1_000))
    net(torch.randn(20, 3, 8, 8) * 3 + 1)  # so that the statistics are not those of a new layer
    return net


def test_a_frozen_backbone_has_no_parameters_and_only_the_head_is_listed() -> None:
    own = features()
    before = copy.deepcopy(own.state_dict())
    data = some(3, 8, 8, classes=5)
    model = build(Frozen(own), data, seeded(0))
    expected = {"fc.weight": (5, 144), "fc.bias": (5,)}
    assert {name: tuple(p.shape) for name, p in model.named_parameters()} == expected
    kept = {name for name in model.state_dict() if name.startswith("backbone.")}
    assert kept == {f"backbone.net.{name}" for name in before if not name.startswith("fc.")}
    # the user's own module is as it was
    assert own.training
    assert all(torch.equal(value, before[name]) for name, value in own.state_dict().items())
    assert all(p.requires_grad for p in own.parameters())
    assert own.fc.out_features == 1_000


def test_a_frozen_backbone_stays_in_evaluation_mode_and_says_what_it_said() -> None:
    own = features()
    data = some(3, 8, 8, classes=5)
    model = build(Frozen(own), data, seeded(0)).train()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    head = dict(model.named_parameters())
    expected = F.linear(own.body.eval()(data.x), head["fc.weight"], head["fc.bias"])
    assert torch.equal(model(data.x), expected)
    assert not any(part.training for part in model.backbone.modules())
    optimiser = torch.optim.SGD(model.parameters(), lr=0.5)
    F.cross_entropy(model(data.x), data.y).backward()
    optimiser.step()
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, state[name])}
    assert changed == {"fc.weight", "fc.bias"}


def test_a_backbone_can_learn_public_images_first_and_is_one_net_for_every_seed(monkeypatch) -> None:
    public = some(3, 16, 16, classes=4)
    monkeypatch.setattr(frozen, "load", {"public": public}.__getitem__)
    nets = [build(Frozen(AlexNet(width=0.05), learned="public"), public, seeded(seed)) for seed in (0, 1)]
    one, other = (net.backbone.state_dict() for net in nets)
    assert all(torch.equal(value, other[name]) for name, value in one.items())
    assert not torch.equal(nets[0].fc.weight, nets[1].fc.weight)
    grey = build(Frozen(AlexNet(width=0.05), learned="public"), some(1, 16, 16, classes=5), seeded(0))
    assert grey(torch.zeros(2, 1, 16, 16)).shape == (2, 5)
    taught, plain = (frozen.teach(AlexNet(width=0.05), "public", n, 3)(public.x) for n in (15, 1))
    assert F.cross_entropy(taught, public.y) < F.cross_entropy(plain, public.y)
    with pytest.raises(ArgumentError, match="weights of its own"):
        Frozen(features(), learned="public")


def test_functional_call_gives_a_frozen_net_another_head() -> None:
    data = some(3, 8, 8, classes=5)
    model = made(Frozen(features()), data)
    params = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    params["fc.bias"] = torch.arange(5.0)
    assert torch.equal(functional_call(model, params, (data.x,)), torch.arange(5.0).expand(4, 5))
    assert model.double()(data.x.double()).dtype == torch.float64  # the buffers move with the model


def test_a_backbone_that_gives_features_needs_no_layer_to_be_named() -> None:
    data = some(3, 8, 8, classes=5)
    body = features().body
    one, other = (made(Frozen(b, layer=name), data) for b, name in ((body, None), (features(), "fc")))
    assert torch.equal(one(data.x), other(data.x))
    maps = nn.Conv2d(3, 2, 3).eval()  # (n, 2, 6, 6) is flattened
    assert dict(made(Frozen(maps, layer=None), data).named_parameters())["fc.weight"].shape == (5, 72)


def test_a_frozen_net_is_recorded_by_its_head_and_takes_a_bottleneck(tmp_path: Path) -> None:
    data = some(3, 8, 8, classes=5)
    model = build(Frozen(features()), data, seeded(0))
    Recorder(tmp_path / "run", model, model_name="frozen").global_model(0, model)
    assert list(Recording(tmp_path / "run").layers) == ["fc.weight", "fc.bias"]
    bottled = build(Frozen(features()), data, seeded(0), defense=VIB())
    assert {name.partition(".")[0] for name, _ in bottled.named_parameters()} == {"mean", "spread", "decoder"}


def test_a_backbone_that_does_not_fit_is_refused_in_one_sentence() -> None:
    data = some(3, 8, 8, classes=5)
    deep = nn.Sequential(nn.Flatten(), nn.Linear(192, 8), nn.ReLU(), nn.Linear(8, 8))
    refused: list[tuple[Frozen, Dataset, str]] = [
        (
            Frozen(features(), layer="head"),
            data,
            r"linear layer of the backbone \(fc\), got 'head'; use None",
        ),
        (Frozen(features().body), data, r"\(it has none\), got 'fc'; use None"),
        (Frozen(features()), some(1, 8, 8), r"records of shape \(1, 8, 8\) .*; resize the records"),
        (Frozen(deep, layer="1"), data, "layer must be the layer that gives the backbone's output, got '1'"),
        (Frozen(nn.LSTM(8, 2), layer=None), some(4, 8), "and give a tensor, and it does not"),
    ]
    for description, records, said in refused:
        with pytest.raises(ArgumentError, match=said) as caught:
            description(records)
        assert "\n" not in str(caught.value)


REFUSED: dict[str, Callable[[], object]] = {
    r"MLP\.activation must be 'relu', 'tanh' or 'sigmoid', got 'gelu'": lambda: MLP(activation="gelu"),  # type: ignore[arg-type]
    r"MLP\.hidden": lambda: MLP((3, 0)),
    r"AlexNet\.width must be above 0 and finite, got 0": lambda: AlexNet(width=0),
    r"AlexNet\.initial": lambda: AlexNet(initial="zeros"),  # type: ignore[arg-type]
    r"AlexNet\.rank must be at least 1, or None, got 0": lambda: AlexNet(rank=0),
    r"DenseNet\.depth must be 6 n \+ 4 .*, got 99": lambda: DenseNet(depth=99),
    r"DenseNet\.depth .*, got 4": lambda: DenseNet(depth=4),
    r"DenseNet\.growth": lambda: DenseNet(growth=0),
    r"DenseNet\.norm must be 'batch' or 'group', got 'layer'": lambda: DenseNet(norm="layer"),  # type: ignore[arg-type]
    r"ResNet18\.width": lambda: ResNet18(width=0),
    r"ResNet18\.norm": lambda: ResNet18(norm="layer"),  # type: ignore[arg-type]
    r"AlexNet needs images .* at least 13 x 13 pixels": lambda: AlexNet()(some(3, 12, 12)),
    r"LeNet needs images .* got x of shape \(4, 30\); use MLP": lambda: LeNet()(some(30)),
    r"DenseNet needs images": lambda: DenseNet()(some(30)),
    r"ResNet18 needs images": lambda: ResNet18()(some(3, 7, 7)),
    r"LeNet\.activation must be 'relu' or 'sigmoid', got 'tanh'": lambda: LeNet("tanh"),  # type: ignore[arg-type]
    r"LeNet\.pool must be 'max' or 'average', got 'min'": lambda: LeNet(pool="min"),  # type: ignore[arg-type]
    r"VGG9\.initial": lambda: VGG9("zeros"),  # type: ignore[arg-type]
    r"VGG9 needs images .* at least 4 x 4 pixels": lambda: VGG9()(some(3, 3, 8)),
    r"SmallAlexNet needs images": lambda: SmallAlexNet()(some(30)),
    r"SigmoidNet needs images": lambda: SigmoidNet()(some(30)),
    r"MLP needs records of floating-point numbers, .* use TextClf for texts": lambda: MLP()(texts(20)),
    r"Linear needs records of floating-point numbers": lambda: Linear()(texts(20)),
    r"TextClf\.width must be at least 1, got 0": lambda: TextClf(0),
    r"TextClf needs texts of at least 20 numbered words .* shape \(4, 19\)": lambda: TextClf()(texts(19)),
    r"TextClf needs texts .* got x of torch\.float32": lambda: TextClf()(some(30)),
}


@pytest.mark.parametrize("said", REFUSED)
def test_a_setting_that_breaks_its_rule_is_refused(said: str) -> None:
    refuses(ArgumentError, said, REFUSED[said])


def test_a_plan_can_name_every_net() -> None:
    data = some(3, 16, 16)
    tables = [
        {"name": "LeNet"},
        {"name": "LeNet", "activation": "sigmoid", "pool": "average"},
        {"name": "SigmoidNet"},
        {"name": "SmallAlexNet"},
        {"name": "VGG9", "initial": "default"},
        {"name": "AlexNet", "width": 0.1, "rank": 4, "initial": "default"},
        {"name": "MLP", "hidden": [8, 4], "activation": "tanh"},
        {"name": "MLP", "hidden": [8, 4], "activation": "sigmoid"},
        {"name": "DenseNet", "depth": 10, "growth": 4, "norm": "group"},
        {"name": "ResNet18", "width": 4, "norm": "batch"},
        {"name": "Frozen"},
    ]
    for table in tables:
        assert made(architecture(table), data)(data.x).shape == (4, 10)
    words = texts(20)
    assert made(architecture({"name": "TextClf", "width": 3}), words)(words.x).shape == (4, 3)
