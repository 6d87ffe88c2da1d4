"""The fast kernels equal a loop of autograd, or say why they cannot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from leakscope import gradients
from leakscope.core.errors import ArgumentError
from leakscope.core.nouns import Layers, Loss, Params
from leakscope.gradients.records import Records

CLASSES = 3


def parameters(model: nn.Module) -> dict[str, Tensor]:
    """Other values than the module's own, so that using those would show."""
    torch.manual_seed(1)
    return {name: torch.randn_like(p).detach() * 0.3 for name, p in model.named_parameters()}


def looped(
    model: nn.Module, params: Params, x: Tensor, y: Tensor, rows: Tensor, loss: Loss = F.cross_entropy
) -> Layers:
    every = []
    for row in rows:
        leaves = {name: p.clone().requires_grad_() for name, p in params.items()}
        value = loss(functional_call(model, leaves, (x[row],)), y[row])
        found = torch.autograd.grad(value, list(leaves.values()), allow_unused=True)
        pairs = zip(leaves.values(), found, strict=True)
        every.append([torch.zeros_like(p) if g is None else g for p, g in pairs])
    return {name: torch.stack([g[i] for g in every]) for i, name in enumerate(params)}


def agree(ours: Layers, theirs: Layers, tolerance: float = 1e-12) -> None:
    assert list(ours) == list(theirs)
    for name, exact in theirs.items():
        assert ours[name].shape == exact.shape, name
        assert ours[name].dtype == exact.dtype, name
        assert (ours[name] - exact).abs().max() <= tolerance * max(1.0, float(exact.abs().max())), name


def joined(blocks: list[dict[str, Tensor]]) -> Layers:
    return {name: torch.cat([block[name] for block in blocks]) for name in blocks[0]}


def problem(
    model: nn.Module, *shape: int, n: int = 9, t: int = 4, k: int = 5
) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    x = torch.randn(n, *shape, dtype=next(model.parameters()).dtype)
    return x, torch.arange(n) % CLASSES, torch.randint(n, (t, k))


def is_fast(model: nn.Module, x: Tensor, y: Tensor) -> bool:
    return Records.of(model, parameters(model), x, y, loss=F.cross_entropy).fast


def check(model: nn.Module, *shape: int, fast: bool, n: int = 9, x: Tensor | None = None) -> None:
    """Every kernel, on this model, is what a loop gives; and it took the way it should."""
    drawn, y, rows = problem(model, *shape, n=n)
    x = drawn if x is None else x
    params = parameters(model)
    assert is_fast(model, x, y) == fast
    means = looped(model, params, x, y, rows)
    own = looped(model, params, x, y, torch.arange(len(x))[:, None])
    agree(gradients.per_record(model, params, x, y), own)
    agree(gradients.batch_means(model, params, x, y, rows), means)
    for budget in (1, 20_000, 10**9):
        agree(joined(list(gradients.blocks(model, params, x, y, rows, budget=budget))), means)


def mlp() -> nn.Module:
    # the first layer is wide enough to be formed per batch, the others are formed per record
    return nn.Sequential(nn.Linear(60, 50), nn.ReLU(), nn.Linear(50, 6), nn.Tanh(), nn.Linear(6, 3)).double()


def test_linear_layers_equal_a_loop() -> None:
    check(mlp(), 60, fast=True)


def test_the_wide_layer_of_the_test_model_is_factored_and_the_narrow_ones_are_not() -> None:
    model = mlp()
    x, y, _ = problem(model, 60)
    assert Records.of(model, parameters(model), x, y, loss=F.cross_entropy).factored == {"0.weight"}


def test_linear_layers_over_positions_equal_a_loop() -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Flatten(), nn.Linear(30, CLASSES)).double()
    check(model, 6, 4, fast=True)


def test_convolutions_equal_a_loop() -> None:
    layers = (
        nn.Conv2d(2, 4, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 6, 3, groups=2, bias=False),
    )
    check(nn.Sequential(*layers, nn.Flatten(), nn.Linear(24, CLASSES)).double(), 2, 8, 8, fast=True)


@settings(max_examples=40, deadline=None)
@given(
    groups=st.integers(1, 3),
    widths=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    stride=st.tuples(st.integers(1, 2), st.integers(1, 3)),
    padding=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    dilation=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    bias=st.booleans(),
    size=st.tuples(st.integers(5, 8), st.integers(5, 8)),
)
def test_any_convolution_equals_a_loop(
    groups: int,
    widths: tuple[int, int],
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
    bias: bool,
    size: tuple[int, int],
) -> None:
    layer = nn.Conv2d(
        widths[0] * groups, widths[1] * groups, kernel, stride, padding, dilation, groups=groups, bias=bias
    )
    model = nn.Sequential(layer, nn.Tanh(), nn.Flatten()).double()
    x, y, rows = problem(model, widths[0] * groups, *size, n=4, t=3, k=2)
    y = y % model(x).shape[1]
    params = parameters(model)
    assert is_fast(model, x, y)
    agree(gradients.batch_means(model, params, x, y, rows), looped(model, params, x, y, rows))


