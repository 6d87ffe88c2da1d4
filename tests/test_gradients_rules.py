"""Every rule for a layer's gradient equals a loop of autograd, on random shapes and through whole models; what
joins records is refused, also when the same model was accepted before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from leakscope import gradients
from leakscope.core.errors import ArgumentError
from leakscope.core.nouns import Loss
from leakscope.gradients import factors
from leakscope.gradients import records as kernels
from leakscope.gradients.aligned import align
from leakscope.gradients.factors import Convolution, Factors, Lookup, Rule, Scaling
from leakscope.gradients.records import Records

small = st.integers(1, 4)


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def one_by_one(run: Callable[..., Tensor], a: Tensor, b: Tensor, *params: Tensor) -> list[Tensor]:
    """Of every record alone, the gradient of <b, run(a, *params)> at the parameters, by autograd."""
    leaves = [p.clone().requires_grad_() for p in params]
    every = [
        torch.autograd.grad((run(a[i : i + 1], *leaves) * b[i : i + 1]).sum(), leaves) for i in range(len(a))
    ]
    return [torch.stack(list(column)) for column in zip(*every, strict=True)]


def check_rule(layer: Rule, exact: list[Tensor]) -> None:
    """Formed, formed into room, and aligned with a direction, many records at a time and one."""
    names = [name for name in (layer.weight, layer.bias) if name is not None]
    room = {name: torch.full_like(g, torch.nan) for name, g in zip(names, exact, strict=True)}
    along = {name: torch.randn_like(g[0]) for name, g in zip(names, exact, strict=True)}
    formed, put, found = layer.gradients(), layer.gradients(out=room), align(layer, along)
    assert list(formed) == list(put) == list(found) == names
    for name, g in zip(names, exact, strict=True):
        for ours in (formed[name], put[name], room[name]):
            torch.testing.assert_close(ours, g, rtol=1e-10, atol=1e-10)
        dots, squares = found[name]
        torch.testing.assert_close(dots, (g * along[name]).flatten(1).sum(1), rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(squares, g.square().flatten(1).sum(1), rtol=1e-10, atol=1e-10)


@settings(max_examples=40, deadline=None)
@given(n=small, places=st.lists(st.integers(1, 9), max_size=2), inside=small, outside=small)
def test_the_rule_of_a_linear_layer(n: int, places: list[int], inside: int, outside: int) -> None:
    a, b = drawn(n, *places, inside), drawn(n, *places, outside)
    w, v = drawn(outside, inside), drawn(outside)
    check_rule(Factors("w", "v", w.shape, a, b), one_by_one(F.linear, a, b, w, v))


@settings(max_examples=40, deadline=None)
@given(
    n=small, groups=st.integers(1, 2), widths=st.tuples(small, small), kernel=st.tuples(small, small),
    stride=st.integers(1, 2), padding=st.integers(0, 2), dilation=st.integers(1, 2), last=st.booleans(),
)  # fmt: skip
def test_the_rule_of_a_convolution(
    n: int, groups: int, widths: tuple[int, int], kernel: tuple[int, int], stride: int, padding: int,
    dilation: int, last: bool,
) -> None:  # fmt: skip
    a, w, v = drawn(n, widths[0] * groups, 8, 7), drawn(widths[1] * groups, widths[0], *kernel), drawn(1)
    v = drawn(len(w))

    def run(a: Tensor, w: Tensor, v: Tensor) -> Tensor:
        return F.conv2d(a, w, v, stride, padding, dilation, groups)

    b = torch.randn_like(run(a, w, v))
    how = Convolution((stride, stride), (padding, padding), (dilation, dilation), groups)
    layout = torch.channels_last if last else torch.contiguous_format
    laid = (part.contiguous(memory_format=layout) for part in (a, b))
    check_rule(Factors("w", "v", w.shape, *laid, how), one_by_one(run, a, b, w, v))


@settings(max_examples=30, deadline=None)
@given(n=small, places=st.lists(small, max_size=2), shape=st.lists(st.integers(2, 4), min_size=1, max_size=2))
def test_the_rule_of_a_layer_normalisation(n: int, places: list[int], shape: list[int]) -> None:
    a, w, v = drawn(n, *places, *shape), drawn(*shape), drawn(*shape)
    b = torch.randn_like(a)
    layer = Scaling("w", "v", w.shape, F.layer_norm(a, shape), b, tuple(range(1, 1 + len(places))))
    check_rule(layer, one_by_one(lambda a, w, v: F.layer_norm(a, shape, w, v), a, b, w, v))


@settings(max_examples=30, deadline=None)
@given(n=small, places=st.lists(st.integers(2, 4), max_size=2), groups=small, width=st.integers(2, 3))
def test_the_rule_of_a_group_normalisation(n: int, places: list[int], groups: int, width: int) -> None:
    a, w, v = drawn(n, groups * width, *places), drawn(groups * width), drawn(groups * width)
    b = torch.randn_like(a)
    layer = Scaling("w", "v", w.shape, F.group_norm(a, groups), b, tuple(range(2, a.dim())))
    check_rule(layer, one_by_one(lambda a, w, v: F.group_norm(a, groups, w, v), a, b, w, v))


@settings(max_examples=40, deadline=None)
@given(n=small, places=st.lists(st.integers(1, 5), max_size=2), rows=small, width=small, padded=st.booleans())
def test_the_rule_of_an_embedding(n: int, places: list[int], rows: int, width: int, padded: bool) -> None:
    a, w = torch.randint(rows, (n, *places)), drawn(rows, width)
    b, padding = drawn(n, *places, width), rows - 1 if padded else None
    exact = one_by_one(lambda a, w: F.embedding(a, w, padding), a, b, w)
    check_rule(Lookup("w", w.shape, a, b, padding), exact)


def looped(
    model: nn.Module, params: dict[str, Tensor], x: Tensor, y: Tensor, loss: Loss
) -> dict[str, Tensor]:
    leaves = {name: p.clone().requires_grad_() for name, p in params.items()}
    every = [
        torch.autograd.grad(
            loss(functional_call(model, leaves, (x[i : i + 1],)), y[i : i + 1]), [*leaves.values()]
        )
        for i in range(len(x))
    ]
    return {name: torch.stack(list(g)) for name, g in zip(leaves, zip(*every, strict=True), strict=True)}


class Encoder(nn.Module):
    """Token ids, an encoder of torch's own, and a head."""

    def __init__(self, words: int | None = None, **options: Any) -> None:
        super().__init__()
        self.words = nn.Identity() if words is None else nn.Embedding(words, 8, padding_idx=0)
        layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True, **options)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Any:
        return self.head(self.encoder(self.words(x)).mean(1))


