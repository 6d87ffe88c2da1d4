"""Norms of the gradient's Jacobian: against closed forms, and against double backward row by row."""

from __future__ import annotations

import re

import pytest
import torch
from builders import refuses
from scipy import stats
from torch import nn
from torch.nn import functional as F

from leakscope.core.dataset import Batch, Dataset
from leakscope.core.errors import ArgumentError
from leakscope.core.nouns import Defense
from leakscope.core.rng import seeded
from leakscope.defenses.dpsgd import DPSGD
from leakscope.defenses.gradient import Chain, Noise, Pruning, Sign, Within
from leakscope.games.channels import GradientChannel, UpdateChannel
from leakscope.gradients.jacobian import entries, probed
from leakscope.measures.sensitivity import norms, sensitivity
from leakscope.models import layers_of, parameters
from leakscope.training.local import Local


def net(kind: str = "smooth") -> nn.Module:
    """A tiny LeNet, with sigmoids and mean-pooling or with ReLU and max-pooling."""
    torch.manual_seed(0)
    act, pool = (nn.Sigmoid, nn.AvgPool2d) if kind == "smooth" else (nn.ReLU, nn.MaxPool2d)
    layers = nn.Conv2d(2, 3, 3), act(), pool(2), nn.Flatten(), nn.Linear(12, 5), act(), nn.Linear(5, 4)
    return nn.Sequential(*layers).double()


def images(n: int = 6) -> Dataset:
    x = torch.randn(n, 2, 6, 6, dtype=torch.float64, generator=seeded(0, "x"))
    return Dataset(x, torch.arange(n) % 4, {})


def rows_of_jacobian(model: nn.Module, x: torch.Tensor, y: torch.Tensor):
    """name -> the Jacobian (parameters, inputs) of the mean gradient of ``x`` with respect to its first
    record, by a loop of double backward passes."""
    x = x.clone().requires_grad_()
    loss = F.cross_entropy(model(x), y)
    found = {}
    for name, p in model.named_parameters():
        (g,) = torch.autograd.grad(loss, p, create_graph=True, retain_graph=True)
        rows = [torch.autograd.grad(one, x, retain_graph=True, allow_unused=True)[0] for one in g.flatten()]
        flat = [torch.zeros_like(x[0]) if row is None else row[0] for row in rows]
        found[name] = torch.stack(flat).flatten(1)
    return found


def entrywise(jacobians: dict[str, torch.Tensor], names: tuple[str, ...]) -> dict[str, float]:
    whole = torch.cat([jacobians[name].flatten() for name in names])
    return {"F": float(whole.norm()), "1": float(whole.abs().sum()), "inf": float(whole.abs().max())}


def channel_of(model: nn.Module, defense: Defense | None = None) -> GradientChannel:
    return GradientChannel(model, (parameters(model),), defense or Defense())


@pytest.mark.parametrize("kind", ["smooth", "relu"])
def test_the_kernel_gives_what_a_loop_of_double_backward_gives(kind):
    model, data = net(kind), images(2)
    found = entries(model, parameters(model), data.x, data.y, budget=20_000)
    for i in range(2):
        for name, j in rows_of_jacobian(model, data.x[i : i + 1], data.y[i : i + 1]).items():
            assert float(found.squares[name][i]) == pytest.approx(float(j.square().sum()), rel=1e-9)
            assert float(found.sums[name][i]) == pytest.approx(float(j.abs().sum()), rel=1e-9)
            assert float(found.largest[name][i]) == pytest.approx(float(j.abs().max()), rel=1e-9)
        assert float(found.squares["0.weight"][i]) > 0