@pytest.mark.parametrize("padding", ["same", "valid"])
@pytest.mark.parametrize("mode", ["zeros", "circular", "reflect"])
def test_every_padding_of_a_convolution_equals_a_loop(
    padding: str, mode: Literal["zeros", "circular", "reflect"]
) -> None:
    layer = nn.Conv2d(1, 2, 3, padding=padding, padding_mode=mode)
    width = 72 if padding == "same" else 32
    check(
        nn.Sequential(layer, nn.ReLU(), nn.Flatten(), nn.Linear(width, CLASSES)).double(), 1, 6, 6, fast=True
    )


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
def test_padding_that_is_not_symmetric_falls_back() -> None:
    layer = nn.Conv2d(1, 2, 2, padding="same")
    check(nn.Sequential(layer, nn.Flatten(), nn.Linear(50, CLASSES)).double(), 1, 5, 5, fast=False)


@pytest.mark.parametrize(
    ("norm", "fast"),
    [
        (nn.LayerNorm((4, 5, 5)), True),
        (nn.LayerNorm((5,), bias=False), True),
        (nn.GroupNorm(2, 4), True),
        (nn.BatchNorm2d(4).eval(), True),
        (nn.InstanceNorm2d(4, affine=True), False),
        (nn.RMSNorm((5, 5)), False),
    ],
)
def test_normalisation_within_a_record_equals_a_loop(norm: nn.Module, fast: bool) -> None:
    layers = (
        nn.Conv2d(1, 4, 3, padding=1),
        norm,
        nn.ReLU(inplace=True),
        nn.Flatten(),
        nn.Linear(100, CLASSES),
    )
    check(nn.Sequential(*layers).double(), 1, 5, 5, fast=fast)


def test_batch_normalisation_in_eval_mode_equals_a_loop() -> None:
    layers = (nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, CLASSES))
    model = nn.Sequential(*layers).double()
    model(torch.randn(20, 4, dtype=torch.float64))  # statistics of its own
    check(model.eval(), 4, fast=True)


@pytest.mark.parametrize("options", [{}, {"padding_idx": -3}, {"max_norm": 0.4}])
def test_an_embedding_equals_a_loop(options: dict[str, Any]) -> None:
    model = nn.Sequential(nn.Embedding(6, 4, **options), nn.Flatten(), nn.Linear(20, CLASSES)).double()
    x = torch.randint(6, (9, 5), generator=torch.Generator().manual_seed(0))  # some rows are looked up twice
    check(model, 5, fast=True, x=x)


def test_an_embedding_whose_gradient_counts_occurrences_in_the_batch_is_refused() -> None:
    model = nn.Sequential(nn.Embedding(6, 4, scale_grad_by_freq=True), nn.Flatten(), nn.Linear(20, CLASSES))
    x, y, rows = torch.randint(6, (9, 5)), torch.arange(9) % CLASSES, torch.randint(9, (4, 5))
    with pytest.raises(ArgumentError, match="scale_grad_by_freq=False"):
        gradients.batch_means(model, parameters(model), x, y, rows)


@pytest.mark.parametrize("first", [True, False])
def test_activations_in_place_change_nothing(first: bool) -> None:
    layers = (
        nn.Linear(30, 50),
        nn.ReLU(inplace=True),
        nn.Linear(50, 4),
        nn.ELU(inplace=True),
        nn.Linear(4, CLASSES),
    )
    opening = (nn.ReLU(inplace=True),) if first else ()
    model = nn.Sequential(*opening, *layers).double()
    x, _, _ = problem(model, 30)
    before = x.clone()
    check(model, 30, fast=True, x=x)
    assert torch.equal(x, before)


class Twice(nn.Module):
    """One layer, used at two depths."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(4, 4), nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Any:
        return self.head(self.layer(torch.tanh(self.layer(x))))


class Tied(nn.Module):
    """A decoder that is its encoder's transpose."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head = nn.Linear(4, 6), nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Any:
        return self.head(torch.tanh(self.encoder(x)) @ self.encoder.weight)


class Shared(nn.Module):
    """Two layers, one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, CLASSES)
        self.other.weight = self.one.weight

    def forward(self, x: Tensor) -> Any:
        return self.head(self.other(torch.tanh(self.one(x))))


class Penalised(nn.Module):
    """A layer whose weight is read outside its call, and a call that leads nowhere."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(4, 4), nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Any:
        self.layer(x)
        return self.head(torch.tanh(x @ self.layer.weight.t() + self.layer.bias))


