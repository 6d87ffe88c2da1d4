"""Records from the row space of a first linear layer: found, proven, and never proven where they are not there."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from builders import refuses
from torch import nn
from torch.nn import functional as F

import leakscope as ls
from leakscope.attacks.certificates import needed, separated
from leakscope.attacks.encoding import Encoding
from leakscope.attacks.row_space import RowSpace
from leakscope.attacks.spans import Span, gradient_floor, kept_by_decay
from leakscope.attacks.tree import Tree
from leakscope.core.dataset import joined
from leakscope.core.errors import ArgumentError
from leakscope.core.nouns import CERTIFIED, NOT_FOUND, PLAUSIBLE, Release, View
from leakscope.core.rng import initialised
from leakscope.games import Reconstruction
from leakscope.games.channels import Summed
from leakscope.models import MLP, parameters
from leakscope.training import Local

SIZES, NUMBERS = (9, 7, 6, 5, 12), 3
LOCAL = Local(rate=0.1, batch=4, epochs=3, momentum=0.0, decay=0.0)


def table(n: int, seed: int) -> ls.Dataset:
    """Five categories and three numbers, one of them with few values."""
    rng = ls.seeded(seed, "table")
    codes = [torch.randint(size, (n,), generator=rng) for size in SIZES]
    numbers = torch.randn(n, NUMBERS, generator=rng)
    numbers[:, 0] = (3 * numbers[:, 0]).round() / 3
    x = torch.cat([*(F.one_hot(c, s).float() for c, s in zip(codes, SIZES, strict=True)), numbers], dim=1)
    columns, start = [], 0
    for i, size in enumerate(SIZES):
        values = tuple(map(str, range(size)))
        columns.append(ls.Column(f"kind {i}", start, start + size, values=values, standardised=False))
        start += size
    columns += [ls.Column(f"number {i}", start + i, start + i + 1) for i in range(NUMBERS)]
    y = torch.randint(3, (n,), generator=rng)
    return ls.Dataset(x, y, {}, name="table", columns=tuple(columns))


PUBLIC = table(200, 1)


def net(seed: int = 0, *, hidden: tuple[int, ...] = (64, 24), bias: bool = True) -> nn.Module:
    model = initialised(lambda: MLP(hidden)(PUBLIC), ls.seeded(seed, "net"))
    if not bias:
        assert isinstance(model, nn.Sequential)
        model[0].bias = None
    return model


def gradients(model: nn.Module, **settings) -> ls.GradientChannel:
    return ls.GradientChannel(model, (parameters(model),), **settings)


def uploads(model: nn.Module, local: Local = LOCAL, rounds: int = 1) -> ls.UpdateChannel:
    others = [initialised(lambda: MLP((64, 24))(PUBLIC), ls.seeded(9, r)) for r in range(1, rounds)]
    return ls.UpdateChannel(model, tuple(parameters(m) for m in (model, *others)), local=local)


def played(game, channel, attack=None, *, believed=None, trials: int = 3):
    knowledge = ls.Knowledge(game.on(PUBLIC), believed or channel)
    return ls.play(game, channel, attack or RowSpace(), knowledge, trials=trials, rng=ls.seeded(5))


def found(transcript) -> tuple[float, float, float]:
    return (
        ls.exact_records(transcript, PUBLIC).value,
        ls.certified_records(transcript, PUBLIC).value,
        ls.false_certificates(transcript, PUBLIC).value,
    )


# --- everything and nothing


@pytest.mark.parametrize("batch", [1, 2, 8])
def test_a_gradient_gives_every_record_away_with_a_proof(batch):
    assert found(played(Reconstruction(table(300, 2), batch=batch), gradients(net()))) == (1.0, 1.0, 0.0)


@pytest.mark.parametrize(
    "local",
    [LOCAL, replace(LOCAL, momentum=0.9, decay=0.01), replace(LOCAL, steps=1, batch=8, epochs=1)],
    ids=["sgd", "momentum and decay", "one step"],
)
def test_an_upload_gives_every_record_away(local):
    transcript = played(Reconstruction(table(300, 2), batch=8), uploads(net(), local))
    exact, certified, false = found(transcript)
    assert (exact, false) == (1.0, 0.0)
    assert certified > 0.5


def test_a_label_that_is_a_number_hides_no_record():
    """The slope is known up to a factor, which the record's own dual gives."""
    one, other = (
        replace(table(n, seed), y=torch.randn(n, generator=ls.seeded(n))) for n, seed in ((300, 2), (200, 1))
    )
    model = initialised(lambda: MLP((64, 24))(other), ls.seeded(0, "net"))
    game = Reconstruction(one, batch=8)
    knowledge = ls.Knowledge(game.on(other), gradients(model))
    transcript = ls.play(game, gradients(model), RowSpace(), knowledge, trials=3, rng=ls.seeded(5))
    assert found(transcript) == (1.0, 1.0, 0.0)