class Attending(nn.Module):
    """One attention, its weights asked for, with masks; over its own input, another or the batch."""

    def __init__(self, over: str = "itself", *, masks: bool = False, **options: Any) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=over != "the batch", **options)
        self.head, self.over, self.masks = nn.Linear(8, 3), over, masks

    def forward(self, x: Tensor) -> Any:
        other = x.flip(1) if self.over == "another" else x
        n, t = x.shape[:2]
        causal = torch.ones(t, t).triu(1).bool().expand(2 * n, t, t) if self.masks else None
        padding = (x[:, :, 0] > 1.5) & (torch.arange(t) > 0) if self.masks else None
        out, weights = self.attention(x, other, other, attn_mask=causal, key_padding_mask=padding)
        more = 0 if self.over == "the batch" else weights.square().sum((1, 2))[:, None]
        return self.head(out.mean(1) + more)


MODELS = {
    "encoder": (lambda: Encoder(dropout=0.0), True),
    "encoder, norm first, gelu": (lambda: Encoder(norm_first=True, activation="gelu").eval(), True),
    "encoder of words": (lambda: Encoder(words=5).eval(), True),
    "attention with weights": (Attending, True),
    "attention with masks": (lambda: Attending(masks=True), True),
    "attention without bias": (lambda: Attending(bias=False), True),
    "attention over another": (lambda: Attending("another"), False),
    "attention with a bias of its keys": (lambda: Attending(add_bias_kv=True), False),
    "attention to nothing": (lambda: Attending(add_zero_attn=True), False),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_attention_equals_a_loop(name: str) -> None:
    torch.manual_seed(0)
    make, fast = MODELS[name]
    model = make().double()
    x = torch.randint(5, (7, 6)) if "words" in name else drawn(7, 6, 8)
    y, params = torch.arange(7) % 3, {key: p.detach() + 0.05 for key, p in model.named_parameters()}
    direction = {key: torch.randn_like(p) for key, p in params.items()}
    assert Records.of(model, params, x, y, loss=F.cross_entropy).fast == fast
    exact = looped(model, params, x, y, F.cross_entropy)
    ours, found = (
        gradients.per_record(model, params, x, y),
        gradients.alignment(model, params, x, y, direction),
    )
    for key, g in exact.items():
        torch.testing.assert_close(ours[key], g, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(
            found[key][0], (g * direction[key]).flatten(1).sum(1), rtol=1e-9, atol=1e-11
        )
        torch.testing.assert_close(found[key][1], g.square().flatten(1).sum(1), rtol=1e-9, atol=1e-11)


def refused(model: nn.Module, *shape: int, match: str = "alone and among others") -> None:
    x, y = torch.randn(5, *shape), torch.arange(5) % 3
    params = {name: p.detach() for name, p in model.named_parameters()}
    with pytest.raises(ArgumentError, match=match):
        gradients.per_record(model, params, x, y)
    with pytest.raises(ArgumentError, match=match):
        gradients.alignment(model, params, x, y, params)


def accepted(model: nn.Module, *shape: int) -> None:
    x, y = torch.randn(5, *shape), torch.arange(5) % 3
    gradients.per_record(model, {name: p.detach() for name, p in model.named_parameters()}, x, y)


def test_attention_over_the_records_of_a_batch_is_refused() -> None:
    torch.manual_seed(0)
    for positions in (5, 3):  # as many as there are records, and as are tried
        refused(Attending("the batch"), positions, 8)
    refused(Encoder(), 6, 8, match="draw at random")  # dropout in training mode


class Switched(nn.Module):
    """Subtracts so much of the batch's mean as a buffer, a parameter or an attribute says."""

    def __init__(self, by: str) -> None:
        super().__init__()
        self.by, self.head = by, nn.Linear(4, 3)
        self.plain = 0.0
        self.register_buffer("buffer", torch.zeros(1))
        self.share = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Any:
        share = {
            "buffer": self.buffer,
            "parameter": self.share,
            "attribute": self.plain,
            "mode": self.training,
        }
        return self.head(x - share[self.by] * x.mean(0)) + 0 * self.share


def test_an_answer_is_not_kept_when_what_it_rests_on_changes() -> None:
    for by in ("buffer", "parameter", "attribute", "mode", "hook"):
        model = Switched(by if by != "hook" else "attribute").eval()
        accepted(model, 4)
        if by == "buffer":
            model.buffer.fill_(1.0)
        elif by == "parameter":
            model.share.data.fill_(1.0)
        elif by == "attribute":
            model.plain = 1.0
        elif by == "mode":
            model.train()
        else:
            model.head.register_forward_hook(lambda module, args, out: out - out.mean(0))
        refused(model, 4)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)).eval()
    accepted(model, 4)
    refused(model.train(), 4, match="normalise over the batch")