def test_the_jacobian_of_a_linear_softmax_model_is_the_one_written_out_by_hand():
    """g_W = (p - y) xᵀ and g_b = p - y with p = softmax(W x + b), so that with S = diag(p) - p pᵀ
    ∂g_b/∂x = S W and ∂(g_W)_ij/∂x_m = (S W)_im x_j + (p - y)_i δ_jm."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(5, 3)).double()
    x, y = torch.randn(4, 5, dtype=torch.float64), torch.tensor([0, 1, 2, 0])
    w = model[0].weight.detach()
    expected = {"F": [], "1": [], "inf": []}
    for record, label in zip(x, y, strict=True):
        p = (w @ record + model[0].bias.detach()).softmax(0)
        slope = (p.diag() - p.outer(p)) @ w
        error = p - F.one_hot(label, 3)
        weight = torch.einsum("im,j->ijm", slope, record) + torch.einsum("i,jm->ijm", error, torch.eye(5))
        whole = torch.cat([weight.flatten(), slope.flatten()])
        expected["F"].append(whole.norm())
        expected["1"].append(whole.abs().sum())
        expected["inf"].append(whole.abs().max())
    found = norms(channel_of(model), Batch(Dataset(x, y, {}), torch.arange(4)[:, None]))
    for norm, values in expected.items():
        mean = torch.stack(values).mean()
        assert found[norm]["0"].value == pytest.approx(float(mean), rel=1e-12)
        half = stats.t.ppf(0.975, 3) * float(torch.stack(values).std()) / 2
        assert found[norm]["0"].high == pytest.approx(float(mean) + half, rel=1e-9)


@pytest.mark.parametrize("n", [1, 3])
def test_n_other_records_scale_the_sensitivity_by_one_over_one_plus_n(n):
    model, data = net("relu"), images(8)
    rows = torch.stack([torch.arange(n + 1), torch.arange(n, -1, -1)])
    among = norms(channel_of(model), Batch(data, rows))
    alone = norms(channel_of(model), Batch(data, rows[:, :1]))
    honest = [rows_of_jacobian(model, data.x[some], data.y[some]) for some in rows]
    for layer, names in layers_of(model).items():
        values = [entrywise(j, names) for j in honest]
        for norm in ("F", "1", "inf"):
            expected = (values[0][norm] + values[1][norm]) / 2
            assert among[norm][layer].value == pytest.approx(expected, rel=1e-9)
            assert among[norm][layer].value == pytest.approx(alone[norm][layer].value / (1 + n), rel=1e-12)


def test_relative_sensitivity_is_over_the_norm_of_the_mean_gradient():
    model, data = net("relu"), images(6)
    rows = torch.tensor([[0, 1, 2], [3, 4, 5]])
    found = sensitivity(channel_of(model), Batch(data, rows), relative=True)
    for layer, names in layers_of(model).items():
        ratios = []
        for some in rows:
            loss = F.cross_entropy(model(data.x[some]), data.y[some])
            g = torch.autograd.grad(loss, [model.get_parameter(name) for name in names])
            length = torch.cat([part.flatten() for part in g]).norm()
            jacobian = rows_of_jacobian(model, data.x[some], data.y[some])
            ratios.append(entrywise(jacobian, names)["F"] / float(length))
        assert found[layer].value == pytest.approx(sum(ratios) / 2, rel=1e-9)


def test_a_dead_layer_has_a_sensitivity_of_zero_and_no_nan():
    model, data = net("relu"), images(3)
    with torch.no_grad():
        model[4].bias.fill_(-1e6)  # nothing passes the second activation, nothing comes back
    for relative in (False, True):
        found = sensitivity(channel_of(model), Batch(data, torch.arange(3)[:, None]), relative=relative)
        for layer in ("0", "4"):
            assert (found[layer].value, found[layer].low, found[layer].high, found[layer].n) == (0, 0, 0, 3)
        # the last layer sees its own bias only, which no input moves, yet its gradient is not zero
        assert found["6"].value == 0


def test_trials_whose_gradient_is_zero_but_moves_are_left_out_and_counted():
    model = nn.Sequential(nn.Linear(3, 2, bias=False)).double()
    x = torch.tensor([[0.0, 0, 0], [1, 2, 3], [2, 0, 1]], dtype=torch.float64)
    data = Dataset(x, torch.tensor([0, 1, 0]), {})
    found = sensitivity(channel_of(model), Batch(data, torch.arange(3)[:, None]), relative=True)["0"]
    others = sensitivity(channel_of(model), Batch(data, torch.tensor([[1], [2]])), relative=True)["0"]
    assert (found.value, found.n) == (others.value, 2)
    assert "1 trials of a zero gradient left out" in found.method
    none = sensitivity(channel_of(model), Batch(data, torch.tensor([[0], [0]])), relative=True)["0"]
    assert (none.value, none.low, none.high, none.n) == (float("inf"), 0.0, float("inf"), 0)


def test_probing_is_unbiased_for_the_squared_norm_within_its_standard_error():
    model, data = net(), images(2)
    exact = entries(model, parameters(model), data.x, data.y).squares
    found = probed(model, parameters(model), data.x, data.y, probes=2_000, rng=seeded(0, "probes"))
    for name, draws in found.items():
        error = draws.std(1) / 2_000**0.5
        assert bool(((draws.mean(1) - exact[name]).abs() < 4 * error).all())
        assert bool((error / exact[name] < 0.05).all())  # so that the line above can fail


def test_probing_twice_as_long_the_direct_way_gives_each_probes_own_length():
    """‖J u‖² against the rows of J times the same signs."""
    model, data = net("relu"), images(1)
    jacobian = rows_of_jacobian(model, data.x, data.y)
    found = probed(model, parameters(model), data.x, data.y, probes=5, rng=seeded(3, "u"), budget=1)
    signs = 2 * torch.randint(2, (5, 72), generator=seeded(3, "u")).double() - 1
    for name, j in jacobian.items():
        torch.testing.assert_close(found[name][0], (j @ signs.mT).square().sum(0))


def test_the_error_of_probing_is_in_the_interval():
    """The same record in all trials: whatever width there is comes from the probes."""
    model, data = net("relu"), images(1)
    batch = Batch(data, torch.zeros(12, 1, dtype=torch.long))
    exact = sensitivity(channel_of(model), batch)
    for probes, most in ((4, 0.5), (256, 0.06)):
        found = sensitivity(channel_of(model), batch, probes=probes, rng=seeded(0, probes))
        for layer, estimate in found.items():
            truth = exact[layer].value
            assert 0 < estimate.high - estimate.low < most * truth
            assert estimate.value == pytest.approx(truth, rel=3 / probes**0.5)
            assert f"{probes} Hutchinson probes" in estimate.method


def test_drawn_columns_are_unbiased_for_sums_and_a_lower_bound_for_the_largest():
    model, data = net(), images(1)
    params, draws = parameters(model), 300
    x, y = data.x.expand(draws, -1, -1, -1), data.y.expand(draws)
    exact = entries(model, params, data.x, data.y)
    found = entries(model, params, x, y, columns=9, rng=seeded(0, "columns"))
    for name in params:
        for some, whole in ((found.sums, exact.sums), (found.squares, exact.squares)):
            error = float(some[name].std()) / draws**0.5
            assert abs(float(some[name].mean() - whole[name][0])) < 4 * error
        assert float(found.largest[name].max()) <= float(exact.largest[name][0]) * (1 + 1e-12)
        assert float(found.largest[name].min()) < float(exact.largest[name][0])


def test_all_columns_drawn_are_all_columns_and_drawn_ones_say_so():
    model, data = net("relu"), images(2)
    batch = Batch(data, torch.arange(2)[:, None])
    whole = norms(channel_of(model), batch)
    every = norms(channel_of(model), batch, columns=72, rng=seeded(0))
    some = norms(channel_of(model), batch, columns=5, rng=seeded(0))
    for norm in ("F", "1", "inf"):
        assert every[norm]["0"].value == pytest.approx(whole[norm]["0"].value, rel=1e-12)
        assert ("lower bound" in some[norm]["0"].method) == (norm == "inf")


def test_a_chunk_of_any_size_gives_the_same_norms():
    model, data = net("relu"), images(1)
    parts = [entries(model, parameters(model), data.x, data.y, budget=b) for b in (1, 10_000, 10**8)]
    for name in parameters(model):
        for part in parts[1:]:
            torch.testing.assert_close(part.sums[name], parts[0].sums[name], rtol=1e-12, atol=0)
            torch.testing.assert_close(part.squares[name], parts[0].squares[name], rtol=1e-12, atol=0)
            assert torch.equal(part.largest[name], parts[0].largest[name])


def test_float32_gives_float64_to_its_precision():
    model, data = net("relu"), images(3)
    batch = Batch(data, torch.arange(3)[:, None])
    single = Batch(Dataset(data.x.float(), data.y, {}), batch.rows)
    double = norms(channel_of(model), batch)
    for norm, layers in norms(channel_of(model.float()), single).items():
        for layer, estimate in layers.items():
            assert estimate.value == pytest.approx(double[norm][layer].value, rel=1e-5)


class Tokens(nn.Module):
    """Token ids, an embedding, their mean and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.fc = nn.Embedding(7, 4), nn.Linear(4, 3)

    def after(self, embedded: torch.Tensor) -> torch.Tensor:
        return self.fc(torch.tanh(embedded).mean(1))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.after(self.embed(ids))