def test_decay_left_in_place_hides_the_records():
    """What is subtracted is what decay leaves: believing in another decay, nothing is certified."""
    real = uploads(net(), replace(LOCAL, decay=0.01))
    transcript = played(Reconstruction(table(300, 2), batch=8), real, believed=uploads(net(), LOCAL))
    assert found(transcript)[1:] == (0.0, 0.0)


def test_rounds_are_stacked_and_clients_may_hide_behind_a_sum():
    game = Reconstruction(table(300, 2), batch=8)
    for channel in (uploads(net(), rounds=2), gradients(net()), Summed(uploads(net()), 2)):
        exact, _, false = found(played(game, channel))
        assert (exact, false) == (1.0, 0.0)


def test_through_silence_nothing_is_found_or_certified():
    game = Reconstruction(table(300, 2), batch=4)
    for believed in (ls.Silent(), gradients(net()), uploads(net())):
        transcript = played(game, ls.Silent(), believed=believed)
        assert bool((transcript.status == NOT_FOUND).all())
        assert transcript.guesses.equal(game.on(PUBLIC).mean.expand_as(transcript.secrets))
        assert found(transcript)[1:] == (0.0, 0.0)


@pytest.mark.parametrize("defense", [ls.Noise(1.0), ls.Sign(), ls.DPSGD(clip=1.0, noise=1.0)], ids=repr)
def test_behind_much_noise_nothing_is_certified(defense):
    transcript = played(Reconstruction(table(300, 2), batch=6), gradients(net(), defense=defense))
    assert not bool((transcript.status == CERTIFIED).any())


def test_a_layer_of_zeros_gives_nothing_away():
    channel = gradients(net(), defense=ls.Withhold())
    transcript = played(Reconstruction(table(300, 2), batch=4), channel)
    assert bool((transcript.status == NOT_FOUND).all())


# --- data built to fool it


def batch_of(x: torch.Tensor, y: torch.Tensor) -> Reconstruction:
    """A game whose one batch these records are."""
    return Reconstruction(replace(table(len(x), 3), x=x, y=y), batch=len(x))


def copies(change: float, labels: tuple[int, int]) -> Reconstruction:
    """Six records, the last a copy of the first whose last number has changed."""
    data = table(6, 4)
    x, y = data.x.clone(), data.y.clone()
    x[5] = x[0]
    x[5, -1] += change
    y[[0, 5]] = torch.tensor(labels)
    return batch_of(x, y)


@pytest.mark.parametrize("channel", [gradients, uploads])
@pytest.mark.parametrize("change", [0.0, 1e-9, 1e-4, 0.2, 1.0])
@pytest.mark.parametrize("labels", [(0, 0), (0, 1)])
def test_copies_and_near_copies_are_never_wrongly_certified(channel, change, labels):
    transcript = played(copies(change, labels), channel(net()), trials=1)
    assert found(transcript)[2] == 0.0


def test_a_record_that_is_there_twice_is_given_twice():
    assert found(played(copies(0.0, (1, 1)), gradients(net()), trials=1)) == (1.0, 1.0, 0.0)


def crossing() -> Reconstruction:
    """Four records of all combinations of two differences, one of which is a combination of the others."""
    x = table(1, 5).x.repeat(4, 1)
    for row, (one, other) in enumerate(((0, 0), (0, 1), (1, 0), (1, 1))):
        x[row, :9], x[row, 9:16] = F.one_hot(torch.tensor(one), 9), F.one_hot(torch.tensor(other), 7)
    return batch_of(x, torch.tensor([0, 1, 2, 0]))