class Unused(nn.Module):
    """A parameter that does nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.idle, self.head = nn.Linear(4, 4), nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Any:
        return self.head(x)


class Folded(nn.Module):
    """Positions become rows: the first dimension no longer counts records."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(4, 5), nn.Linear(10, CLASSES)

    def forward(self, x: Tensor) -> Any:
        return self.head(torch.tanh(self.layer(x.flatten(0, 1))).view(len(x), -1))


class PositionsFirst(nn.Module):
    """Positions come first, as many as there are records."""

    def __init__(self, positions: int) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(4, 5), nn.Linear(5 * positions, CLASSES)

    def forward(self, x: Tensor) -> Any:
        return self.head(torch.tanh(self.layer(x.transpose(0, 1))).transpose(0, 1).flatten(1))


@pytest.mark.parametrize("build", [Twice, Tied, Shared, Penalised, Unused])
def test_a_parameter_that_is_not_used_in_exactly_one_layer_falls_back(build: Callable[[], nn.Module]) -> None:
    check(build().double(), 4, fast=False)


def test_rows_that_are_not_records_fall_back() -> None:
    check(Folded().double(), 2, 4, fast=False)
    for n in (9, 3, 2):
        check(PositionsFirst(n).double(), n, 4, n=n, fast=False)


def test_one_record_alone_is_enough() -> None:
    check(mlp(), 60, n=1, fast=True)
    check(PositionsFirst(1).double(), 1, 4, n=1, fast=True)


def test_a_recurrent_network_falls_back() -> None:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gates, self.head = nn.Linear(7, 4), nn.Linear(4, CLASSES)

        def forward(self, x: Tensor) -> Any:
            state = x.new_zeros(len(x), 4)
            for step in x.unbind(1):
                state = torch.tanh(self.gates(torch.cat([step, state], 1)))
            return self.head(state)

    check(Last().double(), 5, 3, fast=False)


def test_a_custom_loss_equals_a_loop() -> None:
    def loss(logits: Tensor, y: Tensor) -> Tensor:
        return (logits.logsumexp(1) - logits[:, 0] * y).square().mean()

    model = mlp()
    x, y, rows = problem(model, 60)
    params = parameters(model)
    ours = gradients.batch_means(model, params, x, y, rows, loss=loss)
    agree(ours, looped(model, params, x, y, rows, loss))


def test_a_record_drawn_twice_counts_twice() -> None:
    model = mlp()
    x, y, _ = problem(model, 60)
    params = parameters(model)
    own = gradients.per_record(model, params, x, y)
    for budget in (1, 10**9):
        rows = torch.tensor([[0, 0, 4]])
        (block,) = gradients.blocks(model, params, x, y, rows, budget=budget)
        agree(block, {name: (2 * g[:1] + g[4:5]) / 3 for name, g in own.items()})


@settings(max_examples=25, deadline=None)
@given(t=st.integers(1, 9), k=st.integers(1, 6), budget=st.integers(1, 400_000), seed=st.integers(0, 99))
def test_blocks_of_any_budget_join_to_the_batch_means(t: int, k: int, budget: int, seed: int) -> None:
    model = mlp()
    x, y, _ = problem(model, 60)
    rows = torch.randint(len(x), (t, k), generator=torch.Generator().manual_seed(seed))
    params = parameters(model)
    means = gradients.batch_means(model, params, x, y, rows)
    agree(joined(list(gradients.blocks(model, params, x, y, rows, budget=budget))), means)


def test_float32_agrees_with_a_loop_to_a_millionth() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(512, CLASSES))
    x, y, rows = problem(model, 3, 8, 8, n=40, t=20, k=16)
    params = parameters(model)
    ours, exact = gradients.batch_means(model, params, x, y, rows), looped(model, params, x, y, rows)
    largest = max(float(g.abs().max()) for g in exact.values())
    assert max(float((ours[name] - exact[name]).abs().max()) for name in exact) <= 1e-6 * largest