def test_token_ids_are_moved_by_way_of_their_embeddings():
    torch.manual_seed(2)
    model = Tokens().double()
    ids, y = torch.tensor([[1, 2, 2, 5, 0], [6, 4, 1, 3, 3]]), torch.tensor([0, 2])
    found = norms(channel_of(model), Batch(Dataset(ids, y, {}), torch.tensor([[0], [1]])))
    assert "with respect to embeddings" in found["F"]["fc"].method
    expected = {"embed": [], "fc": []}
    for record, label in zip(ids, y, strict=True):
        moved = model.embed(record).detach()[None].requires_grad_()

        def slopes(e, record=record, label=label):
            loss = F.cross_entropy(model.after(e), label[None])
            at_tokens, *of_fc = torch.autograd.grad(
                loss, [e, model.fc.weight, model.fc.bias], create_graph=True
            )
            table = torch.zeros(7, 4, dtype=torch.float64).index_add(0, record, at_tokens[0])
            return table, torch.cat([part.flatten() for part in of_fc])

        for layer, j in zip(expected, torch.autograd.functional.jacobian(slopes, moved), strict=True):
            expected[layer].append(j.flatten())
    for layer, (a, b) in expected.items():
        assert found["F"][layer].value == pytest.approx(float(a.norm() + b.norm()) / 2, rel=1e-9)
        assert found["1"][layer].value == pytest.approx(float(a.abs().sum() + b.abs().sum()) / 2, rel=1e-9)
        assert found["inf"][layer].value == pytest.approx(float(a.abs().max() + b.abs().max()) / 2, rel=1e-9)