@pytest.mark.parametrize("channel", [gradients, uploads])
@pytest.mark.parametrize("left_out", [None, 0, 3])
def test_records_that_are_combinations_of_others_are_not_wrongly_certified(channel, left_out):
    """Three of them span the fourth: one-hot, in the row space, and perhaps not there."""
    game = crossing()
    if left_out is not None:
        rows = torch.tensor([i for i in range(4) if i != left_out])
        game = batch_of(game.data.x[rows], game.data.y[rows])
    transcript = played(game, channel(net()), trials=1)
    assert found(transcript)[2] == 0.0
    if left_out is not None and channel is gradients:
        assert found(transcript)[:2] == (1.0, 1.0)


def test_more_records_than_rank_are_not_certified():
    game = Reconstruction(table(300, 2), batch=40)
    for channel in (gradients(net(hidden=(8, 8))), uploads(net(hidden=(8, 8)))):
        transcript = played(game, channel, RowSpace(branches=2_000, tried=2_000), trials=2)
        assert not bool((transcript.status == CERTIFIED).any())


def test_constant_columns_change_nothing():
    def constant(data: ls.Dataset) -> ls.Dataset:
        x = data.x.clone()
        x[:, :9] = F.one_hot(torch.tensor(2), 9)
        x[:, -1] = 4.0
        return replace(data, x=x)

    game = Reconstruction(constant(table(300, 2)), batch=5)
    knowledge = ls.Knowledge(game.on(constant(PUBLIC)), gradients(net()))
    transcript = ls.play(game, knowledge.channel, RowSpace(), knowledge, trials=3, rng=ls.seeded(5))
    assert found(transcript) == (1.0, 1.0, 0.0)


def test_a_search_that_is_stopped_says_so_and_certifies_nothing():
    game, channel = Reconstruction(table(300, 2), batch=8), gradients(net())
    view, _ = game.deal(channel, 2, ls.seeded(5))
    recovery = RowSpace(branches=1).recover(ls.Knowledge(game.on(PUBLIC), channel), view, ls.seeded(0))
    assert recovery.stopped.all()
    assert bool((recovery.status == NOT_FOUND).all())
    assert recovery.ranks.tolist() == [8, 8]


def test_nothing_but_the_release_reaches_the_attack():
    """Other private records with the same release give the same records, and knowledge holds none of them."""
    game, channel = Reconstruction(table(300, 2), batch=4), gradients(net())
    knowledge = ls.Knowledge(game.on(PUBLIC), channel)
    assert not {*knowledge.game.data.hashes} & {*game.data.hashes}
    view, _ = game.deal(channel, 2, ls.seeded(4))
    copied = View(tuple(Release.of(dict(r.layers), r.params) for r in view.releases), view.public)
    said = RowSpace().recover(knowledge, view, ls.seeded(0)).records
    game.data.x.zero_()
    assert RowSpace().recover(knowledge, copied, ls.seeded(0)).records.equal(said)


# --- labels, scales, no bias


@pytest.mark.parametrize("channel", [gradients, uploads])
def test_labels_follow_once_records_are_known(channel):
    game, through = Reconstruction(table(300, 2), batch=6), channel(net())
    view, secrets = game.deal(through, 3, ls.seeded(6))
    recovery = RowSpace().recover(ls.Knowledge(game.on(PUBLIC), through), view, ls.seeded(0))
    apart = torch.cdist(secrets, recovery.records)
    assert apart.amin(2).max() < 1e-2
    assert recovery.labels.gather(1, apart.argmin(2)).equal(view.public["labels"])


def test_label_counts_are_said_where_no_record_is():
    game, channel = Reconstruction(table(300, 2), batch=8), gradients(net())
    view, _ = game.deal(channel, 3, ls.seeded(6))
    recovery = RowSpace(branches=1).recover(ls.Knowledge(game.on(PUBLIC), channel), view, ls.seeded(0))
    assert recovery.labels.sort(1).values.equal(view.public["labels"].sort(1).values)


def test_a_layer_without_a_bias_will_do_where_there_is_a_category():
    transcript = played(Reconstruction(table(300, 2), batch=6), gradients(net(bias=False)))
    assert found(transcript) == (1.0, 1.0, 0.0)


def test_numbers_as_they_are_will_do():
    """A number that has a mean and a spread of its own is found like one that was standardised."""

    def raw(data: ls.Dataset) -> ls.Dataset:
        x = data.x.clone()
        x[:, -1] = 4 * x[:, -1] + 6
        return replace(data, x=x)

    game, public = Reconstruction(raw(table(300, 2)), batch=4), raw(PUBLIC)
    knowledge = ls.Knowledge(game.on(public), gradients(net()))
    transcript = ls.play(game, knowledge.channel, RowSpace(), knowledge, trials=3, rng=ls.seeded(5))
    assert ls.exact_records(transcript, public).value == 1.0