def test_records_joined_in_their_gradients_only_are_refused() -> None:
    class Detached(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Any:
            h = self.one(x)
            return self.head(h - h.mean(0) + h.mean(0).detach())

    refused(Detached(), 4, match="in their gradients")


def test_a_label_that_the_loss_ignores_is_refused() -> None:
    model, x, y = nn.Linear(4, 3), torch.randn(5, 4), torch.tensor([0, 1, 2, 0, -100])
    with pytest.raises(ArgumentError, match="loss must be the mean over records"):
        gradients.per_record(model, {name: p.detach() for name, p in model.named_parameters()}, x, y)


def test_parameters_that_a_forward_changes_are_left_as_they_were() -> None:
    model = nn.Sequential(nn.Embedding(5, 4, max_norm=0.5), nn.Flatten(), nn.Linear(12, 3))
    params = {name: p.detach().clone() for name, p in model.named_parameters()}
    before = {name: p.clone() for name, p in params.items()}
    gradients.per_record(model, params, torch.randint(5, (6, 3)), torch.arange(6) % 3)
    assert all(torch.equal(params[name], p) for name, p in before.items())


def test_images_may_lie_in_memory_with_channels_last() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)).double()
    x, y = drawn(5, 2, 6, 6).contiguous(memory_format=torch.channels_last), torch.arange(5) % 3
    params = {name: p.detach() for name, p in model.named_parameters()}
    ours = gradients.per_record(model, params, x, y)
    for name, g in looped(model, params, x, y, F.cross_entropy).items():
        torch.testing.assert_close(ours[name], g, rtol=1e-10, atol=1e-12)


def check_single(model: nn.Module, *shape: int, last: bool) -> None:
    """In both precisions all kernels are what a loop in double precision gives, and the layout is as expected
    in single precision, the only one for which there is another."""
    torch.manual_seed(0)
    model = model.double()
    x, y = drawn(6, *shape), torch.arange(6) % 3
    params = {name: drawn(*p.shape) * 0.3 for name, p in model.named_parameters()}
    along = {name: torch.randn_like(p) for name, p in params.items()}
    exact = looped(model, params, x, y, F.cross_entropy)
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        net, parts = model.to(dtype), {name: p.to(dtype) for name, p in params.items()}
        given = (net, parts, x.to(dtype), y)
        assert Records.of(*given, loss=F.cross_entropy).last == (last and dtype == torch.float32)
        formed = gradients.per_record(*given)
        found = gradients.alignment(*given, {name: v.to(dtype) for name, v in along.items()})
        for name, g in exact.items():
            squares = g.square().flatten(1).sum(1)
            size = squares.max().sqrt() * along[name].norm()
            assert (formed[name] - g).abs().max() <= tolerance * g.abs().max(), name
            dots = (g * along[name]).flatten(1).sum(1)
            assert (found[name][0] - dots).abs().max() <= tolerance * size, name
            assert (found[name][1] - squares).abs().max() <= 2 * tolerance * squares.max(), name