def test_token_ids_without_an_embedding_or_with_one_used_twice_are_refused():
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(3, 2)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.fc(ids.float())

    class Twice(Tokens):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.after(self.embed(ids) + self.embed(ids))

    ids = Dataset(torch.tensor([[1, 2, 0], [0, 1, 2]]), torch.tensor([0, 1]), {})
    for model, words in ((Counting(), "nn.Embedding"), (Twice(), "used 2 times")):
        refuses(ArgumentError, words, sensitivity, channel_of(model), Batch(ids, torch.tensor([[0], [1]])))


def test_noise_moves_no_derivative_and_a_defenses_loss_is_the_one_differentiated():
    class Doubled(Defense):
        def loss(self, loss):
            return lambda logits, y: 2 * loss(logits, y)

    model, batch = net("relu"), Batch(images(2), torch.arange(2)[:, None])
    plain = sensitivity(channel_of(model), batch)
    noised = sensitivity(channel_of(model, Chain(Noise(3.0), Within(Noise(1.0), ("0.weight",)))), batch)
    doubled = sensitivity(channel_of(model, Doubled()), batch)
    for layer, estimate in plain.items():
        assert noised[layer] == estimate
        assert doubled[layer].value == pytest.approx(2 * estimate.value, rel=1e-12)


@pytest.mark.parametrize("defense", [Pruning(0.5), Sign(), DPSGD(), Chain(Noise(1.0), Sign())])
def test_a_defense_that_changes_the_derivative_is_refused(defense):
    batch = Batch(images(2), torch.arange(2)[:, None])
    with pytest.raises(ArgumentError, match=r"derivative is not taken; use channel\.undefended\(\)"):
        sensitivity(channel_of(net(), defense), batch)


def test_the_model_the_records_and_the_randomness_of_others_are_left_as_they_were():
    model, data = net("relu"), images(3)
    before, x = parameters(model), data.x.clone()
    state = torch.random.get_rng_state()
    batch = Batch(data, torch.arange(3)[:, None])
    first, again = (sensitivity(channel_of(model), batch, probes=3, rng=seeded(5)) for _ in range(2))
    assert first == again
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(data.x, x)
    assert all(torch.equal(before[name], p) for name, p in model.named_parameters())
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize(
    ("words", "settings"),
    [
        ("sensitivity.norm must be 'F', '1' or 'inf', got 'fro'.", {"norm": "fro"}),
        ("sensitivity.probes must be None for the norm '1'", {"norm": "1", "probes": 4}),
        ("sensitivity.probes must be at least 1", {"probes": 0, "rng": seeded(0)}),
        ("columns must be at least 1", {"columns": 0, "rng": seeded(0)}),
        ("sensitivity.columns must be None where", {"columns": 3, "probes": 3, "rng": seeded(0)}),
        ("sensitivity.rng must be given", {"columns": 3}),
        ("sensitivity.level must be between 0 and 1", {"level": 1.0}),
    ],
)
def test_bad_settings_are_told_in_one_sentence(words, settings):
    batch = Batch(images(2), torch.arange(2)[:, None])
    refuses(ArgumentError, re.escape(words), sensitivity, channel_of(net()), batch, **settings)


def test_one_trial_and_a_channel_of_updates_are_refused():
    model, data = net(), images(2)
    with pytest.raises(ArgumentError, match="at least 2, as one has no interval, got 1"):
        sensitivity(channel_of(model), Batch(data, torch.tensor([[0, 1]])))
    updates = UpdateChannel(model, (parameters(model),), local=Local(epochs=1, batch=1, rate=0.1))
    with pytest.raises(ArgumentError, match="must release gradients, got UpdateChannel"):
        sensitivity(updates, Batch(data, torch.arange(2)[:, None]))