def numbers(n: int, seed: int) -> ls.Dataset:
    rng = ls.seeded(seed, "numbers")
    return ls.Dataset(
        torch.randn(n, 40, generator=rng), torch.randint(3, (n,), generator=rng), {}, name="numbers"
    )


@pytest.mark.parametrize("batch", [1, 2, 6])
def test_records_without_categories_are_found_where_a_relu_layer_is_silent(batch):
    game, model = (
        Reconstruction(numbers(300, 1), batch=batch),
        initialised(lambda: MLP((64, 24))(numbers(9, 0)), ls.seeded(3)),
    )
    channel = gradients(model)
    transcript = ls.play(
        game,
        channel,
        RowSpace(samples=4_000),
        ls.Knowledge(game.on(numbers(200, 2)), channel),
        trials=2,
        rng=ls.seeded(5),
    )
    assert bool((transcript.status == CERTIFIED).all())
    assert torch.cdist(transcript.secrets, transcript.guesses).amin(2).max() < 1e-3


def test_without_a_silent_unit_records_without_categories_are_not_certified():
    game, model = (
        Reconstruction(numbers(300, 1), batch=4),
        initialised(lambda: MLP((64, 24), activation="tanh")(numbers(9, 0)), ls.seeded(3)),
    )
    channel = gradients(model)
    transcript = ls.play(
        game,
        channel,
        RowSpace(samples=2_000),
        ls.Knowledge(game.on(numbers(200, 2)), channel),
        trials=2,
        rng=ls.seeded(5),
    )
    assert bool((transcript.status == NOT_FOUND).all())


# --- the parts, against something independent


def test_the_tree_finds_what_trying_every_category_finds():
    data = table(5, 6)
    x = torch.cat([data.x, torch.ones(5, 1)], dim=1).double()
    weights = torch.randn(20, 5, generator=ls.seeded(0), dtype=torch.float64)
    span = Span.of(weights @ x, 1e-9)
    encoding = Encoding.of(PUBLIC, pinned=0)
    branches = Tree(0.02, 1e-3, 10_000).search(span.v, span.v[-1], encoding.groups, span.v.new_zeros(0, 5))
    grid = torch.cartesian_prod(*(torch.arange(s) for s in SIZES[:4]))
    wide = torch.cat([F.one_hot(grid[:, i], s) for i, s in enumerate(SIZES[:4])], dim=1).double()
    rows = torch.cat([span.v[:27], span.v[-1:]])
    wanted = torch.cat([wide, torch.ones(len(wide), 1)], dim=1)
    c = wanted @ torch.linalg.pinv(rows).T
    inside = ((c @ rows.T - wanted).abs().amax(1) < 0.02).nonzero()[:, 0]
    last = c[inside] @ span.v[27:39].T
    every = c[inside][((last - last.round()).abs().amax(1) < 0.02) & (last.round().abs().sum(1) == 1)]
    assert len(branches.points) == len(every) >= 5
    assert torch.cdist(branches.points, every).amin(1).max() < 1e-6