@pytest.mark.parametrize("context", [torch.no_grad, torch.enable_grad, torch.inference_mode])
@pytest.mark.parametrize("trained", [True, False])
def test_the_module_and_the_arguments_are_left_as_they_were(
    context: Callable[[], object], trained: bool
) -> None:
    for model in (mlp(), nn.Sequential(nn.Linear(60, 4), nn.LayerNorm(4), nn.Linear(4, CLASSES)).double()):
        model.requires_grad_(trained)
        x, y, rows = problem(model, 60)
        params = parameters(model)
        exact = looped(model, params, x, y, rows)
        before = {name: p.clone() for name, p in model.named_parameters()}
        given_x, given_params = x.clone(), {name: p.clone() for name, p in params.items()}
        with context():  # type: ignore[attr-defined]
            ours = gradients.batch_means(model, params, x, y, rows)
        agree(ours, exact)
        assert not any(g.requires_grad for g in ours.values())
        for name, p in model.named_parameters():
            assert p.grad is None
            assert p.requires_grad == trained
            assert torch.equal(p, before[name])
        assert torch.equal(x, given_x)
        assert all(
            torch.equal(params[name], p) and not params[name].requires_grad
            for name, p in given_params.items()
        )


def test_blocks_are_those_of_the_parameters_at_the_call() -> None:
    model = mlp()
    x, y, rows = problem(model, 60)
    params = parameters(model)
    means = gradients.batch_means(model, params, x, y, rows)
    later = gradients.blocks(model, params, x, y, rows)
    for p in params.values():
        p.zero_()
    agree(joined(list(later)), means)


@pytest.mark.parametrize(
    "layer", [nn.BatchNorm1d(4), nn.BatchNorm1d(4, track_running_stats=False).eval(), nn.Dropout(0.5)]
)
def test_a_layer_that_joins_records_or_draws_at_random_is_refused(layer: nn.Module) -> None:
    model = nn.Sequential(nn.Linear(4, 4), layer, nn.Linear(4, CLASSES)).double()
    x, y, rows = problem(model, 4)
    for kernel in (gradients.blocks, gradients.batch_means):
        with pytest.raises(ArgumentError, match=r"model\.1 must not .* model\.eval\(\)"):
            kernel(model, parameters(model), x, y, rows)


def test_dropout_that_drops_nothing_is_accepted() -> None:
    check(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.0), nn.Linear(4, CLASSES)).double(), 4, fast=True)
    check(
        nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5).eval(), nn.Linear(4, CLASSES)).double(), 4, fast=True
    )


@pytest.mark.parametrize(
    "mix",
    [
        lambda x: x - x.mean(0),
        lambda x: x.roll(1, 0),
        lambda x: x.cumsum(0),
        lambda x: x.flip(0).cumsum(0).flip(0),
        lambda x: F.dropout(x, 0.5),
    ],
)
def test_a_model_that_joins_records_or_draws_at_random_unannounced_is_refused(
    mix: Callable[[Tensor], Tensor],
) -> None:
    class Mixing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, CLASSES)

        def forward(self, x: Tensor) -> Any:
            return self.layer(mix(x))

    model = Mixing().double()
    x, y, _ = problem(model, 4)
    with pytest.raises(ArgumentError, match="the same output alone and among others"):
        gradients.per_record(model, parameters(model), x, y)


@pytest.mark.parametrize("norm", [nn.Identity(), nn.LayerNorm(4)])
@pytest.mark.parametrize(
    "loss",
    [
        lambda z, y: F.cross_entropy(z, y, reduction="sum"),
        lambda z, y: F.cross_entropy(z, y, weight=torch.tensor([1.0, 2.0, 3.0], dtype=z.dtype)),
        lambda z, y: F.cross_entropy(z, y) + z.mean(0).square().sum(),
    ],
)
def test_a_loss_that_is_not_a_mean_over_records_is_refused(loss: Loss, norm: nn.Module) -> None:
    model = nn.Sequential(nn.Linear(4, 4), norm, nn.Linear(4, CLASSES)).double()
    x, y, rows = problem(model, 4)
    with pytest.raises(ArgumentError, match="loss must be the mean over records"):
        gradients.batch_means(model, parameters(model), x, y, rows, loss=loss)


@pytest.mark.parametrize(
    "rows", [torch.tensor([[0, 9]]), torch.tensor([[-1, 0]]), torch.tensor([0, 1]), torch.empty(0, 4).long()]
)
def test_rows_that_are_not_indices_of_batches_are_refused(rows: Tensor) -> None:
    model = mlp()
    x, y, _ = problem(model, 60)
    for kernel in (gradients.blocks, gradients.batch_means):
        with pytest.raises(ArgumentError, match="rows must be"):
            kernel(model, parameters(model), x, y, rows)


def test_parameters_of_another_model_are_refused() -> None:
    model = mlp()
    x, y, _ = problem(model, 60)
    with pytest.raises(ArgumentError, match="params must be the model's own"):
        gradients.per_record(model, {"weight": torch.zeros(1)}, x, y)
    with pytest.raises(ArgumentError, match="x and y must be"):
        gradients.per_record(model, parameters(model), x, y[:-1])