def convolved(first: nn.Module, *, size: int) -> nn.Module:
    """A convolution of 4 channels, one that sees what it gives, and a head."""
    return nn.Sequential(
        first, nn.Tanh(), nn.MaxPool2d(2), nn.Conv2d(8, 6, 3, padding=1), nn.Tanh(), nn.Flatten(),
        nn.Linear(6 * size, 3),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("options", "size"),
    [
        ({"kernel_size": 3}, 49),
        ({"kernel_size": (3, 5), "stride": (3, 2)}, 6),
        ({"kernel_size": 5, "padding": (2, 1), "stride": 2}, 12),
        ({"kernel_size": 3, "dilation": (2, 3), "padding": 1}, 42),
        ({"kernel_size": 3, "groups": 4}, 49),
        ({"kernel_size": 3, "groups": 2, "padding": 2, "bias": False}, 81),
        ({"kernel_size": 3, "padding": "same"}, 64),
        ({"kernel_size": 3, "padding": 1, "padding_mode": "circular"}, 64),
        ({"kernel_size": 1}, 64),
    ],
)
@pytest.mark.parametrize("block", [1, 2**21])
def test_convolutions_of_either_precision_and_layout(
    options: dict[str, Any], size: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(factors, "BLOCK", block)
    check_single(convolved(nn.Conv2d(4, 8, **options), size=size), 4, 16, 16, last=True)


def test_a_first_convolution_of_one_channel() -> None:
    check_single(convolved(nn.Conv2d(1, 8, 5), size=36), 1, 16, 16, last=True)


class Reshaped(nn.Module):
    """A convolution whose output is made flat in a way that looks at its memory."""

    def __init__(self, flat: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.flat, self.first, self.head = flat, nn.Conv2d(2, 3, 3), nn.Linear(48, 3)

    def forward(self, x: Tensor) -> Any:
        return self.head(self.flat(torch.tanh(self.first(x))))


@pytest.mark.parametrize(
    ("flat", "last"),
    [
        (lambda h: h.view(len(h), -1), True),
        (lambda h: h.view_as(torch.empty(len(h), 48)), False),  # torch refuses it with channels last
        (lambda h: h.as_strided((len(h), 48), (48, 1)), False),  # and here it would give other numbers
    ],
)
def test_a_model_that_needs_its_channels_first_has_them_first(
    flat: Callable[[Tensor], Tensor], last: bool
) -> None:
    check_single(Reshaped(flat), 2, 6, 6, last=last)


def test_large_room_is_room_as_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x, y = nn.Linear(4, 3).double(), drawn(5, 4), torch.arange(5) % 3
    params = {name: p.detach() for name, p in model.named_parameters()}
    plain = gradients.per_record(model, params, x, y)
    monkeypatch.setattr(kernels, "NEW", 1)
    for name, g in gradients.per_record(model, params, x, y).items():
        assert torch.equal(g, plain[name])
        g.zero_()  # and can be written to


@pytest.mark.parametrize("name", ["linear", "images", "words"])
def test_kernels_stay_on_the_device_of_the_model(name: str) -> None:
    """As far as ``meta`` goes: it has shapes and no values, and does not mix with tensors of the CPU."""
    with torch.device("meta"):
        model = {
            "linear": lambda: nn.Sequential(nn.Linear(8, 4), nn.LayerNorm(4), nn.Linear(4, 3)),
            "images": lambda: nn.Sequential(
                nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(64, 3)
            ),
            "words": lambda: Encoder(words=5, dropout=0.0),
        }[name]()
        x = {
            "linear": torch.randn(5, 8),
            "images": torch.randn(5, 2, 6, 6),
            "words": torch.ones(5, 6).long(),
        }[name]
        y = torch.zeros(5).long()
        params = {key: p.detach() for key, p in model.named_parameters()}
    for key, g in gradients.per_record(model, params, x, y).items():
        assert g.is_meta
        assert g.shape == (5, *params[key].shape)
    for dots, squares in gradients.alignment(model, params, x, y, params).values():
        assert dots.is_meta
        assert dots.shape == squares.shape == (5,)