def test_what_is_kept_under_decay_is_what_torchs_sgd_keeps():
    local = replace(LOCAL, momentum=0.9, decay=0.05)
    weight = torch.ones(1, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.SGD([weight], lr=local.rate, momentum=local.momentum, weight_decay=local.decay)
    for _ in range(12):
        weight.grad = torch.zeros_like(weight)
        optimiser.step()
    assert kept_by_decay(local, 12) == pytest.approx(float(weight.detach()), rel=1e-12)


def test_a_candidate_is_needed_exactly_if_the_rest_span_less():
    points = torch.randn(9, 6, generator=ls.seeded(1), dtype=torch.float64)
    points[6:] = torch.rand(3, 3, generator=ls.seeded(2), dtype=torch.float64) @ points[:3]
    rest = [torch.linalg.matrix_rank(points[torch.arange(9) != i]) < 6 for i in range(9)]
    assert needed(points, 6, close=1e-6).tolist() == rest == [False] * 3 + [True] * 3 + [False] * 3
    assert not needed(points[1:3], 6, close=1e-6).any()
    assert not needed(points[[0, 1, 2, 6, 7, 8]], 6, close=1e-6).any()


def test_candidates_are_separated_only_by_a_clear_gap():
    points = torch.eye(3, dtype=torch.float64)[[0, 1, 2, 0]] + torch.tensor([[0.0], [0], [0], [1]])
    near, far = torch.tensor([1e-4, 2e-4, 1e-4, 0.3]), torch.tensor([1e-2, 2e-2, 5e-2, 0.3])
    settings = {"factor": 9.0, "far": 0.05, "close": 1e-3}
    assert separated(points, near, 3, **settings).tolist() == [True, True, True, False]
    assert not separated(points, far, 3, **settings).any()
    assert not separated(points, torch.full((4,), 1e-16), 3, **settings).any()


def test_a_gradients_rank_is_the_number_of_its_records():
    game, channel = Reconstruction(table(300, 2), batch=7), gradients(net())
    view, _ = game.deal(channel, 1, ls.seeded(5))
    layers = view.releases[0].layers
    matrix = torch.cat([layers["0.weight"][0], layers["0.bias"][0][:, None]], dim=1)
    assert Span.of(matrix, gradient_floor(matrix, torch.finfo(torch.float32).eps)).rank == 7


def test_a_sum_is_the_mean_of_its_clients():
    game, channel = Reconstruction(table(300, 2), batch=4), gradients(net())
    rows = torch.arange(8).view(2, 4)
    secret = torch.zeros(2, dtype=torch.long)
    whole, summed = (
        c(ls.Batch(game.data, rows), secret, ls.seeded(0))[0].layers for c in (channel, Summed(channel, 2))
    )
    for name, layer in whole.items():
        torch.testing.assert_close(summed[name], layer)


# --- the measures


def transcript_of(guesses, secrets, status) -> ls.Transcript:
    return ls.Transcript(secrets, guesses, torch.empty(0), status=status)


def test_measures_count_records_cells_and_false_certificates_by_hand():
    x = table(8, 7).x.view(2, 4, -1)
    guesses = x.flip(1).clone()
    guesses[0, 0, -1] += 1  # a number far off, in a record that is certified
    guesses[1, 1, :9] = guesses[1, 1, :9].roll(1)  # another category, in one that is not
    status = torch.tensor(
        [[CERTIFIED, CERTIFIED, PLAUSIBLE, PLAUSIBLE], [CERTIFIED, PLAUSIBLE, NOT_FOUND, CERTIFIED]]
    )
    transcript = transcript_of(guesses, x, status)
    assert ls.exact_records(transcript, PUBLIC).value == pytest.approx(6 / 8)
    assert ls.certified_records(transcript, PUBLIC).value == pytest.approx(3 / 8)
    assert ls.false_certificates(transcript, PUBLIC).value == pytest.approx(1 / 2)
    cells = ls.right_cells(transcript, PUBLIC)
    assert cells["all"][0].value == pytest.approx(62 / 64)
    assert cells["kind 0"][0].value == cells["number 2"][0].value == pytest.approx(7 / 8)
    modes = PUBLIC.x[:, :9].sum(0).argmax()
    assert cells["kind 0"][1].value == pytest.approx(float((x[..., :9].argmax(-1) == modes).double().mean()))
    near = x.clone()
    near[..., -1] += 0.02
    assert ls.exact_records(transcript_of(near, x, status), PUBLIC).value == 1.0
    assert ls.exact_records(transcript_of(near, x, status), PUBLIC, within=0.01).value == 0.0
    nothing = torch.full_like(x, torch.nan)
    assert ls.right_cells(transcript_of(nothing, x, status), PUBLIC)["all"][0].value == 0.0


def test_an_interval_counts_a_batch_as_one_trial():
    x = table(40, 7).x.view(10, 4, -1)
    estimate = ls.exact_records(transcript_of(x, x, torch.full((10, 4), CERTIFIED)), PUBLIC)
    assert (estimate.value, estimate.high, estimate.n) == (1.0, 1.0, 10)
    assert estimate.low == pytest.approx(0.025 ** (1 / 10))
    none = ls.false_certificates(transcript_of(x, x, torch.full((10, 4), CERTIFIED)), PUBLIC)
    assert (none.value, none.low) == (0.0, 0.0)
    assert none.high == pytest.approx(3.689 / 10, rel=1e-3)


# --- bad input


def test_what_cannot_be_read_is_refused_in_a_sentence():
    game, model = Reconstruction(table(300, 2), batch=4), net()
    conv = nn.Sequential(nn.Unflatten(1, (1, -1)), nn.Conv1d(1, 2, 3), nn.Flatten(), nn.Linear(80, 3))
    scaled = nn.Sequential(nn.Tanh(), *net())
    refuses(ArgumentError, "first layer is linear", played, game, gradients(conv))
    refuses(ArgumentError, "takes the record as it is", played, game, gradients(scaled))
    adam = uploads(model, Local(rate=0.01, batch=4, optimiser="adam"))
    refuses(ArgumentError, "optimiser = 'adam'", played, game, adam)
    bare = Reconstruction(replace(table(300, 2), columns=()), batch=4)
    knowledge = ls.Knowledge(bare, uploads(model))
    refuses(
        ArgumentError,
        "of tables with categories",
        RowSpace().recover,
        knowledge,
        bare.deal(uploads(model), 1, ls.seeded(0))[0],
        ls.seeded(0),
    )
    refuses(ArgumentError, r"RowSpace.branches must be at least 1, got 0", RowSpace, branches=0)
    refuses(
        ArgumentError, "must divide the records behind a release", played, game, Summed(uploads(model), 3)
    )
    view, _ = game.deal(gradients(model), 1, ls.seeded(0))
    layers, params = dict(view.releases[0].layers), view.releases[0].params
    knowledge = ls.Knowledge(game.on(PUBLIC), gradients(model))
    for spoiled, words in (
        (layers["0.weight"] * torch.nan, "must be finite, got 'nan or inf'"),
        (layers["0.weight"][:, :5], r"of the model's shape, \(64, 42\)"),
    ):
        other = View((Release.of({**layers, "0.weight": spoiled}, params),), view.public)
        refuses(ArgumentError, words, RowSpace().recover, knowledge, other, ls.seeded(0))


def test_an_upload_of_another_model_is_not_certified():
    game = Reconstruction(table(300, 2), batch=4)
    view, _ = game.deal(uploads(net(1)), 2, ls.seeded(0))
    layers = {name: part + 1e-3 * parameters(net(2))[name] for name, part in view.releases[0].layers.items()}
    other = View((Release.of(layers, parameters(net(0))),), view.public)
    recovery = RowSpace().recover(ls.Knowledge(game.on(PUBLIC), uploads(net(0))), other, ls.seeded(0))
    assert not bool((recovery.status == CERTIFIED).any())


def test_public_and_private_may_be_joined_without_a_change():
    """More public records add nothing that a proof rests on."""
    game, channel = Reconstruction(table(300, 2), batch=6), gradients(net())
    more = joined([PUBLIC, table(200, 8)])
    view, _ = game.deal(channel, 2, ls.seeded(5))
    found = [
        RowSpace().recover(ls.Knowledge(game.on(p), channel), view, ls.seeded(0)).status
        for p in (PUBLIC, more)
    ]
    assert found[0].equal(found[1])


# --- where categories fix too little


def loose_table() -> tuple[ls.Dataset, ls.Dataset]:
    """Private and public records of two categories and four numbers that no two records share."""
    kinds, rng = ((6, "abcdef"), (5, "vwxyz")), ls.seeded(4)
    parts, columns, start = [], [], 0
    for size, names in kinds:
        parts.append(F.one_hot(torch.randint(size, (500,), generator=rng), size).float())
        columns.append(ls.Column(names, start, start + size, values=tuple(names), standardised=False))
        start += size
    columns += [ls.Column(f"number {i}", start + i, start + i + 1) for i in range(4)]
    x = torch.cat([*parts, torch.randn(500, 4, generator=rng)], dim=1)
    y = torch.randint(3, (500,), generator=rng)
    data = ls.Dataset(x, y, {}, name="loose", columns=tuple(columns))
    return data.take(torch.arange(250)), data.take(torch.arange(250, 500))


def play_loose(private: ls.Dataset, public: ls.Dataset, attack: RowSpace) -> tuple[float, float]:
    """The share that is certified, and false certificates, of batches of 10."""
    model = initialised(lambda: MLP((128, 64))(public), ls.seeded(0, "net"))
    game, channel = Reconstruction(private, batch=10), gradients(model)
    knowledge = ls.Knowledge(game.on(public), channel)
    transcript = ls.play(game, channel, attack, knowledge, trials=4, rng=ls.seeded(5))
    certified, false = ls.certified_records, ls.false_certificates
    return certified(transcript, public).value, false(transcript, public).value


def test_units_that_are_silent_fix_numbers_that_no_public_record_has():
    certified, false = play_loose(*loose_table(), RowSpace(silent=8_000))
    assert certified > 0.9
    assert false == 0
    assert play_loose(*loose_table(), RowSpace(silent=0))[0] < 0.5


@pytest.mark.parametrize("apart", [0.0, 0.06, 0.2])
def test_silent_units_of_records_that_are_alike_prove_none_wrongly(apart):
    private, public = loose_table()
    alike = private.take(torch.arange(14).repeat(8))
    moved = apart * torch.randn(len(alike), 4, generator=ls.seeded(6))
    alike = replace(alike, x=torch.cat([alike.x[:, :11], alike.x[:, 11:] + moved], dim=1))
    certified, false = play_loose(alike, public, RowSpace(silent=8_000))
    assert certified > 0
    assert false == 0


# --- noise


@pytest.mark.parametrize("share", [1e-6, 1e-5, 1e-4])
def test_a_record_that_hardly_moved_the_gradient_is_not_said_to_be_absent(share):
    """Rounding moves it further from whole categories than the search allows: it did not end by itself."""
    model = net(hidden=(128, 64))
    game, channel = Reconstruction(table(300, 2), batch=6), gradients(model)
    view, secrets = Reconstruction(table(300, 2), batch=1).deal(channel, 6 * 8, ls.seeded(7))
    weights = torch.tensor([1.0] * 5 + [share])
    layers = {
        name: torch.einsum("tk...,k->t...", layer.view(8, 6, *layer.shape[1:]), weights) / 6
        for name, layer in view.releases[0].layers.items()
    }
    release = Release.of(layers, view.releases[0].params)
    recovery = RowSpace().recover(ls.Knowledge(game.on(PUBLIC), channel), View((release,)), ls.seeded(0))
    near = torch.cdist(secrets.view(8, 6, -1), recovery.records).amin(2) < 0.05
    assert not bool((recovery.ended & ~near.all(1)).any())


@pytest.mark.parametrize("seed", [112, 114])
def test_a_certificate_allows_for_the_noise_that_moves_numbers(seed):
    """Categories come through noise; numbers that follow from them may not, and are then not certified."""
    data = ls.load("heart")
    train, others, public = data.split(ls.seeded(seed, "split"), train=460, public=230)
    model = initialised(lambda: MLP((256, 128))(train), ls.seeded(seed, "net"))
    game, plain = Reconstruction(others, batch=12), gradients(model)
    layers = game.deal(plain, 1, ls.seeded(seed, "x"))[0].releases[0].layers
    rms = float(torch.cat([layer.flatten() for layer in layers.values()]).square().mean().sqrt())
    channel = gradients(model, defense=ls.Noise(3e-4 * rms))
    knowledge = ls.Knowledge(game.on(public), channel)
    transcript = ls.play(game, channel, RowSpace(), knowledge, trials=6, rng=ls.seeded(seed, "deal"))
    assert ls.certified_records(transcript, public).value > 0.5
    assert ls.false_certificates(transcript, public).value == 0


def test_a_direction_of_noise_does_not_lead_the_search_for_an_upload_astray():
    """As records leave it that hardly moved the model: all others are in the space, up to small errors."""
    x = table(14, 9).x.double()
    rows = torch.linalg.svd(torch.cat([x, torch.ones(14, 1)], dim=1), full_matrices=False)[2]
    rng = ls.seeded(0, "noise")
    rough = torch.cat([rows, torch.randn(1, rows.shape[1], generator=rng, dtype=torch.float64)])
    rough = rough + 1e-4 * torch.randn(rough.shape, generator=rng, dtype=torch.float64)
    v = torch.linalg.qr(rough.T)[0]
    groups = Encoding.of(PUBLIC, pinned=0).groups

    def found(tolerance: float, *, settled: bool) -> int:
        tree = Tree(tolerance, 1e-3, 50_000, settled=settled)
        branches = tree.search(v, v[-1], groups, v.new_zeros(0, v.shape[1]))
        near = torch.cdist(x[:, :39], branches.points @ v[:39].T)
        return int((near.amin(1) < 0.3).sum())

    assert found(0.02, settled=True) == 14
    assert found(0.02, settled=True) >= found(0.02, settled=False)
